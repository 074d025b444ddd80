"""The elements of a batch: their positions along its axes, the innermost first; the elements that share a row of k and v; and the
rows that a block has of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from codegen.shared import AttentionLaunch


def places_of(batch: Int32, sizes: Any) -> tuple[Int32, ...]:
    """The positions along the batch's axes, the innermost first."""
    found, rest = [], batch
    for size in sizes[:-1]:
        found.append(Int32(rest % size))
        rest = rest // size
    return (*found, Int32(rest))


def lacking(strides: tuple) -> tuple[bool, ...]:
    """Which axes of the batch a tensor lacks, from its strides along them."""
    return tuple(isinstance(stride, int) and stride == 0 for stride in strides)


def count(sizes: tuple, lacking: tuple[bool, ...], which: bool) -> Any:
    """The number of elements along the batch's axes that k lacks, or along the others."""
    return math.prod(n for n, lacks in zip(sizes, lacking, strict=True) if lacks == which)


def _positions(number: Int32, sizes: tuple, lacking: tuple[bool, ...], which: bool) -> list[Int32]:
    """The positions along these axes, 0 along the others."""
    own = [n for n, lacks in zip(sizes, lacking, strict=True) if lacks == which]
    found = iter(places_of(number, own) if own else ())
    return [next(found) if lacks == which else Int32(0) for lacks in lacking]


def own(index: Int32, batches: tuple, lacking: tuple[bool, ...]) -> tuple[Int32, tuple]:
    """The tile of k, and the positions of its batch. The first tiles, which are seen most under a causal mask, come first."""
    each = Int32(count(batches, lacking, False))
    return index // each, tuple(_positions(index % each, batches, lacking, False))


def sharer(which: Int32, places: tuple, batches: tuple, lacking: tuple[bool, ...]) -> tuple:
    """The positions of one of the elements of the batch that share a tile of k."""
    return tuple(a + b for a, b in zip(places, _positions(which, batches, lacking, True), strict=True))


@dataclass(frozen=True)
class Block:
    """The rows of a block: of one element of the batch, or of all that share its k and v."""

    batch: Int32  # the number of this element, and its positions along the batch's axes
    places: tuple
    first: Int32  # its first row, of so many
    count: Int32
    batches: tuple
    lacking: tuple[bool, ...]
    sizes: tuple  # rows of q and of k
    how: AttentionLaunch
    rows: tuple = ()  # the first and the last position along Q

    def at(self, row: Int32) -> tuple[tuple, Int32]:
        """The batch and the position along Q of a row, or of the last one."""
        row, end = cutlass.min(row, self.count - 1), self.sizes[0]
        if not self.how.packed:
            return self.places, row
        return sharer(row // end, self.places, self.batches, self.lacking), row % end


def block(number: Int32, sizes: tuple, batches: tuple, lacking: tuple[bool, ...], how: AttentionLaunch) -> Block:
    """The rows of a block."""
    rows = sizes[0] * count(batches, lacking, True)
    tiles = cute.ceil_div(rows, how.tile_m)
    batch = number // tiles
    places = own(batch, batches, lacking)[1]
    first = (tiles - 1 - number % tiles) * how.tile_m  # the last rows first: under a causal mask they take longest
    end = sizes[0]
    along = (Int32(0), end - 1) if how.packed else (first, cutlass.min(first + how.tile_m, end) - 1)
    return Block(batch, places, first, rows, batches, lacking, sizes, how, along)


@cute.jit
def store_sum(
    value: cutlass.Float32, target: cute.Tensor, places: tuple, row: cutlass.Int32, count: cutlass.Int32
) -> None:
    """Store the sum of four lanes' values to a row."""
    for apart in cutlass.range_constexpr(2):
        value = value + cute.arch.shuffle_sync_bfly(value, 1 << apart)
    if (row < count) & (cute.arch.lane_idx() % 4 == 0):
        target[places, row] = value
