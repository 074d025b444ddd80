"""What happens before what in shared memory: which of the other threads' accesses are over for a thread.

A block has one clock, which ticks at its barriers. An access is stamped with its lane, its block's clock and how many
cluster barriers the lane had arrived at. What a warp knows is a clock for each warp of its cluster: that one's past until
then is over. Barriers of warps join what they know; so does an mbarrier what those knew who arrived, for whoever waits.
What is copied asynchronously is nobody's past: the mbarrier that counts the bytes has a clock of its own, its phases, which
is known of by a wait for it, and what follows from that. A cluster barrier orders what came before a lane's arrival
(unless it is relaxed and no fence stands before it) before what comes after another's wait.

Rounded to the safe side: a lane learns from a cluster barrier only by its own arrival and wait, and from a warp's, or a wait
for an mbarrier, only where the whole warp takes part. A kernel that relies on more is called racy though it is not.
"""

from __future__ import annotations

import numpy as np

LANE, CLOCK = (1 << 20) - 1, (1 << 22) - 1
MANY = LANE  # instead of a lane: more than one of them
NEVER = 1 << 20  # more cluster barriers than there are
NONE = -1  # a stamp where there was no access


def joined(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The stamp of many lanes: no earlier than either."""
    clocks = np.maximum(a & (CLOCK << 20), b & (CLOCK << 20))
    return (np.maximum(a >> 42, b >> 42) << 42) | clocks | MANY


class Ordering:
    """The clocks of a batch of blocks, and of so many mbarriers in each."""

    def __init__(self, blocks: int, threads: int, cluster: int, mbarriers: int = 0):
        self.threads, self.cluster, self.warps = threads, cluster, -(-threads // 32)
        lane = np.arange(blocks * threads)
        self.agents, self.mbarriers = len(lane), mbarriers  # from here on, instead of lanes: those of each block
        self.row = np.append(lane // threads, np.repeat(np.arange(blocks), mbarriers))
        self.warp = np.append(lane % threads // 32, self.warps + np.tile(np.arange(mbarriers), blocks))
        self.clock = np.ones(blocks, np.int64)
        # [block, warp, of a rank, of a warp or an mbarrier]: its last clock
        self.known = np.zeros((blocks, self.warps, cluster, self.warps + mbarriers), np.int64)
        self.arrived, self.waited = np.zeros(lane.shape, np.int64), np.zeros(lane.shape, np.int64)
        self.fenced = np.zeros(lane.shape, bool)  # no access since a fence of the cluster
        self.phased = False  # whether any lane has been at a cluster barrier
        self.relaxed: dict[int, np.ndarray] = {}  # cluster barrier -> lanes whose arrival released nothing

    # Barriers

    def whole(self, rows: np.ndarray) -> None:
        """All threads of blocks meet."""
        self.known[rows] = self.known[rows].max(axis=1, keepdims=True)
        self.known[rows, :, rows % self.cluster, : self.warps] = self.clock[rows, None, None]
        self.clock[rows] += 1

    def part(self, row: int, warps: np.ndarray, told: np.ndarray | None = None) -> None:
        """Some warps of a block meet; `told` is what others knew, who have gone on."""
        known = self.told(row, warps)
        self.known[row, warps] = known if told is None else np.maximum(known, told)
        self.clock[row] += 1

    def told(self, row: int, warps: np.ndarray) -> np.ndarray:
        """What some warps of a block know now between them, their own past included: [rank, warp or mbarrier]."""
        known = self.known[row, warps].max(axis=0)
        known[row % self.cluster, warps] = self.clock[row]
        return known

    def warps_alone(self, rows: np.ndarray, warps: np.ndarray) -> None:
        """The lanes of each of some warps meet."""
        self.known[rows, warps, rows % self.cluster, warps] = self.clock[rows]
        self.clock[np.unique(rows)] += 1

    def arrive(self, lanes: np.ndarray, release: bool) -> None:
        """At a cluster barrier."""
        if not release:
            for phase in np.unique(self.arrived[lanes]):
                late = lanes[(self.arrived[lanes] == phase) & ~self.fenced[lanes]]
                self.relaxed.setdefault(int(phase), np.zeros(self.row.shape, bool))[late] = True
        self.arrived[lanes] += 1
        self.phased = True

    def fence(self, lanes: np.ndarray) -> None:
        """What came before is released, though a cluster barrier's arrival may not."""
        self.fenced[lanes] = True

    def tick(self, lanes: np.ndarray) -> None:
        """What the lanes do from now on is not part of what they have told so far."""
        self.clock[np.unique(self.row[lanes])] += 1

    def hear(self, lanes: np.ndarray, told: np.ndarray) -> None:
        """Those of the lanes that are whole warps now know what they are told."""
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
        """The stamp of what is copied for a phase of an mbarrier of a block: no cluster barrier orders it."""
        return (self.agents + row * self.mbarriers + mbarrier) | (phase << 20) | (NEVER << 42)

    def unordered(
        self, stamps: np.ndarray, lanes: np.ndarray, warps: np.ndarray | None = None, home: np.ndarray | None = None
    ) -> np.ndarray:
        """Where the stamped access of another lane is not over for `lanes`. A stamp of many lanes of one block, `home` or
        else the lane's own, has their warps as bits of `warps`; of many lanes of other blocks it has none."""
        who = stamps & LANE
        other = (stamps >= 0) & (who != lanes)
        if self.cluster == 1:  # most often a barrier of all threads came since
            floor = self.known[:, :, 0, : self.warps].min(axis=2)[self.row[lanes], self.warp[lanes]]
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

    def all_known(self, row, warp, clock, warps: np.ndarray | None, home) -> np.ndarray:
        if warps is None:
            return np.zeros(row.shape, bool)
        over = np.ones(row.shape, bool)
        for u in range(self.warps):
            known = self.known[row, warp, home % self.cluster, u] >= clock
            over &= ((warps >> np.uint32(u)) & np.uint32(1) == 0) | known
        return over

    def by_cluster(self, who, arrived, lanes, many) -> np.ndarray:
        """Whether a cluster barrier lies between: `who` arrived at it after its access, and `lanes` waited for it."""
        between = self.waited[lanes] - arrived
        for phase, late in self.relaxed.items():
            span = (phase >= arrived) & (phase < self.waited[lanes])
            between -= span & np.where(many, late.any(), late[who])
        # An exit, which a cluster barrier waits for no longer, releases nothing
        return (between > 0) & (many | (self.arrived[np.minimum(who, self.agents - 1)] > arrived))
