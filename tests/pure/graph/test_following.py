"""Sums that follow a maximum: which are found, and how many kernels a gradient then has."""

import pytest

from codegen.autodiff.backward import backward_of
from codegen.graph.online import TIES, following
from codegen.pipeline import read_op
from codegen.plan.op import stages_of
from tests.making import spec_text


def followed(chain: str) -> list[tuple[str, str]]:
    """The functions of differences from a maximum, and the maxima's operations."""
    op = read_op("specs/made.yaml", spec_text("x: float32[R, N]", "y: float32[N]", f"y = {chain}"))
    return [(way.power, way.maximum.op) for way in following(op.spec.read.nodes).values()]


@pytest.mark.parametrize(
    ("chain", "found"),
    [
        ("sum(where(x == max(x, axis=R), 1.0, 0.0), axis=R)", [(TIES, "max")]),
        ("sum(where(min(x, axis=R) == x, 1.0, 0.0), axis=R)", [(TIES, "min")]),
        ("sum(exp(x - max(x, axis=R)), axis=R)", [("exp", "max")]),
        ("sum(where(x == max(2.0 * x, axis=R), 1.0, 0.0), axis=R)", []),  # another value's maximum
        ("sum(where(x == max(x, axis=(R, N)), 1.0, 0.0), axis=R)", []),  # along other axes
        ("sum(where(x == max(x, axis=R), 2.0, 0.0), axis=R)", []),  # not 1 for each
        ("sum(where(x >= max(x, axis=R), 1.0, 0.0), axis=R)", []),
    ],
)
def test_what_follows_a_maximum(chain, found):
    assert followed(chain) == found


@pytest.mark.parametrize("inputs", ["x: bfloat16[R, N]", "x: float32[R, N]"])
@pytest.mark.parametrize(("most", "lost", "kept"), [("max", "R", "N"), ("min", "(R, N)", "")])
def test_a_gradient_of_a_maximum_has_two_kernels(inputs, most, lost, kept):
    """One finds the maximum and how many elements equal it, the other compares them."""
    made = spec_text(inputs, f"y: float32[{kept}]", f"y = {most}(tanh(x), axis={lost})")
    backward = backward_of(read_op("specs/made.yaml", made)).op
    assert [[a.axes for a in stage.spec.outputs] for stage in stages_of(backward)] == [
        [tuple(kept.split())] * 2, [("R", "N")],
    ]  # fmt: skip


def test_a_logsumexp_that_its_elements_meet_has_one_kernel():
    """The maximum, or 0 where it is not finite, is marked: both the sum and the last kernel compute it."""
    made = spec_text("x: bfloat16[R, N]", "y: bfloat16[R, N]", "v = expm1(x); y = v - logsumexp(v, axis=R)")
    stages = stages_of(read_op("specs/made.yaml", made))
    assert [[a.axes for a in stage.spec.outputs] for stage in stages] == [[("N",), ("N",)], [("R", "N")]]
