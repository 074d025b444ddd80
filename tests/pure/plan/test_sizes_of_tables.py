"""The size of an axis that only a table has, in kernels that reduce along rows."""

import pytest

from codegen.pipeline import read_op
from codegen.render import render_op
from tests.making import spec_text


@pytest.mark.parametrize(
    ("outputs", "chain", "kind"),
    [
        ("y: float32[S, N]; m: float32[S]", "y = where(i < size(P), take(t, i, axis=P), 0); m = sum(y * x, axis=N)", "row"),
        ("m: float32[N]", "m = sum(take(t, i, axis=P) * x, axis=S) / size(P)", "staged"),
    ],
    ids=["elements use it", "a result over rows does, whose kernel has no table"],
)  # fmt: skip
def test_which_kernels_know_it(outputs, chain, kind):
    op = read_op("specs/made.yaml", spec_text("t: float32[P, N]; x: float32[S, N]; i: int32[S]", outputs, chain))
    assert op.plan.kind == kind


def test_a_gradient_along_a_middle_axis_knows_it():
    """The table is read only for its size there."""
    inputs, outputs = "c: float32[..., N]; t: float32[P]", "y: float32[..., N]"
    op = read_op(
        "specs/made.yaml", spec_text(inputs, outputs, "y = c + take(t, index(N) * 8, axis=P) * (index(N) - size(P))")
    )
    assert "mT.shape[0]" in render_op(op).partition("Constexpr[MiddleLaunch]")[2]
