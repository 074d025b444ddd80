"""The kernel of an op that reduces along rows: its plan to what `templates/row.py.jinja` shows."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from codegen import emit
from codegen.ir import Node
from codegen.online import rescaled
from codegen.pipeline import Op
from codegen.plan import Access, Group
from codegen.reductions import Carried, Reduction, Statistic
from codegen.render.common import Context, camel


@dataclass(frozen=True)
class Function:
    """One of a kernel's functions: some of the chain's values, from vectors of what they need."""

    name: str
    doc: str
    params: list[str]
    lines: list[str]
    results: list[str]

    @property
    def returns(self) -> str:
        return ", ".join(self.results)


class RowContext(Context):
    """What the row template shows."""

    plan: Reduction
    template = "row.py.jinja"

    def planned(self, op: Op) -> Reduction:
        assert isinstance(op.plan, Reduction)
        return op.plan

    def kernel(self) -> dict:
        return {
            **self.kernel_head(),
            "functions": self.functions(),
            "final": self.final(),
            "rows": self.rows_text(),
            "launch_extents": self.launch_extents(),
            "shifts": self.plan.shifts,
        }

    def kernel_head(self) -> dict:
        """What every kernel with row statistics shows."""
        return {
            "row_lines": self.row_lines(),
            "extents": self.extents(),
            "settings": self.kernel_settings(),
            "fragments": self.kernel_fragments(),
            "row_loads": self.row_loads(),
            "loads": [row for row in map(self.load_row, self.vector_loads()) if row["of_row"]],
            "stages": [self.stage(i) for i in range(len(self.plan.stages))],
            "sweeps": [self.sweep(stages) for stages in self.plan.sweeps],
            "meeting": ", ".join(f"*{self.shared(sweep[0])}" for sweep in self.plan.sweeps),
            "row_outputs": self.row_outputs(),
            "kept_values": [{"register": f"r{camel(c.name)}Kept", "type": self.compute()} for c in self.plan.carried],
            "columns": self.columns_text(),
            "launch_arguments": self.launch_arguments(),
        }

    # The chain in pieces

    def statistic_leaves(self) -> dict[tuple, str]:
        return {emit.leaf_key(s.node): s.name for s in (*self.plan.rows, *self.plan.columns)}

    def function(
        self, name: str, doc: str, values: list[Node], leaves: dict[tuple, str], alone: Node | None = None
    ) -> Function:
        """A function of the values, which takes what they need; what is carried from pass to pass among it, but for the
        value that is computed `alone`."""
        targets = self.target_names()
        columns = tuple(axis for group in self.plan.column_groups for axis in group.axes)
        widths = {id(s.node): s.width for s in self.plan.inner}
        dialect = replace(self.dialect(), leaves={**self.leaves(), **leaves}, columns=columns, widths=widths)
        given = {id(c.node): c.name for c in self.plan.carried if c.node is not alone}
        dialect = replace(dialect, given=given)
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
        if dialect.like in words and dialect.like != params[0]:  # constants take their shape from what is there
            lines, results = emit.emit_values(self.statements, targets, replace(dialect, like=params[0]), values)
        return Function(name, doc, params, lines, results)

    @functools.cache  # noqa: B019  a context lives as long as a file is rendered
    def stage_function(self, stage: int) -> Function:
        statistics = self.plan.stages[stage]
        before = {emit.leaf_key(s.node): s.name for s in self.plan.rows if s.stage < stage}
        what = ", ".join(f"{s.name} ({s.op})" for s in statistics)
        doc = f"What is folded into {what}, on one vector of each operand."
        name = f"{self.spec.op}_{statistics[0].name}" if len(statistics) == 1 else f"{self.spec.op}_stage{stage}"
        if name in (f"{self.spec.op}_{suffix}" for suffix in ("chain", "row", "kernel", "launch", "xla", "reference")):
            name = f"{self.spec.op}_stage{stage}"
        return self.function(name, doc, [s.operand for s in statistics], before)

    def vector_stores(self) -> list[Access]:
        """What is written along a row; "gather" is one value for a group of columns."""
        return [a for a in self.plan.stores if a.mode != "row"]

    def row_stores(self) -> list[Access]:
        return [a for a in self.plan.stores if a.mode == "row"]

    def values_of(self, stores: list[Access]) -> list[Node]:
        values = {(s.name, s.part): s.value for s in self.statements}
        return [values[(a.array.name, a.part)] for a in stores if a.array is not None]

    @functools.cache  # noqa: B019  a context lives as long as a file is rendered
    def chain_function(self) -> Function | None:
        stores = self.vector_stores()
        if not stores:
            return None
        doc = "The chain, on one vector of each operand and the row's statistics."
        return self.function(f"{self.spec.op}_chain", doc, self.values_of(stores), self.statistic_leaves())

    @functools.cache  # noqa: B019  a context lives as long as a file is rendered
    def row_function(self) -> Function | None:
        stores = self.row_stores()
        if not stores:
            return None
        doc = "The row's own results, from its statistics."
        return self.function(f"{self.spec.op}_row", doc, self.values_of(stores), self.statistic_leaves())

    @functools.cache  # noqa: B019  a context lives as long as a file is rendered
    def carried_function(self, carried: Carried) -> Function:
        before = {emit.leaf_key(s.node): s.name for s in self.plan.rows if s.stage < carried.stage}
        doc = f"{carried.name}, on one vector of each operand: several passes need it."
        return self.function(f"{self.spec.op}_keep_{carried.name}", doc, [carried.node], before, carried.node)

    def carried(self, function: Function, stage: int) -> list[dict]:
        """The carried values that a pass needs."""
        rows = []
        for c in self.plan.carried:
            if c.name in function.params:
                own = self.carried_function(c)
                rows.append({
                    "name": c.name, "register": f"r{camel(c.name)}Kept", "first": c.stage == stage, "function": own,
                    "arguments": self.arguments(own, "vec"),
                })  # fmt: skip
        return rows

    @functools.cache  # noqa: B019  a context lives as long as a file is rendered
    def functions(self) -> list[Function]:
        stages = [self.stage_function(i) for i in range(len(self.plan.stages))]
        stages = [*(self.carried_function(c) for c in self.plan.carried), *stages]
        return [*stages, *(f for f in (self.chain_function(), self.row_function()) if f)]

    def kernel_functions(self) -> list[Function]:
        """The functions that the kernel which walks through the rows calls."""
        return self.functions()

    def arguments(self, function: Function, width: str) -> list[str]:
        """What a function is called with: vectors of `width` elements."""
        texts = self.operand_texts(width) | {c.name: c.name for c in self.plan.carried}
        return self.texts_of(function, width, self.plan.rows, texts)

    def texts_of(
        self, function: Function, width: str, statistics: Sequence[Statistic], texts: Mapping[str, str]
    ) -> list[str]:
        """An argument for each of a function's parameters: a statistic, an operand, or what the kernel sets."""
        known = {s.name: self.statistic_text(s, width) for s in statistics} | dict(texts)
        return [known.get(p) or self.extra_argument(p) for p in function.params]

    def statistic_type(self, statistic: Statistic) -> str:
        return {"float": self.compute(), "int": f"cutlass.{self.integer}", "bool": "cutlass.Boolean"}[statistic.kind]

    def statistic_text(self, statistic: Statistic, width: str) -> str:
        if statistic.kind == "bool":
            return f"cute.full(({width},), {statistic.name}, cutlass.Int32) != 0"
        return f"cute.full(({width},), {statistic.name}, {self.statistic_type(statistic)})"

    @functools.cache  # noqa: B019  a context lives as long as a file is rendered
    def operand_texts(self, width: str) -> dict[str, str]:
        """How each operand of the chain is read from its registers."""
        texts = {access.name: self.operand_text(access, width) for access in self.plan.loads}
        for p in self.spec.params:
            dtype = {"float": self.compute(), "int": f"cutlass.{self.integer}", "bool": "cutlass.Boolean"}[p.kind]
            value = p.name if p.static else f"m{camel(p.name)}[0]"
            texts[p.name] = f"cute.full(({width},), {value}, {dtype})"
        return texts

    def operand_text(self, access: Access, width: str) -> str:
        integer = f"cutlass.{self.integer}"
        if access.mode in ("size", "index"):
            assert access.group is not None
            group = self.groups[access.group]
            if access.mode == "size":
                return f"cute.full(({width},), {group.name}, {integer})"
            if access.group < self.plan.kept:
                return f"cute.full(({width},), {group.coordinate}, {integer})"
            if len(self.plan.column_groups) == 1:
                return f"reduce.count_up(c, {width}).to({integer})"
            return f"r{camel(access.name)}[None, v{self.of_row(access)}].load().to({integer})"
        assert access.array is not None
        name, kind, v = self.fragment(access), self.spec.kind(access.array), "0" if self.one_vector(access) else "v"
        if access.mode == "row":
            load = f"cute.full(({width},), {name}[0{self.of_row(access)}], {name}.element_type)"
        elif self.interleaved(access):
            load = f"{name}[{access.part}, None, {v}{self.of_row(access)}].load()"
        else:
            load = f"{name}[None, {v}{self.of_row(access)}].load()"
        return load + {"float": f".to({self.compute()})", "int": f".to({integer})", "bool": " != 0"}[kind]

    def one_vector(self, access: Access) -> bool:
        """Whether registers hold a single vector of what all rows share: it is read when it is needed."""
        return access.mode == "flat" and not self.plan.of_row(access) and access.array in self.spec.inputs

    def of_row(self, access: Access) -> str:
        """The mode of the row in the registers of an array that each row has its own values in."""
        return self.one_row(access) if access.array is not None and self.plan.of_row(access) else ""

    def one_row(self, access: Access) -> str:
        """What stands for one of the rows that a thread holds: here it has no other."""
        del access
        return ""

    def registers(self, access: Access) -> str:
        """The registers that a load fills."""
        if not self.of_row(access):
            return self.fragment(access)
        modes = ["None"] * (1 if access.mode == "row" else 3 if self.interleaved(access) else 2)
        return f"{self.fragment(access)}[{', '.join(modes)}, u]"

    def start(self, access: Access) -> str:
        """The place of a row's first column in an array."""
        assert access.array is not None
        return f"cute.crd2idx({self.place(access)}, {self.tensors[access.array.name]}.layout)"

    # Where things are

    def rows_text(self) -> str:
        """The number of rows."""
        names = [g.name for g in self.plan.row_groups]
        return " * ".join(names) if names else "1"

    def columns_text(self) -> str:
        return " * ".join(g.name for g in self.plan.column_groups)

    def extents(self) -> list[str]:
        return self.extents_of(range(len(self.groups)))

    def launch_extents(self) -> list[str]:
        """What the launcher needs to count the rows."""
        return self.extents_of(range(self.plan.kept))

    def extents_of(self, groups: range) -> list[str]:
        names, sources = [self.groups[i].name for i in groups], [self.extent_source(i) for i in groups]
        return [f"{', '.join(names)} = {', '.join(sources)}"] if names else []

    def extent_source(self, group: int) -> str:
        needed = [a for a in (*self.spec.inputs, *self.spec.outputs) if a.default is None]
        for array in needed:
            tokens = self.plan.view(array.name).tokens
            if group in tokens:
                return f"{self.tensors[array.name]}.shape[{tokens.index(group)}]"
        raise AssertionError(f"no array has group {group}")

    def launch_arguments(self) -> list[str]:
        names = [t["name"] for t in self.tensor_lines()]
        return [", ".join(names), ", ".join([*(p.name for p in self.static), *self.launch_constants()])]

    def launch_constants(self) -> tuple[str, ...]:
        return (
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

    def row_lines(self) -> list[str]:
        """The coordinates of the row, where several groups make its place."""
        groups = self.plan.row_groups
        return [] if [g.coordinate for g in groups] == ["row"] else self.coordinate_lines(groups, "row")

    @staticmethod
    def coordinate_lines(groups: tuple[Group, ...], rest: str) -> list[str]:
        """The coordinates along some groups, of a place that they make together."""
        lines = []
        for i in range(len(groups) - 1, -1, -1):
            name = "iRows" if groups[i].coordinate == "row" else groups[i].coordinate
            lines.append(f"{name} = {rest} % {groups[i].name}" if i else f"{name} = {rest}")
            rest = f"({rest} // {groups[i].name})"
        return lines

    def coordinate(self, group: int) -> str:
        name = self.groups[group].coordinate
        return "iRows" if name == "row" and self.plan.kept > 1 else name

    def place(self, access: Access) -> str:
        """The coordinates of a row in an array, at its first column."""
        words: list[str] = []
        for mode, token in enumerate(access.tokens):
            taken = access.index_of[1] if access.index_of else None
            if token == "parts":
                words.append("0" if self.interleaved(access) else str(access.part or 0))
            elif isinstance(token, int) and taken not in self.groups[token].axes:
                words.append(self.coordinate(token) if token < self.plan.kept else "0")
            else:
                assert access.index_of and access.array
                table = self.tensors[access.array.name]
                words.append(f"device.clip_index(r{camel(access.name)}At[0], {table}.shape[{mode}])")
        return f"({', '.join(words)},)" if len(words) == 1 else f"({', '.join(words)})" if words else "(0,)"

    def interleaved(self, access: Access) -> bool:
        return access.mode == "flat" and access.tokens[-1:] == ("parts",)

    def fragment(self, access: Access) -> str:
        if access.array is not None and self.interleaved(access):
            return f"r{camel(access.array.name)}"
        return f"r{camel(access.name)}"

    # Registers

    @functools.cache  # noqa: B019  a context lives as long as a file is rendered
    def vector_loads(self) -> list[Access]:
        """What is read in vectors; interleaved parts, which come together, once."""
        found: dict[str, Access] = {}
        for access in self.plan.loads:
            indexed = access.mode == "index" and access.group is not None and access.group >= self.plan.kept
            if access.mode in ("flat", "gather") or (indexed and len(self.plan.column_groups) > 1):
                found.setdefault(self.fragment(access), access)
        return list(found.values())

    def kernel_fragments(self) -> list[dict]:
        rows = [self.fragment_row(access, "vec, vectors") for access in self.vector_loads()]
        for access in self.plan.loads:
            if access.mode == "row":
                rows.append(self.fragment_row(access, "1,"))
            if access.index_of:
                index = self.tensors[access.index_of[0]]
                rows.append({"name": f"r{camel(access.name)}At", "shape": "(1,)", "dtype": f"{index}.element_type",
                             "tensor": index, "default": None, "default_type": ""})  # fmt: skip
        for access in (*self.vector_stores(), *self.row_stores()):
            row = self.fragment_row(access, "1," if access.mode == "row" else "vec,")
            if all(row["name"] != other["name"] for other in rows):
                rows.append(row)
        return rows

    def fragment_row(self, access: Access, shape: str) -> dict:
        if access.array is None:
            return {"name": self.fragment(access), "shape": f"({shape})", "dtype": "cutlass.Int32", "tensor": "",
                    "default": None, "default_type": ""}  # fmt: skip
        tensor = self.tensors[access.array.name]
        shape = shape.replace("vectors", "1") if self.one_vector(access) else shape
        words = [str(access.array.parts)] if self.interleaved(access) else []
        words += [w for w in shape.replace(" ", "").split(",") if w]
        if self.of_row(access) and access.array in self.spec.inputs:
            words.append({", k": "held", ", u": "at_once"}[self.of_row(access)])
        shape = f"({', '.join(words)})" if len(words) > 1 else f"({words[0]},)"
        default = access.array.default if access.array in self.spec.inputs else None
        kind = "bool" if isinstance(default, bool) else "int" if isinstance(default, int) else "float"
        types = {"bool": "cutlass.Uint8", "int": f"cutlass.{self.integer}", "float": self.compute()}
        return {
            "name": self.fragment(access), "shape": shape, "dtype": f"{tensor}.element_type", "tensor": tensor,
            "default": None if default is None else emit.literal(default), "default_type": types[kind],
        }  # fmt: skip

    def there(self) -> str:
        """Whether there is such a row."""
        return "columns > 0" if self.plan.collapsed else f"row < {self.rows_text()}"

    def row_loads(self) -> list[dict]:
        """One value a row: loads at the row's place, indices of tables before them. Those that the row's own loads need
        come `first`."""
        there, rows = self.there(), []
        for access in self.plan.loads:
            if access.index_of:
                index = self.plan.view(access.index_of[0])
                own = replace(access, array=index.array, tokens=index.tokens, index_of=None, mode="row", part=None)
                text = f"access.load_one({self.tensors[index.array.name]}, {self.place(own)}, {there}, r{camel(access.name)}At)"
                rows.append({"guard": "", "text": text, "of_row": True, "first": access.mode != "row"})
            if access.mode == "row":
                assert access.array is not None
                tensor = self.tensors[access.array.name]
                text = f"access.load_one({tensor}, {self.place(access)}, {there}, {self.registers(access)})"
                of_row = self.plan.of_row(access)
                rows.append({"guard": self.guard(access), "text": text, "of_row": of_row, "first": False})
        return rows

    def load_row(self, access: Access) -> dict:
        name = self.fragment(access)
        row = {
            "name": name,
            "registers": self.registers(access),
            "guard": self.guard(access),
            "values": self.loaded_by(access),
            "of_row": self.plan.of_row(access),
            "one_vector": self.one_vector(access),
        }
        if access.mode == "flat":
            assert access.array is not None
            tensor = self.tensors[access.array.name]
            parts = access.array.parts if self.interleaved(access) else 1
            aligned = self.plan.shifts and self.plan.aligned(access)
            into = f"{self.registers(access)}, {parts}, ragged, {aligned}, {self.once(access)}"
            first = "c" if self.one_vector(access) else "column"
            return row | {"text": f"access.load_row({tensor}, {self.start(access)}, {first}, step, columns, {into})"}
        extents = ", ".join(g.name for g in self.plan.column_groups)
        if access.mode == "index":
            assert access.group is not None
            mode = access.group - self.plan.kept
            return row | {"text": f"access.load_index({mode}, ({extents},), column, step, {name})"}
        assert access.array is not None
        tensor, where = self.tensors[access.array.name], self.columns_of(access)
        return row | {
            "text": f"access.gather_row({tensor}, {where}, column, step, columns, {self.registers(access)}, ragged)"
        }

    def columns_of(self, access: Access) -> str:
        """A row's place in an array that has some of the column axes, which mode has which, and these axes' extents."""
        kept, extents = self.plan.kept, ", ".join(g.name for g in self.plan.column_groups)
        modes = tuple(t - kept if isinstance(t, int) and t >= kept else None for t in access.tokens)
        return f"{self.place(access)}, {modes}, ({extents},)"

    def group_of(self, access: Access) -> int:
        """How many columns share a value of an output that lacks the last column axes."""
        axes = [a for g in self.plan.column_groups for a in g.axes]
        assert access.array is not None
        return math.prod(self.spec.extents[a] for a in axes if a not in access.array.axes)

    def once(self, access: Access) -> str:
        """Whether a row's vectors are read but once."""
        return "kept" if self.plan.of_row(access) else "False"

    def loaded_by(self, access: Access) -> set[str]:
        """The names in the chain of what one load brings."""
        name = self.fragment(access)
        return {a.name for a in self.plan.loads if a.mode == access.mode and self.fragment(a) == name}

    # Passes over the row

    def stage(self, number: int) -> dict:
        """What is folded of each vector."""
        function = self.stage_function(number)
        return {
            **self.fold_of(self.plan.stages[number]),
            "shared": self.shared(number),
            "function": function,
            "arguments": self.arguments(function, "vec"),
            "carried": self.carried(function, number),
            "loads": self.loads_for(function),
        }

    def sweep(self, stages: tuple[int, ...]) -> dict:
        """One pass over a row: its stages, and what their statistics are folded to over the row's threads."""
        found = [self.stage(i) for i in stages]
        statistics = [s for i in stages for s in self.plan.stages[i]]
        loads = {load["text"]: load for stage in found for load in stage["loads"]}
        return {
            **self.fold_of(tuple(statistics)),
            "shared": self.shared(stages[0]),
            "stages": found,
            "loads": list(loads.values()),
            **(self.rising(stages) if len(stages) > 1 else {"maxima": [], "rescaled": "", "kept_values": []}),
        }

    def fold_of(self, statistics: tuple[Statistic, ...]) -> dict:
        running = [f"r{camel(s.name)}" for s in statistics]
        types = [self.statistic_type(s) for s in statistics]
        return {
            "names": [s.name for s in statistics],
            "ops": in_tuple([f'"{s.op}"' for s in statistics]),
            "running": running,
            "type_tuple": in_tuple(types),
            "statistics": list(
                zip([s.name for s in statistics], running, [s.op for s in statistics], types, strict=True)
            ),
            "means": [(s.name, self.statistic_type(s)) for s in statistics if s.op == "mean"],
        }

    def rising(self, stages: tuple[int, ...]) -> dict:
        """How sums of exponentials follow maxima that are folded in the same pass."""
        before, after = (self.plan.stages[i] for i in stages)
        statistics = [*before, *after]
        ways = [(s, way) for s in after if (way := rescaled(s.node))]
        maxima, places = [], []
        for maximum in before:
            followers = [(s, way) for s, way in ways if way.maximum is maximum.node]
            if followers:
                sums = ", ".join(f"r{camel(s.name)}" for s, _ in followers)
                texts = in_tuple([f'("{way.power}", {emit.literal(way.scale)})' for _, way in followers])
                name = camel(maximum.name)
                maxima.append({
                    "name": maximum.name, "seen": f"r{name}Seen", "type": self.statistic_type(maximum),
                    "risen": f"reduce.risen(r{name}, r{name}Seen, [{sums}], {texts}, kept and begin == 0)",
                })  # fmt: skip
        kept = []
        for s, way in ways:
            place = next(i for i, m in enumerate(statistics) if m.node is way.maximum)
            text = f'"{way.power}", {emit.literal(way.scale)}'
            places.append(f"({statistics.index(s)}, {place}, {text})")
            name = statistics[place].name
            kept += [
                f"reduce.rescale_kept(r{camel(c.name)}Kept, r{camel(name)}Seen, {name}, {text})"
                for c in self.plan.carried
                if c.node is s.operand
            ]
        return {"maxima": maxima, "rescaled": in_tuple(places), "kept_values": kept}

    def shared(self, stage: int) -> str:
        """The shared memory of a stage."""
        statistics = self.plan.stages[stage]
        return f"s{camel(statistics[0].name)}" if len(statistics) == 1 else f"sStage{stage}"

    def loads_for(self, function: Function) -> list[dict]:
        """The arrays that a pass reads; where the row is read again, also those of what is carried."""
        wanted = set(function.params)
        for carried in self.plan.carried:
            if carried.name in wanted:
                wanted |= set(self.carried_function(carried).params)
        return [row for row in map(self.load_row, self.vector_loads()) if row["values"] & wanted]

    def final(self) -> dict | None:
        function = self.chain_function()
        if function is None:
            return None
        return {
            "function": function,
            "results": ", ".join(a.name for a in self.vector_stores()),
            "arguments": self.arguments(function, "vec"),
            "carried": self.carried(function, len(self.plan.stages)),
            "loads": self.loads_for(function),
            "converted": [self.result_line(a) for a in self.vector_stores()],
            "stores": self.store_lines(self.vector_stores()),
        }

    def store_lines(self, stores: list[Access]) -> list[str]:
        """Stores of vectors; interleaved parts, which go together, once."""
        lines: dict[str, str] = {}
        for access in stores:
            assert access.array is not None
            name, tensor = self.fragment(access), self.tensors[access.array.name]
            if access.mode == "gather":
                lines[name] = (
                    f"access.scatter_row({name}, {tensor}, {self.columns_of(access)}, c, columns, {self.group_of(access)})"
                )
                continue
            parts = access.array.parts if self.interleaved(access) else 1
            aligned = self.plan.shifts and self.plan.aligned(access)
            where = f"{self.start(access)}, column, v * step, columns, {parts}, ragged, {aligned}, per_row"
            lines[name] = f"access.store_row({name}, {tensor}, {where})"
        return list(lines.values())

    def result_line(self, access: Access) -> str:
        assert access.array is not None
        name, tensor = self.fragment(access), self.tensors[access.array.name]
        target = f"{name}[{access.part}, None]" if self.interleaved(access) else name
        return f"{target}.store({self.converted(access).format(access.name, f'{tensor}.element_type')})"

    def row_outputs(self) -> dict | None:
        function = self.row_function()
        if function is None:
            return None
        rows = self.row_stores()
        return {
            "function": function,
            "results": ", ".join(a.name for a in rows),
            "arguments": self.arguments(function, "1"),
            "converted": [self.result_line(a) for a in rows],
            "stores": [
                f"{self.tensors[a.array.name]}[{self.place(a)[1:-1].rstrip(',')}] = {self.fragment(a)}[0]"
                for a in rows
                if a.array is not None
            ],
        }

    def kernel_settings(self) -> list[str]:
        text = " ".join(self.arguments_text())
        lines = []
        if self.wide and "compute" in text:
            lines.append(self.compute_line())
        lines += self.flag_lines({p for f in self.kernel_functions() for p in f.params})
        return lines

    def arguments_text(self) -> list[str]:
        return [t for f in self.kernel_functions() for t in self.arguments(f, "vec")] + [
            self.statistic_type(s) for s in (*self.plan.rows, *self.plan.columns)
        ]


def in_tuple(words: list[str]) -> str:
    """A tuple of texts."""
    return f"({', '.join(words)},)" if len(words) == 1 else f"({', '.join(words)})"
