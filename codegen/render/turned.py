"""The kernel of an element-wise op some of whose arrays have their axes in another order: prepares the values of
`templates/turned.py.jinja`."""

from __future__ import annotations

from dataclasses import replace

from codegen.plan.access import Access
from codegen.render.common import camel
from codegen.render.elementwise import ElementwiseContext
from codegen.render.records import ElementwiseKernel


class TurnedContext(ElementwiseContext):
    """The values of the template: every array is read and written at a place."""

    template = "turned.py.jinja"

    def shown(self) -> ElementwiseKernel:
        return replace(
            super().shown(),
            vector=f"turned.tile(how, {self.extents()}, {self.plan.turned})",
            grid=f"turned.grid(how, {self.extents()}, {self.plan.turned}, stream)",
            written=[f"{self.fragment(a)} = at.registers({self.tensor_of(a)})" for a in self.turned_stores],
            finished=tuple(
                f"at.store_turned({self.fragment(a)}, {self.tensor_of(a)}, {self.place_of(a)})"
                for a in self.turned_stores
            ),
        )

    def formula_doc(self) -> str:
        return "The chain, on one vector of each operand: a row of a thread's tile."

    @property
    def turned_stores(self) -> list[Access]:
        return [a for a in self.plan.stores if a.mode == "turned"]

    def tensor_of(self, access: Access) -> str:
        assert access.array is not None
        return self.tensors[access.array.name]

    def used_axes(self) -> str:
        """The axes whose positions the kernel needs."""
        used: set[int | str | None] = {a.group for a in self.plan.loads if a.mode == "index"}
        for access in (*self.plan.loads, *self.plan.stores):
            used |= set(access.tokens) if access.mode != "table" else set()
            used |= set(self.plan.view(access.index_of[0]).tokens) if access.index_of else set()
        return ", ".join(g.coordinate if i in used else "_" for i, g in enumerate(self.groups))

    def fragment(self, access: Access) -> str:
        return f"r{camel(access.name)}"

    def operand(self, access: Access) -> str:
        if access.array is None:
            return super().operand(access)
        words = [self.tensor_of(access), self.place_of(access)]
        words += self.default_words(access.array)
        return f"flat.read({', '.join(words)})"

    def loaded_part(self, access: Access) -> str:
        return f"{self.fragment(access)}.load()"

    def stores(self) -> list[str]:
        """The lines that write a row's results, in the order of the outputs."""
        lines = []
        for access in self.plan.stores:
            tensor = self.tensor_of(access)
            value = self.converted(access).format(access.name, f"{tensor}.element_type")
            if access.mode == "turned":
                lines.append(f"{self.fragment(access)}[i, None].store({value})")
            else:
                lines.append(f"at.store(i, {value}, {tensor}, {self.place_of(access)})")
        return lines
