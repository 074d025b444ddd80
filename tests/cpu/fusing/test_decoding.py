"""Decoding: attention of one row of queries for each head, to a cache of keys and values. The op has the row as an axis of one element."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import codegen
from codegen.fusing.chains.expressing import place_of_input
from codegen.fusing.fuse import EXPRESSING
from codegen.fusing.program import evaluate, program_of
from codegen.plan.attention import Attention
from codegen.tracing.ops import op_of
from tests.meshes import normal
from tests.turns import some

BATCH, COLUMNS, HEADS, SIZE = 2, 24, 4, 16


def random(*shape, seed=0):
    return jnp.asarray(normal(*shape, seed=seed), jnp.bfloat16)


def weights(scores, lengths):
    scores = scores.astype(jnp.float32) * SIZE**-0.5
    seen = jnp.arange(scores.shape[-1]) < lengths.reshape(-1, *(1,) * (scores.ndim - 1))
    return jax.nn.softmax(jnp.where(seen, scores, -1e30), axis=-1).astype(jnp.bfloat16)


def a_row(q, k, v, lengths):
    return jnp.einsum("bhqk,bkhd->bqhd", weights(jnp.einsum("bqhd,bkhd->bhqk", q, k), lengths), v)


def no_row(q, k, v, lengths):
    return jnp.einsum("bhk,bkhd->bhd", weights(jnp.einsum("bhd,bkhd->bhk", q[:, 0], k), lengths), v)


def repeated(q, k, v, lengths):
    k, v = (jnp.repeat(x[:, :, ::2], 2, axis=2) for x in (k, v))
    return a_row(q, k, v, lengths)


def of_groups(q, k, v, lengths):
    q = q.reshape(BATCH, 1, 2, 2, SIZE)
    w = weights(jnp.einsum("bqkgd,bskd->bkgqs", q, k[:, :, ::2]), lengths)
    return jnp.einsum("bkgqs,bskd->bqkgd", w, v[:, :, ::2]).reshape(BATCH, 1, HEADS, SIZE)


def heads_first(q, k, v, lengths):
    q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
    return weights(q @ k.swapaxes(-1, -2), lengths) @ v


def to_a_position(q, k, v, lengths):
    return a_row(q, k, v, lengths[:1] + jnp.zeros_like(lengths))


def of_jax(q, k, v, lengths):
    return jax.nn.dot_product_attention(
        q, k, v, key_value_seq_lengths=lengths, query_seq_lengths=jnp.ones_like(lengths)
    )


FORMS = (a_row, no_row, repeated, of_groups, heads_first, to_a_position, of_jax)
Q = random(BATCH, 1, HEADS, SIZE)
K, V = (random(BATCH, COLUMNS, HEADS, SIZE, seed=seed) for seed in (1, 2))
ARGUMENTS = Q, K, V, jnp.asarray([5, 24], jnp.int32)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_attention_of_one_row_is_one_kernel(form):
    program = program_of(jax.make_jaxpr(form)(*ARGUMENTS), EXPRESSING, sequences=True)
    attentions = [c for c in program.chains if isinstance(c.made.planned.plan, Attention)]
    assert len(attentions) == 1
    got, wanted = jax.jit(codegen.fuse(form))(*ARGUMENTS), jax.jit(form)(*ARGUMENTS)
    np.testing.assert_allclose(got.astype("float32"), wanted.astype("float32"), atol=2e-2)


@pytest.mark.parametrize("form", some([repeated, a_row, no_row], 2), ids=lambda form: form.__name__)
def test_its_kernel_computes_the_rows(form):
    def interpreted(chain):
        op = op_of(chain.made.planned)

        def call(*arrays):
            given = [arrays[place_of_input(a.name)].reshape(a.shape) for a in chain.made.inputs]
            return (op(*given, implementation="interpret").reshape(chain.outputs[0].shape),)

        return call if isinstance(chain.made.planned.plan, Attention) else None

    program = program_of(jax.make_jaxpr(form)(*ARGUMENTS), EXPRESSING, sequences=True)
    (got,), wanted = evaluate(program, ARGUMENTS, interpreted), form(*ARGUMENTS)
    np.testing.assert_allclose(got.astype("float32"), wanted.astype("float32"), atol=2e-2)
