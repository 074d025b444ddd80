"""Split-K products: the blocks of a cluster, or groups of warps in a block, share the contracted axis, and their partial sums are added.

Each block stores its accumulators in its shared memory. Then each block adds the accumulators of all blocks of the cluster for its
own share of the tile's columns, and continues with that share. The order is that of the blocks, so two runs agree to the bit. In a
block the first group adds the accumulators of the others to its own, in their order.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from codegen.shared import AmpereTiles

GROUPS = 2  # the barrier of the first group of warps; the next groups have the next ones


@cute.jit
def add_up(
    acc: cute.Tensor,
    mine: cute.Tensor,
    buffer: cute.Pointer,
    rank: cutlass.Int32,
    splits: cutlass.Constexpr[int],
    halves: cutlass.Constexpr[int],
    thread: cutlass.Int32,
    threads: cutlass.Constexpr[int],
    barrier: cutlass.Int32,
) -> None:
    """Sum the accumulators of a cluster's blocks. All threads that have some take part; they must wait for the cluster
    (`cluster_wait`) before they exit, as others may be reading.

    acc: (2, 2, J, I) registers, blocks of 8 columns by slabs, as `gemm_epilogue.finish` takes them; mine: the sums of the
        rank-th share of the columns, (2, 2, J // splits, I).
    buffer: J * I * threads * 16 bytes of shared memory, which the tensor cores of this block may still be reading.
    halves: 2 where the columns are those of two accumulators, one after the other; a share has as many of each.
    thread, threads: which of those that share the tile in a block, and meet at `barrier`.
    """
    columns, slabs = cute.size(acc, mode=[2]), cute.size(acc, mode=[3])
    of_half, share = columns // halves, columns // splits // halves
    assert columns == splits * halves * share, f"{splits} blocks cannot share {columns} columns"
    words = cute.recast_ptr(buffer, dtype=acc.element_type)
    cute.arch.barrier(barrier_id=barrier, number_of_threads=threads)
    for at in cutlass.range_constexpr(columns * slabs):
        cute.autovec_copy(
            cute.make_tensor(acc.iterator + 4 * at, cute.make_layout((4,))), _four(words, at, thread, threads)
        )
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()
    mine.fill(0)
    held = cute.make_rmem_tensor((4, halves * share * slabs), acc.element_type)
    total = cute.make_tensor(mine.iterator, held.layout)
    for other in cutlass.range(splits, unroll=1):
        there = cute.arch.map_dsmem_ptr(words, other)
        for i in cutlass.range_constexpr(halves * share * slabs):
            slab, half, j = i // (halves * share), i // share % halves, i % share
            at = slab * columns + half * of_half + rank * share + j
            cute.autovec_copy(_four(there, at, thread, threads), held[None, i])
        total.store(total.load() + held.load())
    cute.arch.cluster_arrive()


def _four(words: cute.Pointer, at: cutlass.Int32, thread: cutlass.Int32, threads: int) -> cute.Tensor:
    """The place of a thread's accumulators of a block of columns, interleaved with all other threads'."""
    place = cute.assume((at * threads + thread) * 4, divby=4)
    return cute.make_tensor(words + place, cute.make_layout((4,)))


def thread_of(tiles: AmpereTiles) -> tuple[Int32 | int, Int32]:
    """The number of this thread's group, and its own in the group."""
    tidx, _, _ = cute.arch.thread_idx()
    if tiles.warps_k == 1:
        return 0, tidx
    return cute.arch.make_warp_uniform(tidx // tiles.sharing), tidx % tiles.sharing


def meet(group: Int32 | int, tiles: AmpereTiles) -> None:
    """Wait for all threads of a group."""
    if tiles.warps_k == 1:
        cute.arch.sync_threads()
    else:
        cute.arch.barrier(barrier_id=GROUPS + group, number_of_threads=tiles.sharing)


@cute.jit
def add_up_groups(
    acc: cute.Tensor,
    words: cute.Pointer,
    group: cutlass.Int32,
    thread: cutlass.Int32,
    tiles: cutlass.Constexpr[AmpereTiles],
) -> None:
    """Add the accumulators of the other groups of a block to those of the first one. All threads of the block take part.

    words: shared memory for the accumulators of all groups but one, which nothing else uses; `thread` is one of its group.
    """
    count = cute.size(acc) // 4
    own = cute.make_tensor(acc.iterator, cute.make_layout((4, count)))
    if group > 0:
        for i in cutlass.range_constexpr(count):
            cute.autovec_copy(own[None, i], _four(words, (group - 1) * count + i, thread, tiles.sharing))
    cute.arch.sync_threads()
    if group == 0:
        for i in cutlass.range_constexpr(count * (tiles.warps_k - 1)):
            held = cute.make_rmem_tensor((4,), acc.element_type)
            cute.autovec_copy(_four(words, i, thread, tiles.sharing), held)
            for e in cutlass.range_constexpr(4):
                own[e, i % count] = own[e, i % count] + held[e]
    cute.arch.sync_threads()
