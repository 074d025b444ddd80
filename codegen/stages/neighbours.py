"""Adds a stage that writes expensive values and reductions whose neighbours are read: one kernel would compute them
again for each neighbour. A stage also writes expensive values that several states of a scan share.

In the graph a neighbour of a value is the value's expression, evaluated at another position (`graph/shifting.py`). Here
such expressions are found again, and become `shift` nodes of the value: the graph is then cut, and an earlier stage
writes the value. Before this, factors that are the same at all positions along the axis are moved to the end of a
product, since a derivative multiplies each neighbour by its own weight.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from codegen.graph.nodes import Graph, Node, topological
from codegen.graph.ops import COSTLY, IN_STAGES, REDUCTIONS
from codegen.graph.shifting import evaluated_at
from codegen.spec.spec import Spec
from codegen.stages.rewriting import rewritten

MOST_NODES = 400  # of a chain that is searched
COST = 12  # simple operations that an expensive one takes
WORTH = 150  # simple operations for each element: they take longer than a float32 that is written and read again


@dataclass(frozen=True)
class Family:
    """A value, and the nodes that are the value some positions back along an axis."""

    value: Node
    axis: str
    there: Mapping[int, Node]

    @property
    def saved(self) -> int:
        """The simple operations that the other nodes take."""
        nodes = topological([self.value], lambda n: self.axis not in n.dims)
        return len(self.there) * sum(_operations(n) for n in nodes if self.axis in n.dims)


def written_once(spec: Spec) -> Spec | None:
    """The same op, in which expensive values are read from neighbours; None if it has none."""
    nodes = spec.read.nodes
    if "shift" not in spec.read.ops or len(nodes) > MOST_NODES:
        return None
    own, found = spec, None
    for axis in _steps(nodes):
        own = rewritten(own, functools.partial(_regrouped, axis), "neighbours")
    while (family := _best(own)) is not None:
        own = found = rewritten(own, functools.partial(_read, family), "neighbours")
    return found


def reduced_once(spec: Spec) -> Spec | None:
    """The same op, which reads its neighbours' reductions instead of reducing their elements again; None if it has no such reductions."""
    found = None
    while (family := next(_families(spec.read.graph.fork(), spec.read.nodes, _is_reduction), None)) is not None:
        spec = found = rewritten(spec, functools.partial(_read, family), "neighbours")
    return found


def shared_by_states(spec: Spec, written: Sequence[tuple[str, ...]]) -> list[Node]:
    """The expensive values that several states share, of states that kernels have `written` along some axes: each state computes them
    again."""
    found: dict[int, Node] = {}
    users: dict[int, set[frozenset[str]]] = {}
    for node in spec.read.nodes:
        for value in node.args:
            users.setdefault(id(value), set()).add(frozenset(node.dims))

    def cost(value: Node) -> float:
        """The simple operations of a value that others do not share; none for one that kernels cannot write before they scan."""
        inside = [n for n in topological([value], lambda n: id(n) in found) if id(n) not in found]
        return 0 if any(n.op in IN_STAGES for n in inside) else sum(_operations(n) for n in inside)

    for value in spec.read.nodes:
        spread = [{*axes} - {*value.dims} for axes in written if {*axes} in users.get(id(value), ())]
        states = max((math.prod(spec.extents.get(a, 1) for a in axes) for axes in spread), default=1)
        if value.kind == "float" and (states - 1) * cost(value) >= WORTH:
            found[id(value)] = value
    return list(found.values())


def _operations(node: Node) -> int:
    return COST if node.op in COSTLY else 1 if node.args else 0


def _is_reduction(node: Node) -> bool:
    return node.op in REDUCTIONS


def _best(spec: Spec) -> Family | None:
    most = max(len(n.dims) for n in spec.read.nodes)

    def is_large(node: Node) -> bool:
        return len(node.dims) == most

    families = [f for f in _families(spec.read.graph.fork(), spec.read.nodes, is_large) if f.saved >= WORTH]
    return max(families, key=lambda f: f.saved, default=None)


def _families(graph: Graph, nodes: tuple[Node, ...], wanted: Callable[[Node], bool]) -> Iterator[Family]:
    own = {id(n) for n in nodes}
    values = [n for n in nodes if n.kind == "float" and n.args and n.op != "shift" and wanted(n)]
    for axis, steps in _steps(nodes).items():
        made: dict[int, dict[int, Node]] = {by: {} for by in steps}
        for value in values:
            if _is_read_at_its_place(value, axis):
                moved = {by: evaluated_at(graph, value, axis, by, made[by]) for by in steps}
                there = {by: n for by, n in moved.items() if id(n) in own and n is not value}
                if there:
                    yield Family(value, axis, there)


def _steps(nodes: tuple[Node, ...]) -> dict[str, list[int]]:
    """The differences of the positions that are read along each axis, of reads along one axis."""
    places: dict[str, set[int]] = {}
    for node in nodes:
        if node.op == "shift" and isinstance(node.attr, tuple) and len(node.attr) == 1:
            ((axis, by),) = node.attr
            places.setdefault(axis, {0}).add(by)
    return {axis: sorted({a - b for a in found for b in found if a != b}) for axis, found in places.items()}


def _is_read_at_its_place(value: Node, axis: str) -> bool:
    """Whether a value always reads an input at its own position: then its neighbours are only used inside the array."""
    nodes = topological([value], lambda n: n.op == "where" or axis not in n.dims)
    return any(a.op == "input" and axis in a.dims for n in nodes if n.op != "shift" for a in n.args)


def _read(family: Family, graph: Graph, node: Node, args: tuple[Node, ...]) -> Node | None:
    """A value of the family as it is read from memory; None for other nodes."""
    del args
    value = family.value
    for by, there in family.there.items():
        if there is node:
            return graph.node("shift", (value,), ((family.axis, by),), kind=value.kind, dims=value.dims)
    return None


def _regrouped(axis: str, graph: Graph, node: Node, args: tuple[Node, ...]) -> Node | None:
    """A product whose factors that are the same at all positions along the axis come last; None for other nodes."""
    if node.op != "mul" or node.kind != "float":
        return None
    factors = [f for a in args for f in _factors(a)]
    apart = [[f for f in factors if (axis in f.dims) is along] for along in (True, False)]
    if not all(apart):
        return None

    product = functools.partial(graph.elementwise, "mul")
    return product(*(functools.reduce(product, some) for some in apart))


def _factors(value: Node) -> list[Node]:
    return [f for a in value.args for f in _factors(a)] if value.op == "mul" and value.kind == "float" else [value]
