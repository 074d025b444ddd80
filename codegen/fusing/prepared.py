"""Rewrites the steps of a function before chains are searched: unused and equal steps are removed, and steps are copied where each of
their uses computes them again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from codegen.errors import UserError
from codegen.fusing.graph import (
    BODIES,
    COSTLY,
    FACTOR,
    LAYOUT,
    LESS,
    MOVED,
    StepGraph,
    has_effects,
    is_recomputed,
    takes_written,
)
from codegen.graph.nodes import DTYPES
from codegen.tracing.axes import Axes, added
from codegen.tracing.steps import Atom, Flat, Number, Place, Step, Value
from codegen.tracing.translate import ELEMENTWISE, constants_apart


def prepared(flat: Flat) -> Flat:
    """The same function, in the form in which chains are searched. Unused steps are removed, and equal steps become
    one. A step that is recomputed where it is used, or that makes a constant, is copied for each use. Factors of
    products are copied too."""
    return _factors_apart(spread(_sides_apart(constants_apart(once(_needed(flat))))))


def _needed(flat: Flat) -> Flat:
    """The same function without steps that no result needs. A derivative that JAX has taken has such steps, as the mask of the
    maximum that a softmax subtracts."""
    needed = {v for v in flat.outputs if isinstance(v, Value)}
    steps = []
    for step in reversed(flat.steps):
        if needed.intersection(step.outputs) or has_effects(step):
            steps.append(step)
            needed.update(v for v in step.inputs if isinstance(v, Value))
    return Flat(flat.inputs, tuple(reversed(steps)), flat.outputs)


def once(flat: Flat) -> Flat:
    """The same function without steps that repeat an earlier step. XLA removes them too."""
    same: dict[Value, Value] = {}
    seen: dict[object, Step] = {}
    steps = []
    for step in flat.steps:
        own = on(step, same)
        if step.inner or step.name in BODIES or has_effects(step):
            steps.append(own)
            continue
        key = (step.name, own.inputs, tuple(sorted((k, str(v)) for k, v in step.params.items())))
        first = seen.setdefault(key, own)
        if first is own:
            steps.append(own)
        same |= zip(step.outputs, first.outputs, strict=True)
    return Flat(flat.inputs, tuple(steps), tuple(same.get(v, v) if isinstance(v, Value) else v for v in flat.outputs))


def on(step: Step, same: Mapping[Value, Atom]) -> Step:
    """A step on other values, as are the steps within it."""
    inputs = tuple(same.get(v, v) if isinstance(v, Value) else v for v in step.inputs)
    return replace(step, inputs=inputs, inner=tuple(on(s, same) for s in step.inner))


def _sides_apart(flat: Flat) -> Flat:
    """The same function, with a copy of each array that a step combines with itself along other axes, as in `d[:, None]
    == d` of documents. The copy has axes of its own. An array that is computed of numbers alone is computed again
    instead (`of_less`)."""
    constants = StepGraph(flat).constants
    maker = {v: s for s in flat.steps for v in s.outputs}
    copies: dict[Value, Value] = {}
    made: list[Step] = []

    def path(value: Atom) -> list[Step]:
        """The steps that move an array to this value, the last first."""
        found: list[Step] = []
        while isinstance(value, Value) and value in maker and maker[value].name in MOVED:
            found.append(maker[value])
            value = found[-1].inputs[0]
        return found

    for place, step in enumerate(flat.steps):
        sides = [path(v) for v in step.inputs]
        if step.name in ELEMENTWISE and place not in constants and _meet(step, sides):
            value = sides[1][-1].inputs[0]
            assert isinstance(value, Value)
            if value not in copies:
                copies[value] = Value(value.shape, value.dtype)
                made.append(Step(FACTOR, (value,), (copies[value],), {}, Place()))
            value = copies[value]
            for move in reversed(sides[1]):
                moved = Value(move.outputs[0].shape, move.outputs[0].dtype)
                made.append(replace(move, inputs=(value,), outputs=(moved,)))
                value = moved
            step = replace(step, inputs=(step.inputs[0], value))
        made.append(step)
    return Flat(flat.inputs, tuple(made), flat.outputs)


def _meet(step: Step, sides: Sequence[Sequence[Step]]) -> bool:
    """Whether both sides of a step are moved from one array, so that two dimensions of the result would have the same
    axis."""
    if len(sides) != 2 or not all(sides) or sides[0][-1].inputs[0] is not sides[1][-1].inputs[0]:
        return False
    axes = Axes()
    try:
        for move in (*sides[0][::-1], *sides[1][::-1], step):
            axes.see(move)
    except UserError:
        return False
    found = axes.all(step.outputs[0])
    return len(set(found)) < len(found)


def _factors_apart(flat: Flat) -> Flat:
    """The same function, in which a product takes a copy of an array that other steps or its other side take too. So the array has
    axes of its own there: `a * x + n @ x` has x along the product's rows, and along what is contracted."""
    graph = StepGraph(flat)
    copies: dict[tuple[Value, int], Value] = {}
    made: list[Step] = []

    def copied(given: Atom, side: int) -> Atom:
        """A product's factor, computed of a copy where its array is taken otherwise too."""
        maker = graph.maker.get(given) if isinstance(given, Value) else None
        if not isinstance(given, Value) or (maker is not None and graph.steps[maker].name == "transpose"):
            if maker is None:
                return given
            step = graph.steps[maker]
            before = copied(step.inputs[0], side)
            if before is step.inputs[0]:
                return given
            result = Value(step.outputs[0].shape, step.outputs[0].dtype)
            made.append(replace(step, inputs=(before,), outputs=(result,)))
            return result
        sides = graph.sides(given)
        if len(sides) == 1 or side == min(sides):
            return given
        if (given, side) not in copies:
            copies[given, side] = Value(given.shape, given.dtype)
            made.append(Step(FACTOR, (given,), (copies[given, side],), {}, Place()))
        return copies[given, side]

    for step in flat.steps:
        if step.name == "dot_general":
            step = replace(step, inputs=tuple(copied(given, side) for side, given in enumerate(step.inputs)))
        made.append(step)
    return Flat(flat.inputs, tuple(made), flat.outputs)


def spread(flat: Flat) -> Flat:
    """The same function, with a copy of each recomputed step for each use. Steps that take the result from memory share
    one copy."""
    maker = {v: s for s in flat.steps for v in s.outputs}
    uses = Counter(v for s in flat.steps for v in {v for v in s.inputs if isinstance(v, Value)})
    kept = {v for v in flat.outputs if isinstance(v, Value)}  # the values whose own steps are needed
    copies: dict[Value, list[Value]] = {}
    made: list[Step] = []
    few = max((v.bytes for v in maker), default=0) // 8
    each = {s for s in flat.steps if is_recomputed(s) or _is_of_numbers(s, maker) or _is_of_labels(s, few)}
    each |= of_less(flat)
    taking = _taking(flat)
    for step in reversed(flat.steps):
        again = step in each
        whole = [step] if not again or step.outputs[0] in kept else []
        whole += [_giving(step, copy) for copy in (copies.get(step.outputs[0], ()) if again else ())]
        for one in whole:
            inputs = list(one.inputs)
            for place, given in enumerate(inputs):
                if not isinstance(given, Value) or given not in maker:
                    continue
                several = (uses[given] > 1 or len(whole) > 1) and step not in taking
                if several and not one.inner and maker[given] in each and len(made) < 4 * len(flat.steps):
                    inputs[place] = copy = Value(given.shape, given.dtype)
                    copies.setdefault(given, []).append(copy)
                else:
                    kept.add(given)
            made.append(replace(one, inputs=tuple(inputs)))
    return Flat(flat.inputs, tuple(reversed(made)), flat.outputs)


def _taking(flat: Flat) -> set[Step]:
    """The steps that take arrays from memory, as products do, and the steps that only reshape or reorder arrays for
    them."""
    users: dict[Value, list[Step]] = {}
    for step in flat.steps:
        for value in {v for v in step.inputs if isinstance(v, Value)}:
            users.setdefault(value, []).append(step)
    found: set[Step] = set()
    for step in reversed(flat.steps):
        own = [u for v in step.outputs for u in users.get(v, ())]
        moves = step.name in MOVED and own and not set(step.outputs).intersection(flat.outputs)
        if takes_written(step) or (moves and all(u in found for u in own)):
            found.add(step)
    return found


def _is_of_numbers(step: Step, maker: Mapping[Value, Step]) -> bool:
    """Whether a step adds one element to each row of zeros, or of another number. Such a row can be computed by
    comparing positions."""
    if step.name != "scatter-add" or added(step) is None:
        return False
    table = maker.get(step.inputs[0]) if isinstance(step.inputs[0], Value) else None
    return table is not None and table.name == "broadcast_in_dim" and isinstance(table.inputs[0], Number)


def of_less(flat: Flat) -> set[Step]:
    """The steps that compute an array from much smaller ones, such as an attention mask from positions or documents.
    Computing it again costs less than reading it."""
    found: set[Step] = set()
    sources: dict[Value, frozenset[Value]] = {}  # of what is computed again, or moved
    for step in flat.steps:
        given = [v for v in step.inputs if isinstance(v, Value)]
        own = frozenset[Value]().union(*(sources.get(v, {v}) for v in given))
        moves = step.name in MOVED | LAYOUT
        if len(step.outputs) != 1 or step.inner or step.saved or not (moves or step.name in ELEMENTWISE - COSTLY):
            continue
        (result,) = step.outputs
        if LESS * sum(v.bytes for v in own) <= result.bytes:
            sources[result] = own
            if not moves or any(v in sources for v in given):
                found.add(step)
    return found


def _is_of_labels(step: Step, few: int) -> bool:
    """Whether a step compares or selects integers of a `few` bytes, as the labels of rows: to read them again costs nothing."""
    values = [v for v in (*step.inputs, *step.outputs) if isinstance(v, Value)]
    whole = all(v.dtype in DTYPES and DTYPES[v.dtype].kind != "float" and v.bytes <= few for v in values)
    return step.name in ELEMENTWISE and whole and len(step.outputs) == 1


def _giving(step: Step, value: Value) -> Step:
    """The same step with another value as its result."""
    inner = tuple(replace(s, outputs=(value,)) if s.outputs == step.outputs else s for s in step.inner)
    return replace(step, outputs=(value,), inner=inner)
