"""Arithmetic and comparisons of the interpreter, against exact results that are rounded as the formats' definitions say."""

import itertools
import math
import operator
from fractions import Fraction

import pytest
from ptx_numbers import (
    BF16,
    F16,
    F32,
    F64,
    FORMATS,
    Format,
    add,
    check,
    check_integers,
    columns,
    decode,
    divide,
    drawn,
    encode,
    flush,
    grid,
    multiply,
    negate,
    rows,
    signed,
    specials,
)
from ptx_running import apply

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
