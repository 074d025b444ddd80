"""ldmatrix, stmatrix and mma.sync against the tables of fragments in the PTX ISA, written out here lane by lane; and
kernels of a GEMM with one fault each."""

import functools
import re

import gemm_cases
import ml_dtypes
import numpy as np
import pytest
from ptx_running import edited, kernel_of, result, run, source, values

from codegen.interpret.machine import InterpretError
from codegen.interpret.ptx import PtxError
from codegen.runtime.compiled import interpreted, kernels

LANES = range(32)


def fragment(items: int, row, column) -> list[list[tuple[int, int]]]:
    """The (row, column) of each lane's elements, from the ISA's formulas in groupID, threadID_in_group and i."""
    return [[(row(lane >> 2, lane % 4, i), column(lane >> 2, lane % 4, i)) for i in range(items)] for lane in LANES]


C = fragment(4, lambda g, t, i: g if i < 2 else g + 8, lambda g, t, i: t * 2 + (i & 1))
# The instruction; its a (M x K) and b (K x N); the bits of an element
SHAPES = {
    "m16n8k16": (
        fragment(8, lambda g, t, i: g if i < 2 or 4 <= i < 6 else g + 8, lambda g, t, i: t * 2 + (i & 1) + (8 if i >= 4 else 0)),
        fragment(4, lambda g, t, i: t * 2 + (i & 1) + (8 if i >= 2 else 0), lambda g, t, i: g),
        16, 16,
    ),
    "m16n8k8": (
        fragment(4, lambda g, t, i: g if i in (0, 2) else g + 8, lambda g, t, i: t if i in (0, 1) else t + 4),
        fragment(2, lambda g, t, i: t if i == 0 else t + 4, lambda g, t, i: g),
        8, 32,
    ),
    "m16n8k32": (
        fragment(16, lambda g, t, i: g if i < 4 or 8 <= i < 12 else g + 8, lambda g, t, i: t * 4 + (i & 3) + (16 if i >= 8 else 0)),
        fragment(8, lambda g, t, i: t * 4 + (i & 3) + (16 if i >= 4 else 0), lambda g, t, i: g),
        32, 8,
    ),
}  # fmt: skip
INSTRUCTIONS = {
    "bf16": ("m16n8k16", "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"),
    "f16": ("m16n8k16", "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"),
    "tf32": ("m16n8k8", "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"),
    "s8": ("m16n8k32", "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32"),
    "e4m3": ("m16n8k32", "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32"),
    "e5m2": ("m16n8k32", "mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e5m2.f32"),
}


FLOAT8 = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}


def bits_of(kind: str, matrix: np.ndarray) -> np.ndarray:
    """The elements as bits of the instruction's operands."""
    if kind == "bf16":
        return (matrix.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if kind == "f16":
        return matrix.astype(np.float16).view(np.uint16)
    if kind in FLOAT8:
        return matrix.astype(FLOAT8[kind]).view(np.uint8)
    return matrix.astype(np.float32).view(np.uint32) if kind == "tf32" else matrix.astype(np.int8).view(np.uint8)


def packed(table, bits: np.ndarray, width: int) -> np.ndarray:
    """Each lane's registers: (lanes, words), the lowest bits first."""
    per_word, found = 32 // width, []
    for lane in table:
        items = [int(bits[place]) for place in lane]
        words = [items[i : i + per_word] for i in range(0, len(items), per_word)]
        found.append([sum(v << (width * i) for i, v in enumerate(word)) for word in words])
    return np.array(found, np.uint32)


def multiplied(kind: str, a: np.ndarray, b: np.ndarray, c: np.ndarray, kind_b: str = "") -> np.ndarray:
    """d of a, b (of another kind, if one is named) and c, one matrix each for a warp: (warps, rows, columns)."""
    shape, name = INSTRUCTIONS[kind]
    table_a, table_b, _, width = SHAPES[shape]
    kind_b = kind_b or kind
    name = name.replace(f"{kind}.{kind}", f"{kind}.{kind_b}")
    whole = [np.concatenate([packed(table_a, bits_of(kind, x), width) for x in a])]
    whole.append(np.concatenate([packed(table_b, bits_of(kind_b, x), width) for x in b]))
    dtype = np.int32 if kind == "s8" else np.float32
    whole.append(np.concatenate([[[x[place] for place in lane] for lane in C] for x in c]).astype(dtype))
    lines = []
    for k, words in enumerate((4, 2, 4)):
        lines += [f"mul.wide.u32 %rd10, %r0, {4 * words};", f"add.s64 %rd10, %rd{k}, %rd10;"]
        lines += [f"ld.global.b32 %r{10 + 4 * k + w}, [%rd10+{4 * w}];" for w in range(words)]
    registers = "{{%r{}, %r{}, %r{}, %r{}}}".format
    lines += [
        f"{name} {registers(24, 25, 26, 27)}, {registers(10, 11, 12, 13)}, {{%r14, %r15}}, {registers(18, 19, 20, 21)};"
    ]
    lines += ["mul.wide.u32 %rd10, %r0, 16;", "add.s64 %rd10, %rd3, %rd10;"]
    lines += [f"st.global.b32 [%rd10+{4 * w}], %r{24 + w};" for w in range(4)]
    out = result(whole[2].size, dtype)
    arrays = [source(x, name) for x, name in zip(whole, "abc", strict=True)]
    run("\n".join(lines), [*arrays, out], threads=32 * len(a))
    held, found = values(out, dtype).reshape(len(a), 32, 4), np.zeros((len(a), 16, 8), dtype)
    for lane, places in enumerate(C):
        for i, place in enumerate(places):
            found[:, *place] = held[:, lane, i]
    return found


def drawn(kind: str, most: int, warps: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    k, rng = SHAPES[INSTRUCTIONS[kind][0]][2], np.random.default_rng(len(kind))
    return tuple(rng.integers(-most, most, (warps, *s)) for s in ((16, k), (k, 8), (16, 8)))  # type: ignore[return-value]


@pytest.mark.parametrize("kind", INSTRUCTIONS)
def test_mma_of_integers_is_exact(kind):
    a, b, c = drawn(kind, {"s8": 128, "e4m3": 16, "e5m2": 8}.get(kind, 64))  # the type holds all of them
    np.testing.assert_array_equal(multiplied(kind, a, b, c), (a @ b + c).astype(np.float64))


@pytest.mark.parametrize("kind", ["bf16", "f16", "tf32"])
def test_mma_sums_exact_products_in_order(kind):
    """In the documented order; on a GPU the last bits may differ."""
    a, b, c = (x / 64 for x in drawn(kind, 200))
    bits = {"bf16": 16, "f16": 16, "tf32": 13}[kind]
    if kind == "f16":
        a, b = (x.astype(np.float16).astype(np.float32) for x in (a, b))
    else:  # the type can hold them
        a, b = ((x.astype(np.float32).view(np.uint32) >> bits << bits).view(np.float32) for x in (a, b))
    want = (c * 3e4).astype(np.float32)
    got = multiplied(kind, a, b, want)
    for k in range(a.shape[2]):
        want = want + (a[:, :, k, None].astype(np.float64) * b[:, k, None, :]).astype(np.float32)
    np.testing.assert_array_equal(got, want)


def test_mma_of_two_kinds_of_float8():
    a, b, c = drawn("e4m3", 8)
    np.testing.assert_array_equal(multiplied("e5m2", a, 2 * b, c, "e4m3"), a @ (2 * b) + c)
    np.testing.assert_array_equal(multiplied("e4m3", 2 * a, b / 1024, c, "e5m2"), 2 * a @ (b / 1024) + c)


def test_tf32_operands_lack_their_last_bits():
    a, b, c = (x.astype(np.float32) for x in drawn("tf32", 8))
    dirty = (a.view(np.uint32) | 0x1FFF).view(np.float32)  # the thirteen bits that tf32 lacks
    np.testing.assert_array_equal(multiplied("tf32", dirty, b, c), a @ b + c)


def test_mma_of_infinities_and_integers_that_wrap():
    a, b, c = (x.astype(np.float32) for x in drawn("bf16", 8))
    a[0, 3, 5], b[0, 5, 2], b[0, 5, 4] = np.inf, 0, 1
    found = multiplied("bf16", a, b, c)
    assert found[0, 3, 4] == np.inf
    assert found.view(np.uint32)[0, 3, 2] == 0x7FFFFFFF  # infinity times zero, with NVIDIA's bits
    a, b, c = drawn("s8", 128)
    c[:] = 2**31 - 1
    wrapped = (a @ b + c + 2**31) % 2**32 - 2**31
    np.testing.assert_array_equal(multiplied("s8", a, b, c), wrapped)


@pytest.mark.parametrize(
    "line",
    ["mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%r1, %r2, %r3, %r4}, {%r1, %r2}, {%r1}, {%r1, %r2, %r3, %r4};",
     "mma.sync.aligned.m16n8k16.row.row.f32.bf16.bf16.f32 {%r1, %r2, %r3, %r4}, {%r1, %r2, %r3, %r4}, {%r1, %r2}, {%r1, %r2, %r3, %r4};",
     "mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.s8.s32 {%r1, %r2, %r3, %r4}, {%r1, %r2, %r3, %r4}, {%r1, %r2}, {%r1, %r2, %r3, %r4};",
     "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%r1, %r2}, {%r1, %r2, %r3, %r4}, {%r1, %r2}, {%r1, %r2, %r3, %r4};",
     "ldmatrix.sync.aligned.m8n8.x3.shared.b16 {%r1, %r2, %r3}, [%r4];", "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r1}, [%r4];",
     "ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%r1, %r2}, [%r4];", "ldmatrix.sync.aligned.m8n8.x1.b16 {%r1}, [%r4];",
     "stmatrix.sync.aligned.m8n8.x3.shared.b16 [%r4], {%r1, %r2, %r3};", "stmatrix.sync.aligned.m16n8.x1.shared.b8 [%r4], {%r1};",
     "cvt.rna.satfinite.tf32.f32 %r1, %r2;", "cvt.rz.tf32.f32 %r1, %r2;"],
)  # fmt: skip
def test_forms_that_are_not_known(line):
    with pytest.raises(PtxError, match=r"unknown (instruction|form)"):
        kernel_of("  " + line, 1)


# ldmatrix: 64 rows of 16 bytes in shared memory (and room for one more), with numbered halves; lanes give the addresses
# of shuffled rows

ROWS = 64
BUFFER = f"  .shared .align 16 .b8 buffer[{16 * ROWS + 16}];"
FILL = """
  mov.u32 %r8, buffer;
  shl.b32 %r1, %r0, 4;
  add.u32 %r1, %r1, %r8;
  shl.b32 %r2, %r0, 19;
  mad.lo.u32 %r2, %r0, 8, %r2;
  add.u32 %r2, %r2, 65536;
"""  # lane l has the halves 8l, 8l + 1, ... , two in a word
for _word in range(4):
    FILL += f"  add.u32 %r3, %r2, {2 * _word * 65537};\n  st.shared.b32 [%r1+{4 * _word}], %r3;\n"
BARRIER = "  bar.sync 0;\n"
ADDRESS = "  mul.lo.u32 %r4, %r0, 5;\n  add.u32 %r4, %r4, 3;\n  and.b32 %r4, %r4, 63;\n  shl.b32 %r4, %r4, 4;\n  add.u32 %r4, %r4, %r8;\n"
LOAD = "  ldmatrix.sync.aligned.m8n8.x{}{}.shared.b16 {{{}}}, [%r4];\n"


def row_of(thread: int) -> int:
    return (5 * thread + 3) % ROWS


def loaded(count: int, trans: str = "", before: str = FILL + BARRIER + ADDRESS, threads: int = ROWS) -> np.ndarray:
    """The words of each thread: (threads, count)."""
    out = result(threads * count, np.uint32)
    body = before + LOAD.format(count, trans, ", ".join(f"%r{10 + i}" for i in range(count)))
    body += f"  mul.wide.u32 %rd10, %r0, {4 * count};\n  add.s64 %rd10, %rd0, %rd10;\n"
    body += "".join(f"  st.global.b32 [%rd10+{4 * i}], %r{10 + i};\n" for i in range(count))
    run(body, [out], threads=threads, declarations=BUFFER)
    return values(out, np.uint32).reshape(threads, count)


@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_matrices_from_shared_memory(count, trans):
    found = loaded(count, trans)
    for thread in range(ROWS):
        warp, lane = divmod(thread, 32)
        for i in range(count):
            rows = [row_of(32 * warp + 8 * i + k) for k in range(8)]
            places = [(lane // 4, 2 * (lane % 4) + k) for k in range(2)]
            low, high = (8 * rows[c] + r if trans else 8 * rows[r] + c for r, c in places)
            assert found[thread, i] == low | high << 16, (thread, i)


STORE = "  stmatrix.sync.aligned.m8n8.x{}{}.shared.b16 [%r4], {{{}}};\n"
WORDS = "".join(f"  mad.lo.u32 %r{10 + i}, %r0, 4, {i};\n" for i in range(4))  # thread t has the words 4t, 4t + 1, ...


def stored(count: int, trans: str = "", store: str = STORE, threads: int = ROWS) -> np.ndarray:
    """The buffer's words, row by row; rows that are not stored are zero."""
    out = result(4 * ROWS, np.uint32)
    zero = FILL.replace("%r3;", "%r20;").replace("  mov.u32 %r8", "  mov.u32 %r20, 0;\n  mov.u32 %r8")
    body = zero + BARRIER + ADDRESS + WORDS + store.format(count, trans, ", ".join(f"%r{10 + i}" for i in range(count)))
    body += BARRIER + "  mul.wide.u32 %rd10, %r0, 16;\n  add.s64 %rd10, %rd0, %rd10;\n"
    for i in range(4):
        body += f"  ld.shared.b32 %r3, [%r1+{4 * i}];\n  st.global.b32 [%rd10+{4 * i}], %r3;\n"
    run(body, [out], threads=threads, declarations=BUFFER)
    return values(out, np.uint32).reshape(ROWS, 4)


@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_matrices_to_shared_memory(count, trans):
    found = stored(count, trans).view(np.uint16)  # (rows, 8)
    wanted = np.zeros_like(found)
    for thread in range(ROWS):
        warp, lane = divmod(thread, 32)
        for i in range(count):
            rows = [row_of(32 * warp + 8 * i + k) for k in range(8)]
            for k, half in enumerate((4 * thread + i, 0)):  # the halves of its word
                r, c = lane // 4, 2 * (lane % 4) + k
                if trans:
                    r, c = c, r
                wanted[rows[r], c] = half
    assert (found == wanted).all()


def test_faults_of_stmatrix():
    for bad, why in (
        ("  add.u32 %r4, %r4, 8;\n" + STORE, "store of 16 bytes misaligned in shared memory"),
        ("  add.u32 %r4, %r4, 256;\n" + STORE, "store of 16 bytes out of bounds of shared memory"),
        ("  mov.u32 %r4, %r8;\n" + STORE, "race: "),
        ("  setp.eq.u32 %p1, %r0, 7;\n  @%p1 bra end;\n" + STORE + "end:\n", "stmatrix takes all 32 lanes of a warp, and 31 are here"),
    ):  # fmt: skip
        with pytest.raises(InterpretError, match=why):
            stored(2, store=bad)


def caught(**keywords) -> str:
    with pytest.raises(InterpretError) as error:
        loaded(4, **keywords)
    return str(error.value)


def test_faults_of_ldmatrix():
    sound = FILL + BARRIER + ADDRESS
    assert "load of 16 bytes misaligned in shared memory" in caught(before=sound + "  add.u32 %r4, %r4, 8;\n")
    assert "load of 16 bytes out of bounds of shared memory" in caught(before=sound + "  add.u32 %r4, %r4, 256;\n")
    assert "race: read of byte" in caught(before=FILL + ADDRESS)
    assert "which nothing has written" in caught(before=FILL + BARRIER + ADDRESS, threads=32)
    torn = sound + "  setp.eq.u32 %p1, %r0, 7;\n  @%p1 bra end;\n"
    with pytest.raises(InterpretError, match="ldmatrix takes all 32 lanes of a warp, and 31 are here"):
        run(torn + LOAD.format(1, "", "%r10") + "end:\n", [result(1, np.uint32)], threads=64, declarations=BUFFER)
    multiply = (
        INSTRUCTIONS["bf16"][1] + " {%r1, %r2, %r3, %r4}, {%r1, %r2, %r3, %r4}, {%r1, %r2}, {%r1, %r2, %r3, %r4};\n"
    )
    with pytest.raises(InterpretError, match="mma takes all 32 lanes of a warp, and 16 are here"):
        run(multiply, [], threads=48)


def test_rounding_to_tf32():
    """Thirteen bits less, ties away from zero; infinity and NaN do not change."""
    from ptx_running import apply

    given = [
        0x3F800FFF,
        0x3F801000,
        0x3F801FFF,
        0xBF801000,
        0x7F7FFFFF,
        0x7F800000,
        0xFF800000,
        0x7FC00001,
        0x00000FFF,
        0x00001000,
    ]
    want = [0x3F800000, 0x3F802000, 0x3F802000, 0xBF802000, 0x7F800000, 0x7F800000, 0xFF800000, 0x7FFFFFFF, 0, 0x00002000]  # fmt: skip
    assert apply("cvt.rna.tf32.f32 %d, %a;", 32, (32, given)) == want


# A GEMM's kernel with a fault

CASE = gemm_cases.Case("plain", "bfloat16", 70, 72, 136)  # its last tile is where the epilogue begins


@functools.cache
def compiled():
    return kernels.binary(CASE.call("sm_80"), "ptx")


def broken(monkeypatch, edit) -> None:
    """Runs the product with its kernel's PTX edited."""
    made = edited(compiled(), edit)
    monkeypatch.setattr(interpreted, "compile_call", lambda call, lines=False: made)
    given = CASE.operands(np.random.default_rng(0))
    outputs = CASE.outputs
    CASE.check(
        interpreted.run(CASE.call("sm_80"), [*given, *outputs], list(given.values()), list(outputs.values())), given
    )


def without(pattern: str, which: int):
    """PTX without the n-th line that matches."""

    def edit(text: str) -> str:
        place = list(re.finditer(rf"^\s*{pattern}.*\n", text, re.M))[which]
        return text[: place.start()] + text[place.end() :]

    return edit


@pytest.mark.parametrize(
    ("edit", "message"),
    [(without(r"cp\.async\.wait_group", 0), "shared memory, which an asynchronous copy that is not waited for may still write"),
     (without(r"cp\.async\.wait_group", 1), "shared memory, which an asynchronous copy that is not waited for may still write"),
     (without(r"bar\.sync", 0), "race: read of byte"), (without(r"bar\.sync", 1), "race: "), (without(r"bar\.sync", 2), "race: "),
     (without(r"cp\.async\.commit_group", 1), "that is not waited for may still write"),
     (without(r"bar\.warp\.sync", 1), "race: "), (without(r"bar\.warp\.sync", 2), "race: "),
     (without(r"cp\.async\.cg", 0), "which nothing has written")],
)  # fmt: skip
def test_faults_of_synchronisation(monkeypatch, edit, message):
    with pytest.raises(InterpretError) as error:
        broken(monkeypatch, edit)
    assert message in str(error.value)


def exchanged(text: str) -> str:
    """The first mma takes the words of a in another order."""
    return re.sub(r"(mma\.sync\S+ \{[^}]*\}, \{)(%\w+), (%\w+),", r"\1\3, \2,", text, count=1)


def transposed(text: str) -> str:
    return re.sub(
        r"ldmatrix\.sync\.aligned\.m8n8\.x4\.shared", "ldmatrix.sync.aligned.m8n8.x4.trans.shared", text, count=1
    )


@pytest.mark.parametrize("edit", [exchanged, transposed])
def test_wrong_fragments_give_wrong_products(monkeypatch, edit):
    with pytest.raises(AssertionError, match="Mismatched elements"):
        broken(monkeypatch, edit)
