"""Sums in gradients that do not wait for each other: those of a norm's mean and of its variance."""

import pytest

from codegen.autodiff.backward import Derived, backward_of
from codegen.graph.nodes import topological
from codegen.graph.ops import REDUCTIONS
from codegen.pipeline import read_op
from codegen.plan.op import Staged
from tests.making import spec_text


def backward(chain: str, inputs: str = "x: float32[B, S, N]") -> Derived:
    made = backward_of(read_op("specs/made.yaml", spec_text(inputs, "y: float32[B, S, N]", chain)))
    assert isinstance(made, Derived), made
    return made


def waits(made: Derived) -> int:
    """The most sums of a backward one after the other."""
    depth: dict[int, int] = {}
    for node in topological(s.value for s in made.op.statements):
        depth[id(node)] = max((depth[id(a)] for a in node.args), default=0) + (node.op in REDUCTIONS)
    return max(depth.values())


NORM = "v = x - mean(x, axis={0}); y = v * rsqrt(mean(square(v), axis={0}) + 0.1)"


@pytest.mark.parametrize("axes", ["S", "(B, S)"])
def test_the_sums_of_a_norm_are_of_one_stage(axes: str):
    made = backward(NORM.format(axes))
    assert isinstance(made.op.plan, Staged) and len(made.op.plan.stages) == 2
    assert waits(made) == 1
    text = made.op.spec.chain.value
    assert text.count("sum(") == 2, text  # distances from a mean add up to 0: that is no sum


def test_what_a_mean_of_others_leaves_is_summed():
    """Only distances from the mean of the same elements add up to 0."""
    found = backward(
        "v = x - mean(u, axis=S); y = v * rsqrt(mean(square(v), axis=S) + 0.1)",
        "x: float32[B, S, N]; u: float32[B, S, N]",
    )
    assert waits(found) == 1
    assert found.op.spec.chain.value.count("sum(") == 3


def test_a_bias_before_a_norm_waits_for_no_sum():
    """What all elements have in common is multiplied by their number, not summed."""
    found = backward(
        "u = x + bias; " + NORM.format("(B, S)").replace("x,", "u,").replace("x -", "u -"),
        "x: float32[B, S, N]; bias: float32[N]",
    )
    assert isinstance(found.op.plan, Staged)
    assert [stage.plan.kind for stage in found.op.plan.stages] == ["column", "elementwise"]
    assert waits(found) == 1
