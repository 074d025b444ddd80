"""Sums by index as a JAX function: the kernels on CUDA, and XLA's scatter elsewhere, under jit, vmap, sharding, export and `jax.grad`.
The kernels add in an order that the keys determine; XLA's scatter on a GPU adds as its threads come."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    *,
    ordered: bool = False,
    clamp: bool = False,
    factors: jax.Array | None = None,
    into: jax.Array | None = None,
) -> jax.Array:
    """The sums (outer, rows, columns) of the `values` (outer, ..., columns) with each key, in the dtype `result`.
    `keys` are int32, not negative; a key of `rows` or more adds to no row. They have the axes of the values between
    `outer` and `columns`, and perhaps further axes, along which all keys share the same values. Sums are computed in
    float32, or in float64 if the values are float64. With `ordered`, kernels add wherever they can; otherwise XLA's
    scatter adds where it is estimated to be faster. With `clamp`, keys may have any integer type, and a key out of range
    means the nearest row. Where keys have no further axes, the values may be multiplied by `factors` of the keys' shape.
    The sums are added to `into`, if it is given, before they are rounded."""
    values = values if values.dtype.itemsize > 1 else values.astype("float32")
    narrow = jnp.dtype(result).itemsize < 2  # the kernels write no such types
    how = _How(implementation, rows, "float32" if narrow else result, ordered, clamp)
    sums = _differentiable(how, keys, values, factors, into)
    return sums.astype(result) if narrow else sums


@dataclass(frozen=True)
class _How:
    """All of a call but its arrays. `groups`, where it is given, is the size of the keys' first axis: each group has `rows` rows of its
    own, and the sums are (outer, groups * rows, columns)."""

    implementation: Implementation
    rows: Any
    result: str
    ordered: bool
    clamp: bool
    groups: int | None = None
    arch: str | None = field(init=False, default_factory=named_arch)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _differentiable(how: _How, keys: Any, values: Any, factors: Any, into: Any) -> Any:
    return _mappable(how)(keys, values, factors, into)


def _forward(how: _How, keys: Any, values: Any, factors: Any, into: Any) -> Any:
    like = [None if x is None else jnp.zeros((*x.shape[1:-1], 0), x.dtype) for x in (values, into)]
    multiplied = None if factors is None else (values, factors)
    return _differentiable(how, keys, values, factors, into), (keys, *like, multiplied)


def _backward(how: _How, residuals: Any, cotangent: jax.Array) -> Any:
    keys, like, before, multiplied = residuals
    keys = clamped(keys, how.rows) if how.clamp else keys
    taken = jnp.take(cotangent, _among_all(keys, how.rows, how.groups), axis=1, mode="fill", fill_value=0)
    dinto, dfactors = None if before is None else cotangent.astype(before.dtype), None
    if multiplied is not None:
        values, factors = multiplied
        taken = taken.astype(jnp.promote_types(taken.dtype, "float32"))
        dfactors = (taken * values).sum((0, -1)).astype(factors.dtype)
        taken = taken * factors[None, ..., None]
    return None, taken.sum(tuple(range(like.ndim, keys.ndim + 1))).astype(like.dtype), dfactors, dinto


_differentiable.defvjp(_forward, _backward)


@functools.cache
def _mappable(how: _How) -> Any:
    """The sums for so many rows, as a function that `vmap` maps."""

    def run(*arrays: Any) -> jax.Array:
        return varying((_run(how, *arrays),), [x for x in arrays if x is not None])[0]

    def apart(keys: jax.Array, values: jax.Array, factors: Any, into: Any) -> jax.Array:
        def sums(values: jax.Array, dtype: str) -> Any:
            return _mappable(replace(how, result=dtype))(keys, values, None, None)

        return _in_parts(sums, values, how.result, factors, into)

    batched = jax.custom_batching.custom_vmap(run)

    @batched.def_vmap
    def batch(size: int, mapped: Sequence[bool], keys: jax.Array, values: jax.Array, factors: Any, into: Any) -> Any:
        if factors is not None or into is not None:  # by other functions, of which each is mapped
            axes = tuple(0 if m is True else None for m in mapped)
            return jax.vmap(apart, axes)(keys, values, factors, into), True
        if not mapped[0]:  # a mapped axis is one more outer axis
            found = batched(keys, values.reshape(-1, *values.shape[2:]), None, None)
            return found.reshape(size, -1, *found.shape[1:]), True
        # of mapped keys, each call has rows of its own
        every = jnp.moveaxis(values if mapped[1] else jnp.broadcast_to(values, (size, *values.shape)), 0, 1)
        count = size * (how.groups or 1)
        if how.groups is not None:
            keys, every = keys.reshape(count, *keys.shape[2:]), every.reshape(every.shape[0], count, *every.shape[3:])
        found = _differentiable(replace(how, groups=count), keys, every, None, None)
        return jnp.moveaxis(found.reshape(found.shape[0], size, -1, found.shape[-1]), 1, 0), True

    return batched


def _in_parts(
    sums: Callable[[jax.Array, str], jax.Array], values: jax.Array, result: str, factors: Any = None, into: Any = None
) -> jax.Array:
    """What `sums` computes of values that are multiplied before, in a dtype; it is added to `into` afterwards."""
    compute = jnp.promote_types(values.dtype, "float32")
    if factors is not None:
        values = values.astype(compute) * factors[None, ..., None].astype(compute)
    return sums(values, result) if into is None else (sums(values, compute.name) + into).astype(result)


def _among_all(keys: jax.Array, rows: int, groups: int | None) -> jax.Array:
    """Keys among the rows of all groups."""
    if groups is None:
        return keys
    starts = jnp.arange(groups, dtype=keys.dtype).reshape(groups, *(1,) * (keys.ndim - 1)) * rows
    return jnp.where(keys < rows, keys + starts, groups * rows)


def _run(how: _How, keys: jax.Array, values: jax.Array, factors: Any, into: Any) -> jax.Array:
    implementation, rows, result, groups, clamp = how.implementation, how.rows, how.result, how.groups, how.clamp
    every = rows * (groups or 1)
    own = kernels.sizes(*flat(keys, values), every, result)
    if clamp and not (groups is None and own.tallied and keys.dtype in NARROW):
        keys, clamp = clamped(keys, rows), False
    faster = implementation is None and not how.ordered and own.left_to_xla()
    by_scatter = implementation == "xla" or own.launch() is None or bool(faster)
    if (factors is not None or into is not None) and (by_scatter or own.tallied):
        return _in_parts(
            lambda v, dtype: _run(replace(how, result=dtype), keys, v, None, None), values, result, factors, into
        )
    if by_scatter:
        return _by_scatter(clamped(keys, rows) if clamp else keys, values, rows, result, groups)
    more = {name: x for name, x in {"factors": factors, "into": into}.items() if x is not None}
    if implementation == "interpret":
        keys = _among_all(keys, rows, groups)
        return kernels.interpreted_sums(*flat(keys, values), every, result, clamp, **_flattened(more))

    def local(keys: jax.Array, values: jax.Array, rows: int, result: str, clamp: bool, **more: jax.Array) -> jax.Array:
        here = kernels.sizes(*flat(keys, values), rows, result)
        if clamp and not here.tallied:
            keys, clamp = clamped(keys, rows), False
        if more and (here.tallied or here.launch() is None):
            return _in_parts(lambda v, dtype: local(keys, v, rows, dtype, clamp), values, result, **more)
        if here.launch() is None:
            return _by_scatter(keys, values, rows, result)
        return kernels.launched(*flat(keys, values), rows, result, clamp, **_flattened(more))

    def cute(donated: tuple[bool, ...]) -> Any:
        del donated
        on_shards = partitioned_sums(local, keys.ndim, values.ndim - 2, every, own.compute, result, clamp, tuple(more))
        return lambda keys, *others: (on_shards(_among_all(keys, rows, groups), *others),)

    def default(keys: jax.Array, values: jax.Array, *others: jax.Array) -> tuple[jax.Array]:
        def sums(values: jax.Array, dtype: str) -> jax.Array:
            return _by_scatter(clamped(keys, rows) if clamp else keys, values, rows, dtype, groups)

        return (_in_parts(sums, values, result, **dict(zip(more, others, strict=True))),)

    refuse = "sums by index: implementation='cute' needs an NVIDIA GPU; 'interpret' runs the kernel without"
    given = keys, values, *more.values()
    return choose(cute, default, *given, refuse=refuse if implementation == "cute" else "")[0]


def _flattened(more: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """Factors in the order of flat keys, and what the sums are added to."""
    return {name: x.reshape(-1) if name == "factors" else x for name, x in more.items()}


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
