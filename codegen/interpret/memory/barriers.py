"""Barriers of a warp, of a block or some of its warps, and of a cluster: which lanes wait, and when they continue.

At an instruction of several lanes (shfl.sync, mma.sync, ...), the lanes of its mask wait for each other, as on GPUs since
Volta. This does not order memory.

At wgmma.fence the warps of a warpgroup also wait for each other, because all of them execute the next instruction
together. This does not order memory either.

One check is stricter than PTX: a thread that has exited is an error at a barrier of a block or a warp. One is less strict:
whether a thread that only arrives is ordered after the barrier's previous completion is not checked.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from codegen.interpret.lanes import WARPGROUP, Lanes, absent, ballot, highest, inside
from codegen.interpret.memory.arrays import Fault
from codegen.interpret.memory.ordering import Ordering
from codegen.interpret.memory.products import Products
from codegen.interpret.ptx import MASKED, Imm, Instruction, Operand

# Places of lanes that have exited; WAIT + a basic block: they wait at its barrier; ASIDE + a basic block: they wait until an
# mbarrier's phase completes
DONE, WAIT, ASIDE = 1 << 30, 1 << 29, 1 << 28
# Instead of the number of a block's barrier; TOGETHER: at an instruction of several lanes, which begins a basic block
AT_WARP, AT_CLUSTER, AT_WARPGROUP, TOGETHER = -1, -2, -3, -4


@dataclass(frozen=True)
class Barrier:
    """A decoded barrier instruction. `waits` is false for an arrival without a wait."""

    level: str  # "warp", "warpgroup", "block" or "cluster"
    number: Operand = Imm(0)  # noqa: RUF009  # of a block's barrier
    takes: Operand = Imm(0)  # noqa: RUF009  # how many of a block's threads, 0 for all; which lanes of a warp
    waits: bool = True
    releases: bool = True


@dataclass
class Arrived:
    """The warps that arrived at a block's barrier without waiting."""

    takes: int
    count: int
    known: np.ndarray  # their joined vector clock at that time


class Barriers:
    """The barriers at which the lanes of a batch wait."""

    def __init__(self, ordering: Ordering, products: Products):
        self.ordering, self.products = ordering, products
        lanes = ordering.arrived.shape
        self.at = np.zeros(lanes, np.int64)  # the number of a block's barrier, or AT_WARP, ...
        self.takes = np.zeros(lanes, np.int64)
        self.arrived: dict[int, Arrived] = {}  # by 16 times the block, and the barrier's number

    def reach(self, m: Lanes, barrier: Barrier, lanes: np.ndarray) -> None:
        """Lanes arrive at a barrier."""
        ordering = self.ordering
        if barrier.level == "cluster":
            ahead = ordering.arrived[lanes] > ordering.waited[lanes]
            wrong = ahead if not barrier.waits else ~ahead
            if wrong.any():
                what = "a second arrival at the cluster's barrier, with no wait since the first"
                what = "a wait at the cluster's barrier, with no arrival before it" if barrier.waits else what
                raise Fault(int(lanes[wrong][0]), what)
            if not barrier.waits:
                ordering.arrive(lanes, barrier.releases)
                return
            self.at[lanes] = AT_CLUSTER
            return
        if barrier.level == "warpgroup":
            self.at[lanes] = AT_WARPGROUP
            self.products.fence(lanes)
            return
        takes = np.broadcast_to(m.read(barrier.takes, "u32"), lanes.shape)
        if barrier.level == "warp":
            self.at[lanes], self.takes[lanes] = AT_WARP, takes
            return
        number = np.broadcast_to(m.read(barrier.number, "u32"), lanes.shape)
        for bad, what in (
            (number > 15, "a block has the barriers 0 to 15"),
            (takes % 32 != 0, "a barrier takes whole warps, a multiple of 32 threads"),
        ):
            if bad.any():
                raise Fault(int(lanes[bad][0]), what)
        if not barrier.waits:
            self.arrive(m, ordering.row[lanes] * 16 + number, takes, lanes)
            return
        self.at[lanes], self.takes[lanes] = number, takes

    def meet(self, m: Lanes, here: int, instruction: Instruction) -> np.ndarray:
        """The active lanes arrive at an instruction of several lanes. Returns the lanes that may execute it, or skip it: all lanes
        of their mask are here. The others wait. Some of the returned lanes may have waited."""
        came = m.active()
        waiting = np.flatnonzero(m.at == WAIT + here)
        waiting = waiting[self.at[waiting] == TOGETHER]
        lanes = m.select = np.union1d(came, waiting) if len(waiting) else came
        takes_part = np.ones(lanes.shape, bool)
        if instruction.guard is not None:
            takes_part = np.broadcast_to(m.predicate(instruction), lanes.shape)
        mask = np.broadcast_to(m.read(mask_of(instruction), "u32"), lanes.shape)
        early = takes_part & (absent(m, lanes, mask, ballot(m, lanes, takes_part)) != 0)
        held = lanes[early]
        m.at[held], m.idle[held] = WAIT + here, False
        self.at[held], self.takes[held] = TOGETHER, mask[early]
        return lanes[~early]

    def arrive(self, m: Lanes, key: np.ndarray, takes: np.ndarray, lanes: np.ndarray) -> None:
        """Whole warps arrive at a block's barrier without waiting. Where all its participants only arrive, it starts again."""
        for barrier in np.unique(key):
            group, asked = lanes[key == barrier], int(takes[key == barrier].max())
            self.whole_warps(group)
            known = self.ordering.told(int(barrier) // 16, np.unique(self.ordering.warp[group]))
            held = self.arrived.setdefault(int(barrier), Arrived(asked, 0, known))
            held.count += len(group)
            held.known = np.maximum(held.known, known)
            if asked != held.takes or (takes[key == barrier] != asked).any():
                raise Fault(int(group[0]), "threads differ in how many the barrier takes")
            if held.count > asked:
                raise Fault(int(group[0]), "more threads are at the barrier than it takes")
            waiting = (m.at >= WAIT) & (m.at < DONE)
            waiting &= (self.at == barrier % 16)[: len(waiting)] & (m.block_of == barrier // 16)
            if held.count == asked and not waiting.any():
                del self.arrived[int(barrier)]
        self.ordering.tick(lanes)

    def release(self, m: Lanes) -> None:
        """No lane can run: release the lanes whose barrier is complete, or else those that pause."""
        lanes = np.flatnonzero((m.at < DONE) & (m.at >= WAIT))
        at = self.at[lanes]
        free = np.concatenate(
            [
                self.blocks(lanes[at >= 0]),
                self.in_warps(lanes[at == AT_WARP]),
                self.warpgroups(lanes[at == AT_WARPGROUP]),
                self.clusters(lanes[at == AT_CLUSTER], m.at == DONE),
            ]
        )
        if not len(free) and m.pausing:
            m.wake()
        elif not len(free):
            raise self.stuck(m, lanes)
        m.at[free] -= WAIT - 1

    def blocks(self, lanes: np.ndarray) -> np.ndarray:
        """The lanes whose block's barrier has all the threads that it takes."""
        if not len(lanes):
            return lanes
        ordering, row = self.ordering, self.ordering.row[lanes]
        key = row * 16 + self.at[lanes]
        there = np.bincount(key)
        takes = np.where(self.takes[lanes] == 0, ordering.threads, self.takes[lanes])
        asked = np.zeros_like(there)
        asked[key] = takes
        early = {barrier: self.arrived[barrier] for barrier in set(key.tolist()) & self.arrived.keys()}
        for barrier, held in early.items():
            there[barrier] += held.count
            asked[barrier] = held.takes
        for bad, what in (
            (takes != asked[key], "threads differ in how many the barrier takes"),
            (there[key] > takes, "more threads are at the barrier than it takes"),
        ):
            if bad.any():
                raise Fault(int(lanes[bad][0]), what)
        free = there[key] == takes
        whole = (takes == ordering.threads) & ~np.isin(key, list(early))
        ordering.whole(np.unique(row[free & whole]))
        for barrier in np.unique(key[free & ~whole]):
            group = lanes[key == barrier]
            self.whole_warps(group)
            told = self.arrived.pop(int(barrier)).known if barrier in self.arrived else None
            ordering.part(int(barrier) // 16, np.unique(ordering.warp[group]), told)
        return lanes[free]

    def whole_warps(self, group: np.ndarray) -> None:
        for warp, lanes in self.by_warp(group):
            if len(lanes) < min(32, self.ordering.threads - 32 * warp):
                raise Fault(int(lanes[0]), "divergent barrier: a barrier of some warps takes all lanes of each")

    def by_warp(self, lanes: np.ndarray) -> list[tuple[int, np.ndarray]]:
        key = self.ordering.row[lanes] * self.ordering.warps + self.ordering.warp[lanes]
        starts = np.flatnonzero(np.diff(key, prepend=-1))
        return [(int(self.ordering.warp[part[0]]), part) for part in np.split(lanes, starts[1:])]

    def in_warps(self, lanes: np.ndarray) -> np.ndarray:
        """The lanes whose warp's barrier has all the lanes of its mask."""
        ordering, free = self.ordering, []
        if not len(lanes):
            return lanes
        for warp, group in self.by_warp(lanes):
            size = min(32, ordering.threads - 32 * warp)
            there = int(np.bitwise_or.reduce(1 << (group % ordering.threads % 32)))
            masks = self.takes[group] & ((1 << size) - 1)
            good = group[(masks & ~there) == 0]
            if len(good) == size:
                ordering.warps_alone(ordering.row[good[:1]], np.array([warp]))
            free.append(good)
        return np.concatenate(free)

    def warpgroups(self, lanes: np.ndarray) -> np.ndarray:
        """The lanes whose whole warpgroup has arrived."""
        threads = self.ordering.threads
        key = self.ordering.row[lanes] * -(-threads // WARPGROUP) + lanes % threads // WARPGROUP
        return lanes[np.bincount(key, minlength=1)[key] == WARPGROUP]

    def clusters(self, lanes: np.ndarray, exited: np.ndarray) -> np.ndarray:
        """The lanes whose whole cluster has arrived, except threads that have exited."""
        ordering = self.ordering
        size = ordering.threads * ordering.cluster
        arrived = np.where(exited, np.iinfo(np.int64).max, ordering.arrived).reshape(-1, size).min(axis=1)
        free = lanes[arrived[lanes // size] > ordering.waited[lanes]]
        ordering.waited[free] += 1
        return free

    def stuck(self, m: Lanes, lanes: np.ndarray) -> Fault:
        """A fault that says why no lane can run. It names the lane that waits at the earliest instruction, if that is
        an instruction of several lanes; else the first lane that waits at a barrier of a block, a warp or a cluster."""
        first = int(lanes[np.argmin(m.at[lanes])])
        if self.at[first] == TOGETHER:
            return self.alone(m, first)
        at = self.at[lanes]
        levels = (at >= 0, at == AT_WARP, at == AT_WARPGROUP, at == AT_CLUSTER)
        lane = int(next(lanes[chosen][0] for chosen in levels if chosen.any()))
        level = int(self.at[lane])
        if level >= 0 and self.takes[lane]:
            here = (self.at == level) & (m.at < DONE) & (m.at >= WAIT) & (m.block_of == m.block_of[lane])
            early = self.arrived.get(int(m.block_of[lane]) * 16 + level)
            count = int(np.count_nonzero(here)) + (early.count if early else 0)
            return Fault(lane, f"divergent barrier: it takes {int(self.takes[lane])} threads, and {count} are there")
        size, kind, of = {
            AT_WARP: (32, "warp barrier", "warp"),
            AT_WARPGROUP: (WARPGROUP, "wgmma.fence", "warpgroup"),
            AT_CLUSTER: (m.per_block * m.cluster_size, "cluster barrier", "cluster"),
        }.get(level, (m.per_block, "barrier", "block"))
        within = level in (AT_WARP, AT_WARPGROUP)
        place = lane % m.per_block % size if within else lane % size
        fellows = np.arange(lane - place, min(lane - place + size, m.lanes))
        fellows = fellows[m.block_of[fellows] == m.block_of[lane]] if within else fellows
        exited = m.at[fellows] == DONE
        if level == AT_CLUSTER:
            late = ~exited & (self.ordering.arrived[fellows] <= self.ordering.waited[lane])
        else:
            late = exited | (self.at[fellows] != level)
        gone = (late & exited).any()
        what = f"other threads of its {of} have exited" if gone else "other threads wait at another barrier"
        return Fault(lane, f"divergent {kind}: {what} ({m.where(int(fellows[late][0]))})")

    def alone(self, m: Lanes, lane: int) -> Fault:
        """The fault of a lane that waits forever at an instruction of several lanes."""
        here = np.flatnonzero((m.at == m.at[lane]) & (self.at[: m.lanes] == TOGETHER))
        there = ballot(m, here)[here == lane]
        instruction = m.instruction_at(lane)
        assert instruction is not None
        if instruction.words[0] not in MASKED:
            return Fault(
                lane, f"{instruction.words[0]} takes all 32 lanes of a warp, and {int(there[0]).bit_count()} are here"
            )
        one = np.array([lane])
        missing = highest(absent(m, one, self.takes[one].astype(np.uint32), there)[0])
        fellow = lane - int(inside(m, one)[0]) + missing
        where = m.instruction_at(fellow)
        what = "it has exited" if where is None else f"it waits at `{where.text}`"
        return Fault(lane, f"lane {missing} of its warp is in the mask but not here: {what}")


def mask_of(instruction: Instruction) -> Operand:
    """The mask of the lanes that execute an instruction of several lanes."""
    return instruction.operands[-1] if instruction.words[0] in MASKED else Imm(0xFFFFFFFF)
