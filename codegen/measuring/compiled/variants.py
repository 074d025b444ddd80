"""The kernels that calls of an op can need: one for each binding of types and each way in which a row is handled."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from codegen.errors import UserError
from codegen.graph.nodes import DTYPES
from codegen.plan.attention import AttentionPlan
from codegen.plan.launches import Extents, PlannedCall
from codegen.plan.planner import planned_call
from codegen.plan.rows.middle import Middle
from codegen.plan.rows.reductions import Reduction
from codegen.plan.rows.selecting import MOST_THREADS, SORTED, THREAD_ELEMENTS, WARP_ROW, Sort, Threshold
from codegen.plan.rows.single import Single
from codegen.plan.rows.steps import Steps
from codegen.plan.rows.strided import Strided
from codegen.runtime.call.arguments import Types, all_types
from codegen.runtime.ops.gemm_op import GemmOp
from codegen.runtime.ops.op import AnyOp
from codegen.shared import Launch, RowLaunch, WalkLaunch


@dataclass(frozen=True)
class Variant:
    """One kernel to compile: the bound types, whether rows are ragged, whether inputs with defaults are left out, and, where
    the op reduces, the columns of a row."""

    types: Types
    ragged: bool
    defaults: bool = False
    columns: int | None = None

    def __str__(self) -> str:
        words = [f"{name}={dtype}" for name, dtype in self.types.variables]
        words += [] if self.columns is None else [f"columns={self.columns}"]
        words += ["ragged"] if self.ragged else []
        return " ".join([*words, *(["defaults"] if self.defaults else [])]) or "-"


def variants(op: AnyOp, wanted: Mapping[str, str] | None = None) -> Iterator[Variant]:
    """Every kernel that calls of an op can need (with the dtypes in `wanted`), for one value of static params, and only for
    rows of the lengths in `row_lengths`."""
    some = any(a.default is not None for a in op.spec.inputs)
    if isinstance(op, GemmOp):
        ways = itertools.product(all_types(op.spec, wanted), (False, True), (False, True) if some else (False,))
        yield from (Variant(types, ragged, defaults) for types, ragged, defaults in ways)
        return
    for types in all_types(op.spec, wanted):
        whole = any(DTYPES[types.dtype(a)].packed for a in op.spec.arrays)  # no row is ragged
        for columns in row_lengths(op, types):
            for ragged in (False, True):
                variant = Variant(types, ragged, False, columns)
                if isinstance(op.plan, Middle | Single | Steps | Strided) and not _has_room(op, variant):
                    continue
                if ragged and (whole or not _may_be_ragged(op, variant)):
                    continue
                for defaults in (False, True) if some else (False,):
                    yield replace(variant, defaults=defaults)


def _may_be_ragged(op: AnyOp, variant: Variant) -> bool:
    """Whether calls have rows of other lengths, for which there is another kernel."""
    if isinstance(op.plan, AttentionPlan) or _fixed_length(op) is not None:
        return False
    return launch_of(op, replace(variant, ragged=False)).vec > 1


def _fixed_length(op: AnyOp) -> int | None:
    """The number of columns where the spec says it."""
    plan, known = op.plan, op.spec.extents
    if not isinstance(plan, Reduction) or plan.collapsed or isinstance(plan, Middle):
        return None
    if any(axis not in known for group in plan.column_groups for axis in group.axes):
        return None
    return plan.rows_and_columns(lambda axes: math.prod(known.get(axis, 1) for axis in axes))[1]


def _has_room(op: AnyOp, variant: Variant) -> bool:
    """Whether a block has room for such rows."""
    try:
        launch_of(op, variant)
    except UserError:
        return False
    return True


# Bytes of a row's inputs: a few threads hold it; a block holds it; a cluster holds it, or, without clusters, it is read again
# for every stage.
ROW_BYTES = (256, 16 * 1024, 256 * 1024)
MIDDLE_LENGTHS = (16, 128)  # elements along a middle axis, and along the innermost one


def row_lengths(op: AnyOp, types: Types) -> tuple[int | None, ...]:
    """Representative numbers of columns: one for each way in which the kernel handles a row."""
    plan = op.plan
    if isinstance(plan, Sort):
        return plan.edges(PlannedCall({}))[-1] // 2, SORTED // 2
    if isinstance(plan, Steps):  # a warp's row, and a block's
        return WARP_ROW // 8, 2 * WARP_ROW
    if isinstance(plan, Threshold):  # whose row registers hold, or not
        return 2 * WARP_ROW, 2 * MOST_THREADS * THREAD_ELEMENTS
    if not isinstance(plan, Reduction) or plan.collapsed:
        return (None,)
    if isinstance(plan, Middle):  # whose threads have all elements of their rows, or share them
        return MIDDLE_LENGTHS
    fixed = _fixed_length(op)
    if fixed is not None:
        return (fixed,)
    call = planned_call(op.spec, types, Extents())
    found = [size // plan.column_bytes(call) // 16 * 16 or 16 for size in ROW_BYTES]
    if not plan.rows:
        found = found[:2]  # kernels that reduce over rows have at most a warp per row
    return tuple(found)


def launch_of(op: AnyOp, variant: Variant, arch: str | None = None) -> Launch | RowLaunch | WalkLaunch:
    """The launch of a variant, for many rows where their number matters."""
    columns = variant.columns
    if columns is None:
        inner = None if variant.ragged else 16
        extents = Extents(inner, inner, turned=inner)
    else:
        columns += variant.ragged
        extents = Extents(columns, columns, columns)
    how: Launch | RowLaunch | WalkLaunch = op.plan.launch(planned_call(op.spec, variant.types, extents, arch))
    return how
