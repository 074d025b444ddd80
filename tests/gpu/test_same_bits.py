"""Two runs of an op give the same bits, its gradients too: what is folded over rows is folded in a fixed order."""

import math

import jax
import numpy as np
import pytest

import generated
from codegen.runtime import draw
from codegen.runtime.compile import bindings

ROWS = (3001,)  # rows for many blocks, and no whole number of them


def cotangent(y):
    floating = jax.numpy.issubdtype(y.dtype, jax.numpy.floating)
    return jax.numpy.ones_like(y) if floating else np.zeros(y.shape, jax.dtypes.float0)


def evaluate(op):
    """One call of the op and its gradients, all as bytes."""
    spec = op.spec
    named = [axis for axis in spec.axes if axis != "..."]
    free = [axis for axis in named if axis not in spec.extents]
    extents = {axis: spec.extents.get(axis, 16 if len(free) < 4 else 2) for axis in named}
    if len(free) > 1 and "..." not in spec.axes:
        extents[free[0]] = ROWS[0]
    if free:
        extents[free[-1]] = max(8, 520 // math.prod(spec.extents.values()))
    rows = ROWS if "..." in spec.axes else ()
    params = tuple((p.name, 1 if p.default is None else p.default) for p in spec.params)
    case = draw.Case(list(bindings(spec))[-1], rows, tuple(extents.items()), (), params, False, 1.0, 7)
    with jax.enable_x64(True):
        args, keywords = draw.operands(op, case, draw.arrays(op, case))
        floating = [i for i, x in enumerate(args) if jax.numpy.issubdtype(x.dtype, jax.numpy.floating)]

        def run(*xs):
            full = list(args)
            for i, x in zip(floating, xs, strict=True):
                full[i] = x
            return op(*full, **keywords, implementation="cute")

        def both():
            if len(op.kernels) == 1 or spec.grad == "none" or not floating:
                return run(*(args[i] for i in floating))
            made, pull = jax.vjp(run, *(args[i] for i in floating))
            return made, pull(jax.tree.map(cotangent, made))

        got = [jax.tree.map(np.asarray, both()) for _ in range(3)]
    return [[x.tobytes() for x in jax.tree.leaves(g)] for g in got]


@pytest.mark.parametrize("name", generated.__all__)
def test_runs_agree_to_the_bit(name):
    first, *others = evaluate(getattr(generated, name))
    assert first
    assert all(again == first for again in others)
