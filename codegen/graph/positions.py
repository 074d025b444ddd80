"""What follows for a value from its position: whether a condition can hold, and how much a number rises from one position to
the next."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

from codegen.graph.nodes import Node
from codegen.graph.ranges import ANY, RULES, Range

UNKNOWN = True, False  # whether a condition holds somewhere, and everywhere
COMPARED: dict[str, Callable[..., tuple[bool, bool]]] = {
    "lt": lambda a, b: (a[0] < b[1], a[1] < b[0]),
    "le": lambda a, b: (a[0] <= b[1], a[1] <= b[0]),
    "gt": lambda a, b: (a[1] > b[0], a[0] > b[1]),
    "ge": lambda a, b: (a[1] >= b[0], a[0] >= b[1]),
    "eq": lambda a, b: (a[0] <= b[1] and b[0] <= a[1], a[0] == a[1] == b[0] == b[1]),
    "ne": lambda a, b: (not a[0] == a[1] == b[0] == b[1], not (a[0] <= b[1] and b[0] <= a[1])),
}
JOINED: dict[str, Callable[..., tuple[bool, bool]]] = {
    "and": lambda a, b: (a[0] and b[0], a[1] and b[1]),
    "or": lambda a, b: (a[0] or b[0], a[1] or b[1]),
    "not": lambda a: (not a[1], not a[0]),
}


def holds(
    nodes: Sequence[Node], positions: Mapping[str, Range], params: Mapping[str, float], shape: Mapping[str, int]
) -> tuple[bool, bool]:
    """Whether a condition holds somewhere, and everywhere, at some positions of its axes. It is the last of its nodes."""
    found: dict[int, Any] = {}
    for node in nodes:
        args = [found[id(a)] for a in node.args]
        if node.kind == "bool":
            rule = JOINED.get(node.op) or COMPARED.get(node.op)
            numbers = node.op in JOINED or all(a.kind != "bool" for a in node.args)
            found[id(node)] = rule(*args) if rule is not None and numbers else UNKNOWN
        else:
            found[id(node)] = _number(node, args, positions, params, shape)
    some, every = found[id(nodes[-1])]
    return bool(some), bool(every)


def _number(
    node: Node, args: list[Any], positions: Mapping[str, Range], params: Mapping[str, float], shape: Mapping[str, int]
) -> Range:
    """The bounds of a number."""
    axis = str(node.attr)
    if node.is_const:
        return float(axis), float(axis)
    if node.op == "param":
        return (params[axis], params[axis]) if axis in params else ANY
    if node.op == "size":
        return shape[axis], shape[axis]
    if node.op == "index":
        return positions.get(axis, (0, shape[axis] - 1))
    if node.op in ("floordiv", "mod") and args[1][0] == args[1][1] > 0 and all(map(math.isfinite, args[0])):
        divisor = args[1][0]
        low, high = (end // divisor for end in args[0])
        if node.op == "floordiv":
            return low, high
        return (args[0][0] % divisor, args[0][1] % divisor) if low == high else (0, divisor - 1)
    rule = RULES.get(node.op)
    numbers = all(a.kind != "bool" for a in node.args)
    return rule(*args) if rule is not None and numbers and node.op != "sum" else ANY


def rises(nodes: Sequence[Node], axis: str) -> dict[int, int]:
    """How much each node's value rises from one position along an axis to the next, by identity, where that is a constant."""
    found: dict[int, int] = {}
    for node in nodes:
        args = [found.get(id(a)) for a in node.args]
        if axis not in node.dims:
            found[id(node)] = 0
        elif node.op == "index":
            found[id(node)] = 1
        elif node.op in ("add", "sub", "neg", "float") and None not in args:
            first, second = (*(n or 0 for n in args), 0)[:2]
            found[id(node)] = {"neg": -first, "sub": first - second}.get(node.op, first + second)
    return found


def multiples(
    nodes: Sequence[Node], axis: str, numbers: Container[int], separate: Container[int]
) -> list[tuple[Node, int]]:
    """The products, but for `separate` ones, of a value that is the same along an axis and of one of some `numbers` that nothing else
    takes, each with the place of that factor. Nodes are known by identity."""
    uses = Counter(id(a) for n in nodes for a in n.args)
    found = []
    for node in nodes:
        for place, number in enumerate(node.args if node.op == "mul" and id(node) not in separate else ()):
            if id(number) in numbers and uses[id(number)] == 1 and axis not in node.args[1 - place].dims:
                found.append((node, place))
    return found


def added(root: Node, products: Sequence[Node]) -> tuple[int, int] | None:
    """The place of one of some products in a sum or a difference of two values, and its sign; None if none is there."""
    places = {"add": ((0, 1), (1, 1)), "sub": ((1, -1),)}.get(root.op, ())
    return next((found for found in places if any(root.args[found[0]] is n for n in products)), None)
