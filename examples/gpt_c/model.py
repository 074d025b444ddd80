"""A GPT of today's shape in plain JAX: no weights in norms, normalised and rotated queries and keys, squared ReLU, soft-capped logits.

The model takes its layers as an argument: a module with the functions of `layers_plain`. Parameters are float32, products bfloat16.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


@dataclass(frozen=True)
class Config:
    """Sizes; the defaults are for a GPU."""

    width: int = 1280
    heads: int = 10
    layers: int = 8
    vocabulary: int = 50304
    sequences: int = 16  # of a batch
    length: int = 2048
    cap: float = 15.0  # of the logits
    rate: float = 1e-3  # of learning, after the first steps
    warmup: int = 20
    dtype: str = "bfloat16"


KEPT = ("embedding",)  # in float32: a step reads a few of its rows
TINY = Config(width=32, heads=2, layers=1, vocabulary=64, sequences=4, length=32, rate=3e-2, warmup=2)


def init(config: Config, seed: int = 0) -> dict[str, Any]:
    """Random parameters in float32."""
    keys = iter(jax.random.split(jax.random.key(seed), 2 + 6 * config.layers))
    wide, deep = config.width, (2 * config.layers) ** -0.5

    def normal(rows: int, columns: int, scale: float = 1.0) -> jax.Array:
        return jax.random.normal(next(keys), (rows, columns)) * (scale * rows**-0.5)

    def block() -> dict[str, jax.Array]:
        inner = {name: normal(wide, wide) for name in ("q", "k", "v")}
        outer = {"out": normal(wide, wide, deep), "up": normal(wide, 4 * wide), "down": normal(4 * wide, wide, deep)}
        return inner | outer

    embedding = jax.random.normal(next(keys), (config.vocabulary, wide))
    head = normal(wide, config.vocabulary, 0.5)
    return {"embedding": embedding, "head": head, "blocks": [block() for _ in range(config.layers)]}


def angles(length: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Cosine and sine of the rotation at each position, float32[length, size]."""
    turns = np.outer(np.arange(length), 10000.0 ** -(np.arange(size) / size))
    return np.cos(turns).astype(np.float32), np.sin(turns).astype(np.float32)


def loss(weights: dict[str, Any], words: jax.Array, following: jax.Array, config: Config, layers: Any) -> jax.Array:
    """The mean loss of predicting `following` from `words`, int32[sequences, length] each."""
    cos, sin = angles(words.shape[1], config.width // config.heads // 2)
    x = layers.stream(jnp.take(weights["embedding"], words, axis=0).astype(config.dtype))
    for block in weights["blocks"]:
        n, x = layers.branch(x)
        q, k, v = layers.heads(n, block["q"], block["k"], block["v"], cos, sin)
        x = layers.dense_add(layers.attention(q, k, v), block["out"], x)
        n, x = layers.branch(x)
        x = layers.mlp_add(n, block["up"], block["down"], x)
    return layers.loss(layers.norm(x), weights["head"], following, config.cap)
