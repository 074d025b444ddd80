"""Arithmetic as PTX defines it, on NumPy arrays: every result that PTX defines exactly is exact to the bit.

NumPy's float32 and float64 operations round to nearest even and keep denormals. Operations that NumPy lacks (fused
multiply-add, other roundings, narrow formats) use error-free sums in float64 and rounding to odd, after which a second
rounding is exact. NaN results are the canonical NaN of the type. Functions for which PTX gives only an error bound are
computed in float64 and rounded.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import ml_dtypes
import numpy as np

# By the names of PTX's types
PTX_TYPES: dict[str, type] = {
    "s8": np.int8, "u8": np.uint8, "b8": np.uint8, "s16": np.int16, "u16": np.uint16, "b16": np.uint16,
    "s32": np.int32, "u32": np.uint32, "b32": np.uint32, "s64": np.int64, "u64": np.uint64, "b64": np.uint64,
    "f16": np.float16, "bf16": np.uint16, "f32": np.float32, "f64": np.float64, "f16x2": np.uint32, "bf16x2": np.uint32,
    "f32x2": np.uint64, "pred": np.bool_,
}  # fmt: skip

Array = np.ndarray
NAN32, NAN64, NAN16, NAN_BF16 = 0x7FFFFFFF, 0x7FFFFFFFFFFFFFFF, 0x7FFF, 0x7FFF


def canonical(x: Array) -> Array:
    """Replaces NaNs by the canonical NaN of NVIDIA's arithmetic."""
    bad = np.isnan(x)
    if bad.any():
        bits = {2: (np.uint16, NAN16), 4: (np.uint32, NAN32), 8: (np.uint64, NAN64)}[x.dtype.itemsize]
        x = x.copy()
        x.view(bits[0])[bad] = bits[1]
    return x


def flush(x: Array) -> Array:
    """Replaces denormals by zeros of their sign (.ftz)."""
    small = np.abs(x) < np.finfo(x.dtype).smallest_normal
    return np.where(small, np.copysign(np.zeros_like(x), x), x) if small.any() else x


# Exact sums and rounding


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """a + b rounded, and its error (Knuth)."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """a * b rounded, and its error (Dekker, Veltkamp)."""
    p = a * b
    ah, al = _split(a)
    bh, bl = _split(b)
    return p, ((ah * bh - p) + ah * bl + al * bh) + al * bl


def _split(a: Array) -> tuple[Array, Array]:
    c = 134217729.0 * a
    high = c - (c - a)
    return high, a - high


def to_odd(s: Array, error: Array) -> Array:
    """s + error rounded to odd in float64: truncated, with the last bit set where that is inexact."""
    inexact = (error != 0) & np.isfinite(s) & np.isfinite(error)
    if not inexact.any():
        return s
    bits = s.view(np.int64).copy()
    down = inexact & ((error < 0) != (s < 0)) & (s != 0)
    bits[down] -= 1
    bits[inexact] |= 1
    return np.where(inexact & (s == 0), error, bits.view(np.float64))


def round32(x: Array, mode: str = "rn") -> Array:
    """A float64 (exact, or rounded to odd) to float32."""
    near = x.astype(np.float32)
    if mode == "rn":
        return near
    wide = near.astype(np.float64)
    with np.errstate(all="ignore"):
        if mode == "rm":
            wrong, toward = wide > x, np.float32(-np.inf)
        elif mode == "rp":
            wrong, toward = wide < x, np.float32(np.inf)
        else:
            wrong, toward = np.abs(wide) > np.abs(x), np.float32(0)
        return np.where(wrong & ~np.isnan(x), np.nextafter(near, toward), near)


def add32(a: Array, b: Array, mode: str = "rn") -> Array:
    """a + b in float32."""
    if mode == "rn":
        return a + b
    return _round_sum(a.astype(np.float64), b.astype(np.float64), mode)


def mul32(a: Array, b: Array, mode: str = "rn") -> Array:
    """a * b in float32."""
    return a * b if mode == "rn" else round32(a.astype(np.float64) * b, mode)


def fma32(a: Array, b: Array, c: Array, mode: str = "rn") -> Array:
    """a * b + c with one rounding: the product is exact in float64."""
    return _round_sum(a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64), mode)


def _round_sum(a: Array, b: Array, mode: str) -> Array:
    """a + b of float64 with one rounding, to float32. A sum that cancels is +0, or -0 where it rounds down."""
    total, error = two_sum(a, b)
    if mode == "rm":
        zero = (total == 0) & (error == 0) & (np.signbit(a) | np.signbit(b))
        total = np.where(zero, -0.0, total)
    return round32(to_odd(total, error), mode)


def fma_odd(a: Array, b: Array, c: Array) -> Array:
    """a * b + c of formats so narrow that the product is exact in float64, rounded to odd."""
    return to_odd(*two_sum(a * b, c))


def fma64(a: Array, b: Array, c: Array) -> Array:
    """a * b + c in float64 with one rounding (Boldo and Melquiond), in rational numbers where a product's parts would
    over- or underflow."""
    high, low = two_product(a, b)
    t, t_error = two_sum(c, low)
    v, v_error = two_sum(high, t)
    result = v + to_odd(*two_sum(t_error, v_error))
    plain = a * b + c
    result = np.where(np.isfinite(result) & (result != 0), result, plain)
    finite = np.isfinite(a) & np.isfinite(b)
    result = np.where(finite & np.isinf(c), c, result)  # though the product overflows
    finite &= np.isfinite(c) & (a != 0) & (b != 0)
    size = np.frexp(a)[1] + np.frexp(b)[1]
    far = (np.maximum(np.abs(a), np.abs(b)) > 2.0**990) | (size > 1000) | (size < -900) | (np.abs(c) > 2.0**1000)
    for place in np.flatnonzero(finite & far):
        exact = Fraction(float(a[place])) * Fraction(float(b[place])) + Fraction(float(c[place]))
        if exact:
            try:
                value = float(exact)
            except OverflowError:
                value = np.inf if exact > 0 else -np.inf
            result[place] = np.copysign(value, float(np.sign(exact.numerator)))
    return result


# Narrow formats


def bf16_to_32(bits: Array) -> Array:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def to_bf16(x: Array) -> Array:
    """float32 to bfloat16's bits, to nearest even."""
    u = x.view(np.uint32)
    rounded = ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)
    bad = np.isnan(x)
    return np.where(bad, np.uint16(NAN_BF16), rounded) if bad.any() else rounded


def wide_to_bf16(x: Array) -> Array:
    """float64 to bfloat16's bits with one rounding, through a float32 rounded to odd."""
    near = x.astype(np.float32)
    error = np.where(np.isfinite(near), x - near.astype(np.float64), 0)
    inexact = error != 0
    bits = near.view(np.uint32).copy()
    down = inexact & (np.abs(near.astype(np.float64)) > np.abs(x))
    bits[down] -= 1
    bits[inexact] |= 1
    return to_bf16(bits.view(np.float32))


def to_f16(x: Array) -> Array:
    """float32 to float16's bits, to nearest even."""
    return canonical(x.astype(np.float16)).view(np.uint16)


def to_tf32(x: Array) -> Array:
    """float32 to tf32 bits, a float32 without its 13 lowest: to nearest, ties away from zero (.rna)."""
    rounded = (x.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(x), rounded, canonical(x).view(np.uint32))


def to_float8(x: Array, kind: str) -> Array:
    """float32 to e4m3 or e5m2 bits, to nearest even, saturating to the largest finite value (.satfinite)."""
    dtype, top = {"e4m3": (ml_dtypes.float8_e4m3fn, 448.0), "e5m2": (ml_dtypes.float8_e5m2, 57344.0)}[kind]
    bits = np.clip(x, -top, top).astype(dtype).view(np.uint8)
    return np.where(np.isnan(x), np.uint8(0x7F), bits)


def from_float8(bits: Array, kind: str) -> Array:
    """e4m3 or e5m2 bits to float16's bits, exactly."""
    dtype = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}[kind]
    return canonical(bits.astype(np.uint8).view(dtype).astype(np.float16)).view(np.uint16)


# Conversions and integers


def to_integer(x: Array, dtype: type, mode: str) -> Array:
    """A float to an integer in a rounding mode, saturating. NaN becomes 0, or, for 64-bit sources or results, the integer with
    only its top bit set."""
    wide = x.astype(np.float64)
    rounded = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[mode](wide)
    info = np.iinfo(dtype)
    low, high = float(info.min), float(info.max)
    inside = np.clip(np.where(np.isnan(rounded), 0, rounded), low, np.nextafter(high, 0) if high > info.max else high)
    result: Array = inside.astype(dtype)
    result = np.where(rounded >= high, dtype(info.max), result)
    result = np.where(rounded <= low, dtype(info.min), result)
    if np.isnan(wide).any():
        big = x.dtype.itemsize == 8 or info.bits == 64
        nan = np.array(1 << (info.bits - 1), np.uint64).astype(f"u{info.bits // 8}").view(dtype) if big else dtype(0)
        result = np.where(np.isnan(wide), nan, result)
    return result


def round_integral(x: Array, mode: str) -> Array:
    """A float to an integral float."""
    return {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[mode](x)


def divide(a: Array, b: Array) -> Array:
    """Integer division toward zero; division by zero sets all bits."""
    safe = np.where(b == 0, b.dtype.type(1), b)
    if a.dtype.kind == "u":
        quotient = a // safe
    else:
        quotient = (np.abs(a).view(f"u{a.dtype.itemsize}") // np.abs(safe).view(f"u{a.dtype.itemsize}")).view(a.dtype)
        quotient = np.where((a < 0) != (safe < 0), -quotient, quotient)
    return np.where(b == 0, np.zeros_like(a) - a.dtype.type(1) if a.dtype.kind == "i" else ~np.zeros_like(a), quotient)


def remainder(a: Array, b: Array) -> Array:
    """The remainder of division toward zero: its sign is a's; for a zero divisor it is a."""
    safe = np.where(b == 0, b.dtype.type(1), b)
    return np.where(b == 0, a, a - divide(a, safe) * safe)


def multiply_high(a: Array, b: Array) -> Array:
    """The upper half of the product of two integers."""
    if a.dtype.itemsize < 8:
        wide = np.int64 if a.dtype.kind == "i" else np.uint64
        return ((a.astype(wide) * b.astype(wide)) >> wide(8 * a.dtype.itemsize)).astype(a.dtype)
    ua, ub = a.astype(np.uint64), b.astype(np.uint64)
    low = np.uint64(0xFFFFFFFF)
    al, ah, bl, bh = ua & low, ua >> np.uint64(32), ub & low, ub >> np.uint64(32)
    middle = ah * bl + ((al * bl) >> np.uint64(32))
    cross = al * bh + (middle & low)
    high = ah * bh + (middle >> np.uint64(32)) + (cross >> np.uint64(32))
    if a.dtype.kind == "i":
        high = high - np.where(a < 0, ub, np.uint64(0)) - np.where(b < 0, ua, np.uint64(0))
    return high.view(a.dtype)


def permute(a: Array, b: Array, selector: Array) -> Array:
    """prmt.b32 in its default mode: four selected bytes of {b, a}, or their sign spread over the byte."""
    both = a.astype(np.uint64) | (b.astype(np.uint64) << np.uint64(32))
    result: Array = np.zeros(np.broadcast_shapes(a.shape, b.shape, selector.shape), np.uint32)
    for i in range(4):
        nibble = (selector >> np.uint32(4 * i)) & np.uint32(0xF)
        byte = (both >> (np.uint64(8) * (nibble & np.uint32(7)).astype(np.uint64))) & np.uint64(0xFF)
        sign = np.where(byte & np.uint64(0x80), np.uint64(0xFF), np.uint64(0))
        byte = np.where(nibble & np.uint32(8), sign, byte)
        result |= byte.astype(np.uint32) << np.uint32(8 * i)
    return result


def smaller(a: Array, b: Array, nan: bool) -> Array:
    """min: where one argument is NaN, the other one, or NaN where `nan`; -0 is below +0."""
    return _extreme(a, b, nan, np.minimum, np.signbit)


def larger(a: Array, b: Array, nan: bool) -> Array:
    """max, with the same rules as `smaller`."""
    return _extreme(a, b, nan, np.maximum, lambda x: ~np.signbit(x))


def _extreme(a: Array, b: Array, nan: bool, pick: Callable[..., np.ndarray], first: Callable[..., np.ndarray]) -> Array:
    result = pick(a, b)
    if not nan:
        result = np.where(np.isnan(a), b, np.where(np.isnan(b), a, result))
    return np.where((a == 0) & (b == 0), np.where(first(a), a, b), result)
