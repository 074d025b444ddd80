"""The layers of the model like Gemma in jnp."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ..adamw import AdamW as Optimiser

__all__ = ["Optimiser", "attention", "embed", "junction", "loss", "mlp", "norm", "normed_and_rotated"]

EPS = 1e-6


def embed(table: jax.Array, words: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The rows of words, and the table, which is also the last layer's weight. table: [vocabulary, width]."""
    return jnp.take(table, words, axis=0), table


def norm(x: jax.Array, weight: jax.Array) -> jax.Array:
    """x: [..., width], each row divided by its root mean square, times 1 + weight: [width]."""
    wide = x.astype(jnp.float32)
    scaled = wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + EPS)
    return (scaled * (1 + weight.astype(jnp.float32))).astype(x.dtype)


def junction(y: jax.Array, residual: jax.Array, after: jax.Array, before: jax.Array) -> tuple[jax.Array, jax.Array]:
    """From a branch to the next: its result y is normalised and added to the residual stream, which is normalised."""
    x = residual + norm(y, after)
    return x, norm(x, before)


def normed_and_rotated(x: jax.Array, weight: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """x: [batch, length, heads, size], normalised, and its halves rotated; cos, sin: float32[length, size / 2]."""
    a, b = jnp.split(norm(x, weight).astype(jnp.float32), 2, axis=-1)
    cos, sin = cos[:, None], sin[:, None]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


def attention(q: jax.Array, k: jax.Array, v: jax.Array, window: int | None) -> jax.Array:
    """Causal attention, of the last `window` words or of all. q: [batch, length, heads, size]; k, v: with fewer heads."""
    fused = jax.default_backend() == "gpu"
    size = None if window is None else (window - 1, 0)
    return jax.nn.dot_product_attention(
        q, k, v, is_causal=True, local_window_size=size, implementation="cudnn" if fused else "xla"
    )


def mlp(x: jax.Array, gate: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
    """x: [..., width]; gate, up: [width, inner]; down: [inner, width]."""
    return (jax.nn.gelu(x @ gate, approximate=True) * (x @ up)) @ down


def loss(x: jax.Array, table: jax.Array, label: jax.Array, cap: float) -> jax.Array:
    """The mean cross-entropy of soft-capped logits. x: [..., width]; table: [vocabulary, width]; label: int32[...]."""
    logits = cap * jnp.tanh((x @ table.T).astype(jnp.float32) / cap)
    at_label = jnp.take_along_axis(logits, label[..., None], axis=-1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - at_label)
