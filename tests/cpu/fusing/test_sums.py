"""Losses of chunks of rows that a loop adds up: one loop computes the sum and its gradients, and no product twice."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import codegen
from tests.meshes import normal

X, W = jnp.asarray(normal(4, 6, 16)), jnp.asarray(normal(16, 24) / 4)
LABEL = jnp.asarray(np.arange(24, dtype="int32").reshape(4, 6) * 5 % 24)


def cross_entropy(logits, label):
    return jax.nn.logsumexp(logits, axis=-1) - jnp.take_along_axis(logits, label[..., None], axis=-1)[..., 0]


def checkpointed(x, w, label):
    @jax.checkpoint
    def chunk(total, given):
        rows, own = given
        return total + jnp.sum(cross_entropy(rows @ w, own)), None

    return jax.lax.scan(chunk, 0.0, (x, label))[0] / label.size


def added_outside(x, w, label):
    """The sum is added to outside of the checkpoint, and labels that are ignored are counted."""
    rows_of = jax.checkpoint(lambda rows, own: cross_entropy(rows @ w, jnp.where(own == 5, 0, own)))

    def chunk(state, given):
        losses = rows_of(*given) * (given[1] != 5)
        return (state[0] + jnp.sum(losses), jnp.sum(given[1] != 5) + state[1]), None

    (total, count), _ = jax.lax.scan(chunk, (0.0, 0), (x, label), reverse=True)
    return total / count


def without_checkpoint(x, w, label):
    def chunk(total, given):
        return jnp.sum(cross_entropy(given[0] @ w, given[1])) + total, None

    return jax.lax.scan(chunk, jnp.float32(0), (x, label))[0]


def mapped(x, w, label):
    """The loop gives the losses of each chunk, which are added up after it."""
    rows_of = jax.checkpoint(lambda given: cross_entropy(given[0] @ w, given[1]))
    return jnp.mean(jax.lax.map(rows_of, (x, label)))


FORMS = checkpointed, added_outside, without_checkpoint, mapped


@pytest.mark.parametrize("loss", FORMS, ids=lambda loss: loss.__name__)
@pytest.mark.parametrize("places", [(0, 1), (1,), (0,)])
def test_one_loop_computes_a_sum_and_its_gradients(loss, places):
    def scaled(f):
        return lambda *given: 3 * f(*given)

    fused, plain = (jax.value_and_grad(scaled(f), places) for f in (codegen.fuse(loss), loss))
    for one, other in zip(
        jax.tree.leaves(jax.jit(fused)(X, W, LABEL)), jax.tree.leaves(plain(X, W, LABEL)), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-5)
    text = str(jax.make_jaxpr(fused)(X, W, LABEL))
    assert text.count("codegen_op") == text.count(" scan[") == 1
    assert text.count("dot_general[") == 1 + len(places)  # what is not requested is not computed


@pytest.mark.parametrize("loss", [checkpointed, without_checkpoint, mapped], ids=lambda loss: loss.__name__)
def test_the_loop_of_a_gradient_is_part_of_the_loop_of_its_sum(loss):
    plain = jax.value_and_grad(loss, (0, 1))
    fused = codegen.fuse(plain)
    for one, other in zip(
        jax.tree.leaves(jax.jit(fused)(X, W, LABEL)), jax.tree.leaves(plain(X, W, LABEL)), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-5)
    text = str(jax.make_jaxpr(fused)(X, W, LABEL))
    assert text.count("codegen_op") == text.count(" scan[") == 1
    assert text.count("dot_general[") == 3


def test_where_no_gradient_is_requested_none_is_computed():
    fused = codegen.fuse(checkpointed)
    np.testing.assert_allclose(jax.jit(fused)(X, W, LABEL), checkpointed(X, W, LABEL), rtol=2e-5)
    assert str(jax.make_jaxpr(fused)(X, W, LABEL)).count("dot_general[") == 1
    assert "softmax" not in "".join(r.chain for r in fused.report)


def two_sums(x, w, label):
    """Two of the sums have gradients."""

    def chunk(state, given):
        losses = cross_entropy(given[0] @ w, given[1])
        return (state[0] + jnp.sum(losses), state[1] + jnp.sum(jnp.square(losses))), None

    total, squares = jax.lax.scan(chunk, (0.0, 0.0), (x, label))[0]
    return total + jnp.sqrt(squares)


def of_the_sum(x, w, label):
    """A term depends on the sum so far."""

    def chunk(total, given):
        return total + jnp.tanh(total) * jnp.sum(cross_entropy(given[0] @ w, given[1])), None

    return jax.lax.scan(chunk, 1.0, (x, label))[0]


@pytest.mark.parametrize("loss", [two_sums, of_the_sum], ids=lambda loss: loss.__name__)
def test_other_loops_are_differentiated_as_before(loss):
    plain = jax.value_and_grad(loss, (0, 1))
    for fused in (jax.value_and_grad(codegen.fuse(loss), (0, 1)), codegen.fuse(plain)):
        for one, other in zip(
            jax.tree.leaves(jax.jit(fused)(X, W, LABEL)), jax.tree.leaves(plain(X, W, LABEL)), strict=True
        ):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
        assert str(jax.make_jaxpr(fused)(X, W, LABEL)).count(" scan[") == 2


def test_a_sum_that_nothing_takes_has_no_gradient():
    def loss(w):
        def chunk(state, given):
            found = jnp.sum(cross_entropy(given[0] @ w, given[1]))
            return (state[0] + found, state[1] + jnp.sum(given[0])), None

        return jax.lax.scan(chunk, (0.0, 0.0), (X, LABEL))[0][1]

    np.testing.assert_array_equal(jax.grad(codegen.fuse(loss))(W), 0)


def test_the_sum_so_far_has_a_gradient():
    def loss(start, x):
        def chunk(total, given):
            return total + jnp.sum(cross_entropy(given[0] @ W, given[1])), None

        return jnp.square(jax.lax.scan(chunk, start, (x, LABEL))[0])

    for one, other in zip(*(jax.grad(f, (0, 1))(2.0, X) for f in (codegen.fuse(loss), loss)), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-4)


def test_gradients_of_gradients_and_batches():
    def squares(f):
        return lambda w: jnp.sum(jnp.square(jax.grad(f, 1)(X, w, LABEL)))

    got, wanted = (jax.grad(squares(f))(W) for f in (codegen.fuse(checkpointed), checkpointed))
    np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-6)
    every = jnp.stack([W, 2 * W])
    got, wanted = (
        jax.vmap(jax.grad(f, 1), (None, 0, None))(X, every, LABEL) for f in (codegen.fuse(checkpointed), checkpointed)
    )
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-6)


def test_float16_gradients_are_scaled_before_they_are_added_up():
    x, w = X.astype("float16"), W.astype("float16")
    text = str(jax.make_jaxpr(jax.grad(codegen.fuse(checkpointed), (0, 1)))(x, w, LABEL))
    assert text.count(" scan[") == 2
