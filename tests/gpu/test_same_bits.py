"""Two runs of an op and its gradients give the same bits: reductions over rows have a fixed order."""

import math

import jax
import numpy as np
import pytest

import generated
from codegen.checking import draw
from codegen.runtime.call.arguments import all_types
from tests.pulling import with_gradients

ROWS = (3001,)  # rows for many blocks, and not a multiple of them


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
    case = draw.Case(list(all_types(spec))[-1], rows, tuple(extents.items()), (), params, False, 1.0, 7)
    with jax.enable_x64(True):
        both = with_gradients(op, case)
        got = [list(map(np.asarray, both())) for _ in range(3)]
    return [[x.tobytes() for x in one] for one in got]


@pytest.mark.parametrize("name", generated.__all__)
def test_runs_agree_to_the_bit(name):
    first, *others = evaluate(getattr(generated, name))
    assert first
    assert all(again == first for again in others)
