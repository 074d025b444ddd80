"""Launches of kernels that reduce along rows or over them."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

COUNTER = 4  # words of the memory by which blocks keep pace: the first counts; copies of four words bypass the L1 cache


@dataclass(frozen=True)
class RowLaunch:
    """The launch of a kernel that reduces along rows: what a call adds to its plan. Each launch has a compiled kernel
    of its own."""

    vec: int  # columns of a vector; all of a row, where a thread has several rows
    ragged: bool  # whether N is not a multiple of vec
    threads: int  # of a block
    per_row: int  # threads of a block that share a row
    vectors: int  # of a thread
    cluster: int  # blocks that share a row
    holds_row: bool  # whether registers hold the row; else each pass reads it again
    exact: bool  # whether every vector of every thread lies inside the row
    holds_expensive: bool  # whether registers hold expensive values; else each pass recomputes them
    only_row: bool = False  # whether they hold nothing else, not even what the compiler would hold
    resident: int = 0  # blocks that an SM has registers for, at least, unless 0
    at_once: int = 1  # neighbouring rows of a thread, which are read and written together
    crossing: bool = False  # whether a vector may hold columns of two groups, in a row of whole vectors
    by_runs: bool = False  # whether rows are loaded and stored through shared memory (`device/runs.py`)
    neighbours: bool = False  # whether a thread's columns are neighbours, of two groups at most

    @property
    def constants(self) -> dict[str, RowLaunch]:
        """The constants that the launcher is called with."""
        return {"how": self}

    @property
    def rows_a_block(self) -> int:
        return self.threads // self.per_row * self.at_once

    @property
    def splits(self) -> bool:
        """Whether a block has only some of a row's columns."""
        return self.cluster > 1

    def blocks(self, rows: int, columns: int = 0) -> int:
        """The number of blocks: one more than are full, for the last rows, or for arrays without rows."""
        del columns
        return (rows // self.rows_a_block + 1) * self.cluster


@dataclass(frozen=True)
class MiddleLaunch(RowLaunch):
    """The launch of a kernel that reduces along axes before the innermost ones. A thread's vector has one element of each of `vec`
    neighbouring rows. Neighbouring threads have neighbouring rows, and `per_row` threads share the same rows."""

    # With several, shared memory holds a thread's elements, and registers `vectors` of them at a time
    passes: int = 1
    parts: int = 0  # blocks that loop over all rows, where rows are reduced, too; else each block has its own rows
    each: int = 1  # neighbouring elements that share a result

    @property
    def constants(self) -> dict[str, RowLaunch]:
        """The constants that the launcher is called with. The number of blocks is not among them."""
        return {"how": replace(self, parts=0)}

    @property
    def lanes(self) -> int:
        """The threads of a block that have rows of their own."""
        return self.threads // self.per_row

    @property
    def rows_a_block(self) -> int:
        return self.lanes * self.vec

    def blocks(self, rows: int, columns: int = 0) -> int:
        """The number of blocks."""
        return self.parts or super().blocks(rows, columns)


@dataclass(frozen=True)
class Walk:
    """The settings that a kernel which loops over rows is compiled for."""

    vec: int  # columns of a vector
    ragged: bool  # whether N is not a multiple of vec; of arrays that are one long row, whether their number of elements is not
    threads: int  # of a block
    per_row: int  # threads of a block that share a row
    vectors: int  # of a thread
    cluster: int  # blocks that share a row
    at_once: int  # rows that a thread has: one is reduced while the others are in flight
    exact: bool  # whether every vector of every thread lies inside a row
    whole: bool  # whether a block or a cluster has all columns; else a block has one vector of each of its threads
    only_row: bool = False  # whether registers hold a row as it was read, and nothing that was computed of it
    resident: int = 0  # blocks that an SM has registers for, at least, unless 0
    staged: bool = False  # whether rows are loaded to shared memory, and to registers one by one; else all to registers
    shared_sums: bool = False  # whether the partial results of a thread's columns lie there; else in registers
    paced: bool = False  # whether in long calls blocks wait for blocks that memory serves more slowly
    each: int | None = None  # neighbouring columns that share a result: a vector, or 1; None if each column has its own
    first: RowLaunch | None = None  # the launch of the kernel that writes the rows' statistics, where another one does
    by_place: bool = False  # whether each place has so few rows that neighbouring threads reduce all rows of a place
    crossing: bool = False  # whether a vector may hold columns of two groups, in a row of whole vectors
    by_runs: bool = False  # whether rows are loaded and stored through shared memory, as in RowLaunch
    joins: bool = False  # whether a block's rows, neighbours in memory, are copied as one run; else one by one
    holds_expensive: bool = False  # whether registers hold expensive values; else each reduction recomputes them
    settles: bool = False  # whether a block reduces all rows of a place, and writes the columns' results itself
    meets: int = 0  # blocks of a cluster that share all rows, and whose first one writes the results; 0 where none does

    @property
    def width_of_piece(self) -> int:
        """The number of columns that the threads of a row have in a block."""
        return self.per_row * self.vectors * self.vec

    @property
    def splits(self) -> bool:
        """Whether a block has only some of a row's columns."""
        return self.cluster > 1 or not self.whole


@dataclass(frozen=True)
class WalkLaunch(Walk):
    """The launch of a kernel that loops over rows. The blocks are in `parts` groups. Group p takes the rows p, p +
    parts, p + 2 * parts, ..., one at a time or as many as a block holds, and writes one partial result for each column."""

    parts: int = 1
    long: bool = False  # whether there are enough rows for blocks to keep pace, where they may

    @property
    def constants(self) -> dict[str, Walk]:
        """The constants that the launcher is called with. The number of rows is not among them: kernels do not depend
        on it."""
        return {"how": Walk(**{f.name: getattr(self, f.name) for f in fields(Walk)})}

    def blocks(self, rows: int, columns: int) -> int:
        """The number of blocks that walk down the rows, one at least. Where each place has its own threads (`by_place`), `rows` is the
        number of places, and `columns` that of all their columns."""
        if self.by_place:
            return rows * -(-columns // self.width_of_piece) // (self.threads // self.per_row) + 1
        pieces = self.cluster if self.whole else -(-columns // self.width_of_piece)
        return self.parts * (1 if isinstance(pieces, int) and pieces == 0 else pieces)


def slot_bytes(row: int, single: bool) -> int:
    """The bytes of shared memory for a row of `row` bytes, which may begin anywhere in a vector of 16 bytes. With `single`, threads have
    single columns; else the last thread's vector may end one vector later. The number of vectors is odd, so that neighbouring rows
    begin in different banks."""
    return 16 * (-(-row // 16) + (1 if single else 2) | 1)
