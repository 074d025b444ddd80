"""The gallery's pages, made when the site is built: one for each op of specs/, with its formula, spec, graph, kernel, accuracy,
speed and gradient, from the spec, the generated module, what `codegen explain` knows, and benchmarks/*.json."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from codegen.explain.report import explain
from codegen.explain.svg import draw
from codegen.explain.tables import size_text, time_text
from codegen.language.sizes import bench_shapes, default_shape
from codegen.pipeline import read_op
from codegen.plan.op import Op
from docs.site.formula import Formula

ROOT = Path(__file__).parent.parent.parent
KINDS = {
    "elementwise": "Element-wise",
    "row": "Along rows",
    "column": "Over rows",
    "row+column": "Along rows and over them",
    "scan": "Scans",
    "gemm": "Matrix products",
    "staged": "Several kernels",
}
GPU = "H100 SXM"


def pages() -> Iterator[tuple[str, str]]:
    """Paths below docs/ and their contents: pages in Markdown, graphs as SVG."""
    ops = [read_op(path) for path in sorted((ROOT / "specs").glob("*.yaml"))]
    yield "ops/index.md", index(ops)
    for op in ops:
        yield f"ops/{op.spec.op}.md", page(op)
        yield f"ops/{op.spec.op}.svg", draw(op)


def index(ops: Iterable[Op]) -> str:
    ops = list(ops)
    lines = [
        "# Gallery",
        "",
        f"The library has {len(ops)} ops. Each page shows the op's formula, spec, graph, generated kernel, accuracy, speed and "
        "gradient. It is made from the spec when this site is built.",
    ]
    for kind, title in KINDS.items():
        lines += ["", f"## {title}", "", "| op | what it does |", "|---|---|"]
        lines += [
            f"| [{op.spec.op}]({op.spec.op}.md) | {cell(op.spec.summary)} |" for op in ops if op.plan.kind == kind
        ]
    return "\n".join(lines) + "\n"


def page(op: Op) -> str:
    name = op.spec.op
    shape = (bench_shapes(op.spec) or [default_shape(op.spec)])[0]
    report = explain(op, shape)
    module = (ROOT / f"generated/{name}.py").read_text()
    sections = [
        f"# {name}\n\n{op.spec.summary}",
        f"## Formula\n\n{formulas(op, op.spec.chain.value)}",
        f"## Spec\n\n{fenced('yaml', (ROOT / f'specs/{name}.yaml').read_text(), f'specs/{name}.yaml')}",
        f"## Call\n\n{fenced('python', signature(module))}",
        f"## Graph\n\n[![The graph of {name}]({name}.svg)]({name}.svg){{ .graph }}",
        f"## Plan\n\n{plan(report)}",
        f"## Accuracy\n\n{accuracy(op)}",
        f"## Speed\n\n{speed(op, report)}",
        f"## Gradient\n\n{gradient(op, report)}",
        f"## Kernel {{ data-search-exclude }}\n\n{kernels(name, module)}",
    ]
    return "\n\n".join(sections) + "\n"


def formulas(op: Op, chain: str) -> str:
    arrays = {a.name: a for a in op.spec.inputs}
    written = Formula(arrays, [axis for a in op.spec.outputs for axis in a.axes]).statements(chain)
    return "\n\n".join(f"```math\n{text}\n```" for text in written)


def signature(module: str) -> str:
    """The function as it is defined, with its docstring."""
    return module[module.rindex("\ndef ") + 1 :].rstrip()


def plan(report: dict[str, Any]) -> str:
    cost = typical(report["costs"])
    sizes = ", ".join(f"{axis} = {size}" for axis, size in report["shape"].items())
    rows = [
        ("kind", report["why"]),
        ("shape", sizes),
        ("types", types_text(cost["types"])),
        ("kernels", f"{report['kernels']['fused']}; one for each operation would be {report['kernels']['unfused']}"),
        ("bytes moved", f"{size_text(cost['bytes']['fused'])}; with one kernel for each operation {size_text(cost['bytes']['unfused'])}"),
    ]  # fmt: skip
    if (least := cost["roofline_us"].get(GPU)) is not None:
        rows.append((f"least time on an {GPU}", time_text(least)))
    if how := (cost.get("main_loop") or {}).get("why"):
        rows.append(("on sm_90a", how))
    arrays = [
        (a["array"], a["type"], "writes" if a["stored"] else "reads", a["how"])
        for a in report["accesses"]
        if a["array"]
    ]
    return table(("", "at the first shape of its spec"), rows) + "\n\n" + table(("array", "type", "", "how"), arrays)


def accuracy(op: Op) -> str:
    """What tests allow, and what was measured."""
    name, lines = op.spec.op, []
    allowed = {"auto": "`math: auto`", "precise": "`math: precise`", "fast": "`math: fast`"}[op.spec.math]
    if op.spec.tolerance:
        given = dict(op.spec.tolerance)
        lines.append(
            "The spec sets the tolerance of its tests: " + ", ".join(f"{k} {v}" for k, v in given.items() if v) + "."
        )
    else:
        lines.append(
            f"The tests derive the allowed error for each element from the chain, with {allowed}: what float32 arithmetic can do "
            "to it, and one rounding to the output's type ([how ops are tested](../testing.md))."
        )
    every = [(kind, errors[name]) for kind, errors in results("accuracy.json").items() if name in errors]
    for kind, error in every:
        lines.append(
            f"\nOver every {kind.split(',')[0].split()[-1]} that there is, the largest error is {error:g} ulp."
        )
    compared = [r for r in results("interpreter.json") if r["op"] == name]
    if compared:
        rows = [
            (types_text(r["types"]), f"{r['equal']:,}", f"{r['differing']:,}", f"{r['beyond']:,}")
            for r in compared
            if "equal" in r
        ]
        lines.append("\nAn H100 and the interpreter, on the same inputs with special values among them:\n")
        heads = ("types", "results with equal bits", "different within PTX's bounds", "beyond them")
        lines.append(table(heads, rows, right=1))
    return "\n".join(lines)


def speed(op: Op, report: dict[str, Any]) -> str:
    name = op.spec.op
    rows = []
    for file in ("library", "int8", "folds", "awkward", "short_rows", "long_rows", "backward"):
        results_of = results(f"{file}.json")["measurements"]
        rows += [speed_row(m, m["us"].get("copy")) for m in results_of if belongs(m["op"], name) and "us" in m]
    for m in results("gemm_sustained.json")["rows"]:
        if m["op"] == name:
            shape = {"M": m["M"], "K": m["K"], "N": m["N"]}
            rows.append(speed_row({**m, "shape": shape, "types": {"T": "bfloat16"}}, m["us"].get("matmul")))
    if not rows:
        return (
            f"Not measured yet. `codegen bench {name}` times it on your GPU, and `codegen explain {name}` says what memory's "
            "speed allows."
        )
    of = "the product alone" if report["kind"] == "gemm" else "a copy of as many bytes"
    heads = ("kernel", "shape", "types", "time", "XLA", "over XLA", "of the limit")
    return f"On an NVIDIA H100. The limit is {of}.\n\n" + table(heads, rows, right=3)


def belongs(measured: str, name: str) -> bool:
    return measured in (name, f"{name}_backward", f"{name}_frozen")


def speed_row(m: dict[str, Any], limit: float | None) -> tuple[str, ...]:
    ours, xla = m["us"]["ours"], m["us"]["xla"]
    kernel = {"backward": "backward", "frozen": "backward of rows alone"}.get(m["op"].rpartition("_")[2], "forward")
    shape = ", ".join(f"{axis} = {size}" for axis, size in m["shape"].items())
    part = f"{limit / ours:.2f}" if limit else ""
    return kernel, shape, types_text(m["types"]), time_text(ours), time_text(xla), f"{xla / ours:.2f}x", part


def gradient(op: Op, report: dict[str, Any]) -> str:
    made = report["backward"]
    if op.spec.grad == "none":
        return "The spec says `grad: none`: asking for a gradient is an error."
    if made is None:
        return "No input is floating, so there is no gradient."
    if not made["kernel"]:
        return f"No kernel computes it, so the `jnp` form is differentiated: {made['why']}."
    saved = report["saved"]
    lines = [
        f"Generated with the op. Saved for it: {', '.join(f'`{n}`' for n in saved['names'])} ({saved['why']}).",
        "",
    ]
    lines += [formulas(op, "\n".join(made["chain"])), "", f"Its kernel is of the kind {made['why']}."]
    if made.get("frozen") and made["frozen"]["kernel"]:
        names = ", ".join(f"`{n}`" for n in made["frozen"]["without"])
        lines += ["", f"Where no gradient of {names} is requested, a kernel without it runs."]
    return "\n".join(lines)


def kernels(name: str, module: str) -> str:
    """The generated module from its chain on, in two parts: the forward kernel, and what is generated for the gradient."""
    body = module[module.index("\n}\n\n\n", module.index("SPEC = ")) + 5 :]
    split = re.search(rf"^(?:@cute\.\w+\n)?def {name}_(?:backward|frozen|forward)_", body, re.MULTILINE)
    forward, rest = (body[: split.start()], body[split.start() :]) if split else (body, "")
    parts = [f'??? example "generated/{name}.py: forward"\n\n{indented(fenced("python", forward.strip()))}']
    if rest:
        parts.append(f'??? example "generated/{name}.py: gradient"\n\n{indented(fenced("python", rest.strip()))}')
    return "\n\n".join(parts)


# Markdown


def table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]], right: int = 99) -> str:
    line = "|".join("---:" if place >= right else "---" for place in range(len(heads)))
    return "\n".join([f"| {' | '.join(heads)} |", f"|{line}|", *(f"| {' | '.join(map(cell, row))} |" for row in rows)])


def cell(text: str) -> str:
    """Text as it is in a table: no marks of Markdown or HTML."""
    return re.sub(r"([\\|*_<>\[\]`])", r"\\\1", text)


def fenced(language: str, text: str, title: str = "") -> str:
    return f"```{language}" + (f' title="{title}"' if title else "") + f"\n{text.rstrip()}\n```"


def indented(text: str) -> str:
    return "\n".join(f"    {line}" if line else "" for line in text.split("\n"))


def types_text(types: dict[str, str]) -> str:
    return " ".join(dtype if len(types) == 1 else f"{name}={dtype}" for name, dtype in types.items()) or "as written"


def typical(costs: list[dict[str, Any]]) -> dict[str, Any]:
    return next((cost for cost in costs if "bfloat16" in cost["types"].values()), costs[0])


@cache
def results(name: str) -> Any:
    return json.loads((ROOT / "benchmarks" / name).read_text())
