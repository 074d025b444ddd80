"""Integers, memory and warps: the interpreter's instructions one by one."""

import operator

import numpy as np
import pytest
from ptx_numbers import FORMATS, check, check_integers, grid, integers, signed
from ptx_running import apply, result, run, source, values, words

from codegen.interpret import ptx

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
