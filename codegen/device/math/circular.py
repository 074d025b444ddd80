"""Sine, cosine and tangent on per-thread vectors (`cute.TensorSSA`).

An angle x is n quarter turns and a rest: x = n * pi / 2 + r, where r is at most pi / 4. Up to `FAR` the rest is computed with pi / 2
in three parts: n times the first part, subtracted from x, is exact. A vector that holds a larger angle takes a slow way as a whole,
which multiplies by as many bits of 2 / pi as there are. The sine and the cosine of r are polynomials, and n says which of them is
the result, and its sign.

Bounds and coefficients are as in `elementary.py`.
"""

from __future__ import annotations

from typing import TypeAlias

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Float64, Int32, Int64, Uint32, Uint64

from codegen.device.functions import Vector, fma, polynomial, rcp, where
from codegen.device.math.elementary import wide
from codegen.device.math.opaque import nothing

FAR = 100000.0  # the largest angle of the fast way, in radians: n stays below 2**16
_UNITS = 1.5 * 2.0**23  # floats near it are one apart, and the low bits are those of the whole number added to it
_TWO_OVER_PI, _HALF_PI = 0.6366197723675814, 1.5707963267948966
# Three positive float32, pi / 2 to 2**-71: subtracting 0 times each leaves -0.0 negative
_QUARTER_TURN = (1.570796251296997, 7.549789415861596e-08, 5.390302529957765e-15)
# The bits of 2 / pi behind the point, in words, the first of them zero
_BITS = (0, 0xA2F9836E, 0x4E441529, 0xFC2757D1, 0xF534DDC0, 0xDB629599, 0x3C439041, 0xFE5163AB)

# For |r| <= 0.793: (sin(r) / r - 1) / r**2 in r**2, to 2**-28 of the sine, or 2**-19; (cos(r) - 1 + r**2 / 2) / r**4 in r**2, to
# 2**-33 of the cosine, or 2**-23
_SINE, _SINE_APPROX = (-0.0001950895, 0.0083321146, -0.1666665389), (0.0081599808, -0.1666326118)
_COSINE, _COSINE_APPROX = (2.4425922773e-05, -1.3887253595e-03, 4.1666644411e-02), (-0.0013643999, 0.041660848)

Turns: TypeAlias = tuple[Vector, Vector]  # whole quarter turns (int32, the low bits count), and the rest in radians


def sine_and_cosine(x: Vector, approx: bool, other: bool | None = None) -> tuple[Vector, Vector]:
    """(sin(x), cos(x)), each as `sin` and `cos` give it. `other`: whether the cosine is approximate, if not as the sine is."""
    if x.dtype is not Float32:
        return cute.math.sin(x), cute.math.cos(x)
    turns, rest = _reduced(x)
    odd = (turns & 1) != 0
    s, c = _core(rest, approx)
    sine = _signed(where(odd, c, s), turns)
    s, c = (s, c) if other in (None, approx) else _core(rest, other)
    return sine, _signed(where(odd, s, c), turns + 1)


def sin(x: Vector, approx: bool) -> Vector:
    """sin(x) within 1.6 ulp; approximately within 2**-17 of relative error. NaN for infinities."""
    return sine_and_cosine(x, approx)[0]


def cos(x: Vector, approx: bool) -> Vector:
    """cos(x) within 1.6 ulp; approximately within 2**-17 of relative error. NaN for infinities."""
    return sine_and_cosine(x, approx)[1]


def tan(x: Vector, approx: bool, exact: bool) -> Vector:
    """tan(x) within 4 ulp; exactly through float64; approximately within 2**-16 of relative error. NaN for infinities."""
    if exact or x.dtype is not Float32:
        return wide(cute.math.tan, exact, x)
    turns, rest = _reduced(x)
    s, c = _core(rest, approx)
    odd = (turns & 1) != 0
    over, under = where(odd, c, s), where(odd, s, c)
    inverse = rcp(under)
    if not approx:
        inverse = fma(inverse, fma(-under, inverse, 1.0), inverse)
    return _signed(over * inverse, turns * 2)


def _core(r: Vector, approx: bool) -> tuple[Vector, Vector]:
    """Sine and cosine of at most an eighth of a turn."""
    square = r * r
    sine = polynomial(square, _SINE_APPROX if approx else _SINE)
    cosine = fma(square, polynomial(square, _COSINE_APPROX if approx else _COSINE), -0.5)
    # The sum with 0.0 keeps the product of -0.0 from being negative, and so the sine of -0.0 from being 0.0
    return fma(fma(square, r, 0.0), sine, r), fma(square, cosine, 1.0)


def _signed(x: Vector, turns: Vector) -> Vector:
    """x, negated where the second bit of `turns` is set."""
    return (x.bitcast(Int32) ^ ((turns * 0x40000000) & -0x80000000)).bitcast(Float32)


def _reduced(x: Vector) -> Turns:
    shifted = fma(x, _TWO_OVER_PI, _UNITS)
    whole = shifted - _UNITS
    rest = x
    for part in _QUARTER_TURN:
        rest = fma(whole, -part, rest)
    turns = shifted.bitcast(Int32)
    size = cute.math.abs(x)
    largest = size[0]
    for i in range(1, cute.size(x.shape)):
        largest = cute.arch.fmax(largest, size[i])
    kept = cute.make_rmem_tensor(x.shape, Int32), cute.make_rmem_tensor(x.shape, Float32)
    kept[0].store(turns)
    kept[1].store(rest)
    angles = cute.make_rmem_tensor(x.shape, Float32)
    angles.store(x)
    _reduce_far(angles, largest, *kept)
    return kept[0].load(), kept[1].load()


@cute.jit
def _reduce_far(angles: cute.Tensor, largest: cutlass.Float32, turns: cute.Tensor, rest: cute.Tensor) -> None:
    """The quarter turns and the rests of those angles that are too large for the fast way. `largest` is the largest of all."""
    if largest > FAR:
        for i in cutlass.range_constexpr(cute.size(angles)):
            # One at a time: the slow way of several at once would take registers that no kernel has to spare. Each is a loop of one turn,
            # or of none: ptxas would predicate the instructions of a branch, and each angle would pass through them
            left = angles[i]
            while cute.arch.fmax(left, -left) > FAR:
                turns[i], rest[i] = _far(left)
                left = nothing(left)


def _far(x: Float32) -> tuple[Int32, Float32]:
    """The quarter turns of an angle from 2**-7 on, modulo 4, and the rest; NaN for infinities.

    |x| is m * 2**(e - 23), where m is a whole number of 24 bits. The bits of 2 / pi that make multiples of 4 of it are left out.
    The 96 bits after them, times m, are (modulo 2**96) the quarter turns, two bits, and a fraction of one."""
    bits = cute.full((1,), x, Float32).bitcast(Int32)[0]
    exponent = ((bits >> 23) & 0xFF) - 127
    mantissa = Uint64(Uint32((bits & 0x7FFFFF) | 0x800000))
    start = exponent + 7
    words = [_chosen(start >> 5, _BITS[i:]) for i in range(4)]
    high, middle, low = (_funnel(words[i], words[i + 1], Uint32(start & 31)) for i in range(3))
    product = mantissa * Uint64(low)
    carry = mantissa * Uint64(middle) + (product >> Uint64(32))
    top = Uint32(mantissa * Uint64(high) + (carry >> Uint64(32)))
    count = Int32((top + Uint32(0x20000000)) >> Uint32(30))
    fraction = (Uint64(top) << Uint64(34)) | ((carry & Uint64(0xFFFFFFFF)) << Uint64(2))
    rest = Float32(Float64(Int64(fraction)) * Float64(_HALF_PI * 2.0**-64))
    rest = cutlass.select_(exponent == 128, x - x, rest)
    return cutlass.select_(bits < 0, -count, count), cutlass.select_(bits < 0, -rest, rest)


def _chosen(place: Int32, words: tuple[int, ...]) -> Uint32:
    """words[place], for a place from 0 to 4."""
    result = Uint32(words[0])
    for i, word in enumerate(words[1:5], 1):
        result = cutlass.select_(place == i, Uint32(word), result)
    return result


def _funnel(first: Uint32, second: Uint32, shift: Uint32) -> Uint32:
    """32 bits of two words side by side, from the bit at `shift` on."""
    return Uint32(((Uint64(first) << Uint64(32)) | Uint64(second)) >> (Uint64(32) - Uint64(shift)))
