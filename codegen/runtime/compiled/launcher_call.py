"""A call of a generated launcher: its operands as tensors, and its `CompiledCall`."""

from __future__ import annotations

import itertools
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
    # Of the outputs, as the user sees them; of partial results, as the kernel writes them
    shapes: tuple[tuple[Any, ...], ...]
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
            results = interpreted.run(compiled, names, inputs, [t.shape for t in self.outputs], pairs, count)
            return tuple(r.reshape(shape) for r, shape in zip(results[:count], self.shapes, strict=False))

        if not any(isinstance(x, jax.core.Tracer) for x in present):
            devices = {d for x in present if isinstance(x, jax.Array) and x.committed for d in x.devices()}
            target = devices.pop() if len(devices) == 1 else None  # None: JAX's default device
            return tuple(jax.device_put(result, target) for result in on_host(*present))
        shapes = tuple(jax.ShapeDtypeStruct(s, t.dtype) for s, t in zip(self.shapes, self.outputs, strict=True))[:count]
        return _called_back(on_host, shapes, present)


@dataclass(frozen=True)
class _Joint:
    """Some launchers of products as one: a function of the inputs of all, then the outputs of all."""

    members: tuple[Callable[..., None], ...]
    inputs: tuple[int, ...]  # of each
    outputs: tuple[int, ...]
    constants: tuple[tuple[str, ...], ...]

    def __call__(self, stream: Any, *tensors: Any, **constants: Any) -> None:
        from codegen.device.gemm import Together

        together, given, made = Together(), iter(tensors), iter(tensors[sum(self.inputs) :])
        for i, launch in enumerate(self.members):
            own = [*itertools.islice(given, self.inputs[i]), *itertools.islice(made, self.outputs[i])]
            launch(together, *own, **{name: constants[f"{name}_{i}"] for name in self.constants[i]})
        together.launch(stream)


def joined(calls: Sequence[LauncherCall]) -> LauncherCall:
    """Some calls of products, with the same left factor and the same tiles, as one launch."""
    launch = _Joint(
        tuple(c.launch for c in calls), tuple(len(c.inputs) for c in calls), tuple(len(c.outputs) for c in calls),
        tuple(tuple(c.constants) for c in calls),
    )  # fmt: skip
    return LauncherCall(
        launch,
        tuple(x for c in calls for x in c.operands),
        tuple(t for c in calls for t in c.inputs),
        tuple(t for c in calls for t in c.outputs),
        tuple(s for c in calls for s in c.shapes),
        calls[0].how,
        {f"{name}_{i}": value for i, c in enumerate(calls) for name, value in c.constants.items()},
    )


def _called_back(
    function: Callable[..., tuple[np.ndarray, ...]],
    results: Sequence[jax.ShapeDtypeStruct],
    arrays: Sequence[jax.Array],
) -> tuple[jax.Array, ...]:
    """A function of NumPy arrays within a computation. JAX may run it in a thread without `enable_x64`, where numbers of 64 bits become
    ones of 32. So those go as pairs of words of 32 bits."""
    wide = [x.dtype if x.dtype.itemsize == 8 else None for x in arrays]

    def in_words(*given: Any) -> tuple[np.ndarray, ...]:
        numbers = [np.ascontiguousarray(x) for x in given]
        found = function(*(x if d is None else x.view(d)[..., 0] for x, d in zip(numbers, wide, strict=True)))
        return tuple(
            np.ascontiguousarray(y).view(np.uint32).reshape(*r.shape, 2) if r.dtype.itemsize == 8 else y
            for y, r in zip(found, results, strict=True)
        )

    shapes = [jax.ShapeDtypeStruct((*r.shape, 2), np.uint32) if r.dtype.itemsize == 8 else r for r in results]
    words = [x if d is None else jax.lax.bitcast_convert_type(x, np.uint32) for x, d in zip(arrays, wide, strict=True)]
    found = jax.pure_callback(in_words, shapes, *words, vmap_method="sequential")
    return tuple(
        jax.lax.bitcast_convert_type(y, r.dtype) if r.dtype.itemsize == 8 else y
        for y, r in zip(found, results, strict=True)
    )
