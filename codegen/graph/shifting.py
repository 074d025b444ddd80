"""Neighbours of a value along an axis: the value's expression, evaluated at another position.

A `shift` node reads an input, or what another kernel writes, a number of positions back along an axis. Where that is outside the array it gives any
element. Such a result is never used, because the positions are then outside too and `fill` is chosen. Shifts of shifts
add up.
"""

from __future__ import annotations

from codegen.graph.nodes import ROWS, Graph, Node, picked_axes, topological
from codegen.graph.ops import ALONE, SCANS


def shift(graph: Graph, value: Node, axis: str, by: int, fill: Node) -> Node:
    """The value `by` positions back along an axis, and `fill` where that is outside."""
    inside = _from(graph, axis, by) if by > 0 else _before(graph, axis, -by)
    there = evaluated_at(graph, value, axis, by)
    return graph.node("where", (inside, there, fill), kind=value.kind, dims=(axis, *there.dims, *fill.dims))


def _from(graph: Graph, axis: str, first: int) -> Node:
    """Whether a position is at least `first`."""
    if first <= 0:
        return graph.const(True)
    return graph.node("ge", (_index(graph, axis), graph.const(first)), kind="bool", dims=(axis,))


def _before(graph: Graph, axis: str, last: int) -> Node:
    """Whether there are more than `last` positions from one on."""
    if last <= 0:
        return graph.const(True)
    size = graph.node("size", attr=axis, kind="int", dims=())
    end = graph.node("sub", (size, graph.const(last)), kind="int", dims=())
    return graph.node("lt", (_index(graph, axis), end), kind="bool", dims=(axis,))


def _index(graph: Graph, axis: str) -> Node:
    return graph.node("index", attr=axis, kind="int", dims=(axis,))


def evaluated_at(graph: Graph, value: Node, axis: str, by: int, made: dict[int, Node] | None = None) -> Node:
    """The value `by` positions back along an axis. `made` keeps what other values have in common with it, for a graph, an axis and a
    number of positions."""
    made = {} if made is None else made
    for node in topological([value], lambda n: axis not in n.dims or id(n) in made):
        if id(node) not in made:
            made[id(node)] = _moved(graph, node, [made[id(a)] for a in node.args if id(a) in made], axis, by)
    return made[id(value)]


def positions_back(node: Node) -> list[tuple[str, int]]:
    """How many positions back a `pick` reads its table, along the axes where it reads neighbours; a `take` does not."""
    found: list[tuple[str, int]] = []
    for axis, place in () if node.op != "pick" else zip(picked_axes(node)[1:], node.args[2:], strict=True):
        back = 0
        while place.op == "sub":  # as `_moved` makes it
            place, by = place.args
            assert isinstance(by.attr, int)
            back += by.attr
        if back:
            found.append((axis, back))
    return found


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
    if (end := _end(node, axis)) is not None:
        return _from(graph, axis, end + by) if node.op == "ge" else _before(graph, axis, end - by)
    if node.op == "where" and args[0].is_const:
        return args[1] if args[0].attr else args[2]
    if node.op == "pick":  # its table stays
        return graph.rebuilt(node, (node.args[0], *args[1:]))
    if node.op == "take" and ROWS not in node.args[0].dims:  # at the neighbour's index
        table = node.args[0]
        places = [graph.node("index", attr=a, kind="int", dims=(a,)) for a in table.dims if a != node.attr]
        places = [_moved(graph, place, [], axis, by) for place in places]
        return graph.node("pick", (table, args[1], *places), node.attr, kind=node.kind, dims=node.dims)
    if node.op in ("take", "contract", *SCANS, *ALONE):  # a later kernel reads what this one writes
        return _read(graph, node, ((axis, by),))
    return graph.rebuilt(node, tuple(args))


def _end(node: Node, axis: str) -> int | None:
    """How far a condition of `shift` along this axis is from the first position, or from the last; None for other nodes."""
    if node.op not in ("ge", "lt") or node.args[0].op != "index" or node.args[0].attr != axis:
        return None
    bound = node.args[1]
    if node.op == "lt":
        if bound.op != "sub" or bound.args[0].op != "size" or bound.args[0].attr != axis:
            return None
        bound = bound.args[1]
    return int(bound.attr) if bound.is_const and isinstance(bound.attr, int) else None


def _read(graph: Graph, array: Node, places: tuple[tuple[str, int], ...]) -> Node:
    return graph.node("shift", (array,), places, kind=array.kind, dims=array.dims) if places else array
