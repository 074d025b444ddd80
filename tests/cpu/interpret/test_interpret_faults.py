"""Broken kernels: each error is reported with its thread, instruction, source line or PTX text, and the operand's name.

Each faulty kernel has a sound twin, which runs.
"""

import re
from pathlib import Path

import faulty_kernels
import numpy as np
import pytest
from ptx_running import kernel_of, result, run, source, values, words

from codegen.interpret import machine
from codegen.interpret.kernel import Kernel
from codegen.interpret.machine import InterpretError
from codegen.interpret.memory.arrays import make_array
from codegen.interpret.ptx import PtxError
from codegen.runtime.compiled import interpreted

SOURCE = Path(faulty_kernels.__file__)


def double(launch, fault: str, size: int, divisor: int = 1) -> tuple[np.ndarray, np.ndarray]:
    tensor = ("float32", (divisor,), 256)
    call = interpreted.CompiledCall(launch, (tensor,), (tensor,), (("fault", fault),), "sm_90a")
    x = np.arange(size, dtype=np.float32)
    return x, interpreted.run(call, ["x", "y"], [x], [(size,)])[0]


def line_of(text: str, launcher: str = "double_kernel") -> str:
    """The file:line of the one line that ends in a comment."""
    lines = [i for i, line in enumerate(SOURCE.read_text().splitlines(), 1) if line.endswith(f"# {text}")]
    assert len(lines) == 1
    return f"{SOURCE}:{lines[0]}"


@pytest.mark.parametrize("size", [1, 63, 64, 65, 100, 128])
def test_the_sound_kernel_passes(size):
    x, y = double(faulty_kernels.double, "none", size)
    np.testing.assert_array_equal(y, 2 * x)


@pytest.mark.parametrize(
    ("fault", "message", "thread", "instruction", "comment"),
    [
        ("predicate off by one", "load of 4 bytes out of bounds of 'x': byte 400 of 400 (element 100 of 100)",
         "block (1, 0, 0) thread (36, 0, 0)", "ld.global.b32", "off by one"),
        ("missing predicate", "load of 4 bytes out of bounds of 'x': byte 400 of 400 (element 100 of 100)",
         "block (1, 0, 0) thread (36, 0, 0)", "ld.global.b32", "no predicate"),
        ("wrong index stride", "load of 4 bytes out of bounds of 'x': byte 408 of 400 (element 102 of 100)",
         "block (0, 0, 0) thread (34, 0, 0)", "ld.global.b32", "wrong stride"),
        ("read before written", "read of element 0 of 'y', which nothing has written",
         "block (0, 0, 0) thread (0, 0, 0)", "ld.global.b32", "accumulates"),
        ("two writers", "race: two threads write element 0 of 'y' differently",
         "block (0, 0, 0) thread (1, 0, 0)", "st.global.b32", "collides"),
        ("store into an input", "store into the input 'x'",
         "block (0, 0, 0) thread (0, 0, 0)", "st.global.b32", "in place"),
    ],
)  # fmt: skip
def test_faults_in_global_memory(fault, message, thread, instruction, comment):
    with pytest.raises(InterpretError) as caught:
        double(faulty_kernels.double, fault, 100)
    kernel, where, text, place = str(caught.value).splitlines()
    assert kernel.startswith("kernel_cutlass_double_kernel")
    assert kernel.endswith(": " + message)
    assert where == f"  at {thread}"
    assert text.startswith(f"  {instruction} ")
    assert place == f"  {line_of(comment)}"


def test_an_unwritten_tail():
    with pytest.raises(InterpretError, match=r"double_kernel.*: 3 elements of 'y' were never written, .* element 97$"):
        double(faulty_kernels.double, "unwritten tail", 100)


def test_a_vector_at_the_wrong_alignment():
    x, y = double(faulty_kernels.double_vectors, "none", 264, 4)
    np.testing.assert_array_equal(y, 2 * x)
    with pytest.raises(InterpretError) as caught:
        double(faulty_kernels.double_vectors, "wrong alignment", 264, 4)
    message, where, text, place = str(caught.value).splitlines()
    assert message.endswith(": misaligned load of 16 bytes at byte 4 of 'x'")
    assert where == "  at block (0, 0, 0) thread (0, 0, 0)"
    assert text.startswith("  ld.global.v4.b32 ")
    assert place == f"  {line_of('the vector')}"


# Shared memory. Each thread has its own word at %r1, and its right neighbour's (modulo 64) at %r2


ROUND = """
  mov.b32 %r8, buffer;
  shl.b32 %r3, %r0, 2;
  add.s32 %r1, %r8, %r3;
  add.s32 %r4, %r0, 1;
  and.b32 %r4, %r4, 63;
  shl.b32 %r4, %r4, 2;
  add.s32 %r2, %r8, %r4;
"""
BUFFER = "  .shared .align 16 .b8 buffer[256];"
WRITE = "  st.shared.b32 [%r1], %r0;\n"
BARRIER = "  bar.sync 0;\n"
READ = "  ld.shared.b32 %r5, [%r2];\n"
OVERWRITE = "  st.shared.b32 [%r1], %r5;\n"
OUT = "  st.global.b32 [%rd16], %r5;\n"


def on_two_warps(body: str) -> list[int]:
    return words(64, 64, ROUND + body, declarations=BUFFER)


def caught_on_two_warps(body: str) -> list[str]:
    with pytest.raises(InterpretError) as caught:
        on_two_warps(body)
    return str(caught.value).splitlines()


def test_shared_memory_between_barriers():
    """Neighbours' words are written, read and overwritten, twice, each step after a barrier."""
    assert on_two_warps(WRITE + BARRIER + READ + OUT) == [(i + 1) % 64 for i in range(64)]
    twice = WRITE + BARRIER + READ + BARRIER + OVERWRITE + BARRIER + READ + OUT
    assert on_two_warps(twice) == [(i + 2) % 64 for i in range(64)]


def test_a_read_after_a_write_with_no_barrier():
    message, where, text = caught_on_two_warps(WRITE + READ + OUT)
    assert message == "made: race: read of byte 4 of shared memory that another thread wrote, with no barrier between"
    assert where == "  at block (0, 0, 0) thread (0, 0, 0)"
    assert text.split() == READ.rstrip(";\n").split()


def test_a_write_after_a_read_with_no_barrier():
    message, where, text = caught_on_two_warps(WRITE + BARRIER + READ + OVERWRITE + OUT)
    assert message == "made: race: write of byte 0 of shared memory that another thread read, with no barrier between"
    assert where == "  at block (0, 0, 0) thread (0, 0, 0)"
    assert text.split() == OVERWRITE.rstrip(";\n").split()


def test_a_write_after_many_threads_read_at_once():
    """All threads read word 63, and its owner, who read it too, writes it."""
    body = WRITE + BARRIER + "  ld.shared.b32 %r5, [buffer+252];\n"
    last = "  setp.eq.u32 %p1, %r0, 63;\n  @%p1 st.shared.b32 [buffer+252], %r0;\n"
    assert on_two_warps(body + BARRIER + last + OUT) == [63] * 64
    message, where, text = caught_on_two_warps(body + last + OUT)
    assert message == "made: race: write of byte 252 of shared memory that another thread read, with no barrier between"
    assert where == "  at block (0, 0, 0) thread (63, 0, 0)"
    assert text == "  @%p1 st.shared.b32 [buffer+252], %r0"


@pytest.mark.parametrize("together", [False, True], ids=["two instructions", "one instruction"])
def test_a_write_after_a_write_with_no_barrier(together):
    again = "  st.shared.b32 [buffer], %r0;\n" if together else "  st.shared.b32 [%r2], %r0;\n"
    message, where, text = caught_on_two_warps(("" if together else WRITE) + again)
    expected = "made: race: second write of byte {} of shared memory that another thread wrote, with no barrier between"
    assert message == expected.format(0 if together else 4)
    assert where == "  at block (0, 0, 0) thread (0, 0, 0)"
    assert text.split() == again.rstrip(";\n").split()


def test_threads_may_write_one_value_together():
    body = "  mov.u32 %r6, 7;\n  st.shared.b32 [buffer], %r6;\n" + BARRIER + "  ld.shared.b32 %r5, [buffer];\n" + OUT
    assert on_two_warps(body) == [7] * 64


def test_shared_memory_that_nothing_wrote():
    message, where, text = caught_on_two_warps(READ + OUT)
    assert message == "made: read of byte 4 of shared memory, which nothing has written"
    assert where == "  at block (0, 0, 0) thread (0, 0, 0)"
    assert "ld.shared.b32" in text


def test_shared_memory_is_each_blocks_own():
    """Block 1 does not see what block 0 wrote."""
    body = ROUND + "  mov.u32 %r9, %ctaid.x;\n  setp.eq.u32 %p1, %r9, 0;\n  @%p1 st.shared.b32 [%r1], %r0;\n"
    with pytest.raises(InterpretError, match=r"(?s)nothing has written.*block \(1, 0, 0\) thread \(0, 0, 0\)"):
        run(body + BARRIER + READ, [result(1, np.uint32)], 64, 2, declarations=BUFFER)


def test_shared_memory_out_of_bounds():
    message, where, _ = caught_on_two_warps("  st.shared.b32 [%r1+8], %r0;\n")
    assert message == "made: store of 4 bytes out of bounds of shared memory: byte 256 of 256"
    assert where == "  at block (0, 0, 0) thread (62, 0, 0)"
    message, *_ = caught_on_two_warps("  st.shared.b32 [%r1+-4], %r0;\n")
    assert message == "made: store of 4 bytes out of bounds of shared memory: byte -4 of 256"


def test_shared_memory_misaligned():
    store = "  setp.lt.u32 %p1, %r0, {};\n  @%p1 st.shared.b64 [%r1], %rd0;\n"
    on_two_warps(store.format(1) + OUT.replace("%r5", "%r0"))
    message, where, text = caught_on_two_warps(store.format(2))
    assert message == "made: store of 8 bytes misaligned in shared memory: byte 4 of 256"
    assert where == "  at block (0, 0, 0) thread (1, 0, 0)"
    assert text == "  @%p1 st.shared.b64 [%r1], %rd0"


# Barriers and control flow


def test_threads_that_leave_before_a_barrier():
    leave = "  setp.ge.u32 %p1, %r0, 48;\n  st.global.b32 [%rd16], %r0;\n  @%p1 ret;\n"
    assert words(64, 64, leave) == list(range(64))
    with pytest.raises(InterpretError) as caught:
        words(64, 64, leave + BARRIER)
    message, where, text = str(caught.value).splitlines()
    assert message == (
        "made: divergent barrier: other threads of its block have exited (block (0, 0, 0) thread (48, 0, 0))"
    )
    assert where == "  at block (0, 0, 0) thread (0, 0, 0)"
    assert text == "  bar.sync 0"


def test_threads_at_different_barriers():
    branch = "  setp.ge.u32 %p1, %r0, 32;\n  @%p1 bra other;\n  {}\n  bra end;\nother:\n  {}\nend:\n"
    store = "  st.global.b32 [%rd16], %r0;\n"
    assert words(64, 64, branch.format("", "") + BARRIER + store) == list(range(64))
    with pytest.raises(InterpretError) as caught:
        words(64, 64, branch.format("bar.sync 0;", "bar.sync 1;") + store)
    message, where, text = str(caught.value).splitlines()
    assert message == (
        "made: divergent barrier: other threads wait at another barrier (block (0, 0, 0) thread (32, 0, 0))"
    )
    assert where == "  at block (0, 0, 0) thread (0, 0, 0)"
    assert text == "  bar.sync 0"


def test_an_endless_loop(monkeypatch):
    monkeypatch.setattr(machine, "STEPS", 500)
    loop = "  mov.u32 %r1, 0;\nagain:\n  add.s32 %r1, %r1, {};\n  setp.lt.u32 %p1, %r1, 100;\n  @%p1 bra again;\n"
    store = "  st.global.b32 [%rd16], %r1;\n"
    assert words(32, 32, loop.format("1") + store) == [100] * 32
    with pytest.raises(InterpretError) as caught:
        words(32, 32, loop.format("0") + store)
    message, where, text = str(caught.value).splitlines()
    assert message == "made: still running after 500 basic blocks: an endless loop"
    assert where == "  at block (0, 0, 0) thread (0, 0, 0)"
    assert text == "  add.s32 %r1, %r1, 0"


def test_a_trap():
    body = "  setp.eq.u32 %p1, %r0, {};\n  @%p1 trap;\n  st.global.b32 [%rd16], %r0;\n"
    assert words(body=body.format(40)) == list(range(32))
    with pytest.raises(InterpretError, match=r"made: trap\n  at block \(0, 0, 0\) thread \(7, 0, 0\)\n  @%p1 trap"):
        words(body=body.format(7))


# Warps


def test_a_shuffle_from_a_lane_that_is_not_there():
    body = "  setp.lt.u32 %p1, %r0, 8;\n  mov.u32 %r1, %r0;\n  @%p1 shfl.sync.bfly.b32 %r1, %r0, {}, 31, {};\n"
    store = "  st.global.b32 [%rd16], %r1;\n"
    assert words(body=body.format(4, 255) + store) == [i ^ 4 if i < 8 else i for i in range(32)]
    with pytest.raises(InterpretError) as caught:
        words(body=body.format(8, 255) + store)
    message, where, text = str(caught.value).splitlines()
    assert message == "made: shuffle from lane 8 of its warp, which is not active"
    assert where == "  at block (0, 0, 0) thread (0, 0, 0)"
    assert text.startswith("  @%p1 shfl.sync.bfly.b32 ")
    with pytest.raises(InterpretError, match=r"made: lane 31 of its warp is in the mask but not here"):
        words(body=body.format(4, -1) + store)


# Instructions that the interpreter does not support


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("dp4a.u32.u32 %r1, %r2, %r3, %r4;", "made: unknown instruction 'dp4a.u32.u32': dp4a.u32.u32 %r1, %r2, %r3, %r4"),
        ("add.rn.round.f32 %r1, %r2, %r3;", "made: unknown instruction 'add.rn.round.f32' (its .round is not known)"),
        ("cvt.rz.bf16.f32 %h1, %r3;", "made: unknown instruction 'cvt.rz.bf16.f32' (its .rz is not known)"),
        ("cvt.rn.relu.bf16.f32 %h1, %r3;", "made: unknown instruction 'cvt.rn.relu.bf16.f32' (its .relu is not known)"),
        ("cvt.rn.satfinite.e2m1x2.f32 %h1, %r1, %r2;", "made: unknown form of 'cvt.rn.satfinite.e2m1x2.f32'"),
        ("add.rz.f64 %rd1, %rd2, %rd3;", "made: unknown instruction 'add.rz.f64' (its .rz is not known)"),
        ("add.relu.s32 %r1, %r2, %r3;", "made: unknown instruction 'add.relu.s32' (its .relu is not known)"),
        ("atom.add.u32 %r1, [%rd0], %r2;", "made: unknown instruction 'atom.add.u32' (its .add is not known)"),
        ("atom.global.inc.u32 %r1, [%rd0], %r2;", "made: unknown instruction 'atom.global.inc.u32' (its .inc is not"),
        ("bar.red.popc.u32 %r1, 0, %p1;", "made: unknown instruction 'bar.red.popc.u32'"),
        ("bar.arrive 1;", "made: unknown instruction 'bar.arrive': bar.arrive 1"),
        ("barrier.cluster.arrive.acquire;", "made: unknown instruction 'barrier.cluster.arrive.acquire'"),
        ("call.uni helper;", "made: unknown instruction 'call.uni': call.uni helper"),
        ("add.s32 %r1, %q2, 1;", "made: the register %q2 is not declared"),
        ("@%q1 add.s32 %r1, %r2, 1;", "made: the register %q1 is not declared"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_named(line, message):
    assert isinstance(kernel_of("  add.s32 %r1, %r2, %r3;", 1), Kernel)
    with pytest.raises(PtxError, match=re.escape(message)):
        kernel_of("  " + line, 1)


@pytest.mark.parametrize(
    ("wrote", "stored", "converted"),
    [
        ("add.f32 %r1, %r2, %r3;", "st.global.b8 [%rd0], %r1;", True),
        ("ld.global.f32 %r1, [%rd0];", "st.global.u16 [%rd0], %r1;", True),
        ("cvt.rn.f32.s32 %r1, %r2;", "st.global.v2.b8 [%rd0], {%r2, %r1};", True),
        ("cvt.rn.bf16.f32 %h1, %r2;", "st.global.b8 [%rd0], %h1;", True),
        ("add.f64 %rd1, %rd2, %rd3;", "st.global.b32 [%rd0], %rd1;", True),
        ("add.f32 %r2, %r1, %r3;\n mov.b32 %r1, %r2;", "st.global.b8 [%rd0], %r1;", False),
        ("add.f32 %r1, %r2, %r3;", "st.global.b32 [%rd0], %r1;", False),
        ("cvt.rni.s32.f32 %r1, %r2;", "st.global.b8 [%rd0], %r1;", False),
        ("cvt.rn.bf16.f32 %h1, %r2;", "st.global.b16 [%rd0], %h1;", False),
    ],
)
def test_a_part_of_a_float_is_not_stored(wrote, stored, converted):
    """For the `converted` kernels ptxas makes machine code (F2I, F2IP) that differs from PTX's definition."""
    if not converted:
        assert isinstance(kernel_of(f"  {wrote}\n  {stored}", 1), Kernel)
        return
    with pytest.raises(PtxError, match="made: ptxas converts to an integer what is stored here in part") as caught:
        kernel_of(f"  {wrote}\n  {stored}", 1)
    assert str(caught.value).splitlines()[1:] == [f"  {stored[:-1]}", f"  {wrote[:-1]}"]


def test_wild_addresses():
    x = source(np.zeros(4, np.float32))
    with pytest.raises(InterpretError, match=r"out of bounds of 'x': byte -4 of 16 \(before its start\)"):
        run("  ld.global.b32 %r1, [%rd0+-4];", [x])
    x = make_array("x", np.zeros(4, np.float32), False)
    with pytest.raises(
        InterpretError, match=r"store of 4 bytes out of bounds of 'x': byte 16 of 16 \(element 4 of 4\)"
    ):
        run("  st.global.b32 [%rd0+16], %r0;", [x])


def test_two_threads_that_write_different_parts_of_a_word():
    """A wide store over a narrow one of another thread."""
    y = result(4, np.uint8)
    narrow = "  setp.eq.u32 %p1, %r0, {};\n  mov.u32 %r1, 9;\n  @%p1 st.global.b8 [%rd0+2], %r1;\n"
    wide = "  mov.u32 %r2, 0;\n  setp.eq.u32 %p2, %r0, 0;\n  @%p2 st.global.v4.b8 [%rd0], {%r2, %r2, %r2, %r2};\n"
    run(narrow.format(0) + wide, [y])
    assert values(y, np.uint8).tolist() == [0, 0, 0, 0]
    with pytest.raises(InterpretError, match="race: two threads write element 2 of 'y' differently"):
        run(narrow.format(1) + wide, [result(4, np.uint8)])
