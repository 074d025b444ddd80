"""The products of an op that contracts, by XLA: `acc = a @ b` for arrays in the user's shapes."""

from __future__ import annotations

import functools
import math
import os
import re
from typing import Any

import jax
import jax.numpy as jnp

from codegen.graph.nodes import DTYPES, ROWS
from codegen.plan.gemms import halving
from codegen.plan.gemms.tiles import Product
from codegen.runtime.call.arguments import Axes
from codegen.runtime.call.views import user_shape
from codegen.spec.spec import Array

BYTES_TOGETHER = 16
# The number of products, of at most 2**14 or nearly 2**16 each, whose sum is exact in float32
EXACT = {"int8": 1024, "uint8": 256}


Numbers = tuple[int, ...]


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4, 5))
def sum_of_products(a: jax.Array, b: jax.Array, of_a: Numbers, of_b: Numbers, result: Numbers, dtype: str) -> jax.Array:
    """The product of two arrays, with numbers for their dimensions as in `jnp.einsum`. It is multiplied in `dtype`, with sums in the
    arrays' own type. So are its derivatives; jnp's would round the sums to `dtype`."""
    narrow = (x.astype(dtype) for x in (a, b))
    x, y = narrow
    return jnp.einsum(x, of_a, y, of_b, result, preferred_element_type=a.dtype)


def _with_factors(a: jax.Array, b: jax.Array, *how: Any) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return sum_of_products(a, b, *how), (a, b)


def _of_factors(
    of_a: Numbers, of_b: Numbers, result: Numbers, dtype: str, factors: tuple[jax.Array, jax.Array], g: jax.Array
) -> tuple[jax.Array, jax.Array]:
    a, b = factors
    return sum_of_products(g, b, result, of_b, of_a, dtype), sum_of_products(a, g, of_a, result, of_b, dtype)


sum_of_products.defvjp(_with_factors, _of_factors)


def product(
    found: Product, a: Any, b: Any, axes: Axes, dtype: str, exact: bool = False, arch: str | None = None
) -> jax.Array:
    """`acc` in the user's shape, summed in float32 (int32 for integers) and returned as `dtype`. float8 operands are widened to
    bfloat16, which is exact. With `exact`, float32 operands are not rounded to TF32. On some architectures (`arch`), sums over a long
    axis are added from two halves."""
    a, b = _operand(a), _operand(jnp.asarray(b).astype(a.dtype) if found.widened else b)
    if a.dtype != b.dtype:
        wide = jnp.promote_types(a.dtype, b.dtype) if a.dtype.kind == b.dtype.kind else jnp.float32
        a, b = a.astype(wide), b.astype(wide)
    names: dict[Any, int] = {}
    left, own = _split(found.a, a, axes, names)
    right, other = _split(found.b, b, axes, names)
    _, result = _split(found.acc, None, axes, names)
    # Common axes come first: XLA on a CPU lacks products of bfloat16 in another order
    shared = [n for n in own if n in other and n in result]
    (left, own), (right, other) = (_with_first(x, numbers, shared) for x, numbers in ((left, own), (right, other)))
    last = (ROWS, len(axes.rows) - 1) if found.axes[-1] == ROWS else found.axes[-1]
    if DTYPES[a.dtype.name].kind == "int" and a.dtype.itemsize == 1 and (axis := names.get(last)) is not None:
        if not _checked():
            made = _in_pieces(left, own, right, other, result, axis)
            return made.astype(dtype).reshape(user_shape(found.acc, axes))
        left, right = (_filled(x, own.index(axis), BYTES_TOGETHER) for x, own in ((left, own), (right, other)))
    precision = jax.lax.Precision.HIGHEST if exact and a.dtype == jnp.float32 else None
    if a.dtype.itemsize == 2 and (halved := _halved(left, own, right, other, result, arch)):
        made = jnp.einsum(*halved, preferred_element_type=jnp.float32).sum(0).astype(dtype)
        return made.reshape(user_shape(found.acc, axes))
    made = jnp.einsum(left, own, right, other, result, precision=precision, preferred_element_type=jnp.dtype(dtype))
    return made.reshape(user_shape(found.acc, axes))


def gradient(found: Product, factor: Array) -> Product:
    """The product that is the gradient of one of a product's factors: of the other factor and the gradient of the result."""
    other = found.b if factor is found.a else found.a
    kept = {name for dim in factor.dims for name in dim.names}
    axes = (name for dim in found.acc.dims for name in dim.names if name not in kept)
    return Product(other, found.acc, tuple(axes), factor)


def is_product(found: Product) -> bool:
    """Whether a product of its factors has all of its result's axes: a gradient by a factor that was summed alone has not."""
    axes = {name for x in (found.a, found.b) for dim in x.dims for name in dim.names}
    return axes.issuperset(name for dim in found.acc.dims for name in dim.names)


def _halved(
    left: Any, own: list[int], right: Any, other: list[int], result: list[int], arch: str | None
) -> tuple[Any, ...]:
    """The operands of an einsum that multiplies the two halves of the contracted axis apart, if their sum takes less time; else none."""
    sizes = dict(zip([*own, *other], [*left.shape, *right.shape], strict=True))
    if not all(isinstance(n, int) for n in sizes.values()) or {*own} & {*other} & {*result}:
        return ()
    contracted = [n for n in own if n not in result]
    rows, columns, long = (
        math.prod(sizes[n] for n in numbers) for numbers in ({*own} & {*result}, {*other} & {*result}, contracted)
    )
    if contracted != [n for n in other if n not in result] or not halving.saves_time(rows, columns, long, arch):
        return ()
    half, cut = max(sizes) + 1, next((n for n in contracted if sizes[n] % 2 == 0), None)
    if cut is None:
        return ()
    operands: list[Any] = []
    for x, numbers in ((left, own), (right, other)):
        place = numbers.index(cut)
        operands += [
            x.reshape(*x.shape[:place], 2, -1, *x.shape[place + 1 :]),
            [*numbers[:place], half, *numbers[place:]],
        ]
    return (*operands, [half, *result])


def _with_first(x: jax.Array, numbers: list[int], first: list[int]) -> tuple[jax.Array, list[int]]:
    """An array with some of its dimensions moved to the front."""
    order = [*first, *(n for n in numbers if n not in first)]
    return x.transpose([numbers.index(n) for n in order]), order


def _operand(x: Any) -> jax.Array:
    x = jnp.asarray(x)
    narrow = DTYPES[x.dtype.name].kind == "float" and x.dtype.itemsize == 1
    return x.astype(jnp.bfloat16) if narrow else x


def _checked() -> bool:
    """Whether XLA's autotuner checks the results of its kernels for products of bytes, which is the default. Its first choice (of
    JAX 0.11.2 on an H100) gives twice the sum."""
    levels = re.findall(r"--xla_gpu_autotune_level=(\d)", os.environ.get("XLA_FLAGS", ""))
    return not levels or int(levels[-1]) >= 4


def _in_pieces(
    left: jax.Array, own: list[int], right: jax.Array, other: list[int], result: list[int], axis: int
) -> Any:
    """Products of bytes, as int32, computed in bfloat16, which represents each byte: exact, because `EXACT` are added at once."""
    piece = max(own + other) + 1
    operands: list[Any] = []
    for x, numbers in ((left, own), (right, other)):
        place, size = numbers.index(axis), EXACT[x.dtype.name]
        if isinstance(x.shape[place], int):
            size = max(1, min(size, x.shape[place]))
        x = _filled(x, place, size).astype(jnp.bfloat16)
        shape = (*x.shape[:place], x.shape[place] // size, size, *x.shape[place + 1 :])
        operands += [x.reshape(shape), [*numbers[:place], piece, *numbers[place:]]]
    made = jnp.einsum(*operands, [piece, *result], preferred_element_type=jnp.float32)
    return made.astype(jnp.int32).sum(0)


def _filled(x: jax.Array, place: int, together: int) -> jax.Array:
    """Pads the contracted axis of bytes with zeros to a multiple of `together`. On a GPU, XLA (of JAX 0.11.2 on an H100) doubles
    sums over a size that is not a multiple of four."""
    widths = [(0, -extent % together if i == place else 0) for i, extent in enumerate(x.shape)]
    return jnp.pad(x, widths) if x.shape[place] % together else x


def _split(array: Array, value: Any, axes: Axes, names: dict[Any, int]) -> tuple[Any, list[int]]:
    """An array with a dimension for each of its axes and for its parts, and the numbers of these dimensions."""
    shape: list[Any] = []
    words: list[Any] = []
    for dim in array.dims:
        if dim.names == (ROWS,):
            shape += axes.rows
            words += [(ROWS, i) for i in range(len(axes.rows))]
            continue
        own = [(name, axes.extents[name]) for name in dim.names]
        parts = [] if dim.parts is None else [(f"parts of {dim.names}", dim.parts)]
        for word, extent in [*parts, *own] if dim.parts_first else [*own, *parts]:
            words.append(word)
            shape.append(extent)
    numbers = [names.setdefault(word, len(names)) for word in words]
    return (None if value is None else value.reshape(shape)), numbers
