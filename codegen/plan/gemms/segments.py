"""Segments of a product's rows: the columns along the innermost of b's axes, where b has several, as the heads of attention.

A tile has whole segments. So its epilogue may use reductions along that axis of what is made of the products alone: registers
have all of them before the epilogue begins (`device/gemm/folds.py`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from codegen.errors import UserError
from codegen.graph.names import fresh
from codegen.graph.nodes import Leaf, Node, Statement, lost_axes, topological
from codegen.graph.ops import REDUCTIONS
from codegen.language.transfer import Values, derived_spec
from codegen.plan.elementwise import Elementwise, tile_plan
from codegen.spec.spec import Array, Spec

WIDTHS = (64, 128, 256)  # accumulators of a segment: tiles are multiples of them
REDUCED = ("sum", "mean", "max", "min")


@dataclass(frozen=True)
class Segments:
    """The values that are reduced along the segments of a row, before the epilogue."""

    names: tuple[str, ...]  # the epilogue's inputs that hold the results
    ops: tuple[str, ...]
    spec: Spec  # from the products to the values that are reduced, its outputs
    plan: Elementwise


def of_segments(
    epilogue: Spec, statements: tuple[Statement, ...], accs: Collection[str], order: tuple[str, ...], borders: set[str]
) -> tuple[Spec, tuple[Statement, ...], Segments | None]:
    """An epilogue whose reductions along the innermost axis are inputs, and what they reduce. Raises `UserError` where a tile
    cannot compute them."""
    outputs = {a.name for a in epilogue.outputs}
    made = tuple(s for s in statements if s.name in outputs)
    found = [n for n in topological(s.value for s in made) if n.op in REDUCTIONS]
    if not found:
        return epilogue, statements, None
    for node in found:
        _check(node, order, accs)
    taken = {a.name for a in epilogue.arrays} | {s.name for s in statements} | {p.name for p in epilogue.params}
    names = tuple(fresh(taken, f"{node.op}_{order[-1].lower()}") for node in found)
    reduced = tuple(fresh(taken, f"of_{name}") for name in names)
    calls = epilogue.read.graph.calls
    own = {id(s.value): s.name for s in statements if s.part is None and s.name not in outputs}
    dims = epilogue.dims(order)
    results = tuple(Array(name, "float32", dims[:-1]) for name in names)
    leaves = {id(n): Leaf(name) for n, name in zip(found, names, strict=True)}
    after = replace(epilogue, inputs=(*epilogue.inputs, *results))
    after = derived_spec(after, f"{epilogue.op} (segments)", Values(made, calls, own, leaves), taken)
    before = replace(
        epilogue, op=f"{epilogue.op}_segments", inputs=tuple(a for a in epilogue.inputs if a.name in accs), params=(),
        outputs=tuple(Array(name, "float32", dims) for name in reduced), domain=(),
    )  # fmt: skip
    targets = tuple(Statement(name, None, n.args[0]) for name, n in zip(reduced, found, strict=True))
    before = derived_spec(before, f"{epilogue.op} (reduced)", Values(targets, calls, own), taken)
    ops, plan = tuple(n.op for n in found), tile_plan(before, before.read.statements, borders)
    return after, after.read.statements, Segments(names, ops, before, plan)


def _check(node: Node, order: tuple[str, ...], accs: Collection[str]) -> None:
    """Raises `UserError` for a reduction that a tile does not compute in registers."""
    (value,) = node.args
    axis = order[-1]
    inside = list(topological([value]))
    if node.op not in REDUCED or value.kind != "float" or lost_axes(node) != (axis,):
        raise UserError(
            f"{node.op!r} along ({', '.join(lost_axes(node))}), and a tile reduces floats along {axis} alone"
        )
    if value.dims != order:
        raise UserError(f"a reduction along {axis} of a value with the axes ({', '.join(value.dims)})")
    if any(n.op in REDUCTIONS for n in inside):
        raise UserError("a reduction that needs the result of another one")
    read = {n.attr.name for n in inside if isinstance(n.attr, Leaf)}
    if not read <= {*accs} or any(n.op in ("param", "index", "size", "cast") for n in inside):
        raise UserError(
            f"a reduction along {axis} that needs more than the products: registers have only these before the epilogue"
        )
