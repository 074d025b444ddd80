"""Every instruction against PTX's definition, computed here in integers and rational numbers, without the machine under
test."""

import itertools
import math
import operator
from collections.abc import Callable
from fractions import Fraction
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pytest
from ptx_running import apply, result, run, source, values, words

from codegen.interpret import ptx
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


# Arithmetic

ARITHMETIC = {
    "add": (2, add),
    "sub": (2, lambda a, b, mode: add(a, negate(b), mode)),
    "mul": (2, lambda a, b, mode: multiply(a, b)),
    "fma": (3, lambda a, b, c, mode: add(multiply(a, b), c, mode)),
}


def operation(name: str, f: Format, mode: str, ftz: bool):
    count, exact = ARITHMETIC[name]

    def expected(*bits: int) -> int:
        bits = tuple(flush(f, b) for b in bits) if ftz else bits
        made = encode(f, exact(*(decode(f, b) for b in bits), mode), mode)
        return flush(f, made) if ftz else made

    return count, expected


@pytest.mark.parametrize("name", ARITHMETIC)
@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("ftz", [False, True], ids=["", "ftz"])
def test_float32_arithmetic(name, mode, ftz):
    count, expected = operation(name, F32, mode, ftz)
    text = f"{name}.{mode}{'.ftz' * ftz}.f32 %d, {', '.join(['%a', '%b', '%c'][:count])};"
    check(text, F32, grid(F32, count), expected)
    check(text, F32, rows(drawn(F32), count, text), expected)


@pytest.mark.parametrize("name", ["add", "sub", "fma"])
@pytest.mark.parametrize("mode", ["rn", "rz"])
@pytest.mark.parametrize(("kind", "narrow"), [("f16", F16), ("bf16", BF16)])
def test_float32_arithmetic_on_narrower_operands(name, mode, kind, narrow):
    """All operands but the last are narrower."""
    count, exact = ARITHMETIC[name]
    text = f"{name}.{mode}.f32.{kind} %d, {', '.join(['%a', '%b', '%c'][:count])};"
    table = list(itertools.product(*[specials(narrow)[1::2]] * (count - 1), specials(F32)[1::2]))
    formats = [*[narrow] * (count - 1), F32]
    got = apply(text, 32, *((f.bits, column) for f, column in zip(formats, columns(table), strict=True)))
    for row, bits in zip(table, got, strict=True):
        values = (decode(f, b) for f, b in zip(formats, row, strict=True))
        assert bits == encode(F32, exact(*values, mode), mode), (text, [hex(b) for b in row])


@pytest.mark.parametrize("name", ARITHMETIC)
def test_float64_arithmetic(name):
    count, expected = operation(name, F64, "rn", False)
    text = f"{name}.rn.f64 %d, {', '.join(['%a', '%b', '%c'][:count])};"
    check(text, F64, grid(F64, count), expected)
    check(text, F64, rows(drawn(F64), count, text), expected)


@pytest.mark.parametrize("name", ARITHMETIC)
@pytest.mark.parametrize(("kind", "f"), [("f32x2", F32), ("bf16x2", BF16), ("f16x2", F16)])
def test_packed_arithmetic(name, kind, f):
    count, expected = operation(name, f, "rn", False)
    text = f"{name}.rn.{kind} %d, {', '.join(['%a', '%b', '%c'][:count])};"

    def both(table):
        pairs = list(zip(table, table[1:] + table[:1], strict=True))
        packed = [tuple(low | high << f.bits for low, high in zip(*pair, strict=True)) for pair in pairs]
        got = apply(text, 2 * f.bits, *((2 * f.bits, column) for column in columns(packed)))
        assert got == [expected(*low) | expected(*high) << f.bits for low, high in pairs]

    both(grid(f, count))
    both(rows(drawn(f), count, text))


def test_a_packed_operand_that_all_threads_share():
    two = 0x4000000040000000
    got = apply(f"mul.rn.f32x2 %d, %a, {two};", 64, (64, [0x3F8000003F800000, 0x404000003F000000, 5]))
    assert got[:2] == [two, 0x40C000003F800000]


def test_narrow_fused_multiply_add_rounds_once():
    """7 * 37 = 259 is between two bfloat16 numbers; 2**-100 decides."""
    seven, thirty_seven, tiny = (encode(BF16, Fraction(x)) for x in (7, 37, Fraction(1, 2**100)))
    got = apply(
        "fma.rn.bf16x2 %d, %a, %b, %c;", 32, (32, [seven]), (32, [thirty_seven]), (32, [tiny, tiny | 0x8000, 0])
    )
    assert [b & 0xFFFF for b in got] == [encode(BF16, Fraction(x)) for x in (260, 258, 260)]


@pytest.mark.parametrize(("kind", "f"), [("f32", F32), ("f64", F64)])
def test_division_and_roots_to_nearest(kind, f):
    def quotient(a, b):
        return encode(f, divide(decode(f, a), decode(f, b)))

    def root(a):
        x = decode(f, a)
        if isinstance(x, float):
            return encode(f, math.nan if x < 0 else x)
        if x < 0:
            return f.nan
        scaled = x * 4**1100  # floor(sqrt) of a large multiple, with a last bit for the remainder
        whole = math.isqrt(math.floor(scaled))
        return encode(f, Fraction(2 * whole + (whole * whole != scaled), 2 * 2**1100))

    check(f"div.rn.{kind} %d, %a, %b;", f, grid(f, 2), quotient)
    check(f"sqrt.rn.{kind} %d, %a;", f, grid(f, 1), root)
    check(f"rcp.rn.{kind} %d, %a;", f, grid(f, 1), lambda a: quotient(f.bias << f.fraction, a))
    check(f"div.rn.{kind} %d, %a, %b;", f, rows(drawn(f), 2, f"div.rn.{kind} %d, %a, %b;"), quotient)
    check(f"sqrt.rn.{kind} %d, %a;", f, rows(drawn(f), 1, f"sqrt.rn.{kind} %d, %a;"), root)


@pytest.mark.parametrize("name", ["min", "max"])
@pytest.mark.parametrize("kind", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("nan", [False, True], ids=["number", "NaN"])
def test_minimum_and_maximum(name, kind, nan):
    f = FORMATS[kind]

    def key(bits):
        return bits ^ ((1 << f.bits) - 1) if bits & f.sign else bits | f.sign  # -0 is below +0

    def expected(a, b):
        there = [x for x in (a, b) if decode(f, x) == decode(f, x)]
        if not there or (nan and len(there) < 2):
            return f.nan
        return (min if name == "min" else max)(there, key=key)

    check(f"{name}{'.NaN' * nan}.{kind} %d, %a, %b;", f, grid(f, 2), expected)
    check(
        f"{name}{'.NaN' * nan}.{kind} %d, %a, %b;",
        f,
        rows(drawn(f), 2, f"{name}{'.NaN' * nan}.{kind} %d, %a, %b;"),
        expected,
    )


# Comparisons and selections

COMPARE = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
FLAG = "selp.b32 %d, 1, 0, %p1;"


@pytest.mark.parametrize("kind", ["f32", "f64", "f16", "bf16"])
@pytest.mark.parametrize("name", [*COMPARE, *(c + "u" for c in COMPARE), "num", "nan"])
def test_float_comparisons(kind, name):
    f = FORMATS[kind]

    def expected(a, b):
        x, y = decode(f, a), decode(f, b)
        unordered = x != x or y != y
        if name in ("num", "nan"):
            return int(unordered == (name == "nan"))
        return int(name.endswith("u")) if unordered else int(COMPARE[name[:2]](x, y))

    text = f"setp.{name}.{kind} %p1, %a, %b; {FLAG}"
    check(text, f, grid(f, 2), expected, F32)
    check(text, f, rows(drawn(f), 2, text), expected, F32)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("name", ["eq", "ne", "lt", "ge", "gtu", "neu", "num", "nan"])
def test_packed_comparisons(kind, name):
    """One predicate for each half; as a value it is 1.0 in each half where the comparison holds."""
    f = FORMATS[kind]

    def holds(a, b):
        x, y = decode(f, a), decode(f, b)
        unordered = x != x or y != y
        if name in ("num", "nan"):
            return int(unordered == (name == "nan"))
        return int(name.endswith("u")) if unordered else int(COMPARE[name[:2]](x, y))

    pairs = grid(f, 2)
    low, high = pairs, pairs[7:] + pairs[:7]
    table = [(a | c << 16, b | d << 16) for (a, b), (c, d) in zip(low, high, strict=True)]
    wanted = [holds(*x) + 2 * holds(*y) for x, y in zip(low, high, strict=True)]
    flags = "selp.u32 %d, 1, 0, %p1; selp.u32 %r1, 2, 0, %p2; or.b32 %d, %d, %r1;"
    operands = [(32, column) for column in columns(table)]
    assert apply(f"setp.{name}.{kind}x2 %p1|%p2, %a, %b; {flags}", 32, *operands) == wanted
    odd = "and.b32 %r2, %r0, 1; setp.eq.u32 %p3, %r2, 1;"
    got = apply(f"{odd} setp.{name}.xor.{kind}x2 %p1|%p2, %a, %b, %p3; {flags}", 32, *operands)
    assert got == [w ^ (3 * (i % 2)) for i, w in enumerate(wanted)]
    one = encode(f, Fraction(1))
    got = apply(f"set.{name}.{kind}x2.{kind}x2 %d, %a, %b;", 32, *operands)
    assert got == [one * (w & 1) | (one * (w >> 1)) << 16 for w in wanted]


@pytest.mark.parametrize(("made", "true"), [("u32", 2**32 - 1), ("s32", 2**32 - 1), ("f32", 0x3F800000)])
def test_comparisons_as_values(made, true):
    check(f"set.lt.{made}.f32 %d, %a, %b;", F32, grid(F32, 2), lambda a, b: true * (decode(F32, a) < decode(F32, b)))
    check_integers(f"set.lt.{made}.s32 %d, %a, %b;", 32, 2, lambda a, b: true * (signed(a, 32) < signed(b, 32)))
    check(f"set.gtu.ftz.{made}.f32 %d, %a, %b;", F32, grid(F32, 2),
          lambda a, b: true * (not decode(F32, flush(F32, a)) <= decode(F32, flush(F32, b))))  # fmt: skip


def test_comparisons_of_halves_as_values():
    check("set.ge.f16.f16 %d, %a, %b;", F16, grid(F16, 2), lambda a, b: 0x3C00 * (decode(F16, a) >= decode(F16, b)))
    check(
        "set.ge.bf16.bf16 %d, %a, %b;", BF16, grid(BF16, 2), lambda a, b: 0x3F80 * (decode(BF16, a) >= decode(BF16, b))
    )
    check("set.leu.u16.f16 %d, %a, %b;", F16, grid(F16, 2), lambda a, b: 0xFFFF * (not decode(F16, a) > decode(F16, b)))


def test_comparisons_that_flush():
    check(f"setp.gt.ftz.f32 %p1, %a, %b; {FLAG}", F32, grid(F32, 2),
          lambda a, b: int(decode(F32, flush(F32, a)) > decode(F32, flush(F32, b))), F32)  # fmt: skip


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


@pytest.mark.parametrize("kind", ["s16", "u16", "s32", "u32", "s64", "u64", "b32"])
def test_integer_comparisons(kind):
    bits = int(kind[1:])
    see = (lambda x: signed(x, bits)) if kind[0] == "s" else (lambda x: x)
    names = {name: COMPARE[name] for name in (("eq", "ne") if kind[0] == "b" else COMPARE)}
    names |= {"lo": operator.lt, "ls": operator.le, "hi": operator.gt, "hs": operator.ge} if kind[0] == "u" else {}
    for name, compare in names.items():
        text = f"setp.{name}.{kind} %p1, %a, %b; {FLAG}"
        check_integers(text, bits, 2, lambda a, b, compare=compare: int(compare(see(a), see(b))), 32)


def test_setp_with_two_results_and_a_predicate():
    text = "setp.ne.u32 %p2, %b, 0; setp.lt.{}.u32 %p1|%p3, %a, 7, %p2; selp.b32 %d, 1, 0, %p1; selp.b32 %e, 2, 0, %p3; or.b32 %d, %d, %e;"
    for name, combine in (("and", operator.and_), ("or", operator.or_), ("xor", operator.xor)):
        check_integers("  .reg .b32 %e; " + text.format(name), 32, 2,
                       lambda a, b, combine=combine: combine(a < 7, b != 0) + 2 * combine(a >= 7, b != 0))  # fmt: skip


@pytest.mark.parametrize("bits", [32, 64])
def test_carries(bits):
    """Numbers of two limbs: sums, differences, and products with an addend, each limb with the carry of the lower one."""
    low = (1 << bits) - 1
    check_integers(
        f"add.cc.u{bits} %d, %a, %b; addc.u{bits} %d, %c, 5;", bits, 3, lambda a, b, c: c + 5 + (a + b > low)
    )
    check_integers(f"sub.cc.s{bits} %d, %a, %b; subc.s{bits} %d, %c, 5;", bits, 3, lambda a, b, c: c - 5 - (a < b))
    # a carry in and one out
    text = f"add.cc.u{bits} %d, %a, %a; addc.cc.u{bits} %d, %b, %c; addc.u{bits} %d, 0, 0;"
    check_integers(text, bits, 3, lambda a, b, c: b + c + (2 * a > low) > low)
    text = f"sub.cc.u{bits} %d, 0, %a; subc.cc.u{bits} %d, %b, %c; subc.u{bits} %d, 0, 0;"
    check_integers(text, bits, 3, lambda a, b, c: -(b - c - (a > 0) < 0))
    for part, product in (("lo", lambda a, b: a * b & low), ("hi", lambda a, b: a * b >> bits)):
        text = f"mad.{part}.cc.u{bits} %d, %a, %b, %c; addc.u{bits} %d, 0, 0;"
        check_integers(text, bits, 3, lambda a, b, c, product=product: product(a, b) + c > low)
        text = f"add.cc.u{bits} %d, %c, %c; madc.{part}.cc.u{bits} %d, %a, %b, %c; addc.u{bits} %d, %d, 0;"
        check_integers(text, bits, 3, lambda a, b, c, product=product: (
            (s := product(a, b) + c + (2 * c > low)) + (s > low)))  # fmt: skip


@pytest.mark.parametrize("kind", ["b16", "b32", "b64", "f32", "f64"])
def test_selp(kind):
    bits = int(kind[-2:])
    check_integers(f"setp.eq.b{bits} %p1, %c, 0; selp.{kind} %d, %a, %b, %p1;", bits, 3, lambda a, b, c: b if c else a)


# Conversions


def as_packed(f: Format):
    def expected(high: int, low: int) -> int:
        saturate = f.bits == 8
        return encode(f, decode(F32, high), saturate=saturate) << f.bits | encode(
            f, decode(F32, low), saturate=saturate
        )

    return expected


@pytest.mark.parametrize("narrow", ["bf16", "f16", "e4m3", "e5m2"])
def test_packing_two_floats(narrow):
    """The first operand becomes the upper half. Float8 saturates, and its NaN is 0x7f."""
    f = FORMATS[narrow]
    text = f"cvt.rn{'.satfinite' * (f.bits == 8)}.{narrow}x2.f32 %d, %a, %b;"
    out = F32 if f.bits == 16 else F16
    around = [(bits, 0x3F800000) for x in every(f) for bits in neighbourhood(f, x)]
    check(text, F32, grid(F32, 2) + around, as_packed(f), out)
    check(text, F32, rows(drawn(F32), 2, text), as_packed(f), out)


def every(f: Format) -> list[int]:
    return list(range(1 << f.bits)) if f.bits == 8 else specials(f)


def neighbourhood(f: Format, bits: int) -> list[int]:
    """A number of a narrow format in float32, the tie above it, and the neighbours of that tie."""
    x, y = decode(f, bits), decode(f, bits + 1 if bits + 1 < 1 << f.bits else bits)
    if x != x or y != y or abs(x) == math.inf or abs(y) == math.inf:
        return []
    tie = encode(F32, (Fraction(x) + Fraction(y)) / 2 or 0.0)
    return [encode(F32, x), tie, tie + 1, max(0, tie - 1)]


@pytest.mark.parametrize("narrow", ["e4m3", "e5m2"])
def test_unpacking_float8(narrow):
    f = FORMATS[narrow]
    expected = lambda x: encode(F16, decode(f, x & 255)) | encode(F16, decode(f, x >> 8)) << 16  # noqa: E731
    pairs = [(x | ((x * 7 + 3) % 256) << 8,) for x in range(256)]
    check(f"cvt.rn.f16x2.{narrow}x2 %d, %a;", F16, pairs, expected, F32)


@pytest.mark.parametrize(
    ("to", "source_kind", "mode"),
    [("f32", "bf16", ""), ("f32", "f16", ""), ("bf16", "f32", "rn"), ("f16", "f32", "rn"), ("f64", "f32", ""),
     ("f32", "f64", "rn"), ("f32", "f64", "rz"), ("f32", "f64", "rm"), ("f32", "f64", "rp"), ("f16", "f64", "rn"),
     ("bf16", "f64", "rn")],
)  # fmt: skip
def test_float_to_float(to, source_kind, mode):
    f, g = FORMATS[source_kind], FORMATS[to]
    text = f"cvt{mode and '.'}{mode}.{to}.{source_kind} %d, %a;"
    expected = lambda x: encode(g, decode(f, x), mode or "rn")  # noqa: E731
    ties = [(encode(f, (Fraction(decode(g, b)) + Fraction(decode(g, b + 1))) / 2 or 0.0) + d,) for b in specials(g)
            if abs(decode(g, b)) < 1e300 and abs(decode(g, b + 1)) < 1e300 for d in (0, 1)]  # fmt: skip
    check(text, f, grid(f, 1) + ties, expected, g)
    check(text, f, rows(drawn(f), 1, text), expected, g)


def integral(x: Number, mode: str) -> Number:
    if isinstance(x, float):
        return x
    whole = {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}[mode](x)
    return Fraction(whole) if whole else math.copysign(0.0, x)


@pytest.mark.parametrize("mode", ["rni", "rzi", "rmi", "rpi"])
@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_float_to_integral_float(mode, kind):
    f = FORMATS[kind]
    expected = lambda x: encode(f, integral(decode(f, x), mode))  # noqa: E731
    halves = [(encode(f, Fraction(n, 2)),) for n in range(-9, 10) if n]
    check(f"cvt.{mode}.{kind}.{kind} %d, %a;", f, grid(f, 1) + halves, expected)
    check(f"cvt.{mode}.{kind}.{kind} %d, %a;", f, rows(drawn(f), 1, f"cvt.{mode}.{kind}.{kind} %d, %a;"), expected)


@pytest.mark.parametrize("mode", ["rni", "rzi", "rmi", "rpi"])
@pytest.mark.parametrize("to", ["s32", "u32", "s64", "u64", "s16", "u16", "s8", "u8"])
@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_float_to_integer(mode, to, kind):
    """The result saturates. NaN gives 0, or only the top bit if either side has 64 bits."""
    f, bits = FORMATS[kind], int(to[1:])
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if to[0] == "s" else (0, (1 << bits) - 1)
    out = Format(max(16, bits), 1, 1, 0)

    def expected(x):
        value = integral(decode(f, x), mode)
        if value != value:
            made = 1 << (bits - 1) if kind == "f64" or bits == 64 else 0
            return signed(made, bits) % (1 << out.bits) if to[0] == "s" else made
        whole = (high if value > 0 else low) if abs(value) == math.inf else min(max(int(value), low), high)
        return whole % (1 << out.bits)

    edges = [encode(f, Fraction(n) + Fraction(d, 2)) for n in (low, high, low - 1, high + 1) for d in (-1, 1)]
    table = [(e,) for e in edges] + grid(f, 1)
    check(f"cvt.{mode}.{to}.{kind} %d, %a;", f, table, expected, out)
    check(f"cvt.{mode}.{to}.{kind} %d, %a;", f, rows(drawn(f), 1, f"cvt.{mode}.{to}.{kind} %d, %a;"), expected, out)


@pytest.mark.parametrize("kind", ["s16", "u16", "s32", "u32", "s64", "u64"])
@pytest.mark.parametrize("to", ["f32", "f64", "f16", "bf16"])
def test_integer_to_float(kind, to):
    bits, g = int(kind[1:]), FORMATS[to]
    for mode in ("rn", "rz", "rm", "rp") if to == "f32" and bits < 64 else ("rn",):
        check_integers(f"cvt.{mode}.{to}.{kind} %d, %a;", bits, 1,
                       lambda a, m=mode: encode(g, Fraction(signed(a, bits) if kind[0] == "s" else a) or 0.0, m), g.bits)  # fmt: skip


@pytest.mark.parametrize("bits", [32, 64])
def test_an_integer_to_bfloat16_rounds_once(bits):
    # Between two bfloat16 numbers; a further one decides, which the next wider type, float32 or float64, cannot resolve
    tie = (1 << bits - 2) + (1 << bits - 10)
    got = apply(f"cvt.rn.bf16.s{bits} %d, %a;", 16, (bits, [tie, tie + 1]))
    assert got == [encode(BF16, Fraction(tie)), encode(BF16, Fraction(tie + 1))]
    assert got[0] != got[1]


@pytest.mark.parametrize("source_kind", ["s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64"])
@pytest.mark.parametrize("to", ["s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64"])
def test_integer_to_integer(source_kind, to):
    bits, out = int(source_kind[1:]), int(to[1:])
    width, wide = max(16, bits), max(16, out)

    def value(a):
        return signed(a, bits) if source_kind[0] == "s" else a % (1 << bits)

    def extended(x):
        return signed(x, out) if to[0] == "s" else x % (1 << out)

    low, high = (-(1 << (out - 1)), (1 << (out - 1)) - 1) if to[0] == "s" else (0, (1 << out) - 1)
    check_integers(f"cvt.{to}.{source_kind} %d, %a;", width, 1, lambda a: extended(value(a)), wide)
    check_integers(f"cvt.sat.{to}.{source_kind} %d, %a;", width, 1, lambda a: min(max(value(a), low), high), wide)


def test_saturation_to_one():
    def expected(x):
        value = decode(F32, x)
        if value != value or value < 0:
            return 0
        return encode(F32, min(value, Fraction(1)))

    table = [row for row in grid(F32, 1) if row[0] != F32.sign]  # PTX does not define the sign of a zero
    check("cvt.sat.f32.f32 %d, %a;", F32, table, expected)


def test_conversions_that_flush():
    check("cvt.ftz.f64.f32 %d, %a;", F32, grid(F32, 1), lambda a: encode(F64, decode(F32, flush(F32, a))), F64)
    check("cvt.rn.ftz.f32.f64 %d, %a;", F64, [(encode(F64, Fraction(1, 2**n)),) for n in range(120, 150)],
          lambda a: flush(F32, encode(F32, decode(F64, a))), F32)  # fmt: skip


# Integers


@pytest.mark.parametrize("kind", ["s16", "u16", "s32", "u32", "s64", "u64"])
def test_integer_arithmetic(kind):
    bits = int(kind[1:])
    see = (lambda x: signed(x, bits)) if kind[0] == "s" else (lambda x: x)

    def quotient(a, b):
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)

    for name, expected in {
        "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul.lo": lambda a, b: a * b,
        "mul.hi": lambda a, b: (a * b) >> bits, "min": min, "max": max,
    }.items():  # fmt: skip
        check_integers(f"{name}.{kind} %d, %a, %b;", bits, 2, lambda a, b, e=expected: e(see(a), see(b)))
    for name, expected in {"div": quotient, "rem": lambda a, b: a - quotient(a, b) * b}.items():
        text = f"or.b{bits} %b, %b, 1; {name}.{kind} %d, %a, %b;"  # PTX does not define division by zero
        check_integers(text, bits, 2, lambda a, b, e=expected: e(see(a), see(b | 1)))
    check_integers(f"mad.lo.{kind} %d, %a, %b, %c;", bits, 3, lambda a, b, c: a * b + c)
    check_integers(f"mad.hi.{kind} %d, %a, %b, %c;", bits, 3, lambda a, b, c: (see(a) * see(b) >> bits) + see(c))
    if bits < 64:
        check_integers(f"mul.wide.{kind} %d, %a, %b;", bits, 2, lambda a, b: see(a) * see(b), 2 * bits)
        wider = f".reg .b{2 * bits} %f; cvt.{kind[0]}{2 * bits}.{kind} %f, %c; mad.wide.{kind} %d, %a, %b, %f;"
        check_integers(wider, bits, 3, lambda a, b, c: see(a) * see(b) + see(c), 2 * bits)
    if kind[0] == "s":
        check_integers(f"neg.{kind} %d, %a;", bits, 1, lambda a: -see(a))
        check_integers(f"abs.{kind} %d, %a;", bits, 1, lambda a: abs(see(a)))
    if kind == "s32":
        check_integers("max.relu.s32 %d, %a, %b;", bits, 2, lambda a, b: max(see(a), see(b), 0))
        check_integers("min.relu.s32 %d, %a, %b;", bits, 2, lambda a, b: max(min(see(a), see(b)), 0))


@pytest.mark.parametrize("kind", ["s16x2", "u16x2"])
def test_integer_pairs(kind):
    def see(x):
        return signed(x, 16) if kind[0] == "s" else x

    for name, one in {"add": lambda a, b: a + b, "min": min, "max": max}.items():

        def both(a, b, one=one):
            low, high = (one(see(a >> shift & 0xFFFF), see(b >> shift & 0xFFFF)) & 0xFFFF for shift in (0, 16))
            return high << 16 | low

        check_integers(f"{name}.{kind} %d, %a, %b;", 32, 2, both)
    for text in (f"sub.{kind}", f"mul.lo.{kind}", "add.u8x4"):
        with pytest.raises(ptx.PtxError, match=rf"unknown instruction '{text}' \(its .{text.rpartition('.')[2]} is"):
            apply(f"{text} %d, %a, %b;", 32, (32, [1]), (32, [1]))


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_bits(bits):
    amount = "" if bits == 32 else f".reg .b32 %n; cvt.u32.u{bits} %n, %b;"
    shift = "%b" if bits == 32 else "%n"

    def count(b):
        return min(b % (1 << 32), bits)

    check_integers(f"{amount} shl.b{bits} %d, %a, {shift};", bits, 2, lambda a, b: a << count(b))
    check_integers(f"{amount} shr.u{bits} %d, %a, {shift};", bits, 2, lambda a, b: a >> count(b))
    check_integers(f"{amount} shr.s{bits} %d, %a, {shift};", bits, 2, lambda a, b: signed(a, bits) >> count(b))
    for name, expected in {"and": operator.and_, "or": operator.or_, "xor": operator.xor}.items():
        check_integers(f"{name}.b{bits} %d, %a, %b;", bits, 2, expected)
    check_integers(f"not.b{bits} %d, %a;", bits, 1, lambda a: ~a)
    if bits > 16:
        check_integers(f"popc.b{bits} %d, %a;", bits, 1, lambda a: a.bit_count(), 32)
        check_integers(f"clz.b{bits} %d, %a;", bits, 1, lambda a: bits - a.bit_length(), 32)


def test_funnel_shifts():
    for clamp, amount in (("wrap", lambda c: c & 31), ("clamp", lambda c: min(c, 32))):
        check_integers(
            f"shf.l.{clamp}.b32 %d, %a, %b, %c;", 32, 3, lambda a, b, c, n=amount: ((b << 32 | a) << n(c)) >> 32
        )
        check_integers(f"shf.r.{clamp}.b32 %d, %a, %b, %c;", 32, 3, lambda a, b, c, n=amount: (b << 32 | a) >> n(c))


@pytest.mark.parametrize("bits", [32, 64])
def test_bit_fields(bits):
    def insert(a, b, start, length):
        out = b
        for i in range(length & 255):
            if (start & 255) + i < bits:
                out = out & ~(1 << ((start & 255) + i)) | ((a >> i & 1) << ((start & 255) + i))
        return out

    def extract(a, start, length, kind):
        start, length, top = start & 255, length & 255, bits - 1
        sign = 0 if kind == "u" or not length else a >> min(start + length - 1, top) & 1
        return sum((a >> (start + i) & 1 if i < length and start + i <= top else sign) << i for i in range(bits))

    narrow = "" if bits == 32 else ".reg .b32 %m; .reg .b32 %n; cvt.u32.u64 %m, {}; cvt.u32.u64 %n, {};"
    m, n = ("{}", "{}") if bits == 32 else ("%m", "%n")
    text = narrow.format("%c", "%e") + f" bfi.b{bits} %d, %a, %b, {m.format('%c')}, {n.format('%e')};"
    check_integers(text, bits, 4, insert)
    for kind in "us":
        text = narrow.format("%b", "%c") + f" bfe.{kind}{bits} %d, %a, {m.format('%b')}, {n.format('%c')};"
        check_integers(text, bits, 3, lambda a, b, c, k=kind: extract(a, b, c, k))


@pytest.mark.parametrize(
    ("table", "expected"),
    [(0xEA, lambda a, b, c: a & b | c), (0x6A, lambda a, b, c: a & b ^ c), (0xD2, lambda a, b, c: a ^ ~b & c)],
)
def test_functions_of_three_bits(table, expected):
    check_integers(f"lop3.b32 %d, %a, %b, %c, {table};", 32, 3, lambda a, b, c: expected(a, b, c) % 2**32)


def test_byte_permutation():
    """Every nibble selects a byte of {b, a}, or fills the byte with its sign."""

    def expected(a, b, c):
        both, out = b << 32 | a, 0
        for i in range(4):
            nibble = c >> (4 * i) & 15
            byte = both >> (8 * (nibble & 7)) & 255
            out |= (byte if nibble < 8 else 255 * (byte >> 7)) << (8 * i)
        return out

    check_integers("prmt.b32 %d, %a, %b, %c;", 32, 3, expected)
    a, b = 0x80017F02, 0xFF00C310
    selectors = [n * 0x1111 for n in range(16)] + [0x3210, 0x7654, 0xFEDC, 0x5410, 0x7632]
    got = apply("prmt.b32 %d, %a, %b, %c;", 32, (32, [a]), (32, [b]), (32, selectors))
    assert got == [expected(a, b, c) for c in selectors]


def test_packing_moves():
    check_integers("mov.b32 %d, {%a, %b};", 16, 2, lambda a, b: a | b << 16, 32)
    check_integers("mov.b64 %d, {%a, %b};", 32, 2, lambda a, b: a | b << 32, 64)
    check_integers("mov.b64 %d, {%a, %b, %c, %e};", 16, 4, lambda a, b, c, e: a | b << 16 | c << 32 | e << 48, 64)
    check_integers("mov.b32 {%h1, %d}, %a;", 32, 1, lambda a: a >> 16, 16)
    check_integers("mov.b64 {%d, _}, %a;", 64, 1, lambda a: a, 32)


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_signs(kind):
    f = FORMATS[kind]
    check(f"neg.{kind} %d, %a;", f, grid(f, 1), lambda a: a ^ f.sign)
    check(f"abs.{kind} %d, %a;", f, grid(f, 1), lambda a: a & ~f.sign)
    check(f"copysign.{kind} %d, %a, %b;", f, grid(f, 2), lambda a, b: a & f.sign | b & ~f.sign)


def test_packed_signs():
    for kind in ("bf16x2", "f16x2"):
        check_integers(f"neg.{kind} %d, %a;", 32, 1, lambda a: a ^ 0x80008000)
        check_integers(f"abs.{kind} %d, %a;", 32, 1, lambda a: a & 0x7FFF7FFF)


# Functions for which PTX gives an error bound

TINY = 2.0**-126


def relative(bound):
    return lambda x, exact: bound * abs(exact)


APPROXIMATE = {
    # name: function, domain, the error allowed, {operand: result} as documented
    "ex2.approx.f32": (lambda x: 2.0**x, (-126.0, 127.875), lambda x, y: 2.0**-22 * y,
                       {"-inf": "0", "inf": "inf", "128": "inf", "0": "1", "-0": "1", "nan": "nan"}),
    "lg2.approx.f32": (lambda x: math.log2(x), (TINY, 3e38), lambda x, y: 2.0**-22 * max(1, abs(y)),
                       {"-inf": "nan", "-1": "nan", "0": "-inf", "-0": "-inf", "inf": "inf", "nan": "nan"}),
    "rcp.approx.f32": (lambda x: 1 / x, (TINY, 2.0**126), relative(2.0**-23),
                       {"-inf": "-0", "-0": "-inf", "0": "inf", "inf": "0", "nan": "nan"}),
    "rsqrt.approx.f32": (lambda x: 1 / math.sqrt(x), (TINY, 3e38), relative(2.0**-22.9),
                         {"-inf": "nan", "-1": "nan", "-0": "-inf", "0": "inf", "inf": "0", "nan": "nan"}),
    "sqrt.approx.f32": (math.sqrt, (TINY, 3e38), relative(2.0**-23),
                        {"-inf": "nan", "-1": "nan", "-0": "-0", "0": "0", "inf": "inf", "nan": "nan"}),
    "sin.approx.f32": (math.sin, (-3.1415, 3.1415), lambda x, y: 2.0**-20.5,
                       {"-inf": "nan", "inf": "nan", "-0": "-0", "0": "0", "nan": "nan"}),
    "cos.approx.f32": (math.cos, (-3.1415, 3.1415), lambda x, y: 2.0**-20.5,
                       {"-inf": "nan", "inf": "nan", "-0": "1", "0": "1", "nan": "nan"}),
    "tanh.approx.f32": (math.tanh, (-20.0, 20.0), relative(2.0**-11),
                        {"-inf": "-1", "inf": "1", "-0": "-0", "0": "0", "nan": "nan"}),
}  # fmt: skip


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


@pytest.mark.parametrize("ftz", [False, True], ids=["", "ftz"])
@pytest.mark.parametrize("name", APPROXIMATE)
def test_approximate_functions(name, ftz):
    function, (low, high), allowed, special = APPROXIMATE[name]
    if ftz and name.startswith("tanh"):
        pytest.skip("tanh.approx has no .ftz")
    text = f"{name.replace('.f32', '.ftz.f32') if ftz else name} %d, %a;"
    assert apply(text, 32, (32, [f32(x) for x in special])) == [f32(y) for y in special.values()]
    if ftz:
        zero = {"ex2": "1", "cos": "1", "rcp": "inf", "rsqrt": "inf", "lg2": "-inf"}.get(name.split(".")[0], "0")
        assert apply(text, 32, (32, [1, (1 << 23) - 1])) == [f32(zero)] * 2

    bits = [f32(x) for (x,) in rows(drawn_real(low, high), 1, text)]
    for b, got in zip(bits, apply(text, 32, (32, bits)), strict=True):
        x, y = float(decode(F32, b)), float(decode(F32, got))
        exact = function(x)  # in float64, which is far more accurate than the bound
        if not ftz or abs(exact) > TINY:
            assert abs(y - exact) <= allowed(x, exact), (text, x, y)


@pytest.mark.parametrize(("name", "exact"), [("rcp", lambda x: 1 / x), ("rsqrt", lambda x: 1 / x**0.5)])
def test_gross_approximations_of_doubles(name, exact):
    """They read the upper half of the operand, and write the upper half of the result; denormals are zeros."""
    xs = [1.0, 3.0, 7e-300, 1.2345678901234567, 2.0**-1022, 1e300]
    bits = [encode(F64, Fraction(x)) for x in xs]
    got = apply(f"{name}.approx.ftz.f64 %d, %a;", 64, (64, bits))
    for x, b, y in zip(xs, bits, got, strict=True):
        assert y & 0xFFFFFFFF == 0
        assert y == apply(f"{name}.approx.ftz.f64 %d, %a;", 64, (64, [b & ~0xFFFFFFFF | 0x12345678]))[0]
        assert float(decode(F64, y)) == pytest.approx(exact(x), rel=2.0**-19) or exact(x) < 2.0**-1022
    special = [0, F64.sign, 5, F64.largest + 1, F64.nan]
    expected = [F64.largest + 1, F64.sign | F64.largest + 1, F64.largest + 1, 0, 0x7FFFFFFF00000000]
    assert apply(f"{name}.approx.ftz.f64 %d, %a;", 64, (64, special)) == expected


@pytest.mark.parametrize("form", ["full", "approx", "full.ftz"])
def test_approximate_division(form):
    text = f"div.{form}.f32 %d, %a, %b;"
    table = [(f32(a), f32(-b)) for a, b in rows(drawn_real(2.0**-60, 2.0**60), 2, text)]
    for (a, b), got in zip(table, apply(text, 32, *((32, c) for c in columns(table))), strict=True):
        exact = decode(F32, a) / decode(F32, b)
        assert abs(decode(F32, got) - exact) <= 2 * Fraction(1, 2**23) * abs(exact)

    if form == "approx":
        big = f32(2.0**127)
        got = apply(text, 32, (32, [f32(1), f32("-1"), f32("inf"), f32("nan")]), (32, [big]))
        assert got == [0, F32.sign, F32.nan, F32.nan]


# Memory


def test_vector_loads_and_stores():
    x = np.arange(256, dtype=np.uint8)
    for width, count in [(8, 2), (8, 4), (16, 2), (16, 4), (32, 2), (32, 4), (32, 8), (64, 2), (64, 4)]:
        letter = {8: "h", 16: "h", 32: "r", 64: "rd"}[width]
        registers = [f"%{letter}{4 + i}" for i in range(count)]
        size = width * count // 8
        body = f"  mul.wide.u32 %rd10, %r0, {size};\n  add.s64 %rd11, %rd0, %rd10;\n  add.s64 %rd12, %rd1, %rd10;\n"
        vector = "{" + ", ".join(registers) + "}"
        turned = "{" + ", ".join(registers[::-1]) + "}"
        body += f"  ld.global.v{count}.b{width} {vector}, [%rd11];\n  st.global.v{count}.b{width} [%rd12], {turned};\n"
        y = result(256, np.uint8)
        run(body, [source(x), y], 256 // size)
        whole = x.reshape(-1, count, width // 8)
        assert np.array_equal(values(y, np.uint8), whole[:, ::-1].reshape(-1))


@pytest.mark.parametrize(("kind", "out"), [("s8", 32), ("u8", 32), ("b8", 16), ("s16", 32), ("u16", 64), ("s16", 64), ("s32", 64), ("u32", 64), ("s8", 16)])  # fmt: skip
def test_narrow_loads_extend(kind, out):
    bits, stored = int(kind[1:]), max(16, out)
    data = np.array(integers(bits), np.uint64).astype(f"u{bits // 8}")
    y = result(len(data), f"u{stored // 8}")
    letter = {16: "h", 32: "r", 64: "rd"}[stored]
    body = f"""
  mul.wide.u32 %rd10, %r0, {bits // 8};
  add.s64 %rd11, %rd0, %rd10;
  ld.global.{kind} %{letter}5, [%rd11];
  mul.wide.u32 %rd10, %r0, {stored // 8};
  add.s64 %rd12, %rd1, %rd10;
  st.global.b{stored} [%rd12], %{letter}5;
"""
    run(body, [source(data), y], len(data))
    wanted = [signed(int(v), bits) % (1 << stored) if kind[0] == "s" else int(v) for v in data]
    assert [int(v) for v in values(y, f"u{stored // 8}")] == wanted


def test_narrow_stores_keep_the_low_bits():
    y = result(32, np.uint8)
    run("  cvt.u64.u32 %rd5, %r0;\n  add.s64 %rd6, %rd1, %rd5;\n  add.s32 %r1, %r0, 4080;\n  st.global.b8 [%rd6], %r1;\n",
        [source(np.zeros(1)), y])  # fmt: skip
    assert values(y, np.uint8).tolist() == [(i + 4080) % 256 for i in range(32)]


@pytest.mark.parametrize(
    ("op", "kind", "combine"),
    [("add", "u32", operator.add), ("min", "s32", min), ("max", "u32", max), ("and", "b32", operator.and_),
     ("or", "b32", operator.or_), ("xor", "b32", operator.xor), ("exch", "b32", lambda old, new: new)],
)  # fmt: skip
@pytest.mark.parametrize("space", ["shared", "global"])
def test_atomics(op, kind, combine, space):
    """All threads add to one word: the result includes all of them, and each thread got an intermediate result."""
    base = "cell" if space == "shared" else "%rd1"
    first = f"  setp.eq.u32 %p1, %r0, 0;\n  mov.u32 %r3, 12;\n  @%p1 st.{space}.b32 [{base}], %r3;\n  bar.sync 0;\n"
    body = first + f"  add.s32 %r4, %r0, 3;\n  atom.{space}.{op}.{kind} %r5, [{base}], %r4;\n  bar.sync 0;\n"
    place = "  mul.wide.u32 %rd10, %r0, 4;\n  add.s64 %rd11, %rd0, %rd10;\n  st.global.b32 [%rd11], %r5;\n"
    old, cell = result(32, np.uint32, "old"), result(1, np.uint32, "cell")
    finish = "  @%p1 ld.shared.b32 %r6, [cell];\n  @%p1 st.global.b32 [%rd1], %r6;\n" if space == "shared" else ""
    run(body + place + finish, [old, cell], declarations="  .shared .align 4 .b8 cell[4];")
    seen, total = [], 12
    for i in range(32):
        seen.append(total)
        total = combine(total, i + 3)
    assert values(cell, np.uint32).tolist() == [total]
    assert sorted(values(old, np.uint32).tolist()) == sorted(seen)


def test_compare_and_swap_and_reductions():
    head = "  setp.eq.u32 %p1, %r0, 0;\n  mov.u32 %r3, 5;\n  @%p1 st.global.b32 [%rd0], %r3;\n  bar.sync 0;\n"
    y = result(1, np.uint32)
    run(head + "  atom.global.cas.b32 %r5, [%rd0], %r0, 99;\n", [y])
    assert values(y, np.uint32).tolist() == [99]
    y = result(1, np.float32)
    one = "  mov.b32 %r4, 0f3F800000;\n"
    run(head.replace("5;", "0f40000000;", 1) + one + "  red.global.add.f32 [%rd0], %r4;\n", [y])
    assert values(y, np.float32).tolist() == [34.0]
    y = result(1, np.uint32)
    run(head.replace("5;", "1;", 1) + "  mov.u32 %r4, 1;\n  red.global.add.f32 [%rd0], %r4;\n", [y])
    assert values(y, np.uint32).tolist() == [0]  # global atomics flush denormals


def test_atomics_on_memory_that_nothing_wrote():
    from codegen.interpret.machine import InterpretError

    with pytest.raises(InterpretError, match="atomic on element 0 of 'y', which nothing has written"):
        run("  red.global.add.u32 [%rd0], %r0;\n", [result(1, np.uint32)])


# Warps


def shuffled(mode: str, lane: int, b: int, c: int) -> tuple[int, bool]:
    """The source lane and the predicate, from PTX's pseudocode."""
    clamp, segment = c & 31, c >> 8 & 31
    top, bottom = lane & segment | clamp & ~segment, lane & segment
    place = {"up": lane - b, "down": lane + b, "bfly": lane ^ b, "idx": bottom | b & ~segment}[mode]
    good = place >= top if mode == "up" else place <= top
    return (place if good else lane), good


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
@pytest.mark.parametrize("b", [0, 1, 5, 16, 31])
@pytest.mark.parametrize("width", [32, 16, 8])
def test_shuffles(mode, b, width):
    c = (32 - width) << 8 | (0 if mode == "up" else 31)
    body = f"  add.s32 %r1, %r0, 100;\n  shfl.sync.{mode}.b32 %r2|%p1, %r1, {b}, {c}, -1;\n"
    body += "  selp.b32 %r3, 1000, 0, %p1;\n  add.s32 %r2, %r2, %r3;\n  st.global.b32 [%rd16], %r2;\n"
    wanted = [shuffled(mode, i % 32, b, c) for i in range(64)]
    assert words(64, 64, body) == [100 + i // 32 * 32 + place + 1000 * good for i, (place, good) in enumerate(wanted)]


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
@pytest.mark.parametrize("clamp", [0, 5, 12, 30])
def test_shuffles_that_are_clamped(mode, clamp):
    """A source lane beyond the clamp gives the lane's own value; the offset may differ from lane to lane."""
    body = "  add.s32 %r1, %r0, 100;\n  and.b32 %r4, %r0, 7;\n"
    body += f"  shfl.sync.{mode}.b32 %r2|%p1, %r1, %r4, {16 << 8 | clamp}, -1;\n"
    body += "  selp.b32 %r3, 1000, 0, %p1;\n  add.s32 %r2, %r2, %r3;\n  st.global.b32 [%rd16], %r2;\n"
    wanted = [shuffled(mode, i, i & 7, 16 << 8 | clamp) for i in range(32)]
    assert words(32, 32, body) == [100 + place + 1000 * good for place, good in wanted]


def test_votes():
    body = "  setp.lt.u32 %p1, %r0, {};\n  vote.sync.{} {}, %p1, -1;\n  {}st.global.b32 [%rd16], %r5;\n"
    for limit in (0, 5, 40, 64):
        ballots = [sum((w * 32 + i < limit) << i for i in range(32)) for w in (0, 1)]
        assert words(64, 64, body.format(limit, "ballot.b32", "%r5", "")) == [b for b in ballots for _ in range(32)]
        for mode, test in (("all", lambda b: b == 2**32 - 1), ("any", bool), ("uni", lambda b: b in (0, 2**32 - 1))):
            got = words(64, 64, body.format(limit, f"{mode}.pred", "%p2", "selp.b32 %r5, 1, 0, %p2; "))
            assert got == [int(test(b)) for b in ballots for _ in range(32)]


def test_control_flow_reconverges():
    """Each lane loops as often as its number, then all lanes meet at a shuffle."""
    body = """
  mov.u32 %r1, 0;
  mov.u32 %r2, 0;
again:
  setp.ge.u32 %p1, %r1, %r0;
  @%p1 bra done;
  add.s32 %r1, %r1, 1;
  add.s32 %r2, %r2, %r1;
  bra again;
done:
  shfl.sync.idx.b32 %r3, %r2, 31, 31, -1;
  add.s32 %r2, %r2, %r3;
  st.global.b32 [%rd16], %r2;
"""
    assert words(body=body) == [i * (i + 1) // 2 + 496 for i in range(32)]
