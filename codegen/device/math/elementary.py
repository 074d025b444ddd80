"""Exponentials, logarithms, hyperbolic and error functions on per-thread vectors (`cute.TensorSSA`).

Error bounds are those of float32: in ulp of the exact result, or relative to it where a function may be approximate. What has no
bound of its own here is CUDA's libm. The bounds hold over every float32 input (docs/accuracy.md).

Coefficients are minimax fits of ours (Lawson's iteration on Chebyshev nodes, in float64), rounded to float32.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

import cutlass
import cutlass.cute as cute
import numpy as np
from cutlass import Float32, Float64
from cutlass._mlir import ir
from cutlass._mlir.dialects import llvm

from codegen.device.functions import (
    Operand,
    Vector,
    as_vectors,
    each,
    fma,
    maximum,
    minimum,
    polynomial,
    rcp,
    rsqrt,
    sqrt,
    where,
)
from codegen.device.math.division import divide
from codegen.shared import HALF_POWERS, WHOLE_POWERS

LOG2E, LN2, _ROOT_HALF = 1.4426950408889634, 0.6931471805599453, 0.7071067811865476
_DENSITY, _LOG2_DENSITY = 0.3989422804014327, -1.3257480647361593  # 1 / sqrt(2 * pi), that of a normal variable at 0


def exp(x: Vector, approx: bool) -> Vector:
    """e ** x within 2 ulp. Approximately, the relative error is at most 2**-17, and 2**-21 where |x| < 1. It is the
    square of e ** (x / 2), a normal number, so denormal results are kept. silu(-88) is a normal number, too."""
    if approx and x.dtype is Float32:
        root = cute.math.exp2(x * (0.5 * LOG2E), fastmath=True)
        return root * root
    return cute.math.exp(x)


def _exp_larger(x: Vector, scale: float) -> Vector:
    """2 ** (scale * x + 24), where scale * x <= 0, by the hardware's function, which flushes denormal results. Multiplied by 2**-24
    it is accurate down to the smallest denormal number; its relative error is 2**-20 even near one."""
    return cute.math.exp2(fma(x, scale, 24.0), fastmath=True)


def exp_term(x: Vector, approx: bool) -> Vector:
    """e ** x for x <= 0, as a term of a sum whose largest term is one. Approximately by the hardware's 2 ** x, with denormal
    results flushed: within two ulp of one. Rounding the exponent adds 1.3 |x| e ** x 2**-24, less than half an ulp of one."""
    if approx and x.dtype is Float32:
        return cute.math.exp2(x * LOG2E, fastmath=True)
    return cute.math.exp(x)


def exp2(x: Vector, approx: bool, exact: bool) -> Vector:
    """2 ** x within 2.1 ulp, denormal results kept; exactly through float64."""
    del approx  # the library uses the hardware's function
    return wide(cute.math.exp2, exact, x)


# erfc(z) * exp(z * z) / t for t = 1 / (1 + slope * z), z >= 0: least-squares polynomial in t, relative error 2**-20.6
_ERFC_SLOPE = 0.375
_ERFC = (-0.13509625, 0.3879391, -0.12959912, 0.28306288, 0.16666405, 0.21568927, 0.21133944)


def erfc(x: Vector, approx: bool, exact: bool) -> Vector:
    """1 - erf(x) within 5 ulp; exactly through float64; approximately within 2**-16 of relative error, tail included."""
    if not approx or x.dtype is not Float32:
        return wide(cute.math.erfc, exact, x)
    z = cute.math.abs(x)
    t = rcp(1.0 + _ERFC_SLOPE * z)
    q = polynomial(t, [c * 2.0**-24 for c in _ERFC])
    r = _exp_larger(z * z, -LOG2E) * (t * q)
    return where(x >= 0.0, r, 2.0 - r)


def sigmoid(x: Vector, approx: bool) -> Vector:
    """1 / (1 + e ** -x) within 4 ulp, tail included; approximately within 2**-17 of relative error, denormal results kept."""
    if approx and x.dtype is Float32:
        # 2**-24 of both terms: where their sum overflows, the result is 0
        power = cute.math.exp2(fma(x, -LOG2E, -24.0), fastmath=True)
        return rcp(power + 2.0**-24) * 2.0**-24
    return both_sigmoids(x, False)[0]


def both_sigmoids(x: Vector, approx: bool) -> tuple[Vector, Vector]:
    """(sigmoid(x), sigmoid(-x)), each as `sigmoid` gives it. Approximately they share nothing: a common power of e would have more
    exponents than a float, and lose the tail of one."""
    if approx and x.dtype is Float32:
        return sigmoid(x, approx), sigmoid(-x, approx)
    power = cute.math.exp(-cute.math.abs(x))  # never overflows, so the tail is accurate down to the smallest number
    total = 1.0 + power
    over = where(x >= 0.0, 1.0, power), where(x >= 0.0, power, 1.0)
    if x.dtype is not Float32:
        return over[0] / total, over[1] / total
    near = rcp(total)
    inverse = fma(near, fma(-total, near, 1.0), near)
    return over[0] * inverse, over[1] * inverse


# erf(x) / x in x * x for |x| <= 3.25: relative error 2**-18
_ERF = (0.00075236458, 0.043254027, 0.15411394, 1.1283801), (0.0093156376, 0.094841926, 0.46994647, 1.0)


def _odd_quotient(x: Vector, limit: float, above: tuple[float, ...], below: tuple[float, ...]) -> Vector:
    """x times a quotient of polynomials in x * x, x brought between -limit and limit first."""
    x = minimum(maximum(x, -limit), limit)
    square = x * x
    return x * polynomial(square, above) * rcp(polynomial(square, below))


def tanh(x: Vector, approx: bool) -> Vector:
    """tanh(x); approximately within 2**-17 of relative error, and where |x| > 0.2 within 2**-20 of 1 - |tanh(x)| plus an ulp: its
    derivative, 1 - tanh(x)**2, is then as accurate."""
    if not approx or x.dtype is not Float32:
        return cute.math.tanh(x)
    size = cute.math.abs(x)
    far = fma(rcp(cute.math.exp2(size * (2 * LOG2E), fastmath=True) + 1.0), -2.0, 1.0)
    near = x * fma(x * x, -1 / 3, 1.0)
    return where(size < 0.08, near, each(_with_sign_of, far, x))


# tanh(x) / x in x * x for |x| <= 6, and at 6 as near to 1: relative error 2**-16.7
_TANH = (0.00149149474, 0.11447312, 0.999991044), (5.48075757e-05, 0.0174756202, 0.447746563, 1.0)


# The same for |x| <= 0.7, without a quotient: relative error 2**-17.1
_TANH_NEAR, _NEAR = (-0.0372905321, 0.128642127, -0.332890481, 0.999993324), 0.7


def tanh_term(x: Vector, approx: bool) -> Vector:
    """tanh(x) as a term of an exponent; approximately within 2**-16 of relative error, which says nothing of 1 - |tanh(x)|. It takes
    one function of the special-function units, where `tanh` takes two, and none where all of a warp's vectors are near 0, as most scores
    are relative to their cap. All lanes of a warp take part."""
    if not approx or x.dtype is not Float32:
        return tanh(x, approx)
    sizes = [Float32(0)] * 4
    for i in range(cute.size(x.shape)):
        sizes[i % 4] = cute.arch.fmax(sizes[i % 4], cute.math.abs(x[i]))
    largest = cute.arch.fmax(cute.arch.fmax(sizes[0], sizes[1]), cute.arch.fmax(sizes[2], sizes[3]))
    found = cute.make_rmem_tensor(x.shape, Float32)
    _store_tanh(found, x, cute.arch.vote_all_sync(largest <= _NEAR))
    return found.load()


@cute.jit
def _store_tanh(found: cute.Tensor, x: cute.TensorSSA, near: cutlass.Boolean) -> None:
    if near:
        found.store(x * polynomial(x * x, _TANH_NEAR))
    else:
        found.store(_odd_quotient(x, 6.0, *_TANH))


# The same for |x| <= 0.45, with one term less: relative error 2**-16.3. It rises with x everywhere
_TANH_SMALL, SMALL = (0.11834735, -0.33222613, 0.99998769), 0.45


def tanh_small(x: Vector, scale: float = 1.0, factor: float = 1.0) -> Vector:
    """factor * tanh(scale * x) / x for |scale * x| <= `SMALL`, within 2**-16 of relative error, in three instructions."""
    terms = (c * factor * scale**power for c, power in zip(_TANH_SMALL, (5, 3, 1), strict=True))
    return polynomial(x * x, tuple(terms))


def _with_sign_of(size: Float32, x: Float32) -> Float32:
    return cute.math.copysign(size, x)


def erf(x: Vector, approx: bool) -> Vector:
    """The error function; approximately within 2**-16 of relative error, at most 1."""
    if not approx or x.dtype is not Float32:
        return cute.math.erf(x)
    return _odd_quotient(x, 3.25, *_ERF)


# Near the zero of an approximate function the hardware's own is off by an absolute error, and a few terms of a series are right


def log(x: Vector, approx: bool) -> Vector:
    """The natural logarithm; approximately within 2**-16 of relative error, denormal arguments included."""
    if not approx or x.dtype is not Float32:
        return cute.math.log(x)
    return _logarithm(x, 1.0)


def log2(x: Vector, approx: bool) -> Vector:
    """The logarithm to base 2; approximately within 2**-16 of relative error, denormal arguments included."""
    if not approx or x.dtype is not Float32:
        return cute.math.log2(x)
    return _logarithm(x, LOG2E)


def _logarithm(x: Vector, scale: float) -> Vector:
    """`scale` times the natural logarithm, approximately."""
    near = x - 1.0
    far = each(_lg2, x)
    if scale != LOG2E:
        far = far * (scale * LN2)
    series = near * polynomial(near, (scale / 3, -scale / 2, scale))
    return where(cute.math.abs(near) < 0.03, series, far)


def log1p(x: Vector, approx: bool) -> Vector:
    """log(1 + x); approximately within 2**-16 of relative error."""
    if not approx or x.dtype is not Float32:
        return cute.math.log1p(x)
    far = cute.math.log2(x + 1.0, fastmath=True) * LN2
    return where(cute.math.abs(x) < 0.03, x * polynomial(x, (1 / 3, -0.5, 1.0)), far)


def expm1(x: Vector, approx: bool) -> Vector:
    """e ** x - 1; approximately within 2**-16 of relative error."""
    if not approx or x.dtype is not Float32:
        return cute.math.expm1(x)
    far = cute.math.exp2(x * LOG2E, fastmath=True) - 1.0
    return where(cute.math.abs(x) < 0.06, x * polynomial(x, (1 / 6, 0.5, 1.0)), far)


def sinh(x: Vector, approx: bool, exact: bool) -> Vector:
    """The hyperbolic sine within 5 ulp; exactly through float64; approximately within 2**-16 of relative error."""
    if not approx or x.dtype is not Float32:
        return wide(cute.math.sinh, exact, x)
    above, below = _half_powers(x)
    return where(cute.math.abs(x) < 0.16, x * fma(x * x, 1 / 6, 1.0), above - below)


def cosh(x: Vector, approx: bool, exact: bool) -> Vector:
    """The hyperbolic cosine within 5 ulp; exactly through float64; approximately within 2**-16 of relative error."""
    if not approx or x.dtype is not Float32:
        return wide(cute.math.cosh, exact, x)
    above, below = _half_powers(x)
    return above + below


def _half_powers(x: Vector) -> tuple[Vector, Vector]:
    """Half of e ** x and of e ** -x, approximately, denormal results flushed."""
    return tuple(cute.math.exp2(fma(x, sign * LOG2E, -1.0), fastmath=True) for sign in (1, -1))


def _lg2(x: Float32) -> Float32:
    """The hardware's logarithm to base 2, of denormal numbers as well."""
    return Float32(llvm.call_intrinsic(Float32.mlir_type, "llvm.nvvm.lg2.approx.f", [x.ir_value()], [], []))


# log2 of the probability that a normal variable exceeds u: a polynomial in u, least relative error for 0 <= u <= 8, falling
# beyond
_GELU = (
    -1.2624585e-06, 4.8203292e-05, -8.072483e-04, 7.944579e-03, -5.2635383e-02, -4.5995682e-01, -1.15061, -1.000043,
)  # fmt: skip
_FAR = 1e4  # where 2 ** that is 0, and polynomials are still finite


def gelu(x: Vector, approx: bool, exact: bool) -> Vector:
    """x / 2 * (1 + erf(x / sqrt(2))), within x * x + 5 ulp. Exactly, it is computed in float64. Approximately, the relative error
    is at most 2**-15 + x * x * 2**-22, plus 2**-62 where x < -8. It is (x > 0 ? x : 0) minus |x| times the probability that a
    normal variable exceeds |x|."""
    if not approx or x.dtype is not Float32:
        return 0.5 * x * erfc(x * -_ROOT_HALF, approx, exact)
    u = minimum(cute.math.abs(x), _FAR)
    q = polynomial(u, _GELU)
    return fma(-u, cute.math.exp2(q, fastmath=True), maximum(x, 0.0))


# For u >= 0, the probability that a normal variable exceeds u, divided by its density at u and by t = 1 / (1 + slope * u). The
# polynomial in t has the least error relative to the sum of the quotient and u
_MILLS_SLOPE = 0.46
_MILLS = (-0.29823202, 0.73355275, 0.345858, 0.47210646)


def dgelu(x: Vector, approx: bool, exact: bool) -> Vector:
    """The derivative of `gelu`: Phi(x) + x phi(x) of the normal distribution, within x * x + 5 ulp of |Phi(x)| + |x phi(x)|.
    Exactly, it is computed in float64. Approximately, it is within 2**-15 + x * x * 2**-22 of that, plus 2**-122. NaN at the
    infinities, as jax.vjp of jnp's."""
    if not approx or x.dtype is not Float32:
        return 0.5 * erfc(x * -_ROOT_HALF, approx, exact) + x * (exp(x * x * -0.5, False) * _DENSITY)
    u = cute.math.abs(x)
    t = rcp(fma(u, _MILLS_SLOPE, 1.0))
    q = polynomial(t, _MILLS)
    density = cute.math.exp2(fma(u * u, -0.5 * LOG2E, _LOG2_DENSITY), fastmath=True)
    below = density * fma(q, t, -u)  # at -u
    return where(x > 0.0, 1.0 - below, below)


def wide(function: Callable[..., Vector], exact: bool, *operands: Operand) -> Vector:
    """A library function in float32, within 5 ulp; `exact`: computed in float64 and rounded."""
    vectors = as_vectors(*operands)
    if not exact or vectors[0].dtype is not Float32:
        return function(*vectors)
    return function(*(v.to(Float64) for v in vectors)).to(Float32)


_FOLDED = {"arith.addf": operator.add, "arith.subf": operator.sub, "arith.mulf": operator.mul}


def number_in(x: Operand) -> float | None:
    """The number that all elements of a float32 vector have, where the compiler knows it, such as a static parameter or a sum of it
    and a constant; None if it does not."""
    if not isinstance(x, cute.TensorSSA):
        return float(x)
    return _number_of(x.ir_value()) if x.dtype is Float32 else None


def _number_of(value: ir.Value) -> float | None:
    made = value.owner
    name = getattr(made, "name", "")
    if name == "arith.constant":
        found = made.attributes["value"]
        if isinstance(found, ir.DenseElementsAttr):
            return float(found.get_splat_value().value) if found.is_splat else None
        return float(found.value)
    if name in ("vector.broadcast", "vector.splat"):
        return _number_of(made.operands[0])
    if name in _FOLDED:
        found = [_number_of(operand) for operand in made.operands]
        return None if None in found else float(np.float32(_FOLDED[name](*found)))
    return None


_MOST_APPROXIMATE = 16.0  # exponent of a power


def power(a: Operand, b: Operand, approx: bool) -> Vector:
    """a ** b for floats. If b is a number, or a parameter that is compiled in: a product where b is 1, 2, 3 or 4;
    within 3 ulp where it is one of `HALF_POWERS`. From -16 to 16, the relative error is approximately at most 2**-15.
    So it is where a is a normal positive number: the error of b * log2(a), which is at most 150 where the result is not
    0 or infinite, is below 2**-15.7. Denormal results are kept: they are the square of a ** (b / 2)."""
    vectors = as_vectors(a, b)
    if vectors[0].dtype is not Float32:
        return cute.math.pow(*vectors)
    base, exponent = number_in(a), number_in(b)
    if base is not None and exponent is None and 2.0**-126 <= base < float("inf"):
        return _power_of_number(base, vectors[1], approx)
    a = vectors[0]
    if exponent == 0:
        return cute.full_like(a, 1.0)
    if exponent in WHOLE_POWERS:
        square = a * a
        return a if exponent == 1 else square if exponent == 2 else square * (a if exponent == 3 else square)
    if exponent in HALF_POWERS:
        return _half_odd_power(a, exponent, approx)
    if exponent is not None and approx and abs(exponent) <= _MOST_APPROXIMATE:
        root = cute.math.exp2(each(_lg2, a) * (exponent / 2), fastmath=True)
        return where(a == -float("inf"), float("inf") if exponent > 0 else 0.0, root * root)
    return cute.math.pow(*vectors)


def lowered_power(a: Operand, b: Operand, larger: Operand, approx: bool) -> Vector:
    """a ** b where `larger` is a ** (b + 1): as `power` where that is cheap, and where it is approximate, since both
    share a logarithm. Otherwise the quotient of the two, except at 0 and at the infinities."""
    a, b, larger = as_vectors(a, b, larger)
    if approx or a.dtype is not Float32 or number_in(b) in (0.0, *WHOLE_POWERS, *HALF_POWERS):
        return power(a, b, approx)
    none = a == 0.0
    at_end = where(none ^ (b > 0.0), where(b == 0.0, 1.0, float("inf")), where(b == 0.0, 1.0, 0.0))
    return where(none | (cute.math.abs(a) == float("inf")), at_end, divide(larger, a, False))


def _power_of_number(a: float, b: Vector, approx: bool) -> Vector:
    """a ** b for a normal positive number: 2 ** (b * log2(a)), within 4 ulp. Approximately, the product is rounded; else 2 to the power of
    what rounding loses, which is near 0, is a factor."""
    log = math.log2(float(np.float32(a)))
    if approx:
        root = cute.math.exp2(b * (0.5 * log), fastmath=True)
        return root * root
    high = float(np.float32(log))
    exponent = b * high
    rest = fma(b, high, -exponent) + b * (log - high)
    result = cute.math.exp2(exponent)
    return where(cute.math.abs(exponent) <= 160.0, fma(result, rest * LN2, result), result)


def _half_odd_power(a: Vector, b: float, approx: bool) -> Vector:
    """a ** b by a root. As of any power, the result at -0.0 has no sign, and -infinity is not NaN."""
    if b < 0:
        size = a + 0.0
        result = rsqrt(size, approx)
        if b != -0.5:
            result = divide(result, size if b == -1.5 else size * size, approx)
    elif b == 1.5:
        result = a * sqrt(a, approx)
    else:
        root = sqrt(a, approx) + 0.0
        result = root if b == 0.5 else a * a * root
    return where(a == -float("inf"), float("inf") if b > 0 else 0.0, result)
