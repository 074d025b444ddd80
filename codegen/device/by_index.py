"""Kernels that sum rows by index: row `r` of the result is the sum of all rows whose key is `r`, zeros where there are none.

The rows are read in the order of their keys, which were sorted before, and of equal keys in the order of the rows: `mOrder` has their
numbers, `mKeys` their keys in that order. The first kernel finds where the rows of each key start: `mStarts`. A key that occurs often would be the work of
one thread for each vector of columns. So aligned chunks of `how.chunk` rows in that order, whose keys are all the same, are summed
before, and chunks of these sums too, `how.levels` times. The sum of a key begins with its rows before the first whole chunk,
continues with the sums of chunks, and ends with its rows after the last whole chunk. Which rows are added in which order depends on
the keys alone: two runs agree to the bit.

Where there are few rows, nothing is sorted (`how.is_sorted`): each thread reads all keys, in order.

Values are (outer, row, column), the result is (outer, key, column), and sums of chunks are (outer, chunk, column), those of all
levels one after the other. A thread sums `how.vec` columns of a key or a chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64

from codegen.device import access, vectors
from codegen.device.functions import compute_type
from codegen.shared import SumLaunch


UNSORTED = SumLaunch(1, False)


@dataclass(frozen=True)
class Vector:
    """What a thread sums: columns of a row of the result, or of a chunk."""

    outer: Int32
    row: Int32
    column: Int32
    there: Boolean  # whether there is one


@dataclass(frozen=True)
class Rows:
    """The rows of a level, from which a thread adds its columns: those of the values, or sums of chunks."""

    tensor: cute.Tensor
    begin: Int64  # the place of the first row's columns
    order: Any  # the number of each row (a cute.Tensor), or None where they are in order

    def place(self, row: Int32) -> Int64:
        """Where the columns of a row are."""
        found = row if self.order is None else self.order[row]
        return self.begin + Int64(found) * self.tensor.shape[2]


@dataclass(frozen=True)
class Levels:
    """All rows that a sum may read."""

    values: cute.Tensor
    order: Any
    parts: Any

    def chunks(self, level: int, how: SumLaunch) -> Int32:
        """The number of whole chunks of a level."""
        return Int32(self.values.shape[1]) // how.chunk**level

    def first(self, level: int, how: SumLaunch) -> Int32:
        """Where the sums of a level's chunks begin, among those of all levels."""
        found = Int32(0)
        for below in range(1, level):
            found = found + self.chunks(below, how)
        return found

    def rows(self, level: int, own: Vector, how: SumLaunch) -> Rows:
        """The rows of a level."""
        tensor = self.values if level == 0 else self.parts
        first = Int64(own.outer) * tensor.shape[1] + (self.first(level, how) if level else 0)
        return Rows(tensor, first * tensor.shape[2] + own.column, self.order if level == 0 else None)


def _vector(number: Int32, tensor: cute.Tensor, rows: Int32, how: SumLaunch) -> Vector:
    """The vector with this number, of a tensor of so many rows."""
    across = Int32(tensor.shape[2]) // how.vec
    row = number // across
    inside = number < Int32(tensor.shape[0]) * rows * across
    return Vector(row // rows, row % rows, number % across * how.vec, inside)


def _first_number(how: SumLaunch) -> Int32:
    """The number of a thread's first vector; the next is `how.threads` further."""
    tidx, _, _ = cute.arch.thread_idx()
    bidx, _, _ = cute.arch.block_idx()
    return bidx * (how.threads * how.steps) + tidx


def _grid(how: SumLaunch, tensor: cute.Tensor, rows: Int32, stream: Any) -> dict[str, Any]:
    """The grid and block for the vectors of a tensor: one block more than are full."""
    count = Int32(tensor.shape[0]) * rows * (Int32(tensor.shape[2]) // how.vec)
    return {"grid": (count // (how.threads * how.steps) + 1, 1, 1), "block": (how.threads, 1, 1), "stream": stream}


def _sum(values: cute.Tensor, how: SumLaunch) -> cute.Tensor:
    """Registers for a sum."""
    found = cute.make_rmem_tensor((how.vec,), compute_type(values))
    found.fill(0)
    return found


def _add(sums: cute.Tensor, rows: Rows, first: Int32, end: Int32, how: SumLaunch) -> None:
    """Add the next `how.at_once` rows, or those before the end. All are loaded before the first is added."""
    numbers = [first + i for i in range(how.at_once)]
    places = [rows.place(cutlass.select_(n < end, n, first)) for n in numbers]
    valid = [cutlass.select_(n < end, Int32(how.vec), Int32(0)) for n in numbers]
    loaded = [vectors.load(rows.tensor, at, v, how.vec, False) for at, v in zip(places, valid, strict=True)]
    total = sums.load()
    for x in loaded:
        total = total + x.load().to(sums.element_type)
    sums.store(total)


@cute.jit
def _add_range(sums: cute.Tensor, rows: cutlass.Constexpr, first: Int32, end: Int32, how: cutlass.Constexpr):
    for at in cutlass.range(first, end, how.at_once):
        _add(sums, rows, at, end, how)


@cute.jit
def _add_levels(
    sums: cute.Tensor,
    levels: cutlass.Constexpr,
    level: cutlass.Constexpr[int],
    own: cutlass.Constexpr,
    first: Int32,
    end: Int32,
    how: cutlass.Constexpr,
):
    """Add the rows of a level from `first` to `end`, those of whole chunks by their sums."""
    rows = levels.rows(level, own, how)
    if cutlass.const_expr(level == how.levels):
        _add_range(sums, rows, first, end, how)
    else:
        inner, last = (first + (how.chunk - 1)) // how.chunk, end // how.chunk
        whole = inner < last
        _add_range(sums, rows, first, cutlass.select_(whole, inner * how.chunk, end), how)
        if whole:
            _add_levels(sums, levels, level + 1, own, inner, last, how)
            _add_range(sums, rows, last * how.chunk, end, how)


@cute.jit
def _add_equal(sums: cute.Tensor, rows: cutlass.Constexpr, keys: cute.Tensor, key: Int32, how: cutlass.Constexpr):
    """Add all rows with a key, which are not sorted."""
    for at in cutlass.range(cute.size(keys), unroll=4):
        if keys[at] == key:
            added = vectors.load(rows.tensor, rows.place(Int32(at)), Int32(how.vec), how.vec, False)
            sums.store(sums.load() + added.load().to(sums.element_type))


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
def _sum_of_chunk(number: Int32, mKeys: cute.Tensor, levels: cutlass.Constexpr, level: cutlass.Constexpr[int], how: cutlass.Constexpr):
    """Sum a chunk of a level; zeros if its rows have several keys."""
    own = _vector(number, levels.parts, levels.chunks(level, how), how)
    if own.there:
        sums, each = _sum(levels.values, how), how.chunk**level
        if mKeys[own.row * each] == mKeys[own.row * each + (each - 1)]:
            first = own.row * how.chunk
            _add_range(sums, levels.rows(level - 1, own, how), first, first + how.chunk, how)
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
    first = _first_number(how)
    for step in cutlass.range(how.steps):
        _sum_of_chunk(first + step * how.threads, mKeys, levels, level, how)


@cute.jit
def _sum_of_key(
    number: Int32,
    mKeys: cute.Tensor,
    mStarts: cute.Tensor | None,
    mY: cute.Tensor,
    levels: cutlass.Constexpr,
    how: cutlass.Constexpr,
):
    own = _vector(number, mY, Int32(mY.shape[1]), how)
    if own.there:
        sums = _sum(levels.values, how)
        if cutlass.const_expr(how.is_sorted):
            _add_levels(sums, levels, 0, own, mStarts[own.row], mStarts[own.row + 1], how)
        else:
            _add_equal(sums, levels.rows(0, own, how), mKeys, own.row, how)
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
    first = _first_number(how)
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
        chunks_kernel(mOrder, mKeys, mValues, mParts, level, how).launch(**_grid(how, mParts, chunks, stream))
    keys_kernel(mOrder, mKeys, mStarts, mValues, mY, mParts, how).launch(**_grid(how, mY, Int32(mY.shape[1]), stream))
