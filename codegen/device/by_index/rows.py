"""The rows that a thread of a sum by index adds up: some of its values, in the order of their keys, and sums of chunks of these."""

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


def vector(number: Int32, tensor: cute.Tensor, rows: Int32, how: SumLaunch) -> Vector:
    """The vector with this number, of a tensor of so many rows."""
    across = Int32(tensor.shape[2]) // how.vec
    row = number // across
    inside = number < Int32(tensor.shape[0]) * rows * across
    return Vector(row // rows, row % rows, number % across * how.vec, inside)


def first_number(how: SumLaunch) -> Int32:
    """The number of a thread's first vector; the next is `how.threads` further."""
    tidx, _, _ = cute.arch.thread_idx()
    bidx, _, _ = cute.arch.block_idx()
    return bidx * (how.threads * how.steps) + tidx


def grid(how: SumLaunch, tensor: cute.Tensor, rows: Int32, stream: Any) -> dict[str, Any]:
    """The grid and block for the vectors of a tensor: one block more than are full."""
    count = Int32(tensor.shape[0]) * rows * (Int32(tensor.shape[2]) // how.vec)
    return {"grid": (count // (how.threads * how.steps) + 1, 1, 1), "block": (how.threads, 1, 1), "stream": stream}


def sum_of(values: cute.Tensor, how: SumLaunch) -> cute.Tensor:
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
def add_range(sums: cute.Tensor, rows: cutlass.Constexpr, first: Int32, end: Int32, how: cutlass.Constexpr):
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
):
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


@cute.jit
def add_equal(sums: cute.Tensor, rows: cutlass.Constexpr, keys: cute.Tensor, key: Int32, how: cutlass.Constexpr):
    """Add all rows with a key, which are not sorted."""
    for at in cutlass.range(cute.size(keys), unroll=4):
        if keys[at] == key:
            added = vectors.load(rows.tensor, rows.place(Int32(at)), Int32(how.vec), how.vec, False)
            sums.store(sums.load() + added.load().to(sums.element_type))
