"""Counts where a GPU and the interpreter give the same bits, for every op and combination of types:

    python tests/gpu/compare_interpreter.py OUT.json [first [step]]

NaN equals NaN. Elements may differ where a kernel uses approximate functions (ex2, rcp, ...), whose results PTX only
bounds; those kernels are marked.
"""

import json
import re
import sys
from pathlib import Path

import jax
import numpy as np

import generated
from codegen.runtime import draw
from codegen.runtime.compile import Variant, bindings, compile_kernel
from codegen.runtime.platform import current_arch

first, step = (int(sys.argv[2]), int(sys.argv[3])) if len(sys.argv) > 3 else (0, 1)
APPROXIMATE = re.compile(r"\b(ex2|lg2|rcp|rsqrt|sqrt|tanh|sin|cos|div)\.(approx|full)")
rows = []
for name in generated.__all__[first::step]:
    op = getattr(generated, name)
    axes = [axis for axis in op.spec.axes if axis != "..."]
    small = {axis: op.spec.extents.get(axis, 3) for axis in axes}
    params = tuple((p.name, 1 if p.default is None else p.default) for p in op.spec.params)
    for types in bindings(op.spec):
        equal = differing = 0
        worst = 0.0
        ptx = compile_kernel(op, Variant(types, ragged=False), current_arch() or "sm_90a").ptx
        for seed, inner in enumerate((1024, 1021)):
            extents = {**small, **({axes[-1]: inner} if axes else {})}
            case = draw.Case(
                types, (17,) if "..." in op.spec.axes else (), tuple(extents.items()), (), params, True, 3.0, seed
            )
            with jax.enable_x64(True):
                args, keywords = draw.operands(op, case, draw.arrays(op, case))
                ours = op(*args, **keywords, implementation="interpret")
                theirs = op(*args, **keywords, implementation="cute")
            pairs = zip(ours, theirs, strict=True) if len(op.spec.outputs) > 1 else [(ours, theirs)]
            for a, b in pairs:
                x, y = np.asarray(a), np.asarray(b)
                with np.errstate(all="ignore"):
                    fx, fy = x.astype(np.float64), y.astype(np.float64)
                    same = (x.view(f"u{x.itemsize}") == y.view(f"u{y.itemsize}")) | (np.isnan(fx) & np.isnan(fy))
                    equal, differing = equal + int(same.sum()), differing + int((~same).sum())
                    gap = np.where(same, 0, np.abs(fx - fy) / np.maximum(np.abs(fy), 1e-30))
                worst = max(worst, float(np.max(gap, initial=0)))
        rows.append({"op": name, "types": dict(types.variables), "equal": equal, "differing": differing,
                     "worst_relative": worst, "approximate": bool(APPROXIMATE.search(ptx))})  # fmt: skip
        print(rows[-1], flush=True)
Path(sys.argv[1]).write_text(json.dumps(rows, indent=1))
