"""Types that no instruction converts on every architecture: two 4-bit numbers in a byte, and powers of two in a byte (E8M0).

An even number of 4-bit elements is read and written as bytes; the first of two neighbours is the low half of theirs. All
conversions are exact, or rounded once.
"""

from __future__ import annotations

import cutlass.cute as cute
from cutlass import Boolean, Float8E8M0FNU, Float32, Float64, Int4, Int8, Int16, Int32, Int64, Numeric
from cutlass._mlir import ir
from cutlass._mlir.dialects import arith
from cutlass.base_dsl.typing import Float, FloatMeta, Integer, IntegerMeta

from codegen.device.functions import Vector, cast, isnan, limits, maximum, minimum, where


def _four_bits() -> ir.Type:
    return ir.IntegerType.get_signless(4)


class Uint4(Integer, metaclass=IntegerMeta, width=4, signed=False, mlir_type=_four_bits):  # type: ignore[call-arg,misc,metaclass]
    """A whole number from 0 to 15, which CuTe DSL lacks."""


class Float4(Float, metaclass=FloatMeta, width=4, mlir_type=_four_bits):  # type: ignore[call-arg,misc,metaclass]
    """A number of float4_e2m1fn, as its bits: CuTe DSL's own type loads and stores eight at once only."""


FOUR_BITS = (Int4, Uint4, Float4)
_MOST = 6.0  # the largest number of float4_e2m1fn: 0, 0.5, 1, 1.5, 2, 3, 4 or 6, and a sign


def bytes_of(tensor: cute.Tensor) -> cute.Tensor:
    """A tensor of 4-bit numbers as one of bytes, each with two neighbours; any other as it is."""
    return cute.recast_tensor(tensor, Int8) if tensor.element_type in FOUR_BITS else tensor


def read(x: Vector | cute.Tensor, compute: type[Numeric]) -> Vector:
    """A vector, or registers' values, of any type, in the type that they are computed in."""
    x = x.load() if isinstance(x, cute.Tensor) else x
    if x.dtype in FOUR_BITS:
        return _unpacked(x, compute)
    if x.dtype is Float8E8M0FNU:
        return _power_of_two(x.bitcast(Int8).to(Int32) & 255).to(compute)
    return cast(x, compute)


def stored(x: Vector, dtype: type[Numeric]) -> Vector:
    """`device.cast`, to any type: to 4 bits an even number of elements."""
    if dtype in FOUR_BITS:
        return _packed(_codes(x, dtype), dtype)
    if dtype is Float8E8M0FNU:
        return _scale_codes(x).to(Int8).bitcast(dtype)
    return cast(x, dtype)


def rounded(x: Vector, dtype: type[Numeric], compute: type[Numeric]) -> Vector:
    """`x` as it is stored in `dtype`, in the type that it is computed in. Integers saturate, and NaN becomes 0. float4_e2m1fn
    rounds to nearest even and saturates, and NaN becomes 0. float8_e8m0fnu rounds to the nearest power of two, halves up, and
    saturates: zeros become the least one, negative numbers NaN."""
    if dtype is Float8E8M0FNU:
        return _power_of_two(_scale_codes(x)).to(compute)
    if dtype is Float4:
        return _to_float4(x if x.dtype.is_float else x.to(Float32)).to(compute)
    if dtype not in FOUR_BITS:
        return cast(x, dtype).to(compute)
    low, high = limits(dtype)
    if x.dtype is Boolean:
        return x.to(compute)
    if x.dtype.is_float:
        x = where(isnan(x), 0.0, x)
        return minimum(maximum(x, float(low)), float(high)).to(Int32).to(compute)
    return minimum(maximum(x, low), high).to(compute)


# float8_e8m0fnu


def _scale_codes(x: Vector) -> Vector:
    """The exponents + 127 of the nearest powers of two, int32; 255 for NaN."""
    bad = isnan(x) | (x < 0) if x.dtype.is_float else x < 0 if x.dtype is not Boolean else None
    if not x.dtype.is_float:
        x = x.to(Float64)
    if x.dtype is Float64:
        bits = cute.math.abs(x).bitcast(Int64)
        found = minimum(maximum(_right(bits + (1 << 51), 52) - (1023 - 127), 0), 254).to(Int32)
    else:  # among denormal numbers is the least power of two, 2**-127
        bits = cute.math.abs(x).bitcast(Int32)
        found = where(bits < 0x600000, 0, minimum(_right(bits + 0x400000, 23), 254))
    return found if bad is None else where(bad, 255, found)


def _power_of_two(code: Vector) -> Vector:
    """2**(code - 127), float32; NaN for 255. The least is a denormal number."""
    bits = where(code == 0, 0x400000, where(code == 255, 0x7FC00000, code << 23))
    return bits.bitcast(Float32)


# 4 bits


def _to_float4(x: Vector) -> Vector:
    """The nearest number of float4_e2m1fn: adding a large number leaves a whole number of units."""
    a = minimum(cute.math.abs(where(isnan(x), 0.0, x)), _MOST)
    units = 1.5 * 2.0 ** (23 if x.dtype is Float32 else 52)
    large = where(a < 2.0, cute.full_like(a, units / 2), where(a < 4.0, cute.full_like(a, units), units * 2))
    a = (a + large) - large
    return where(x < 0, -a, a)


def _codes(x: Vector, dtype: type[Numeric]) -> Vector:
    """The four bits of each element, in an int32 whose other bits are any."""
    if dtype is not Float4:
        return rounded(x, dtype, Int32)
    bits = (rounded(x, dtype, Float32) * 2.0**-126).bitcast(Int32)
    return (_right(bits, 22) & 7) | (_right(bits, 28) & 8)


def _unpacked(x: Vector, compute: type[Numeric]) -> Vector:
    count = cute.size(x.shape)
    word = _word(count)
    each, words, found = word.width // 4, x.bitcast(word), cute.make_rmem_tensor((count,), Int32)
    for i in range(count):
        found[i] = Int32(words[i // each]) << (28 - 4 * (i % each))
    high = found.load()  # an element's bits are the highest four
    if x.dtype is Float4:  # as the bits of a float32, 2**-126 of the number
        bits = (high & -(1 << 31)) | (_right(high, 6) & 0x01C00000)
        return (bits.bitcast(Float32) * 2.0**126).to(compute)
    whole = _right(high, 28)
    return (whole & 15 if x.dtype is Uint4 else whole).to(compute)


def _packed(codes: Vector, dtype: type[Numeric]) -> Vector:
    count = cute.size(codes.shape)
    word = _word(count)
    each = word.width // 4
    words = cute.make_rmem_tensor((count // each,), word)
    for k in range(count // each):
        held = codes[k * each] & 15
        for i in range(1, each):
            held = held | ((codes[k * each + i] & 15) << (4 * i))
        words[k] = word(held)
    return words.load().bitcast(dtype)


def _word(count: int) -> type[Numeric]:
    """The type of the words in which `count` elements are packed and unpacked."""
    return Int32 if count % 8 == 0 else Int16 if count % 4 == 0 else Int8


def _right(x: Vector, by: int) -> Vector:
    """Shifted right; the sign's bit is repeated."""
    return cute.TensorSSA(arith.shrsi(x.ir_value(), cute.full_like(x, by).ir_value()), x.shape, x.dtype)
