"""Algebra on the values that differentiation makes: it removes zeros, ones and double signs, and rearranges sums of products.
The user's own expressions are not rewritten."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable

from codegen.graph.nodes import Graph, Node, lost_axes, topological
from codegen.graph.ops import REDUCTIONS

MOST_FACTORS = 16  # the factors of a longer product are not sorted
LEAST, MOST = 2.0**-126, 2.0**127  # the range of float32's normal numbers


class Algebra:
    """Makes nodes in `graph`. The nodes that `roots` reach are never rewritten."""

    def __init__(self, graph: Graph, roots: Iterable[Node]):
        self.graph = graph
        self.known = {id(n) for n in topological(roots)}
        self.done: dict[int, Node] = {}
        self.products: dict[int, tuple[Node, ...]] = {}  # the factors of each product made here

    def simplified(self, value: Node) -> Node:
        for node in topological([value], lambda n: id(n) in self.known or id(n) in self.done):
            if id(node) not in self.known and id(node) not in self.done:
                args = tuple(self.result(a) for a in node.args)
                made = self.rebuilt(node, args)
                self.done[id(node)] = made
                self.done.setdefault(id(made), made)
                if made is not node and id(node) in self.graph.calls:
                    self.graph.calls.setdefault(id(made), self.graph.calls[id(node)])
        return self.result(value)

    def result(self, node: Node) -> Node:
        return self.done.get(id(node), node)

    def rebuilt(self, node: Node, args: tuple[Node, ...]) -> Node:
        rule = getattr(self, node.op, None) if node.kind == "float" else None
        if rule is not None and node.op in ("add", "sub", "mul", "div", "neg", "where", "log"):
            made: Node = rule(*args)
            return made
        if node.op in ("eq", "gt") and all(a.is_const for a in args):
            return self.graph.const(
                args[0].attr == args[1].attr if node.op == "eq" else _number(args[0]) > _number(args[1])
            )
        lost = lost_axes(node) if node.op in REDUCTIONS or node.op == "contract" else ()
        dims = [d for a in args for d in a.dims if d not in lost]
        return self.graph.rebuilt(node, args, dims)

    def const(self, value: float) -> Node:
        return self.graph.const(float(value))

    # Operations on floats

    def neg(self, a: Node) -> Node:
        if a.is_const:
            return self.const(-_number(a))
        return a.args[0] if a.op == "neg" else self.graph.elementwise("neg", a)

    def add(self, a: Node, b: Node) -> Node:
        if _is(a, 0) or _is(b, 0):
            return b if _is(a, 0) else a
        if a is b:
            return self.mul(self.const(2), a)
        if b.op == "neg":
            return self.sub(a, b.args[0])
        return self.sub(b, a.args[0]) if a.op == "neg" else self.graph.elementwise("add", a, b)

    def sub(self, a: Node, b: Node) -> Node:
        if _is(b, 0):
            return a
        if _is(a, 0):
            return self.neg(b)
        return self.add(a, b.args[0]) if b.op == "neg" else self.graph.elementwise("sub", a, b)

    def mul(self, a: Node, b: Node) -> Node:
        if _is(a, 0) or _is(b, 0):
            return self.const(0)
        if _is(a, 1) or _is(b, 1):
            return b if _is(a, 1) else a
        if _is(a, -1) or _is(b, -1):
            return self.neg(b if _is(a, -1) else a)
        if a.op == "neg" or b.op == "neg":
            product = self.mul(_plain(a), _plain(b))
            return product if a.op == b.op else self.neg(product)
        factors = (*self.products.get(id(a), (a,)), *self.products.get(id(b), (b,)))
        if len(factors) > MOST_FACTORS:
            return self.graph.elementwise("mul", a, b)
        number = functools.reduce(lambda x, y: x * y, [_number(f) for f in factors if f.is_const], 1.0)
        if not LEAST <= abs(number) <= MOST:  # float32 has no such factor, though it may have the product
            return self.graph.elementwise("mul", a, b)
        left = self.cancelled([f for f in factors if not f.is_const])
        # factors with fewer axes come first, so that a row's factors are not multiplied for each element
        rest = sorted(left, key=lambda f: len(f.dims))
        if not rest:
            return self.const(number)
        if abs(number) != 1:  # last among the factors of an element, whose order may matter
            rest.insert(0 if len(rest[0].dims) < len(rest[-1].dims) else len(rest), self.const(abs(number)))
        product = self.product(rest)
        if id(product) not in self.known:
            self.products[id(product)] = tuple(rest)
        return self.neg(product) if number < 0 else product

    def product(self, factors: list[Node]) -> Node:
        """The product of factors, in their order; it is divided where a factor is an inverse."""
        first = next((i for i, f in enumerate(factors) if not self.is_inverse(f)), 0)
        made = factors[first]
        for factor in (*factors[:first], *factors[first + 1 :]):
            inverse = self.is_inverse(factor)
            made = self.graph.elementwise("div" if inverse else "mul", made, factor.args[0] if inverse else factor)
        return made

    def cancelled(self, factors: list[Node]) -> list[Node]:
        """The factors that remain once each factor and its inverse have cancelled."""
        left = list(factors)
        for inverse in [f for f in factors if self.is_inverse(f)]:
            if inverse.args[0] in left:
                left.remove(inverse.args[0])
                left.remove(inverse)
        return left

    def is_inverse(self, factor: Node) -> bool:
        """Whether a factor stands for a division, and is not a value of the user's."""
        return factor.op == "reciprocal" and id(factor) not in self.known

    def inverse(self, b: Node) -> Node:
        """1 / b, as a factor."""
        if b.is_const and LEAST <= abs(_number(b)) <= MOST:
            return self.const(1 / _number(b))
        return self.neg(self.inverse(b.args[0])) if b.op == "neg" else self.graph.elementwise("reciprocal", b)

    def div(self, a: Node, b: Node) -> Node:
        return a if _is(a, 0) or _is(b, 1) else self.mul(a, self.inverse(b))

    def total(self, terms: list[Node]) -> Node:
        """A sum. Terms that differ only in a number become one."""
        alike: dict[tuple[int, ...], list[tuple[float, Node]]] = {}
        for term in terms:
            number, atoms = self.atoms(term)
            alike.setdefault((number == 0, *sorted(map(id, atoms))), []).append((number, term))
        found = []
        for (zero, *_), same in alike.items():
            number, term = same[0]
            if len(same) > 1 and not zero:  # of terms that are 0, one says where they are NaN
                all_of = sum(n for n, _ in same)
                if abs(all_of) == 1:
                    term = functools.reduce(self.mul, self.atoms(term)[1], self.const(all_of))
                else:
                    term = self.mul(self.const(all_of / number), term)
            found.append(term)
        return functools.reduce(self.add, found)

    def atoms(self, term: Node) -> tuple[float, list[Node]]:
        """The number in a product, and its other factors, of which none is a product."""
        factors = self.factors(term)
        signs = sum(f.op == "neg" for f in factors)
        factors = [part for f in factors for part in self.factors(_plain(f))]
        number = functools.reduce(lambda x, y: x * y, [_number(f) for f in factors if f.is_const], (-1.0) ** signs)
        return number, [f for f in factors if not f.is_const]

    def log(self, a: Node) -> Node:
        return self.const(math.log(_number(a))) if a.is_const and _number(a) > 0 else self.graph.elementwise("log", a)

    def where(self, condition: Node, a: Node, b: Node) -> Node:
        if condition.is_const:
            return a if condition.attr else b
        return a if a is b else self.graph.elementwise("where", condition, a, b)

    def factors(self, value: Node) -> list[Node]:
        """The factors of a product, in order. Products are split from the outermost until there are about `MOST_FACTORS`; the rest
        stays whole, since a power of a power has as many factors as the exponents' product."""
        factors = [value]
        while len(factors) < MOST_FACTORS:
            split = [
                f
                for factor in factors
                for f in self.products.get(id(factor)) or (factor.args if factor.op == "mul" else (factor,))
            ]
            if len(split) == len(factors):
                break
            factors = split
        return factors

    # Reductions

    def sum_over(self, value: Node, axes: tuple[str, ...], is_term: bool = False) -> Node:
        """The sum of a value that varies along all of `axes`. Factors that do not vary along them are moved out of the sum, which
        then waits for fewer other statistics. Distances from a mean add up to 0 as a term of a larger sum. Alone they add up to the
        mean's rounding error, as for the gradient of a variance, which may be small next to that error."""
        if not axes or _is(value, 0):
            return value
        if is_term and _is_about_mean(value, axes):
            return self.const(0)
        if value.op == "neg":
            return self.neg(self.sum_over(value.args[0], axes, is_term))
        if value.op in ("add", "sub") and (apart := self.sum_apart(value, axes)) is not None:
            return apart
        if value.op == "sum":
            return self.sum_over(value.args[0], self.graph.order((*axes, *lost_axes(value))))
        if value.op == "div" and id(value) in self.known and not set(axes) & set(value.args[1].dims):
            return self.div(self.sum_over(value.args[0], axes, is_term), value.args[1])
        factors = self.factors(value)
        outside = [f for f in factors if not set(axes) & set(f.dims)]
        inside = [f for f in factors if set(axes) & set(f.dims)]
        if outside and set(axes) <= {d for f in inside for d in f.dims}:
            product = functools.reduce(self.mul, inside)
            return self.mul(functools.reduce(self.mul, outside), self.sum_over(product, axes, is_term))
        for place, factor in enumerate(factors):
            others = factors[:place] + factors[place + 1 :]
            lost = set(factor.attr) if factor.op == "sum" and isinstance(factor.attr, tuple) else set()
            # A sum of sums becomes one sum, unless the forward has the inner one, or other factors vary along its axes
            if lost and id(factor) not in self.known and not any(lost & set(f.dims) for f in others):
                product = functools.reduce(self.mul, others, factor.args[0])
                return self.sum_over(product, self.graph.order((*axes, *lost)))
        dims = [d for d in value.dims if d not in axes]
        return self.graph.node("sum", (value,), self.graph.order(axes), kind="float", dims=dims)

    def sum_apart(self, value: Node, axes: tuple[str, ...]) -> Node | None:
        """The sum of a sum as a sum for each term that waits for other sums along these axes, and one for all other terms: the gradient
        of a norm's mean, `sum(g - c * v)` where `c` is a sum itself. None if it would wait for as many."""
        waits, terms = self.waits(value, axes), self.terms(value)
        same = [term for term in terms if not set(axes) & set(term.dims)]
        varying = [term for term in terms if term not in same]
        early = [term for term in varying if self.waits(term, axes) < waits]
        if not waits or len(early) == len(terms) or any(not set(axes) <= set(term.dims) for term in varying):
            return None
        found = [functools.reduce(self.add, early)] if early else []
        sums = [
            self.sum_over(term, axes, is_term=True)
            for term in (*found, *(term for term in varying if term not in early))
        ]
        sums += [functools.reduce(self.mul, map(self.size, axes), term) for term in same]
        apart = functools.reduce(self.add, sums)
        return apart if self.waits(apart, axes) <= waits else None

    def size(self, axis: str) -> Node:
        size = self.graph.node("size", attr=axis, kind="int", dims=())
        return self.graph.elementwise("float", size)

    def terms(self, value: Node) -> list[Node]:
        """The terms of a sum, in order, of which none is a sum that was made here; the rest stays whole as in `factors`."""
        terms = [value]
        while len(terms) < MOST_FACTORS:
            split = [part for term in terms for part in self.addends(term)]
            if len(split) == len(terms):
                break
            terms = split
        return terms

    def addends(self, term: Node) -> tuple[Node, ...]:
        sign, own = (self.neg, term.args[0]) if term.op == "neg" else (None, term)
        if own.op not in ("add", "sub") or id(own) in self.known:
            return (term,)
        first, second = own.args
        found = (first, self.neg(second) if own.op == "sub" else second)
        return found if sign is None else tuple(map(sign, found))

    def waits(self, value: Node, axes: tuple[str, ...]) -> int:
        """The most reductions along some of these axes that a value needs one after the other, without those of the user's values."""
        depth: dict[int, int] = {}
        for node in topological([value], lambda n: id(n) in self.known):
            own = node.op in REDUCTIONS and bool(set(axes) & set(lost_axes(node)))
            inner = () if id(node) in self.known else node.args
            depth[id(node)] = max((depth[id(a)] for a in inner), default=0) + (own and id(node) not in self.known)
        return depth[id(value)]


def _is_about_mean(value: Node, axes: tuple[str, ...]) -> bool:
    """Whether a value is the distance from a mean along some of these axes: such distances add up to 0."""
    if value.op != "sub" or value.args[1].op != "mean":
        return False
    mean = value.args[1]
    return mean.args[0] is value.args[0] and set(lost_axes(mean)) <= set(axes)


def _plain(node: Node) -> Node:
    return node.args[0] if node.op == "neg" else node


def _number(node: Node) -> float:
    assert isinstance(node.attr, int | float)
    return float(node.attr)


def _is(node: Node, value: float) -> bool:
    return node.is_const and not isinstance(node.attr, bool) and node.attr == value
