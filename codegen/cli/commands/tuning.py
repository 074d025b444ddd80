"""The command `tune`. Its heavy imports are inside it."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from codegen.cli.loading import load_ops
from codegen.cli.options import (
    AsJson,
    Jobs,
    Kind,
    Names,
    Package,
    Shapes,
    Specs,
    Types,
    UsageError,
    check_kind,
    read_types,
    usage,
)
from codegen.cli.printing import end, gather, show
from codegen.cli.project import find_project
from codegen.errors import named


def tune(
    names: Names = None,
    kind: Kind = "",
    shapes: Shapes = None,
    types: Types = "",
    minutes: Annotated[float, typer.Option("--minutes", min=0, help="Begin nothing after so many.")] = 10.0,
    again: Annotated[
        bool, typer.Option("--again", help="Measure again, also calls that were measured with the same plan.")
    ] = False,
    jobs: Jobs = None,
    specs: Specs = None,
    package: Package = None,
    as_json: AsJson = False,
) -> None:
    """Search for launches that are faster than the planned ones, on this machine's GPU.

    For each kernel, forward and backward, and each stage of several, at the shapes of its spec's `bench`, launches that differ from the planned one are
    compiled and timed, with the planned one, XLA and a copy in turns. A launch whose results differ is left out. The
    fastest is written to tuning/ARCH.yaml in the folder of specs, for all calls of such types and sizes. `codegen build` then
    puts it into the generated modules. Where XLA is faster, calls that name no implementation take it.

    A run that ends early has written what it found; the next one goes on from there.

    \b
    Example: codegen tune rmsnorm softmax --minutes 3
    Example: codegen tune --minutes 120
    Example: codegen tune swiglu --shape N=8191 --types T=float32
    """
    project = find_project().at(specs, package)
    ops, wanted = load_ops(project.package, names), read_types(types)
    check_kind(kind, {op.plan.kind for op in ops})
    ops = [op for op in ops if (names or op.spec.bench) and (not kind or op.plan.kind == kind)]
    from codegen.measuring.tune import search as tuning
    from codegen.runtime.compiled.platform import current_arch, on_gpu
    from codegen.tuning import file

    if not on_gpu():
        raise UsageError("JAX has no NVIDIA GPU here, and times are only meaningful on one")
    arch = current_arch() or ""
    path = file.path_of(project.specs, arch)
    known = file.read(path) if path.exists() else {}
    by_name, shapes_of = {op.spec.op: op for op in ops}, functools.partial(_shapes_of, shapes or [])
    tasks = [(by_name[task.op], task) for task in tuning.tasks_of(ops, shapes_of, wanted, arch)]
    todo = [(op, task) for op, task in tasks if again or not tuning.is_done(op, task, arch, known.get(task.op, ()))]
    if not tasks:
        raise UsageError("nothing to tune: name an op, or give one `bench` shapes")
    made = _measured(todo, known, path, arch, project.package, jobs or os.cpu_count() or 1, minutes)
    found, whole = gather(made, len(todo), "tuning")
    if as_json:
        print(json.dumps(tuning.rows(found), indent=2))
    else:
        show(tuning.as_table(found))
        print(tuning.summary(found))
    if len(tasks) > len(todo):
        print(f"{len(tasks) - len(todo)} were measured before; --again measures them too", file=sys.stderr)
    if len(found) < len(todo):
        print(f"{len(found)} of {len(todo)} were measured: run it again to go on", file=sys.stderr)
    if any(f.entry is not None for f in found):
        print(f"wrote {named(path)}; `codegen build` puts it into the modules", file=sys.stderr)
    end(any(f.error for f in found), whole, len(found), len(todo))


def _shapes_of(shapes: list[str], op: Any) -> list[Any]:
    """The shapes at which an op is tuned: these, or its spec's `bench`, or else one of a usual size."""
    from codegen.language.sizes import bench_shapes, default_shape, parse_shape

    with usage():
        own = [parse_shape(op.spec, text) for text in shapes]
    return own or bench_shapes(op.spec) or [default_shape(op.spec)]


def _measured(
    todo: list[Any], known: Mapping[str, Any], path: Path, arch: str, package: Path, jobs: int, minutes: float
) -> Iterator[Any]:
    """Tune op after op; each entry that is found is added to the file at once."""
    from codegen.measuring.tune import search as tuning
    from codegen.measuring.tune.clock import Device
    from codegen.tuning import file

    clock = Device(package, arch, jobs)
    try:
        for found in tuning.tune_all(todo, arch, clock, 60 * minutes):
            if found.entry is not None:
                known = file.merged(known, [(found.task.op, found.entry)])
                file.write(path, known)
            yield found
    finally:
        clock.close()
