"""Derivatives that jnp has no function for, and derivatives of derivatives that are not those of the formula."""

from __future__ import annotations

import jax
import jax.numpy as jnp


@jax.custom_jvp
def product_of_others(value: jax.Array, x: jax.Array, whole: jax.Array) -> jax.Array:
    """`value`, differentiated as what it is: for each element of `x`, the product of the others along the axes of which `whole`
    has 1. Where two elements are 0 it is 0, and yet it varies with them."""
    return value


@product_of_others.defjvp
def _(primals: tuple, tangents: tuple) -> tuple[jax.Array, jax.Array]:
    value, x, whole = primals
    axes = tuple(axis for axis, extent in enumerate(jnp.shape(whole)) if extent == 1)

    def others(x: jax.Array) -> jax.Array:
        return jax.vjp(lambda x: jnp.prod(x, axes, keepdims=True), x)[1](jnp.ones_like(whole))[0]

    return value, jax.jvp(others, (x,), (tangents[1],))[1]


def settled(x: jax.Array) -> jax.Array:
    """`x`, rounded before anything is added to it: XLA's compilers for CPUs may round a product and a sum once (a fused
    multiply-add), but not through a selection. Same shape and dtype."""
    return jnp.where(x == x, x, -x)


def dgelu(x: jax.Array) -> jax.Array:
    """The derivative of GELU in its erf form, Phi(x) + x phi(x) of the normal distribution, element by element, in x's shape and
    dtype; NaN at the infinities, as jax.vjp of jax.nn.gelu."""
    x = jnp.asarray(x)
    return 0.5 * jax.lax.erfc(x * -(0.5**0.5)) + x * (jnp.exp(-0.5 * (x * x)) * 0.3989422804014327)
