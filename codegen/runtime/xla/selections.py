"""Selections of the largest elements along an axis, and sorts, in jnp."""

from __future__ import annotations

import math
from typing import TypeAlias

import jax
import jax.numpy as jnp

Along: TypeAlias = int | tuple[int, ...]  # an axis, or several as if they were one, as jnp counts them


def top_k(x: jax.Array, k: int, axis: Along, into: int) -> jax.Array:
    """The `k` largest elements of `x` along `axis`, largest first, in `x`'s dtype, in the order of `jax.lax.top_k` except that any NaN is
    the largest. They are along `into`, where `x` has size 1; each of `axis` gets size 1. Raises ValueError where `x` has fewer."""
    return _selected(x, k, axis, into)[0]


def top_k_index(x: jax.Array, k: int, axis: Along, into: int) -> jax.Array:
    """The positions of the elements that `top_k` returns, as int32. Equal elements stay in order. Along several axes,
    positions count as if these were one."""
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


def nucleus(x: jax.Array, mass: jax.Array | float, axis: int | None) -> jax.Array:
    """The largest float32 for which the elements of `x` along `axis` that are not below it sum to `mass` or more. It is the largest
    element where `mass` is not positive, and 0 where all elements sum to less. Negative elements and NaN are not added. `axis` gets
    size 1; the result has the dtype of `x`, a float. The bits of a positive number are in its order: they are found one by one."""

    def with_bit(place: jax.Array, least: jax.Array) -> jax.Array:
        tried = least | (1 << (30 - place))
        found = jnp.where(x >= jax.lax.bitcast_convert_type(tried, jnp.float32), x, 0).sum(axis, keepdims=True)
        return jnp.where((found >= mass) & (found > 0), tried, least)

    bits = jnp.zeros_like(jnp.sum(x, axis, keepdims=True), jnp.int32)
    least = jax.lax.fori_loop(
        0, 31, with_bit, jnp.broadcast_to(bits, jnp.broadcast_shapes(bits.shape, jnp.shape(mass)))
    )
    return jax.lax.stop_gradient(jax.lax.bitcast_convert_type(least, jnp.float32).astype(x.dtype))


def placed(values: jax.Array, places: jax.Array, index: jax.Array, axis: Along, into: int) -> jax.Array:
    """Zeros, except for the `values` along `into` at their different `places` along `axis`. The result has the shape of
    `places`, but the sizes of `index` along `axis` and size 1 along `into`. It has the dtype of `values`. Derivatives
    of `top_k` are such arrays."""
    values, places = (_rows(jnp.broadcast_to(a, places.shape), axis, into) for a in (values, places))
    sizes = [index.shape[a] for a in _axes(axis)]
    zeros = jnp.zeros((*places.shape[:-1], math.prod(sizes)), values.dtype)
    return _apart(jnp.put_along_axis(zeros, places, values, -1, inplace=False), (1, *sizes), axis, into)


def _selected(x: jax.Array, k: int, axis: Along, into: int) -> list[jax.Array]:
    if jnp.issubdtype(x.dtype, jnp.floating):
        x = jnp.where(jnp.isnan(x), jnp.nan, x)  # XLA orders a NaN by its sign
    ones = (1,) * len(_axes(axis))
    return [_apart(found, (k, *ones), axis, into) for found in jax.lax.top_k(_rows(x, axis, into), k)]


def _axes(axis: Along) -> tuple[int, ...]:
    return (axis,) if isinstance(axis, int) else axis


def _rows(x: jax.Array, axis: Along, into: int) -> jax.Array:
    """The array with the axes `into` and `axis` joined as its last axis. One of the two has size 1."""
    own = (into, *_axes(axis))
    moved = jnp.moveaxis(x, own, range(-len(own), 0))
    return moved.reshape(*moved.shape[: -len(own)], math.prod(moved.shape[-len(own) :]))


def _apart(x: jax.Array, sizes: tuple[int, ...], axis: Along, into: int) -> jax.Array:
    """An array whose last axis is split again: the `sizes` of `into` and of `axis`, at their places."""
    own = (into, *_axes(axis))
    return jnp.moveaxis(x.reshape(*x.shape[:-1], *sizes), range(-len(own), 0), own)
