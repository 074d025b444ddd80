"""A kernel on sharded arrays: each device runs it on its own shard.

XLA cannot see into a kernel, so this module decides from the spec's axes which of them may be sharded:

  whole    each device needs all elements of it: an axis along which elements are selected; an axis that only a table has,
           along which it is gathered; a reordered axis; an axis with halves `(2 N)`; the parts themselves; the inner
           axis of `(B G=128)`
  asked    the kernel needs all elements of it: an axis along which rows are reduced, whose positions or size the chain
           uses, or from which it picks one element for each row. A shard of it is computed in jnp, which knows the start
           of the shard, and its partial results are reduced over the shards. A GEMM kernel can take the start too, and
           writes its tiles' partial results
  folded   an axis reduced over rows: every shard computes its partial results, before anything else is computed from
           them. These are reduced over the shards, and the chain's last steps use the total
  summed   an axis along which two arrays are contracted, where both are sharded in the same way: the devices' products
           are summed before the epilogue. Where only one array is sharded, it is gathered
  free     any other axis: rows of a row kernel, every axis of an element-wise kernel, the columns of a column kernel

Arrays that are sharded along a whole axis are gathered first. An axis is sharded the way the largest array with that
axis is; other arrays follow. An asked axis is sharded the way the arrays with all axes are, or the factors of a
product, and along mesh axes that shard no other axis. So a weight that is stored in shards is gathered.

The jnp form needs none of this: XLA partitions it. Neither does a kernel inside `shard_map`, where each call is one
shard.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np
from jax._src.sharding_impls import parse_flatten_op_sharding
from jax.experimental.custom_partitioning import ArrayMapping, CompoundFactor, SdyShardingRule, custom_partitioning
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from codegen.graph.nodes import ROWS, Along, Selected, nodes_of
from codegen.plan.attention import AttentionPlan
from codegen.plan.op import Staged, contracted_axes
from codegen.runtime.call import arguments, views
from codegen.runtime.call.arguments import Axes
from codegen.runtime.call.described import CalledOp, Key
from codegen.runtime.sharding.shards import Shards, Split, axis_of
from codegen.spec.spec import Array

# Which axes may be sharded


def whole_axes(op: CalledOp) -> set[str]:
    """The axes that cannot be sharded, since each device needs all elements along them: among others, axes of a fixed size and
    axes along which it scans."""
    takes = {n for n in nodes_of(op.statements) if n.op == "take"}
    chosen = [n.attr for n in nodes_of(op.statements) if isinstance(n.attr, Selected)]
    fixed = {axis for how in chosen for axis in (*how.axes, how.into)} | {*op.spec.extents}
    found = fixed | {str(n.attr) for n in takes if n.attr not in op.plan.order or n.attr in n.dims}
    picks = {n for n in nodes_of(op.statements) if n.op == "pick"}
    found |= {axis for n in picks for axis in n.args[0].dims}
    shifts = [n.attr for n in nodes_of(op.statements) if n.op == "shift"]
    found |= {axis for places in shifts for axis, _ in places}  # type: ignore[attr-defined]
    found |= {n.attr.axis for n in nodes_of(op.statements) if isinstance(n.attr, Along)}
    positions = {n.attr for n in nodes_of(op.statements) if n.op == "index"}
    found |= contracted_axes(op.plan) & {str(axis) for axis in positions}  # other arrays have other parts of these
    for at in (s.at for s in op.statements if s.at):  # each device would write what is not its own
        found |= {at.axis, *op.spec.array(at.index).axes} - {*op.spec.array(at.table).axes} | {at.axis}
    if isinstance(op.plan, AttentionPlan):
        found |= op.plan.whole
        found |= {str(n.attr) for n in nodes_of(op.statements) if n.op in ("index", "size")}
    for array in op.spec.arrays:
        for dim in array.dims:
            if dim.parts is not None and dim.parts_first:
                found |= set(dim.names)
            found |= set(dim.names[1:])
    return found


def asked_axes(op: CalledOp) -> set[str]:
    """The axes along which a kernel needs all elements: rows are reduced along them, the chain uses their positions or
    sizes, or each row picks one of their elements."""
    found = {axis for s in (*op.plan.rows, *op.plan.inner) for axis in s.axes}
    found |= {str(n.attr) for n in nodes_of(op.statements) if n.op in ("index", "size", "take")}
    return found - whole_axes(op)


def factors(op: CalledOp, array: Array, axes: Axes) -> list[tuple[str, int] | None]:
    """For each dimension of an array, the outermost factor, along which it may be sharded, and the number of elements in one
    position of that factor; None where it must be whole. `...` is a factor for each of its axes."""
    whole = whole_axes(op)
    found: list[tuple[str, int] | None] = []
    for dim in array.dims:
        if dim.names == (ROWS,):
            found += [None if ROWS in whole else (f"{ROWS}{i}", 1) for i in range(len(axes.rows))]
        elif not dim.names or dim.names[0] in whole:
            found.append(None)
        else:
            inner = math.prod(math.prod(axes.shape((n,))) for n in dim.names[1:])
            found.append((dim.names[0], (dim.parts or 1) * inner))
    return found


class ShardedCall:
    """The arrays of one call, and the factors along which their dimensions may be sharded: present inputs, then dynamic parameters,
    then outputs."""

    def __init__(self, op: CalledOp, key: Key, operands: Sequence[tuple[int, ...]]):
        arrays = [op.spec.array(name) for name in key.present]
        self.op, self.operands = op, len(operands)
        self.axes = arguments.bind_axes(op.spec, dict(zip(key.present, map(_Shaped, operands), strict=False)))
        self.shapes = [*operands, *(views.user_shape(a, self.axes) for a in op.spec.outputs)]
        scalars: list[list[tuple[str, int] | None]] = [[] for _ in operands[len(arrays) :]]
        self.factors = [
            *(factors(op, a, self.axes) for a in arrays), *scalars,
            *(factors(op, a, self.axes) for a in op.spec.outputs),
        ]  # fmt: skip
        most = max((len(a.axes) for a in arrays), default=0)
        self.deciding = [len(a.axes) == most or a.name in op.multiplied for a in arrays]

    def may_decide(self, place: int, factor: str) -> bool:
        """Whether one of the arrays decides how a factor is sharded. For an asked factor, only inputs with all axes and
        factors of products do."""
        return axis_of(factor) not in self.asked or (place < len(self.deciding) and self.deciding[place])

    def meet(self, factor: str, other: str) -> bool:
        """Whether a kernel may have a value with both axes: then a mesh axis shards only one of them."""
        axes, plan = {axis_of(factor), axis_of(other)}, self.op.plan
        return not isinstance(plan, Staged) or any(axes <= {*stage.spec.axes} for stage in plan.stages)

    @functools.cached_property
    def asked(self) -> set[str]:
        return asked_axes(self.op)

    def shards(self, specs: Sequence[Sequence[Any]], mesh: Mapping[str, int]) -> Shards:
        """The mesh axes of each factor, given the shardings of the first arrays, as far as the shards have equal sizes. The largest
        input decides. Where one mesh axis would shard several factors that meet, factors that are not asked come first."""
        found: dict[str, tuple[str, ...]] = {}
        count = self.operands
        order = sorted(range(len(specs)), key=lambda i: (i >= count, -math.prod(self.shapes[i])))
        summed = self.contracted_alike(specs)
        for asked, i in itertools.product((False, True), order):
            for factor, extent, entry in zip(self.factors[i], self.shapes[i], _padded(specs[i]), strict=False):
                if factor is not None and factor[0] in self.contracted and factor[0] not in summed:
                    continue  # a factor of a product that is only stored in shards is gathered
                if factor is None or factor[0] in found:
                    continue
                used = {axis for other, axes in found.items() if self.meet(factor[0], other) for axis in axes}
                if used & set(entry):
                    continue
                if asked != (axis_of(factor[0]) in self.asked) or not self.may_decide(i, factor[0]):
                    continue
                while entry and (extent // factor[1]) % math.prod(mesh[axis] for axis in entry):
                    entry = entry[:-1]
                if entry:
                    found[factor[0]] = entry
        return found

    @property
    def contracted(self) -> set[str]:
        """The contracted axes of products."""
        return contracted_axes(self.op.plan)

    def contracted_alike(self, specs: Sequence[Sequence[Any]]) -> set[str]:
        """The contracted axes along which all arrays with them are sharded: each device multiplies its part, and the products are
        summed."""
        entries: dict[str, set[tuple[str, ...]]] = {}
        for own, spec in zip(self.factors, specs, strict=False):
            for factor, entry in itertools.zip_longest(own, _padded(spec)[: len(own)], fillvalue=()):
                if factor and factor[0] in self.contracted:
                    entries.setdefault(factor[0], set()).add(entry)
        return {axis for axis, found in entries.items() if len(found) == 1 and found != {()}}

    def spec(self, place: int, shards: Shards) -> PartitionSpec:
        """The sharding of one of the arrays."""
        return PartitionSpec(*(shards.get(f[0]) if f else None for f in self.factors[place]))

    def specs(self, shards: Shards) -> tuple[tuple[PartitionSpec, ...], tuple[PartitionSpec, ...]]:
        """The shardings of operands, and of outputs."""
        made = [self.spec(i, shards) for i in range(len(self.shapes))]
        return tuple(made[: self.operands]), tuple(made[self.operands :])

    def rule(self) -> SdyShardingRule:
        """The rule for Shardy, which propagates shardings between arrays along shared factors."""
        names: dict[str, str] = {}
        sizes: dict[str, int] = {}
        alone: list[str] = []
        mappings = []
        for place, (shape, own) in enumerate(zip(self.shapes, self.factors, strict=True)):
            dims: list[str | CompoundFactor] = []
            for extent, factor in zip(shape, own, strict=True):
                if factor is None:
                    alone.append(f"w{len(alone)}")
                    dims.append(alone[-1])
                    continue
                decides = place >= len(self.deciding) or self.may_decide(place, factor[0])
                shared = factor[0] if decides else f"{factor[0]} of {place}"  # no sharding propagates from there
                name = names.setdefault(shared, f"f{len(names)}")
                if factor[1] == 1:
                    dims.append(name)
                else:
                    alone.append(f"w{len(alone)}")
                    sizes |= {name: extent // factor[1], alone[-1]: factor[1]}
                    dims.append(CompoundFactor(name, alone[-1]))
            mappings.append(ArrayMapping(*dims))
        plain = {d for m in mappings for d in m if isinstance(d, str)}
        return SdyShardingRule(
            tuple(mappings[: self.operands]),
            tuple(mappings[self.operands :]),
            reduction_factors=tuple(names[axis] for axis in self.contracted if axis in names),
            need_replication_factors=tuple(alone),
            **{name: n for name, n in sizes.items() if name not in plain},
        )


Shardings = tuple[NamedSharding, ...]


def explicit_shardings(operands: Sequence[Any]) -> Shardings | None:
    """The shardings in the types of arrays, without axes that are not explicit; None where neither their mesh nor the context's
    has explicit axes."""
    types = [jax.typeof(x).sharding for x in operands]
    meshes = (*(t.mesh for t in types), jax.sharding.get_abstract_mesh())
    mesh = next((m for m in meshes if m.explicit_axes), None)
    return None if mesh is None else tuple(NamedSharding(mesh, t.spec) for t in types)


def output_shardings(op: CalledOp, key: Key, shardings: Shardings | None, operands: Sequence[Any]) -> Shardings | None:
    """The shardings of outputs for the `shardings` of the operands."""
    if shardings is None:
        return None
    mesh = shardings[0].mesh
    call = ShardedCall(op, key, [x.shape for x in operands])
    _, outputs = call.specs(call.shards([s.spec for s in shardings], mesh.shape))
    return tuple(NamedSharding(mesh, spec) for spec in outputs)


def typed(function: Callable[..., tuple[Any, ...]], outputs: Shardings | None) -> Callable[..., tuple[Any, ...]]:
    """`function`, made to take arrays whose types have shardings: it does not handle explicit mesh axes itself. Its results have the
    shardings `outputs`."""
    if outputs is None:
        return function
    return jax.sharding.auto_axes(function, axes=outputs[0].mesh.explicit_axes, out_sharding=outputs)


def varying(outputs: tuple[jax.Array, ...], operands: Sequence[Any]) -> tuple[jax.Array, ...]:
    """Outputs with the types that `shard_map` needs: they vary over every mesh axis over which an operand varies."""
    axes = frozenset[str]().union(*(jax.typeof(x).manual_axis_type.varying for x in operands))
    missing = [tuple(axes - jax.typeof(y).manual_axis_type.varying) for y in outputs]
    return tuple(jax.lax.pcast(y, m, to="varying") if m else y for y, m in zip(outputs, missing, strict=True))


class _Shaped:
    def __init__(self, shape: Sequence[int]):
        self.shape = tuple(shape)


def _padded(spec: Sequence[Any]) -> list[tuple[str, ...]]:
    """The mesh axes of each dimension that a PartitionSpec names."""
    return [e if isinstance(e, tuple) else () if e is None or not isinstance(e, str) else (e,) for e in spec]


# Running


class SplitOp(CalledOp, Protocol):
    """An op that can compute one shard."""

    def on_shard(
        self, key: Key, kernel: Callable[..., tuple[Any, ...]], operands: tuple[Any, ...], split: Split
    ) -> tuple[Any, ...]:
        """The outputs on one shard of arrays that are split. The results of `kernel` still have to be `finished`."""

    def finished(self, key: Key, operands: tuple[Any, ...], results: tuple[Any, ...], split: Split) -> tuple[Any, ...]:
        """The outputs, from what the kernel returned: of the whole, or of one shard where arrays are split."""


def partitioned(op: SplitOp, key: Key, kernel: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    """A function of arrays that may be sharded, which runs `kernel` on each shard, finishes its results, and returns the outputs."""

    def one_device(*operands: Any) -> Any:
        axes = arguments.bind_axes(op.spec, dict(zip(key.present, operands, strict=False)))
        return op.finished(key, operands, kernel(*operands), Split(axes))

    def partition(mesh: Any, operands: Any, results: Any) -> Any:
        call = ShardedCall(op, key, [x.shape for x in operands])
        mesh = mesh_of(mesh, results)
        shards = call.shards([_spec(x, mesh) for x in (*operands, *results)], mesh.shape)
        inner, outer = ([NamedSharding(mesh, s) for s in specs] for specs in call.specs(shards))
        split = Split(call.axes, shards, mesh.shape)

        def shard(*local: Any) -> Any:
            # The caller's mesh does not apply in a shard: JAX would mark new arrays as sharded again
            with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
                return op.on_shard(key, kernel, local, split)

        return mesh, shard, tuple(outer), tuple(inner)

    def rule(mesh: Any, operands: Any, results: Any) -> Any:
        del mesh, results
        return ShardedCall(op, key, [tuple(t.shape) for t in operands]).rule()

    function = custom_partitioning(one_device)
    function.def_partition(partition, sharding_rule=rule, decode_shardings=False)

    def run(*operands: Any) -> Any:
        return one_device(*operands) if is_one_shard() else function(*operands)

    return run


def mesh_of(mesh: Any, results: Sequence[Any]) -> Mesh:
    """The mesh of a call; within a `shard_map` over some axes of a mesh, where JAX gives none, the mesh of the results' devices."""
    if not mesh.empty:
        return mesh
    return Mesh(np.array(sorted(results[0].sharding.device_set, key=lambda d: d.id)), ("devices",))


def is_one_shard() -> bool:
    """Whether a call, within a `shard_map` over all axes, is one shard already."""
    mesh = jax.sharding.get_abstract_mesh()
    left = [n for axis, n in mesh.shape.items() if axis not in mesh.manual_axes]
    return bool(mesh.manual_axes) and math.prod(left) == 1


def entries(array: Any, mesh: Mesh) -> list[tuple[str, ...]]:
    """The mesh axes that shard each dimension of an array."""
    found = _padded(_spec(array, mesh))
    return [*found, *[()] * (len(array.shape) - len(found))]


def _spec(array: Any, mesh: Mesh) -> PartitionSpec:
    """An array's sharding over a mesh; not sharded where mesh axes cannot express it (XLA may split a mesh axis)."""
    try:
        return parse_flatten_op_sharding(array.sharding._to_xla_hlo_sharding(len(array.shape)), mesh)[0]
    except (AssertionError, NotImplementedError, StopIteration, ValueError):
        return PartitionSpec()
