"""Writes at the positions of an index, by XLA: the values of `put`, and gradients of values that `take` gathered from a
table, which are added up. Axes are matched by name."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from codegen.autodiff.reverse import Scattered
from codegen.graph.nodes import ROWS
from codegen.language.chain import output_parts
from codegen.plan.access import Access, Plan
from codegen.plan.by_index import Sums
from codegen.plan.op import Summed
from codegen.runtime.call.arguments import Axes, Types, bind_axes
from codegen.runtime.call.cast import store
from codegen.runtime.xla import by_position
from codegen.runtime.xla.by_position import join_parts, named_axes
from codegen.spec.spec import Array, Spec

MOST_PLACES = 2**31 - 2  # which are numbered in int32
Named = tuple[jax.Array, Sequence[str]]  # an array and its axes, of which "..." is any number


# `sums_by_index`: keys, values (outer, ..., columns), the number of rows, a dtype, whether to clamp, factors, what is added to
Summing = Callable[..., jax.Array]


@dataclass(frozen=True)
class Taken:
    """The gradients of elements that an index took from a table. They are added to the table's gradient at the index's places."""

    how: Scattered
    index: jax.Array
    index_array: Array  # what the spec says of the index
    values: jax.Array
    values_axes: tuple[str, ...]
    clamped: bool = True  # whether an index out of range is clamped; else it adds nothing
    factors: jax.Array | None = None  # of the gradients, with the index's axes


@dataclass(frozen=True)
class _Rows:
    """The same as rows to sum by their keys: the `values` (outer, ..., columns), and which axes of the table are `outer` and `columns`.
    The keys are places along the other axes of the table, together. They have the axes between, and others along which all have the
    same values."""

    keys: jax.Array
    values: jax.Array
    outer: tuple[str, ...]
    columns: tuple[str, ...]
    # The gradients before they are divided, and the axes whose sizes divide them
    source: tuple[jax.Array, tuple[str, ...]]
    clamp: bool  # whether the keys are the index as it is, of any integer type: out of range it is the nearest key
    factors: jax.Array | None = None  # of the values, with the keys' axes


@dataclass(frozen=True)
class _Table:
    """A table's axes, each with a name of its own, and their sizes."""

    names: Sequence[str]
    sizes: Sequence[Any]

    def places_of(self, rows: _Rows) -> Any:
        """The number of places that keys of rows number."""
        apart = {*rows.outer, *rows.columns}
        return math.prod(n for axis, n in zip(self.names, self.sizes, strict=True) if axis not in apart)


def table_gradient(
    spec: Spec, table: jax.Array, so_far: jax.Array | None, taken: Sequence[Taken], summed: Summing
) -> jax.Array:
    """The gradient of a `table`, in the user's shape and its dtype: the gradients of the elements `taken` from it,
    summed by index, plus its gradient `so_far`. `spec` is the spec of the op that takes from the table. `summed` adds
    up rows by their keys."""
    array, inputs = spec.array(taken[0].how.table), {a.name for a in spec.inputs}
    given = {t.how.index: t.index for t in taken if t.how.index in inputs}
    axes = bind_axes(spec, {array.name: table, **given})
    shape = axes.shape(array.axes)
    whole = _Table(_each(array.axes, len(shape)), shape)
    found: dict[int | None, list[jax.Array]] = {part: [] for part in output_parts(array)}
    compute = "float64" if any(t.values.dtype == "float64" for t in taken) else "float32"
    for part, parts_of in found.items():
        before = None if so_far is None else named_axes(array, so_far, axes, part)
        rows = [_rows(whole, t, axes, t.how.index in given) for t in taken if t.how.part == part]
        joined = rows if _apart(whole, rows, compute) else _joined([_within(whole, r) for r in rows])
        fits = before is None or jnp.promote_types(before.dtype, compute) == compute
        if len(joined) == 1 and fits:  # nothing else is added: the sums may have the table's dtype at once
            parts_of.append(_summed_rows(whole, joined[0], summed, table.dtype, before))
            continue
        parts_of += [before] if before is not None else []
        parts_of += [_summed_rows(whole, own, summed, compute) for own in joined]
    made = {p: functools.reduce(jnp.add, own) if own else jnp.zeros(shape, compute) for p, own in found.items()}
    return join_parts(array, {part: value.astype(table.dtype) for part, value in made.items()}, axes)


def combined(spec: Spec, how: Summed, arrays: Mapping[str, jax.Array], summed: Summing) -> jax.Array:
    """An output of a `put` that adds floats, or takes their maximum or minimum, from the `arrays` of a call and the
    results of the op's stages. The sum of all floats at one place is added to the table's element, and rounded once. A
    maximum or minimum does not depend on the order, so XLA's scatter computes it."""
    table, values, index = arrays[how.at.table], arrays[how.values.name], arrays[how.at.index]
    if any(isinstance(n, int) and n == 0 for n in (*table.shape, *values.shape, *index.shape)):
        return table
    wide = table.astype(jnp.promote_types(values.dtype, "float32"))
    if how.at.how != "add":
        return store(_extremes(spec, how, wide, values.astype(wide.dtype), index), table.dtype)
    scattered = Scattered(how.values.name, how.at.table, None, how.at.index, how.at.axis)
    factors = None if how.factors is None else arrays[how.factors.name]
    taken = Taken(scattered, index, spec.array(how.at.index), values, how.values.axes, False, factors)
    if table.dtype in ("float32", "bfloat16", "float16"):  # what a kernel rounds as `store` does
        return table_gradient(spec, table, table, [taken], summed)
    return store(table_gradient(spec, wide, wide, [taken], summed), table.dtype)


def _extremes(spec: Spec, how: Summed, table: jax.Array, values: jax.Array, index: jax.Array) -> jax.Array:
    """The largest or smallest ones of a table's elements and of the values at their places."""
    at = index if index.dtype.itemsize >= 4 else index.astype(jnp.int32)
    names = spec.array(how.output).axes
    size = table.shape[_each(names, table.ndim).index(how.at.axis)]
    at = jnp.where((at < 0) | (at >= size), jnp.asarray(size, at.dtype), at)
    write = functools.partial(_write, how.at.how)
    return _at_places(
        (table, names), (at, spec.array(how.at.index).axes), how.at.axis, (values, how.values.axes), write
    )


def flat(keys: jax.Array, values: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Keys (N,) and values (outer, M, columns): N / M neighbouring keys are of the same values."""
    between = values.shape[1:-1]
    return keys.reshape(math.prod(keys.shape)), values.reshape(values.shape[0], math.prod(between), values.shape[-1])


def _rows(table: _Table, taken: Taken, axes: Axes, given: bool) -> _Rows:
    """The gradients as rows to sum, in the order of memory if the index's axes are neighbours in it."""
    index = named_axes(taken.index_array, taken.index, axes, None) if given else taken.index
    values, value_names = taken.values, _each(taken.values_axes, taken.values.ndim)
    index_names = _each(taken.index_array.axes, index.ndim)
    own = [a for a in value_names if a in index_names]
    alike = [a for a in index_names if a not in own]  # along these, all have the same gradient
    order = [index_names.index(a) for a in (*own, *alike)]
    index, factors = index.transpose(order), None if taken.factors is None else taken.factors.transpose(order)
    begin = value_names.index(own[0]) if own else 0
    if value_names[begin : begin + len(own)] != own:
        whole = [a for a in table.names if a != taken.how.axis and a not in own]
        values, begin = values.transpose([value_names.index(a) for a in (*own, *whole)]), 0
        value_names = [*own, *whole]
    outer, columns = value_names[:begin], value_names[begin + len(own) :]
    if taken.how.divided:
        count = math.prod(index.shape[len(own) + alike.index(a)] for a in taken.how.divided)
        values = values.astype(jnp.promote_types(values.dtype, "float32")) / count
    picked = [a for a in table.names if a == taken.how.axis or a in own]
    clamp = taken.clamped and len(picked) == 1
    keys = index if clamp else _places(table, taken, index, own)
    size_of = dict(zip(value_names, values.shape, strict=True))
    first, last = (math.prod(size_of[a] for a in axes) for axes in (outer, columns))
    return _Rows(
        keys,
        values.reshape(first, *(size_of[a] for a in own), last),
        tuple(outer),
        tuple(columns),
        (taken.values, taken.how.divided),
        clamp,
        factors,
    )


def _places(table: _Table, taken: Taken, index: jax.Array, own: Sequence[str]) -> jax.Array:
    """The places of an index along its axis and its `own` axes, together. An index out of range gives a place beyond all, unless it is clamped."""
    at = index if index.dtype.itemsize >= 4 else index.astype(jnp.int32)
    size = table.sizes[table.names.index(taken.how.axis)]
    outside, at = (at < 0) | (at >= size), clamped(at, size)
    keys = jnp.zeros_like(at)
    for name, size in zip(table.names, table.sizes, strict=True):
        if name == taken.how.axis:
            keys = keys * size + at
        elif name in own:  # an element stays at its place
            keys = keys * size + jax.lax.broadcasted_iota(jnp.int32, at.shape, own.index(name))
    return keys if taken.clamped else jnp.where(outside, MOST_PLACES + 1, keys)


def clamped(keys: jax.Array, rows: Any) -> jax.Array:
    """Keys of any integer type as int32; a key out of range becomes the nearest of `rows`."""
    wide = keys if keys.dtype.itemsize >= 4 else keys.astype(jnp.int32)
    return jnp.clip(wide, 0, rows - 1).astype(jnp.int32)


def _within(table: _Table, rows: _Rows) -> _Rows:
    """The same, with keys in range."""
    if not rows.clamp:
        return rows
    return replace(rows, keys=clamped(rows.keys, table.places_of(rows)), clamp=False)


def _apart(table: _Table, rows: Sequence[_Rows], dtype: str) -> bool:
    """Whether sums of some rows and of others cost no more than their copy as one array does: they need no order."""
    for own in rows:
        keys, values = flat(own.keys, own.values)
        if not Sums.of(keys.shape[0], values.shape, values.dtype.name, table.places_of(own), dtype).tallied:
            return False
    return True


def _joined(rows: Sequence[_Rows]) -> list[_Rows]:
    """Rows of one kind are summed together: all keys of the same values, then one set of values after the other."""
    if len(rows) == 1:
        return list(rows)
    same: dict[Any, list[_Rows]] = {}
    for own in rows:
        keys, values = flat(own.keys, own.values)
        own = replace(own, keys=keys.reshape(values.shape[1], -1), values=values)
        same.setdefault((id(own.source[0]), own.source[1], own.outer, own.columns, values.shape), []).append(own)
    kinds: dict[Any, list[_Rows]] = {}
    for each in same.values():
        keys = jnp.concatenate([r.keys for r in each], 1)
        first = replace(each[0], keys=keys)
        kinds.setdefault((first.outer, first.columns, first.values.dtype, keys.shape[1]), []).append(first)
    return [functools.reduce(_after, each) for each in kinds.values()]


def _after(first: _Rows, second: _Rows) -> _Rows:
    """Rows and then others of their kind."""
    pairs = (first.keys, second.keys), (first.values, second.values)
    return replace(first, keys=jnp.concatenate(pairs[0]), values=jnp.concatenate(pairs[1], 1))


def _summed_rows(
    table: _Table,
    rows: _Rows,
    summed: Summing,
    dtype: Any,
    before: jax.Array | None = None,
) -> jax.Array:
    """The sums of rows, in the shape of a table, added to the table's values `before`."""
    size_of = dict(zip(table.names, table.sizes, strict=True))
    picked = [a for a in table.names if a not in (*rows.outer, *rows.columns)]
    order, places = [*rows.outer, *picked, *rows.columns], table.places_of(rows)
    if isinstance(places, int) and places > MOST_PLACES:
        raise ValueError(
            f"a table of {places} places that an index may take has no gradient: there may be {MOST_PLACES}"
        )
    if before is not None:
        before = before.transpose([table.names.index(a) for a in order])
        before = before.reshape(rows.values.shape[0], places, rows.values.shape[-1])
    more = {name: x for name, x in {"factors": rows.factors, "into": before}.items() if x is not None}
    found = summed(rows.keys, rows.values, places, jnp.dtype(dtype).name, clamp=rows.clamp, **more)
    return found.reshape([size_of[a] for a in order]).transpose([order.index(a) for a in table.names])


def stored(
    plan: Plan, stores: Sequence[Access], values: Sequence[jax.Array], arrays: Mapping[str, jax.Array], axes: Axes, types: Types
) -> dict[Array, jax.Array]:  # fmt: skip
    """The outputs that `stores` write, from the jnp form's value for each, in the user's shape and type."""
    found = by_position.stored(stores, values, plan.order, axes, types)
    return found | put(plan, found, arrays, axes)


def put(
    plan: Plan, values: Mapping[Array, jax.Array], arrays: Mapping[str, jax.Array], axes: Axes, how: str = ""
) -> dict[Array, jax.Array]:
    """The outputs of `put`, in the user's shape, from the `values` to write. All other elements are those of the table.
    An index out of range writes nothing. `how` replaces the way in which values and elements are combined."""
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
