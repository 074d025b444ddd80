"""The kernels of an op that reduces over rows: its plan to what `templates/column.py.jinja` shows."""

from __future__ import annotations

import functools
from dataclasses import replace

from codegen import emit
from codegen.plan import Access
from codegen.reductions import Statistic
from codegen.render.common import camel
from codegen.render.rows import Function, RowContext, in_tuple


class WalkContext(RowContext):
    """What the column template shows."""

    template = "column.py.jinja"
    one_row = ", u"  # a thread reads several rows at once: the last mode of its registers

    def kernel(self) -> dict:
        walk = self.walk()
        return {
            **self.kernel_head(),
            "functions": self.functions(),
            "everything": self.plan.collapsed,
            "column_statistics": [self.column_statistic(s) for s in self.plan.columns],
            "column_types": in_tuple([self.statistic_type(s) for s in self.plan.columns]),
            "parts_tensor": self.parts(self.plan.columns[0]),
            "pieces": f"({self.columns_text()} + vec * per_row - 1) // (vec * per_row)",
            "column_loads": [row for row in map(self.load_row, self.vector_loads()) if not row["of_row"]],
            "row_loads": [row for row in self.row_loads() if row["of_row"]],
            "once_loads": [
                row | {"text": row["text"].replace(f", {self.there()}, ", ", True, ")}
                for row in self.row_loads()
                if not row["of_row"]
            ],
            "walk": walk,
            "finish": self.finish(),
            "rows": "row_count" if self.plan.collapsed else self.rows_text(),
        }

    # What is folded over rows

    def parts(self, statistic: Statistic) -> str:
        return f"m{camel(statistic.name)}Parts"

    def column_statistic(self, statistic: Statistic) -> dict:
        name = camel(statistic.name)
        return {
            "name": statistic.name, "op": statistic.op, "type": self.statistic_type(statistic),
            "running": f"f{name}", "parts": self.parts(statistic),
        }  # fmt: skip

    def tensor_lines(self) -> list[dict]:
        columns = self.columns_text() or "1"
        shape = "(parts)" if self.plan.collapsed else f"(parts, {columns})"
        rows = [
            {"name": self.parts(s), "hint": "cute.Tensor", "comment": f"{shape} {s.name} of each part"}
            for s in self.plan.columns
        ]
        return super().tensor_lines() + rows

    def launch_constants(self) -> tuple[str, ...]:
        return ("vec", "ragged", "threads", "per_row", "vectors", "cluster", "at_once", "exact")

    def over_rows(self, access: Access) -> bool:
        """Whether an output is a result of columns: no row has its own."""
        return not any(isinstance(t, int) and t < self.plan.kept for t in access.tokens)

    def finish_stores(self) -> list[Access]:
        return [a for a in self.plan.stores if self.over_rows(a)]

    def vector_stores(self) -> list[Access]:
        return [a for a in super().vector_stores() if not self.over_rows(a)]

    def row_stores(self) -> list[Access]:
        return [a for a in super().row_stores() if not self.over_rows(a)]

    @functools.cache  # noqa: B019  a context lives as long as a file is rendered
    def walk_function(self) -> Function:
        stores = self.vector_stores()
        values = [*self.values_of(stores), *(s.operand for s in self.plan.columns)]
        doc = f"What is folded into {', '.join(s.name for s in self.plan.columns)}, on one vector of each operand"
        doc = f"The chain: {', '.join(a.name for a in stores)}; w{doc[1:]}" if stores else doc
        rows = {emit.leaf_key(s.node): s.name for s in self.plan.rows}
        return self.function(f"{self.spec.op}_chain", doc + ".", values, rows)

    @functools.cache  # noqa: B019  a context lives as long as a file is rendered
    def finish_function(self) -> Function:
        leaves = {emit.leaf_key(s.node): s.name for s in self.plan.columns}
        doc = "The columns' results, from their statistics." if not self.plan.collapsed else "The result."
        return self.function(f"{self.spec.op}_columns", doc, self.values_of(self.finish_stores()), leaves)

    @functools.cache  # noqa: B019  a context lives as long as a file is rendered
    def functions(self) -> list[Function]:
        stages = [self.stage_function(i) for i in range(len(self.plan.stages))]
        row = self.row_function()
        return [*stages, self.walk_function(), *([row] if row else []), self.finish_function()]

    def kernel_functions(self) -> list[Function]:
        return self.functions()[:-1]

    def walk(self) -> dict:
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
        running = [f"f{camel(s.name)}" for s in self.plan.columns]
        return {
            "function": function,
            "arguments": self.arguments(function, "vec"),
            "results": ", ".join([*names, *values]),
            "folded": values,
            "running": running,
            "flat": [f"{r}[None, 0]" for r in running],
            "ops": in_tuple([f'"{s.op}"' for s in self.plan.columns]),
            "parts": [self.parts(s) for s in self.plan.columns],
            "converted": [self.result_line(a) for a in stores],
            "stores": self.store_lines(stores),
        }

    def start(self, access: Access) -> str:
        return "cutlass.Int64(row) * width" if self.plan.collapsed else super().start(access)

    def once(self, access: Access) -> str:
        return str(self.plan.of_row(access))

    # The second kernel

    def finish(self) -> dict:
        function, stores = self.finish_function(), self.finish_stores()
        inputs = [a for a in self.plan.loads if a.name in function.params]
        names = [a.array.name for a in (*inputs, *stores) if a.array is not None]
        dynamic = [f"m{camel(p.name)}" for p in self.dynamic if p.name in function.params]
        parts = [self.parts(s) for s in self.plan.columns]
        wanted = {*(self.tensors[n] for n in names), *dynamic, *parts}
        flags = {f: outputs for f, outputs in self.approximations()[1].items() if f in function.params}
        wanted |= {self.tensors[a.name] for outputs in flags.values() for a in outputs}
        floats = [a for a in self.spec.inputs if "float64" in self.spec.dtypes(a)]
        text = " ".join([*self.finish_arguments(function), *(self.statistic_type(s) for s in self.plan.columns)])
        lines = self.flag_lines(flags)
        if self.wide and self.mentions([text], "compute"):
            wanted |= {self.tensors[a.name] for a in floats}
            lines.append(self.compute_line())
        wanted |= {self.extra_argument(p).split(".")[0] for p in function.params if p in dict(self.spec.types)}
        tensors = [t for t in self.tensor_lines() if t["name"] in wanted]
        static = [p for p in self.static if p.name in function.params]
        loads = [
            {"guard": self.guard(a), "text": f"reduce.load_one({self.tensors[a.array.name]}, {self.finish_place(a)}, there, {self.fragment(a)})"}
            for a in inputs if a.array is not None
        ]  # fmt: skip
        row_count = "cutlass.Int64(rows) * cols" if self.plan.collapsed else f"cutlass.Int64({self.rows_text()})"
        return {
            "function": function,
            "tensors": tensors,
            "static_params": [{"name": p.name, "kind": p.kind} for p in static],
            "settings": lines,
            "fragments": [self.fragment_row(a, "1,") for a in (*inputs, *stores) if a.mode != "size"],
            "loads": loads,
            "arguments": self.finish_arguments(function),
            "results": ", ".join(a.name for a in stores),
            "converted": [self.result_line(a) for a in stores],
            "stores": [
                f"{self.tensors[a.array.name]}[{self.finish_place(a)[1:-1].rstrip(',')}] = {self.fragment(a)}[0]"
                for a in stores if a.array is not None
            ],
            "launch_arguments": [
                ", ".join(t["name"] for t in tensors),
                ", ".join([*(p.name for p in static), row_count]),
            ],
        }  # fmt: skip

    def finish_place(self, access: Access) -> str:
        """Where a column's one value lies; a scalar's."""
        if not access.tokens:
            return "(0,)"
        words = [str(access.part or 0) if t == "parts" else "c" for t in access.tokens]
        return f"({', '.join(words)},)" if len(words) == 1 else f"({', '.join(words)})"

    def finish_arguments(self, function: Function) -> list[str]:
        texts = dict(self.operand_texts("1"))  # a copy: the loop below has its own
        for access in self.plan.loads:
            if access.array is not None:
                alone = replace(access, mode="row")
                texts[access.name] = self.operand_text(alone, "1").replace(f"[0{self.of_row(alone)}]", "[0]")
            elif access.mode == "index":
                texts[access.name] = f"cute.full((1,), c, cutlass.{self.integer})"
        return self.texts_of(function, "1", self.plan.columns, texts)
