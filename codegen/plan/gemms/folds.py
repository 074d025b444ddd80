"""Reductions of an epilogue that begin within the tiles of a GEMM kernel: each tile writes a partial result, and the chain's
operations on the whole result come later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from codegen.errors import UserError
from codegen.graph import online
from codegen.graph.names import fresh
from codegen.graph.nodes import DTYPES, Node, Statement, lost_axes, reaching, topological
from codegen.graph.ops import REDUCTIONS
from codegen.graph.precision import deciding_types, widths
from codegen.spec.spec import Array, Axis, Spec


@dataclass(frozen=True)
class Fold:
    """A reduction of the epilogue that begins within the tiles: each tile writes a partial result, and these are
    reduced in a fixed order. Reductions over other axes, and operations on the whole result, come later."""

    name: str
    node: Node
    value: str  # the tile's chain's name for the reduced value
    op: str  # its name in `reduce.combine`
    along: bool  # along a row; else over the rows of a column
    # The reduction that is its maximum, and how it follows that (`online`)
    rescaled: tuple[int, str, float, bool] | None

    @property
    def dtype(self) -> str:
        """The dtype of its partial results; bools are 0 and 1."""
        return "float32" if self.node.args[0].kind == "float" else "int32"


def folded(
    epilogue: Spec,
    statements: tuple[Statement, ...],
    order: tuple[str, ...],
    rows: tuple[str, ...],
    column: str,
    factors: Mapping[str, str],
) -> tuple[Spec, tuple[Statement, ...], tuple[Fold, ...], tuple[tuple[str, str], ...]]:
    """The epilogue up to its reductions: its spec and its chain, which end with the reduced values, the reductions, and
    the type that decides how exact each value is."""
    late = {s.name for s in statements if any(n.op in REDUCTIONS for n in topological([s.value]))}
    whole = tuple(a for a in epilogue.outputs if a.axes == order)
    _check_outputs(epilogue, whole, late, order)
    if not late:
        return epilogue, statements, (), ()
    made = [s for s in statements if s.name in {a.name for a in epilogue.outputs}]
    taken = {a.name for a in epilogue.arrays} | {s.name for s in statements} | {p.name for p in epilogue.params}
    values: dict[int, Statement] = {}
    types: dict[int, set[str]] = {}  # of the outputs that use reductions of a value
    folds: list[Fold] = []
    reached = reaching(made, {s.name for s in made})
    reduced = [n for n in topological(s.value for s in made) if n.op in REDUCTIONS]
    # A maximum before the reductions that follow it
    for node in sorted(reduced, key=lambda n: column not in lost_axes(n)):
        way = online.rescaled(node)
        if way is not None and column not in lost_axes(node):
            raise UserError("exponentials over rows, which follow the maximum of each column")
        value = node.args[0] if way is None else way.maximum.args[0]
        _check_fold(node, value, order, rows, column, epilogue.integer)
        users = [s.name for s in made if s.name in reached[id(node)]]
        types.setdefault(id(value), set()).update(epilogue.array(name).dtype for name in users)
        op = "sum" if node.op == "mean" else node.op
        if id(value) not in values:
            values[id(value)] = Statement(fresh(taken, f"{users[0]}_of"), None, value)
        follows = None
        if way is not None:
            place = next(place for place, fold in enumerate(folds) if fold.node is way.maximum)
            follows = (place, way.power, way.scale, way.finite)
        name = fresh(taken, f"{users[0]}_{op}")
        folds.append(Fold(name, node, values[id(value)].name, op, column in lost_axes(node), follows))
    dims = tuple(Axis((axis,), extents=(None,)) for axis in order)
    more = tuple(values.values())
    kinds = {"float": "float32", "int": "int32", "bool": "bool"}
    outputs = (*whole, *(Array(s.name, kinds[s.value.kind], dims) for s in more))
    ends = [s.value for s in (*made, *more) if s.name not in late]
    early = {id(n) for n in topological(ends)}
    own = [s for s in statements if s.name not in late and id(s.value) in early]
    read = {**epilogue.float_types(epilogue.inputs), **factors}
    deciding = deciding_types(statements, epilogue.asked_types, read, dict(epilogue.types))
    exactness = []
    for s in more:
        dtype = _exactness(types[id(s.value)], epilogue, whole)
        if dtype == "float32" and (factor := _factor_decides(s, folds, made, epilogue, deciding, factors)):
            dtype = factor
        exactness.append((s.name, dtype))
    return replace(epilogue, outputs=outputs), (*own, *more), tuple(folds), tuple(exactness)


def _factor_decides(
    reduced: Statement,
    folds: list[Fold],
    made: list[Statement],
    epilogue: Spec,
    deciding: Mapping[int, frozenset[str]],
    factors: Mapping[str, str],
) -> str:
    """The factors' type, if it alone decides whether a reduced value may be approximate; "" if not.
    (`precision.deciding_types` takes a product for an array of the factors' type.)

    A backward compares elements with a maximum that is an output, and computes them as it is told for a float32 output. So a maximum
    only counts if sums of exponentials follow it."""
    outputs = {id(s.value) for s in made if s.name in epilogue.asked_types}
    followed = {f.rescaled[0] for f in folds if f.rescaled is not None}
    for place, fold in enumerate(folds):
        if fold.value == reduced.name and fold.op in ("max", "min"):
            if place not in followed or not fold.along or id(fold.node) in outputs:
                return ""
    types = [deciding[id(n)] for n in topological([reduced.value]) if id(n) in deciding]
    factor = next(iter(factors.values()), "float32")
    variables = dict(epilogue.types)
    others = frozenset().union(*types) - {factor}
    return factor if types and all(widths(t, variables) == {True} for t in others) else ""


def _exactness(dtypes: set[str], epilogue: Spec, whole: tuple[Array, ...]) -> str:
    """The type that decides how exact a value is whose reductions outputs of these types use: their type, if they have
    one. A type variable that no array of the kernel has is replaced by one of its types if all are narrow, else by
    float32."""
    (dtype, *others), found = dtypes, {d for dtype in dtypes for d in epilogue.dtypes(dtype)}
    if others or any(DTYPES[d].kind != "float" for d in found):
        return "float32"
    if dtype in {a.dtype for a in whole}:
        return dtype
    return min(found) if all(DTYPES[d].size < 4 for d in found) else "float32"


def _check_outputs(epilogue: Spec, whole: tuple[Array, ...], late: set[str], order: tuple[str, ...]) -> None:
    """Checks that each output has a tile's axes, or is computed from reductions over all tiles, such as those in
    `late`."""
    words = ", ".join(order)
    if not whole and not late:
        raise UserError(f"no output is a tile of ({words})")
    for array in epilogue.outputs:
        if array in whole and array.name in late:
            raise UserError(f"{array.name!r} needs reductions over its tiles")
        if array not in whole and array.name not in late:
            raise UserError(f"{array.name!r} is neither a tile of ({words}) nor made of reductions over its tiles")


def _check_fold(
    node: Node, value: Node, order: tuple[str, ...], rows: tuple[str, ...], column: str, integer: str
) -> None:
    """Checks that a reduction of a value can begin within the tiles."""
    if any(n.op in REDUCTIONS for n in topological([value])):
        raise UserError("a reduction that needs the result of another one")
    if value.kind == "int" and integer != "int32":
        raise UserError(f"no tile is reduced by {node.op!r} of {integer}")
    lost = lost_axes(node)
    if set(value.dims) != set(order) or not (column in lost or set(rows) <= set(lost)):
        raise UserError(f"a reduction along ({', '.join(lost)}) of a value with the axes ({', '.join(value.dims)})")
