"""mbarriers: objects in shared memory, each phase of which is over once enough threads have arrived and all bytes that they
expect have come; and st.async, which brings bytes to another block of the cluster.

Whoever waits for a phase knows afterwards what was sent for it, what the warps that arrived, or sent by st.async, had done
before, and what these knew: lanes of a warp that part before one of them sends are not told apart. A thread that waits in
vain steps aside until a phase is over; where nobody else can go on, that is a fault.
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
    """One object. `known` says of each warp of the cluster, and of what its blocks copy, until when that is known to those who
    wait."""

    count: int  # arrivals that a phase takes
    maker: int  # the lane that initialised it
    made: int  # how many cluster barriers that had arrived at by then
    known: np.ndarray
    told: np.ndarray  # the same of the phase that is not yet over
    number: int  # of those of its block
    begun: int  # phases that others at its place have had
    pending: int
    due: int = 0  # bytes expected that have not come; less than 0 where they come first
    phase: int = 0  # how many are over
    waited: int = 0  # the last that one of its block's threads knows to be over
    brought: int = 0  # the last for which bytes came
    fenced: bool = False
    sent: list[np.ndarray] = field(default_factory=list)  # where the bytes lie that came for this phase


class Memory(Protocol):
    """The shared memory that mbarriers lie in."""

    size: int  # of a block, in bytes
    ordering: Ordering
    writer: np.ndarray

    def name(self, row: int, lane: int) -> str: ...
    def bytes_of(self, row, offset, width: int, lanes, verb: str, alignment: int) -> np.ndarray: ...
    def put(self, row, at: np.ndarray, whole: np.ndarray, lanes) -> None: ...
    def land(self, at: np.ndarray) -> None: ...


class Mbarriers:
    """Those of a batch of blocks, by block and offset."""

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
        """That of what a lane asks to be copied for the phase that is not over."""
        barrier = self.of(row, offset, lane)
        return self.ordering.stamp_of_copy(row, barrier.number, barrier.begun + barrier.phase + 1)

    def fence(self, lanes: np.ndarray) -> None:
        """fence.mbarrier_init: a cluster barrier that releases nothing else releases the lanes' initialisations."""
        for barrier in self.found.values():
            barrier.fenced |= bool((lanes == barrier.maker).any())

    def of(self, row: int, offset: int, lane: int) -> Mbarrier:
        """The object at a place, which the lane may use."""
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
        """So many arrivals, which expect some bytes; whether the phase is over with them."""
        barrier = self.of(row, offset, lane)
        if barrier.pending < count:
            raise Fault(lane, f"more arrivals at an mbarrier than the {barrier.count} that its phase takes")
        barrier.pending -= count
        barrier.due += expected
        self.tell(barrier, lane)
        return self.step(row, barrier)

    def bring(self, row: int, offset: int, at: np.ndarray, lane: int) -> bool:
        """The bytes at `at` have come, for which a lane asked; whether the phase is over with it."""
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
        """Whether the phase of this parity is over; then the lanes of whole warps know what came before."""
        barrier = self.of(row, offset, int(lanes[0]))
        if barrier.phase % 2 == parity:
            return False
        barrier.waited = barrier.phase
        self.ordering.hear(lanes, barrier.known)
        return True

    def check_exit(self, rows: np.ndarray) -> None:
        """Blocks exit: whatever bytes were sent to them, or signals by others, one of their threads has waited for."""
        for (row, offset), barrier in self.found.items():
            last = barrier.phase if self.ordering.cluster > 1 else min(barrier.phase, barrier.brought)
            if row in rows and (barrier.sent or last > barrier.waited):
                lane = row * self.ordering.threads
                raise Fault(
                    lane, f"race: the block exits without a wait for the last phase of the mbarrier at byte {offset}"
                )
