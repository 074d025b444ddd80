"""Draws the charts of the measurements that are kept here again, with no GPU: python benchmarks/charts.py

Each NAME.json that `codegen bench` wrote has its NAME.png. overview.png is the README's: the library's forward kernels,
their generated backwards and the products with their epilogues, each at the first shape of its spec.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from codegen.errors import SpecError
from codegen.measuring.times.measurement import Measurement
from codegen.measuring.times.plot import Bar, chart, write_charts
from codegen.measuring.times.results import from_json
from codegen.pipeline import read_op

HERE = Path(__file__).parent
PRODUCTS = ("dense_relu", "dense_gelu", "dense_silu_residual", "dense_swiglu_pairs", "matmul_dgelu")


def main() -> None:
    for path in sorted(HERE.rglob("*.json")):
        results = json.loads(path.read_text())
        if isinstance(results, dict) and "op" in results.get("measurements", [{}])[0]:
            measured, where = from_json(results)
            write_charts([of_kind(m) for m in measured], where, path.parent, path.stem)
    forward, backward = measurements("library.json"), measurements("backward.json")
    newer = {m.op: m for m in measurements("int8.json")}
    rows = [bar(m, m.kind) for m in first(newer.get(m.op, m) for m in forward) if not m.op.startswith("d")]
    rows += [bar(m, "generated backward") for m in first(backward) if m.op.endswith("_backward")]
    rows += products()
    title = "NVIDIA H100 80GB HBM3, bfloat16. The limit: a copy of as many bytes; for a dense layer its product alone."
    chart(rows, title, HERE / "overview.png")


def measurements(name: str) -> list[Measurement]:
    return [of_kind(m) for m in from_json(json.loads((HERE / name).read_text()))[0]]


def of_kind(m: Measurement) -> Measurement:
    """With the kind of its kernel, where it was measured before kinds were kept."""
    name = m.op.removesuffix("_backward").removesuffix("_frozen")
    try:
        return replace(
            m, kind="generated backward" if name != m.op else read_op(HERE.parent / f"specs/{name}.yaml").plan.kind
        )
    except SpecError:  # the library has it no more
        return m


def first(measured: Iterable[Measurement]) -> list[Measurement]:
    """The first measurement of each op: at the first shape of its spec."""
    return list({m.op: m for m in reversed(list(measured))}.values())[::-1]


def bar(m: Measurement, group: str) -> Bar:
    return Bar(group, m.op.removesuffix("_backward"), m.over_xla, m.of_limit)


def products() -> list[Bar]:
    """Products with their epilogues, in turns long enough for the clock to settle, at 8192 x 8192 and K = 1024 and 8192."""
    rows = json.loads((HERE / "gemm_sustained.json").read_text())["rows"]
    return [
        Bar("dense layer, 8192 x 8192", f"{r['op']}  K = {r['K']}", r["us"]["xla"] / r["us"]["ours"],
            r["us"]["matmul"] / r["us"]["ours"])
        for r in rows
        if r["op"] in PRODUCTS and r["M"] == r["N"] == 8192 and r["K"] in (1024, 8192)
    ]  # fmt: skip


if __name__ == "__main__":
    main()
