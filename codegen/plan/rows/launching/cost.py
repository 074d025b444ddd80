"""The launch of a row kernel that takes the least time, by a model of an SM.

`Candidates` has the launches whose threads hold a whole row. `cheapest` takes one of them by either of two estimates: `time_of_row`,
where every SM has many rows, and `time_of_few`, where all blocks of a call run at once.

The constants of both are fitted to measured times, and each stands before the function that uses it. Times are in an SM's cycles, and
a thread's instructions are counted one by one: an SM begins 128 of them in a cycle.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from codegen.shared import WARP, RowLaunch
from codegen.targets import BLOCKS_OF_SM, MOST_REGISTERS, PER_CLOCK, REGISTERS_OF_SM, THREADS_OF_BLOCK, THREADS_OF_SM

RESIDENT = 512  # threads of an SM, each of which has all the registers that it may have
MAX_CLUSTER = 8  # blocks of a cluster that every GPU with clusters can schedule
CLUSTERS = (2, 4, MAX_CLUSTER)
CLUSTER_THREADS = 256  # of a block of a cluster, if that is enough: a small block waits for few threads
MOST_VECTORS, MOST_COLUMNS = 16, 40  # of a thread; columns if it holds several vectors
THREAD_BYTES = 64  # bytes of inputs that a thread of a cluster holds, unless an expensive value is computed
MOST_WITH_EXPENSIVE = 384  # bytes that a thread holds, with its expensive values
ROW_BYTES_IN_BLOCK = 64 * 1024  # bytes of a row that a block holds
# Up to which a block holds it alone: two such blocks are resident, or an expensive value is computed of each column
ALONE_ROW, COSTLY_ALONE_ROW = 32 * 1024, 48 * 1024
REGISTER_BYTES = 96 * 1024  # of a block, that its row and the expensive values of it may take
FEW_BYTES = 1536  # of a row, from which on SMs that few rows leave idle may share it
ABOUT = 1.03  # times the least time: a launch that is about as fast
NARROWER = 0.9  # of the time with wider vectors: from there on narrower ones are worth their additional requests


@dataclass(frozen=True)
class Held:
    """What a thread holds of a column."""

    values: int  # that it has computed
    sizes: tuple[int, ...]  # bytes of an element in each array of which it holds the elements

    def registers(self, vec: int) -> float:
        """The registers of a column. Narrow elements share one only within a vector."""
        return self.values + sum(max(size / 4, 1 / vec) for size in self.sizes)


@dataclass(frozen=True)
class Wanted:
    """The values that a thread wants registers for while it sweeps over a row: the row, and for each sweep the most values of a column
    that are alive at once, and the values that later sweeps need."""

    row: Held
    sweeps: Sequence[tuple[int, Held]]

    def of_column(self, vec: int) -> tuple[float, float]:
        """The registers that hold a column, and the most other values of a column that a sweep needs beside them."""
        held = self.row.registers(vec)
        most, beside = held, 0.0
        for number, (alive, left) in enumerate(self.sweeps):
            if number < len(self.sweeps) - 1:  # the last one leaves nothing
                held = left.registers(vec)
            most, beside = max(most, held), max(beside, alive - held)
        return most, beside


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
    in_turn: bool = False  # whether one sweep computes all that is written, one vector after the other


@dataclass(frozen=True)
class Candidates:
    """The launches of a kernel whose threads hold a whole row."""

    row: Row
    vecs: Sequence[int]  # widths of vectors, the widest first
    ragged: bool
    lanes: Callable[[int], int]  # the threads that a row has at least, by the width of its vectors
    least_threads: Callable[[int], int]  # the threads that a block has at least, by those of a row
    schedule: Mapping[str, int]
    clusters: bool  # whether the architecture has them
    in_run: bool = False  # whether each block of a cluster has neighbouring columns

    def least(
        self, time: Callable[[RowLaunch], float], most_threads: int = THREADS_OF_BLOCK, few: bool = False
    ) -> RowLaunch | None:
        """The launch that takes the least time; None if rows are too long. See `launches` for the arguments."""
        best: RowLaunch | None = None
        best_time = math.inf
        for vec in self.vecs:
            times = {how: time(how) for how in self.launches(vec, most_threads, few)}
            if not times:
                continue
            least = min(times.values())
            # Of those that are about as fast, the one with the fewest columns a thread: it needs the fewest registers
            near = [how for how in times if times[how] <= ABOUT * least]
            found = min(near, key=lambda how: (how.vec * how.vectors, times[how]))
            if least < NARROWER * best_time:
                best, best_time = found, least
        return best

    def launches(self, vec: int, most_threads: int, few: bool) -> Iterator[RowLaunch]:
        """The launches with vectors of this width. A block of a cluster has at most `most_threads`. `few`: rows are few, so that
        clusters may share shorter ones."""
        row, schedule = self.row, self.schedule
        ragged = self.ragged and row.columns % vec != 0
        count = -(-(row.columns + (vec - 1 if ragged else 0)) // vec) or 1  # vectors of a row
        for cluster in self._cluster_sizes(few):
            fewest = (-(-count // (cluster * most)) for most in range(1, MOST_VECTORS + 1))
            for per_row in dict.fromkeys(self._threads_of_row(least, vec, cluster) for least in fewest):
                vectors = -(-count // (per_row * cluster))
                before = vec * per_row * (vectors * cluster - 1)  # columns before the last vector of all threads
                if self.in_run and row.columns <= before:
                    continue  # only a thread's last vector has a mask
                most_columns = self._most_columns(vec, count, cluster, most_threads)
                if not self._is_held(vec, vectors, per_row, cluster, most_columns, most_threads):
                    continue
                threads = max(1, schedule.get("threads", self.least_threads(per_row)) // per_row) * per_row
                yield RowLaunch(vec, ragged, threads, per_row, vectors, cluster, True, False, False)

    def _cluster_sizes(self, few: bool) -> tuple[int, ...]:
        """The numbers of blocks that may share a row."""
        if "cluster" in self.schedule:
            return (self.schedule["cluster"],)
        size = self.row.columns * self.row.read
        if not self.clusters or not (few or size > ALONE_ROW):
            return (1,)
        held = size + 4 * self.row.columns * self.row.expensive
        alone = few or (self.row.costly and size <= COSTLY_ALONE_ROW and held <= REGISTER_BYTES)
        return (1, *CLUSTERS) if alone else CLUSTERS

    def _threads_of_row(self, least: int, vec: int, cluster: int) -> int:
        """The threads of a row in a block if it needs at least so many: whole warps, or a power of two of lanes."""
        if "threads_per_row" in self.schedule:
            return self.schedule["threads_per_row"]
        whole = -(-least // WARP) * WARP if least > WARP // 2 else 1 << (least - 1).bit_length()
        return max(whole, 2 * WARP if cluster > 1 else self.lanes(vec))

    def _most_columns(self, vec: int, count: int, cluster: int, most_threads: int) -> int:
        """The columns that a thread holds at most. The largest cluster has as many as a row of `count` vectors needs."""
        if cluster == 1:
            return MOST_COLUMNS
        usual = MOST_COLUMNS if self.row.costly or self.in_run else THREAD_BYTES // self.row.read
        return max(usual, -(-count // (cluster * most_threads)) * vec) if cluster == MAX_CLUSTER else usual

    def _is_held(
        self, vec: int, vectors: int, per_row: int, cluster: int, most_columns: int, most_threads: int
    ) -> bool:
        """Whether threads and blocks have room for a row. A thread always has room for one vector."""
        row = self.row
        # A thread's bytes of whole vectors
        own = (-(-(row.columns // vec) // (per_row * cluster)) or 1) * vec * row.read
        with_expensive = own * max(1.5, 1 + 4 * row.expensive / row.read)
        if per_row > THREADS_OF_BLOCK or (own > vec * row.read and own * per_row > ROW_BYTES_IN_BLOCK):
            return False
        if vectors == 1 or "threads_per_row" in self.schedule:
            return True
        fits = vec * vectors <= most_columns and with_expensive <= MOST_WITH_EXPENSIVE
        return fits and (cluster == 1 or per_row <= most_threads)


def cheapest(candidates: Candidates, sms: int) -> RowLaunch | None:
    """The launch that takes the least time on a GPU of so many SMs; None if rows are too long."""
    best = _cheapest(candidates, sms)
    if best is None or "threads" in candidates.schedule:
        return best
    return replace(
        best, threads=max(best.per_row, threads_of_few(best.threads, best.per_row, candidates.row.rows, sms))
    )


def _cheapest(candidates: Candidates, sms: int) -> RowLaunch | None:
    """As `cheapest`. Where rows are so few that they leave SMs idle, each row has more threads, and clusters share shorter rows, if that
    takes clearly less time."""
    row = candidates.row

    def time(how: RowLaunch) -> float:
        return time_of_row(row, how)

    best = candidates.least(time, CLUSTER_THREADS) or candidates.least(time)
    if best is None or not row.rows or candidates.in_run:
        return best
    if row.columns * row.read < FEW_BYTES:
        return _of_short_rows(candidates, best, row.rows, sms)
    if blocks_of_sm(best, row.rows, sms) * best.threads > resident_threads(row, best):
        return best

    def time_at_once(how: RowLaunch) -> float:
        return time_of_few(row, how, row.rows or 0, sms)

    few = candidates.least(time_at_once, few=True)
    return few if few and time_at_once(few) < NARROWER * time_at_once(best) else best


def _of_short_rows(candidates: Candidates, best: RowLaunch, rows: int, sms: int) -> RowLaunch:
    """The launch for short rows: `best`, or blocks of a warp or of one row that has more threads, if each SM has one of them at most and
    that takes clearly less time. It is the same for all such calls."""

    def alone(how: RowLaunch) -> RowLaunch:
        return replace(how, threads=max(WARP, how.per_row))

    def time(how: RowLaunch) -> float:
        return time_of_few(candidates.row, alone(how), 1, sms)

    few = candidates.least(time)
    if few is None or blocks_of_sm(alone(few), rows, sms) > 1 or time(few) >= NARROWER * time(best):
        return best
    return alone(few)


# The threads of a block of several rows. A block that reads and writes less than `BLOCK_BYTES` has up to so many times as many: a GPU
# starts a limited number of blocks in a given time. An H100 and an H200 start 390 in a microsecond, each of which moves 8 and 12 KiB in
# their memory's time
LEAST_THREADS, BLOCK_BYTES, MORE_THREADS = 128, 12 * 1024, 8
MORE_COSTLY, MORE_MEETING = 4, 2  # if an expensive value is computed, which needs registers; if warps share a row
FEWER = 4  # times fewer where rows are few: one more kernel for a length of rows, however many there are


def threads_of_block(size: int, per_row: float, costly: bool) -> int:
    """The threads of a block of several rows of so many bytes, each with `per_row` threads: enough to move many bytes at a time."""
    threads, more = LEAST_THREADS, MORE_MEETING if per_row > WARP else MORE_COSTLY if costly else MORE_THREADS
    while threads < more * LEAST_THREADS and threads / per_row * size < BLOCK_BYTES:
        threads *= 2
    return threads


def threads_of_few(threads: int, per_row: float, rows: int | None, sms: int) -> int:
    """The threads of a block of several rows, each with `per_row` threads: a quarter of `threads`, or a warp, if rows are so few that no SM
    has two of these blocks."""
    few = rows is not None and FEWER * rows * per_row <= threads * sms
    return min(threads, max(WARP, threads // FEWER)) if few else threads


STREAMING = 512  # threads of a block that reads a long row in one pass, at most


def threads_of_pass(blocks: int, sms: int) -> int:
    """The threads of so many blocks that read a long row each in one pass: as few as fill all SMs. Gradients of 8192 rows of five arrays
    took an H200 246 us with 128, and 324 with 512."""
    threads = LEAST_THREADS
    while threads < STREAMING and blocks * threads < THREADS_OF_SM * sms:
        threads *= 2
    return threads


AGAIN = 512  # threads of a block of a cluster that computes expensive values of a long row


def threads_again(columns: int, alive: int, costly: bool, cluster: int) -> int:
    """The threads of a block that reads its row again, so many columns at a time. Few blocks are resident: so few rows at a time stay in
    the L2 cache. With blocks of 128 threads, 523 rows of three arrays took an H200 247 us, and 207 with 512. Where threads hold much,
    blocks are small: the registers of so many threads would not suffice, and some compute while others wait for their clusters."""
    if cluster == 1:
        return AGAIN
    if not costly:
        return THREADS_OF_BLOCK
    return LEAST_THREADS if registers(columns, alive) > FEW_REGISTERS else AGAIN


# The model where SMs have many rows. Fitted to 1100 launches of 99 random kernels on an H200: the launches that it takes for the fastest
# took 1.03 times as long as the fastest ones that were timed (geometric mean)
OVERLAP = 8.0  # how well instructions and memory traffic overlap: the exponent of their sum


def time_of_row(row: Row, how: RowLaunch) -> float:
    """The cycles of an SM for a row, if it has many: its instructions and its memory traffic overlap. Each thread has instructions of
    its own besides those of its columns, so fewer threads with more columns need fewer instructions. But then registers leave too few
    threads on an SM, or neighbouring threads access scattered pieces."""
    resident = resident_threads(row, how)
    instructions, memory = _instructions_of_row(row, how, resident), _memory_of_row(row, how, resident)
    return float((instructions**OVERLAP + memory**OVERLAP) ** (1 / OVERLAP))


OF_MEETING = 220.0  # instructions of a thread for each time that warps reduce values together
OF_CLUSTER = 100.0  # and that two blocks of a cluster meet; of more, the logarithm as often
MASKED, INEXACT = 1.3, 1.12  # times as many where vectors need masks, and where some threads have fewer vectors
CROWDED, SLOWED = 400, 2.0  # threads of an SM, below which instructions wait, and the exponent of that
FEW_BLOCKS, ALONE = 4, 0.1  # blocks of an SM, below which all of them may wait at once, and the exponent of that
SPILLED = 1.26  # exponent of the registers that are wanted over those there are


def _instructions_of_row(row: Row, how: RowLaunch, resident: float) -> float:
    """The cycles in which an SM begins the instructions of a row's threads, and waits for earlier ones or for spilled registers."""
    meeting = row.meetings * ((OF_MEETING if how.per_row > WARP else 0) + OF_CLUSTER * math.log2(how.cluster))
    cycles = (_instructions(row, how) + meeting) * how.per_row * how.cluster / PER_CLOCK.issue
    exact = row.columns == how.vec * how.vectors * how.per_row * how.cluster
    cycles *= MASKED if how.ragged else 1 if exact else INEXACT
    cycles *= max(1, CROWDED / resident) ** SLOWED * max(1, FEW_BLOCKS * how.threads / resident) ** ALONE
    available = min(MOST_REGISTERS, REGISTERS_OF_SM / how.threads)
    return float(cycles * max(1, registers_of(row, how) / available) ** SPILLED)


BYTES = 16.0  # that memory moves for an SM in a cycle
IN_FLIGHT = 28 * 1024  # bytes that threads of an SM must have asked for
SECTOR, LINE = 32, 128  # bytes
FEW_VECTORS = 3  # of a thread, up to which it does no harm that others read parts of the same lines
SCATTERED, SPREAD, SPREAD_WRITES = 0.27, 0.04, 0.12  # of the time of memory
# Where one vector is computed after the other: of so many, all are loaded before; of the time of memory for each more
SOON, LATE = 2, 0.12


def _memory_of_row(row: Row, how: RowLaunch, resident: float) -> float:
    """The cycles in which memory moves a row. They are more if too few bytes are in flight, if each access of neighbouring threads is
    less than a sector, or if several vectors of a thread lie in one line."""
    cycles = row.columns * row.moved / BYTES
    cycles *= max(1, IN_FLIGHT / (resident * how.vec * how.vectors * row.read))
    piece = how.per_row * how.vec * row.narrowest  # bytes that a row's threads access at once
    scattered = SCATTERED * (max(1, SECTOR / piece) - 1) * how.vectors / 4
    of_line = max(1, min(how.vectors, LINE / piece))  # instructions that need the same line
    spread = SPREAD + SPREAD_WRITES * row.written / max(1, row.moved)
    if row.in_turn and how.vectors > 1:  # a thread loads later vectors once it has computed the first ones
        cycles *= max(1, SECTOR / piece) + LATE * max(0, how.vectors - SOON)
    return cycles * (1 + scattered + spread * (of_line - 1) * max(0, how.vectors - FEW_VECTORS))


# The model where all blocks of a call run at once. Fitted to 100 launches of 50 kernels, of 1 to 7 us, on an H200
TO_START = 560.0  # cycles from one block that an SM begins to the next
FULL = 300.0  # threads of an SM that begin as many instructions in a cycle as one of them in each
TO_MEET = 130.0  # cycles until warps have reduced values together
TO_MEET_BLOCKS = 190.0  # until two blocks of a cluster have; of more, the logarithm as often
OF_ONE = 35.0  # bytes that memory moves for one SM in a cycle


def time_of_few(row: Row, how: RowLaunch, rows: int, sms: int) -> float:
    """The cycles until all blocks of a call of so many rows are done, if they run at once."""
    blocks = blocks_of_sm(how, rows, sms)
    instructions = _instructions(row, how) * max(1, blocks * how.threads / FULL) * (MASKED if how.ragged else 1)
    moved = blocks * how.rows_a_block * row.columns / how.cluster * row.moved / OF_ONE
    meeting = (TO_MEET if how.per_row > WARP else 0) + TO_MEET_BLOCKS * math.log2(how.cluster)
    return blocks * TO_START + instructions + moved + row.meetings * meeting


# Instructions of a thread
OF_THREAD = 120.0  # whatever it has to do
OF_VECTOR = 10.0  # for each byte of a column in all inputs
OF_VALUE = 6.3  # for each value of a column that is alive
OF_COSTLY = 10.0  # for each column, if an expensive value is computed of it
OF_EXCHANGE = 5.0  # for each step in which lanes reduce a value


def _instructions(row: Row, how: RowLaunch) -> float:
    """The instructions of a thread, without those by which warps reduce values together."""
    of_columns = how.vec * how.vectors * (OF_VALUE * row.alive + OF_COSTLY * row.costly)
    of_statistics = row.statistics * OF_EXCHANGE * math.log2(min(how.per_row, WARP))
    return OF_THREAD + of_columns + OF_VECTOR * how.vectors * row.read + of_statistics


OWN_REGISTERS = 24  # registers of a thread for addresses, bounds and loops
FEW_REGISTERS = 64  # of a thread, which need no limit
SQUEEZED = 0.87  # part of the estimate: the compiler computes some values again


def registers(columns: int, alive: int) -> float:
    """An estimate of the registers of a thread, from its columns and the values of a column that are alive at once. The compiler mixes
    the instructions of columns: the more values each has, the more. Its error is a sixth, the standard deviation of 200 kernels
    without a limit."""
    return OWN_REGISTERS + columns * alive * (0.37 + 0.029 * alive)


# Values of a column, from which on each takes registers of its own where one vector after the other is computed
IN_TURN, OF_MORE = 5, 4.0


def registers_of(row: Row, how: RowLaunch) -> float:
    """As `registers`, for a launch. Where one vector after the other is computed, a thread holds what it has loaded, and the values of
    few columns. The error is then a tenth, of 90 kernels without a limit."""
    columns = how.vec * how.vectors
    if not row.in_turn:
        return registers(columns, row.alive)
    return OWN_REGISTERS + columns * row.read / 4 + OF_MORE * max(0, row.alive - IN_TURN)


def resident_threads(row: Row, how: RowLaunch) -> float:
    """The threads that run on an SM at a time: between those of whole blocks and those for which there are registers."""
    threads = how.threads
    own = min(registers_of(row, how), MOST_REGISTERS, REGISTERS_OF_SM / threads)
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


def fills_registers(values: int, threads: int, held: int, costly: int) -> bool:
    """Whether an SM has registers for one block, whether or not its threads hold `costly` bytes of expensive values besides what they hold
    anyway, and the values of one vector: an RMSNorm of sines of 128256 columns took an H200 185 us with them, and 238."""

    def blocks(size: int) -> int:
        return int(REGISTERS_OF_SM / (SQUEEZED * (OWN_REGISTERS + size / 4 + values)) / threads)

    return costly > 0 and blocks(held) == blocks(held + costly) == 1


# The bytes of a thread that holds a row which only all registers of a cluster's SMs hold, with its expensive values. An H200 took 0.65 to
# 0.85 of the time of reading such rows again; more of it where no expensive value is computed, in two blocks of an SM
MOST_IN_THREAD = 320


def in_all_registers(vec: int, columns: int, read: int, expensive: int, costly: bool) -> RowLaunch | None:
    """The launch for a row that only all registers of the SMs of the largest cluster hold; None if these have no room."""
    for resident in (1,) if costly else (2, 1):
        threads = RESIDENT // resident
        vectors = -(-columns // (vec * threads * MAX_CLUSTER))
        if vec * vectors * (read + 4 * expensive) <= MOST_IN_THREAD:
            exact = columns == vec * vectors * threads * MAX_CLUSTER
            return RowLaunch(
                vec, False, threads, threads, vectors, MAX_CLUSTER, True, exact, expensive > 0, only_row=resident > 1,
                resident=resident,
            )  # fmt: skip
    return None


def blocks_of_sm(how: RowLaunch, rows: int, sms: int) -> int:
    """The blocks of an SM, at most, of a call of so many rows."""
    return -(-(-(-rows // how.rows_a_block) * how.cluster) // sms)
