"""Searches for the fastest launches: `codegen tune`.

A task is a kernel with the types and the sizes of its calls. The search begins with the planned launch. All launches
that fit and differ from the best one in one setting are compiled and timed, until none of them is faster. Launches are
compiled in other processes. A launch's results are compared with the planned launch's before it is timed. All
candidates take turns on the device, with XLA and a copy of as many bytes.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

import jax

from codegen import extras
from codegen.errors import UserError
from codegen.explain.launching import Binding
from codegen.explain.tables import time_text
from codegen.graph.nodes import DTYPES
from codegen.language.sizes import Shape, array_shape
from codegen.measuring.times import bench
from codegen.measuring.times.calls import Calls, calls_of
from codegen.plan.launches import Tuned
from codegen.plan.limits import lacks
from codegen.plan.planner import planned_call
from codegen.runtime.call import arguments, views
from codegen.runtime.call.arguments import Axes, Types
from codegen.runtime.ops.backward import BackwardOp, GemmBackwardOp
from codegen.runtime.ops.gemm_op import GemmOp
from codegen.runtime.ops.op import AnyOp
from codegen.runtime.ops.staged import Stage
from codegen.targets import has_wgmma
from codegen.tuning import candidates, choosing
from codegen.tuning.choosing import Changes

with extras.needed("bench"):
    from rich.table import Table

BETTER = 0.98  # of a time: what is less better than that is taken for chance
ROUNDS = 3
FATAL = (
    "ILLEGAL_ADDRESS",
    "ILLEGAL_INSTRUCTION",
    "MISALIGNED_ADDRESS",
    "LAUNCH_FAILED",
    "LAUNCH_TIMEOUT",
    "HARDWARE_STACK",
)
TILES = ("tile_m", "tile_n", "pingpong", "cluster_m", "cluster_n", "splits")  # that say which of the possible ones


@dataclass(frozen=True)
class Task:
    """A kernel's calls of some types and sizes."""

    op: str
    kernel: str
    types: tuple[tuple[str, str], ...]
    shape: tuple[tuple[str, int], ...]

    @property
    def shape_text(self) -> str:
        return ", ".join(f"{axis}={size}" for axis, size in self.shape)


@dataclass(frozen=True)
class Found:
    """The result of a task. Times are in microseconds, by name: `us` of the fastest launch, `planned_us`, `xla_us`,
    `copy_us`. A stage is not compared with XLA, which does not run one stage alone."""

    task: Task
    entry: Tuned | None
    us: Mapping[str, float] = field(default_factory=dict)
    tried: int = 0
    failed: int = 0  # launches that do not compile, or whose results differ
    error: str = ""

    @property
    def loss(self) -> float:
        """The relative difference between the times of the planned launch and of the fastest."""
        return self.us["planned_us"] / self.us["us"] - 1


class Kernel:
    """A task's kernel: its launches, and its calls with each."""

    def __init__(self, op: AnyOp, task: Task, arch: str):
        self.task, self.arch = task, arch
        self.origin = op.with_tuning(())
        self.op = kernel_of(self.origin, task.kernel)
        self.types = Types(task.types)
        shape = dict(task.shape)
        arrays = {a.name: jax.ShapeDtypeStruct(array_shape(a, shape), self.types.dtype(a)) for a in self.op.spec.inputs}
        self.axes = arguments.bind_axes(self.op.spec, arrays)

    @property
    def planned(self) -> Any:
        """The planned launch. Raises `UserError`."""
        return self.op.launch_for(self.types, self.axes, self.arch)

    @property
    def digest(self) -> str:
        """A digest of the plan. A measurement holds only for calls with the plan for which it was made."""
        return hashlib.sha256(repr(self.planned).encode()).hexdigest()[:8]

    @property
    def plans_xla(self) -> bool:
        """Whether the plan leaves a call that names no implementation to XLA."""
        return not isinstance(self.op, GemmOp | Stage) and bool(self.op.left_to_xla(self.types, self.axes))

    @property
    def sizes(self) -> tuple[tuple[str, int, int | None], ...]:
        """The sizes of all calls for which the task's measurement is used."""
        return tuple(choosing.size_class(name, size) for name, size in sizes_of(self.op, self.axes).items())

    def neighbours(self, base: Changes) -> Mapping[Any, Changes]:
        """The launches that differ in one setting from the planned launch with some changes; of a product, all possible
        launches."""
        op = self.op
        if isinstance(op, GemmOp):
            return {} if base else self._tiles()
        extents = views.known_extents(op.plan, self.axes)
        return candidates.neighbours(op.plan, planned_call(op.spec, self.types, extents, self.arch), base)

    def _tiles(self) -> dict[Any, Changes]:
        planned, plan = self.planned, self.op.plan
        if not has_wgmma(self.arch):
            return {}
        call = plan.product_call(self.types, lambda axes: math.prod(self.axes.shape(axes)), self.arch)
        found = plan.tile.hopper(call, planned.ragged)
        made = {replace(planned, tiles=t, why=""): {name: getattr(t, name) for name in TILES} for t in found}
        return {how: changes for how, changes in made.items() if how != planned}

    def entry(self, take: str, changes: Changes | None = None, measured: Mapping[str, Any] | None = None) -> Tuned:
        return Tuned(
            self.task.kernel, self.arch, self.task.types, self.sizes, take, tuple((changes or {}).items()),
            tuple((measured or {}).items()),
        )  # fmt: skip

    def calls(self, entry: Tuned | None = None) -> Calls:
        """The calls of the kernel, with the planned launch or with a measured one."""
        op = self.origin if entry is None else self.origin.with_tuning((entry,))
        binding = Binding(self.origin.spec, self.task.types)
        return calls_of(kernel_of(op, self.task.kernel), binding, dict(self.task.shape))


def kernel_of(op: AnyOp, name: str) -> AnyOp:
    return next(kernel for kernel in op.kernels if kernel.spec.op == name)


def sizes_of(op: AnyOp, axes: Axes) -> dict[str, int]:
    """The sizes by which measurements of an op are looked up."""
    if not isinstance(op, GemmOp):
        return choosing.sizes_of(op.plan, views.known_extents(op.plan, axes))
    tile, (first, *_) = op.plan.tile, op.plan.products
    named = {"M": tile.rows, "N": tile.columns, "K": first.axes} | ({"L": tile.batch} if tile.batch else {})
    named |= {"D": (tile.column,)} if len(tile.columns) > 1 else {}
    return {name: math.prod(axes.shape(own)) for name, own in named.items()}


def tasks_of(
    ops: Iterable[AnyOp], shapes: Callable[[AnyOp], Sequence[Shape]], wanted: Mapping[str, str], arch: str
) -> Iterator[Task]:
    """A task for each kernel of the ops at each shape: the forward, the backward, the backward without the gradients of
    arrays that all rows share, and their stages, except products."""
    for op in ops:
        binding = bench.typical(op.spec, wanted)
        if binding is None or any(DTYPES[binding.dtype(a)].size == 8 for a in op.spec.arrays):
            continue
        for kernel in op.kernels:
            backward = isinstance(kernel, BackwardOp) and not isinstance(kernel, GemmBackwardOp)
            if not (kernel is op or backward or is_stage(kernel)) or lacks(kernel, binding, arch):
                continue
            for shape in shapes(op):
                task = Task(op.spec.op, kernel.spec.op, binding.types, tuple(shape.items()))
                with contextlib.suppress(UserError):
                    found = Kernel(op, task, arch)
                    if found.sizes and found.planned:
                        yield task


def is_stage(kernel: AnyOp) -> bool:
    """Whether it is a stage that is measured: no product, whose launch may compute other stages too, and not of a sample."""
    return (
        isinstance(kernel, Stage)
        and not isinstance(kernel, GemmOp)
        and not kernel.plan_of_all.sampled_axes(kernel.place)
    )


def is_done(op: AnyOp, task: Task, arch: str, entries: Iterable[Tuned]) -> bool:
    """Whether a task was measured with the launch that is planned now."""
    kernel = Kernel(op, task, arch)
    place = task.kernel, arch, task.types, kernel.sizes
    own = [t for t in entries if (t.kernel, t.arch, t.types, t.sizes) == place]
    return any(dict(t.measured).get("plan") == kernel.digest for t in own)


# The search


class Clock(Protocol):
    """Times launches of a kernel."""

    def prepare(self, kernel: Kernel, some: Sequence[Changes]) -> None:
        """Announce what will be timed, so that compiling can begin."""

    def measure(self, kernel: Kernel, some: Sequence[Changes]) -> list[float | None]:
        """The times relative to the planned launch's; None for a launch that does not compile, or whose results
        differ."""

    def compare(self, kernel: Kernel, best: Changes) -> dict[str, float]:
        """The times in microseconds: `us`, `planned_us`, `xla_us` but for a stage, `copy_us`."""


def search(
    neighbours: Callable[[Changes], Mapping[Any, Changes]],
    measure: Callable[[Sequence[Changes]], list[float | None]],
    more: Callable[[], bool] = lambda: True,
) -> tuple[Changes, list[float | None]]:
    """The fastest changes, and all times relative to the planned launch's. The search ends when no neighbour is faster
    by more than chance, or when `more` returns false."""
    best: Changes = {}
    time_of_best = 1.0
    seen: set[Any] = set()
    times: list[float | None] = []
    for _ in range(ROUNDS):
        found = {how: changes for how, changes in neighbours(best).items() if how not in seen}
        if not found or not more():
            break
        seen |= found.keys()
        own = measure(list(found.values()))
        times += own
        timed = [(t, changes) for t, changes in zip(own, found.values(), strict=True) if t is not None]
        fastest, changes = min(timed, key=lambda pair: pair[0], default=(math.inf, best))
        if fastest > BETTER * time_of_best:
            break
        best, time_of_best = changes, fastest
    return best, times


def tune(op: AnyOp, task: Task, arch: str, clock: Clock, more: Callable[[], bool] = lambda: True) -> Found:
    """Search for the fastest launch of a task. An error is a result, so that other tasks still run."""
    kernel = Kernel(op, task, arch)
    try:
        best, times = search(kernel.neighbours, lambda some: clock.measure(kernel, some), more)
        us = {name: round(value, 2) for name, value in clock.compare(kernel, best).items()}
    except Exception as error:
        words = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        left = {"plan": kernel.digest, "error": words}  # it is not tried again, as it would end that run too
        return Found(task, kernel.entry("plan", {}, left) if is_fatal(words) else None, error=words)
    if us["us"] > BETTER * us["planned_us"]:
        best, us = {}, us | {"us": us["planned_us"]}
    take = "launch" if best or kernel.plans_xla else "plan"
    if us.get("xla_us", math.inf) < BETTER * us["us"]:
        take, best = "xla", {}
    measured = us | {"shape": task.shape_text, "plan": kernel.digest, "tried": len(times)}
    measured |= {"gpu": jax.devices()[0].device_kind, "date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}"}
    return Found(task, kernel.entry(take, best, measured), us, len(times), sum(t is None for t in times))


def is_fatal(error: str) -> bool:
    """Whether an error means that nothing will run on the GPU in this process any more."""
    return any(word in error for word in FATAL)


def tune_all(
    todo: Sequence[tuple[AnyOp, Task]],
    arch: str,
    clock: Clock,
    seconds: float,
    now: Callable[[], float] = time.monotonic,
) -> Iterator[Found]:
    """Tune one task after the other while there is time and the GPU runs. Meanwhile the launches of the next task are
    compiled."""
    end = now() + seconds
    for place, (op, task) in enumerate(todo):
        if now() >= end:
            return
        for following, other in todo[place : place + 2]:
            kernel = Kernel(following, other, arch)
            clock.prepare(kernel, list(kernel.neighbours({}).values()))
        found = tune(op, task, arch, clock, lambda: now() < end)
        yield found
        if is_fatal(found.error):
            return


# Reports


def as_table(found: Iterable[Found]) -> Table:
    """A row for each task, in a table for a terminal."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("kernel", overflow="fold")
    for name in ("fastest", "planned", "XLA", "copy", "loss"):
        table.add_column(name, justify="right")
    table.add_column("fastest launch", overflow="fold")
    for f in found:
        call = f"{f.task.kernel} {f.task.shape_text} {' '.join(dtype for _, dtype in f.task.types)}"
        if f.entry is None or not f.us:
            table.add_row(call, *[""] * 5, f.error, style="red")
            continue
        times = [time_text(f.us[n]) if n in f.us else "" for n in ("us", "planned_us", "xla_us", "copy_us")]
        changes = ", ".join(f"{name} {value}" for name, value in f.entry.launch)
        table.add_row(call, *times, f"{f.loss:.1%}", changes or {"xla": "XLA"}.get(f.entry.take, "as planned"))
    return table


def summary(found: Sequence[Found]) -> str:
    """How much time the planned launches lose, in a line."""
    timed = [f for f in found if f.us]
    if not timed:
        return "nothing was measured"
    losses, worst = [f.loss for f in timed], max(timed, key=lambda f: f.loss)
    xla = sum(f.entry is not None and f.entry.take == "xla" for f in timed)
    return (
        f"the planned launch takes {statistics.median(losses):.1%} longer than the fastest at the median, {worst.loss:.1%} "
        f"at worst ({worst.task.kernel}); {sum(loss > 0 for loss in losses)} of {len(losses)} have a faster one, XLA is "
        f"faster than {xla}"
    )


def rows(found: Iterable[Found]) -> list[dict[str, Any]]:
    """The entries in --json."""
    return [
        asdict(f.task) | {"us": dict(f.us), "tried": f.tried, "failed": f.failed, "error": f.error}
        | ({"take": f.entry.take, "launch": dict(f.entry.launch)} if f.entry is not None else {})
        for f in found
    ]  # fmt: skip
