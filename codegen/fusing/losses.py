"""A loss at the end of a function, computed to be differentiated: its gradient is written where the loss is, in one kernel.

Its op alone has a backward that reads the arrays again. Here the steps from a chain's arrays to a number that the function returns
are one part. Where the part is differentiated, JAX's derivative of it is fused instead, if one chain computes all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from codegen.fusing.chains.expressing import Chain, Expressing
from codegen.fusing.graph import REDUCING, StepGraph, elements, is_sharded
from codegen.fusing.prepared import once
from codegen.fusing.program import Program, evaluate, program_of
from codegen.fusing.running import read, steps_evaluated
from codegen.graph.nodes import DTYPES
from codegen.tracing.steps import Flat, Step, Value
from codegen.tracing.translate import ELEMENTWISE, LAYOUT

FEW = 8  # times smaller than an argument are a chain's results that are a loss of each row
Calling = Callable[[Chain], Callable[..., tuple[Any, ...]]]


@dataclass(frozen=True, eq=False)
class Loss:
    """A chain, and the steps after it (`tail`) that make a number of its results. `inputs` are the arrays of both."""

    chain: Chain
    tail: tuple[Step, ...]
    inputs: tuple[Value, ...]
    result: Value

    @property
    def whole(self) -> Chain:
        """The chain with its tail as one."""
        return replace(self.chain, inputs=self.inputs, outputs=(self.result,))


def losses(program: Program) -> Iterator[Loss]:
    """The losses among a function's results."""
    for result in program.graph.flat.outputs:
        if isinstance(result, Value) and result.shape == () and (found := _loss(program, result)) is not None:
            yield found


def call_of_loss(
    loss: Loss, graph: StepGraph, call_of: Calling, expressing: Expressing
) -> Callable[..., tuple[Any, ...]] | None:
    """A loss as a function of its arrays whose derivative is computed with it; None unless one chain computes that."""
    # A step that each of its users has a copy of is one again: its gradient is the sum of theirs, before it is rounded
    steps = once(Flat(loss.inputs, (*(graph.steps[p] for p in loss.chain.places), *loss.tail), (loss.result,)))
    places = tuple(i for i, v in enumerate(loss.inputs) if DTYPES[v.dtype].kind == "float")

    def part(*arrays: Any) -> Any:
        return read(steps.outputs[0], steps_evaluated(steps.steps, dict(zip(loss.inputs, arrays, strict=True))))

    shapes = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in loss.inputs]
    both = program_of(jax.make_jaxpr(jax.value_and_grad(part, places))(*shapes), expressing)
    if not _is_one_chain(both):
        return None

    def primal(*arrays: Any) -> Any:
        given = dict(zip(loss.inputs, arrays, strict=True))
        results = call_of(loss.chain)(*(given[v] for v in loss.chain.inputs))
        return steps_evaluated(loss.tail, given | dict(zip(loss.chain.outputs, results, strict=True)))[loss.result]

    def forward(*arrays: Any) -> tuple[Any, Sequence[Any]]:
        found, *gradients = evaluate(both, arrays, call_of)
        return found, gradients

    def backward(gradients: Sequence[Any], d: Any) -> tuple[Any, ...]:
        """`d` is 1 in most cases, and XLA then multiplies nothing."""
        made: list[Any] = [None] * len(loss.inputs)
        for place, gradient in zip(places, gradients, strict=True):
            made[place] = (gradient * d).astype(gradient.dtype)
        return tuple(made)

    value = jax.custom_vjp(primal)
    value.defvjp(forward, backward)
    return lambda *arrays: (value(*arrays),)


def _loss(program: Program, result: Value) -> Loss | None:
    """The chain whose results make this result, with numbers and small arrays such as labels; None where there is none."""
    graph = program.graph
    of_chain = {v: c for c in program.chains for v in c.outputs}
    tail: set[int] = set()
    chains: set[Chain] = set()
    others: dict[Value, None] = {}
    left = [result]
    while left:
        value = left.pop()
        maker = graph.maker.get(value)
        if value in of_chain:
            chains.add(of_chain[value])
        elif maker is not None and _is_tail(graph.steps[maker]):
            if maker not in tail:
                tail.add(maker)
                left += [v for v in graph.steps[maker].inputs if isinstance(v, Value)]
        else:
            others[value] = None
    if len(chains) != 1:
        return None
    (chain,) = chains
    users = {u for v in chain.outputs for u in graph.users.get(v, ())}
    most = max(v.bytes for v in chain.inputs)
    few = all(FEW * v.bytes <= most and v.dtype in DTYPES for v in (*chain.outputs, *others))
    if not few or not users <= tail or graph.results.intersection(chain.outputs) or not _is_plain(graph, chain):
        return None
    steps = tuple(graph.steps[p] for p in sorted(tail))
    return Loss(chain, steps, tuple(dict.fromkeys((*chain.inputs, *others))), result)


def _is_tail(step: Step) -> bool:
    return step.name in ELEMENTWISE | REDUCING | LAYOUT and not step.inner


def _is_plain(graph: StepGraph, chain: Chain) -> bool:
    """Whether a chain has no product, whose gradient is products too, and no types that say how arrays are sharded."""
    steps = [graph.steps[p] for p in chain.places]
    return all(s.equation is not None and s.name != "dot_general" and not is_sharded(s) for s in steps)


def _is_one_chain(program: Program) -> bool:
    """Whether one chain computes all gradients but those of numbers."""
    if len(program.chains) != 1:
        return False
    (chain,) = program.chains
    _, *gradients = program.graph.flat.outputs
    large = [v for v in gradients if isinstance(v, Value) and elements(v.shape) > 1]
    return bool(large) and all(program.graph.origin(v) in chain.outputs for v in large)
