"""The blocks of a cluster that have some of all rows each, of the same columns, send their partial results to the first one. No other
kernel finishes them. The order is fixed: two runs agree to the bit.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64, Numeric
from cutlass.memory import SmemAllocator

from codegen.device.partials import combine_all, nothing, one
from codegen.device.reduce import Rescaled
from codegen.shared import Walk


def share_of(how: Walk, bidx: Int32, pieces: Int32 | int) -> tuple[Int32, Int32]:
    """The part of the rows that a block has, and its piece of the columns; there are `pieces` of these."""
    return (bidx % how.meets, bidx // how.meets) if how.meets else (bidx // pieces, bidx % pieces)


def share_of_place(how: Walk, bidx: Int32, pieces: Int32 | int, places: Int32 | int) -> tuple[Int32, Int32, Int32]:
    """As `share_of`, where only rows of one place meet: also the block's place, of so many."""
    if how.meets:
        part, left = share_of(how, bidx, 1)
        return part, left // pieces, left % pieces
    part, piece = share_of(how, bidx, pieces)
    return part // places, part % places, piece


def shared(how: Walk, count: int, dtypes: tuple[type[Numeric], ...]) -> list[cute.Tensor]:
    """Shared memory in which the first block of a cluster gets the partial results of all: `count` columns per thread of a row, and one
    tensor for each statistic. The last tensor holds the barrier that counts the bytes which the blocks send."""
    if not how.meets:
        return []
    layout = cute.make_layout((how.meets, how.per_row, count), stride=(how.per_row * count, 1, how.per_row))
    found = [SmemAllocator().allocate_tensor(Int32 if d is Boolean else d, layout, 16) for d in dtypes]
    if how.meets > 1:
        found.append(SmemAllocator().allocate_tensor(Int64, cute.make_layout((1,)), 16))
    return found


@cute.jit
def gather(
    running: list[cute.Tensor],
    ops: cutlass.Constexpr[tuple[str, ...]],
    buffers: list[cute.Tensor],
    meeting: list[cute.Tensor],
    how: cutlass.Constexpr[Walk],
    rescaled: cutlass.Constexpr[tuple[Rescaled, ...]] = (),
) -> Boolean:
    """Reduce the rows of all blocks that meet into the running values of some threads of the first block. Gives whether
    this thread is one of them. `buffers` are the shared memory for the rows of a block (`partials.shared_columns`): a
    block that has one row meets no other."""
    leads = Boolean(True)
    if cutlass.const_expr(len(buffers) > 0):
        tidx, _, _ = cute.arch.thread_idx()
        row, lane, vec = tidx // how.per_row, tidx % how.per_row, cute.size(running[0], mode=[0])
        count = vec * cute.size(running[0], mode=[1])
        block = cute.arch.block_idx_in_cluster() if cutlass.const_expr(how.meets > 1) else Int32(0)
        leads = (block == 0) & (row == 0)
        if cutlass.const_expr(how.meets > 1):
            if (block == 0) & (tidx == 0):
                total = sum(cute.size(m) * m.element_type.width // 8 for m in meeting[: len(ops)])
                cute.arch.mbarrier_arrive_and_expect_tx(meeting[len(ops)].iterator, total)
        for k in cutlass.range_constexpr(len(ops)):
            for i in cutlass.range_constexpr(count):
                buffers[k][row, lane, i] = running[k][i % vec, i // vec]
        cute.arch.sync_threads()
        for s in cutlass.range_constexpr(-(-how.per_row * count // how.threads)):
            own = tidx + s * how.threads
            if own < how.per_row * count:
                found = _over_first(buffers, ops, own % how.per_row, own // how.per_row, rescaled)
                for k in cutlass.range_constexpr(len(ops)):
                    _send(found[k], meeting, k, (block, own % how.per_row, own // how.per_row), how)
        if cutlass.const_expr(how.meets > 1):
            if block == 0:
                cute.arch.mbarrier_wait(meeting[len(ops)].iterator, 0)
        else:
            cute.arch.sync_threads()
        if leads:
            for i in cutlass.range_constexpr(count):
                found = _over_first(meeting[: len(ops)], ops, lane, i, rescaled)
                for k in cutlass.range_constexpr(len(ops)):
                    running[k][i % vec, i // vec] = found[k]
    return leads


@cute.jit
def _over_first(
    values: list[cute.Tensor],
    ops: cutlass.Constexpr[tuple[str, ...]],
    lane: Int32,
    i: Int32,
    rescaled: cutlass.Constexpr[tuple[Rescaled, ...]],
) -> list[Numeric]:
    """The reduction of each statistic along the first mode, in order."""
    held = nothing(values, ops)
    for other in cutlass.range(cute.size(values[0], mode=[0]), unroll=8):
        combine_all(held, ops, [one(v, (other, lane, i)) for v in values], rescaled)
    return [h[0] for h in held]


def _send(value: Numeric, meeting: list[cute.Tensor], k: int, place: cute.Coord, how: Walk) -> None:
    """Send a block's value of the k-th statistic to the first block, whose barrier counts its bytes."""
    buffer = meeting[k]
    if how.meets == 1:
        buffer[place] = value
        return
    held = cute.make_rmem_tensor((2,), buffer.element_type)  # a layout of one element would lose its stride
    held.fill(value)
    words = cute.recast_tensor(held, Int32)
    sent = tuple(words[i] for i in range(cute.size(words) // 2))
    at = buffer.iterator + cute.crd2idx(place, buffer.layout)
    cute.arch.store_async_dsmem(at, sent, meeting[-1].iterator, Int32(0))
