"""The part of a group of steps that an op should compute. XLA computes the other steps within its own kernels."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace

from codegen.fusing.cost import Cost, cost, unwritten, written
from codegen.fusing.graph import StepGraph
from codegen.tracing.steps import Value


@dataclass(frozen=True)
class Part:
    """The steps of a group that an op computes (`places`), the results that it writes, and what it costs."""

    group: frozenset[int]
    places: frozenset[int]
    results: tuple[Value, ...]
    cost: Cost


def worthwhile(graph: StepGraph, groups: Mapping[frozenset[int], float]) -> list[Part]:
    """The parts of groups of steps that save more than a share of their traffic as an op, once its arrays are in memory. XLA computes
    some arrays in the kernel that uses them; an op needs them written first, unless they are another chain's results."""
    left = list(groups)
    while True:
        chains = {place for group in left for place in group}
        parts = {group: part_of(graph, group, chains) for group in left}
        found = [group for group in left if parts[group].cost.saved > groups[group] * parts[group].cost.now]
        if len(found) == len(left):
            return [parts[group] for group in left]
        left = found


def part_of(graph: StepGraph, group: frozenset[int], chains: Set[int]) -> Part:
    """The part of a group of steps that its op computes. `chains` are the steps of all groups."""
    results = written(graph, group, chains - group)
    places = graph.needed(group, results)
    own = cost(graph, places, results)
    return Part(group, places, tuple(results), replace(own, fused=own.fused + unwritten(graph, places, chains)))
