"""Sums by index as a JAX function: the kernels on CUDA, and XLA's scatter elsewhere, under jit, vmap, sharding, export and `jax.grad`.
The kernels add in an order that the keys determine; XLA's scatter on a GPU adds as its threads come."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from codegen.runtime.call.described import Implementation
from codegen.runtime.compiled import by_index as kernels
from codegen.runtime.compiled.platform import choose
from codegen.runtime.sharding.by_index import partitioned_sums
from codegen.runtime.sharding.partition import varying


def sums_by_index(
    implementation: Implementation, keys: jax.Array, values: jax.Array, rows: int, result: str
) -> jax.Array:
    """The sums (outer, rows, columns) of the `values` (outer, M, columns) with each key, in the dtype `result`. `keys` (N,) are
    int32, from 0 on; one of `rows` or more is that of no row. N is a multiple of M: N / M neighbouring keys are of the same values.
    Sums are computed in float32, of float64 values in float64."""
    values = values if values.dtype.itemsize > 1 else values.astype("float32")
    if jnp.dtype(result).itemsize < 2:  # the kernels write no narrower types
        return sums_by_index(implementation, keys, values, rows, "float32").astype(result)
    return _differentiable(implementation, rows, result, keys, values)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _differentiable(implementation: Implementation, rows: int, result: str, keys: Any, values: Any) -> Any:
    return _mappable(implementation, rows, result)(keys, values)


def _forward(implementation: Implementation, rows: int, result: str, keys: Any, values: Any) -> Any:
    like = jnp.zeros((values.shape[1], 0), values.dtype)
    return _differentiable(implementation, rows, result, keys, values), (keys, like)


def _backward(implementation: Implementation, rows: int, result: str, residuals: Any, cotangent: jax.Array) -> Any:
    del implementation, rows, result
    keys, like = residuals
    taken = jnp.take(cotangent, keys, axis=1, mode="fill", fill_value=0)
    taken = taken.reshape(taken.shape[0], like.shape[0], -1, taken.shape[2]).sum(2)
    return None, taken.astype(like.dtype)


_differentiable.defvjp(_forward, _backward)


@functools.cache
def _mappable(implementation: Implementation, rows: Any, result: str) -> Any:
    """The sums for so many rows, as a function that `vmap` maps."""

    def run(keys: jax.Array, values: jax.Array) -> jax.Array:
        return varying((_run(implementation, keys, values, rows, result),), (keys, values))[0]

    batched = jax.custom_batching.custom_vmap(run)

    @batched.def_vmap
    def batch(size: int, mapped: Sequence[bool], keys: jax.Array, values: jax.Array) -> Any:
        if not mapped[0]:  # a mapped axis is one more outer axis
            found = batched(keys, values.reshape(-1, *values.shape[2:]))
            return found.reshape(size, -1, *found.shape[1:]), True
        # of mapped keys, each call has rows of its own
        inner = values.shape[2:] if mapped[1] else values.shape[1:]
        starts = jnp.arange(size, dtype=keys.dtype)[:, None] * rows
        own = jnp.where(keys < rows, keys + starts, size * rows).reshape(-1)
        outer = values.shape[1] if mapped[1] else values.shape[0]
        every = values if mapped[1] else jnp.broadcast_to(values, (size, *values.shape))
        every = jnp.moveaxis(every, 0, 1).reshape(outer, -1, inner[-1])
        found = sums_by_index(implementation, own, every, size * rows, result)
        return jnp.moveaxis(found.reshape(outer, size, rows, -1), 1, 0), True

    return batched


def _run(implementation: Implementation, keys: jax.Array, values: jax.Array, rows: int, result: str) -> jax.Array:
    own = kernels.sizes(keys, values, rows, result)
    if implementation == "xla" or own.launch() is None or (implementation is None and own.left_to_xla()):
        return _by_scatter(keys, values, rows, result)
    if implementation == "interpret":
        return kernels.interpreted_sums(keys, values, rows, result)

    def local(keys: jax.Array, values: jax.Array, rows: int, result: str) -> jax.Array:
        fits = kernels.sizes(keys, values, rows, result).launch() is not None
        return (kernels.launched if fits else _by_scatter)(keys, values, rows, result)

    def cute(donated: tuple[bool, ...]) -> Any:
        del donated
        on_shards = partitioned_sums(local, keys.shape[0] // values.shape[1], rows, own.compute, result)
        return lambda *operands: (on_shards(*operands),)

    def default(keys: jax.Array, values: jax.Array) -> tuple[jax.Array]:
        return (_by_scatter(keys, values, rows, result),)

    refuse = "sums by index: implementation='cute' needs an NVIDIA GPU; 'interpret' runs the kernel without"
    return choose(cute, default, keys, values, refuse=refuse if implementation == "cute" else "")[0]


def _by_scatter(keys: jax.Array, values: jax.Array, rows: int, result: str) -> jax.Array:
    compute = kernels.sizes(keys, values, rows, result).compute
    if keys.shape[0] != values.shape[1]:
        values = jnp.repeat(values, keys.shape[0] // values.shape[1], axis=1)
    sums = jnp.zeros((values.shape[0], rows, values.shape[2]), compute)
    found: jax.Array = sums.at[:, keys].add(values.astype(compute), mode="drop").astype(result)
    return found
