"""An axis with one element more at an end: a sink of a softmax, and the logit of the right answer before those of others."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import codegen


def with_sinks(q, k, v, sink):
    """Attention in which each head has a sink, in the form of gpt-oss."""
    rows = jnp.arange(q.shape[1])
    scores = jnp.einsum("bshd,bthd->bhst", q, k).astype(jnp.float32) * 0.25
    scores = jnp.where((rows[:, None] >= rows) & (rows[:, None] - rows < 5), scores, -jnp.inf)
    sinks = jnp.broadcast_to(sink[:, None, None].astype(jnp.float32), (*scores.shape[:3], 1))
    weights = jax.nn.softmax(jnp.concatenate([scores, sinks], -1), -1)[..., :-1]
    return jnp.einsum("bhst,bthd->bshd", weights.astype(v.dtype), v)


def contrasted(q, k, v, queue):
    """The loss of a right answer and a queue of wrong ones."""
    q, k, queue = (x.astype(jnp.float32).reshape(-1, 16) for x in (q, k, v))
    logits = jnp.concatenate([jnp.sum(q * k, -1, keepdims=True), q @ queue.T], 1) / 0.5
    return jax.nn.logsumexp(logits, -1) - logits[:, 0]


@pytest.mark.parametrize("function", [with_sinks, contrasted])
def test_one_element_more_is_part_of_a_chain(function):
    given = [
        jax.random.normal(jax.random.key(i), s).astype("bfloat16") for i, s in enumerate([(2, 12, 4, 16)] * 3 + [(4,)])
    ]
    fused = codegen.fuse(function)

    def loss(f, *args):
        return jnp.sum(jnp.sin(f(*args).astype(jnp.float32)))

    for f, g in (
        (fused, function),
        *((jax.grad(lambda *a, h=h: loss(h, *a), (0, 1, 2, 3)) for h in (fused, function)),),
    ):
        for one, other in zip(jax.tree.leaves(jax.jit(f)(*given)), jax.tree.leaves(jax.jit(g)(*given)), strict=True):
            np.testing.assert_allclose(*(x.astype(jnp.float32) for x in (one, other)), rtol=0.02, atol=0.03)
    assert len(fused.report) == 1
    assert "concatenate" not in str(jax.make_jaxpr(fused)(*given))
