"""`implementation="interpret"`: an op's compiled kernel, run on the CPU by `codegen.interpret`.

What is compiled is what `cutlass_call` compiles for the same call (its wrapper, its launcher, its options), for an
architecture of choice. Kernels are kept by that key for the life of the process.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from codegen.interpret import host, memory, ptx
from codegen.interpret.machine import InterpretError, Kernel, Machine
from codegen.interpret.report import Report
from codegen.runtime.platform import COMPILE_OPTIONS, compiling_for

DEFAULT_ARCH = "sm_90a"
_mode = jax.make_user_context(False)  # part of jax.jit's cache keys
# Kernels run in a thread of their own: XLA's threads flush denormals to zero, and NumPy in them would too.
_thread = ThreadPoolExecutor(1, "interpret")


@contextlib.contextmanager
def interpret_mode(on: bool = True) -> Iterator[None]:
    """Calls that name no implementation run the interpreted kernel, if JAX runs on the CPU: also those traced inside.
    The environment variable CODEGEN_INTERPRET=1 is the same for a whole process."""
    with _mode(on):
        yield


def chosen() -> bool:
    """Whether a call that names no implementation is interpreted."""
    return (_mode.value or os.environ.get("CODEGEN_INTERPRET") == "1") and jax.default_backend() == "cpu"


@dataclass(frozen=True)
class Call:
    """What compiles to one kernel: the launcher, its tensors' dtypes, divisors and alignments, its constants. Extents are
    not part of it: kernels take them at run time, and know of them only what divides them."""

    launch: Callable[..., None]
    inputs: tuple[tuple[str, tuple[int, ...], int] | None, ...]
    outputs: tuple[tuple[str, tuple[int, ...], int], ...]
    constants: tuple[tuple[str, Any], ...]
    arch: str


@dataclass
class Compiled:
    """A linked launcher and its kernels."""

    launcher: host.Launcher
    kernels: dict[str, Kernel]


@functools.lru_cache(maxsize=4096)
def compile_call(call: Call) -> Compiled:
    """Compile for `call.arch`, with source lines. Raises `PtxError` for PTX the interpreter does not know."""
    from cutlass.jax.compile import build_function_spec, get_or_compile_kernel
    from cutlass.jax.types import TensorSpec

    present = [entry for entry in call.inputs if entry is not None]
    structure = jax.tree.structure(tuple(None if entry is None else 0 for entry in call.inputs))
    specs = [
        tuple(TensorSpec(divisibility=divisors, ptr_assumed_align=align) for _, divisors, align in group)
        for group in (present, call.outputs)
    ]
    outs = tuple(jax.ShapeDtypeStruct(divisors, dtype) for dtype, divisors, _ in call.outputs)
    # JAX's setting belongs to a thread, and this is another than the caller's
    with jax.enable_x64(True), compiling_for(call.arch) as folder:
        function = build_function_spec(
            [jnp.zeros(divisors, dtype) for dtype, divisors, _ in present], structure, outs, jax.tree.structure(outs),
            *specs, {}, f"{COMPILE_OPTIONS} --keep-ptx --generate-line-info", False, dict(call.constants),
        )  # fmt: skip
        module = get_or_compile_kernel(call.launch, function, compile_key=call).module
        (file,) = [f for f in os.listdir(folder) if f.endswith(".ptx")]
        with open(os.path.join(folder, file)) as text:
            programs = ptx.parse(text.read().rstrip("\0"))
    return Compiled(host.Launcher(module, programs), {name: Kernel(p) for name, p in programs.items()})


Shapes = Sequence[tuple[int, ...]]


def run(
    call: Call, names: Sequence[str], inputs: Sequence[np.ndarray | None], outputs: Shapes
) -> tuple[np.ndarray, ...]:
    """The outputs of a call, of the shapes given. `names` are those of inputs and outputs, for messages and reports."""
    try:
        return _thread.submit(_run, call, tuple(names), tuple(inputs), outputs).result()
    except (InterpretError, ptx.PtxError) as error:
        raise error.with_traceback(None) from None  # under jit JAX prints the traceback: the message says it all


def _run(
    call: Call, names: tuple[str, ...], inputs: tuple[np.ndarray | None, ...], out_shapes: Shapes
) -> tuple[np.ndarray, ...]:
    compiled = compile_call(call)
    arrays = [memory.make_array(n, x, False) for n, x in zip(names, inputs, strict=False) if x is not None]
    shapes = [x.shape for x in inputs if x is not None]
    outputs = []
    for name, shape, (dtype, *_) in zip(names[len(inputs) :], out_shapes, call.outputs, strict=True):
        outputs.append(memory.make_array(name, np.zeros(shape, jnp.dtype(dtype)), True))
        shapes.append(shape)
    everything = [*arrays, *outputs]
    buffers = [(a.address, s) for a, s in zip(everything, shapes, strict=True)]
    reports = []
    for launch in compiled.launcher.launches(buffers):
        reports.append(Machine(compiled.kernels[launch.kernel], launch, everything).run())
        for array in outputs:
            array.settle()
    for array in outputs:
        missing = memory.Global([array]).unwritten()
        if missing is not None:
            _, first, count = missing
            raise InterpretError(
                f"{reports[-1].kernel if reports else 'no kernel'}: {count} elements of {array.name!r} were never written, "
                f"the first of them element {first}"
            )
    _last.append(reports)
    del _last[:-1]
    results = []
    for array, shape, (dtype, *_) in zip(outputs, out_shapes, call.outputs, strict=True):
        results.append(array.data[: array.size].view(jnp.dtype(dtype)).reshape(shape).copy())
    return tuple(results)


_last: list[list[Report]] = []


def last_reports() -> list[Report]:
    """The reports of the launches of the last interpreted call."""
    return _last[-1] if _last else []
