"""Which values of neighbours an earlier stage writes."""

import pytest

from codegen.autodiff.backward import backward_of
from codegen.pipeline import read_op
from tests.making import spec_text

WEIGHTS = "w: float32[N]; w2: float32[N]; w3: float32[N]"
CONVOLVED = "v = x * w + shift(x, axis=S, by=1) * w2 + shift(x, axis=S, by=2) * w3"


def backward(chain: str):
    text = spec_text(f"x: T[B, S, N]; {WEIGHTS}", "y: T[B, S, N]", f"{CONVOLVED}; {chain}", types="{T: [bfloat16]}")
    return backward_of(read_op("specs/made.yaml", text)).op


def test_the_gradient_of_an_expensive_function_is_written_for_its_neighbours():
    """In the kernel that also sums the weights' gradients, so that all but the input's gradient is done."""
    first, last = backward("y = sin(tanh(erf(v))) + softplus(sin(v))").plan.stages
    (written,) = [a for a in first.spec.outputs if a in last.spec.inputs]
    assert (written.axes, written.dtype) == (("B", "S", "N"), "float32")
    assert [a.name for a in first.spec.outputs if a is not written] == ["dw", "dw2", "dw3"]
    assert [a.name for a in last.spec.outputs] == ["dx"] and "dy" not in {a.name for a in last.spec.inputs}


@pytest.mark.parametrize("chain", ["y = v", "y = silu(v)"])
def test_what_costs_less_than_memory_is_computed_again(chain):
    assert backward(chain).plan.kind == "column"
