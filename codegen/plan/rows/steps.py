"""The plan of a kernel whose blocks compute, select and compute again, each on its own rows: probabilities, the largest of them, and
weights that sum to 1.

Each step is what a kernel of its own would be: it reduces along rows, selects, or places values. All have the same rows, and a row has
the same threads in each. What a step writes for a later one stays in shared memory. Where a block has no room for that, the op runs as
stages.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from codegen.errors import Diagnostic, UserError
from codegen.graph.nodes import DTYPES, Selected, Statement, lost_axes
from codegen.graph.ops import ALONE, PLACED, SCANS, TAKES
from codegen.plan.access import Access, Extent, Group, View, tokens_of
from codegen.plan.launches import PlannedCall
from codegen.plan.planner import Names, Planner
from codegen.plan.rows.reducing import Reductions
from codegen.plan.rows.reductions import InVectors
from codegen.plan.rows.selecting import (
    BLOCK,
    IN_TURN,
    MOST_THREADS,
    THREAD_ELEMENTS,
    WARP_ROW,
    Placement,
    Selection,
    lanes_of_row,
)
from codegen.shared import WARP, RowLaunch, SelectLaunch, StepsLaunch
from codegen.spec.spec import Array, Spec

CHOOSING = ("top_k", "top_k_index", PLACED)
MOST_BYTES = 64 * 1024  # of a block's rows in shared memory: then three blocks are resident
HELD_BYTES = 128  # of a thread's elements and expensive values


@dataclass(frozen=True)
class RowStep(InVectors):
    """The plan of a step that computes elements of rows, perhaps from statistics of these. It writes equal elements of
    a row with equal bits, as a selection needs them: no sum is rescaled by a thread's own maximum."""

    @functools.cached_property
    def sweeps(self) -> tuple[tuple[int, ...], ...]:
        return tuple((i,) for i in range(len(self.stages)))

    @functools.cached_property
    def shifts(self) -> bool:
        return False


@dataclass(frozen=True)
class Step:
    """One of the steps: its spec, and its plan."""

    spec: Spec
    plan: RowStep | Selection


@dataclass(frozen=True)
class Steps(Selection):
    """The plan of all steps. Its groups are those of the rows, those along which a selection writes, and the elements of rows."""

    steps: tuple[Step, ...] = ()
    leading: int = 1  # groups of the rows
    handed: tuple[Array, ...] = ()  # what a step writes for a later one

    @property
    def counted(self) -> tuple[tuple[int, ...], ...]:
        return tuple(range(self.leading + 1, len(self.groups))), tuple(range(self.leading))

    @property
    def parts_of_groups(self) -> tuple[tuple[Group, ...], ...]:
        """The groups of rows, the one along which a selection writes, and those of elements."""
        at = self.leading
        return self.groups[:at], self.groups[at : at + 1], self.groups[at + 1 :]

    @property
    def full(self) -> tuple[tuple[Array, int], ...]:
        own = {view.array.name for view in self.views}
        return tuple({a.name: (a, n) for step in self.steps for a, n in step.plan.full if a.name in own}.values())

    def rows_and_columns(self, extent: Extent) -> tuple[int, int]:
        """The number of rows, and of their elements."""
        columns, rows = (tuple(a for i in some for a in self.groups[i].axes) for some in self.counted)
        return extent(rows), extent(columns)

    def edges(self, call: PlannedCall) -> tuple[int, ...]:
        """The sizes of a row at which the kernel changes its method: a vector, what a warp holds."""
        return self._width(call), WARP_ROW

    def _width(self, call: PlannedCall) -> int:
        return call.vector(max((call.size(a) * n for a, n in self.full), default=4))

    def launch(self, call: PlannedCall) -> StepsLaunch:
        """The launch of a call. Raises `UserError` where no block has room for a row, or where its size is not
        known."""
        columns = call.extents.columns
        if columns is None:
            raise UserError("the sizes are not known")
        vec = math.gcd(self._width(call), columns) or 1
        found = self._selecting(SelectLaunch(vec, False, BLOCK, WARP, 1, self.selected.count), call)
        steps = tuple(self._step(step, found, columns, call) for step in self.steps)
        if found.vec * found.vectors > THREAD_ELEMENTS:
            raise UserError(f"no block can hold a row of {columns} elements")
        room = sum(self.length(a, columns) * DTYPES[a.dtype].size for a in self.handed) * found.rows_a_block
        if room > min(MOST_BYTES, call.shared_memory):
            raise UserError(f"shared memory has no room for {room} bytes of rows")
        own = {field.name: getattr(found, field.name) for field in fields(SelectLaunch)}
        return StepsLaunch(**own, room=columns, steps=steps)

    def length(self, array: Array, columns: int) -> int:
        """The elements of a row in an array that is handed on, where rows have so many."""
        along = {*array.axes}
        return self.selected.count if self.selected.into in along else columns if along & {*self.selected.axes} else 1

    def dtype_of(self, array: Array, call: PlannedCall) -> str:
        """The dtype of an array of the call, or of one that is handed on."""
        return call.dtypes.get(array.name, array.dtype)

    def _selecting(self, found: SelectLaunch, call: PlannedCall) -> SelectLaunch:
        """The launch of the selection, whose threads hold a row."""
        size, vec, count = call.extents.columns or 1, found.vec, found.count
        source = next((s.plan for s in self.steps if type(s.plan) is Selection), None)
        if size > WARP * THREAD_ELEMENTS or (count > IN_TURN and source is not None):
            if source is not None:
                found = source.by_bound(found, call.of(inner=size).extents, self.dtype_of(source.source, call))
            per_row = found.per_row
            while per_row * THREAD_ELEMENTS < size and per_row < MOST_THREADS:
                per_row *= 2 if per_row > WARP else BLOCK // WARP
            threads = max(per_row, BLOCK) if per_row == WARP and source is None else per_row
            return replace(found, threads=threads, per_row=per_row, vectors=-(-size // (per_row * vec)) or 1)
        per_row = lanes_of_row(size, vec, count, call.extents.rows)
        return replace(found, per_row=per_row, vectors=-(-size // (per_row * vec)) or 1, in_turn=True)

    def _step(self, step: Step, found: SelectLaunch, columns: int, call: PlannedCall) -> RowLaunch | SelectLaunch:
        """The launch of a step whose rows have the threads that the selection's have."""
        plan = step.plan
        if isinstance(plan, Placement):
            return replace(found, in_turn=plan.holds_few(DTYPES[self.dtype_of(plan.result, call)].size))
        if isinstance(plan, Selection):
            if not found.in_turn:
                return found
            power = 1 << (found.vectors - 1).bit_length()
            return replace(found, vectors=power, whole=columns == found.vec * power * found.per_row)
        own = {axis for group in plan.column_groups for axis in group.axes}
        size, vec = (columns, found.vec) if own & {*self.selected.axes} else (found.count, 1)
        vectors = -(-size // (found.per_row * vec)) or 1
        held = 4 * vec * vectors * (plan.most_expensive + plan.own_arrays)
        return RowLaunch(
            vec, False, found.threads, found.per_row, vectors, 1, True, size == vec * vectors * found.per_row,
            bool(plan.expensive) and held <= HELD_BYTES,
        )  # fmt: skip


class StepsPlanner(Planner):
    """The planner of an op in steps: the rows that all of them have, and the plan of each."""

    def __init__(self, spec: Spec, statements: tuple[Statement, ...]):
        super().__init__(spec, statements)
        self.choosing = [n for n in self.nodes if n.op in CHOOSING]
        used = {*self.used_axes(), *self.axes}
        self.kinds = {(n.attr.axes, n.attr.into) for n in self.choosing if isinstance(n.attr, Selected)}
        self.along, self.into = next(iter(self.kinds), ((), ""))
        last = (self.into, *self.along)
        self.axes = (*(a for a in spec.axes if a in used and a not in last), *last)

    def refusal(self) -> Diagnostic | None:
        """The first reason why no such kernel can compute the op."""
        last, others = self.spec.outputs[-1], (*TAKES, *SCANS, "contract", "shift", *(ALONE - {*CHOOSING}))
        rows = {axis for group in self.rows for axis in group.axes}
        alone = len(self.kinds) != 1 or any(not rows <= {*n.dims} for n in self.choosing)
        if alone or not rows or self.puts or any(n.op in others for n in self.nodes):
            return self.error("its steps do not have the same rows", "", last)
        if any({self.into, *self.along} <= {*n.dims} for n in self.nodes):
            return self.error("a value combines all elements of a row with all selected ones", "", last)
        if any(DTYPES[d].packed for a in self.spec.arrays for d in self.spec.dtypes(a)):
            return self.error("two numbers are in a byte", "", last)
        return None

    @functools.cached_property
    def rows(self) -> tuple[Group, ...]:
        """The groups of the rows' axes."""
        return tuple(g for g in self.merged if not {self.into, *self.along} & {*g.axes})

    @functools.cached_property
    def merged(self) -> tuple[Group, ...]:
        placed = {n.attr for n in self.nodes if n.op in ("index", "size")}
        return self.groups(placed, {self.into, *self.along[:1]})

    def step(self, spec: Spec) -> RowStep:
        """The plan of a step that computes elements of rows. Raises `SpecError` if it has none."""
        columns = self.along if any({*self.along} & {*a.axes} for a in spec.arrays) else (self.into,)
        planner = _RowSteps(spec, spec.read.statements, self.rows, columns)
        planner.check()
        return planner.plan()

    def plan(self, steps: Sequence[Step]) -> Steps:
        """The plan of all steps."""
        outputs = {a.name for a in self.spec.outputs}
        made = {a.name: a for step in steps for a in step.spec.outputs}
        read = {a.name for step in steps for a in step.spec.inputs}
        tokens = {a.name: tokens_of(a, self.merged) for a in self.spec.arrays}
        names = Names(self.spec, self.statements)
        (how,) = {n.attr for n in self.choosing if isinstance(n.attr, Selected)}

        def mode(own: Sequence[int | str]) -> str:
            return "flat" if own and own[-1] == len(self.merged) - 1 else "row"

        return Steps(
            self.merged,
            tuple(View(a, tokens[a.name]) for a in self.spec.arrays),
            tuple(self.load(node, tokens, self.merged, names, mode) for node in self.leaves()),
            tuple(Access(s.name, self.spec.array(s.name), s.part, "flat", tokens[s.name]) for s in self.statements if s.name in outputs),
            how, (), self.axes, steps=tuple(steps), leading=len(self.rows),
            handed=tuple(a for name, a in made.items() if name in read),
        )  # fmt: skip


class _RowSteps(Reductions):
    """The planner of a step that computes elements of rows, whose position is in these groups."""

    makes = RowStep
    collapsed = False

    def __init__(
        self, spec: Spec, statements: tuple[Statement, ...], rows: tuple[Group, ...], columns: tuple[str, ...]
    ):
        super().__init__(spec, statements)
        self.used, self.row_groups, self.columns = self.axes, rows, columns
        self.axes = (*(a for g in rows for a in g.axes), *columns)

    @functools.cached_property
    def place(self) -> int:
        return len(self.axes) - len(self.columns)

    def refusal(self) -> Diagnostic | None:
        last, own = self.spec.outputs[-1], {*self.columns}
        alike = all(lost_axes(n) == self.columns and n in self.along for n in self.reduced)
        given = any({*self.axes[: self.place]} & {*a.axes} for a in self.spec.arrays if a.default is None)
        if not {*self.used} <= {*self.axes} or not alike or not given or not self.are_last(own):
            return self.error("it is no step that computes elements of rows", "", last)
        if any(n.op in (*TAKES, *ALONE, *SCANS, "contract", "shift") for n in self.nodes) or self.puts:
            return self.error("a step that computes elements does nothing else", "", last)
        return super().refusal()

    def groups(self, apart: set[object], borders: object = ()) -> tuple[Group, ...]:
        found = super().groups(apart, {self.columns[0]})
        return (*self.row_groups, *(g for g in found if {*g.axes} <= {*self.columns}))

    def plan(self) -> RowStep:
        found = super().plan()
        assert isinstance(found, RowStep)
        return replace(found, kind="row")
