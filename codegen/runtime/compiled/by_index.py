"""The kernels that sum rows by index (`codegen.device.by_index`), called with sorted keys."""

from __future__ import annotations

import math
from dataclasses import replace

import jax
import jax.numpy as jnp

from codegen.graph.nodes import DTYPES
from codegen.plan.by_index import WIDEST, Sums
from codegen.runtime.call.typed import launcher
from codegen.runtime.compiled import interpreted
from codegen.runtime.compiled.launcher_call import LauncherCall, Tensor
from codegen.runtime.compiled.platform import current_arch
from codegen.shared import SumLaunch, TallyLaunch

NAMES = ["order", "keys", "values", "factors", "into", "sums", "the order of keys", "sums of chunks"]
FOUR = 4  # of a vector of keys


def sizes(keys: jax.Array, values: jax.Array, rows: int, result: str) -> Sums:
    """The sizes and dtypes of a call."""
    return Sums.of(keys.shape[0], values.shape, values.dtype.name, rows, result)


def kernel_call(
    keys: jax.Array,
    values: jax.Array,
    rows: int,
    result: str,
    clamp: bool = False,
    factors: jax.Array | None = None,
    into: jax.Array | None = None,
) -> LauncherCall:
    """The call of the kernels: `values` (outer, M, columns) summed by their `keys` (N,), to (outer, rows, columns) in the dtype `result`.
    N is a multiple of M: N / M neighbouring keys share one row of values. A key of `rows` or more adds to no row, unless a kernel with
    tables is to `clamp` it. Kernels without tables take `factors` (N,) of the rows, if each key has its own, and add the sums to `into`."""
    own = sizes(keys, values, rows, result)
    how = own.launch()
    assert how is not None
    if isinstance(how, TallyLaunch):
        assert factors is None and into is None
        return _tallied(keys, values, own, replace(how, clamp=clamp))
    assert not clamp and (factors is None or keys.shape[0] == values.shape[1])
    return _in_order(keys, values, factors, into, rows, own, how)


def _tallied(keys: jax.Array, values: jax.Array, own: Sums, how: TallyLaunch) -> LauncherCall:
    """The call of kernels with tables of sums."""
    from codegen.device.by_index.tallies import tally_launch

    def single(shape: tuple[int, ...], dtype: str) -> Tensor:
        return Tensor(shape, dtype, (1,) * len(shape), DTYPES[dtype].size)

    outputs = [single((values.shape[0], how.keys, how.columns), own.result)]
    if how.parts > 1:
        outputs.append(single((values.shape[0], how.parts, how.keys * how.columns), own.compute))
    inputs = single(keys.shape, keys.dtype.name), single(values.shape, own.dtype)
    shapes = tuple(t.shape for t in outputs)
    launch = launcher(tally_launch, tuple(t.dtype for t in (*inputs, *outputs)))
    return LauncherCall(launch, (keys, values), inputs, tuple(outputs), shapes, how, dict(how.constants))


def _in_order(
    keys: jax.Array,
    values: jax.Array,
    factors: jax.Array | None,
    into: jax.Array | None,
    rows: int,
    own: Sums,
    how: SumLaunch,
) -> LauncherCall:
    """The call of kernels that read rows in the order of their keys."""
    from codegen.device.by_index.sums import sum_by_index_launch

    result = own.result
    count, vec = keys.shape[0], how.vec
    order, words = None, rows + 1
    if how.ranks:
        keys, words = _padded(_packed(keys, own, "int32")), words + 2 * count
    else:
        order, keys = _sorted(keys, own)
        order = order // (count // values.shape[1])

    def wide(shape: tuple[int, ...], dtype: str) -> Tensor:
        return Tensor(shape, dtype, (1, 1, math.lcm(vec, how.chunk_vec)), min(WIDEST, vec * DTYPES[dtype].size))

    def numbers(size: int, vec: int = 1, dtype: str = "int32") -> Tensor:
        return Tensor((size,), dtype, (vec,), DTYPES[dtype].size * vec)

    written = (values.shape[0], rows, values.shape[2])
    outputs = [wide(written, result), numbers(words)]
    if how.levels:
        outputs.append(wide((values.shape[0], _chunks(count, how), values.shape[2]), own.compute))
    inputs = (
        numbers(count),
        numbers(keys.shape[0], FOUR if how.ranks else 1),
        wide(values.shape, own.dtype),
        numbers(count, dtype="float32" if factors is None else factors.dtype.name),
        wide(written, result if into is None else into.dtype.name),
    )
    shapes, operands = tuple(t.shape for t in outputs), (order, keys, values, factors, into)
    return LauncherCall(sum_by_index_launch, operands, inputs, tuple(outputs), shapes, how, dict(how.constants))


def launched(
    keys: jax.Array, values: jax.Array, rows: int, result: str, clamp: bool = False, **more: jax.Array
) -> jax.Array:
    """The sums, by the kernels on a GPU. Raises ValueError where no architecture is known."""
    arch = current_arch()
    if arch is None:
        raise ValueError("sums by index: CUTE_DSL_ARCH must say which GPU to compile for, as in sm_90a")
    return kernel_call(keys, values, rows, result, clamp, **more).launched(arch, {})[0]


def interpreted_sums(
    keys: jax.Array, values: jax.Array, rows: int, result: str, clamp: bool = False, **more: jax.Array
) -> jax.Array:
    """The same, interpreted on the CPU."""
    call = kernel_call(keys, values, rows, result, clamp, **more)
    names = [NAMES[i] for i in (1, 2, 5, 7)] if isinstance(call.how, TallyLaunch) else NAMES
    return call.interpreted(interpreted.architecture(), names[: len(call.inputs) + len(call.outputs)], 1, {})[0]


def _chunks(rows: int, how: SumLaunch) -> int:
    """The number of whole chunks of all levels."""
    return sum(rows // how.chunk**level for level in range(1, how.levels + 1))


def _packed(keys: jax.Array, own: Sums, dtype: str) -> jax.Array:
    """Each key times the number of rows, plus the number of its row."""
    places = jax.lax.iota(dtype, keys.shape[0])
    return jnp.minimum(keys, own.keys).astype(dtype) * keys.shape[0] + places


def _padded(numbers: jax.Array) -> jax.Array:
    """Numbers in whole vectors of four, with the largest number at the end."""
    return jnp.pad(numbers, (0, -numbers.shape[0] % FOUR), constant_values=jnp.iinfo(numbers.dtype).max)


def _sorted(keys: jax.Array, own: Sums) -> tuple[jax.Array, jax.Array]:
    """The numbers of the rows in the order of their keys, and the keys in that order. Equal keys stay in order."""
    if own.packs():  # XLA sorts numbers faster than pairs
        packed = jax.lax.sort(_packed(keys, own, "uint32"), is_stable=False)
        return (packed % keys.shape[0]).astype(jnp.int32), (packed // keys.shape[0]).astype(jnp.int32)
    places = jax.lax.iota(jnp.int32, keys.shape[0])
    found, order = jax.lax.sort((keys, places), num_keys=1, is_stable=True)
    return order, found
