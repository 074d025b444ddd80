"""Finishes the reductions of a contraction's tiles: reduces their partial results in order, also over devices, and computes the
rest of the chain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax

from codegen.graph.nodes import lost_axes, nodes_of
from codegen.plan.gemms.folds import Fold
from codegen.plan.gemms.tiles import Tile
from codegen.plan.launches import GemmLaunch
from codegen.runtime.call import arguments
from codegen.runtime.call.arguments import Axes
from codegen.runtime.call.described import CalledOp, Key
from codegen.runtime.sharding import shards
from codegen.runtime.sharding.shards import Split
from codegen.runtime.xla import by_position
from codegen.runtime.xla.evaluate import Evaluation, wide


def shapes(tile: Tile, axes: Axes, how: GemmLaunch) -> list[tuple[int, ...]]:
    """The shape of each fold's partial results: (L, rows, parts) along rows, (L, parts, columns) over them."""
    batch, rows = (math.prod(axes.shape(names)) for names in (tile.batch, tile.rows))
    columns = axes.extents[tile.column]
    along = (batch, rows, how.tiles.row_pieces(columns, tile.paired))
    return [along if f.along else (batch, how.tiles.column_pieces(rows), columns) for f in tile.folds]


def finished(
    op: CalledOp, key: Key, operands: Sequence[Any], results: tuple[Any, ...], split: Split
) -> tuple[Any, ...]:
    """The outputs of an op that contracts, on one shard where arrays are sharded, from its kernel's results: the
    outputs that it writes whole, and the partial results of each reduction that begins in its tiles."""
    tile, epilogue = op.plan.tile, op.plan.epilogue
    if not tile.folds:
        return results
    plan, arrays = epilogue.plan, op.arrays(key, operands)
    axes = arguments.bind_axes(op.spec, arrays)
    outputs = dict(zip(tile.outputs, results, strict=False))
    stores = [a for a in plan.stores if a.array not in outputs]
    params = op.parameters(key, operands)
    with wide(epilogue.spec):
        known = _totals(tile, plan.order, axes, results[len(outputs) :], split)
        nodes = nodes_of(epilogue.statements)
        call = Evaluation(epilogue, arrays, params, axes, key.types, "float32")
        known |= shards.asked(call, nodes, split)
        outputs |= call.outputs(stores, known)
    return tuple(outputs[array] for array in epilogue.spec.outputs)


def _totals(
    tile: Tile, order: tuple[str, ...], axes: Axes, parts: Sequence[jax.Array], split: Split
) -> dict[int, jax.Array]:
    """Each reduction by its node's identity, with a dimension for each axis; reduced axes have size 1."""
    assert order == (*tile.batch, *tile.rows, tile.column), f"tiles of {tile.rows} and {tile.column} in {order}"
    dims = [axis for axis in order for _ in axes.shape((axis,))]

    def lost(fold: Fold) -> tuple[int, ...]:
        return tuple(i for i, axis in enumerate(dims) if axis in lost_axes(fold.node))

    found: dict[int, jax.Array] = {}
    for fold, own in zip(tile.folds, parts, strict=True):
        folded = {tile.column} if fold.along else set(tile.rows)
        shape = by_position.with_every_axis(order, tuple(axis for axis in order if axis not in folded), axes)
        if fold.along:  # the partial results are an additional dimension, the last one
            each = (*shape, own.shape[2])
            own = own.reshape(each)
            if fold.rescaled is not None:
                place, power, scale, _ = fold.rescaled
                largest = found[id(tile.folds[place].node)][..., None]
                own = shards.rescaled(own, parts[place].reshape(each), largest, power, scale)
            total = shards.reduced(fold.op, own, (*lost(fold), len(shape)))[..., 0]
        else:
            total = shards.reduced(fold.op, shards.reduced(fold.op, own, (1,)).reshape(shape), lost(fold))
        total = shards.over_devices(fold.op, total, split.across(lost_axes(fold.node)))
        if fold.node.op == "mean":
            total = shards.mean(total, split.axes, lost_axes(fold.node))
        found[id(fold.node)] = total.astype(bool) if fold.node.kind == "bool" else total
    return found
