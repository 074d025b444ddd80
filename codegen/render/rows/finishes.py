"""The kernels that reduce the blocks' partial results of reductions over rows, one for each set of axes of the outputs: prepares the
values of `templates/finish_kernel.py.jinja`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from codegen.graph import emit
from codegen.graph.nodes import ROWS, topological
from codegen.graph.online import TIES, Rescaled
from codegen.plan.access import Access
from codegen.plan.planner import dtype_constant
from codegen.plan.rows.access import Statistic
from codegen.render.common import camel, tuple_text
from codegen.render.once import once
from codegen.render.records import Constant, Function, Tensor
from codegen.render.rows.records import FinishKernel, PartialFold
from codegen.render.rows.row import RowContext


@dataclass(frozen=True)
class Finish:
    """A kernel that reduces the blocks' partial results, for the outputs that keep the same axes."""

    name: str
    kept: tuple[int, ...]  # their groups of columns
    stores: list[Access]
    function: Function


class FinishContext(RowContext):
    """Reductions over rows, and the kernels that finish them."""

    def of_columns(self) -> list[Statistic]:
        return [s for s in self.plan.columns if s.over == "column"]

    def totals(self) -> list[Statistic]:
        return [s for s in self.plan.columns if s.over == "total"]

    def parts(self, statistic: Statistic) -> str:
        return f"m{camel(statistic.name)}Parts"

    def tensor_lines(self) -> list[Tensor]:
        shapes = {"column": f"(parts, {self.spread_text()})", "total": "(blocks)"}
        rows = [
            Tensor(name=self.parts(s), hint="cute.Tensor", comment=f"{shapes[s.over]} {s.name} of each part")
            for s in self.plan.columns
        ]
        return super().tensor_lines() + rows

    def late(self, access: Access) -> bool:
        """Whether an output needs all rows."""
        return access.array is not None and access.array.name in self.plan.late

    def rescaled(self, statistics: list[Statistic], terms: bool = False) -> str:
        """The argument that says which of the statistics follow which maxima, if any do. `terms`: each element's exponential is
        computed, and may be approximate."""
        places = []
        for k, s in enumerate(statistics):
            if (way := s.follows) is not None:
                m = next(m for m, other in enumerate(statistics) if other.node is way.maximum)
                flag = self.approximates(way) if terms else "False"
                power = f'"{way.power}"' if flag == "False" else f'"{way.power}_term" if {flag} else "{way.power}"'
                places.append(f"({k}, {m}, {power}, {emit.literal(way.scale)})")
        return f", rescaled={tuple_text(places)}" if places else ""

    def approximates(self, way: Rescaled) -> str:
        """The text that says whether exponentials may be approximate."""
        return self.dialect.approx_of.get(id(way.term), self.dialect.approx) if way.power == "exp" else "False"

    def maximum_of(self, statistic: Statistic) -> Statistic:
        """The maximum that a sum follows."""
        assert statistic.follows is not None
        return next(s for s in self.plan.columns if s.node is statistic.follows.maximum)

    def rows_text(self) -> str:
        """The number of rows that are reduced together."""
        return " * ".join(g.name for g in self.plan.walked_groups) or "1"

    def spread_text(self) -> str:
        """The number of results that a partial result has of each statistic of columns."""
        return " * ".join(self.groups[i].name for i in self.plan.spread)

    # The finishing kernels: one for each set of axes of the outputs over rows

    @once
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
            held = [c.node for c in self.plan.expensive]  # by other kernels, for their own sweeps
            function = self.function(f"{self.spec.op}_columns{suffix}", doc, values, leaves, held, like)
            found.append(Finish(f"{self.spec.op}_finish{suffix}", kept, stores, function))
        return found

    def finish(self, finish: Finish) -> FinishKernel:
        function, statistics = finish.function, self.needed_by(finish.function)
        stores = [replace(a, mode="row") for a in finish.stores]  # one value of each
        inputs = [replace(a, mode="row") for a in self.plan.loads if a.name in function.params and a.array is not None]
        wanted = {self.tensors[a.array.name] for a in (*inputs, *stores) if a.array is not None}
        wanted |= {f"m{camel(p.name)}" for p in self.dynamic if p.name in function.params}
        wanted |= {self.parts(s) for s in statistics}
        flags = {f: outputs for f, outputs in self.approximations[1].items() if f in function.params}
        wanted |= {self.tensors[a.name] for outputs in flags.values() for a in outputs}
        lines = self.flag_lines(flags)
        arguments = self.finish_arguments(finish)
        folds = self.folds_of(statistics)
        ends = [line for fold in folds for line in fold.ends]
        text = " ".join([*arguments, *ends, *(self.statistic_type(s) for s in statistics)])
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
        text = " ".join([*coordinates, *arguments, *(f.text for f in folds), *ends])
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
        )

    def needed_by(self, function: Function) -> list[Statistic]:
        """The statistics that a function takes, and the maxima that these follow."""
        taken = [s for s in self.plan.columns if s.name in function.params]
        followed = [self.maximum_of(s) for s in taken if s.follows is not None]
        return [s for s in self.plan.columns if s in taken or s in followed]

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
        """How partial results of statistics are reduced; statistics that are reduced alike are together."""
        alike: dict[str, list[Statistic]] = {}
        for s in statistics:
            alike.setdefault(self.fold_call(s), []).append(s)
        found = []
        for call, members in alike.items():
            names, parts = ", ".join(s.name for s in members), ", ".join(self.parts(s) for s in members)
            ops, own = tuple_text([f'"{s.op}"' for s in members]), names if len(members) > 1 else f"({names},)"
            ends = [self.settled_line(s) for s in members if s.follows is not None and s.follows.power != TIES]
            ends += [self.mean_line(s) for s in members if s.op == "mean"]
            text = call.format(f"[{parts}], {ops}", self.rescaled(members))
            found.append(PartialFold(names=own, text=text, ends=ends))
        return found

    def lost(self, statistic: Statistic) -> list[str]:
        """The sizes of the axes besides rows that a statistic of columns reduces."""
        return [self.groups[i].name for i in self.plan.spread if i not in statistic.keeps]

    def fold_call(self, statistic: Statistic) -> str:
        """The function that reduces a statistic's partial results, without its arguments."""
        if statistic.over == "total":
            return "partials.over_all_parts({}{})"
        if not self.lost(statistic):
            return "partials.over_parts({}, c{})"
        return f"partials.over_parts_of({{}}, c, {self.spread_of(statistic.keeps, 'each')}{{}})"

    def settled_line(self, statistic: Statistic) -> str:
        assert statistic.follows is not None
        maximum, name = self.maximum_of(statistic).name, statistic.name
        return f"{name} = partials.settled({name}, {maximum}, {statistic.follows.finite})"

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
        return tuple_text(words or ["0"])

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
