"""The chains of a function that save memory traffic."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from codegen.fusing.chains.expressing import Chain, Expressing, has_backward, is_sequence, is_sum
from codegen.fusing.chains.groups import Groups
from codegen.fusing.chains.parts import Part, worthwhile
from codegen.fusing.cost import Cost, cost
from codegen.fusing.graph import StepGraph
from codegen.plan.attention import Attention
from codegen.tracing.steps import Value

# A chain that saves a smaller share of the bytes that XLA's kernels move is left to XLA. Attention is not: its kernel also skips what
# the mask hides.
LEAST = 0.03
LARGE_HEADS = 64  # elements of a head, beyond which the op of attention is faster than cuDNN


def chains(graph: StepGraph, expressing: Expressing, sequences: bool = False) -> list[Chain]:
    """The chains of a function that save memory traffic, in the order of their first steps. With `sequences`, a chain may end in
    another product: its kernels move as many bytes, and its gradient fewer. cuDNN's attention is a chain then, too."""
    calls = range(len(graph.steps)) if sequences else ()
    found = [attention(graph, expressing, place) for place in calls]
    grown = Groups(graph, expressing)
    grown.join_steps()
    grown.join_appended()
    grown.join_attention()
    grown.join_reorderings()
    grown.join_products()
    if sequences:
        grown.join_next_products()
    specs = {group: expressing.made(graph, group) for group in grown.groups()}
    least = {
        group: 0 if isinstance(made.planned.plan, Attention) else LEAST
        for group, made in specs.items() if made is not None and not is_sum(made)
    }  # fmt: skip
    found += [_chain(graph, expressing, part) for part in worthwhile(graph, least)]
    return sorted((chain for chain in found if chain is not None), key=lambda chain: chain.places)


def _chain(graph: StepGraph, expressing: Expressing, part: Part) -> Chain | None:
    """The chain of a part, or None if an op would save too little. If no kernel computes the part, the whole group is tried: attention
    needs the transpose of its result, for example."""
    found = expressing.expressed(graph, part.places, part.results)
    made = found.made
    if made is None and part.places != part.group:
        results = tuple(graph.results_of(part.group))
        return _chain(graph, expressing, Part(part.group, part.group, results, cost(graph, part.group)))
    if made is None:
        return None
    free, _ = graph.sources(part.places)
    places = tuple(sorted({*part.places, *free}))
    more = between(graph, part.places) if is_sequence(made) else found.reread
    own = replace(part.cost, fused=part.cost.fused + more)
    if found.reread and own.saved <= LEAST * own.now:
        return None
    return Chain(places, found.inputs, found.outputs, made, own, found.key, found.reread)


def attention(graph: StepGraph, expressing: Expressing, place: int) -> Chain | None:
    """The chain of a step that is a call of cuDNN's causal attention, where the op's kernels take less time. They move as many bytes.
    Gradients of heads of 64 elements take an H200 6 % more."""
    if not graph.steps[place].is_attention or graph.steps[place].inputs[0].shape[-1] <= LARGE_HEADS:
        return None
    found = expressing.expressed(graph, [place])
    made = found.made
    if made is None or not isinstance(made.planned.plan, Attention):
        return None
    if not has_backward(made):  # cuDNN's gradients are kernels
        return None
    moved = sum(v.bytes for v in (*found.inputs, *found.outputs))
    return Chain((place,), found.inputs, found.outputs, made, Cost(moved, 1, moved), found.key)


def between(graph: StepGraph, places: Set[int]) -> int:
    """The bytes that kernels of a sequence of products write and read between them."""
    taken = {v for p in places if graph.steps[p].name == "dot_general" for v in graph.steps[p].inputs}
    return sum(2 * v.bytes for v in taken if isinstance(v, Value) and graph.maker.get(v) in places)
