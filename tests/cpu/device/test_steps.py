"""Kernels that compute, select and compute again: one kernel gives what the stages give, and what jax.lax.top_k of the same numbers gives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from codegen.errors import UserError
from codegen.plan.launches import Extents, PlannedCall
from codegen.plan.rows.steps import Steps
from tests.making import make_op, spec_text
from tests.turns import some

GATE = "p = softmax(x * w, axis=N); c = top_k(p, K, axis=N); y = c / sum(c, axis=K); i = top_k_index(p, K, axis=N)"
GATE_OF = "p = jax.nn.softmax(x * w); c, i = jax.lax.top_k(p, {0}); y = c / c.sum(axis=-1, keepdims=True)"


def gate(folder, dtype, count):
    inputs, outputs = f"x: {dtype}[..., N]; w: {dtype}[N]", f"y: float32[..., K={count}]; i: int32[..., K={count}]"
    return make_op(folder, spec_text(inputs, outputs, GATE, GATE_OF.format(count)))


def numbers(dtype: str, *shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(shape).standard_normal(shape)).astype(dtype)


def kernel_of(op) -> Steps:
    plan = op.plan.whole.plan
    assert isinstance(plan, Steps)
    return plan


# Some lanes of a warp, a warp, and not of whole vectors; more than are taken in turn; a block's row
ROUTERS = [
    ("float32", (3, 3, 24), 1), ("bfloat16", (5, 128), 8), ("float32", (2, 61), 3), ("bfloat16", (3, 300), 40),
    ("float32", (2, 1200), 20),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "shape", "count"), ROUTERS)
def test_one_kernel_is_a_router_with_its_gradients(tmp_path, dtype, shape, count):
    op, x, w = gate(tmp_path, dtype, count), numbers(dtype, *shape), numbers(dtype, shape[-1])
    size = shape[-1]
    kernel_of(op).launch(
        PlannedCall({"x": dtype, "w": dtype, "y": "float32", "i": "int32"}, Extents(size, None, size, 9))
    )

    def total(x, w, how):
        y, i = op(x, w, implementation=how)
        return (y * jnp.arange(1.0, count + 1)).sum(), i

    (y, i), (wanted, places) = (op(x, w, implementation=how) for how in ("interpret", "xla"))
    np.testing.assert_allclose(y, wanted, rtol=1e-5)
    np.testing.assert_array_equal(i, places)
    if (dtype, shape, count) not in some(ROUTERS, 2):  # the gradients' kernels are those of any row
        return
    found, expected = (jax.grad(total, (0, 1), has_aux=True)(x, w, how) for how in ("interpret", "xla"))
    np.testing.assert_array_equal(found[1], expected[1])
    for a, b in zip(found[0], expected[0], strict=True):
        allowed = 1e-5 if dtype == "float32" else 2**-7
        np.testing.assert_allclose(*(np.asarray(v, "float32") for v in (a, b)), rtol=allowed, atol=allowed / 8)


def test_equal_elements_stay_in_order_after_a_softmax(tmp_path):
    """Threads see different maxima of their elements; what they write of equal ones has equal bits all the same."""
    op = gate(tmp_path, "float32", 8)
    x = jnp.asarray(np.random.default_rng(0).integers(0, 4, (40, 40)) * 1.37, "float32")
    _, places = jax.lax.top_k(x, 8)
    np.testing.assert_array_equal(op(x, jnp.ones(40), implementation="interpret")[1], places)


def test_a_statistic_of_the_row_meets_what_is_selected(tmp_path):
    """It is handed on, as a number of each row. The axes of the rows are apart: a weight has one of them."""
    chain = "v = x * w; top = top_k(v, K, axis=N); y = top - logsumexp(v, axis=N) * g"
    reference = "v = x * w[:, None]; y = jax.lax.top_k(v, 2)[0] - jax.nn.logsumexp(v, axis=-1, keepdims=True) * g[:, None, None]"
    inputs = "x: float32[B, S, N]; w: float32[S]; g: float32[B]"
    op = make_op(tmp_path, spec_text(inputs, "y: float32[B, S, K=2]", chain, reference, more="grad: none"))
    assert ("B", "S") in [a.axes for a in kernel_of(op).handed]
    x, w, g = numbers("float32", 3, 5, 20), numbers("float32", 5), numbers("float32", 3)
    v = x * w[:, None]
    expected = jax.lax.top_k(v, 2)[0] - jax.nn.logsumexp(v, axis=-1, keepdims=True) * g[:, None, None]
    np.testing.assert_allclose(op(x, w, g, implementation="interpret"), expected, rtol=1e-5, atol=1e-6)


def test_a_row_that_no_block_holds_runs_in_stages(tmp_path):
    plan = kernel_of(gate(tmp_path, "float32", 2))
    dtypes = {"x": "float32", "w": "float32", "y": "float32", "i": "int32"}
    assert plan.launch(PlannedCall(dtypes, Extents(4096, None, 4096, 9))).steps
    with pytest.raises(UserError, match="no room for 131080 bytes"):
        plan.launch(PlannedCall(dtypes, Extents(2**15, None, 2**15, 9)))
