"""Losses of rows with a label each: the loss and its gradient are one chain, however they are written in JAX.

The label's gradient is a scatter in JAX, whose sum over a row is its number. What JAX's derivative computes for nothing is left out.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import codegen
from tests.meshes import normal
from tests.turns import some

LOGITS = jnp.asarray(20 * normal(2, 6, 16))
LABEL = jnp.asarray(np.arange(12, dtype="int32").reshape(2, 6))


def at(x, label):
    return jnp.take_along_axis(x, label[..., None], axis=-1)[..., 0]


def capped(logits, label):
    capped = 15 * jnp.tanh(logits / 15)
    return jnp.mean(jax.nn.logsumexp(capped, axis=-1) - at(capped, label))


def of_sums(logits, label):
    """As optax writes it."""
    found = jnp.take_along_axis(logits, label[..., None], axis=-1).take(0, axis=-1)
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - found)


def of_probabilities(logits, label):
    rows, columns = jnp.arange(2)[:, None], jnp.arange(6)
    return -jnp.mean(jax.nn.log_softmax(logits)[rows, columns, label])


def smoothed(logits, label):
    wanted = jax.nn.one_hot(label, logits.shape[-1]) * 0.9 + 0.1 / logits.shape[-1]
    return -jnp.mean(jnp.sum(wanted * jax.nn.log_softmax(logits), axis=-1))


def with_squared_sums(logits, label):
    total = jax.nn.logsumexp(logits, axis=-1)
    found = jax.vmap(jax.vmap(lambda row, place: row[place]))(logits, label)
    return jnp.mean(total - found + 1e-2 * total**2)


def with_ignored_labels(logits, label):
    wanted = label != 3
    found = at(jax.nn.log_softmax(logits), jnp.where(wanted, label, 0))
    return -jnp.sum(found * wanted) / jnp.sum(wanted)


LOSSES = (capped, of_sums, of_probabilities, smoothed, with_squared_sums, with_ignored_labels)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
def test_a_loss_and_its_gradient_are_one_chain(loss):
    both = jax.value_and_grad(loss)
    fused = codegen.fuse(both)
    got, wanted = jax.jit(fused)(LOGITS, LABEL), jax.jit(both)(LOGITS, LABEL)
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)
    (chain,) = (r.chain for r in fused.report)
    assert "softmax(" in chain and "exp(" not in chain.replace("logsumexp(", "")
    assert chain.count("== index(N)") + chain.count("index(N) ==") == 1


@pytest.mark.parametrize("loss", [capped, of_sums, of_probabilities, with_squared_sums], ids=lambda loss: loss.__name__)
def test_the_element_at_a_label_is_read_alone_where_the_gradient_is_there(loss):
    """A kernel adds up no row for it. Alone, the loss adds up a row, whose gradient is no scatter."""
    both, alone = codegen.fuse(jax.value_and_grad(loss)), codegen.fuse(loss)
    both(LOGITS, LABEL), alone(LOGITS, LABEL)
    assert ["take(x0, x1, axis=N)" in r.chain for r in (*both.report, *alone.report)] == [True, False]

    def squares(gradient):
        return lambda logits: jnp.sum(jnp.square(gradient(logits, LABEL)))

    got, wanted = (jax.grad(squares(f))(LOGITS) for f in (lambda *a: both(*a)[1], jax.grad(loss)))
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-6)


def test_what_a_slope_multiplies_and_divides_by_is_left_out():
    """cap * tanh(x / cap) has the slope cap * (1 - t) * (1 + t) / cap."""
    fused = codegen.fuse(jax.value_and_grad(capped))
    fused(LOGITS, LABEL)
    (chain,) = (r.chain for r in fused.report)
    assert chain.count("15 * ") == chain.count(" / 15") == chain.count("tanh(")


@pytest.mark.parametrize("loss", some(LOSSES, 2), ids=lambda loss: loss.__name__)
def test_the_gradient_of_a_fused_loss_is_computed_with_it(loss):
    fused = codegen.fuse(loss)
    both = jax.value_and_grad(fused)
    for one, other in zip(jax.jit(both)(LOGITS, LABEL), jax.value_and_grad(loss)(LOGITS, LABEL), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)
    assert str(jax.make_jaxpr(both)(LOGITS, LABEL)).count("codegen_op") == 1  # without its derivative there are two
    scaled = jax.grad(lambda logits: 3 * fused(logits, LABEL))(LOGITS)
    np.testing.assert_allclose(scaled, 3 * jax.grad(loss)(LOGITS, LABEL), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("loss", [of_sums, of_probabilities], ids=lambda loss: loss.__name__)
def test_the_gradient_of_logits_that_are_widened_is_computed_with_the_loss(loss):
    """Two steps take the logits in float32: their gradients are added up before they are rounded."""
    logits = LOGITS.astype(jnp.bfloat16)

    def wide(logits):
        return loss(logits.astype(jnp.float32), LABEL)

    both = jax.value_and_grad(codegen.fuse(wide))
    for one, other in zip(jax.jit(both)(logits), jax.value_and_grad(wide)(logits), strict=True):
        np.testing.assert_allclose(one.astype("float32"), other.astype("float32"), rtol=1e-2, atol=2e-4)
    assert str(jax.make_jaxpr(both)(logits)).count("codegen_op") == 1


@pytest.mark.parametrize("form", ["rows", "two numbers", "a product"])
def test_other_losses_have_their_ops_own_gradients(form):
    """The rows' losses are taken elsewhere too, or the gradient is more than one chain."""

    def loss(logits, label):
        if form == "a product":
            return of_sums(logits @ jnp.eye(16), label)
        rows = jax.nn.logsumexp(logits, axis=-1) - at(logits, label)
        return jnp.mean(rows) + (jnp.max(rows) if form == "two numbers" else 0), rows if form == "rows" else 0.0

    def first(f):
        return lambda logits: jax.tree.leaves(f(logits, LABEL))[0]

    got, wanted = (jax.value_and_grad(first(f))(LOGITS) for f in (codegen.fuse(loss), loss))
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)


def test_the_mean_of_a_loss_is_left_out_of_its_chain():
    fused = codegen.fuse(capped)
    np.testing.assert_allclose(jax.jit(fused)(LOGITS, LABEL), jax.jit(capped)(LOGITS, LABEL), rtol=2e-5)
    (chain,) = (r.chain for r in fused.report)
    assert "logsumexp(" in chain and "axis=..." not in chain
