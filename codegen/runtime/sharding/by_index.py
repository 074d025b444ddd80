"""Sums by index of sharded arrays. Each device sums its own rows. Sums of several devices for the same row of the
result are then added up. Outer axes and columns are summed apart from each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec

from codegen.runtime.sharding.partition import entries, is_one_shard, mesh_of
from codegen.runtime.xla.scatter import clamped

Entry = tuple[str, ...]  # the mesh axes of a dimension
Local = Callable[..., jax.Array]  # of keys, values, the number of rows, a dtype and whether to clamp


def partitioned_sums(
    local: Local,
    axes: int,
    between: int,
    rows: int,
    compute: str,
    result: str,
    clamp: bool = False,
    more: tuple[str, ...] = (),
) -> Callable[..., jax.Array]:
    """A function of keys and values (outer, ..., columns) that may be sharded, which returns sums (outer, rows, columns) in the dtype
    `result`. The keys have `axes` axes; the first `between` of them are the values' axes between the outer axis and the columns.
    `local` computes the sums on one device, for a number of rows and a dtype; partial results are in `compute`. It is told whether to `clamp`
    keys that are out of range. `more` are the names of further operands: "factors", of the keys' shape, and "into", of the result's."""

    def one_device(keys: jax.Array, values: jax.Array, *others: jax.Array) -> jax.Array:
        return local(keys, values, rows, result, clamp, **dict(zip(more, others, strict=True)))

    def partition(mesh: Any, operands: Any, result_: Any) -> Any:
        results = (result_,)
        mesh = mesh_of(mesh, results)
        own = _Unused(mesh)
        shape, given = operands[1].shape, [entries(x, mesh) for x in (*operands[:2], *results)]
        terms = [own(given[1][1 + i] or given[0][i], shape[1 + i]) for i in range(between)]
        across = [own(given[1][i] or given[2][i], shape[i]) for i in (0, -1)]
        of_rows, summed = own(given[2][1], rows), tuple(axis for entry in terms for axis in entry)

        def shard(keys: jax.Array, values: jax.Array, *others: jax.Array) -> jax.Array:
            named = dict(zip(more, others, strict=True))
            into = named.pop("into", None) if summed else None
            left = rows // math.prod(mesh.shape[axis] for axis in of_rows)
            if of_rows:
                keys = _within(clamped(keys, rows) if clamp else keys, of_rows, left)
            with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
                found = local(keys, values, left, compute if summed else result, clamp and not of_rows, **named)
            found = jax.lax.psum(found, summed) if summed else found
            return (found if into is None else found + into).astype(result)

        def placed(*axes: Sequence[str]) -> NamedSharding:
            return NamedSharding(mesh, PartitionSpec(*(tuple(a) or None for a in axes)))

        own_keys, written = placed(*terms, *((),) * (len(given[0]) - between)), placed(across[0], of_rows, across[1])
        others = (own_keys if name == "factors" else written for name in more)
        return mesh, shard, written, (own_keys, placed(across[0], *terms, across[1]), *others)

    function = custom_partitioning(one_device)
    rule = _rule(axes, between, more)
    function.def_partition(partition, decode_shardings=False, **rule)

    def run(*operands: jax.Array) -> jax.Array:
        found: jax.Array = one_device(*operands) if is_one_shard() else function(*operands)
        return found

    return run


class _Unused:
    """Gives each mesh axis to one dimension."""

    def __init__(self, mesh: Any):
        self.mesh = mesh
        self.used: set[str] = set()

    def __call__(self, axes: Entry, size: int) -> Entry:
        """Those of some axes that are left, and divide a size."""
        kept = tuple(axis for axis in axes if axis not in self.used)
        while kept and size % math.prod(self.mesh.shape[axis] for axis in kept):
            kept = kept[:-1]
        self.used.update(kept)
        return kept


def _within(keys: jax.Array, of_rows: Entry, rows: int) -> jax.Array:
    """Keys among the `rows` of this device; `rows` where they are others'."""
    keys = keys - jax.lax.axis_index(of_rows).astype(keys.dtype) * rows
    return jnp.where((keys < 0) | (keys >= rows), jnp.asarray(rows, keys.dtype), keys)


def _rule(axes: int, between: int, more: Sequence[str]) -> dict[str, Any]:
    """Which axes of the operands and of the result are the same, and which are summed."""
    names = [f"n{i}" for i in range(axes)]
    kept, alike = tuple(names[:between]), tuple(names[between:])
    keys = " ".join(names)
    operands = [keys, f"o {' '.join(kept)} c", *(keys if name == "factors" else "o r c" for name in more)]
    rule: dict[str, Any] = {"sharding_rule": f"{', '.join(operands)} -> o r c", "reduction_factors": kept}
    return rule | ({"need_replication_factors": alike} if alike else {})
