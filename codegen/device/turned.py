"""Device functions of element-wise kernels of which some arrays have their axes in another order than the others.

Such a kernel has an axis along which those arrays lie, the *turned* axis, besides the innermost one. A thread has a tile: `how.down`
rows of `how.vec` elements. It reads and writes each array in whole vectors, along that one of the two axes along which its elements
are neighbours. The tile is transposed by naming registers. The threads of a warp lie 8 along the innermost axis and 4 along the
turned one, so that their vectors fill whole sectors of memory on both sides. No shared memory is needed, and no thread waits.

An axis that vectors do not fill, next to one that they fill, is read one by one: a tile has one element along it, or few. Threads that
are neighbours then lie along it (`how.lanes`).

Where neither axis is filled (`how.ragged`), vectors are read and written at any alignment
(`functions.load_anywhere`, `functions.store_anywhere`). All lanes of a warp work together: a row beyond the end is read as the last
one, and neither it nor an element beyond the end is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64

from codegen.device import access
from codegen.device import functions as device
from codegen.device.flat import Axis, Place, Read, _mentions, _where
from codegen.shared import WARP, Launch

LANES = 4  # of a warp along the turned axis, where both axes are long
FEW = 8  # a warp has all of a block's vectors along the turned axis if these are no more


def _sizes(how: Launch) -> tuple[int, int]:
    """The elements of a block's tile along the turned axis, and along the innermost one."""
    return how.threads // how.across * how.down, how.across * how.vec


def _tiles(extent: Int32, size: int) -> Int32:
    """How many tiles an axis has; one where it is empty."""
    found = (Int32(extent) + (size - 1)) // size
    return cutlass.select_(found < 1, Int32(1), found)


def grid(how: Launch, extents: Sequence[Int32], axis: int, stream: Any) -> dict[str, Any]:
    """The grid and block of a launch for outputs of these sizes, with `axis` turned: one block for each tile."""
    blocks = Int64(1)
    for i, extent in enumerate(extents):
        size = _size_along(how, i, axis, len(extents))
        blocks = blocks * (_tiles(extent, size) if size else Int32(extent))
    return {"grid": (blocks + 1, 1, 1), "block": (how.threads, 1, 1), "stream": stream}


def _size_along(how: Launch, i: int, axis: int, count: int) -> int:
    """The elements of a block's tile along the axis `i`; 0 for axes along which it has one."""
    down, along = _sizes(how)
    return along if i == count - 1 else down if i == axis else 0


@dataclass(frozen=True)
class Tile:
    """A thread's tile: `how.down` rows along the turned axis, of `how.vec` elements of the innermost one."""

    how: Launch
    extents: tuple[Int32, ...]
    axis: int  # the number of the turned axis
    first: tuple[Int32, ...]  # the position of its first element
    inside: Boolean  # whether that is an element of the outputs; if ragged, whether the first of its warp's is
    lanes: tuple[int, int]  # of a warp, along the turned axis and along the innermost one

    @property
    def axes(self) -> tuple[Axis, ...]:
        return tuple(Axis(i) for i in range(len(self.extents)))

    @property
    def inner(self) -> int:
        return len(self.extents) - 1

    def at(self, i: int, j: int) -> tuple[Int32, ...]:
        """The position of an element: in row `i`, the `j`-th. One beyond the end is the last."""
        moved = list(self.first)
        for number, step in ((self.axis, i), (self.inner, j)):
            moved[number] = moved[number] + step
            if self.how.ragged:
                last = self.extents[number] - 1
                moved[number] = cutlass.select_(moved[number] > last, last, moved[number])
        return tuple(moved)

    def registers(self, tensor: cute.Tensor) -> cute.Tensor:
        """Registers for an array that is written along the turned axis: (row, element)."""
        return access.registers(tensor, (self.how.down, self.how.vec))

    # From memory

    def load(self, *operands: Read | Axis) -> list[list[cute.Tensor]]:
        """For each row, the registers with its elements of each operand: an array at a place, or an axis, for the elements'
        positions along it (int32)."""
        found = [self._rows(o) for o in operands]
        return [[rows[i] for rows in found] for i in range(self.how.down)]

    def _rows(self, operand: Read | Axis) -> list[cute.Tensor]:
        """A fragment for each row; the same one where all rows read the same."""
        vec, down = self.how.vec, self.how.down
        if isinstance(operand, Axis):
            places = [self.at(i, 0)[operand.number] for i in range(down if operand.number == self.axis else 1)]
            made = [cute.make_rmem_tensor((vec,), Int32) for _ in places]
            for x, place in zip(made, places, strict=True):
                if operand.number == self.inner:
                    device.count_up(x, place)
                else:
                    x.fill(place)
            return made * (down // len(made))
        if operand.tensor is None:
            return [access.registers(None, (vec,), operand.default, operand.dtype)] * down
        tensor, place = operand.tensor, operand.place
        assert place is not None
        if _lies_along(place, self.axis) and _mentions(place, self.inner):
            tile = self.registers(tensor)
            for j in range(vec):
                self._load(tensor, place, self.at(0, j), self.axis, tile[None, j])
            return [tile[i, None] for i in range(down)]
        made = []
        for i in range(down if _mentions(place, self.axis) else 1):
            x = access.registers(tensor, (vec,))
            if _lies_along(place, self.inner):
                self._load(tensor, place, self.at(i, 0), self.inner, x)
            elif not _mentions(place, self.inner):
                x.fill(tensor[_where(tensor, place, self.at(i, 0))])
            else:
                for j in range(vec):
                    x[j] = tensor[_where(tensor, place, self.at(i, j))]
            made.append(x)
        return made * (down // len(made))

    def _load(self, tensor: cute.Tensor, place: Place, at: tuple[Int32, ...], axis: int, dst: cute.Tensor) -> None:
        """A vector along an axis from `at` on."""
        if self.how.ragged:
            device.load_anywhere(tensor, cute.crd2idx(_where(tensor, place, at), tensor.layout), dst)
        else:
            cute.autovec_copy(self._vector(tensor, place, at, axis), dst)

    def _vector(self, tensor: cute.Tensor, place: Place, at: tuple[Int32, ...], axis: int) -> cute.Tensor:
        """The vector in memory, where whole vectors fill the axis."""
        where = (*_where(tensor, place, at)[:-1], None)
        row = tensor if len(where) == 1 else tensor[where]
        size = self._size(axis)
        return cute.local_tile(row, (size,), (at[axis] // size,))

    def _size(self, axis: int) -> int:
        """The elements of a thread's tile along an axis."""
        return self.how.vec if axis == self.inner else self.how.down

    # To memory

    def store(self, i: int, values: device.Vector, dst: cute.Tensor, place: Place) -> None:
        """The elements of row `i` to an array."""
        src = access.registers_of(values, dst, self.how.vec)
        if _lies_along(place, self.inner):
            self._store_vector(src, self.axis, i, dst, place)
        else:
            for j in range(self.how.vec):
                self._store(src, (j,), i, j, dst, place)

    def store_turned(self, src: cute.Tensor, dst: cute.Tensor, place: Place) -> None:
        """The whole tile to an array, along the turned axis."""
        for j in range(self.how.vec):
            self._store_vector(src[None, j], self.inner, j, dst, place)

    def _store_vector(self, src: cute.Tensor, across: int, step: int, dst: cute.Tensor, place: Place) -> None:
        """The vector that is `step` elements along the axis `across`, to an array that lies along the other one."""
        axis = self.inner if across == self.axis else self.axis
        if not self.how.ragged:
            at = self.at(step, 0) if across == self.axis else self.at(0, step)
            cute.autovec_copy(src, self._vector(dst, place, at, axis))
            return
        moved = list(self.first)
        moved[across] = moved[across] + step
        left = Int64(self.extents[axis] - moved[axis])
        valid = cutlass.select_(moved[across] < self.extents[across], left, Int64(0))
        offset = cute.crd2idx(_where(dst, place, tuple(moved)), dst.layout)
        down, along = self.lanes
        group, stride = (along, 1) if axis == self.inner else (down, along)
        held = access.registers(dst, (self._size(axis),))
        cute.autovec_copy(src, held)
        rest = device.store_anywhere(held, dst, offset, moved[axis], Int32(left), valid, group, stride)
        for k in range(self._size(axis)):
            _store_where(held, (k,), dst, _where(dst, place, _stepped(moved, axis, k)), device.bit(rest, k))

    def _store(self, src: cute.Tensor, own: tuple, i: int, j: int, dst: cute.Tensor, place: Place) -> None:
        """An element, if there is one."""
        where = _where(dst, place, self.at(i, j))
        if not self.how.ragged:
            dst[where] = src[own]
        else:
            there = self.first[self.axis] + i < self.extents[self.axis]
            _store_where(src, own, dst, where, there & (self.first[self.inner] + j < self.extents[self.inner]))


def tile(how: Launch, extents: Sequence[Int32], axis: int) -> Tile:
    """This thread's tile of outputs with these sizes, of which `axis` is the turned one."""
    tidx, _, _ = cute.arch.thread_idx()
    rest = Int32(cute.arch.block_idx()[0])
    beside = how.threads // how.across
    turned = beside if beside <= FEW else max(LANES, WARP // how.across)  # lanes of a warp along the turned axis
    along = WARP // turned
    lane, warp, warps = tidx % WARP, tidx // WARP, how.across // along
    inner = len(extents) - 1
    if how.lanes:
        place, own = {inner: Int32(0), axis: Int32(0)}, _beside_each_other(how, tidx, inner, axis)
    else:
        place = {inner: (warp % warps) * along, axis: (warp // warps) * turned}  # of the warp's first lane
        own = {inner: lane % along, axis: lane // along}
    first: list[Int32] = [Int32(0)] * len(extents)
    inside = Boolean(True)
    for i in (len(extents) - 1, axis, *(k for k in reversed(range(len(extents) - 1)) if k != axis)):
        size = _size_along(how, i, axis, len(extents))
        if size:
            count = _tiles(extents[i], size)
            each = how.vec if i == len(extents) - 1 else how.down
            of_warp = Int32(rest % count) * size + place[i] * each
            start = cute.assume(of_warp + own[i] * each, divby=each)
            inside = inside & ((of_warp if how.ragged else start) < extents[i])
        else:
            count = Int32(extents[i])
            start = Int32(rest % count)
            inside = inside & (start < extents[i])
        rest = rest // count
        first[i] = start
    return Tile(how, tuple(extents), axis, tuple(first), inside & (rest == 0), (turned, along))


def _beside_each_other(how: Launch, tidx: Int32, inner: int, axis: int) -> dict[int, Int32]:
    """A thread's vector along the two axes: `how.lanes` neighbours along the one that vectors fill, then all of the other one."""
    short, other = (inner, axis) if how.vec < how.down else (axis, inner)
    count = how.across if short == inner else how.threads // how.across
    rest = tidx // how.lanes
    return {short: rest % count, other: rest // count * how.lanes + tidx % how.lanes}


def _lies_along(place: Place, number: int) -> bool:
    """Whether elements that are neighbours along an axis lie next to each other at a place."""
    return place[-1] == Axis(number) and not _mentions(place[:-1], number)


def _stepped(at: Sequence[Int32], axis: int, step: int) -> tuple[Int32, ...]:
    return tuple(x + step if i == axis else x for i, x in enumerate(at))


@cute.jit
def _store_where(
    src: cute.Tensor, own: cutlass.Constexpr[tuple], dst: cute.Tensor, where: tuple, there: Boolean
) -> None:
    if there:
        dst[where] = src[own]
