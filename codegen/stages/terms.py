"""Distributes a product over a sum of weights, as in differential attention: (p - a * r) @ v becomes p @ v - (a * r) @
v. Each term is then a kernel's attention, and no weights are written."""

from __future__ import annotations

from codegen.graph.nodes import Graph, Node, as_multiplied
from codegen.spec.spec import Spec
from codegen.stages.products import products_of
from codegen.stages.rewriting import rewritten


def with_terms_apart(spec: Spec) -> Spec | None:
    """The spec with a product for each term of a factor whose terms are all made of products; None if no factor is such a sum."""
    found: list[Node] = []

    def apart(graph: Graph, node: Node, args: tuple[Node, ...]) -> Node | None:
        if node.op != "contract":
            return None
        for place, factor in enumerate(args):
            value = as_multiplied(factor)
            terms = _terms(value.args[0], 1) if value.op == "cast" else []
            if len(terms) < 2 or not all(products_of([term]) for term, _ in terms):
                continue
            found.append(node)
            results = []
            for term, sign in terms:
                own = graph.node("cast", (term,), value.attr, kind="float", dims=term.dims)
                pair = (own, args[1]) if place == 0 else (args[0], own)
                product = graph.node("contract", pair, node.attr, kind="float", dims=node.dims)
                results.append((product, sign))
            return _sum(graph, results)
        return None

    made = rewritten(spec, apart, "terms apart")
    return made if found else None


def _terms(value: Node, sign: int) -> list[tuple[Node, int]]:
    """The terms of a sum that have all its axes, each with its sign."""
    if value.op not in ("add", "sub") or any({*a.dims} != {*value.dims} for a in value.args):
        return [(value, sign)]
    first, second = value.args
    return [*_terms(first, sign), *_terms(second, -sign if value.op == "sub" else sign)]


def _sum(graph: Graph, terms: list[tuple[Node, int]]) -> Node:
    found = terms[0][0]
    for value, sign in terms[1:]:
        found = graph.node("add" if sign > 0 else "sub", (found, value), kind="float", dims=(*found.dims, *value.dims))
    return found
