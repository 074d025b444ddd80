"""Clusters of blocks: their barriers, access to each other's shared memory, and every error in using them."""

import itertools

import faulty_kernels
import numpy as np
import pytest
from ptx_running import kernel_of, result, run, source, values

from codegen.interpret import machine
from codegen.interpret.machine import InterpretError
from codegen.runtime.compiled import interpreted

BLOCKS, ROWS = 4, 3


def cluster_sum(fault: str, arch: str = "sm_90a", blocks: int = BLOCKS, columns: int = 1000):
    matrix, vector = ("float32", (1, 1), 256), ("float32", (1,), 256)
    constants = (("blocks", blocks), ("fault", fault))
    call = interpreted.CompiledCall(faulty_kernels.cluster_sum, (matrix,), (vector,), constants, arch)
    x = np.arange(ROWS * columns, dtype=np.float32).reshape(ROWS, columns) % 7
    return x, interpreted.run(call, ["x", "y"], [x], [(ROWS,)])[0]


# A kernel from the compiler. Sums of small integers are exact in any order


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a", "sm_120a"])
def test_a_cluster_sums_a_row(arch):
    for blocks, columns in [(1, 1000), (2, 1), (4, 1000), (8, 4097)]:
        x, y = cluster_sum("none", arch, blocks, columns)
        np.testing.assert_array_equal(y, x.sum(axis=1))


def test_a_fence_stands_for_a_releasing_arrival():
    x, y = cluster_sum("a relaxed arrival behind a fence")
    np.testing.assert_array_equal(y, x.sum(axis=1))


LOAD, OTHER = "ld.shared::cluster.f32", "the shared memory of block {} of its cluster"


@pytest.mark.parametrize(
    ("fault", "message", "where", "instruction"),
    [
        ("a block's barrier", f"race: read of byte 0 of {OTHER.format(0)} that another thread wrote, with no barrier between",
         "block (1, 0, 0) thread (0, 0, 0)", LOAD),
        ("a relaxed arrival", "race: read of byte 0 of shared memory that another thread wrote, with no barrier between",
         "block (0, 0, 0) thread (1, 0, 0)", LOAD),
        ("an arrival by half the threads", "race: read of byte 0 of shared memory that another thread wrote, with no "
         "barrier between", "block (0, 0, 0) thread (32, 0, 0)", LOAD),
        ("overwritten while others read", "race: write of byte 0 of shared memory that another thread read, with no "
         "barrier between", "block (0, 0, 0) thread (0, 0, 0)", "st.shared"),
        ("exit while others read", f"race: access to {OTHER.format(0)}, which may have exited: it waits for no cluster "
         "barrier after", "block (1, 0, 0) thread (0, 0, 0)", LOAD),
        ("remote store before the other block started", f"access to {OTHER.format(1)}, which may not have started: no "
         "cluster barrier came before", "block (0, 0, 0) thread (0, 0, 0)", "st.shared::cluster.f32"),
        ("a warp's partial sum missing", "read of byte 4 of shared memory, which nothing has written",
         "block (0, 0, 0) thread (0, 0, 0)", LOAD),
        ("out of the other block's bounds", "load of 4 bytes out of bounds of shared memory: byte 8 of 8",
         "block (0, 0, 0) thread (0, 0, 0)", LOAD),
        ("a block outside the cluster", "load of 4 bytes out of bounds of shared memory: byte 83886080 of 8",
         "block (0, 0, 0) thread (0, 0, 0)", LOAD),
        ("an instruction for the block's own", "an address in the cluster's shared memory, which this instruction takes "
         "for its own block's", "block (0, 0, 0) thread (0, 0, 0)", "ld.shared.f32"),
        ("two arrivals", "a second arrival at the cluster's barrier, with no wait since the first",
         "block (0, 0, 0) thread (0, 0, 0)", "barrier.cluster.arrive"),
        ("a wait with no arrival", "a wait at the cluster's barrier, with no arrival before it",
         "block (0, 0, 0) thread (0, 0, 0)", "barrier.cluster.wait"),
    ],
)  # fmt: skip
def test_faults_of_clusters(fault, message, where, instruction):
    with pytest.raises(InterpretError) as caught:
        cluster_sum(fault)
    kernel, at, text, place = str(caught.value).splitlines()
    assert kernel.startswith("kernel_cutlass_cluster_sum_kernel")
    assert kernel.endswith(": " + message)
    assert at == f"  at {where}"
    assert text.startswith(f"  {instruction}")
    assert place.startswith(f"  {faulty_kernels.__file__}:")


# By hand: two blocks of 32 threads; %r0 is the thread, %r1 the rank, %r2 the thread's word, %r3 the same word in the
# other block


BUFFER = "  .shared .align 16 .b8 buffer[128];"
HEAD = """
  mov.u32 %r1, %cluster_ctarank;
  mov.u32 %r4, buffer;
  shl.b32 %r5, %r0, 2;
  add.u32 %r2, %r4, %r5;
  xor.b32 %r6, %r1, 1;
  mapa.shared::cluster.u32 %r3, %r2, %r6;
  mad.lo.u32 %r8, %r1, 32, %r0;
  mul.wide.u32 %rd10, %r8, 4;
  add.u64 %rd11, %rd0, %rd10;
"""
SYNC = "  barrier.cluster.arrive.release.aligned;\n  barrier.cluster.wait.acquire.aligned;\n"
WRITE = "  st.shared.u32 [%r2], %r8;\n"
READ = "  ld.shared::cluster.u32 %r9, [%r3];\n"
OUT = "  st.global.u32 [%rd11], %r9;\n"
SWAPPED = [*range(32, 64), *range(32)]


def pair(body: str) -> list[int]:
    y = result(64, np.uint32)
    run(HEAD + body, [y], 32, 2, declarations=BUFFER, cluster=(2, 1, 1))
    return values(y, np.uint32).tolist()


def caught(body: str) -> str:
    with pytest.raises(InterpretError) as error:
        pair(body)
    return str(error.value)


def test_blocks_read_each_others_memory():
    assert pair(WRITE + SYNC + READ + SYNC + OUT) == SWAPPED
    again = "  add.u32 %r8, %r9, 100;\n"
    assert pair(WRITE + SYNC + READ + SYNC + again + WRITE + SYNC + READ + SYNC + OUT) == [i + 100 for i in range(64)]


def test_a_write_after_another_blocks_read():
    assert pair(WRITE + SYNC + READ + SYNC + WRITE + OUT) == SWAPPED
    message = "race: write of byte 0 of shared memory that another thread read, with no barrier between"
    assert message in caught(WRITE + SYNC + READ + WRITE + SYNC + OUT)
    assert message in caught(WRITE + SYNC + READ + "  bar.sync 0;\n" + WRITE + SYNC + OUT)


def test_blocks_write_each_others_memory():
    store = "  st.shared::cluster.u32 [%r3], %r8;\n"
    own = "  ld.shared.u32 %r9, [%r2];\n"
    assert pair(SYNC + store + SYNC + own + OUT) == SWAPPED
    assert "race: read of byte 0 of shared memory that another thread wrote" in caught(SYNC + store + own + OUT + SYNC)
    assert "race: second write of byte 0 of shared memory" in caught(SYNC + store + WRITE + SYNC + own + OUT)
    both = "  st.shared::cluster.u32 [%r3], 7;\n  st.shared.u32 [%r2], 7;\n"
    assert "race: second write" in caught(SYNC + both + SYNC + own + OUT)


def test_vectors_between_blocks():
    y = result(64, np.uint32)
    vectors = """
  setp.lt.u32 %p1, %r0, 8;
  shl.b32 %r10, %r0, 4;
  add.u32 %r10, %r4, %r10;
  mapa.shared::cluster.u32 %r10, %r10, %r6;
  @%p1 ld.shared::cluster.v4.b32 {%r11, %r12, %r13, %r14}, [%r10];
  mul.wide.u32 %rd12, %r0, 16;
  mul.wide.u32 %rd13, %r1, 128;
  add.u64 %rd12, %rd12, %rd13;
  add.u64 %rd12, %rd12, %rd0;
  @%p1 st.global.v4.b32 [%rd12], {%r11, %r12, %r13, %r14};
"""
    run(HEAD + WRITE + SYNC + vectors + SYNC, [y], 32, 2, declarations=BUFFER, cluster=(2, 1, 1))
    assert values(y, np.uint32).tolist() == SWAPPED
    swap = "  setp.eq.u32 %p1, %r0, 1;\n  @%p1 st.shared::cluster.v2.f32 [%r3], {%r8, %r8};\n"
    assert "misaligned in the shared memory of block 1 of its cluster: byte 4 of 128" in caught(SYNC + swap + SYNC)


def test_addresses_in_the_cluster():
    ranks = "  getctarank.shared::cluster.u32 %r9, [%r3];\n".replace("[%r3]", "%r3")
    assert pair(ranks + OUT) == [1] * 32 + [0] * 32
    assert pair(ranks.replace("%r3", "%r2") + OUT) == [0] * 32 + [1] * 32
    own = "  mapa.shared::cluster.u32 %r3, buffer, %r1;\n  add.u32 %r3, %r3, %r5;\n"
    assert pair(own + WRITE + SYNC + READ + OUT) == list(range(64))
    assert "mapa of an address that is mapped already" in caught("  mapa.shared::cluster.u32 %r3, %r3, %r6;\n")
    below = READ.replace("%r3", "%r3+-4")
    assert "load of 4 bytes out of bounds of the shared memory of block 1 of its cluster: byte -4 of 128" in caught(
        WRITE + SYNC + below + SYNC + OUT
    )
    unwritten = SYNC + READ + SYNC + OUT
    assert "read of byte 0 of the shared memory of block 1 of its cluster, which nothing has written" in caught(
        unwritten
    )


def test_a_block_waits_for_its_readers():
    """A remote access must be followed by a barrier that the owner waits for; a relaxed one is enough."""
    relaxed = SYNC.replace(".release", ".relaxed")
    assert pair(WRITE + SYNC + READ + relaxed + OUT) == SWAPPED
    assert "which may have exited" in caught(WRITE + SYNC + READ + OUT)
    assert "which may have exited" in caught(WRITE + SYNC + READ + "  barrier.cluster.arrive;\n" + OUT)
    leave = "  setp.eq.u32 %p1, %r1, 1;\n  @%p1 ret;\n"
    assert "block 1 of its cluster, which has exited" in caught(WRITE + SYNC + leave + READ + OUT)


def test_relaxed_arrivals_release_nothing_even_later():
    relaxed = SYNC.replace(".release", ".relaxed")
    assert "race: read of byte 0" in caught(WRITE + relaxed + relaxed + READ + SYNC + OUT)
    assert pair(WRITE + relaxed + SYNC + READ + SYNC + OUT) == SWAPPED
    fence = "  fence.acq_rel.{};\n"
    assert pair(WRITE + fence.format("cluster") + relaxed + READ + SYNC + OUT) == SWAPPED
    assert "race: read of byte 0" in caught(WRITE + fence.format("cta") + relaxed + READ + SYNC + OUT)
    assert "race: read of byte 0" in caught(fence.format("cluster") + WRITE + relaxed + READ + SYNC + OUT)


def test_between_arrival_and_wait_nothing_is_ordered():
    arrive, wait = SYNC.splitlines(keepends=True)
    assert pair(WRITE + arrive + wait + READ + SYNC + OUT) == SWAPPED
    assert "race: read of byte 0" in caught(arrive + WRITE + wait + READ + SYNC + OUT)


def test_a_cluster_barrier_orders_a_blocks_own_threads():
    neighbour = "  xor.b32 %r10, %r2, 4;\n  ld.shared.u32 %r9, [%r10];\n"
    assert pair(WRITE + SYNC + neighbour + OUT) == [i ^ 1 for i in range(64)]
    assert "race: read of byte 4 of shared memory" in caught(WRITE + neighbour + SYNC + OUT)


def test_atomics_between_blocks():
    zero = "  setp.eq.u32 %p1, %r0, 0;\n  @%p1 st.shared.u32 [buffer], 0;\n"
    add = "  mapa.shared::cluster.u32 %r10, buffer, 0;\n  red.shared::cluster.add.u32 [%r10], %r8;\n"
    read = "  setp.eq.u32 %p2, %r1, 0;\n  @%p2 ld.shared.u32 %r9, [buffer];\n"
    assert pair(zero + SYNC + add + SYNC + read + OUT)[:32] == [sum(range(64))] * 32


def test_divergent_cluster_barriers():
    apart = "  setp.eq.u32 %p1, %r1, 1;\n  @%p1 bra other;\n" + SYNC + "  bra end;\nother:\n  bar.sync 1, 64;\nend:\n"
    assert "divergent barrier: it takes 64 threads, and 32 are there" in caught(WRITE + apart)


def test_cluster_barriers_wait_for_no_thread_that_has_exited():
    """But the exit of a thread releases none of its writes."""
    own = "  mov.u32 %r9, %r8;\n"
    late = "  setp.eq.u32 %p1, %r1, 1;\n  @%p1 bra end;\n" + SYNC + "end:\n"
    assert pair(own + OUT + SYNC + late) == list(range(64))
    leave = "  setp.ge.u32 %p1, %r8, 48;\n  @%p1 ret;\n"
    assert pair(own + OUT + leave + SYNC) == list(range(64))
    message = caught(WRITE + leave + SYNC + READ + SYNC + OUT)
    assert "race: read of byte 64 of the shared memory of block 1 of its cluster that another thread wrote" in message


def test_barriers_may_cross():
    """One half of a block waits for the cluster and then for its block, the other half in the other order."""
    arrive, wait = SYNC.splitlines(keepends=True)
    body = arrive + "  setp.lt.u32 %p1, %r0, 32;\n  @%p1 bra low;\n  bar.sync 0;\n" + wait
    body += "  bra end;\nlow:\n" + wait + "  bar.sync 0;\nend:\n  st.global.u32 [%rd11], %r8;\n"
    y = result(128, np.uint32)
    run(HEAD.replace("%r1, 32", "%r1, 64") + body, [y], 64, 2, declarations=BUFFER, cluster=(2, 1, 1))
    assert values(y, np.uint32).tolist() == list(range(128))


SPECIALS = [
    f"{name}.{axis}" for name in ("clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid") for axis in "xyz"
]
SPECIALS += ["cluster_ctarank", "cluster_nctarank", "ctaid.x", "ctaid.y", "ctaid.z"]


def test_places_in_a_grid_of_clusters():
    grid, cluster = (4, 6, 2), (2, 3, 1)
    count = grid[0] * grid[1] * grid[2]
    body = "  mov.u32 %r1, %ctaid.x;\n  mov.u32 %r2, %ctaid.y;\n  mov.u32 %r3, %ctaid.z;\n"
    body += f"  mad.lo.u32 %r2, %r3, {grid[1]}, %r2;\n  mad.lo.u32 %r1, %r2, {grid[0]}, %r1;\n"
    body += f"  mul.wide.u32 %rd10, %r1, {4 * (len(SPECIALS) + 1)};\n  add.u64 %rd10, %rd10, %rd0;\n"
    for i, name in enumerate(SPECIALS):
        body += f"  mov.u32 %r4, %{name};\n  st.global.u32 [%rd10+{4 * i}], %r4;\n"
    body += "  mov.pred %p1, %is_explicit_cluster;\n  selp.u32 %r4, 1, 0, %p1;\n"
    body += f"  st.global.u32 [%rd10+{4 * len(SPECIALS)}], %r4;\n"
    y = result(count * (len(SPECIALS) + 1), np.uint32)
    run(body, [y], 1, grid, cluster=cluster)
    got = values(y, np.uint32).reshape(count, -1)
    for z, y_, x in itertools.product(*(range(n) for n in grid[::-1])):
        place = (x, y_, z)
        ids = [p // c for p, c in zip(place, cluster, strict=True)]
        within = [p % c for p, c in zip(place, cluster, strict=True)]
        rank = within[0] + cluster[0] * (within[1] + cluster[1] * within[2])
        wanted = [*ids, *(g // c for g, c in zip(grid, cluster, strict=True)), *within, *cluster, rank, 6, *place, 1]
        assert got[x + grid[0] * (y_ + grid[1] * z)].tolist() == wanted


def test_clusters_are_never_torn(monkeypatch):
    """A batch of blocks holds whole clusters, however small it is."""
    monkeypatch.setattr(machine, "LANES", 32)
    y = result(64, np.uint32)
    run(HEAD + WRITE + SYNC + READ + SYNC + OUT, [y], 32, 2, declarations=BUFFER, cluster=(2, 1, 1))
    assert values(y, np.uint32).tolist() == SWAPPED


def test_launches_that_a_gpu_refuses():
    y = result(96, np.uint32)
    with pytest.raises(
        InterpretError, match="made: the kernel has 232449 bytes of shared memory, and 232448 are the most"
    ):
        run("", [y], 32, 1, shared=232449)
    for blocks, cluster, directives, message in [
        (0, (1, 1, 1), "", "made: the kernel has a grid of (0, 1, 1): no blocks"),
        (3, (2, 1, 1), "", "made: the kernel has a grid of (3, 1, 1), not whole clusters of (2, 1, 1)"),
        (32, (32, 1, 1), "", "made: the kernel has clusters of 32 blocks, and 16 are the most"),
        (
            4,
            (4, 1, 1),
            ".reqnctapercluster 2, 1, 1\n",
            "launched with clusters of (4, 1, 1), but compiled for (2, 1, 1)",
        ),
    ]:
        with pytest.raises(InterpretError) as error:
            run("", [y], 32, blocks, cluster=cluster, directives=directives)
        assert message in str(error.value)


def test_a_cluster_size_that_the_kernel_is_compiled_for():
    y = result(64, np.uint32)
    body = HEAD + WRITE + SYNC + READ + SYNC + OUT
    run(body, [y], 32, 2, declarations=BUFFER, directives=".explicitcluster\n.reqnctapercluster 2\n")
    assert values(y, np.uint32).tolist() == SWAPPED
    assert kernel_of(body, 1, BUFFER, directives=".reqnctapercluster 2\n").program.cluster == (2, 1, 1)


def test_names_in_inline_assembly_are_its_own():
    """The same names, with other types, in neighbouring and nested scopes; labels too."""
    body = """
  mov.u32 %r1, 0;
  { .reg .b32 t; .reg .b32 %u<2>; mov.u32 t, 5; mov.u32 %u1, 6;
again:
    add.u32 %r1, %r1, t;
    { .reg .b64 t; mov.u64 t, 70; cvt.u32.u64 %u0, t; add.u32 %r1, %r1, %u0; }
    sub.u32 t, t, 1;
    setp.ne.u32 %p1, t, 3;
    @%p1 bra again;
  }
  {.reg .pred t; setp.eq.u32 t, %r0, 3; selp.u32 %r2, 1000, 0, t;
again: add.u32 %r1, %r1, %r2; }
  mul.wide.u32 %rd1, %r0, 4;
  add.u64 %rd1, %rd1, %rd0;
  st.global.u32 [%rd1], %r1;
"""
    y = result(32, np.uint32)
    run(body, [y])
    assert values(y, np.uint32).tolist() == [5 + 70 + 4 + 70 + 1000 * (i == 3) for i in range(32)]
    assert source(np.zeros(1)).size == 8
