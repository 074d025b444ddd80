"""The launches of kernels that walk down rows: how many threads, what they hold, and where.

Where a row has statistics of its own, a block holds whole rows, or a cluster of blocks does, each its span of columns:
the columns' results stay with the block, and the row is read once. Elsewhere a block has some columns only; rows too
long for a cluster take that form too, their statistics written by a kernel before (`Walk.first`).

A thread holds one row that it folds, and the next on its way, in registers or in shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from codegen.plan.access import INT_MAX
from codegen.shared import WARP, WalkLaunch

WALKED_THREAD_BYTES = 96  # bytes of a row that a thread keeps before the row gets more threads
COSTLY_THREAD_BYTES = 64  # where something costly is computed of them
REGISTERS = (
    128  # of a thread, where an SM runs `RESIDENT`: the values alive at once of all its columns leave none to spill
)
MOST_THREADS = 512  # of a row, in a block
LEAST_THREADS = 256  # of a block of several rows
RESIDENT = 512  # threads that a processor has registers for
MOST_FOLDED = 256  # bytes of a thread's registers for a row and its columns' results, where threads are added
ROOM = 160  # of its data, up to which these results lie there as well
WIDE_ROOM = 224  # where no vector needs a mask, on GPUs whose blocks form clusters
PACED_ROOM = 192  # and blocks may keep pace, for which registers lacked: an H100's LayerNorm took 7% longer with 224
CROWDED = 192  # from which on the compiler must keep nothing else, if it could from one fold to the next
AHEAD = 128  # bytes of a row that a thread keeps where others are on their way
FAR_AHEAD = 64  # where two are
PLAIN_ROOM = 320  # where none is
LONG_ROOM = 384  # and the columns' results lie in shared memory
MASKED_ROOM = 160  # where vectors need masks or what is computed of them needs registers
ROW_BYTES_UNSHARED = 24 * 1024  # bytes of a row, up to which a block shares it with no other
CLUSTERS = (
    2,
    4,
    8,
)  # blocks that may share one: the fewest that can with other rows on their way, as meeting costs time
THREADS = 256  # of a block where no row is whole
MOST_ROWS_HELD = 8  # that a thread then holds, at most
BYTES = 128  # and of them
DEAR_BYTES = 96  # where something costly is computed of them
LEAST_BYTES = 64  # on GPUs whose blocks form no clusters
ALL = 384  # with what is computed of them
PROCESSORS = {"sm_80": 108, "sm_90": 132, "sm_100": 148, "sm_103": 148, "sm_120": 170}
TOGETHER = {1: 132, 2: 66, 4: 30, 8: 15}  # clusters of one block a processor that an H100 runs at once
SHARED = {"sm_80": 160, "sm_90": 224, "sm_100": 224, "sm_103": 224}  # KiB of a processor's shared memory
LEAST_SHARED = 96  # where it is not known
UNEVEN = ("sm_90",)  # architectures whose memory serves some processors better than others
LONG = 8  # rows of a thread, from which on a call is long
FEW_ROWS, MOST_ROWS = (
    8,
    64,
)  # that meet at a place, where threads reduce all of them; few: however many places there are
THREAD_BYTES = 64  # bytes of rows that such a thread reads at once


@dataclass(frozen=True)
class Needs:
    """What a kernel that walks needs of each vector, in bytes."""

    width: int  # of all inputs, of a row
    fixed: int  # of inputs that all rows share
    sums: int  # of the columns' results
    stageable: bool  # every input of a row comes in vectors that can be sent for
    dear: bool  # something costly is computed of each column: registers for that
    alive: int  # values of a column that are alive at once, at most
    folds: int  # along a row, one after the other


def clusters(arch: str | None) -> bool:
    """Whether an architecture's blocks share rows in clusters, through each other's shared memory."""
    return arch is not None and arch.startswith(("sm_90", "sm_100", "sm_103"))


_most_parts: ContextVar[int] = ContextVar("most parts", default=2**31)


@contextmanager
def in_parts(most: int) -> Iterator[None]:
    """Launches that are planned inside take rows in so many parts at most: each block then walks far down few rows, which
    tests of small arrays want to see."""
    token = _most_parts.set(most)
    try:
        yield
    finally:
        _most_parts.reset(token)


def processors(arch: str | None) -> int:
    """How many an architecture's GPU has."""
    return next((n for name, n in PROCESSORS.items() if arch is not None and arch.startswith(name)), 132)


def shared_memory(arch: str | None) -> int:
    """Bytes of it that blocks of one processor may take."""
    known = (n for name, n in SHARED.items() if arch is not None and arch.startswith(name))
    return next(known, LEAST_SHARED) * 1024


def most_kept(dear: bool, ragged: bool) -> int:
    """Bytes of a row that a thread keeps, where the row can have more threads."""
    return WALKED_THREAD_BYTES if not dear else COSTLY_THREAD_BYTES // (2 if ragged else 1)


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
    if clusters(arch) and count * needs.width > ROW_BYTES_UNSHARED:
        sizes = CLUSTERS
    if "cluster" in schedule:
        sizes = (schedule["cluster"],)
    uneven = arch is not None and arch.startswith(UNEVEN)
    found: list[WalkLaunch] = []
    for cluster in sizes:
        most = max(1, min(most_kept(needs.dear, ragged) // needs.width, MOST_FOLDED // (needs.width + needs.sums)))
        most = max(1, min(most, REGISTERS // needs.alive // vec)) if needs.dear else most
        per_row = 1
        while per_row < MOST_THREADS and per_row * cluster * most < count:
            per_row *= 2
        per_row = max(schedule.get("threads_per_row", per_row), 32 if cluster > 1 else lanes)
        threads = max(per_row, schedule.get("threads", LEAST_THREADS))
        vectors = -(-count // (per_row * cluster))
        resident = max(1, RESIDENT // threads)
        exact = columns > 0 and not ragged and count == vectors * per_row * cluster and threads == per_row
        may_pace = uneven and cluster == 1 and resident > 1
        wide = PACED_ROOM if may_pace and apart == 1 else WIDE_ROOM  # what tells rows apart would lack registers
        room = 0 if needs.dear else wide if exact and clusters(arch) else ROOM
        how = held(needs, vectors, threads, ragged, cluster, room, shared_memory(arch) // resident)
        if how is None and vectors > 1:
            continue
        at_once, staged, shared_sums, lean = how or (1, False, False, True)
        slots = resident * (TOGETHER[cluster] if cluster > 1 else processors(arch))
        full = shares(apart, slots, 1)
        handfuls = -(-(rows or 2**31) // (threads // per_row))
        parts = max(1, min(full, handfuls))
        # All run at once, no others wait for one that pauses, and it has sent for no more than its next row
        paced = may_pace and staged and at_once == 2 and full * apart <= slots
        long = paced and (rows is None or rows >= LONG * parts * (threads // per_row))
        if apart > 1 and rows is not None and not paced:  # nothing but this may depend on how many rows there are
            parts = least_steps(apart, slots, handfuls)
        parts = min(parts, _most_parts.get())
        launch = WalkLaunch(
            vec, ragged, threads, per_row, vectors, cluster, at_once, exact, True, lean, resident, staged,
            shared_sums, paced=paced, parts=parts, long=long,
        )  # fmt: skip
        if at_once > 1 and filled(full * apart, slots) > 0.75:
            return launch
        found.append(launch)
    return found[0] if found else None


def by_place(
    vec: int,
    ragged: bool,
    needs: Needs,
    whole: bool,
    columns: int,
    rows: int,
    places: int,
    schedule: dict[str, int],
    arch: str | None,
) -> WalkLaunch | None:
    """The launch where `rows` meet at each of so many `places`, and neighbouring threads reduce all rows of one: no partial
    results are written. `whole`: they hold a whole row, which has statistics. None where rows are too long or too many, or places too
    few for all SMs."""
    count, per_row = -(-columns // vec) or 1, 1
    most = max(1, min(WALKED_THREAD_BYTES // needs.width, MOST_FOLDED // (needs.width + needs.sums + needs.fixed)))
    while whole and per_row * most < count:
        per_row *= 2
    vectors = -(-count // per_row) if whole else 1
    pieces = -(-count // (per_row * vectors))
    threads = max(per_row, schedule.get("threads", THREADS))
    enough = rows <= FEW_ROWS or places * pieces * per_row >= processors(arch) * RESIDENT
    if _most_parts.get() < 2**31:  # tests of the kernel that walks down few rows want that one
        return None
    if per_row > WARP or rows > MOST_ROWS or not enough or places * pieces * per_row > INT_MAX:
        return None
    at_once = max(1, min(MOST_ROWS_HELD, THREAD_BYTES // (vectors * needs.width)))
    exact = not ragged and count == per_row * vectors
    return WalkLaunch(vec, ragged, threads, per_row, vectors, 1, at_once, exact, whole=True, parts=0, by_place=True)


def held(
    needs: Needs, vectors: int, threads: int, ragged: bool, cluster: int, room: int, shared: int
) -> tuple[int, bool, bool, bool] | None:
    """Of rows of `vectors` a thread: how many it holds, whether those on their way come to shared memory, whether the
    columns' results lie there, and whether registers are crowded. None where there is no room. Up to `room` bytes of data
    leave registers for the columns' results; a block may take `shared` bytes of shared memory."""
    row, sums, fixed = vectors * needs.width, vectors * needs.sums, vectors * needs.fixed
    if needs.stageable and not ragged and row <= AHEAD:
        for at_once in (3, 2) if row <= FAR_AHEAD and row + fixed + sums <= ROOM else (2,):
            for shared_sums in (False, True):
                data = row + fixed + (0 if shared_sums else sums)
                if (shared_sums or data <= room) and threads * (at_once * row + shared_sums * sums) <= shared:
                    lean = (data > CROWDED and needs.folds > 1) or (needs.dear and at_once == 2)
                    return at_once, True, shared_sums, lean
    if (ragged or needs.dear) and row + fixed <= MASKED_ROOM and threads * sums <= shared:
        return 1, False, True, True
    if ragged or needs.dear:
        return None
    if row + sums + fixed <= PLAIN_ROOM:
        return 1, False, False, True
    if (cluster > 1 or row <= AHEAD) and row + fixed <= LONG_ROOM and threads * sums <= shared:
        return 1, False, True, True
    return None


def tiles(
    vec: int,
    ragged: bool,
    width: int,
    written: int,
    lanes: int,
    values: bool,
    dear: bool,
    waves: int,
    columns: int | None,
    rows: int | None,
    apart: int,
    schedule: dict[str, int],
    arch: str | None,
) -> WalkLaunch:
    """The launch where each thread has its own columns, and no row is whole in a block. `written` are the bytes that a
    vector's results take; `values`: each row also has values of its own; `dear`:
    something costly is computed; `waves`: how often processors fill, at least."""
    threads = schedule.get("threads", THREADS)
    at_once = rows_at_once(width, written, values, dear, None if ragged else arch)
    per_row = lanes
    while per_row < 32 and (columns is None or per_row * vec < columns):
        per_row *= 2
    pieces = (-(-(4096 if columns is None else columns) // (per_row * vec)) or 1) * apart
    handfuls = -(-(rows or 2**31) // (threads // per_row * at_once))
    resident = max(1, RESIDENT // threads)
    slots = resident * processors(arch)
    full = shares(pieces, slots, waves)
    parts = min(max(1, min(full, handfuls)), _most_parts.get())
    resident = resident if full * pieces <= slots else 0  # all at once; else a block that is done makes room
    return WalkLaunch(
        vec, ragged, threads, per_row, 1, 1, at_once, exact=False, whole=False, resident=resident, parts=parts
    )


def shares(pieces: int, slots: int, waves: int) -> int:
    """How many parts of rows, each for all `pieces` of columns, fill the `slots` that blocks have at once so many times or
    more: the fewest that leave next to none empty."""
    least = max(1, waves * slots // pieces)
    found = range(least, max(least, 4 * waves * slots // pieces) + 1)
    good = (parts for parts in found if filled(parts * pieces, slots) > 0.95)
    return next(good, max(found, key=lambda parts: filled(parts * pieces, slots)))


def least_steps(pieces: int, slots: int, rows: int) -> int:
    """How many parts of `rows`, each for all `pieces`, take the fewest steps while `slots` blocks run at once: a step a row of
    a part, and half a one to begin."""

    def steps(parts: int) -> float:
        return -(-parts * pieces // slots) * (-(-rows // parts) + 0.5)

    return min(range(1, max(1, min(rows, 4 * slots)) + 1), key=steps)


def filled(blocks: int, slots: int) -> float:
    """Which part of the slots is taken while so many blocks run."""
    return blocks / (-(-blocks // slots) * slots)


def everything(
    vec: int,
    ragged: bool,
    width: int,
    written: int,
    dear: bool,
    total: int | None,
    schedule: dict[str, int],
    arch: str | None,
) -> WalkLaunch:
    """The launch where all arrays are one long row."""
    threads = schedule.get("threads", THREADS)
    at_once, wide = rows_at_once(width, written, False, dear, None if ragged else arch), threads * vec
    rows, resident = -(-(2**40 if total is None else total) // wide), max(1, RESIDENT // threads)
    parts = max(1, min(resident * processors(arch), -(-rows // at_once), _most_parts.get()))
    return WalkLaunch(
        vec, ragged, threads, threads, 1, 1, at_once, exact=False, whole=True, resident=resident, parts=parts
    )


def rows_at_once(width: int, written: int, values: bool, dear: bool, arch: str | None) -> int:
    """Rows that a thread of a block without whole rows holds, of `width` bytes each."""
    most = (DEAR_BYTES if clusters(arch) else LEAST_BYTES) if dear else BYTES
    less = 2 if values else 1
    return max(1, min(MOST_ROWS_HELD // less, most // less // width, ALL // (width + written)))
