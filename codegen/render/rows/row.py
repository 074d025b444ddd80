"""The kernel of an op that reduces along rows: prepares the values of `templates/row.py.jinja`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from codegen.graph import emit
from codegen.graph.names import SUFFIXES
from codegen.graph.nodes import Node
from codegen.graph.online import rescaled
from codegen.plan.access import Access
from codegen.plan.rows.access import Statistic
from codegen.render.common import camel, doc_lines, full, tuple_text
from codegen.render.once import once
from codegen.render.records import Function
from codegen.render.rows.access import RowAccess
from codegen.render.rows.records import (
    Final,
    HeldRegisters,
    HeldValues,
    Load,
    Maximum,
    Reductions,
    Rising,
    RowKernel,
    RowOutputs,
    RowsKernel,
    Stage,
    Sweep,
)


class RowContext(RowAccess):
    """The values of the row template."""

    template = "row.py.jinja"

    def kernel(self) -> RowsKernel:
        return self.row_kernel()

    def row_kernel(self) -> RowKernel:
        return RowKernel(
            **vars(self.kernel_head()),
            functions=self.functions(),
            final=self.final(),
            rows=self.rows_text(),
            launch_extents=self.launch_extents(),
            shifts=self.plan.shifts,
            whole_rows=self.plan.whole_rows,
            rows_registers=self.rows_registers(),
            rows_stores=self.rows_stores(),
            runs_read=self.runs_of(self.plan.loads),
            runs_written=self.runs_of(self.vector_stores()),
        )

    def kernel_head(self) -> RowsKernel:
        """The values of every kernel with row statistics."""
        return RowsKernel(
            row_lines=self.row_lines(),
            extents=self.extents(),
            settings=self.kernel_settings(),
            fragments=self.kernel_fragments(),
            row_loads=self.row_loads(),
            loads=[load for load in self.loads if load.of_row],
            stages=[self.stage(i) for i in range(len(self.plan.stages))],
            sweeps=[self.sweep(stages) for stages in self.plan.sweeps],
            meeting=", ".join(f"*{self.shared(sweep[0])}" for sweep in self.plan.sweeps),
            row_outputs=self.row_outputs(),
            held_values=[
                HeldRegisters(name=c.name, register=f"r{camel(c.name)}Held", type=self.compute())
                for c in self.plan.expensive
            ],
            columns=self.columns_text(),
            launch_arguments=self.launch_arguments(),
        )

    # The chain in pieces

    def statistic_leaves(self) -> dict[tuple[Any, ...], str]:
        return {emit.leaf_key(s.node): s.name for s in (*self.plan.rows, *self.plan.columns)}

    def function(
        self,
        name: str,
        doc: str,
        values: list[Node],
        leaves: dict[tuple[Any, ...], str],
        alone: Sequence[Node] = (),
        like: str = "",
    ) -> Function:
        """A function that computes the values from their operands. Values that are held from sweep to sweep are
        operands, except those that are computed `alone`. Constants have the shape of `like`, or of any operand."""
        targets = self.target_names()
        columns = self.vector_axes()
        widths = {id(s.node): s.width for s in self.plan.inner}
        given = {id(c.node): c.name for c in self.plan.expensive if c.node not in alone}
        dialect = replace(
            self.dialect, leaves={**self.leaves(), **leaves}, columns=columns, widths=widths, given=given,
            like=like or self.like(),
        )  # fmt: skip
        lines, results = emit.emit_values(self.statements, targets, dialect, values)
        names = [
            *self.vector_names(),
            *given.values(),
            *leaves.values(),
            "compute",
            *self.flags,
            *dict(self.spec.types),
        ]
        words = set(re.findall(r"\w+", " ".join([*lines, *results])))
        params = [n for n in dict.fromkeys(names) if n in words] or names[:1]
        if not like and dialect.like in words and dialect.like != params[0]:
            lines, results = emit.emit_values(self.statements, targets, replace(dialect, like=params[0]), values)
        return Function(name, "\n    ".join(doc_lines(doc, 4)), params, lines, results)

    def vector_axes(self) -> tuple[str, ...]:
        """The axes along a vector."""
        return tuple(axis for group in self.plan.column_groups for axis in group.axes)

    @once
    def stage_function(self, stage: int) -> Function:
        statistics = self.plan.stages[stage]
        before = {emit.leaf_key(s.node): s.name for s in self.plan.rows if s.stage < stage}
        what = ", ".join(f"{s.name} ({s.op})" for s in statistics)
        doc = f"The values to reduce into {what}, from one vector of each operand."
        alone = len(statistics) == 1 and not SUFFIXES.fullmatch(statistics[0].name)
        name = f"{self.spec.op}_{statistics[0].name if alone else f'stage{stage}'}"
        written = self.written_in(stage)
        if written:
            doc = f"{doc[:-1]}, and {', '.join(a.name for a in written)}: none needs the statistics."
        return self.function(name, doc, [*(s.operand for s in statistics), *self.values_of(written)], before)

    def written_in(self, stage: int) -> list[Access]:
        """The outputs along rows that are written in the sweep of a stage."""
        return self.vector_stores() if self.plan.joins and stage == len(self.plan.stages) - 1 else []

    def values_of(self, stores: list[Access]) -> list[Node]:
        values = {(s.name, s.part): s.value for s in self.statements}
        return [values[(a.array.name, a.part)] for a in stores if a.array is not None]

    @once
    def chain_function(self) -> Function | None:
        stores = self.vector_stores()
        if not stores or self.plan.joins:
            return None
        doc = "The chain, on one vector of each operand and the row's statistics."
        return self.function(f"{self.spec.op}_chain", doc, self.values_of(stores), self.statistic_leaves())

    @once
    def row_function(self) -> Function | None:
        stores = self.row_stores()
        if not stores:
            return None
        doc = "The row's own results, from its statistics."
        like = self.plan.rows[0].name if self.plan.rows else ""
        return self.function(f"{self.spec.op}_row", doc, self.values_of(stores), self.statistic_leaves(), like=like)

    @once
    def held_function(self, stage: int) -> Function:
        """The function that computes the values which are held from this stage on."""
        own = [c for c in self.plan.expensive if c.stage == stage]
        before = {emit.leaf_key(s.node): s.name for s in self.plan.rows if s.stage < stage}
        words = ", ".join(c.name for c in own)
        doc = f"{words}, on one vector of each operand: several passes need {'it' if len(own) == 1 else 'them'}."
        name = f"{self.spec.op}_held_{own[0].name if len(own) == 1 else f'stage{stage}'}"
        values = [c.node for c in own]
        return self.function(name, doc, values, before, values)

    @property
    def held_stages(self) -> list[int]:
        """The stages from which on values are held."""
        return sorted({c.stage for c in self.plan.expensive})

    def held_functions(self) -> list[Function]:
        return [self.held_function(stage) for stage in self.held_stages]

    def held_values(self, function: Function, stage: int) -> list[HeldValues]:
        """The held values that a sweep needs, those of each stage together."""
        found, needed = [], self.needed(function)
        for first in self.held_stages:
            own = [c for c in self.plan.expensive if c.stage == first]
            if any(c.name in needed for c in own):
                computed, registers = self.held_function(first), [f"r{camel(c.name)}Held" for c in own]
                found.append(HeldValues(
                    names=[c.name if c.name in needed or first == stage else "_" for c in own], registers=registers,
                    first=first == stage, function=computed, arguments=self.arguments(computed, "vec"),
                ))  # fmt: skip
        return found

    @once
    def functions(self) -> list[Function]:
        stages = [self.stage_function(i) for i in range(len(self.plan.stages))]
        return [*self.held_functions(), *stages, *(f for f in (self.chain_function(), self.row_function()) if f)]

    def kernel_functions(self) -> list[Function]:
        """The functions that a kernel which walks through the rows calls."""
        return self.functions()

    def arguments(self, function: Function, width: str) -> list[str]:
        """The arguments of a function: vectors of `width` elements."""
        texts = self.operand_texts(width) | {c.name: c.name for c in self.plan.expensive}
        return self.texts_of(function, width, self.plan.rows, texts)

    def texts_of(
        self, function: Function, width: str, statistics: Sequence[Statistic], texts: Mapping[str, str]
    ) -> list[str]:
        """An argument for each of a function's parameters: a statistic, an operand, or a variable of the kernel."""
        known = {s.name: self.statistic_text(s, width) for s in statistics} | dict(texts)
        return [known.get(p) or self.extra_argument(p) for p in function.params]

    def statistic_type(self, statistic: Statistic) -> str:
        return self.type_of(statistic.kind)

    def statistic_text(self, statistic: Statistic, width: str) -> str:
        if statistic.kind == "bool":
            return f"{full(width, statistic.name, 'cutlass.Int32')} != 0"
        return full(width, statistic.name, self.statistic_type(statistic))

    @once
    def operand_texts(self, width: str) -> dict[str, str]:
        """How each operand of the chain is read from its registers."""
        texts = {access.name: self.operand_text(access, width) for access in self.plan.loads}
        for p in self.spec.params:
            texts[p.name] = full(width, self.parameter_text(p), self.type_of(p.kind))
        return texts

    def counts_up(self, access: Access) -> bool:
        """Whether a coordinate is counted from a vector's first column on: the rows have one column axis."""
        assert access.group is not None
        return access.group >= self.plan.leading and len(self.plan.column_groups) == 1

    def operand_text(self, access: Access, width: str) -> str:
        integer = f"cutlass.{self.integer}"
        if access.counted:
            return full(width, self.table_size(access.counted), integer)
        if access.mode in ("size", "index"):
            assert access.group is not None
            size = full(width, self.groups[access.group].name, integer)
            return size if access.mode == "size" else self.position_text(access, access.group, width, integer)
        assert access.array is not None
        return self.as_computed(self.loaded_text(access, width), access.array)

    def position_text(self, access: Access, group: int, width: str, integer: str) -> str:
        """The positions along a group of axes, as integers of this type."""
        if group < self.plan.leading:
            return full(width, self.coordinate(group), integer)
        if self.counts_up(access):
            return f"reduce.count_up(at.c, {width}).to({integer})"
        return f"r{camel(access.name)}[None, v{self.of_row(access)}].load().to({integer})"

    def loaded_text(self, access: Access, width: str) -> str:
        """The vector of an access, in its array's type."""
        name, v = self.fragment(access), "0" if self.one_vector(access) else "v"
        if access.mode == "row":
            return full(width, f"{name}[0{self.of_row(access)}]", f"{name}.element_type")
        part = f"{access.part}, " if access.interleaved else ""
        return f"{name}[{part}None, {v}{self.of_row(access)}].load()"

    # Sweeps over the row

    def stage(self, number: int) -> Stage:
        """The reductions of each vector."""
        function, written = self.stage_function(number), self.written_in(number)
        operands = self.operand_names(self.plan.stages[number], {*(a.name for a in written), *function.params})
        return Stage(
            **vars(self.fold_of(self.plan.stages[number])),
            results=", ".join([*operands, *(a.name for a in written)]) if written else "values",
            values=tuple_text(operands) if written else "values",
            stores=self.store_lines(written),
            shared=self.shared(number),
            memory=self.memory(self.plan.stages[number]),
            function=function,
            arguments=self.arguments(function, "vec"),
            held=self.held_values(function, number),
            loads=self.loads_for(function),
            at=bool(written) or self.names_vector(function),
        )

    @staticmethod
    def operand_names(statistics: Sequence[Statistic], taken: set[str]) -> list[str]:
        """A name for the values that are reduced into each statistic. None of them is taken."""
        names: list[str] = []
        for s in statistics:
            name = f"{s.name}_of"
            while name in {*taken, *names}:
                name += "_"
            names.append(name)
        return names

    def names_vector(self, function: Function) -> bool:
        """Whether the values of a function need a vector's columns, or are loaded for one vector alone."""
        counted = {a.name for a in self.plan.loads if a.mode == "index" and self.counts_up(a)}
        return bool(counted & self.needed(function)) or any(load.one_vector for load in self.loads_for(function))

    def sweep(self, stages: tuple[int, ...]) -> Sweep:
        """One sweep over a row: its stages, and how their statistics are reduced over the row's threads."""
        found = [self.stage(i) for i in stages]
        statistics = [s for i in stages for s in self.plan.stages[i]]
        loads = {load.call: load for stage in found for load in stage.loads}
        return Sweep(
            **vars(self.fold_of(tuple(statistics))),
            shared=self.shared(stages[0]),
            memory=self.memory(statistics),
            stages=found,
            loads=list(loads.values()),
            **vars(self.rising(stages) if len(stages) > 1 else Rising([], "", [])),
        )

    def fold_of(self, statistics: tuple[Statistic, ...]) -> Reductions:
        running = [f"r{camel(s.name)}" for s in statistics]
        types = [self.statistic_type(s) for s in statistics]
        return Reductions(
            names=[s.name for s in statistics],
            ops=tuple_text([f'"{s.op}"' for s in statistics]),
            running=running,
            type_tuple=tuple_text(types),
            statistics=list(zip([s.name for s in statistics], running, [s.op for s in statistics], types, strict=True)),
        )

    def rising(self, stages: tuple[int, ...]) -> Rising:
        """How sums of exponentials follow maxima that are computed in the same sweep."""
        before, after = (self.plan.stages[i] for i in stages)
        statistics = [*before, *after]
        ways = [(s, way) for s in after if (way := rescaled(s.node))]
        maxima, places = [], []
        for maximum in before:
            followers = [(s, way) for s, way in ways if way.maximum is maximum.node]
            if followers:
                sums = ", ".join(f"r{camel(s.name)}" for s, _ in followers)
                texts = tuple_text([f'("{way.power}", {emit.literal(way.scale)})' for _, way in followers])
                name = camel(maximum.name)
                maxima.append(Maximum(
                    name=maximum.name, seen=f"r{name}Seen", type=self.statistic_type(maximum),
                    risen=f"reduce.risen(r{name}, r{name}Seen, [{sums}], {texts}, how.holds_row and begin == 0)",
                ))  # fmt: skip
        held = []
        for s, way in ways:
            place = next(i for i, m in enumerate(statistics) if m.node is way.maximum)
            text = f'"{way.power}", {emit.literal(way.scale)}'
            places.append(f"({statistics.index(s)}, {place}, {text})")
            name = statistics[place].name
            held += [
                f"reduce.rescale_held(r{camel(c.name)}Held, r{camel(name)}Seen, {name}, {text})"
                for c in self.plan.expensive
                if c.node is s.operand
            ]
        return Rising(maxima=maxima, rescaled=tuple_text(places), held_values=held)

    module = "rowwise"  # of the device functions

    def memory(self, statistics: Sequence[Statistic]) -> str:
        """The shared memory in which a row's threads exchange partial results of some statistics."""
        return f"{self.module}.shared(how, {', '.join(map(self.statistic_type, statistics))})"

    def shared(self, stage: int) -> str:
        """The name of the shared memory of a stage."""
        statistics = self.plan.stages[stage]
        return f"s{camel(statistics[0].name)}" if len(statistics) == 1 else f"sStage{stage}"

    def loads_for(self, function: Function) -> list[Load]:
        """The arrays that a sweep reads; if the row is read again, also the arrays of the held values."""
        needed = self.needed(function)
        return [load for load in self.loads if load.values & needed]

    def needed(self, function: Function) -> set[str]:
        """The operands of a function, and the operands of the held values among them."""
        found = set(function.params)
        for stage in reversed(self.held_stages):
            if any(c.name in found for c in self.plan.expensive if c.stage == stage):
                found |= set(self.held_function(stage).params)
        return found

    def final(self) -> Final | None:
        function = self.chain_function()
        if function is None:
            return None
        return Final(
            function=function,
            results=", ".join(a.name for a in self.vector_stores()),
            arguments=self.arguments(function, "vec"),
            held=self.held_values(function, len(self.plan.stages)),
            loads=self.loads_for(function),
            stores=self.store_lines(self.vector_stores()),
        )

    def store_lines(self, stores: list[Access]) -> list[str]:
        """The lines that write vectors. Interleaved parts go together, from registers."""
        lines: list[str] = []
        for access in stores:
            assert access.array is not None
            tensor, value, where = self.tensors[access.array.name], self.value(access), self.start(access)
            if access.mode == "gather":
                lines.append(f"at.scatter({value}, {tensor}, {self.columns_of(access)}, {self.group_of(access)})")
            elif access.interleaved:
                lines.append(f"{self.written(access, str(access.part))}.store({value})")
                if access is [a for a in stores if a.array is access.array][-1]:
                    where += f", parts={access.array.parts}{self.unaligned(access)}{self.run_written(access)}"
                    lines.append(f"at.store({self.written(access)}, {tensor}, {where})")
            else:
                lines.append(
                    f"at.store({value}, {tensor}, {where}{self.held(access)}{self.unaligned(access)}{self.run_written(access)})"
                )
        return lines

    def value(self, access: Access) -> str:
        """An output's value in the array's type."""
        assert access.array is not None
        return self.converted(access).format(access.name, f"{self.tensors[access.array.name]}.element_type")

    def held(self, access: Access) -> str:
        """The registers in which an output stays until a thread's rows are written together."""
        return f", {self.written(access)}" if self.plan.whole_rows else ""

    def rows_registers(self) -> str:
        """The registers that hold all rows of a thread."""
        own = [a for a in (*self.vector_loads(), *self.plan.stores) if a.array is not None and self.plan.of_row(a)]
        return ", ".join(dict.fromkeys(map(self.fragment, own)))

    def rows_stores(self) -> list[str]:
        """The stores of all rows of a thread."""
        stored = {self.fragment(a): self.tensors[a.array.name] for a in self.plan.stores if a.array is not None}
        return [f"rowwise.store_together({name}, {tensor}, first_row, place)" for name, tensor in stored.items()]

    def row_outputs(self) -> RowOutputs | None:
        function = self.row_function()
        if function is None:
            return None
        rows = self.row_stores()
        return RowOutputs(
            function=function,
            results=", ".join(a.name for a in rows),
            arguments=self.arguments(function, self.of_rows),
            stores=[self.store_of_row(a, self.tensors[a.array.name]) for a in rows if a.array is not None],
        )

    @property
    def of_rows(self) -> str:
        """How many rows a value of rows has."""
        return "1"

    def store_of_row(self, access: Access, tensor: str) -> str:
        return f"{self.record}.store_one({self.value(access)}, {tensor}, {self.place(access)}{self.held(access)})"

    def kernel_settings(self) -> list[str]:
        lines = []
        if self.wide and any("compute" in text for text in self.arguments_text()):
            lines.append(self.compute_line())
        return lines + self.flag_lines(self.kernel_flags())

    def kernel_flags(self) -> set[str]:
        """The names among which are the kernel's flags of approximations."""
        return {p for f in self.kernel_functions() for p in f.params}

    def arguments_text(self) -> list[str]:
        return [t for f in self.kernel_functions() for t in self.arguments(f, "vec")] + [
            self.statistic_type(s) for s in (*self.plan.rows, *self.plan.columns)
        ]
