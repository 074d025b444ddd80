"""Stores a value in jnp with the rounding of a kernel's store."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from codegen.graph.nodes import DTYPES


def cast(x: jax.Array, dtype: Any) -> jax.Array:
    """`x` rounded to `dtype` within a chain, as `store` does it.

    The result has the shape of `x` and dtype `dtype`. XLA may leave out a conversion to a narrow float and back, and does so on
    GPUs. So `x` is rounded before, and the conversion changes nothing.
    """
    dtype = jnp.dtype(dtype)
    narrow = jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < 4 and not DTYPES[dtype.name].scales
    if narrow and x.dtype in (jnp.float32, jnp.float64):
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

    Floats round to nearest even. float8 and float4 saturate to the largest finite value; NaN stays NaN in float8 and
    becomes 0 in float4. float8_e8m0fnu rounds to the nearest power of two, halves up, and saturates: 0 becomes the
    smallest power, and negative numbers become NaN. Floats become integers toward zero, saturating, NaN to 0; integers
    saturate.
    """
    dtype = jnp.dtype(dtype)
    x = jnp.asarray(x)
    if x.dtype == dtype or dtype == jnp.bool_:
        return x.astype(dtype)
    if DTYPES[dtype.name].scales:
        return _power_of_two(x, dtype)
    if jnp.issubdtype(dtype, jnp.floating):
        if DTYPES[dtype.name].packed:
            x = x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.float32)
            x = jnp.where(jnp.isnan(x), jnp.zeros_like(x), x)
            x = _rounded(x, dtype) if x.dtype in (jnp.float32, jnp.float64) else x
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


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _power_of_two(x: jax.Array, dtype: Any) -> jax.Array:
    """The nearest power of two, from its bits: a conversion of XLA's gives NaN for zeros and large numbers."""
    if x.dtype != jnp.float64:
        x = x.astype(jnp.float32 if jnp.issubdtype(x.dtype, jnp.floating) or x.dtype == jnp.bool_ else jnp.float64)
    if x.dtype == jnp.float64:
        size = jax.lax.bitcast_convert_type(x, jnp.int64) & jnp.iinfo(jnp.int64).max
        code = jnp.clip(((size + (1 << 51)) >> 52) - (1023 - 127), 0, 254)
    else:  # among denormal numbers is the least power of two, 2**-127
        size = jax.lax.bitcast_convert_type(x, jnp.int32) & jnp.iinfo(jnp.int32).max
        code = jnp.where(size < 0x600000, 0, jnp.minimum((size + 0x400000) >> 23, 254))
    bad = jnp.isnan(x) | (x < 0)
    return jax.lax.bitcast_convert_type(jnp.where(bad, 255, code).astype(jnp.uint8), dtype)


@_power_of_two.defjvp
def _power_of_two_jvp(dtype: Any, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[jax.Array, jax.Array]:
    """Rounding has slope 1."""
    return _power_of_two(*primals, dtype), tangents[0].astype(dtype)
