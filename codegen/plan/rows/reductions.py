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
from dataclasses import dataclass, replace

from codegen.plan.access import Access
from codegen.plan.launches import IDLE, Extents, PlannedCall
from codegen.plan.rows.launching import cost, tiling, walking
from codegen.plan.rows.launching.along import LEAST_IN_RUN, MOST_IN_RUN, AlongRows, fewest_threads
from codegen.shared import WARP, RowLaunch, WalkLaunch
from codegen.targets import MOST_REGISTERS, REGISTERS_OF_SM, THREADS_OF_BLOCK, THREADS_OF_SM

MOST_HELD = 224  # registers of a thread that walks down rows, and holds expensive values

# Of a thread that walks down rows, which come by way of shared memory: values, with the results of columns; columns, if an expensive
# value is computed of each
WALKED_VALUES, COSTLY_IN_RUN = 80, 16
APART_BYTES = 128  # of a row whose neighbours a block does not walk down: shorter ones took 1.3 to 1.9 times as long
# Blocks of a cluster that share such a row and walk down: with 8 an H200 took 1218 us, with shifted vectors 961
MOST_IN_LONG_RUN = 2


@dataclass(frozen=True)
class Reduction(AlongRows):
    """The plan of an op that reduces: its arrays and statistics, and how it is launched."""

    first: Reduction | None = None  # row+column: writes the statistics of rows that are too long for this kernel

    @property
    def between(self) -> tuple[str, ...]:
        """The names of the arrays with partial results, in messages."""
        return tuple(f"{s.name} parts" for s in self.columns)

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
        return replace(self.launch_along(vec, ragged, call, crossing), crossing=crossing)

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
        if not columns or not self.wants_runs(vec, ragged, columns, call):
            return None
        if apart > 1 and columns * self.widest(call, late=False) < APART_BYTES:
            return None
        needs = self.walking_needs(1, 1, call)
        vectors = [a for a in self.loads if a.array is not None and a.mode in ("flat", "gather")]
        most = min(
            COSTLY_IN_RUN if self.costly else MOST_IN_RUN, WALKED_VALUES // (len(vectors) + 2 * (needs.sums // 4))
        )
        most = max(LEAST_IN_RUN, most)
        per_row = call.schedule.get("threads_per_row", fewest_threads(columns, most))
        if per_row > WARP:
            return None
        threads = max(1, call.schedule.get("threads", cost.LEAST_THREADS) // per_row) * per_row
        count = -(-columns // per_row)
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
        if not columns or not self.wants_runs(vec, True, columns, call):
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
        if not columns or call.extents.rows == 1 or not self.wants_runs(1, True, columns, call):
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
        """The values that a thread wants registers for."""
        sweeps = [
            (d.alive, cost.Held(d.kept, tuple(call.size(self.view(a.name).array) for a in d.inputs)))
            for d in self.demands
        ]
        return cost.Wanted(cost.Held(0, self.row_sizes(call)), sweeps)

    def edges(self, call: PlannedCall) -> tuple[int, ...]:
        """Sizes of the innermost axis at which the kernel changes: a vector, what a thread holds, a
        warp's vectors, what a warp holds."""
        vec = self.width(call)
        room = walking.most_kept(self.costly, False) if self.rows and self.columns else cost.THREAD_BYTES
        kept = vec * max(1, room // (vec * self.column_bytes(call)))
        return vec, kept, 32 * vec, 32 * kept


@dataclass(frozen=True)
class InVectors(Reduction):
    """The plan of a reduction whose rows are read one by one: none in runs through shared memory, and no neighbours together."""

    @functools.cached_property
    def by_runs(self) -> bool:
        return False

    @functools.cached_property
    def whole_rows(self) -> bool:
        return False
