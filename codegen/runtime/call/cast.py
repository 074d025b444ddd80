"""Stores a value in jnp with the rounding of a kernel's store."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp


def cast(x: jax.Array, dtype: Any) -> jax.Array:
    """`x` rounded to `dtype` within a chain, as `store` does it.

    The result has the shape of `x` and dtype `dtype`. XLA may leave out a conversion to a narrow float and back, and does so on
    GPUs. So `x` is rounded before, and the conversion changes nothing.
    """
    dtype = jnp.dtype(dtype)
    if jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < 4 and x.dtype in (jnp.float32, jnp.float64):
        x = _rounded(x, dtype)
    return store(x, dtype)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _rounded(x: jax.Array, dtype: Any) -> jax.Array:
    """`x`, of float32 or float64, rounded to the nearest value of a narrower type, ties to even, in its own type. Values beyond
    the largest one become infinite, or for float8, which saturates later, are rounded as if the range were larger."""
    own, narrow = jnp.finfo(x.dtype), jnp.finfo(dtype)
    found = jax.lax.reduce_precision(x, exponent_bits=own.nexp, mantissa_bits=narrow.nmant)
    if narrow.minexp == own.minexp:
        return found
    # Below the smallest normal number values are evenly spaced
    smallest = float(narrow.smallest_normal)
    a_unit = 2.0**narrow.nmant / smallest
    found = jnp.where(abs(x) < smallest, jnp.round(x * a_unit) * (1 / a_unit), found)
    if jnp.dtype(dtype).itemsize == 1:
        return found
    return jnp.where(abs(found) > float(narrow.max), jnp.copysign(jnp.inf, x), found)


@_rounded.defjvp
def _rounded_jvp(dtype: Any, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[jax.Array, jax.Array]:
    return _rounded(*primals, dtype), tangents[0]


@jax.custom_jvp
def _saturated(x: jax.Array, top: jax.Array) -> jax.Array:
    return jnp.clip(x, -top, top)


@_saturated.defjvp
def _saturated_jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[jax.Array, jax.Array]:
    """Rounding has slope 1, even where a value saturates."""
    return _saturated(*primals), tangents[0]


def store(x: jax.Array, dtype: Any) -> jax.Array:
    """`x` rounded once to `dtype`.

    Floats round to nearest even; float8 saturates to the largest finite value and keeps NaN. Floats become integers
    toward zero, saturating, NaN to 0; integers saturate.
    """
    dtype = jnp.dtype(dtype)
    x = jnp.asarray(x)
    if x.dtype == dtype or dtype == jnp.bool_:
        return x.astype(dtype)
    if jnp.issubdtype(dtype, jnp.floating):
        if dtype.itemsize == 1:
            x = x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.float32)
            top = jnp.asarray(jnp.finfo(dtype).max, jnp.float32).astype(x.dtype)
            x = _saturated(x, top)
        return x.astype(dtype)
    info = jnp.iinfo(dtype)
    if jnp.issubdtype(x.dtype, jnp.floating):
        x = jnp.where(jnp.isnan(x), jnp.zeros_like(x), x)
        if dtype.itemsize < 4:
            x = jnp.clip(x, jnp.asarray(info.min, x.dtype), jnp.asarray(info.max, x.dtype))
        elif info.min == 0:
            x = jnp.maximum(x, jnp.zeros_like(x))
        return x.astype(dtype)  # XLA saturates conversions to 32 and 64 bits
    if x.dtype == jnp.bool_:
        return x.astype(dtype)
    own = jnp.iinfo(x.dtype)
    low, high = max(own.min, info.min), min(own.max, info.max)
    return jnp.clip(x, jnp.asarray(low, x.dtype), jnp.asarray(high, x.dtype)).astype(dtype)
