"""mbarriers, which are objects in shared memory, and st.async, which delivers bytes to another block of the cluster. A
phase of an mbarrier completes once enough threads have arrived and all expected bytes have been delivered.

A wait for a phase orders three things before the waiting thread: the bytes sent for the phase; all accesses of the
arriving warps, and of the warps that sent by st.async, before they did; and everything that was ordered before these.
Lanes of a warp that diverge before one of them sends are not distinguished. A thread that waits for a phase pauses
until one completes. It is a fault if no other thread can run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from codegen.interpret.memory.arrays import Fault
from codegen.interpret.memory.ordering import Ordering

SIZE = 8


@dataclass
class Mbarrier:
    """One mbarrier. `known` has, for each warp of the cluster and for its blocks' copies, the clock up to which a wait orders
    them."""

    count: int  # arrivals that a phase takes
    maker: int  # the lane that initialised it
    made: int  # the number of cluster barriers at which that lane had arrived by then
    known: np.ndarray
    told: np.ndarray  # as `known`, for the current phase
    number: int  # its number in its block
    begun: int  # phases of earlier mbarriers at its place
    pending: int
    due: int = 0  # expected bytes that have not come; negative where they come first
    phase: int = 0  # the number of completed phases
    waited: int = 0  # the last phase that a thread of its block has waited for
    brought: int = 0  # the last phase for which bytes came
    fenced: bool = False
    sent: list[np.ndarray] = field(default_factory=list)  # the places of the bytes that came for this phase


class Memory(Protocol):
    """The shared memory that contains mbarriers."""

    size: int  # bytes per block
    ordering: Ordering
    writer: np.ndarray

    def name(self, row: int, lane: int) -> str: ...
    def bytes_of(
        self, row: np.ndarray, offset: np.ndarray, width: int, lanes: np.ndarray, verb: str, alignment: int
    ) -> np.ndarray: ...
    def put(self, row: np.ndarray, at: np.ndarray, whole: np.ndarray, lanes: np.ndarray) -> None: ...
    def land(self, at: np.ndarray) -> None: ...


class Mbarriers:
    """The mbarriers of a batch of blocks, by block and offset."""

    def __init__(self, shared: Memory):
        self.shared, self.ordering = shared, shared.ordering
        self.found: dict[tuple[int, int], Mbarrier] = {}

    def make(self, row: int, offset: int, count: int, lane: int) -> None:
        lanes = np.array([lane])
        at = self.shared.bytes_of(np.array([row]), np.array([offset]), SIZE, lanes, "mbarrier.init", SIZE)
        self.shared.put(np.array([row]), at, np.zeros((1, SIZE), np.uint8), lanes)
        ordering = self.ordering
        nothing = np.zeros_like(ordering.known[0, 0])
        made = int(ordering.arrived[lane])
        before = self.found.get((row, offset))
        number = before.number if before else sum(home == row for home, _ in self.found) % ordering.mbarriers
        begun = before.begun + before.phase + 1 if before else 0
        self.found[row, offset] = Mbarrier(count, lane, made, nothing, nothing.copy(), number, begun, pending=count)

    def stamp(self, row: int, offset: int, lane: int) -> int:
        """The stamp of a copy that a lane starts for the current phase."""
        barrier = self.of(row, offset, lane)
        return self.ordering.stamp_of_copy(row, barrier.number, barrier.begun + barrier.phase + 1)

    def fence(self, lanes: np.ndarray) -> None:
        """fence.mbarrier_init: even a relaxed arrival at a cluster barrier then releases the lanes' initialisations."""
        for barrier in self.found.values():
            barrier.fenced |= bool((lanes == barrier.maker).any())

    def of(self, row: int, offset: int, lane: int) -> Mbarrier:
        """The mbarrier at a place. Raises `Fault` where the lane may not use it."""
        barrier = self.found.get((row, offset))
        if barrier is None:
            raise Fault(lane, f"there is no mbarrier at byte {offset} of {self.shared.name(row, lane)}")
        one = np.array([lane])
        stamp = self.shared.writer[row * self.shared.size + offset]
        clustered = barrier.fenced and self.ordering.waited[lane] > barrier.made
        if not clustered and self.ordering.unordered(np.array([stamp]), one)[0]:
            raise Fault(lane, "race: use of an mbarrier that another thread initialised, with no barrier between")
        return barrier

    def arrive(self, row: int, offset: int, expected: int, lane: int, count: int = 1) -> bool:
        """`count` arrivals, which expect some bytes; returns whether they complete the phase."""
        barrier = self.of(row, offset, lane)
        if barrier.pending < count:
            raise Fault(lane, f"more arrivals at an mbarrier than the {barrier.count} that its phase takes")
        barrier.pending -= count
        barrier.due += expected
        self.tell(barrier, lane)
        return self.step(row, barrier)

    def bring(self, row: int, offset: int, at: np.ndarray, lane: int) -> bool:
        """The bytes at `at`, whose copy a lane started, have come; returns whether they complete the phase."""
        barrier = self.of(row, offset, lane)
        barrier.due -= at.size
        barrier.sent.append(at)
        barrier.brought = barrier.phase + 1
        return self.step(row, barrier)

    def tell(self, barrier: Mbarrier, lane: int) -> None:
        ordering = self.ordering
        told = ordering.told(int(ordering.row[lane]), ordering.warp[lane : lane + 1])
        np.maximum(barrier.told, told, out=barrier.told)

    def step(self, row: int, barrier: Mbarrier) -> bool:
        if barrier.pending or barrier.due:
            return False
        for at in barrier.sent:
            self.shared.land(at)
        np.maximum(barrier.known, barrier.told, out=barrier.known)
        barrier.sent, barrier.pending = [], barrier.count
        barrier.phase += 1
        own = row % self.ordering.cluster, self.ordering.warps + barrier.number
        barrier.known[own] = barrier.begun + barrier.phase
        return True

    def over(self, row: int, offset: int, parity: int, lanes: np.ndarray) -> bool:
        """Whether the phase of this parity is complete; then everything before it is ordered before the lanes of whole warps."""
        barrier = self.of(row, offset, int(lanes[0]))
        if barrier.phase % 2 == parity:
            return False
        barrier.waited = barrier.phase
        self.ordering.hear(lanes, barrier.known)
        return True

    def check_exit(self, rows: np.ndarray) -> None:
        """Check that blocks which exit have waited for all bytes that were sent to them and for all arrivals of others."""
        for (row, offset), barrier in self.found.items():
            last = barrier.phase if self.ordering.cluster > 1 else min(barrier.phase, barrier.brought)
            if row in rows and (barrier.sent or last > barrier.waited):
                lane = row * self.ordering.threads
                raise Fault(
                    lane, f"race: the block exits without a wait for the last phase of the mbarrier at byte {offset}"
                )
