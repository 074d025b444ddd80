"""How ops run for a chain's sizes: whether attention has a kernel, and how many bytes ops of several kernels read
again.

A norm along axes that no row has together is an op of several kernels. It reads nothing again where a block has room for them."""

from __future__ import annotations

import math

from codegen.errors import UserError
from codegen.explain.launching import as_called, bindings, launch_of, spacing_of
from codegen.plan.attention import Attention, fits_heads
from codegen.plan.elementwise import Elementwise
from codegen.plan.op import Staged
from codegen.plan.rows.reductions import Reduction
from codegen.tracing.specs import Made


def has_kernel(made: Made) -> bool:
    """Whether an op of these types and sizes has a kernel. Attention in float32, or with heads of odd sizes, is XLA's."""
    op, shape = made.planned, _shape(made)
    if not isinstance(op.plan, Attention):
        return True
    try:
        launch_of(op, next(bindings(op.spec)), shape)
    except UserError:
        return False
    return all(fits_heads(shape[axis]) for axis in (op.plan.contracted, op.plan.value))


def read_again(made: Made) -> int | None:
    """The bytes that an op of these sizes moves besides reading and writing each array once: later kernels read arrays
    again, and earlier kernels write values for them. 0 for one kernel. None unless the kernels are reductions and an
    element-wise kernel for the single result."""
    op, shape = made.planned, _shape(made)
    plan = as_called(op, next(bindings(op.spec)), shape).plan
    if not isinstance(plan, Staged):
        return 0
    *before, last = (stage.plan for stage in plan.stages)
    if not all(isinstance(p, Reduction) for p in before) or not isinstance(last, Elementwise) or len(made.outputs) > 1:
        return None
    given = {a.name: a.value.bytes for a in made.inputs}
    # Other stages read a sample
    whole = [stage for place, stage in enumerate(plan.stages) if spacing_of(op, place, shape) == 1]
    reads = [a.name for stage in whole for a in stage.spec.inputs if a.name in given]
    held = sum(8 * math.prod(shape[axis] for axis in node.dims) for _, node in plan.held)
    return sum(given[name] for name in reads) - sum(given[name] for name in {*reads}) + held


def _shape(made: Made) -> dict[str, int]:
    """The sizes of a spec's axes. Its arrays have no type variables."""
    shape: dict[str, int] = {}
    spec = made.planned.spec
    for array, own in zip((*spec.inputs, *spec.outputs), (*made.inputs, *made.outputs), strict=True):
        sizes = own.shape
        fixed = [d for d in array.dims if d.names != ("...",)]
        rows = len(sizes) - len(fixed)
        shape["..."] = max(shape.get("...", 1), math.prod(sizes[:rows]))
        shape |= {d.names[0]: n // (d.parts or 1) for d, n in zip(fixed, sizes[rows:], strict=True) if d.names}
    return shape
