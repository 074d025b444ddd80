"""The coordinates of a row's columns along the axes that make a column."""

from __future__ import annotations

from typing import TypeAlias

import cutlass
from cutlass import Int32, Uint32

from codegen.device.functions import next_coordinates

Places: TypeAlias = tuple[Int32, ...]  # coordinates along the axes that make a column


def places_of(
    first: Int32, step: int, vectors: int, vec: int, each: int, extents: tuple[Int32, ...]
) -> list[list[Places]]:
    """The coordinates of every `each`-th column of each vector; vectors are `step` columns apart. Only the first need a division."""
    found: list[list[Places]] = []
    hop, at = coordinates(Int32(step), extents), coordinates(first, extents)
    for v in range(vectors):
        at = _further(at, hop, extents) if v else at
        own = [at]
        for _ in range(0, vec - each, each):
            own.append(next_coordinates(own[-1], extents[1:]))
        found.append(own)
    return found


def coordinates(column: Int32, extents: tuple[Int32, ...]) -> Places:
    """A column's coordinates along the axes that make a column. The first one is in range where the column is."""
    found, rest = [], Uint32(column)
    for extent in reversed(extents[1:]):
        found.append(Int32(rest % Uint32(extent)))
        rest = rest // Uint32(extent)
    return Int32(rest), *reversed(found)


def _further(place: Places, hop: Places, extents: tuple[Int32, ...]) -> Places:
    """The coordinates of the column that is `hop` after `place`."""
    found, carry = [], Int32(0)
    for at, by, extent in reversed(list(zip(place[1:], hop[1:], extents[1:], strict=True))):
        value = at + by + carry
        found.append(cutlass.select_(value >= extent, value - extent, value))
        carry = Int32(value >= extent)
    return place[0] + hop[0] + carry, *reversed(found)
