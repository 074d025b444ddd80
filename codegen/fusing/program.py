"""A function as steps and chains, and its evaluation with an op for each chain.

The bodies of loops, branches and checkpointed functions are programs of their own. A step with bodies is evaluated with
the new bodies.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from jax.extend import core

from codegen.fusing.chains.expressing import Chain, Expressing
from codegen.fusing.chains.search import chains
from codegen.fusing.graph import BODIES, FACTOR, StepGraph
from codegen.fusing.loops import merged
from codegen.fusing.prepared import prepared
from codegen.fusing.running import bound, read, steps_evaluated
from codegen.tracing.naming import parameter_names
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
    """A function's steps, its chains, and the programs within its steps. `names` are those of its parameters; `search` makes programs
    as this one was made."""

    graph: StepGraph
    names: Sequence[str]
    chains: tuple[Chain, ...]
    bodies: tuple[Body, ...]
    search: Callable[[Any], Program]

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


def program_of(
    closed: Any, expressing: Expressing, sequences: bool = False, policies: tuple[Callable[..., Any], ...] = ()
) -> Program:
    """The program of a closed jaxpr. With `sequences`, sequences of products are chains, and a loop is part of another one that can do it
    too. `policies` are the policies of the checkpoints around it: a value that they save for a gradient is never computed within a chain."""
    flat = flatten(closed, remat=False, saves=lambda equation: any(_saves(p, equation) for p in policies))
    graph = StepGraph(prepared(merged(flat) if sequences else flat))
    bodies = []
    for place, step in enumerate(graph.steps):
        within = (*policies, *_policies(step))
        for param in BODIES.get(step.name, ()):
            found = step.params[param]
            for number, one in enumerate(found) if isinstance(found, tuple) else ((None, found),):
                inner = one if isinstance(one, core.ClosedJaxpr) else core.ClosedJaxpr(one, ())
                program = program_of(inner, expressing, sequences, within)
                if program.chains or program.bodies:
                    bodies.append(Body(place, param, number, step.params.get("length", 1), program))
    search = functools.partial(program_of, expressing=expressing, sequences=sequences, policies=policies)
    names = parameter_names(closed.jaxpr)
    return Program(graph, names, tuple(chains(graph, expressing, sequences)), tuple(bodies), search)


def _policies(step: Step) -> Iterator[Callable[..., Any]]:
    """The policy of a checkpoint. A policy that saves every result is left out, since it changes nothing."""
    policy, scalar = step.params.get("policy"), jax.typeof(0.0)
    if policy is not None and not _is_saved(policy(jax.lax.add_p, scalar, scalar)):
        yield policy


def _saves(policy: Callable[..., Any], equation: Any) -> bool:
    return _is_saved(policy(equation.primitive, *(v.aval for v in equation.invars), **equation.params))


def _is_saved(answer: Any) -> bool:
    """Whether a policy's answer is to save, or to move to the host, and not to compute again."""
    return answer if isinstance(answer, bool) else type(answer).__name__ != "RecomputeType"


Wanted = Callable[[Chain], Callable[..., tuple[Any, ...]] | None]


def evaluate(program: Program, arguments: Sequence[Any], wanted: Wanted) -> list[Any]:
    """The function's results. `wanted` gives the function to call instead of a chain's steps, or None."""
    graph = program.graph
    values: dict[Value, Any] = dict(zip(graph.flat.inputs, arguments, strict=True))
    replaced = {chain: call for chain in program.chains if (call := wanted(chain)) is not None}

    for item in _order(graph, tuple(replaced)):
        if isinstance(item, Chain):
            call = _where_differentiated(item, graph, replaced[item]) if item.reread else replaced[item]
            results = call(*(read(v, values) for v in item.inputs))
            values |= zip(item.outputs, results, strict=True)
        else:
            values |= zip(
                item.outputs, done(item, [read(a, values) for a in item.inputs], program, wanted), strict=True
            )
    found = ((a, read(a, values)) for a in graph.flat.outputs)
    return [jax.numpy.asarray(value) if isinstance(a, Number) else value for a, value in found]


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


def done(step: Step, arguments: Sequence[Any], program: Program, wanted: Wanted) -> Sequence[Any]:
    """The results of a step, with chains replaced within its bodies."""
    if step.name == FACTOR:
        return arguments
    bodies = [b for b in program.bodies if program.graph.steps[b.place] is step]
    bodies = [b for b in bodies if any(wanted(chain) for _, chain, _ in b.program.everywhere())]
    if bodies and step.name in WHOLE:
        return WHOLE[step.name](step, arguments, bodies[0].program, wanted)
    params = step.params
    for body in bodies:
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


def _on_shards(step: Step, arguments: Sequence[Any], program: Program, wanted: Wanted) -> Sequence[Any]:
    """The results of a `shard_map`, whose body is traced anew where its mesh is known."""
    params = step.params
    body = jax.shard_map(
        lambda *given: tuple(evaluate(program, given, wanted)), mesh=params["mesh"], in_specs=params["in_specs"],
        out_specs=params["out_specs"], axis_names=params["newly_manual_axes"], check_vma=params["check_vma"],
    )  # fmt: skip
    found: Sequence[Any] = body(*arguments)
    return found


def _with_derivative(step: Step, arguments: Sequence[Any], program: Program, wanted: Wanted) -> Sequence[Any]:
    """The results of a function that has a derivative of its own. In the forward and the backward that it has, chains are replaced
    when these are traced."""
    used = [i for i, v in enumerate(step.equation.outvars) if not isinstance(v, core.DropVar)]

    def plain(*given: Any) -> tuple[Any, ...]:
        found = bound(step.equation, given, step.params)
        return tuple(found[i] for i in used)

    def value(*given: Any) -> tuple[Any, ...]:
        found = evaluate(program, given, wanted)
        return tuple(found[i] for i in used)

    function: Any = jax.custom_vjp(value)
    forward = _replaced(lambda *given: jax.vjp(plain, *given), program, wanted)
    function.defvjp(forward, _replaced(lambda pull, d: pull(d), program, wanted))
    results = dict(zip(used, function(*arguments), strict=True))
    return [results.get(i) for i in range(len(step.outputs))]


def _replaced(function: Callable[..., Any], program: Program, wanted: Wanted) -> Callable[..., Any]:
    """A function whose chains are replaced when it is called."""

    def call(*arguments: Any) -> Any:
        own, arrays, _ = of_arrays(function, arguments)
        closed, shape = jax.make_jaxpr(own, return_shape=True)(*arrays)
        return jax.tree.unflatten(jax.tree.structure(shape), evaluate(program.search(closed), arrays, wanted))

    return call


# Steps that are done anew, instead of with other parameters
WHOLE = {"shard_map": _on_shards, "custom_vjp_call": _with_derivative}


def is_array(leaf: Any) -> bool:
    """Whether a leaf is an array of numbers; JAX's zeros for the gradient of an integer have none."""
    return isinstance(leaf, jax.Array | np.ndarray | np.generic) and leaf.dtype != jax.dtypes.float0


def of_arrays(
    function: Callable[..., Any], args: Any, kwargs: Mapping[str, Any] = MappingProxyType({}),
    is_array: Callable[[Any], bool] = is_array,
) -> tuple[Callable[..., Any], list[Any], list[int]]:  # fmt: skip
    """A function of the arrays among the leaves of its arguments; these arrays, and their places among the leaves."""
    leaves, tree = jax.tree.flatten((tuple(args), dict(kwargs)))
    places = [i for i, leaf in enumerate(leaves) if is_array(leaf)]
    others = [None if i in places else leaf for i, leaf in enumerate(leaves)]

    def own(*given: Any) -> Any:
        found = list(others)
        for place, value in zip(places, given, strict=True):
            found[place] = value
        args, kwargs = jax.tree.unflatten(tree, found)
        return function(*args, **kwargs)

    return own, [leaves[i] for i in places], places


def _rewritten(old: Any, program: Program, wanted: Wanted) -> Any:
    """A jaxpr with chains replaced, of the same form; None where it would capture arrays that its form has no place for."""
    closed = old if isinstance(old, core.ClosedJaxpr) else core.ClosedJaxpr(old, ())
    new = jax.make_jaxpr(lambda *given: evaluate(program, given, wanted))(*(v.aval for v in closed.jaxpr.invars))
    if isinstance(old, core.ClosedJaxpr):
        return new
    return None if new.consts else new.jaxpr


def _order(graph: StepGraph, replaced: Sequence[Chain]) -> list[Step | Chain]:
    """Chains, and the steps that are still needed, each after the steps and chains that it uses. Steps with effects
    keep their order."""
    maker: dict[Value, Step | Chain] = {v: s for s in graph.steps for v in s.outputs}
    for chain in replaced:
        maker |= dict.fromkeys(chain.outputs, chain)
    found: list[Step | Chain] = []
    finished: set[Step | Chain] = set()
    effects = [graph.steps[p] for p in graph.ordered]
    before = dict(zip(effects[1:], effects, strict=False))
    stack: list[tuple[Step | Chain, bool]] = [(step, False) for step in effects[-1:]]

    def push(atoms: Sequence[Atom]) -> None:
        for atom in reversed(atoms):
            if isinstance(atom, Value) and atom in maker and maker[atom] not in finished:
                stack.append((maker[atom], False))

    push(graph.flat.outputs)
    while stack:
        item, ready = stack.pop()
        if item in finished:
            continue
        if ready:
            finished.add(item)
            found.append(item)
            continue
        stack.append((item, True))
        push(item.inputs)
        if isinstance(item, Step) and item in before and before[item] not in finished:
            stack.append((before[item], False))
    return found
