"""The products of an op that contracts, by XLA: `acc = a @ b` for arrays as users shape them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from codegen.ir import DTYPES, ROWS
from codegen.runtime.arguments import Axes
from codegen.runtime.views import user_shape
from codegen.spec import Array
from codegen.tiles import Product

BYTES_TOGETHER = 16


def product(found: Product, a: Any, b: Any, axes: Axes, dtype: str, exact: bool = False) -> jax.Array:
    """`acc` in the shape that users see, summed in float32 (int32 for integers) and given as `dtype`. float8 operands are
    widened to bfloat16, which holds each of their values. With `exact`, float32 operands are not rounded to TF32."""
    a, b = _operand(a), _operand(b)
    if a.dtype != b.dtype:
        wide = jnp.promote_types(a.dtype, b.dtype) if a.dtype.kind == b.dtype.kind else jnp.float32
        a, b = a.astype(wide), b.astype(wide)
    names: dict[Any, int] = {}
    left, own = _split(found.a, a, axes, names)
    right, other = _split(found.b, b, axes, names)
    _, result = _split(found.acc, None, axes, names)
    if DTYPES[a.dtype.name].kind == "int" and a.dtype.itemsize == 1:
        left, right = (_filled(x, own.index(names[found.axis])) for x, own in ((left, own), (right, other)))
    precision = jax.lax.Precision.HIGHEST if exact and a.dtype == jnp.float32 else None
    made = jnp.einsum(left, own, right, other, result, precision=precision, preferred_element_type=jnp.dtype(dtype))
    return made.reshape(user_shape(found.acc, axes))


def _operand(x: Any) -> jax.Array:
    x = jnp.asarray(x)
    narrow = DTYPES[x.dtype.name].kind == "float" and x.dtype.itemsize == 1
    return x.astype(jnp.bfloat16) if narrow else x


def _filled(x: jax.Array, place: int) -> jax.Array:
    """Zeros added to the contracted axis of bytes, up to a whole vector of them. On a GPU, XLA (of JAX 0.11.2 on an H100)
    doubles sums whose extent is no multiple of four."""
    extent = x.shape[place]
    if extent % BYTES_TOGETHER == 0:
        return x
    widths = [(0, -extent % BYTES_TOGETHER if i == place else 0) for i in range(x.ndim)]
    return jnp.pad(x, widths)


def _split(array: Array, value: Any, axes: Axes, names: dict[Any, int]) -> tuple[Any, list[int]]:
    """An array with a dimension for each of its axes and for its parts, and numbers that name them."""
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
