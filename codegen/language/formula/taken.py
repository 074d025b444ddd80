"""`take` of what is computed from tables: the same formulas of the elements that are taken, so no kernel writes the computed table."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from codegen.graph.nodes import Graph, Node, lost_axes, topological
from codegen.graph.ops import OPS, REDUCTIONS
from codegen.graph.precision import CONVERSIONS

Take = Callable[[Node], Node]  # an input to its elements at the index


def computed_at(graph: Graph, value: Node, axis: str, place: Node, take: Take) -> Node | None:
    """The value at the positions `place` along an axis, whose axes replace it. None where other formulas would give another value: a scan or
    a product has to compute all of its elements, and a sum over an axis of the place would add up other elements."""
    made: dict[int, Node] = {}
    for node in topological([value], lambda n: axis not in n.dims):
        if axis not in node.dims:
            made[id(node)] = node
        elif node.op == "input":
            made[id(node)] = take(node)
        elif node.op == "index":
            made[id(node)] = within(graph, [axis], place)
        elif node.op in REDUCTIONS and not {*lost_axes(node)} & {*place.dims}:
            (argument,) = (made[id(a)] for a in node.args)
            dims = [d for d in argument.dims if d not in lost_axes(node)]
            made[id(node)] = graph.node(node.op, (argument,), node.attr, kind=node.kind, dims=dims)
        elif (node.op in OPS and node.op != "_bits") or node.op in CONVERSIONS:
            args = tuple(made[id(a)] for a in node.args)
            made[id(node)] = graph.node(
                node.op, args, node.attr, kind=node.kind, dims=[d for a in args for d in a.dims]
            )
        else:
            return None
    return made[id(value)]


def within(graph: Graph, axes: Sequence[str], place: Node) -> Node:
    """The nearest position along an axis, or along several as if they were one."""
    sizes = [graph.node("size", attr=axis, kind="int", dims=()) for axis in axes]
    end = functools.reduce(lambda a, b: graph.node("mul", (a, b), kind="int", dims=()), sizes)
    last = graph.node("sub", (end, graph.const(1)), kind="int", dims=())
    below = graph.node("minimum", (place, last), kind="int", dims=place.dims)
    return graph.node("maximum", (below, graph.const(0)), kind="int", dims=place.dims)
