"""Conditions that are counted, and elements of a computed row that an index picks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from codegen.checking.draw import Case
from codegen.checking.gradients import check_gradient_case
from codegen.checking.testing import check_case
from codegen.runtime.call.arguments import Types
from tests.making import make_jnp_op, make_op, spec_text


def test_sums_and_means_count_conditions():
    text = spec_text("x: float32[..., N]", "n: int32[...]; part: float32[...]",
                     "n = sum(x > 0, axis=N); part = mean(x > 0, axis=N)", types="", more="grad: none")  # fmt: skip
    x = jnp.asarray([[1.0, -1.0, 0.0, 3.0], [-1.0, -2.0, -3.0, float("nan")]])
    n, part = make_jnp_op(text)(x)
    np.testing.assert_array_equal(n, [2, 0])
    np.testing.assert_array_equal(part, [0.5, 0.0])


PICKED = spec_text(
    "x: float32[..., N]; i: int32[...]", "y: float32[...]", "y = take(log_softmax(x, axis=N), i, axis=N)",
    "y = jnp.take_along_axis(jax.nn.log_softmax(x), jnp.clip(i, 0, x.shape[-1] - 1)[..., None], -1)[..., 0]",
)  # fmt: skip


def test_an_index_picks_an_element_of_a_computed_row_and_is_clamped():
    x, i = jnp.asarray(np.random.default_rng(0).normal(size=(4, 5)), jnp.float32), jnp.asarray([0, 4, 9, -3], jnp.int32)
    want = jax.nn.log_softmax(x)[jnp.arange(4), jnp.asarray([0, 4, 4, 0])]
    np.testing.assert_allclose(make_jnp_op(PICKED)(x, i), want, rtol=1e-6)


def test_a_computed_index_picks_an_element_of_an_input_s_rows():
    text = spec_text("x: float32[..., N]; i: int32[...]", "y: float32[...]", "y = take(x, i + 1, axis=N)")
    x = jnp.arange(12.0).reshape(3, 4)
    np.testing.assert_array_equal(make_jnp_op(text)(x, jnp.asarray([0, 2, 7], jnp.int32)), [1, 7, 11])


def test_the_kernel_of_a_picked_element_and_of_its_gradient(tmp_path):
    op, case = make_op(tmp_path, PICKED), Case(Types(()), (3,), (("N", 37),), (), (), False, 1.0, 0)
    check_case(op, "interpret", case)
    check_gradient_case(op, "interpret", case)


def test_several_elements_of_a_row_at_selected_places(tmp_path):
    """As a router takes scores without the bias with which it chose."""
    text = spec_text(
        "x: float32[..., N]; bias: float32[N]", "y: float32[..., K=3]; i: int32[..., K=3]",
        "s = sigmoid(x); i = top_k_index(s + bias, K, axis=N); y = take(s, i, axis=N) * take(x, i + 1, axis=N)",
        "s = jax.nn.sigmoid(x); i = jax.lax.top_k(s + bias, 3)[1]; y = jnp.take_along_axis(s, i, -1) * "
        "jnp.take_along_axis(x, jnp.minimum(i + 1, x.shape[-1] - 1), -1)",
    )  # fmt: skip
    op, case = make_op(tmp_path, text), Case(Types(()), (3,), (("N", 37), ("K", 3)), (), (), False, 1.0, 0)
    check_case(op, "interpret", case)
    check_gradient_case(op, "interpret", case)


def test_an_element_at_a_position_along_two_axes():
    """As `top_k_index` along both gives positions. One outside is clamped."""
    x, i = jnp.arange(24.0).reshape(2, 3, 4), jnp.array([[7, -3], [99, 5]], jnp.int32)
    arrays = "x: float32[B, H, N]; i: int32[B, K=2]", "y: float32[B, K=2]"
    op = make_jnp_op(spec_text(*arrays, "y = take(x, i, axis=(H, N)) - take(2 * x, i, axis=(H, N))", "y = x"))
    assert op(x, i).tolist() == [[-7, 0], [-23, -17]]


@pytest.mark.parametrize("chain", ["take(x > 0, i, axis=N)", "take(x * 2, i, axis=...)"])
def test_what_a_computed_row_does_not_give(chain):
    with pytest.raises(Exception, match="'take'"):
        make_jnp_op(spec_text("x: float32[..., N]; i: int32[...]; j: int32[M]", "y: float32[..., M]", f"y = {chain} + i + j"))  # fmt: skip
