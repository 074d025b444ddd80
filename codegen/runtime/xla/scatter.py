"""Adds gradients of values that `take` gathered from a table to the table's gradient by index, with XLA. Axes are matched by
name."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from codegen.autodiff.reverse import Scattered
from codegen.graph.nodes import ROWS
from codegen.language.chain import output_parts
from codegen.runtime.call.arguments import bind_axes
from codegen.runtime.call.views import join_parts, named_axes
from codegen.spec.spec import Spec

Named = tuple[jax.Array, Sequence[str]]  # an array and its axes, of which "..." is any number


def add_taken(spec: Spec, how: Scattered, so_far: jax.Array, at: jax.Array, values: Named) -> jax.Array:
    """A table's gradient `so_far`, in the user's shape, plus the `values` at the places that the array of indices `at` gives. `spec`
    is the spec of the op that takes from the table."""
    table, index = spec.array(how.table), spec.array(how.index)
    axes = bind_axes(spec, {how.table: so_far, how.index: at})
    parts = {part: named_axes(table, so_far, axes, part) for part in output_parts(table)}
    places = named_axes(index, at, axes, None), index.axes
    parts[how.part] = _add_by_index((parts[how.part], table.axes), places, how.axis, values)
    return join_parts(table, parts, axes)


def _add_by_index(table: Named, index: Named, along: str, values: Named) -> jax.Array:
    """The table plus `values`: each is added to the element that the index, clamped to the axis, selects. The values have the axes
    of the index and the table's other axes. Along axes that index and table share, an element stays at its place."""
    (into, axes), (at, index_axes), (added, value_axes) = ((x, _each(a, x.ndim)) for x, a in (table, index, values))
    picked = [a for a in axes if a == along or a in index_axes]
    whole = [a for a in axes if a not in picked]
    at = at if at.dtype.itemsize >= 4 else at.astype(jnp.int32)
    at = jnp.clip(at, 0, into.shape[axes.index(along)] - 1)
    places = tuple(
        at if a == along else jax.lax.broadcasted_iota(at.dtype, at.shape, index_axes.index(a)) for a in picked
    )
    order = [axes.index(a) for a in (*picked, *whole)]
    added = added.transpose([value_axes.index(a) for a in (*index_axes, *whole)])
    result = into.transpose(order).at[places].add(added)
    return result.transpose([order.index(i) for i in range(len(order))])


def _each(axes: Sequence[str], count: int) -> list[str]:
    """As many names as an array has axes."""
    rows = [f"{ROWS}{i}" for i in range(count - len(axes) + 1)]
    return [name for a in axes for name in (rows if a == ROWS else [a])]
