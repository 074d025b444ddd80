"""Factors of values along attention's columns: exponentials of scores, and what numbers of a row can stand for."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence

from codegen.graph.nodes import Graph, Node, lost_axes, topological
from codegen.plan.chain_parts import is_zero


def term_of(node: Node, column: str) -> tuple[Node, Node] | None:
    """The score and the shift of exp(score - shift), a value with columns; None for other values."""
    if node.op != "exp" or node.args[0].op != "sub" or column not in node.dims:
        return None
    score, shift = node.args[0].args
    return score, shift


def unguarded(value: Node) -> tuple[Node, bool]:
    """x and False, or True for -x, of where(g == 0, 0, x): a value that is 0 where an adjoint is, also if a factor is infinite.
    (An infinite or NaN weight of attention makes its row's other terms NaN anyway.)"""
    if value.op == "where" and value.args[0].op == "eq" and is_zero(value.args[0].args[1]) and is_zero(value.args[1]):
        value = value.args[2]
    return (value.args[0], True) if value.op == "neg" else (value, False)


def factored(value: Node, column: str) -> tuple[list[int], dict[int, tuple[Node, int]]]:
    """The factors of a product: the identities of those with columns; values without them with their powers, by identity."""
    inner: list[int] = []
    powers: dict[int, tuple[Node, int]] = {}

    def add(node: Node, power: int) -> None:
        if node.op in ("mul", "div") and (power > 0 or column not in node.dims):
            left, right = node.args
            if node.op == "mul" or column not in right.dims:
                add(left, power)
                add(right, power if node.op == "mul" else -power)
                return
        if node.op == "where" and power > 0 and column in node.dims and is_zero(node.args[2]):
            inner.append(id(node.args[0]))
            add(node.args[1], power)
        elif column in node.dims:
            inner.append(id(node))
        elif node.op == "reciprocal":
            add(node.args[0], -power)
        else:
            powers[id(node)] = node, powers.get(id(node), (node, 0))[1] + power

    add(value, 1)
    return inner, powers


def together(graph: Graph, terms: Sequence[Node], column: str) -> Node | None:
    """x * a + x * (b - c), of values a and c without columns, as x * (b - (c - a)); None for other sums."""

    product = graph.elementwise
    for one, other in (terms, terms[::-1]):
        left, right = _factors(one), _factors(other)
        x, a = [n for n in left if n in right], [n for n in left if n not in right]
        rest = [n for n in right if n not in left]
        if not a or len(rest) != 1 or rest[0].op != "sub" or not any(column in n.dims for n in x):
            continue
        b, c = rest[0].args
        if any(column in n.dims for n in (c, *a)):
            continue
        common, value = (functools.reduce(functools.partial(product, "mul"), some) for some in (x, a))
        return product("mul", common, product("sub", b, product("sub", c, value)))
    return None


def inside(graph: Graph, terms: Sequence[Node], column: str) -> list[Node]:
    """Terms in which a * w * (x - y), of a number a and y without columns, is w * (x * a - y * a), if no other term has x - y: a
    product and a difference are one instruction."""

    product = functools.partial(graph.elementwise, "mul")
    found = list(terms)
    for place, term in enumerate(terms):
        factors = _factors(term)
        numbers = [n for n in factors if not n.dims]
        apart = [n for n in factors if n.op == "sub" and column in n.dims and column not in n.args[1].dims]
        others = topological([t for t in terms if t is not term])
        if not numbers or len(apart) != 1 or any(n is apart[0] for n in others):
            continue
        by = functools.reduce(product, numbers)
        x, y = (product(n, by) for n in apart[0].args)
        difference = graph.elementwise("sub", x, y)
        rest = [n for n in factors if n is not apart[0] and n not in numbers]
        found[place] = functools.reduce(product, [*rest, difference])
    return found


def _factors(value: Node) -> list[Node]:
    """The factors of a product; another value alone."""
    return [n for a in value.args for n in _factors(a)] if value.op == "mul" else [value]


def in_one_sum(graph: Graph, value: Node, axes: Collection[str], is_leaf: Callable[[Node], bool]) -> Node:
    """A value with nested sums joined: sum_q(a * sum_b(c)) is sum_qb(a * c). The outer sum is over some of these axes."""
    known: dict[int, Node] = {}
    for node in topological([value], is_leaf):
        args = tuple(node.args if is_leaf(node) else (known[id(a)] for a in node.args))
        sums = node.op == "sum" and not is_leaf(node) and not {*axes}.isdisjoint(lost_axes(node))
        term, more = _outside(graph, args[0], axes) if sums else (None, ())
        if term is not None and more:
            lost = (*lost_axes(node), *more)
            args, dims = (term,), [a for a in term.dims if a not in lost]
            known[id(node)] = graph.node("sum", args, lost, kind=node.kind, dims=dims)
        else:
            known[id(node)] = graph.rebuilt(node, args)
    return known[id(value)]


def _outside(graph: Graph, value: Node, axes: Collection[str]) -> tuple[Node, tuple[str, ...]]:
    """A product without the sum that one of its factors is, over other axes than these, and that sum's axes."""
    if value.op == "sum" and {*axes}.isdisjoint(lost_axes(value)):
        return value.args[0], lost_axes(value)
    places = {"mul": (0, 1), "div": (0,), "neg": (0,)}.get(value.op, ())
    if value.op == "where" and is_zero(value.args[2]):
        places = (1,)
    for place in places:
        term, more = _outside(graph, value.args[place], axes)
        args = (*value.args[:place], term, *value.args[place + 1 :])
        if more and not any({*more} & {*a.dims} for a in (*args[:place], *args[place + 1 :])):
            dims = [axis for a in args for axis in a.dims]
            return graph.node(value.op, args, value.attr, kind=value.kind, dims=dims), more
    return value, ()
