"""Ops in stages that one kernel computes together with another one, which adds up parts of the sums over more axes."""

import pytest

from codegen.autodiff.backward import Derived, backward_of
from codegen.graph.nodes import lost_axes
from codegen.pipeline import read_op
from codegen.plan.op import Staged
from codegen.plan.rows.middle import Middle
from tests.making import spec_text


def backward(chain: str, inputs: str, params: str = "", outputs: str = "y: float32[B, S, N]") -> Staged:
    made = backward_of(read_op("specs/made.yaml", spec_text(inputs, outputs, chain, more=params)))
    assert isinstance(made, Derived), made
    assert isinstance(made.op.plan, Staged)
    return made.op.plan


NORM = "v = x - mean(x, axis=S); y = v * rsqrt(mean(square(v), axis=S) + 0.1) * weight"


@pytest.mark.parametrize("weight", ["N", "B, N"])
def test_a_weight_of_all_rows_is_summed_after_the_one_kernel(weight):
    plan = backward(NORM, f"x: float32[B, S, N]; weight: float32[{weight}]")
    assert plan.whole is not None
    if weight == "B, N":  # one of each row
        assert isinstance(plan.whole.plan, Middle)
        return
    assert isinstance(plan.whole.plan, Staged)
    first, last = plan.whole.plan.stages
    assert isinstance(first.plan, Middle) and "dx" in {a.name for a in first.spec.outputs}
    (parts,) = last.spec.inputs  # no element is read again
    assert parts.axes == ("B", "N") and parts.dtype == "float32"
    assert [lost_axes(s.node) for s in last.plan.columns] == [("B",)]


def test_a_parameter_is_summed_after_the_one_kernel():
    plan = backward(
        "y = softmax(x * beta, axis=S)",
        "x: float32[B, S, N]",
        "params: {beta: {type: float, default: 0.5, static: false}}",
    )
    assert plan.whole is not None and isinstance(plan.whole.plan, Staged)
    _, last = plan.whole.plan.stages
    assert [a.name for a in last.spec.outputs] == ["dbeta"]


def test_elements_that_need_the_longer_sum_take_stages():
    plan = backward("v = x - mean(x, axis=S); y = v * mean(square(v), axis=(B, S))", "x: float32[B, S, N]")
    assert plan.whole is None


def test_rows_write_their_sums_where_these_are_added_up():
    """A weight of each head: its partial results would be as long as rows."""
    plan = backward("y = softmax(x, axis=N) * weight", "x: float32[B, S, N]; weight: float32[S]")
    first, last = plan.stages
    assert first.plan.kind == "row" and [a.axes for a in first.spec.outputs] == [("B", "S", "N"), ("B", "S")]
    assert [a.axes for a in last.spec.inputs] == [("B", "S")]


def test_rows_that_meet_at_places_write_their_sums_too():
    plan = backward(
        "y = softmax(x + bias, axis=N) * weight", "x: float32[B, H, S, N]; bias: float32[H, S, N]; weight: float32[H]",
        outputs="y: float32[B, H, S, N]",
    )  # fmt: skip
    first, last = plan.stages
    assert first.plan.kind == "row+column" and {a.name for a in last.spec.outputs} == {"dweight"}
    assert [s.node.dims for s in first.plan.columns] == [("H", "S", "N")]


def test_sums_of_columns_stay_in_the_one_kernel():
    made = backward_of(
        read_op(
            "specs/made.yaml",
            spec_text(
                "x: float32[..., N]; weight: float32[N]", "y: float32[..., N]", "y = softmax(x, axis=N) * weight"
            ),
        )
    )
    assert isinstance(made, Derived) and made.op.plan.kind == "row+column"


def test_sums_over_more_axes_than_rows_have_read_sums_of_rows():
    """Groups of columns of any size are no kernel's: one would read all elements again, for sums along two axes."""
    plan = backward(
        "y = softmax(x + bias, axis=D)", "x: float32[B, S, H, D]; bias: float32[B, S]", outputs="y: float32[B, S, H, D]"
    )
    first, last = plan.stages
    assert {a.axes for a in first.spec.outputs} == {("B", "S", "H", "D"), ("B", "S", "H")}
    assert [a.axes for a in last.spec.inputs] == [("B", "S", "H")]
