"""Other forms of a chain, of which kernels of attention compute more.

A factor of attention's scores may lack axes of the batch, such as learned queries that all elements share. A stage then writes it
once for each element, and attention's kernel reads it; otherwise a product would write the scores.

A product with a sum of weights, as in differential attention, is distributed over the sum: (p - a * r) @ v becomes
p @ v - (a * r) @ v. Each term is then a kernel's attention, and no weights are written.
"""

from __future__ import annotations

from codegen.graph.nodes import Graph, Leaf, Node, as_multiplied
from codegen.spec.spec import Spec
from codegen.stages.products import factors_of, products_of
from codegen.stages.rewriting import rewritten


def with_whole_batches(spec: Spec) -> Spec | None:
    """The spec with an input of each product that makes weights repeated along the axes that it lacks; None if none lacks some."""
    batches: dict[int, set[str]] = {}  # of a product that makes weights: the axes that these share with what they weigh
    for second in [n for n in spec.read.nodes if n.op == "contract"]:
        weights = [f for f in factors_of(second) if products_of([f])]
        others = [f for f in map(as_multiplied, second.args) if f not in weights]
        for product in products_of(weights).values():
            batches[id(product)] = {*product.dims}.intersection(second.dims, *(f.dims for f in others))
    found: list[Node] = []

    def repeated(graph: Graph, node: Node, args: tuple[Node, ...]) -> Node | None:
        for place, factor in enumerate(args if id(node) in batches else ()):
            value = as_multiplied(factor)
            lacking = [axis for axis in node.dims if axis in batches[id(node)] - {*value.dims}]
            if value.op == "input" and lacking:
                found.append(value)
                own = _along(graph, spec, value, lacking)
                pair = (own, args[1]) if place == 0 else (args[0], own)
                return graph.node("contract", pair, node.attr, kind="float", dims=node.dims)
        return None

    made = rewritten(spec, repeated, "whole batches")
    return made if found else None


def _along(graph: Graph, spec: Spec, value: Node, axes: list[str]) -> Node:
    """An input along more axes, in its own type."""
    assert isinstance(value.attr, Leaf)
    dtype = spec.array(value.attr.name).dtype
    for axis in axes:
        index = graph.node("index", attr=axis, kind="int", dims=(axis,))
        every = graph.node("ge", (index, graph.const(0)), kind="bool", dims=(axis,))
        value = graph.elementwise("where", every, value, graph.const(0.0))
    return graph.node("cast", (value,), dtype, kind="float", dims=value.dims)


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
        found = graph.elementwise("add" if sign > 0 else "sub", found, value)
    return found
