"""The part of `codegen explain --interpret`: runs one call of each kernel in the interpreter, and counts its accesses."""

from __future__ import annotations

from typing import Any

from codegen.errors import UserError
from codegen.explain.launching import Binding, bindings
from codegen.graph.nodes import DTYPES
from codegen.language.sizes import Shape, array_bytes, elements
from codegen.measuring.times.bench import make_inputs, static_arguments, wide_types
from codegen.plan.limits import lacks
from codegen.runtime.compiled import interpreted
from codegen.runtime.ops.op import AnyOp
from codegen.spec.spec import Spec

MOST = 1 << 18  # elements of an output that the interpreter computes quickly
LARGEST = 1 << 24  # elements of an array that fit the interpreter's memory


def check_size(spec: Spec, shape: Shape) -> None:
    """Raises `UserError` where a call is too large for the interpreter, which keeps every thread's registers."""
    count, name = max((elements(a.axes, shape), a.name) for a in spec.arrays)
    if count > LARGEST:
        raise UserError(
            f"{name!r} has {count} elements, too many to interpret", f"at most {LARGEST}: give a smaller --shape"
        )


def small(spec: Spec, shape: Shape) -> dict[str, int]:
    """The shape with its longest free axes halved until the interpreter runs it quickly."""
    made = dict(shape)
    while max(elements(a.axes, made) for a in spec.arrays) > MOST:
        free = {axis: extent for axis, extent in made.items() if axis not in spec.extents and extent > 1}
        if not free:
            break
        made[max(free, key=lambda axis: free[axis])] //= 2
    return made


def interpreted_calls(op: AnyOp, shape: Shape) -> list[dict[str, Any]]:
    """For each binding of dtypes that the architecture supports: the kernel's report, and the least bytes of each array."""
    arch = interpreted.architecture()
    return [_call(op, b, shape) for b in bindings(op.spec) if not lacks(op, b, arch)]


def _call(op: AnyOp, binding: Binding, shape: Shape) -> dict[str, Any]:
    with wide_types(binding):
        op(**make_inputs(op.spec, binding, shape, 0), **static_arguments(op.spec, binding), implementation="interpret")
    # Of several kernels, the one with the most instructions
    report = max(interpreted.last_reports(), key=lambda r: r.instructions)
    made = report.as_dict()
    count = max(1, max(elements(a.axes, shape) for a in op.spec.outputs))
    arrays = {}
    for array in op.spec.arrays:
        size = array_bytes(array, shape, binding.dtype(array))
        traffic = made["operands"].get(array.name, {})
        arrays[array.name] = {"minimum": size, "element": DTYPES[binding.dtype(array)].size} | {
            key: traffic.get(key, 0) for key in ("loaded", "stored", "touched", "sectors_per_request", "coalescing")
        }
    return {
        "types": dict(binding.types),
        "shape": dict(shape),
        "blocks": report.blocks,
        "threads": report.threads,
        "instructions_per_thread": made["instructions_per_thread"],
        "instructions_per_element": round(report.instructions / count, 2),
        "divergence": made["divergence"],
        "arrays": arrays,
    }
