"""Integer operations on per-thread vectors (`cute.TensorSSA`).

Integers wrap. What PTX leaves undefined is defined as XLA defines it: division by zero, the smallest integer divided by -1, and
shifts by a negative amount or by a type's width or more.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Uint32
from cutlass._mlir.dialects import arith, llvm, math

from codegen.device.functions import UNITS, Operand, Vector, as_vectors, fma, rcp, where
from codegen.device.math.opaque import unseen_one


def floor_divide(a: Operand, b: Operand) -> Vector:
    """a // b, rounded down. Where b is 0, it is -1 for a = 0 and -2 for other a, as in jnp."""
    if _is_power_of_two(b):
        return shift_right(a, b.bit_length() - 1)
    a, b = as_vectors(a, b)
    quotient, remainder, divisor = _divide(a, b)
    down = (remainder != 0) & ((remainder ^ divisor) < 0)
    quotient = where(down, quotient - 1, quotient)
    quotient = where(b == -1, -a, quotient)
    return where(b == 0, where(a == 0, cute.full_like(a, -1), -2), quotient)


def modulo(a: Operand, b: Operand) -> Vector:
    """a % b with the sign of b: a - (a // b) * b. Where b is 0, it is 0."""
    if _is_power_of_two(b):
        return a & (b - 1)
    a, b = as_vectors(a, b)
    _, remainder, divisor = _divide(a, b)
    other = (remainder != 0) & ((remainder ^ divisor) < 0)
    return where(b == 0, 0, where(other, remainder + divisor, remainder))


_UNITS_BITS = 0x4B400000  # of `UNITS`: the low bits of a float near it are a whole number's


def floor_divide_small(a: Operand, b: Operand) -> Vector:
    """`floor_divide` of int32 from -2**16 to 2**16, by a reciprocal in float32. The quotient (a + 1/2) / b lies
    between two whole numbers, further from both than its error. So it is rounded down by subtracting 1/2 and rounding to nearest.
    For a negative b the quotient is (a - 1/2) / b."""
    a, b = as_vectors(a, b)
    return where(b == 0, where(a == 0, cute.full_like(a, -1), -2), _small_quotient(a, b))


def modulo_small(a: Operand, b: Operand) -> Vector:
    """`modulo` of int32 from -2**16 to 2**16."""
    a, b = as_vectors(a, b)
    return where(b == 0, 0, a - _small_quotient(a, b) * b)


def _small_quotient(a: Vector, b: Vector) -> Vector:
    dividend, divisor = ((v + _UNITS_BITS).bitcast(Float32) - UNITS for v in (a, b))
    half = ((b & -0x80000000) | 0x3F000000).bitcast(Float32)
    return (fma(dividend + half, rcp(divisor), -0.5) + UNITS).bitcast(Int32) - _UNITS_BITS


def _is_power_of_two(b: Operand) -> bool:
    return isinstance(b, int) and b > 0 and b & (b - 1) == 0


def _divide(a: Vector, b: Vector) -> tuple[Vector, Vector, Vector]:
    """a / b rounded toward zero, the remainder, and the divisor: b, or 1 for 0 and -1, for which the hardware's division has no
    defined result."""
    divisor = where((b == 0) | (b == -1), 1, b)
    quotient = _vector(arith.divsi(a.ir_value(), divisor.ir_value()), a)
    return quotient, a - quotient * divisor, divisor


def shift_left(a: Operand, b: Operand) -> Vector:
    """a << b: 0 where b is negative or at least the type's width."""
    a, b = as_vectors(a, b)
    inside = _is_amount(b)
    shifted = _vector(arith.shli(a.ir_value(), where(inside, b, 0).ir_value()), a)
    return where(inside, shifted, 0)


def shift_right(a: Operand, b: Operand) -> Vector:
    """a >> b, rounded down: 0 or -1, as a's sign, where b is negative or at least the type's width."""
    a, b = as_vectors(a, b)
    return _vector(arith.shrsi(a.ir_value(), where(_is_amount(b), b, b.dtype.width - 1).ir_value()), a)


def _is_amount(b: Vector) -> Vector:
    return (b >= 0) & (b < b.dtype.width)


def popcount(x: Vector) -> Vector:
    """The number of bits set in two's complement."""
    return _vector(math.ctpop(x.ir_value()), x)


def _vector(made: Any, like: Vector) -> Vector:
    return cute.TensorSSA(made, like.shape, like.dtype)


PARITY = 0x1BD11BDA  # of Threefry's key schedule
ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)  # of its rounds, four at a time


def random_bits(
    first: Vector, second: Vector, place: Vector, following: bool = False, multiplied: bool = False
) -> Vector:
    """The 32 bits that `jax.random.bits` has for a key of two words at a place of the flat array, where
    `jax_threefry_partitionable` is set. Threefry-2x32 of the place's upper and lower half gives two words, which are combined.
    Vectors of Int64, the result too. `following`: the first place is a multiple of their number, and the others follow it.
    `multiplied`: its sums are products with 1 and sums. Rotations and exclusive ors, which share their instructions' pipe with plain
    sums, then take most of the time: in a dropout an H100 took 232 us for 248, but 162 for 154 where logarithms multiply, too.

    Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (SC 2011)."""
    words = [first.to(Uint32), second.to(Uint32)]
    keys = [*words, words[0] ^ words[1] ^ PARITY]
    plus = _multiplied_sum(unseen_one(words[0][0])) if multiplied else operator.add
    upper, lower = shift_right(place, 32).to(Uint32), place.to(Uint32)
    if following:  # and none has another upper half
        upper, lower = (cute.full_like(half, half[0]) for half in (upper, lower))
        lower = plus(lower, _counted(lower))
    x, y = upper + keys[0], plus(lower, keys[1])
    for group in range(5):
        for amount in ROTATIONS[group % 2]:
            x = plus(x, y)
            y = _rotated(y, amount) ^ x
        x = plus(x, keys[(group + 1) % 3])
        y = plus(y, keys[(group + 2) % 3] + (group + 1))
    return (x ^ y).to(Int64)


def _multiplied_sum(one: Uint32) -> Callable[[Vector, Vector], Vector]:
    """Sums of Uint32, as multiply-adds."""

    def plus(a: Vector, b: Vector) -> Vector:
        found = cute.make_rmem_tensor(a.shape, Uint32)
        for i in range(cute.size(found)):
            operands = [word.ir_value() for word in (a[i], one, b[i])]
            found[i] = Uint32(llvm.inline_asm(Uint32.mlir_type, operands, "mad.lo.s32 $0, $1, $2, $3;", "=r,r,r,r"))
        return found.load()

    return plus


def _counted(like: Vector) -> Vector:
    """0, 1, 2, ..."""
    found = cute.make_rmem_tensor(like.shape, like.dtype)
    for i in range(cute.size(found)):
        found[i] = like.dtype(i)
    return found.load()


def _rotated(x: Vector, amount: int) -> Vector:
    """The bits of a Uint32, rotated to the left."""
    upper, lower = (cute.full_like(x, n).ir_value() for n in (amount, 32 - amount))
    return _vector(arith.shli(x.ir_value(), upper), x) | _vector(arith.shrui(x.ir_value(), lower), x)
