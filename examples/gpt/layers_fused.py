"""The GPT's layers with fused ops: those of the library and those of examples/specs. What no op improves is `layers_plain`'s.

Three layers have gradients by hand, because they know more than each op does. The residual stream has two gradients, which one kernel
adds (`branch`). A squared ReLU's result has all that its slope needs (`mlp`). A loss is computed to be differentiated (`loss`).
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from cutefuse import causal_attention, dense_residual, dense_squared_relu, rmsnorm

from ..adamw import FusedAdamW as Optimiser
from ..ops import capped_cross_entropy, drmsnorm_add, matmul_dsquared_relu, qkv_rmsnorm_rotary
from . import layers_plain
from .layers_plain import EPS

__all__ = ["Optimiser", "attention", "branch", "dense_add", "heads", "loss", "mlp_add", "norm"]

norm = functools.partial(rmsnorm, eps=EPS)


@jax.custom_vjp
def branch(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return norm(x), x


branch.defvjp(lambda x: ((norm(x), x), x), lambda x, d: (drmsnorm_add(d[0], x, d[1], eps=EPS),))


def heads(
    x: jax.Array, q: jax.Array, k: jax.Array, v: jax.Array, cos: jax.Array, sin: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    size = 2 * cos.shape[1]
    weights = jnp.stack([w.reshape(x.shape[-1], -1, size) for w in (q, k, v)], axis=2)  # by head
    products = x @ weights.reshape(x.shape[-1], -1)
    return tuple(qkv_rmsnorm_rotary(products.reshape(*x.shape[:-1], -1, 3 * size), cos, sin, eps=EPS))


def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    if q.dtype == jnp.float32:  # for which attention has no kernel
        return layers_plain.attention(q, k, v)
    return causal_attention(q, k, v, scale=q.shape[-1] ** -0.5).o


dense_add = dense_residual


def mlp_add(x: jax.Array, up: jax.Array, down: jax.Array, residual: jax.Array) -> jax.Array:
    return mlp(rows(x), up, down, rows(residual)).reshape(residual.shape)


def rows(x: jax.Array) -> jax.Array:
    return x.reshape(-1, x.shape[-1])


@jax.custom_vjp
def mlp(x: jax.Array, up: jax.Array, down: jax.Array, residual: jax.Array) -> jax.Array:
    return mlp_forward(x, up, down, residual)[0]


def mlp_forward(x: jax.Array, up: jax.Array, down: jax.Array, residual: jax.Array) -> tuple[jax.Array, Any]:
    u = dense_squared_relu(x, up)
    return dense_residual(u, down, residual), (x, up, down, u)


def mlp_backward(saved: Any, dy: jax.Array) -> tuple[jax.Array, ...]:
    x, up, down, u = saved
    dz = matmul_dsquared_relu(dy, down, u)
    return dz @ up.T, weight_gradient_of_halves(x, dz), weight_gradient_of_halves(u, dy), dy


mlp.defvjp(mlp_forward, mlp_backward)


def weight_gradient(x: jax.Array, dy: jax.Array) -> jax.Array:
    """The gradient by w of x @ w. x: [..., K], dy: [..., N]; to [K, N]."""
    return rows(x).T @ rows(dy)


def weight_gradient_of_halves(x: jax.Array, dy: jax.Array) -> jax.Array:
    """The same, of two halves of the rows, added in float32. The tiles of [1280, 5120] keep the SMs busy for 2.4 rounds, which take 3;
    twice as many tiles take 5 rounds of half the time."""
    halves = (rows(a).reshape(2, -1, a.shape[-1]) for a in (x, dy))
    return jnp.sum(jnp.einsum("hrk,hrn->hkn", *halves, preferred_element_type=jnp.float32), axis=0).astype(x.dtype)


def loss_forward(x: jax.Array, head: jax.Array, label: jax.Array, cap: float) -> tuple[jax.Array, Any]:
    found = capped_cross_entropy(x @ head, label, cap=cap, weight=1 / label.size)
    return jnp.mean(found.loss), (x, head, found.dlogits)


def loss_backward(cap: float, saved: Any, d: jax.Array) -> tuple[jax.Array, jax.Array, None]:
    x, head, dlogits = saved
    d = d.astype(x.dtype)
    return d * (dlogits @ head.T), d * weight_gradient(x, dlogits), None


loss = jax.custom_vjp(layers_plain.loss, nondiff_argnums=(3,))
loss.defvjp(loss_forward, loss_backward)
