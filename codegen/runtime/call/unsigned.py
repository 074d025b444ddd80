"""Unsigned arrays under JAX.

The compiler's IR has signless integers, so CuTe DSL stores with a tensor whether it is signed. Its bridge to JAX
(`cutlass.jax`, 4.8) loses that, and a kernel would read a uint8 of 255 as -1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from codegen.graph.nodes import DTYPES


@dataclass(frozen=True)
class _Unsigned:
    """A launcher that sets the dtypes of its tensors. Equal ones are equal keys of the compiler's caches."""

    launch: Callable[..., None]
    dtypes: tuple[str, ...]  # the tensors' dtypes, in the launcher's order

    def __call__(self, stream: Any, *tensors: Any, **constants: Any) -> None:
        import cutlass

        from codegen.device.vectors import typed

        own = [
            typed(tensor, getattr(cutlass, DTYPES[dtype].cutlass))
            if tensor is not None and dtype.startswith("u")
            else tensor
            for tensor, dtype in zip(tensors, self.dtypes, strict=True)
        ]
        self.launch(stream, *own, **constants)


def launcher(launch: Callable[..., None], dtypes: tuple[str, ...]) -> Callable[..., None]:
    """The function for `cutlass.jax` to compile: `launch`, whose tensors, also omitted ones, have these dtypes."""
    return _Unsigned(launch, dtypes) if any(dtype.startswith("u") for dtype in dtypes) else launch
