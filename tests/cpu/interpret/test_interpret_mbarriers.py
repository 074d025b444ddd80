"""mbarriers and st.async: blocks of a cluster send each other values, and every error in doing so."""

import numpy as np
import pytest
from ptx_running import result, run, values

from codegen.interpret.machine import InterpretError

# Two blocks of 64 threads send each other a word of each thread, round after round. %r1 is the rank, %r2 the thread's
# word, %r3 the same word in the other block, %r4 the other block's mbarrier, %r8 the value that is sent; each round
# adds 100
SHARED = "  .shared .align 16 .b8 buffer[512];\n  .shared .align 8 .b8 barrier[16];"
HEAD = """
  mov.u32 %r1, %cluster_ctarank;
  xor.b32 %r6, %r1, 1;
  mov.u32 %r9, buffer;
  shl.b32 %r5, %r0, 2;
  add.u32 %r2, %r9, %r5;
  mapa.shared::cluster.u32 %r3, %r2, %r6;
  mapa.shared::cluster.u32 %r4, barrier, %r6;
  setp.eq.u32 %p1, %r0, 0;
  mad.lo.u32 %r8, %r1, 64, %r0;
  mul.wide.u32 %rd10, %r8, 4;
  add.u64 %rd11, %rd0, %rd10;
"""
INIT = "  @%p1 mbarrier.init.shared.b64 [barrier], 1;\n  @%p1 mbarrier.init.shared.b64 [barrier+8], 1;\n"
FENCE = "  fence.mbarrier_init.release.cluster;\n"
MEET = "  barrier.cluster.arrive.relaxed;\n  barrier.cluster.wait;\n"
START = INIT + FENCE + MEET
EXPECT = "  @%p1 mbarrier.arrive.expect_tx.shared.b64 %rd20, [barrier+{at}], 256;\n"
SEND = "  st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r3+{word}], %r8, [%r4+{at}];\n"
WAIT = (
    "WAIT_{round}:\n  mbarrier.try_wait.parity.shared.b64 %p2, [barrier+{at}], {parity};\n  @!%p2 bra WAIT_{round};\n"
)
READ = "  ld.shared.u32 %r8, [%r2+{word}];\n  add.u32 %r8, %r8, 100;\n"
OUT = "  st.global.u32 [%rd11], %r8;\n"


def rounds(count: int, slots: int) -> str:
    """Rounds that use this many slots in turn."""
    text = ""
    for i in range(count):
        slot = i % slots
        once = (EXPECT + SEND + WAIT + READ).format(at=8 * slot, word=256 * slot, round=i, parity=i // slots % 2)
        text += once
    return text


def pair(body: str) -> list[int]:
    y = result(128, np.uint32)
    run(HEAD + body, [y], 64, 2, declarations=SHARED, cluster=(2, 1, 1))
    return values(y, np.uint32).tolist()


def caught(body: str) -> str:
    with pytest.raises(InterpretError) as error:
        pair(body)
    return str(error.value)


SWAPPED = [*range(64, 128), *range(64)]


def test_blocks_send_each_other_values():
    assert pair(START + rounds(1, 1) + OUT) == [i + 100 for i in SWAPPED]


def test_rounds_in_turns():
    """A block may overwrite the values of two rounds ago: their reader has sent since."""
    assert pair(START + rounds(5, 2) + OUT) == [i + 500 for i in SWAPPED]


def test_rounds_without_turns_race():
    """The other block may still read the last round's values, or may not have received them."""
    assert "race: second write of byte 0 of the shared memory of block 1 of its cluster that another" in caught(
        START + rounds(2, 1) + OUT
    )


def test_vectors_of_words():
    two = (
        "  st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%r3+{word}], {{%r8, %r0}}, [%r4+{at}];\n"
    )
    body = "  add.u32 %r2, %r2, %r5;\n  add.u32 %r3, %r3, %r5;\n" + START + EXPECT.replace("256", "512") + two + WAIT
    read = "  ld.shared.v2.u32 {{%r8, %r11}}, [%r2];\n  mad.lo.u32 %r8, %r11, 1000, %r8;\n"
    body = (body + read + OUT).format(at=0, word=0, round=0, parity=0)
    assert pair(body) == [i + 1000 * (i % 64) for i in SWAPPED]


def test_values_not_waited_for():
    body = (START + EXPECT + SEND + READ + OUT).format(at=0, word=0)
    assert "race: read of byte 0 of shared memory that another thread wrote" in caught(body)  # though all have arrived
    assert "which an asynchronous copy that is not waited for may still write" in caught(body.replace("256", "512"))


def test_only_who_waits_knows_and_whom_it_meets():
    """The second warp does not wait. It may not read because the first warp has waited, until they meet at a barrier."""
    skip = "  setp.ge.u32 %p3, %r0, 32;\n  @%p3 bra PAST;\n"

    def body(meet: str) -> str:
        steps = EXPECT + SEND + skip + WAIT + "PAST:\n" + meet + READ + OUT
        return START + steps.format(at=0, word=0, round=0, parity=0)

    assert pair(body("  bar.sync 0;\n")) == [i + 100 for i in SWAPPED]
    assert "race: read of byte 128 of shared memory that another thread wrote" in caught(body(""))
    sender = START + (EXPECT + SEND).format(at=0, word=0)
    own = sender.replace("[%r3+0], %r8, [%r4+0]", "[%r7], %r8, [%r10]").replace(
        "  st.async",
        "  mapa.shared::cluster.u32 %r7, %r2, %r1;\n  mapa.shared::cluster.u32 %r10, barrier, %r1;\n  st.async",
    )
    assert "race: read of byte" in caught(own + "  bar.sync 0;\n" + READ.format(word=0) + OUT)  # nor the sender itself


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (INIT + MEET + rounds(1, 1), "race: use of an mbarrier that another thread initialised, with no barrier between"),
        (INIT + FENCE + rounds(1, 1), "which may not have started: no cluster barrier came before"),
        (MEET + rounds(1, 1), "there is no mbarrier at byte"),
        (START + rounds(1, 1).replace("256", "260"), "a wait for a phase of an mbarrier that nothing brings to its end"),
        (START + rounds(1, 1).replace("256", "128"), "which an asynchronous copy that is not waited for may still write"),
        (START + rounds(1, 1).replace("mbarrier.arrive.expect_tx.shared.b64 %rd20, [barrier+0], 256", "mov.u32 %r7, 0"),
         "a wait for a phase of an mbarrier that nothing brings to its end"),
        (START + EXPECT.format(at=0) + EXPECT.format(at=0), "more arrivals at an mbarrier than the 1 that its phase takes"),
        (START + (EXPECT + SEND).format(at=0, word=0), "the block exits without a wait for the last phase of the mbarrier"),
        (START + rounds(1, 1).replace("[%r4+0]", "[%r7]").replace("  st.async", "  mov.u32 %r7, barrier;\n  st.async"),
         "st.async to one block's memory, with the mbarrier of another"),
        (START + rounds(1, 1).replace("[%r3+0]", "[%r3+2]"), "misaligned in the shared memory of block 1 of its cluster"),
        (START + rounds(1, 1).replace("[%r3+0]", "[%r3+512]"), "out of bounds of the shared memory of block 1"),
    ],
)  # fmt: skip
def test_faults(body, message):
    assert message in caught(body + OUT)


def test_unknown_forms():
    for text in ("mbarrier.inval.shared.b64 [barrier];", "mbarrier.arrive.noComplete.shared.b64 %rd20, [barrier], 1;"):
        with pytest.raises(Exception, match="unknown instruction"):
            pair(START + f"  {text}\n" + OUT)
