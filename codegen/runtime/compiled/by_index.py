"""The kernels that sum rows by index (`codegen.device.by_index`), called with sorted keys."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from codegen.graph.nodes import DTYPES
from codegen.plan.by_index import WIDEST, Sums
from codegen.runtime.compiled import interpreted
from codegen.runtime.compiled.launcher_call import LauncherCall, Tensor
from codegen.runtime.compiled.platform import current_arch
from codegen.shared import SumLaunch

NAMES = ["order", "keys", "values", "sums", "starts", "sums of chunks"]


def sizes(keys: int, values: jax.Array, result: str) -> Sums:
    """The sizes and dtypes of a call."""
    outer, rows, columns, own = (n if isinstance(n, int) else None for n in (*values.shape, keys))
    return Sums(outer, rows, columns, own, values.dtype.name, result)


def kernel_call(keys: jax.Array, values: jax.Array, rows: int, result: str) -> LauncherCall:
    """The call of the kernels: `values` (outer, N, columns) summed by their `keys` (N,), to (outer, rows, columns) in the dtype `result`.
    A key of `rows` or more has no row."""
    from codegen.device.by_index.sums import sum_by_index_launch

    own = sizes(rows, values, result)
    how = own.launch()
    assert how is not None
    count, vec = values.shape[1], how.vec
    order, keys = _sorted(keys, own) if how.is_sorted else (None, keys)

    def wide(shape: tuple[int, ...], dtype: str) -> Tensor:
        return Tensor(shape, dtype, (1, 1, vec), min(WIDEST, vec * DTYPES[dtype].size))

    words = [Tensor((count,), "int32", (1,), 4) for _ in range(2)]
    outputs = [wide((values.shape[0], rows, values.shape[2]), result)]
    if how.is_sorted:
        outputs.append(Tensor((rows + 1,), "int32", (1,), 4))
    if how.levels:
        outputs.append(wide((values.shape[0], _chunks(count, how), values.shape[2]), own.compute))
    return LauncherCall(
        sum_by_index_launch, (order, keys, values), (*words, wide(values.shape, own.dtype)), tuple(outputs),
        tuple(t.shape for t in outputs), how, dict(how.constants),
    )  # fmt: skip


def launched(keys: jax.Array, values: jax.Array, rows: int, result: str) -> jax.Array:
    """The sums, by the kernels on a GPU. Raises ValueError where no architecture is known."""
    arch = current_arch()
    if arch is None:
        raise ValueError("sums by index: CUTE_DSL_ARCH must say which GPU to compile for, as in sm_90a")
    return kernel_call(keys, values, rows, result).launched(arch, {})[0]


def interpreted_sums(keys: jax.Array, values: jax.Array, rows: int, result: str) -> jax.Array:
    """The same, interpreted on the CPU."""
    call = kernel_call(keys, values, rows, result)
    return call.interpreted(interpreted.architecture(), NAMES[: 3 + len(call.outputs)], 1, {})[0]


def _chunks(rows: int, how: SumLaunch) -> int:
    """The number of whole chunks of all levels."""
    return sum(rows // how.chunk**level for level in range(1, how.levels + 1))


def _sorted(keys: jax.Array, own: Sums) -> tuple[jax.Array, jax.Array]:
    """The numbers of the rows in the order of their keys, and the keys in that order. Equal keys stay in order."""
    places = jax.lax.iota(jnp.int32, keys.shape[0])
    if own.packs and own.rows is not None:  # XLA sorts numbers faster than pairs
        bits = (own.rows - 1).bit_length()
        packed = jax.lax.sort(keys.astype(jnp.uint32) << bits | places.astype(jnp.uint32), is_stable=False)
        return (packed & (2**bits - 1)).astype(jnp.int32), (packed >> bits).astype(jnp.int32)
    found, order = jax.lax.sort((keys, places), num_keys=1, is_stable=True)
    return order, found
