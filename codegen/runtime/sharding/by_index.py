"""Sums by index of sharded arrays. A device sums the rows that it has, to the rows of the result that it has: what devices have summed
for the same rows is added up. Outer axes and columns are summed apart from each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec

from codegen.runtime.sharding.partition import entries, is_one_shard, mesh_of

Entry = tuple[str, ...]  # the mesh axes of a dimension
Local = Callable[[jax.Array, jax.Array, int, str], jax.Array]


def partitioned_sums(
    local: Local, each: int, rows: int, compute: str, result: str
) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """A function of keys (N,) and values (outer, N / each, columns) that may be sharded, which returns sums (outer, rows, columns) in
    the dtype `result`. `local` computes them on one device, for so many rows and in a dtype; partial results are in `compute`."""

    def one_device(keys: jax.Array, values: jax.Array) -> jax.Array:
        return local(keys, values, rows, result)

    def partition(mesh: Any, operands: Any, result_: Any) -> Any:
        results = (result_,)
        mesh = mesh_of(mesh, results)
        used: set[str] = set()

        def own(axes: Entry, size: int) -> Entry:
            kept = tuple(axis for axis in axes if axis not in used)
            while kept and size % math.prod(mesh.shape[axis] for axis in kept):
                kept = kept[:-1]
            used.update(kept)
            return kept

        (outer, count, columns), given = operands[1].shape, [entries(x, mesh) for x in (*operands, *results)]
        terms = own(given[1][1] or given[0][0], count)
        across = [own(given[1][i] or given[2][i], size) for i, size in ((0, outer), (2, columns))]
        of_rows = own(given[2][1], rows)

        def shard(keys: jax.Array, values: jax.Array) -> jax.Array:
            left = rows // math.prod(mesh.shape[axis] for axis in of_rows)
            if of_rows:
                keys = keys - jax.lax.axis_index(of_rows).astype(keys.dtype) * left
                keys = jnp.where((keys < 0) | (keys >= left), jnp.asarray(left, keys.dtype), keys)
            with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
                found = local(keys, values, left, compute if terms else result)
            return jax.lax.psum(found, terms).astype(result) if terms else found

        def placed(*axes: Sequence[str]) -> NamedSharding:
            return NamedSharding(mesh, PartitionSpec(*(tuple(a) or None for a in axes)))

        inputs = placed(terms), placed(across[0], terms, across[1])
        return mesh, shard, placed(across[0], of_rows, across[1]), inputs

    function = custom_partitioning(one_device)
    rule: dict[str, Any] = {"sharding_rule": "n, o n c -> o r c"}
    if each != 1:
        rule = {"sharding_rule": "(n m), o n c -> o r c", "m": each, "need_replication_factors": ("m",)}
    function.def_partition(partition, reduction_factors=("n",), decode_shardings=False, **rule)

    def run(keys: jax.Array, values: jax.Array) -> jax.Array:
        found: jax.Array = one_device(keys, values) if is_one_shard() else function(keys, values)
        return found

    return run
