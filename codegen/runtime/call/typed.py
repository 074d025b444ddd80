"""The element types of a kernel's arrays, which CuTe DSL's bridge to JAX (`cutlass.jax`, 4.8) does not pass on
completely.

The compiler's IR has signless integers, so CuTe DSL stores with a tensor whether it is signed. The bridge loses that,
and a kernel would read a uint8 of 255 as -1. Nor does the bridge know types of our own. Two 4-bit numbers share a byte.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from codegen.graph.nodes import DTYPES, OWN


def element_type(dtype: str) -> Any:
    """CuTe DSL's type of elements of a dtype, or our own."""
    import cutlass

    from codegen import device

    return getattr(device if dtype in OWN else cutlass, DTYPES[dtype].cutlass)


def bridged(dtype: str) -> str:
    """A dtype of the same size that the bridge knows; `launcher` sets the right one."""
    return "int4" if dtype in OWN else dtype


def _is_lost(dtype: str) -> bool:
    return dtype.startswith("u") or dtype in OWN


@dataclass(frozen=True)
class _Typed:
    """A launcher that sets the dtypes of its tensors. Equal ones are equal keys of the compiler's caches."""

    launch: Callable[..., None]
    dtypes: tuple[str, ...]  # the tensors' dtypes, in the launcher's order

    def __call__(self, stream: Any, *tensors: Any, **constants: Any) -> None:
        from codegen.device.vectors import typed

        own = [
            typed(tensor, element_type(dtype)) if tensor is not None and _is_lost(dtype) else tensor
            for tensor, dtype in zip(tensors, self.dtypes, strict=True)
        ]
        self.launch(stream, *own, **constants)


def launcher(launch: Callable[..., None], dtypes: tuple[str, ...]) -> Callable[..., None]:
    """The function for `cutlass.jax` to compile: `launch`, whose tensors, also omitted ones, have these dtypes."""
    return _Typed(launch, dtypes) if any(map(_is_lost, dtypes)) else launch


def as_stored(values: np.ndarray) -> np.ndarray:
    """An array as it is in a GPU's memory: of 4-bit numbers, which have a byte each in NumPy, two are in a byte."""
    if not DTYPES[values.dtype.name].packed:
        return values
    digits = np.ascontiguousarray(values).reshape(-1).view(np.uint8) & 15
    return digits[0::2] | digits[1::2] << 4


def as_elements(data: np.ndarray, dtype: str) -> np.ndarray:
    """The elements of an array in a GPU's memory, whose bytes are `data`."""
    if not DTYPES[dtype].packed:
        return data.view(jnp.dtype(dtype))
    digits = np.stack([data & 15, data >> 4], axis=-1).reshape(-1)
    if dtype == "int4":  # a byte of NumPy's holds the sign in all upper bits
        digits = digits | np.where(digits >= 8, 0xF0, 0).astype(np.uint8)
    return digits.view(jnp.dtype(dtype))
