"""The launches of kernels that walk down rows: how many threads, what they hold, and where.

Where a row has statistics of its own, a block holds whole rows, or a cluster of blocks does, each its span of columns:
the columns' results stay with the block, and the row is read once. Elsewhere a block has some columns only; rows too
long for a cluster take that form too, their statistics written by a kernel before (`WalkLaunch.first`).

A thread holds one row that it folds, and the next on its way, in registers or in shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from codegen.reductions import RowLaunch

KEPT = 96  # bytes of a row that a thread keeps before the row gets more threads
MOST_THREADS = 512  # of a row, in a block
LEAST_THREADS = 128  # of a block of several rows
RESIDENT = 512  # threads that a processor has registers for
ROOM = 256  # bytes of a thread's registers that data may take, where it is read again between a row's statistics
CROWDED = 192  # of them, from which on the compiler must keep nothing else
PREFETCHED = 224  # where rows on their way may stay there as well
AT_ONE_TIME = 128  # bytes of a row that a thread keeps where another is on its way
PLAIN_ROOM = 320  # where none is
LONG_ROOM = 384  # and the columns' results lie in shared memory
BLOCK_ROW = 24 * 1024  # bytes of a row, up to which a block shares it with no other
CLUSTERS = (2, 8)  # blocks that may share one, the fewest that can: each meeting costs time
THREADS = 256  # of a block where no row is whole
ROWS = 8  # that a thread then holds, at most
BYTES = 128  # and of them
ALL = 384  # with what is computed of them
PROCESSORS = {"sm_80": 108, "sm_90": 132, "sm_100": 148, "sm_103": 148, "sm_120": 170}
TOGETHER = {1: 132, 2: 66, 4: 30, 8: 15}  # clusters of one block a processor that an H100 runs at once
SHARED = {"sm_80": 160, "sm_90": 224, "sm_100": 224, "sm_103": 224}  # KiB of a processor's shared memory
LEAST_SHARED = 96  # where it is not known


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
    first: RowLaunch | None = None  # where rows have statistics: of the kernel that writes them, unless this one does

    @property
    def constants(self) -> dict[str, int | bool]:
        names = ("vec", "ragged", "threads", "per_row", "vectors", "cluster", "at_once", "exact", "resident")
        own = {name: getattr(self, name) for name in names}
        if self.first is None:
            return own
        own |= {name: getattr(self, name) for name in ("staged", "shared_sums", "lean", "whole")}
        return own | {f"rows_{name}": value for name, value in self.first.constants.items()}

    def blocks(self, rows: int, columns: int) -> int:
        """Those that walk down the rows that meet; other kernels fold their parts. Even of no columns there is one piece."""
        del rows
        pieces = self.cluster if self.whole else -(-columns // (self.per_row * self.vec))
        return self.parts * (1 if isinstance(pieces, int) and pieces == 0 else pieces)


@dataclass(frozen=True)
class Needs:
    """What a kernel that walks needs of each vector, in bytes."""

    width: int  # of all inputs, of a row
    fixed: int  # of inputs that all rows share
    sums: int  # of the columns' results
    stageable: bool  # every input of a row comes in whole vectors of four bytes or more


def clusters(arch: str | None) -> bool:
    """Whether an architecture's blocks share rows in clusters, through each other's shared memory."""
    return arch is not None and arch.startswith(("sm_90", "sm_100", "sm_103"))


def processors(arch: str | None) -> int:
    """How many an architecture's GPU has."""
    return next((n for name, n in PROCESSORS.items() if arch is not None and arch.startswith(name)), 132)


def shared_memory(arch: str | None) -> int:
    """Bytes of it that blocks of one processor may take."""
    known = (n for name, n in SHARED.items() if arch is not None and arch.startswith(name))
    return next(known, LEAST_SHARED) * 1024


def whole(
    vec: int,
    ragged: bool,
    needs: Needs,
    lanes: int,
    columns: int,
    rows: int | None,
    apart: int,
    schedule: dict[str, int],
    arch: str | None,
) -> WalkLaunch | None:
    """The launch of a kernel that holds whole rows, in the smallest cluster that can; None where rows are too long.
    `lanes` is how many neighbouring threads hold a group of columns."""
    count = -(-columns // vec) or 1
    sizes: tuple[int, ...] = (1,)
    if clusters(arch) and count * needs.width > BLOCK_ROW:
        sizes = CLUSTERS
    if "cluster" in schedule:
        sizes = (schedule["cluster"],)
    for cluster in sizes:
        most = max(1, min(KEPT // needs.width, ROOM // (needs.width + needs.sums)))
        per_row = 1
        while per_row < MOST_THREADS and per_row * cluster * most < count:
            per_row *= 2
        per_row = max(schedule.get("threads_per_row", per_row), 32 if cluster > 1 else lanes)
        threads = max(per_row, schedule.get("threads", LEAST_THREADS))
        vectors = -(-count // (per_row * cluster))
        resident = max(1, RESIDENT // threads)
        found = held(needs, vectors, threads, ragged, cluster, shared_memory(arch) // resident)
        if found is None and vectors > 1:
            continue
        at_once, staged, shared_sums, lean = found or (1, False, False, False)
        together = TOGETHER[cluster] if cluster > 1 else processors(arch)
        parts = max(1, min(together * resident // apart, -(-(rows or 2**31) // (threads // per_row))))
        exact = columns > 0 and not ragged and count == vectors * per_row * cluster and threads == per_row
        return WalkLaunch(
            vec, ragged, threads, per_row, vectors, cluster, at_once, exact, True, parts, lean, resident, staged,
            shared_sums,
        )  # fmt: skip
    return None


def held(
    needs: Needs, vectors: int, threads: int, ragged: bool, cluster: int, shared: int
) -> tuple[int, bool, bool, bool] | None:
    """Of rows of `vectors` a thread: how many it holds, whether those on their way come to shared memory, whether the
    columns' results lie there, and whether registers are crowded. None where there is no room. A block may take `shared`
    bytes of shared memory."""
    row, sums, fixed = vectors * needs.width, vectors * needs.sums, vectors * needs.fixed
    if 2 * row + sums + fixed <= PREFETCHED:
        return 2, False, False, 2 * row + sums + fixed > CROWDED
    stageable = needs.stageable and not ragged and row <= AT_ONE_TIME
    for shared_sums in (False, True):
        data = row + fixed + (0 if shared_sums else sums)
        if stageable and data <= ROOM and threads * (2 * row + shared_sums * sums) <= shared:
            return 2, True, shared_sums, data > CROWDED
    if row + sums + fixed <= PLAIN_ROOM:
        return 1, False, False, True
    if (cluster > 1 or row <= AT_ONE_TIME) and row + fixed <= LONG_ROOM and threads * sums <= shared:
        return 1, False, True, True
    return None


def tiles(
    vec: int,
    ragged: bool,
    width: int,
    written: int,
    lanes: int,
    values: bool,
    columns: int | None,
    rows: int | None,
    apart: int,
    schedule: dict[str, int],
    arch: str | None,
) -> WalkLaunch:
    """The launch where each thread has its own columns, and no row is whole in a block. `written` are the bytes that a
    vector's results take; `values`: each row also has values of its own."""
    threads = schedule.get("threads", THREADS)
    at_once = rows_at_once(width, written, values)
    per_row = lanes
    while per_row < 32 and (columns is None or per_row * vec < columns):
        per_row *= 2
    pieces = (-(-(4096 if columns is None else columns) // (per_row * vec)) or 1) * apart
    handfuls = -(-(rows or 2**31) // (threads // per_row * at_once))
    resident = max(1, RESIDENT // threads)
    parts = max(1, min(resident * processors(arch) // pieces, handfuls))
    return WalkLaunch(vec, ragged, threads, per_row, 1, 1, at_once, False, False, parts, resident=resident)


def everything(
    vec: int,
    ragged: bool,
    width: int,
    written: int,
    total: int | None,
    schedule: dict[str, int],
    arch: str | None,
) -> WalkLaunch:
    """The launch where all arrays are one long row."""
    threads = schedule.get("threads", THREADS)
    at_once, wide = rows_at_once(width, written, False), threads * vec
    rows, resident = -(-(2**40 if total is None else total) // wide), max(1, RESIDENT // threads)
    parts = max(1, min(resident * processors(arch), -(-rows // at_once)))
    return WalkLaunch(vec, ragged, threads, threads, 1, 1, at_once, False, True, parts, resident=resident)


def rows_at_once(width: int, written: int, values: bool) -> int:
    """Rows that a thread of a block without whole rows holds, of `width` bytes each."""
    return max(1, min(ROWS // (2 if values else 1), BYTES // width, ALL // (width + written)))
