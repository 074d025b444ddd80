"""The states of scans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64, Numeric
from cutlass.memory import SmemAllocator

from codegen.device.functions import Vector
from codegen.device.math import recurrences
from codegen.device.math.recurrences import Element
from codegen.device.scan.elements import Step, Walk, write
from codegen.shared import WARP


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


def _tell_start(
    op: str, walk: Walk, reached: list[list[Element]], own: Carried, memory: cute.Tensor, tile: Int32
) -> None:
    """Write the states before a thread's elements of a tile."""
    starts = Starts(memory, op, own.count)
    chunk = starts.chunks - 1 - walk.chunk(tile)
    for n in range(starts.numbers):
        held = cute.make_rmem_tensor((walk.width,), own.dtype)
        for w, runs in enumerate(reached):
            held[w] = runs[0][recurrences.first_carried(op) + n]
        write(walk.there & (chunk >= 0), held, starts.at(walk, chunk, own.number, n))


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
