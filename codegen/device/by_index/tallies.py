"""Kernels that sum rows of few columns by few keys, without an order of the rows: row `r` of the result is the sum of all rows whose key
is `r`.

Each warp has tables of sums in shared memory, as many as there is room for. Neighbouring lanes have a table each; lanes with the same
table add to it in turn. A block adds up its tables, and a second kernel adds up those of all blocks. The sizes alone decide
which thread reads a row, and so the order of each sum: two runs agree to the bit.

A table of `how.copies` lanes lies with their elements next to each other, so that lanes of one turn never meet in a bank. Rows
without a key, and those beyond the last, are added to one more key, which nothing reads.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64
from cutlass.memory import SmemAllocator

from codegen.device.functions import compute_type
from codegen.shared import WARP, TallyLaunch

WARPS = 8  # of a block that adds up the tables of blocks: its lanes have neighbouring sums
DEFAULT = TallyLaunch(4, False, WARP)
IN_FLIGHT = 8  # tables from which a thread has loaded a sum


def _one(tensor: cute.Tensor, place: Int64) -> Any:
    return cute.make_tensor(tensor.iterator + place, cute.make_layout((1,)))[0]


class _Rows:
    """The rows that a thread has in flight: their keys, and their values in registers (row, column)."""

    def __init__(self, mKeys: cute.Tensor, mValues: cute.Tensor, first: Int32, outer: Int32, how: TallyLaunch):
        count, self.keys = Int32(mKeys.shape[0]), []
        numbers = [first + i * how.threads for i in range(how.vec * how.at_once)]
        self.values = cute.make_rmem_tensor((len(numbers), how.columns), compute_type(mValues))
        begin = Int64(outer) * mValues.shape[1]
        for i, number in enumerate(numbers):
            there = number < count
            row = cutlass.select_(there, number, Int32(0))
            key = Int32(mKeys[row])
            if how.clamp:
                key = cutlass.max(cutlass.min(key, how.keys - 1), 0)
            self.keys.append(cutlass.select_(there & (key < how.keys), key, Int32(how.keys)))
            place = (begin + (row if how.alike == 1 else row // how.alike)) * how.columns
            for c in range(how.columns):
                self.values[i, c] = _one(mValues, place + c).to(self.values.element_type)

    def joined(self, rows: range, column: int) -> list[Any]:
        """For each of some rows, the sum of a column over the rows up to it that have its key."""
        sums = []
        for i in rows:
            total = self.values[i, column]
            for before in range(rows.start, i):
                same = self.keys[before] == self.keys[i]
                total = total + cutlass.select_(same, self.values[before, column], total.dtype(0))
            sums.append(total)
        return sums


def _add(table: cute.Tensor, keys: list[Int32], sums: list[list[Any]]) -> None:
    """Add to the sums of some keys (column, key). Where keys are equal, the sum of the last one includes the others."""
    places = [(key, c) for c in range(len(sums)) for key in keys]
    found = [table[place] + x for place, x in zip(places, [x for own in sums for x in own], strict=True)]
    for place, x in zip(places, found, strict=True):
        table[place] = x


@cute.jit
def _add_rows(
    table: cute.Tensor,
    mKeys: cute.Tensor,
    mValues: cute.Tensor,
    first: Int32,
    outer: Int32,
    how: cutlass.Constexpr[TallyLaunch],
) -> None:
    tidx, _, _ = cute.arch.thread_idx()
    rows = _Rows(mKeys, mValues, first + tidx, outer, how)
    for step in cutlass.range_constexpr(how.at_once):
        own = range(step * how.vec, (step + 1) * how.vec)
        keys = [rows.keys[i] for i in own]
        sums = [rows.joined(own, c) for c in range(how.columns)]
        for turn in cutlass.range_constexpr(WARP // how.copies):
            if cutlass.const_expr(how.copies == WARP):
                _add(table, keys, sums)
            else:
                _add_in_turn(table, keys, sums, tidx % WARP // how.copies == turn)
                cute.arch.sync_warp()


@cute.jit
def _add_in_turn(table: cute.Tensor, keys: cutlass.Constexpr, sums: cutlass.Constexpr, own: cutlass.Boolean) -> None:
    if own:
        _add(table, keys, sums)


@cute.jit
def _store_sums(tables: cute.Tensor, dst: cute.Tensor, begin: Int64, how: cutlass.Constexpr[TallyLaunch]) -> None:
    """Add up a block's tables. Neighbouring lanes have a sum's tables of a warp, or several sums'."""
    tidx, _, _ = cute.arch.thread_idx()
    lane, apart = tidx % WARP, how.threads // how.copies
    sums = how.keys * how.columns
    for first in cutlass.range(0, sums, apart):
        place = first + tidx // how.copies
        own = cutlass.select_(place < sums, place, Int32(0)) * how.copies + lane % how.copies
        total = tables[own, 0]
        for warp in cutlass.range_constexpr(1, how.threads // WARP):
            total = total + tables[own, warp]
        for i in cutlass.range_constexpr((how.copies - 1).bit_length()):
            total = total + cute.arch.shuffle_sync_bfly(total, 1 << i)
        if place < sums and lane % how.copies == 0:
            cute.make_tensor(dst.iterator + (begin + place), cute.make_layout((1,)))[0] = total.to(dst.element_type)


@cute.kernel
def tally_kernel(
    mKeys: cute.Tensor,  # (N,)
    mValues: cute.Tensor,  # (outer, M, C)
    mSums: cute.Tensor,  # (outer, parts, K * C), or the result
    how: cutlass.Constexpr[TallyLaunch],
) -> None:
    tidx, _, _ = cute.arch.thread_idx()
    part, outer, _ = cute.arch.block_idx()
    warps, elements = how.threads // WARP, (how.keys + 1) * how.columns * how.copies
    tables = SmemAllocator().allocate_tensor(
        compute_type(mValues), cute.make_layout((elements, warps), stride=(1, elements)), 16
    )
    for place in cutlass.range(tidx, elements * warps, how.threads):
        tables[place % elements, place // elements] = tables.element_type(0)
    cute.arch.sync_threads()
    own = cute.make_tensor(
        tables.iterator + (tidx // WARP * elements + tidx % how.copies),
        cute.make_layout((how.keys + 1, how.columns), stride=(how.columns * how.copies, how.copies)),
    )
    each = how.threads * how.vec * how.at_once
    for first in cutlass.range(part * each, Int32(mKeys.shape[0]), how.parts * each):
        _add_rows(own, mKeys, mValues, first, outer, how)
    cute.arch.sync_threads()
    begin = (Int64(outer) * how.parts + part) * (how.keys * how.columns)
    _store_sums(tables, mSums, begin, how)


@cute.kernel
def parts_kernel(mParts: cute.Tensor, mY: cute.Tensor, how: cutlass.Constexpr[TallyLaunch]) -> None:
    """Add up the tables of blocks: each warp of a block adds every `WARPS`-th one, then the first warp adds up the
    warps' sums."""
    tidx, _, _ = cute.arch.thread_idx()
    bidx, outer, _ = cute.arch.block_idx()
    sums, warp, lane = how.keys * how.columns, tidx // WARP, tidx % WARP
    place = bidx * WARP + lane
    own = cutlass.select_(place < sums, place, Int32(0))
    begin, found = Int64(outer) * (how.parts * sums) + own, cute.make_rmem_tensor((1,), mParts.element_type)
    found.fill(0)
    for first in cutlass.range(warp, how.parts, WARPS * IN_FLIGHT):
        numbers = [first + i * WARPS for i in range(IN_FLIGHT)]
        loaded = [_one(mParts, begin + cutlass.select_(n < how.parts, n, first) * sums) for n in numbers]
        for n, x in zip(numbers, loaded, strict=True):
            found[0] = found[0] + cutlass.select_(n < how.parts, x, found.element_type(0))
    buffer = SmemAllocator().allocate_tensor(mParts.element_type, cute.make_layout((WARP, WARPS), stride=(1, WARP)), 16)
    buffer[lane, warp] = found[0]
    cute.arch.sync_threads()
    if warp == 0 and place < sums:
        total = found[0]
        for other in cutlass.range_constexpr(1, WARPS):
            total = total + buffer[lane, other]
        target = cute.make_tensor(mY.iterator + (Int64(outer) * sums + place), cute.make_layout((1,)))
        target[0] = total.to(mY.element_type)


@cute.jit
def tally_launch(
    stream: Any,
    mKeys: cute.Tensor,
    mValues: cute.Tensor,
    mY: cute.Tensor,
    mParts: cute.Tensor | None = None,  # where several blocks share the rows
    how: cutlass.Constexpr[TallyLaunch] = DEFAULT,
) -> None:
    """Sum the values by their keys."""
    outer = Int32(mValues.shape[0])
    block = {"block": (how.threads, 1, 1), "stream": stream}
    sums = mY if cutlass.const_expr(mParts is None) else mParts
    tally_kernel(mKeys, mValues, sums, how).launch(grid=(how.parts, outer, 1), **block)
    if cutlass.const_expr(mParts is not None):
        blocks = (how.keys * how.columns + (WARP - 1)) // WARP
        parts_kernel(mParts, mY, how).launch(grid=(blocks, outer, 1), block=(WARPS * WARP, 1, 1), stream=stream)
