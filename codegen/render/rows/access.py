"""How the kernel of an op that reduces along rows accesses memory: positions, registers and loads, for its templates."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace

from codegen.plan.access import Access, Group
from codegen.plan.rows.reductions import Reduction
from codegen.render.common import Context, camel, tuple_text
from codegen.render.once import once
from codegen.render.records import Fragment
from codegen.render.rows.records import (
    Load,
    RowLoad,
    Run,
)


class RowAccess(Context):
    """The part of a row kernel's context that is about memory."""

    plan: Reduction
    record = "row"  # the kernel's name for a thread's view of its row
    index = "index"  # and the row's number

    # Positions

    def rows_text(self) -> str:
        """The number of rows."""
        names = [g.name for g in self.plan.row_groups]
        return " * ".join(names) if names else "1"

    def columns_text(self) -> str:
        return " * ".join(g.name for g in self.plan.column_groups)

    def extents(self) -> list[str]:
        return self.extents_of(range(len(self.groups)))

    def launch_extents(self) -> list[str]:
        """The sizes with which the launcher counts the rows."""
        return self.extents_of(range(self.plan.leading))

    def extents_in(self, texts: list[str]) -> list[str]:
        """The sizes that some texts mention."""
        return self.extents_of([i for i, g in enumerate(self.groups) if self.mentions(texts, g.name)])

    def extents_of(self, groups: Sequence[int]) -> list[str]:
        names, sources = [self.groups[i].name for i in groups], [self.extent_source(i) for i in groups]
        return [f"{', '.join(names)} = {', '.join(sources)}"] if names else []

    def extent_source(self, group: int) -> str:
        """The kernel's text for a group's size: an array's that is always there, or the number that the spec fixes."""
        if found := self.extent_in((*self.spec.inputs, *self.spec.outputs), group):
            return found
        return str(math.prod(self.spec.extents[axis] for axis in self.groups[group].axes))

    def row_lines(self) -> list[str]:
        """The coordinates of the row, if several groups make its position."""
        groups = self.plan.row_groups
        return [] if [g.coordinate for g in groups] == ["row"] else self.coordinate_lines(groups, self.index)

    @staticmethod
    def coordinate_lines(groups: tuple[Group, ...], rest: str) -> list[str]:
        """The coordinates along some groups that together make a position."""
        lines = []
        for i in range(len(groups) - 1, -1, -1):
            name = "iRows" if groups[i].coordinate == "row" else groups[i].coordinate
            lines.append(f"{name} = {rest} % {groups[i].name}" if i else f"{name} = {rest}")
            rest = f"({rest} // {groups[i].name})"
        return lines

    def coordinate(self, group: int) -> str:
        name = self.groups[group].coordinate
        if name == "row":
            return "iRows" if self.plan.leading > 1 else self.index
        return name

    def place(self, access: Access) -> str:
        """The coordinates of a row in an array, at its first column."""
        words: list[str] = []
        taken = self.plan.taken_mode(access)
        for mode, token in enumerate(access.tokens):
            if token == "parts":
                words.append("0" if access.interleaved else str(access.part or 0))
            elif mode != taken:
                assert isinstance(token, int)
                words.append(self.coordinate_at(access, mode, token) if token < self.plan.leading else "0")
            elif self.plan.picks(access):
                words.append("0")  # another position for each column
            else:
                assert access.array is not None
                table = self.tensors[access.array.name]
                words.append(f"device.clip_index(r{camel(access.name)}At[0], {table}.shape[{mode}])")
        return tuple_text(words or ["0"])

    def coordinate_at(self, access: Access, mode: int, group: int) -> str:
        """A row's coordinate along a group, where an array is read: a neighbour's position is brought inside the array."""
        by = sum(n for axis, n in access.back if axis in self.groups[group].axes)
        if not by:
            return self.coordinate(group)
        assert access.array is not None
        at = f"{self.coordinate(group)} {'-' if by > 0 else '+'} {abs(by)}"
        return f"device.clip_index({at}, {self.tensors[access.array.name]}.shape[{mode}])"

    def columns_of(self, access: Access) -> str:
        """A row's position in an array with some of the column axes, the axes of each mode, and their sizes."""
        extents = ", ".join(g.name for g in self.plan.column_groups)
        return f"{self.place(access)}, {self.modes(access)}, ({extents},)"

    def modes(self, access: Access) -> tuple[int | None, ...]:
        """The column axes of each mode of an array; None for the others, and for the mode that an index selects."""
        kept, taken = self.plan.leading, self.plan.taken_mode(access)
        return tuple(
            t - kept if isinstance(t, int) and t >= kept and mode != taken else None
            for mode, t in enumerate(access.tokens)
        )

    def back(self, access: Access) -> tuple[int, ...]:
        """How many places back a neighbour is, along each mode of an array that is a column axis."""
        axes, by = [g.axes for g in self.plan.column_groups], dict(access.back)
        return tuple(0 if m is None else sum(by.get(a, 0) for a in axes[m]) for m in self.modes(access))

    def picked(self, access: Access) -> str:
        """The mode of a table that an index selects, the index, a row's position in the index, and its modes."""
        assert access.index_of is not None
        name, _ = access.index_of
        index = self.plan.view(name)
        own = replace(access, array=index.array, tokens=index.tokens, index_of=None, part=None)
        return f"({self.plan.taken_mode(access)}, {self.tensors[name]}, {self.place(own)}, {self.modes(own)})"

    def group_of(self, access: Access) -> int:
        """The number of columns that share a value of an output without the last column axes."""
        axes = [a for g in self.plan.column_groups for a in g.axes]
        assert access.array is not None
        return math.prod(self.spec.extents[a] for a in axes if a not in access.array.axes)

    # Registers

    def one_vector(self, access: Access) -> bool:
        """Whether registers hold a single vector of the values that all rows share, which is read when it is needed."""
        return access.array in self.spec.inputs and self.plan.read_when_needed(access)

    def of_row(self, access: Access) -> str:
        """The mode of the row in the registers of an array with own values for each row."""
        return self.one_row(access) if access.array is not None and self.plan.of_row(access) else ""

    def one_row(self, access: Access) -> str:
        """The text for one of the rows that a thread holds."""
        del access
        return ", u"

    def fragment(self, access: Access) -> str:
        if access.array is None or not access.interleaved:
            return f"r{camel(access.name)}"
        taken = f"At{camel(access.index_of[0])}Along{access.index_of[1]}" if access.index_of else ""
        return f"r{camel(access.array.name)}{taken}"

    def registers(self, access: Access) -> str:
        """The registers that a load fills."""
        if not self.of_row(access):
            return self.fragment(access)
        modes = ["None"] * (1 if access.mode == "row" else 3 if access.interleaved else 2)
        return f"{self.fragment(access)}[{', '.join(modes)}, u]"

    def written(self, access: Access, part: str = "None") -> str:
        """The registers of an output's vector, or of a part of it; the registers of one row if a thread may have several."""
        name, parts = self.fragment(access), [part] if access.interleaved else []
        if self.plan.whole_rows:
            return f"{name}[{', '.join([*parts, 'None', *('' if access.mode == 'row' else 'v'), 'u'])}]"
        return f"{name}[{part}, None]" if parts and part != "None" else name

    @once
    def vector_loads(self) -> list[Access]:
        """The loads of vectors; one load for interleaved parts."""
        found: dict[str, Access] = {}
        for access in self.plan.loads:
            indexed = access.mode == "index" and access.group is not None and access.group >= self.plan.leading
            if access.mode in ("flat", "gather") or (indexed and len(self.plan.column_groups) > 1):
                found.setdefault(self.fragment(access), access)
        return list(found.values())

    def vector_stores(self) -> list[Access]:
        """The stores along a row; "gather" is one value for a group of columns."""
        return [a for a in self.plan.stores if a.mode != "row"]

    def row_stores(self) -> list[Access]:
        return [a for a in self.plan.stores if a.mode == "row"]

    def kernel_fragments(self) -> list[Fragment]:
        """The registers of a thread, each named once."""
        found: dict[str, Fragment] = {}
        for access in self.vector_loads():
            self.keep(found, self.fragment_of(access, "vec, vectors"))
        for access in self.plan.loads:
            if access.mode == "row":
                self.keep(found, self.fragment_of(access, "1"))
            if access.index_of and not self.plan.picks(access):
                index = self.tensors[access.index_of[0]]
                self.keep(found, Fragment(f"r{camel(access.name)}At", f"access.registers({index}, (1,))"))
        for access in (*self.vector_stores(), *self.row_stores()):
            shape = "1" if access.mode == "row" else "vec, vectors" if self.plan.whole_rows else "vec"
            if self.plan.whole_rows or access.interleaved:
                self.keep(found, self.fragment_of(access, f"{shape}, at_once" if self.plan.whole_rows else shape))
        return list(found.values())

    @staticmethod
    def keep(found: dict[str, Fragment], fragment: Fragment) -> None:
        found.setdefault(fragment.name, fragment)

    def fragment_of(self, access: Access, shape: str) -> Fragment:
        """The registers that an access fills; `shape` is the shape of the values that all rows share."""
        if access.array is None:
            return Fragment(self.fragment(access), f"cute.make_rmem_tensor(({shape}), cutlass.Int32)")
        shape = shape.replace("vectors", "1") if self.one_vector(access) else shape
        words = [str(access.array.parts)] if access.interleaved else []
        words += shape.split(", ")
        if self.of_row(access) and access.array in self.spec.inputs:
            words.append({", k": "held", ", u": "at_once"}[self.of_row(access)])
        return self.registers_of(access, words)

    def registers_of(self, access: Access, shape: list[str]) -> Fragment:
        assert access.array is not None
        text = f"{self.tensors[access.array.name]}, {tuple_text(shape)}"
        words = [text, *(self.default(access.array) if access.array in self.spec.inputs else [])]
        return Fragment(self.fragment(access), f"access.registers({', '.join(words)})")

    # Loads

    def row_loads(self) -> list[RowLoad]:
        """The loads of one value for each row, at the row's position. Indices of tables are loaded before the elements
        that they select. Loads that the row's own loads need are `first`."""
        found = []
        for access in self.plan.loads:
            if access.index_of and not self.plan.picks(access):
                index = self.plan.view(access.index_of[0])
                own = replace(access, array=index.array, tokens=index.tokens, index_of=None, mode="row", part=None)
                words = self.tensors[index.array.name], self.place(own), f"r{camel(access.name)}At"
                found.append(RowLoad(*words, "", self.plan.of_row(access), access.mode != "row"))
            if access.mode == "row":
                assert access.array is not None
                words = self.tensors[access.array.name], self.place(access), self.registers(access)
                found.append(RowLoad(*words, self.guard(access), self.plan.of_row(access), False))
        return found

    @functools.cached_property
    def loads(self) -> list[Load]:
        return [self.load(access) for access in self.vector_loads()]

    def load(self, access: Access) -> Load:
        """How this thread's vectors are loaded into registers."""
        name, tensor = self.fragment(access), self.tensors[access.array.name] if access.array else ""
        shared, own = self.one_vector(access), self.plan.of_row(access) if access.array is not None else False
        found = Load(name, tensor, self.registers(access), self.loaded_by(access), own, shared, self.load_call(access))
        if access.mode == "flat" and own:
            return replace(found, together=f"rowwise.load_together({tensor}, first_row, {name}, place)")
        return found

    def load_call(self, access: Access) -> str:
        """The method that reads it, for a row, one of its parts or a vector."""
        registers = self.registers(access)
        if access.array is None:
            assert access.group is not None
            extents = ", ".join(g.name for g in self.plan.column_groups)
            return f"load_index({access.group - self.plan.leading}, ({extents},), {registers})"
        tensor = self.tensors[access.array.name]
        if access.mode == "flat":
            parts = f", parts={access.array.parts}" if access.interleaved else ""
            if not self.plan.of_row(access):
                return f"load_shared({tensor}, {self.start(access)}, {registers}{parts})"
            return f"load({tensor}, {self.start(access)}, {registers}{parts}{self.unaligned(access)}{self.run_read(access)})"
        shared = "" if self.plan.of_row(access) else "_shared"
        if self.plan.picks(access):
            return f"pick{shared}({tensor}, {self.columns_of(access)}, {self.picked(access)}, {registers})"
        back = f", back={self.back(access)}" if self.plan.moves(access) else ""
        return f"gather{shared}({tensor}, {self.columns_of(access)}, {registers}{back})"

    def unaligned(self, access: Access) -> str:
        """Whether vectors of an array's ragged rows are not aligned in memory."""
        return ", aligned=False" if self.plan.shifts and not self.plan.aligned(access) else ""

    def run_read(self, access: Access) -> str:
        """The run of the block's rows, as an argument of a load."""
        return self.run_written(access)

    def run_written(self, access: Access) -> str:
        """The same of a store."""
        if not self.plan.by_runs:
            return ""
        name = self.run_name(access)
        return f", run=rowwise.half_of({name}, {access.part})" if self.run_of(access).halves else f", run={name}"

    def run_name(self, access: Access) -> str:
        """The name of a run. A run is a block's rows with all parts of an array, or one row of an array or of one of
        its halves."""
        assert access.array is not None
        return f"s{camel(access.array.name) if self.plan.in_run(access) else self.fragment(access)[1:]}Run"

    def run_of(self, access: Access) -> Run:
        assert access.array is not None
        whole = self.plan.in_run(access)
        parts = access.array.parts or 1 if whole or access.interleaved else 1
        halves = whole and parts > 1 and not access.interleaved
        return Run(self.run_name(access), self.tensors[access.array.name], parts, whole, self.start(access), halves)

    def runs_of(self, accesses: Sequence[Access]) -> list[Run]:
        """The runs in the arrays that are accessed along rows of their own."""
        own = [a for a in accesses if a.mode == "flat" and self.plan.of_row(a)] if self.plan.by_runs else []
        return list({self.run_name(a): self.run_of(a) for a in own}.values())

    def start(self, access: Access) -> str:
        """The position of a row's first column in an array."""
        return self.place(access)

    def loaded_by(self, access: Access) -> set[str]:
        """The chain's names of the values of one load."""
        return self.names_by_load[access.mode, self.fragment(access)]

    @functools.cached_property
    def names_by_load(self) -> dict[tuple[str, str], set[str]]:
        """The chain's names of loaded values, by the mode and the registers."""
        found: dict[tuple[str, str], set[str]] = {}
        for load in self.plan.loads:
            found.setdefault((load.mode, self.fragment(load)), set()).add(load.name)
        return found
