"""Prefetches operands of an epilogue into shared memory: TMA copies them while earlier products are handled, and they take no
registers meanwhile. A piece of each array is copied as one box, row by row, and a barrier counts the bytes.

An epilogue loads vectors with a function like `vectors.load`; for prefetched operands this is `Slots.load`. It must be called
for the arrays in the order of their copies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import cutlass
import cutlass.cute as cute
from cutlass import Int8, Int16, Int32, Int64, Numeric, Uint32
from cutlass.cute.nvgpu import cpasync

from codegen.device import vectors
from codegen.device.gemm import tensorcore

ALIGNED = 128  # bytes in shared memory to which a box is aligned
_WORDS: dict[int, type[Numeric]] = {8: Int8, 16: Int16, 32: Int32, 64: Int64}  # copies only need the width of a type


@dataclass(frozen=True)
class Box:
    """The part of an array that is copied at once: some rows, and `columns` of the output, each with some adjacent elements."""

    rows: int
    columns: int
    parts: int
    word: type[Numeric]
    batched: bool  # else all batches share the array

    @property
    def layout(self) -> cute.Layout:
        return cute.make_layout((self.rows, self.columns * self.parts), stride=(self.columns * self.parts, 1))

    @property
    def size(self) -> int:
        """The number of bytes."""
        return self.rows * self.columns * self.parts * self.word.width // 8


Fetcher: TypeAlias = tuple[cute.CopyAtom, cute.Tensor]  # TMA's copy of a box, and the coordinates that it copies from


def fetcher(src: cute.Tensor, parts: int, batched: bool, rows: int, columns: int) -> tuple[Box, Fetcher]:
    """The fetcher of a tensor (..., rows, columns), or (..., rows, columns, parts), whose rows have a multiple of 16 bytes and a
    constant stride."""
    box = Box(rows, columns, parts, _WORDS[src.element_type.width], batched)
    own = cute.rank(src) - (1 if parts == 1 else 2)  # modes that count rows
    high, whole = Int32(1), 128 // box.word.width
    for mode in range(own):
        high = high * src.shape[mode]
    shape = (high, cute.assume(src.shape[own] * parts, divby=whole))
    stride = (cute.assume(Int64(src.stride[own - 1]), divby=whole), 1)
    words = cute.recast_ptr(src.iterator, dtype=box.word)
    op, matrix = cpasync.CopyBulkTensorTileG2SOp(), cute.make_tensor(words, cute.make_layout(shape, stride=stride))
    info = cpasync.make_tiled_tma_atom(op, matrix, box.layout, (rows, columns * parts))
    return box, (info[0], info[1])


def fetch(
    boxes: tuple[Box, ...],
    fetchers: tuple[Fetcher, ...],
    rows: tuple[Int32, Int32],
    column: Int32,
    target: cute.Pointer,
    barrier: cute.Pointer,
) -> None:
    """Start the copy of a box of each array. It begins at a column, and at a row that is counted over all batches or
    within a batch. Zeros past the array's end."""
    with cute.arch.elect_one():
        cute.arch.mbarrier_arrive_and_expect_tx(barrier, sum(box.size for box in boxes))
    at = 0
    for box, (copy, coordinates) in zip(boxes, fetchers, strict=True):
        there: Any = cute.domain_offset((rows[0 if box.batched else 1], column * box.parts), coordinates)
        there = cute.local_tile(there, (box.rows, box.columns * box.parts), (0, 0))
        here = cute.make_tensor(cute.recast_ptr(target + at, dtype=box.word), box.layout)
        dst, src = partition(copy, there, here, 0, 1)
        cute.copy(copy, src, dst, tma_bar_ptr=barrier)
        at += box.size


def partition(
    load: cute.CopyAtom, gX: cute.Tensor, sX: cute.Tensor, rank: Int32 | int, sharers: int
) -> tuple[cute.Tensor, cute.Tensor]:
    """The part of each box that this block loads, in shared and in global memory."""
    rank = rank if sharers > 1 else 0
    layout = cute.make_layout(sharers)
    found: Any = cpasync.tma_partition(load, rank, layout, cute.group_modes(sX, 0, 2), cute.group_modes(gX, 0, 2))
    return found


@dataclass
class Slots:
    """The places of a piece's operands, one array after the other."""

    start: Int32  # an address in shared memory
    boxes: tuple[Box, ...]
    vector: Int32 | int  # of those of an array, row by row
    taken: int = 0  # arrays

    def load(self, src: cute.Tensor, place: Int64, valid: cutlass.Int32, vec: int, ragged: bool) -> cute.Tensor:
        """The (vec,) registers of the next array's vector."""
        del place, valid, ragged
        dst = cute.make_rmem_tensor((vec,), src.element_type)
        words = cute.recast_tensor(dst, Uint32)
        at = (
            self.start
            + sum(box.size for box in self.boxes[: self.taken])
            + self.vector * (vec * src.element_type.width // 8)
        )
        self.taken += 1
        for first, count in vectors.accesses(cute.size(words)):
            for i, word in enumerate(tensorcore.load_words(at + 4 * first, count)):
                words[first + i] = word
        return dst
