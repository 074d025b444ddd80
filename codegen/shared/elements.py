"""Launches of kernels whose threads have elements of their own, and of sums by index."""

from __future__ import annotations

from dataclasses import dataclass, replace

from codegen.shared.numbers import WARP


@dataclass(frozen=True)
class Launch:
    """The launch of an element-wise kernel: what a call adds to its plan. Each launch has a compiled kernel of its
    own."""

    vec: int  # elements of a thread
    ragged: bool  # whether a vector may cross the arrays' end or, where coordinates count, a row's
    threads: int  # of a block
    across: int = 0  # threads of a block along the innermost axis, if some arrays have another order of axes; else 0
    # Rows of a thread, if some arrays have another order of axes, if it reads several neighbours of each, or if these share values
    down: int = 1
    backwards: bool = False  # whether the first blocks have the last elements, which an earlier kernel read last
    rows: int = 1  # neighbouring rows of a block, which read each other's elements
    lanes: int = 0  # neighbouring threads along one of two axes, where the other one is read element by element; else 0
    # Elements of the tables that a block holds in shared memory; none if it reads them from memory
    tables: tuple[int, ...] = ()

    @property
    def constants(self) -> dict[str, Launch]:
        """The constants that the launcher is called with."""
        return {"how": self}

    def blocks(self, rows: int, columns: int) -> int:
        """The number of blocks: one more than are full, for the last vectors, or for arrays without elements."""
        if self.rows > 1:
            return (rows // (self.rows * self.down) + 1) * (columns * self.rows // (self.vec * self.threads))
        return rows * columns // (self.vec * self.threads * self.down) + 1


@dataclass(frozen=True)
class ScanLaunch(Launch):
    """The launch of a kernel that scans: what a call adds to its plan. Each has a compiled kernel. Vectors never cross a row's end."""

    along: int = 1  # warps that share an axis' elements
    steps: int = 1  # vectors of a thread at once
    apart: bool = False  # whether each lane has its own scans, since the scanned axis is not innermost
    cluster: int = 1  # blocks that share an axis' elements
    resident: int = 0  # blocks that an SM has registers for, at least, unless 0
    uneven: bool = False  # whether steps may not divide an axis that is scanned in both directions

    @property
    def each(self) -> int:
        """The number of scans of a cluster."""
        return self.threads // WARP // self.along * (WARP * self.vec if self.apart else 1)

    def blocks(self, rows: int, columns: int) -> int:
        """The number of blocks for this many scans: one more than are full."""
        del columns
        return (rows // self.each + 1) * self.cluster


@dataclass(frozen=True)
class SumLaunch(Launch):
    """The launch of a sum by index. A thread's columns are whole vectors, and rows are read in the order of their keys. Chunks of
    neighbouring rows with one key are summed first, then chunks of these sums, `levels` times."""

    ranks: bool = False  # whether a kernel finds the order of the rows; else XLA has sorted them
    levels: int = 0
    chunk: int = 16  # rows of a chunk
    chunk_vec: int = 1  # columns of a thread that sums a chunk
    chunk_across: int = 1  # threads of such a block along the columns
    steps: int = 4  # vectors of a thread, one after the other
    at_once: int = 8  # rows that a thread has in flight

    @property
    def of_chunks(self) -> SumLaunch:
        """The launch of the kernels that sum chunks."""
        return replace(self, vec=self.chunk_vec, across=self.chunk_across)


@dataclass(frozen=True)
class TallyLaunch(Launch):
    """The launch of a sum by few keys. Each warp has tables of sums in shared memory. Lanes that share a table add in turn."""

    keys: int = 1
    columns: int = 1  # sums of a key
    alike: int = 1  # neighbouring keys that share a row of values
    clamp: bool = False  # whether a key out of range counts as the nearest one; else it adds to no row
    copies: int = WARP  # tables of a warp
    parts: int = 1  # blocks that share the rows, whose tables another kernel adds up
    at_once: int = 4  # groups of `vec` rows that a thread has in flight
