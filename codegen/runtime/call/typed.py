"""Element types that CuTe DSL's bridge to JAX (`cutlass.jax`, 4.8) does not give a kernel's tensors.

The compiler's IR has signless integers, so CuTe DSL stores with a tensor whether it is signed. The bridge loses that, and a
kernel would read a uint8 of 255 as -1. Types of our own it does not know.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from codegen.graph.nodes import DTYPES, OWN


def element_type(dtype: str) -> Any:
    """CuTe DSL's type of elements of a dtype, or our own."""
    import cutlass

    from codegen import device

    return getattr(device if dtype in OWN else cutlass, DTYPES[dtype].cutlass)


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
