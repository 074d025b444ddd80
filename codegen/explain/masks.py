"""The tiles of scores that attention computes, for `explain`: from bounds of its mask's condition over a tile, as kernels have them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

from codegen.graph.nodes import Node, topological
from codegen.graph.ranges import ANY, RULES, Range
from codegen.language.sizes import Shape
from codegen.plan.attention import AttentionPlan
from codegen.plan.op import Op, attention_in

TILE = 128
MOST, DRAWN = 128, 16  # tiles along an axis that are counted, and drawn: larger ones if there are more
UNKNOWN = True, False  # whether a condition holds somewhere, and everywhere
SIGNS = "·▒█"  # of tiles that are skipped, computed with the mask, and without it
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


def mask(op: Op, shape: Shape) -> dict[str, Any] | None:
    """The part of all tiles that are computed, and without the mask; a picture of them; and the arrays that the mask reads, of which
    nothing is known here. None without a mask, or where rows and columns are one tile."""
    plan = next(iter(attention_in(op.plan)), None)
    if plan is None or plan.condition is None or len(plan.keys) > 1:
        return None
    sizes = shape[plan.row], shape[plan.column]
    counted = [max(TILE, -(-n // MOST)) for n in sizes]
    if all(n <= tile for n, tile in zip(sizes, counted, strict=True)):
        return None
    found = [kind for line in _lines(plan, op, shape, counted) for kind in line]
    drawn = [max(TILE, -(-n // DRAWN)) for n in sizes]
    arrays = {str(n.attr) for n in topological([plan.condition]) if n.op == "input"}
    return {
        "tile": counted,
        "computed": sum(kind > 0 for kind in found) / len(found),
        "whole": sum(kind == 2 for kind in found) / len(found),
        "arrays": sorted(arrays),
        "picture": ["".join(SIGNS[kind] for kind in line) for line in _lines(plan, op, shape, drawn)],
    }


def words(found: dict[str, Any] | None) -> str:
    """A mask's tiles in words, and their picture."""
    if found is None:
        return ""
    rows, columns = found["tile"]
    most = f"at most, for any {' and '.join(found['arrays'])}, " if found["arrays"] else ""
    text = f"of all tiles of {rows} x {columns}, {most}{found['computed']:.1%} are computed, {found['whole']:.1%} without the mask"
    return "\n".join([text, *found["picture"]])


def _lines(plan: AttentionPlan, op: Op, shape: Shape, tile: list[int]) -> Iterator[list[int]]:
    """For each tile, whether it is skipped (0), computed with the mask (1) or without it (2)."""
    assert plan.condition is not None
    nodes = list(topological([plan.condition]))
    params = {p.name: float(p.example) for p in op.spec.params if not isinstance(p.example, bool)}
    ends = [
        [*range(0, shape[axis], step), shape[axis]] for axis, step in zip((plan.row, plan.column), tile, strict=True)
    ]
    for first, end in pairwise(ends[0]):
        line = []
        for left, right in pairwise(ends[1]):
            known = {plan.row: (first, end - 1), plan.column: (left, right - 1)}
            some, every = _condition(nodes, known, params, shape)
            line.append(int(some) + int(some and every))
        yield line


def _condition(
    nodes: list[Node], positions: dict[str, Range], params: dict[str, float], shape: Shape
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


def _number(node: Node, args: list[Any], positions: dict[str, Range], params: dict[str, float], shape: Shape) -> Range:
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
    if node.op in ("floordiv", "mod") and args[1][0] == args[1][1] > 0 and math.isfinite(args[0][0]):
        divisor = args[1][0]
        low, high = (end // divisor for end in args[0])
        if node.op == "floordiv":
            return low, high
        return (args[0][0] % divisor, args[0][1] % divisor) if low == high else (0, divisor - 1)
    rule = RULES.get(node.op)
    numbers = all(a.kind != "bool" for a in node.args)
    return rule(*args) if rule is not None and numbers and node.op != "sum" else ANY
