"""Device functions of kernels that scan along an axis.

Threads walk along the axis tile by tile. In a tile a thread has some elements that follow each other, and combines them. Then
threads exchange their partial results: lanes by shuffles where the axis is innermost, then warps through shared memory, then
blocks of a cluster through each other's. The states after a tile are carried to the next. Every combination has a fixed order:
two runs agree to the bit.

Where an element has many states, each scan of the kernel is as many scans of a thread, one after the other.

A scan in the other direction takes two kernels. The first goes in that direction, and writes the state before each thread's elements of
a tile (`starts`). The second goes in the direction of the other scans, with the same elements in each tile, and computes the
states from there (`states_back`).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64, Numeric
from cutlass.memory import SmemAllocator

from codegen.device import access, reduce
from codegen.device.flat import Axis, Flat, Operand, Place, registers
from codegen.device.functions import Vector
from codegen.device.math import recurrences
from codegen.device.math.recurrences import Element
from codegen.shared import WARP, ScanLaunch


def grid(how: ScanLaunch, extents: Sequence[Int32], axis: int, stream: Any) -> dict[str, Any]:
    """The grid and block of a launch for outputs of these sizes."""
    blocks = (_others(extents, axis) // how.each + 1) * how.cluster
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


@dataclass(frozen=True)
class Step(Flat):
    """One of a thread's vectors. If it is outside the arrays, loads read elements inside, and nothing is stored."""

    inside: Boolean

    def store(self, values: Vector | tuple[Vector, ...], dst: cute.Tensor) -> None:
        parts = len(values) if isinstance(values, tuple) else 0
        _write(self.inside, access.registers_of(values, dst, self.how.vec), self._own(dst, parts))

    def store_at(self, src: cute.Tensor, dst: cute.Tensor, place: Place) -> None:
        _write_at(self, src, dst, place)


@cute.jit
def _write(inside: Boolean, src: cute.Tensor, dst: cute.Tensor) -> None:
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
    tiles: Int32
    warp: Int32  # which of those of a block that share the axis
    group: Int32  # of warps that share it, of a block
    rank: Int32  # which of the blocks that share it
    column: Int64 = Int64(0)  # the number of its first scan
    lead: Int32 | None = None  # elements that its first tile lacks, where tiles are counted from the axis' other end

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
            place = (own * how.steps + u) * unit
            inside = self.there & (place < size)
            if self.lead is not None:
                place = place - self.lead
                inside = self.there & (place >= 0) & (place < size)
                place = cutlass.select_(place >= 0, place, 0)
            place = cutlass.select_(place < size, place, size - unit)
            place = size - unit - place if self.reverse else place
            first = tuple(place if i == self.axis else f for i, f in enumerate(self.first))
            start = cute.assume(base + place * stride, divby=how.vec)
            found.append(Step(how, self.extents, start, Int64(how.vec), first, inside))
        return found


def walk(how: ScanLaunch, extents: Sequence[Int32], axis: int, reverse: bool, back: bool = False) -> Walk:
    """This thread's elements along an axis of outputs with these sizes. Those that go `back` have the tiles of the other direction."""
    tidx, _, _ = cute.arch.thread_idx()
    bidx, _, _ = cute.arch.block_idx()
    innermost = axis == len(extents) - 1
    warp = tidx // WARP
    group = warp // how.along
    column = Int64(bidx // how.cluster) * (how.threads // WARP // how.along) + group
    others = _others(extents, axis)
    if not innermost:
        column = (column * WARP + cute.arch.lane_idx()) * how.vec
    there = column < others
    column = number = cutlass.select_(there, column, Int64(0))
    first: list[Int32] = []
    for i in reversed(range(len(extents))):
        if i == axis:
            first.insert(0, Int32(0))
        else:
            first.insert(0, Int32(column % extents[i]))
            column = column // extents[i]
    per_tile = how.cluster * how.along * how.steps * (WARP * how.vec if innermost else 1)
    size = extents[axis]
    tiles = cutlass.select_(others > 0, (size + per_tile - 1) // per_tile, Int32(0))
    rank = Int32(bidx % how.cluster)
    if how.cluster > 1:  # all blocks run before one writes to another's shared memory
        cute.arch.cluster_arrive_relaxed()
        cute.arch.cluster_wait()
    lead = (size + how.steps - 1) // how.steps * how.steps - size if back and how.uneven else None
    return Walk(
        how, tuple(extents), axis, reverse, tuple(first), there, tiles, warp % how.along, group, rank, number, lead
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


# States


@dataclass(frozen=True)
class Carried:
    """The values that are carried from tile to tile along the axis: registers (numbers, scans of a thread), for h = a h + b only h.
    Where several warps share the axis, also shared memory for their elements in two exchanges (exchange, warp, slot, scan, number),
    and for those of the blocks that share it (exchange, block, slot, scan, number)."""

    held: cute.Tensor
    shared: cute.Tensor | None
    of_blocks: cute.Tensor | None
    dtype: type[Numeric]
    number: int = 0  # which of an element's states
    count: int = 1  # of them, which take turns with the shared memory

    def hold(self, op: str, w: int, element: Element) -> None:
        """Carry a scan's partial result."""
        for n, number in enumerate(element[recurrences.first_carried(op) :]):
            self.held[n, w] = number

    def turn(self, tile: Int32) -> Int32:
        """The number of the exchange in shared memory that a tile has, 0 or 1."""
        return (tile + self.number) % 2 if self.count % 2 else Int32(self.number % 2)


def carried(op: str, walk: Walk, dtype: type[Numeric]) -> Carried:
    """The state before the first element."""
    return carried_states(op, walk, dtype, 1)[0]


def carried_states(op: str, walk: Walk, dtype: type[Numeric], count: int) -> list[Carried]:
    """The states before the first element, of a scan with so many for each."""
    identity = recurrences.identity(op, dtype)
    slots = 1 if walk.innermost else WARP

    def memory(sharing: int) -> cute.Tensor:
        shape = (len(identity), walk.width, slots, sharing, 2)
        return SmemAllocator().allocate_tensor(dtype, cute.make_layout(shape), 16)

    shared = memory(walk.how.threads // WARP) if walk.how.along > 1 else None
    of_blocks = memory(walk.how.cluster) if walk.how.cluster > 1 else None
    found = []
    for number in range(count):
        held = cute.make_rmem_tensor((len(identity) - recurrences.first_carried(op), walk.width), dtype)
        found.append(Carried(held, shared, of_blocks, dtype, number, count))
        for w in range(walk.width):
            found[-1].hold(op, w, identity)
    return found


def positions(*sizes: int) -> list[tuple[int, ...]]:
    """The positions of an element's states along axes of these sizes."""
    return list(itertools.product(*map(range, sizes)))


def states(
    op: str,
    walk: Walk,
    steps: list[Step],
    own: Carried,
    operands: list[tuple[Vector, ...]],
    before: bool,
    tile: Int32,
    starts: cute.Tensor | None = None,
) -> list[Vector]:
    """The states after (or before) each element of a thread's vectors. Those before all of these are written to `starts`, if given."""
    reached = _reached(op, walk, steps, own, operands, tile)
    if starts is not None:
        _tell_start(op, walk, reached, own, starts, tile)
    return _picked(op, walk, reached, before, own.dtype)


def _reached(
    op: str, walk: Walk, steps: list[Step], own: Carried, operands: list[tuple[Vector, ...]], tile: Int32
) -> list[list[Element]]:
    """For each of a thread's scans, the partial results before its elements of a tile, and up to each of them."""
    dtype, vec, width = own.dtype, walk.how.vec, walk.width
    columns = [_elements(op, walk, steps, operands, w, dtype) for w in range(width)]
    starts = [_held(op, own, w) for w in range(width)]
    if op == "scan":  # at the beginning, the initial state
        initial = _scalars(operands[0][2], vec)
        starts = [(a, recurrences.pick(tile == 0, initial[w].to(dtype), h)) for w, (a, h) in enumerate(starts)]
    if walk.how.along == 1 and not walk.innermost:  # a thread has all elements of a scan
        reached = [recurrences.runs(op, [start, *elements]) for start, elements in zip(starts, columns, strict=True)]
        for w, runs in enumerate(reached):
            own.hold(op, w, runs[-1])
    elif op == "cumlogsumexp":  # a sum of all takes fewer instructions than one up to each
        ahead = _exchanged(op, walk, own, [recurrences.whole(elements) for elements in columns], starts, tile)
        reached = [recurrences.runs(op, [start, *elements]) for start, elements in zip(ahead, columns, strict=True)]
    else:
        local = [recurrences.runs(op, elements) for elements in columns]
        ahead = _exchanged(op, walk, own, [runs[-1] for runs in local], starts, tile)
        pairs = zip(local, ahead, strict=True)
        reached = [[start, *(recurrences.combine(op, start, run) for run in runs)] for runs, start in pairs]
    return reached


def _picked(op: str, walk: Walk, reached: list[list[Element]], before: bool, dtype: type[Numeric]) -> list[Vector]:
    """The states of each vector after (or before) each element, from partial results."""
    vec = walk.how.vec
    found = [cute.make_rmem_tensor((vec,), dtype) for _ in range(walk.how.steps)]
    for w, runs in enumerate(reached):
        for k, run in enumerate(runs[:-1] if before else runs[1:]):
            value = recurrences.state(op, run)
            if not walk.innermost:
                found[k][w] = value
            else:
                at = k % vec
                found[k // vec][vec - 1 - at if walk.reverse else at] = value
    return [registers.load() for registers in found]


def _scalars(value: Vector, vec: int) -> list[Any]:
    registers = cute.make_rmem_tensor((vec,), value.dtype)
    registers.store(value)
    return [registers[i] for i in range(vec)]


def _elements(
    op: str, walk: Walk, steps: list[Step], operands: list[tuple[Vector, ...]], w: int, dtype: type[Numeric], first: bool = False
) -> list[Element]:  # fmt: skip
    """One scan's elements of a thread, in order. Elements outside the arrays come last, so that no state depends on them, or `first` where
    tiles are those of the other direction: then they change nothing."""
    found = []
    for step, values in zip(steps, operands, strict=True):
        each = [_scalars(v, walk.how.vec) for v in values]
        places = [w] if not walk.innermost else list(range(walk.how.vec))
        for i in reversed(places) if walk.reverse else places:
            own = recurrences.element(op, [numbers[i].to(dtype) for numbers in each])
            if first or walk.lead is not None:
                own = recurrences.select(step.inside, own, recurrences.identity(op, dtype))
            found.append(own)
    return found


# Scans in the other direction


@dataclass(frozen=True)
class Starts:
    """Where a kernel writes the states before each thread's elements of a tile, for the kernel that goes in the other direction: (chunk
    and state and number, scan). Chunks are counted in that direction."""

    memory: cute.Tensor
    op: str
    count: int  # of an element's states

    @property
    def numbers(self) -> int:
        """The numbers of a state that the elements after it need."""
        return len(recurrences.identity(self.op, self.memory.element_type)) - recurrences.first_carried(self.op)

    @property
    def chunks(self) -> Int32:
        return self.memory.shape[0] // (self.count * self.numbers)

    def at(self, walk: Walk, chunk: Int32, state: int, n: int) -> cute.Tensor:
        """A number of one of the states before a chunk, for a thread's scans."""
        row = Int64((chunk * self.count + state) * self.numbers + n)
        offset = cute.assume(row * self.memory.shape[1] + walk.column, divby=walk.width)
        return cute.make_tensor(self.memory.iterator + offset, cute.make_layout((walk.width,)))


def _tell_start(op: str, walk: Walk, reached: list[list[Element]], own: Carried, memory: cute.Tensor, tile: Int32) -> None:
    """Write the states before a thread's elements of a tile."""
    starts = Starts(memory, op, own.count)
    chunk = starts.chunks - 1 - walk.chunk(tile)
    for n in range(starts.numbers):
        held = cute.make_rmem_tensor((walk.width,), own.dtype)
        for w, runs in enumerate(reached):
            held[w] = runs[0][recurrences.first_carried(op) + n]
        _write(walk.there & (chunk >= 0), held, starts.at(walk, chunk, own.number, n))


def states_back(
    op: str,
    walk: Walk,
    steps: list[Step],
    memory: cute.Tensor,
    which: tuple[int, int],
    operands: list[tuple[Vector, ...]],
    before: bool,
    tile: Int32,
) -> list[Vector]:
    """The states after (or before) each element of a thread's vectors, of a scan in the other direction. Those before all of these are in
    `memory`. `which` is the number of the state that is computed, and how many an element has."""
    state, count = which
    starts, dtype, chunk = Starts(memory, op, count), memory.element_type, walk.chunk(tile)
    chunk = cutlass.select_(chunk < starts.chunks, chunk, starts.chunks - 1)
    found = [cute.make_rmem_tensor((walk.width,), dtype) for _ in range(starts.numbers)]
    for n, held in enumerate(found):
        cute.autovec_copy(starts.at(walk, chunk, state, n), held)
    dropped, reached = recurrences.identity(op, dtype)[: recurrences.first_carried(op)], []
    for w in range(walk.width):
        elements = _elements(op, walk, steps[::-1], operands[::-1], w, dtype, first=walk.how.uneven)
        reached.append(recurrences.runs(op, [(*dropped, *(held[w] for held in found)), *elements]))
    return _picked(op, walk, reached, before, dtype)[::-1]


def _held(op: str, own: Carried, w: int) -> Element:
    dropped = recurrences.identity(op, own.dtype)[: recurrences.first_carried(op)]
    return (*dropped, *(own.held[n, w] for n in range(cute.size(own.held, mode=[0]))))


def _exchanged(
    op: str, walk: Walk, own: Carried, totals: list[Element], starts: list[Element], tile: Int32
) -> list[Element]:
    """For each scan of a thread, the partial result of all elements before its own, in earlier tiles too. It carries
    the partial result of the whole tile."""
    lane, how, turn = cute.arch.lane_idx(), walk.how, own.turn(tile)
    slot, tells = (0, lane == 0) if walk.innermost else (lane, Boolean(True))
    within: list[Element] = []
    if walk.innermost:
        within, totals = map(list, zip(*(_over_lanes(op, t, own.dtype) for t in totals), strict=True))
    before = [recurrences.identity(op, own.dtype) if how.cluster > 1 else start for start in starts]
    first = walk.group * how.along
    if how.along > 1:
        _tell(tells, own.shared, totals, slot, first + walk.warp, turn)
        cute.arch.sync_threads()
        ahead = [
            _in_order(op, own.shared, (w, slot), (first, how.along), walk.warp, b, turn) for w, b in enumerate(before)
        ]
    else:
        ahead = [(b, recurrences.combine(op, b, total)) for b, total in zip(before, totals, strict=True)]
    if how.cluster > 1:
        _tell_blocks(tells & (walk.warp < how.cluster), own.of_blocks, [t for _, t in ahead], slot, walk, turn)
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
        of_blocks = [
            _in_order(op, own.of_blocks, (w, slot), (0, how.cluster), walk.rank, s, turn) for w, s in enumerate(starts)
        ]
        ahead = [(recurrences.combine(op, b, a), t) for (b, t), (a, _) in zip(of_blocks, ahead, strict=True)]
    for w, (_, total) in enumerate(ahead):
        own.hold(op, w, total)
    mine = [element for element, _ in ahead]
    return [recurrences.combine(op, *pair) for pair in zip(mine, within, strict=True)] if within else mine


def _in_order(
    op: str, shared: cute.Tensor, scan: tuple[Any, Any], sharing: tuple[Any, int], mine: Int32, start: Element, turn: Int32
) -> tuple[Element, Element]:  # fmt: skip
    """Two partial results of one of a lane's scans, both from `start` on: of the elements before those of the `mine`-th
    thread, and of all elements. `sharing` are the first of the threads that share the scan, and their number."""
    ahead, own = start, start
    first, count = sharing
    for other in range(count):
        own = recurrences.select(mine == other, ahead, own)
        place = (*scan, first + other, turn)
        ahead = recurrences.combine(op, ahead, tuple(shared[n, *place] for n in range(len(start))))
    return own, ahead


def _over_lanes(op: str, total: Element, dtype: type[Numeric]) -> tuple[Element, Element]:
    """The partial results of the lanes before this one, and of the whole warp."""
    lane, apart = cute.arch.lane_idx(), 1
    while apart < WARP:
        other = tuple(cute.arch.shuffle_sync_up(n, apart, mask_and_clamp=0) for n in total)
        total = recurrences.select(lane >= apart, recurrences.combine(op, other, total), total)
        apart *= 2
    before = tuple(cute.arch.shuffle_sync_up(n, 1, mask_and_clamp=0) for n in total)
    before = recurrences.select(lane > 0, before, recurrences.identity(op, dtype))
    return before, tuple(cute.arch.shuffle_sync(n, WARP - 1) for n in total)


@cute.jit
def _tell(
    tells: Boolean, shared: cute.Tensor, totals: cutlass.Constexpr[list], slot: Int32, warp: Int32, half: Int32
) -> None:
    """Write a warp's partial result where the others read it."""
    if tells:
        for w in cutlass.range_constexpr(len(totals)):
            for n in cutlass.range_constexpr(len(totals[w])):
                shared[n, w, slot, warp, half] = totals[w][n]


@cute.jit
def _tell_blocks(
    tells: Boolean, shared: cute.Tensor, totals: cutlass.Constexpr[list], slot: Int32, walk: cutlass.Constexpr[Walk], half: Int32
) -> None:  # fmt: skip
    """Write a block's partial result where another block of the cluster reads it: each of the first warps to one of them."""
    if tells:
        there = cute.make_tensor(cute.arch.map_dsmem_ptr(shared.iterator, walk.warp), shared.layout)
        for w in cutlass.range_constexpr(len(totals)):
            held = cute.make_rmem_tensor((len(totals[w]),), shared.element_type)
            for n in cutlass.range_constexpr(len(totals[w])):
                held[n] = totals[w][n]
            cute.autovec_copy(held, there[None, w, slot, walk.rank, half])
