"""The kernels of an op that reduces over rows: prepares the values of `templates/column.py.jinja`."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace

from codegen.graph import emit
from codegen.graph.names import fresh
from codegen.graph.nodes import ROWS, Statement, topological
from codegen.language.reference import Reference
from codegen.plan.access import Access
from codegen.plan.op import Op
from codegen.plan.planner import dtype_constant
from codegen.plan.rows.access import Statistic
from codegen.render.common import camel
from codegen.render.records import Constant, Function, Tensor
from codegen.render.rows.records import (
    ColumnStatistic,
    FinishKernel,
    FirstLaunch,
    Load,
    PartialFold,
    Places,
    RowStatistic,
    Run,
    Staged,
    Walk,
    WalkKernel,
)
from codegen.render.rows.row import RowContext, in_tuple
from codegen.shared import COUNTER


@dataclass(frozen=True)
class Finish:
    """A kernel that reduces the blocks' partial results, for the outputs that keep the same axes."""

    name: str
    kept: tuple[int, ...]  # their groups of columns
    stores: list[Access]
    function: Function


class WalkContext(RowContext):
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
            column_types=in_tuple([self.statistic_type(s) for s in self.of_columns()]),
            totals=[self.folded(s) for s in self.totals()],
            total_types=in_tuple([self.statistic_type(s) for s in self.totals()]),
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
            launch_extents=self.launch_extents_of(tiles, finishes),
            apart=self.apart_text(),
            place_lines=self.place_lines(),
            shares=self.plan.shares,
            rows="row_count" if self.plan.collapsed else self.rows_text(),
            runs_written=self.runs_of(self.vector_stores()),
        )

    def one_row(self, access: Access) -> str:
        """A thread prefetches several rows: to registers, or whole vectors of whole rows also to shared memory."""
        return ", k" if access.mode == "flat" and self.plan.rows else ", u"

    def load(self, access: Access) -> Load:
        found = super().load(access)
        if access.mode != "flat" or not found.of_row or not self.plan.rows:
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

    @functools.cache  # noqa: B019  a context lives as long as a file is rendered
    def first(self) -> RowContext | None:
        """What it shows."""
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

    def rows_text(self) -> str:
        """The number of rows that are reduced together."""
        return " * ".join(g.name for g in self.plan.walked_groups) or "1"

    def apart_text(self) -> str:
        """The number of places at which rows are reduced separately."""
        return " * ".join(self.groups[i].name for i in self.plan.apart)

    def spread_text(self) -> str:
        """The number of results that a partial result has of each statistic of columns."""
        return " * ".join(self.groups[i].name for i in self.plan.spread)

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
        used = [i for i, g in enumerate(self.groups) if self.mentions(texts, g.name)]
        names, sources = [self.groups[i].name for i in used], [self.extent_source(i) for i in used]
        return [f"{', '.join(names)} = {', '.join(sources)}"] if names else []

    def first_launch(self) -> FirstLaunch | None:
        """The launcher's name for the launch of the first kernel."""
        first = self.first()
        if first is None:
            return None
        words = [t.name for t in first.tensor_lines()] + [p.constant for p in self.static] + ["how.first"]
        return FirstLaunch(name=f"{first.spec.op}_launch", arguments=", ".join(words), counter=self.counter())

    # Reductions over rows

    def places(self) -> Places:
        """The kernel whose threads reduce all rows of a place, and compute its results from them."""
        (finish,) = self.finishes()
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
        total = f'reduce.result("{statistic.op}", f{camel(statistic.name)}[None, v].load())'
        if statistic.op != "mean":
            return total
        return f"device.divide_by_row({total}, device.full(vec, {self.statistic_type(statistic)}({self.rows_text()})), False)"

    @staticmethod
    def truth(statistic: Statistic) -> str:
        return f"{statistic.name} != 0" if statistic.kind == "bool" else statistic.name

    def of_columns(self) -> list[Statistic]:
        return [s for s in self.plan.columns if s.over == "column"]

    def totals(self) -> list[Statistic]:
        return [s for s in self.plan.columns if s.over == "total"]

    def parts(self, statistic: Statistic) -> str:
        return f"m{camel(statistic.name)}Parts"

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
        shapes = {"column": f"(parts, {self.spread_text()})", "total": "(blocks)"}
        rows = [
            Tensor(name=self.parts(s), hint="cute.Tensor", comment=f"{shapes[s.over]} {s.name} of each part")
            for s in self.plan.columns
        ]
        shape = ", ".join(g.name for g in self.plan.row_groups) or "1"
        if self.plan.first is not None:
            rows += [
                Tensor(name=f"m{camel(a.name)}", hint="cute.Tensor", comment=f"({shape}), or nothing")
                for a in self.plan.first.stores
            ]
            comment = f"({COUNTER}) rows that all blocks have done, with room, or nothing"
            rows.append(Tensor(name=self.counter(), hint="cute.Tensor", comment=comment))
        return super().tensor_lines() + rows

    def late(self, access: Access) -> bool:
        """Whether an output needs all rows."""
        return access.array is not None and access.array.name in self.plan.late

    def vector_stores(self) -> list[Access]:
        return [a for a in super().vector_stores() if not self.late(a)]

    def row_stores(self) -> list[Access]:
        return [a for a in super().row_stores() if not self.late(a)]

    @functools.cache  # noqa: B019  a context lives as long as a file is rendered
    def walk_function(self) -> Function:
        stores = self.vector_stores()
        values = [*self.values_of(stores), *(s.operand for s in self.plan.columns)]
        reduced = f"the values to reduce into {', '.join(s.name for s in self.plan.columns)}, from one vector of each operand."
        doc = f"The chain: {', '.join(a.name for a in stores)}, and {reduced}" if stores else f"T{reduced[1:]}"
        rows = {emit.leaf_key(s.node): s.name for s in self.plan.rows}
        return self.function(f"{self.spec.op}_chain", doc, values, rows)

    @functools.cache  # noqa: B019  a context lives as long as a file is rendered
    def functions(self) -> list[Function]:
        return [*self.kernel_functions(), *(f.function for f in self.finishes())]

    @functools.cache  # noqa: B019  a context lives as long as a file is rendered
    def kernel_functions(self) -> list[Function]:
        stages = [self.stage_function(i) for i in range(len(self.plan.stages))]
        row = self.row_function()
        return [*stages, self.walk_function(), *([row] if row else [])]

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
        return replace(super().run_of(access), parts=parts, whole=False)

    def walk(self) -> Walk:
        function, stores = self.walk_function(), self.vector_stores()
        names = [a.name for a in stores]
        taken = {*names, *function.params}
        values = []
        for s in self.plan.columns:
            name = f"{s.name}_of"
            while name in taken:
                name += "_"
            taken.add(name)
            values.append(name)
        named = dict(zip(self.plan.columns, values, strict=True))
        once = [s for s in self.totals() if s.once]
        folds = [
            self.fold("accumulate_at", self.of_columns(), named, "inside"),
            self.fold("accumulate", [s for s in self.totals() if not s.once], named, "inside"),
            self.fold("accumulate", once, named, "once"),
        ]
        return Walk(
            function=function,
            arguments=self.arguments(function, "vec"),
            results=", ".join([*names, *values]),
            inside=any(not s.once for s in self.plan.columns),
            once=bool(once),
            folds=[f for f in folds if f],
            store_parts=self.fold_lists(self.of_columns(), "{running}, {ops}, [{parts}]"),
            over_row=self.fold_lists(self.totals(), "{running}, {ops}"),
            stores=self.store_lines(stores),
        )

    def fold(self, function: str, statistics: list[Statistic], values: Mapping[Statistic, str], inside: str) -> str:
        """How a vector of values is combined with the running partial results, if there are any."""
        if not statistics:
            return ""
        lists = self.fold_lists(statistics, "{running}, {ops}")
        at = "v, " if function == "accumulate_at" else ""
        return f"reduce.{function}({at}{lists}, ({', '.join(values[s] for s in statistics)},), {inside})"

    def fold_lists(self, statistics: list[Statistic], form: str) -> str:
        running = f"[{', '.join(f'f{camel(s.name)}' for s in statistics)}]"
        tensors = [self.parts(s) for s in statistics]
        if self.plan.apart:  # the results of rows at one place are neighbours
            count = f"({self.columns_text()})"
            count = f"({count} // each)" if self.plan.shares else count
            tensors = [f"cute.domain_offset((0, place * {count}), {t})" for t in tensors]
        parts, ops = ", ".join(tensors), in_tuple([f'"{s.op}"' for s in statistics])
        return form.format(running=running, ops=ops, parts=parts)

    def start(self, access: Access) -> str:
        return "cutlass.Int64(row) * width" if self.plan.collapsed else super().start(access)

    # The finishing kernels: one for each set of axes of the outputs over rows

    @functools.cache  # noqa: B019  a context lives as long as a file is rendered
    def finishes(self) -> list[Finish]:
        by_axes: dict[tuple[str, ...], list[Access]] = {}
        for access in self.plan.stores:
            if self.late(access) and access.array is not None:
                by_axes.setdefault(access.array.axes, []).append(access)
        leaves = {emit.leaf_key(s.node): s.name for s in self.plan.columns}
        found: list[Finish] = []
        for axes, stores in by_axes.items():
            suffix = "_".join(["", *("rows" if a == ROWS else a for a in axes or ("total",))]) if found else ""
            kept = tuple(
                i for i in self.plan.spread if set(self.groups[i].axes) <= set(axes) and not self.plan.collapsed
            )
            doc = "The result." if not axes else f"The results of {' x '.join(axes)}, from their statistics."
            doc = "The columns' results, from their statistics." if kept == self.plan.spread else doc
            values = self.values_of(stores)
            like = next((leaves[k] for k in map(emit.leaf_key, topological(values)) if k in leaves), "")
            function = self.function(f"{self.spec.op}_columns{suffix}", doc, values, leaves, like=like)
            found.append(Finish(f"{self.spec.op}_finish{suffix}", kept, stores, function))
        return found

    def finish(self, finish: Finish) -> FinishKernel:
        function, stores = finish.function, [replace(a, mode="row") for a in finish.stores]  # one value of each
        statistics = [s for s in self.plan.columns if s.name in function.params]
        inputs = [replace(a, mode="row") for a in self.plan.loads if a.name in function.params and a.array is not None]
        wanted = {self.tensors[a.array.name] for a in (*inputs, *stores) if a.array is not None}
        wanted |= {f"m{camel(p.name)}" for p in self.dynamic if p.name in function.params}
        wanted |= {self.parts(s) for s in statistics}
        flags = {f: outputs for f, outputs in self.approximations[1].items() if f in function.params}
        wanted |= {self.tensors[a.name] for outputs in flags.values() for a in outputs}
        lines = self.flag_lines(flags)
        arguments = self.finish_arguments(finish)
        folds = self.folds_of(statistics)
        means = [line for fold in folds for line in fold.means]
        text = " ".join([*arguments, *means, *(self.statistic_type(s) for s in statistics)])
        if self.wide and self.mentions([text], "compute"):
            wanted |= {self.tensors[a.name] for a in self.spec.inputs if "float64" in self.spec.dtypes(a)}
            lines.append(self.compute_line())
        wanted |= {self.extra_argument(p).split(".")[0] for p in function.params if p in dict(self.spec.types)}
        tensors = [t for t in self.tensor_lines() if t.name in wanted]
        static = [p for p in self.static if p.name in {*function.params, *map(dtype_constant, function.params)}]
        loads = [
            f"rowwise.load_one({self.tensors[a.array.name]}, {self.finish_place(finish, a)}, there, {self.fragment(a)})"
            for a in inputs if a.array is not None
        ]  # fmt: skip
        places = [
            f"{self.tensors[a.array.name]}[{self.finish_place(finish, a)[1:-1].rstrip(',')}] = {self.value(a)}[0]"
            for a in stores if a.array is not None
        ]  # fmt: skip
        coordinates = self.column_coordinates(finish, " ".join([*places, *loads, *arguments]))
        text = " ".join([*coordinates, *arguments, *(f.text for f in folds), *means])
        counts = {"row_count": self.count(False), "element_count": self.count(True)}
        numbers = [(g.name, "cutlass.Int32", g.name) for g in self.groups] if not self.plan.collapsed else []
        numbers += [(name, "cutlass.Int64", value) for name, value in counts.items()]
        numbers = [n for n in numbers if self.mentions([text], n[0])]
        constants, each = [p.constant for p in static], self.mentions([text], "each")
        return FinishKernel(
            name=finish.name,
            what="a column" if finish.kept == self.plan.spread else "each result" if finish.kept else "everything",
            by_columns=finish.kept == self.plan.spread,
            joined="" if finish.kept in ((), self.plan.spread) else self.joined(finish, "each"),
            coordinates=coordinates,
            function=function,
            tensors=tensors,
            static_params=[Constant(name=p.constant, kind=p.kind) for p in static],
            each=each,
            numbers=numbers,
            folds=folds,
            parts=self.tensors_of_columns(finish),
            settings=lines,
            fragments=[self.registers_of(a, ["1"]) for a in inputs],
            loads=loads,
            arguments=arguments,
            results=", ".join(a.name for a in stores),
            stores=places,
            grid=self.finish_grid(finish),
            launch_arguments=[
                ", ".join(t.name for t in tensors),
                ", ".join([*constants, *["how.each"] * each, *(value for _, _, value in numbers)]),
            ],
        )  # fmt: skip

    def tensors_of_columns(self, finish: Finish) -> str:
        """The partial results whose columns are the results."""
        return next((self.parts(s) for s in self.of_columns() if s.keeps == finish.kept), "")

    def finish_grid(self, finish: Finish) -> str:
        if finish.kept == self.plan.spread:
            return f"partials.blocks_to_finish({self.tensors_of_columns(finish)}, {self.spread_text()})"
        results = " * ".join(self.groups[i].name for i in finish.kept) or "1"
        return f"partials.blocks_of_results({self.joined(finish, 'how.each')}, {results})" if finish.kept else results

    def joined(self, finish: Finish, each: str) -> str:
        """Partial results of several columns that make one result each, the sizes of a column's axes, and which of them are kept."""
        return f"{self.tensors_of_columns(finish)}, {self.spread_of(finish.kept, each)}"

    def spread_of(self, keeps: tuple[int, ...], each: str) -> str:
        extents = ", ".join(self.groups[i].name for i in self.plan.spread)
        extents += f" // {each}" if self.plan.shares else ""
        return f"({extents},), {tuple(i in keeps for i in self.plan.spread)}"

    def count(self, everything: bool) -> str:
        """The number of elements of a mean."""
        if self.plan.collapsed:
            return "cutlass.Int64(rows) * cols"
        others = " * ".join(self.groups[i].name for i in self.plan.spread)
        return f"cutlass.Int64({self.rows_text()})" + (f" * {others}" if everything else "")

    def folds_of(self, statistics: list[Statistic]) -> list[PartialFold]:
        """How partial results of statistics are reduced; those that are reduced alike are together."""
        alike: dict[str, list[Statistic]] = {}
        for s in statistics:
            alike.setdefault(self.fold_call(s), []).append(s)
        found = []
        for call, members in alike.items():
            names, parts = ", ".join(s.name for s in members), ", ".join(self.parts(s) for s in members)
            ops, means = (
                in_tuple([f'"{s.op}"' for s in members]),
                [self.mean_line(s) for s in members if s.op == "mean"],
            )
            own = names if len(members) > 1 else f"({names},)"
            found.append(PartialFold(names=own, text=call.format(f"[{parts}], {ops}"), means=means))
        return found

    def lost(self, statistic: Statistic) -> list[str]:
        """The sizes of the axes besides rows that a statistic of columns reduces."""
        return [self.groups[i].name for i in self.plan.spread if i not in statistic.keeps]

    def fold_call(self, statistic: Statistic) -> str:
        """The function that reduces a statistic's partial results, without its arguments."""
        if statistic.over == "total":
            return "partials.over_all_parts({})"
        if not self.lost(statistic):
            return "partials.over_parts({}, c)"
        return f"partials.over_parts_of({{}}, c, {self.spread_of(statistic.keeps, 'each')})"

    def mean_line(self, statistic: Statistic) -> str:
        count = "element_count" if statistic.over == "total" and not statistic.once else "row_count"
        if statistic.once:
            count = " * ".join([count, *(self.groups[i].name for i in self.plan.apart)])
        if statistic.over != "total":
            count = " * ".join([count, *self.lost(statistic)])
        return f"{statistic.name} = {statistic.name} / {self.statistic_type(statistic)}({count})"

    def column_coordinates(self, finish: Finish, text: str) -> list[str]:
        """The coordinates of a result along its groups of axes, if several make its position and one is needed."""
        kept = tuple(self.groups[i] for i in finish.kept)
        if len(kept) < 2 or not any(self.mentions([text], self.coordinate(i)) for i in finish.kept):
            return []
        return self.coordinate_lines(kept, "c")

    def finish_coordinate(self, finish: Finish, group: int) -> str:
        """A result's coordinate along a group: its position, if there is only one group."""
        return "c" if len(finish.kept) == 1 else self.coordinate(group)

    def finish_place(self, finish: Finish, access: Access) -> str:
        """The position of the one value of a result."""
        words = [
            str(access.part or 0) if t == "parts" else self.finish_coordinate(finish, int(t)) for t in access.tokens
        ]
        return f"({', '.join(words)},)" if len(words) == 1 else f"({', '.join(words)})" if words else "(0,)"

    def finish_arguments(self, finish: Finish) -> list[str]:
        texts = dict(self.operand_texts("1"))  # a copy: the loop below has its own one
        for access in self.plan.loads:
            if access.array is not None:
                alone = replace(access, mode="row")
                texts[access.name] = self.operand_text(alone, "1").replace(f"[0{self.of_row(alone)}]", "[0]")
            elif access.mode == "index" and access.group in finish.kept:
                place = self.finish_coordinate(finish, access.group)
                texts[access.name] = f"cute.full((1,), {place}, cutlass.{self.integer})"
        return self.texts_of(finish.function, "1", self.plan.columns, texts)
