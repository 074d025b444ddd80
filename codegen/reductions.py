"""The plan of ops that reduce: along rows, over rows, or both.

Axes fall into two runs: `...` and what stands before the reduced axes make a row's place; the trailing, reduced axes are
its columns. A **row** kernel gives each row to some neighbouring threads, reads it once, keeps it in registers and folds
its statistics in stages, each of which may use those before; where a row is too long it is read again for each stage. A
**column** kernel gives each thread some columns and walks down the rows; each block's partial results are folded by a
second kernel of the same call, in a fixed order.

How an array is reached:

  flat     it has every column axis, last: vectors of consecutive columns, at its own place for the row
  row      it has no column axis: one value a row
  gather   it has some of the column axes: element by element
  index    no array at all: the coordinate itself; `size` likewise the extent
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from codegen.errors import Diagnostic, Mistake, SpecError
from codegen.ir import DTYPES, ROWS, Node, Statement, topological
from codegen.names import REDUCING_NAMES
from codegen.ops import COSTLY, REDUCTIONS
from codegen.plan import (
    MAX_AXES,
    Access,
    Extent,
    Extents,
    Group,
    ModeOf,
    Names,
    Planner,
    Tokens,
    View,
    tokens_of,
    vector_width,
)
from codegen.spec import Array, Spec

MAX_THREADS = 1024
LEAST_THREADS = 128  # of a block of several rows
KEPT = 64  # bytes of inputs that a thread keeps before a row gets more threads
MOST_CARRIED = 384  # where dear values stay as well
REGISTER_BYTES = 96 * 1024  # of a block's registers that data may take
MOST_KEPT_WALKING = 256  # where column statistics stay as well
BLOCK_ROW = 64 * 1024  # bytes of a row that a block keeps
CLUSTER_ROW = 16 * 1024  # where a cluster can share it, and fold no columns
RESIDENT = 512  # threads that a processor then has registers for: some load while others fold
LEAN_RESIDENT = 768  # where threads keep twice as much
MAX_STAGES = 16
MAX_CLUSTER = 8  # what every GPU that has clusters can schedule
WALK_THREADS = 256  # of a block that walks down rows
WALK_BLOCKS = 512  # that such a kernel aims for, unless whole rows meet in them
WALK_WHOLE = 264  # where they do: two for each processor of today's largest GPUs
WALK_ROWS = 8  # that a thread reads at once, at most
WALK_BYTES = 128  # and of them


@dataclass(frozen=True)
class Statistic:
    """One reduction: its name in the kernel, and in which stage it is folded (0 needs no other statistic)."""

    name: str
    node: Node
    stage: int

    @property
    def op(self) -> str:
        return self.node.op

    @property
    def operand(self) -> Node:
        return self.node.args[0]

    @property
    def kind(self) -> str:
        return self.node.kind


@dataclass(frozen=True)
class Carried:
    """A value of each column that several passes over a row need and that is dear: the first one keeps it."""

    name: str
    node: Node
    stage: int  # of the pass that computes it


@dataclass(frozen=True)
class RowLaunch:
    """What a call adds to the plan of a row kernel. `vectors` a thread, `per_row` threads, `cluster` blocks a row."""

    vec: int
    ragged: bool
    threads: int
    per_row: int
    vectors: int
    cluster: int
    kept: bool  # the row stays in registers; else every stage reads it again
    exact: bool  # every vector of every thread lies inside the row
    carried: bool  # dear values stay in registers as well
    lean: bool = False  # nothing stays there but the row, not even what the compiler would keep
    resident: int = 0  # blocks that a processor has registers for, at least, unless 0

    @property
    def constants(self) -> dict[str, int | bool]:
        names = (
            "vec",
            "ragged",
            "threads",
            "per_row",
            "vectors",
            "cluster",
            "kept",
            "exact",
            "carried",
            "lean",
            "resident",
        )
        return {name: getattr(self, name) for name in names}

    @property
    def rows_a_block(self) -> int:
        return self.threads // self.per_row

    def blocks(self, rows: int, columns: int) -> int:
        """Those of a row kernel."""
        return (rows // self.rows_a_block + 1) * self.cluster


@dataclass(frozen=True)
class WalkLaunch:
    """What a call adds to the plan of a kernel that walks down rows: each of `parts` groups of blocks takes every parts-th
    handful of rows, `at_once` for each of its threads, and leaves one partial result for every column."""

    vec: int
    ragged: bool
    threads: int
    per_row: int
    vectors: int
    cluster: int
    at_once: int
    exact: bool  # every vector of every thread lies inside a row
    parts: int

    @property
    def constants(self) -> dict[str, int | bool]:
        names = ("vec", "ragged", "threads", "per_row", "vectors", "cluster", "at_once", "exact")
        return {name: getattr(self, name) for name in names}

    def blocks(self, rows: int, columns: int) -> int:
        """Those that walk down the rows; another kernel folds their parts."""
        del rows
        whole = self.cluster > 1 or self.vectors > 1 or self.at_once == 1 or self.per_row == self.threads
        return self.parts * (self.cluster if whole else -(-columns // (self.per_row * self.vec)))


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
    carried: tuple[Carried, ...]
    order: tuple[str, ...]  # every axis: those of the jnp form's operands
    collapsed: bool  # everything is reduced, and all arrays are one long row, or scalars

    @functools.cached_property
    def stages(self) -> tuple[tuple[Statistic, ...], ...]:
        count = 1 + max((s.stage for s in self.rows), default=-1)
        return tuple(tuple(s for s in self.rows if s.stage == i) for i in range(count))

    @property
    def row_groups(self) -> tuple[Group, ...]:
        return self.groups[: self.kept]

    @property
    def column_groups(self) -> tuple[Group, ...]:
        return self.groups[self.kept :]

    @property
    def extremes(self) -> tuple[Node, ...]:
        """The reductions that need an element: max and min."""
        return tuple(s.node for s in (*self.rows, *self.columns) if s.op in ("max", "min"))

    def view(self, name: str) -> View:
        return next(v for v in self.views if v.array.name == name)

    def aligned(self, access: Access) -> bool:
        """Whether the array's vectors are aligned in memory whatever the number of columns, once they are for one such
        array: it has every axis, in order."""
        tokens = access.tokens[:-1] if access.tokens[-1:] == ("parts",) else access.tokens
        return access.mode == "flat" and tokens == tuple(range(len(self.groups)))

    def of_row(self, access: Access) -> bool:
        """Whether each row has its own values in an array that is read in vectors; else all rows share them."""
        return not self.kept or any(not isinstance(t, int) or t < self.kept for t in access.tokens if t != "parts")

    @property
    def shifts(self) -> bool:
        """Whether a ragged row's vectors start where memory is aligned, before the row itself: nothing may need its
        coordinates one by one, and no thread keep its columns from row to row."""
        gathers = any(a.mode in ("gather", "index") and len(self.column_groups) > 1 for a in self.loads)
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
        kept = vec * max(1, KEPT // (vec * self.column_bytes(dtypes)))
        return vec, kept, 32 * vec, 32 * kept

    def width(self, dtypes: Mapping[str, str], schedule: Mapping[str, int]) -> int:
        """Columns of a vector."""
        return vector_width(max((DTYPES[dtypes[a.name]].size * n for a, n in self.full), default=4), schedule)

    def column_bytes(self, dtypes: Mapping[str, str]) -> int:
        """Bytes that one column of a row takes, of all the inputs that stay in registers."""
        loaded: dict[Array, int] = {}
        for access in self.loads:
            if access.array is not None and access.mode == "flat" and self.of_row(access):
                loaded[access.array] = loaded.get(access.array, 0) + DTYPES[dtypes[access.array.name]].size
        return sum(loaded.values()) or 4

    def vector_bytes(self, dtypes: Mapping[str, str]) -> list[int]:
        """The same of each array that is read along a row, those that all rows share among them."""
        arrays = [a.array for a in self.loads if a.array is not None and a.mode in ("flat", "gather")]
        return [DTYPES[dtypes[array.name]].size for array in arrays]

    @property
    def passes(self) -> int:
        """How many times a row is read where it is not kept: once a stage, once more for what is written along it."""
        written = any(a.mode != "row" for a in self.stores) or self.columns
        return len(self.stages) + bool(written)

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
        """The launch for arrays of these dtypes (by name); `schedule` overrides (`overrides`). Raises `Mistake` where rows
        are too long for a kernel that folds both along and over them."""
        vec = self.width(dtypes, schedule)
        inner = extents.total if self.collapsed else extents.inner
        ragged = vec > 1 and (inner is None or inner % vec != 0)
        width = vec * self.column_bytes(dtypes)  # bytes that one vector of every input takes
        if self.collapsed or not self.rows:
            return self._walk(vec, ragged, width, extents, schedule)
        columns = extents.columns
        if columns is None:
            if self.columns:
                raise Mistake("the number of columns must be known when this kernel is compiled")
            return self._read_again(vec, ragged, width, schedule)
        count = -(-(columns + (vec - 1 if ragged else 0)) // vec) or 1
        row, kept, cluster = columns // vec * width, KEPT, 1
        if clusters(arch) and row > CLUSTER_ROW:
            share = CLUSTER_ROW * (2 if self.columns else 1)  # whose blocks meet less often the fewer they are
            cluster = next((c for c in (2, 4) if row <= c * share), MAX_CLUSTER)
            kept *= 2 if row > cluster * CLUSTER_ROW else 1
        cluster = schedule.get("cluster", cluster)
        folded = width + 4 * vec * len(self.columns)
        most = max(1, min(kept // width, MOST_KEPT_WALKING // folded))
        # A ragged row's one vector more is no reason for more threads in each block of a cluster, where registers allow
        arrays = self.vector_bytes(dtypes)
        full = cluster == 1 or (kept > KEPT and len(arrays) == 1)
        needed = count if full else columns // vec
        per_row = 1
        while per_row < MAX_THREADS // (2 if self.columns else 1) and per_row * cluster * most < needed:
            per_row *= 2
        per_row = schedule.get("threads_per_row", per_row)
        if cluster > 1:
            per_row = max(per_row, 32)
        vectors = -(-count // (per_row * cluster))
        exact = columns > 0 and not ragged and count == vectors * per_row * cluster
        if self.columns:
            most_kept = MOST_KEPT_WALKING if cluster == 1 else REGISTER_BYTES // per_row
            if vectors * folded > max(most_kept, folded):
                message = f"{columns} columns are more than one kernel keeps while it folds along rows and over them"
                raise Mistake(message, "split the op in two: one along rows, one over them")
            threads = max(per_row, schedule.get("threads", LEAST_THREADS))
            rows = -(-(extents.rows or 2**31) // (threads // per_row))
            parts = max(1, min(WALK_WHOLE // cluster, rows))
            return WalkLaunch(vec, ragged, threads, per_row, vectors, cluster, 1, exact and threads == per_row, parts)
        if vectors * width * per_row > max(BLOCK_ROW, width * per_row):
            return self._read_again(vec, ragged, width, schedule)
        threads = max(per_row, schedule.get("threads", LEAST_THREADS))
        held = vectors * vec * sum(arrays)
        lean = cluster > 1 and len(arrays) == 1 and KEPT < held <= 2 * KEPT
        few = cluster > 1 and kept == KEPT and KEPT < held < 4 * KEPT
        resident = (LEAN_RESIDENT if lean else RESIDENT if few else 0) // threads
        dear = 4 * vec * vectors * len(self.carried)
        carried = not lean and 0 < dear <= min(MOST_CARRIED, REGISTER_BYTES // threads) - vectors * width
        return RowLaunch(vec, ragged, threads, per_row, vectors, cluster, True, exact, carried, lean, resident)

    def _walk(self, vec: int, ragged: bool, held: int, extents: Extents, schedule: Mapping[str, int]) -> WalkLaunch:
        """Columns, or everything: each thread has its own, no row is whole in a block."""
        threads = schedule.get("threads", WALK_THREADS)
        values = any(a.mode == "row" and a.tokens for a in self.loads)  # of rows: registers for each of them
        at_once = max(1, min(WALK_ROWS // (2 if values else 1), WALK_BYTES // held))
        if self.collapsed:
            width = threads * vec
            rows = -(-(extents.total or 2**40) // width)
            parts = max(1, min(WALK_BLOCKS, -(-rows // at_once)))
            return WalkLaunch(vec, ragged, threads, threads, 1, 1, at_once, False, parts)
        per_row, columns = 1, extents.columns
        while per_row < 32 and (columns is None or per_row * vec < columns):
            per_row *= 2
        tiles = -(-(columns or 4096) // (per_row * vec)) or 1
        rows = -(-(extents.rows or 2**31) // (threads // per_row * at_once))
        parts = max(1, min(-(-WALK_BLOCKS // tiles), rows))
        return WalkLaunch(vec, ragged, threads, per_row, 1, 1, at_once, False, parts)

    @staticmethod
    def _read_again(vec: int, ragged: bool, width: int, schedule: Mapping[str, int]) -> RowLaunch:
        threads = schedule.get("threads", 512)
        return RowLaunch(vec, ragged, threads, threads, max(1, KEPT // width), 1, False, False, False)


def clusters(arch: str | None) -> bool:
    """Whether an architecture's blocks share rows in clusters, through each other's shared memory."""
    return arch is not None and arch.startswith(("sm_90", "sm_100", "sm_103"))


def make_plan(spec: Spec, statements: tuple[Statement, ...]) -> Reduction:
    """The plan for a checked spec with a reduction. Raises `SpecError` where no kernel of ours can do it."""
    planner = _Reductions(spec, statements)
    problems = planner.refusals()
    if problems:
        raise SpecError(problems)
    return planner.plan()


class _Reductions(Planner):
    def __init__(self, spec: Spec, statements: tuple[Statement, ...]):
        super().__init__(spec, statements)
        used = {axis for node in self.nodes for axis in node.dims}
        taken = {n.attr for n in self.nodes if n.op == "take"}
        tables = {a for n in self.nodes if n.op == "take" for a in n.args[0].dims} & taken
        others = {a for n in self.nodes if n.op not in ("take", "input") for a in n.dims}
        self.axes = tuple(
            a for a in spec.axes if a in used and (a not in tables or a in others or self.reduced_over(a))
        )
        self.reduced = [n for n in self.nodes if n.op in REDUCTIONS]

    def reduced_over(self, axis: str) -> bool:
        return any(n.op in REDUCTIONS and axis in axes_of(n) for n in self.nodes)

    def refusals(self) -> list[Diagnostic]:
        """What no kernel does yet, or ever: one message for the first reason found."""
        if any(n.op == "contract" for n in self.nodes):
            return [self.mistake_in_chain({"contract"}, "no kernel for a contraction (@) yet", "")]
        checks = (
            self.refuse_stages,
            self.refuse_names,
            self.refuse_axes,
            self.refuse_orders,
            self.refuse_waiting,
            self.refuse_gathers,
            self.refuse_outputs,
            self.refuse_partial,
        )
        for check in checks:
            problem = check()
            if problem:
                return [problem]
        return []

    def split(self) -> int:
        """How many of the axes are a row's place: what stands before the axes reduced along a row, or after those reduced
        over rows."""
        along = [axes_of(n) for n in self.reduced if not self.leads(n)]
        if along:
            return min(self.axes.index(axis) for axis in along[0])
        return max(len(axes_of(n)) for n in self.reduced)

    def leads(self, node: Node) -> bool:
        """Whether a reduction is over the leading axes: the rows."""
        axes = axes_of(node)
        return axes == self.axes[: len(axes)] and (ROWS in axes or len(axes) < len(self.axes) or not self.trails_only())

    def trails_only(self) -> bool:
        """Whether everything reduced is along one set of trailing axes, so that a reduction over all axes is a row's."""
        return ROWS not in self.axes and all(axes_of(n) == self.axes[-len(axes_of(n)) :] for n in self.reduced)

    def refuse_axes(self) -> Diagnostic | None:
        sets = {axes_of(n): n for n in self.reduced}
        for axes, node in sets.items():
            if axes != self.axes[: len(axes)] and axes != self.axes[-len(axes) :]:
                names = ", ".join(axes)
                message = f"no kernel reduces over {names} and keeps axes on both sides of {'it' if len(axes) == 1 else 'them'}"
                return self.mistake_in_chain({node.op}, message, f"the axes in order: {', '.join(self.axes)}")
        rows = {axes for axes, n in sets.items() if not self.leads(n)}
        columns = {axes for axes, n in sets.items() if self.leads(n)}
        for group in (rows, columns):
            if len(group) > 1:
                a, b = sorted(group, key=len)[:2]
                message = f"no kernel reduces over {', '.join(a)} and over {', '.join(b)} in one op"
                return self.mistake_in_chain({sets[a].op}, message, "make two ops of it")
        if rows and columns and len(next(iter(rows))) + len(next(iter(columns))) != len(self.axes):
            a, b = next(iter(rows)), next(iter(columns))
            message = f"no kernel reduces over {', '.join(a)} and over {', '.join(b)} in one op"
            return self.mistake_in_chain({sets[a].op}, message, "make two ops of it")
        return None

    def refuse_orders(self) -> Diagnostic | None:
        for array in self.spec.arrays:
            if tuple(a for a in self.spec.axes if a in array.axes) != array.axes:
                message = f"{array.name!r} is {array}, but other arrays have these axes in another order"
                return self.mistake(message, "a kernel that reduces does not transpose: give all the same order", array)
        if len(self.axes) > MAX_AXES:
            return self.mistake(f"{len(self.axes)} axes; a kernel has at most {MAX_AXES}", "", self.spec.outputs[0])
        return None

    def refuse_waiting(self) -> Diagnostic | None:
        """What would need every row to wait for all others."""
        columns = {id(n): n for n in self.reduced if self.leads(n)}
        late: set[int] = set()
        for node in self.nodes:
            if id(node) in columns or any(id(a) in late for a in node.args):
                late.add(id(node))
        place = self.split()
        row_axes = set(self.axes[:place])
        for node in self.nodes:
            needs = id(node) in late and (
                row_axes & set(node.dims) or (node.op in REDUCTIONS and id(node.args[0]) in late)
            )
            if needs:
                op = next(n.op for n in columns.values())
                message = f"every row would wait for all others: this needs a reduction ({op}) over {', '.join(self.axes[:place])}"
                return self.mistake_in_chain({op}, message, "make two ops: one that reduces, one that takes its result")
        return None

    def refuse_names(self) -> Diagnostic | None:
        """Parameters keep their names in the kernel."""
        for param in self.spec.params:
            if param.name in REDUCING_NAMES:
                message = f"{param.name!r} cannot name a parameter here: a kernel that reduces uses it"
                return self.spec.source.diagnostic(self.spec.chain.span, message, "pick another name")
        return None

    def refuse_stages(self) -> Diagnostic | None:
        """Statistics that need others that need others ... each cost the row another pass."""
        depth: dict[int, int] = {}
        for node in self.nodes:
            depth[id(node)] = max((depth[id(a)] for a in node.args), default=0) + (node.op in REDUCTIONS)
            if depth[id(node)] > MAX_STAGES:
                message = f"more than {MAX_STAGES} reductions one after the other, each of the one before"
                return self.mistake_in_chain({node.op}, message, "make several ops of it")
        return None

    def refuse_gathers(self) -> Diagnostic | None:
        """Tables are read at one place a row."""
        place = self.split()
        for node in self.nodes:
            if node.op == "take" and set(node.args[1].dims) & set(self.axes[place:]):
                message = f"no kernel that reduces gathers at an index along {', '.join(self.axes[place:])}"
                return self.mistake_in_chain({"take"}, message, "an index of such an op has one value a row")
        return None

    def refuse_outputs(self) -> Diagnostic | None:
        place = self.split()
        row_axes, column_axes = self.axes[:place], self.axes[place:]
        known = {a for array in self.spec.inputs if array.default is None for a in array.axes} | set(self.spec.extents)
        values = {s.name: s.value for s in self.statements}
        columns = {id(n) for n in self.reduced if self.leads(n)}
        for output in self.spec.outputs:
            for axis in output.axes:
                if axis not in known:
                    message = f"the axis {axis} of {output.name!r} is on no input that is always there"
                    return self.mistake(message, "its extent would be unknown: give such an input that axis", output)
            over_rows = any(id(n) in columns for n in topological([values[output.name]]))
            wanted = [column_axes] if over_rows else [(*row_axes, *column_axes), row_axes]
            if output.axes not in wanted:
                what = f"{'column' if over_rows else 'row'} reductions here give {' or '.join(_brackets(w) for w in wanted)}"
                return self.mistake(f"{output.name!r} is {output}, but {what}", "make it an op of its own", output)
        return None

    def refuse_partial(self) -> Diagnostic | None:
        """A reduction over everything walks through its arrays as they lie in memory."""
        if self.split() < len(self.axes):
            return None
        for array in self.spec.arrays:
            if array.axes and (array.axes != self.axes or array.parts):
                message = f"no kernel reduces over everything where an array, {array.name!r}, is {array}"
                return self.mistake(
                    message, f"arrays of such an op are scalars, or have all of {', '.join(self.axes)}", array
                )
        if any(n.op in ("index", "size", "take") for n in self.nodes):
            return self.mistake_in_chain(
                {"index", "size", "take"}, "no kernel that reduces over everything has places", ""
            )
        return None

    def plan(self) -> Reduction:
        if self.split() == len(self.axes):
            return self.everything()
        apart = {n.attr for n in self.nodes if n.op in ("index", "size")}
        place = self.split()
        groups = self.groups(apart, self.axes[place] if place < len(self.axes) else None)
        kept = sum(set(g.axes) <= set(self.axes[:place]) for g in groups)
        tokens = {a.name: tokens_of(a, groups) for a in self.spec.arrays}
        views = tuple(View(a, tokens[a.name]) for a in self.spec.arrays)
        names = Names(self.spec, self.statements)

        def mode(own: tuple[int | str, ...]) -> str:
            columns = [t for t in own if isinstance(t, int) and t >= kept]
            if not columns:
                return "row"
            tail = own[:-1] if own[-1] == "parts" else own
            return "flat" if tail[-(len(groups) - kept) :] == tuple(range(kept, len(groups))) else "gather"

        loads = tuple(self.load(node, tokens, groups, names, mode) for node in self.leaves())
        stores = self.stores(tokens, names, mode)
        rows, columns = self.statistics(names)
        kind = "row+column" if rows and columns else "row" if rows else "column"
        return Reduction(
            kind,
            groups,
            kept,
            views,
            loads,
            stores,
            rows,
            columns,
            self.carried(rows, columns, groups[kept:], names),
            self.axes,
            False,
        )

    def everything(self) -> Reduction:
        """The plan of an op that reduces over all axes: its arrays as one long row."""
        groups = (Group("rows", ()), Group("cols", ()))
        names = Names(self.spec, self.statements)
        tokens = {a.name: (0, 1) if a.axes else () for a in self.spec.arrays}
        views = tuple(View(a, tokens[a.name]) for a in self.spec.arrays)

        def mode(own: tuple[int | str, ...]) -> str:
            return "flat" if own else "row"

        loads = tuple(self.load(node, tokens, groups, names, mode) for node in self.leaves())
        stores = self.stores(tokens, names, mode)
        return Reduction("column", groups, 1, views, loads, stores, *self.statistics(names), (), self.axes, True)

    def stores(self, tokens: Mapping[str, Tokens], names: Names, mode_of: ModeOf) -> tuple[Access, ...]:
        """How the outputs are reached, in the order of the chain."""
        outputs = {o.name for o in self.spec.outputs}
        return tuple(
            Access(
                names.beside(s.name, REDUCING_NAMES) if s.part is None else names.part(s.name, s.part),
                self.spec.array(s.name), s.part, mode_of(tokens[s.name]), tokens[s.name],
            )
            for s in self.statements if s.name in outputs
        )  # fmt: skip

    def carried(
        self,
        rows: tuple[Statistic, ...],
        columns: tuple[Statistic, ...],
        column_groups: tuple[Group, ...],
        names: Names,
    ) -> tuple[Carried, ...]:
        """Values of each column that need a costly operation and that more than one pass over a row needs: the last such
        value of a chain of them."""
        if columns:
            return ()
        along = {axis for group in column_groups for axis in group.axes}

        def of_row(node: Node) -> bool:
            return not along & set(node.dims)

        stages = 1 + max(s.stage for s in rows)
        roots = [[s.operand for s in rows if s.stage == i] for i in range(stages)]
        roots.append([s.value for s in self.statements if any(s.name == o.name for o in self.spec.outputs)])
        passes: dict[int, set[int]] = {}
        dear: set[int] = set()
        for number, values in enumerate(roots):
            for node in topological([v for v in values if not of_row(v)], of_row):
                passes.setdefault(id(node), set()).add(number)
                if not of_row(node) and (node.op in COSTLY or any(id(a) in dear for a in node.args)):
                    dear.add(id(node))
        shared = {i for i, found in passes.items() if len(found) > 1}
        below = {id(a) for n in self.nodes if id(n) in shared for a in n.args}
        chain = {id(s.value): s.name for s in self.statements}
        found = []
        for node in self.nodes:
            if id(node) in shared and id(node) in dear and id(node) not in below and node.kind == "float":
                name = names.beside(chain.get(id(node)) or names.statistic("value", id(node)), REDUCING_NAMES)
                found.append(Carried(name, node, min(passes[id(node)])))
        return tuple(found)

    def take_mode(self, index: Tokens, table: Tokens, axis: str, groups: tuple[Group, ...], mode_of: ModeOf) -> str:
        """An index of a row picks that row's own place in the table."""
        return mode_of(tuple(t for t in table if not (isinstance(t, int) and axis in groups[t].axes)))

    def statistics(self, names: Names) -> tuple[tuple[Statistic, ...], tuple[Statistic, ...]]:
        """The reductions, named as the chain names them, in the order of their stages."""
        chain = {id(s.value): s.name for s in self.statements if s.name not in {o.name for o in self.spec.outputs}}
        stage: dict[int, int] = {}
        rows, columns = [], []
        for node in self.nodes:
            own = max((stage[id(a)] for a in node.args), default=0)
            if node.op in REDUCTIONS:
                leads = self.leads(node)
                side = "column" if leads else "row"
                name = chain.get(id(node)) or names.statistic(f"{side}_{node.op}", id(node))
                name = names.beside(name, REDUCING_NAMES)
                if leads:
                    columns.append(Statistic(name, node, 0))
                else:
                    rows.append(Statistic(name, node, own))
                    own += 1
            stage[id(node)] = own
        return tuple(sorted(rows, key=lambda s: s.stage)), tuple(columns)


def axes_of(reduction: Node) -> tuple[str, ...]:
    """The axes that a reduction loses, in the spec's order."""
    assert isinstance(reduction.attr, tuple)
    return reduction.attr


def _brackets(axes: tuple[str, ...]) -> str:
    return f"[{', '.join(axes)}]"
