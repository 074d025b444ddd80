"""Reductions of an element's states, sums along the scanned axis, and sums along the innermost one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64, Numeric
from cutlass.memory import SmemAllocator

from codegen.device import reduce
from codegen.device.flat import Axis
from codegen.device.functions import Vector
from codegen.device.math import recurrences
from codegen.device.scan.elements import Step, Walk, write
from codegen.shared import WARP, ScanLaunch

FINISHING = 256  # threads of a block that adds up parts

# Reductions of an element's states


def totals(walk: Walk, ops: tuple[str, ...], dtype: type[Numeric]) -> list[cute.Tensor]:
    """Registers for the reductions of the states of a vector's elements (`reduce.accumulate`)."""
    return [reduce.accumulator(walk.how.vec, op, dtype) for op in ops]


def reduced(ops: tuple[str, ...], found: list[cute.Tensor], count: int) -> list[Vector]:
    """The results of these reductions, over so many states."""
    values = [reduce.result(op, total.load()) for op, total in zip(ops, found, strict=True)]
    return [value / count if op == "mean" else value for op, value in zip(ops, values, strict=True)]


# Sums along the axis


def add(sums: list[cute.Tensor], step: Step, values: tuple[Vector, ...]) -> None:
    """Add a vector's elements to a thread's sums, if they are inside the arrays."""
    inside = cute.full((step.how.vec,), step.inside, Boolean)
    reduce.accumulate(sums, ("sum",) * len(sums), values, inside)


def summed(walk: Walk, sums: list[cute.Tensor]) -> tuple[Step, list[Vector]]:
    """The sums of all warps that share the axis, in their order, and where the first of them writes these."""
    tidx, _, _ = cute.arch.thread_idx()
    how, lane, found = walk.how, cute.arch.lane_idx(), sums
    if how.along > 1:
        shared = _shared_sums(how, sums, how.threads // WARP)
        for k, own in enumerate(sums):
            cute.autovec_copy(own, shared[None, k, lane, tidx // WARP])
        cute.arch.sync_threads()
        found = _added(how, sums, [shared[None, None, lane, walk.group * how.along + i] for i in range(how.along)])
    if how.cluster > 1:  # the first block adds up the sums of all
        groups = how.threads // WARP // how.along
        shared = _shared_sums(how, sums, groups * how.cluster)
        _tell_first(walk.warp == 0, found, shared, lane, walk.rank * groups + walk.group)
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
        found = _added(how, sums, [shared[None, None, lane, i * groups + walk.group] for i in range(how.cluster)])
    leads = walk.there & (walk.warp == 0) & (walk.rank == 0)
    return replace(walk.steps(Int32(0))[0], inside=leads), [reduce.result("sum", total.load()) for total in found]


def _shared_sums(how: ScanLaunch, sums: list[cute.Tensor], sharing: int) -> cute.Tensor:
    """Shared memory for the sums of so many that share them: (element, sum, lane, who)."""
    layout = cute.make_layout((how.vec, len(sums), WARP, sharing))
    return SmemAllocator().allocate_tensor(sums[0].element_type, layout, 16)


def _added(how: ScanLaunch, sums: list[cute.Tensor], shared: list[cute.Tensor]) -> list[cute.Tensor]:
    """The sums of all that share them, in their order."""
    found = [reduce.accumulator(how.vec, "sum", own.element_type) for own in sums]
    for k, total in enumerate(found):
        for own in shared:
            total.store(total.load() + own[None, k].load())
    return found


@cute.jit
def _tell_first(tells: Boolean, sums: cutlass.Constexpr[list], shared: cute.Tensor, lane: Int32, place: Int32) -> None:
    """Write a block's sums where the first block of the cluster reads them."""
    if tells:
        there = cute.make_tensor(cute.arch.map_dsmem_ptr(shared.iterator, Int32(0)), shared.layout)
        for k in cutlass.range_constexpr(len(sums)):
            cute.autovec_copy(sums[k], there[None, k, lane, place])


# Sums along the innermost axis


@dataclass(frozen=True)
class Across:
    """Sums over the elements of a warp, whose results another kernel adds up (`finish`): (part, output and row and state). A part is what
    the lanes of a warp have along the innermost axis; a row is a position along the others."""

    walk: Walk
    memory: cute.Tensor
    outputs: int
    states: int  # of an element
    held: list[cute.Tensor]  # a lane's sums, each of all states

    def add(self, state: int, steps: list[Step], values: list[tuple[Vector, ...]]) -> None:
        """Add up the values of a state of each element of a thread's vectors."""
        apart = []
        for output in range(self.outputs):
            for step, own in zip(steps, values, strict=True):
                nothing = self.memory.element_type(0.0)
                value = type(nothing)(own[output].reduce(cute.ReductionOp.ADD, nothing, 0))
                apart.append(recurrences.pick(step.inside, value, nothing))
        for held, total in zip(self.held, _over_lanes(apart), strict=True):
            held[state] = total

    def store(self, tile: Int32) -> None:
        """Write the sums of a tile."""
        walk, count = self.walk, self.outputs * self.walk.how.steps
        places = 1 << (count - 1).bit_length()  # of sums, of which a lane has as many as it holds
        lane, sharing = cute.arch.lane_idx(), max(WARP // places, 1)
        # Of lane 0: lanes without elements are at position 0
        part = Int32(cute.arch.shuffle_sync(walk.first[-1], 0)) // (WARP * walk.how.vec)
        rows = self.memory.shape[1] // (self.outputs * self.states)
        steps = walk.steps(tile)
        for i, held in enumerate(self.held):
            place = lane // sharing * len(self.held) + i
            output, number = place // walk.how.steps, place % walk.how.steps
            row, along = Int64(0), Boolean(False)
            for u, step in enumerate(steps):
                own = Int64(0)
                for extent, at in zip(walk.extents[:-1], step.first[:-1], strict=True):
                    own = own * extent + at
                row = cutlass.select_(number == u, own, row)
                along = along | ((number == u) & step.along)
            tells = along & (place < count) & (lane % sharing == 0)
            offset = Int64(part) * self.memory.shape[1] + (output * rows + row) * self.states
            offset = cute.assume(offset, divby=self.states)
            write(tells, held, cute.make_tensor(self.memory.iterator + offset, cute.make_layout((self.states,))))


def across(walk: Walk, memory: cute.Tensor, outputs: int, states: int) -> Across:
    """The sums of so many outputs, each with so many states."""
    places = 1 << (outputs * walk.how.steps - 1).bit_length()
    held = [cute.make_rmem_tensor((states,), memory.element_type) for _ in range(max(places // WARP, 1))]
    return Across(walk, memory, outputs, states, held)


def _over_lanes(values: list[Numeric]) -> list[Numeric]:
    """The sums of values over a warp's lanes. Of fewer than 32, neighbouring lanes have the same one; of more, each has neighbouring ones.
    The number of values is made a power of two."""
    lane, distance = cute.arch.lane_idx(), WARP // 2
    values = values + [type(values[0])(0.0)] * ((1 << (len(values) - 1).bit_length()) - len(values))
    while distance:
        upper, half = (lane & distance) != 0, len(values) // 2
        if half:
            low, high = values[:half], values[half:]
            kept = [recurrences.pick(upper, b, a) for a, b in zip(low, high, strict=True)]
            sent = [recurrences.pick(upper, a, b) for a, b in zip(low, high, strict=True)]
        else:
            kept = sent = values
        values = [k + type(k)(cute.arch.shuffle_sync_bfly(s, distance)) for k, s in zip(kept, sent, strict=True)]
        distance //= 2
    return values


def finishing_grid(memory: cute.Tensor, outputs: int, stream: Any) -> dict[str, Any]:
    """The grid and block of the launch that adds up an output's parts."""
    blocks = memory.shape[1] // outputs // FINISHING + 1
    return {"grid": (blocks, 1, 1), "block": (FINISHING, 1, 1), "stream": stream}


@cute.kernel
def finish(
    memory: cute.Tensor,
    output: cute.Tensor,
    number: cutlass.Constexpr[int],
    outputs: cutlass.Constexpr[int],
    extents: tuple[Int32, ...],
    place: cutlass.Constexpr[tuple[Axis | tuple[int, int], ...]],
    states: cutlass.Constexpr[int],
) -> None:
    """Add up the parts of an output, in their order. `extents` are the sizes of a row's axes. `place` has an entry for each mode of the
    output: one of these axes, or a state's axis, as (states of one position, size)."""
    tidx, _, _ = cute.arch.thread_idx()
    bidx, _, _ = cute.arch.block_idx()
    count = memory.shape[1] // outputs
    own = Int32(bidx * FINISHING + tidx)
    where = _where(own // states, own % states, extents, place)
    if own < count:
        total = memory.element_type(0.0)
        for part in cutlass.range(memory.shape[0], unroll=4):
            total = total + memory[part, number * count + own]
        output[where] = total.to(output.element_type)


def _where(
    row: Int32, state: Int32, extents: tuple[Int32, ...], place: tuple[Axis | tuple[int, int], ...]
) -> tuple[Int32, ...]:
    """The coordinates of a row's state in an output."""
    at: list[Int32] = []
    for extent in extents[::-1]:
        at.insert(0, row % extent)
        row = row // extent
    return tuple(at[p.number] if isinstance(p, Axis) else state // p[0] % p[1] for p in place)
