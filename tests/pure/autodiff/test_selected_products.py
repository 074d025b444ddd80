"""Selections from products, as of a router: the kernels of the op and of its gradients."""

from codegen.autodiff.backward import Derived, backward_of
from codegen.pipeline import read_op
from codegen.plan.op import Op, Staged
from tests.making import spec_text

ROUTER = "x: bfloat16[M, K]; w: bfloat16[K, E]"


def kinds(op: Op) -> list[str]:
    assert isinstance(op.plan, Staged), op.plan
    return [stage.plan.kind for stage in op.plan.stages]


def test_one_kernel_selects_elements_and_their_places_from_a_product():
    chain = "s = x @ w; y = top_k(s, J, axis=E); i = top_k_index(s, J, axis=E)"
    op = read_op("specs/made.yaml", spec_text(ROUTER, "y: bfloat16[M, J=4]; i: int32[M, J]", chain, "y = x; i = x"))
    assert kinds(op) == ["gemm", "selection"]


def test_gradients_of_a_selection_from_a_product_are_kernels():
    op = read_op("specs/made.yaml", spec_text(ROUTER, "y: bfloat16[M, J=4]", "y = top_k(x @ w, J, axis=E)"))
    made = backward_of(op)
    assert isinstance(made, Derived), made
    assert kinds(made.op) == ["selection", "gemm", "gemm"]  # the gradient is rounded as it is placed
    assert {a.name for a in made.op.spec.inputs} == {"dy", "places", "x", "w"}  # and the product is not saved


def test_a_product_that_gives_sizes_alone_is_not_saved():
    op = read_op("specs/made.yaml", spec_text(ROUTER, "y: bfloat16[M]", "y = sum(x @ w, axis=E)"))
    made = backward_of(op)
    assert isinstance(made, Derived), made
    assert [a.name for a in made.op.spec.inputs] == ["dy", "w"] and not made.products and made.forward is None
