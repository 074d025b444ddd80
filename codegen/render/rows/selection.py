"""The kernel of an op that selects: prepares the values of `templates/select.py.jinja`."""

from __future__ import annotations

from codegen.plan.op import Op
from codegen.plan.rows.selecting import Selection
from codegen.render.common import Context
from codegen.render.records import SelectionKernel


class SelectionContext(Context):
    """The values of the template of selections."""

    plan: Selection
    template = "select.py.jinja"

    def planned(self, op: Op) -> Selection:
        assert isinstance(op.plan, Selection)
        return op.plan

    def kernel(self) -> SelectionKernel:
        rows, _, columns = (self.extent_in(self.spec.inputs, i) or "1" for i in range(3))
        source = self.tensors[self.plan.source.name]
        return SelectionKernel(source, rows, columns, self.stores(), self.launch_arguments())

    def stores(self) -> list[str]:
        """The lines that write one selected element, or its position."""
        kind = {"float": "cutlass.Float32", "int": "cutlass.Int32"}[self.spec.kind(self.plan.source)]
        lines = []
        for access in self.plan.stores:
            assert access.array is not None
            tensor = self.tensors[access.array.name]
            value = f"select.value_of(keys[slot], {kind})"
            if access.name not in self.plan.values:
                value = "cute.full((1,), places[slot], cutlass.Int32)"
            value = self.converted(access).format(value, f"{tensor}.element_type")
            lines.append(f"select.put({tensor}, row, place, {value}, how.count)")
        return lines
