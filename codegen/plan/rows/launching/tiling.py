"""The launches of kernels that loop over rows of which no block has all columns, or over all arrays as one long row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from codegen.plan.launches import PlannedCall
from codegen.plan.rows.launching import cost
from codegen.plan.rows.launching.walking import (
    ANY,
    MOST_ROWS_HELD,
    RESIDENT,
    ROOM,
    THREADS,
    Needs,
    most_parts,
    most_rows,
    registers,
    shares,
    threads_that_fit,
)
from codegen.shared import WARP, WalkLaunch

MASKED_THREADS = 1024  # if vectors need masks: of one row at a time, since instructions take the time
# (with expensive values 64 registers do not suffice: the sum over rows of a sine took an H100 717 us, and 223 with 256 threads)
MANY_RESIDENT = 1024  # if not all blocks run at once, so that others compute while one ends
BYTES = 128  # of the rows that a thread holds, at most
COSTLY_BYTES = 96  # if an expensive value is computed of them
LEAST_BYTES = 64  # on GPUs without clusters
ALL = 384  # with the values computed of them
CROWDED_VALUES = 48  # values of a thread that are alive at once, from which on it holds few rows
COSTLY_VALUES = 6  # of one column, if an expensive value is computed: gradients of a norm of groups took an H200 0.8 to 0.9 of the time
# Registers of a thread, by estimate, from which on fewer blocks are resident, and smaller ones where not all run at a time. With as many
# blocks, the compiler gave threads all registers that they asked for: gradients of a log over 49 rows took 179 us for 263
MOST_OF_MANY, CROWDED_THREADS = 72, 128
# Registers of a thread that holds two rows, by estimate, up to which it holds at least so many: of ten gradients of chains on an H200,
# the six with fewer took 0.90 to 1.04 of the time, and the four with more 0.96 to 1.19
ROOMY = 110
FEW_AT_ONCE = 2  # where values crowd registers; and at least where they do not, so that enough bytes are in flight: an H200 took 0.92
MOST_MEETING = 4  # if rows meet at places, and more blocks are resident instead: gradients of a bias took 25 us for 34
MOST_IDLE = 0.125  # part of a thread's rows, held together, that may be beyond the last one
# Blocks of a cluster that have some of all rows each, and bytes that each reads at most: with more, other blocks would be missed longer
# than the launch takes of a kernel that finishes their partial results
MEETING, MET_BYTES = (1, 2, 4, 8), 48 * 1024
PIECES = tuple(WARP >> n for n in range(5))  # threads of a row in such a block
MET_PIECE = 64  # neighbouring bytes of an array that such a block reads, at least
# Where ragged rows come by way of shared memory: a thread's vectors and rows in flight, at most, and bytes in flight of an SM
MOST_IN_TILE, MOST_IN_FLIGHT, IN_FLIGHT = 4, 8, 48 * 1024
# If expensive values are computed, whose instructions for each of these rows fill the cache of instructions: means of softplus and of its
# square took an H100 197 us with four, 165 with three and 147 with two
COSTLY_IN_FLIGHT = 2


def tiles(
    vec: int, ragged: bool, needs: Needs, lanes: int, waves: int, call: PlannedCall, spread: bool = False
) -> WalkLaunch:
    """The launch if each thread has its own columns, and no row is whole in a block. `lanes` is the number of
    neighbouring threads that hold a group of columns. `waves`: how often all SMs are filled, at least. `spread`: whether not all blocks
    run at a time."""
    columns, rows, apart = call.extents.columns, call.extents.rows, call.extents.apart or 1
    alive, costly = needs.alive, needs.costly
    spread = spread or apart > 1
    many = rows or 2**31
    roomy = alive <= COSTLY_VALUES or cost.registers(FEW_AT_ONCE * vec, alive) <= ROOMY
    least = min(FEW_AT_ONCE if roomy else 1, most_rows())
    at_once = 1 if ragged else max(least, rows_at_once(needs, call.clusters))
    few = alive * vec >= CROWDED_VALUES or (costly and alive >= COSTLY_VALUES)
    at_once = min(at_once, FEW_AT_ONCE if few else MOST_MEETING if apart > 1 else at_once)
    crowded = cost.registers(vec * at_once, alive) > MOST_OF_MANY
    own = CROWDED_THREADS if crowded and spread else MASKED_THREADS if ragged and not costly else THREADS
    threads, per_row = call.schedule.get("threads", own), lanes
    while per_row < 32 and (columns is None or per_row * vec < columns):
        per_row *= 2
    beside = max(1, min(threads // per_row, max(1 << (many - 1).bit_length(), WARP // per_row)))
    threads = beside * per_row
    at_once = 1 if many <= beside else at_once
    pieces = (-(-(4096 if columns is None else columns) // (per_row * vec)) or 1) * apart
    most = RESIDENT if crowded else MANY_RESIDENT
    resident = max(1, (most if apart > 1 else RESIDENT) // threads)
    full = shares(pieces, resident * call.processors, waves)
    all_at_a_time = full * pieces <= resident * call.processors
    if not all_at_a_time and crowded and not spread:
        return tiles(vec, ragged, needs, lanes, waves, call, True)
    if not all_at_a_time:
        resident = max(1, most // threads)
        full = shares(pieces, resident * call.processors, waves)

    def parts_of(at_once: int) -> int:
        return min(max(1, min(full, -(-many // (beside * at_once)))), most_parts())

    while (
        not all_at_a_time and apart > 1 and at_once > 1 and idle(many, parts_of(at_once) * beside * at_once) > MOST_IDLE
    ):
        at_once //= 2
    parts = parts_of(at_once)
    return WalkLaunch(
        vec, ragged, threads, per_row, 1, 1, at_once, exact=False, whole=False, resident=resident, parts=parts
    )


def meeting(how: WalkLaunch, row: int, narrowest: int, costly: bool, call: PlannedCall) -> WalkLaunch | None:
    """The launch with the vectors of `how` if one block of each cluster writes the results of a few bytes: no other kernel is launched.
    `row` are the bytes of a row, and `narrowest` those of an element of one of the arrays. It has as many blocks as run at once on an
    SM each, or fewer; None if they would read much more than if other blocks shared the rows."""
    columns, rows, apart = call.extents.columns, call.extents.rows, call.extents.apart or 1
    assert columns is not None and rows is not None
    found, most, together = [], call.processors, 1 << (rows - 1).bit_length()
    widest = 1 << (-(-columns // how.vec) - 1).bit_length()
    # Threads of a piece that is not the whole row
    least = max(-(-MET_PIECE // (how.vec * narrowest)), WARP // together)
    for per_row in (n for n in PIECES if n <= widest and (n >= least or n in (widest, WARP))):
        pieces = apart * -(-columns // (per_row * how.vec))
        beside = min(THREADS // per_row, max(together, WARP // per_row))
        for meets in MEETING if call.clusters else MEETING[:1]:
            crowded = apart > 1 and costly and rows > beside * meets  # a thread would have one row after the other
            if pieces * meets <= most and (meets == 1 or rows > beside * meets // 2) and not crowded:
                found.append((pieces * meets, meets == 1, per_row, meets, beside))
    if not found or call.schedule or most_parts() < ANY:
        return None
    blocks, _, per_row, meets, beside = max(found)  # with wide pieces, a block reduces few rows before it meets others
    if row * rows * apart > MET_BYTES * blocks:
        return None
    at_once = 1 if rows <= beside * meets else min(how.at_once, FEW_AT_ONCE)
    return replace(
        how, threads=per_row * beside, per_row=per_row, at_once=at_once, resident=1, parts=meets, meets=meets
    )


def settling(how: WalkLaunch, call: PlannedCall) -> WalkLaunch:
    """The launch where several places have as many blocks each as may meet: one of them writes the place's results, and
    no other kernel is launched."""
    fits = (
        (call.extents.apart or 1) > 1
        and how.parts in (MEETING if call.clusters else MEETING[:1])
        and most_parts() == ANY
    )
    return replace(how, meets=how.parts) if fits else how


def tiles_in_runs(
    vec: int, needs: Needs, slots: Callable[[int, int], int], waves: int, call: PlannedCall
) -> WalkLaunch | None:
    """As `tiles`, of ragged rows. A warp, or fewer threads if rows are short, loads and stores its piece of a row through shared
    memory, in which its next pieces arrive. `slots`: the bytes of so many columns of so many rows there. None without room."""
    columns, rows, apart = call.extents.columns, call.extents.rows, call.extents.apart or 1
    assert columns is not None
    threads, count = call.schedule.get("threads", THREADS), -(-columns // vec)
    per_row = 1
    while per_row < WARP and per_row < count:
        per_row *= 2
    most = max(1, min(MOST_IN_TILE, ROOM // (needs.width + needs.sums)))
    pieces = -(-count // (per_row * most))
    vectors = -(-count // (per_row * pieces))
    needed = registers(needs.alive * vec, vectors * (needs.width + needs.fixed + needs.sums))
    resident = max(1, threads_that_fit(needed) // threads)
    row = threads * vectors * needs.width  # bytes of a row of each of a block's threads
    at_once = max(2, min(COSTLY_IN_FLIGHT if needs.costly else MOST_IN_FLIGHT, 1 + IN_FLIGHT // (resident * row)))
    block = threads // per_row * slots(per_row * vectors * vec, at_once) + threads * vectors * needs.sums
    resident = min(resident, call.shared_memory // block)
    if not resident:
        return None
    full = shares(pieces * apart, resident * call.processors, waves)
    handfuls = -(-(rows or 2**31) // (threads // per_row))
    parts = min(max(1, min(full, handfuls)), most_parts())
    return WalkLaunch(
        vec, True, threads, per_row, vectors, 1, at_once, exact=False, whole=False, resident=resident, staged=True,
        parts=parts, by_runs=True,
    )  # fmt: skip


def everything(vec: int, ragged: bool, needs: Needs, call: PlannedCall) -> WalkLaunch:
    """The launch if all arrays are one long row."""
    threads, total = call.schedule.get("threads", THREADS), call.extents.total
    at_once, wide = rows_at_once(needs, call.clusters and not ragged), threads * vec
    rows, resident = -(-(2**40 if total is None else total) // wide), max(1, RESIDENT // threads)
    parts = max(1, min(resident * call.processors, -(-rows // at_once), most_parts()))
    return WalkLaunch(
        vec, ragged, threads, threads, 1, 1, at_once, exact=False, whole=True, resident=resident, parts=parts
    )


def rows_at_once(needs: Needs, clusters: bool) -> int:
    """The number of rows that a thread holds in a block without whole rows. `clusters`: whether the GPU has these."""
    most = (COSTLY_BYTES if clusters else LEAST_BYTES) if needs.costly else BYTES
    less = 2 if needs.values else 1
    return max(
        1, min(MOST_ROWS_HELD // less, most // less // needs.width, ALL // (needs.width + needs.written), most_rows())
    )


def idle(rows: int, step: int) -> float:
    """The share of the steps, of so many rows each, that are past the last row."""
    return -rows % step / (rows or 1)
