"""The happens-before order in shared memory: which accesses of other threads are ordered before a thread's.

A block has one clock, which ticks at its barriers. An access is stamped with its lane, its block's clock and the number
of cluster barriers at which the lane had arrived. Each warp has a vector clock: a clock for each warp of its cluster,
up to which that warp's accesses happened before. A barrier of warps joins their vector clocks. An mbarrier joins the
vector clocks of the warps that arrive, for the warps that wait. An asynchronous copy belongs to no warp. The mbarrier
that counts its bytes has a clock of its own, its phases, which a wait for it adds to a vector clock. A cluster barrier
orders the accesses before a lane's arrival before the accesses after another lane's wait, unless the arrival is relaxed
without a fence before it.

The analysis is conservative. A cluster barrier orders a lane only through its own arrival and wait. A warp barrier or a wait for an
mbarrier does only where the whole warp takes part. A kernel that relies on more is reported as a race although it has none.
"""

from __future__ import annotations

import numpy as np

LANE, CLOCK = (1 << 20) - 1, (1 << 22) - 1
MANY = LANE  # instead of a lane: several lanes
NEVER = 1 << 20  # more cluster barriers than there are
NONE = -1  # a stamp where there was no access


def joined(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The stamp of several lanes: no earlier than either."""
    clocks = np.maximum(a & (CLOCK << 20), b & (CLOCK << 20))
    return (np.maximum(a >> 42, b >> 42) << 42) | clocks | MANY


class Ordering:
    """The clocks of a batch of blocks, and of `mbarriers` mbarriers in each."""

    def __init__(self, blocks: int, threads: int, cluster: int, mbarriers: int = 0):
        self.threads, self.cluster, self.warps = threads, cluster, -(-threads // 32)
        lane = np.arange(blocks * threads)
        # Numbers from here on mean a block's mbarriers instead of lanes
        self.agents, self.mbarriers = len(lane), mbarriers
        self.row = np.append(lane // threads, np.repeat(np.arange(blocks), mbarriers))
        self.warp = np.append(lane % threads // 32, self.warps + np.tile(np.arange(mbarriers), blocks))
        self.clock = np.ones(blocks, np.int64)
        # [block, warp, of a rank, of a warp or an mbarrier]: its last clock
        self.known = np.zeros((blocks, self.warps, cluster, self.warps + mbarriers), np.int64)
        self.floor: np.ndarray | None = None  # without clusters, [block, warp]: the least of its clocks, if up to date
        self.arrived, self.waited = np.zeros(lane.shape, np.int64), np.zeros(lane.shape, np.int64)
        self.fenced = np.zeros(lane.shape, bool)  # no access since a fence of the cluster
        self.phased = False  # whether any lane has been at a cluster barrier
        self.relaxed: dict[int, np.ndarray] = {}  # cluster barrier -> lanes whose arrival released nothing

    # Barriers

    def whole(self, rows: np.ndarray) -> None:
        """All threads of blocks meet."""
        self.floor = None
        self.known[rows] = self.known[rows].max(axis=1, keepdims=True)
        self.known[rows, :, rows % self.cluster, : self.warps] = self.clock[rows, None, None]
        self.clock[rows] += 1

    def part(self, row: int, warps: np.ndarray, told: np.ndarray | None = None) -> None:
        """Some warps of a block meet; `told` is the joined vector clock of warps that only arrived."""
        self.floor = None
        known = self.told(row, warps)
        self.known[row, warps] = known if told is None else np.maximum(known, told)
        self.clock[row] += 1

    def told(self, row: int, warps: np.ndarray) -> np.ndarray:
        """The joined vector clock of some warps of a block, up to now: [rank, warp or mbarrier]."""
        known = self.known[row, warps].max(axis=0)
        known[row % self.cluster, warps] = self.clock[row]
        return known

    def warps_alone(self, rows: np.ndarray, warps: np.ndarray) -> None:
        """The lanes of each of some warps meet."""
        self.floor = None
        self.known[rows, warps, rows % self.cluster, warps] = self.clock[rows]
        self.clock[np.unique(rows)] += 1

    def arrive(self, lanes: np.ndarray, release: bool) -> None:
        """The lanes arrive at a cluster barrier."""
        if not release:
            for phase in np.unique(self.arrived[lanes]):
                late = lanes[(self.arrived[lanes] == phase) & ~self.fenced[lanes]]
                self.relaxed.setdefault(int(phase), np.zeros(self.row.shape, bool))[late] = True
        self.arrived[lanes] += 1
        self.phased = True

    def fence(self, lanes: np.ndarray) -> None:
        """A fence: earlier accesses are released even by a relaxed arrival at a cluster barrier."""
        self.fenced[lanes] = True

    def tick(self, lanes: np.ndarray) -> None:
        """Advance the clock: later accesses of the lanes are not part of the vector clocks that they have given so far."""
        self.clock[np.unique(self.row[lanes])] += 1

    def hear(self, lanes: np.ndarray, told: np.ndarray) -> None:
        """Join a vector clock to those of the lanes' warps, where the whole warp is among the lanes."""
        self.floor = None
        warps, counts = np.unique(self.row[lanes] * self.warps + self.warp[lanes], return_counts=True)
        for warp in warps[counts == np.minimum(32, self.threads - 32 * (warps % self.warps))]:
            row, own = divmod(int(warp), self.warps)
            np.maximum(self.known[row, own], told, out=self.known[row, own])

    # Accesses

    def stamp(self, lanes: np.ndarray) -> np.ndarray:
        """The stamps of an access now."""
        self.fenced[lanes] = False
        return lanes | (self.clock[self.row[lanes]] << 20) | (self.arrived[lanes] << 42)

    def stamp_of_copy(self, row: int, mbarrier: int, phase: int) -> int:
        """The stamp of a copy for a phase of an mbarrier of a block: no cluster barrier orders it."""
        return (self.agents + row * self.mbarriers + mbarrier) | (phase << 20) | (NEVER << 42)

    def unordered(
        self, stamps: np.ndarray, lanes: np.ndarray, warps: np.ndarray | None = None, home: np.ndarray | None = None
    ) -> np.ndarray:
        """Where the stamped access of another lane is not ordered before `lanes`. For a stamp of several lanes of one
        block (`home`, by default the lane's own), `warps` has their warps as bits. For a stamp of several lanes of
        other blocks it has no bits."""
        floor = None
        if self.cluster == 1:  # most often a barrier of all threads came since
            if self.floor is None:
                self.floor = self.known[:, :, 0, : self.warps].min(axis=2)
            floor = self.floor[self.row[lanes], self.warp[lanes]]
            if (stamps < (floor + 1) << 20).all():
                return np.zeros(stamps.shape, bool)
        who = stamps & LANE
        other = (stamps >= 0) & (who != lanes)
        if floor is not None:
            other &= ((stamps >> 20) & CLOCK > floor) | ((who >= self.agents) & (who != MANY))
        if not other.any():
            return other
        clock, arrived = (stamps >> 20) & CLOCK, stamps >> 42
        many = other & (who == MANY)
        lanes = np.broadcast_to(lanes, stamps.shape)
        who = np.where(other & ~many, who, lanes)
        row, warp = self.row[lanes], self.warp[lanes]
        over = self.known[row, warp, self.row[who] % self.cluster, self.warp[who]] >= clock
        if many.any():
            bits = None if warps is None else warps[many]
            over[many] = self.all_known(row[many], warp[many], clock[many], bits, (row if home is None else home)[many])
        if self.phased:
            over |= self.by_cluster(who, arrived, lanes, many)
        return other & ~over

    def all_known(
        self, row: np.ndarray, warp: np.ndarray, clock: np.ndarray, warps: np.ndarray | None, home: np.ndarray
    ) -> np.ndarray:
        if warps is None:
            return np.zeros(row.shape, bool)
        over = np.ones(row.shape, bool)
        for u in range(self.warps):
            known = self.known[row, warp, home % self.cluster, u] >= clock
            over &= ((warps >> np.uint32(u)) & np.uint32(1) == 0) | known
        return over

    def by_cluster(self, who: np.ndarray, arrived: np.ndarray, lanes: np.ndarray, many: np.ndarray) -> np.ndarray:
        """Whether a cluster barrier is between: `who` arrived at it after its access, and `lanes` waited for it."""
        between = self.waited[lanes] - arrived
        for phase, late in self.relaxed.items():
            span = (phase >= arrived) & (phase < self.waited[lanes])
            between -= span & np.where(many, late.any(), late[who])
        # An exited thread, for which a cluster barrier does not wait, releases nothing
        return (between > 0) & (many | (self.arrived[np.minimum(who, self.agents - 1)] > arrived))
