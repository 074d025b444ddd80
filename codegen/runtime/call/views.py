"""An op's arrays in the shapes of its kernel, and the further arrays that the kernel writes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from codegen.graph.nodes import DTYPES, ROWS
from codegen.plan.access import INT_MAX, Plan
from codegen.plan.attention import Attention, AttentionBackward, AttentionPlan
from codegen.plan.elementwise import Elementwise
from codegen.plan.launches import AnyLaunch, Extents
from codegen.plan.rows.access import Statistic
from codegen.plan.rows.reductions import Reduction
from codegen.plan.rows.scanning import Scan
from codegen.runtime.call.arguments import Axes
from codegen.shared import COUNTER, AttentionLaunch, Launch, Walk
from codegen.spec.spec import Array, Spec

# The largest size of a group: a vector may run past it without leaving int32
LIMIT = INT_MAX - 64
AHEAD = 2**20  # rows past the last one that a kernel which walks down them may look at


def user_shape(array: Array, axes: Axes) -> tuple[Any, ...]:
    """The user's shape of an array: parts and blocks are one axis."""
    shape: list[Any] = []
    for dim in array.dims:
        if dim.names == (ROWS,):
            shape += axes.rows
        else:
            extent = dim.parts or 1
            for name in dim.names:
                extent = extent * axes.extents[name]
            shape.append(extent)
    return tuple(shape)


def group_extents(plan: Plan, axes: Axes) -> tuple[Any, ...]:
    """The size of each of the plan's groups."""
    if plan.collapsed:
        total = _product(axes.shape(plan.order))
        return _factor(total) or (1, total)
    return tuple(_product(axes.shape(group.axes)) for group in plan.groups)


def _product(extents: tuple[Any, ...]) -> Any:
    result: Any = 1
    for extent in extents:
        result = result * extent
    return result


def _factor(total: Any) -> tuple[int, int] | None:
    """Two factors of a count that is too large for an int32. The second is a multiple of a power of two, if the count
    is."""
    if not isinstance(total, int) or total <= LIMIT:
        return None
    power = total & -total
    if total // power <= LIMIT and power <= LIMIT:
        columns = power
        while columns < 2**20 and (total // columns) % 2 == 0:
            columns *= 2
        return total // columns, columns
    for rows in range(-(-total // LIMIT), 2**20):
        if total % rows == 0:
            return rows, total // rows
    return None


def fits(plan: Plan, axes: Axes) -> str | None:
    """Why a kernel cannot take these sizes, or None."""
    for group, extent in zip(plan.groups, group_extents(plan, axes), strict=True):
        if exceeds(extent, LIMIT):
            words = "elements that do not factor" if plan.collapsed else " x ".join(group.axes)
            return too_many(extent, words)
    if isinstance(plan, Reduction):
        extents = group_extents(plan, axes)
        columns = tuple(extents[i] for i in plan.spread)
        for words, extent in (("rows", _product(extents[: plan.leading])), ("columns", _product(columns))):
            limit = LIMIT - AHEAD if words == "rows" and plan.columns and not plan.collapsed else LIMIT
            if exceeds(extent, limit):
                return too_many(extent, words, limit)
    return None


def too_many(extent: Any, words: str, limit: int = LIMIT) -> str:
    """The message for a size that no kernel takes."""
    return f"{extent} {words} are more than the {limit} that a kernel's coordinate holds; split the array"


def exceeds(extent: Any, limit: int = LIMIT) -> bool:
    """Whether a size is larger than a limit; for a symbolic size, whether it always is."""
    try:
        return bool(extent > limit)
    except Exception as error:  # JAX's, of one of two names, that both may be
        if "onclusive" not in type(error).__name__:
            raise
        return False


def check_tables(spec: Spec, plan: Plan, arrays: Mapping[str, Any], axes: Axes) -> None:
    """Raises ValueError where outputs gather from an empty table, unless all outputs are empty."""
    if all(0 in user_shape(output, axes) for output in spec.outputs):
        return
    for access in plan.loads:
        table = access.array
        if table is None or table.name not in arrays:
            continue
        along = [access.index_of[1]] if access.index_of else table.axes if access.mode == "table" else ()
        for axis in along:
            extent = axes.extents[axis]
            if isinstance(extent, int) and extent == 0:
                shape = tuple(arrays[table.name].shape)
                index = repr(access.index_of[0]) if access.index_of else "an index"
                message = f"{axis} is 0, and {index} has no value to take from an empty axis"
                raise ValueError(f"{spec.op}: {table.name!r} has shape {shape} for {table}: {message}")


def kernel_shape(plan: Plan, array: Array, axes: Axes) -> tuple[Any, ...]:
    """The shape of the kernel's view: a mode for each group, for parts, and for an axis that only a table has; at least one."""
    extents = group_extents(plan, axes)
    shape = []
    for token in plan.view(array.name).tokens:
        if token == "parts":
            shape.append(array.parts)
        else:
            shape.append(extents[token] if isinstance(token, int) else _product(axes.shape((token,))))
    return tuple(shape) or (1,)


def divisibility(plan: Plan, array: Array, how: AnyLaunch) -> tuple[int, ...]:
    """The divisor of each mode that the compiler may assume: only that whole vectors fit the innermost group. A kernel that
    reduces computes the places of its vectors itself."""
    tokens = plan.view(array.name).tokens
    if isinstance(plan, AttentionPlan):
        return (*(1 for _ in tokens[1:]), how.vec if tokens and whole_rows(plan, array) else 1)
    whole: dict[int | str | None, int] = {}
    if isinstance(plan, Elementwise) and isinstance(how, Launch) and not how.ragged:
        whole = {plan.turned: how.down, len(plan.groups) - 1: how.vec}
    return tuple(whole.get(token, 1) for token in tokens) or (1,)


def kernel_dtype(array: Array, dtype: str, how: AnyLaunch) -> str:
    """The type in which the kernel has an array: its own, unless it is converted before."""
    return how.converts if isinstance(how, AttentionLaunch) and array.name in how.converted else dtype


def converted(value: Any, array: Array, how: AnyLaunch) -> Any:
    """An array, or None, in the kernel's type."""
    if value is None:
        return None
    dtype = kernel_dtype(array, str(value.dtype), how)
    return value if dtype == str(value.dtype) else value.astype(dtype)


def whole_rows(plan: AttentionPlan, array: Array) -> bool:
    """Whether each row of an array is whole vectors, of the factors and of the products."""
    return array in plan.vectors


def alignment(plan: Plan, array: Array, dtype: str) -> int:
    """The alignment in bytes that the compiler may assume: 256, XLA's, where vectors are accessed, and the element's
    size where elements are read. With more, it would join neighbouring loads into one that reads past the array's
    end."""
    if isinstance(plan, AttentionPlan) and not whole_rows(plan, array):
        return DTYPES[dtype].size
    if isinstance(plan, AttentionPlan):
        return 256
    read = any(a.array == array and a.mode in ("flat", "tile", "turned") for a in plan.loads)
    read |= isinstance(plan, Scan) and plan.reads_states_together(array)
    written = any(a.array == array for a in plan.stores)
    return 256 if read or written else DTYPES[dtype].size


def parts(plan: Plan, axes: Axes, how: Any, compute: str, integer: str) -> list[tuple[tuple[Any, ...], str]]:
    """The shapes and dtypes of the arrays that a kernel writes for the next kernel of its call. That kernel reduces partial results of
    columns, adds up the blocks of a row of attention, rounds sums of gradients, or scans in the other direction."""
    if isinstance(plan, AttentionBackward):
        shape = (_joint_tiles(plan, axes, how), how.tile_m * how.d) if how.joint else (0, 0)
        return [(shape, "float32"), (_listed(plan, axes, how), "int32")]
    if isinstance(plan, Attention):
        rows = _product(tuple(_product(axes.shape((axis,))) for axis in (*plan.batch, plan.row)))
        joined = (how.splits, rows, how.e + 2) if how.splits > 1 else (0, 0, 0)
        return [(joined, "float32"), (_listed(plan, axes, how), "int32")]
    if isinstance(plan, Scan):
        return [(shape, compute) for shape in plan.written(lambda own: _product(axes.shape(own)), how)]
    if not isinstance(plan, Reduction) or not plan.columns:
        return []
    extents = group_extents(plan, axes)
    apart, columns = _product(tuple(extents[i] for i in plan.apart)), _product(extents[plan.leading :])
    blocks, kept = how.blocks(0, columns) * apart, apart * columns // (how.each or 1)
    settled = plan.settled if isinstance(how, Walk) and how.settles else ()
    return [
        ((how.parts, 0 if s in settled else kept) if s.over == "column" else (blocks,), dtype)
        for s, dtype in part_dtypes(plan, compute, integer)
    ]


def row_statistics(plan: Plan, axes: Axes, how: Any, compute: str, integer: str) -> list[tuple[tuple[Any, ...], str]]:
    """Shapes and dtypes of the statistics of rows that a first kernel writes; empty where there is none."""
    if not isinstance(plan, Reduction) or plan.first is None:
        return []
    extents = group_extents(plan, axes)[: plan.leading]
    shape = tuple(0 for _ in extents) if how.whole else tuple(extents)
    return [(shape or (0 if how.whole else 1,), dtype) for _, dtype in row_statistic_dtypes(plan, compute, integer)]


def _listed(plan: AttentionPlan, axes: Axes, how: AttentionLaunch) -> tuple[Any, ...]:
    """The size of the table with the bounds of a mask's arrays: two numbers for each block of rows, and of columns."""
    if not how.listed:
        return (0,)
    batch = _product(tuple(_product(axes.shape((axis,))) for axis in plan.batch))
    sizes = axes.shape((plan.row,))[0], axes.shape((plan.column,))[0]
    return (how.listed * 2 * batch * sum(-(-n // each) for n, each in zip(sizes, how.spans, strict=True)),)


def _joint_tiles(plan: AttentionBackward, axes: Axes, how: AttentionLaunch) -> Any:
    """The number of tiles of q."""
    (rows,) = axes.shape((plan.row,))
    return _product(tuple(_product(axes.shape((axis,))) for axis in plan.batch)) * -(-rows // how.tile_m)


def counts(plan: Plan) -> bool:
    """Whether the launcher takes a counter."""
    return isinstance(plan, AttentionBackward) or (isinstance(plan, Reduction) and plan.first is not None)


def counter(plan: Plan, axes: Axes, how: Any) -> list[tuple[tuple[Any, ...], str]]:
    """The shape and dtype of a counter in memory. With it, blocks that loop over whole rows keep pace, and blocks of
    attention take turns to add to the gradient of q."""
    if not counts(plan):
        return []
    if isinstance(plan, AttentionBackward):
        return [((_joint_tiles(plan, axes, how) + 1 if how.joint else 0,), "int32")]
    return [((COUNTER if how.long else 0,), "int32")]


def row_statistic_dtypes(plan: Plan, compute: str, integer: str) -> list[tuple[Statistic, str]]:
    """The statistics of rows that a kernel may write for another, and their dtypes."""
    if not isinstance(plan, Reduction) or plan.first is None:
        return []
    dtypes = {"float": compute, "int": integer, "bool": "int32"}
    return [(s, dtypes[s.kind]) for s in plan.rows]


PARTS_ALIGNMENT = 256  # bytes: the alignment of XLA's arrays; partial results are never part of another array


def part_dtypes(plan: Plan, compute: str, integer: str) -> list[tuple[Statistic, str]]:
    """Each statistic that is reduced over rows, and the dtype of its partial results."""
    if not isinstance(plan, Reduction):
        return []
    dtypes = {"float": compute, "int": integer, "bool": "int32"}
    return [(s, dtypes[s.kind]) for s in plan.columns]


def known_extents(plan: Plan, axes: Axes) -> Extents:
    """The sizes that a launch depends on. Symbolic sizes are replaced by the largest vector width that is known to
    divide them; numbers of rows and columns are then unknown."""
    extents = group_extents(plan, axes)
    if not extents:
        return Extents(1, 1)
    inner, total = divisor(extents[plan.vector_group]), divisor(_product(extents))
    if isinstance(plan, AttentionPlan):
        inner, columns = (_product(axes.shape((axis,))) for axis in (plan.value, plan.contracted))
        own = [_product(axes.shape(some)) for some in ((plan.row,), plan.keys)]
        batch, shared = (
            _product(tuple(n for a in some for n in axes.shape((a,)))) for some in (plan.batch, plan.shared)
        )
        page = _product(axes.shape(plan.keys[1:]))
        known = [n if isinstance(n, int) else None for n in (*own, batch, shared, page)]
        return Extents(stands_for(inner), known[1], stands_for(columns), known[0], *known[2:])
    if isinstance(plan, Elementwise) and plan.turned is not None:
        return Extents(inner, total, turned=divisor(extents[plan.turned]))
    sizes = (_product(tuple(extents[i] for i in groups)) for groups in plan.counted)
    tables = plan.tables if isinstance(plan, Elementwise) else ()
    own, held = ([n if isinstance(n, int) else None for n in some] for some in (sizes, map(axes.count, tables)))
    return Extents(inner, total, *own, outer=extents[0] if isinstance(extents[0], int) else None, tables=tuple(held))


def power_of_two(extent: Any, most: int) -> int:
    """The largest power of two known to divide a size, up to `most`."""
    found = divisor(extent) or 1
    return math.gcd(found, most) if found else most


def stands_for(extent: Any) -> int:
    """A size; for a symbolic one a large number that the same powers of two divide, as far as vectors go."""
    return extent if isinstance(extent, int) else 8192 + (divisor(extent) or 1) % 16


def divisor(extent: Any) -> int | None:
    """A size; where it is symbolic, the largest vector width known to divide it, or None."""
    if isinstance(extent, int):
        return extent
    for width in (16, 8, 4, 2):
        try:
            if extent % width == 0:
                return width
        except Exception as error:  # an inconclusive comparison of symbolic dimensions, by whatever name JAX gives it
            if "onclusive" not in type(error).__name__:
                raise
    return None
