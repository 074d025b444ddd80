"""Runs every op's kernels once, for a checker to watch: memcheck, initcheck, racecheck or synccheck; and their generated
backwards. The longest rows are those of clusters, the shortest of a thread, which has several.

compute-sanitizer --tool memcheck --report-api-errors no python tests/gpu/sanitize.py [first [step] | OP ...]
"""

import sys

import jax

import generated
from codegen.checking import draw
from codegen.runtime.call.arguments import all_types
from tests.pulling import with_gradients

words = sys.argv[1:] or ["0"]
names = generated.__all__[int(words[0]) :: int(words[1]) if words[1:] else 1] if words[0].isdigit() else words
SIZES = ((64, (3, 2)), (67, (5,)), (2048, (9,)), (1, (7,)), (4099, ()), (100_000, (2,)), (70_001, (1,)), (5, (700,)))
kernels = 0
for name in names:
    op = getattr(generated, name)
    axes = [axis for axis in op.spec.axes if axis != "..."]
    small = {axis: op.spec.extents.get(axis, 3) for axis in axes}
    choices = list(all_types(op.spec))
    for i, (inner, rows) in enumerate(SIZES):
        free = [axis for axis in axes if axis not in op.spec.extents]
        extents = {**small, **({free[-1]: inner} if free else {})}
        if op.plan.kind == "gemm" and i % 2 == 0:  # rows of multiples of 16 bytes, as Hopper's main loop needs
            extents |= {
                product.axis: 136 if i else 4104 for product in op.plan.products
            }  # so long that a cluster shares it
        rows = rows if "..." in op.spec.axes else ()
        params = tuple((p.name, 1 if p.default is None else p.default) for p in op.spec.params)
        optional = tuple(a.name for a in op.spec.inputs if a.default is not None) if i % 2 else ()
        case = draw.Case(choices[i % len(choices)], rows, tuple(extents.items()), optional, params, True, 1.0, i)
        with jax.enable_x64(True):
            try:
                jax.block_until_ready(with_gradients(op, case)())
                kernels += len(op.kernels)
            except ValueError as error:  # rows too long for a kernel
                if "implementation='xla' runs without" not in str(error):
                    raise
print(f"{kernels} kernels ran")
