"""Attention in fused functions, as models write it, is one chain."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import codegen


@pytest.mark.parametrize("heads", ["before rows", "after rows"])
def test_attention_is_one_chain(heads):
    """Two products and the softmax between them, as written by hand, with heads before or after the rows."""
    q, k, v = (jax.random.normal(jax.random.key(n), (2, 6, 3, 8)).astype(jnp.bfloat16) for n in range(3))

    def function(q, k, v):
        if heads == "before rows":
            q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
            scores = (q @ k.swapaxes(-1, -2)).astype(jnp.float32) / 8
        else:
            scores = jnp.einsum("bshd,bthd->bhst", q, k).astype(jnp.float32) / 8
        scores = jnp.where(jnp.tril(jnp.ones((6, 6), bool)), scores, -jnp.inf)
        p = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
        return (p @ v).swapaxes(1, 2) if heads == "before rows" else jnp.einsum("bhst,bthd->bshd", p, v)

    fused = codegen.fuse(function)
    got, wanted = jax.jit(fused)(q, k, v), jax.jit(function)(q, k, v)
    np.testing.assert_allclose(np.float32(got), np.float32(wanted), atol=2e-2)
    (chain,) = (r.chain for r in fused.report)
    assert chain.count("dot(") == 2 and "softmax(" in chain


def windowed(q, k, v):
    """With a mask of positions along one axis, which are those of rows and of columns."""
    at = jnp.arange(6)
    scores = jnp.where((at[:, None] >= at) & (at[:, None] - at < 3), jnp.einsum("bshd,bthd->bhst", q, k), -1e30)
    return jnp.einsum("bhst,bthd->bshd", jax.nn.softmax(scores, axis=-1), v)


def test_positions_along_one_axis_are_a_mask_of_rows_and_columns():
    arrays = [jax.ShapeDtypeStruct((2, 6, 3, 8), "bfloat16")] * 3
    fused = codegen.fuse(windowed)
    jax.eval_shape(fused, *arrays)
    mask = "index(S) - index(K) < 3"
    assert [mask in r.chain for r in fused.report] == [True]
    assert mask in codegen.trace(windowed, *arrays)


@pytest.mark.parametrize(("dtype", "size"), [("float32", 8), ("bfloat16", 12)])
def test_attention_without_a_kernel_stays(dtype, size):
    fused = codegen.fuse(lambda q, k, v: jax.nn.dot_product_attention(q, k, v))
    jax.eval_shape(fused, *(jax.ShapeDtypeStruct((2, 6, 3, size), dtype) for _ in range(3)))
    assert all("dot(" not in r.chain for r in fused.report)


CUDNN = "jax._src.cudnn.fused_attention_stablehlo"


def attended(implementation, causal, q, k, v):
    o = jax.nn.dot_product_attention(q, k, v, is_causal=causal, implementation=implementation)
    return jnp.sum(jnp.square(o.astype("float32")))


@pytest.mark.parametrize(("causal", "size", "taken"), [(True, 128, True), (True, 64, False), (False, 128, False)])
def test_causal_attention_by_cudnn_is_the_op_of_attention(causal, size, taken, monkeypatch):
    """Tracing asks for a GPU, which running the op does not need."""
    monkeypatch.setattr(f"{CUDNN}.check_cudnn_version", lambda: 92000)
    monkeypatch.setattr(f"{CUDNN}.check_compute_capability", lambda capability: True)
    q, k, v = (jax.random.normal(jax.random.key(i), (1, 64, 4 >> (i > 0), size), "bfloat16") for i in range(3))
    fused = codegen.fuse(functools.partial(attended, "cudnn", causal))
    if not taken:
        jax.make_jaxpr(fused)(q, k, v)
        assert fused.report == ()
        return
    got, pull = jax.vjp(fused, q, k, v)
    wanted, pull_wanted = jax.vjp(functools.partial(attended, "xla", causal), q, k, v)
    np.testing.assert_allclose(got, wanted, rtol=1e-3)
    for one, other in zip(pull(1.0), pull_wanted(1.0), strict=True):
        np.testing.assert_allclose(np.float32(one), np.float32(other), atol=0.02 * float(abs(other).max()))
    (found,) = fused.report
    assert "softmax(where(seen, scores, -inf)" in found.chain  # tiles that nothing sees are skipped
    assert str(found).endswith("moves as many bytes")
