"""Which stages begin with the last elements of their arrays."""

import pytest

from codegen.pipeline import read_op
from codegen.plan.launches import Extents, PlannedCall
from tests.making import spec_text


@pytest.mark.parametrize(
    ("inputs", "outputs", "chain", "expected"),
    [
        ("x: float32[..., N]", "y: float32[..., N]", "y = x - mean(x, axis=...)", [False, True]),
        ("x: float32[..., N]; z: float32[..., N]", "y: float32[..., N]", "y = z - mean(x, axis=...)", [False, False]),
        (
            "x: float32[..., N]", "y: float32[..., N]; z: float32[..., N, K=2]",
            "y = x - mean(x, axis=...); z = y + index(K)", [False, False, True],
        ),
    ],
    ids=["the same array", "another array", "of a stage before the last"],
)  # fmt: skip
def test_a_stage_begins_where_an_earlier_one_ended(inputs, outputs, chain, expected):
    op = read_op("specs/made.yaml", spec_text(inputs, outputs, chain))
    assert [getattr(stage.plan, "backwards", False) for stage in op.plan.stages] == expected
    if expected[1]:
        dtypes = {a.name: a.dtype for a in op.plan.stages[1].spec.arrays}
        assert op.plan.stages[1].plan.launch(PlannedCall(dtypes, Extents(64, None, 64, 64))).backwards
