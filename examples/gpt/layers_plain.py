"""The GPT's layers in jnp."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

EPS, B1, B2, DECAY = 1e-6, 0.9, 0.95, 0.01


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


class State(NamedTuple):
    """The parameters in float32, the means of their gradients and of the squares, and what else an optimiser keeps."""

    params: Any
    mean: Any
    square: Any
    rounded: Any = None


def start(params: Any, dtype: str) -> State:
    """The state before the first step of AdamW."""
    zeros = jax.tree.map(jnp.zeros_like, params)
    return State(params, zeros, jax.tree.map(jnp.zeros_like, params))


def weights(state: State, dtype: str) -> Any:
    """The parameters as the model computes with them."""
    products = jax.tree.map(lambda p: p.astype(dtype), state.params["products"])
    return {**state.params, "products": products}


def adamw(
    p: jax.Array, g: jax.Array, m: jax.Array, v: jax.Array, rate: jax.Array, step: jax.Array
) -> tuple[jax.Array, ...]:
    """AdamW of one array: the new parameter, and the new means of gradients and of their squares. The first `step` is 1."""
    g = g.astype(jnp.float32)
    m, v = B1 * m + (1 - B1) * g, B2 * v + (1 - B2) * jnp.square(g)
    return p - rate * (m / (1 - B1**step) / (jnp.sqrt(v / (1 - B2**step)) + 1e-8) + DECAY * p), m, v


def update(state: State, gradients: Any, rate: jax.Array, step: jax.Array) -> State:
    """The state after a step of AdamW."""
    return State(
        *transposed(state.params, lambda *arrays: adamw(*arrays, rate, step), gradients, state.mean, state.square)
    )


def transposed(params: Any, function: Any, *trees: Any) -> list[Any]:
    """`function` of each leaf of trees; a tree for each of its results."""
    leaves, form = jax.tree.flatten(params)
    results = [function(*arrays) for arrays in zip(leaves, *map(jax.tree.leaves, trees), strict=True)]
    return [jax.tree.unflatten(form, result) for result in zip(*results, strict=True)]
