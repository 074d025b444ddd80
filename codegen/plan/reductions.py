"""The plan of ops that reduce: along rows, over rows, or both.

Axes fall into two runs: `...` and what stands before the reduced axes make a row's place; the trailing, reduced axes are
its columns. A **row** kernel gives each row to some neighbouring threads, reads it once, keeps it in registers and folds
its statistics in stages, each of which may use those before; where a row is too long it is read again for each stage. A
**column** kernel gives each thread some columns and walks down the rows; each block's partial results are folded by
further kernels of the same call, in a fixed order: those of each column, of what some column axes share, or of everything.
A reduction over the last axes of a row, a fixed number of columns, is folded by the neighbouring lanes that hold them.

How an array is reached:

  flat     it has every column axis, last: vectors of consecutive columns, at its own place for the row
  row      it has no column axis: one value a row
  gather   it has some of the column axes: element by element
  index    no array at all: the coordinate itself; `size` likewise the extent
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from codegen.graph import online
from codegen.graph.nodes import DTYPES, Node, lost_axes
from codegen.plan import walking
from codegen.plan.access import Access, Extent, Group, View, vector_width
from codegen.plan.launches import IDLE, Extents
from codegen.plan.walking import clusters
from codegen.shared import WARP, RowLaunch, WalkLaunch
from codegen.spec.spec import Array

MAX_THREADS = 1024
LEAST_THREADS = 128  # of a block of several rows
MORE_THREADS = 4  # times as many, where they have little to read: a GPU starts only so many blocks in a time
BLOCK_BYTES = 8 * 1024  # that a block reads, if it may have more threads for that
# Vectors of rows in which each has a thread of its own: few threads are idle then, and neighbours read side by side
SHORT_ROWS = (1, 2, 3, 4, 7, 8)
LEAST_VECTOR = 4  # bytes that a narrower vector has, which fits rows as they are
THREAD_BYTES = 64  # bytes of inputs that a thread keeps before a row gets more threads
MOST_TOGETHER = 256  # bytes of an array's rows that a thread has at once
MOST_CARRIED = 384  # where dear values stay as well
REGISTER_BYTES = 96 * 1024  # of a block's registers that data may take
ROW_BYTES_IN_BLOCK = 64 * 1024  # bytes of a row that a block keeps
CLUSTER_ROW = 16 * 1024  # where a cluster shares it, and folds no columns
ALONE_ROW = 32 * 1024  # up to which a block keeps it alone even so: two such blocks at once
RESIDENT = 512  # threads that a processor then has registers for: some load while others fold
MANY_RESIDENT = 1280  # where they keep nothing but the row: while a cluster waits for its blocks, others load
LEAN_RESIDENT = 768  # where threads keep twice as much, and nothing beside it
MOST_COMPUTED = (
    24  # values of a thread, one for each column of a vector and each statistic, that leave registers for all
)
MAX_CLUSTER = 8  # what every GPU that has clusters can schedule


@dataclass(frozen=True)
class Statistic:
    """One reduction: its name in the kernel, and in which stage it is folded (0 needs no other statistic)."""

    name: str
    node: Node
    stage: int
    over: str  # row: along one; group: within one; column: over rows; total: over rows and all columns
    keeps: tuple[int, ...] = ()  # column: the groups that it keeps
    once: bool = False  # total: of one value a row
    width: int = 0  # group: how many columns

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
    """A value of each column that several passes over a row need and that is dear: the first one keeps it."""

    name: str
    node: Node
    stage: int  # of the pass that computes it


@dataclass(frozen=True)
class Reduction:
    """The plan of an op that reduces. The first `kept` groups are a row's place, the others its columns."""

    kind: str  # row, column or row+column
    groups: tuple[Group, ...]
    kept: int
    views: tuple[View, ...]
    loads: tuple[Access, ...]
    stores: tuple[Access, ...]
    rows: tuple[Statistic, ...]  # folded along a row
    columns: tuple[Statistic, ...]  # folded over rows
    inner: tuple[Statistic, ...]  # folded within a row, in groups of columns
    carried: tuple[Carried, ...]
    late: tuple[str, ...]  # the outputs that need all rows
    apart: tuple[
        int, ...
    ]  # the groups of a row's place that column statistics keep: only rows at one place of them meet
    order: tuple[str, ...]  # every axis: those of the jnp form's operands
    collapsed: bool  # only totals are reduced, and all arrays are one long row, or scalars
    dear: bool = False  # over rows: something costly is computed of each column
    alive: int = 1  # values of a column that are alive at once, at most
    first: Reduction | None = None  # row+column: of a kernel that writes the statistics of rows too long for this one

    @functools.cached_property
    def stages(self) -> tuple[tuple[Statistic, ...], ...]:
        count = 1 + max((s.stage for s in self.rows), default=-1)
        return tuple(tuple(s for s in self.rows if s.stage == i) for i in range(count))

    @functools.cached_property
    def sweeps(self) -> tuple[tuple[int, ...], ...]:
        """The stages that each pass over a row folds: two together where the second follows maxima of the first."""
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
        """The stages that are folded in the pass of the one before."""
        return {i for sweep in self.sweeps for i in sweep[1:]}

    @property
    def row_groups(self) -> tuple[Group, ...]:
        return self.groups[: self.kept]

    @property
    def walked_groups(self) -> tuple[Group, ...]:
        """Those of a row's place that are walked along."""
        return tuple(g for i, g in enumerate(self.row_groups) if i not in self.apart)

    @property
    def spread(self) -> tuple[int, ...]:
        """The groups that partial results of columns have."""
        return (*self.apart, *range(self.kept, len(self.groups)))

    @property
    def column_groups(self) -> tuple[Group, ...]:
        return self.groups[self.kept :]

    @property
    def kernels(self) -> int:
        """How many a call launches: one more for each set of axes that outputs over rows have."""
        return 1 + len({v.array.axes for v in self.views if v.array.name in self.late})

    @property
    def extremes(self) -> tuple[Node, ...]:
        """The reductions that need an element: max and min."""
        return tuple(s.node for s in (*self.rows, *self.columns, *self.inner) if s.op in ("max", "min"))

    def view(self, name: str) -> View:
        return next(v for v in self.views if v.array.name == name)

    def aligned(self, access: Access) -> bool:
        """Whether the array's vectors are aligned in memory whatever the number of columns, once they are for one such
        array: it has every axis, in order, and is read at the row's own place."""
        tokens = access.tokens[:-1] if access.tokens[-1:] == ("parts",) else access.tokens
        return access.mode == "flat" and access.index_of is None and tokens == tuple(range(len(self.groups)))

    def of_row(self, access: Access) -> bool:
        """Whether each row has its own values in an array that is read in vectors; else all that meet share them."""
        own = [t for t in access.tokens if t != "parts" and t not in self.apart]
        taken = self.taken_mode(access)
        if access.index_of is not None and taken is not None:  # where it is read along this axis says the index
            own = [t for t in own if t != access.tokens[taken]]
            own += [t for t in self.view(access.index_of[0]).tokens if t not in self.apart]
        return not self.kept or any(not isinstance(t, int) or t < self.kept for t in own)

    def taken_mode(self, access: Access) -> int | None:
        """The mode of a table at which an index says the place; None for what is read at its own."""
        if access.index_of is None:
            return None
        _, axis = access.index_of
        modes = (
            i for i, t in enumerate(access.tokens) if t == axis or (isinstance(t, int) and axis in self.groups[t].axes)
        )
        return next(modes)

    def picks(self, access: Access) -> bool:
        """Whether an index says each column's place in a table, not each row's alone."""
        if access.index_of is None:
            return False
        return any(isinstance(t, int) and t >= self.kept for t in self.view(access.index_of[0]).tokens)

    @property
    def shares(self) -> bool:
        """Whether no result of columns varies along the innermost axis: neighbouring columns have one together."""
        return bool(self.columns) and not self.collapsed and all(
            s.over == "column" and len(self.groups) - 1 not in s.keeps for s in self.columns
        )  # fmt: skip

    @functools.cached_property
    def by_place(self) -> bool:
        """Whether there is a kernel whose threads reduce all rows that meet at one place: all reductions over rows keep the
        same axes, and so do the outputs that need them."""
        late = [a for a in self.stores if a.array is not None and a.array.name in self.late]
        kept = {tuple(t for t in a.tokens if t != "parts") for a in late}
        alike = all(s.over == "column" and s.keeps == self.spread for s in self.columns)
        return bool(self.apart) and alike and kept == {self.spread} and not self.collapsed and not self.inner

    @property
    def shifts(self) -> bool:
        """Whether a ragged row's vectors start where memory is aligned, before the row itself: nothing may need its
        coordinates one by one, and no thread keep its columns from row to row."""
        gathers = any(
            a.mode in ("gather", "index") and (len(self.column_groups) > 1 or self.picks(a)) for a in self.loads
        )
        aligned = any(self.aligned(a) for a in (*self.loads, *self.stores))
        return (self.kind == "row" or self.collapsed) and aligned and not gathers

    @property
    def full(self) -> tuple[tuple[Array, int], ...]:
        """Arrays read or written in vectors, and how many of their elements one access takes at a position."""
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
        room = walking.most_kept(self.dear, False) if self.rows and self.columns else THREAD_BYTES
        kept = vec * max(1, room // (vec * self.column_bytes(dtypes)))
        return vec, kept, 32 * vec, 32 * kept

    def width(
        self, dtypes: Mapping[str, str], schedule: Mapping[str, int], shared: bool = True, late: bool = True
    ) -> int:
        """Columns of a vector: none holds columns of two groups. Without the `shared` arrays, of which rows have none of their
        own, or without the outputs that need all rows, as many as fill one of the others."""
        return min([vector_width(self.widest(dtypes, shared, late), schedule), *(s.width for s in self.inner)])

    def widest(self, dtypes: Mapping[str, str], shared: bool = True, late: bool = True) -> int:
        """Bytes that a column takes of the array whose columns are widest."""
        found = [(a, n) for a, n in self.full if shared or self.order[0] in a.axes]
        found = [(a, n) for a, n in found if late or a.name not in self.late]
        return max((DTYPES[dtypes[a.name]].size * n for a, n in found), default=4)

    def whole_vector(self, vec: int, inner: int, dtypes: Mapping[str, str]) -> int:
        """A narrower vector where rows are whole ones of it, so that no vector lies across two rows: of 4 bytes and more, or
        where rows are shorter than two vectors, of an element."""
        narrow = inner & -inner
        return narrow if inner % vec and (narrow * self.widest(dtypes) >= LEAST_VECTOR or inner < 2 * vec) else vec

    @functools.cached_property
    def whole_rows(self) -> bool:
        """Whether neighbouring rows can be read and written together: all that is written, and what is read along a row, has
        the rows' every axis, in order."""
        values = all(a.tokens == tuple(range(self.kept)) for a in self.stores if a.mode == "row")
        own = [a for a in (*self.loads, *self.stores) if a.mode in ("flat", "gather") and self.of_row(a)]
        plain = not self.inner and not any(map(self.picks, self.loads))
        return self.kind == "row" and self.kept > 0 and plain and values and all(map(self.aligned, own))

    def together(self, columns: int, dtypes: Mapping[str, str], schedule: Mapping[str, int]) -> int:
        """How many rows are whole vectors together, where a thread has room for them; else one."""
        vec = self.width(dtypes, schedule)
        rows = vec // math.gcd(columns, vec)
        # So that what a block hands on stays within 32 KiB of shared memory
        room = MOST_TOGETHER * LEAST_THREADS // max(LEAST_THREADS, schedule.get("threads", 0))
        fits = self.whole_rows and rows * columns * self.widest(dtypes) <= room
        return rows if fits and not schedule.keys() & {"threads_per_row", "cluster"} else 1

    def lanes(self, vec: int) -> int:
        """Neighbouring threads that a group of columns needs in one block."""
        return max([1, *(s.width // vec for s in self.inner)])

    def column_bytes(self, dtypes: Mapping[str, str], own: bool = False) -> int:
        """Bytes that one column of a row takes, of all the inputs that stay in registers; `own`: of those alone of which
        neighbouring rows have others."""
        loaded: dict[Array, int] = {}
        for access in self.loads:
            if access.array is not None and (access.mode == "flat" or self.picks(access)) and self.of_row(access):
                if not own or access.index_of is not None or self.kept - 1 in access.tokens:
                    loaded[access.array] = loaded.get(access.array, 0) + DTYPES[dtypes[access.array.name]].size
        return sum(loaded.values()) or (self.column_bytes(dtypes) if own else 4)

    @property
    def alone(self) -> bool:
        """Whether a row is of one array."""
        return len({a.array for a in self.loads if a.mode == "flat" and self.of_row(a)}) == 1

    def vector_bytes(self, dtypes: Mapping[str, str]) -> list[int]:
        """The same of each array that is read along a row, those that all rows share among them."""
        arrays = [a.array for a in self.loads if a.array is not None and a.mode in ("flat", "gather")]
        return [DTYPES[dtypes[array.name]].size for array in arrays]

    @property
    def passes(self) -> int:
        """How many times a row is read where it is not kept: once a sweep, once more for what is written along it."""
        written = any(a.mode != "row" for a in self.stores) or self.columns
        return len(self.sweeps) + bool(written)

    def rows_read(self, how: RowLaunch | WalkLaunch) -> int:
        """How often a launch reads a row; where a kernel before folds its statistics, once more than that one."""
        if isinstance(how, RowLaunch):
            return 1 if how.kept else self.passes
        return 1 if how.whole or how.first is None else 1 + (1 if how.first.kept else len(self.sweeps))

    def rows_and_columns(self, extent: Extent) -> tuple[int, int]:
        """How many rows there are, and columns; where everything is reduced, one row of all."""
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
        width = vec * self.column_bytes(dtypes)  # bytes that one vector of every input takes
        if self.columns:
            return self._walk(vec, ragged, width, dtypes, extents, schedule, arch)
        columns = extents.columns
        if columns is None:
            return self._read_again(vec, ragged, width, schedule)
        if (at_once := self.together(columns, dtypes, schedule)) > 1:
            threads = schedule.get("threads", self.least_threads(columns, 1 / at_once, dtypes))
            carried = bool(self.carried)
            return RowLaunch(columns, False, threads, 1, 1, 1, True, True, carried, at_once=at_once)
        count = -(-(columns + (vec - 1 if ragged else 0)) // vec) or 1
        row, kept, cluster = columns // vec * width, THREAD_BYTES, 1
        alone = vec * self.column_bytes(dtypes, own=True)  # of a vector, without what neighbouring rows have too
        if clusters(arch) and row > ALONE_ROW:
            cluster = 4 if row <= 4 * CLUSTER_ROW else MAX_CLUSTER
            kept *= 1 if row <= cluster * CLUSTER_ROW else 4 if row > 2 * cluster * CLUSTER_ROW and self.alone else 2
        cluster = schedule.get("cluster", cluster)
        short = cluster == 1 and not ragged and count in SHORT_ROWS
        most = 1 if short else max(1, kept // alone)
        per_row = 1
        while per_row < MAX_THREADS:
            # A ragged row's one vector more, which few threads have, is no reason for twice as many, where registers allow
            full = cluster == 1 and per_row < WARP
            if per_row * cluster * most >= (count if full else columns // vec):
                break
            per_row *= 2
        per_row = schedule.get("threads_per_row", per_row)
        per_row = max(per_row, 32 if cluster > 1 else self.lanes(vec))
        vectors = -(-count // (per_row * cluster))
        whole = -(-(columns // vec) // (per_row * cluster)) or 1  # a thread's, but for what a ragged row has more
        exact = columns > 0 and not ragged and count == vectors * per_row * cluster
        if whole * width * per_row > max(ROW_BYTES_IN_BLOCK, width * per_row):
            return self._read_again(vec, ragged, width, schedule, MAX_CLUSTER if clusters(arch) else 1)
        threads = max(per_row, schedule.get("threads", self.least_threads(columns, per_row, dtypes)))
        own, dear = whole * width, 4 * vec * vectors * len(self.carried)
        carried = 0 < dear <= min(MOST_CARRIED, REGISTER_BYTES // threads) - vectors * width
        deep = cluster > 1 and self.alone and own > THREAD_BYTES
        lean = deep or (ragged and own >= THREAD_BYTES and (cluster > 1 or not carried))
        resident = 0
        if lean and cluster > 1 and self.alone:
            resident = self._resident(vec, own, deep)
        elif cluster == 1 and clusters(arch) and CLUSTER_ROW < row <= ALONE_ROW:
            simple = all(a.mode in ("flat", "row") for a in self.loads)  # places of other values take registers, too
            resident = 2 * threads if simple else 0
        elif (
            cluster > 1
            and kept == THREAD_BYTES
            and THREAD_BYTES < whole * vec * sum(self.vector_bytes(dtypes)) < 4 * THREAD_BYTES
        ):
            lean, resident = not carried, RESIDENT if carried else MANY_RESIDENT
        return RowLaunch(
            vec,
            ragged,
            threads,
            per_row,
            vectors,
            cluster,
            True,
            exact,
            carried and not lean,
            lean,
            resident // threads,
        )

    def least_threads(self, columns: int, per_row: float, dtypes: Mapping[str, str]) -> int:
        """Of a block of several rows, each of so many threads: so many that it has enough to read."""
        row, threads = columns * self.column_bytes(dtypes, own=True), LEAST_THREADS
        while threads < MORE_THREADS * LEAST_THREADS and threads / per_row * row < BLOCK_BYTES:
            threads *= 2
        return threads

    def _resident(self, vec: int, own: int, deep: bool) -> int:
        """Threads that a processor has registers for, where each keeps so many bytes of its row, and besides only what it
        computes of a vector: the least where much is kept, the most where little is computed and nothing written."""
        if deep and own > 2 * THREAD_BYTES:
            return RESIDENT
        written = deep and any(a.mode != "row" for a in self.stores)
        return LEAN_RESIDENT if written or vec * (1 + len(self.rows)) > MOST_COMPUTED else MAX_THREADS

    def _walk(
        self,
        vec: int,
        ragged: bool,
        width: int,
        dtypes: Mapping[str, str],
        extents: Extents,
        schedule: Mapping[str, int],
        arch: str | None,
    ) -> WalkLaunch:
        """That of an op that folds columns, or everything."""
        own = dict(schedule)
        written = vec * sum(4 for a in self.stores if a.mode == "flat")
        if self.collapsed:
            return walking.everything(vec, ragged, width, written, self.dear, extents.total, own, arch)
        columns, rows, apart = extents.columns, extents.rows, extents.apart or 1
        inner = extents.inner
        if self.by_place and columns is not None and rows is not None and inner is not None:
            narrow = self.whole_vector(vec, inner, dtypes)
            needs = self.walking_needs(narrow, narrow * self.column_bytes(dtypes), dtypes, 1)
            lies, has_rows = inner % narrow != 0, bool(self.rows)
            found = walking.by_place(narrow, lies, needs, has_rows, columns, rows, apart, own, arch)
            if found is not None:
                return replace(found, first=IDLE if self.rows else None)
        each = (1 if ragged else vec) if self.shares else None
        first: RowLaunch | WalkLaunch | None = None
        if self.rows:
            if columns is not None:
                needs = self.walking_needs(vec, width, dtypes, each or 1)
                found = walking.whole(vec, ragged, needs, self.lanes(vec), columns, rows, apart, own, arch)
                if found is not None:
                    return replace(found, each=each, first=IDLE)
            assert self.first is not None
            first = self.first.launch(dtypes, extents, {}, arch)
        assert not isinstance(first, WalkLaunch)
        values = first is not None or any(a.mode == "row" and a.tokens for a in self.loads)
        waves = 4 if self.inner else 1  # which compute more than they read: a block that is done makes room
        lanes = self.lanes(vec)
        how = walking.tiles(
            vec, ragged, width, written, lanes, values, self.dear, waves, columns, rows, apart, own, arch
        )
        return replace(how, each=each, first=first)

    def walking_needs(self, vec: int, width: int, dtypes: Mapping[str, str], each: int) -> walking.Needs:
        """What a thread that walks down whole rows keeps of each vector; `each` neighbouring columns have one result."""
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
            dear=self.dear,
            alive=self.alive,
            folds=len(self.stages),
            stageable=all(sent_for(a, n) for a, n in sizes.items() if self.of_row(a)),
        )

    @staticmethod
    def _read_again(vec: int, ragged: bool, width: int, schedule: Mapping[str, int], cluster: int = 1) -> RowLaunch:
        """A row that no registers hold; of a cluster's blocks, two fill a processor: so few rows at once stay in the L2 cache."""
        cluster = schedule.get("cluster", cluster)
        threads = schedule.get("threads", 512 if cluster == 1 else MAX_THREADS)
        return RowLaunch(vec, ragged, threads, threads, max(1, THREAD_BYTES // width), cluster, False, False, False)
