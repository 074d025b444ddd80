"""The kernels of an op that selects, and of its derivative: prepares the values of `templates/select.py.jinja` and
`templates/place.py.jinja`."""

from __future__ import annotations

from codegen.plan.op import Op
from codegen.plan.rows.selecting import Placement, Selection
from codegen.render.common import Context
from codegen.render.records import PlacementKernel, SelectionKernel


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


class PlacementContext(Context):
    """The values of the template of kernels that place values."""

    plan: Placement
    template = "place.py.jinja"

    def planned(self, op: Op) -> Placement:
        assert isinstance(op.plan, Placement)
        return op.plan

    def kernel(self) -> PlacementKernel:
        plan, spec = self.plan, self.spec
        rows, _, columns = (self.extent_in((*spec.inputs, *spec.outputs), i) or "1" for i in range(3))
        (value, _, _), (access,) = plan.loads, plan.stores
        result = self.tensors[plan.result.name]
        source = f"select.value_at({self.tensors[value.name]}, row, slot, how.count)"
        line = self.converted(access).format(source, f"{result}.element_type")
        stores = [f"select.put({result}, row, place, {line}, {columns})"]
        return PlacementKernel(self.tensors[plan.places], result, rows, columns, stores, self.launch_arguments())
