"""The plan of ops that reduce: along rows, over rows, or both.

Axes are in two runs: `...` and the axes before the reduced ones make a row's position; the trailing, reduced axes are its columns.
A **row** kernel gives each row to some neighbouring threads, reads it once, holds it in registers and computes its statistics in
stages, each of which may use the ones before; a row that is too long is read again for each stage. A **column** kernel gives each
thread some columns and walks down the rows; further kernels of the same call reduce the blocks' partial results in a fixed
order: those of each column, of several column axes, or of everything. A reduction over the last axes of a row with a
fixed number of columns is computed by the neighbouring lanes that hold them.

How an array is reached:

  flat     it has every column axis, last: vectors of consecutive columns, at its own position for the row
  row      it has no column axis: one value a row
  gather   it has some of the column axes: element by element
  index    no array: the coordinate itself; `size` is the size of an axis

Longer than 500 lines: the plan and the launch of its rows read the same numbers of bytes and values.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from codegen.graph import online
from codegen.graph.nodes import DTYPES, Node, lost_axes
from codegen.plan.access import Access, Extent, Group, View, vector_width
from codegen.plan.launches import IDLE, Extents
from codegen.plan.rows import walking
from codegen.plan.rows.walking import clusters
from codegen.shared import WARP, RowLaunch, WalkLaunch
from codegen.spec.spec import Array

MAX_THREADS = 1024
LEAST_THREADS = 128  # threads of a block of several rows
MORE_THREADS = 4  # times as many if they have little to read: a GPU starts a limited number of blocks in a given time
BLOCK_BYTES = 8 * 1024  # bytes that a block reads before it may have more threads
# Vectors of a row in which each one has its own thread: few threads are idle then, and neighbours read side by side
SHORT_ROWS = (1, 2, 3, 4, 7, 8)
LEAST_VECTOR = 4  # bytes of a narrower vector, which divides a row
THREAD_BYTES = 64  # bytes of inputs that a thread holds before a row gets more threads
MOST_TOGETHER = 256  # bytes of an array's rows that a thread holds at a time
MOST_CARRIED = 384  # if expensive values are held as well
MOST_COSTLY = 192  # bytes of a row and of its costly values that a thread holds before the row gets more threads
REGISTER_BYTES = 96 * 1024  # registers of a block that data may take
ROW_BYTES_IN_BLOCK = 64 * 1024  # bytes of a row that a block holds
CLUSTER_ROW = 16 * 1024  # if a cluster shares the row, and reduces no columns
ALONE_ROW = 32 * 1024  # up to which a block still holds it alone: two such blocks are resident
RESIDENT = 512  # threads for which an SM then has registers: some load while others reduce
MANY_RESIDENT = 1280  # if they hold only the row: while a cluster waits for its blocks, others load
LEAN_RESIDENT = 768  # if threads hold twice as much, and nothing else
MOST_COMPUTED = (
    24  # values of a thread, one for each column of a vector and each statistic, that leave registers for the rest
)
# Registers of a thread, by `walking.registers`, with which an SM has too few threads if the compiler takes what it likes
MANY_REGISTERS = 100
SPILLED = 0.45  # part of them that may be spilled, or computed again, for more threads
MAX_CLUSTER = 8  # blocks that every GPU with clusters can schedule


@dataclass(frozen=True)
class Statistic:
    """One reduction: its name in the kernel, and the stage in which it is computed (stage 0 needs no other statistic)."""

    name: str
    node: Node
    stage: int
    over: str  # row: along one; group: within one; column: over rows; total: over rows and all columns
    keeps: tuple[int, ...] = ()  # column: the groups that it keeps
    once: bool = False  # total: of one value for each row
    width: int = 0  # group: the number of columns

    @property
    def op(self) -> str:
        return self.node.op

    @property
    def operand(self) -> Node:
        return self.node.args[0]

    @property
    def kind(self) -> str:
        return self.node.kind

    @property
    def axes(self) -> tuple[str, ...]:
        """Those that are folded."""
        return lost_axes(self.node)


@dataclass(frozen=True)
class Carried:
    """An expensive value of each column that several sweeps over a row need: the first one holds it in registers."""

    name: str
    node: Node
    stage: int  # of the sweep that computes it


@dataclass(frozen=True)
class Reduction:
    """The plan of an op that reduces. The first `kept` groups are a row's position, the others its columns."""

    kind: str  # row, column or row+column
    groups: tuple[Group, ...]
    kept: int
    views: tuple[View, ...]
    loads: tuple[Access, ...]
    stores: tuple[Access, ...]
    rows: tuple[Statistic, ...]  # reduced along a row
    columns: tuple[Statistic, ...]  # reduced over rows
    inner: tuple[Statistic, ...]  # reduced within a row, in groups of columns
    carried: tuple[Carried, ...]
    late: tuple[str, ...]  # the outputs that need all rows
    apart: tuple[
        int, ...
    ]  # the groups of a row's position that column statistics keep: only rows at the same place are reduced together
    order: tuple[str, ...]  # every axis: those of the jnp form's operands
    collapsed: bool  # only totals are reduced, and all arrays are one long row, or scalars
    costly: bool = False  # over rows: an expensive value is computed for each column
    alive: int = 1  # the most values of a column that are alive at once
    first: Reduction | None = None  # row+column: writes the statistics of rows that are too long for this kernel

    @functools.cached_property
    def stages(self) -> tuple[tuple[Statistic, ...], ...]:
        count = 1 + max((s.stage for s in self.rows), default=-1)
        return tuple(tuple(s for s in self.rows if s.stage == i) for i in range(count))

    @functools.cached_property
    def sweeps(self) -> tuple[tuple[int, ...], ...]:
        """The stages of each sweep: two together if the second follows maxima of the first."""
        found: list[tuple[int, ...]] = []
        for i, stage in enumerate(self.stages):
            before = self.stages[i - 1] if self.kind == "row" and found and found[-1] == (i - 1,) else ()
            carried = [c.node for c in self.carried if c.stage == i]
            if before and online.follows([s.node for s in stage], [s.node for s in before], carried):
                found[-1] = (i - 1, i)
            else:
                found.append((i,))
        return tuple(found)

    @property
    def following(self) -> set[int]:
        """The stages that are computed in the sweep of the previous one."""
        return {i for sweep in self.sweeps for i in sweep[1:]}

    @property
    def row_groups(self) -> tuple[Group, ...]:
        return self.groups[: self.kept]

    @property
    def walked_groups(self) -> tuple[Group, ...]:
        """The groups of a row's position that a block walks along."""
        return tuple(g for i, g in enumerate(self.row_groups) if i not in self.apart)

    @property
    def spread(self) -> tuple[int, ...]:
        """The groups of the partial results of columns."""
        return (*self.apart, *range(self.kept, len(self.groups)))

    @property
    def column_groups(self) -> tuple[Group, ...]:
        return self.groups[self.kept :]

    @property
    def kernels(self) -> int:
        """The number of kernels that a call launches: one more for each set of axes that outputs over rows have."""
        return 1 + len({v.array.axes for v in self.views if v.array.name in self.late})

    @property
    def extremes(self) -> tuple[Node, ...]:
        """The reductions with a result that is one of their elements: max and min."""
        return tuple(s.node for s in (*self.rows, *self.columns, *self.inner) if s.op in ("max", "min"))

    def view(self, name: str) -> View:
        return next(v for v in self.views if v.array.name == name)

    def aligned(self, access: Access) -> bool:
        """Whether the array's vectors are aligned in memory whatever the number of columns, if they are for one such
        array: it has every axis, in order, and is read at the row's own position."""
        tokens = access.tokens[:-1] if access.tokens[-1:] == ("parts",) else access.tokens
        return access.mode == "flat" and access.index_of is None and tokens == tuple(range(len(self.groups)))

    def of_row(self, access: Access) -> bool:
        """Whether each row has its own values in an array that is read in vectors; otherwise all rows that are reduced
        together share them."""
        own = [t for t in access.tokens if t != "parts" and t not in self.apart]
        taken = self.taken_mode(access)
        if access.index_of is not None and taken is not None:  # an index gives the position along this axis
            own = [t for t in own if t != access.tokens[taken]]
            own += [t for t in self.view(access.index_of[0]).tokens if t not in self.apart]
        return not self.kept or any(not isinstance(t, int) or t < self.kept for t in own)

    def taken_mode(self, access: Access) -> int | None:
        """The mode of a table that is read at an index; None for an array that is read at its own position."""
        if access.index_of is None:
            return None
        _, axis = access.index_of
        modes = (
            i for i, t in enumerate(access.tokens) if t == axis or (isinstance(t, int) and axis in self.groups[t].axes)
        )
        return next(modes)

    def picks(self, access: Access) -> bool:
        """Whether an index gives each column's position in a table, and not only each row's."""
        if access.index_of is None:
            return False
        return any(isinstance(t, int) and t >= self.kept for t in self.view(access.index_of[0]).tokens)

    @property
    def shares(self) -> bool:
        """Whether no result of columns varies along the innermost axis: then neighbouring columns have one result
        together."""
        return bool(self.columns) and not self.collapsed and all(
            s.over == "column" and len(self.groups) - 1 not in s.keeps for s in self.columns
        )  # fmt: skip

    @functools.cached_property
    def by_place(self) -> bool:
        """Whether there is a kernel whose threads reduce all rows at one place: all reductions over rows keep the same
        axes, and so do the outputs that need them."""
        late = [a for a in self.stores if a.array is not None and a.array.name in self.late]
        kept = {tuple(t for t in a.tokens if t != "parts") for a in late}
        alike = all(s.over == "column" and s.keeps == self.spread for s in self.columns)
        return bool(self.apart) and alike and kept == {self.spread} and not self.collapsed and not self.inner

    @property
    def shifts(self) -> bool:
        """Whether a ragged row's vectors start at an aligned address before the row itself. This is so unless something
        needs the columns' coordinates one by one, or a thread holds values of its columns from row to row."""
        gathers = any(
            a.mode in ("gather", "index") and (len(self.column_groups) > 1 or self.picks(a)) for a in self.loads
        )
        aligned = any(self.aligned(a) for a in (*self.loads, *self.stores))
        return (self.kind == "row" or self.collapsed) and aligned and not gathers

    @property
    def full(self) -> tuple[tuple[Array, int], ...]:
        """The arrays that are read or written in vectors, and how many of their elements one access takes at a position."""
        found = {}
        for access in (*self.loads, *self.stores):
            if access.array is not None and access.mode == "flat":
                interleaved = access.tokens[-1:] == ("parts",)
                found[access.array] = access.array.parts or 1 if interleaved else 1
        return tuple(found.items())

    def edges(self, dtypes: Mapping[str, str], schedule: Mapping[str, int]) -> tuple[int, ...]:
        """Extents of the innermost axis at which the kernel goes about it in another way: a vector, what a thread keeps, a
        warp's vectors, what a warp keeps."""
        vec = self.width(dtypes, schedule)
        room = walking.most_kept(self.costly, False) if self.rows and self.columns else THREAD_BYTES
        kept = vec * max(1, room // (vec * self.column_bytes(dtypes)))
        return vec, kept, 32 * vec, 32 * kept

    def width(
        self, dtypes: Mapping[str, str], schedule: Mapping[str, int], shared: bool = True, late: bool = True
    ) -> int:
        """The columns of a vector, which does not hold columns of two groups. Without the `shared` arrays, of which
        rows have no values of their own, or without the outputs that need all rows, it is the number that fills a
        vector of one of the others."""
        return min([vector_width(self.widest(dtypes, shared, late), schedule), *(s.width for s in self.inner)])

    def widest(self, dtypes: Mapping[str, str], shared: bool = True, late: bool = True) -> int:
        """The bytes of a column in the array with the widest columns."""
        found = [(a, n) for a, n in self.full if shared or self.order[0] in a.axes]
        found = [(a, n) for a, n in found if late or a.name not in self.late]
        return max((DTYPES[dtypes[a.name]].size * n for a, n in found), default=4)

    def whole_vector(self, vec: int, inner: int, dtypes: Mapping[str, str]) -> int:
        """A narrower vector that divides the row, so that no vector crosses into the next row: of at least 4 bytes, or
        of one element if rows are shorter than two vectors."""
        narrow = inner & -inner
        return narrow if inner % vec and (narrow * self.widest(dtypes) >= LEAST_VECTOR or inner < 2 * vec) else vec

    @functools.cached_property
    def whole_rows(self) -> bool:
        """Whether neighbouring rows can be read and written together: all arrays that are written, or read along a row,
        have every axis of the rows, in order."""
        values = all(a.tokens == tuple(range(self.kept)) for a in self.stores if a.mode == "row")
        own = [a for a in (*self.loads, *self.stores) if a.mode in ("flat", "gather") and self.of_row(a)]
        plain = not self.inner and not any(map(self.picks, self.loads))
        return self.kind == "row" and self.kept > 0 and plain and values and all(map(self.aligned, own))

    def together(self, columns: int, dtypes: Mapping[str, str], schedule: Mapping[str, int]) -> int:
        """The number of rows that together are whole vectors, if a thread has room for them; otherwise 1."""
        vec = self.width(dtypes, schedule)
        rows = vec // math.gcd(columns, vec)
        # So that partial results of a block stay within 32 KiB of shared memory
        room = MOST_TOGETHER * LEAST_THREADS // max(LEAST_THREADS, schedule.get("threads", 0))
        fits = self.whole_rows and rows * columns * self.widest(dtypes) <= room
        return rows if fits and not schedule.keys() & {"threads_per_row", "cluster"} else 1

    def lanes(self, vec: int) -> int:
        """The number of neighbouring threads of one block that a group of columns needs."""
        return max([1, *(s.width // vec for s in self.inner)])

    def column_bytes(self, dtypes: Mapping[str, str], own: bool = False) -> int:
        """The bytes of one column of a row in all inputs that are held in registers; with `own`, only in those of which
        neighbouring rows have different values."""
        loaded: dict[Array, int] = {}
        for access in self.loads:
            if access.array is not None and (access.mode == "flat" or self.picks(access)) and self.of_row(access):
                if not own or access.index_of is not None or self.kept - 1 in access.tokens:
                    loaded[access.array] = loaded.get(access.array, 0) + DTYPES[dtypes[access.array.name]].size
        return sum(loaded.values()) or (self.column_bytes(dtypes) if own else 4)

    @property
    def alone(self) -> bool:
        """Whether a row consists of one array."""
        return len({a.array for a in self.loads if a.mode == "flat" and self.of_row(a)}) == 1

    def vector_bytes(self, dtypes: Mapping[str, str]) -> list[int]:
        """The bytes of a column of each array that is read along a row, including arrays that all rows share."""
        arrays = [a.array for a in self.loads if a.array is not None and a.mode in ("flat", "gather")]
        return [DTYPES[dtypes[array.name]].size for array in arrays]

    @property
    def passes(self) -> int:
        """How often a row is read if it is not held: once for each sweep, and once more for outputs along it."""
        written = any(a.mode != "row" for a in self.stores) or self.columns
        return len(self.sweeps) + bool(written)

    def rows_read(self, how: RowLaunch | WalkLaunch) -> int:
        """How often a launch reads a row; once more if an earlier kernel computes its statistics."""
        if isinstance(how, RowLaunch):
            return 1 if how.kept else self.passes
        return 1 if how.whole or how.first is None else 1 + (1 if how.first.kept else len(self.sweeps))

    def rows_and_columns(self, extent: Extent) -> tuple[int, int]:
        """The numbers of rows and columns; one row if everything is reduced."""
        if self.collapsed:
            return 1, extent(self.order)
        rows, columns = ([axis for g in groups for axis in g.axes] for groups in (self.row_groups, self.column_groups))
        return extent(tuple(rows)), extent(tuple(columns))

    def launch(
        self,
        dtypes: Mapping[str, str],
        extents: Extents,
        schedule: Mapping[str, int],
        arch: str | None = None,
    ) -> RowLaunch | WalkLaunch:
        """The launch for arrays of these dtypes (by name); `schedule` overrides (`overrides`)."""
        vec = self.width(dtypes, schedule)
        inner = extents.total if self.collapsed else extents.inner
        if inner is not None and not self.columns:
            own = max(vec, self.width(dtypes, schedule, shared=self.collapsed))
            vec = own if inner % own == 0 else self.whole_vector(vec, inner, dtypes)
        elif self.columns and not self.rows and inner is not None:  # results do not keep the rows' vectors narrow
            own = self.width(dtypes, schedule, late=False)
            vec = own if inner % own == 0 else vec
        ragged = vec > 1 and (inner is None or inner % vec != 0)
        columns = extents.columns
        crossing = ragged and not self.collapsed and columns is not None and columns % vec == 0
        ragged = ragged and not crossing
        if self.columns:
            return self._walk(vec, ragged, crossing, dtypes, extents, schedule, arch)
        return replace(self._along(vec, ragged, dtypes, extents, schedule, arch), crossing=crossing)

    def _along(
        self,
        vec: int,
        ragged: bool,
        dtypes: Mapping[str, str],
        extents: Extents,
        schedule: Mapping[str, int],
        arch: str | None,
    ) -> RowLaunch:
        """The launch of an op that reduces no columns."""
        columns = extents.columns
        width = vec * self.column_bytes(dtypes)  # bytes of one vector of every input
        if columns is None:
            return self._read_again(vec, ragged, width, schedule)
        if (at_once := self.together(columns, dtypes, schedule)) > 1:
            threads = schedule.get("threads", self.least_threads(columns, 1 / at_once, dtypes))
            carried = bool(self.carried)
            return RowLaunch(columns, False, threads, 1, 1, 1, True, True, carried, at_once=at_once)
        count = -(-(columns + (vec - 1 if ragged else 0)) // vec) or 1
        row, kept, cluster = columns // vec * width, THREAD_BYTES, 1
        alone = vec * self.column_bytes(dtypes, own=True)  # of a vector, without arrays that neighbouring rows share
        if clusters(arch) and row > ALONE_ROW:
            cluster = 4 if row <= 4 * CLUSTER_ROW else MAX_CLUSTER
            kept *= 1 if row <= cluster * CLUSTER_ROW else 4 if row > 2 * cluster * CLUSTER_ROW and self.alone else 2
        cluster = schedule.get("cluster", cluster)
        short = cluster == 1 and not ragged and count in SHORT_ROWS
        most = 1 if short else max(1, kept // alone)
        if self.costly and self.carried:
            most = min(most, max(1, MOST_COSTLY // (vec * (self.column_bytes(dtypes) + 4 * len(self.carried)))))
        per_row = schedule.get("threads_per_row", self._threads_of_row(count, columns // vec, most, cluster))
        per_row = max(per_row, 32 if cluster > 1 else self.lanes(vec))
        vectors = -(-count // (per_row * cluster))
        # A thread's vectors, without the additional one of a ragged row
        whole = -(-(columns // vec) // (per_row * cluster)) or 1
        exact = columns > 0 and not ragged and count == vectors * per_row * cluster
        if whole * width * per_row > max(ROW_BYTES_IN_BLOCK, width * per_row):
            return self._read_again(vec, ragged, width, schedule, MAX_CLUSTER if clusters(arch) else 1)
        beside = schedule.get("threads", self.least_threads(columns, per_row, dtypes)) // per_row
        threads = max(1, beside) * per_row
        own, costly = whole * width, 4 * vec * vectors * len(self.carried)
        carried = 0 < costly <= min(MOST_CARRIED, REGISTER_BYTES // threads) - vectors * width
        needed = walking.registers(self.alive * vec, vectors * width + costly)
        deep = cluster > 1 and self.alone and own > THREAD_BYTES
        lean = deep or (ragged and own >= THREAD_BYTES and (cluster > 1 or not carried))
        resident = 0
        if lean and cluster > 1 and self.alone:
            resident = self._resident(vec, own, deep)
        elif self.costly and needed >= MANY_REGISTERS:
            spread = clusters(arch) and cluster == 1 and not ragged and not schedule
            if threads == per_row > walking.CLUSTER_THREADS and needed * RESIDENT >= walking.REGISTERS_OF_SM and spread:
                return self._along(vec, ragged, dtypes, extents, {"cluster": 2}, arch)
            resident = -(-walking.threads_that_fit((1 - SPILLED) * needed) // threads) * threads
        elif cluster == 1 and clusters(arch) and CLUSTER_ROW < row <= ALONE_ROW:
            simple = all(a.mode in ("flat", "row") for a in self.loads)  # positions of other values take registers, too
            resident = 2 * threads if simple else 0
        elif (
            cluster > 1
            and kept == THREAD_BYTES
            and THREAD_BYTES < whole * vec * sum(self.vector_bytes(dtypes)) < 4 * THREAD_BYTES
        ):
            lean, resident = not carried, RESIDENT if carried else MANY_RESIDENT
        return RowLaunch(
            vec, ragged, threads, per_row, vectors, cluster, True, exact, carried and not lean, lean, resident // threads
        )  # fmt: skip

    def _threads_of_row(self, count: int, whole: int, most: int, cluster: int) -> int:
        """The threads of a row of `count` vectors, of which `whole` are whole: so many that none has more than `most`."""
        per_row = 1
        while per_row < MAX_THREADS:
            # One more vector of a ragged row, which few threads have, does not double the threads if registers allow
            full = cluster == 1 and (per_row < WARP or self.costly)
            if per_row * cluster * most >= (count if full else whole):
                break
            per_row *= 2
        return walking.fewest_idle(per_row, count, count if self.costly else whole, most, cluster)

    def least_threads(self, columns: int, per_row: float, dtypes: Mapping[str, str]) -> int:
        """The threads of a block of several rows, each with so many threads: enough to read much at a time."""
        row, threads = columns * self.column_bytes(dtypes, own=True), LEAST_THREADS
        while threads < MORE_THREADS * LEAST_THREADS and threads / per_row * row < BLOCK_BYTES:
            threads *= 2
        return threads

    def _resident(self, vec: int, own: int, deep: bool) -> int:
        """The threads for which an SM has registers, if each holds so many bytes of its row and the values of one
        vector: the fewest if much is held, the most if little is computed and nothing is written."""
        if deep and own > 2 * THREAD_BYTES:
            return RESIDENT
        written = deep and any(a.mode != "row" for a in self.stores)
        return LEAN_RESIDENT if written or vec * (1 + len(self.rows)) > MOST_COMPUTED else MAX_THREADS

    def _walk(
        self,
        vec: int,
        ragged: bool,
        crossing: bool,
        dtypes: Mapping[str, str],
        extents: Extents,
        schedule: Mapping[str, int],
        arch: str | None,
    ) -> WalkLaunch:
        """The launch of an op that reduces columns, or everything."""
        own, width = dict(schedule), vec * self.column_bytes(dtypes)
        written = vec * sum(4 for a in self.stores if a.mode == "flat")
        if self.collapsed:
            return walking.everything(vec, ragged, width, written, self.costly, extents.total, own, arch)
        columns, rows, apart = extents.columns, extents.rows, extents.apart or 1
        inner = extents.inner
        if self.by_place and columns is not None and rows is not None and inner is not None:
            narrow = self.whole_vector(vec, inner, dtypes)
            needs = self.walking_needs(narrow, narrow * self.column_bytes(dtypes), dtypes, 1)
            split, whole = columns % narrow != 0, bool(self.rows)
            found = walking.by_place(narrow, split, needs, whole, columns, rows, apart, own, arch)
            if found is not None:
                crossing = inner % narrow != 0 and not split
                return replace(found, first=IDLE if self.rows else None, crossing=crossing)
        each = (1 if ragged or crossing else vec) if self.shares else None
        first: RowLaunch | WalkLaunch | None = None
        if self.rows:
            if columns is not None:
                needs = self.walking_needs(vec, width, dtypes, each or 1)
                found = walking.whole(vec, ragged, needs, self.lanes(vec), columns, rows, apart, own, arch)
                if found is not None:
                    return replace(found, each=each, first=IDLE, crossing=crossing)
            assert self.first is not None
            first = self.first.launch(dtypes, extents, {}, arch)
        assert not isinstance(first, WalkLaunch)
        values = first is not None or any(a.mode == "row" and a.tokens for a in self.loads)
        waves = 4 if self.inner else 1  # they compute more than they read: a block that has finished makes room
        lanes = self.lanes(vec)
        how = walking.tiles(
            vec, ragged, width, written, lanes, values, self.costly, waves, columns, rows, apart, own, arch
        )
        return replace(how, each=each, first=first, crossing=crossing)

    def walking_needs(self, vec: int, width: int, dtypes: Mapping[str, str], each: int) -> walking.Needs:
        """What a thread that walks down whole rows holds of each vector; `each` neighbouring columns have one result."""
        own = {a.array: a for a in self.loads if a.array is not None and a.mode in ("flat", "gather")}
        sizes = {a: DTYPES[dtypes[array.name]].size for array, a in own.items()}
        wide = 8 if "float64" in dtypes.values() else 4

        def sent_for(access: Access, size: int) -> bool:
            parts = access.array.parts if access.array is not None and access.interleaved else None
            return access.mode == "flat" and vec * size * (parts or 1) in (4, 8, 16)  # bytes at once

        return walking.Needs(
            width=width,
            fixed=vec * sum(n for a, n in sizes.items() if not self.of_row(a)),
            sums=wide * (vec // each) * sum(s.over == "column" for s in self.columns),
            costly=self.costly,
            alive=self.alive,
            folds=len(self.stages),
            stageable=all(sent_for(a, n) for a, n in sizes.items() if self.of_row(a)),
        )

    @staticmethod
    def _read_again(vec: int, ragged: bool, width: int, schedule: Mapping[str, int], cluster: int = 1) -> RowLaunch:
        """The launch for a row that registers cannot hold. Two blocks of a cluster are resident on an SM: so few rows
        at a time stay in the L2 cache."""
        cluster = schedule.get("cluster", cluster)
        threads = schedule.get("threads", 512 if cluster == 1 else MAX_THREADS)
        return RowLaunch(vec, ragged, threads, threads, max(1, THREAD_BYTES // width), cluster, False, False, False)
