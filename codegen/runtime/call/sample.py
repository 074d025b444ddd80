"""A sample of arrays along axes that are reduced: evenly spaced elements, from which a centre is computed."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping

import jax

from codegen import shared
from codegen.graph.nodes import ROWS
from codegen.spec.spec import Array


def sample(arrays: Iterable[Array], there: Mapping[str, jax.Array], axes: Collection[str]) -> dict[str, jax.Array]:
    """The arrays that are `there`, sampled along one of the `axes`: the axis with the largest spacing `s`, of which
    every `s`-th element is taken. Small arrays, and arrays of unknown sizes, are returned whole."""
    places = {a.name: _places(a, there[a.name].ndim) for a in arrays if a.name in there}
    found = dict(there)
    if max((math.prod(x.shape) for x in there.values() if _is_known(x)), default=0) < shared.LEAST_SAMPLED:
        return found
    sizes = {
        (axis, i): there[name].shape[place]
        for name, own in places.items()
        for (axis, i), place in own.items()
        if axis in axes
    }
    spacing, axis = max(((shared.spacing(n), axis) for axis, n in sizes.items()), default=(1, (ROWS, 0)))
    for name, own in places.items():
        if spacing > 1 and axis in own:
            found[name] = _spaced(found[name], own[axis], spacing)
    return found


def _spaced(x: jax.Array, place: int, spacing: int) -> jax.Array:
    """Every `spacing`-th element along an axis, the first among them."""
    size = x.shape[place]
    if size % spacing:
        return jax.lax.slice_in_dim(x, 0, size, spacing, place)
    apart = x.reshape(*x.shape[:place], size // spacing, spacing, *x.shape[place + 1 :])
    return jax.lax.index_in_dim(apart, 0, place + 1, keepdims=False)


def _is_known(x: jax.Array) -> bool:
    return all(isinstance(n, int) for n in x.shape)


def _places(array: Array, rank: int) -> dict[tuple[str, int], int]:
    """The dimension of each axis that has one of its own; `...` has several."""
    found: dict[tuple[str, int], int] = {}
    place = 0
    for dim in array.dims:
        if dim.names == (ROWS,):
            rows = rank - len(array.dims) + 1
            found |= {(ROWS, i): i for i in range(rows)}
            place += rows
            continue
        if len(dim.names) == 1 and dim.parts is None:
            found[dim.names[0], 0] = place
        place += 1
    return found
