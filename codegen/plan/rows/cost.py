"""What a launch of a row kernel costs, in time for each row, by a model of an SM: so that the cheapest of many launches
can be chosen.

A row's memory traffic and its instructions overlap. Each thread has instructions of its own beside those of its
columns: fewer threads with more columns need fewer of them, until registers leave too few threads on an SM, or until
neighbouring threads read scattered pieces.

The numbers were fitted to 1100 launches of 99 random kernels on an H200. Of the launches that were timed, the ones that
this model takes for the fastest took 1.03 times as long as the fastest ones (geometric mean).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from codegen.shared import WARP, RowLaunch

MAX_THREADS, MAX_CLUSTER = 1024, 8  # of a block; and the blocks that every GPU with clusters can schedule
CLUSTERS = (2, 4, MAX_CLUSTER)
CLUSTER_THREADS = 256  # of a block of a cluster
MOST_VECTORS, MOST_COLUMNS = 16, 40  # of a thread; columns if it holds several vectors
FEW_BYTES = 1536  # of a row, from which on SMs that few rows leave idle may share it: others take a microsecond or two
THREAD_BYTES = 64  # bytes of inputs that a thread of a cluster holds, unless an expensive value is computed
MOST_WITH_EXPENSIVE = 384  # bytes that a thread holds, with its expensive values
ROW_BYTES_IN_BLOCK = 64 * 1024  # bytes of a row that a block holds
# Up to which a block holds it alone: two such blocks are resident, or an expensive value is computed of each column
ALONE_ROW, COSTLY_ALONE_ROW = 32 * 1024, 48 * 1024
ABOUT = 1.03  # times the least time
NARROWER = 0.9  # times that of wider vectors, from which on narrower ones are worth their additional requests

REGISTERS_OF_SM = 64 * 1024
THREADS_OF_SM = 2048
MOST_REGISTERS = 255  # of a thread
BLOCKS_OF_SM = 32
BESIDE_VALUES = 24  # registers of a thread for addresses, bounds and loops

# Instructions of a thread
OF_THREAD = 120.0  # whatever it has to do
OF_VECTOR = 10.0  # for each byte of a column in all inputs
OF_VALUE = 6.3  # for each value of a column that is alive
OF_COSTLY = 10.0  # for each column, if an expensive value is computed of it
OF_EXCHANGE = 5.0  # for each step in which lanes reduce a value
OF_MEETING = 220.0  # for each time that warps reduce values together
OF_CLUSTER = 100.0  # for each time that two blocks of a cluster meet; of more, the logarithm as often
MASKED, INEXACT = 1.3, 1.12  # times as many where vectors need masks, and where some threads have fewer vectors

INSTRUCTIONS = 128  # that an SM begins in a cycle, of all threads
BYTES = 16.0  # that memory moves for an SM in a cycle
OVERLAP = 8.0  # how well both overlap: the exponent of their sum
IN_FLIGHT = 28 * 1024  # bytes that threads of an SM must have asked for
CROWDED, SLOWED = 400, 2.0  # threads of an SM, below which instructions wait, and the exponent of that
FEW_BLOCKS, ALONE = 4, 0.1  # blocks of an SM, below which all of them may wait at once, and the exponent of that
SPILLED = 1.26  # exponent of the registers that are wanted over those there are
FEW_REGISTERS = 64  # of a thread, which need no limit
SQUEEZED = 0.87  # part of the estimate: the compiler computes some values again
SECTOR, LINE = 32, 128  # bytes
FEW_VECTORS = 3  # of a thread, up to which it does no harm that others read parts of the same lines
SCATTERED, SPREAD, SPREAD_WRITES = 0.27, 0.04, 0.12  # of the time of memory

# Of a call whose blocks all run at once. Fitted to 100 launches of 50 kernels, of 1 to 7 us
TO_START = 560.0  # cycles from one block that an SM begins to the next
FULL = 300.0  # threads of an SM that begin as many instructions in a cycle as one of them in each
TO_MEET = 130.0  # cycles until warps have reduced values together
TO_MEET_BLOCKS = 190.0  # until two blocks of a cluster have; of more, the logarithm as often
OF_ONE = 35.0  # bytes that memory moves for one SM in a cycle


@dataclass(frozen=True)
class Row:
    """What a kernel does with a row. Bytes are of a column."""

    columns: int
    read: int
    moved: int  # both ways, without what neighbouring rows share
    written: int
    narrowest: int  # of the arrays that are read in vectors
    alive: int  # the most values that are alive at once
    costly: bool  # an expensive value is computed of each column
    expensive: int  # such values that threads hold from one reduction to the next
    statistics: int
    meetings: int  # statistics that need others before them
    rows: int | None = None  # of the call


def cheapest(
    row: Row,
    vecs: Sequence[int],
    ragged: bool,
    lanes: Callable[[int], int],
    least_threads: Callable[[int], int],
    schedule: Mapping[str, int],
    clusters: bool,
    in_run: bool = False,
    sms: int = 1,
) -> RowLaunch | None:
    """The launch that takes the least time, of those with such vectors whose threads hold a whole row. None if rows are too long.
    `lanes` and `least_threads` are the threads that a row has and that a block has, at least. `in_run`: each block of a cluster has
    neighbouring columns. The row then ends in the last vector of its threads, since only that one has a mask. Where so few rows leave
    SMs idle, each has more threads, and clusters share shorter ones."""
    for most_threads in (CLUSTER_THREADS, MAX_THREADS):  # small blocks of a cluster wait for few threads

        def found(vec: int, most_threads: int = most_threads, few: bool = False) -> list[RowLaunch]:
            hows = launches(row, vec, ragged, lanes, least_threads, schedule, clusters, most_threads, few)
            return [
                how for how in hows if not in_run or row.columns > vec * how.per_row * (how.vectors * how.cluster - 1)
            ]

        best = _least({vec: found(vec) for vec in vecs}, functools.partial(time_of_row, row))
        if best is None:
            continue
        long = row.columns * row.read >= FEW_BYTES and not in_run
        if long and row.rows and blocks_of_sm(best, row.rows, sms) * best.threads <= running(row, best):
            time = functools.partial(time_of_few, row, rows=row.rows, sms=sms)
            few = _least({vec: found(vec, MAX_THREADS, few=True) for vec in vecs}, time)
            return few if few and time(few) < NARROWER * time(best) else best
        return best
    return None


def _least(found: Mapping[int, Sequence[RowLaunch]], time: Callable[[RowLaunch], float]) -> RowLaunch | None:
    """The launch that takes the least time, of those with vectors of some widths, the widest first."""
    best: tuple[float, RowLaunch] | None = None
    for hows in found.values():
        if not hows:
            continue
        times = {how: time(how) for how in hows}
        least = min(times.values())
        # Of those that are about as fast, the one with the fewest columns a thread: it needs the fewest registers
        near = [how for how in hows if times[how] <= ABOUT * least]
        how = min(near, key=lambda how: (how.vec * how.vectors, times[how]))
        if best is None or least < NARROWER * best[0]:
            best = least, how
    return best and best[1]


def launches(
    row: Row,
    vec: int,
    ragged: bool,
    lanes: Callable[[int], int],
    least_threads: Callable[[int], int],
    schedule: Mapping[str, int],
    clusters: bool,
    most_threads: int,
    few: bool = False,
) -> Iterator[RowLaunch]:
    """The launches with such vectors whose threads hold a whole row. A block of a cluster has at most so many threads. `few`: rows are
    few, so that clusters may share shorter ones."""
    ragged = ragged and row.columns % vec != 0
    count = -(-(row.columns + (vec - 1 if ragged else 0)) // vec) or 1
    long = clusters and (few or row.columns * row.read > ALONE_ROW)
    alone = few or not long or (row.costly and row.columns * row.read <= COSTLY_ALONE_ROW)
    sizes = (1,) * alone + CLUSTERS * long if "cluster" not in schedule else (schedule["cluster"],)
    held = max(1.5, 1 + 4 * row.expensive / row.read)  # times the bytes that are read
    seen = set()
    for cluster in sizes:
        most_columns = MOST_COLUMNS
        if cluster > 1:
            usual = MOST_COLUMNS if row.costly else THREAD_BYTES // row.read
            needed = -(-count // (cluster * most_threads)) * vec
            most_columns = max(usual, needed) if cluster == MAX_CLUSTER else usual
        for most in range(1, MOST_VECTORS + 1):
            least = -(-count // (cluster * most))
            per_row = -(-least // WARP) * WARP if least > WARP // 2 else 1 << (least - 1).bit_length()
            per_row = schedule.get("threads_per_row", max(per_row, 2 * WARP if cluster > 1 else lanes(vec)))
            vectors = -(-count // (per_row * cluster))
            whole = (-(-(row.columns // vec) // (per_row * cluster)) or 1) * vec * row.read
            much = vec * vectors > most_columns or whole * held > MOST_WITH_EXPENSIVE
            much = much or (cluster > 1 and per_row > most_threads)
            much = much and vectors > 1 and "threads_per_row" not in schedule
            if much or per_row > MAX_THREADS or (cluster, per_row) in seen:
                continue
            if whole * per_row > max(ROW_BYTES_IN_BLOCK, vec * row.read * per_row):
                continue
            seen.add((cluster, per_row))
            threads = max(1, schedule.get("threads", least_threads(per_row)) // per_row) * per_row
            yield RowLaunch(vec, ragged, threads, per_row, vectors, cluster, True, False, False)


def registers(columns: int, alive: int) -> float:
    """An estimate of the registers of a thread, from its columns and the values of a column that are alive at once. The compiler mixes
    the instructions of columns: the more values each has, the more. Its error is a sixth, the standard deviation of 200 kernels
    without a limit."""
    return BESIDE_VALUES + columns * alive * (0.37 + 0.029 * alive)


def time_of_row(row: Row, how: RowLaunch) -> float:
    """The cycles of an SM for a row."""
    vec, threads, per_row, vectors, cluster = how.vec, how.threads, how.per_row, how.vectors, how.cluster
    columns = vec * vectors
    instructions = _instructions(row, how)
    instructions += row.meetings * OF_MEETING if per_row > WARP else 0
    instructions += row.meetings * OF_CLUSTER * math.log2(cluster)
    issue = instructions * per_row * cluster / INSTRUCTIONS
    exact = row.columns == columns * per_row * cluster
    issue *= MASKED if how.ragged else 1 if exact else INEXACT
    needed = registers(columns, row.alive)
    limit = min(MOST_REGISTERS, REGISTERS_OF_SM / threads)
    beside = running(row, how)
    issue *= max(1, CROWDED / beside) ** SLOWED * max(1, FEW_BLOCKS * threads / beside) ** ALONE
    issue *= max(1, needed / limit) ** SPILLED
    memory = row.columns * row.moved / BYTES
    memory *= max(1, IN_FLIGHT / (beside * columns * row.read)) if row.read else 1
    piece = per_row * vec * row.narrowest
    scattered = SCATTERED * (max(1, SECTOR / piece) - 1) * vectors / 4
    touches = max(1, min(vectors, LINE / piece))  # instructions that need the same line
    spread = (SPREAD + SPREAD_WRITES * row.written / max(1, row.moved)) * (touches - 1) * max(0, vectors - FEW_VECTORS)
    memory *= 1 + scattered + spread
    return float((issue**OVERLAP + memory**OVERLAP) ** (1 / OVERLAP))


def _instructions(row: Row, how: RowLaunch) -> float:
    """Of a thread, without those by which warps reduce values together."""
    of_columns = how.vec * how.vectors * (OF_VALUE * row.alive + OF_COSTLY * row.costly)
    of_statistics = row.statistics * OF_EXCHANGE * math.log2(min(how.per_row, WARP))
    return OF_THREAD + of_columns + OF_VECTOR * how.vectors * row.read + of_statistics


def time_of_few(row: Row, how: RowLaunch, rows: int, sms: int) -> float:
    """The cycles until all blocks of a call are done, if they run at once."""
    beside = blocks_of_sm(how, rows, sms)
    steps = _instructions(row, how) * max(1, beside * how.threads / FULL) * (MASKED if how.ragged else 1)
    moved = beside * how.rows_a_block * row.columns / how.cluster * row.moved / OF_ONE
    meetings = (TO_MEET if how.per_row > WARP else 0) + TO_MEET_BLOCKS * math.log2(how.cluster)
    return beside * TO_START + steps + moved + row.meetings * meetings


def blocks_of_sm(how: RowLaunch, rows: int, sms: int) -> int:
    """The blocks of an SM, at most, of a call of so many rows."""
    return -(-(-(-rows // how.rows_a_block) * how.cluster) // sms)


def running(row: Row, how: RowLaunch) -> float:
    """The threads that an SM runs at a time: between those of whole blocks and those for which there are registers."""
    threads = how.threads
    own = min(registers(how.vec * how.vectors, row.alive), MOST_REGISTERS, REGISTERS_OF_SM / threads)
    most = min(THREADS_OF_SM // threads, BLOCKS_OF_SM) or 1
    blocks = min(most, REGISTERS_OF_SM / (-(-own // 8) * 8 * threads))
    return threads * (max(0.7, blocks) + max(1, int(blocks))) / 2


def resident_blocks(columns: int, alive: int, threads: int) -> int:
    """The blocks for which an SM is to have registers, so that the compiler takes about as many as the kernel needs; 0 where it takes
    few anyway."""
    needed = registers(columns, alive)
    if needed < FEW_REGISTERS:
        return 0
    return max(1, int(REGISTERS_OF_SM / (SQUEEZED * needed) / threads))
