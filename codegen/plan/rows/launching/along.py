"""The launches of kernels that reduce along rows: how many threads a row has, and whether registers or shared memory hold it."""

from __future__ import annotations

import functools
import math
from dataclasses import replace

from codegen.plan.launches import PlannedCall
from codegen.plan.rows.access import LEAST_VECTOR, Reads
from codegen.plan.rows.launching import cost
from codegen.plan.rows.launching.walking import ANY, most_parts
from codegen.shared import WARP, RowLaunch
from codegen.targets import THREADS_OF_BLOCK

MOST_TOGETHER = 256  # bytes of an array's rows that a thread holds at a time

# The threads for which an SM has registers
RESIDENT = 512  # if threads hold much: some load while others reduce
ROW_RESIDENT = 768  # if results are written, or a thread computes more values than `MOST_COMPUTED`
MANY_RESIDENT = 1280  # if they hold only the row: while a cluster waits for its blocks, others load
MOST_COMPUTED = 24  # values of a thread, one for each column of a vector and each statistic

# Short rows that come by way of shared memory
LEAST_IN_RUN, MOST_IN_RUN = 8, 32  # columns of a thread
MOST_NEIGHBOURS = 48  # the same, if they share elements: an H100 took 61 us with 37 columns of 6 channels, 67 with 19
RUN_VALUES, RUN_BYTES = 100, 40 * 1024  # values of these columns, in all inputs; bytes of a block

# Long rows
# Bytes of a block's only row, or of rows that lie apart, in shared memory: two blocks are resident
LONG_RUN_BYTES = 80 * 1024
NARROWED = 4  # a row comes by way of shared memory if the vectors that divide it are so many times as narrow
STREAMS = 4  # blocks of an SM that read long rows in one pass, if these have many threads
# Arrays of rows that are read so although registers could hold them, if rows alone fill all SMs. An H200 took 221 us instead of 270
# for five, 35 instead of 42 for six, but up to 38 % more for two
MANY_ARRAYS = 3
MOST_FILLING = 512  # threads of a block that reads one of a few long rows again


class AlongRows(Reads):
    """The part of a plan that launches kernels which reduce no columns."""

    def launch_along(
        self, vec: int, ragged: bool, call: PlannedCall, fixed: bool = False, streams: bool = True
    ) -> RowLaunch:
        """The launch for vectors of this width. `fixed`: vectors are no narrower, and a row of many vectors has several warps.
        Without `streams` a row that has room is held."""
        if most_parts() < ANY:  # tests of small arrays need the kernels of many rows
            call = call.of(rows=None)
        columns, rows = call.extents.columns, call.extents.rows
        width = vec * self.column_bytes(call)  # bytes of one vector of every input
        if columns is None:
            return self._read_again(vec, ragged, width, call)
        if (at_once := self.together(columns, call)) > 1:
            own = self.least_threads(columns, 1 / at_once, call)
            threads = call.schedule.get("threads", cost.threads_of_few(own, 1 / at_once, rows, call.processors))
            return RowLaunch(columns, False, threads, 1, 1, 1, True, True, bool(self.expensive), at_once=at_once)
        if (found := self._in_runs(vec, ragged, columns, call)) is not None:
            return found
        wide = vec if len(self.column_groups) > 1 or self.collapsed else max(vec, self.width(call))
        # Vectors past a row's end would have random numbers, too: an H200 took 344 us for 263
        if ragged or (wide >= NARROWED * vec and columns % wide and not self.draws):
            if (found := self._in_one_run(wide, columns, call)) is not None:
                return found
        how = self._cheapest(vec, ragged, fixed, columns, call)
        row = columns // vec * width
        keeps = any(d.kept for d in self.demands[:-1])
        if how is None and not ragged and call.clusters and not call.schedule and keeps:
            spread = cost.in_all_registers(vec, columns, self.column_bytes(call), self.most_expensive, self.costly)
            if spread is not None:
                return spread
        if (found := self._unheld(vec, ragged, width, row, how is None, streams, call)) is not None:
            return found
        assert how is not None
        return self._holding_row(how, columns, call)

    def _holding_row(self, how: RowLaunch, columns: int, call: PlannedCall) -> RowLaunch:
        """The launch of threads that hold a row: whether registers also hold expensive values, and how many blocks are resident."""
        vec, ragged, vectors, threads, per_row, cluster = (
            how.vec, how.ragged, how.vectors, how.threads, how.per_row, how.cluster
        )  # fmt: skip
        # A thread's bytes, without those of the additional vector of a ragged row
        own = (-(-(columns // vec) // (per_row * cluster)) or 1) * vec * self.column_bytes(call)
        exact = columns > 0 and not ragged and columns == vec * vectors * per_row * cluster
        costly = 4 * vec * vectors * self.most_expensive
        held = vec * vectors * self.column_bytes(call)
        holds_expensive = 0 < costly <= min(cost.MOST_WITH_EXPENSIVE, cost.REGISTER_BYTES // threads) - held
        if cluster > 1 and not holds_expensive and cost.fills_registers(vec * self.alive, threads, held, costly):
            return replace(how, exact=exact, holds_expensive=True, resident=1)
        deep = cluster > 1 and self.alone and own > cost.THREAD_BYTES and not holds_expensive
        only_row = deep or (ragged and own >= cost.THREAD_BYTES and (cluster > 1 or not holds_expensive))
        if only_row and cluster > 1 and self.alone:
            resident = self._resident(vec, own, deep) // threads
        elif cluster > 1 and not self.costly and own <= cost.THREAD_BYTES:
            only_row, resident = True, MANY_RESIDENT // threads
        else:
            resident = 0 if self.in_turn else cost.resident_blocks(vec * vectors, self.alive, threads)
        return replace(
            how, exact=exact, holds_expensive=holds_expensive and not only_row, only_row=only_row, resident=resident
        )

    def together(self, columns: int, call: PlannedCall) -> int:
        """The number of rows that together are whole vectors, if a thread has room for them; else 1."""
        vec = self.width(call)
        rows = vec // math.gcd(columns, vec)
        # So that partial results of a block stay within 32 KiB of shared memory
        room = MOST_TOGETHER * cost.LEAST_THREADS // max(cost.LEAST_THREADS, call.schedule.get("threads", 0))
        fits = self.whole_rows and rows * columns * self.widest(call) <= room
        return rows if fits and not call.fixes("threads_per_row", "cluster") else 1

    def wants_runs(self, vec: int, ragged: bool, columns: int | None, call: PlannedCall) -> bool:
        """Whether rows go through shared memory if there is room: vectors would need masks, or threads would read element by element."""
        wanted = self.by_runs and (ragged or vec == 1) and bool(columns) and not call.packed
        return wanted and not call.fixes("cluster", "vector_bytes")

    def _run_bytes(self, call: PlannedCall) -> int:
        """The bytes of a column in all arrays whose rows go through shared memory."""
        arrays = {a.array for a in self.along_own_rows if a.array is not None}
        return sum(call.size(a) * (a.parts or 1) for a in arrays)

    def _in_runs(self, vec: int, ragged: bool, columns: int, call: PlannedCall) -> RowLaunch | None:
        """The launch of blocks that copy runs of rows, if vectors need masks, or if few threads of a row would read element by
        element. None if there is no such kernel, or no room for the rows."""
        if not self.wants_runs(vec, ragged, columns, call):
            return None
        read = sum(a.mode in ("flat", "gather") and self.of_row(a) for a in self.loads if a.array is not None)
        most = max(LEAST_IN_RUN, min(MOST_IN_RUN, RUN_VALUES // (read + self.most_expensive)))
        per_row = call.schedule.get("threads_per_row", fewest_threads(columns, most))
        wide = call.schedule.get("threads_per_row", fewest_threads(columns, max(most, MOST_NEIGHBOURS)))
        neighbours = wide > 1 and self.shares_neighbours(-(-columns // wide) | 1, call.extents.inner)
        per_row = wide if neighbours else per_row
        vectors = -(-columns // per_row) | neighbours  # neighbours are odd in number: threads begin in different banks
        least = self.least_threads(columns, per_row, call)
        own = cost.threads_of_few(least, per_row, call.extents.rows, call.processors)
        threads = max(call.schedule.get("threads", own) // per_row, 1) * per_row
        room = threads // per_row * columns * self._run_bytes(call)
        if per_row > WARP or vectors > 2 * most or room > RUN_BYTES:
            return None
        if threads // per_row * self.slot_bytes(call, vectors * per_row, 1, single=True, apart=True) > LONG_RUN_BYTES:
            return None
        exact = columns == vectors * per_row and threads == per_row
        return RowLaunch(
            1,
            False,
            threads,
            per_row,
            vectors,
            1,
            True,
            exact,
            bool(self.expensive),
            by_runs=True,
            neighbours=neighbours,
        )

    def _in_one_run(self, vec: int, columns: int, call: PlannedCall) -> RowLaunch | None:
        """The launch of blocks that copy one long row each, if there is room, and if some vectors would be shifted apart else, or
        expensive values computed of shifted ones. It is the launch of a row of whole vectors, except that the last vector has columns
        past the row's end."""
        vectors = [a for a in (*self.loads, *self.stores) if a.array is not None and a.mode == "flat"]
        if self.shifts and all(self.aligned(a) for a in vectors) and not self.costly:
            return None
        if not self.wants_runs(vec, True, columns, call) or not self.in_whole_runs:
            return None
        rounded = call.of(columns=-(-columns // vec) * vec)
        found = self.launch_along(vec, False, rounded, fixed=True, streams=False)
        if found.threads != found.per_row >= cost.LEAST_THREADS // 2:
            found = self.launch_along(vec, False, rounded.fixing(threads=found.per_row), fixed=True, streams=False)
        room = -(-columns // found.cluster) * self._run_bytes(call)
        if found.threads != found.per_row or not found.holds_row or room > LONG_RUN_BYTES:
            return None
        return replace(found, ragged=True, exact=False, by_runs=True)

    def _cheapest(self, vec: int, ragged: bool, fixed: bool, columns: int, call: PlannedCall) -> RowLaunch | None:
        """The launch that takes the least time by `cost`, of those whose threads hold a whole row; None if rows are too long."""
        row = cost.Row(
            columns,
            read=self.column_bytes(call),
            moved=self.moved_bytes(call),
            written=self.written_bytes(call),
            narrowest=max(2, min(self.vector_bytes(call), default=4)),
            alive=self.alive,
            costly=self.costly,
            expensive=self.most_expensive,
            statistics=len(self.rows),
            meetings=len(self.stages),
            rows=call.extents.rows,
            in_turn=self.in_turn,
        )
        narrow = not fixed and columns > 0 and not call.fixes("vector_bytes")
        narrowest = min(vec, -(-LEAST_VECTOR // self.widest(call))) if narrow else vec
        # Lanes of a warp have a group of columns
        vecs = [v for v in (vec, vec // 2, vec // 4) if v == vec or (v >= narrowest and self.lanes(v) <= WARP)]
        least_threads = functools.partial(self.least_threads, columns, call=call)
        least = cost.LEAST_THREADS // 2 if fixed and columns // vec >= cost.LEAST_THREADS else 1

        def lanes(vec: int) -> int:
            return max(least, self.lanes(vec))

        found = cost.Candidates(row, vecs, ragged, lanes, least_threads, call.schedule, call.clusters, in_run=fixed)
        return cost.cheapest(found, call.processors)

    def least_threads(self, columns: int, per_row: float, call: PlannedCall) -> int:
        """The threads of a block of several rows, each with so many threads: enough to move many bytes at a time."""
        row = columns * (self.moved_bytes(call) or self.column_bytes(call, own=True))
        return cost.threads_of_block(row, per_row, self.costly)

    def _resident(self, vec: int, own: int, deep: bool) -> int:
        """The threads for which an SM has registers, if each holds so many bytes of its row and the values of one vector. They are
        fewest if much is held, and most if little is computed and nothing is written."""
        if deep and own > 2 * cost.THREAD_BYTES:
            return RESIDENT
        written = deep and any(a.mode != "row" for a in self.stores)
        return ROW_RESIDENT if written or vec * (1 + len(self.rows)) > MOST_COMPUTED else THREADS_OF_BLOCK

    def _read_again(self, vec: int, ragged: bool, width: int, call: PlannedCall, cluster: int = 1) -> RowLaunch:
        """The launch for a row that registers cannot hold (`cost.threads_again`)."""
        cluster, vectors = call.schedule.get("cluster", cluster), max(1, cost.THREAD_BYTES // width)
        threads = call.schedule.get("threads", cost.threads_again(vec * vectors, self.alive, self.costly, cluster))
        return RowLaunch(vec, ragged, threads, threads, vectors, cluster, False, False, False)

    def _unheld(
        self, vec: int, ragged: bool, width: int, row: int, too_long: bool, streams: bool, call: PlannedCall
    ) -> RowLaunch | None:
        """The launch for rows of so many bytes that registers do not hold: those that have no room and, if it `streams`, those of many
        arrays that are read in one pass. None for others."""
        most, filled, rows = _most_blocks(call), STREAMS * call.processors, call.extents.rows or 0
        many = streams and self.own_arrays >= MANY_ARRAYS and row > cost.ALONE_ROW and rows >= filled
        if self.passes == 1 and not call.schedule and (many or (too_long and rows * most >= filled)):
            return self._in_one_pass(vec, ragged, width, row // width * vec, rows, call)
        if not too_long:
            return None
        found = self._read_again(vec, ragged, width, call, most)
        return self._filling(found, rows, call) if rows and not call.schedule else found

    def _in_one_pass(self, vec: int, ragged: bool, width: int, columns: int, rows: int, call: PlannedCall) -> RowLaunch:
        """The launch for long rows that are read once, since nothing is written along them and all statistics take one pass.
        Registers hold no more than is in flight, and a row has no more blocks than fill all SMs."""
        cluster, most, least = 1, _most_blocks(call), STREAMS * call.processors
        while cluster < most and rows * cluster < least and 2 * cluster * cost.STREAMING * vec <= columns:
            cluster *= 2
        threads = cost.threads_of_pass(rows * cluster, call.processors)
        return self._read_again(vec, ragged, width, call.fixing(threads=threads), cluster)

    def _filling(self, how: RowLaunch, rows: int, call: PlannedCall) -> RowLaunch:
        """The launch with larger blocks where few rows would leave SMs without threads."""
        threads = how.threads
        while threads < MOST_FILLING and rows * how.cluster * threads < RESIDENT * call.processors:
            threads *= 2
        return replace(how, threads=threads, per_row=threads)


def _most_blocks(call: PlannedCall) -> int:
    """The most blocks of a cluster that shares a row."""
    return cost.MAX_CLUSTER if call.clusters else 1


def fewest_threads(columns: int, most: int) -> int:
    """The least power of two of threads that share so many columns, with at most `most` each."""
    return 1 << (-(-columns // most) - 1).bit_length()
