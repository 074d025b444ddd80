"""The commands that run ops or compile their kernels: `explain`, `compile`, `verify`, `bench`, `export` and `cache`.

Heavy imports are inside the commands: `explain` and `cache` load neither JAX nor CuTe DSL, and the others only what they need.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from codegen.cli.commands import specs as spec_commands
from codegen.cli.completing import built_ops, specified_ops
from codegen.cli.loading import load_kernels, load_ops, load_package, no_op
from codegen.cli.options import (
    Archs,
    AsJson,
    Jobs,
    Kind,
    Names,
    OldKind,
    Package,
    Shape,
    Shapes,
    Specs,
    Types,
    UsageError,
    check_kind,
    read_architectures,
    read_types,
    usage,
)
from codegen.cli.printing import end, gather, show
from codegen.cli.project import find_project
from codegen.errors import named

if TYPE_CHECKING:
    from codegen.explain.launching import Binding
    from codegen.measuring.compiled.tasks import Outcome
    from codegen.measuring.times.measurement import Measurement
    from codegen.spec.spec import Spec


def explain(
    op: Annotated[str, typer.Argument(help="The op's name.", autocompletion=specified_ops)],
    specs: Specs = None,
    shape: Shape = "",
    svg: Annotated[Path | None, typer.Option("--svg", help="Draw the op's graph into this file too.")] = None,
    interpret: Annotated[
        bool, typer.Option("--interpret", help="Run the kernels in the interpreter and count the bytes that they move.")
    ] = False,
    package: Package = None,
    as_json: AsJson = False,
) -> None:
    """Show an op's graph, its kernel's plan, the bytes it moves, fused and unfused, and the least time that its
    bytes and instructions take.

    Without --shape, the shape is the spec's first `bench` entry, or one of about 2**25 elements. The interpreter then
    takes a smaller one.

    \b
    Example: codegen explain bias_relu
    Example: codegen explain bias_relu --interpret
    Example: codegen explain bias_relu --shape "...=1,N=8191"
    Example: codegen explain swiglu --svg swiglu.svg
    """
    from codegen.explain import tables as explain_text
    from codegen.explain.report import explain as explained
    from codegen.language.sizes import default_shape
    from codegen.pipeline import read_op
    from codegen.render.package import find_specs

    project = find_project().at(specs, package)
    paths = {path.stem: path for path in find_specs(project.specs)}
    if op not in paths:
        raise UsageError(no_op(op, list(paths), project.specs))
    found = read_op(paths[op])
    with usage():
        report = explained(found, _shape(found.spec, shape) if shape else default_shape(found.spec))
    if interpret:
        (made,) = load_ops(project.package, [op])
        from codegen.measuring.explained import check_size, interpreted_calls, small

        wanted = report["shape"] if shape else small(found.spec, report["shape"])
        with usage():
            check_size(found.spec, wanted)
        report["interpreted"] = interpreted_calls(made, wanted)
    if svg is not None:
        from codegen.cli.files.outputs import put
        from codegen.explain.svg import draw

        put(svg, draw(found).encode())
        print(f"wrote {named(svg)}", file=sys.stderr)
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        show(explain_text.as_text(report))


def compile_ops(
    names: Names = None,
    arch: Archs = None,
    types: Types = "",
    ptx: Annotated[bool, typer.Option("--ptx", help="Print the PTX of one op's first kernel.")] = False,
    sass: Annotated[bool, typer.Option("--sass", help="Print its SASS; needs cuobjdump or nvdisasm.")] = False,
    ragged: Annotated[
        bool, typer.Option("--ragged", help="With --ptx or --sass: the kernel for ragged calls.")
    ] = False,
    backward: Annotated[
        bool | None,
        typer.Option(
            "--backward/--no-backward",
            help="Only the kernels of gradients, or none of them.",
            show_default="all kernels",
        ),
    ] = None,
    jobs: Jobs = None,
    package: Package = None,
    as_json: AsJson = False,
) -> None:
    """Compile the ops' kernels for any architecture, without a GPU: registers, spills, access widths.

    The table has one row for each kernel and combination of types, and another for ragged calls, whose innermost size is
    not a multiple of the vector width. It includes the generated backward, which can be named alone as NAME_backward. Exit
    status 1 where a kernel does not compile.

    \b
    Example: codegen compile
    Example: codegen compile swiglu --arch sm_90a
    Example: codegen compile swiglu --arch sm_90a --types T=bfloat16 --ptx
    """
    from codegen.measuring.compiled.tasks import Task, compile_tasks, is_of_gradients
    from codegen.measuring.compiled.variants import variants
    from codegen.plan.limits import lacks

    project = find_project().at(package=package)
    ops, wanted = load_kernels(project.package, names), read_types(types)
    archs = read_architectures(arch, project)
    if backward is not None:
        ops = [op for op in ops if is_of_gradients(op) == backward]
    if (ptx or sass) and len(names or ops) != 1:
        raise UsageError("--ptx and --sass show one op: name it")
    found = [(op, v) for op in ops for v in variants(op, wanted)]
    _check_wanted(ops, wanted, bool(found))
    missing = {Task(op.spec.op, v, a): lacks(op, v.types, a) for op, v in found for a in archs}
    tasks, left_out = [t for t, why in missing.items() if why is None], [why for why in missing.values() if why]
    if not tasks:
        raise UsageError(left_out[0])
    if ptx or sass:
        tasks = [next((t for t in tasks if t.variant.ragged == ragged), tasks[0])]
    order = {task: i for i, task in enumerate(tasks)}
    made = compile_tasks(project.package, tasks, jobs or os.cpu_count() or 1)
    outcomes, whole = gather(made, len(tasks), "compiling")
    outcomes.sort(key=lambda outcome: order[outcome.task])
    if (ptx or sass) and outcomes:
        print(_code(outcomes[0], sass))
    else:
        _show_compiled(outcomes, left_out, as_json)
    end(any(o.compiled is None for o in outcomes), whole, len(outcomes), len(tasks))


def _show_compiled(outcomes: list[Outcome], left_out: list[str], as_json: bool) -> None:
    """Print what each kernel needs, as JSON or as a table with a summary."""
    from codegen.measuring.compiled.tasks import as_row, as_table

    if as_json:
        print(json.dumps([as_row(o) for o in outcomes], indent=2))
        return
    failed = sum(o.compiled is None for o in outcomes)
    show(as_table(outcomes))
    print(f"{len(outcomes) - failed} kernels compiled, {failed} failed; sizes in bytes")
    if left_out:
        print(f"{len(left_out)} left out, such as {left_out[0]}")


def _code(outcome: Outcome, sass: bool) -> str:
    """The SASS or the PTX of a compiled kernel."""
    from codegen.measuring.compiled.compile import disassemble

    if outcome.compiled is None:
        raise UsageError(f"{outcome.task.op} does not compile: {outcome.error}")
    text = disassemble(outcome.compiled.cubin) if sass else outcome.compiled.ptx
    if text is None:
        hint = "they come with the CUDA toolkit, or with `pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm`"
        raise UsageError(f"--sass: neither cuobjdump nor nvdisasm is on PATH; {hint}")
    return text


def verify_ops(
    names: Names = None,
    implementation: Annotated[
        str,
        typer.Option("--implementation", help="cute, xla or interpret; by default cute on a GPU, else interpret."),
    ] = "",
    examples: Annotated[int, typer.Option("--examples", min=1, help="Random calls for each op.")] = 20,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Vary the calls; without it they are always the same.")
    ] = None,
    specs: Specs = None,
    package: Package = None,
    as_json: AsJson = False,
) -> None:
    """Property-test ops against their references, with random shapes, types and values.

    Prints the worst error in ulps of the output's type, and the smallest failing call of each op that disagrees. Exit
    status 1 if one does. Run `codegen build` first: an op whose generated module differs from its spec is an error.

    \b
    Example: codegen verify
    Example: codegen verify bias_relu --implementation xla --examples 100 --seed 1
    """
    if specs is not None and not specs.is_dir():
        raise UsageError(f"--specs {named(specs)}: no such folder")
    project = find_project().at(specs, package)
    made = load_package(project.package).__all__
    spec_commands.refuse_stale([name for name in names or made if name in made], project)
    ops = load_ops(project.package, names)  # before tests ask JAX what it runs on
    from codegen.checking.verify import as_row, as_table, default_implementation, verify
    from codegen.runtime.compiled.platform import on_gpu

    implementation = implementation or default_implementation()
    if implementation not in ("cute", "xla", "interpret"):
        raise UsageError(f"--implementation {implementation!r}: it is cute, xla or interpret")
    if implementation == "cute" and not on_gpu():
        raise UsageError("--implementation cute runs kernels: it needs an NVIDIA GPU")
    outcomes, whole = gather(verify(ops, implementation, examples, seed), len(ops), "verifying")
    if as_json:
        print(json.dumps([as_row(o) for o in outcomes], indent=2))
    else:
        show(as_table(outcomes))
        for o in outcomes:
            for text in (o.report.failure, o.gradient if o.gradient not in ("agrees", "-") else ""):
                if text:
                    print(text)
        print(f"{sum(o.good for o in outcomes)} of {len(outcomes)} ops agree with their reference ({implementation})")
    end(not all(o.good for o in outcomes), whole, len(outcomes), len(ops))


def bench(
    names: Names = None,
    kind: Kind = "",
    shapes: Shapes = None,
    types: Types = "",
    out: Annotated[Path, typer.Option("--out", help="The folder to write the results to.")] = Path("benchmarks"),
    name: Annotated[str, typer.Option("--name", help="The results' name: NAME.json, NAME.md, NAME.png.")] = "",
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="Groups of calls; a time is their median.")] = 5,
    backward: Annotated[
        bool,
        typer.Option(
            "--backward",
            help="The ops' generated backwards, OP_frozen included, against jax.vjp of the reference.",
        ),
    ] = False,
    package: Package = None,
    as_json: AsJson = False,
    suite: OldKind = "",
) -> None:
    """Time ops on this machine's GPU against XLA and a copy of the same number of bytes; write a table, JSON and charts.

    NAME.png shows each op's speed over XLA and its part of a copy's bandwidth. An op that is measured at four sizes or more,
    each twice the one before, has another chart, NAME-OP.png, of bandwidth against size.

    Without names, every op whose spec has `bench` shapes is timed. An axis that --shape leaves out has its size in the first
    of these shapes. Types are bfloat16 where an op takes it.

    \b
    Example: codegen bench
    Example: codegen bench bias_relu --shape N=8191 --shape "...=1,N=8192" --shape N=3 --name awkward
    Example: codegen bench swiglu --types T=float32 --out /tmp/results
    Example: codegen bench --backward --name backward
    """
    from codegen.measuring.times import bench as timing
    from codegen.runtime.compiled.platform import on_gpu

    ops, wanted = load_ops(find_project().at(package=package).package, names), read_types(types)
    kind, kinds = kind or suite, sorted({op.plan.kind for op in ops})
    check_kind(kind, kinds)
    ops = [op for op in ops if (names or op.spec.bench) and (not kind or op.plan.kind == kind)]
    if backward:
        ops = _backwards(ops, bool(names))
    tasks = list(_bench_tasks(ops, wanted, shapes or [], backward))
    if not tasks:
        raise UsageError("no op has a `bench` shape: name an op, or add one to its spec")
    if not on_gpu():
        raise UsageError(
            "JAX has no NVIDIA GPU here, and times are only meaningful on one; "
            "`codegen explain` estimates the least time that a kernel can take"
        )
    runs = (timing.bench_or_fail(op, binding, shape, repeat) for op, binding, shape in tasks)
    measured, whole = gather(runs, len(tasks), "measuring")
    title = name or kind or "-".join(names or kinds)
    _show_measured(measured, out, title if whole else f"{title}-partial", as_json)  # a complete run's files stay
    end(any(m.error for m in measured), whole, len(measured), len(tasks))


def _show_measured(measured: list[Measurement], out: Path, title: str, as_json: bool) -> None:
    """Write the results of a run, and print them as JSON or as a table."""
    from codegen.measuring.times import bench as timing
    from codegen.measuring.times import results

    where, command = timing.machine(), shlex.join(["codegen", *sys.argv[1:]])
    for path in results.write(measured, where, out, title, command) if measured else ():
        print(f"wrote {named(path)}", file=sys.stderr)
    if as_json:
        print(json.dumps(results.as_json(measured, where), indent=2))
    else:
        show(results.as_table(measured))


def _backwards(ops: list[Any], named_ones: bool) -> list[Any]:
    """The generated backwards of ops. It is an error if one of those that were named has none."""
    from codegen.runtime.ops.backward import backward_ops

    if named_ones and (none := [op.spec.op for op in ops if not backward_ops(op)]):
        raise UsageError(f"--backward: {', '.join(none)} has no generated backward; `codegen explain` says why")
    return [made for op in ops for made in backward_ops(op)]


def _bench_tasks(
    ops: list[Any], wanted: dict[str, str], shapes: list[str], backward: bool
) -> Iterator[tuple[Any, Binding, dict[str, int]]]:
    """The ops to time, each with dtypes and with a shape: of these, or of its spec's `bench`."""
    from codegen.language.sizes import bench_shapes, default_shape
    from codegen.measuring.times import bench as timing

    bindings = {op.spec.op: timing.typical(op.spec, wanted) for op in ops}
    _check_wanted(ops, wanted, any(bindings.values()))
    for op in ops:
        binding, spec = bindings[op.spec.op], (op.origin if backward else op).spec
        if binding is not None:
            own = [_shape(spec, text) for text in shapes]
            yield from ((op, binding, shape) for shape in own or bench_shapes(spec) or [default_shape(spec)])


def export_op(
    op: Annotated[str, typer.Argument(help="The op's name.", autocompletion=built_ops)],
    shape: Annotated[
        str, typer.Option("--shape", help='The size of every axis, a number or a name: "...=rows,N=4096".')
    ],
    out: Annotated[Path, typer.Option("--out", help="The file to write.")],
    arch: Annotated[
        str | None, typer.Option("--arch", help="The architecture of the target GPU, as in sm_90a.")
    ] = None,
    types: Annotated[str, typer.Option("--types", help="The dtypes, as in T=bfloat16,S=float32.")] = "",
    params: Annotated[
        list[str] | None, typer.Option("--param", help="A static param, as in eps=1e-5; may be repeated.")
    ] = None,
    leave_out: Annotated[
        list[str] | None, typer.Option("--leave-out", help="An input that takes its default; may be repeated.")
    ] = None,
    vjp: Annotated[bool, typer.Option("--vjp", help="Include the derivative, for jax.grad and jax.vjp.")] = False,
    platforms: Annotated[
        str, typer.Option("--platforms", help="cuda, or cuda,cpu: the CPU gets the jnp form.")
    ] = "cuda",
    package: Package = None,
    as_json: AsJson = False,
) -> None:
    """Write an op with its compiled kernel as a serialized jax.export artifact, without a GPU.

    The process that runs it needs only JAX and nvidia-cutlass-dsl: `cutlass.jax.register_ffi()`, then
    `jax.export.deserialize(bytes).call(...)` with the inputs by position. A size `rows` may be any number, `8*n` any
    multiple of 8, and `...=(batch, 128)` means two leading axes.

    \b
    Example: codegen export bias_relu --arch sm_90a --shape "...=rows,N=4096" --types T=bfloat16 --out bias_relu.jax
    Example: codegen export rmsnorm --arch sm_90a --shape "...=rows,N=4096" --types T=bfloat16 --param eps=1e-5 --vjp --out rmsnorm.jax
    """
    from codegen.cli.files.outputs import put
    from codegen.runtime.ops import export

    project = find_project().at(package=package)
    (made,) = load_ops(project.package, [op])
    if arch is None and not project.arch:
        raise UsageError("--arch names the architecture that the artifact is for, as in --arch sm_90a")
    archs = read_architectures(arch, project)
    if len(archs) > 1:
        raise UsageError(f"--arch {arch or ','.join(archs)}: an artifact is for one architecture")
    if out.is_dir() or not out.parent.is_dir():
        raise UsageError(
            f"--out {out}: {'it' if out.is_dir() else out.parent} is {'a' if out.is_dir() else 'no'} folder"
        )
    with usage():
        wanted = export.read_wanted(
            made.spec, shape, read_types(types), params or [], leave_out or [], archs[0], platforms, vjp
        )
        data, report = export.export(made, wanted)
    put(out, data)
    if as_json:
        print(json.dumps(report | {"file": str(out)}, indent=2))
    else:
        print(export.as_text(report, out))


def show_cache(
    clear: Annotated[bool, typer.Option("--clear", help="Remove every entry.")] = False, as_json: AsJson = False
) -> None:
    """Show the compiled kernels and builds that are kept on disk (where, how many, how large), or remove them.

    The folder is CODEGEN_CACHE_DIR, else cutefuse in XDG_CACHE_HOME or ~/.cache. It takes no more than CODEGEN_CACHE_LIMIT
    (by default 1G; 0 keeps none): least recently used entries are evicted first. Entries are machine code that is run. So a
    folder that other users may write to is not used, except with CODEGEN_CACHE_TRUSTED=1, which lets them run code as you.

    \b
    Example: codegen cache
    Example: codegen cache --clear
    """
    from codegen import cache

    folder = cache.location()
    if folder is None:
        raise UsageError("there is no home directory: name a folder in CODEGEN_CACHE_DIR")
    with usage():
        most = cache.limit()
    report = cache.report(folder, most, cache.clear(folder) if clear else cache.entries(folder))
    if as_json:
        print(json.dumps(report | {"cleared": clear}, indent=2))
    else:
        print(cache.as_text(report, clear))


def _shape(spec: Spec, text: str) -> dict[str, int]:
    """`...=8192,N=4096`."""
    from codegen.language.sizes import parse_shape

    with usage():
        return parse_shape(spec, text)


def _check_wanted(ops: list[Any], wanted: dict[str, str], found: bool) -> None:
    """Check that each requested type variable belongs to an op, and that some op has a kernel for the requested types."""
    variables = {name for op in ops for name, _ in op.spec.types}
    if not found or not wanted.keys() <= variables:
        words = ",".join(f"{name}={dtype}" for name, dtype in wanted.items())
        raise UsageError(f"no op named here has a kernel with {words}")
