"""The exponent of a number, and exact scaling by a power of two, on per-thread vectors (`cute.TensorSSA`)."""

from __future__ import annotations

from typing import NamedTuple

import cutlass.cute as cute
from cutlass import Float32, Float64, Int32, Int64, Numeric
from cutlass._mlir.dialects import arith

from codegen.device.functions import Operand, Vector, maximum, minimum, where


class _Format(NamedTuple):
    bits: type[Numeric]
    digits: int  # of the fraction that is stored
    bias: int


_FORMATS = {Float32: _Format(Int32, 23, 127), Float64: _Format(Int64, 52, 1023)}


def exponent(x: Vector, integer: type[Numeric]) -> Vector:
    """The integer e with 2**e <= |x| < 2**(e + 1), for denormal numbers too. It is smaller for 0 than for any other
    number (-150, or -1075 in float64), and larger for infinities and NaN (128, 1024)."""
    bits, digits, bias = _FORMATS[x.dtype]
    size = cute.math.abs(x)
    denormal = size.bitcast(bits) < 1 << digits
    size = where(denormal, size * 2.0 ** (digits + 1), size).bitcast(bits)
    field = cute.TensorSSA(arith.shrui(size.ir_value(), cute.full_like(size, digits).ir_value()), x.shape, bits)
    found = field - where(denormal, cute.full_like(field, bias + digits + 1), bias)
    return maximum(found, -bias - digits).to(integer)


def ldexp(x: Operand, e: Operand, compute: type[Numeric]) -> Vector:
    """x * 2**e, rounded once, for any integer e (Sun's scalbn: where it divides in steps, only the last result may be denormal)."""
    x, e = _vectors(x, e, compute)
    _, digits, bias = _FORMATS[x.dtype]
    most = 2 * (bias + digits + 2)
    e = minimum(maximum(e, -most), most)
    up, down = bias, -(bias - 1 - digits - 1)
    for _ in range(2):
        step = where(e > up, cute.full_like(e, up), where(e < 1 - bias - digits, cute.full_like(e, down), 0))
        x = x * _power(step, x.dtype)
        e = e - step
    return x * _power(minimum(maximum(e, 1 - bias - digits), up), x.dtype)


def ldexp_near(x: Operand, e: Operand, compute: type[Numeric]) -> Vector:
    """x * 2**e, where float32 has 2**e: one product."""
    x, e = _vectors(x, e, compute)
    return x * _power(e, x.dtype)


def _vectors(x: Operand, e: Operand, compute: type[Numeric]) -> tuple[Vector, Vector]:
    if not isinstance(x, cute.TensorSSA):
        x = cute.full_like(e, x, compute)
    return x, e if isinstance(e, cute.TensorSSA) else cute.full_like(x, e, Int32)


def _power(e: Vector, dtype: type[Numeric]) -> Vector:
    """2**e, where a float type has it, denormal or not."""
    bits, digits, bias = _FORMATS[dtype]
    e = e.to(bits)
    normal = e > -bias
    amount = where(normal, cute.full_like(e, digits), e + (bias - 1 + digits))
    number = where(normal, e + bias, 1)
    return cute.TensorSSA(arith.shli(number.ir_value(), amount.ir_value()), e.shape, bits).bitcast(dtype)
