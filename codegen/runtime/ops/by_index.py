"""Sums by index as a JAX function: the kernels on CUDA, and XLA's scatter elsewhere, under jit, vmap, sharding, export and `jax.grad`.
The kernels add in an order that the keys determine; XLA's scatter on a GPU adds as its threads come."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from codegen.runtime.call.described import Implementation, named_arch
from codegen.runtime.compiled import by_index as kernels
from codegen.runtime.compiled.platform import choose
from codegen.runtime.sharding.by_index import partitioned_sums
from codegen.runtime.sharding.partition import varying
from codegen.runtime.xla.scatter import clamped, flat

NARROW = ("int8", "int16", "int32", "uint8", "uint16")  # types of keys that a kernel clamps


def sums_by_index(
    implementation: Implementation,
    keys: jax.Array,
    values: jax.Array,
    rows: int,
    result: str,
    groups: int | None = None,
    ordered: bool = False,
    clamp: bool = False,
) -> jax.Array:
    """The sums (outer, rows, columns) of the `values` (outer, ..., columns) with each key, in the dtype `result`. `keys` are int32, not
    negative; a key of `rows` or more adds to no row. They have the axes of the values between `outer` and `columns`, and perhaps
    further axes, along which all keys share the same values. Sums are computed in float32, or in float64 if the values are float64.
    With `groups`, the size of the keys' first axis, each group has `rows` of its own: the sums are (outer, groups * rows, columns).
    With `ordered`, the kernels add wherever they can; else XLA's scatter does where it should take less time. With `clamp`, keys have
    any integer type, and one out of range counts as the nearest row."""
    values = values if values.dtype.itemsize > 1 else values.astype("float32")
    if jnp.dtype(result).itemsize < 2:  # the kernels write no narrower types
        return sums_by_index(implementation, keys, values, rows, "float32", groups, ordered, clamp).astype(result)
    return _differentiable(_How(implementation, rows, result, groups, ordered, clamp), keys, values)


@dataclass(frozen=True)
class _How:
    """All of a call but its arrays."""

    implementation: Implementation
    rows: Any
    result: str
    groups: int | None
    ordered: bool
    clamp: bool
    arch: str | None = field(init=False, default_factory=named_arch)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _differentiable(how: _How, keys: Any, values: Any) -> Any:
    return _mappable(how)(keys, values)


def _forward(how: _How, keys: Any, values: Any) -> Any:
    like = jnp.zeros((*values.shape[1:-1], 0), values.dtype)
    return _differentiable(how, keys, values), (keys, like)


def _backward(how: _How, residuals: Any, cotangent: jax.Array) -> Any:
    keys, like = residuals
    keys = clamped(keys, how.rows) if how.clamp else keys
    taken = jnp.take(cotangent, _among_all(keys, how.rows, how.groups), axis=1, mode="fill", fill_value=0)
    return None, taken.sum(tuple(range(like.ndim, keys.ndim + 1))).astype(like.dtype)


_differentiable.defvjp(_forward, _backward)


@functools.cache
def _mappable(how: _How) -> Any:
    """The sums for so many rows, as a function that `vmap` maps."""

    def run(keys: jax.Array, values: jax.Array) -> jax.Array:
        return varying((_run(how, keys, values),), (keys, values))[0]

    batched = jax.custom_batching.custom_vmap(run)

    @batched.def_vmap
    def batch(size: int, mapped: Sequence[bool], keys: jax.Array, values: jax.Array) -> Any:
        if not mapped[0]:  # a mapped axis is one more outer axis
            found = batched(keys, values.reshape(-1, *values.shape[2:]))
            return found.reshape(size, -1, *found.shape[1:]), True
        # of mapped keys, each call has rows of its own
        every = jnp.moveaxis(values if mapped[1] else jnp.broadcast_to(values, (size, *values.shape)), 0, 1)
        count = size * (how.groups or 1)
        if how.groups is not None:
            keys, every = keys.reshape(count, *keys.shape[2:]), every.reshape(every.shape[0], count, *every.shape[3:])
        found = sums_by_index(how.implementation, keys, every, how.rows, how.result, count, how.ordered, how.clamp)
        return jnp.moveaxis(found.reshape(found.shape[0], size, -1, found.shape[-1]), 1, 0), True

    return batched


def _among_all(keys: jax.Array, rows: int, groups: int | None) -> jax.Array:
    """Keys among the rows of all groups."""
    if groups is None:
        return keys
    starts = jnp.arange(groups, dtype=keys.dtype).reshape(groups, *(1,) * (keys.ndim - 1)) * rows
    return jnp.where(keys < rows, keys + starts, groups * rows)


def _run(how: _How, keys: jax.Array, values: jax.Array) -> jax.Array:
    implementation, rows, result, groups, clamp = how.implementation, how.rows, how.result, how.groups, how.clamp
    every = rows * (groups or 1)
    own = kernels.sizes(*flat(keys, values), every, result)
    if clamp and not (groups is None and own.tallied and keys.dtype in NARROW):
        keys, clamp = clamped(keys, rows), False
    faster = implementation is None and not how.ordered and own.left_to_xla()
    if implementation == "xla" or own.launch() is None or faster:
        return _by_scatter(clamped(keys, rows) if clamp else keys, values, rows, result, groups)
    if implementation == "interpret":
        return kernels.interpreted_sums(*flat(_among_all(keys, rows, groups), values), every, result, clamp)

    def local(keys: jax.Array, values: jax.Array, rows: int, result: str, clamp: bool) -> jax.Array:
        here = kernels.sizes(*flat(keys, values), rows, result)
        if clamp and not here.tallied:
            keys, clamp = clamped(keys, rows), False
        if here.launch() is None:
            return _by_scatter(keys, values, rows, result)
        return kernels.launched(*flat(keys, values), rows, result, clamp)

    def cute(donated: tuple[bool, ...]) -> Any:
        del donated
        on_shards = partitioned_sums(local, keys.ndim, values.ndim - 2, every, own.compute, result, clamp)
        return lambda keys, values: (on_shards(_among_all(keys, rows, groups), values),)

    def default(keys: jax.Array, values: jax.Array) -> tuple[jax.Array]:
        return (_by_scatter(clamped(keys, rows) if clamp else keys, values, rows, result, groups),)

    refuse = "sums by index: implementation='cute' needs an NVIDIA GPU; 'interpret' runs the kernel without"
    return choose(cute, default, keys, values, refuse=refuse if implementation == "cute" else "")[0]


def _by_scatter(keys: jax.Array, values: jax.Array, rows: int, result: str, groups: int | None = None) -> jax.Array:
    if groups is not None:  # each apart, so that devices that share them need nothing of each other
        each = functools.partial(_by_scatter, rows=rows, result=result)
        found = jax.vmap(each, (0, 1), 1)(keys, values)
        return found.reshape(found.shape[0], groups * rows, found.shape[-1])
    compute = "float64" if values.dtype == jnp.float64 else "float32"
    outer, columns = values.shape[0], values.shape[-1]
    alike = (1,) * (keys.ndim - values.ndim + 2)
    values = values.reshape(*values.shape[:-1], *alike, columns).astype(compute)
    values = jnp.broadcast_to(values, (outer, *keys.shape, columns))
    sums: jax.Array = jnp.zeros((outer, rows, columns), compute).at[:, keys].add(values, mode="drop")
    return sums.astype(result)
