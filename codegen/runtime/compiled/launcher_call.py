"""A call of a generated launcher: its operands as tensors, and its `CompiledCall`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from codegen.plan.launches import AnyLaunch
from codegen.runtime.compiled import interpreted, kernels
from codegen.runtime.compiled.kernels import CompiledCall


class Tensor(NamedTuple):
    """An array in the form that the launcher takes."""

    shape: tuple[Any, ...]
    dtype: str
    divisors: tuple[int, ...]
    alignment: int  # bytes


@dataclass(frozen=True)
class LauncherCall:
    """A call of the launcher: its operands (None for an input that is left out), their tensors, and its outputs."""

    launch: Callable[..., None]
    operands: tuple[Any, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    shapes: tuple[
        tuple[Any, ...], ...
    ]  # of the outputs, as the user sees them; of partial results, as the kernel writes them
    how: AnyLaunch
    constants: dict[str, Any]

    def compiled_for(self, arch: str) -> CompiledCall:
        """The part of the call that determines the kernel: everything except sizes."""
        inputs = tuple(None if x is None else t[1:] for x, t in zip(self.operands, self.inputs, strict=True))
        return CompiledCall(
            self.launch, inputs, tuple(t[1:] for t in self.outputs), tuple(self.constants.items()), arch
        )

    def launched(self, arch: str, pairs: Mapping[int, int]) -> tuple[jax.Array, ...]:
        """The outputs of the kernel on a GPU. `pairs` maps the inputs whose buffers outputs take to these outputs, by position."""
        inputs = [x.reshape(t.shape) for x, t in zip(self.operands, self.inputs, strict=True) if x is not None]
        outputs = [jax.ShapeDtypeStruct(t.shape, t.dtype) for t in self.outputs]
        results = kernels.launch(self.compiled_for(arch), inputs, outputs, pairs)
        return tuple(r.reshape(shape) for r, shape in zip(results, self.shapes, strict=True))

    def interpreted(
        self, arch: str, names: Sequence[str], count: int, pairs: Mapping[int, int]
    ) -> tuple[jax.Array, ...]:
        """The first `count` outputs of the kernel's PTX, interpreted on the CPU. Messages call the tensors by `names`. `pairs` maps
        inputs to the outputs that begin with their elements, by position."""
        compiled = self.compiled_for(arch)
        present = [x for x in self.operands if x is not None]

        def on_host(*arrays: Any) -> Any:
            values = iter(arrays)
            inputs = [
                None if x is None else np.asarray(next(values)).reshape(t.shape)
                for x, t in zip(self.operands, self.inputs, strict=True)
            ]
            results = interpreted.run(compiled, names, inputs, [t.shape for t in self.outputs], pairs)
            return tuple(r.reshape(shape) for r, shape in zip(results[:count], self.shapes, strict=False))

        if not any(isinstance(x, jax.core.Tracer) for x in present):
            devices = {d for x in present if isinstance(x, jax.Array) and x.committed for d in x.devices()}
            target = devices.pop() if len(devices) == 1 else None  # None: JAX's default device
            return tuple(jax.device_put(result, target) for result in on_host(*present))
        shapes = tuple(jax.ShapeDtypeStruct(s, t.dtype) for s, t in zip(self.shapes, self.outputs, strict=True))[:count]
        return tuple(jax.pure_callback(on_host, shapes, *present, vmap_method="sequential"))
