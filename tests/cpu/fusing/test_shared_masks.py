"""Masks and biases that all layers of a model share: each layer's attention computes them of positions and of small arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import codegen
from codegen.fusing.fuse import EXPRESSING
from codegen.fusing.program import program_of
from codegen.plan.attention import Attention
from tests.meshes import normal

BATCH, LENGTH, HEADS, SIZE = 2, 64, 2, 16
WIDTH, LAYERS = HEADS * SIZE, 2


def causal():
    return jnp.tril(jnp.ones((LENGTH, LENGTH), bool))


def by_positions():
    position = jnp.arange(LENGTH)
    return position[:, None] >= position


MASKS = {
    "causal": lambda d: causal()[None, None],
    "positions": lambda d: by_positions()[None, None],
    "window": lambda d: (by_positions() & (jnp.arange(LENGTH)[:, None] - jnp.arange(LENGTH) < 9))[None, None],
    "after": lambda d: (jnp.arange(LENGTH)[:, None] > jnp.arange(LENGTH))[None, None],
    "padding": lambda d: (d > 0)[:, None, None, :],
    "documents": lambda d: ((d[:, :, None] == d[:, None, :]) & causal())[:, None],
    "lengths": lambda d: (jnp.arange(LENGTH) < d[:, -1, None])[:, None, None, :] & by_positions(),
}
SEEN = {"causal", "positions", "window", "documents", "slopes"}  # masks in which each row is known to see something
BIASES = {
    "additive": lambda d: jnp.where(MASKS["documents"](d), 0.0, -1e9),
    "slopes": lambda d: (
        2.0 ** -jnp.arange(1, HEADS + 1)[:, None, None] * (jnp.arange(LENGTH) - jnp.arange(LENGTH)[:, None])
    ),
}


def model(name):
    def layer(x, weights, mask, bias):
        q, k, v = ((x @ w).reshape(BATCH, LENGTH, HEADS, SIZE) for w in weights)
        own = jax.nn.dot_product_attention(q, k, v, bias, mask, is_causal=name == "slopes")
        return jnp.tanh(x + own.reshape(x.shape))

    def layers(x, weights, documents):
        mask = MASKS[name](documents) if name in MASKS else None
        bias = BIASES[name](documents) if name in BIASES else None
        if name == "slopes":
            bias = bias[None]
        for own in weights:
            x = layer(x, own, mask, bias)
        return x

    return layers


X = jnp.asarray(normal(BATCH, LENGTH, WIDTH), jnp.bfloat16)
WEIGHTS = [[jnp.asarray(w / 6, jnp.bfloat16) for w in normal(3, WIDTH, WIDTH, seed=i)] for i in range(LAYERS)]
DOCUMENTS = jnp.asarray(np.sort(np.random.default_rng(0).integers(1, 6, (BATCH, LENGTH), "int32")))


@pytest.mark.parametrize("name", [*MASKS, *BIASES])
def test_each_layer_computes_the_mask(name):
    function = model(name)
    given = X, WEIGHTS, DOCUMENTS
    program = program_of(jax.make_jaxpr(function)(*given), EXPRESSING, sequences=True)
    attentions = [c for c in program.chains if isinstance(c.made.planned.plan, Attention)]
    assert len(attentions) == LAYERS
    assert not any(v.shape[-2:] == (LENGTH, LENGTH) for c in attentions for v in c.inputs)
    hidden = ["-inf" in c.made.planned.spec.chain.value for c in attentions]
    assert hidden == [name in SEEN] * LAYERS  # a kernel need not compute what is hidden
    got, wanted = jax.jit(codegen.fuse(function))(*given), jax.jit(function)(*given)
    np.testing.assert_allclose(got.astype("float32"), wanted.astype("float32"), atol=3e-2)


def test_gradients_pass_through_a_mask_of_documents():
    function = model("documents")

    def loss(f):
        return jax.jit(jax.grad(lambda x, w: jnp.sum(f(x, w, DOCUMENTS).astype(jnp.float32) ** 2), argnums=(0, 1)))

    got, wanted = (jax.tree.leaves(loss(f)(X, WEIGHTS)) for f in (codegen.fuse(function), function))
    for one, other in zip(got, wanted, strict=True):
        one, other = (np.asarray(a, "float32") for a in (one, other))
        np.testing.assert_allclose(one, other, atol=3e-2 * np.abs(other).max())
