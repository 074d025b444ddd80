"""Which values a kernel holds from one sweep over a row to the next: those that are expensive, and that a later sweep needs again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from codegen.graph.emit import PAIR
from codegen.graph.nodes import Node, topological
from codegen.graph.online import rescaled
from codegen.graph.ops import COSTLY


def held_values(
    roots: Sequence[Sequence[Node]], along: set[str], nodes: Sequence[Node], each: bool, ordered: bool = False
) -> Iterator[tuple[Node, int]]:
    """The values that sweeps with these roots hold, in the order of `nodes`, and the first sweep that computes each. `each`: every sweep
    holds the last ones of those before it; else the last one of each chain is held. `ordered`: elements are put in order later, so that
    equal ones have equal bits. Exponentials that follow a thread's own maximum until the row's is known have other bits in another
    thread, so they are not held."""
    sweeps = Sweeps(roots, along, each)
    last = (sweeps.last_of_sweeps if each else sweeps.last_of_chains)(nodes)
    last -= {id(n.args[0]) for n in nodes if ordered and rescaled(n) is not None}
    return ((node, sweeps.first(node)) for node in nodes if id(node) in last and node.kind == "float")


def is_costly(node: Node, along: set[str]) -> bool:
    """Whether an expensive operation is computed of each element along these axes. A division is by its reciprocal, if that is one of
    each element, too."""
    dims = node.args[1].dims if node.op == "div" else node.dims
    return node.op in COSTLY and bool(along & set(dims))


class Sweeps:
    """The roots of the values that each sweep computes, along the axes of a row's columns. `each`: each sweep holds
    values of those before it."""

    def __init__(self, roots: Sequence[Sequence[Node]], along: set[str], each: bool):
        self.along = along
        self.roots = [[v for v in values if not self.of_row(v)] for values in roots]
        self.passes: dict[int, set[int]] = {}  # the sweeps that compute a node
        self.costly: set[int] = set()
        pairs: dict[int, set[int]] = {}  # sines and cosines of one argument, which are computed together
        for number in range(len(self.roots)):
            for node in self.computed(number):
                self.passes.setdefault(id(node), set()).add(number)
                if is_costly(node, along) or (any(id(a) in self.costly for a in node.args) and not self.of_row(node)):
                    self.costly.add(id(node))
                if node.op in PAIR:
                    pairs.setdefault(id(node.args[0]), set()).add(id(node))
        for pair in pairs.values() if each else ():  # the first sweep that needs one of them computes both
            number = min(min(self.passes[i]) for i in pair)
            for i in pair:
                self.passes[i].add(number)

    def of_row(self, node: Node) -> bool:
        return not self.along & set(node.dims)

    def computed(self, number: int, known: frozenset[int] = frozenset()) -> Iterator[Node]:
        """The nodes that a sweep reaches, where some are known."""
        return topological(self.roots[number], lambda node: id(node) in known or self.of_row(node))

    def last_of_chains(self, nodes: Sequence[Node]) -> set[int]:
        """The last expensive value of each chain of them that more than one sweep needs."""
        shared = {i for i, found in self.passes.items() if len(found) > 1}
        return shared & self.costly - {id(a) for n in nodes if id(n) in shared and n.kind == "float" for a in n.args}

    def last_of_sweeps(self, nodes: Sequence[Node]) -> set[int]:
        """The last expensive values that each sweep needs of those before it."""
        floats = {id(n) for n in nodes if n.kind == "float"}
        found: set[int] = set()
        for number in range(len(self.roots)):
            before = {i for i in self.costly & floats if min(self.passes[i]) < number}
            found |= before & {id(n) for n in self.computed(number, frozenset(before))}
        return found

    def first(self, node: Node) -> int:
        """The first sweep that computes a node."""
        return min(self.passes[id(node)])
