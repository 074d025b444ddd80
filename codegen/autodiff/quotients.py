"""Cheaper forms of the values that a backward computes for each element. Several quotients with one divisor share its reciprocal, a
quotient by a root takes the reciprocal root, and a power is made from another power of the same base. In a product, the factors with
the same axes are multiplied first: those of a row once for all of its elements.

A result may differ from the quotient, power or product in its last bits. It may differ by more where a divisor's reciprocal or a base's power is
no normal number. So a value keeps its form where the last bit may matter: where it is compared, or rounded to a whole number, or
selects elements, and where another kernel has to compute the same bits.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from codegen.graph.contraction import made_of, users_of
from codegen.graph.nodes import Graph, Node, Statement, topological
from codegen.graph.ops import IN_STAGES, LOWERED_POWER
from codegen.graph.precision import STEPS

SUMMED = frozenset({"sum", "mean"})  # reductions whose results follow small changes of their arguments


def cheaper(
    graph: Graph, statements: list[Statement], known: Collection[int], pinned: Iterable[Node]
) -> list[Statement]:
    """Statements in cheaper forms. Nodes that are `known`, by identity, are read and stay; `pinned` are computed in other kernels too."""

    def is_known(node: Node) -> bool:
        return id(node) in known

    nodes = list(topological((s.value for s in statements), is_known))
    found = _Forms(graph, nodes, fixed(nodes, known, pinned))
    for node in topological((s.value for s in statements), is_known, found.with_larger):
        args = node.args if is_known(node) else tuple(found.done[id(a)] for a in node.args)
        found.done[id(node)] = found.of(node, args)
    return _grouped(graph, [replace(s, value=found.done[id(s.value)]) for s in statements], known, pinned)


def _grouped(
    graph: Graph, statements: list[Statement], known: Collection[int], pinned: Iterable[Node]
) -> list[Statement]:
    """The statements, with factors grouped by their axes in each product that is cheaper so."""
    nodes = list(topological((s.value for s in statements), lambda n: id(n) in known))
    found = _Products(graph, nodes, fixed(nodes, known, pinned))
    done: dict[int, Node] = {}
    for node in nodes:
        args = node.args if id(node) in known else tuple(done[id(a)] for a in node.args)
        if id(node) in found.factors:
            done[id(node)] = found.product([done[id(f)] for f in found.factors[id(node)]])
        else:
            done[id(node)] = graph.rebuilt(node, args)
    return [replace(s, value=done[id(s.value)]) for s in statements]


def fixed(nodes: Sequence[Node], known: Collection[int], pinned: Iterable[Node]) -> set[int]:
    """The identities of the values that keep their forms."""
    kept = {id(n) for n in made_of(*pinned)} | set(known)
    users = users_of(nodes)
    for node in reversed(nodes):
        for user in users[id(node)]:
            steps = user.kind != "float" or user.op in STEPS or (user.op in IN_STAGES and user.op not in SUMMED)
            if steps or (id(user) in kept and id(user) not in known):
                kept.add(id(node))
    return kept


@dataclass
class _Forms:
    """The cheaper forms of nodes, of which some keep theirs."""

    graph: Graph
    nodes: Sequence[Node]
    kept: set[int]
    done: dict[int, Node] = field(default_factory=dict)

    def __post_init__(self) -> None:
        inner = self.graph.axes[-1:]
        self.users = users_of(self.nodes)
        self.powers = {(id(n.args[0]), id(n.args[1])): n for n in self.nodes if n.op == "pow"}
        own = [n for n in self.nodes if n.op in ("div", "reciprocal") and {*inner} <= {*n.args[-1].dims}]
        by: dict[int, list[Node]] = {}
        for node in own:
            by.setdefault(id(node.args[-1]), []).append(node)
        self.shared: set[int] = set()  # quotients that become products
        for found in by.values():
            free = [n for n in found if id(n) not in self.kept]
            divisor = found[0].args[-1]
            alone = divisor.op == "sqrt" and len(free) == len(found) == len(self.users[id(divisor)])
            if alone or len(free) > 1:
                self.shared |= {id(n) for n in free}

    def with_larger(self, node: Node) -> tuple[Node, ...]:
        """The arguments of a node, and the power that it is made from."""
        larger = self.next_power(node) if node.op == "pow" else None
        return node.args if larger is None else (*node.args, larger)

    def of(self, node: Node, args: tuple[Node, ...]) -> Node:
        """The form of a node with these arguments."""
        if id(node) in self.shared:
            inverse = self.inverse(node.args[-1], args[-1])
            return inverse if node.op == "reciprocal" else self.graph.elementwise("mul", args[0], inverse)
        if node.op == "pow" and id(node) not in self.kept and (larger := self.next_power(node)) is not None:
            return self.graph.elementwise(LOWERED_POWER, *args, self.done[id(larger)])
        return self.graph.rebuilt(node, args)

    def inverse(self, divisor: Node, made: Node) -> Node:
        roots = divisor.op == "sqrt" and all(id(n) in self.shared for n in self.users[id(divisor)])
        return self.graph.elementwise("rsqrt", made.args[0]) if roots else self.graph.elementwise("reciprocal", made)

    def next_power(self, power: Node) -> Node | None:
        """The power of the same base with an exponent that is larger by 1, if it is computed too."""
        base, exponent = power.args
        if exponent.is_const:
            assert isinstance(exponent.attr, int | float)
            larger = float(exponent.attr) + 1
            if not larger > exponent.attr:  # so large that it is rounded to itself, or no number
                return None
            wanted: Node = self.graph.const(larger)
        elif exponent.op == "sub" and exponent.args[1].is_const and exponent.args[1].attr == 1:
            wanted = exponent.args[0]
        else:
            return None
        return self.powers.get((id(base), id(wanted)))


class _Products:
    """Finds the products to regroup. Nodes that are `kept` stay as they are."""

    def __init__(self, graph: Graph, nodes: Sequence[Node], kept: set[int]):
        self.graph, self.kept, self.users = graph, kept, users_of(nodes)
        # The factors of products that are cheaper so, or that then equal others. Products are known by their identity
        self.factors: dict[int, list[Node]] = {}
        place = {id(n): i for i, n in enumerate(nodes)}
        alike: dict[tuple[int, ...], list[Node]] = {}
        for node in nodes:
            if self.is_free(node) and not self.is_opened(node):
                alike.setdefault(tuple(sorted(place[id(f)] for f in self.factors_of(node))), []).append(node)
        for places, same in alike.items():
            factors = [nodes[i] for i in places]
            if sum(f.is_const for f in factors) > 1:  # the product of constants may be out of range
                continue
            cost = self.cost(self.product(factors), factors)
            for node in same:
                own = self.cost(node, factors)
                if cost < own or (cost == own and len(same) > 1):
                    self.factors[id(node)] = factors

    def is_free(self, node: Node) -> bool:
        return node.op == "mul" and node.kind == "float" and id(node) not in self.kept

    def is_opened(self, node: Node) -> bool:
        """Whether a product is a factor of one other product and nothing else."""
        users = self.users[id(node)]
        return len(users) == 1 and self.is_free(users[0])

    def factors_of(self, product: Node) -> list[Node]:
        """The factors of a product, of which none is a product that nothing else needs."""
        found, stack = [], [*product.args]
        while stack:
            node = stack.pop()
            if self.is_free(node) and self.is_opened(node):
                stack += node.args
            else:
                found.append(node)
        return found

    def cost(self, product: Node, factors: Sequence[Node]) -> int:
        """The multiplications for each element."""
        own = {id(f) for f in factors}
        nodes = [n for n in topological([product], lambda n: id(n) in own) if id(n) not in own]
        return sum({*self.graph.axes[-1:]} <= {*n.dims} for n in nodes)

    def product(self, factors: Sequence[Node]) -> Node:
        """The product of the factors with the fewest axes, then of those with more. Factors with all axes are multiplied one by one,
        since their own product may be out of range."""
        axes = self.graph.order(d for f in factors for d in f.dims)
        by_axes: dict[tuple[str, ...], list[Node]] = {}
        for factor in factors:
            by_axes.setdefault(factor.dims, []).append(factor)
        order = sorted(by_axes, key=lambda dims: (len(dims), [axes.index(d) for d in dims]))
        parts = [self.chained(by_axes[dims]) for dims in order if dims != axes]
        return self.chained([*parts, *by_axes.get(axes, ())])

    def chained(self, factors: Sequence[Node]) -> Node:
        return functools.reduce(functools.partial(self.graph.elementwise, "mul"), factors)
