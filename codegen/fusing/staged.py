"""Which ops of several kernels one kernel computes, as a norm along axes that no row has together: where a block has room."""

from __future__ import annotations

import math

from codegen.explain.launching import as_called, bindings
from codegen.plan.op import Staged
from codegen.tracing.specs import Made


def is_one_kernel(made: Made) -> bool:
    """Whether one kernel computes an op of these sizes. Stages read arrays again, and take up to twice XLA's time for it."""
    op = made.planned
    return not isinstance(as_called(op, next(bindings(op.spec)), _shape(made)).plan, Staged)


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
