"""A function as steps and chains, and its evaluation with an op for each chain.

Bodies of loops, branches and checkpointed functions are programs of their own: a step that has them is done with the new bodies.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend import core

from codegen.fusing.chains import Chain, Expressing, chains
from codegen.fusing.graph import BODIES, FACTOR, StepGraph, prepared
from codegen.tracing.steps import Atom, Number, Step, Value, flatten


@dataclass(frozen=True, eq=False)
class Body:
    """A jaxpr within a step: the step's place, the parameter, its number among several, how often a step runs it."""

    place: int
    param: str
    number: int | None
    times: int
    program: Program


@dataclass(frozen=True, eq=False)
class Program:
    """A function's steps, its chains, and the programs within its steps."""

    graph: StepGraph
    chains: tuple[Chain, ...]
    bodies: tuple[Body, ...]

    def everywhere(self, times: int = 1) -> Iterator[tuple[Program, Chain, int]]:
        """Every chain, of bodies too, with its program and how often a call runs it."""
        for program, count in self.programs(times):
            for chain in program.chains:
                yield program, chain, count

    def programs(self, times: int = 1) -> Iterator[tuple[Program, int]]:
        """This program and those within its steps, with how often a call runs each."""
        yield self, times
        for body in self.bodies:
            yield from body.program.programs(times * body.times)


def program_of(closed: Any, expressing: Expressing, sequences: bool = False) -> Program:
    """The program of a closed jaxpr, with `sequences` of products as chains or without."""
    graph = StepGraph(prepared(flatten(closed, remat=False)))
    bodies = []
    for place, step in enumerate(graph.steps):
        for param in BODIES.get(step.name, ()):
            found = step.params[param]
            for number, one in enumerate(found) if isinstance(found, tuple) else ((None, found),):
                inner = one if isinstance(one, core.ClosedJaxpr) else core.ClosedJaxpr(one, ())
                program = program_of(inner, expressing, sequences)
                if program.chains or program.bodies:
                    bodies.append(Body(place, param, number, step.params.get("length", 1), program))
    return Program(graph, tuple(chains(graph, expressing, sequences)), tuple(bodies))


Wanted = Callable[[Chain], Callable[..., tuple[Any, ...]] | None]


def evaluate(program: Program, arguments: Sequence[Any], wanted: Wanted) -> list[Any]:
    """The function's results. `wanted` gives the function to call instead of a chain's steps, or None."""
    graph = program.graph
    values: dict[Value, Any] = dict(zip(graph.flat.inputs, arguments, strict=True))
    replaced = {chain: call for chain in program.chains if (call := wanted(chain)) is not None}

    for item in _order(graph, tuple(replaced)):
        if isinstance(item, Chain):
            call = _where_differentiated(item, graph, replaced[item]) if item.again else replaced[item]
            results = call(*(read(v, values) for v in item.inputs))
            values |= zip(item.outputs, results, strict=True)
        else:
            values |= zip(
                item.outputs, _done(item, [read(a, values) for a in item.inputs], program, wanted), strict=True
            )
    return [read(a, values) for a in graph.flat.outputs]


def read(atom: Atom, values: Mapping[Value, Any]) -> Any:
    """The value of a step's argument: a number, a known value, or a constant of the function."""
    return jax.numpy.asarray(atom.value, atom.dtype) if isinstance(atom, Number) else values.get(atom, atom.constant)


def _where_differentiated(
    chain: Chain, graph: StepGraph, op: Callable[..., tuple[Any, ...]]
) -> Callable[..., tuple[Any, ...]]:
    """A chain's op where gradients are requested, else its steps. XLA's kernels for a norm that no block holds take as long as the
    op's, and for its gradient longer."""
    steps = [graph.steps[p] for p in chain.places]

    def plain(*arrays: Any) -> tuple[Any, ...]:
        found = steps_evaluated(steps, dict(zip(chain.inputs, arrays, strict=True)))
        return tuple(found[v] for v in chain.outputs)

    value: Any = jax.custom_vjp(plain)
    value.defvjp(lambda *arrays: jax.vjp(op, *arrays), lambda pull, d: pull(d))
    return lambda *arrays: tuple(value(*arrays))


def steps_evaluated(steps: Sequence[Step], values: Mapping[Value, Any]) -> dict[Value, Any]:
    """The values of steps, from the values of their inputs."""
    found = dict(values)
    for step in steps:
        given = [read(a, found) for a in step.inputs]
        found |= zip(step.outputs, bound(step.equation, given, step.params), strict=True)
    return found


def bound(equation: Any, arguments: Sequence[Any], params: Mapping[str, Any]) -> list[Any]:
    """A primitive's results; None for a result that nothing uses. The equation is evaluated as a jaxpr of its own. A reshape that the
    function does not have has none."""
    if equation is None:
        return [jax.numpy.reshape(arguments[0], params["new_sizes"])]
    if params is not equation.params:
        equation = equation.replace(params=dict(params))
    given = {v: a for v, a in zip(equation.invars, arguments, strict=True) if not isinstance(v, core.Literal)}
    results = [v for v in equation.outvars if not isinstance(v, core.DropVar)]
    jaxpr = core.Jaxpr((), list(given), results, [equation], equation.effects, debug_info=_no_source())
    found = iter(core.jaxpr_as_fun(core.ClosedJaxpr(jaxpr, ()))(*given.values()))
    return [None if isinstance(v, core.DropVar) else next(found) for v in equation.outvars]


@functools.cache
def _no_source() -> Any:
    """The source information of a jaxpr that has none."""
    return jax.make_jaxpr(lambda: ())().jaxpr.debug_info


def _done(step: Step, arguments: Sequence[Any], program: Program, wanted: Wanted) -> Sequence[Any]:
    """The results of a step, with chains replaced within its bodies."""
    if step.name == FACTOR:
        return arguments
    params = step.params
    for body in program.bodies:
        if program.graph.steps[body.place] is not step or not any(wanted(c) for _, c, _ in body.program.everywhere()):
            continue
        old = params[body.param] if body.number is None else params[body.param][body.number]
        new = _rewritten(old, body.program, wanted)
        if new is None:
            continue
        if body.number is None:
            params = {**params, body.param: new}
        else:
            params = {
                **params,
                body.param: tuple(new if i == body.number else b for i, b in enumerate(params[body.param])),
            }
    return bound(step.equation, arguments, params)


def _rewritten(old: Any, program: Program, wanted: Wanted) -> Any:
    """A jaxpr with chains replaced, of the same form; None where it would capture arrays that its form has no place for."""
    closed = old if isinstance(old, core.ClosedJaxpr) else core.ClosedJaxpr(old, ())
    new = jax.make_jaxpr(lambda *given: evaluate(program, given, wanted))(*(v.aval for v in closed.jaxpr.invars))
    if isinstance(old, core.ClosedJaxpr):
        return new
    return None if new.consts else new.jaxpr


def _order(graph: StepGraph, replaced: Sequence[Chain]) -> list[Step | Chain]:
    """Chains and the steps that others need, each after what it uses."""
    maker: dict[Value, Step | Chain] = {v: s for s in graph.steps for v in s.outputs}
    for chain in replaced:
        maker |= dict.fromkeys(chain.outputs, chain)
    found: list[Step | Chain] = []
    done: set[Step | Chain] = set()
    stack: list[tuple[Step | Chain, bool]] = []

    def push(atoms: Sequence[Atom]) -> None:
        for atom in reversed(atoms):
            if isinstance(atom, Value) and atom in maker and maker[atom] not in done:
                stack.append((maker[atom], False))

    for step in reversed(graph.steps):
        if not step.outputs or getattr(step.equation, "effects", None):
            stack.append((step, False))
    push(graph.flat.outputs)
    while stack:
        item, ready = stack.pop()
        if item in done:
            continue
        if ready:
            done.add(item)
            found.append(item)
            continue
        stack.append((item, True))
        push(item.inputs)
    return found
