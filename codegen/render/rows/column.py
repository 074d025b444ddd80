"""The kernels of an op that reduces over rows: prepares the values of `templates/column.py.jinja`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from codegen.graph import emit
from codegen.graph.names import fresh
from codegen.graph.nodes import Statement
from codegen.graph.online import TIES
from codegen.language.reference import Reference
from codegen.plan.access import Access
from codegen.plan.op import Op
from codegen.plan.rows.access import Statistic
from codegen.render.common import camel, tuple_text
from codegen.render.once import once
from codegen.render.records import Function, Tensor
from codegen.render.rows.finishes import Finish, FinishContext
from codegen.render.rows.records import (
    ColumnStatistic,
    FinishKernel,
    FirstLaunch,
    Load,
    Places,
    RowStatistic,
    Run,
    Settled,
    Staged,
    Walk,
    WalkKernel,
)
from codegen.render.rows.row import RowContext
from codegen.shared import COUNTER


class WalkContext(FinishContext):
    """The values of the column template."""

    template = "column.py.jinja"
    record = "own"
    index = "row"

    def kernel(self) -> WalkKernel:
        finishes = [self.finish(f) for f in self.finishes()]
        tiles = not self.plan.collapsed and (not self.plan.rows or self.plan.first is not None)
        tiles = tiles and bool(self.of_columns())
        return WalkKernel(
            **vars(replace(self.kernel_head(), row_loads=[load for load in self.row_loads() if load.of_row])),
            functions=self.functions(),
            everything=self.plan.collapsed,
            column_statistics=[self.folded(s) for s in self.of_columns()],
            column_types=tuple_text([self.statistic_type(s) for s in self.of_columns()]),
            totals=[self.folded(s) for s in self.totals()],
            total_types=tuple_text([self.statistic_type(s) for s in self.totals()]),
            parts_tensor=self.parts((self.of_columns() or self.totals())[0]),
            tiles=tiles,
            first=self.first_launch(),
            row_statistics=self.row_statistics(),
            staging=[load for load in self.loads if load.staged],
            column_loads=[load for load in self.loads if not load.of_row],
            once_loads=[load for load in self.row_loads() if not load.of_row],
            walk=self.walk(),
            finishes=finishes,
            places=self.places() if self.plan.by_place else None,
            settled=self.settled(),
            meets=self.plan.meets,
            launch_extents=self.launch_extents_of(tiles, finishes),
            apart=self.apart_text(),
            place_lines=self.place_lines(),
            shares=self.plan.shares,
            rows="row_count" if self.plan.collapsed else self.rows_text(),
            runs_written=self.runs_of(self.vector_stores()),
        )

    def one_row(self, access: Access) -> str:
        """A thread prefetches several rows: to registers, or whole vectors of whole rows also to shared memory."""
        return ", k" if access.mode == "flat" and self.stages_rows else ", u"

    @property
    def stages_rows(self) -> bool:
        """Whether prefetched rows may come to shared memory."""
        return bool(self.plan.rows) or self.plan.by_runs

    def load(self, access: Access) -> Load:
        found = super().load(access)
        if access.mode != "flat" or not found.of_row or not self.stages_rows:
            return found
        name, parts = f"s{found.name[1:]}", access.array.parts if access.array and access.interleaved else 0
        modes = "None, None, None, k" if parts else "None, None, k"
        of_parts, start = f", parts={parts}" if parts else "", self.start(access)
        staged = Staged(
            f"{name} = rowwise.staging(how, {found.tensor}{of_parts})",
            f"fetch({found.tensor}, {start}, {name}, u{of_parts})",
            f"take({found.tensor}, {start}, {name}, u, {found.name}[{modes}]{of_parts})",
        )
        return replace(found, staged=staged, registers=f"{found.name}[{modes}]")

    # The kernel that writes the statistics of rows that are too long for one kernel

    @once
    def earlier(self) -> RowContext | None:
        """The values that it shows."""
        plan = self.plan.first
        if plan is None:
            return None
        spec = replace(self.spec, op=f"{self.spec.op}_rows", outputs=tuple(a.array for a in plan.stores if a.array))
        statements = tuple(Statement(a.name, None, s.node) for a, s in zip(spec.outputs, plan.rows, strict=True))
        return RowContext(Op(spec, statements, Reference(()), plan))

    def row_statistics(self) -> list[RowStatistic]:
        """How statistics of rows are read: the registers that hold them, and the loads."""
        if self.plan.first is None:
            return []
        found = []
        for s, store in zip(self.plan.rows, self.plan.first.stores, strict=True):
            tensor, register = f"m{camel(store.name)}", f"r{camel(store.name)}"
            load = f"load_one({tensor}, {self.place(store)}, {register}[None, u])"
            found.append(RowStatistic(name=s.name, register=register, tensor=tensor, load=load))
        return found

    def one_vector(self, access: Access) -> bool:
        """A thread holds the values that all rows share."""
        return False

    def apart_text(self) -> str:
        """The number of places at which rows are reduced separately."""
        return " * ".join(self.groups[i].name for i in self.plan.apart)

    def row_lines(self) -> list[str]:
        return self.coordinate_lines(self.plan.walked_groups, self.index) if self.plan.apart else super().row_lines()

    def place_lines(self) -> list[str]:
        """The coordinates that all rows of a block share."""
        return self.coordinate_lines(tuple(self.groups[i] for i in self.plan.apart), "place")

    def launch_extents_of(self, tiles: bool, finishes: list[FinishKernel]) -> list[str]:
        """The sizes with which the launcher counts blocks and elements."""
        texts = [self.apart_text(), *(f.grid for f in finishes)] + [
            line for f in finishes for line in f.launch_arguments
        ]
        pieces = tiles or bool(self.plan.stages and self.of_columns())
        texts += [self.columns_text()] if pieces or self.plan.by_place else []
        return self.extents_in(texts)

    def first_launch(self) -> FirstLaunch | None:
        """The launcher's name for the launch of the first kernel."""
        first = self.earlier()
        if first is None:
            return None
        words = [t.name for t in first.tensor_lines()] + [p.constant for p in self.static] + ["how.first"]
        return FirstLaunch(name=f"{first.spec.op}_launch", arguments=", ".join(words), counter=self.counter())

    # Reductions over rows

    def places(self) -> Places:
        """The kernel whose threads reduce all rows of a place, and compute its results from them."""
        (finish,) = self.finishes()
        return self.results_of(finish)

    def settled(self) -> Settled | None:
        """The results that a block writes which reduces all rows of a place, and the partial results that it writes besides."""
        if not self.plan.settled:
            return None
        (finish,) = (f for f in self.finishes() if f.kept == self.plan.spread)
        others = [s for s in self.of_columns() if s not in self.plan.settled]
        parts = self.fold_lists(others, "{running}, {ops}, [{parts}]") if others else ""
        return Settled(finish.name, self.results_of(finish), parts, self.rescaled(others))

    def results_of(self, finish: Finish) -> Places:
        """The results that threads compute once they have reduced all rows of a place."""
        flags = {f for f in self.flags if f in finish.function.params}
        sums = [f"{s.name} = {self.reduced(s)}" for s in self.of_columns() if s.name in finish.function.params]
        texts = {**self.operand_texts("vec"), **{s.name: self.truth(s) for s in self.of_columns()}}
        return Places(
            settings=[line for line in self.flag_lines(flags) if line not in self.kernel_settings()],
            fragments=[self.fragment_of(a, "vec") for a in finish.stores if a.interleaved],
            statistics=sums,
            function=finish.function,
            arguments=self.texts_of(finish.function, "vec", [], texts),
            results=", ".join(a.name for a in finish.stores),
            stores=self.store_lines(finish.stores),
        )

    def reduced(self, statistic: Statistic) -> str:
        """A statistic of a vector's columns, after a thread has read all rows."""
        own = f"reduce.values_at(v, f{camel(statistic.name)}).load()"
        total = f'reduce.result("{statistic.op}", {own})'
        if statistic.follows is not None and statistic.follows.power != TIES:
            maximum = f"reduce.values_at(v, f{camel(self.maximum_of(statistic).name)}).load()"
            total = f"reduce.settled({own}, {maximum}, {statistic.follows.finite})"
        if statistic.op != "mean":
            return total
        return f"device.divide_by_row({total}, device.full(vec, {self.statistic_type(statistic)}({self.rows_text()})), False)"

    @staticmethod
    def truth(statistic: Statistic) -> str:
        return f"{statistic.name} != 0" if statistic.kind == "bool" else statistic.name

    def counter(self) -> str:
        """The tensor in which blocks count the work that is done."""
        return fresh({*self.tensors.values(), *map(self.parts, self.plan.columns)}, "mCounter")

    def folded(self, statistic: Statistic) -> ColumnStatistic:
        name = camel(statistic.name)
        return ColumnStatistic(
            name=statistic.name, op=statistic.op, type=self.statistic_type(statistic),
            running=f"f{name}", parts=self.parts(statistic),
        )  # fmt: skip

    def tensor_lines(self) -> list[Tensor]:
        rows: list[Tensor] = []
        shape = ", ".join(g.name for g in self.plan.row_groups) or "1"
        if self.plan.first is not None:
            rows += [
                Tensor(name=f"m{camel(a.name)}", hint="cute.Tensor", comment=f"({shape}), or nothing")
                for a in self.plan.first.stores
            ]
            comment = f"({COUNTER}) rows that all blocks have done, with room, or nothing"
            rows.append(Tensor(name=self.counter(), hint="cute.Tensor", comment=comment))
        return super().tensor_lines() + rows

    def vector_stores(self) -> list[Access]:
        return [a for a in super().vector_stores() if not self.late(a)]

    def row_stores(self) -> list[Access]:
        return [a for a in super().row_stores() if not self.late(a)]

    @once
    def walk_function(self) -> Function:
        stores = self.vector_stores()
        values = [*self.values_of(stores), *(s.value for s in self.plan.columns)]
        reduced = f"the values to reduce into {', '.join(s.name for s in self.plan.columns)}, from one vector of each operand."
        doc = f"The chain: {', '.join(a.name for a in stores)}, and {reduced}" if stores else f"T{reduced[1:]}"
        rows = {emit.leaf_key(s.node): s.name for s in self.plan.rows}
        return self.function(f"{self.spec.op}_chain", doc, values, rows)

    @once
    def functions(self) -> list[Function]:
        return [*self.kernel_functions(), *(f.function for f in self.finishes())]

    @once
    def kernel_functions(self) -> list[Function]:
        stages = [self.stage_function(i) for i in range(len(self.plan.stages))]
        row = self.row_function()
        return [*self.held_functions(), *stages, self.walk_function(), *([row] if row else [])]

    def kernel_flags(self) -> set[str]:
        ways = [s.follows for s in self.plan.columns if s.follows is not None]
        return super().kernel_flags() | set(map(self.approximates, ways))

    def run_read(self, access: Access) -> str:
        """Rows come in stages, each to a place of its own (`load`)."""
        return ""

    def run_written(self, access: Access) -> str:
        return "" if self.late(access) else super().run_written(access)

    def run_name(self, access: Access) -> str:
        return f"s{self.fragment(access)[1:]}Run"

    def run_of(self, access: Access) -> Run:
        assert access.array is not None
        parts = access.array.parts or 1 if access.interleaved else 1
        return replace(super().run_of(access), parts=parts, whole=False, halves=False)

    def walk(self) -> Walk:
        """The code that a thread runs for each vector of a row."""
        function, stores = self.walk_function(), self.vector_stores()
        names = [a.name for a in stores]
        values = self.operand_names(self.plan.columns, {*names, *function.params})
        named = dict(zip(self.plan.columns, values, strict=True))
        once = [s for s in self.totals() if s.once]
        folds = [
            self.fold("accumulate_at", self.of_columns(), named, "at.inside_columns()"),
            self.fold("accumulate", [s for s in self.totals() if not s.once], named, "inside"),
            self.fold("accumulate", once, named, "once"),
        ]
        return Walk(
            function=function,
            arguments=self.arguments(function, "vec"),
            results=", ".join([*names, *values]),
            held=self.held_values(function, len(self.plan.stages)),
            inside=any(not s.once for s in self.totals()),
            once=bool(once),
            folds=[f for f in folds if f],
            store_parts=self.fold_lists(self.of_columns(), "{running}, {ops}, [{parts}]"),
            gathered=self.fold_lists(self.of_columns(), "{running}, {ops}"),
            rescaled=self.rescaled(self.of_columns()),
            over_row=self.fold_lists(self.totals(), "{running}, {ops}"),
            totals_rescaled=self.rescaled(self.totals()),
            stores=self.store_lines(stores),
        )

    def fold(self, function: str, statistics: list[Statistic], values: Mapping[Statistic, str], inside: str) -> str:
        """How a vector of values is combined with the running partial results, if there are any."""
        if not statistics:
            return ""
        lists, rescaled = self.fold_lists(statistics, "{running}, {ops}"), self.rescaled(statistics, terms=True)
        at = "v, " if function == "accumulate_at" else ""
        return f"reduce.{function}({at}{lists}, ({', '.join(values[s] for s in statistics)},), {inside}{rescaled})"

    def fold_lists(self, statistics: list[Statistic], form: str) -> str:
        running = f"[{', '.join(f'f{camel(s.name)}' for s in statistics)}]"
        tensors = [self.parts(s) for s in statistics]
        if self.plan.apart:  # the results of rows at one place are neighbours
            count = f"({self.columns_text()})"
            count = f"({count} // each)" if self.plan.shares else count
            tensors = [f"cute.domain_offset((0, place * {count}), {t})" for t in tensors]
        parts, ops = ", ".join(tensors), tuple_text([f'"{s.op}"' for s in statistics])
        return form.format(running=running, ops=ops, parts=parts)

    def start(self, access: Access) -> str:
        return "cutlass.Int64(row) * width" if self.plan.collapsed else super().start(access)
