"""The rows that a thread of a sum by index adds up: some of the values, in the order of their keys, and sums of chunks
of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64

from codegen.device import vectors
from codegen.device.functions import compute_type
from codegen.shared import SumLaunch


@dataclass(frozen=True)
class Vectors:
    """A thread's vectors: the same columns of some rows of the result, or of chunks, every so many."""

    outer: Int32
    first: Int32  # row
    apart: int  # rows from one to the next
    column: Int32
    rows: Int32  # how many there are, of which the last vectors may be beyond; 0 where the columns are

    def row(self, step: Any) -> Int32:
        """The row of a step."""
        return self.first + step * self.apart


@dataclass(frozen=True)
class Rows:
    """The rows of a level, from which a thread adds its columns: those of the values, or sums of chunks."""

    tensor: cute.Tensor
    begin: Int64  # the place of the first row's columns
    order: Any  # the number of each row (a cute.Tensor), or None where they are in order
    factors: Any  # of each row, by its number (a cute.Tensor), or None

    def number(self, row: Int32) -> Int32:
        """The number of a row."""
        return row if self.order is None else self.order[row]

    def place(self, number: Int32) -> Int64:
        """Where the columns of a row are."""
        return self.begin + Int64(number) * self.tensor.shape[2]


@dataclass(frozen=True)
class Levels:
    """All rows that a sum may read."""

    values: cute.Tensor
    factors: Any
    order: Any
    parts: Any
    count: Int32  # how many rows there are in order

    def chunks(self, level: int, how: SumLaunch) -> Int32:
        """The number of whole chunks of a level."""
        return self.count // how.chunk**level

    def first(self, level: int, how: SumLaunch) -> Int32:
        """Where the sums of a level's chunks begin, among those of all levels."""
        found = Int32(0)
        for below in range(1, level):
            found = found + self.chunks(below, how)
        return found

    def rows(self, level: int, own: Vectors, how: SumLaunch) -> Rows:
        """The rows of a level."""
        tensor = self.values if level == 0 else self.parts
        first = Int64(own.outer) * tensor.shape[1] + (self.first(level, how) if level else 0)
        begin = first * tensor.shape[2] + own.column
        return Rows(tensor, begin, None, None) if level else Rows(tensor, begin, self.order, self.factors)


def _tiles(extent: Int32, size: int) -> Int32:
    return (extent + (size - 1)) // size


def vectors_of(tensor: cute.Tensor, rows: Int32, steps: int, how: SumLaunch) -> Vectors:
    """The vectors of this thread, of a tensor of so many rows."""
    tidx, _, _ = cute.arch.thread_idx()
    bidx, _, _ = cute.arch.block_idx()
    apart, columns = how.threads // how.across, Int32(tensor.shape[2])
    across, down = _tiles(columns, how.across * how.vec), _tiles(rows, apart * steps)
    rest = bidx // across
    column = (bidx % across * how.across + tidx % how.across) * how.vec
    first = rest % down * (apart * steps) + tidx // how.across
    there = (column < columns) & (rest // down < Int32(tensor.shape[0]))
    return Vectors(rest // down, first, apart, column, cutlass.select_(there, rows, Int32(0)))


def grid(tensor: cute.Tensor, rows: Int32, steps: int, how: SumLaunch, stream: Any) -> dict[str, Any]:
    """The grid and block for the vectors of a tensor: one block more than there are, for a tensor without rows."""
    down = _tiles(rows, how.threads // how.across * steps)
    blocks = Int32(tensor.shape[0]) * down * _tiles(Int32(tensor.shape[2]), how.across * how.vec)
    return {"grid": (blocks + 1, 1, 1), "block": (how.threads, 1, 1), "stream": stream}


def sum_of(values: cute.Tensor, how: SumLaunch) -> cute.Tensor:
    """Registers for a sum."""
    found = cute.make_rmem_tensor((how.vec,), compute_type(values))
    found.fill(0)
    return found


def loaded(src: cute.Tensor, place: Int64, there: Boolean, how: SumLaunch) -> cute.Tensor:
    """Registers with a vector, or zeros."""
    if how.vec * src.element_type.width % 32 == 0:
        return vectors.load(src, place, cutlass.select_(there, Int32(how.vec), Int32(0)), how.vec, False)
    dst = cute.make_rmem_tensor((how.vec,), src.element_type)
    dst.fill(0)
    _load_if(there, src, place, dst)
    return dst


@cute.jit
def _load_if(there: Boolean, src: cute.Tensor, place: Int64, dst: cute.Tensor) -> None:
    if there:
        cute.autovec_copy(cute.make_tensor(src.iterator + place, cute.make_layout((cute.size(dst),))), dst)


def _add(sums: cute.Tensor, rows: Rows, first: Int32, end: Int32, how: SumLaunch) -> None:
    """Add the next `how.at_once` rows, or those before the end. All are loaded before the first is added."""
    at = [first + i for i in range(how.at_once)]
    numbers = [rows.number(cutlass.select_(i < end, i, first)) for i in at]
    factors = [None if rows.factors is None else rows.factors[number] for number in numbers]
    values = [loaded(rows.tensor, rows.place(number), i < end, how) for i, number in zip(at, numbers, strict=True)]
    total = sums.load()
    for i, x, factor in zip(at, values, factors, strict=True):
        term = x.load().to(sums.element_type)
        if factor is not None:  # a row past the end has zeros, and the first row's factor, which may be infinite
            term = term * cutlass.select_(i < end, sums.element_type(factor), sums.element_type(0))
        total = total + term
    sums.store(total)


@cute.jit
def add_range(sums: cute.Tensor, rows: cutlass.Constexpr, first: Int32, end: Int32, how: cutlass.Constexpr) -> None:
    for at in cutlass.range(first, end, how.at_once):
        _add(sums, rows, at, end, how)


@cute.jit
def add_levels(
    sums: cute.Tensor,
    levels: cutlass.Constexpr,
    level: cutlass.Constexpr[int],
    own: cutlass.Constexpr,
    first: Int32,
    end: Int32,
    how: cutlass.Constexpr,
) -> None:
    """Add the rows of a level from `first` to `end`, those of whole chunks by their sums."""
    rows = levels.rows(level, own, how)
    if cutlass.const_expr(level == how.levels):
        add_range(sums, rows, first, end, how)
    else:
        inner, last = (first + (how.chunk - 1)) // how.chunk, end // how.chunk
        whole = inner < last
        add_range(sums, rows, first, cutlass.select_(whole, inner * how.chunk, end), how)
        if whole:
            add_levels(sums, levels, level + 1, own, inner, last, how)
            add_range(sums, rows, last * how.chunk, end, how)
