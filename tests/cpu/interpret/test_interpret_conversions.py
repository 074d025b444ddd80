"""Conversions between numbers, and functions for which PTX gives a bound, as the interpreter computes them."""

import math
from fractions import Fraction

import pytest
from ptx_numbers import (
    BF16,
    F16,
    F32,
    F64,
    FORMATS,
    Format,
    check,
    check_integers,
    columns,
    decode,
    drawn,
    drawn_real,
    encode,
    every,
    f32,
    flush,
    grid,
    integral,
    neighbourhood,
    relative,
    rows,
    signed,
    specials,
)
from ptx_running import apply

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


# Functions for which PTX gives an error bound

TINY = 2.0**-126


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
