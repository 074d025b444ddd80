"""Bulk copies from shared to global memory: blocks add numbers to an array in turns, and every error in doing so."""

import numpy as np
import pytest
from ptx_running import result, run, source, values

from codegen.interpret import machine
from codegen.interpret.machine import InterpretError

# Blocks of 32 threads. A thread stores the number 1.5 * (its place + 10 * the block's) in shared memory; thread 0 adds all 32 to y,
# after the word of turns is the block's number. The first block stores them
BUFFER = "  .shared .align 16 .b8 buffer[128];"
STORE = """
  mov.u32 %r1, %ctaid.x;
  mad.lo.u32 %r2, %r1, 10, %r0;
  cvt.rn.f32.u32 %r3, %r2;
  mul.rn.f32 %r3, %r3, 0f3FC00000;
  mov.u32 %r4, buffer;
  shl.b32 %r5, %r0, 2;
  add.u32 %r6, %r4, %r5;
  st.shared.b32 [%r6], %r3;
  fence.proxy.async.shared::cta;
  bar.sync 0;
  setp.ne.u32 %p1, %r0, 0;
  @%p1 bra DONE;
"""
AWAIT = """
LOOK:
  ld.acquire.gpu.global.u32 %r7, [%rd1];
  setp.eq.u32 %p2, %r7, %r1;
  @%p2 bra MINE;
  nanosleep.u32 20;
  bra LOOK;
MINE:
"""
SEND = """
  setp.eq.u32 %p3, %r1, 0;
  @%p3 cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r4], 128;
  @!%p3 cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%rd0], [%r4], 128;
  cp.async.bulk.commit_group;
"""
END = "  cp.async.bulk.wait_group 0;\n  add.u32 %r8, %r1, 1;\n  st.release.gpu.global.u32 [%rd1], %r8;\n"
DONE = "DONE:\n"


def turns(body: str, blocks: int = 3) -> np.ndarray:
    y, word = result(32, np.float32), result(1, np.uint32, "turns")
    word.begin_as(np.zeros(1, np.uint32))
    run(body, [y, word], 32, blocks, declarations=BUFFER)
    return values(y, np.float32)


def caught(body: str, blocks: int = 1) -> str:
    with pytest.raises(InterpretError) as error:
        turns(body, blocks)
    return str(error.value)


def test_blocks_add_in_turns():
    expected = sum(1.5 * (np.arange(32) + 10 * block) for block in range(3))
    np.testing.assert_array_equal(turns(STORE + AWAIT + SEND + END + DONE), expected)


def test_a_turn_that_never_comes(monkeypatch):
    monkeypatch.setattr(machine, "STEPS", 500)
    assert "an endless loop" in caught(STORE + AWAIT.replace("%p2, %r7, %r1", "%p2, %r7, 9") + SEND + END + DONE)


def test_turns_need_the_copy_to_be_complete():
    """Waiting for its reads alone frees the memory it reads."""
    early = END.replace("wait_group 0", "wait_group.read 0")
    assert "another one, not waited for, may still write" in caught(STORE + AWAIT + SEND + early + DONE, 2)
    assert "exits without a wait for its last bulk copy" in caught(STORE + SEND + early + DONE)


def test_reads_of_a_copy_under_way():
    """Shared memory may be overwritten once the copy has read it."""
    again = "  st.shared.b32 [%r6], %r5;\n"
    read = "  cp.async.bulk.wait_group.read 0;\n"
    assert "a bulk copy that is not waited for may still read" in caught(STORE + SEND + again + END + DONE)
    np.testing.assert_array_equal(turns(STORE + SEND + read + again + END + DONE, 1), 1.5 * np.arange(32))


def test_stores_need_a_fence():
    bare = STORE.replace("fence.proxy.async.shared::cta;", "")
    assert "wrote with no fence.proxy.async since" in caught(bare + SEND + END + DONE)


def test_addresses_and_sizes():
    assert "16 does not divide" in caught(STORE + SEND.replace("[%rd0]", "[%rd0+4]") + END + DONE)
    assert "out of bounds of 'y'" in caught(STORE + SEND.replace("[%rd0]", "[%rd0+16]") + END + DONE)


def test_plain_loads_of_what_others_store_race():
    """Only an access with an order may read what another thread stores at the same time."""
    plain = AWAIT.replace("ld.acquire.gpu.global", "ld.global")
    assert "race: read of element 0 of 'turns', which another thread wrote" in caught(
        STORE + plain + SEND + END + DONE, 2
    )


def test_sums_flush_denormals():
    """As `red.add.f32` in global memory does."""
    x, y = source(np.array([2.0**-127, 1.0, -0.0, 3.0], np.float32)), result(4, np.float32)
    y.begin_as(np.array([2.0**-127, 2.0**-127, -0.0, 1.0], np.float32))
    body = """
  setp.ne.u32 %p1, %r0, 0;
  @%p1 bra DONE;
  ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%rd0];
  mov.u32 %r5, buffer;
  st.shared.v4.b32 [%r5], {%r1, %r2, %r3, %r4};
  fence.proxy.async;
  cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%rd1], [%r5], 16;
  cp.async.bulk.commit_group;
  cp.async.bulk.wait_group 0;
DONE:
"""
    run(body, [x, y], 32, declarations=BUFFER)
    assert values(y, np.float32).tolist() == [0.0, 1.0, 0.0, 4.0]
    assert np.signbit(values(y, np.float32)[2])
