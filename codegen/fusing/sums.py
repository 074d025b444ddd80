"""A loss that a loop adds up, as of chunks of rows, computed to be differentiated: each iteration computes its gradients too.

JAX differentiates such a loop by a second loop, which computes the chunks' logits again or reads them from memory. But
the derivative of the sum by each term is 1. So an iteration can compute the gradients of its chunk together with the
chunk's loss, up to the gradient of the sum as a factor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.custom_derivatives import SymbolicZero

from codegen.fusing.chains.expressing import Chain
from codegen.fusing.graph import StepGraph, is_sharded
from codegen.fusing.loops import adding, body_of
from codegen.fusing.program import Program
from codegen.fusing.running import read, steps_evaluated
from codegen.graph.nodes import DTYPES
from codegen.tracing.steps import Atom, Step, Value, constants_and_carried

Function = Callable[..., tuple[Any, ...]]


@dataclass(frozen=True, eq=False)
class Sum:
    """A loop that adds up numbers, one for each of its results, or whose results `after` adds up: the steps of an iteration without the
    additions, and the numbers that they make. `consts` and `xs` are the inputs of an iteration besides the sums: those of all, and its
    own. `chain` stands for the loop with what is after it."""

    chain: Chain
    step: Step
    after: tuple[Step, ...]
    steps: tuple[Step, ...]
    consts: tuple[Value, ...]
    xs: tuple[Value, ...]
    terms: tuple[Atom, ...]

    @property
    def carried(self) -> int:
        """How many sums the loop carries."""
        return len(self.step.inputs) - len(self.consts) - len(self.xs)

    def terms_of(self, *given: Any) -> tuple[Any, ...]:
        """The numbers that an iteration adds, from its inputs."""
        found = steps_evaluated(self.steps, dict(zip((*self.consts, *self.xs), given, strict=True)))
        return tuple(jax.numpy.sum(read(term, found)) for term in self.terms)

    def added_up(self, results: Sequence[Any]) -> tuple[Any, ...]:
        """The sums, from the loop's results."""
        found = steps_evaluated(self.after, dict(zip(self.step.outputs, results, strict=True)))
        return tuple(found[v] for v in self.chain.outputs)

    def depending(self, inputs: Sequence[bool]) -> list[int]:
        """The numbers whose derivatives by some of an iteration's inputs may not be 0."""
        found = {v for v, taken in zip((*self.consts, *self.xs), inputs, strict=True) if taken}
        for step in self.steps:
            if step.name != "stop_gradient" and not found.isdisjoint(v for v in step.inputs if isinstance(v, Value)):
                found.update(v for v in step.outputs if _is_float(v))
        return [place for place, term in enumerate(self.terms) if term in found]


def sums(program: Program) -> Iterator[Sum]:
    """The loops of a function that add up what chains make of products."""
    for body in program.bodies:
        is_scan = program.graph.steps[body.place].name == "scan"
        if is_scan and (found := _sum(program.graph, body.place, body.program)) is not None:
            yield found


def _sum(graph: StepGraph, place: int, program: Program) -> Sum | None:
    step = graph.steps[place]
    first, count = constants_and_carried(step.params)
    chain = next((chain for _, chain, _ in program.everywhere()), None)
    after = [_summing(graph, v) for v in step.outputs[count:]]
    if chain is None or None in after or any(v.shape != () for v in step.outputs[:count]) or is_sharded(step):
        return None
    flat = body_of(step.params["jaxpr"])
    before = flat.inputs[first : first + count]  # the sums, as an iteration finds them
    additions = [adding(flat, a, b) for a, b in zip(before, flat.outputs, strict=False)]
    if None in additions or not any(s.name == "dot_general" for s in flat.steps):
        return None
    added = [s for s in additions if s is not None]
    terms = tuple(next(v for v in s.inputs if v is not a) for s, a in zip(added, before, strict=True))
    steps = tuple(s for s in flat.steps if s not in added)
    later = tuple(graph.steps[p] for p in after if p is not None)
    outputs = (*step.outputs[:count], *(s.outputs[0] for s in later))
    places = (place, *(p for p in after if p is not None))
    whole = replace(chain, places=places, inputs=step.inputs, outputs=outputs)  # type: ignore[arg-type]
    return Sum(
        whole, step, later, steps, flat.inputs[:first], flat.inputs[first + count :], (*terms, *flat.outputs[count:])
    )


def _summing(graph: StepGraph, value: Value) -> int | None:
    """The place of the step that adds up all elements of a value that nothing else takes."""
    users = graph.users.get(value, [])
    if len(users) != 1 or value in graph.results or not _is_float(value):
        return None
    step = graph.steps[users[0]]
    return users[0] if step.name == "reduce_sum" and step.outputs[0].shape == () else None


def call_of_sum(found: Sum, loop: Function, fuse: Callable[[Function], Function]) -> Function:
    """A loop as a function of its arrays. `loop` is the loop as it runs where no gradients are requested."""
    consts, carried = len(found.consts), found.carried
    terms_of = fuse(found.terms_of)

    def plain(*arrays: Any) -> tuple[Any, ...]:
        return found.added_up(loop(*arrays))

    def forward(*primals: Any) -> tuple[Any, Any]:
        arrays = [p.value for p in primals]
        taken = [p.perturbed and _is_float(p.value) for p in primals]
        terms = found.depending((*taken[:consts], *taken[consts + carried :]))
        narrow = any(str(a.dtype) == "float16" for a, own in zip(arrays, taken, strict=True) if own)
        if len(terms) == 1 and not narrow:  # float16 may not hold gradients of a sum that a mean's are small parts of
            places = [i for i, own in enumerate(taken) if own and not consts <= i < consts + carried]
            sums, gradients = _with_gradients(found, terms_of, arrays, places, terms[0])
            return sums, _Gradients(dict(zip(places, gradients, strict=True)), terms[0])
        made: tuple[Any, Any] = jax.vjp(plain, *arrays)
        return made

    def backward(saved: Any, d: Any) -> tuple[Any, ...]:
        d = tuple(np.zeros(x.shape, x.dtype) if isinstance(x, SymbolicZero) else x for x in d)
        if not isinstance(saved, _Gradients):
            return tuple(saved(d))
        made = {i: (g * d[saved.term]).astype(g.dtype) for i, g in saved.by_input.items()}
        made |= {consts + i: one for i, one in enumerate(d[:carried]) if one.dtype != jax.dtypes.float0}
        return tuple(made.get(i) for i in range(len(found.step.inputs)))

    value: Any = jax.custom_vjp(plain)
    value.defvjp(forward, backward, symbolic_zeros=True)
    return lambda *arrays: tuple(value(*arrays))


def _with_gradients(
    found: Sum, terms_of: Function, arrays: Sequence[Any], places: Sequence[int], term: int
) -> tuple[Any, Sequence[Any]]:
    """The sums, and the gradients of a term's sum by the arrays at these places."""
    consts, carried, params = len(found.consts), found.carried, found.step.params
    own = [i if i < consts else i - carried for i in places]  # among an iteration's inputs without sums
    shared = sum(i < consts for i in own)

    def iteration(state: Any, xs: Any) -> tuple[Any, Any]:
        inputs = [*arrays[:consts], *xs]

        def value(*taken: Any) -> tuple[Any, Any]:
            given = dict(zip(own, taken, strict=True))
            terms = terms_of(*(given.get(i, a) for i, a in enumerate(inputs)))
            return terms[term], terms

        made, terms = jax.grad(value, tuple(range(len(own))), has_aux=True)(*(inputs[i] for i in own))
        sums, before = (tuple(map(jax.numpy.add, a, b)) for a, b in zip(state, (terms, made[:shared]), strict=True))
        return (sums, before), made[shared:]

    later = found.chain.outputs[carried:]
    first = (*arrays[consts : consts + carried], *(jax.numpy.zeros(v.shape, v.dtype) for v in later))
    zeros = tuple(jax.numpy.zeros_like(arrays[i]) for i in places[:shared])
    how = {name: params[name] for name in ("length", "reverse", "unroll")}
    (sums, of_consts), of_xs = jax.lax.scan(iteration, (first, zeros), arrays[consts + carried :], **how)
    return sums, (*of_consts, *of_xs)


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True)
class _Gradients:
    """The gradients of a loop's inputs, by their places, for a gradient of 1 of one of its results, the `term`."""

    by_input: dict[int, Any]
    term: int

    def tree_flatten(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        return tuple(self.by_input.values()), (tuple(self.by_input), self.term)

    @classmethod
    def tree_unflatten(cls, how: tuple[Any, ...], gradients: Sequence[Any]) -> _Gradients:
        return cls(dict(zip(how[0], gradients, strict=True)), how[1])


def _is_float(value: Any) -> bool:
    found = DTYPES.get(str(value.dtype))
    return found is not None and found.kind == "float"
