"""The kernel of an op in steps, which a block runs one after the other: prepares the values of `templates/steps.py.jinja`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from codegen.graph.nodes import DTYPES
from codegen.language.reference import Reference
from codegen.plan.access import Access
from codegen.plan.op import Op
from codegen.plan.rows.selecting import Placement
from codegen.plan.rows.steps import RowStep, Step, Steps
from codegen.render.common import Context, camel
from codegen.render.records import Fragment, Kernel, Tensor
from codegen.render.rows.records import RowKernel
from codegen.render.rows.row import RowContext
from codegen.render.rows.selection import PlacementContext, SelectionContext
from codegen.spec.spec import Array

OWN = "(own, 0)"  # the coordinates of a row's first element among those of the block
Render = Callable[[Context], str]  # a context to the text of its kernel


@dataclass(frozen=True)
class StepText:
    """A step: a function that the kernel calls, or what it selects or places. Arrays are named with the row in them."""

    text: str = ""
    call: str = ""
    source: str = ""
    stores: tuple[str, ...] = ()
    places: str = ""
    target: str = ""
    value: str = ""


@dataclass(frozen=True)
class StepsKernel(Kernel):
    """The values of `steps.py.jinja`."""

    steps: list[StepText]
    rows: str
    columns: str
    memories: list[Fragment]
    launch_arguments: str


def memory_of(array: Array) -> str:
    """The shared memory of a block for its rows of an array."""
    return f"s{camel(array.name)}Rows"


class RowStepContext(RowContext):
    """The values of the row template for a step. Arrays that it reads from, or writes for, another step have the block's rows."""

    plan: RowStep

    def __init__(self, step: Step, whole: Steps):
        super().__init__(_op_of(step))
        handed = {a.name for a in whole.handed}
        given = {v.array.name for v in whole.views}
        self.local = {a.name for a in self.spec.inputs if a.name in handed}
        self.local |= {a.name for a in self.spec.outputs if a.name not in given}
        self.tensors |= {a.name: memory_of(a) for a in self.spec.arrays if a.name in self.local}
        self.twice = [a for a in self.spec.outputs if a.name in handed and a.name not in self.local]

    def kernel(self) -> RowKernel:
        return replace(self.row_kernel(), step=True)

    def tensor_lines(self) -> list[Tensor]:
        more = [replace(self.tensor(a), name=memory_of(a)) for a in self.twice]
        sizes = [Tensor(self.groups[i].name, "cutlass.Int32", "of the call") for i in self.unsized]
        return [*super().tensor_lines(), *more, *sizes]

    @functools.cached_property
    def apart(self) -> list[Array]:
        """The arrays that have all rows of the call."""
        return [a for a in (*self.spec.inputs, *self.spec.outputs) if a.name not in self.local]

    @functools.cached_property
    def unsized(self) -> list[int]:
        """The groups of rows whose sizes none of its arrays has: the kernel says them."""
        return [i for i in range(self.plan.leading) if not self.extent_in(self.apart, i)]

    def extents(self) -> list[str]:
        return self.extents_of([i for i in range(len(self.groups)) if i not in self.unsized])

    def extent_source(self, group: int) -> str:
        if found := self.extent_in(self.apart, group):
            return found
        own = next(a for a in self.spec.arrays if a.name in self.local and group in self.plan.view(a.name).tokens)
        return f"{self.tensors[own.name]}.shape[1]"

    def row_lines(self) -> list[str]:
        return ["own = select.own_row(how)", *super().row_lines()]

    def place(self, access: Access) -> str:
        return OWN if access.array is not None and access.array.name in self.local else super().place(access)

    def store_lines(self, stores: list[Access]) -> list[str]:
        more = [a for a in stores if a.array in self.twice]
        own = [f"at.store({self.value(a)}, {memory_of(a.array)}, {OWN})" for a in more if a.array]
        return [*super().store_lines(stores), *own]

    def store_of_row(self, access: Access, tensor: str) -> str:
        found = super().store_of_row(access, tensor)
        if access.array not in self.twice or access.array is None:
            return found
        return f"{found}; {self.record}.store_one({self.value(access)}, {memory_of(access.array)}, {OWN})"


class StepsContext(Context):
    """The values of the template of kernels in steps."""

    plan: Steps
    template = "steps.py.jinja"

    def __init__(self, op: Op, render: Render):
        super().__init__(op)
        self.render = render

    def kernel(self) -> StepsKernel:
        columns, rows = map(self.product_of, self.plan.counted)
        return StepsKernel(
            [self.step(step, i) for i, step in enumerate(self.plan.steps)], rows, columns,
            [Fragment(memory_of(a), self.memory(a)) for a in self.plan.handed], self.launch_arguments(),
        )  # fmt: skip

    def memory(self, array: Array) -> str:
        """How the kernel gets shared memory for its rows of an array."""
        size = {self.plan.selected.count: "how.count"}.get(self.plan.length(array, 0), "columns")
        most = "how.room" if size == "columns" else size
        return f"select.rows_of_block(how, {size}, {most}, {DTYPES[array.dtype].text})"

    def step(self, step: Step, number: int) -> StepText:
        if isinstance(step.plan, RowStep):
            own = RowStepContext(step, self.plan)
            sizes = {own.groups[i].name: self.size_of(own.groups[i].axes) for i in own.unsized}
            names = [sizes.get(t.name, t.name) for t in own.tensor_lines()] + [p.constant for p in own.static]
            return StepText(self.render(own), f"{own.spec.op}({', '.join(names)}, how.steps[{number}])")
        if isinstance(step.plan, Placement):
            return self.placing(step, step.plan)
        return self.selecting(step)

    def size_of(self, axes: tuple[str, ...]) -> str:
        """The kernel's text for the number of elements along some axes of its rows."""
        return self.product_of(i for i, g in enumerate(self.groups) if {*g.axes} <= {*axes})

    def product_of(self, groups: Iterable[int]) -> str:
        return " * ".join(self.extent_in((*self.spec.inputs, *self.spec.outputs), i) for i in groups)

    @functools.cached_property
    def handed(self) -> set[str]:
        """The names of the arrays that a step writes for a later one."""
        return {a.name for a in self.plan.handed}

    def selecting(self, step: Step) -> StepText:
        """The text of a selection."""
        own = SelectionContext(_op_of(step))
        (source,) = step.spec.inputs
        tensor = self.tensor_of(source)
        count = "row, rows" if tensor == self.tensors.get(source.name) else "own, select.own_rows(how, rows)"
        lines = []
        for access in own.plan.stores:
            assert access.array is not None
            for target in self.targets_of(access.array):
                value = f"select.value_of(shared[0][slot], {tensor}.element_type)"
                if access.name not in own.plan.values:
                    value = f"cute.full((1,), {own.found}, cutlass.Int32)"
                value = own.converted(access).format(value, f"{target.partition(',')[0]}.element_type")
                lines.append(f"select.put({target}, slot, {value}, how.count)")
        return StepText(source=f"{tensor}, {count}", stores=tuple(lines))

    def placing(self, step: Step, plan: Placement) -> StepText:
        """The text of a selection's derivative."""
        own = PlacementContext(_op_of(step))
        (access,) = plan.stores
        (target,) = self.targets_of(plan.result)
        value = f"select.value_at({self.where(plan.source)}, slot, how.count)"
        value = own.converted(access).format(value, f"{target.partition(',')[0]}.element_type")
        places = next(a for a in step.spec.inputs if a.name == plan.places)
        return StepText(places=self.where(places), target=target, value=value)

    def tensor_of(self, array: Array) -> str:
        """The tensor from which a step reads an array."""
        return memory_of(array) if array.name in self.handed else self.tensors[array.name]

    def where(self, array: Array) -> str:
        """The tensor from which a step reads an array, and the row in it."""
        return f"{self.tensor_of(array)}, {'row' if self.tensor_of(array) == self.tensors.get(array.name) else 'own'}"

    def targets_of(self, array: Array) -> list[str]:
        """The tensors to which a step writes an array, each with the row in it."""
        handed = [f"{memory_of(array)}, own"] if array.name in self.handed else []
        return [*([f"{self.tensors[array.name]}, row"] if array.name in self.tensors else []), *handed]


def _op_of(step: Step) -> Op:
    return Op(step.spec, step.spec.read.statements, Reference(()), step.plan)
