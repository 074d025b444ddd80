"""Expensive values of which a row takes those of several neighbouring rows: a thread computes each once for all of its rows.

Where `f(x)` is expensive, `shift(f(x), axis=S, by=1) + f(x)` computes it twice for each element. A thread that has several rows
along `S` computes `f(x)` once for each row that one of them needs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from codegen.graph.nodes import Node, topological
from codegen.graph.ops import COSTLY, TAKES
from codegen.plan.access import Access

# What else than elements of arrays depends on a row's place, or is no value of single elements
OTHERS = {"index", "size", "_bits", "contract", *TAKES}


@dataclass(frozen=True)
class Nearby:
    """A value that is computed at several places along an axis. At each it is another node of the chain."""

    name: str
    value: Node  # one of these nodes
    uses: tuple[tuple[Node, int, str], ...]  # each of them, how many places back it is, and its name in the chain
    operands: tuple[tuple[Node, Access], ...]  # the leaves of `value` that the place moves, and how it is read there

    @property
    def places(self) -> dict[str, int]:
        """How many places back, by the chain's names."""
        return {name: back for _, back, name in self.uses}


class Places:
    """The places along an axis at which nodes are computed: how many places back, or None where all are the same."""

    def __init__(self, axis: str):
        self.axis = axis
        self.numbers: dict[Hashable, int] = {}
        self.known: dict[int, tuple[int | None, int, bool] | None] = {}

    def number(self, *key: Hashable) -> int:
        """A number for each value, whatever its place."""
        return self.numbers.setdefault(key, len(self.numbers))

    def visit(self, node: Node) -> None:
        """Where a node is computed, the number of its value, and whether that is expensive. None if it has elements of several places,
        or depends on the place itself."""
        self.known[id(node)] = None
        if node.op in OTHERS:
            return
        if node.op == "shift":
            assert isinstance(node.attr, tuple)
            if [axis for axis, _ in node.attr] == [self.axis]:
                self.known[id(node)] = node.attr[0][1], self.number("input", node.args[0].attr), False
            return
        if node.op == "input":
            self.known[id(node)] = 0 if self.axis in node.dims else None, self.number("input", node.attr), False
            return
        found = [self.known[id(a)] for a in node.args]
        if None in found:
            return
        own = [f for f in found if f is not None]
        moved = {place for place, *_ in own if place is not None}
        if len(moved) <= 1:
            divided = node.op == "div" and not node.args[1].dims  # by one number, as a product
            costly = any(c for *_, c in own) or (node.op in COSTLY and bool(moved) and not divided)
            key = (node.op, node.attr, node.kind, *(n for _, n, _ in own))
            self.known[id(node)] = next(iter(moved), None), self.number(*key), costly


def found_nearby(roots: Sequence[Node], axis: str) -> list[list[tuple[Node, int]]]:
    """The expensive values that the chain needs at several places along an axis, each as its nodes and their places. What such values alone
    need is not among them."""
    places, taken_by = Places(axis), defaultdict[int, list[Node]](list)
    alike: dict[int, list[tuple[Node, int]]] = defaultdict(list)
    for node in topological(roots):
        places.visit(node)
        for argument in node.args:
            taken_by[id(argument)].append(node)
        known = places.known[id(node)]
        if known is not None and known[0] is not None and known[2]:
            alike[known[1]].append((node, known[0]))
    several = {number: nodes for number, nodes in alike.items() if len({place for _, place in nodes}) > 1}
    inside = {id(node) for nodes in several.values() for node, _ in nodes}
    written = set(map(id, roots))

    def is_needed(node: Node) -> bool:
        return id(node) in written or any(id(taker) not in inside for taker in taken_by[id(node)])

    return [nodes for nodes in several.values() if any(is_needed(node) for node, _ in nodes)]
