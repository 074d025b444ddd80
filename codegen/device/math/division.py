"""Quotients of float32 on per-thread vectors (`cute.TensorSSA`).

Quotients are formed without the branches of the hardware's division, or so that they are rarely taken.

A reciprocal is the sum of two floats, `high` and `low`. Then a / b is a * high + a * low: the second product is rounded, and the
first is fused with the sum. It is off by 0.5 + 2**-18 ulp at most, and so nearly always correctly rounded (Brisebarre, Muller and
Raina, "Accelerating correctly rounded floating-point division when the divisor is known in advance", IEEE Transactions on Computers
53 (2004)). Where the quotient is below 2**-102 the first product may be denormal, and the quotient is within 1 ulp. `low` has the
sign of `high`, so that infinities and zeros give what they give in a division.
"""

from __future__ import annotations

import cutlass.cute as cute
import numpy as np
from cutlass import Float32, Numeric

from codegen.device.functions import (
    Operand,
    Vector,
    as_vectors,
    cast,
    each,
    fma,
    isinf,
    rcp,
    round_to,
    where,
)

# Times the hardware's reciprocal, which is 1 ulp off at most: below the reciprocal, in magnitude
_BELOW = 1.0 - 2.0**-22


def divide(a: Operand, b: Operand, approx: bool) -> Vector:
    """a / b, correctly rounded; approximately within 2 ulp over the whole range.

    The hardware's division takes a slow path, of some hundred instructions, if the dividend is 0. Masked and underflowed terms
    are 0. So 0 / b is 0 * (2**-24 / b), whose second factor is finite unless b is 0."""
    constant = not isinstance(a, cute.TensorSSA)
    a, b = as_vectors(a, b)
    if a.dtype is not Float32 or (constant and not approx):
        return a / b
    if not approx:
        zero = a == 0.0
        quotient = where(zero, 2.0**-24, a) / b
        return where(zero, a * quotient, quotient)
    return each(lambda p, q: cute.math.div(p, q, full=True), a, b)


def divide_by_normal(a: Operand, b: Operand, approx: bool) -> Vector:
    """a / b where b and its reciprocal are normal numbers, within 0.5 + 2**-18 ulp; approximately within 2 ulp."""
    first, second = as_vectors(a, b)
    if first.dtype is not Float32:
        return first / second
    if isinstance(b, cute.TensorSSA):
        high = rcp(b)
        if approx:
            return a * high
        high = high * _BELOW
        low = fma(-b, high, 1.0) * high
    else:
        if approx:
            return a * (1.0 / b)
        high, low = _halves_of_constant(b)
        if not low:
            return a * high
    return fma(first, high, first * low)


def _halves_of_constant(b: float) -> tuple[float, float]:
    """The reciprocal of a number as two float32 that add up to it: a truncated one, and the rest; the rest is 0 if
    nothing is left."""
    exact = 1.0 / np.float64(np.float32(b))
    high = np.float32(exact)
    if abs(np.float64(high)) > abs(exact):
        high = np.nextafter(high, np.float32(0))
    return float(high), float(np.float32(exact - np.float64(high)))


def divide_by_row(a: Vector, b: Vector, approx: bool) -> Vector:
    """a / b where b is one value for the whole vector, within 0.5 + 2**-18 ulp; approximately a times its reciprocal, within 3 ulp
    over the whole range. The part that depends only on b can move out of loops in which b does not change."""
    if a.dtype is not Float32:
        return a / b
    return _by_parts(a, [cute.full_like(a, part) for part in _parts(b[0], approx)], approx)


def divide_by_shared(a: Vector, b: Vector, approx: bool) -> Vector:
    """a / b where most elements of a vector have the same b, to the same bits as `divide_by_row`. Where the compiler sees that b is the
    same, it computes the part that depends only on b once."""
    if a.dtype is not Float32:
        return a / b
    parts = [cute.make_rmem_tensor(a.shape, Float32) for _ in range(3)]
    for i in range(cute.size(a.shape)):
        for part, value in zip(parts, _parts(b[i], approx), strict=True):
            part[i] = value
    return _by_parts(a, [part.load() for part in parts], approx)


def divide_by_column(a: Vector, b: Vector, approx: bool) -> Vector:
    """a / b where each element has its own b, which all rows share: to the same bits as `divide_by_row`, or with `approx` as `divide`. The
    part that depends only on b is computed before a loop over rows. The hardware's division has a slow path for dividends that are
    0 or tiny, as most of a softmax's may be."""
    return divide(a, b, True) if approx else divide_by_shared(a, b, False)


def _parts(b: Float32, approx: bool) -> tuple[Float32, Float32, Float32]:
    """A power of two, and the reciprocal of its product with the divisor as two numbers, of which the first
    approximates it. The dividend is multiplied by the power of two as well. It makes the reciprocal a normal number."""
    one = cute.full((1,), b, Float32)
    scale = _scale_of(one)
    one = one * scale
    if approx:
        high = rcp(one)
        return scale[0], high[0], high[0]
    high = rcp(one) * _BELOW
    rest = fma(-one, high, 1.0)  # NaN for a divisor that is 0 or infinite
    # Never 0, which times an infinity is NaN. Infinite for a divisor of 0, and 0 for an infinite one, as the first part is
    low = where(rest > 0.0, rest * high, high * 2.0**-60)
    return scale[0], high[0], low[0]


def _scale_of(b: Vector) -> Vector:
    """A power of two that keeps the reciprocal of its product with `b`, and remainders of quotients, normal numbers."""
    size = cute.math.abs(b)
    return where(size < 2.0**-64, 2.0**64, where(size > 2.0**64, 2.0**-64, 1.0))


def _by_parts(a: Vector, parts: list[Vector], approx: bool) -> Vector:
    scale, high, low = parts
    a = a * scale
    return a * high if approx else fma(a, high, a * low)


def divide_by_count(a: Numeric, count: Numeric) -> Numeric:
    """a / count, correctly rounded where that is a normal number, for loops in which `count`, a whole number, is constant. There is
    one reciprocal before the loop, and its product with `a` is corrected by the remainder (Markstein, 1990)."""
    if not isinstance(a, Float32):
        return a / count
    total, by = cute.full((1,), a, Float32), cute.full((1,), count, Float32)
    inverse = 1.0 / by
    near = total * inverse
    exact = cute.math.fma(cute.math.fma(-near, by, total), inverse, near)
    return where(isinf(near), near, exact)[0]


def reciprocal(x: Vector, approx: bool) -> Vector:
    """1 / x, correctly rounded; approximately within 1 ulp over the whole range."""
    if not approx or x.dtype is not Float32:
        return divide(1.0, x, approx)
    return each(lambda v: cute.math.rcp(v, approx=True), x)


def round_quotient(a: Vector, b: Vector, dtype: type[Numeric]) -> Vector:
    """round(a / b) in an integer type, as `round_to`, where b is one value for the whole vector. There is one reciprocal for all,
    and its product with `a` is corrected by the remainder (Markstein, 1990). The quotient is first correctly rounded, where it is
    from 2**-2 to 2**20; others round to 0, or saturate."""
    if a.dtype is not Float32 or dtype.width > 16:
        return cast(cute.math.roundeven(divide(a, b, False)), dtype)
    one = cute.full((1,), b[0], Float32)
    scale = _scale_of(one)
    a, by, inverse = a * cute.full_like(a, scale[0]), one * scale, 1.0 / (one * scale)
    near = a * cute.full_like(a, inverse[0])
    rest = cute.math.fma(-near, cute.full_like(a, by[0]), a)
    exact = cute.math.fma(rest, cute.full_like(a, inverse[0]), near)
    # For infinite quotients the correction is NaN
    return round_to(where(cute.math.abs(near) < 2.0**20, exact, near), dtype)
