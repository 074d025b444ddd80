"""Runs every op's kernels once, for a checker to watch: memcheck, initcheck, racecheck or synccheck; and their generated
backwards. The longest rows are those of clusters.

compute-sanitizer --tool memcheck --report-api-errors no python tests/gpu/sanitize.py [first [step] | OP ...]
"""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np

import generated
from codegen.runtime import draw
from codegen.runtime.compile import bindings


def cotangent(y: jax.Array):
    return jnp.ones_like(y) if jnp.issubdtype(y.dtype, jnp.floating) else np.zeros(y.shape, jax.dtypes.float0)


words = sys.argv[1:] or ["0"]
names = generated.__all__[int(words[0]) :: int(words[1]) if words[1:] else 1] if words[0].isdigit() else words
SIZES = ((64, (3, 2)), (67, (5,)), (2048, (9,)), (1, (7,)), (4099, ()), (100_000, (2,)), (70_001, (1,)))
kernels = 0
for name in names:
    op = getattr(generated, name)
    axes = [axis for axis in op.spec.axes if axis != "..."]
    small = {axis: op.spec.extents.get(axis, 3) for axis in axes}
    choices = list(bindings(op.spec))
    for i, (inner, rows) in enumerate(SIZES):
        free = [axis for axis in axes if axis not in op.spec.extents]
        extents = {**small, **({free[-1]: inner} if free else {})}
        if op.plan.kind == "gemm" and i % 2 == 0:  # rows of whole 16 bytes: what Hopper's main loop takes
            extents |= {product.axis: 136 for product in op.plan.products}
        rows = rows if "..." in op.spec.axes else ()
        params = tuple((p.name, 1 if p.default is None else p.default) for p in op.spec.params)
        optional = tuple(a.name for a in op.spec.inputs if a.default is not None) if i % 2 else ()
        case = draw.Case(choices[i % len(choices)], rows, tuple(extents.items()), optional, params, True, 1.0, i)
        with jax.enable_x64(True):
            args, keywords = draw.operands(op, case, draw.arrays(op, case))
            floating = [i for i, x in enumerate(args) if x is not None and jnp.issubdtype(x.dtype, jnp.floating)]
            run = functools.partial(op, **keywords, implementation="cute")

            def of(*xs, run=run, args=args, floating=floating):
                full = list(args)
                for i, x in zip(floating, xs, strict=True):
                    full[i] = x
                return run(*full)

            try:
                if len(op.kernels) == 1 or op.spec.grad == "none":
                    jax.block_until_ready(run(*args))
                else:
                    made, pull = jax.vjp(of, *(args[i] for i in floating))
                    jax.block_until_ready(pull(jax.tree.map(cotangent, made)))
                kernels += len(op.kernels)
            except ValueError as error:  # rows too long for a kernel
                if "implementation='xla' runs without" not in str(error):
                    raise
print(f"{kernels} kernels ran")
