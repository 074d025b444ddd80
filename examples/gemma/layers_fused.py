"""The layers of the model like Gemma with fused ops: those of the library and those of examples/specs.

Three layers have gradients by hand, because they know more than each op does. The embedding has two gradients, and the one of its rows
is added to the other in place (`embed`). The MLP's activation and its slope are computed where a product makes their factors (`mlp`).
A loss is computed to be differentiated (`loss`).
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from cutefuse import gemma_rmsnorm, head_rmsnorm_rotary

from ..adamw import FusedAdamW as Optimiser
from ..ops import capped_cross_entropy, dense_geglu_saving, matmul_dgeglu, post_add_pre_norm
from . import layers_plain
from .layers_plain import EPS, attention

__all__ = ["Optimiser", "attention", "embed", "junction", "loss", "mlp", "norm", "normed_and_rotated"]

norm = functools.partial(gemma_rmsnorm, eps=EPS)
embed = jax.custom_vjp(layers_plain.embed)
embed.defvjp(
    lambda table, words: (layers_plain.embed(table, words), words), lambda words, d: (d[1].at[words].add(d[0]), None)
)


def junction(y: jax.Array, residual: jax.Array, after: jax.Array, before: jax.Array) -> tuple[jax.Array, jax.Array]:
    return tuple(post_add_pre_norm(y, residual, after, before, eps=EPS))


def normed_and_rotated(x: jax.Array, weight: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    return head_rmsnorm_rotary(x, 1 + weight, cos, sin, eps=EPS)


def mlp_forward(x: jax.Array, gate: jax.Array, up: jax.Array, down: jax.Array) -> tuple[jax.Array, Any]:
    found = dense_geglu_saving(x, gate, up)
    return found.y @ down, (x, gate, up, down, found)


def mlp_backward(saved: Any, dy: jax.Array) -> tuple[jax.Array, ...]:
    x, gate, up, down, found = saved
    d = matmul_dgeglu(dy, down, found.gate, found.up)
    dx = d.dgate @ gate.T + d.dup @ up.T
    return dx, weight_gradient(x, d.dgate), weight_gradient(x, d.dup), weight_gradient(found.y, dy)


def weight_gradient(x: jax.Array, dy: jax.Array) -> jax.Array:
    """The gradient by w of x @ w. x: [..., K], dy: [..., N]; to [K, N]."""
    return x.reshape(-1, x.shape[-1]).T @ dy.reshape(-1, dy.shape[-1])


mlp = jax.custom_vjp(layers_plain.mlp)
mlp.defvjp(mlp_forward, mlp_backward)


def loss_forward(x: jax.Array, table: jax.Array, label: jax.Array, cap: float) -> tuple[jax.Array, Any]:
    found = capped_cross_entropy(x @ table.T, label, cap=cap, weight=1 / label.size)
    return jnp.mean(found.loss), (x, table, found.dlogits)


def loss_backward(cap: float, saved: Any, d: jax.Array) -> tuple[jax.Array, jax.Array, None]:
    x, table, dlogits = saved
    d = d.astype(x.dtype)
    return d * (dlogits @ table), d * weight_gradient(dlogits, x), None


loss = jax.custom_vjp(layers_plain.loss, nondiff_argnums=(3,))
loss.defvjp(loss_forward, loss_backward)
