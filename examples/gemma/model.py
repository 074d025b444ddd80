"""A model like Gemma 3 in Flax NNX: GEGLU, a norm before and one after each branch, windows in most attention layers, 262144 words.

Queries and keys are normalised and rotated, fewer heads of keys than of queries, the embedding is the last layer's weight too, and the
logits are soft-capped. The model takes its layers as an argument: a module with the functions of `layers_plain`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx


@dataclass(frozen=True)
class Config:
    """Sizes; the defaults are for a GPU."""

    width: int = 1152
    heads: int = 9
    key_heads: int = 3
    head_size: int = 128
    inner: int = 6912  # of the MLP
    layers: int = 6
    window: int = 512  # of words that a local layer sees
    every: int = 6  # the last layer of so many sees all words
    vocabulary: int = 262144
    sequences: int = 4  # of a batch
    length: int = 2048
    cap: float = 30.0  # of the logits
    rate: float = 1e-3  # of learning, after the first steps
    warmup: int = 20
    dtype: str = "bfloat16"


TINY = Config(
    width=32, heads=2, key_heads=1, head_size=16, inner=64, layers=2, window=8, every=2, vocabulary=64, sequences=4,
    length=32, rate=3e-2, warmup=2,
)  # fmt: skip


class Attention(nnx.Module):
    """n: [sequences, length, width], normalised, to the same shape."""

    def __init__(self, config: Config, window: int | None, rngs: nnx.Rngs):
        self.config, self.window = config, window
        size = config.head_size
        self.q, self.k, self.v = (
            weight(rngs, config.width, heads * size) for heads in (config.heads, config.key_heads, config.key_heads)
        )
        self.out = weight(rngs, config.heads * size, config.width)
        self.q_norm, self.k_norm = scales(size), scales(size)

    def __call__(self, n: jax.Array, layers: Any) -> jax.Array:
        shape = (*n.shape[:-1], -1, self.config.head_size)
        q, k, v = (jnp.reshape(n @ w[...], shape) for w in (self.q, self.k, self.v))
        cos, sin = angles(n.shape[1], self.config.head_size // 2, 1e4 if self.window else 1e6)
        q = layers.normed_and_rotated(q, self.q_norm[...], cos, sin)
        k = layers.normed_and_rotated(k, self.k_norm[...], cos, sin)
        return layers.attention(q, k, v, self.window).reshape(*n.shape[:-1], -1) @ self.out[...]


class Block(nnx.Module):
    """A branch of attention and one of the MLP, the norms after both, and the norm before the second."""

    def __init__(self, config: Config, window: int | None, rngs: nnx.Rngs):
        self.attention = Attention(config, window, rngs)
        self.gate, self.up = (weight(rngs, config.width, config.inner) for _ in range(2))
        self.down = weight(rngs, config.inner, config.width)
        self.before, self.after_attention, self.before_mlp, self.after_mlp = (scales(config.width) for _ in range(4))

    def __call__(self, x: jax.Array, n: jax.Array, following: jax.Array, layers: Any) -> tuple[jax.Array, jax.Array]:
        """x: the residual stream, n: what it is normalised, following: the scales of the norm that comes next."""
        x, n = layers.junction(self.attention(n, layers), x, self.after_attention[...], self.before_mlp[...])
        y = layers.mlp(n, self.gate[...], self.up[...], self.down[...])
        return layers.junction(y, x, self.after_mlp[...], following)


class Gemma(nnx.Module):
    """Words and those that follow, int32[sequences, length] each, to the mean loss."""

    def __init__(self, config: Config, rngs: nnx.Rngs):
        self.config = config
        self.embedding = nnx.Param(
            jax.random.normal(rngs.params(), (config.vocabulary, config.width)) * config.width**-0.5
        )
        for i in range(config.layers):
            setattr(self, f"block{i}", Block(config, None if (i + 1) % config.every == 0 else config.window, rngs))
        self.last = scales(config.width)

    def __call__(self, words: jax.Array, following: jax.Array, layers: Any) -> jax.Array:
        blocks = [getattr(self, f"block{i}") for i in range(self.config.layers)]
        norms = [block.before[...] for block in blocks] + [self.last[...]]
        x, table = layers.embed(self.embedding[...], words)
        x = x * self.config.width**0.5
        n = layers.norm(x, norms[0])
        for block, scale in zip(blocks, norms[1:], strict=True):
            x, n = block(x, n, scale, layers)
        return layers.loss(n, table, following, self.config.cap)


def weight(rngs: nnx.Rngs, rows: int, columns: int) -> nnx.Param:
    return nnx.Param(jax.random.normal(rngs.params(), (rows, columns)) * rows**-0.5)


def scales(width: int) -> nnx.Param:
    """The weights of a norm, as distances from 1."""
    return nnx.Param(jnp.zeros(width))


def angles(length: int, size: int, longest: float) -> tuple[np.ndarray, np.ndarray]:
    """Cosine and sine of the rotation at each position, float32[length, size]."""
    turns = np.outer(np.arange(length), longest ** -(np.arange(size) / size))
    return np.cos(turns).astype(np.float32), np.sin(turns).astype(np.float32)
