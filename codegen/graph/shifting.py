"""Neighbours of a value along an axis: the value's expression, evaluated at another position.

A `shift` node reads an input a number of positions back along an axis. Where that is outside the array it gives any
element. Such a result is never used, because the positions are then outside too and `fill` is chosen. Shifts of shifts
add up.
"""

from __future__ import annotations

from codegen.errors import UserError
from codegen.graph.nodes import Graph, Leaf, Node, topological
from codegen.graph.ops import ALONE, SCANS


def shift(graph: Graph, value: Node, axis: str, by: int, fill: Node) -> Node:
    """The value `by` positions back along an axis, and `fill` where that is outside. Raises `UserError` for a value
    that cannot be evaluated at another position."""
    index = graph.node("index", attr=axis, kind="int", dims=(axis,))
    if by > 0:
        inside = graph.node("ge", (index, graph.const(by)), kind="bool", dims=(axis,))
    else:
        size = graph.node("size", attr=axis, kind="int", dims=())
        end = graph.node("sub", (size, graph.const(-by)), kind="int", dims=())
        inside = graph.node("lt", (index, end), kind="bool", dims=(axis,))
    there = evaluated_at(graph, value, axis, by)
    return graph.node("where", (inside, there, fill), kind=value.kind, dims=(axis, *there.dims, *fill.dims))


def evaluated_at(graph: Graph, value: Node, axis: str, by: int) -> Node:
    """The value `by` positions back along an axis."""
    made: dict[int, Node] = {}
    for node in topological([value], lambda n: axis not in n.dims):
        made[id(node)] = _moved(graph, node, [made[id(a)] for a in node.args if id(a) in made], axis, by)
    return made[id(value)]


def _moved(graph: Graph, node: Node, args: list[Node], axis: str, by: int) -> Node:
    if axis not in node.dims:
        return node
    if node.op == "input":
        return _read(graph, node, ((axis, by),))
    if node.op == "shift":
        assert isinstance(node.attr, tuple)
        before = dict(node.attr)
        before[axis] = before.get(axis, 0) + by
        return _read(graph, node.args[0], tuple((a, n) for a, n in sorted(before.items()) if n))
    if node.op == "index":
        return graph.node("sub", (node, graph.const(by)), kind="int", dims=node.dims)
    if node.op == "pick":  # its table stays
        return graph.node(node.op, (node.args[0], *args[1:]), node.attr, kind=node.kind, dims=node.dims)
    if node.op in ("take", "put", "contract", *SCANS, *ALONE):
        raise UserError(
            f"the result of {node.op!r} has no neighbours in a kernel", "make two ops: the second one shifts"
        )
    return graph.node(node.op, tuple(args), node.attr, kind=node.kind, dims=node.dims)


def _read(graph: Graph, array: Node, places: tuple[tuple[str, int], ...]) -> Node:
    assert isinstance(array.attr, Leaf)
    return graph.node("shift", (array,), places, kind=array.kind, dims=array.dims) if places else array
