"""The tiles of scores that attention computes, for `explain`. As in kernels, bounds of the mask's condition over a tile decide."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from codegen.graph.nodes import topological
from codegen.graph.positions import holds
from codegen.language.sizes import Shape
from codegen.plan.attention import AttentionPlan
from codegen.plan.op import Op, attention_in

TILE = 128
MOST, DRAWN = 128, 16  # tiles along an axis that are counted, and drawn: larger ones if there are more
SIGNS = "·▒█"  # of tiles that are skipped, computed with the mask, and without it


def mask(op: Op, shape: Shape) -> dict[str, Any] | None:
    """The fraction of tiles that are computed, and that are computed without the mask; a picture of the tiles; and the arrays that the
    mask reads, whose values are unknown here. None without a mask, or where all rows and columns are one tile."""
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
            some, every = holds(nodes, known, params, shape)
            line.append(int(some) + int(some and every))
        yield line
