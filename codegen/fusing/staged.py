"""The memory traffic of chains of several kernels, such as a norm along axes that no block has whole."""

from __future__ import annotations

import math

from codegen.language.sizes import array_bytes, elements
from codegen.plan.elementwise import Elementwise
from codegen.plan.op import Staged
from codegen.plan.rows.reductions import Reduction
from codegen.tracing.specs import Made


def is_normalising(made: Made) -> bool:
    """Whether the first stages of an op compute statistics, and the last one computes with them."""
    plan = made.planned.plan
    assert isinstance(plan, Staged)
    shape = _shape(made)
    most = max(elements(a.axes, shape) for a in made.planned.spec.arrays)
    *first, last = plan.stages
    few = [2 * max(elements(a.axes, shape) for a in stage.spec.outputs) < most for stage in plan.stages]
    reduce = all(isinstance(stage.plan, Reduction) for stage in first)
    return reduce and all(few[:-1]) and not few[-1] and isinstance(last.plan, Elementwise | Reduction)


def reread(made: Made) -> int:
    """The bytes that an op's stages move, besides those of each of its arrays once."""
    plan, spec = made.planned.plan, made.planned.spec
    if not isinstance(plan, Staged):
        return 0
    shape = _shape(made)
    once = sum(array_bytes(a, shape, a.dtype) for a in spec.arrays)
    sampled = [place for place, _ in plan.sampled]  # they read few of the elements
    stages = [stage.spec for place, stage in enumerate(plan.stages) if place not in sampled]
    return sum(array_bytes(a, shape, a.dtype) for own in stages for a in own.arrays) - once


def _shape(made: Made) -> dict[str, int]:
    """The sizes of a spec's axes. Its arrays have no type variables, and dimensions of size 1 are left out."""
    shape: dict[str, int] = {}
    spec = made.planned.spec
    for array, own in zip((*spec.inputs, *spec.outputs), (*made.inputs, *made.outputs), strict=True):
        sizes = [n for n in own.value.shape if n > 1]
        fixed = [d for d in array.dims if d.names != ("...",)]
        rows = len(sizes) - len(fixed)
        shape["..."] = max(shape.get("...", 1), math.prod(sizes[:rows]))
        shape |= {d.names[0]: n // (d.parts or 1) for d, n in zip(fixed, sizes[rows:], strict=True) if d.names}
    return shape
