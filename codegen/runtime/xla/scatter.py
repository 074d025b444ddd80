"""Writes at the positions of an index, by XLA: the values of `put`, and gradients of values that `take` gathered from a
table, which are added up. Axes are matched by name."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from codegen.autodiff.reverse import Scattered
from codegen.graph.nodes import ROWS
from codegen.language.chain import output_parts
from codegen.plan.access import Access, Plan
from codegen.runtime.call import views
from codegen.runtime.call.arguments import Axes, Types, bind_axes
from codegen.runtime.call.views import join_parts, named_axes
from codegen.spec.spec import Array, Spec

Named = tuple[jax.Array, Sequence[str]]  # an array and its axes, of which "..." is any number


def add_taken(
    spec: Spec, how: Scattered, so_far: jax.Array, at: tuple[jax.Array, Array], values: Named
) -> jax.Array:  # fmt: skip
    """A table's gradient `so_far`, in the user's shape, plus the `values` at the places that the indices `at` give. `spec` is the spec
    of the op that takes from the table."""
    table, (places_given, index) = spec.array(how.table), at
    given = {how.index: places_given} if index in spec.inputs else {}
    axes = bind_axes(spec, {how.table: so_far, **given})
    parts = {part: named_axes(table, so_far, axes, part) for part in output_parts(table)}
    places = (named_axes(index, places_given, axes, None) if given else places_given), index.axes
    parts[how.part] = _add_by_index((parts[how.part], table.axes), places, how.axis, values)
    return join_parts(table, parts, axes)


def _add_by_index(table: Named, index: Named, along: str, values: Named) -> jax.Array:
    """The table plus `values`: each is added to the element that the index, clamped to the axis, selects. The values have the axes
    of the index and the table's other axes. Along axes that index and table share, an element stays at its place."""
    at, axes = index[0], _each(table[1], table[0].ndim)
    at = at if at.dtype.itemsize >= 4 else at.astype(jnp.int32)
    at = jnp.clip(at, 0, table[0].shape[axes.index(along)] - 1)
    return _at_places(table, (at, index[1]), along, values, lambda places, added: places.add(added))


def stored(
    plan: Plan, stores: Sequence[Access], values: Sequence[jax.Array], arrays: Mapping[str, jax.Array], axes: Axes, types: Types
) -> dict[Array, jax.Array]:  # fmt: skip
    """The outputs that `stores` write, from the jnp form's value for each, in the user's shape and type."""
    found = views.stored(stores, values, plan.order, axes, types)
    return found | put(plan, found, arrays, axes)


def put(
    plan: Plan, values: Mapping[Array, jax.Array], arrays: Mapping[str, jax.Array], axes: Axes, how: str = ""
) -> dict[Array, jax.Array]:
    """The outputs of `put`, in the user's shape, from the `values` to write: the rest is as in the input that each begins as. An
    index out of range writes nothing. `how` replaces how values are combined with what is there."""
    found: dict[Array, jax.Array] = {}
    for access in plan.stores:
        output = access.array
        if not access.into or access.index_of is None or output is None or output not in values:
            continue
        name, along = access.index_of
        table, extent = named_axes(output, jnp.asarray(arrays[access.into]), axes, None), axes.extents[along]
        index = plan.view(name).array
        at = named_axes(index, jnp.asarray(arrays[name]), axes, None)
        at = at.astype(jnp.promote_types(at.dtype, jnp.int32))
        if isinstance(extent, int) and extent == 0:
            found[output] = jnp.asarray(arrays[access.into])
            continue
        at = jnp.where((at < 0) | (at >= extent), jnp.asarray(extent, at.dtype), at)
        made = _at_places(
            (table, output.axes), (at, index.axes), along, (values[output], access.written),
            functools.partial(_write, how or access.how),
        )  # fmt: skip
        found[output] = join_parts(output, {None: made}, axes)
    return found


def _write(how: str, places: Any, value: jax.Array) -> jax.Array:
    written: jax.Array = getattr(places, how)(value, mode="drop", unique_indices=how == "set")
    return written


def _at_places(table: Named, index: Named, along: str, values: Named, write: Callable[..., jax.Array]) -> jax.Array:
    """The table after `write(table.at[places], values)`. The values have the axes of the index and the table's other axes. Along
    axes that index and table share, an element stays at its place."""
    (into, axes), (at, index_axes), (value, value_axes) = ((x, _each(a, x.ndim)) for x, a in (table, index, values))
    picked = [a for a in axes if a == along or a in index_axes]
    whole = [a for a in axes if a not in picked]
    places = tuple(
        at if a == along else jax.lax.broadcasted_iota(at.dtype, at.shape, index_axes.index(a)) for a in picked
    )
    order = [axes.index(a) for a in (*picked, *whole)]
    value = value.transpose([value_axes.index(a) for a in (*index_axes, *whole)])
    result = write(into.transpose(order).at[places], value)
    return result.transpose([order.index(i) for i in range(len(order))])


def _each(axes: Sequence[str], count: int) -> list[str]:
    """As many names as an array has axes."""
    rows = [f"{ROWS}{i}" for i in range(count - len(axes) + 1)]
    return [name for a in axes for name in (rows if a == ROWS else [a])]
