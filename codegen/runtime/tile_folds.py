"""What the tiles of a contraction leave of its reductions: the parts folded in their order, and what the chain makes of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from codegen.ir import lost_axes
from codegen.runtime import arguments, views
from codegen.runtime.arguments import Axes
from codegen.runtime.evaluate import evaluate_outputs
from codegen.tiles import Fold, GemmLaunch, Tile

if TYPE_CHECKING:
    from codegen.runtime.gemm_op import GemmOp
    from codegen.runtime.op import Key


def shapes(tile: Tile, axes: Axes, how: GemmLaunch) -> list[tuple[int, ...]]:
    """Of the parts of each fold, float32: (L, rows, parts) along rows, (L, parts, columns) over them."""
    batch, rows = (math.prod(axes.shape(names)) for names in (tile.batch, tile.rows))
    columns = axes.extents[tile.column]
    along = (batch, rows, -(-columns // how.columns) * how.side)
    return [along if f.along else (batch, -(-rows // how.rows), columns) for f in tile.folds]


def finished(op: GemmOp, key: Key, operands: Sequence[Any], results: tuple) -> tuple:
    """An op's outputs, from what its kernel wrote: those of every element, and the parts of each fold."""
    tile, epilogue = op.plan.tile, op.plan.epilogue
    if not tile.folds:
        return results
    plan, arrays = epilogue.plan, op._arrays(key, operands)
    axes = arguments.bind_axes(op.spec, arrays)
    outputs = dict(zip(tile.outputs, results, strict=False))
    known = _totals(tile, plan.order, axes, results[len(outputs) :])
    stores = [a for a in plan.stores if a.array not in outputs]
    params = op.parameters(key, operands)
    outputs |= evaluate_outputs(epilogue, stores, arrays, params, axes, key.types, known, "float32")
    return tuple(outputs[array] for array in epilogue.spec.outputs)


def _totals(tile: Tile, order: tuple[str, ...], axes: Axes, parts: Sequence[jax.Array]) -> dict[int, jax.Array]:
    """Each reduction by its node's identity, with a dimension for each axis; of length one where it is lost."""
    assert order == (*tile.batch, *tile.rows, tile.column), f"tiles of {tile.rows} and {tile.column} in {order}"
    dims = [axis for axis in order for _ in axes.shape((axis,))]

    def lost(fold: Fold) -> tuple[int, ...]:
        return tuple(i for i, axis in enumerate(dims) if axis in lost_axes(fold.node))

    found = {}
    for fold, own in zip(tile.folds, parts, strict=True):
        folded = {tile.column} if fold.along else set(tile.rows)
        shape = views.with_every_axis(order, tuple(axis for axis in order if axis not in folded), axes)
        if fold.along:  # the parts are another dimension, the last one
            each = (*shape, own.shape[2])
            own = own.reshape(each)
            if fold.rescaled is not None:
                place, power, scale, _ = fold.rescaled
                over = (*lost(tile.folds[place]), len(shape))
                own = _rescaled(own, parts[place].reshape(each), over, power, scale)
            total = _fold(fold.op, own, (*lost(fold), len(shape)))[..., 0]
        else:
            total = _fold(fold.op, _fold(fold.op, own, (1,)).reshape(shape), lost(fold))
        if fold.node.op == "mean":
            total = total / math.prod(axes.shape(lost_axes(fold.node)))
        found[id(fold.node)] = total
    return found


def _fold(op: str, values: jax.Array, dims: tuple[int, ...]) -> jax.Array:
    if op == "sum":
        return jnp.sum(values, dims, keepdims=True)
    over, identity = (jnp.max, -jnp.inf) if op == "max" else (jnp.min, jnp.inf)
    return over(values, dims, keepdims=True, initial=identity)


def _rescaled(sums: jax.Array, maxima: jax.Array, over: tuple[int, ...], power: str, scale: float) -> jax.Array:
    """Sums of exponentials of the differences from each part's maximum, as those from the largest of all that the maximum is
    `over`. A part of nothing but -inf adds nothing to what holds more."""
    largest = jnp.max(maxima, over, keepdims=True, initial=-jnp.inf)
    factor = getattr(jnp, power)((maxima - largest) * scale)
    nothing = (maxima == -jnp.inf) & (largest > -jnp.inf)
    return jnp.where(nothing, 0, sums * jnp.where(maxima == largest, 1, factor))
