"""The launch of a call, for `explain`: one choice of dtypes, one shape, one architecture."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from codegen.errors import UserError
from codegen.graph.nodes import DTYPES, dtype_of
from codegen.language.sizes import Shape, elements
from codegen.plan.attention import AttentionPlan, fits_heads
from codegen.plan.elementwise import Elementwise
from codegen.plan.launches import Extents, KernelLaunch, Tuned
from codegen.plan.op import Gemm, Op, Staged, stages_of
from codegen.plan.planner import planned_call
from codegen.plan.rows.reductions import Reduction
from codegen.shared import LEAST_SAMPLED, AttentionLaunch, RowLaunch, WalkLaunch, spacing
from codegen.spec.spec import Array, Spec
from codegen.tuning import choosing


@dataclass(frozen=True)
class Binding:
    """One choice of the type variables' dtypes."""

    spec: Spec
    types: tuple[tuple[str, str], ...]

    def dtype(self, array: Array | str) -> str:
        name = array if isinstance(array, str) else array.dtype
        return dtype_of(name, dict(self.types))

    def __str__(self) -> str:
        return " ".join(f"{name}={dtype}" for name, dtype in self.types) or "-"

    def width(self, kind: str) -> int:
        """The bytes of a computed value: the size of its kind's compute type."""
        return self._widths[kind]

    @functools.cached_property
    def _widths(self) -> dict[str, int]:
        wide = any(self.dtype(a) == "float64" for a in self.spec.inputs)
        return {"float": 8 if wide else 4, "bool": 1, "int": DTYPES[self.spec.integer].size}


def bindings(spec: Spec) -> Iterator[Binding]:
    for dtypes in itertools.product(*(dtypes for _, dtypes in spec.types)):
        yield Binding(spec, tuple(zip((name for name, _ in spec.types), dtypes, strict=True)))


def as_called(op: Op, binding: Binding, shape: Shape, arch: str | None = None) -> Op:
    """The op as such a call runs it: the kernel that computes all its stages, or its two kernels, where the first has room."""
    if not isinstance(op.plan, Staged) or op.plan.whole is None:
        return op
    whole = replace(op.plan.whole, tuning=op.tuning)
    try:
        launch_of(replace(stages_of(whole)[0], tuning=op.tuning), binding, shape, arch)
    except UserError:
        return op
    return whole


def launched(op: Op) -> Op:
    """The op whose launch is reported: of several stages, the last; of an op that contracts, its epilogue, as it runs
    after XLA's product."""
    last = stages_of(op)[-1]
    return last.plan.epilogue if isinstance(last.plan, Gemm) else last


def spacing_of(op: Op, place: int, shape: Shape) -> int:
    """The distance between the elements that a stage reads: 1, unless it computes a centre from a sample."""
    axes = op.plan.sampled_axes(place) if isinstance(op.plan, Staged) else ()
    large = max(elements(a.axes, shape) for a in stages_of(op)[place].spec.inputs) >= LEAST_SAMPLED
    return max((spacing(shape[axis]) for axis in axes if large), default=1)


def launch_of(op: Op, binding: Binding, shape: Shape, arch: str | None = None) -> KernelLaunch:
    """The launch of a call with these dtypes and sizes, by default on an architecture without clusters."""
    tuned, op = tuned_for(op, binding, shape, arch), launched(op)
    assert not isinstance(op.plan, Gemm | Staged)
    return choosing.launch(op.plan, planned_call(op.spec, binding, _extents(op, shape), arch), tuned)


def tuned_for(op: Op, binding: Binding, shape: Shape, arch: str | None) -> Tuned | None:
    """The measurement for such calls of an op, or of its epilogue."""
    own = launched(op)
    assert not isinstance(own.plan, Gemm | Staged)
    sizes = choosing.sizes_of(own.plan, _extents(own, shape))
    return choosing.found(op.tuning, own.spec.op, arch, binding.types, sizes)


def _extents(op: Op, shape: Shape) -> Extents:
    assert not isinstance(op.plan, Staged)
    if isinstance(op.plan, AttentionPlan):
        # As if there were a kernel for any size of a head
        inner, columns = (elements((axis,), shape) for axis in (op.plan.value, op.plan.contracted))
        heads = [n if fits_heads(n) else 128 for n in (inner, columns)]
        own = [(op.plan.row,), op.plan.keys, op.plan.batch, op.plan.shared, op.plan.keys[1:]]
        rows, total, *others = (elements(axes, shape) for axes in own)
        return Extents(heads[0], total, heads[1], rows, *others)
    rows, columns = op.plan.rows_and_columns(functools.partial(elements, shape=shape))
    last = op.plan.groups[op.plan.vector_group].axes if op.plan.groups else ()
    inner = elements(last, shape) if last else columns
    apart = elements(tuple(a for i in op.plan.apart for a in op.plan.groups[i].axes), shape)
    turned = op.plan.turned if isinstance(op.plan, Elementwise) else None
    along = None if turned is None else elements(op.plan.groups[turned].axes, shape)
    tables = op.plan.tables if isinstance(op.plan, Elementwise) else ()
    held = tuple(elements(a.axes, shape) * (a.parts or 1) for a in tables)
    outer = elements(op.plan.groups[0].axes, shape) if op.plan.groups else None
    return Extents(inner, rows * columns, columns, rows // max(apart, 1), apart, along, outer=outer, tables=held)


def blocks_of(op: Op, how: KernelLaunch, shape: Shape) -> int:
    """The number of blocks of that launch."""
    plan = launched(op).plan
    assert not isinstance(plan, Staged)
    if isinstance(plan, AttentionPlan) and isinstance(how, AttentionLaunch):
        together = elements(plan.shared, shape) if how.packed else 1
        batch = elements(plan.batch, shape) // together * how.splits
        return how.blocks(elements((plan.row,), shape) * together, 0) * batch
    rows, columns = plan.rows_and_columns(functools.partial(elements, shape=shape))
    if isinstance(how, WalkLaunch) and how.by_place:  # for each place, not for each row
        rows = elements(tuple(a for i in plan.apart for a in plan.groups[i].axes), shape)
    return how.blocks(rows, columns)


def launch_facts(op: Op, binding: Binding, shape: Shape, arch: str | None = None) -> dict[str, Any]:
    """The entry of a launch in --json."""
    how, tuned = launch_of(op, binding, shape, arch), tuned_for(op, binding, shape, arch)
    op = launched(op)
    plan = op.plan
    vector_bytes = {a.name: DTYPES[binding.dtype(a)].bytes_of(how.vec * n) for a, n in plan.full}
    facts = {"vector": how.vec, "vector_bytes": vector_bytes, "threads": how.threads, "ragged": how.ragged}
    if isinstance(plan, Reduction) and plan.rows and isinstance(how, RowLaunch | WalkLaunch):
        facts |= {"threads_a_row": how.per_row, "vectors_a_thread": how.vectors, "cluster": how.cluster}
        facts |= {"rows_at_once": how.at_once, "rows_read": plan.rows_read(how)}
    if isinstance(plan, Reduction) and isinstance(how, RowLaunch | WalkLaunch):
        call = planned_call(op.spec, binding, _extents(op, shape), arch)
        facts |= {"left_to_xla": choosing.left_to_xla(plan, how, call, tuned)}
        facts |= {"resident": how.resident}
    if tuned is not None:
        facts |= {"left_to_xla": tuned.why if tuned.take == "xla" else "", "measured": dict(tuned.measured)}
    # each block of a kernel that reduces over rows loops over the rows
    return facts | {"blocks": blocks_of(op, how, shape) if not plan.columns else None}
