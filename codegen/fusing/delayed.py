"""Reshapes that join two dimensions, put off until after the element-wise steps that follow.

A group norm of `[N, H, W, C]` reduces in `[N, H, W, G, C / G]`, goes back to `[N, H, W, C]`, and applies weights and an activation
there. The language names axes, so its chain would end at the reshape. Here these steps have two dimensions for one as well: the
weights are reshaped instead, and the result is joined where something else takes it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from codegen.tracing.steps import Atom, Flat, Place, Step, Value
from codegen.tracing.translate import ELEMENTWISE


@dataclass(frozen=True)
class Split:
    """A value in the form in which one of its dimensions, at `place`, is two of these sizes."""

    value: Value
    place: int
    sizes: tuple[int, int]


def delayed(flat: Flat) -> Flat:
    """The same function, in which element-wise steps after such a reshape come before it. The steps that nothing needs any more are
    still there."""
    computed = {v for s in flat.steps if s.name in ELEMENTWISE for v in s.outputs}
    known: dict[Value, Split] = {}
    made: list[Step] = []
    for step in flat.steps:
        if step.name == "reshape" and step.inputs[0] in computed and (found := _joined(step)) is not None:
            known[step.outputs[0]] = found
        if (found := _form(step, known)) is None:
            made.append(step)
            continue
        inputs = tuple(_in_form(v, found, known, made, step.place) for v in step.inputs)
        result = Value(_shape(step.outputs[0].shape, found), step.outputs[0].dtype)
        made += [replace(step, inputs=inputs, outputs=(result,)), _reshape(result, step.outputs[0], step.place)]
        known[step.outputs[0]] = replace(found, value=result)
    return Flat(flat.inputs, tuple(made), flat.outputs)


def _joined(step: Step) -> Split | None:
    """What a reshape gives, as what it takes; None where it does more than join two neighbouring dimensions."""
    given, (result,) = step.inputs[0], step.outputs
    if not isinstance(given, Value) or len(given.shape) != len(result.shape) + 1 or _is_sharded(step):
        return None
    place = next(
        (i for i, (a, b) in enumerate(zip(given.shape, result.shape, strict=False)) if a != b), len(result.shape) - 1
    )
    found = Split(given, place, (given.shape[place], given.shape[place + 1]))
    return found if min(found.sizes) > 1 and _shape(result.shape, found) == given.shape else None


def _is_sharded(step: Step) -> bool:
    """Whether the types of a step's arrays say how they are sharded."""
    shardings = [getattr(v.aval, "sharding", None) for v in step.equation.outvars]
    return any(s is not None and not s.mesh.empty for s in shardings)


def _form(step: Step, known: Mapping[Value, Split]) -> Split | None:
    """The form in which a step can be computed, since one of its arrays has it."""
    if step.name not in ELEMENTWISE or step.inner or len(step.outputs) != 1:
        return None
    shape = step.outputs[0].shape
    arrays = [v for v in step.inputs if isinstance(v, Value)]
    found = next((known[v] for v in arrays if v in known and v.shape == shape), None)
    if found is None:
        return None
    size = math.prod(found.sizes)
    return (
        found
        if all(len(v.shape) == len(shape) and v.shape[found.place] in (1, size) for v in arrays if v.shape)
        else None
    )


def _in_form(atom: Atom, form: Split, known: Mapping[Value, Split], made: list[Step], place: Place) -> Atom:
    """A step's argument in a form: as it is there, or reshaped."""
    if not isinstance(atom, Value) or not atom.shape:
        return atom
    if (own := known.get(atom)) is not None and (own.place, own.sizes) == (form.place, form.sizes):
        return own.value
    result = Value(_shape(atom.shape, form), atom.dtype)
    made.append(_reshape(atom, result, place))
    return result


def _shape(shape: tuple[int, ...], form: Split) -> tuple[int, ...]:
    sizes = form.sizes if shape[form.place] > 1 else (1, 1)
    return (*shape[: form.place], *sizes, *shape[form.place + 1 :])


def _reshape(given: Value, result: Value, place: Place) -> Step:
    """A reshape that the function does not have."""
    return Step(
        "reshape", (given,), (result,), {"dimensions": None, "new_sizes": result.shape, "sharding": None}, place
    )
