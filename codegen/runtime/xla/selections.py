"""Selections of the largest elements along an axis, and sorts, in jnp."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def top_k(x: jax.Array, k: int, axis: int, into: int) -> jax.Array:
    """The `k` largest elements of `x` along `axis`, largest first, in `x`'s dtype, in the order of `jax.lax.top_k` except that any NaN is
    the largest. They are along `into`, where `x` has size 1; `axis` gets size 1. Raises ValueError where `x` has fewer."""
    return _selected(x, k, axis, into)[0]


def top_k_index(x: jax.Array, k: int, axis: int, into: int) -> jax.Array:
    """The positions of the elements that `top_k` returns, as int32. Of equal elements, the first ones come first."""
    return _selected(x, k, axis, into)[1]


def sort(x: jax.Array, axis: int) -> jax.Array:
    """The elements of `x` along `axis`, smallest first and NaN last, in `x`'s shape and dtype; equal ones stay in order."""
    return jnp.sort(x, axis)


def argsort(x: jax.Array, axis: int) -> jax.Array:
    """The positions of the elements that `sort` returns, in `x`'s shape, as int32."""
    return jnp.argsort(x, axis)


def unsort(x: jax.Array, places: jax.Array, axis: int) -> jax.Array:
    """The elements of `x`, each at its place along `axis`, in the shape and dtype of `x`. The places of a row are all different."""
    return jnp.put_along_axis(jnp.zeros_like(x), places, x, axis, inplace=False)


def _selected(x: jax.Array, k: int, axis: int, into: int) -> list[jax.Array]:
    if jnp.issubdtype(x.dtype, jnp.floating):
        x = jnp.where(jnp.isnan(x), jnp.nan, x)  # XLA orders a NaN by its sign
    found = jax.lax.top_k(jnp.moveaxis(jnp.swapaxes(x, axis, into), into, -1), k)
    return [jnp.moveaxis(value, -1, into) for value in found]


def placed(values: jax.Array, places: jax.Array, index: jax.Array, axis: int, into: int) -> jax.Array:
    """Zeros, but for the `values` along `into` at their different `places` along `axis`, in the shape of `places` with the size of
    `index` along `axis` and size 1 along `into`, and in the dtype of `values`. Derivatives of `top_k` are such arrays."""
    shape = [*places.shape]
    shape[axis], shape[into] = index.shape[axis], 1
    values, places = (jnp.swapaxes(jnp.broadcast_to(a, places.shape), axis, into) for a in (values, places))
    return jnp.put_along_axis(jnp.zeros(shape, values.dtype), places, values, axis % len(shape), inplace=False)
