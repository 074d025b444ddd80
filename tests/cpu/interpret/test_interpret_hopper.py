"""Hopper's kernels, interpreted: the copies of TMA, the products of WGMMA, and every wait that they need."""

import dataclasses
import functools
import itertools
import re
import struct
from types import SimpleNamespace

import ml_dtypes  # noqa: F401  # so that NumPy knows bfloat16
import numpy as np
import pytest
from gemm_running import BASE, KINDS, STAGED, Product, check
from ptx_running import REGISTERS, edited, kernel_of, result, run, source, values

from codegen.interpret import host, ptx
from codegen.interpret.decode.asynchronous import tensormaps
from codegen.interpret.decode.asynchronous.tensormaps import TensorMap
from codegen.interpret.kernel import Kernel
from codegen.interpret.lanes import LaunchConfig
from codegen.interpret.machine import InterpretError, Machine
from codegen.interpret.memory.arrays import Global
from codegen.interpret.ptx import PtxError
from codegen.plan.gemms.hopper_tiles import TABLE
from codegen.runtime.compiled import interpreted, kernels
from tests.turns import some


def step_of(product: Product) -> int:
    """Rows in memory are multiples of this: 16 bytes."""
    return 16 // np.dtype(product.inputs[0].dtype).itemsize


@pytest.mark.turns(8)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_any_extents(kind):
    """There are few blocks, so that each has several tiles."""
    rng = np.random.default_rng(len(str(kind)))
    step = step_of(kind)
    n = int(rng.integers(1, 300))
    n = n if kind.b_is_nk else -(-n // step) * step
    m, k = int(rng.integers(1, 400)), step * int(rng.integers(1, 40))
    tiles = dataclasses.replace(kind.tiles, blocks=2 * kind.tiles.multicast)
    check(dataclasses.replace(kind, M=m, N=n, K=k, tiles=tiles), 0, Product.interpret)


@pytest.mark.parametrize("extents", some([(64, 0, 64), (0, 64, 64), (1, 8, 8), (64, 64, 0)], 2), ids=str)
def test_nothing_and_next_to_nothing(extents):
    m, k, n = extents
    check(dataclasses.replace(BASE, M=m, K=k, N=n), 0, Product.interpret)
    check(dataclasses.replace(BASE, name="residual", M=m, K=k, N=n, L=2, tiles=STAGED), 0, Product.interpret)
    check(dataclasses.replace(BASE, M=m, K=k, N=n, L=2, shared_b=True, tiles=TABLE[3]), 0, Product.interpret)


# A kernel with a fault: six steps along K in four stages; two blocks with two tiles each, which share b

CASE = dataclasses.replace(BASE, M=512, N=192, K=384, tiles=dataclasses.replace(BASE.tiles, blocks=2))


@functools.cache
def compiled(case: Product):
    return kernels.binary(case.call, "ptx")


def run_edited(monkeypatch, edit, case: Product = CASE) -> None:
    made = edited(compiled(case), edit)
    monkeypatch.setattr(interpreted, "compile_call", lambda call, lines=False: made)
    check(case, 0, Product.interpret)


def changed(pattern: str, which: int, by: str = ""):
    """PTX with the n-th match replaced."""

    def edit(text: str) -> str:
        place = list(re.finditer(pattern, text, re.M))[which]
        return text[: place.start()] + place.expand(by) + text[place.end() :]

    return edit


def line(pattern: str) -> str:
    return rf"^\s*{pattern}.*\n"


NO_WAIT = r"mbarrier\.try_wait\S* P1, .*;"  # replaced: no thread waits here
SENT = line(r"@%p\d+ mbarrier\.arrive\.shared::cluster")


def many(number: int, by: int):
    return changed(rf"(mov\.b32\s+%r\d+, ){number};", 0, rf"\g<1>{by};")


@pytest.mark.turns(4)
@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (changed(line(r"wgmma\.fence"), 0), "with no wgmma.fence since it was last used"),
        (changed(line(r"wgmma\.commit_group"), 0), "not waited for may still read"),
        (changed(line(r"wgmma\.wait_group\S*\s+1"), 0), "not waited for may still read"),
        (changed(line(r"wgmma\.wait_group\S*\s+0"), 0), "a wgmma or a bulk copy that is not waited for may still"),
        (changed(r", 1,  1, 0, 1;", 0, ", 1,  1, 0, 0;"), "Not equal to tolerance"),
        # the producer waits for a free stage: it is two phases ahead of the threads that wait for it
        (changed(NO_WAIT, 0, "setp.eq.u32 P1, 0, 0;"), "race: second write of byte 0 of shared memory"),
        (changed(NO_WAIT, 1, "setp.eq.u32 P1, 0, 0;"), "exits without a wait for the last phase of the mbarrier"),
        (changed(NO_WAIT, 5, "setp.eq.u32 P1, 0, 0;"), "race: wgmma of byte"),  # a consumer waits for a full stage
        (many(40960, 40944), "it takes 256 threads, and 128 are there"),  # the first consumer waits forever
        (many(40960, 40976), "it takes 256 threads, and 128 are there"),
        (many(8, 7), "race: write of byte 0 of shared memory that another thread read"),  # of the 8 warps that read a stage
        (many(8, 9), "it takes 256 threads, and 128 are there"),
        (changed(SENT, 0), "it takes 256 threads, and 128 are there"),
        (changed(SENT, 1), "a wait for a phase of an mbarrier that nothing brings to its end"),
        (changed(line(r"fence\.mbarrier_init"), 0), "race: use of an mbarrier that another thread initialised"),
        (changed(line(r"barrier\.cluster\.wait"), 0), "race: use of an mbarrier that another thread initialised"),
        (changed(line(r"bar\.arrive"), 0), "it takes 256 threads, and 128 are there"),  # the other one's turn
        (changed(line(r"bar\.arrive"), 1), "it takes 256 threads, and 128 are there"),
        (changed(line(r"bar\.warp\.sync"), 1), "race: read of byte"),  # of the words that the epilogue exchanges
        (changed(line(r"cp\.async\.bulk\.tensor"), 0), "it takes 256 threads, and 128 are there"),
        (changed(r"(mov\.b16\s+%rs\d+, )3;", 0, r"\g<1>1;"), "it takes 256 threads, and 128 are there"),
        (changed(r"(mov\.b16\s+%rs\d+, )3;", 0, r"\g<1>7;"), "a mask of blocks, 0x7, in a cluster of 2"),
        (changed(r"(mov\.b16\s+%rs\d+, )3;", 0, r"\g<1>0;"), "a mask of blocks, 0x0, in a cluster of 2"),
    ],
)  # fmt: skip
def test_faults(monkeypatch, edit, message):
    with pytest.raises((InterpretError, AssertionError), match=re.escape(message)):
        run_edited(monkeypatch, edit)


def test_a_turn_is_only_for_speed(monkeypatch):
    """The barriers of the stages guard everything that the consumers share."""
    many_tiles = dataclasses.replace(CASE, M=1024)  # two for each consumer of a block
    run_edited(monkeypatch, changed(line(r"bar\.sync"), 0), many_tiles)


READ_AHEAD = dataclasses.replace(
    BASE, name="residual", M=512, N=192, K=384, tiles=dataclasses.replace(STAGED, blocks=2)
)


@pytest.mark.turns(6)
@pytest.mark.parametrize("which", range(19))
def test_every_wait_is_needed(monkeypatch, which):
    """Each wait of the producer, of the consumers, and of the epilogue, which also reads tiles from shared memory."""
    with pytest.raises(InterpretError, match=r"race: |divergent barrier"):
        run_edited(monkeypatch, changed(NO_WAIT, which, "setp.eq.u32 P1, 0, 0;"), READ_AHEAD)


# Written by hand: a product of 64 x 16 and 16 x 8; the threads copy both factors into shared memory

FILL = """
  shr.u32 %r1, %r0, 1;
  and.b32 %r2, %r0, 1;
  and.b32 %r3, %r1, 7;
  xor.b32 %r3, %r3, %r2;
  shl.b32 %r3, %r3, 4;
  shl.b32 %r4, %r1, 7;
  add.u32 %r3, %r3, %r4;
  mov.u32 %r5, tiles;
  add.u32 %r3, %r3, %r5;
  mul.wide.u32 %rd4, %r0, 16;
  add.u64 %rd5, %rd0, %rd4;
  ld.global.v4.b32 {%r10, %r11, %r12, %r13}, [%rd5];
  st.shared.v4.b32 [%r3], {%r10, %r11, %r12, %r13};
  setp.lt.u32 %p1, %r0, 16;
  add.u64 %rd6, %rd1, %rd4;
  @%p1 ld.global.v4.b32 {%r10, %r11, %r12, %r13}, [%rd6];
  @%p1 st.shared.v4.b32 [%r3+8192], {%r10, %r11, %r12, %r13};
"""
PROXY, SYNC, FENCE = "  fence.proxy.async;\n", "  bar.sync 0;\n", "  wgmma.fence.sync.aligned;\n"
# Rows of 128 bytes; groups of eight rows, 1024 bytes, follow each other
DESCRIBE = """
  shr.u32 %r6, %r5, 4;
  cvt.u64.u32 %rd7, %r6;
  or.b64 %rd7, %rd7, 0x4000004000010000;
  add.u64 %rd8, %rd7, 512;
"""
D = "{%r20, %r21, %r22, %r23}"
PRODUCT = f"  wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {D}, %rd7, %rd8, %p2, 1, 1, 0, 0;\n"
ADDS = "  mov.b32 %r20, 0f3F800000;\n  mov.b32 %r21, 0f3F800000;\n  mov.b32 %r22, 0f3F800000;\n  mov.b32 %r23, 0f3F800000;\n"
COMMIT, WAIT = "  wgmma.commit_group.sync.aligned;\n", "  wgmma.wait_group.sync.aligned 0;\n"
STORE = f"  add.u64 %rd9, %rd2, %rd4;\n  st.global.v4.b32 [%rd9], {D};\n"
SOUND = [FILL, PROXY, SYNC, "  setp.eq.u32 %p2, %r0, %r0;\n", ADDS, DESCRIBE, FENCE, PRODUCT, COMMIT, WAIT, STORE]


def by_hand(steps: list[str], threads: int = 128) -> tuple[np.ndarray, np.ndarray]:
    """The result of a kernel with these steps, and the product of its factors plus 1."""
    a, b = (np.random.default_rng(i).integers(-8, 9, (n, 16)).astype("bfloat16") for i, n in enumerate((64, 8)))
    out = result(512, np.float32)
    tiles = "  .shared .align 1024 .b8 tiles[9216];"
    run("".join(steps), [source(a, "a"), source(b, "b"), out], threads, declarations=tiles)
    thread, i = np.arange(128)[:, None], np.arange(4)
    made = np.empty((64, 8), np.float32)
    made[16 * (thread // 32) + thread % 32 // 4 + 8 * (i // 2), 2 * (thread % 4) + i % 2] = values(
        out, np.float32
    ).reshape(128, 4)
    return made, a.astype(np.float32) @ b.astype(np.float32).T + 1


def test_a_product_by_hand():
    np.testing.assert_array_equal(*by_hand(SOUND))
    one = PRODUCT.replace("1, 1, 0, 0", "-1, 1, 0, 0")
    made, expected = by_hand([one if step is PRODUCT else step for step in SOUND])
    np.testing.assert_array_equal(made, 2 - expected)
    moved = [*SOUND[:-2], "  mov.b32 %r24, %r20;\n", WAIT, "  mov.b32 %r20, %r24;\n", STORE]
    np.testing.assert_array_equal(*by_hand(moved))  # the assembler merges them


def without_step(*steps: str) -> list[str]:
    return [step for step in SOUND if step not in steps]


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (without_step(PROXY), "wgmma of byte 0 of shared memory, which a thread wrote with no fence.proxy.async since"),
        ([*SOUND[:1], SYNC, *SOUND[1:2], *SOUND[3:]], ""),  # a fence after the barrier, in the thread that wrote
        (without_step(SYNC), "race: wgmma of byte"),
        (without_step(FENCE), "with no wgmma.fence since it was last used"),
        ([*SOUND[:-4], "  mov.b32 %r21, 0;\n", *SOUND[-4:]], "wgmma into %r21 with no wgmma.fence since it was last used"),
        ([*SOUND[:-3], PRODUCT.replace(D, "{%r21, %r20, %r22, %r23}"), *SOUND[-3:]],
         "wgmma into %r21, which one of another shape may still write"),
        ([*SOUND[:-3], "  mov.b32 %r24, %r20;\n", PRODUCT, *SOUND[-3:-1], "  mov.b32 %r20, %r24;\n", STORE],
         "%r24 is used, a copy of an accumulator from before it was complete"),
        ([*SOUND[:-3]], "the thread exits without a wait for its last wgmma"),
        (without_step(COMMIT), "is used, which a wgmma that is not waited for may still write"),
        (without_step(WAIT), "%r20 is used, which a wgmma that is not waited for may still write"),
        ([*SOUND[:-2], "  add.u32 %r24, %r20, 0;\n", *SOUND[-2:]], "%r20 is used, which a wgmma"),
        ([*SOUND[:-2], "  mov.b32 %r21, 0;\n", *SOUND[-2:]], "%r21 is used, which a wgmma"),
        ([*SOUND[:-2], "  mov.b32 %r24, %r20;\n  add.u32 %r24, %r24, 0;\n", *SOUND[-2:]], "%r24 is used, which a wgmma"),
        ([*SOUND[:-2], "  st.shared.b32 [%r3], %r0;\n", *SOUND[-2:]], "not waited for may still read"),
        ([*SOUND[:6], "  add.u32 %r5, %r5, 0;\n", "  cvt.u64.u32 %rd9, %r0;\n  add.u64 %rd7, %rd7, %rd9;\n", *SOUND[6:]],
         "the lanes of a warpgroup differ in an operand of wgmma"),
        ([*SOUND[:6], "  xor.b64 %rd7, %rd7, 0x4000000000000000;\n", *SOUND[6:]],
         "a descriptor of a tile that is not known here: 0x4000010000"),
        ([*SOUND[:6], "  add.u64 %rd8, %rd8, 512;\n", *SOUND[6:]], "out of bounds of shared memory"),
        ([*SOUND[:6], "  setp.ge.u32 %p3, %r0, 32;\n  @%p3 bra end;\n", *SOUND[6:], "end:\n"],
         "divergent wgmma.fence: other threads of its warpgroup have exited (block (0, 0, 0) thread (32, 0, 0))"),
    ],
)  # fmt: skip
def test_faults_of_products(steps, message):
    if not message:
        np.testing.assert_array_equal(*by_hand(steps))
        return
    with pytest.raises(InterpretError, match=re.escape(message)):
        by_hand(steps)


@pytest.mark.parametrize(
    "line",
    [
        "wgmma.mma_async.sync.aligned.m64n8k16.f16.f16.f16 {%r1, %r2}, %rd1, %rd2, %p1, 1, 1, 0, 0;",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%r1, %r2, %r3, %r4}, {%r5, %r6}, %rd2, %p1, 1, 1, 0;",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%r1, %r2, %r3, %r4}, {%r5, %r6, %r7, %r8}, %rd2, %p1, 1, 1, 0, 0;",
        "wgmma.mma_async.sync.aligned.m64n8k8.f32.bf16.bf16 {%r1, %r2, %r3, %r4}, %rd1, %rd2, %p1, 1, 1, 0, 0;",
        "wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.bf16.bf16 {%r1, %r2, %r3, %r4}, %rd1, %rd2, %r5, 0, %p1, 1, 1, 0, 0;",
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd1, {%r1, %r2}], [%r3];",
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1], %r2, [%r3];",
        "cp.async.bulk.tensor.2d.shared::cta.global.im2col.mbarrier::complete_tx::bytes [%r1], [%rd1, {%r1, %r2}], [%r3];",
        "fence.proxy.tensormap::generic.acquire.gpu [%rd1], 128;",
    ],
)  # fmt: skip
def test_what_is_not_known_is_named(line):
    with pytest.raises(PtxError, match=re.escape(line.split()[0])):
        kernel_of(f"  {line}\n", 1)


# The first factor in registers: thread's words (g, q), (g + 8, q), (g, q + 4), (g + 8, q + 4) of its warp's 16 rows

HELD = """
  shr.u32 %r16, %r0, 5;
  shl.b32 %r16, %r16, 9;
  and.b32 %r17, %r0, 28;
  shl.b32 %r17, %r17, 3;
  and.b32 %r18, %r0, 3;
  shl.b32 %r18, %r18, 2;
  add.u32 %r16, %r16, %r17;
  add.u32 %r16, %r16, %r18;
  cvt.u64.u32 %rd10, %r16;
  add.u64 %rd10, %rd0, %rd10;
  ld.global.b32 %r10, [%rd10];
  ld.global.b32 %r11, [%rd10+256];
  ld.global.b32 %r12, [%rd10+16];
  ld.global.b32 %r13, [%rd10+272];
"""
FROM_REGISTERS = PRODUCT.replace("%rd7,", "{%r10, %r11, %r12, %r13},").replace("0, 0;", "0;")
HELD_SOUND = [*SOUND[:6], HELD, FENCE, FROM_REGISTERS, COMMIT, WAIT, STORE]
WRITE, READ = "  mov.b32 %r12, 0;\n", "  add.u32 %r9, %r12, 1;\n"


def test_a_factor_in_registers():
    np.testing.assert_array_equal(*by_hand(HELD_SOUND))
    np.testing.assert_array_equal(*by_hand([*HELD_SOUND[:-1], WRITE, READ, STORE]))  # they are free again
    twice, expected = by_hand([*HELD_SOUND[:9], FROM_REGISTERS, *HELD_SOUND[9:]])  # other products may read them
    np.testing.assert_array_equal(twice, 2 * expected - 1)


@pytest.mark.parametrize(
    ("place", "step", "message"),
    [
        (8, WRITE, "wgmma of %r12 with no wgmma.fence since it was last used"),
        (9, WRITE, "%r12 is used, which a wgmma that is not waited for may still read"),
        (10, WRITE, "%r12 is used, which a wgmma that is not waited for may still read"),
        (10, READ, "%r12 is used, which a wgmma that is not waited for may still read"),
        (10, FENCE + FROM_REGISTERS.replace("%r13}", "%r23}"), "wgmma of %r23, which one that is not waited for may still write"),
        (10, FENCE + FROM_REGISTERS.replace("%r20, ", "%r13, "), "wgmma into %r13, which one that is not waited for may still read"),
    ],
)  # fmt: skip
def test_faults_of_a_factor_in_registers(place, step, message):
    with pytest.raises(InterpretError, match=re.escape(message)):
        by_hand([*HELD_SOUND[:place], step, *HELD_SOUND[place:]])


# Tensor maps


def test_a_tensor_map_is_read_or_refused():
    made = compiled(CASE)
    launcher = host.Launcher(made.module, ptx.parse(made.ptx))
    (launch,) = launcher.launches([(4096 * (i + 1), x.shape) for i, x in enumerate([*CASE.inputs, *CASE.outputs])])
    a, b = (data for data in launch.params if len(data) == 128)
    # a is (1, 512, 384), b (1, 384, 192); each block of a pair copies half of the other's b
    assert tensormaps.read(a) == TensorMap(4096, 2, (384, 512, 1), (768, 768 * 512), (64, 128, 1), 128)
    assert tensormaps.read(b) == TensorMap(8192, 2, (192, 384, 1), (384, 384 * 384), (64, 32, 1), 128)
    for byte, bit in (
        (8, 0),
        (8, 3),
        (9, 3),
        (10, 0),
        (28, 0),
        (52, 0),
    ):  # other kinds: interleaved, of 32 bits, strided
        changed = bytearray(a)
        changed[byte] ^= 1 << bit
        with pytest.raises(ValueError, match="an unknown tensor map"):
            tensormaps.read(bytes(changed))


def test_boxes_reach_over_every_edge():
    """Elements outside the tensor are zeros, and their bytes count as copied."""
    x = np.arange(6 * 16, dtype=np.float16).reshape(6, 16)
    tensor = TensorMap(0, 2, (16, 6), (32,), (8, 4), 0)
    array = source(x)
    machine = SimpleNamespace(memory=Global([array]), thread=np.zeros(1, np.int64))
    for start in itertools.product((-9, -3, 0, 12, 16), (-5, -1, 0, 4, 6)):
        found = tensormaps._box(machine, dataclasses.replace(tensor, address=array.address), list(start), 0)
        padded = np.zeros((30, 40), np.float16)
        padded[12:18, 12:28] = x
        rows, columns = start[1] + 12, start[0] + 12
        np.testing.assert_array_equal(
            found.view(np.float16).reshape(4, 8), padded[rows : rows + 4, columns : columns + 8]
        )


# Written by hand: 1024 bytes that TMA copies

INIT = """
  mov.u32 %r1, 0;
  mov.u32 %r2, 1024;
  setp.eq.u32 %p1, %r0, 0;
  mov.b64 %rd3, map;
  @%p1 mbarrier.init.shared.b64 [%r2], 1;
"""
MADE = "  fence.mbarrier_init.release.cluster;\n  bar.sync 0;\n"
BRING = """
  @%p1 mbarrier.arrive.expect_tx.shared.b64 %rd4, [%r2], 1024;
  @%p1 cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%r1], [%rd3, {%r1, %r1}], [%r2];
"""
HERE = "HERE:\n  mbarrier.try_wait.parity.shared.b64 %p2, [%r2], 0;\n  @!%p2 bra HERE;\n"
TAKE = """
  shl.b32 %r3, %r0, 2;
  ld.shared.b32 %r4, [%r3];
  mul.wide.u32 %rd5, %r0, 4;
  add.u64 %rd5, %rd1, %rd5;
  st.global.b32 [%rd5], %r4;
"""
FIRST_WARP = "  setp.ge.u32 %p3, %r0, 32;\n  @%p3 bra PAST;\n{}PAST:\n"


def brought(body: str) -> list[int]:
    """The words that 256 threads load, one each."""
    x, y = source(np.arange(256, dtype=np.uint32)), result(256, np.uint32)
    # Eight rows of 128 one-byte elements, all of them in the box
    described = struct.pack("<QI5I5I", x.address, 0x40002 | 1 << 4, 8, 0, 0, 0, 0, 127, 7, 0, 0, 0) + bytes(
        [0, 0, 0, 127, 7]
    )
    text = f""".visible .entry made(.param .align 64 .b8 map[128], .param .b64 y) {{{REGISTERS}
      .shared .align 1024 .b8 tiles[2048];
      ld.param.b64 %rd1, [y];
      mov.u32 %r0, %tid.x;
      {body}
      ret;
    }}"""
    arguments = (described.ljust(128, b"\0"), y.address.to_bytes(8, "little"))
    Machine(Kernel(ptx.parse(text)["made"]), LaunchConfig("made", (1, 1, 1), (256, 1, 1), 0, arguments), [x, y]).run()
    return values(y, np.uint32).tolist()


@pytest.mark.parametrize(
    "body",
    [INIT + MADE + BRING + HERE + TAKE, INIT + MADE + BRING + FIRST_WARP.format(HERE) + "  bar.sync 0;\n" + TAKE],
    ids=["who waits knows", "and whom they meet"],
)
def test_a_box_by_hand(body):
    assert brought(body) == list(range(256))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (INIT + MADE + BRING + "  bar.sync 0;\n" + TAKE + HERE, "race: read of byte 0 of shared memory"),
        (INIT + MADE + BRING + "  @%p1 ld.shared.b32 %r4, [%r1];\n" + HERE + TAKE, "race: read of byte 0"),
        (INIT + MADE + BRING + "  @%p1 st.shared.b32 [%r1], %r0;\n" + HERE + TAKE, "race: second write of byte 0"),
        (INIT + MADE + BRING + FIRST_WARP.format(HERE) + TAKE, "race: read of byte 128 of shared memory"),
        (INIT + MADE + BRING, "the block exits without a wait for the last phase of the mbarrier at byte 1024"),
        (INIT + "  bar.sync 0;\n" + BRING + HERE + TAKE, "a copy for an mbarrier that no fence.mbarrier_init follows"),
        (INIT + MADE + "  @%p1 st.shared.b32 [%r1], %r0;\n" + BRING + HERE + TAKE,
         "copy to byte 0 of shared memory, which a thread wrote with no fence.proxy.async since"),
        (INIT + MADE + BRING.replace("1024;", "1040;") + HERE + TAKE, "a wait for a phase of an mbarrier that nothing brings"),
        (INIT + MADE + BRING.replace("[%r1], [%rd3", "[%r1+64], [%rd3") + HERE + TAKE, "which 128 does not divide"),
        (INIT + MADE + BRING.replace("{%r1, %r1}", "{%r1}").replace("2d", "1d") + HERE + TAKE, "1 coordinates in a tensor with 2"),
        (INIT + MADE + BRING.replace("[%rd3,", "[%rd1,") + HERE + TAKE, "no parameter of the kernel is at"),
    ],
)  # fmt: skip
def test_faults_of_boxes(body, message):
    with pytest.raises(InterpretError, match=re.escape(message)):
        brought(body)
