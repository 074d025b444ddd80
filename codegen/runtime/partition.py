"""A kernel on sharded arrays: each device runs it on its own shard.

XLA cannot see into a kernel, so this module says what may be split, from the spec's axes:

  whole    a kernel needs all of it: an axis reduced along rows, one whose positions or size the chain asks for, one that
           a table is gathered along, one with halves `(2 N)`, the parts themselves and the inner axis of `(B G=128)`
  folded   an axis reduced over rows: every shard leaves what its kernel's blocks leave, before anything is computed from
           it; the shards' are folded, and the chain's last steps are taken on the sum
  summed   an axis that two arrays are contracted along, where both are split alike: each device's products are added up
           before the epilogue; where only one is, it is gathered
  free     any other: rows of a row kernel, every axis of an element-wise one, the columns of a column kernel

Arrays sharded along a whole axis are gathered first; where only its size is asked for, shards are computed in jnp. An axis is split as its largest array is; others follow.

The jnp form needs none of this: XLA splits it as it likes. Inside `shard_map` neither does a kernel: each call is one
shard already.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src.sharding_impls import parse_flatten_op_sharding
from jax.experimental.custom_partitioning import ArrayMapping, CompoundFactor, SdyShardingRule, custom_partitioning
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from codegen.emit import leaf_key
from codegen.ir import ROWS, topological
from codegen.runtime import arguments, views
from codegen.runtime.evaluate import evaluate, evaluate_outputs, leaf_values
from codegen.spec import Array

if TYPE_CHECKING:
    from codegen.reductions import Reduction, Statistic
    from codegen.runtime.op import Key, Op

Shards = Mapping[str, tuple[str, ...]]  # a factor to the mesh axes that it is split along


# What may be split


def whole_axes(op: Op, asking: Collection[str] = ("index", "size", "take")) -> set[str]:
    """The axes of which a kernel needs all: among them those that the chain names in calls of the functions `asking`."""
    found = {axis for s in op.plan.rows for axis in s.axes}
    found |= {n.attr for n in topological(s.value for s in op.statements) if n.op in asking}  # type: ignore[misc]
    for array in op.spec.arrays:
        for dim in array.dims:
            if dim.parts is not None and dim.parts_first:
                found |= set(dim.names)
            found |= set(dim.names[1:])
    return found


def sized_axes(op: Op) -> set[str]:
    """The axes of which a kernel needs all for their size alone: their shards are computed in jnp, which can be told. None in
    a contraction that folds columns."""
    return set() if op.plan.kind == "gemm" and op.plan.columns else whole_axes(op) - whole_axes(op, ("index", "take"))


def factors(op: Op, array: Array, rows: int) -> list[tuple[str, int] | None]:
    """For each dimension of an array, the factor that it may be split along, outermost in it, and how many elements lie
    within one position of that factor; None where it must be whole. `...` is a factor for each of its axes."""
    whole = whole_axes(op) - sized_axes(op)
    found: list[tuple[str, int] | None] = []
    for dim in array.dims:
        if dim.names == (ROWS,):
            found += [None if ROWS in whole else (f"{ROWS}{i}", 1) for i in range(rows)]
        elif not dim.names or dim.names[0] in whole:
            found.append(None)
        else:
            found.append((dim.names[0], dim.parts or math.prod(n or 1 for n in dim.extents[1:])))
    return found


class Call:
    """The arrays of one call, and how their dimensions may be split: inputs that are there, then dynamic parameters, then
    outputs, each with the factors of its dimensions."""

    def __init__(self, op: Op, key: Key, operands: Sequence[tuple[int, ...]]):
        arrays = [op.spec.array(name) for name in key.present]
        self.op, self.operands = op, len(operands)
        self.axes = arguments.bind_axes(op.spec, dict(zip(key.present, map(_Shaped, operands), strict=False)))
        self.shapes = [*operands, *(views.user_shape(a, self.axes) for a in op.spec.outputs)]
        rows = len(self.axes.rows)
        scalars: list[list[tuple[str, int] | None]] = [[] for _ in operands[len(arrays) :]]
        self.factors = [
            *(factors(op, a, rows) for a in arrays), *scalars, *(factors(op, a, rows) for a in op.spec.outputs)
        ]  # fmt: skip

    def shards(self, specs: Sequence[Sequence[Any]], mesh: Mapping[str, int]) -> Shards:
        """How each factor is split, given how the arrays are (as many of them as are known); as far as that comes out
        even. The largest input decides."""
        found: dict[str, tuple[str, ...]] = {}
        count = self.operands
        order = sorted(range(len(specs)), key=lambda i: (i >= count, -math.prod(self.shapes[i])))
        summed = self.contracted_alike(specs)
        for i in order:
            for factor, extent, entry in zip(self.factors[i], self.shapes[i], _padded(specs[i]), strict=False):
                if factor is not None and factor[0] in self.contracted and factor[0] not in summed:
                    continue  # what one of two factors is stored in is gathered
                used = {axis for axes in found.values() for axis in axes}
                if factor is None or factor[0] in found or used & set(entry):
                    continue
                while entry and (extent // factor[1]) % math.prod(mesh[axis] for axis in entry):
                    entry = entry[:-1]
                if entry:
                    found[factor[0]] = entry
        return found

    @property
    def contracted(self) -> set[str]:
        """The axes that products are summed along."""
        return {p.axis for p in self.op.plan.products} if self.op.plan.kind == "gemm" else set()

    def contracted_alike(self, specs: Sequence[Sequence[Any]]) -> set[str]:
        """Those that all arrays which have them are split along: each device multiplies its part, and the sums are added."""
        entries: dict[str, set[tuple[str, ...]]] = {}
        for own, spec in zip(self.factors, specs, strict=False):
            for factor, entry in itertools.zip_longest(own, _padded(spec)[: len(own)], fillvalue=()):
                if factor and factor[0] in self.contracted:
                    entries.setdefault(factor[0], set()).add(entry)
        return {axis for axis, found in entries.items() if len(found) == 1 and found != {()}}

    def summed(self, shards: Shards) -> tuple[str, ...]:
        """The mesh axes that contractions are split along."""
        return tuple(axis for name in shards if name in self.contracted for axis in shards[name])

    def spec(self, place: int, shards: Shards) -> PartitionSpec:
        """How one of the arrays is then split."""
        return PartitionSpec(*(shards.get(f[0]) if f else None for f in self.factors[place]))

    def specs(self, shards: Shards) -> tuple[tuple[PartitionSpec, ...], tuple[PartitionSpec, ...]]:
        """How operands are split, and how outputs are."""
        made = [self.spec(i, shards) for i in range(len(self.shapes))]
        return tuple(made[: self.operands]), tuple(made[self.operands :])

    def folded(self, shards: Shards) -> tuple[tuple[str, ...], ...]:
        """For each statistic that a kernel folds over rows, the mesh axes that it is split along."""

        def lost(axes: tuple[str, ...]) -> tuple[str, ...]:
            names = [f for f in shards if (ROWS if f.startswith(ROWS) else f) in axes]
            return tuple(axis for name in names for axis in shards[name])

        return tuple(lost(s.axes) for s in self.op.plan.columns)

    def sized(self, shards: Shards) -> bool:
        """Whether a shard is shorter along an axis than the chain must know."""
        return any((ROWS if f.startswith(ROWS) else f) in sized_axes(self.op) for f in shards)

    def rule(self) -> SdyShardingRule:
        """The same for Shardy, which carries shardings from array to array along shared factors."""
        names: dict[str, str] = {}
        sizes: dict[str, int] = {}
        alone: list[str] = []
        mappings = []
        for shape, own in zip(self.shapes, self.factors, strict=True):
            dims: list[str | CompoundFactor] = []
            for extent, factor in zip(shape, own, strict=True):
                if factor is None:
                    alone.append(f"w{len(alone)}")
                    dims.append(alone[-1])
                    continue
                name = names.setdefault(factor[0], f"f{len(names)}")
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
    """How the types of arrays say that they are sharded; None where no mesh has explicit axes, theirs or that of the
    context. Other axes are left out."""
    types = [jax.typeof(x).sharding for x in operands]
    meshes = (*(t.mesh for t in types), jax.sharding.get_abstract_mesh())
    mesh = next((m for m in meshes if m.explicit_axes), None)
    return None if mesh is None else tuple(NamedSharding(mesh, t.spec) for t in types)


def output_shardings(op: Op, key: Key, shardings: Shardings | None, operands: Sequence[Any]) -> Shardings | None:
    """How outputs are then sharded, where `shardings` are those of the operands."""
    if shardings is None:
        return None
    mesh = shardings[0].mesh
    call = Call(op, key, [x.shape for x in operands])
    _, outputs = call.specs(call.shards([s.spec for s in shardings], mesh.shape))
    return tuple(NamedSharding(mesh, spec) for spec in outputs)


def typed(function: Callable[..., tuple], outputs: Shardings | None) -> Callable[..., tuple]:
    """`function`, which knows no explicit mesh axes, of arrays whose types say how they are sharded, as its `outputs` then
    are."""
    if outputs is None:
        return function
    return jax.sharding.auto_axes(function, axes=outputs[0].mesh.explicit_axes, out_sharding=outputs)


def varying(outputs: tuple[jax.Array, ...], operands: Sequence[Any]) -> tuple[jax.Array, ...]:
    """Outputs typed as `shard_map` wants them: they vary over the mesh axes that any operand does."""
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


def partitioned(op: Op, key: Key, kernel: Callable[..., tuple]) -> Callable[..., tuple]:
    """`kernel`, which returns an op's outputs and then what its blocks left of each column statistic, as a function of
    arrays that may be sharded; it returns the outputs."""
    outputs = len(op.spec.outputs)

    def one_device(*operands):
        return tuple(kernel(*operands)[:outputs])

    def partition(mesh, operands, results):
        call = Call(op, key, [x.shape for x in operands])
        if mesh.empty:  # within a `shard_map` over some axes of a mesh: what it leaves is not split further
            mesh = Mesh(np.array(sorted(results[0].sharding.device_set, key=lambda d: d.id)), ("devices",))
        shards = call.shards([_spec(x, mesh) for x in (*operands, *results)], mesh.shape)
        inner, outer = ([NamedSharding(mesh, s) for s in specs] for specs in call.specs(shards))

        def run(op, key, kernel, local):
            if call.sized(shards):
                return op.jnp_form(key, *local, sizes=call.axes)
            return on_shard(op, key, kernel, local, call.folded(shards), mesh.shape)

        def shard(*local):
            # The mesh of the caller's context is not that of a shard: JAX would mark what is made there as sharded again
            with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
                over = call.summed(shards)
                if over or (op.plan.kind == "gemm" and any(call.folded(shards))):
                    return op.after_products(key, local, over, run)
                if call.sized(shards) and op.plan.columns:
                    return in_jnp(op, key, local, call.folded(shards), mesh.shape, call.axes)
                return run(op, key, kernel, local)

        return mesh, shard, tuple(outer), tuple(inner)

    def rule(mesh, operands, results):
        del mesh, results
        return Call(op, key, [tuple(t.shape) for t in operands]).rule()

    function = custom_partitioning(one_device)
    function.def_partition(partition, sharding_rule=rule, decode_shardings=False)
    return function


def _spec(array: Any, mesh: Mesh) -> PartitionSpec:
    """How an array is sharded over a mesh; as one that is not where mesh axes cannot say it (XLA may split one)."""
    try:
        return parse_flatten_op_sharding(array.sharding._to_xla_hlo_sharding(len(array.shape)), mesh)[0]
    except (AssertionError, NotImplementedError, StopIteration, ValueError):
        return PartitionSpec()


def on_shard(
    op: Op, key: Key, kernel: Callable[..., tuple], operands: Sequence[jax.Array], over: Sequence[tuple[str, ...]],
    mesh: Mapping[str, int],
) -> tuple[jax.Array, ...]:  # fmt: skip
    """The outputs of `kernel` on one shard; each statistic that it folds over rows is folded over its mesh axes of `over` as
    well."""
    results = kernel(*operands)
    outputs = dict(zip(op.spec.outputs, results, strict=False))
    if any(over):
        with op.wide():
            parts = results[len(outputs) :][: len(op.plan.columns)]
            outputs |= _finish(op, key, operands, parts, over, mesh)
    return tuple(outputs.values())


def in_jnp(
    op: Op, key: Key, operands: Sequence[jax.Array], over: Sequence[tuple[str, ...]], mesh: Mapping[str, int],
    sizes: arguments.Axes,
) -> tuple[jax.Array, ...]:  # fmt: skip
    """The outputs on one shard, in jnp, of a chain that folds columns and asks for the `sizes` of axes, which are longer than
    a shard's."""
    arrays = dict(zip(key.present, operands, strict=False))
    axes = arguments.bind_axes(op.spec, arrays)
    with op.wide():
        known = statistics_in_jnp(op, key, operands, over, mesh, sizes)
        params = op.parameters(key, operands)
        outputs = evaluate_outputs(op._op, op.plan.stores, arrays, params, axes, key.types, known, op.compute(key))
    return tuple(outputs[a] for a in op.spec.outputs)


def statistics_in_jnp(
    op: Op, key: Key, operands: Sequence[jax.Array], over: Sequence[tuple[str, ...]], mesh: Mapping[str, int],
    sizes: arguments.Axes,
) -> dict[int, jax.Array]:  # fmt: skip
    """What the chain's reductions come to, with every axis, and the `sizes` that it asks for, by the identity of their
    nodes."""
    plan, spec, arrays = op.plan, op.spec, dict(zip(key.present, operands, strict=False))
    axes, compute = arguments.bind_axes(spec, arrays), op.compute(key)
    nodes = list(topological(s.value for s in op.statements))
    known = {id(n): jnp.asarray(math.prod(sizes.shape((str(n.attr),))), spec.integer) for n in nodes if n.op == "size"}
    leaves = leaf_values(op._op, {leaf_key(n) for n in nodes}, arrays, op.parameters(key, operands), axes, compute)
    across = dict(zip((id(s.node) for s in plan.columns), over, strict=True))
    statistics = {id(s.node): s for s in (*plan.rows, *plan.inner, *plan.columns)}
    for node in nodes:  # each after what it takes
        if (statistic := statistics.get(id(node))) is not None:
            (value,) = evaluate([statistic.operand], leaves, known, compute, spec.integer, dict(key.types.variables))
            parts = _folded_apart(plan, statistic, value, axes)
            known[id(node)] = _whole(plan, statistic, parts, across.get(id(node), ()), axes, mesh)
    return known


def _folded_apart(plan: Reduction, statistic: Statistic, value: jax.Array, axes: arguments.Axes) -> jax.Array:
    """What a statistic folds, as parts: (parts, those axes that it keeps)."""
    lost = statistic.axes
    value = jnp.broadcast_to(value, views.with_every_axis(plan.order, (*statistic.node.dims, *lost), axes))
    owners = [axis for axis in plan.order for _ in axes.shape((axis,))]
    places = [place for place, axis in enumerate(owners) if axis in lost]
    value = jnp.moveaxis(value, places, range(len(places)))
    value = value.astype(jnp.int32) if statistic.kind == "bool" else value
    count = len(places)
    return value.reshape(math.prod(value.shape[:count]), math.prod(value.shape[count:]))


def _finish(
    op: Op, key: Key, operands, parts, over: Sequence[tuple[str, ...]], mesh: Mapping[str, int]
) -> dict[Array, jax.Array]:
    """The outputs made of column statistics, from the parts of all shards."""
    plan, arrays = op.plan, dict(zip(key.present, operands, strict=False))
    axes = arguments.bind_axes(op.spec, arrays)
    known = {
        id(statistic.node): _whole(plan, statistic, _of_axes(plan, statistic, own, axes), across, axes, mesh)
        for statistic, own, across in zip(plan.columns, parts, over, strict=True)
    }
    late = [a for a in op.spec.outputs if any(id(n) in known for n in topological(_values(op, a)))]
    stores = [a for a in plan.stores if a.array in late]
    params = op.parameters(key, operands)
    return evaluate_outputs(op._op, stores, arrays, params, axes, key.types, known, op.compute(key))


def _whole(
    plan: Reduction, statistic: Statistic, parts: jax.Array, across: tuple[str, ...], axes: arguments.Axes,
    mesh: Mapping[str, int],
) -> jax.Array:  # fmt: skip
    """A statistic, from its parts on all shards, with every axis."""
    shape = views.with_every_axis(plan.order, statistic.node.dims, axes)
    whole = fold(statistic.op, parts, across).reshape(shape)
    if statistic.op == "mean":
        count = math.prod(axes.shape(statistic.axes)) * math.prod(mesh[axis] for axis in across)
        whole = whole / jnp.asarray(count, whole.dtype)
    return whole.astype(bool) if statistic.kind == "bool" else whole


def _of_axes(plan: Reduction, statistic: Statistic, parts: jax.Array, axes: arguments.Axes) -> jax.Array:
    """The parts of a statistic as it keeps axes: parts of all that blocks keep apart, (parts, columns), to more of fewer."""
    if statistic.over != "column":
        return parts
    extents = [views.group_extents(plan, axes)[i] for i in plan.spread]
    each = max(1, math.prod(extents) // max(1, parts.shape[1]))  # neighbouring columns that have one result
    apart = parts.reshape(parts.shape[0], *extents[:-1], extents[-1] // each)
    lost = [1 + k for k, i in enumerate(plan.spread) if i not in statistic.keeps]
    kept = [n for k, n in enumerate(apart.shape) if k and k not in lost]
    return jnp.moveaxis(apart, lost, range(1, 1 + len(lost))).reshape(-1, *kept)


def _values(op: Op, array: Array):
    return [s.value for s in op.statements if s.name == array.name]


def fold(op: str, parts: jax.Array, over: tuple[str, ...]) -> jax.Array:
    """The parts of a reduction, along their first axis and over mesh axes, as one."""
    largest = op in ("max", "any")
    if op in ("sum", "mean", "prod"):
        own = (jnp.prod if op == "prod" else jnp.sum)(parts, axis=0, dtype=parts.dtype)
    else:
        own = (jnp.max if largest else jnp.min)(parts, axis=0)
    if not over:
        return own
    if op in ("sum", "mean"):
        return jax.lax.psum(own, over)
    if op == "prod":
        return jnp.prod(jax.lax.all_gather(own, over), axis=0, dtype=parts.dtype)
    across = jax.lax.pmax if largest else jax.lax.pmin
    if not jnp.issubdtype(own.dtype, jnp.floating):
        return across(own, over)
    # As integers in the same order, NaN beyond all others: the network's maximum would drop it.
    integer = jnp.int64 if own.dtype.itemsize == 8 else jnp.int32
    ends = jnp.iinfo(integer)

    def mirrored(bits: jax.Array) -> jax.Array:
        return jnp.where(bits < 0, bits ^ ends.max, bits)

    ordered = mirrored(jax.lax.bitcast_convert_type(own, integer))
    ordered = jnp.where(jnp.isnan(own), ends.max if largest else ends.min, ordered)
    return jax.lax.bitcast_convert_type(mirrored(across(ordered, over)), own.dtype)
