"""Times a kernel's launches for `codegen tune`: compiled in processes, compared, and timed in turns on the device's own clock."""

from __future__ import annotations

import contextlib
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from codegen.explain.launching import Binding
from codegen.explain.traffic import fused_bytes
from codegen.measuring.compiled.tasks import kernels_named, load_package
from codegen.measuring.times import bench
from codegen.measuring.times.calls import WRONG, compiled, differences
from codegen.measuring.times.device_time import Candidate
from codegen.measuring.tune.search import Kernel, Task, is_fatal, is_stage
from codegen.runtime.ops.gemm_op import GemmOp
from codegen.tuning.choosing import Changes

TOGETHER = 8  # launches that are timed in one trace
CALLS = 10


class Device:
    """Times launches on this machine's GPU. `folder` is that of the package, whose kernels are compiled in `jobs`
    processes, which store them in the cache on disk. With 0 `jobs` this process compiles."""

    def __init__(self, folder: Path, arch: str, jobs: int, implementation: str = "cute"):
        self.folder, self.arch, self.implementation = folder, arch, implementation
        self.pool = ProcessPoolExecutor(jobs, get_context("spawn"), _begin, (arch,)) if jobs else None
        self.compiling: dict[tuple[Task, tuple[Any, ...]], Future[str]] = {}
        self.kernel: Kernel | None = None

    def close(self) -> None:
        if self.pool is not None:
            self.pool.shutdown(cancel_futures=True)

    def prepare(self, kernel: Kernel, some: Sequence[Changes]) -> None:
        """Begin to compile."""
        for changes in some:
            key = kernel.task, tuple(changes.items())
            if self.pool is not None and key not in self.compiling:
                with contextlib.suppress(BrokenProcessPool):  # then this process compiles
                    self.compiling[key] = self.pool.submit(_compile, self.folder, kernel.task, key[1], self.arch)

    def measure(self, kernel: Kernel, some: Sequence[Changes]) -> list[float | None]:
        """The times relative to the planned launch's; None for a launch that does not compile, or whose results
        differ."""
        self._load(kernel)
        self.prepare(kernel, some)
        times: list[float | None] = []
        for start in range(0, len(some), TOGETHER):
            calls = {str(i): self._checked(kernel, changes) for i, changes in enumerate(some[start : start + TOGETHER])}
            good = {name: self._turns(call) for name, call in calls.items() if call is not None}
            found = self._times(good | {"planned": self._turns(self.planned)}) if good else {}
            times += [found[name] / found["planned"] if name in found else None for name in calls]
        return times

    def compare(self, kernel: Kernel, best: Changes) -> dict[str, float]:
        """Microseconds of the launch with changes, of the planned one, of XLA and of a copy."""
        self._load(kernel)
        calls = {"us": self._call(kernel, best), "planned_us": self.planned}
        calls |= {"xla_us": self.xla} if self.xla is not None else {}
        copy = {"copy_us": lambda i: self.copy(self.halves[i % len(self.halves)])}
        return self._times({name: self._turns(call) for name, call in calls.items()} | copy)

    def _load(self, kernel: Kernel) -> None:
        """The arrays of a kernel's calls, and what launches are compared with."""
        if self.kernel is kernel:
            return
        self.given: list[Any] = []
        self.halves: list[jax.Array] = []  # the last kernel's arrays are freed
        count = fused_bytes(Binding(kernel.op.spec, kernel.task.types), dict(kernel.task.shape), kernel.op.statements)
        planned, whole = kernel.calls(), not isinstance(kernel.op, GemmOp)
        make = jax.jit(planned.make)
        self.given = [make(jnp.uint32(i)) for i in range(bench.sets_of(count))]
        # A product's plan may be XLA's product and a kernel, which is what XLA has to be compared with in any case
        self.planned = compiled(planned.run(self.implementation if whole else None), self.given[0])
        xla = planned.run("xla") if whole else kernel.calls(kernel.entry("xla")).run(None)
        self.xla = None if is_stage(kernel.op) else compiled(xla, self.given[0])
        self.expected = self.planned(self.given[0])
        self.differ = compiled(differences, self.expected, self.expected)
        words = max(1, count // 8 // bench.WHOLE * bench.WHOLE)
        self.halves = [jax.random.bits(jax.random.key(i), (words,), "uint32") for i in range(len(self.given))]
        self.copy = compiled(lambda words: words ^ 1, self.halves[0])
        self.kernel = kernel

    def _call(self, kernel: Kernel, changes: Changes) -> Callable[[Any], Any]:
        if not changes:
            return self.planned
        return compiled(kernel.calls(kernel.entry("launch", changes)).run(self.implementation), self.given[0])

    def _checked(self, kernel: Kernel, changes: Changes) -> Callable[[Any], Any] | None:
        """A launch's call; None where it does not compile, or its results differ from the planned one's."""
        future = self.compiling.get((kernel.task, tuple(changes.items())))
        with contextlib.suppress(BrokenProcessPool):
            if future is not None and future.result():
                return None
        try:
            call = self._call(kernel, changes)
            wrong = max(float(off) for off, _ in self.differ(self.expected, call(self.given[0])))
        except Exception as error:
            if is_fatal(str(error)):
                raise
            return None
        return None if wrong > WRONG else call

    def _turns(self, call: Callable[[Any], Any]) -> Candidate:
        given = self.given
        return lambda i: call(given[i % len(given)])

    def _times(self, calls: Mapping[str, Candidate]) -> dict[str, float]:
        return {name: statistics.median(times) for name, times in bench.measure(calls, calls=CALLS).items()}


def _begin(arch: str) -> None:
    """A process that compiles uses no GPU."""
    os.environ["CUTE_DSL_ARCH"] = arch
    jax.config.update("jax_platforms", "cpu")


def _compile(folder: Path, task: Task, changes: tuple[Any, ...], arch: str) -> str:
    """Compile a launch into the cache on disk: why that fails, or ""."""
    try:
        (op, *_) = kernels_named(load_package(folder), [task.op])
        kernel = Kernel(op, task, arch)
        calls = kernel.calls(kernel.entry("launch", dict(changes)))
        jax.jit(calls.run("cute")).trace(jax.eval_shape(calls.make, 0)).lower(lowering_platforms=("cuda",))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
