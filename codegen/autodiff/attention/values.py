"""The gradients of attention as values that kernels compute.

`reverse.py` derives the gradients, as for every op. Attention's kernels cannot compute some parts of that graph:

    sum(dp * p, axis=S)     the weights times their gradients: equal to sum(do * o) of a row, whose o the forward has
    values of rows          such as 1 / total: they are computed once, before
    sums over S and Q       as in the gradient of a slope for each head: a kernel sums along rows, or, without S, along
                            columns, and another one the rest. A value with both Q and S, such as a bias, has a kernel
                            of its own
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from codegen.autodiff.attention.exponentials import factored, term_of, together, unguarded
from codegen.autodiff.reverse import Reverse
from codegen.errors import UserError
from codegen.graph.names import fresh
from codegen.graph.nodes import Leaf, Node, as_multiplied, lost_axes, nodes_of, topological
from codegen.graph.ops import REDUCTIONS
from codegen.graph.shifts import shifts
from codegen.plan.attention import Attention
from codegen.plan.op import Op
from codegen.spec.spec import Array


class KernelValues:
    """The gradients of an attention op. Its kernel computes the products, and `rebuilt` expresses other values in terms of them."""

    def __init__(self, op: Op, plan: Attention, taken: Collection[str]):
        self.op, self.spec, self.plan = op, op.spec, plan
        contracts = [n for n in nodes_of(op.statements) if n.op == "contract"]
        self.first, second = contracts
        (cast,) = [n for n in second.args if any(x is self.first for x in topological([n]))]
        self.weights = cast.args[0]
        outputs = {a.name for a in self.spec.outputs}
        constant = shifts(op.statements, outputs) if plan.rows_part is not None else frozenset()
        self.reverse = Reverse(self.spec, constant=constant, taken=taken)
        self.graph = self.reverse.graph
        chosen = self.reverse.saved_for("rows")
        self.how = self.reverse.backward(chosen)
        self.saved = saved = chosen.values
        self.taken = set(self.reverse.taken) | {a.name for a in self.how.spec.arrays}
        self.do = self.reverse.cotangents[plan.o.name]
        self.known = {id(node): self.input(name, node) for name, node in saved.items()}
        self.leaves = {id(node): Leaf(name) for name, node in saved.items()}
        self.rounded: Node | None = None  # the cotangent of o as it is multiplied, where o has another type
        self.dp, self.slopes = self.matched()
        self.known |= {id(n): n for n in (self.first, self.dp)}
        self.base = dict(self.known)
        self.delta: Node | None = None
        self.sums: dict[str, Node] = {}  # the terms of sums along rows and columns, by output
        self.along_rows: set[str] = set()  # of these, those along rows

    def gradient(self, output: Array) -> Node:
        """The value of an output."""
        found = [s.value for s in self.reverse.assigned if s.name == output.name and s.part is None and not s.at]
        demand(len(found) == 1)
        return found[0]

    def input(self, name: str, like: Node) -> Node:
        """A value that is read from an array, with the axes of another value."""
        return self.graph.node("input", attr=Leaf(name), kind=like.kind, dims=like.dims)

    # The products of the gradients

    def matched(self) -> tuple[Node, Node]:
        """The gradients of the weights (dp), and the gradients of q @ k."""
        plan = self.plan
        values = {name: self.gradient(output) for name, output, taken in self.reverse.results if taken is None}
        lacking = tuple(axis for axis in plan.batch if axis not in plan.k.axes)
        demand(lacking == tuple(axis for axis in plan.batch if axis not in plan.v.axes))
        demand(len({a.name for a in plan.factors}) == 3)
        over_rows = {plan.row, *lacking}
        slopes = [
            self.factor(values.get(own.name), other, axes)
            for own, other, axes in ((plan.q, plan.k, {plan.column}), (plan.k, plan.q, over_rows))
        ]
        weights = self.factor(values.get(plan.v.name), self.do, over_rows)
        demand(slopes[0] is slopes[1] and weights is self.weights)
        roots = [slopes[0]]
        products = [n for n in topological(roots, self.is_leaf) if n.op == "contract" and n is not self.first]
        demand(len(products) == 1 and {*lost_axes(products[0])} == {plan.value})
        arrays = {self.read(a) for a in products[0].args}
        demand(arrays == {Leaf(self.do.name), Leaf(plan.v.name)})
        return products[0], slopes[0]

    def factor(self, value: Node | None, other: Array, axes: set[str]) -> Node:
        """The factor of the array `other` in a gradient that is a product with it, before that factor is rounded."""
        demand(value is not None and value.op == "contract" and {*lost_axes(value)} == axes)
        assert value is not None
        found = [a for a in value.args if self.read(a) != Leaf(other.name)]
        demand(len(found) == 1 and found[0].op == "cast")
        return found[0].args[0]

    def read(self, factor: Node) -> object:
        """The input that a factor is, perhaps the cotangent of o as it is rounded; no input of a computed one."""
        value = as_multiplied(factor)
        if value.op == "cast" and value.args[0].attr == Leaf(self.do.name):
            self.rounded, value = value, value.args[0]
        return value.attr

    def is_leaf(self, node: Node) -> bool:
        """Whether the forward saves a value."""
        return id(node) in self.leaves

    # What kernels compute instead

    def rebuilt(self, value: Node, masked: bool = True) -> Node:
        """A value from what is saved, from sum(do * o) and from sums along rows; divisions by values of rows are products. Without
        `masked`, it is the value where the mask holds."""
        known = self.known if masked else {**self.base}
        conditions = set() if masked else self.conditions()
        column, row = self.plan.column, self.plan.row
        for node in topological([value], lambda n: id(n) in known):
            if id(node) in known:
                continue
            args = [known[id(a)] for a in node.args]
            if node.op == "sum" and column in lost_axes(node):
                known[id(node)] = self.summed(node)
            elif node.op == "sum" and row in lost_axes(node) and column in node.dims:
                rest = [axis for axis in lost_axes(node) if axis != row]
                known[id(node)] = self.along(row, node.args[0], rest)
            elif node.op == "where" and id(node.args[0]) in conditions:
                known[id(node)] = args[1]
            elif (ratio := self.ratio(node)) is not None:
                pair = self.rebuilt(self.weights, masked), self.rebuilt(ratio, masked)
                known[id(node)] = self.made(node, "mul", pair)
            elif node.op == "add" and (product := together(self.graph, args, column)) is not None:
                known[id(node)] = product
            elif node.op == "div" and column in args[0].dims and column not in args[1].dims and row in args[1].dims:
                inverse = self.graph.node("reciprocal", (args[1],), kind="float", dims=args[1].dims)
                known[id(node)] = self.made(node, "mul", (args[0], inverse))
            elif all(a is b for a, b in zip(args, node.args, strict=True)):
                known[id(node)] = node
            else:
                known[id(node)] = self.made(node, node.op, tuple(args))
        return known[id(value)]

    def ratio(self, node: Node) -> Node | None:
        """A number for each row: the weights, which the backward computes anyway, times it are this exponential of the same scores.
        None for other values."""
        column = self.plan.column
        found = term_of(node, column)
        inner, powers = factored(self.weights, column)
        own = [n for n in topological([self.weights]) if id(n) in inner]
        mine = term_of(own[0], column) if len(own) == len(inner) == 1 else None
        if found is None or mine is None or found[0] is not mine[0] or self.plan.row not in found[1].dims:
            return None
        if found[1] is mine[1] or column in found[1].dims:
            return None
        apart = self.made(node, "sub", (mine[1], found[1]))
        value = self.made(node, "exp", (apart,))
        for other, power in powers.values():
            for _ in range(abs(power)):
                value = self.made(node, "div" if power > 0 else "mul", (value, other))
        return value

    def made(self, like: Node, op: str, args: tuple[Node, ...]) -> Node:
        """A node like another one."""
        lost = lost_axes(like) if like.op in REDUCTIONS or like.op == "contract" else ()
        dims = [axis for a in args for axis in a.dims if axis not in lost]
        return self.graph.node(op, args, like.attr if op == like.op else None, kind=like.kind, dims=dims)

    def conditions(self) -> set[int]:
        """The identities of the mask's conditions."""
        found, left = set(), [self.plan.condition] if self.plan.condition is not None else []
        while left:
            node = left.pop()
            found.add(id(node))
            left += node.args if node.op == "and" else ()
        return found

    def summed(self, node: Node) -> Node:
        """A sum over S, and perhaps over more axes."""
        plan, lost = self.plan, lost_axes(node)
        term, is_negative = unguarded(node.args[0])
        if lost == (plan.column,) and (powers := self.times_delta(term)) is not None:
            found = self.scaled(self.made_delta(), powers)
            return self.made(node, "neg", (found,)) if is_negative else found
        # Down columns where both are summed: one kernel of all gradients has no sums along rows
        columns = {plan.row, *(a for a in plan.batch if a not in plan.k.axes)} <= {*lost}
        axis = plan.row if columns else plan.column
        return self.along(axis, node.args[0], [other for other in lost if other != axis])

    def along(self, axis: str, term: Node, rest: list[str]) -> Node:
        """A sum of terms along rows, that is over S, or along columns, over Q; and over the `rest` of its axes."""
        plan = self.plan
        demand({*term.dims} == {*plan.batch, plan.row, plan.column})
        demand(not self.uses_sums([self.rebuilt(term)]))  # which the same kernels give
        shared = {a for a in plan.batch if a not in plan.k.axes} if axis == plan.row else set()
        demand(shared <= {*rest})  # where rows of k stay, all that share them are added up
        name = fresh(self.taken, f"sum{len(self.sums) + 1}")
        self.sums[name] = term
        if axis == plan.column:
            self.along_rows.add(name)
        dims = [a for a in term.dims if a != axis and a not in shared]
        leaf = self.graph.node("input", attr=Leaf(name), kind="float", dims=dims)
        if not (left := tuple(a for a in rest if a not in shared)):
            return leaf
        return self.graph.node("sum", (leaf,), left, kind="float", dims=[a for a in dims if a not in left])

    def times_delta(self, value: Node) -> dict[int, tuple[Node, int]] | None:
        """A sum of `value` along S may be sum(do * o) times values of rows: these, with their powers. None if it is not, or if that
        would divide by a value that the chain does not divide by, since it may be zero."""
        inner, powers = factored(value, self.plan.column)
        own, already = factored(self.weights, self.plan.column)
        if sorted(inner) != sorted([*own, id(self.dp)]):
            return None
        found = dict(powers)
        for key, (node, power) in already.items():
            left = found.get(key, (node, 0))[1] - power
            if left < min(powers.get(key, (node, 0))[1], 0):
                return None
            found[key] = node, left
        return {key: pair for key, pair in found.items() if pair[1]}

    def scaled(self, value: Node, powers: Mapping[int, tuple[Node, int]]) -> Node:
        """A value times others to their powers."""
        for node, power in powers.values():
            other = self.rebuilt(node)
            for _ in range(abs(power)):
                value = self.graph.elementwise("mul" if power > 0 else "div", value, other)
        return value

    def made_delta(self) -> Node:
        """sum(do * o), along the last axis of o, with `do` as the product do @ v has it: of one key the two are equal."""
        if self.delta is None:
            plan = self.plan
            do, o = (self.graph.node("input", attr=Leaf(a.name), kind="float", dims=a.axes) for a in (self.do, plan.o))
            product = self.graph.node("mul", (self.rounded or do, o), kind="float", dims=plan.o.axes)
            dims = [axis for axis in plan.o.axes if axis != plan.value]
            self.delta = self.graph.node("sum", (product,), (plan.value,), kind="float", dims=dims)
        return self.delta

    def uses_sums(self, values: Iterable[Node]) -> bool:
        """Whether a value is computed from a sum that attention's kernel gives."""
        return any(isinstance(n.attr, Leaf) and n.attr.name in self.sums for n in topological(values))


def demand(condition: object) -> None:
    """Raises `UserError` unless the condition holds."""
    if not condition:
        raise UserError("no kernel for this gradient of attention")
