"""Which values a kernel holds from one sweep over a row to the next: those that are expensive, and that a later sweep needs again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from codegen.graph.emit import PAIR
from codegen.graph.nodes import Leaf, Node, most_alive, topological
from codegen.graph.online import rescaled
from codegen.graph.ops import COSTLY
from codegen.plan.rows.access import Demand, Statistic


def roots_of_sweeps(rows: Sequence[Statistic], written: Sequence[Node], joins: bool) -> list[list[Node]]:
    """The values that each sweep computes: the operands of each stage's statistics, and what is `written`, by the last of them if it
    `joins` them, else by one more."""
    sweeps = [[s.operand for s in rows if s.stage == i] for i in range(rows[-1].stage + 1 if rows else 1)]
    last = sweeps.pop() if joins else []
    return [*sweeps, [*last, *written]]


def demands(roots: Sequence[Sequence[Node]], along: set[str], rows: set[str], each: bool) -> tuple[Demand, ...]:
    """The needs of each of the sweeps with these roots. `rows`: the axes of a row's position. Cheap values that all rows share are computed
    again."""
    sweeps, found = Sweeps(roots, along, each), []
    held = sweeps.held()
    for number, values in enumerate(sweeps.roots):
        kept = [n for n in sweeps.kept(number) if not rows or rows & set(n.dims) or id(n) in sweeps.costly]
        inputs = tuple(n.attr for n in kept if n.op == "input" and isinstance(n.attr, Leaf))
        alive, expensive = most_alive(values, along, within=True), sum(id(n) in held for n in kept)
        own = [n for n in sweeps.computed(number) if not rows or rows & set(n.dims)]
        shared = {id(a) for n in own for a in n.args if not sweeps.of_row(a)} - {id(n) for n in own}
        found.append(Demand(alive, len(kept) - len(inputs), expensive, len(shared), inputs))
    return tuple(found)


def held_values(
    roots: Sequence[Sequence[Node]], along: set[str], nodes: Sequence[Node], each: bool, ordered: bool = False
) -> Iterator[tuple[Node, int]]:
    """The values that sweeps with these roots hold, in the order of `nodes`, and the first sweep that computes each. `each`: all expensive
    ones that a sweep takes from those before it; else those of them that no other one is computed from. `ordered`: elements are put in
    order later, so that equal ones have equal bits. Exponentials that follow a thread's own maximum until the row's is known have other
    bits in another thread, so they are not held."""
    sweeps = Sweeps(roots, along, each)
    last = sweeps.held()
    last -= {id(n.args[0]) for n in nodes if ordered and rescaled(n) is not None}
    return ((node, sweeps.first(node)) for node in nodes if id(node) in last and node.kind == "float")


def is_costly(node: Node, along: set[str]) -> bool:
    """Whether an expensive operation is computed of each element along these axes. A division is by its reciprocal, if that is one of
    each element, too."""
    dims = node.args[1].dims if node.op == "div" else node.dims
    return node.op in COSTLY and bool(along & set(dims))


class Sweeps:
    """The roots of the values that each sweep computes, along the axes of a row's columns. `each`: whether all expensive values are held
    that a sweep needs of those before it."""

    def __init__(self, roots: Sequence[Sequence[Node]], along: set[str], each: bool):
        self.along, self.each = along, each
        self.roots = [[v for v in values if not self.of_row(v)] for values in roots]
        self.passes: dict[int, set[int]] = {}  # the sweeps that compute a node
        self.costly: set[int] = set()
        self.floats: set[int] = set()
        pairs: dict[int, set[int]] = {}  # sines and cosines of one argument, which are computed together
        for number in range(len(self.roots)):
            for node in self.computed(number):
                self.passes.setdefault(id(node), set()).add(number)
                self.floats |= {id(node)} if node.kind == "float" else set()
                # What needs only the expensive values of earlier sweeps is computed again from these, which are held
                behind = any(id(a) in self.costly and self.first(a) == self.first(node) for a in node.args)
                if is_costly(node, along) or (behind and not self.of_row(node)):
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

    def kept(self, number: int) -> Iterable[Node]:
        """The values that sweeps after this one take from it and those before it."""
        before = frozenset(i for i, found in self.passes.items() if min(found) <= number)
        later = (n for i in range(number + 1, len(self.roots)) for n in self.computed(i, before))
        return {id(n): n for n in later if id(n) in before and not self.of_row(n)}.values()

    def held(self) -> set[int]:
        """The last expensive values that each sweep needs of those before it."""
        found: set[int] = set()
        for number in range(len(self.roots)):
            before = frozenset(i for i in self.costly & self.floats if min(self.passes[i]) < number)
            needed = [n for n in self.computed(number, before) if id(n) in before]
            behind = () if self.each else topological(a for n in needed for a in n.args)
            found |= {id(n) for n in needed} - {id(n) for n in behind}
        return found

    def first(self, node: Node) -> int:
        """The first sweep that computes a node."""
        return min(self.passes[id(node)])
