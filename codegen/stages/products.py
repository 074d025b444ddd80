"""Cuts an op with matrix products that no single kernel computes: products of computed values, or several in sequence.

The factors of a product must be in memory before the product is computed. So the graph is cut at each computed factor, which an
earlier stage writes in the product's type. The values computed from a product are its stage's epilogue. A value computed from a
product that a later stage needs too is also written, so no product is computed twice. Where no kernel computes an epilogue, the
product is a stage of its own, and the remaining graph is cut at its reductions (`cut.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence

from codegen.graph.nodes import Node, as_multiplied, nodes_of, topological
from codegen.graph.ops import IN_STAGES
from codegen.plan.attention import AttentionPlan
from codegen.plan.gemms.tiles import Tile
from codegen.plan.op import Gemm, Op, Staged
from codegen.spec.spec import Spec
from codegen.stages.cut import MOST_NODES, MOST_REDUCTIONS, Cutting, Item, Kernel, Stages

Cut = Callable[[Spec], Op]  # a spec without products to its op, of one kernel or of several
MOST_PRODUCTS = 32


def cut_around(
    spec: Spec, kernel: Kernel, rest: Cut, before: Sequence[Node] = (), given: Container[int] = ()
) -> Stages | None:
    """The stages of an op with products. `rest` makes the op of a part without products. A stage writes the values
    `before` for the stages that use them. Factors that are `given`, by identity, a product's kernel computes itself.
    None if the op is too large to search for parts. Raises `SpecError` if some part has no kernel."""
    nodes = nodes_of(spec.read.statements)
    if len(nodes) > MOST_NODES or sum(n.op in IN_STAGES for n in nodes) > MOST_REDUCTIONS:
        return None
    if sum(n.op == "contract" for n in nodes) > MOST_PRODUCTS:
        return None
    shifted = {id(n.args[0]): n.args[0] for n in nodes if n.op == "shift" and n.args[0].op != "input"}
    made = _Around(spec, kernel, rest, [*before, *(n for n in shifted.values() if n not in before)], given)
    return Stages(made.stages(), made.held())


def factors_of(product: Node) -> list[Node]:
    """The computed factors of a product."""
    return [f for f in map(as_multiplied, product.args) if f.op != "input"]


def products_of(values: Iterable[Node], known: Callable[[Node], bool] | None = None) -> dict[int, Node]:
    """The products on which values depend, by identity; but not those behind another product or a known value."""

    def leaf(node: Node) -> bool:
        return node.op == "contract" or (known is not None and known(node))

    return {id(n): n for n in topological(values, leaf) if n.op == "contract" and not (known and known(n))}


def weights_of(products: Sequence[Node]) -> list[Node]:
    """The computed factors that are made of another product, as attention's weights are."""
    return [f for p in products for f in factors_of(p) if products_of([f])]


def of_products(nodes: Iterable[Node], known: Callable[[Node], bool]) -> list[Node]:
    """The nodes that are computed from a product which is not known. `nodes` has arguments before their users."""
    found: dict[int, Node] = {}
    for node in nodes:
        if not known(node) and (node.op == "contract" or any(id(a) in found for a in node.args)):
            found[id(node)] = node
    return list(found.values())


def shared(values: Iterable[Node], made: Iterable[Node], known: Callable[[Node], bool]) -> list[Node]:
    """The fewest of the `made` values that suffice to compute `values` without a product."""
    own = {id(n) for n in made}
    hits = [n for n in topological(values, lambda n: id(n) in own or known(n)) if id(n) in own]
    for node in reversed(hits):
        others = {id(n) for n in hits if n is not node}
        inside = [*topological([node], lambda n: (id(n) in others or known(n)) and n is not node)]
        again = [n for n in inside if id(n) not in others and not known(n)]
        if not any(n.op == "contract" or n.op in IN_STAGES for n in again):
            hits = [n for n in hits if n is not node]
    return hits


class _Around(Cutting):
    """The search for stages around products: each product is in the stage of the values that are computed from it, where one kernel
    computes both. A kernel computes factors of its `own`; other stages write the rest of them."""

    def __init__(self, spec: Spec, kernel: Kernel, rest: Cut, before: Sequence[Node], given: Container[int]):
        super().__init__(spec, self.one_or_more)
        self.one, self.rest = kernel, rest
        nodes = nodes_of(self.statements)
        self.products = [n for n in nodes if n.op == "contract"]
        self.own = given
        self.factors = list({id(f): f for p in self.products for f in self.factors_of(p)}.values())
        self.reductions = []
        self.before = {id(n): n for n in before}
        for node in (*before, *self.factors):
            self.hold(node)

    def factors_of(self, product: Node) -> list[Node]:
        """The factors that a stage before a product writes."""
        return [f for f in factors_of(product) if id(f) not in self.own]

    def is_known_or_own(self, node: Node) -> bool:
        return self.is_known(node) or id(node) in self.own

    def hold(self, node: Node) -> None:
        """Makes a node one that a stage may write."""
        if id(node) not in self.results:
            self.results[id(node)] = self.result(node)
        if not any(n is node for n in self.reductions):
            self.reductions.append(node)

    def one_or_more(self, spec: Spec) -> Op:
        """The op of a stage's spec: one kernel, or without products as many as it needs."""
        if "contract" in spec.read.ops:
            return self.one(spec)
        return self.rest(spec)

    def values(self, item: Item) -> list[Node]:
        return [item] if isinstance(item, Node) else [s.value for s in self.statements if s.name == item.name]

    def products_in(self, values: Sequence[Node]) -> dict[int, Node]:
        """The products on which values depend, and those behind factors that a kernel computes itself."""
        found = products_of(values, self.is_known)
        inside = [f for p in found.values() for f in factors_of(p) if id(f) in self.own and not self.is_known(f)]
        return found | self.products_in(inside) if inside else found

    def unknown_products(self, item: Item) -> frozenset[int]:
        return frozenset(self.products_in(self.values(item)))

    def marked(self, items: Sequence[Item], again: Mapping[int, frozenset[str]]) -> dict[int, tuple[str, ...]]:
        """None in a kernel that computes attention's weights: no other kernel computes scores."""
        found = self.products_in([v for item in items for v in self.values(item)])
        weighing = any(
            id(f) in self.own and not self.is_known(f) and products_of([f])
            for p in found.values()
            for f in factors_of(p)
        )
        return {} if weighing else super().marked(items, again)

    def is_ready(self, item: Item) -> bool:
        """Whether all factors of an item's products are known, and what a stage before it writes."""
        values = self.values(item)
        needed = self.products_in(values).values()
        inside = topological(values, self.is_known) if self.before else ()
        waits = any(id(n) in self.before and n not in values and not self.is_known(n) for n in inside)
        return not waits and all(self.is_known(f) for p in needed for f in self.factors_of(p))

    def stages(self) -> tuple[Op, ...]:
        left: list[Item] = [*self.before.values(), *self.factors, *self.spec.outputs]
        while left:
            ready = [item for item in left if self.is_ready(item)]
            for group in self.stage_groups(ready):
                group = [item for item in group if item in left and not self.is_made(item)]
                if group and all(map(self.is_ready, group)):
                    group = self.with_followers(group, left)
                    left = [item for item in left if item not in group]
                    self.write(group, left)
            left = [item for item in left if not self.is_made(item)]
        return tuple(self.made)

    def with_followers(self, group: list[Item], left: Sequence[Item]) -> list[Item]:
        """A group, with the items that wait only for it and that its kernel can compute too: a kernel then reads rows
        once for their maximum and for the values that are divided by it. Neither the group nor these items have a
        product."""
        before, found = dict(self.known), list(group)
        if any(map(self.unknown_products, group)):
            return found
        for item in left:
            if item in group or self.is_ready(item) or self.unknown_products(item):
                continue
            self.know(group)
            follows = self.is_ready(item)
            self.known = dict(before)
            if follows and self.attempt([*found, item]) and not isinstance(self.made_of([*found, item]).plan, Staged):
                found.append(item)
        return found

    def is_made(self, item: Item) -> bool:
        """Whether a stage writes an item: some outputs hold a factor."""
        if isinstance(item, Node):
            return self.is_known(item)
        return any(item.name == a.name for op in self.made for a in op.spec.outputs)

    def stage_groups(self, ready: Sequence[Item]) -> list[list[Item]]:
        """The ready items in as few kernels as possible. Items of the same products share a kernel where there is one. An item of
        fewer of these products, or of none, joins a kernel that computes it in its tiles too."""
        groups: list[list[Item]] = []
        for item in sorted(ready, key=lambda i: not self.unknown_products(i)):
            own = self.unknown_products(item)
            group = next((g for g in groups if self.joins(item, own, g)), None)
            if group is None:
                groups.append([item])
            else:
                group.append(item)
        return groups

    def joins(self, item: Item, own: frozenset[int], group: list[Item]) -> bool:
        theirs = frozenset[int]().union(*map(self.unknown_products, group))
        if not (own <= theirs or theirs <= own):
            return False
        if not self.attempt([*group, item]):
            return own == theirs and self.joins_after(own, group, item)
        op = self.made_of([*group, item])
        if not own and not theirs:
            return not isinstance(op.plan, Staged)
        return own == theirs or whole(op)

    def joins_after(self, own: frozenset[int], group: list[Item], item: Item) -> bool:
        """Whether a kernel computes a group and an item after their products, with which none computes them: selections."""
        products, before = [n for n in self.products if id(n) in own], dict(self.known)
        if not products or self.attempt([item]) or self.attempt(group):
            return False
        for node in products:
            self.hold(node)
        self.know(products)
        items = [*group, item]
        found = self.attempt(items) and not isinstance(self.made_of(items).plan, Staged)
        self.known = before
        return found

    def write(self, group: list[Item], left: Sequence[Item]) -> None:
        """Write a stage for a group. It also computes values of the group's products that the items `left` need."""
        values = [v for item in group for v in self.values(item)]
        inner = of_products(topological(values, self.is_known), self.is_known)
        given = {id(v) for v in values if id(v) in self.results}
        later = [v for item in left for v in self.values(item)]
        # What is needed for weights alone, their own kernel computes again: scores are not written
        made = [n for n in inner if id(n) not in self.own]
        more = [n for n in shared(later, made, self.is_known_or_own) if id(n) not in given]
        for node in more:
            self.hold(node)
        items, products = [*group, *more], [n for n in inner if n.op == "contract"]
        if products and not self.attempt(items):
            self.alone(products, items)
        else:
            self.alone(self.before_tiles(products, items), items)

    def before_tiles(self, products: Sequence[Node], items: list[Item]) -> Sequence[Node]:
        """The products that become earlier stages, where no kernel multiplies all products of a group together: all but
        one, so that one kernel computes the last product and the group's values. Empty if no kernel does."""
        if len(products) < 2 or whole(self.made_of(items)):
            return ()
        for last in reversed(products):
            others, before = [p for p in products if p is not last], dict(self.known)
            for node in others:
                self.hold(node)
            self.know(others)
            rest = self.unwritten(items)
            found = self.attempt(rest) and in_tiles(self.made_of(rest))
            self.known = before
            if found:
                return others
        return ()

    def alone(self, products: Sequence[Node], items: list[Item]) -> None:
        """Some products of a group, each a stage, and then the group."""
        for node in products:
            self.hold(node)
            self.require([node])
            self.add([[node]])
        rest = self.unwritten(items)
        self.require(rest)
        self.add([rest])

    def unwritten(self, items: Iterable[Item]) -> list[Item]:
        return [item for item in items if not (isinstance(item, Node) and self.is_known(item))]


def whole(op: Op) -> bool:
    """Whether one kernel computes all of an op."""
    return in_tiles(op) or isinstance(op.plan, AttentionPlan)


def in_tiles(op: Op) -> bool:
    return isinstance(op.plan, Gemm) and isinstance(op.plan.tile, Tile)
