"""Kernels that sum rows by index: row `r` of the result is the sum of all rows whose key is `r`, zeros where there are none.

The rows are read in the order of their keys, and rows with one key in their own order. XLA has sorted them: `mOrder` has the numbers of
the rows, `mKeys` their keys in that order. The first kernel finds where the rows of each key start, `mStarts`. All rows of a key would
be the work of a single thread for each vector of columns. So other kernels sum aligned chunks of `how.chunk` rows that have one key, and
chunks of these sums, `how.levels` times. The sum of a key begins with its rows before the first whole chunk, continues with the sums of
chunks, and ends with its rows after the last whole chunk. The order of the sum depends on the keys alone: two runs agree to the bit.

Where there are few rows, nothing is sorted (`how.is_sorted`): each thread reads all keys, in order.

Values are (outer, row, column), the result is (outer, key, column), and sums of chunks are (outer, chunk, column), those of all
levels one after the other. A thread sums `how.vec` columns of a key or a chunk.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from codegen.device import access, vectors
from codegen.device.by_index.rows import (
    Levels,
    Vector,
    add_equal,
    add_levels,
    add_range,
    first_number,
    grid,
    sum_of,
    vector,
)  # fmt: skip
from codegen.shared import SumLaunch

UNSORTED = SumLaunch(1, False, 32)


def _store(sums: cute.Tensor, dst: cute.Tensor, row: Int32, own: Vector, how: SumLaunch) -> None:
    place = (Int64(own.outer) * dst.shape[1] + row) * dst.shape[2] + own.column
    values = access.registers_of(sums.load().to(dst.element_type), dst, how.vec)
    vectors.store(values, dst, place, Int32(how.vec), False)


@cute.jit
def _find_start(key: Int32, mKeys: cute.Tensor, mStarts: cute.Tensor):
    """The number of smaller keys, bit by bit."""
    if key < cute.size(mStarts):
        count, found = Int32(cute.size(mKeys)), Int32(0)
        for i in cutlass.range(31):
            further = found + (Int32(1) << (30 - i))
            if further > found and further <= count:
                if mKeys[further - 1] < key:
                    found = further
        mStarts[key] = found


@cute.kernel
def starts_kernel(mKeys: cute.Tensor, mStarts: cute.Tensor, how: cutlass.Constexpr[SumLaunch]):
    tidx, _, _ = cute.arch.thread_idx()
    bidx, _, _ = cute.arch.block_idx()
    _find_start(bidx * how.threads + tidx, mKeys, mStarts)


@cute.jit
def _sum_of_chunk(
    number: Int32, mKeys: cute.Tensor, levels: cutlass.Constexpr, level: cutlass.Constexpr[int], how: cutlass.Constexpr
):
    """Sum a chunk of a level; zeros if its rows have several keys."""
    own = vector(number, levels.parts, levels.chunks(level, how), how)
    if own.there:
        sums, each = sum_of(levels.values, how), how.chunk**level
        if mKeys[own.row * each] == mKeys[own.row * each + (each - 1)]:
            first = own.row * how.chunk
            add_range(sums, levels.rows(level - 1, own, how), first, first + how.chunk, how)
        _store(sums, levels.parts, levels.first(level, how) + own.row, own, how)


@cute.kernel
def chunks_kernel(
    mOrder: cute.Tensor,  # (N,)
    mKeys: cute.Tensor,  # (N,)
    mValues: cute.Tensor,  # (outer, N, C)
    mParts: cute.Tensor,  # (outer, chunks of all levels, C)
    level: cutlass.Constexpr[int],
    how: cutlass.Constexpr[SumLaunch],
):
    levels = Levels(mValues, mOrder, mParts)
    first = first_number(how)
    for step in cutlass.range(how.steps):
        _sum_of_chunk(first + step * how.threads, mKeys, levels, level, how)


@cute.jit
def _sum_of_key(
    number: Int32,
    mKeys: cute.Tensor,
    mStarts: Any,
    mY: cute.Tensor,
    levels: cutlass.Constexpr,
    how: cutlass.Constexpr,
):
    own = vector(number, mY, Int32(mY.shape[1]), how)
    if own.there:
        sums = sum_of(levels.values, how)
        if cutlass.const_expr(how.is_sorted):
            add_levels(sums, levels, 0, own, mStarts[own.row], mStarts[own.row + 1], how)
        else:
            add_equal(sums, levels.rows(0, own, how), mKeys, own.row, how)
        _store(sums, mY, own.row, own, how)


@cute.kernel
def keys_kernel(
    mOrder: cute.Tensor | None,  # (N,)
    mKeys: cute.Tensor,  # (N,)
    mStarts: cute.Tensor | None,  # (K + 1,)
    mValues: cute.Tensor,  # (outer, N, C)
    mY: cute.Tensor,  # (outer, K, C)
    mParts: cute.Tensor | None,  # (outer, chunks of all levels, C)
    how: cutlass.Constexpr[SumLaunch],
):
    levels = Levels(mValues, mOrder, mParts)
    first = first_number(how)
    for step in cutlass.range(how.steps):
        _sum_of_key(first + step * how.threads, mKeys, mStarts, mY, levels, how)


@cute.jit
def sum_by_index_launch(
    stream: Any,
    mOrder: cute.Tensor | None,
    mKeys: cute.Tensor,
    mValues: cute.Tensor,
    mY: cute.Tensor,
    mStarts: cute.Tensor | None = None,  # where rows are sorted
    mParts: cute.Tensor | None = None,  # where there are levels
    how: cutlass.Constexpr[SumLaunch] = UNSORTED,
):
    """Sum the values by their keys, chunks first."""
    if cutlass.const_expr(how.is_sorted):
        blocks = cute.size(mStarts) // how.threads + 1
        starts_kernel(mKeys, mStarts, how).launch(grid=(blocks, 1, 1), block=(how.threads, 1, 1), stream=stream)
    for level in cutlass.range_constexpr(1, how.levels + 1):
        chunks = Levels(mValues, mOrder, mParts).chunks(level, how)
        chunks_kernel(mOrder, mKeys, mValues, mParts, level, how).launch(**grid(how, mParts, chunks, stream))
    keys_kernel(mOrder, mKeys, mStarts, mValues, mY, mParts, how).launch(**grid(how, mY, Int32(mY.shape[1]), stream))
