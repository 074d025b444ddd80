"""The kernels of an op that selects or sorts, and of its derivative: prepares the values of `templates/select.py.jinja`,
`sort.py.jinja`, `threshold.py.jinja`, `place.py.jinja` and `permute.py.jinja`."""

from __future__ import annotations

from dataclasses import dataclass

from codegen.graph import emit
from codegen.plan.rows.selecting import Placement, Selection, Threshold
from codegen.render.common import Context
from codegen.render.records import Kernel


@dataclass(frozen=True)
class SelectionKernel(Kernel):
    """The values of `select.py.jinja`."""

    source: str
    rows: str
    columns: str
    stores: list[str]
    launch_arguments: str


@dataclass(frozen=True)
class ThresholdKernel(SelectionKernel):
    """The values of `threshold.py.jinja`."""

    mass: str


@dataclass(frozen=True)
class PlacementKernel(Kernel):
    """The values of `place.py.jinja`."""

    places: str
    result: str
    rows: str
    columns: str
    value: str  # one value, in the type of the result
    launch_arguments: str


class SelectionContext(Context):
    """The values of the template of selections."""

    plan: Selection
    template = "select.py.jinja"
    # An element's position, where it is written, and of how many
    found, at, count = "shared[1][slot]", "slot", "how.count"

    def kernel(self) -> SelectionKernel:
        rows, columns = (self.extent_in(self.spec.inputs, i) or "1" for i in (0, len(self.plan.groups) - 1))
        source = self.tensors[self.plan.source.name]
        return SelectionKernel(source, rows, columns, self.stores(), self.launch_arguments())

    def stores(self) -> list[str]:
        """The lines that write one selected element, or its position."""
        lines = []
        for access in self.plan.stores:
            assert access.array is not None
            tensor = self.tensors[access.array.name]
            value = self.value() if access.name in self.plan.values else f"cute.full((1,), {self.found}, cutlass.Int32)"
            value = self.converted(access).format(value, f"{tensor}.element_type")
            lines.append(f"select.put({tensor}, row, {self.at}, {value}, {self.count})")
        return lines

    def value(self) -> str:
        """One selected element."""
        return f"select.value_of(shared[0][slot], {self.tensors[self.plan.source.name]}.element_type)"


class SortContext(SelectionContext):
    """The values of the template of sorts."""

    template = "sort.py.jinja"
    found, count = "place", "columns"

    def value(self) -> str:
        return f"sorting.value_at({self.tensors[self.plan.source.name]}, row, place, columns)"


class ThresholdContext(SelectionContext):
    """The values of the template of thresholds."""

    plan: Threshold
    template = "threshold.py.jinja"

    def kernel(self) -> ThresholdKernel:
        mass, param = self.plan.mass, next((p for p in self.spec.params if p.name == self.plan.mass), None)
        if isinstance(mass, float):
            text = emit.literal(mass)
        elif param is not None:
            text = self.parameter_text(param)
        else:
            text = f"select.value_at({self.tensors[mass]}, row, cutlass.Int32(0), 1)[0]"
        return ThresholdKernel(**vars(super().kernel()), mass=f"cutlass.Float32({text})")

    def stores(self) -> list[str]:
        """The line that writes a row's number."""
        (access,) = self.plan.stores
        assert access.array is not None
        tensor = self.tensors[access.array.name]
        value = self.converted(access).format("device.full(1, least)", f"{tensor}.element_type")
        return [f"select.put({tensor}, row, cutlass.Int32(0), {value}, 1)"]


class PlacementContext(Context):
    """The values of the template of kernels that place values."""

    plan: Placement
    template, read = "place.py.jinja", "select.value_at({}, row, slot, how.count)"

    def kernel(self) -> PlacementKernel:
        plan, spec = self.plan, self.spec
        rows, columns = (self.extent_in((*spec.inputs, *spec.outputs), i) or "1" for i in (0, len(plan.groups) - 1))
        (access,), result = plan.stores, self.tensors[plan.result.name]
        source = self.read.format(self.tensors[plan.loads[0].name])
        value = self.converted(access).format(source, f"{result}.element_type")
        return PlacementKernel(self.tensors[plan.places], result, rows, columns, value, self.launch_arguments())


class PermutationContext(PlacementContext):
    """The values of the template of kernels that place the values of whole rows."""

    template, read = "permute.py.jinja", "sorting.value_at({}, row, slot, columns)"
