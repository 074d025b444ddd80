"""The kernel of an op that reduces along middle axes: prepares the values of `templates/middle.py.jinja`."""

from __future__ import annotations

import functools
from dataclasses import replace

from codegen.graph import emit
from codegen.plan.access import Access
from codegen.plan.rows.access import Statistic
from codegen.plan.rows.middle import Middle
from codegen.render.common import camel, full, tuple_text
from codegen.render.once import once
from codegen.render.records import Fragment, Function
from codegen.render.rows.finishes import FinishContext
from codegen.render.rows.records import ColumnStatistic, Final, Load, MiddleKernel, RowLoad


class MiddleContext(FinishContext):
    """The values of the middle template. A vector lies along neighbouring rows, and each statistic is a vector."""

    template = "middle.py.jinja"
    module = "middle"
    plan: Middle

    def kernel(self) -> MiddleKernel:
        finishes = [self.finish(f) for f in self.finishes()]
        return MiddleKernel(
            **vars(self.kernel_head()),
            functions=self.functions(),
            final=self.final(),
            rows=self.rows_text(),
            launch_extents=self.launch_extents(),
            element_lines=self.coordinate_lines(self.plan.column_groups, "at.c"),
            held_loads=[self.load(a) for a in self.vector_loads() if self.plan.is_held(a)],
            once_loads=[self.load(a) for a in self.vector_loads() if not self.plan.has_elements(a)],
            column_statistics=[
                ColumnStatistic(s.name, s.op, self.statistic_type(s), f"f{camel(s.name)}", self.parts(s))
                for s in self.plan.columns
            ],
            column_ops=tuple_text([f'"{s.op}"' for s in self.plan.columns]),
            finishes=finishes,
        )

    def launch_extents(self) -> list[str]:
        """The sizes with which the launcher counts rows, or the sizes that it passes on where blocks loop over all rows."""
        if not self.plan.columns:
            return super().launch_extents()
        return self.extents_in(
            [text for f in map(self.finish, self.finishes()) for text in (f.grid, *f.launch_arguments)]
        )

    # The chain in pieces

    @once
    def chain_function(self) -> Function | None:
        """The outputs along rows, and what is reduced over them."""
        stores, columns = self.vector_stores(), self.plan.columns
        if not stores and not columns:
            return None
        doc = "The chain, on one vector of each operand and the rows' statistics"
        doc += f", and the values to reduce into {', '.join(s.name for s in columns)}." if columns else "."
        leaves = {emit.leaf_key(s.node): s.name for s in self.plan.rows}
        values = [*self.values_of(stores), *(s.operand for s in columns)]
        return self.function(f"{self.spec.op}_chain", doc, values, leaves)

    def final(self) -> Final | None:
        found = super().final()
        if found is None:
            return None
        names = [a.name for a in self.vector_stores()] + [f"{s.name}_of" for s in self.plan.columns]
        return replace(found, results=", ".join(names))

    @once
    def functions(self) -> list[Function]:
        return [*super().functions(), *(f.function for f in self.finishes())]

    def vector_axes(self) -> tuple[str, ...]:
        return self.groups[self.plan.vector_group].axes

    # Positions

    def row_lines(self) -> list[str]:
        return self.coordinate_lines(self.plan.row_groups, self.index)

    def coordinate(self, group: int) -> str:
        name = self.groups[group].coordinate
        return "iRows" if name == "row" else name

    def place(self, access: Access) -> str:
        """The position of a vector's first element in an array."""
        words = [self.coordinate(t) if isinstance(t, int) else str(access.part or 0) for t in access.tokens]
        return tuple_text(words or ["0"])

    # Registers and loads

    def registers(self, access: Access) -> str:
        return f"{self.fragment(access)}[None, {'v' if self.plan.is_held(access) else 0}]"

    @once
    def vector_loads(self) -> list[Access]:
        return list({self.fragment(a): a for a in self.plan.loads if a.array is not None}.values())

    def vector_stores(self) -> list[Access]:
        return [a for a in self.plan.stores if self.plan.has_elements(a) and not self.late(a)]

    def row_stores(self) -> list[Access]:
        return [a for a in self.plan.stores if not self.plan.has_elements(a) and not self.late(a)]

    def kernel_fragments(self) -> list[Fragment]:
        def shape(access: Access) -> list[str]:
            return ["vec" if self.plan.is_wide(access) else "1", "vectors" if self.plan.is_held(access) else "1"]

        return [self.registers_of(a, shape(a)) for a in self.vector_loads()]

    def row_loads(self) -> list[RowLoad]:
        return []

    @functools.cached_property
    def loads(self) -> list[Load]:
        """The loads of each element: of values that registers hold, and of values that all rows share, which each sweep
        reads again."""
        return [self.load(a) for a in self.vector_loads() if self.plan.has_elements(a)]

    def load(self, access: Access) -> Load:
        assert access.array is not None
        name, tensor, held = self.fragment(access), self.tensors[access.array.name], self.plan.is_held(access)
        memory = f"s{name[1:]}" if held else ""
        words = [tensor, self.place(access), self.registers(access), *([memory] if held else [])]
        found = Load(
            name, tensor, self.registers(access), self.loaded_by(access), held, not held, f"load({', '.join(words)})"
        )
        return replace(found, memory=memory)

    def position_text(self, access: Access, group: int, width: str, integer: str) -> str:
        own = self.coordinate(group)
        if group == self.plan.vector_group:
            return f"reduce.count_up({own}, {width}).to({integer})"
        return full(width, own, integer)

    def loaded_text(self, access: Access, width: str) -> str:
        name, v = self.fragment(access), "v" if self.plan.is_held(access) else "0"
        if self.plan.is_wide(access):
            return f"{name}[None, {v}].load()"
        return full(width, f"{name}[0, {v}]", f"{name}.element_type")

    # Sweeps

    def statistic_text(self, statistic: Statistic, width: str) -> str:
        if statistic.over != "row":
            return super().statistic_text(statistic, width)
        return f"{statistic.name} != 0" if statistic.kind == "bool" else statistic.name

    def names_vector(self, function: Function) -> bool:
        del function
        return True

    def store_lines(self, stores: list[Access]) -> list[str]:
        return [f"at.store({self.value(a)}, {self.tensors[a.array.name]}, {self.place(a)})" for a in stores if a.array]

    @property
    def of_rows(self) -> str:
        return "vec"

    def store_of_row(self, access: Access, tensor: str) -> str:
        return f"row.store({self.value(access)}, {tensor}, {self.place(access)})"
