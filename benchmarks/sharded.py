"""Ops on arrays whose rows lie on several GPUs: right, with how many collectives, and how much faster than on one.

    python benchmarks/sharded.py                     # on a machine with two GPUs or more; writes benchmarks/sharded.json
    python benchmarks/sharded.py --cpu --out /tmp    # the same program, small, on two devices that the CPU stands for

Exit status 1 where a result is wrong or a collective too many. A time is the median of groups of calls queued back to
back; one GPU does all the rows that the others share.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--cpu", action="store_true", help="devices that the CPU stands for, small arrays")
parser.add_argument("--devices", type=int, default=2)
parser.add_argument("--rows", type=int)
parser.add_argument("--columns", type=int, default=4096)
parser.add_argument("--out", type=Path, default=Path(__file__).parent)
options = parser.parse_args()
if options.cpu:  # before JAX starts
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={options.devices}"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec  # noqa: E402

import cutefuse  # noqa: E402
from codegen.measuring.times import bench  # noqa: E402

ROWS = options.rows or (64 if options.cpu else 65536)
P = PartitionSpec
COLLECTIVES = "all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute"


@dataclass(frozen=True)
class Case:
    """A function of (..., implementation), the same in plain jnp, its operands (sharded along rows, or not) and the
    collectives it may need."""

    name: str
    ours: Callable
    plain: Callable
    operands: tuple[tuple[tuple[int, ...], PartitionSpec], ...]
    collectives: dict[str, int]


def backward(f: Callable) -> Callable:
    def pull(dy, x, w, **keywords):
        return jax.vjp(lambda x, w: f(x, w, **keywords), x, w)[1](dy)

    return pull


X, W = ((ROWS, options.columns), P("rows")), ((options.columns,), P())
g = cutefuse
CASES = (
    Case("rmsnorm", g.rmsnorm, g.rmsnorm.reference, (X, W), {}),
    Case("rmsnorm, its backward", backward(g.rmsnorm), backward(g.rmsnorm.reference), (X, X, W), {"all-reduce": 1}),
    Case("drmsnorm", g.drmsnorm, g.drmsnorm.reference, (X, X, W), {"all-reduce": 1}),
    Case("bias_grad", g.bias_grad, g.bias_grad.reference, (X,), {"all-reduce": 1}),
    Case("column_max", g.column_max, g.column_max.reference, (X,), {"all-reduce": 1}),
    Case("full_sum_squares", g.full_sum_squares, g.full_sum_squares.reference, (X,), {"all-reduce": 1}),
)


def operands(case: Case, place: Callable) -> list[jax.Array]:
    made = []
    for i, (shape, spec) in enumerate(case.operands):
        value = jax.random.normal(jax.random.key(i), shape).astype(jnp.bfloat16)
        made.append(place(value, spec))
    return made


def difference(got, expected) -> float:
    """The largest, as a part of the largest value."""
    worst = 0.0
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        worst = max(worst, float(np.max(np.abs(a - b)) / max(np.max(np.abs(b)), 1e-30)))
    return worst


def run(case: Case, kind: AxisType) -> dict:
    devices = jax.devices()[: options.devices]
    mesh = Mesh(np.array(devices), ("rows",), axis_types=(kind,))
    shared = operands(case, lambda x, spec: jax.device_put(x, NamedSharding(mesh, spec)))
    alone = operands(case, lambda x, spec: jax.device_put(x, devices[0]))
    ours, xla = (jax.jit(lambda *xs, i=i: case.ours(*xs, implementation=i)) for i in (None, "xla"))
    compiled = ours.lower(*shared).compile()
    found = dict(Counter(re.findall(rf" ({COLLECTIVES})(?:-start)?\(", compiled.as_text())))
    kernels = compiled.as_text().count("CuteDSL")
    error = difference(ours(*shared), jax.jit(case.plain)(*alone))
    times = bench.measure(
        {
            "sharded": lambda i: ours(*shared),
            "one device": lambda i: ours(*alone),
            "sharded, XLA": lambda i: xla(*shared),
        }
    )
    us = {name: round(statistics.median(groups), 2) for name, groups in times.items()}
    row = {
        "case": case.name,
        "mesh": kind.name,
        "operands": [list(shape) for shape, _ in case.operands],
        "collectives": found,
        "kernels": kernels,
        "difference": error,
        "us": us,
        "times as fast as one device": round(us["one device"] / us["sharded"], 3),
        "over XLA": round(us["sharded, XLA"] / us["sharded"], 3),
    }
    # sums over many rows in another order, then one rounding to bfloat16
    row["right"] = error < 2.0**-6 and found == case.collectives
    return row


def main() -> int:
    if len(jax.devices()) < options.devices:
        print(f"needs {options.devices} devices; JAX has {len(jax.devices())}", file=sys.stderr)
        return 2
    rows = [run(case, AxisType.Auto) for case in CASES] + [run(CASES[1], AxisType.Explicit)]
    for row in rows:
        times = ", ".join(f"{name} {value:.1f} us" for name, value in row["us"].items())
        print(f"{row['case']} ({row['mesh']}): {'right' if row['right'] else 'WRONG'}, {row['collectives']}, {times}")
    result = {"machine": bench.machine() | {"devices": str(options.devices)}, "measurements": rows}
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "sharded.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(path)
    return 0 if all(row["right"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
