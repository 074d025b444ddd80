"""Powers of two as scales in jnp: exact also where XLA flushes denormal numbers, as it does on CPUs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def exponent(x: jax.Array, integer: Any) -> jax.Array:
    """The integer e with 2**e <= |x| < 2**(e + 1), in x's shape and of dtype `integer`. For 0 it is one less than the
    smallest (-150, or -1075 in float64); for infinities and NaN one more than the largest (128, or 1024)."""
    bits, digits, bias = _format(x)
    size = jax.lax.bitcast_convert_type(x, bits) & jnp.iinfo(bits).max
    field = size >> digits
    low = (jnp.iinfo(bits).bits - bias - digits) - jax.lax.clz(size)  # the place of a denormal number's highest bit
    return jnp.where(field > 0, field - bias, low).astype(integer)


def ldexp(x: Any, e: Any, floating: Any) -> jax.Array:
    """x * 2**e for any integer e, rounded once, of dtype `floating`. (`jnp.ldexp` is 0 or inf where 2**e is no float.)"""
    x = jnp.asarray(x, floating)
    bits, digits, bias = _format(x)
    most = 2 * (bias + digits + 2)
    e = jnp.clip(jnp.asarray(e), -most, most).astype(bits)
    up, down = bias, -(bias - 1 - digits - 1)
    for _ in range(2):
        step = jnp.where(e > up, up, jnp.where(e < 1 - bias, down, 0))
        x, e = x * _power(step, x.dtype), e - step
    return x * _power(jnp.clip(e, 1 - bias, up), x.dtype)


def _power(e: jax.Array, dtype: Any) -> jax.Array:
    """2**e, where it is a normal number."""
    bits, digits, bias = _format(jnp.zeros((), dtype))
    return jax.lax.bitcast_convert_type((e.astype(bits) + bias) << digits, dtype)


def _format(x: jax.Array) -> tuple[str, int, int]:
    """The integer type with x's bits, the digits of its fraction that are stored, and the bias of its exponent."""
    return ("int64", 52, 1023) if x.dtype == jnp.float64 else ("int32", 23, 127)
