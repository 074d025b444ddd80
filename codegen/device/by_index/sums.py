"""Kernels that sum rows by index: row `r` of the result is the sum of all rows whose key is `r`, zeros where there are none.

The rows are read in the order of their keys, and rows with one key in their own order. XLA has sorted them: `mOrder` has the
numbers of the rows, `mKeys` their keys in that order. Where there are not many (`how.ranks`), a kernel counts for each row how many
come before it, which takes fewer launches. The next kernel finds where the rows of each key start. One thread for each
vector of columns would have to add all rows of a key. So other kernels first sum aligned chunks of `how.chunk` rows that have one
key, and chunks of these sums, `how.levels` times. The sum of a key adds in this order: its rows before the first whole chunk, the sums of
chunks, its rows after the last whole chunk. The order of the sum depends on the keys alone: two runs agree to the bit.

Values are (outer, row, column). Where there are fewer of them than keys, neighbouring keys have the same values. The result is (outer,
key, column). Sums of chunks are (outer, chunk, column), those of all levels one after the other. A thread sums `how.vec` columns of a key or a chunk.
Where rows have factors, each row is multiplied by its own before it is added. Where sums are added to an array, its elements come last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64
from cutlass.memory import SmemAllocator

from codegen.device import access, vectors
from codegen.device.by_index.rows import Levels, Vectors, add_levels, add_range, grid, loaded, sum_of, vectors_of
from codegen.shared import WARP, SumLaunch

XLA_SORTED = SumLaunch(1, False, 32)
WARPS = 32  # of a block that sorts: it has a row for each lane


def _store(sums: cute.Tensor, dst: cute.Tensor, row: Int32, own: Vectors, how: SumLaunch, mInto: Any = None) -> None:
    """Write a sum, with the elements of `mInto` at its place."""
    place = (Int64(own.outer) * dst.shape[1] + row) * dst.shape[2] + own.column
    if mInto is not None:
        sums.store(sums.load() + loaded(mInto, place, cutlass.Boolean(True), how).load().to(sums.element_type))
    values = access.registers_of(sums.load().to(dst.element_type), dst, how.vec)
    vectors.store(values, dst, place, Int32(how.vec), False)


@dataclass(frozen=True)
class Sorted:
    """The rows in the order of their keys: their numbers, their keys, and where those of each key start. What kernels write of it is
    in one array: starts, then perhaps numbers and keys."""

    work: cute.Tensor
    keys: Int32  # how many there may be
    rows: Int32
    values: Int32  # how many rows of values there are: so many neighbouring rows have the same
    order: Any  # as XLA has sorted them, or None
    sorted_keys: Any

    def _part(self, first: Int32, size: Int32) -> cute.Tensor:
        return cute.make_tensor(self.work.iterator + first, cute.make_layout((size,)))

    @property
    def starts(self) -> cute.Tensor:
        return self._part(Int32(0), self.keys + 1)

    @property
    def numbers(self) -> cute.Tensor:
        return self.order if self.order is not None else self._part(self.keys + 1, self.rows)

    @property
    def own_keys(self) -> cute.Tensor:
        return self.sorted_keys if self.order is not None else self._part(self.keys + 1 + self.rows, self.rows)


def in_order(mOrder: Any, mKeys: cute.Tensor, mWork: Any, mValues: cute.Tensor, mY: cute.Tensor) -> Sorted:
    """The sorted rows of a call."""
    keys = Int32(mY.shape[1])
    rows = Int32(mOrder.shape[0]) if mOrder is not None else (Int32(mWork.shape[0]) - keys - 1) // 2
    return Sorted(mWork, keys, rows, Int32(mValues.shape[1]), mOrder, mKeys)


@cute.jit
def _smaller(packed: cute.Tensor, own: Int32, first: Int32, end: Int32, found: cute.Tensor) -> None:
    """Count the smaller ones of some vectors of four."""
    for v in cutlass.range(first, end, unroll=4):
        four = cute.make_rmem_tensor((4,), Int32)
        cute.autovec_copy(cute.local_tile(packed, (4,), (v,)), four)
        for i in cutlass.range_constexpr(4):
            found[0] = found[0] + cutlass.select_(four[i] < own, Int32(1), Int32(0))


@cute.jit
def _place(tidx: Int32, rows: cutlass.Constexpr, packed: cute.Tensor, counts: cute.Tensor, row: Int32) -> None:
    """Write a row, if this is the first warp, where all warps have counted that it is."""
    if tidx < WARP and row < rows.rows:
        place = Int32(0)
        for warp in cutlass.range_constexpr(WARPS):
            place = place + counts[warp, row % WARP]
        rows.numbers[place] = row // (rows.rows // rows.values)
        rows.own_keys[place] = packed[row] // rows.rows


@cute.kernel
def order_kernel(
    mPacked: cute.Tensor,  # key times the number of rows plus the row's own, in whole vectors of four: the largest number at the end
    mWork: cute.Tensor,
    mValues: cute.Tensor,
    mY: cute.Tensor,
) -> None:
    """Each lane has a row, and each warp counts those before it among a part of the rows."""
    tidx, _, _ = cute.arch.thread_idx()
    bidx, _, _ = cute.arch.block_idx()
    rows = in_order(None, mPacked, mWork, mValues, mY)
    counts = SmemAllocator().allocate_tensor(Int32, cute.make_layout((WARPS, WARP), stride=(WARP, 1)), 16)
    row, count = bidx * WARP + tidx % WARP, Int32(mPacked.shape[0]) // 4
    own = mPacked[cutlass.select_(row < rows.rows, row, Int32(0))]
    each = (count + (WARPS - 1)) // WARPS
    first = tidx // WARP * each
    end = cutlass.select_(first + each < count, first + each, count)
    found = cute.make_rmem_tensor((1,), Int32)
    found.fill(0)
    _smaller(mPacked, own, first, end, found)
    counts[tidx // WARP, tidx % WARP] = found[0]
    cute.arch.sync_threads()
    _place(tidx, rows, mPacked, counts, row)


@cute.jit
def _find_start(key: Int32, keys: cute.Tensor, starts: cute.Tensor) -> None:
    """The number of smaller keys, bit by bit."""
    if key < cute.size(starts):
        count, found = Int32(cute.size(keys)), Int32(0)
        for i in cutlass.range(31):
            further = found + (Int32(1) << (30 - i))
            if further > found and further <= count:
                if keys[further - 1] < key:
                    found = further
        starts[key] = found


@cute.kernel
def starts_kernel(
    mOrder: cute.Tensor | None,
    mKeys: cute.Tensor,
    mWork: cute.Tensor,
    mValues: cute.Tensor,
    mY: cute.Tensor,
    how: cutlass.Constexpr[SumLaunch],
) -> None:
    tidx, _, _ = cute.arch.thread_idx()
    bidx, _, _ = cute.arch.block_idx()
    rows = in_order(mOrder, mKeys, mWork, mValues, mY)
    _find_start(bidx * how.threads + tidx, rows.own_keys, rows.starts)


@cute.jit
def _sum_of_chunk(
    own: cutlass.Constexpr,
    keys: cute.Tensor,
    count: Int32,
    levels: cutlass.Constexpr,
    level: cutlass.Constexpr[int],
    how: cutlass.Constexpr,
) -> None:
    """Sum a chunk of a level, if its rows have one of so many keys: no sum takes another chunk."""
    chunk = own.first
    if chunk < own.rows:
        sums, each = sum_of(levels.values, how), how.chunk**level
        key = keys[chunk * each]
        if key < count and key == keys[chunk * each + (each - 1)]:
            add_range(sums, levels.rows(level - 1, own, how), chunk * how.chunk, (chunk + 1) * how.chunk, how)
            _store(sums, levels.parts, levels.first(level, how) + chunk, own, how)


@cute.kernel
def chunks_kernel(
    mOrder: cute.Tensor | None,  # (N,)
    mKeys: cute.Tensor,  # (N,)
    mWork: cute.Tensor,
    mValues: cute.Tensor,  # (outer, N, C)
    mFactors: cute.Tensor | None,  # (N,)
    mY: cute.Tensor,  # (outer, K, C)
    mParts: cute.Tensor,  # (outer, chunks of all levels, C)
    level: cutlass.Constexpr[int],
    how: cutlass.Constexpr[SumLaunch],
) -> None:
    rows = in_order(mOrder, mKeys, mWork, mValues, mY)
    levels = Levels(mValues, mFactors, rows.numbers, mParts, rows.rows)
    own = vectors_of(mParts, levels.chunks(level, how), 1, how)
    _sum_of_chunk(own, rows.own_keys, rows.keys, levels, level, how)


@cute.jit
def _zeros(
    own: cutlass.Constexpr,
    step: cutlass.Constexpr[int],
    starts: cute.Tensor,
    mY: cute.Tensor,
    mInto: cute.Tensor | None,
    how: cutlass.Constexpr,
) -> None:
    """Write the sum of no rows where a key has none."""
    row = own.row(step)
    if row < own.rows:
        if starts[row] == starts[row + 1]:
            _store(sum_of(mY, how), mY, row, own, how, mInto)


@cute.jit
def _sum_of_key(
    row: Int32,
    own: cutlass.Constexpr,
    starts: cute.Tensor,
    mY: cute.Tensor,
    mInto: cute.Tensor | None,
    levels: cutlass.Constexpr,
    how: cutlass.Constexpr,
) -> None:
    if row < own.rows:
        first, end = starts[row], starts[row + 1]
        if first < end:
            sums = sum_of(levels.values, how)
            add_levels(sums, levels, 0, own, first, end, how)
            _store(sums, mY, row, own, how, mInto)


@cute.kernel
def keys_kernel(
    mOrder: cute.Tensor | None,  # (N,)
    mKeys: cute.Tensor,  # (N,)
    mWork: cute.Tensor,
    mValues: cute.Tensor,  # (outer, N, C)
    mFactors: cute.Tensor | None,  # (N,)
    mInto: cute.Tensor | None,  # (outer, K, C)
    mY: cute.Tensor,  # (outer, K, C)
    mParts: cute.Tensor | None,  # (outer, chunks of all levels, C)
    how: cutlass.Constexpr[SumLaunch],
) -> None:
    rows = in_order(mOrder, mKeys, mWork, mValues, mY)
    levels, starts = Levels(mValues, mFactors, rows.numbers, mParts, rows.rows), rows.starts
    own = vectors_of(mY, rows.keys, how.steps, how)
    for step in cutlass.range_constexpr(how.steps):  # of many keys most have none: these wait for nothing
        _zeros(own, step, starts, mY, mInto, how)
    for step in cutlass.range(how.steps):
        _sum_of_key(own.row(step), own, starts, mY, mInto, levels, how)


@cute.jit
def sum_by_index_launch(
    stream: Any,
    mOrder: cute.Tensor | None,  # where XLA has sorted the rows
    mKeys: cute.Tensor,
    mValues: cute.Tensor,
    mFactors: cute.Tensor | None,  # of the rows, by their numbers
    mInto: cute.Tensor | None,  # what the sums are added to
    mY: cute.Tensor,
    mWork: cute.Tensor,
    mParts: cute.Tensor | None = None,  # where there are levels
    how: cutlass.Constexpr[SumLaunch] = XLA_SORTED,
) -> None:
    """Sum the values by their keys, chunks first."""
    block = {"block": (how.threads, 1, 1), "stream": stream}
    rows = in_order(mOrder, mKeys, mWork, mValues, mY).rows
    if cutlass.const_expr(how.ranks):
        blocks = rows // WARP + 1
        sorting = {"block": (WARPS * WARP, 1, 1), "stream": stream}
        order_kernel(mKeys, mWork, mValues, mY).launch(grid=(blocks, 1, 1), **sorting)
    blocks = Int32(mY.shape[1]) // how.threads + 1
    starts_kernel(mOrder, mKeys, mWork, mValues, mY, how).launch(grid=(blocks, 1, 1), **block)
    of_chunks = how.of_chunks
    for level in cutlass.range_constexpr(1, how.levels + 1):
        chunks = Levels(mValues, None, None, mParts, rows).chunks(level, how)
        chunks_kernel(mOrder, mKeys, mWork, mValues, mFactors, mY, mParts, level, of_chunks).launch(
            **grid(mParts, chunks, 1, of_chunks, stream)
        )
    keys_kernel(mOrder, mKeys, mWork, mValues, mFactors, mInto, mY, mParts, how).launch(
        **grid(mY, Int32(mY.shape[1]), how.steps, how, stream)
    )
