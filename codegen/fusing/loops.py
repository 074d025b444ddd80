"""Loops of the same length as one loop.

JAX differentiates a loop by a second one, which computes the same products again or reads what the first one has stacked. Where nothing
else of the first is needed for the second, as for the gradient of a sum, one loop does both, iteration by iteration.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from codegen.fusing.graph import has_effects, is_sharded
from codegen.fusing.prepared import on, once
from codegen.fusing.running import read, steps_evaluated
from codegen.graph.nodes import DTYPES
from codegen.tracing.steps import REMAT, Atom, Flat, Step, Value, constants_and_carried, flatten


@dataclass(frozen=True, eq=False)
class Loop:
    """A scan: the steps of an iteration, and the inputs that are the same in all iterations, that it carries, and that are its own."""

    step: Step
    body: Flat
    consts: tuple[Atom, ...]
    carried: tuple[Atom, ...]
    xs: tuple[Atom, ...]

    @property
    def stacked(self) -> tuple[Value, ...]:
        """The results that have an element for each iteration."""
        return self.step.outputs[len(self.carried) :]

    @property
    def is_of_any_order(self) -> bool:
        """Whether its iterations may run in another order: it carries sums, and what is the same in all iterations."""
        before = self.body.inputs[len(self.consts) :]
        pairs = zip(before[: len(self.carried)], self.body.outputs, strict=False)
        return all(a is b or adding(self.body, a, b) is not None for a, b in pairs)

    def iteration(
        self, consts: Sequence[Any], carried: Sequence[Any], xs: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        """What an iteration carries on, and what it stacks."""
        found = steps_evaluated(self.body.steps, dict(zip(self.body.inputs, (*consts, *carried, *xs), strict=True)))
        results = [read(v, found) for v in self.body.outputs]
        return results[: len(self.carried)], results[len(self.carried) :]


def merged(flat: Flat) -> Flat:
    """The same function, in which a loop that an earlier one can do as well is part of that one."""
    places = [p for p, step in enumerate(flat.steps) if step.name == "scan" and _is_plain(step)]
    for number, later in enumerate(places):
        for earlier in places[:number]:
            if (made := _merged(flat, earlier, later)) is not None:
                return merged(made)
    return flat


def _is_plain(step: Step) -> bool:
    """Whether a loop has neither effects nor arrays whose types say more than their shapes and dtypes."""
    varies = any(getattr(v.aval, "vma", None) for v in step.equation.invars)
    return not has_effects(step) and not is_sharded(step) and not varies and all(v.dtype in DTYPES for v in step.inputs)


def _merged(flat: Flat, earlier: int, later: int) -> Flat | None:
    """The function with a loop for two of its loops; None where one depends on the other in another way than iteration by iteration, and
    where no work is left out."""
    first, second = flat.steps[earlier], flat.steps[later]
    between = flat.steps[earlier + 1 : later]
    if first.params["length"] != second.params["length"] or any(map(has_effects, between)):
        return None
    after: set[Value] = set(first.outputs)  # what depends on the first loop
    for step in between:
        if not after.isdisjoint(v for v in step.inputs if isinstance(v, Value)):
            after.update(step.outputs)
    one, two = _loop(first), _loop(second)
    depending = {v for v in two.xs if v in one.stacked}
    if not after.isdisjoint(v for v in second.inputs if isinstance(v, Value) and v not in depending):
        return None
    if not after.isdisjoint(v for v in (*two.consts, *two.carried) if isinstance(v, Value)):
        return None
    if first.params["reverse"] != second.params["reverse"] and not (one.is_of_any_order or two.is_of_any_order):
        return None
    if not depending and set(one.xs).isdisjoint(two.xs):
        return None
    steps = [*flat.steps[:earlier], *(s for s in between if after.isdisjoint(s.outputs))]
    rest = [*(s for s in between if not after.isdisjoint(s.outputs)), *flat.steps[later + 1 :]]
    taken = {v for s in rest for v in s.inputs} | set(flat.outputs)
    made = _both(one, two, [v in taken for v in one.stacked])
    if made is None:
        return None
    own, same = made
    outputs = tuple(same.get(v, v) if isinstance(v, Value) else v for v in flat.outputs)
    return Flat(flat.inputs, (*steps, *own, *(on(s, same) for s in rest)), outputs)


def _loop(step: Step) -> Loop:
    consts, carried = constants_and_carried(step.params)
    first, last = step.inputs[:consts], step.inputs[consts + carried :]
    return Loop(step, body_of(step.params["jaxpr"]), first, step.inputs[consts : consts + carried], last)


def _both(one: Loop, two: Loop, taken: Sequence[bool]) -> tuple[tuple[Step, ...], dict[Value, Value]] | None:
    """The steps of a loop that does what two loops do, and its results for those of the two. `taken` says which arrays that the first
    one stacks others than the second one take. None where each product is still computed."""
    consts = tuple(dict.fromkeys((*one.consts, *two.consts)))
    xs = tuple(v for v in dict.fromkeys((*one.xs, *two.xs)) if v not in one.stacked)
    order = two if one.is_of_any_order else one

    def iteration(fixed: Any, state: Any, given: Any) -> tuple[Any, Any]:
        known = dict(zip((*consts, *xs), (*fixed, *given), strict=True))
        carried, stacked = one.iteration([known[v] for v in one.consts], state[0], [known[v] for v in one.xs])
        known |= zip(one.stacked, stacked, strict=True)
        last, others = two.iteration([known[v] for v in two.consts], state[1], [known[v] for v in two.xs])
        return (carried, last), ([v for v, own in zip(stacked, taken, strict=True) if own], others)

    def both(*given: Any) -> Any:
        last = len(given) - len(xs)
        fixed, state, own = given[: len(consts)], given[len(consts) : last], given[last:]
        first = [*state[: len(one.carried)]], [*state[len(one.carried) :]]
        how = {name: order.step.params[name] for name in ("length", "reverse", "unroll")}
        return jax.lax.scan(functools.partial(iteration, fixed), first, own, **how)

    inputs = (*consts, *one.carried, *two.carried, *xs)
    found = _flat(both, inputs)
    (loop,) = (s for s in found.steps if s.name == "scan")
    if not any(v in one.stacked for v in two.xs):
        products = [_products(once(body)) for body in (one.body, two.body, flatten(loop.params["jaxpr"]))]
        if products[2] >= products[0] + products[1]:
            return None
    kept = [v for v, own in zip(one.stacked, taken, strict=True) if own]
    outputs = (*one.step.outputs[: len(one.carried)], *two.step.outputs[: len(two.carried)], *kept, *two.stacked)
    given = dict(zip(found.inputs, inputs, strict=True))
    results = {old: new for old, new in zip(outputs, found.outputs, strict=True) if isinstance(new, Value)}
    return tuple(on(s, given) for s in found.steps), results


def _flat(function: Callable[..., Any], inputs: Sequence[Atom]) -> Flat:
    return flatten(jax.make_jaxpr(function)(*(jax.ShapeDtypeStruct(v.shape, v.dtype) for v in inputs)))


def _products(flat: Flat) -> int:
    return sum(step.name == "dot_general" for step in flat.steps)


def body_of(closed: Any) -> Flat:
    """The steps of an iteration. A checkpoint that is the only one is replaced by its steps: where a gradient follows, nothing is to be
    computed again."""
    whole = flatten(closed, remat=False)
    checkpoints = [s for s in whole.steps if s.name in REMAT]
    inner = [e for s in checkpoints for e in s.params["jaxpr"].eqns]
    alone = len(checkpoints) == 1 and not any(e.primitive.name in REMAT for e in inner)
    return _of_one_type(flatten(closed) if alone else whole)


def _of_one_type(flat: Flat) -> Flat:
    """The same steps without conversions of a type to itself, as of a number whose type is weak."""
    same: dict[Atom, Atom] = {}
    steps = []
    for step in flat.steps:
        own = replace(step, inputs=tuple(same.get(v, v) for v in step.inputs))
        if step.name == "convert_element_type" and own.inputs[0].dtype == own.outputs[0].dtype:
            same[own.outputs[0]] = own.inputs[0]
        else:
            steps.append(own)
    return Flat(flat.inputs, tuple(steps), tuple(same.get(v, v) for v in flat.outputs))


def adding(flat: Flat, before: Value, after: Atom) -> Step | None:
    """The step that adds a term to a sum that nothing else takes."""
    users = [s for s in flat.steps if before in s.inputs]
    if len(users) != 1 or users[0].name not in ("add", "add_any") or before in flat.outputs:
        return None
    (step,) = users
    return step if step.outputs == (after,) and step.inputs.count(before) == 1 else None
