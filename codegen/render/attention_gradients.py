"""The kernels of attention's gradients: prepares the values of `templates/attention_backward.py.jinja`."""

from __future__ import annotations

from codegen.plan.attention import AttentionBackward
from codegen.render.attention import PartContext, TiledContext
from codegen.render.common import tuple_text
from codegen.render.records import AttentionBackwardKernel
from codegen.spec.spec import Array


class AttentionBackwardContext(TiledContext):
    """The values of the kernels of attention's gradients."""

    template = "attention_backward.py.jinja"
    plan: AttentionBackward

    @property
    def others(self) -> list[str]:
        """The tensors that the generated functions take, and dq for its type."""
        plan = self.plan
        sums = (*plan.along_rows, *plan.along_columns, *plan.pairs)
        return self.tensors_but((*plan.factors, *plan.gradients[1:], *plan.statistics, *sums))

    @property
    def inputs(self) -> set[str]:
        return {a.name for a in self.spec.inputs} - {a.name for a in self.plan.statistics}

    def kernel(self) -> AttentionBackwardKernel:
        plan, op = self.plan, self.spec.op
        slope = PartContext(self, plan.slope)
        full = PartContext(self, plan.unmasked) if plan.unmasked is not None else None
        tiles = self.tiles()

        def several(arrays: tuple[Array, ...], row: str, function: str = "by_row", *more: str) -> str:
            found = [self.arranged(a, row, function, *more) for a in arrays]
            return tuple_text(found) if found else "()"

        named = zip(("q", "k", "v", "do", "dq", "dk", "dv"), plan.vectors, strict=True)
        arrays = [f"{n} = {self.arranged(a, plan.row if plan.row in a.axes else plan.column)}" for n, a in named]
        arrays += [
            f"along_rows = {several(plan.along_rows, plan.row)}",
            f"along_columns = {several(plan.along_columns, plan.column)}",
            f"pairs = {several(plan.pairs, plan.row, 'of_pairs', plan.column)}",
            f"statistics = {several(plan.statistics, plan.row)}",
        ]
        return AttentionBackwardKernel(
            chains=[c.named_chain() for c in (slope, full) if c is not None],
            products=", ".join(slope.given()[:2]),
            more=", terms of sums" if plan.along_rows or plan.along_columns or plan.pairs else "",
            static=self.static_hints,
            slope=slope.function([full] if full else []),
            full=full.function([]) if full else None,
            tiles=tiles,
            sizes=self.sizes(plan.factors[0]),
            batch=", ".join(self.batch) or "no batch",
            arrays=arrays,
            others=self.others,
            functions=self.bound([f"{op}_slope", f"{op}_tiles" if tiles else "None"]),
            bend=self.bend(plan.bend),
        )
