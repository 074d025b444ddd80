"""Numbers for tests of PTX instructions: formats and their rounding from their definitions, and operands that are drawn."""

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from random import Random
from typing import Any, NamedTuple

import numpy as np
from ptx_running import apply

from tests.turns import EVERY

# Floating formats, from their definitions


class Format(NamedTuple):
    bits: int
    exponent: int  # bits
    fraction: int  # bits
    nan: int
    infinite: bool = True  # else the top exponent has numbers too, and one NaN

    @property
    def bias(self) -> int:
        return (1 << (self.exponent - 1)) - 1

    @property
    def largest(self) -> int:
        """The bits of the largest finite number."""
        return ((1 << self.exponent) - 1 << self.fraction) - 1 if self.infinite else self.nan - 1

    @property
    def sign(self) -> int:
        return 1 << (self.bits - 1)


F32 = Format(32, 8, 23, 0x7FFFFFFF)
F64 = Format(64, 11, 52, 0x7FFFFFFFFFFFFFFF)
F16 = Format(16, 5, 10, 0x7FFF)
BF16 = Format(16, 8, 7, 0x7FFF)
E4M3 = Format(8, 4, 3, 0x7F, infinite=False)
E5M2 = Format(8, 5, 2, 0x7F)
FORMATS = {"f32": F32, "f64": F64, "f16": F16, "bf16": BF16, "e4m3": E4M3, "e5m2": E5M2}
Number = Fraction | float  # a nonzero finite number, or a zero, an infinity or NaN as a float


def decode(f: Format, bits: int) -> Number:
    negative, exponent = bits & f.sign, (bits >> f.fraction) & ((1 << f.exponent) - 1)
    fraction = bits & ((1 << f.fraction) - 1)
    if not f.infinite and bits & ~f.sign == f.nan:
        return math.nan
    if f.infinite and exponent == (1 << f.exponent) - 1:
        return math.nan if fraction else -math.inf if negative else math.inf
    whole = fraction + (1 << f.fraction) if exponent else fraction
    if not whole:
        return -0.0 if negative else 0.0
    value = Fraction(whole) * Fraction(2) ** (max(exponent, 1) - f.bias - f.fraction)
    return -value if negative else value


def encode(f: Format, x: Number, mode: str = "rn", saturate: bool = False) -> int:
    """x rounded to nearest even, toward zero, down or up."""
    if isinstance(x, float):
        if math.isnan(x):
            return f.nan
        negative = f.sign if math.copysign(1, x) < 0 else 0
        top = f.largest if saturate else f.largest + 1
        return negative | (top if x else 0)
    negative, a = (f.sign if x < 0 else 0), abs(x)
    exponent = a.numerator.bit_length() - a.denominator.bit_length()
    exponent -= a < Fraction(2) ** exponent
    exponent = max(exponent, 1 - f.bias)
    whole, rest = divmod(a / Fraction(2) ** (exponent - f.fraction), 1)
    away = {
        "rn": 2 * rest > 1 or (2 * rest == 1 and whole & 1),
        "rz": False,
        "rp": rest and not negative,
        "rm": rest and negative,
    }
    whole += bool(away[mode])
    # consecutive numbers have consecutive bits
    bits = whole + (exponent + f.bias - 1 << f.fraction)
    if bits > f.largest:
        to_largest = saturate or mode == "rz" or (mode == "rm" and not negative) or (mode == "rp" and negative)
        bits = f.largest if to_largest else f.largest + 1
    return negative | bits


def add(a: Number, b: Number, mode: str) -> Number:
    if isinstance(a, float) and isinstance(b, float):
        both = a + b
        return -0.0 if both == 0 and mode == "rm" and math.copysign(1, a) != math.copysign(1, b) else both
    if isinstance(a, float) or isinstance(b, float):
        special, other = (a, b) if isinstance(a, float) else (b, a)
        return other if special == 0 else special
    return a + b or (-0.0 if mode == "rm" else 0.0)


def multiply(a: Number, b: Number) -> Number:
    if isinstance(a, float) or isinstance(b, float):
        return _unit(a) * _unit(b)
    return a * b


def divide(a: Number, b: Number) -> Number:
    if isinstance(a, float) or isinstance(b, float):
        a, b = _unit(a), _unit(b)
        return a / b if b else math.nan if not a or math.isnan(a) else math.copysign(math.inf, a * math.copysign(1, b))
    return a / b


def _unit(a: Number) -> float:
    """A nonzero finite number as 1 or -1, which is enough for operations with a zero, an infinity or NaN."""
    return a if isinstance(a, float) else math.copysign(1, a)


def negate(a: Number) -> Number:
    return -a


def flush(f: Format, bits: int) -> int:
    """The numbers with denormals replaced by zeros of their sign."""
    return bits if bits >> f.fraction & ((1 << f.exponent) - 1) or decode(f, bits) == 0 else bits & f.sign


def specials(f: Format) -> list[int]:
    """Zeros, denormals, ones, ties, the largest numbers and their neighbours, infinities and NaN, of both signs."""
    one, smallest = f.bias << f.fraction, 1 << f.fraction
    positive = [
        0,
        1,
        3,
        smallest - 1,
        smallest,
        smallest + 1,
        one - 1,
        one,
        one + 1,
        one + smallest,
        one + (f.fraction << f.fraction),
    ]
    positive += [one + ((f.fraction + 1) << f.fraction), f.largest - 1, f.largest, f.nan]
    positive += [f.largest + 1] if f.infinite else []
    return [sign | bits for sign in (0, f.sign) for bits in positive]


Drawn = Callable[[Random], Any]


def drawn(f: Format) -> Drawn:
    """Random bits: any bits, special numbers, or numbers of similar magnitude, so that sums cancel and round."""
    near = (f.bias - f.fraction - 2) << f.fraction, (f.bias + 4) << f.fraction

    def one(rng: Random) -> int:
        forms = rng.getrandbits(f.bits), rng.choice(specials(f)), rng.randrange(*near) | rng.choice((0, f.sign))
        return rng.choice(forms)

    return one


def rows(one: Drawn, count: int, seed: str) -> list[tuple]:
    """Random operands of an instruction, which is the seed. Each row is compared by itself, so no smaller table is needed."""
    rng = Random(seed)
    return [tuple(one(rng) for _ in range(count)) for _ in range(100 if EVERY else 40)]


def columns(table) -> list[list[int]]:
    return [list(column) for column in zip(*table, strict=True)]


def check(text: str, f: Format, table, expected, out: Format | None = None) -> None:
    """Runs one instruction on rows of operands of one format."""
    got = apply(text, (out or f).bits, *((f.bits, column) for column in columns(table)))
    for row, bits in zip(table, got, strict=True):
        wanted = expected(*row)
        assert bits == wanted, f"{text} of {[hex(b) for b in row]} is {bits:#x}, not {wanted:#x}"


def grid(f: Format, count: int) -> list[tuple[int, ...]]:
    few = specials(f) if count < 3 else specials(f)[1::2]
    return list(itertools.product(few, repeat=count))


def signed(x: int, bits: int) -> int:
    x %= 1 << bits
    return x - (1 << bits) if x >> (bits - 1) else x


def integers(bits: int) -> list[int]:
    top = 1 << (bits - 1)
    return [0, 1, 2, 7, 31, top - 1, top, top + 1, 2 * top - 2, 2 * top - 1, 0x5A5A5A5A5A5A5A5A % (2 * top)]


def drawn_integer(bits: int) -> Drawn:
    return lambda rng: rng.choice((rng.getrandbits(bits), rng.choice(integers(bits)), rng.randrange(71)))


def check_integers(text: str, bits: int, count: int, expected, out: int | None = None) -> None:
    def one(table):
        got = apply(text, out or bits, *((bits, column) for column in columns(table)))
        for row, made in zip(table, got, strict=True):
            wanted = expected(*row) % (1 << (out or bits))
            assert made == wanted, f"{text} of {[hex(x) for x in row]} is {made:#x}, not {wanted:#x}"

    one(list(itertools.product(integers(bits), repeat=min(count, 3))) if count < 4 else [tuple(integers(bits)[:count])])
    one(rows(drawn_integer(bits), count, text))


def every(f: Format) -> list[int]:
    return list(range(1 << f.bits)) if f.bits == 8 else specials(f)


def neighbourhood(f: Format, bits: int) -> list[int]:
    """A number of a narrow format in float32, the tie above it, and the neighbours of that tie."""
    x, y = decode(f, bits), decode(f, bits + 1 if bits + 1 < 1 << f.bits else bits)
    if x != x or y != y or abs(x) == math.inf or abs(y) == math.inf:
        return []
    tie = encode(F32, (Fraction(x) + Fraction(y)) / 2 or 0.0)
    return [encode(F32, x), tie, tie + 1, max(0, tie - 1)]


def f32(text: str | float) -> int:
    x = float(text)
    return encode(F32, Fraction(x) if x and math.isfinite(x) else x)


def drawn_real(low: float, high: float) -> Drawn:
    """Float32 numbers of an interval: its ends, and numbers of any magnitude between them."""
    low, high = np.float32(low).item(), np.float32(high).item()

    def one(rng: Random) -> float:
        smaller = rng.choice((low, high)) * 2.0 ** -rng.uniform(0, 120)
        return np.float32(min(max(low, rng.choice((low, high, rng.uniform(low, high), smaller))), high)).item()

    return one


def integral(x: Number, mode: str) -> Number:
    if isinstance(x, float):
        return x
    whole = {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}[mode](x)
    return Fraction(whole) if whole else math.copysign(0.0, x)


def relative(bound):
    return lambda x, exact: bound * abs(exact)
