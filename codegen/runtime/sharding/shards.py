"""Computes one device's shard where an op needs more than the shard: statistics over several devices, positions in the whole
array, and its sizes.

Either a kernel writes partial results of its reductions over rows, and jnp computes the outputs from the partial results of all
devices (`finished`). Or the whole chain is computed in jnp (`in_jnp`), and each reduction is computed on every device, then
over the devices.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from codegen.graph.emit import leaf_key
from codegen.graph.nodes import ROWS, Node, lost_axes, topological
from codegen.graph.online import TIES
from codegen.graph.ops import REDUCTIONS
from codegen.plan.access import Access, Plan, access_key
from codegen.plan.rows.access import Statistic
from codegen.plan.rows.reductions import Reduction
from codegen.plan.rows.scanning import Scan
from codegen.runtime.call import arguments, views
from codegen.runtime.call.described import CalledOp, Key
from codegen.runtime.xla import by_position
from codegen.runtime.xla.evaluate import Evaluation, wide
from codegen.spec.spec import Array

Shards = Mapping[str, tuple[str, ...]]  # from a factor (`partition.factors`) to the mesh axes that shard it


def axis_of(factor: str) -> str:
    """The spec's axis of a factor."""
    return ROWS if factor.startswith(ROWS) else factor


@dataclass(frozen=True)
class Split:
    """The sizes of the whole arrays, and the mesh axes that shard them: this device has a shard of each. Without mesh axes it has the whole
    arrays."""

    axes: arguments.Axes
    shards: Shards = field(default_factory=dict)
    mesh: Mapping[str, int] = field(default_factory=dict)

    def across(self, axes: Collection[str]) -> tuple[str, ...]:
        """The mesh axes that shard some axes."""
        return tuple(name for factor in self.shards if axis_of(factor) in axes for name in self.shards[factor])

    def devices(self, axes: Collection[str]) -> int:
        """The number of shards along some axes."""
        return math.prod(self.mesh[name] for name in self.across(axes))

    def first(self, axis: str) -> jax.Array:
        """The index of this shard's first element along an axis, int32."""
        extent = math.prod(self.axes.shape((axis,))) // self.devices((axis,))
        return jnp.asarray(jax.lax.axis_index(self.across((axis,))) * extent, jnp.int32)

    def places(self, axis: str, own: arguments.Axes, integer: str) -> jax.Array:
        """The positions of this shard's elements along an axis of the whole array. `...` counts as one axis, and each of its
        axes may be sharded: `own` has the shard's sizes."""
        found: Any = jnp.zeros((), integer)
        for i, (extent, whole) in enumerate(zip(own.shape((axis,)), self.axes.shape((axis,)), strict=True)):
            there = self.shards.get(f"{ROWS}{i}" if axis == ROWS else axis, ())
            start = jax.lax.axis_index(there) * extent if there else 0
            found = found[..., None] * whole + (jnp.arange(extent, dtype=integer) + start)
        return found


def in_jnp(op: CalledOp, key: Key, operands: Sequence[jax.Array], split: Split) -> tuple[jax.Array, ...]:
    """The outputs on one shard, in jnp, for a chain that needs more than its shard."""
    arrays = dict(zip(key.present, operands, strict=False))
    axes, params = arguments.bind_axes(op.spec, arrays), op.parameters(key, operands)
    call = Evaluation(op.planned, arrays, params, axes, key.types, op.compute(key))
    found = outputs_in_jnp(call, op.plan.stores, split)
    return tuple(found[a] for a in op.spec.outputs)


def outputs_in_jnp(call: Evaluation, stores: Sequence[Access], split: Split) -> dict[Array, jax.Array]:
    """The outputs that `stores` write, on one shard, in jnp; by array."""
    with wide(call.op.spec):
        values = {(s.name, s.part): s.value for s in call.op.statements}
        roots = [values[a.array.name, a.part] for a in stores if a.array is not None]
        return call.outputs(stores, known_in_jnp(call, roots, split))


def known_in_jnp(call: Evaluation, roots: Sequence[Node], split: Split) -> dict[int, jax.Array]:
    """The results of the reductions that some values depend on, with every axis, and the positions and sizes that they use, by
    the identity of their nodes."""
    plan, axes = call.op.plan, call.axes
    nodes = list(topological(roots))
    known = asked(call, nodes, split)
    leaves = call.leaves(roots, known)
    for node in nodes:  # each after its arguments
        if node.op in REDUCTIONS:
            (value,) = call.values([node.args[0]], leaves, known)
            known[id(node)] = _whole(plan, node, _folded_apart(plan, node, value, axes), axes, split)
    return known


def asked(call: Evaluation, nodes: Iterable[Node], split: Split) -> dict[int, jax.Array]:
    """The values of nodes that need more than the shard, by the nodes' identity: positions in the whole array, its
    sizes, and elements taken along sharded axes."""
    spec, plan = call.op.spec, call.op.plan
    known = _picked(call, nodes, split)
    for node in nodes:
        axis = (str(node.attr),)
        if node.op == "size":
            known[id(node)] = jnp.asarray(math.prod(split.axes.shape(axis)), spec.integer)
        elif node.op == "index" and split.across(axis):
            own = split.places(axis[0], call.axes, spec.integer)
            known[id(node)] = own.reshape(by_position.with_every_axis(plan.order, axis, call.axes))
    return known


def _picked(call: Evaluation, nodes: Iterable[Node], split: Split) -> dict[int, jax.Array]:
    """The elements taken along sharded axes, by the identity of the nodes: each comes from the shard that has it."""
    plan, spec, axes = call.op.plan, call.op.spec, call.axes
    known = {}
    accesses = {access_key(plan, a): a for a in plan.loads if a.index_of and split.across((a.index_of[1],))}
    for node in nodes:
        access = accesses.get(leaf_key(node))
        if access is not None and access.index_of is not None:
            index, axis = access.index_of
            place = jnp.asarray(call.arrays[index]).astype(spec.integer)
            last, own = math.prod(split.axes.shape((axis,))) - 1, math.prod(axes.shape((axis,)))
            place = jnp.clip(place, 0, max(last, 0)) - split.first(axis)
            value = by_position.jnp_value(plan, access, {**call.arrays, index: place}, axes, call.compute, spec.integer)
            here = by_position.index_value(plan, access, (place >= 0) & (place < own), axes)
            there = jnp.where(here, value, 0).astype("int32" if value.dtype == bool else value.dtype)
            known[id(node)] = jax.lax.psum(there, split.across((axis,))).astype(value.dtype)
    return known


def _folded_apart(plan: Plan, reduction: Node, value: jax.Array, axes: arguments.Axes) -> jax.Array:
    """The elements that a reduction takes, as partial results: (parts, remaining axes)."""
    lost = lost_axes(reduction)
    value = jnp.broadcast_to(value, by_position.with_every_axis(plan.order, (*reduction.dims, *lost), axes))
    owners = [axis for axis in plan.order for _ in axes.shape((axis,))]
    places = [place for place, axis in enumerate(owners) if axis in lost]
    value = jnp.moveaxis(value, places, range(len(places)))
    value = value.astype(jnp.int32) if reduction.kind == "bool" else value
    count = len(places)
    return value.reshape(math.prod(value.shape[:count]), math.prod(value.shape[count:]))


def finished(
    op: CalledOp, key: Key, operands: Sequence[Any], results: tuple[Any, ...], split: Split
) -> tuple[Any, ...]:
    """An op's outputs, on one shard where arrays are sharded, from its kernel's results: its outputs, then the blocks' partial
    results of each statistic over rows. These are reduced over all shards before anything is computed from them."""
    plan, spec, arrays = op.plan, op.spec, dict(zip(key.present, operands, strict=False))
    outputs = dict(zip(spec.outputs, results, strict=False))
    if any(split.across(s.axes) for s in plan.columns):
        with wide(spec):
            axes = arguments.bind_axes(spec, arrays)
            known: dict[int, jax.Array] = {}
            parts = {
                id(s.node): _of_axes(plan, s, own, axes)
                for s, own in zip(plan.columns, results[len(outputs) :], strict=False)
            }
            for statistic in plan.columns:  # each after the maximum that it follows
                known[id(statistic.node)] = _whole(plan, statistic.node, _below(statistic, parts, known), axes, split)
            late = [a for a in spec.outputs if any(id(n) in known for n in topological(_values(op, a)))]
            stores = [a for a in plan.stores if a.array in late]
            params = op.parameters(key, operands)
            call = Evaluation(op.planned, arrays, params, axes, key.types, op.compute(key))
            outputs |= call.outputs(stores, known)
    if isinstance(plan, Scan) and plan.across and split.across(plan.groups[-1].axes):
        outputs |= _summed_across(plan, results[-1], arguments.bind_axes(spec, arrays), key.types, split)
    return tuple(outputs.values())


def _summed_across(
    plan: Scan, parts: jax.Array, axes: arguments.Axes, types: arguments.Types, split: Split
) -> dict[Array, jax.Array]:
    """The outputs of a kernel that scans, and sums along an axis which is sharded, from the parts of these sums on all shards."""
    named = (*(axis for group in plan.groups[:-1] for axis in group.axes), *(axis for axis, _ in plan.states))
    owners = [axis for axis in named for _ in axes.shape((axis,))]
    total = fold("sum", parts, split.across(plan.groups[-1].axes)).reshape(len(plan.crossed), *axes.shape(named))
    found: dict[Array, jax.Array] = {}
    for own, access in zip(total, plan.crossed, strict=True):
        assert access.array is not None
        order = [place for axis in access.array.axes for place, owner in enumerate(owners) if owner == axis]
        found[access.array] = own.transpose(order).astype(types.dtype(access.array))
    return found


def _below(statistic: Statistic, parts: Mapping[int, jax.Array], known: Mapping[int, jax.Array]) -> jax.Array:
    """The partial results of a statistic. Sums that follow a maximum are rescaled from the maximum of their part to the
    maximum of all parts. Where a maximum is not finite, they are NaN or infinite."""
    own, way = parts[id(statistic.node)], statistic.follows
    if way is None:
        return own
    largest = known[id(way.maximum)].reshape(own.shape[1:])
    if way.power == TIES:
        return jnp.where(parts[id(way.maximum)] == largest, own, 0)
    own = rescaled(own, parts[id(way.maximum)], largest, way.power, way.scale)
    return jnp.where(jnp.isfinite(largest), own, jnp.exp(largest) if way.finite else jnp.nan)


def rescaled(sums: jax.Array, maxima: jax.Array, largest: jax.Array, power: str, scale: float) -> jax.Array:
    """Rescales sums of exponentials from each part's maximum to the largest maximum. A part with only -inf adds nothing, unless all
    parts are such."""
    factor = getattr(jnp, power)((maxima - largest) * scale)
    nothing = (maxima == -jnp.inf) & (largest > -jnp.inf)
    return jnp.where(nothing, 0, sums * jnp.where(maxima == largest, 1, factor))


def _whole(plan: Plan, reduction: Node, parts: jax.Array, axes: arguments.Axes, split: Split) -> jax.Array:
    """The result of a reduction, from its partial results on all shards, with every axis."""
    shape, lost = by_position.with_every_axis(plan.order, reduction.dims, axes), lost_axes(reduction)
    whole = fold(reduction.op, parts, split.across(lost)).reshape(shape)
    if reduction.op == "mean":
        whole = mean(whole, split.axes, lost)
    return whole.astype(bool) if reduction.kind == "bool" else whole


def _of_axes(plan: Reduction, statistic: Statistic, parts: jax.Array, axes: arguments.Axes) -> jax.Array:
    """The partial results of a statistic with only its remaining axes: from (parts, columns) to more parts of fewer columns."""
    if statistic.over != "column":
        return parts
    extents = [views.group_extents(plan, axes)[i] for i in plan.spread]
    each = max(1, math.prod(extents) // max(1, parts.shape[1]))  # neighbouring columns that share a result
    apart = parts.reshape(parts.shape[0], *extents[:-1], extents[-1] // each)
    lost = [1 + k for k, i in enumerate(plan.spread) if i not in statistic.keeps]
    kept = [n for k, n in enumerate(apart.shape) if k and k not in lost]
    return jnp.moveaxis(apart, lost, range(1, 1 + len(lost))).reshape(-1, *kept)


def _values(op: CalledOp, array: Array) -> list[Node]:
    return [s.value for s in op.statements if s.name == array.name]


def reduced(op: str, values: jax.Array, dims: tuple[int, ...], keepdims: bool = True) -> jax.Array:
    """Values of one device, reduced along some dimensions, in their own type; an empty reduction gives the identity."""
    if op in ("sum", "mean", "prod"):
        return (jnp.prod if op == "prod" else jnp.sum)(values, dims, dtype=values.dtype, keepdims=keepdims)
    least, most = (0, 1) if op in ("any", "all") else _ends(values.dtype)
    if op in ("max", "any"):
        return jnp.max(values, dims, keepdims=keepdims, initial=least)
    return jnp.min(values, dims, keepdims=keepdims, initial=most)


def _ends(dtype: Any) -> tuple[Any, Any]:
    """The smallest and the largest value of a type."""
    if jnp.issubdtype(dtype, jnp.floating):
        return -jnp.inf, jnp.inf
    return jnp.iinfo(dtype).min, jnp.iinfo(dtype).max


def mean(total: jax.Array, axes: arguments.Axes, lost: tuple[str, ...]) -> jax.Array:
    """The mean, from a sum over axes, which may have more elements than an integer can count."""
    return total / jnp.asarray(math.prod(axes.shape(lost)), total.dtype)


def fold(op: str, parts: jax.Array, over: tuple[str, ...]) -> jax.Array:
    """A reduction of partial results along their first axis and over mesh axes."""
    return over_devices(op, reduced(op, parts, (0,), keepdims=False), over)


def over_devices(op: str, own: jax.Array, over: tuple[str, ...]) -> jax.Array:
    """Each device's partial result, reduced over mesh axes."""
    if not over:
        return own
    if op in ("sum", "mean"):
        return jax.lax.psum(own, over)
    if op == "prod":
        return jnp.prod(jax.lax.all_gather(own, over), axis=0, dtype=own.dtype)
    largest = op in ("max", "any")
    across = jax.lax.pmax if largest else jax.lax.pmin
    if not jnp.issubdtype(own.dtype, jnp.floating):
        return across(own, over)
    # As integers in the same order, with NaN beyond all others, since the collective's maximum would drop NaN
    integer = jnp.int64 if own.dtype.itemsize == 8 else jnp.int32
    ends = jnp.iinfo(integer)

    def mirrored(bits: jax.Array) -> jax.Array:
        return jnp.where(bits < 0, bits ^ ends.max, bits)

    ordered = mirrored(jax.lax.bitcast_convert_type(own, integer))
    ordered = jnp.where(jnp.isnan(own), ends.max if largest else ends.min, ordered)
    return jax.lax.bitcast_convert_type(mirrored(across(ordered, over)), own.dtype)
