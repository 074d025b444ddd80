"""The elements of a batch: their positions along its axes, the innermost first, and which of them share a row of k and v."""

from __future__ import annotations

import math
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32


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


@cute.jit
def store_sum(value: cutlass.Float32, target: cute.Tensor, places: tuple, row: cutlass.Int32, count: cutlass.Int32):
    """Store the sum of four lanes' values to a row."""
    for apart in cutlass.range_constexpr(2):
        value = value + cute.arch.shuffle_sync_bfly(value, 1 << apart)
    if (row < count) & (cute.arch.lane_idx() % 4 == 0):
        target[places, row] = value
