"""On-chip memory: the local memory of each thread and the shared memory of each block, as rows of bytes.

Every access is checked for bounds, alignment and initialisation. For every byte of shared memory, its writer and its
readers since then are recorded. An access that is not ordered after another thread's access is a race. A block must not
exit while another block of its cluster may still access its memory.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from codegen.interpret.lanes import WARPGROUP
from codegen.interpret.memory.arrays import Fault
from codegen.interpret.memory.mbarriers import Mbarriers
from codegen.interpret.memory.ordering import LANE, MANY, NONE, Ordering, joined


class Rows:
    """Rows of bytes that start poisoned and uninitialised."""

    what = "local memory"

    def __init__(self, rows: int, size: int):
        self.size = size
        self.data = np.full(rows * size, 0xCD, np.uint8)
        self.initialised = np.zeros(rows * size, bool)

    def name(self, row: int, lane: int) -> str:
        return self.what

    def bytes_of(
        self, row: np.ndarray, offset: np.ndarray, width: int, lanes: np.ndarray, verb: str, alignment: int
    ) -> np.ndarray:
        """The index of each byte of each access: (accesses, width)."""
        for bad, say in (
            ((offset < 0) | (offset + width > self.size), "out of bounds of"),
            (offset % alignment != 0, "misaligned in"),
        ):
            if bad.any():
                place = int(np.flatnonzero(bad)[0])
                where = self.name(int(row[place]), int(lanes[place]))
                message = f"{verb} of {width} bytes {say} {where}: byte {int(offset[place])} of {self.size}"
                raise Fault(int(lanes[place]), message)
        return (row * self.size + offset)[:, None] + np.arange(width)

    def refuse(self, bad: np.ndarray, at: np.ndarray, lanes: np.ndarray, before: str, after: str) -> None:
        """Raises `Fault` for the first bad byte: "`before` byte N of shared memory `after`"."""
        if bad.any():
            k, place = divmod(int(np.flatnonzero(bad.T)[0]), len(bad))
            row, byte = divmod(int(at[place, k]), self.size)
            raise Fault(int(lanes[place]), f"{before} byte {byte} of {self.name(row, int(lanes[place]))}{after}")

    def load(
        self, row: np.ndarray, offset: np.ndarray, words: int, wordsize: int, lanes: np.ndarray, asked: int
    ) -> list[np.ndarray]:
        """`words` consecutive words for each access, which is `asked` words wide."""
        at = self.bytes_of(row, offset, words * wordsize, lanes, "load", asked * wordsize)
        self.on_read(row, at, lanes)
        self.refuse(~self.initialised[at], at, lanes, "read of", ", which nothing has written")
        held = self.data[at].view(f"u{wordsize}")
        return [held[:, k] for k in range(words)]

    def store(
        self, row: np.ndarray, offset: np.ndarray, values: list[np.ndarray], wordsize: int, lanes: np.ndarray
    ) -> None:
        """Store consecutive words for each access."""
        width = len(values) * wordsize
        at = self.bytes_of(row, offset, width, lanes, "store", width)
        words = [np.ascontiguousarray(np.broadcast_to(v, offset.shape)).view(np.uint8) for v in values]
        self.put(row, at, np.concatenate([w.reshape(-1, wordsize) for w in words], axis=1), lanes)

    def put(self, row: np.ndarray, at: np.ndarray, whole: np.ndarray, lanes: np.ndarray) -> None:
        self.data[at] = whole
        self.initialised[at] = True

    def on_read(self, row: np.ndarray, at: np.ndarray, lanes: np.ndarray) -> None:
        """A check before a read."""


class Copy(NamedTuple):
    """A cp.async in flight."""

    row: np.ndarray
    at: np.ndarray
    whole: np.ndarray  # its bytes
    lanes: np.ndarray
    group: np.ndarray  # the number of its group, for each lane


class Shared(Rows):
    """The shared memory of a batch of blocks."""

    what = "shared memory"

    def __init__(self, rows: int, size: int, ordering: Ordering):
        super().__init__(rows, size)
        self.ordering = ordering
        self.writer = np.full(rows * size, NONE, np.int64)  # stamps
        self.reader = np.full(rows * size, NONE, np.int64)  # the block's own threads, since the last write
        self.reading = np.zeros(rows * size, np.uint32)  # their warps, where there are several
        self.visitor = np.full(rows * size, NONE, np.int64) if ordering.cluster > 1 else None  # other blocks' threads
        self.multiplied: dict[int, np.ndarray] = {}  # stamps of the reads by each warpgroup's products
        self.gone = np.zeros(rows, bool)  # blocks that have exited
        self.until = np.zeros(rows, np.int64)  # the cluster barrier that a block must wait for before it exits
        self.because: dict[int, tuple[int, Any]] = {}  # block -> a lane that needs it, and its instruction
        self.mbarriers = Mbarriers(self)
        self.flying: np.ndarray | None = None  # bytes that an asynchronous copy may still write
        self.used: np.ndarray | None = None  # the number of wgmmas that may still read each byte
        self.plain = np.zeros(rows * size, bool)  # written by a thread that has not executed a fence for wgmma since
        self.copies: list[Copy] = []
        self.committed = np.zeros(ordering.arrived.shape, np.int64)  # groups of cp.async, by lane

    def name(self, row: int, lane: int) -> str:
        if row == self.ordering.row[lane]:
            return self.what
        return f"the shared memory of block {row % self.ordering.cluster} of its cluster"

    # Other blocks' memory

    def visit(self, row: np.ndarray, lanes: np.ndarray, instruction: Any) -> None:
        """Lanes access other blocks' memory: these blocks must be running now, and until a later cluster barrier."""
        ordering = self.ordering
        away = row != ordering.row[lanes]
        if not away.any():
            return
        row, lanes = row[away], lanes[away]
        self.reach(row, lanes)
        needed = ordering.arrived[lanes] + 1
        np.maximum.at(self.until, row, needed)
        for block in np.unique(row):
            needs = lanes[(row == block) & (needed == self.until[block])]
            if len(needs):
                self.because[int(block)] = int(needs[0]), instruction

    def reach(self, row: np.ndarray, lanes: np.ndarray) -> None:
        """Lanes access blocks' memory: these blocks must be running now."""
        ordering = self.ordering
        away = row != ordering.row[lanes]
        row, lanes = row[away], lanes[away]
        for bad, why in (
            (self.gone[row], "which has exited"),
            (ordering.waited[lanes] == 0, "which may not have started: no cluster barrier came before"),
        ):
            if bad.any():
                place = int(np.flatnonzero(bad)[0])
                where = self.name(int(row[place]), int(lanes[place]))
                raise Fault(int(lanes[place]), f"access to {where}, {why}")

    # Races

    def on_read(self, row: np.ndarray, at: np.ndarray, lanes: np.ndarray) -> None:
        """Check reads of bytes against writes that nothing orders before them, and record them."""
        ordering, whom = self.ordering, lanes[:, None]
        self.landed(at, lanes, "read of")
        self.race(ordering.unordered(self.writer[at], whom), at, lanes, "read of", "wrote")
        stamp = ordering.stamp(lanes)
        away = row != ordering.row[lanes]
        if away.any():
            assert self.visitor is not None
            self.remember(self.visitor, None, at[away], lanes[away], stamp[away])
            at, lanes, stamp = at[~away], lanes[~away], stamp[~away]
        self.remember(self.reader, self.reading, at, lanes, stamp)

    def remember(
        self, seen: np.ndarray, warps: np.ndarray | None, at: np.ndarray, lanes: np.ndarray, stamp: np.ndarray
    ) -> None:
        """Add reads to the recorded reads that are not ordered before the new readers."""
        lanes, stamp, old = lanes[:, None], np.broadcast_to(stamp[:, None], at.shape), seen[at]
        kept = self.ordering.unordered(old, lanes, None if warps is None else warps[at])
        new = np.where(kept, joined(old, stamp), stamp) if kept.any() else stamp
        if warps is not None:
            warps[at] = np.where(kept, warps[at], np.uint32(0))
            bits = np.uint32(1) << self.ordering.warp[lanes].astype(np.uint32)
            np.bitwise_or.at(warps, at.reshape(-1), np.broadcast_to(bits, at.shape).reshape(-1))
        seen[at] = new
        last = seen[at]
        clash = last != new  # others read it in the same instruction
        if clash.any():
            seen[at[clash]] = joined(last[clash], new[clash])

    def before_write(self, at: np.ndarray, lanes: np.ndarray) -> None:
        """Check writes of bytes against reads and writes that nothing orders before them."""
        ordering, whom = self.ordering, lanes[:, None]
        self.landed(at, lanes, "write of")
        if self.used is not None:
            self.refuse(
                self.used[at] > 0,
                at,
                lanes,
                "write of",
                ", which a wgmma or a bulk copy that is not waited for may still read",
            )
        self.race(ordering.unordered(self.writer[at], whom), at, lanes, "second write of", "wrote")
        read = ordering.unordered(self.reader[at], whom, self.reading[at], at // self.size)
        if self.visitor is not None:
            read |= ordering.unordered(self.visitor[at], whom)
        for group, stamps in self.multiplied.items():
            warps = np.full(at.shape, 0b1111 << 4 * group, np.uint32)
            read |= ordering.unordered(stamps[at], whom, warps, at // self.size)
        self.race(read, at, lanes, "write of", "read")

    def put(self, row: np.ndarray, at: np.ndarray, whole: np.ndarray, lanes: np.ndarray) -> None:
        self.before_write(at, lanes)
        super().put(row, at, whole, lanes)
        differs = self.data[at] != whole  # within one instruction the last of two wins
        self.race(differs, at, lanes, "second write of", "wrote")
        self.writer[at] = self.ordering.stamp(lanes)[:, None]
        self.plain[at] = True
        self.reader[at] = NONE
        for stamps in (*self.multiplied.values(), *(() if self.visitor is None else (self.visitor,))):
            stamps[at] = NONE

    def race(self, bad: np.ndarray, at: np.ndarray, lanes: np.ndarray, verb: str, did: str) -> None:
        self.refuse(bad, at, lanes, f"race: {verb}", f" that another thread {did}, with no barrier between")

    def cell(self, row: np.ndarray, offset: np.ndarray, size: int, lane: np.ndarray) -> np.ndarray:
        """The bytes that an atomic of one lane works on."""
        at = self.bytes_of(row, offset, size, lane, "atomic", size)
        self.landed(at, lane, "atomic on")
        self.refuse(~self.initialised[at], at, lane, "atomic on", ", which nothing has written")
        return self.data[at[0, 0] : at[0, 0] + size]

    # Asynchronous copies

    def copy(self, row: np.ndarray, offset: np.ndarray, whole: np.ndarray, lanes: np.ndarray) -> None:
        """cp.async: its bytes may be written from now on. They are written when the thread waits for them."""
        at = self.bytes_of(row, offset, whole.shape[1], lanes, "cp.async", whole.shape[1])
        self.before_write(at, lanes)
        self.take_off(at)
        self.copies.append(Copy(row, at, whole, lanes, self.committed[lanes]))

    def deliver(
        self, row: np.ndarray, offset: np.ndarray, whole: np.ndarray, lanes: np.ndarray, stamp: int
    ) -> np.ndarray:
        """A bulk copy: the bytes are written, but may not be read yet. Returns their indices: (accesses, width)."""
        at = self.bytes_of(row, offset, whole.shape[1], lanes, "cp.async.bulk", whole.shape[1])
        self.fenced(at, lanes, "copy to")
        self.put(row, at, whole, lanes)
        self.plain[at] = False
        self.writer[at] = stamp  # only a wait orders it before a lane, even the lane that started it
        self.take_off(at)
        return at

    def send(
        self,
        row: np.ndarray,
        offset: np.ndarray,
        values: list[np.ndarray],
        wordsize: int,
        lanes: np.ndarray,
        homes: np.ndarray,
        places: np.ndarray,
    ) -> np.ndarray:
        """st.async, for the mbarriers at places of blocks: the bytes are written, but may not be read yet. Returns their indices:
        (accesses, width)."""
        width = len(values) * wordsize
        at = self.bytes_of(row, offset, width, lanes, "st.async", width)
        self.store(row, offset, values, wordsize, lanes)
        found = zip(homes.tolist(), places.tolist(), lanes.tolist(), strict=True)
        self.writer[at] = np.array([self.mbarriers.stamp(*one) for one in found])[:, None]
        self.take_off(at)
        return at

    def take_off(self, at: np.ndarray) -> None:
        if self.flying is None:
            self.flying = np.zeros(self.writer.shape, bool)
        self.flying[at] = True

    def land(self, at: np.ndarray) -> None:
        assert self.flying is not None
        self.flying[at] = False

    def commit(self, lanes: np.ndarray) -> None:
        """The lanes' copies so far become a group."""
        self.committed[lanes] += 1

    def wait(self, lanes: np.ndarray, pending: int) -> None:
        """The copies of all of the lanes' groups complete, except those of the last `pending` groups."""
        active = np.zeros(self.committed.shape, bool)
        active[lanes] = True
        copies, self.copies = self.copies, []
        for copy in copies:
            done = active[copy.lanes] & (copy.group < self.committed[copy.lanes] - pending)
            if done.any():
                self.land(copy.at[done])
                self.put(copy.row[done], copy.at[done], copy.whole[done], copy.lanes[done])
            if not done.all():
                self.copies.append(Copy(*(part[~done] for part in copy)))

    def landed(self, at: np.ndarray, lanes: np.ndarray, verb: str) -> None:
        if self.flying is not None:
            self.refuse(
                self.flying[at],
                at,
                lanes,
                verb,
                ", which an asynchronous copy that is not waited for may still write",
            )

    # Reads by wgmma

    def take_up(self, row: int, offset: np.ndarray, width: int, lanes: np.ndarray, name: str = "wgmma") -> np.ndarray:
        """The indices of the bytes that a wgmma reads, with one lane of each of its warps, or a bulk copy, with its lane:
        (accesses, width)."""
        first = np.full(offset.shape, lanes[0])
        at = self.bytes_of(np.full(offset.shape, row), offset, width, first, name, width)
        self.landed(at, first, f"{name} of")
        self.refuse(~self.initialised[at], at, first, f"{name} of", ", which nothing has written")
        self.fenced(at, first, f"{name} of")
        stamps = np.unique(self.writer[at])
        for lane in lanes:
            if self.ordering.unordered(stamps, np.full(stamps.shape, lane)).any():
                whose = np.full(offset.shape, lane)
                self.race(self.ordering.unordered(self.writer[at], whose[:, None]), at, whose, f"{name} of", "wrote")
        return at

    def hold(self, at: np.ndarray) -> None:
        """A wgmma or a bulk copy reads these bytes from now on."""
        if self.used is None:
            self.used = np.zeros(self.writer.shape, np.uint8)
        self.used[at] += 1

    def fenced(self, at: np.ndarray, lanes: np.ndarray, verb: str) -> None:
        self.refuse(self.plain[at], at, lanes, verb, ", which a thread wrote with no fence.proxy.async since")

    def fence(self, lanes: np.ndarray) -> None:
        """fence.proxy.async: wgmma may read the bytes that the lanes have written."""
        fenced = np.zeros(self.ordering.agents, bool)
        fenced[lanes] = True
        at = np.flatnonzero(self.plain)
        self.plain[at] = ~fenced[self.writer[at] & LANE]

    def put_down(self, at: np.ndarray) -> None:
        """It has read these bytes."""
        assert self.used is not None
        self.used[at] -= 1

    def read_by(self, at: np.ndarray, lane: int) -> None:
        """Record that a lane has waited for a bulk copy that reads these bytes."""
        lanes = np.full(len(at), lane)
        self.remember(self.reader, self.reading, at, lanes, self.ordering.stamp(lanes))

    def seen_by(self, at: np.ndarray, lane: int) -> None:
        """Record that warps of a lane's warpgroup have waited for a product that reads these bytes."""
        group = int(self.ordering.warp[lane]) // (WARPGROUP // 32)
        if group not in self.multiplied:
            self.multiplied[group] = np.full(self.writer.shape, NONE, np.int64)
        self.multiplied[group][at] = self.ordering.stamp(np.array([lane]))[0] | MANY
