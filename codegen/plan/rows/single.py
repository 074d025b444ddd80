"""The plan of ops that reduce along rows which may be long: a vector that is divided by its length, or a sum over the
places and channels of each image. Other kernels can share a long row among all SMs.

It is the plan of a row kernel. One block, or a cluster, holds a row in registers. Calls with longer rows run the op's stages.
"""

from __future__ import annotations

from dataclasses import dataclass

from codegen.errors import SpecError, UserError
from codegen.graph.nodes import Statement
from codegen.plan.launches import PlannedCall
from codegen.plan.rows.reducing import Reductions
from codegen.plan.rows.reductions import Reduction
from codegen.shared import RowLaunch
from codegen.spec.spec import Spec

# Elements of a row that no single array has, as with pairs. Kernels over rows hold one element of each pair, and read
# the other one once for many
PAIRS = 8192
STRETCHES = 64  # of the innermost axis in a row that kernels over rows share: with fewer, they would write much of what they read


@dataclass(frozen=True)
class Single(Reduction):
    """The plan of an op that reduces along rows that a block holds."""

    def launch(self, call: PlannedCall) -> RowLaunch:
        """The launch of a call. Raises `UserError` where no block holds a row and others would share it, or where
        its size is not known."""
        extents, columns = call.extents, set(range(self.leading, len(self.groups)))
        if (extents.columns or 0) >= PAIRS and not any(columns <= {*a.tokens} for a in (*self.loads, *self.stores)):
            raise UserError(f"no array has all {extents.columns} elements of a row: other kernels read them less often")
        found = super().launch(call)
        assert isinstance(found, RowLaunch)
        stretches = (extents.columns or 0) // max(extents.inner or 1, 1)
        if not found.holds_row and (not self.row_groups or stretches >= STRETCHES):
            raise UserError(f"no block can hold a row of {extents.columns or 'unknown'} elements")
        return found


def is_spread(plan: object) -> bool:
    """Whether kernels that reduce over rows may share each row among all SMs, where a row kernel has no room for it.
    The row is the only one of the arrays, or it has several axes and one pass computes statistics alone."""
    if not isinstance(plan, Reduction) or plan.kind != "row":
        return False
    written = any(a.mode != "row" for a in plan.stores)
    return not plan.row_groups or (len(plan.column_groups) > 1 and plan.passes == 1 and not written)


def make_plan(spec: Spec, statements: tuple[Statement, ...]) -> Single:
    """The plan for a checked spec that is such an op. Raises `SpecError` if no such kernel can compute it."""
    planner = _Single(spec, statements)
    planner.check()
    found = planner.plan()
    if not is_spread(found):
        raise SpecError([spec.source.diagnostic(spec.chain.span, "no kernels share its rows", "")])
    assert isinstance(found, Single)
    return found


class _Single(Reductions):
    makes = Single
