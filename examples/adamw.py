"""AdamW of a tree of float32 parameters, for models that compute with rounded copies of them: in jnp, and with one fused op.

A parameter whose name is in `kept` is not rounded, such as a table of which a step reads a few rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .ops import adamw

B1, B2, EPS, DECAY = 0.9, 0.95, 1e-8, 0.01


class State(NamedTuple):
    """Lists of what an optimiser has of each parameter: itself, the means of its gradient and of that's square, its rounded copy."""

    params: list[jax.Array]
    mean: list[jax.Array]
    square: list[jax.Array]
    rounded: list[jax.Array | None]


@dataclass(frozen=True)
class AdamW:
    """The optimiser in jnp. It rounds the parameters at the beginning of a step."""

    form: Any  # the tree of the parameters
    rounds: tuple[bool, ...]  # for each of them
    dtype: str

    @classmethod
    def of(cls, params: Any, dtype: str, kept: tuple[str, ...] = ()) -> AdamW:
        paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(params)]
        return cls(jax.tree.structure(params), tuple(not any(name in path for name in kept) for path in paths), dtype)

    def start(self, params: Any) -> State:
        """The state before the first step."""
        leaves = jax.tree.leaves(params)
        return State(
            leaves, [jnp.zeros_like(p) for p in leaves], [jnp.zeros_like(p) for p in leaves], self.copies(leaves)
        )

    def copies(self, leaves: list[jax.Array]) -> list[jax.Array | None]:
        return [None for _ in leaves]

    def weights(self, state: State) -> Any:
        """The parameters as the model computes with them."""
        return self.form.unflatten(
            p.astype(self.dtype) if rounds else p for p, rounds in zip(state.params, self.rounds, strict=True)
        )

    def update(self, state: State, gradients: Any, rate: jax.Array, step: jax.Array) -> State:
        """The state after a step. The first `step` is 1."""
        leaves = zip(state.params, jax.tree.leaves(gradients), state.mean, state.square, self.rounds, strict=True)
        return State(*map(list, zip(*(self.one(*of, rate, step) for of in leaves), strict=True)))

    def one(
        self, p: jax.Array, g: jax.Array, m: jax.Array, v: jax.Array, rounds: bool, rate: jax.Array, step: jax.Array
    ) -> tuple[jax.Array | None, ...]:
        """A step of one parameter: what the lists of the state have of it."""
        g = g.astype(jnp.float32)
        m, v = B1 * m + (1 - B1) * g, B2 * v + (1 - B2) * jnp.square(g)
        scaled = m / (1 - B1**step) / (jnp.sqrt(v / (1 - B2**step)) + EPS)
        return p - rate * (scaled + DECAY * p), m, v, None


class FusedAdamW(AdamW):
    """The optimiser with an op that also rounds the new parameter, so that no step begins with that."""

    def copies(self, leaves: list[jax.Array]) -> list[jax.Array | None]:
        return [jnp.array(p, self.dtype) if rounds else None for p, rounds in zip(leaves, self.rounds, strict=True)]

    def weights(self, state: State) -> Any:
        return self.form.unflatten(p if r is None else r for p, r in zip(state.params, state.rounded, strict=True))

    def one(
        self, p: jax.Array, g: jax.Array, m: jax.Array, v: jax.Array, rounds: bool, rate: jax.Array, step: jax.Array
    ) -> tuple[jax.Array | None, ...]:
        if not rounds:
            return super().one(p, g, m, v, rounds, rate, step)
        scales = {"scale1": 1 / (1 - B1**step), "scale2": 1 / (1 - B2**step)}
        return tuple(adamw(p, g, m, v, rate=rate, b1=B1, b2=B2, eps=EPS, decay=DECAY, **scales))
