"""Derivatives for which jnp has no function, and second derivatives that differ from the formula's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from codegen.graph.nodes import Node, picked_axes


@jax.custom_jvp
def product_of_others(value: jax.Array, x: jax.Array, whole: jax.Array) -> jax.Array:
    """`value`, differentiated as the product, for each element of `x`, of the other elements along the axes where `whole` has size
    1. Where two elements are 0 it is 0, but its derivative is not."""
    return value


@product_of_others.defjvp
def _(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[jax.Array, jax.Array]:
    value, x, whole = primals
    axes = tuple(axis for axis, extent in enumerate(jnp.shape(whole)) if extent == 1)

    def others(x: jax.Array) -> jax.Array:
        return jax.vjp(lambda x: jnp.prod(x, axes, keepdims=True), x)[1](jnp.ones_like(whole))[0]

    return value, jax.jvp(others, (x,), (tangents[1],))[1]


def settled(x: jax.Array) -> jax.Array:
    """`x`, rounded before anything is added to it, with the same shape and dtype. XLA's compilers for CPUs may fuse a product and a
    sum, but not through a selection."""
    return jnp.where(x == x, x, -x)


def dgelu(x: jax.Array) -> jax.Array:
    """The derivative of GELU in its erf form, Phi(x) + x phi(x) of the normal distribution, element by element, in x's shape and
    dtype; NaN at the infinities, as jax.vjp of jax.nn.gelu."""
    x = jnp.asarray(x)
    return 0.5 * jax.lax.erfc(x * -(0.5**0.5)) + x * (jnp.exp(-0.5 * (x * x)) * 0.3989422804014327)


def pick(table: jax.Array, where: tuple[jax.Array, ...]) -> jax.Array:
    """The table's elements at integer places, one array for each of its axes; these broadcast. A place out of range is clamped."""
    if 0 in table.shape:  # only where the outputs are empty too
        return jnp.zeros(jnp.broadcast_shapes(*(jnp.shape(i) for i in where)), table.dtype)
    places = [jnp.clip(i, 0, jnp.asarray(n - 1, jnp.asarray(i).dtype)) for i, n in zip(where, table.shape, strict=True)]
    return table.at[tuple(jnp.broadcast_arrays(*places))].get(mode="promise_in_bounds")


def pick_along(table: jax.Array, node: Node, where: Sequence[jax.Array]) -> jax.Array:
    """`pick` for a node: its index, and the positions along the table's other axes, in the order of its arguments."""
    along = dict(zip(picked_axes(node), where, strict=True))
    return pick(table, tuple(along[axis] for axis in node.args[0].dims))
