"""The coordinates of a row's columns along the axes that make a column, and loads of single columns by them."""

from __future__ import annotations

from typing import TypeAlias

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, Uint32

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


def start_of(tensor: cute.Tensor, place: cute.Coord | Int64) -> Int64:
    """The position of a row's first column, from its coordinates; for an array that is one long row it is known."""
    return cute.crd2idx(place, tensor.layout) if isinstance(place, tuple) else place


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


def gather(
    src: cute.Tensor, place: cute.Coord, modes: tuple[int | None, ...], extents: tuple[Int32, ...], first: Int32, step: int,
    columns: Int32, dst: cute.Tensor, neighbours: bool,
) -> None:  # fmt: skip
    """As `access.gather_row`, for single columns (1, vectors) of a row; only the last vector may be outside. There is one branch for all
    of them, so that the row's position is computed once. `neighbours`: they are neighbours, of two groups at most."""
    if neighbours and cute.size(dst) > 1 and len(extents) - 1 not in modes:
        _gather_neighbours(src, place, modes, extents, first, columns, dst)
    else:
        _gather(src, place, modes, extents, first, step, columns, dst)


@cute.jit
def _gather(
    src: cute.Tensor,
    place: cute.Coord,
    modes: cutlass.Constexpr[tuple[int | None, ...]],
    extents: tuple[cutlass.Int32, ...],
    first: cutlass.Int32,
    step: cutlass.Constexpr[int],
    columns: cutlass.Int32,
    dst: cute.Tensor,
) -> None:
    dst.fill(0)
    vectors = cute.size(dst)
    places = places_of(first, step, vectors, 1, 1, extents)
    if first < columns:
        start = Int64(cute.crd2idx(place, src.layout))
        for v in cutlass.range_constexpr(vectors):
            at = _offset(src, modes, places[v][0])
            if cutlass.const_expr(v > 0 and v == vectors - 1):
                at = cutlass.select_(first + v * step < columns, at, 0)
            dst[0, v] = (src.iterator + (start + at)).load()


@cute.jit
def _gather_neighbours(
    src: cute.Tensor,
    place: cute.Coord,
    modes: cutlass.Constexpr[tuple[int | None, ...]],
    extents: tuple[cutlass.Int32, ...],
    first: cutlass.Int32,
    columns: cutlass.Int32,
    dst: cute.Tensor,
) -> None:
    """Each of the two groups has one element."""
    vectors = cute.size(dst)
    held = cute.make_rmem_tensor((2,), src.element_type)
    held.fill(0)
    own = coordinates(first, extents)
    left = extents[-1] - own[-1]  # columns of the first one's group, from that on
    beyond = coordinates(cutlass.select_(left < vectors, first + left, first), extents)
    if first < columns:
        at = src.iterator + Int64(cute.crd2idx(place, src.layout))
        held[0], held[1] = (at + _offset(src, modes, own)).load(), (at + _offset(src, modes, beyond)).load()
    for v in cutlass.range_constexpr(vectors):
        dst[0, v] = cutlass.select_(v < left, held[0], held[1])


def _offset(tensor: cute.Tensor, modes: tuple[int | None, ...], column: Places) -> Int32:
    """How far a column is from a row's first one, in a tensor that has some of the axes. It is less than 2**31 elements, so no
    column needs products of 64 bits."""
    found = Int32(0)
    for mode, m in enumerate(modes):
        if m is not None:
            stride = tensor.stride[mode]
            found = found + column[m] * (stride if isinstance(stride, int) else Int32(stride))
    return found
