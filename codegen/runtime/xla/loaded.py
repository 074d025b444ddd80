"""Factors of a product that are computed from an input with narrow elements: XLA writes them in the product's type
(`plan/gemms/loading`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from codegen.plan.gemms.tiles import Product
from codegen.runtime.call.arguments import Axes


def copied(product: Product, arrays: Mapping[str, Any], axes: Axes, dtype: str) -> Any:
    """b of a product, in its shape and in a type; its description for descriptions of arrays."""
    own = {a.name: arrays[a.name] for a in product.inputs}
    if any(isinstance(x, jax.ShapeDtypeStruct) for x in own.values()):
        return jax.eval_shape(lambda own: _made(product, own, axes, dtype), own)
    return _made(product, {name: jnp.asarray(x) for name, x in own.items()}, axes, dtype)


def _made(product: Product, arrays: Mapping[str, jax.Array], axes: Axes, dtype: str) -> jax.Array:
    assert product.loaded is not None
    how, scale = product.loaded.how, product.loaded.scale
    value = arrays[product.loaded.source.name]
    if product.loaded.converts:
        return value.astype(dtype)
    (axis,) = product.axes
    place, extent = product.b.axes.index(axis), axes.extents[axis]
    if how.bits == 4:
        # Shifts, not two halves side by side: XLA takes twice as long to join those
        shifts = jnp.arange(0, 8, 4, dtype=value.dtype).reshape(
            [2 if d == place + 1 else 1 for d in range(value.ndim + 1)]
        )
        halves = (jnp.expand_dims(value, place + 1) >> shifts) & 15
        shape = [2 * n if d == place else n for d, n in enumerate(value.shape)]
        numbers = (halves.reshape(shape).astype(jnp.int32) ^ how.flip) - how.offset
        value = _along(numbers, place, extent, 2)
    value = value.astype(jnp.float32)
    if scale is not None:
        factors = _along(jnp.repeat(arrays[scale.name].astype(jnp.float32), how.group, 0), 0, extent, how.group)
        value = value * (factors if place == 0 else factors.T)
    return value.astype(dtype)


def _along(x: jax.Array, place: int, extent: Any, last: int) -> jax.Array:
    """So many elements along a dimension; past the end, the `last` ones again and again."""
    missing = extent - x.shape[place]
    if missing <= 0:
        return jax.lax.slice_in_dim(x, 0, extent, axis=place)
    positions = jnp.arange(extent)
    return jnp.take(
        x, jnp.where(positions < x.shape[place], positions, x.shape[place] - last + positions % last), place
    )
