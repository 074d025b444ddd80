"""A thread's elements along the axis, and their loads, which are a tile ahead."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64

from codegen.device import access
from codegen.device.flat import Axis, Flat, Operand, Place, Read, _where, registers
from codegen.device.functions import Vector
from codegen.shared import WARP, ScanLaunch

# Bytes of neighbouring states that a thread loads at once: of an array that all of its elements share, and of one of which each has
# its own, for which registers are scarce
VECTOR, PAIR = 16, 4


def grid(how: ScanLaunch, extents: Sequence[Int32], axis: int, stream: Any, whole: bool = False) -> dict[str, Any]:
    """The grid and block of a launch for outputs of these sizes. Warps have scans of one row of them where these are `whole`."""
    blocks = (_others(_padded(how, extents) if whole else extents, axis) // how.each + 1) * how.cluster
    return {
        "grid": (blocks, 1, 1), "block": (how.threads, 1, 1), "cluster": (how.cluster, 1, 1), "stream": stream,
        "min_blocks_per_mp": max(how.resident, 1), "preferred_smem_carveout": -1,  # as much as the driver sees fit
    }  # fmt: skip


def _others(extents: Sequence[Int32], axis: int) -> Int64:
    """The number of positions along all axes but one."""
    size = Int64(1)
    for i, extent in enumerate(extents):
        size = size if i == axis else size * extent
    return size


def _padded(how: ScanLaunch, extents: Sequence[Int32]) -> tuple[Int32, ...]:
    """The sizes, the innermost one in whole warps."""
    lanes = WARP * how.vec
    return (*extents[:-1], (extents[-1] + lanes - 1) // lanes * lanes)


class Position(int):
    """The position of a state along an axis of a fixed size, which is a power of two."""

    size: int


def positions(*sizes: int) -> list[tuple[int, ...]]:
    """The positions of an element's states along axes of these sizes. The last axis is contiguous in arrays."""
    found = []
    for own in itertools.product(*map(range, sizes)):
        last = Position(own[-1])
        last.size = sizes[-1] if sizes[-1] & (sizes[-1] - 1) == 0 else 1
        found.append((*own[:-1], last))
    return found


@dataclass(frozen=True)
class Step(Flat):
    """One of a thread's vectors. If it is outside the arrays, loads read elements inside, and nothing is stored."""

    inside: Boolean
    along: Boolean  # whether its warp has elements there
    axis: int  # along which it scans
    held: dict[Any, cute.Tensor] = field(default_factory=dict, compare=False, repr=False)  # elements of states

    def load(self, *operands: Operand) -> tuple[cute.Tensor, ...]:
        counts = [self._together(o) for o in operands]
        found = list(super().load(*(o for o, count in zip(operands, counts, strict=True) if count == 1)))
        return tuple(
            found.pop(0) if count == 1 else self._load_state(o, count)
            for o, count in zip(operands, counts, strict=True)
        )

    def _together(self, operand: Operand) -> int:
        """The number of neighbouring states whose elements of an array are loaded at once: more where all of a thread's elements share
        these."""
        if not isinstance(operand, Read) or operand.tensor is None or not operand.place or self.how.vec > 1:
            return 1
        *others, state = operand.place
        width, most = operand.tensor.element_type.width, PAIR if Axis(self.axis) in others else VECTOR
        return math.gcd(state.size, max(8 * most // width, 1)) if isinstance(state, Position) and width >= 8 else 1

    def _load_state(self, read: Any, count: int) -> cute.Tensor:
        """A state's element, which is loaded together with its neighbours'."""
        *others, state = read.place
        first = state // count * count
        key = id(read.tensor), *others, first
        if key not in self.held:
            offset = cute.crd2idx(_where(read.tensor, (*others, first), self.first), read.tensor.layout)
            src = read.tensor.iterator + cute.assume(Int64(offset), divby=count)
            self.held[key] = cute.make_rmem_tensor((count,), read.tensor.element_type)
            cute.autovec_copy(cute.make_tensor(src, cute.make_layout((count,))), self.held[key])
        found = cute.make_rmem_tensor((1,), read.tensor.element_type)
        found[0] = self.held[key][state - first]
        return found

    def store(self, values: Vector | tuple[Vector, ...], dst: cute.Tensor) -> None:
        parts = len(values) if isinstance(values, tuple) else 0
        write(self.inside, access.registers_of(values, dst, self.how.vec), self._own(dst, parts))

    def store_at(self, src: cute.Tensor, dst: cute.Tensor, place: Place) -> None:
        _write_at(self, src, dst, place)


@cute.jit
def write(inside: Boolean, src: cute.Tensor, dst: cute.Tensor) -> None:
    """Write a vector, if it is inside."""
    if inside:
        cute.autovec_copy(src, dst)


@cute.jit
def _write_at(
    step: cutlass.Constexpr[Step], src: cute.Tensor, dst: cute.Tensor, place: cutlass.Constexpr[tuple]
) -> None:
    if step.inside:
        Flat.store_at(step, src, dst, place)


@dataclass(frozen=True)
class Walk:
    """The elements of a thread along the axis, in steps."""

    how: ScanLaunch
    extents: tuple[Int32, ...]
    axis: int
    reverse: bool
    first: tuple[Int32, ...]  # its position along the other axes
    there: Boolean  # whether it has one
    present: Boolean  # whether its warp has one
    tiles: Int32
    warp: Int32  # which of those of a block that share the axis
    group: Int32  # of warps that share it, of a block
    rank: Int32  # which of the blocks that share it
    column: Int64  # the number of its first scan
    lead: Int32 | None  # elements that its first tile lacks, where tiles are counted from the axis' other end

    @property
    def innermost(self) -> bool:
        return self.axis == len(self.extents) - 1

    @property
    def axes(self) -> tuple[Axis, ...]:
        return tuple(Axis(i) for i in range(len(self.extents)))

    @property
    def width(self) -> int:
        """The number of scans of a thread."""
        return 1 if self.innermost else self.how.vec

    def chunk(self, tile: Int32) -> Int32:
        """The number of a thread's elements of a tile, counted in as many as a thread has at once."""
        how = self.how
        warp = self.rank * how.along + self.warp
        thread = warp * WARP + cute.arch.lane_idx() if self.innermost else warp
        return tile * (how.cluster * how.along * (WARP if self.innermost else 1)) + thread

    def steps(self, tile: Int32) -> list[Step]:
        """The number of a thread's vectors in a tile, in the scan's order."""
        how, size = self.how, self.extents[self.axis]
        unit = how.vec if self.innermost else 1
        own, found, base, stride = self.chunk(tile), [], Int64(0), Int64(1)
        for i, (extent, at) in enumerate(zip(self.extents, self.first, strict=True)):
            base = base * extent + at
            stride = stride * extent if i > self.axis else stride
        for u in range(how.steps):
            place, along = (own * how.steps + u) * unit, Boolean(True)
            if self.lead is not None:
                place = place - self.lead
                along = place >= 0
                place = cutlass.select_(along, place, 0)
            along = along & (place < size)
            place = cutlass.select_(place < size, place, size - unit)
            place = size - unit - place if self.reverse else place
            first = tuple(place if i == self.axis else f for i, f in enumerate(self.first))
            start = cute.assume(base + place * stride, divby=how.vec)
            found.append(
                Step(
                    how, self.extents, start, Int64(how.vec), first, self.there & along, self.present & along, self.axis
                )
            )
        return found


def walk(
    how: ScanLaunch, extents: Sequence[Int32], axis: int, reverse: bool, back: bool = False, whole: bool = False
) -> Walk:
    """This thread's elements along an axis of outputs with these sizes. Those that go `back` have the tiles of the other direction. A
    warp's scans are of one row of the outputs, where these are `whole`."""
    tidx, _, _ = cute.arch.thread_idx()
    bidx, _, _ = cute.arch.block_idx()
    innermost = axis == len(extents) - 1
    warp = tidx // WARP
    group = warp // how.along
    column = Int64(bidx // how.cluster) * (how.threads // WARP // how.along) + group
    counted = _padded(how, extents) if whole else tuple(extents)
    others = _others(counted, axis)
    if not innermost:
        column = (column * WARP + cute.arch.lane_idx()) * how.vec
    there = present = column < others
    column = cutlass.select_(there, column, Int64(0))
    first: list[Int32] = []
    for i in reversed(range(len(extents))):
        if i == axis:
            first.insert(0, Int32(0))
        else:
            first.insert(0, Int32(column % counted[i]))
            column = column // counted[i]
    if whole:
        there = there & (first[-1] < extents[-1])
        first[-1] = cutlass.select_(there, first[-1], Int32(0))
    number = Int64(0)
    for i, extent in enumerate(extents):
        number = number if i == axis else number * extent + first[i]
    per_tile = how.cluster * how.along * how.steps * (WARP * how.vec if innermost else 1)
    size = extents[axis]
    tiles = cutlass.select_(others > 0, (size + per_tile - 1) // per_tile, Int32(0))
    rank = Int32(bidx % how.cluster)
    if how.cluster > 1:  # all blocks run before one writes to another's shared memory
        cute.arch.cluster_arrive_relaxed()
        cute.arch.cluster_wait()
    lead = (size + how.steps - 1) // how.steps * how.steps - size if back and how.uneven else None
    return Walk(
        how,
        tuple(extents),
        axis,
        reverse,
        tuple(first),
        there,
        present,
        tiles,
        warp % how.along,
        group,
        rank,
        number,
        lead,
    )


@dataclass(frozen=True)
class Ahead:
    """Registers for each of a thread's vectors, which are loaded a tile ahead: while a tile is computed, the next is in flight."""

    walk: Walk
    operands: tuple[Operand, ...]
    held: list[tuple[cute.Tensor, ...]]

    def load(self, tile: Int32) -> None:
        """Load the vectors of a tile, if the axis has it."""
        _load_ahead(self, tile)

    def load_there(self, tile: Int32) -> None:
        """Load the vectors of a tile."""
        for step, held in zip(self.walk.steps(tile), self.held, strict=True):
            for own, loaded in zip(held, step.load(*self.operands), strict=True):
                own.store(loaded.load())


def ahead(walk: Walk, *operands: Operand) -> Ahead:
    """The vectors of a thread's first tile."""
    how = walk.how
    found = Ahead(walk, operands, [registers(how.vec, *operands) for _ in range(how.steps)])
    found.load(Int32(0))
    return found


@cute.jit
def _load_ahead(own: cutlass.Constexpr[Ahead], tile: Int32) -> None:
    if tile < own.walk.tiles:
        own.load_there(tile)
