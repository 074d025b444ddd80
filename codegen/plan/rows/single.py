"""The plan of ops whose arrays are one row, and whose elements need a statistic of it: a vector that is divided by its length, or a
matrix by its largest element.

It is the plan of a row kernel. One block, or a cluster, holds the row in registers. Calls with a longer row run the op's stages, whose
kernels share it among all SMs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from codegen.errors import SpecError, UserError
from codegen.graph.nodes import Statement
from codegen.plan.launches import Extents
from codegen.plan.rows.reducing import Reductions
from codegen.plan.rows.reductions import Reduction
from codegen.shared import RowLaunch
from codegen.spec.spec import Spec


@dataclass(frozen=True)
class Single(Reduction):
    """The plan of an op that reduces its only row."""

    def launch(
        self, dtypes: Mapping[str, str], extents: Extents, schedule: Mapping[str, int], arch: str | None = None
    ) -> RowLaunch:
        """The launch for arrays of these dtypes (by name). Raises `UserError` where no block holds the row, or where its size is not
        known."""
        found = super().launch(dtypes, extents, schedule, arch)
        assert isinstance(found, RowLaunch)
        if not found.holds_row:
            raise UserError(f"no block can hold a row of {extents.columns or 'unknown'} elements")
        return found


def is_single(plan: object) -> bool:
    """Whether a plan reduces along the only row of its arrays."""
    return isinstance(plan, Reduction) and plan.kind == "row" and not plan.row_groups


def make_plan(spec: Spec, statements: tuple[Statement, ...]) -> Single:
    """The plan for a checked spec whose arrays are one row. Raises `SpecError` if no such kernel can compute it."""
    planner = Reductions(spec, statements)
    if problems := planner.refusals():
        raise SpecError(problems)
    found = planner.plan()
    if not is_single(found):
        raise SpecError([spec.source.diagnostic(spec.chain.span, "its arrays have more rows than one", "")])
    return Single(**{field.name: getattr(found, field.name) for field in fields(Reduction)})
