"""The plan of ops that reduce: along rows, over rows, or both.

Axes are in two runs: `...` and the axes before the reduced ones make a row's position; the trailing, reduced axes are its columns.
A **row** kernel gives each row to some neighbouring threads, reads it once, holds it in registers and computes its statistics in
stages, each of which may use the ones before. A row that is too long is read again for each stage. A **column** kernel gives each
thread some columns and walks down the rows. Further kernels of the same call reduce the blocks' partial results in a fixed order:
those of each column, of several column axes, or of everything. A reduction over the last axes of a row with a fixed number of
columns is computed by the neighbouring lanes that hold them.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

from codegen.plan.access import Access
from codegen.plan.launches import IDLE, Extents, PlannedCall
from codegen.plan.rows import cost, tiling, walking
from codegen.plan.rows.access import LEAST_VECTOR, Reads
from codegen.shared import WARP, RowLaunch, WalkLaunch
from codegen.targets import (
    MOST_REGISTERS,
    REGISTERS_OF_SM,
    THREADS_OF_BLOCK,
    THREADS_OF_SM,
)

MOST_TOGETHER = 256  # bytes of an array's rows that a thread holds at a time

# The threads for which an SM has registers
RESIDENT = 512  # if threads hold much: some load while others reduce
ROW_RESIDENT = 768  # if results are written, or a thread computes more values than `MOST_COMPUTED`
MANY_RESIDENT = 1280  # if they hold only the row: while a cluster waits for its blocks, others load
MOST_COMPUTED = 24  # values of a thread, one for each column of a vector and each statistic
MOST_HELD = 224  # registers of a thread that walks down rows, and holds expensive values

# Short rows that come by way of shared memory
LEAST_IN_RUN, MOST_IN_RUN = 8, 32  # columns of a thread
MOST_NEIGHBOURS = 48  # the same, if they share elements: an H100 took 61 us with 37 columns of 6 channels, 67 with 19
RUN_VALUES, RUN_BYTES = 100, 40 * 1024  # values of these columns, in all inputs; bytes of a block
# Of a thread that walks down rows: values, with the results of columns; columns, if an expensive value is computed of each
WALKED_VALUES, COSTLY_IN_RUN = 80, 16
APART_BYTES = 128  # of a row whose neighbours a block does not walk down: shorter ones took 1.3 to 1.9 times as long

# Long rows
# Bytes of a block's only row, or of rows that lie apart, in shared memory: two blocks are resident
LONG_RUN_BYTES = 80 * 1024
# Blocks of a cluster that share such a row and walk down: with 8 an H200 took 1218 us, with shifted vectors 961
MOST_IN_LONG_RUN = 2
NARROWED = 4  # a row comes by way of shared memory if the vectors that divide it are so many times as narrow
STREAMS = 4  # blocks of an SM that read long rows in one pass, if these have many threads
# Arrays of rows that are read so although registers could hold them, if rows alone fill all SMs. An H200 took 221 us instead of 270
# for five, 35 instead of 42 for six, but up to 38 % more for two
MANY_ARRAYS = 3
MOST_FILLING = 512  # threads of a block that reads one of a few long rows again


@dataclass(frozen=True)
class Reduction(Reads):
    """The plan of an op that reduces: its arrays and statistics, and how it is launched."""

    first: Reduction | None = None  # row+column: writes the statistics of rows that are too long for this kernel

    @property
    def between(self) -> tuple[str, ...]:
        """The names of the arrays with partial results, in messages."""
        return tuple(f"{s.name} parts" for s in self.columns)

    def together(self, columns: int, call: PlannedCall) -> int:
        """The number of rows that together are whole vectors, if a thread has room for them; else 1."""
        vec = self.width(call)
        rows = vec // math.gcd(columns, vec)
        # So that partial results of a block stay within 32 KiB of shared memory
        room = MOST_TOGETHER * cost.LEAST_THREADS // max(cost.LEAST_THREADS, call.schedule.get("threads", 0))
        fits = self.whole_rows and rows * columns * self.widest(call) <= room
        return rows if fits and not call.fixes("threads_per_row", "cluster") else 1

    def launch(self, call: PlannedCall) -> RowLaunch | WalkLaunch:
        """The launch of a call."""
        vec, extents = self.width(call), call.extents
        inner = extents.total if self.collapsed else extents.inner
        if inner is not None and not self.columns:
            own = max(vec, self.width(call, shared=self.collapsed))
            vec = own if inner % own == 0 else self.whole_vector(vec, inner, call)
        elif self.columns and not self.rows and inner is not None:  # results do not keep the rows' vectors narrow
            own = self.width(call, late=False)
            least = max([4, *(s.width // WARP for s in self.inner)])  # lanes of a warp have a group of columns
            while own > least and walking.registers(own * self.alive, 4 * own * len(self.columns)) > MOST_REGISTERS:
                own //= 2
            vec = own if inner % own == 0 else vec
        vec = call.whole_pairs(vec, inner)
        ragged = vec > 1 and (inner is None or inner % vec != 0)
        columns = extents.columns
        crossing = ragged and not self.collapsed and columns is not None and columns % vec == 0
        ragged = ragged and not crossing
        if self.columns:
            how = self._walk(vec, ragged, crossing, call)
            return replace(how, settles=self._settles(how, extents))
        return replace(self._along(vec, ragged, call, crossing), crossing=crossing)

    def _along(self, vec: int, ragged: bool, call: PlannedCall, fixed: bool = False, streams: bool = True) -> RowLaunch:
        """The launch of an op that reduces no columns. `fixed`: vectors are no narrower, and a row of many vectors has several warps.
        Without `streams` a row that has room is held."""
        if walking.most_parts() < walking.ANY:  # tests of small arrays need the kernels of many rows
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
        if (
            how is None
            and not ragged
            and call.clusters
            and not call.schedule
            and any(d.kept for d in self.demands[:-1])
        ):
            how = cost.in_all_registers(vec, columns, self.column_bytes(call), self.most_expensive, self.costly)
            if how is not None:
                return how
        if (found := self._unheld(vec, ragged, width, row, how is None, streams, call)) is not None:
            return found
        assert how is not None
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
        return RowLaunch(
            vec, ragged, threads, per_row, vectors, cluster, True, exact, holds_expensive and not only_row, only_row, resident
        )  # fmt: skip

    def _wants_runs(self, vec: int, ragged: bool, columns: int | None, call: PlannedCall) -> bool:
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
        if not self._wants_runs(vec, ragged, columns, call):
            return None
        read = sum(a.mode in ("flat", "gather") and self.of_row(a) for a in self.loads if a.array is not None)
        most = max(LEAST_IN_RUN, min(MOST_IN_RUN, RUN_VALUES // (read + self.most_expensive)))
        per_row = call.schedule.get("threads_per_row", _fewest_threads(columns, most))
        wide = call.schedule.get("threads_per_row", _fewest_threads(columns, max(most, MOST_NEIGHBOURS)))
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
        if not self._wants_runs(vec, True, columns, call) or not self.in_whole_runs:
            return None
        rounded = call.of(columns=-(-columns // vec) * vec)
        found = self._along(vec, False, rounded, fixed=True, streams=False)
        if found.threads != found.per_row >= cost.LEAST_THREADS // 2:
            found = self._along(vec, False, rounded.fixing(threads=found.per_row), fixed=True, streams=False)
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

    def _walk(self, vec: int, ragged: bool, crossing: bool, call: PlannedCall) -> WalkLaunch:
        """The launch of an op that reduces columns, or everything."""
        if self.collapsed:
            return tiling.everything(vec, ragged, self.walking_needs(vec, 1, call), call)
        each = (1 if ragged or crossing else vec) if self.shares else None
        kernels = [self._at_places, self._in_shared_memory]
        if ragged and self.rows and self.costly:
            # Each vector has a mask at places: an H100 took 757 us for gradients of 16 rows of 197, and 479 by way of shared memory
            kernels.reverse()
        if (found := next(filter(None, (kernel(vec, ragged, call) for kernel in kernels)), None)) is not None:
            return found
        if (found := self._with_whole_rows(vec, ragged, each or 1, call)) is None:
            found = self._tiles(vec, ragged, each or 1, call)
        return replace(found, each=each, crossing=crossing)

    def _at_places(self, vec: int, ragged: bool, call: PlannedCall) -> WalkLaunch | None:
        """The launch whose threads reduce all rows of a place; None if there is no such kernel, or if other kernels are faster."""
        columns, rows, inner, places = (getattr(call.extents, name) for name in ("columns", "rows", "inner", "apart"))
        if not self.by_place or columns is None or rows is None or inner is None:
            return None
        narrow = self.whole_vector(vec, inner, call)
        # Fewer elements a thread, where places are too few for all threads of the SMs
        while narrow > 4 and (places or 1) * columns < narrow * call.processors * THREADS_OF_SM:
            narrow //= 2
        split, meets, needs = columns % narrow != 0, self.meets and not ragged, self.walking_needs(narrow, 1, call)
        found = walking.by_place(narrow, split, needs, bool(self.rows), meets, call)
        if found is None:
            return None
        return replace(found, first=IDLE if self.rows else None, crossing=inner % narrow != 0 and not split)

    def _in_shared_memory(self, vec: int, ragged: bool, call: PlannedCall) -> WalkLaunch | None:
        """The launch of blocks that hold whole rows, which come by way of shared memory; None if there is no such kernel, or no room."""
        if not self.rows or call.extents.columns is None:
            return None
        found = self._walk_in_runs(vec, ragged, call) or (self._walk_in_long_runs(vec, call) if ragged else None)
        return found and replace(self._holding(found, call), each=1 if self.shares else None, first=IDLE)

    def _with_whole_rows(self, vec: int, ragged: bool, each: int, call: PlannedCall) -> WalkLaunch | None:
        """The launch of blocks, or clusters of them, that hold whole rows; None if no row has statistics, or if there is no room."""
        if not self.rows or call.extents.columns is None:
            return None
        found = walking.whole(vec, ragged, self.walking_needs(vec, each, call), self.lanes(vec), call)
        return found and replace(self._holding(found, call), first=IDLE)

    def _tiles(self, vec: int, ragged: bool, each: int, call: PlannedCall) -> WalkLaunch:
        """The launch of blocks that have some columns of the rows, after a kernel that writes the statistics of rows."""
        first = None if self.first is None else self.first.launch(replace(call, schedule={}))
        assert not isinstance(first, WalkLaunch)  # it reduces along rows alone
        waves = 4 if self.inner else 1  # they compute more than they read: a block that has finished makes room
        if ragged and (runs := self._tiles_in_runs(waves, call)) is not None:
            return replace(runs, first=first)
        columns, rows = call.extents.columns, call.extents.rows
        lanes, threads = self.lanes(vec), call.schedule.get("threads", walking.THREADS)
        if rows and columns:  # few rows: for all threads of a block
            lanes = max(lanes, min(threads >> (rows - 1).bit_length(), 1 << (-(-columns // vec) - 1).bit_length()))
        how = replace(tiling.tiles(vec, ragged, self.walking_needs(vec, each, call), lanes, waves, call), first=first)
        if not (self.meets and rows and columns):
            return how
        row, narrowest = columns * self.moved_bytes(call), min(self.vector_bytes(call), default=4)
        return tiling.meeting(how, row, narrowest, self.costly, call) or tiling.settling(how, call)

    def _settles(self, how: WalkLaunch, extents: Extents) -> bool:
        """Whether blocks write the results of columns: each reduces all rows at a place, one at a time. On several devices, rows that meet
        may be elsewhere, and their number is not known."""
        alone = how.parts == 1 and how.threads == how.per_row and not (how.by_place or how.by_runs)
        return bool(how.meets) or (alone and bool(self.settled and self.apart) and extents.rows is not None)

    def _holding(self, how: WalkLaunch, call: PlannedCall) -> WalkLaunch:
        """The launch, of which threads hold expensive values from one reduction to the next. Where rows come to shared memory, registers
        are left for them: an H200 took 0.81 to 1.0 of the time of computing them again. Elsewhere they must fit."""
        if how.staged and not how.by_runs:
            return replace(how, holds_expensive=bool(self.expensive))
        needs = self.walking_needs(how.vec, 1, call)
        row = needs.width + needs.fixed + (0 if how.shared_sums else needs.sums) + 4 * how.vec * self.most_expensive
        room = min(MOST_HELD, REGISTERS_OF_SM // (max(1, how.resident) * how.threads))
        fits = walking.registers(needs.alive * how.vec, how.vectors * row) <= room
        return replace(how, holds_expensive=bool(self.expensive) and fits)

    def _walk_in_runs(self, vec: int, ragged: bool, call: PlannedCall) -> WalkLaunch | None:
        """As `_in_runs`, for threads that walk down rows, of which the next one is in flight."""
        columns, apart = call.extents.columns, call.extents.apart or 1
        if not columns or not self._wants_runs(vec, ragged, columns, call):
            return None
        if apart > 1 and columns * self.widest(call, late=False) < APART_BYTES:
            return None
        needs = self.walking_needs(1, 1, call)
        vectors = [a for a in self.loads if a.array is not None and a.mode in ("flat", "gather")]
        most = min(
            COSTLY_IN_RUN if self.costly else MOST_IN_RUN, WALKED_VALUES // (len(vectors) + 2 * (needs.sums // 4))
        )
        most = max(LEAST_IN_RUN, most)
        per_row = call.schedule.get("threads_per_row", _fewest_threads(columns, most))
        if per_row > WARP:
            return None
        threads, count = (
            max(1, call.schedule.get("threads", cost.LEAST_THREADS) // per_row) * per_row,
            -(-columns // per_row),
        )
        room = (
            threads // per_row * self.slot_bytes(call, per_row * count, 2, single=True) + threads * count * needs.sums
        )
        resident = min(THREADS_OF_BLOCK // threads, call.shared_memory // room)
        if not resident:
            return None
        return replace(walking.in_runs(threads, per_row, count, resident, call), joins=self.joins_rows)

    def _walk_in_long_runs(self, vec: int, call: PlannedCall) -> WalkLaunch | None:
        """As `_in_one_run`, for threads that walk down rows, of which the next ones are in flight."""
        columns = call.extents.columns
        if not columns or not self._wants_runs(vec, True, columns, call):
            return None
        needs = replace(self.walking_needs(vec, 1, call), stageable=True)
        rounded = call.of(columns=-(-columns // vec) * vec)

        def launch(fixed: dict[str, int]) -> WalkLaunch | None:
            how = walking.whole(vec, False, needs, self.lanes(vec), rounded.fixing(**fixed))
            fits = how is not None and how.staged and how.per_row > WARP and how.cluster <= MOST_IN_LONG_RUN
            return how if fits else None

        # Where an expensive value lacks registers, larger clusters come first
        sizes = ({}, *({"cluster": n} for n in range(1, MOST_IN_LONG_RUN + 1) if call.clusters or n == 1))
        found = next(filter(None, map(launch, sizes)), None)
        if found is None:
            return None
        slots = self.slot_bytes(call, found.per_row * found.vectors * vec, found.at_once, single=False)
        block = found.threads // found.per_row * slots + found.threads * found.vectors * needs.sums
        resident = min(max(1, found.resident), call.shared_memory // block)
        if not resident:
            return None
        return replace(
            found, ragged=True, exact=False, by_runs=True, paced=False, long=False,
            resident=resident if found.resident else 0,
        )  # fmt: skip

    def _tiles_in_runs(self, waves: int, call: PlannedCall) -> WalkLaunch | None:
        """As `_walk_in_long_runs`, for threads that have columns of their own."""
        columns = call.extents.columns
        if not columns or call.extents.rows == 1 or not self._wants_runs(1, True, columns, call):
            return None
        vec = self.width(call, shared=False, late=False)
        needs = self.walking_needs(vec, 1, call)

        def slots(columns: int, rows: int) -> int:
            return self.slot_bytes(call, columns, rows, single=False)

        return tiling.tiles_in_runs(vec, needs, slots, waves, call)

    def walking_needs(self, vec: int, each: int, call: PlannedCall) -> walking.Needs:
        """The room that a thread needs to walk down whole rows; `each` neighbouring columns have one result."""
        own = {a.array: a for a in self.loads if a.array is not None and a.mode in ("flat", "gather")}
        sizes = {a: call.size(array) for array, a in own.items()}
        wide = 8 if "float64" in call.dtypes.values() else 4

        def sent_for(access: Access, size: int) -> bool:
            parts = access.array.parts if access.array is not None and access.interleaved else None
            return access.mode == "flat" and vec * size * (parts or 1) in (4, 8, 16)  # bytes at once

        of_row = {a: n for a, n in sizes.items() if self.of_row(a)}
        sent = {a: n for a, n in of_row.items() if a.mode == "flat"}
        return walking.Needs(
            width=vec * self.column_bytes(call),
            fixed=vec * sum(n for a, n in sizes.items() if not self.of_row(a)),
            sums=wide * (vec // each) * sum(s.over == "column" for s in self.columns),
            costly=self.costly,
            alive=self.alive,
            folds=len(self.stages),
            stageable=bool(sent) and all(sent_for(a, n) for a, n in sent.items()),
            gathered=vec * sum(n for a, n in of_row.items() if a.mode == "gather"),
            written=vec * sum(4 for a in self.stores if a.mode == "flat"),
            values=bool(self.rows) or any(a.mode == "row" and a.tokens for a in self.loads),
            wanted=self.wanted(call),
            shared=max((d.shared for d in self.demands), default=0),
        )

    def wanted(self, call: PlannedCall) -> cost.Wanted:
        """What a thread wants registers for."""
        sweeps = [
            (d.alive, cost.Held(d.kept, tuple(call.size(self.view(a.name).array) for a in d.inputs)))
            for d in self.demands
        ]
        return cost.Wanted(cost.Held(0, self.row_sizes(call)), sweeps)

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

    def edges(self, call: PlannedCall) -> tuple[int, ...]:
        """Sizes of the innermost axis at which the kernel changes: a vector, what a thread holds, a
        warp's vectors, what a warp holds."""
        vec = self.width(call)
        room = walking.most_kept(self.costly, False) if self.rows and self.columns else cost.THREAD_BYTES
        kept = vec * max(1, room // (vec * self.column_bytes(call)))
        return vec, kept, 32 * vec, 32 * kept


def _most_blocks(call: PlannedCall) -> int:
    """The most blocks of a cluster that shares a row."""
    return cost.MAX_CLUSTER if call.clusters else 1


def _fewest_threads(columns: int, most: int) -> int:
    """The least power of two of threads that share so many columns, with at most `most` each."""
    return 1 << (-(-columns // most) - 1).bit_length()
