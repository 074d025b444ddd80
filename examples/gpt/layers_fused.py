"""The GPT's layers with fused ops: those of the library and those of examples/specs. What no op improves is `layers_plain`'s.

A norm without weights divides each row by a number, and a product may do that afterwards: `(x * rstd) @ w` is `(x @ w) * rstd`. So no
norm is computed. What a branch takes is `Rows`, whose rstd comes from the product before it.

Queries and keys are one product, and values another, whose kernel scales them. Their gradients are side by side, so that those of the
product's factors are one product each, with nothing to add up (`heads`).

The layers have gradients by hand, because they know more than each op does. The gradient of rows is the gradient of `x * rstd` times
rstd, which the products' own epilogues compute. The residual stream has two gradients, which one kernel adds (`branch`). A squared
ReLU's result has all that its slope needs (`mlp_add`). A loss is computed to be differentiated (`loss`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from cutefuse import causal_attention, dense_transposed, rmsnorm, rmsnorm_rstd

from ..adamw import FusedAdamW as Optimiser
from ..ops import (
    capped_cross_entropy,
    dense_residual_rstd,
    dqkv_rmsnorm_rotary,
    drmsnorm_add,
    matmul_dsquared_relu,
    qk_rmsnorm_rotary,
    rms_dense_squared_relu,
    row_scaled_dense,
)
from . import layers_plain
from .layers_plain import EPS

__all__ = ["Optimiser", "attention", "branch", "dense_add", "heads", "loss", "mlp_add", "norm", "stream"]


class Rows(NamedTuple):
    """The residual stream, or what a branch takes of it, x * rstd. x: [..., width]; rstd: float32[...]."""

    x: jax.Array
    rstd: jax.Array


def gradient(dx: jax.Array) -> Rows:
    """The gradient of rows. That of rstd is part of it."""
    return Rows(dx, jnp.zeros(dx.shape[:-1], jnp.float32))


def stream(x: jax.Array) -> Rows:
    y, rstd = rmsnorm_rstd(x, eps=EPS)
    squares = 1 - EPS * jnp.square(jax.lax.stop_gradient(rstd))  # the mean square of y: x's is 1 / rstd^2 - eps
    return Rows(y, jax.lax.rsqrt(squares + EPS))


def norm(x: Rows) -> jax.Array:
    return rmsnorm(x.x, eps=EPS)


@jax.custom_vjp
def branch(x: Rows) -> tuple[Rows, Rows]:
    return x, x


branch.defvjp(lambda x: ((x, x), x.x), lambda x, d: (gradient(drmsnorm_add(d[0].x, x, d[1].x, eps=EPS)),))


@jax.custom_vjp
def heads(
    n: Rows, q: jax.Array, k: jax.Array, v: jax.Array, cos: jax.Array, sin: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    return heads_forward(n, q, k, v, cos, sin)[0]


def by_head(weights: Any, size: int) -> jax.Array:
    """The weights of products side by side, in each head: [width, heads * len(weights) * size]."""
    return jnp.stack([w.reshape(w.shape[0], -1, size) for w in weights], axis=2).reshape(weights[0].shape[0], -1)


def heads_forward(n: Rows, q: jax.Array, k: jax.Array, v: jax.Array, cos: jax.Array, sin: jax.Array) -> tuple[Any, Any]:
    size = 2 * cos.shape[1]
    shape = (*n.x.shape[:-1], -1)
    products = (n.x @ by_head((q, k), size)).reshape(*shape, 2 * size)
    value = row_scaled_dense(n.x, n.rstd, v).reshape(*shape, size)
    return (*qk_rmsnorm_rotary(products, n.rstd, cos, sin, eps=EPS), value), (n, q, k, v, cos, sin, products)


def heads_backward(saved: Any, d: Any) -> Any:
    n, q, k, v, cos, sin, products = saved
    size = 2 * cos.shape[1]
    dz = dqkv_rmsnorm_rotary(*d, products, n.rstd, cos, sin, eps=EPS).reshape(*n.x.shape[:-1], -1)
    dw = (rows(n.x).T @ rows(dz)).reshape(n.x.shape[-1], -1, 3, size)
    dq, dk, dv = (dw[:, :, i].reshape(q.shape) for i in range(3))
    return (
        gradient(dense_transposed(dz, by_head((q, k, v), size))),
        dq,
        dk,
        dv,
        jnp.zeros_like(cos),
        jnp.zeros_like(sin),
    )


heads.defvjp(heads_forward, heads_backward)


def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    if q.dtype == jnp.float32:  # for which attention has no kernel
        return layers_plain.attention(q, k, v)
    return causal_attention(q, k, v, scale=q.shape[-1] ** -0.5).o


@jax.custom_vjp
def dense_add(x: jax.Array, w: jax.Array, residual: Rows) -> Rows:
    return Rows(*dense_residual_rstd(x.reshape(residual.x.shape), w, residual.x, eps=EPS))


def dense_add_backward(saved: tuple[jax.Array, jax.Array], d: Rows) -> tuple[jax.Array, jax.Array, Rows]:
    x, w = saved
    return (d.x @ w.T).reshape(x.shape), weight_gradient(x.reshape(d.x.shape), d.x, 8), gradient(d.x)


dense_add.defvjp(lambda x, w, residual: (dense_add(x, w, residual), (x, w)), dense_add_backward)


def rows(x: jax.Array) -> jax.Array:
    return x.reshape(-1, x.shape[-1])


@jax.custom_vjp
def mlp_add(n: Rows, up: jax.Array, down: jax.Array, residual: Rows) -> Rows:
    return mlp_forward(n, up, down, residual)[0]


def mlp_forward(n: Rows, up: jax.Array, down: jax.Array, residual: Rows) -> tuple[Rows, Any]:
    u = rms_dense_squared_relu(n.x, n.rstd, up)
    return Rows(*dense_residual_rstd(u, down, residual.x, eps=EPS)), (n, up, down, u)


def mlp_backward(saved: Any, d: Rows) -> tuple[Rows, jax.Array, jax.Array, Rows]:
    n, up, down, u = saved
    dz = matmul_dsquared_relu(d.x, down, u, n.rstd)
    return gradient(dz @ up.T), weight_gradient(n.x, dz), weight_gradient(u, d.x), gradient(d.x)


mlp_add.defvjp(mlp_forward, mlp_backward)


def weight_gradient(x: jax.Array, dy: jax.Array, parts: int = 2) -> jax.Array:
    """The gradient by w of x @ w, of some parts of the rows, added in float32. x: [..., K], dy: [..., N]; to [K, N].

    The tiles of [1280, 5120] keep the SMs busy for 2.4 rounds, which take 3; twice as many tiles take 5 rounds of half the time.
    Those of [1280, 1280] do not keep all SMs busy."""
    factors = (rows(a).reshape(parts, -1, a.shape[-1]) for a in (x, dy))
    return jnp.sum(jnp.einsum("prk,prn->pkn", *factors, preferred_element_type=jnp.float32), axis=0).astype(x.dtype)


def loss_forward(x: jax.Array, head: jax.Array, label: jax.Array, cap: float) -> tuple[jax.Array, Any]:
    found = capped_cross_entropy(x @ head, label, cap=cap, weight=1 / label.size)
    return jnp.mean(found.loss), (x, head, found.dlogits)


def loss_backward(cap: float, saved: Any, d: jax.Array) -> tuple[jax.Array, jax.Array, None]:
    x, head, dlogits = saved
    d = d.astype(x.dtype)
    dx = d * (dlogits @ head.T)
    # The optimiser replaces the weights once it has their gradient. If that came first, XLA would copy them for dx
    dx, dlogits = jax.lax.optimization_barrier((dx, dlogits))
    return dx, d * (rows(x).T @ rows(dlogits)), None


loss = jax.custom_vjp(layers_plain.loss, nondiff_argnums=(3,))
loss.defvjp(loss_forward, loss_backward)
