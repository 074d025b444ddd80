"""Threads of a block together: warps, barriers of some threads, asynchronous copies into shared memory."""

import faulty_kernels
import numpy as np
import pytest
from making import make_op
from ptx_running import kernel_of, result, run, source, values, words

from codegen.interpret.machine import InterpretError
from codegen.interpret.ptx import PtxError
from codegen.runtime.compiled import interpreted

OUT = "  st.global.b32 [%rd16], %r5;\n"


def caught(body: str, threads: int = 64, **keywords) -> str:
    with pytest.raises(InterpretError) as error:
        words(threads, threads, body, **keywords)
    return str(error.value)


# Warps


def test_the_active_mask():
    body = "  activemask.b32 %r5;\n  setp.lt.u32 %p1, %r0, 5;\n  @%p1 activemask.b32 %r5;\n"
    assert words(64, 64, body + OUT) == [31] * 5 + [2**32 - 1] * 59


def test_an_elected_lane():
    body = "  elect.sync %r5|%p1, -1;\n  selp.b32 %r6, 100, 0, %p1;\n  add.u32 %r5, %r5, %r6;\n"
    assert words(64, 64, body + OUT) == ([100] + [0] * 31) * 2
    some = (
        "  mov.u32 %r5, 7;\n  setp.ge.u32 %p2, %r0, 3;\n  @%p2 elect.sync _|%p1, 0xFFFFFFF8;\n  @%p1 mov.u32 %r5, 9;\n"
    )
    assert words(32, 32, some + OUT) == [7] * 3 + [9] + [7] * 28


def lane_mask(kind: str, i: int) -> int:
    return sum(1 << j for j in range(32) if {"eq": j == i, "lt": j < i, "le": j <= i, "gt": j > i, "ge": j >= i}[kind])


@pytest.mark.parametrize("kind", ["eq", "lt", "le", "gt", "ge"])
def test_lane_masks(kind):
    assert words(64, 64, f"  mov.u32 %r5, %lanemask_{kind};\n" + OUT) == [lane_mask(kind, i % 32) for i in range(64)]


INPUTS = [(i * 2654435761 + 12345) % 2**32 for i in range(64)]
SIGNED = [x - 2**32 if x >> 31 else x for x in INPUTS]


def folded(start: int, values: list[int], fold) -> int:
    total = start
    for value in values:
        total = fold(total, value)
    return total


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ("add.u32", lambda v: sum(v)), ("add.s32", lambda v: sum(v)), ("min.u32", min), ("max.u32", max),
        ("min.s32", lambda v: min(x - 2**32 if x >> 31 else x for x in v)),
        ("max.s32", lambda v: max(x - 2**32 if x >> 31 else x for x in v)),
        ("and.b32", lambda v: folded(-1, v, lambda a, b: a & b)), ("or.b32", lambda v: folded(0, v, lambda a, b: a | b)),
        ("xor.b32", lambda v: folded(0, v, lambda a, b: a ^ b)),
    ],
)  # fmt: skip
def test_reductions_of_a_warp(operation, expected):
    value = "  mad.lo.u32 %r5, %r0, 2654435761, 12345;\n"
    got = words(64, 64, value + f"  redux.sync.{operation} %r5, %r5, -1;\n" + OUT)
    assert got == [expected(INPUTS[32 * (i // 32) : 32 * (i // 32) + 32]) % 2**32 for i in range(64)]
    odd = "  and.b32 %r6, %r0, 1;\n  setp.eq.u32 %p1, %r6, 1;\n"
    got = words(64, 64, odd + value + f"  @%p1 redux.sync.{operation} %r5, %r5, 0xAAAAAAAA;\n" + OUT)
    halves = [INPUTS[32 * w + 1 : 32 * w + 32 : 2] for w in (0, 1)]
    assert got == [expected(halves[i // 32]) % 2**32 if i % 2 else INPUTS[i] for i in range(64)]


@pytest.mark.parametrize(
    ("operation", "expected"),
    [("min", -2.0), ("max", 40.0), ("min.abs", 0.5), ("max.abs", 40.0), ("min.NaN", np.nan), ("max.abs.NaN", np.nan)],
)
def test_reductions_of_floats(operation, expected):
    x = np.array([3, -2, 40, 0.5, np.nan, *[1] * 27], np.float32)
    y = result(32, np.float32)
    body = "  mul.wide.u32 %rd5, %r0, 4;\n  add.u64 %rd6, %rd0, %rd5;\n  add.u64 %rd7, %rd1, %rd5;\n"
    body += f"  ld.global.f32 %r1, [%rd6];\n  redux.sync.{operation}.f32 %r2, %r1, -1;\n  st.global.f32 [%rd7], %r2;\n"
    run(body, [source(x), y])
    np.testing.assert_array_equal(values(y, np.float32), np.full(32, expected, np.float32))


def test_masks_that_lie():
    assert "lane 31 of its warp is in the mask but not here" in caught(
        "  setp.lt.u32 %p1, %r0, 8;\n  @%p1 redux.sync.add.u32 %r5, %r0, -1;\n" + OUT, 32
    )
    assert "a lane executes this that is not in its mask" in caught("  redux.sync.add.u32 %r5, %r0, 255;\n" + OUT, 32)
    assert "a lane executes this that is not in its mask" in caught(
        "  shfl.sync.idx.b32 %r5, %r0, 0, 31, 1;\n" + OUT, 32
    )


# Lanes of a warp wait for each other at an instruction of several lanes

# Lane 3 (and 40) runs code behind the instruction, as a branch for NaN may do
DETOUR = """
  mul.lo.u32 %r1, %r0, 3;
  and.b32 %r2, %r0, 31;
  setp.eq.u32 %p1, %r2, {lane};
  @%p1 bra behind;
back:
{instruction}
  bra end;
behind:
  add.u32 %r1, %r1, 1000;
  bra back;
end:
"""
MINE = [3 * i + (1000 if i % 32 == 3 else 0) for i in range(64)]


def warp(i: int) -> list[int]:
    return MINE[i // 32 * 32 : i // 32 * 32 + 32]


@pytest.mark.parametrize(
    ("instruction", "expected"),
    [
        ("shfl.sync.bfly.b32 %r5, %r1, 1, 31, -1;", lambda i: MINE[i ^ 1]),
        ("shfl.sync.bfly.b32 %r4, %r1, 1, 31, -1; shfl.sync.idx.b32 %r5, %r4, 2, 31, -1;", lambda i: warp(i)[3]),
        ("redux.sync.max.u32 %r5, %r1, -1;", lambda i: max(warp(i))),
        ("setp.gt.u32 %p2, %r1, 1000; vote.sync.ballot.b32 %r5, %p2, -1;", lambda i: 8),
        ("elect.sync %r5|%p2, -1;", lambda i: 0),
        ("setp.lt.u32 %p2, %r2, 8; mov.u32 %r5, 5; @%p2 shfl.sync.bfly.b32 %r5, %r1, 1, 31, 255;",
         lambda i: MINE[i ^ 1] if i % 32 < 8 else 5),
        ("shr.u32 %r6, %r2, 3; shl.b32 %r6, %r6, 3; shl.b32 %r7, 255, %r6; shfl.sync.bfly.b32 %r5, %r1, 1, 31, %r7;",
         lambda i: MINE[i ^ 1]),
    ],
)  # fmt: skip
def test_lanes_wait_for_those_of_their_mask(instruction, expected):
    body = DETOUR.format(lane=3, instruction="  " + instruction.replace("; ", ";\n  "))
    assert words(64, 64, body + OUT) == [expected(i) for i in range(64)]


def test_a_warp_waits_at_matrices():
    """Each lane stores its number, and loads an 8 x 8 matrix of 16-bit elements: its own number again."""
    shared = "  .shared .align 16 .b8 buffer[128];\n"
    store = "  mov.u32 %r3, buffer;\n  mad.lo.u32 %r4, %r0, 4, %r3;\n  st.shared.b32 [%r4], %r0;\n  bar.warp.sync -1;\n"
    load = "  mul.lo.u32 %r4, %r0, 16;\n  and.b32 %r4, %r4, 127;\n  add.u32 %r4, %r4, %r3;\n"
    load += "  ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r5}, [%r4];"
    assert words(32, 32, store + DETOUR.format(lane=3, instruction=load) + OUT, declarations=shared) == [*range(32)]
    torn = DETOUR.format(lane=3, instruction=load).replace("  add.u32 %r1, %r1, 1000;\n  bra back;\n", "")
    message = caught(store + torn + OUT, 32, declarations=shared)
    assert "ldmatrix takes all 32 lanes of a warp, and 31 are here" in message


@pytest.mark.parametrize(
    ("detour", "what"),
    [
        ("  ret;\n", "it has exited"),
        ("  bar.sync 0;\n", "it waits at `bar.sync 0`"),
        ("  shfl.sync.bfly.b32 %r5, %r1, 1, 31, -1;\n", ""),
    ],
)
def test_lanes_that_wait_in_vain(detour, what):
    """Also for a lane that reaches another instruction of the same kind."""
    instruction = "  shfl.sync.bfly.b32 %r5, %r1, 1, 31, -1;"
    body = DETOUR.format(lane=31, instruction=instruction).replace("  add.u32 %r1, %r1, 1000;\n  bra back;\n", detour)
    message = caught(body + OUT, 32)
    assert f"lane 31 of its warp is in the mask but not here: {what}" in message
    assert "thread (0, 0, 0)\n  shfl.sync.bfly.b32 %r5, %r1, 1, 31, -1" in message


CENTRED = """
op: centred
summary: S.
inputs:
  x: float32[..., N]
outputs:
  y: float32[..., N]
chain: |
  v = (abs(x) + 0.5) ** 1.5
  y = v - max(v, axis=N)
reference: |
  v = (jnp.abs(x) + 0.5) ** 1.5
  y = v - jnp.max(v, axis=-1, keepdims=True)
"""


def test_a_nan_whose_branch_stands_behind_a_shuffle(tmp_path):
    op = make_op(tmp_path, CENTRED)
    x = np.linspace(-3, 3, 192, dtype=np.float32).reshape(3, 64)
    x[1, 5] = np.nan
    got, expected = op(x, implementation="interpret"), op.reference(x)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    assert np.isnan(got).sum() == 64


@pytest.mark.parametrize(
    "line", ["redux.sync.add.f32 %r1, %r2, -1;", "redux.sync.xor.u32 %r1, %r2, -1;", "redux.sync.min.abs.s32 %r1, %r2, -1;",
             "activemask.b64 %rd1;", "shfl.up.b32 %r1, %r2, 1, 0;", "bar.sync 1, 32, 64;", "bar.warp.arrive 3;",
             "cp.async.cg.shared.global [%r1], [%rd1], 8;", "cp.async.ca.shared.global [%r1], [%rd1], 3;",
             "cp.async.ca.shared.global.L2::cache_hint [%r1], [%rd1], 4, %rd2;", "cp.reduce.async.bulk.global.shared::cta.bulk_group.min.f32 [%rd1], [%r1], 16;",
             "fence.acq_rel.warp;", "mapa.u64 %rd1, %rd2, %r1;"],
)  # fmt: skip
def test_forms_that_are_not_known(line):
    with pytest.raises(PtxError, match=r"unknown (instruction|form)"):
        kernel_of("  " + line, 1)


@pytest.mark.parametrize(
    "line", ["fence.acq_rel.cta;", "fence.sc.gpu;", "fence.proxy.async;", "fence.proxy.async.shared::cta;", "membar.cta;",
             "membar.gl;", "fence.mbarrier_init.release.cluster;", "fence.acq_rel.cluster;"],
)  # fmt: skip
def test_fences_order_what_is_ordered_anyway(line):
    assert words(32, 32, "  mov.u32 %r5, %r0;\n" + line + "\n" + OUT) == list(range(32))


# Barriers. Each thread's word is at %r1, its neighbour's in its half of four warps at %r2, and in the other half at %r3


HEAD = """
  mov.u32 %r8, buffer;
  mad.lo.u32 %r1, %r0, 4, %r8;
  xor.b32 %r4, %r0, 33;
  mad.lo.u32 %r2, %r4, 4, %r8;
  xor.b32 %r4, %r0, 64;
  mad.lo.u32 %r3, %r4, 4, %r8;
  shr.u32 %r6, %r0, 6;
  add.u32 %r7, %r6, 1;
"""
BUFFER = "  .shared .align 16 .b8 buffer[512];"
WRITE, NEAR, FAR = "  st.shared.u32 [%r1], %r0;\n", "  ld.shared.u32 %r5, [%r2];\n", "  ld.shared.u32 %r5, [%r3];\n"
HALF = "  bar.sync %r7, 64;\n"  # barriers 1 and 2, each of two warps


def halves(body: str) -> list[int]:
    return words(128, 128, HEAD + body, declarations=BUFFER)


def caught_in_halves(body: str) -> str:
    return caught(HEAD + body, 128, declarations=BUFFER)


@pytest.mark.parametrize("barrier", [HALF, HALF.replace("bar.", "barrier."), "  barrier.cta.sync.aligned %r7, 64;\n"])
def test_barriers_of_some_warps(barrier):
    assert halves(WRITE + barrier + NEAR + OUT) == [i ^ 33 for i in range(128)]
    twice = WRITE + barrier + NEAR + barrier + "  st.shared.u32 [%r1], %r5;\n" + barrier + NEAR + OUT
    assert halves(twice) == list(range(128))


def test_a_barrier_of_some_warps_orders_no_others():
    assert halves(WRITE + "  bar.sync 0;\n" + FAR + OUT) == [i ^ 64 for i in range(128)]
    assert halves(WRITE + "  bar.sync 3, 128;\n" + FAR + OUT) == [i ^ 64 for i in range(128)]
    assert "race: read of byte 256 of shared memory that another thread wrote" in caught_in_halves(
        WRITE + HALF + FAR + OUT
    )
    write_again = "  st.shared.u32 [%r3], %r0;\n"
    assert "race: write of byte 256 of shared memory that another thread read" in caught_in_halves(
        WRITE + "  bar.sync 0;\n" + "  ld.shared.u32 %r5, [%r1];\n" + HALF + write_again + OUT
    )


def test_addresses_of_32_bits_wrap_around():
    """The compiler may count down from 0, and add the address to that."""
    backwards = "  sub.u32 %r9, %r8, %r1;\n  add.u32 %r9, %r9, %r8;\n  ld.shared.u32 %r5, [%r9+508];\n"
    assert halves(WRITE + "  bar.sync 0;\n" + backwards + OUT) == [127 - i for i in range(128)]


def test_many_readers_and_a_barrier_of_them_all():
    """Both warps of a half read one word, then its owner writes it after their barrier."""
    word = "  shl.b32 %r9, %r6, 8;\n  add.u32 %r9, %r9, %r8;\n  ld.shared.u32 %r5, [%r9];\n"
    owner = "  and.b32 %r10, %r0, 63;\n  setp.eq.u32 %p1, %r10, 0;\n  @%p1 st.shared.u32 [%r1], 9;\n"
    first = [i // 64 * 64 for i in range(128)]
    assert halves(WRITE + HALF + word + HALF + owner + OUT) == first
    assert "race: write of byte 0" in caught_in_halves(WRITE + HALF + word + owner + OUT)
    assert "race: write of byte 0" in caught_in_halves(WRITE + HALF + word + "  bar.warp.sync -1;\n" + owner + OUT)


def test_readers_of_long_ago_are_forgotten():
    """The lower half reads a word, all threads meet, the upper half reads it and meets by itself: one of its threads
    may write it."""
    read = "  setp.lt.u32 %p1, %r0, 64;\n  @{}%p1 ld.shared.u32 %r5, [buffer];\n"
    write = "  setp.eq.u32 %p2, %r0, 64;\n  @%p2 st.shared.u32 [buffer], 9;\n"
    start, all_meet = WRITE + "  bar.sync 0;\n  mov.u32 %r5, 5;\n", "  bar.sync 0;\n"
    assert halves(start + read.format("") + all_meet + read.format("!") + HALF + write + OUT) == [0] * 128
    message = "race: write of byte 0 of shared memory that another thread read"
    assert message in caught_in_halves(start + read.format("") + read.format("!") + HALF + write + OUT)


def test_knowledge_passes_on_from_barrier_to_barrier():
    """Warp 0 meets warp 1, and warp 1 then meets warp 2, which may read what warp 0 wrote, by way of warp 1."""
    meet = "  setp.{}.u32 %p1, %r10, {};\n  @%p1 bar.sync {}, 64;\n"
    body = "  shr.u32 %r10, %r0, 5;\n" + WRITE + "{}  bar.sync 4, 128;\n" + OUT.replace("%r5", "%r11")
    chain = meet.format("lt", 2, 1) + "  sub.u32 %r10, %r10, 1;\n" + meet.format("lt", 2, 2)
    read = "  mov.u32 %r11, 0;\n  setp.eq.u32 %p2, %r10, 1;\n  @%p2 ld.shared.u32 %r11, [buffer];\n"
    # warp 2 reads only after the second barrier: its %r10 is 1 then, and warp 3's is 2
    assert halves(body.format(chain + read)) == [0] * 128
    unlinked = meet.format("ge", 2, 1) + read.replace("%r10, 1", "%r10, 2")
    assert "race: read of byte 0" in caught_in_halves(body.format(unlinked))


def test_barriers_that_cannot_complete():
    some = "  setp.lt.u32 %p1, %r0, 32;\n  @%p1 bar.sync 1, 64;\n"
    assert "divergent barrier: it takes 64 threads, and 32 are there" in caught_in_halves(some + OUT)
    assert "more threads are at the barrier than it takes" in caught_in_halves("  bar.sync 1, 96;\n" + OUT)
    assert "a multiple of 32 threads" in caught_in_halves("  bar.sync 1, 40;\n" + OUT)
    assert "a block has the barriers 0 to 15" in caught_in_halves("  bar.sync 16;\n" + OUT)
    assert "threads differ in how many the barrier takes" in caught_in_halves(
        "  shl.b32 %r9, %r7, 5;\n  bar.sync 1, %r9;\n"
    )
    torn = "  and.b32 %r9, %r0, 1;\n  setp.eq.u32 %p1, %r9, 0;\n  @%p1 bar.sync 1, 64;\n"
    assert "takes all lanes of each" in caught_in_halves(torn + OUT)


def test_one_barrier_in_two_places():
    """Warps may meet at different instructions if they name the same barrier."""
    branch = "  setp.lt.u32 %p1, %r0, 64;\n  @%p1 bra low;\n  bar.sync {};\n  bra end;\nlow:\n  bar.sync 0;\nend:\n"
    assert halves(WRITE + branch.format(0) + FAR + OUT) == [i ^ 64 for i in range(128)]
    assert "divergent barrier: other threads wait at another barrier" in caught_in_halves(
        WRITE + branch.format(1) + FAR
    )


def test_barriers_of_a_warp():
    near = "  xor.b32 %r2, %r1, 4;\n"
    body = near + WRITE + "  bar.warp.sync {};\n" + NEAR + OUT
    assert halves(body.format(-1)) == [i ^ 1 for i in range(128)]
    assert "race: read of byte" in caught_in_halves(near + WRITE + NEAR + OUT)
    assert "race: read of byte" in caught_in_halves(
        body.replace("%r1, 4", "%r1, 128").format(-1)
    )  # the next warp's word
    # one half of the lanes arrives after the other, and they wait for each other
    apart = "  and.b32 %r9, %r0, 16;\n  setp.eq.u32 %p1, %r9, 0;\n  @%p1 bra a;\n  bar.warp.sync -1;\n  bra b;\na:\n"
    apart += WRITE + "  bar.warp.sync -1;\nb:\n  mov.u32 %r5, 3;\n  @!%p1 ld.shared.u32 %r5, [%r2];\n" + OUT
    assert halves(near.replace("4", "64") + apart) == [i ^ 16 if i & 16 else 3 for i in range(128)]
    missing = "  and.b32 %r9, %r0, 31;\n  setp.lt.u32 %p1, %r9, 8;\n  @%p1 bar.warp.sync {};\n  mov.u32 %r5, 0;\n"
    assert halves(missing.format(255) + OUT) == [0] * 128
    assert "divergent warp barrier: other threads of its warp have exited" in caught_in_halves(missing.format(-1) + OUT)


# Asynchronous copies


def staged(fault: str) -> tuple[np.ndarray, np.ndarray]:
    tensor = ("float32", (4,), 256)
    call = interpreted.CompiledCall(faulty_kernels.staged, (tensor,), (tensor,), (("fault", fault),), "sm_90a")
    x = np.arange(512, dtype=np.float32)
    return x, interpreted.run(call, ["x", "y"], [x], [(512,)])[0]


def test_a_staged_copy_from_the_compiler():
    x, y = staged("none")
    np.testing.assert_array_equal(y, 2 * x.reshape(2, 64, 4)[:, ::-1].reshape(-1))
    for fault, message in [
        (
            "no wait",
            "read of byte 1008 of shared memory, which an asynchronous copy that is not waited for may still write",
        ),
        ("no barrier", "race: read of byte 1008 of shared memory that another thread wrote, with no barrier between"),
    ]:
        with pytest.raises(InterpretError) as error:
            staged(fault)
        assert str(error.value).splitlines()[0].endswith(": " + message)


X = np.arange(1000, 1128, dtype=np.uint32)
COPY = "  cp.async.ca.shared.global [%r1], [%rd6], 4;\n"
COMMIT, WAIT_ALL = "  cp.async.commit_group;\n", "  cp.async.wait_all;\n"


def copied(body: str) -> list[int]:
    """32 threads; %rd6 is the thread's word of X, %rd7 of the output, %r1 of shared memory, %r2 the next lane's word."""
    y = result(32, np.uint32)
    head = "  mul.wide.u32 %rd5, %r0, 4;\n  add.u64 %rd6, %rd0, %rd5;\n  add.u64 %rd7, %rd1, %rd5;\n  mov.u32 %r8, buffer;\n"
    head += "  mad.lo.u32 %r1, %r0, 4, %r8;\n  xor.b32 %r2, %r1, 4;\n"
    run(head + body + "  st.global.u32 [%rd7], %r5;\n", [source(X), y], 32, declarations=BUFFER)
    return values(y, np.uint32).tolist()


def caught_copying(body: str) -> str:
    with pytest.raises(InterpretError) as error:
        copied(body)
    return str(error.value)


OWN, NEXT = "  ld.shared.u32 %r5, [%r1];\n", "  ld.shared.u32 %r5, [%r2];\n"


def test_what_a_copy_brings_is_there_behind_its_wait():
    whole = list(range(1000, 1032))
    assert copied(COPY + WAIT_ALL + OWN) == whole
    assert copied(COPY + COMMIT + "  cp.async.wait_group 0;\n" + OWN) == whole
    assert copied(COPY + WAIT_ALL + "  bar.sync 0;\n" + NEXT) == [i ^ 1 for i in whole]
    still = "shared memory, which an asynchronous copy that is not waited for may still write"
    assert f"read of byte 0 of {still}" in caught_copying(COPY + OWN)
    assert f"read of byte 0 of {still}" in caught_copying(COPY + COMMIT + "  cp.async.wait_group 1;\n" + OWN)
    assert f"read of byte 0 of {still}" in caught_copying(COPY + "  cp.async.wait_group 0;\n" + OWN)  # not in a group
    assert f"read of byte 4 of {still}" in caught_copying(COPY + COMMIT + "  bar.sync 0;\n" + NEXT)
    assert f"write of byte 0 of {still}" in caught_copying(COPY + "  st.shared.u32 [%r1], 1;\n" + WAIT_ALL + OWN)
    assert "race: read of byte 4" in caught_copying(COPY + WAIT_ALL + NEXT)
    assert "race: write of byte 0 of shared memory that another thread read" in caught_copying(
        "  st.shared.u32 [%r1], 1;\n  bar.sync 0;\n" + NEXT + COPY + WAIT_ALL
    )


def test_groups_of_copies_land_in_their_order():
    second = "  cp.async.ca.shared.global [%r1+128], [%rd6+128], 4;\n"
    later = "  ld.shared.u32 %r5, [%r1+128];\n"
    body = COPY + COMMIT + second + COMMIT + "  cp.async.wait_group 1;\n"
    assert copied(body + OWN + WAIT_ALL) == list(range(1000, 1032))
    assert copied(body + "  cp.async.wait_group 0;\n" + later) == list(range(1032, 1064))
    assert "may still write" in caught_copying(body + later)


def test_copies_that_fill_with_zeros():
    eight = (
        "  setp.lt.u32 %p1, %r0, 8;\n  shl.b32 %r9, %r0, 4;\n  add.u32 %r9, %r9, %r8;\n  mul.wide.u32 %rd8, %r0, 16;\n"
    )
    eight += "  add.u64 %rd8, %rd8, %rd0;\n"
    copy = eight + "  @%p1 cp.async.{} [%r9], [%rd8], 16{};\n" + WAIT_ALL + "  bar.sync 0;\n" + OWN
    assert copied(copy.format("cg.shared.global.L2::128B", "")) == list(range(1000, 1032))
    assert copied(copy.format("ca.shared::cta.global", ", 8")) == [1000 + i if i % 4 < 2 else 0 for i in range(32)]
    some = "  setp.eq.u32 %p2, %r0, 3;\n  selp.u32 %r10, 0, 16, %p2;\n"
    assert copied(some + copy.format("cg.shared.global", ", %r10")) == [
        0 if i // 4 == 3 else 1000 + i for i in range(32)
    ]
    assert copied(some + copy.format("cg.shared.global", ", %p2")) == [
        0 if i // 4 == 3 else 1000 + i for i in range(32)
    ]
    wild = copy.replace("add.u64 %rd8, %rd8, %rd0", "add.u64 %rd8, %rd8, %rd0;\n  add.u64 %rd8, %rd8, 448")
    assert "out of bounds of 'x'" in caught_copying(wild.format("cg.shared.global", ""))
    nothing = some.replace("eq.u32 %p2, %r0, 3", "ge.u32 %p2, %r0, 4") + wild.format("cg.shared.global", ", %r10")
    assert copied(nothing) == [1112 + i if i < 16 else 0 for i in range(32)]
    assert "takes more of its source" in caught_copying(copy.format("cg.shared.global", ", 32"))
    assert "misaligned in shared memory" in caught_copying(
        copy.format("cg.shared.global", "").replace("[%r9]", "[%r9+4]")
    )
    assert "that they do not divide" in caught_copying(
        copy.format("cg.shared.global", "").replace("[%rd8]", "[%rd8+4]")
    )
