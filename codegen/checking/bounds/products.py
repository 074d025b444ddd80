"""Bounds the error of a matrix product whose factors have errors themselves.

A product sums n products a b. Factors with errors e and f move it by at most sum(|a| f + e |b| + e f). A computed factor is rounded
to the type it is multiplied in: half an ulp of that type, and as much again, since the reference may round it elsewhere or not at
all. A factor that may be 0 within its error gives any value with an infinity, for 0 times infinity is NaN. The sum's own error is
that of `Analysis.contraction`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np


@dataclass(frozen=True)
class Sum:
    """A product: its value, the sum of its terms' magnitudes, the sum of its factors' magnitudes, and the error that it has from its
    factors; infinite if one of them is without a bound."""

    value: np.ndarray
    size: np.ndarray
    spread: np.ndarray
    error: np.ndarray


def summed(a: np.ndarray, b: np.ndarray, axes: Sequence[int]) -> np.ndarray:
    """sum(a * b) over some dimensions, which stay with size 1. Both have the same number of dimensions; those of size 1 are
    broadcast."""
    shape = np.broadcast_shapes(a.shape, b.shape)
    numbers = [[d for d in range(len(shape)) if x.shape[d] != 1] for x in (a, b)]
    small = [x.reshape([x.shape[d] for d in own]) for x, own in zip((a, b), numbers, strict=True)]
    result = [d for d in range(len(shape)) if d not in axes and shape[d] != 1]
    made = np.einsum(small[0], numbers[0], small[1], numbers[1], result, optimize=True)
    return np.asarray(made).reshape([1 if d in axes else n for d, n in enumerate(shape)])


def product(a: Any, b: Any, axes: Sequence[int]) -> Sum:
    """The product of two bounded factors over some dimensions."""
    dims = max(a.value.ndim, b.value.ndim)
    values, errors = [], []
    for x in (a, b):
        missing = (1,) * (dims - x.value.ndim)
        values.append(x.value.reshape(missing + x.value.shape))
        errors.append(np.broadcast_to(x.error, x.value.shape).reshape(missing + x.value.shape))
    sizes = [np.where(np.isfinite(x), np.abs(x), 0).astype(np.float64) for x in values]
    known = [np.where(np.isfinite(e), e, 0) for e in errors]
    error = summed(sizes[0], known[1], axes) + summed(known[0], sizes[1] + known[1], axes)
    ones = [np.ones_like(s) for s in sizes]
    open_ = [np.where(np.isfinite(e), 0.0, 1.0) for e in errors]
    lost = summed(open_[0], ones[1], axes) + summed(ones[0], open_[1], axes)
    infinite = [np.where(np.isinf(x), 1.0, 0.0) for x in values]
    maybe_zero = [np.where((e > 0) & (s <= e), 1.0, 0.0) for s, e in zip(sizes, errors, strict=True)]
    lost = lost + summed(infinite[0], maybe_zero[1], axes) + summed(maybe_zero[0], infinite[1], axes)
    spread = summed(sizes[0], ones[1], axes) + summed(ones[0], sizes[1], axes)
    return Sum(
        summed(values[0], values[1], axes),
        summed(sizes[0] + known[0], sizes[1] + known[1], axes),
        spread,
        np.where(lost > 0, np.inf, error),
    )


def spacing(value: np.ndarray, dtype: str) -> np.ndarray:
    """The spacing of a float type's numbers at values; infinite beyond its range."""
    info: Any = jnp.finfo(jnp.dtype(dtype))
    size = np.abs(value)
    exponent = np.floor(np.log2(np.maximum(np.where(np.isfinite(size), size, 1), float(info.smallest_normal))))
    beyond = np.isfinite(size) & (size > float(info.max))
    return np.where(beyond, np.inf, 2.0 ** (exponent - int(info.nmant)))
