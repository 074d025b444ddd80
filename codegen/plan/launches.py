"""Launches: what a call adds to a plan. One frozen record for each kind of kernel; `constants` are what its launcher takes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Extents:
    """What a call's shapes come to; None where it is unknown when compiling."""

    inner: int | None  # of the innermost axes that stay together, or a number that divides it
    total: int | None  # elements, or a number that divides them
    columns: int | None = None  # of a row, where rows are reduced
    rows: int | None = None  # that are folded into one
    apart: int | None = 1  # how many places have rows of their own to fold


@dataclass(frozen=True)
class Launch:
    """What a call adds to the plan: the vector width, whether rows are ragged, the threads of a block."""

    vec: int
    ragged: bool
    threads: int

    @property
    def constants(self) -> dict[str, int | bool]:
        """What the launcher takes of it."""
        return {"vec": self.vec, "ragged": self.ragged, "threads": self.threads}

    def blocks(self, rows: int, columns: int) -> int:
        """One more than full ones: for the rest, or where the arrays are empty."""
        return rows * columns // (self.vec * self.threads) + 1


@dataclass(frozen=True)
class RowLaunch:
    """What a call adds to the plan of a row kernel. `vectors` a thread, `per_row` threads, `cluster` blocks a row."""

    vec: int  # a whole row, where a thread has several; then it may hold columns of several groups
    ragged: bool
    threads: int
    per_row: int
    vectors: int
    cluster: int
    kept: bool  # the row stays in registers; else every stage reads it again
    exact: bool  # every vector of every thread lies inside the row
    carried: bool  # dear values stay in registers as well
    lean: bool = False  # nothing stays there but the row, not even what the compiler would keep
    resident: int = 0  # blocks that a processor has registers for, at least, unless 0
    at_once: int = 1  # neighbouring rows that a thread has, one after the other: in memory they are vectors together

    @property
    def constants(self) -> dict[str, int | bool]:
        names = (
            "vec",
            "ragged",
            "threads",
            "per_row",
            "vectors",
            "cluster",
            "kept",
            "exact",
            "carried",
            "lean",
            "resident",
            "at_once",
        )
        return {name: getattr(self, name) for name in names}

    @property
    def rows_a_block(self) -> int:
        return self.threads // self.per_row * self.at_once

    def blocks(self, rows: int, columns: int) -> int:
        """Those of a row kernel."""
        return (rows // self.rows_a_block + 1) * self.cluster


IDLE = RowLaunch(1, False, 32, 32, 1, 1, True, True, False)  # of a kernel that a call does not launch


@dataclass(frozen=True)
class WalkLaunch:
    """What a call adds to the plan of a kernel that walks down rows: each of `parts` groups of blocks takes every parts-th
    row, or as many at once as a block holds, and leaves one partial result for every column."""

    vec: int
    ragged: bool
    threads: int
    per_row: int
    vectors: int
    cluster: int
    at_once: int  # rows that a thread holds
    exact: bool  # every vector of every thread lies inside a row
    whole: bool  # a block, or a cluster of them, has all columns; else it has one vector of each of its threads
    parts: int
    lean: bool = False  # nothing of a row stays in registers but what was read
    resident: int = 0  # blocks that a processor has registers for, at least, unless 0
    staged: bool = False  # rows come to shared memory, and one of them to registers; else all to registers
    shared_sums: bool = False  # what a thread's columns come to lies in shared memory; else in registers
    paced: bool = False  # blocks wait for those that memory serves worse, if a call is long
    long: bool = False  # whether it has so many rows
    each: int | None = None  # neighbouring columns whose results are one, of those that no result keeps: a vector, or 1
    first: RowLaunch | None = None  # where rows have statistics: of the kernel that writes them, unless this one does

    @property
    def constants(self) -> dict[str, int | bool]:
        names = ("vec", "ragged", "threads", "per_row", "vectors", "cluster", "at_once", "exact", "resident")
        own = {name: getattr(self, name) for name in names}
        if self.each is not None:
            own["each"] = self.each
        if self.first is None:
            return own
        own |= {name: getattr(self, name) for name in ("staged", "shared_sums", "lean", "whole", "paced")}
        return own | {f"rows_{name}": value for name, value in self.first.constants.items()}

    def blocks(self, rows: int, columns: int) -> int:
        """Those that walk down the rows that meet; other kernels fold their parts. Even of no columns there is one piece."""
        del rows
        pieces = self.cluster if self.whole else -(-columns // (self.per_row * self.vec))
        return self.parts * (1 if isinstance(pieces, int) and pieces == 0 else pieces)


@dataclass(frozen=True)
class GemmLaunch:
    """What a call adds to a tile's plan: the main loop and its tiles, and the vectors of the epilogue."""

    vec: int
    ragged: bool
    config: str  # "sm_80(tile_m=128, ...)"
    rows: int  # of a tile, each of whose columns leaves a part of every fold over rows
    columns: int  # of the outputs in what a block finishes: a tile's, or where K is split, its share of them
    side: int  # parts that a row of a tile leaves of every fold along it
    why: str  # XLA's matmul and then a kernel for the epilogue should take less time; empty where they should not

    @property
    def fast(self) -> bool:
        """Whether it should take less time than XLA's matmul and a kernel for the epilogue."""
        return not self.why

    @property
    def constants(self) -> dict[str, int | bool | str]:
        """What the launcher takes of it."""
        return {"config": self.config, "vec": self.vec, "ragged": self.ragged}


AnyLaunch = Launch | RowLaunch | WalkLaunch | GemmLaunch
