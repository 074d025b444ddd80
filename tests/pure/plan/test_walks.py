"""The launches of kernels that walk down rows."""

from dataclasses import replace

import pytest

from codegen.pipeline import read_op
from codegen.plan.launches import Extents
from codegen.plan.rows import walking
from codegen.tuning.choosing import changed

POINTS = """
op: made
summary: A total, and a result for each of some points with three coordinates.
inputs: {x: "float32[..., 3]"}
outputs: {y: "float32[...]", z: "float32[]"}
chain: |
  y = x[0] * x[1] * x[2]
  z = sum(y, axis=...)
reference: |
  y = x
  z = x
"""


def test_few_rows_have_all_threads_of_a_block():
    text = "op: made\nsummary: S.\ninputs: {x: 'float32[R, N]'}\noutputs: {y: 'float32[N]'}\nchain: y = sum(x, axis=R)\nreference: x"
    plan, dtypes = read_op("specs/made.yaml", text).plan, {"x": "float32", "y": "float32"}
    one, two, three, some, many = (
        plan.launch(dtypes, Extents(4096, rows * 4096, 4096, rows), {}, "sm_90a") for rows in (1, 2, 3, 60, 8192)
    )
    for how, rows in ((one, 1), (two, 2), (three, 4)):
        assert (how.threads // how.per_row, how.at_once, how.parts) == (rows, 1, 1)
    assert some.constants == many.constants  # numbers of rows share a kernel


@pytest.mark.parametrize(("points", "threads", "per_row"), [(2**23, 256, 256), (40, 64, 64), (1, 32, 1)])
def test_all_threads_of_a_block_have_the_only_row(points, threads, per_row):
    op = read_op("specs/made.yaml", POINTS)
    how = op.plan.launch(
        {"x": "float32", "y": "float32", "z": "float32"}, Extents(points, points, points, 1), {}, "sm_90a"
    )
    assert (how.threads, how.per_row) == (threads, per_row)


def held(columns, width, threads=256, arch="sm_90a"):
    needs = walking.Needs(width=width, fixed=0, sums=64, stageable=True, costly=False, alive=4, folds=1)
    rows = walking._WholeRows(8, False, needs, 1, columns, 2**20, 1, {}, arch)
    return rows.may_pace(threads, rows.threads(1)[1])


def test_blocks_keep_pace_where_their_warps_meet_and_rows_are_long():
    assert held(4096, 32)
    assert not held(256, 32)  # a warp has a row
    assert not held(1024, 16, threads=64)  # a count for each 2 KiB
    assert not held(4096, 32, arch="sm_100a")


def test_what_is_computed_once_columns_are_reduced_is_not_costly():
    text = "op: made\nsummary: Made.\ninputs: {{x: 'float32[R, C]', n: 'float32[C]'}}\noutputs: {{y: 'float32[C]'}}\nchain: y = {}\nreference: x"
    costs = [
        read_op("specs/made.yaml", text.format(c)).plan.costly for c in ("sum(x, axis=R) / n", "sum(x / n, axis=R)")
    ]
    assert costs == [False, True]


GROUPS = """
op: made
summary: Gradients of a norm of groups by the elements and by the weights.
inputs:
  dy: bfloat16[..., (B G=256)]
  x: bfloat16[..., (B G=256)]
  scale: bfloat16[..., B]
  weight: bfloat16[(B G=256)]
outputs:
  dx: bfloat16[..., (B G=256)]
  dweight: bfloat16[(B G=256)]
chain: |
  own = dy * weight
  dx = (own - x * mean(own * x, axis=G)) * scale
  dweight = sum(dy * x * scale, axis=...)
reference: |
  dx = x
  dweight = weight
"""


def test_lanes_of_a_warp_have_a_group_of_columns():
    """However many values are alive: with narrower vectors, lanes of two warps would have it, which no shuffle reduces."""
    op = read_op("specs/made.yaml", GROUPS)
    plan, dtypes = op.plan, {a.name: op.spec.dtypes(a)[0] for a in op.spec.arrays}
    extents = Extents(2048, 2**24, 256, 2**13)
    for alive in (plan.alive, 40):
        how = replace(plan, alive=alive).launch(dtypes, extents, {}, "sm_90a")
        assert plan.inner and (how.vec, plan.lanes(how.vec)) == (8, 32)
    assert changed(plan, op.spec, dtypes, extents, "sm_90a", {"vector_bytes": 8}) is None
