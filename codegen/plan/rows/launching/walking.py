"""The launches of kernels that loop over rows: the number of threads, the values that they hold, and where they hold
them.

If a row has its own statistics, a block or a cluster of blocks holds all of the row. Each block of a cluster has some of its
columns. The columns' partial results stay in the block, and the row is read once. Otherwise a block has only some columns of the
rows. So it does where rows are too long for a cluster; an earlier kernel then writes their statistics (`Walk.first`).

A thread holds the row that it reduces, and the prefetched next row, in registers or in shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from codegen.plan.access import INT_MAX
from codegen.plan.launches import PlannedCall
from codegen.plan.rows.launching import cost
from codegen.shared import WARP, WalkLaunch
from codegen.targets import REGISTERS_OF_SM, registers_of_thread

# The threads of a row, where a block has whole rows. A row has more of them rather than that a thread holds more bytes of it
WALKED_THREAD_BYTES = 96
COSTLY_THREAD_BYTES = 128  # if an expensive value is computed of each column
MOST_FOLDED = 256  # bytes of a row and of its columns' results, together
MOST_THREADS = 512  # of a row in a block
LEAST_THREADS = 256  # of a block of several rows
# Threads of a block where rows meet at places: few may meet at each, and more threads would wait for nothing
LEAST_MEETING = 64
# Threads of a block where rows are few: smaller blocks are on more SMs, and a row has a warp. A softmax of 256 rows of 512 columns with its
# sums took an H200 4.5 us for 6.3, one of 64 rows 3.6 for 6.2
FEW_THREADS = 128
STEPS = 4  # times the rows that a thread holds, up to which the last of them count

# The registers of a thread that computes expensive values, by the estimate of `cost.registers`
COSTLY_REGISTERS = 118  # a thread has no more of a row's vectors than need so many
CROWDED_REGISTERS = 150  # a larger cluster shares the row if more would be needed
WALKING = 1.5  # a kernel that holds the columns' results takes so many times the estimate
# A thread that wants more gets all that it asks for: an H100 took 1058 us with 128 of 164 registers, and 706 with all
TAKEN_FREELY = 190

# Part of a vector's values that are alive at once besides those that a thread keeps; times the registers that it has, from which on it
# lacks many: of 64 kernels, ptxas spilled registers of the six that want more by `spills`, or they took 166 to 244 without a bound of 128
MIXED, SPILLING = 0.7, 1.1

# The threads for which an SM has registers
RESIDENT = 512
BUSY_RESIDENT = (1024, 768, RESIDENT)  # where instructions take the time (expensive values, masks): the most that fit
SPILLED = 0.3  # part of a masked row's registers that may be spilled for more threads

# The bytes of a row that a thread holds
AHEAD = 128  # while another row is prefetched
FAR_AHEAD = 64  # while two are
PLAIN_ROOM = 320  # while none is, with the columns' results
LONG_ROOM = 384  # while none is, and the columns' results are in shared memory
MASKED_ROOM = 160  # if vectors need masks, or expensive values need registers
# The columns' results are in registers too, up to so many bytes of all that a thread holds
ROOM = 160
WIDE_ROOM = 224  # if no vector needs a mask, on GPUs with clusters
PACED_ROOM = 192  # if blocks also keep pace, which takes registers: an H100's LayerNorm took 7 % longer with 224
CROWDED = 192  # with more bytes than that, the compiler must hold nothing else from one reduction to the next

# Clusters
ROW_BYTES_UNSHARED = 24 * 1024  # one block holds a row of up to so many bytes
# Blocks that may share a row: the fewest that can hold it with prefetched rows, since meeting takes time
CLUSTERS = (2, 4, 8)
TOGETHER = {1: 132, 2: 66, 4: 30, 8: 15}  # clusters of one block for each SM that an H100 runs at a time
# Blocks may keep pace if each has rows of so many bytes: an H200 counts one block's row in 1.6 ns, in which its memory reads 8 KB
PACED_BYTES = 8 * 1024
LEAST_PARTS = 64  # groups of rows: means of a softmax of 256 rows took an H200 9.9 us, 12.7 with one row in each, and 12.5 with eight
LONG = 8  # a call is long if each thread has so many rows

# Where no row is whole in a block, and where rows meet at places
THREADS = 256  # of a block
MOST_ROWS_HELD = 8  # rows that a thread holds
# Rows that meet at a place: threads reduce all of them, however few places there are, unless blocks write results of several rows each
# (`meets`). Sums of 16 rows at 64 places took an H100 2.4 us, and 4.5 us in two kernels; of expensive values 8 us and 7 us.
FEW_ROWS, FEW_COSTLY_ROWS = 16, 8
# Threads of an SM, below which such blocks are faster: 16 rows of 4096 columns took an H200 1.7 us for 3.4, those of 1024 places and 64
# columns 3.8 for 2.9
IDLE_THREADS = 64
MOST_ROWS = 64  # as many, if there are places for all SMs
# Bytes of rows that such a thread reads at a time: of up to so many rows, others load meanwhile. Sums of 49 rows took an H100 54 us for
# 66 with more, those of 2 rows 167 for 162
PLACE_BYTES, FEWEST_ROWS, MORE_PLACE_BYTES = 32, 4, 128
# If expensive values are computed: rows of such a thread, and threads of its block. Sums of 16 rows of sines took an H200 88 us, and 120
# with one row of each of 256 threads
COSTLY_ROWS_HELD, COSTLY_THREADS = 2, 128
OWN_STEPS = 2.0  # steps of a part, besides its rows: to begin, and to add up its results


@dataclass(frozen=True)
class Needs:
    """The bytes that a kernel which loops over rows needs for each vector."""

    width: int  # of all inputs, of a row
    fixed: int  # of inputs that all rows share
    sums: int  # of the columns' results
    stageable: bool  # inputs of a row can be prefetched in vectors, all but those that are gathered
    costly: bool  # an expensive value is computed of each column: registers for that
    alive: int  # the most values of a column that are alive at once
    folds: int  # along a row, one after the other
    wanted: cost.Wanted
    shared: int  # values of a column that all rows share: the kernel computes them once
    gathered: int = 0  # of the inputs of a row that are gathered: those of prefetched rows are in registers
    written: int = 0  # of the results along a row
    values: bool = False  # whether each row also has values of its own, read or from an earlier kernel


ANY = 2**31
_most_parts: ContextVar[int] = ContextVar("most parts", default=ANY)
_most_rows: ContextVar[int] = ContextVar("most rows of a thread", default=ANY)


@contextmanager
def in_parts(most: int = ANY, rows: int = ANY) -> Iterator[None]:
    """A context in which launches split rows into at most so many parts, and threads that do not have whole rows hold
    at most so many `rows`. Each block then loops over many rows, as tests of small arrays need."""
    parts, held = _most_parts.set(most), _most_rows.set(rows)
    try:
        yield
    finally:
        _most_parts.reset(parts)
        _most_rows.reset(held)


def most_parts() -> int:
    """The most parts of rows in this context."""
    return _most_parts.get()


def most_rows() -> int:
    """The most rows in this context of a thread that does not have whole rows."""
    return _most_rows.get()


def most_kept(costly: bool, ragged: bool) -> int:
    """The bytes of a row that a thread holds, unless the row cannot have more threads."""
    return WALKED_THREAD_BYTES if not costly else COSTLY_THREAD_BYTES // (2 if ragged else 1)


def whole(vec: int, ragged: bool, needs: Needs, lanes: int, call: PlannedCall) -> WalkLaunch | None:
    """The launch of a kernel that holds whole rows, with the smallest cluster that has room for one; None if rows are
    too long. `lanes` is the number of neighbouring threads that hold a group of columns."""
    held_rows = _WholeRows(vec, ragged, needs, lanes, call)
    found: list[WalkLaunch] = []
    for cluster in held_rows.cluster_sizes():
        made = held_rows.launch(cluster)
        if made is None:
            continue
        launch, busy = made
        crowded = held_rows.is_crowded(launch)
        if launch.at_once > 1 and busy > 0.75 and not crowded:
            return launch
        found.append(launch)
        if held_rows.count * needs.width <= ROW_BYTES_UNSHARED and not crowded:
            break
    return found[0] if found else None


@dataclass(frozen=True)
class _WholeRows:
    """The choice of a launch that holds whole rows: the arguments of `whole`."""

    vec: int
    ragged: bool
    needs: Needs
    lanes: int
    call: PlannedCall

    @property
    def columns(self) -> int:
        columns = self.call.extents.columns
        assert columns is not None
        return columns

    @property
    def rows(self) -> int | None:
        return self.call.extents.rows

    @property
    def apart(self) -> int:
        return self.call.extents.apart or 1

    @property
    def count(self) -> int:
        """The vectors of a row."""
        return -(-self.columns // self.vec) or 1

    @property
    def single(self) -> bool:
        """Whether each place has one row, as in a batch of one: nothing meets it."""
        return self.apart > 1 and self.rows == 1

    def cluster_sizes(self) -> tuple[int, ...]:
        """The blocks of a cluster to try, in this order."""
        if self.call.fixes("cluster"):
            return (self.call.schedule["cluster"],)
        if self.call.clusters and self.count * self.needs.width > ROW_BYTES_UNSHARED:
            return CLUSTERS
        return (1, *CLUSTERS) if self.call.clusters and self.needs.costly else (1,)

    @property
    def most(self) -> int:
        """The vectors of a row that a thread holds if the row can have more threads."""
        return self.most_with(self.needs.width + self.needs.sums)

    @property
    def most_of_several(self) -> int:
        """The vectors that it holds if a block has several rows: then more threads a row are no larger blocks. The values that all rows
        share take registers too."""
        return self.most_with(self.needs.width + self.needs.sums + self.needs.fixed)

    def most_with(self, folded: int) -> int:
        """The vectors of a row that a thread holds, each with so many bytes until the last row."""
        needs = self.needs
        most = max(1, min(most_kept(needs.costly, self.ragged) // needs.width, MOST_FOLDED // folded))
        while needs.costly and most > 1 and cost.registers(most * self.vec, needs.alive) > COSTLY_REGISTERS:
            most -= 1
        return most

    def threads_of_row(self, cluster: int) -> int:
        """The threads of a row in a block, if there are many rows."""
        count, most, per_row = self.count, self.most_of_several, 1
        while per_row < MOST_THREADS and per_row * cluster * most < count:
            per_row *= 2
            most = self.most_of_several if per_row < LEAST_THREADS else self.most
        per_row = self.call.schedule.get("threads_per_row", fewest_idle(per_row, count, count, most, cluster))
        return max(per_row, 32 if cluster > 1 else self.lanes)

    def threads(self, cluster: int) -> tuple[int, int]:
        """The threads of a block, and those of a row in it."""
        per_row = self.threads_of_row(cluster)
        least = LEAST_MEETING if self.apart > 1 and not self.ragged else LEAST_THREADS
        if self.are_few(cluster):
            per_row, least = max(per_row, min(WARP, 1 << (self.count - 1).bit_length())), min(least, FEW_THREADS)
        least = least if per_row <= WARP else per_row  # rows of several warps would wait for each other
        rows = max(1, WARP // per_row) if self.single else max(1, self.call.schedule.get("threads", least) // per_row)
        return rows * per_row, per_row

    def are_few(self, cluster: int) -> bool:
        """Whether rows are no more than the SMs run at a time."""
        threads = (self.rows or 0) * self.apart * cluster * self.threads_of_row(cluster)
        few = self.rows is not None and threads < RESIDENT * self.call.processors
        return few and most_parts() == ANY and not self.call.fixes("threads", "threads_per_row")

    def launch(self, cluster: int) -> tuple[WalkLaunch, float] | None:
        """The launch with clusters of so many blocks, and the share of the resident blocks that it uses; None without room."""
        needs, vec, ragged, apart, rows = self.needs, self.vec, self.ragged, self.apart, self.rows
        threads, per_row = self.threads(cluster)
        vectors = -(-self.count // (per_row * cluster))
        most = RESIDENT if self.are_few(cluster) else busy_resident(needs, vectors, vec, ragged)
        resident = max(1, most // threads)
        exact = self.columns > 0 and not ragged and self.count == vectors * per_row * cluster and threads == per_row
        may_pace = self.may_pace(threads, per_row) and cluster == 1 and resident > 1
        how = self.held(vectors, threads, cluster, exact, may_pace, resident)
        if how is None and vectors > 1:
            return None
        at_once, staged, shared_sums, only_row = how or (1, False, False, True)
        slots = resident * (TOGETHER[cluster] if cluster > 1 else self.call.processors)
        full = shares(apart, slots, 1)
        steps = -(-(rows or 2**31) // (threads // per_row))  # of one block that has all rows
        parts = max(1, min(full, steps))
        # All are resident, no others wait for one that pauses, and it has prefetched only its next row
        paced = may_pace and staged and at_once == 2 and full * apart <= slots
        long = paced and (rows is None or rows >= LONG * parts * (threads // per_row))
        if apart > 1 and rows is not None and not paced:  # only this may depend on the number of rows
            parts = least_steps(apart, slots, steps)
        if rows is not None and needs.sums:  # few rows: partial results are not more than what is read
            parts = min(parts, max(LEAST_PARTS, rows * needs.width // needs.sums))
        parts = min(parts, _most_parts.get())
        at_once = in_steps(at_once, -(-steps // parts)) if _most_parts.get() == ANY else at_once
        paced = paced and at_once == 2
        long = paced and long
        resident = 0 if self.takes_freely(vectors, cluster, paced) else resident
        launch = WalkLaunch(
            vec, ragged, threads, per_row, vectors, cluster, at_once, exact, True, only_row, resident, staged, shared_sums,
            paced=paced, parts=parts, long=long,
        )  # fmt: skip
        return launch, filled(full * apart, slots)

    def may_pace(self, threads: int, per_row: int) -> bool:
        """Whether blocks may keep pace, where memory takes the time. Warps that have whole rows do not wait for each other otherwise.
        To pace them took an H200 up to as much time as the rest of the kernel."""
        return (
            self.call.features.uneven
            and not self.needs.costly
            and per_row > WARP
            and threads // per_row * self.count * self.needs.width >= PACED_BYTES
        )

    def held(
        self, vectors: int, threads: int, cluster: int, exact: bool, may_pace: bool, resident: int
    ) -> tuple[int, bool, bool, bool] | None:
        """As `held`, with room for data by the architecture."""
        needs = self.needs
        if self.single and vectors * (needs.width + needs.fixed + needs.sums) <= PLAIN_ROOM:
            return 1, False, False, False
        # The code that tells rows apart would lack registers
        wide = PACED_ROOM if may_pace and self.apart == 1 else WIDE_ROOM
        room = 0 if needs.costly else wide if exact and self.call.clusters else ROOM
        return held(needs, vectors, threads, self.ragged, cluster, room, self.call.shared_memory // resident)

    def takes_freely(self, vectors: int, cluster: int, paced: bool) -> bool:
        """Whether a thread gets all the registers that it asks for, however few blocks are resident then."""
        needs = self.needs
        values = WALKING * cost.registers(self.vec * vectors, needs.alive)
        limited = self.ragged or paced or self.call.fixes("resident")
        return values > TAKEN_FREELY and (needs.costly or self.apart > 1) and not limited and cluster == 1

    def is_crowded(self, launch: WalkLaunch) -> bool:
        """Whether a thread lacks registers, so that a larger cluster may be better."""
        needed = cost.registers(self.vec * launch.vectors, self.needs.alive)
        if self.needs.costly:
            return not self.ragged and launch.vectors > self.most and needed > CROWDED_REGISTERS
        return launch.vectors > 1 and self.spills(launch.vectors, max(1, launch.resident) * launch.threads)

    def spills(self, vectors: int, threads: int) -> bool:
        """Whether a thread with so many vectors lacks many registers, if so many threads are resident. By estimate it wants them for what it
        keeps from one sweep to the next, for the values that all rows share, and for some of the other values of a vector. The columns'
        results may be in shared memory."""
        held, beside = self.needs.wanted.of_column(self.vec)
        needed = cost.OWN_REGISTERS + self.vec * (vectors * (held + self.needs.shared) + MIXED * beside)
        return needed > SPILLING * registers_of_thread(threads)


def in_runs(threads: int, per_row: int, vectors: int, resident: int, call: PlannedCall) -> WalkLaunch:
    """The launch of blocks whose rows are loaded and stored through shared memory: threads have single columns."""
    rows, apart, slots = call.extents.rows, call.extents.apart or 1, resident * call.processors
    steps = -(-(rows or 2**31) // (threads // per_row))  # of one block that has all rows
    parts = max(1, min(shares(apart, slots, 1), steps))
    if apart > 1 and rows is not None:
        parts = least_steps(apart, slots, steps)
    return WalkLaunch(
        1, False, threads, per_row, vectors, 1, 2, exact=False, whole=True, resident=max(1, min(resident, RESIDENT // threads)),
        staged=True, parts=min(parts, _most_parts.get()), by_runs=True,
    )  # fmt: skip


def in_steps(at_once: int, rows: int) -> int:
    """The rows that a thread holds, at most `at_once`, if it has so many one after the other: what is computed of rows past the last one
    is lost. It has two or more in flight, unless there is one."""
    if rows > STEPS * at_once or at_once == 1:
        return at_once
    return min(range(min(2, rows), at_once + 1), key=lambda held: (-rows % held, -held))


def fewest_idle(per_row: int, count: int, full: int, most: int, cluster: int) -> int:
    """The threads of a row of `count` vectors: `per_row`, or fewer warps if fewer threads are then without a vector. No
    thread may have more of the `full` vectors than `most`, or than it has with `per_row` threads."""
    most = max(most, -(-full // (per_row * cluster)))
    fewer = range(per_row, per_row // 2, -WARP) if per_row > WARP else [per_row]
    return min((n for n in fewer if n * cluster * most >= full), key=lambda n: -count % (n * cluster))


def busy_resident(needs: Needs, vectors: int, vec: int, ragged: bool) -> int:
    """The number of threads for which an SM has registers. Where values are expensive, or need no masks, the values of
    all vectors of a thread are alive at once."""
    if not needs.costly and not ragged:
        return RESIDENT
    together = vectors if needs.costly or not ragged else 1
    needed = registers(needs.alive * vec * together, vectors * (needs.width + needs.fixed))
    return threads_that_fit((1 - SPILLED) * needed if ragged else needed)


def registers(values: int, held: int) -> int:
    """An estimate of a thread's registers, from the values that are alive at once and the bytes that it holds."""
    return cost.OWN_REGISTERS + values + held // 4


def threads_that_fit(needed: float) -> int:
    """The largest number of resident threads whose registers suffice if each needs so many; at least `RESIDENT`."""
    return next((n for n in BUSY_RESIDENT if REGISTERS_OF_SM // n >= needed), RESIDENT)


def by_place(vec: int, ragged: bool, needs: Needs, whole: bool, meets: bool, call: PlannedCall) -> WalkLaunch | None:
    """The launch if rows are reduced at each of several places, and neighbouring threads reduce all rows of one
    place: no partial results are written. `whole`: they hold a whole row, which has statistics. `meets`: blocks
    that have some of these rows each can write their results as well. None if rows are too long or too many, or places too few for
    all SMs."""
    columns, rows, places = call.extents.columns, call.extents.rows, call.extents.apart or 1
    assert columns is not None and rows is not None
    count, per_row = -(-columns // vec) or 1, 1
    most = max(1, min(WALKED_THREAD_BYTES // needs.width, MOST_FOLDED // (needs.width + needs.sums + needs.fixed)))
    while whole and per_row * most < count:
        per_row *= 2
    vectors = -(-count // per_row) if whole else 1
    pieces = -(-count // (per_row * vectors))
    busy = needs.costly and rows > FEWEST_ROWS and COSTLY_ROWS_HELD * vectors * needs.width <= PLACE_BYTES
    total = places * pieces * per_row  # threads
    idle = total < call.processors * RESIDENT
    spread = max(WARP, 1 << (total // call.processors).bit_length() >> 1)  # threads of a block for each SM
    own = min(COSTLY_THREADS if busy else THREADS, spread if idle else THREADS)
    threads = max(per_row, call.schedule.get("threads", own))
    few = FEW_COSTLY_ROWS if needs.costly else FEW_ROWS
    few = FEWEST_ROWS if meets and total < call.processors * IDLE_THREADS else few
    if _most_parts.get() < ANY:  # for tests of the kernel that walks down few rows
        return None
    if per_row > WARP or rows > MOST_ROWS or (idle and rows > few) or total > INT_MAX:
        return None
    # Where an expensive value is computed, other threads load meanwhile, if there are enough
    allowed = COSTLY_ROWS_HELD if busy else 1 if needs.costly and not idle else MOST_ROWS_HELD
    most_bytes = MORE_PLACE_BYTES if rows > FEWEST_ROWS or idle else PLACE_BYTES
    at_once = max(1, min(allowed, most_bytes // (vectors * needs.width), most_rows()))
    at_once = -(-rows // -(-rows // at_once)) if rows else 1  # what is computed of rows past the last one is lost
    exact = not ragged and count == per_row * vectors
    return WalkLaunch(vec, ragged, threads, per_row, vectors, 1, at_once, exact, whole=True, parts=0, by_place=True)


def held(
    needs: Needs, vectors: int, threads: int, ragged: bool, cluster: int, room: int, shared: int
) -> tuple[int, bool, bool, bool] | None:
    """For rows of `vectors` a thread: the number of rows that it holds, whether prefetched ones are in shared memory,
    whether the columns' results are there, and whether registers are crowded. None if there is no room. Up to `room`
    bytes of data leave registers for the columns' results; a block may take `shared` bytes of shared memory."""
    row, sums, fixed = vectors * needs.width, vectors * needs.sums, vectors * needs.fixed
    gathered = vectors * needs.gathered
    if needs.stageable and not ragged and row <= AHEAD:
        for at_once in (3, 2) if row + 2 * gathered <= FAR_AHEAD and row + fixed + sums <= ROOM else (2,):
            sent = at_once * (row - gathered)
            for shared_sums in (False, True):
                data = row + (at_once - 1) * gathered + fixed + (0 if shared_sums else sums)
                if (shared_sums or data <= room) and threads * (sent + shared_sums * sums) <= shared:
                    return at_once, True, shared_sums, data > CROWDED and needs.folds > 1
    if (ragged or needs.costly) and row + fixed <= MASKED_ROOM and threads * sums <= shared:
        return 1, False, True, True
    if ragged or needs.costly:
        return None
    if row + sums + fixed <= PLAIN_ROOM:
        return 1, False, False, True
    if (cluster > 1 or row <= AHEAD) and row + fixed <= LONG_ROOM and threads * sums <= shared:
        return 1, False, True, True
    return None


def shares(pieces: int, slots: int, waves: int) -> int:
    """The number of parts of rows, each for all `pieces` of columns, that fill the `slots` of resident blocks so many times or
    more. It is the smallest number that leaves almost no slot idle."""
    least = max(1, waves * slots // pieces)
    found = range(least, max(least, 4 * waves * slots // pieces) + 1)
    good = (parts for parts in found if filled(parts * pieces, slots) > 0.95)
    return next(good, max(found, key=lambda parts: filled(parts * pieces, slots)))


def least_steps(pieces: int, slots: int, rows: int) -> int:
    """The number of parts of `rows`, each for all `pieces`, that takes the fewest steps while `slots` blocks run at a
    time. A part takes one step for each of its rows, and some to begin and to add up its results."""

    def steps(parts: int) -> float:
        return -(-parts * pieces // slots) * (-(-rows // parts) + OWN_STEPS)

    return min(range(1, max(1, min(rows, 4 * slots)) + 1), key=steps)


def filled(blocks: int, slots: int) -> float:
    """The average share of slots that are in use while so many blocks run."""
    return blocks / (-(-blocks // slots) * slots)
