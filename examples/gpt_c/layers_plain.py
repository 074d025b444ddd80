"""The GPT's layers in jnp."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ..adamw import AdamW as Optimiser

__all__ = ["Optimiser", "attention", "branch", "dense_add", "heads", "loss", "mlp_add", "norm", "stream"]

EPS = 1e-6


def norm(x: jax.Array) -> jax.Array:
    """x: [..., width], each row divided by its root mean square."""
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + EPS)).astype(x.dtype)


def stream(x: jax.Array) -> jax.Array:
    """The residual stream that begins with x: [..., width]."""
    return norm(x)


def branch(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """What a branch takes of the residual stream, and the stream, which goes around it."""
    return norm(x), x


def heads(
    x: jax.Array, q: jax.Array, k: jax.Array, v: jax.Array, cos: jax.Array, sin: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Queries and keys, normalised and rotated, and values: [batch, length, heads, size] each.

    x: [batch, length, width]; q, k, v: their weights; cos, sin: float32[length, size / 2].
    """
    shape = (*x.shape[:-1], -1, 2 * cos.shape[1])
    query, key, value = (jnp.reshape(x @ w, shape) for w in (q, k, v))
    return rotated(norm(query), cos, sin), rotated(norm(key), cos, sin), value


def rotated(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """x: [batch, length, heads, size], its halves rotated by the angle of each position."""
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = cos[:, None], sin[:, None]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Causal attention. q, k, v: [batch, length, heads, size]."""
    fused = jax.default_backend() == "gpu"
    return jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn" if fused else "xla")


def dense_add(x: jax.Array, w: jax.Array, residual: jax.Array) -> jax.Array:
    """x: [..., heads, size], w: [heads * size, width], residual: [..., width]."""
    return residual + x.reshape(*x.shape[:-2], -1) @ w


def mlp_add(x: jax.Array, up: jax.Array, down: jax.Array, residual: jax.Array) -> jax.Array:
    """x, residual: [..., width]; up: [width, inner]; down: [inner, width]."""
    return residual + jnp.square(jax.nn.relu(x @ up)) @ down


def loss(x: jax.Array, head: jax.Array, label: jax.Array, cap: float) -> jax.Array:
    """The mean cross-entropy of soft-capped logits. x: [..., width]; head: [width, vocabulary]; label: int32[...]."""
    logits = cap * jnp.tanh((x @ head).astype(jnp.float32) / cap)
    at_label = jnp.take_along_axis(logits, label[..., None], axis=-1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - at_label)
