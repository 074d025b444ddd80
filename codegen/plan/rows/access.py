"""How a kernel that reduces reaches its arrays, and in which order it computes its statistics.

An array is reached in one of these ways:

  flat     it has every column axis, last: vectors of consecutive columns, at its own position for the row
  row      it has no column axis: one value a row
  gather   it has some of the column axes: element by element
  index    no array: the coordinate itself; `size` is the size of an axis
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import ClassVar

from codegen.graph import online
from codegen.graph.nodes import Leaf, Node, lost_axes, topological
from codegen.graph.ops import REDUCTIONS
from codegen.plan.access import Access, Extent, Group, View
from codegen.plan.launches import PlannedCall
from codegen.shared import RowLaunch, WalkLaunch, slot_bytes
from codegen.spec.spec import Array

LEAST_VECTOR = 4  # bytes of a narrower vector, which divides a row


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
    # Column, total: how a sum of exponentials follows a maximum in the same sweep
    follows: online.Rescaled | None = None

    @property
    def op(self) -> str:
        return self.node.op

    @property
    def operand(self) -> Node:
        return self.node.args[0]

    @property
    def value(self) -> Node:
        """The value that a kernel which walks down rows computes for each element: for a sum that follows a maximum,
        the maximum's operand."""
        return self.operand if self.follows is None else self.follows.maximum.args[0]

    @property
    def kind(self) -> str:
        return self.node.kind

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes that it reduces."""
        return lost_axes(self.node)


@dataclass(frozen=True)
class Expensive:
    """An expensive value of each column that several sweeps over a row need: the first one holds it in registers."""

    name: str
    node: Node
    stage: int  # of the sweep that computes it


@dataclass(frozen=True)
class Demand:
    """The values that a sweep has in a thread's registers, for each column: `alive` at once, at most; `kept` for later
    sweeps; and shared by rows, which a kernel that walks down rows computes once."""

    alive: int
    kept: int  # computed values
    expensive: int  # those of them that the kernel holds
    shared: int  # values that all rows share, which those of a row need
    inputs: tuple[Leaf, ...]


@dataclass(frozen=True)
class Reads:
    """The arrays and reductions of an op. The first `leading` groups are a row's position, the others its columns."""

    kind: str  # row, column or row+column
    groups: tuple[Group, ...]
    leading: int
    views: tuple[View, ...]
    loads: tuple[Access, ...]
    stores: tuple[Access, ...]
    rows: tuple[Statistic, ...]  # reduced along a row
    columns: tuple[Statistic, ...]  # reduced over rows
    inner: tuple[Statistic, ...]  # reduced within a row, in groups of columns
    expensive: tuple[Expensive, ...]
    late: tuple[str, ...]  # the outputs that need all rows
    # The groups of a row's position that column statistics keep: only rows at the same place are reduced together
    apart: tuple[int, ...]
    order: tuple[str, ...]  # every axis, in the order of the jnp form's operands
    collapsed: bool  # only totals are reduced, and all arrays are one long row, or scalars
    costly: bool = False  # over rows: an expensive value is computed for each column
    draws: bool = False  # whether random numbers are drawn for each column
    alive: int = 1  # the most values of a column that are alive at once
    demands: tuple[Demand, ...] = ()  # of each sweep over a row
    mixes: bool = False  # whether an output needs reductions over rows that keep different axes
    joins: bool = False  # whether the last sweep over a row writes the outputs along it, too
    uniform: ClassVar[bool] = True  # whether the main loop has the same instructions for each element

    @property
    def vector_group(self) -> int:
        return -1

    @property
    def counted(self) -> tuple[tuple[int, ...], ...]:
        rows = (i for i in range(self.leading) if i not in self.apart)
        return tuple(range(self.leading, len(self.groups))), tuple(rows), self.apart

    @property
    def most_expensive(self) -> int:
        """The most expensive values of a column that threads hold at once from one sweep to the next."""
        return max((d.expensive for d in self.demands), default=0) if self.expensive else 0

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
            expensive = [c.node for c in self.expensive if c.stage == i]
            if before and online.follows([s.node for s in stage], [s.node for s in before], expensive):
                found[-1] = (i - 1, i)
            else:
                found.append((i,))
        return tuple(found)

    @property
    def following(self) -> set[int]:
        """The stages that are computed in the sweep of the previous one."""
        return {i for sweep in self.sweeps for i in sweep[1:]}

    def in_same_pass(self, statistic: Statistic) -> bool:
        """Whether a statistic follows another one in its sweep."""
        return statistic.follows is not None or (statistic.over == "row" and statistic.stage in self.following)

    @property
    def row_groups(self) -> tuple[Group, ...]:
        return self.groups[: self.leading]

    @property
    def walked_groups(self) -> tuple[Group, ...]:
        """The groups of a row's position that a block walks along."""
        return tuple(g for i, g in enumerate(self.row_groups) if i not in self.apart)

    @property
    def spread(self) -> tuple[int, ...]:
        """The groups of the partial results of columns."""
        return (*self.apart, *range(self.leading, len(self.groups)))

    @property
    def column_groups(self) -> tuple[Group, ...]:
        return self.groups[self.leading :]

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
        """Whether an array has every axis, in order, and is read at the row's own position. If the vectors of one such
        array are aligned in memory, those of all are, whatever the number of columns."""
        tokens = access.tokens[:-1] if access.tokens[-1:] == ("parts",) else access.tokens
        return (
            access.mode == "flat"
            and access.index_of is None
            and not access.back
            and tokens == tuple(range(len(self.groups)))
        )

    def in_run(self, access: Access) -> bool:
        """Whether neighbouring rows are one run of elements in an array: it has every axis, in order, and no halves of what
        a row's position is in."""
        whole = tuple(t for t in access.tokens if t != "parts") == tuple(range(len(self.groups)))
        return whole and "parts" not in access.tokens[: self.leading]

    @functools.cached_property
    def along_own_rows(self) -> tuple[Access, ...]:
        """The accesses in vectors of arrays of which each row has its own values."""
        return tuple(a for a in (*self.loads, *self.stores) if a.mode == "flat" and self.of_row(a))

    def slot_bytes(self, call: PlannedCall, columns: int, rows: int, single: bool, apart: bool = False) -> int:
        """The bytes of shared memory for so many columns: of `rows` rows of each array that is read through it, and of
        one row of each that is written. `single`: threads have single columns. `apart`: only of arrays of which a
        block's rows are no one run."""
        own = [a for a in self.along_own_rows if a.array is not None and a.array.name not in self.late]

        def size(access: Access) -> int:
            array = access.array
            assert array is not None
            return columns * call.size(array) * (array.parts or 1 if access.interleaved else 1)

        counted = [a for a in own if not (apart and self.in_run(a))]
        return sum(slot_bytes(size(a), single) * (rows if a in self.loads else 1) for a in counted)

    @functools.cached_property
    def by_runs(self) -> bool:
        """Whether there is a kernel whose rows are loaded and stored through shared memory. All arrays with rows of their own must
        be accessed at the row's own position."""
        late = [a for a in self.stores if a.array is not None and a.array.name in self.late]
        own = [a for a in self.along_own_rows if a not in late]
        plain = self.leading > 0 and not self.inner and not self.collapsed
        return plain and bool(own) and not any(a.index_of is not None or a.back for a in own)

    @functools.cached_property
    def in_whole_runs(self) -> bool:
        """Whether vectors of a block's rows in one run can begin with the row: in each array, neighbouring rows are one run."""
        return all(map(self.in_run, self.along_own_rows))

    @functools.cached_property
    def joins_rows(self) -> bool:
        """Whether neighbouring rows of a block that walks down rows are one run, with nothing between two rows."""
        return not self.apart and all(
            self.in_run(a) and (a.interleaved or not (a.array and a.array.parts)) for a in self.along_own_rows
        )

    def of_row(self, access: Access) -> bool:
        """Whether registers hold values of its own for each row, of an array that is read in vectors. Otherwise all rows that are
        reduced together share these values, or columns do."""
        return self.varies(access) and not self.is_shared_by_columns(access)

    def is_shared_by_columns(self, access: Access) -> bool:
        """Whether several columns of a row share an element of an array, and only formulas of elements need it. An
        example is a weight of each channel, in rows of channels and positions. Kernels that reduce along rows alone
        read them where they are needed, from a cache. What statistics need too would be found by its coordinates more
        than once."""
        columns = {*range(self.leading, len(self.groups))}
        own = access.mode == "gather" and access.array is not None and not access.back and access.index_of is None
        return self.kind == "row" and own and not columns <= {*access.tokens} and access.name not in self.reduced_names

    @functools.cached_property
    def reduced_names(self) -> frozenset[str]:
        """The chain's names of the inputs that a row's statistics need."""
        nodes = [
            n for n in topological([s.operand for s in self.rows], lambda n: n.op in REDUCTIONS) if n.op == "input"
        ]
        leaves = {n.attr for n in nodes if isinstance(n.attr, Leaf)}
        return frozenset(a.name for a in self.loads if a.array is not None and Leaf(a.array.name, a.part) in leaves)

    def varies(self, access: Access) -> bool:
        """Whether rows that are reduced together have different values in an array."""
        own = [t for t in access.tokens if t != "parts" and t not in self.apart]
        taken = self.taken_mode(access)
        if access.index_of is not None and taken is not None:  # an index gives the position along this axis
            own = [t for t in own if t != access.tokens[taken]]
            own += [t for t in self.view(access.index_of[0]).tokens if t not in self.apart]
        return not self.leading or any(not isinstance(t, int) or t < self.leading for t in own)

    def read_when_needed(self, access: Access) -> bool:
        """Whether each vector of an array is read when it is needed: all rows share it, or columns do."""
        return self.is_shared_by_columns(access) or (access.mode == "flat" and not self.varies(access))

    def shares_neighbours(self, vectors: int, inner: int | None) -> bool:
        """Whether so many neighbouring columns share elements of an array, two at most, which are loaded once for each thread. What all
        rows share along a row is not: neighbouring threads would read elements that are far apart."""
        if inner is None or inner < vectors or any(a.mode == "flat" and not self.varies(a) for a in self.loads):
            return False
        if any(a.mode == "gather" for a in self.stores):  # one thread writes a value of a group
            return False
        arrays = [a for a in self.loads if a.array is not None and a.mode == "gather" and not self.read_when_needed(a)]
        return any(len(self.groups) - 1 not in a.tokens and not a.back and a.index_of is None for a in arrays)

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
        return any(isinstance(t, int) and t >= self.leading for t in self.view(access.index_of[0]).tokens)

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

    @functools.cached_property
    def settled(self) -> tuple[Statistic, ...]:
        """The statistics of columns that keep the axes of columns and of places. A block writes their results itself if
        it reduces all rows at a place, or gets the partial results of the other blocks of its cluster."""
        own = tuple(s for s in self.columns if s.over == "column" and s.keeps == self.spread)
        late = [a for a in self.stores if a.array is not None and a.array.name in self.late]
        kept = {a.tokens for a in late if tuple(sorted(t for t in a.tokens if t != "parts")) == self.spread}
        fits = bool(self.apart) or (not self.rows and own == self.columns)
        return own if fits and len(kept) == 1 and not (self.collapsed or self.inner or self.mixes) else ()

    @property
    def meets(self) -> bool:
        """Whether blocks of a cluster may have some of all rows each, and the first one writes all results of columns."""
        return not self.rows and bool(self.settled) and self.settled == self.columns

    @functools.cached_property
    def shifts(self) -> bool:
        """Whether a ragged row's vectors start at an aligned address before the row itself. This is so unless something
        needs the columns' coordinates one by one, or a thread holds values of its columns from row to row."""
        gathers = any(
            self.moves(a) or (a.mode in ("gather", "index") and (len(self.column_groups) > 1 or self.picks(a)))
            for a in self.loads
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

    def width(self, call: PlannedCall, shared: bool = True, late: bool = True) -> int:
        """The columns of a vector, which does not hold columns of two groups. Without `shared`, arrays that all rows
        share do not count. Without `late`, outputs that need all rows do not."""
        return min([call.vector(self.widest(call, shared, late)), *(s.width for s in self.inner)])

    def widest(self, call: PlannedCall, shared: bool = True, late: bool = True) -> int:
        """The bytes of a column in the array with the widest columns."""
        found = [(a, n) for a, n in self.full if shared or self.order[0] in a.axes]
        found = [(a, n) for a, n in found if late or a.name not in self.late]
        return max((call.size(a) * n for a, n in found), default=4)

    def whole_vector(self, vec: int, inner: int, call: PlannedCall) -> int:
        """A narrower vector that divides the row, so that no vector crosses into the next row. It has at least 4 bytes, or one
        element if rows are shorter than two vectors."""
        narrow = inner & -inner
        return narrow if inner % vec and (narrow * self.widest(call) >= LEAST_VECTOR or inner < 2 * vec) else vec

    @functools.cached_property
    def whole_rows(self) -> bool:
        """Whether neighbouring rows can be read and written together: all arrays that are written, or read along a row,
        have every axis of the rows, in order."""
        values = all(a.tokens == tuple(range(self.leading)) for a in self.stores if a.mode == "row")
        own = [a for a in (*self.loads, *self.stores) if a.mode in ("flat", "gather") and self.varies(a)]
        plain = not self.inner and not any(self.picks(a) or self.moves(a) for a in self.loads)
        return self.kind == "row" and self.leading > 0 and plain and values and all(map(self.aligned, own))

    def lanes(self, vec: int) -> int:
        """The number of neighbouring threads of one block that a group of columns needs."""
        return max([1, *(s.width // vec for s in self.inner)])

    def column_bytes(self, call: PlannedCall, own: bool = False) -> int:
        """The bytes of one column of a row in all inputs that registers hold. With `own`, only inputs count whose
        values differ between neighbouring rows."""
        loaded: dict[Array, int] = {}
        for access in self.loads:
            if access.array is not None and self.in_columns(access) and self.of_row(access):
                if not own or access.index_of is not None or self.leading - 1 in access.tokens:
                    loaded[access.array] = loaded.get(access.array, 0) + call.size(access.array)
        return sum(loaded.values()) or (self.column_bytes(call) if own else 4)

    def row_sizes(self, call: PlannedCall) -> tuple[int, ...]:
        """The bytes of an element in each input of which registers hold a row."""
        held = (a for a in self.loads if a.array is not None and self.in_columns(a) and self.of_row(a))
        return tuple(call.size(a.array) for a in held)

    def moved_bytes(self, call: PlannedCall) -> int:
        """The bytes of one column that a block reads and writes of each of its rows. Arrays that lack an axis of the rows, as a
        weight does, are in a cache for most of them."""
        rows = set(range(self.leading))
        own = {a.array: 0 for a in (*self.loads, *self.stores) if a.array is not None and rows <= set(a.tokens)}
        for access in (*self.loads, *self.stores):
            if access.array in own and self.in_columns(access):
                own[access.array] += call.size(access.array)
        return sum(own.values())

    def written_bytes(self, call: PlannedCall) -> int:
        """The bytes of one column that each row writes: in all outputs except the ones that need all rows."""
        own = (a.array for a in self.stores if a.mode == "flat" and a.array is not None)
        return sum(call.size(array) for array in own if array.name not in self.late)

    def in_columns(self, access: Access) -> bool:
        """Whether each column of a vector has an element of its own."""
        inner = access.mode == "gather" and len(self.groups) - 1 in access.tokens
        return access.mode == "flat" or inner or self.picks(access)

    def moves(self, access: Access) -> bool:
        """Whether a row is read at its columns' neighbours."""
        return any(axis in g.axes for g in self.column_groups for axis, _ in access.back)

    @property
    def own_arrays(self) -> int:
        """The number of arrays of which each row has elements of its own."""
        return len({a.array for a in self.loads if a.mode == "flat" and self.of_row(a)})

    @property
    def alone(self) -> bool:
        """Whether a row consists of one array."""
        return self.own_arrays == 1

    def vector_bytes(self, call: PlannedCall) -> list[int]:
        """The bytes of a column of each array that is read along a row, including arrays that all rows share."""
        return [call.size(a.array) for a in self.loads if a.array is not None and a.mode in ("flat", "gather")]

    @property
    def passes(self) -> int:
        """How often a row is read if it is not held: once for each sweep, and once more for outputs along it."""
        written = any(a.mode != "row" for a in self.stores) or self.columns
        return len(self.sweeps) + bool(written and not self.joins)

    @property
    def in_turn(self) -> bool:
        """Whether one sweep computes all that a kernel writes, one vector after the other."""
        return self.passes == 1 and len(self.stages) == 1

    def rows_read(self, how: RowLaunch | WalkLaunch) -> int:
        """How often a launch reads a row; once more if an earlier kernel computes its statistics."""
        if isinstance(how, RowLaunch):
            return 1 if how.holds_row else self.passes
        return 1 if how.whole or how.first is None else 1 + (1 if how.first.holds_row else len(self.sweeps))

    def rows_and_columns(self, extent: Extent) -> tuple[int, int]:
        """The numbers of rows and columns; one row if everything is reduced."""
        if self.collapsed:
            return 1, extent(self.order)
        rows, columns = ([axis for g in groups for axis in g.axes] for groups in (self.row_groups, self.column_groups))
        return extent(tuple(rows)), extent(tuple(columns))
