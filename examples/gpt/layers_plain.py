"""The GPT's layers in jnp."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ..adamw import AdamW as Optimiser

__all__ = ["Optimiser", "attention", "branch", "dense_add", "loss", "mlp_add", "norm", "normed_and_rotated"]

EPS = 1e-6


def norm(x: jax.Array) -> jax.Array:
    """x: [..., width], each row divided by its root mean square."""
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + EPS)).astype(x.dtype)


def branch(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """What a branch takes of the residual stream, and the stream, which goes around it."""
    return norm(x), x


def normed_and_rotated(q: jax.Array, k: jax.Array, cos: jax.Array, sin: jax.Array) -> tuple[jax.Array, jax.Array]:
    """q, k: [batch, length, heads, size]; cos, sin: float32[length, size / 2]."""
    return rotated(norm(q), cos, sin), rotated(norm(k), cos, sin)


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
    """x: [..., inner], w: [inner, width], residual: [..., width]."""
    return residual + x @ w


def mlp_add(x: jax.Array, up: jax.Array, down: jax.Array, residual: jax.Array) -> jax.Array:
    """x, residual: [..., width]; up: [width, inner]; down: [inner, width]."""
    return residual + jnp.square(jax.nn.relu(x @ up)) @ down


def loss(x: jax.Array, head: jax.Array, label: jax.Array, cap: float) -> jax.Array:
    """The mean cross-entropy of soft-capped logits. x: [..., width]; head: [width, vocabulary]; label: int32[...]."""
    logits = cap * jnp.tanh((x @ head).astype(jnp.float32) / cap)
    at_label = jnp.take_along_axis(logits, label[..., None], axis=-1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - at_label)
