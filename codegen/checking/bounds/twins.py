"""NumPy's twins: of the operations' jnp text, and of how an output is stored."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from codegen.graph.nodes import DTYPES
from codegen.graph.ops import OPS
from codegen.runtime.xla.random import random_bits


def density(x: np.ndarray) -> np.ndarray:
    """The density of a standard normal variable."""
    return np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def _exponent(x: np.ndarray, _: str) -> np.ndarray:
    return np.where(np.isfinite(x), np.where(x == 0, -150, np.frexp(x)[1] - 1), 128)


_lax = SimpleNamespace(
    rsqrt=lambda x: 1 / np.sqrt(x), erf=special.erf, erfc=special.erfc, rem=lambda a, b: np.fmod(a, b),
    logistic=special.expit, stop_gradient=lambda x: x, population_count=np.bitwise_count,
)  # fmt: skip
_nn = SimpleNamespace(gelu=lambda x, approximate: 0.5 * x * special.erfc(-(0.5**0.5) * x))


def _random_bits(first: np.ndarray, second: np.ndarray, place: np.ndarray) -> np.ndarray:
    with jax.enable_x64(True):
        return np.asarray(random_bits(first, second, place))


_slopes = SimpleNamespace(
    product_of_others=lambda value, x, whole: value,
    random_bits=_random_bits,
    dgelu=lambda x: special.ndtr(x) + x * density(x),
    ldexp=lambda x, e, _: np.ldexp(x, np.asarray(e).astype(np.int64)), exponent=_exponent,
)  # fmt: skip
_NAMES = {"jnp": np, "jax": SimpleNamespace(lax=_lax, nn=_nn), "runtime": _slopes}
FUNCTIONS = {
    name: eval(f"lambda {', '.join('abc'[: op.arity])}: " + op.jnp.format(*"abc", floating=0, integer=0), dict(_NAMES))
    for name, op in OPS.items()
}


def stored(x: np.ndarray, dtype: str) -> np.ndarray:
    """NumPy's twin of how an output is stored: rounded once, float8, float4 and integers saturating, NaN to 0 where there is none."""
    target = jnp.dtype(dtype)
    x = np.asarray(x)
    with np.errstate(all="ignore"):
        if DTYPES[dtype].scales:
            # The fraction is from 0.5 on: above 0.75 the power of two above is at least as near
            fraction, power = np.frexp(
                np.clip(np.nan_to_num(x.astype(np.float64), posinf=2.0**127), 2.0**-127, 2.0**127)
            )
            return np.where(np.isnan(x) | (x < 0), np.nan, np.ldexp(np.where(fraction < 0.75, 0.5, 1.0), power)).astype(
                target
            )
        if DTYPES[dtype].kind == "float":
            x = np.where(np.isnan(x), 0.0, x) if DTYPES[dtype].packed else x
            if target.itemsize == 1:
                top = float(jnp.finfo(target).max)
                x = np.clip(x, -top, top)
            return x.astype(target)
        if DTYPES[dtype].kind == "bool":
            return x.astype(bool)
        least, most = DTYPES[dtype].low, DTYPES[dtype].high
        if x.dtype.kind == "f":
            x = np.trunc(np.where(np.isnan(x), 0, x))
            low, high = float(least), float(most)
            inside = np.clip(x, low, np.nextafter(high, 0) if high != most else high).astype(np.int64)
            return np.where(x >= high, most, np.where(x <= low, least, inside)).astype(target)
        return np.clip(x.astype(np.int64), least, most).astype(target)


def ulp(x: np.ndarray, dtype: str) -> np.ndarray:
    """The spacing of a floating dtype's numbers at x (for integers 1)."""
    if DTYPES[dtype].kind != "float":
        return np.ones(np.shape(x))
    info: Any = jnp.finfo(jnp.dtype(dtype))
    magnitude = np.clip(np.abs(np.nan_to_num(x, posinf=float(info.max))), float(info.smallest_normal), float(info.max))
    return 2.0 ** (np.floor(np.log2(magnitude)) - int(info.nmant))
