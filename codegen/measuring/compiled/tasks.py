"""Compiles many kernels of a package of ops at once, and prints the outcomes as JSON or as a table."""

from __future__ import annotations

import contextlib
import importlib
import re
import signal
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from codegen import extras
from codegen.measuring.compiled.compile import Compiled, compile_kernel, kept_kernel
from codegen.measuring.compiled.variants import Variant
from codegen.runtime.ops.op import AnyOp

with extras.needed("build"):
    from rich.markup import escape
    from rich.table import Table


@dataclass(frozen=True)
class Task:
    """One kernel of a package of ops, to compile in any process."""

    op: str  # or NAME_backward, ...
    variant: Variant
    arch: str


@dataclass(frozen=True)
class Outcome:
    """The result of a task: a kernel, or the compiler's message."""

    task: Task
    compiled: Compiled | None
    error: str = ""


def load_package(folder: Path) -> Any:
    """The package of generated ops in a folder, imported from that folder."""
    folder = folder.resolve()
    root, name = folder.parent, folder.name
    while (root / "__init__.py").exists():
        root, name = root.parent, f"{root.name}.{name}"
    if sys.path[:1] != [str(root)]:  # another package of this name may be elsewhere on the path
        sys.path.insert(0, str(root))
    package = importlib.import_module(name)
    if str(folder) not in package.__path__:
        raise ImportError(f"{folder} cannot be imported: another package named {name} already is")
    return package


def compile_tasks(folder: Path, tasks: list[Task], jobs: int) -> Iterator[Outcome]:
    """Compile in `jobs` processes what the cache on disk lacks; yields outcomes as they are ready."""
    missing = []
    for task in tasks:
        kernel = None
        with contextlib.suppress(Exception):  # an error of a task is reported when it is compiled
            kernel = kept_kernel(_kernel(folder, task), task.variant, task.arch)
        if kernel is None:
            missing.append(task)
        else:
            yield Outcome(task, kernel)
    if jobs <= 1 or not missing:
        yield from (_run(folder, task) for task in missing)
        return
    # Spawned, not forked: the compiler has threads of its own
    ends = signal.signal, (signal.SIGINT, signal.SIG_DFL)  # the parent handles Ctrl-C
    with ProcessPoolExecutor(min(jobs, len(missing)), get_context("spawn"), *ends) as pool:
        futures = [pool.submit(_run, folder, task) for task in missing]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _run(folder: Path, task: Task) -> Outcome:
    try:
        return Outcome(task, compile_kernel(_kernel(folder, task), task.variant, task.arch))
    # The compiler raises many kinds of exceptions; the run continues, and reports which kernels failed
    except Exception as error:
        return Outcome(task, None, f"{type(error).__name__}: {error}")


def _kernel(folder: Path, task: Task) -> AnyOp:
    (kernel,) = [k for k in kernels_named(load_package(folder), [task.op]) if k.spec.op == task.op]
    return kernel


def kernels_named(package: Any, names: Iterable[str]) -> list[AnyOp]:
    """All kernels of each named op of a package. `NAME_backward`, `NAME_stage1` and so on, where they exist, name a single kernel.
    Raises KeyError for other names."""
    found: list[AnyOp] = []
    for name in names:
        if name in package.__all__:
            found += getattr(package, name).kernels
            continue
        origins = (name[: match.start()] for match in re.finditer("_", name))
        for origin in (origin for origin in origins if origin in package.__all__):
            found += [k for k in getattr(package, origin).kernels if k.spec.op == name]
        if not found or found[-1].spec.op != name:
            raise KeyError(name)
    return found


def is_of_gradients(kernel: AnyOp) -> bool:
    """Whether a kernel runs only where gradients are requested."""
    return kernel not in getattr(kernel, "origin", kernel).own_kernels


def as_row(outcome: Outcome) -> dict[str, Any]:
    """The entry of an outcome in --json."""
    task, made = outcome.task, outcome.compiled
    row: dict[str, Any] = {
        "op": task.op,
        "types": dict(task.variant.types.variables),
        "columns": task.variant.columns,
        "ragged": task.variant.ragged,
        "defaults": task.variant.defaults,
        "arch": task.arch,
    }
    if made is None:
        return row | {"error": outcome.error}
    return row | {
        "registers": made.registers,
        "spills": made.spills,
        "stack": made.stack,
        "shared": made.shared,
        "unbound": made.unbound,
        "loads": list(made.loads),
        "stores": list(made.stores),
        "operands": {o.name: {"loads": list(o.loads), "stores": list(o.stores)} for o in made.operands},
    }


def as_table(outcomes: Iterable[Outcome]) -> Table:
    """The table of outcomes, one row per kernel. In 80 columns its name and types are wrapped, and nothing is lost."""
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("kernel", overflow="fold")
    table.add_column("arch", no_wrap=True)
    for name in ("regs", "spills", "stack", "shared"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("loads", "stores"):
        table.add_column(name, no_wrap=True)
    for outcome in outcomes:
        task, made = outcome.task, outcome.compiled
        types = str(task.variant)
        cells = [task.op if types == "-" else f"{task.op} {types}", task.arch]
        if made is None:
            cells[0] += f"\n[red]{escape(outcome.error.splitlines()[0])}[/red]"
            table.add_row(*cells)
            continue
        if made.unbound:
            cells[0] += f"\nregisters of fewer than {made.unbound} blocks per SM: a bound would spill"
        sizes = [str(n) if n else "-" for n in (made.spills, made.stack, made.shared)]
        widths = [" ".join(map(str, w)) or "-" for w in (made.loads, made.stores)]
        table.add_row(*cells, str(made.registers), *sizes, *widths)
    return table
