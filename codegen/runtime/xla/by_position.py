"""The arrays of a call as the jnp form reads and stores them: shaped by position, so that they broadcast."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from codegen.graph.nodes import ROWS
from codegen.plan.access import Access, Plan
from codegen.runtime.call.arguments import Axes, Types
from codegen.runtime.call.cast import store
from codegen.runtime.call.views import user_shape
from codegen.spec.spec import Array


def widened(plan: Plan, arrays: Mapping[str, Any], compute: str) -> dict[str, Any]:
    """The arrays, with floats that are read at several places in the compute type: their gradients are summed in it."""
    several = {a.array.name for a in plan.loads if a.back and a.array is not None}
    floats = {n for n in several & set(arrays) if jnp.issubdtype(arrays[n].dtype, jnp.floating)}
    return {n: jnp.asarray(x).astype(compute) if n in floats else x for n, x in arrays.items()}


def jnp_value(
    plan: Plan,
    access: Access,
    arrays: Mapping[str, jax.Array],
    axes: Axes,
    compute: str,
    integer: str,
) -> jax.Array:
    """The values that the chain reads, in its compute type, shaped to broadcast by position: a dimension for each axis of the plan
    (any number for `...`), or a scalar."""
    if access.mode in ("index", "size"):
        axis = access.counted if access.group is None else plan.groups[access.group].axes[0]
        extent = math.prod(axes.shape((axis,)))
        if access.mode == "size":
            return jnp.asarray(extent, integer)
        place = jnp.arange(extent, dtype=integer).reshape(axes.shape((axis,)))
        return _spread(place, (axis,), plan.order, len(axes.rows))
    assert access.array is not None
    array, own = access.array, access.array.axes
    if access.index_of:
        index, axis = access.index_of
        place = own.index(axis)
        if array.name in arrays:
            value = named_axes(array, jnp.asarray(arrays[array.name]), axes, access.part)
            # Before the gather, whose gradient is a sum over an element's uses
            if jnp.issubdtype(value.dtype, jnp.floating):
                value = value.astype(compute)
            indices = named_index(plan, index, arrays, axes).astype(integer)
            value = _gather(value, own, indices, plan.view(index).array.axes, axis, plan.order, len(axes.rows))
            own = plan.order
        else:
            own = (*own[:place], *plan.view(index).array.axes, *own[place + 1 :])
    elif array.name in arrays:
        value = named_axes(array, jnp.asarray(arrays[array.name]), axes, access.part)
        for along, by in access.back:  # what comes from the other end is not used
            place = own.index(along) + (len(axes.rows) - 1 if ROWS in own else 0)
            value = jnp.roll(value, by, place)
    if array.name not in arrays:  # its default in full size: a reduction may be along it
        dtype = {bool: "bool", int: integer, float: compute}[type(array.default)]
        return _spread(jnp.full(axes.shape(own), array.default, dtype), own, plan.order, len(axes.rows))
    if jnp.issubdtype(value.dtype, jnp.floating):
        value = value.astype(compute)
    elif value.dtype != jnp.bool_:
        value = value.astype(integer)
    return value if access.mode == "table" else _spread(value, own, plan.order, len(axes.rows))


def _gather(
    table: jax.Array,
    own: tuple[str, ...],
    indices: jax.Array,
    indices_own: tuple[str, ...],
    axis: str,
    order: tuple[str, ...],
    rows: int,
) -> jax.Array:
    """A table's values along one axis, shaped to broadcast by position against the outputs. Axes of table and indices are matched
    by name."""
    place = own.index(axis)
    lead = rows - 1 if ROWS in own[:place] else 0
    taken = ""  # the table's axis, before the outputs' axes, which may have one of the same name
    table = jnp.moveaxis(table, place + lead, 0)
    extent = table.shape[0]
    table = _spread(table, (taken, *own[:place], *own[place + 1 :]), (taken, *order), rows)
    indices = _spread(indices[None], (taken, *indices_own), (taken, *order), rows)
    if isinstance(extent, int) and extent == 0:  # only where the outputs are empty too
        return jnp.zeros(jnp.broadcast_shapes(table.shape[1:], indices.shape[1:]), table.dtype)
    indices = jnp.clip(indices, jnp.asarray(0, indices.dtype), jnp.asarray(extent - 1, indices.dtype))
    return jnp.take_along_axis(table, indices, axis=0, mode="promise_in_bounds")[0]


def named_index(plan: Plan, name: str, arrays: Mapping[str, jax.Array], axes: Axes) -> jax.Array:
    return named_axes(plan.view(name).array, jnp.asarray(arrays[name]), axes, None)


def index_value(plan: Plan, access: Access, value: jax.Array, axes: Axes) -> jax.Array:
    """The index with which a table is accessed, shaped to broadcast by position."""
    assert access.index_of is not None
    name = access.index_of[0]
    return _spread(named_index(plan, name, {name: value}, axes), plan.view(name).array.axes, plan.order, len(axes.rows))


def named_axes(array: Array, value: jax.Array, axes: Axes, part: int | None) -> jax.Array:
    """An array, or one part of it, with exactly its named axes and its rows."""
    shape: list[Any] = []
    place = None
    for dim in array.dims:
        if dim.names == (ROWS,):
            shape += axes.rows
            continue
        names = [axes.extents[name] for name in dim.names]
        if dim.parts is None:
            shape += names
        elif dim.parts_first:
            place = len(shape)
            shape += [dim.parts, *names]
        else:
            shape += names
            place = len(shape)
            shape += [dim.parts]
    value = value.reshape(shape)
    return value if place is None else jax.lax.index_in_dim(value, part or 0, place, keepdims=False)


def _spread(value: jax.Array, own: tuple[str, ...], order: tuple[str, ...], rows: int) -> jax.Array:
    """The value with its axes in order, and dimensions of size 1 for missing axes, so that it has the full rank. A scalar
    stays a scalar."""
    value = _arranged(value, own, order, rows)
    missing = _missing(own, order, rows)
    return jnp.expand_dims(value, missing) if own and missing else value


def _arranged(value: Any, own: tuple[str, ...], order: tuple[str, ...], rows: int) -> Any:
    """The value, whose axes are `own`, with its axes in another order; `...` has `rows` dimensions."""
    wanted = tuple(axis for axis in order if axis in own)
    if own == wanted or not value.ndim:
        return value
    places: dict[str, list[int]] = {}
    for axis in own:
        start = sum(map(len, places.values()))
        places[axis] = [*range(start, start + (rows if axis == ROWS else 1))]
    return value.transpose([place for axis in wanted for place in places[axis]])


def with_every_axis(order: tuple[str, ...], dims: tuple[str, ...], axes: Axes) -> tuple[int, ...]:
    """The shape of a value along `dims` with every axis; missing axes have size 1."""
    return tuple(n if axis in dims else 1 for axis in order for n in axes.shape((axis,)))


def stored(
    stores: Sequence[Access], values: Sequence[Any], order: tuple[str, ...], axes: Axes, types: Types
) -> dict[Array, jax.Array]:
    """Outputs from the jnp form's value for each of `stores`. An output of `put` has only the elements that are written."""
    parts: dict[Array, dict[int | None, Any]] = {}
    for access, value in zip(stores, values, strict=True):
        assert access.array is not None
        own = access.written if access.into else access.array.axes
        # Broadcast first: the gradient of a broadcast value is a sum, which is computed in the compute type
        value = arranged_as(value, own, order, axes)
        parts.setdefault(access.array, {})[access.part] = store(value, types.dtype(access.array))
    puts = {a.array for a in stores if a.into}
    return {a: own[None] if a in puts else join_parts(a, own, axes) for a, own in parts.items()}


def arranged_as(value: Any, own: tuple[str, ...], order: tuple[str, ...], axes: Axes) -> Any:
    """A value that is shaped by position, in the shape of an output whose axes are `own`. A NumPy array stays one."""
    ordered = tuple(axis for axis in order if axis in own)
    of = np if isinstance(value, np.ndarray) else jnp
    full = of.broadcast_to(lose(value, own, order, len(axes.rows)), axes.shape(ordered))
    return _arranged(full, ordered, own, len(axes.rows))


def lose(value: Any, own: tuple[str, ...], order: tuple[str, ...], rows: int) -> Any:
    """An output's value, shaped by position, without the dimensions of reduced axes, which reductions keep."""
    missing = _missing(own, order, rows)
    return value.squeeze(missing) if value.ndim and missing else value


def _missing(own: tuple[str, ...], order: tuple[str, ...], rows: int) -> tuple[int, ...]:
    """The dimensions of the axes in `order` that are not in `own`; `...` has `rows` dimensions."""
    missing: list[int] = []
    place = 0
    for axis in order:
        width = rows if axis == ROWS else 1
        if axis not in own:
            missing += range(place, place + width)
        place += width
    return tuple(missing)


def join_parts(array: Array, parts: Mapping[int | None, jax.Array], axes: Axes) -> jax.Array:
    """An output from its parts, in the user's shape."""
    if array.parts is None:
        return parts[None].reshape(user_shape(array, axes))
    place = 0
    for dim in array.dims:
        if dim.parts is not None:
            place += 0 if dim.parts_first else len(dim.names)
            break
        place += len(axes.rows) if dim.names == (ROWS,) else len(dim.names)
    values = [parts[i] for i in range(array.parts)]
    return jnp.stack(values, axis=place).reshape(user_shape(array, axes))
