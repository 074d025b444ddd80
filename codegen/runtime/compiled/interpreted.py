"""`implementation="interpret"`: an op's compiled kernel, run on the CPU by `codegen.interpret`.

It compiles the kernel that a GPU would run for the same call, keeps its PTX, and takes any architecture. Linked kernels are
cached in the process, compiled ones on disk (`kernels`).
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import MappingProxyType

import jax
import jax.numpy as jnp
import numpy as np

from codegen.interpret import host, ptx
from codegen.interpret.kernel import Kernel
from codegen.interpret.machine import InterpretError, Machine
from codegen.interpret.memory import arrays as memory
from codegen.interpret.report import Report
from codegen.runtime.call.typed import as_elements, as_stored
from codegen.runtime.compiled import kernels
from codegen.runtime.compiled.kernels import CompiledCall
from codegen.runtime.compiled.platform import current_arch

DEFAULT_ARCH = "sm_90a"
# Parts of jax.jit's cache keys
_mode = jax.make_user_context(False)
_arch = jax.make_user_context(None)
_thread: ThreadPoolExecutor  # in which kernels run: XLA's threads flush denormals to zero, and so would NumPy in them


def _start() -> None:
    """Starts the thread. It inherits the flush mode from the thread that starts it, so a kernel's first run is too late."""
    global _thread
    _thread = ThreadPoolExecutor(1, "interpret")
    _thread.submit(int).result()


_start()
os.register_at_fork(after_in_child=_start)  # a forked process has only the thread that forked


@contextlib.contextmanager
def interpret_mode(on: bool = True) -> Iterator[None]:
    """A context in which calls that name no implementation run the interpreted kernel, if JAX runs on the CPU. It also holds for
    calls that are traced inside, and for gradients. The environment variable CODEGEN_INTERPRET=1 does the same for a whole
    process."""
    with _mode(on):
        yield


def chosen() -> bool:
    """Whether a call that names no implementation is interpreted."""
    return (_mode.value or os.environ.get("CODEGEN_INTERPRET") == "1") and jax.default_backend() == "cpu"


def architecture() -> str:
    """The architecture of interpreted kernels: `current_arch`, or sm_90a where that is None."""
    return _arch.value or current_arch() or DEFAULT_ARCH


@contextlib.contextmanager
def interpreting_for(arch: str) -> Iterator[None]:
    """A context in which calls, and calls that are traced, interpret kernels for this architecture."""
    with _arch(arch):
        yield


@dataclass
class Compiled:
    """A linked launcher and its kernels."""

    launcher: host.Launcher
    kernels: dict[str, Kernel]


@functools.lru_cache(maxsize=4096)
def compile_call(call: CompiledCall, lines: bool = False) -> Compiled:
    """Compile for `call.arch`, with source `lines` if requested. Raises `PtxError` for PTX that the interpreter does not support."""
    made = kernels.binary(call, "lines" if lines else "ptx")
    programs = ptx.parse(made.ptx)
    return Compiled(host.Launcher(made.module, programs), {name: Kernel(p) for name, p in programs.items()})


Shapes = Sequence[tuple[int, ...]]


def run(
    call: CompiledCall,
    names: Sequence[str],
    inputs: Sequence[np.ndarray | None],
    outputs: Shapes,
    pairs: Mapping[int, int] = MappingProxyType({}),
    whole: int | None = None,
) -> tuple[np.ndarray, ...]:
    """The outputs of a call, with the given shapes. `pairs` maps inputs to the outputs that begin with their elements. `names` are the
    names of inputs and outputs, for messages and reports. The first `whole` outputs must be written, by default all."""
    found = _Run(call, names, inputs, outputs, pairs, whole)
    try:
        return _thread.submit(found.results).result()
    except (InterpretError, ptx.PtxError) as error:
        raise error.with_traceback(None) from None  # under jit JAX would print the traceback, and the message is enough


@dataclass(frozen=True)
class _Run:
    """One call: the arguments of `run`."""

    call: CompiledCall
    names: Sequence[str]
    inputs: Sequence[np.ndarray | None]
    shapes: Shapes
    pairs: Mapping[int, int]
    whole: int | None

    def results(self) -> tuple[np.ndarray, ...]:
        """The outputs. A kernel that fails is compiled again with source lines, and run again, so that the message has them.
        Compiling all kernels with them would take longer."""
        try:
            return self.results_of(compile_call(self.call))
        except (InterpretError, ptx.PtxError):
            return self.results_of(compile_call(self.call, lines=True))

    def results_of(self, compiled: Compiled) -> tuple[np.ndarray, ...]:
        given = [(n, x) for n, x in zip(self.names, self.inputs, strict=False) if x is not None]
        arrays, present = [memory.make_array(n, as_stored(x), False) for n, x in given], [x for _, x in given]
        dtypes = [dtype for dtype, *_ in self.call.outputs]
        outputs = [
            memory.make_array(name, as_stored(np.zeros(shape, jnp.dtype(dtype))), True)
            for name, shape, dtype in zip(self.names[len(self.inputs) :], self.shapes, dtypes, strict=True)
        ]
        for place, output in self.pairs.items():
            outputs[output].begin_as(as_stored(present[place]))
        everything = [*arrays, *outputs]
        shapes = (*(x.shape for x in present), *self.shapes)
        buffers = [(a.address, s) for a, s in zip(everything, shapes, strict=True)]
        reports = []
        for launch in compiled.launcher.launches(buffers):
            reports.append(Machine(compiled.kernels[launch.kernel], launch, everything).run())
            for array in outputs:
                array.settle()
        for array in outputs[: self.whole]:
            missing = memory.Global([array]).unwritten()
            if missing is not None:
                _, first, count = missing
                raise InterpretError(
                    f"{reports[-1].kernel if reports else 'no kernel'}: {count} elements of {array.name!r} were never written, "
                    f"the first of them element {first}"
                )
        _last.append(reports)
        del _last[:-1]
        return tuple(
            as_elements(array.data[: array.size], dtype).reshape(shape).copy()
            for array, shape, dtype in zip(outputs, self.shapes, dtypes, strict=True)
        )


_last: list[list[Report]] = []


def last_reports() -> list[Report]:
    """The reports of the launches of the last interpreted call."""
    return _last[-1] if _last else []
