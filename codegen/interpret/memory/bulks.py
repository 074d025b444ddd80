"""Bulk copies from shared to global memory, and sums into it, in flight.

The bytes are read when the copy starts, and the result is in global memory at once. But until its thread waits for the reads of a
copy's group, nothing may write the bytes that it reads. Until it waits for the whole group, no other copy may reach the bytes that
it writes: nothing orders the two.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from codegen.interpret import arithmetic as ar
from codegen.interpret.memory.arrays import Fault, Global
from codegen.interpret.memory.onchip import Shared

CHUNK = 16  # bytes: the unit of addresses and sizes


@dataclass(eq=False)
class Bulk:
    """A copy in flight."""

    lane: int
    group: int
    at: np.ndarray  # the bytes that it reads
    first: int  # the addresses that it writes
    end: int
    reads: bool = True  # whether it may still read


class Bulks:
    """The copies of a batch of blocks."""

    def __init__(self, shared: Shared, arrays: Global):
        self.shared, self.arrays = shared, arrays
        self.under_way: list[Bulk] = []
        self.committed = np.zeros(shared.committed.shape, np.int64)

    def start(self, lane: int, thread: int, address: int, row: int, offset: int, size: int, adds: bool) -> None:
        """Copy `size` bytes, or add them to the numbers of float32 that are there."""
        for other in self.under_way:
            if other.first < address + size and address < other.end:
                raise Fault(lane, "a bulk copy to global memory that another one, not waited for, may still write")
        places = offset + np.arange(0, size, CHUNK)
        at = self.shared.take_up(row, places, CHUNK, np.array([lane]), "cp.async.bulk")
        whole = self.shared.data[at].reshape(-1)
        self.shared.hold(at)
        self.under_way.append(Bulk(lane, int(self.committed[lane]), at, address, address + size))
        if adds:
            cell = self.arrays.cell(np.array([address]), size, np.array([lane]), CHUNK).view(np.float32)
            cell[:] = ar.flush(ar.flush(cell) + ar.flush(whole.view(np.float32)))
        else:
            words = list(whole.reshape(-1, CHUNK).view(np.uint32).T)
            many = np.full(places.shape, lane)
            self.arrays.store(address - offset + places, words, 4, many, np.full(places.shape, thread))

    def commit(self, lanes: np.ndarray) -> None:
        self.committed[lanes] += 1

    def wait(self, lanes: np.ndarray, pending: int, reads: bool) -> None:
        """All groups of the lanes except the last `pending` have read their bytes, or, unless `reads`, are complete."""
        there, left = set(lanes.tolist()), []
        for bulk in self.under_way:
            done = bulk.lane in there and bulk.group < self.committed[bulk.lane] - pending
            if done and bulk.reads:
                bulk.reads = False
                self.shared.put_down(bulk.at)
                self.shared.read_by(bulk.at, bulk.lane)
            if not done or reads:
                left.append(bulk)
        self.under_way = left

    def check_exit(self) -> None:
        if self.under_way:
            raise Fault(self.under_way[0].lane, "the thread exits without a wait for its last bulk copy")
