"""The command line: one function a command, each handing over to the module that does the work.

Heavy imports stand inside the commands: `codegen --help` and everything up to `codegen build` load neither JAX nor
CuTe DSL.
"""

from __future__ import annotations

import json
import keyword
import os
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from codegen.pipeline import Op
    from codegen.spec import Spec

app = typer.Typer(
    name="codegen",
    help="Fused GPU ops for JAX from YAML: readable CuTe DSL kernels, checked against a jnp reference.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Specs = Annotated[Path, typer.Option("--specs", help="The folder of specs.")]
Out = Annotated[Path, typer.Option("--out", help="The package to write; its parent must be importable.")]
TestsOut = Annotated[Path, typer.Option("--tests", help="Where the property-test modules go; '' writes none.")]
Names = Annotated[list[str] | None, typer.Argument(metavar="[OP]...", help="Ops by name; all where none is named.")]
OutRead = Annotated[Path, typer.Option("--package", help="The package of generated ops.")]
Archs = Annotated[str, typer.Option("--arch", help="Architectures, separated by commas.")]
TypesWanted = Annotated[str, typer.Option("--types", help="Only these dtypes, as in T=bfloat16,S=float32.")]
ShapeWanted = Annotated[str, typer.Option("--shape", help='The extents, as in "...=8192,N=4096".')]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

SPECS, OUT, TESTS = Path("specs"), Path("generated"), Path("tests/generated")


class UsageError(Exception):
    """A mistake on the command line: one message, exit status 2."""


def main() -> None:
    """Run the command line; user mistakes end in one message and exit status 2."""
    from codegen.errors import SpecError

    try:
        app()
    except SpecError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    except (UsageError, OSError) as error:  # OSError: a folder that cannot be read or written
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


@app.command()
def new(op: Annotated[str, typer.Argument(help="snake_case name of the op.")], specs: Specs = SPECS) -> None:
    """Write a commented starter spec, specs/OP.yaml.

    Example: codegen new my_bias_relu
    """
    from codegen.names import op_name_mistake
    from codegen.scaffold import starter

    mistake = op_name_mistake(op)
    if mistake:
        raise UsageError(f"{mistake.message}\n  {mistake.hint}")
    path = specs / f"{op}.yaml"
    if path.exists():
        raise UsageError(f"{path} exists already; pick another name or edit it")
    specs.mkdir(parents=True, exist_ok=True)
    path.write_text(starter(op), encoding="utf-8")
    print(f"wrote {path}; next: codegen build")


@app.command()
def build(
    files: Annotated[list[Path] | None, typer.Argument(metavar="[SPEC]...", help="Spec files; all of --specs.")] = None,
    specs: Specs = SPECS,
    out: Out = OUT,
    tests: TestsOut = TESTS,
) -> None:
    """Turn specs into kernels, JAX functions and tests: all of them, or nothing.

    Naming spec files rebuilds only their ops, and removes nothing. Files whose bytes agree are not touched.

    \b
    Example: codegen build
    Example: codegen build specs/bias_relu.yaml
    Example: codegen build --specs my/specs --out my_package/ops --tests my_package/tests
    """
    from codegen import outputs
    from codegen.build import find_specs, read_ops

    found = sorted({path.resolve(): path for path in files}.values()) if files else find_specs(specs)
    _no_repeats(found)
    ops = read_ops(found)
    with outputs.locked(_folders([], specs, out, tests)):
        folders = _folders(ops, specs, out, tests, also=outputs.modules(out) if files else [])
        for folder, contents in folders.items():
            foreign = outputs.foreign(folder, contents)
            if foreign:
                message = f"{foreign[0]} was not generated and would be overwritten"
                raise UsageError(f"{message}; move it, or choose another folder")
        changed = outputs.write(folders, remove=not files)
    total = sum(len(contents) for contents in folders.values())
    print(f"{len(ops)} ops: {len(changed)} of {total} files changed")
    for path in changed[:20]:
        print(f"  {path}")


@app.command()
def check(specs: Specs = SPECS, out: Out = OUT, tests: TestsOut = TESTS) -> None:
    """Say whether the generated files are what a build would write: exit 1 with the difference if not.

    Example: codegen check
    """
    from codegen import outputs
    from codegen.build import find_specs, read_ops

    ops = read_ops(find_specs(specs))
    folders = _folders(ops, specs, out, tests)
    differences = [d for folder, contents in folders.items() for d in outputs.compare(folder, contents)]
    for difference in differences:
        print(f"{difference.path}: {difference.state}")
        print(difference.diff, end="")
    if differences:
        options = zip(("--specs", "--out", "--tests"), (specs, out, tests), (SPECS, OUT, TESTS), strict=True)
        words = [word for name, path, default in options if path != default for word in (name, _word(path))]
        print(
            f"{len(differences)} of {sum(map(len, folders.values()))} files differ. Run: {shlex.join(['codegen', 'build', *words])}"
        )
        sys.exit(1)
    print(f"{len(ops)} ops are up to date")


@app.command("list")
def list_ops(specs: Specs = SPECS, as_json: AsJson = False) -> None:
    """List the ops: kind, types, arguments.

    Example: codegen list --json
    """
    from codegen.build import find_specs, read_ops

    rows: list[dict[str, Any]] = []
    for op in read_ops(find_specs(specs)):
        spec = op.spec
        rows.append(
            {
                "op": spec.op,
                "kind": op.plan.kind,
                "types": {name: list(dtypes) for name, dtypes in spec.types},
                "inputs": {a.name: str(a) for a in spec.inputs},
                "outputs": {a.name: str(a) for a in spec.outputs},
                "params": {p.name: p.kind for p in spec.params},
                "summary": spec.summary,
            }
        )
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table("op", "kind", "types", "arguments", "result", box=None, header_style="bold", pad_edge=False)
    for row in rows:
        arguments = [f"{n}: {a}" for n, a in row["inputs"].items()] + [f"{n}: {k}" for n, k in row["params"].items()]
        types = "; ".join(f"{t} {', '.join(d)}" for t, d in row["types"].items())
        table.add_row(
            row["op"], row["kind"], types, escape("\n".join(arguments)), escape("\n".join(row["outputs"].values()))
        )
    Console().print(table)


@app.command()
def schema() -> None:
    """Print the JSON Schema of a spec, for editors.

    Example: codegen schema > spec.schema.json
    """
    from codegen.scaffold import json_schema

    print(json.dumps(json_schema(), indent=2))


@app.command()
def explain(
    op: Annotated[str, typer.Argument(help="The op's name.")],
    specs: Specs = SPECS,
    shape: ShapeWanted = "",
    svg: Annotated[Path | None, typer.Option("--svg", help="Draw the op's graph into this file too.")] = None,
    interpret: Annotated[
        bool, typer.Option("--interpret", help="Run the kernels in the interpreter and count what they move.")
    ] = False,
    package: OutRead = OUT,
    as_json: AsJson = False,
) -> None:
    """Show an op's graph, its kernel's plan, the bytes it moves, fused and not, and what memory's speed allows.

    The shape is the spec's first `bench` entry if not given, or one of about 2**25 elements; the interpreter then takes
    a smaller one.

    \b
    Example: codegen explain bias_relu
    Example: codegen explain bias_relu --interpret
    Example: codegen explain bias_relu --shape "...=1,N=8191"
    Example: codegen explain swiglu --svg swiglu.svg
    """
    from codegen import explain as explaining
    from codegen.build import find_specs
    from codegen.errors import known
    from codegen.pipeline import read_op
    from codegen.sizes import default_shape

    paths = {path.stem: path for path in find_specs(specs)}
    if op not in paths:
        raise UsageError(f"no spec {op!r} in {specs}. {known(op, paths, 'There are')}")
    found = read_op(paths[op])
    report = explaining.explain(found, _shape(found.spec, shape) if shape else default_shape(found.spec))
    if interpret:
        (made,) = _load(package, [op])
        from codegen.runtime.explained import interpreted_calls, small

        wanted = report["shape"] if shape else small(found.spec, report["shape"])
        report["interpreted"] = interpreted_calls(made, wanted)
    if svg is not None:
        from codegen.svg import draw

        svg.write_text(draw(found), encoding="utf-8")
        print(f"wrote {svg}", file=sys.stderr)
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        _print(explaining.as_text(report))


@app.command("compile")
def compile_ops(
    names: Names = None,
    arch: Archs = "sm_80,sm_90a,sm_100a,sm_120a",
    types: TypesWanted = "",
    ptx: Annotated[bool, typer.Option("--ptx", help="Print the PTX of one op's first kernel.")] = False,
    sass: Annotated[bool, typer.Option("--sass", help="Print its SASS; needs cuobjdump or nvdisasm.")] = False,
    ragged: Annotated[
        bool, typer.Option("--ragged", help="With --ptx or --sass: the kernel for awkward extents.")
    ] = False,
    jobs: Annotated[int | None, typer.Option("--jobs", help="Processes; one a core if not given.")] = None,
    out: OutRead = OUT,
    as_json: AsJson = False,
) -> None:
    """Compile the ops' kernels for any architecture, with no GPU needed: registers, spills, access widths.

    One row a kernel, those of the generated backward (NAME_backward, by which it can be named alone) included: each combination of types, and again for ragged calls, whose innermost extent is no multiple of a
    vector. Exit status 1 where one does not compile.

    \b
    Example: codegen compile
    Example: codegen compile swiglu --arch sm_90a
    Example: codegen compile swiglu --arch sm_90a --types T=bfloat16 --ptx
    """
    from codegen.arch import lacks
    from codegen.runtime.compile import Task, as_row, as_table, compile_tasks, disassemble, variants

    ops, wanted = _kernels(out, names), _types(types)
    archs = _architectures(arch)
    if (ptx or sass) and len({op.spec.op.removesuffix("_backward") for op in ops}) != 1:
        raise UsageError("--ptx and --sass show one op: name it")
    if jobs is not None and jobs < 1:
        raise UsageError(f"--jobs {jobs}: a number of processes is 1 or more")
    found = [(op, v) for op in ops for v in variants(op, wanted)]
    _check_wanted(ops, wanted, bool(found))
    missing = {Task(op.spec.op, v, a): lacks(op, v.types, a) for op, v in found for a in archs}
    tasks = [task for task, why in missing.items() if why is None]
    left_out = [why for why in missing.values() if why is not None]
    if not tasks:
        raise UsageError(left_out[0])
    if ptx or sass:
        tasks = [next((t for t in tasks if t.variant.ragged == ragged), tasks[0])]
    order = {task: i for i, task in enumerate(tasks)}
    outcomes = list(_progress(compile_tasks(out, tasks, jobs or os.cpu_count() or 1), len(tasks), "compiling"))
    outcomes.sort(key=lambda outcome: order[outcome.task])
    failed = [o for o in outcomes if o.compiled is None]
    if ptx or sass:
        kernel = outcomes[0].compiled
        if kernel is None:
            raise UsageError(f"{outcomes[0].task.op} does not compile: {outcomes[0].error}")
        text = disassemble(kernel.cubin) if sass else kernel.ptx
        if text is None:
            hint = "they come with the CUDA toolkit, or with `pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm`"
            raise UsageError(f"--sass: neither cuobjdump nor nvdisasm is on PATH; {hint}")
        print(text)
    elif as_json:
        print(json.dumps([as_row(o) for o in outcomes], indent=2))
    else:
        _print(as_table(outcomes))
        print(f"{len(outcomes) - len(failed)} kernels compiled, {len(failed)} failed; sizes in bytes")
        if left_out:
            print(f"{len(left_out)} left out, such as {left_out[0]}")
    if failed:
        sys.exit(1)


@app.command("verify")
def verify_ops(
    names: Names = None,
    implementation: Annotated[
        str,
        typer.Option("--implementation", help="cute, xla or interpret; the kernel on a GPU, interpreted elsewhere."),
    ] = "",
    examples: Annotated[int, typer.Option("--examples", min=1, help="Random calls an op.")] = 20,
    seed: Annotated[int | None, typer.Option("--seed", help="Vary the calls; without it they are the same.")] = None,
    out: OutRead = OUT,
    as_json: AsJson = False,
) -> None:
    """Property-test ops against their references, with random shapes, types and values.

    Prints the worst error in ulps of the output's type, and the smallest failing call of each op that disagrees; exit
    status 1 if one does.

    Example: codegen verify
    Example: codegen verify bias_relu --implementation xla --examples 100 --seed 1
    """
    from codegen.runtime.testing import on_gpu
    from codegen.runtime.verify import as_row, default_implementation, verify

    ops = _load(out, names)
    implementation = implementation or default_implementation()
    if implementation not in ("cute", "xla", "interpret"):
        raise UsageError(f"--implementation {implementation!r}: it is cute, xla or interpret")
    if implementation == "cute" and not on_gpu():
        raise UsageError("--implementation cute runs kernels: it needs an NVIDIA GPU")
    outcomes = list(_progress(verify(ops, implementation, examples, seed), len(ops), "verifying"))
    if as_json:
        print(json.dumps([as_row(o) for o in outcomes], indent=2))
    else:
        from rich.table import Table

        table = Table(
            "op", "calls", "elements", "worst ulp", "gradient", "", box=None, header_style="bold", pad_edge=False
        )
        for o in outcomes:
            gradient = o.gradient if o.gradient in ("agrees", "-") else "differs"
            report = o.report
            verdict = "[green]agrees[/green]" if o.good else "[red]differs[/red]"
            table.add_row(
                o.op, str(report.examples), str(report.elements), f"{report.worst_ulp:.2f}", gradient, verdict
            )
        _print(table)
        for o in outcomes:
            for text in (o.report.failure, o.gradient if o.gradient not in ("agrees", "-") else ""):
                if text:
                    print(text)
        print(f"{sum(o.good for o in outcomes)} of {len(outcomes)} ops agree with their reference ({implementation})")
    if not all(o.good for o in outcomes):
        sys.exit(1)


def _load(out: Path, names: list[str] | None) -> list:
    """The generated ops of these names, or all."""
    from codegen.errors import known
    from codegen.runtime.compile import load_package

    if not (out / "__init__.py").is_file():
        raise UsageError(f"no ops in {out}: run `codegen build`, or name their package with --package")
    package = load_package(out)
    for name in names or []:
        if name not in package.__all__:
            raise UsageError(f"no op {name!r} in {out}. {known(name, package.__all__, 'There are')}")
    return [getattr(package, name) for name in names or package.__all__]


def _kernels(out: Path, names: list[str] | None) -> list:
    """The kernels of the ops of these names, or of all."""
    from codegen.runtime.compile import kernels_named, load_package

    try:
        return (
            kernels_named(load_package(out), names or []) if names else [k for o in _load(out, None) for k in o.kernels]
        )
    except (KeyError, ImportError):
        return _load(out, names)  # says which


def _shape(spec: Spec, text: str) -> dict[str, int]:
    """`...=8192,N=4096`."""
    from codegen.errors import Mistake
    from codegen.sizes import parse_shape

    try:
        return parse_shape(spec, text)
    except Mistake as error:
        raise UsageError(f"{error.message}\n  {error.hint}") from None


def _types(text: str) -> dict[str, str]:
    """`T=bfloat16,S=float32`."""
    pairs = [pair.partition("=") for pair in text.split(",") if text]
    for name, equals, dtype in pairs:
        if not (name.strip() and equals and dtype.strip()):
            raise UsageError(f"cannot read --types {text!r}: write it as in T=bfloat16")
    return {name.strip(): dtype.strip() for name, _, dtype in pairs}


def _check_wanted(ops: list, wanted: dict[str, str], found: bool) -> None:
    """Every type variable asked for is one of an op's, and some op takes what is asked for."""
    variables = {name for op in ops for name, _ in op.spec.types}
    if not found or not wanted.keys() <= variables:
        words = ",".join(f"{name}={dtype}" for name, dtype in wanted.items())
        raise UsageError(f"no op named here has a kernel with {words}")


def _architectures(text: str) -> list[str]:
    from codegen.runtime.compile import architectures

    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in architectures():
            raise UsageError(f"no architecture {name!r}; there are {', '.join(architectures())}")
    return list(dict.fromkeys(names))


def _print(*things) -> None:
    """To the terminal's width; into a pipe or a file as wide as it gets."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console = Console(width=200)
    console.print(*things)


def _progress(items, total: int, words: str):
    """The items, with a bar on stderr where that is a terminal."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return track(items, words, total=total, console=console, transient=True, disable=not console.is_terminal)


@app.command()
def bench(
    names: Names = None,
    suite: Annotated[str, typer.Option("--suite", help="Only ops of this kind, as in elementwise.")] = "",
    shapes: Annotated[
        list[str] | None, typer.Option("--shape", help='Instead of the specs\' own, as in "N=8191"; may be repeated.')
    ] = None,
    types: TypesWanted = "",
    out: Annotated[Path, typer.Option("--out", help="Where the results go.")] = Path("benchmarks"),
    name: Annotated[str, typer.Option("--name", help="The results' name: NAME.json, NAME.md and NAME.png.")] = "",
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="Groups of calls; a time is their median.")] = 5,
    package: OutRead = OUT,
    as_json: AsJson = False,
) -> None:
    """Time ops on this machine's GPU against XLA and a copy of as many bytes, as a table, JSON and a plot.

    Without names: every op whose spec has `bench` shapes. An axis that --shape leaves out has its extent of the first of
    them. Types are bfloat16 where an op takes it.

    \b
    Example: codegen bench
    Example: codegen bench bias_relu --shape N=8191 --shape "...=1,N=8192" --shape N=3 --name awkward
    Example: codegen bench swiglu --types T=float32 --out /tmp/results
    """
    from codegen.runtime import bench as timing
    from codegen.sizes import bench_shapes, default_shape

    ops, wanted = _load(package, names), _types(types)
    kinds = sorted({op.plan.kind for op in ops})
    if suite and suite not in kinds:
        raise UsageError(f"--suite {suite!r}: the ops are of the kinds {', '.join(kinds)}")
    ops = [op for op in ops if (names or op.spec.bench) and (not suite or op.plan.kind == suite)]
    bindings = {op.spec.op: timing.typical(op.spec, wanted) for op in ops}
    _check_wanted(ops, wanted, any(bindings.values()))
    tasks = [
        (op, binding, shape)
        for op in ops
        if (binding := bindings[op.spec.op]) is not None
        for shape in ([_shape(op.spec, s) for s in shapes or []] or bench_shapes(op.spec) or [default_shape(op.spec)])
    ]
    if not tasks:
        raise UsageError("no op has a `bench` shape: name an op, or add one to its spec")
    if not timing.on_gpu():
        raise UsageError(
            "JAX has no NVIDIA GPU here, and only times on one mean anything; "
            "`codegen explain` shows what memory's speed allows"
        )
    progress = _progress(tasks, len(tasks), "measuring")
    measured = [timing.bench_or_fail(op, binding, shape, repeat) for op, binding, shape in progress]
    where = timing.machine()
    title = name or suite or ("-".join(names) if names else "-".join(kinds))
    command = shlex.join(["codegen", *sys.argv[1:]])
    for path in timing.write(measured, where, out, title, command):
        print(f"wrote {path}", file=sys.stderr)
    if as_json:
        print(json.dumps(timing.as_json(measured, where), indent=2))
    else:
        _print(timing.as_table(measured))
    if any(m.error for m in measured):
        sys.exit(1)


def _folders(
    ops: list[Op], specs: Path, out: Path, tests: Path, also: Iterable[str] = ()
) -> dict[Path, dict[str, str]]:
    """What a build writes, by folder."""
    from codegen.build import generated_files, test_files

    package = _package(out)
    folders = {out: generated_files(ops, package, specs.resolve().name, also)}
    if _word(tests):
        if tests.resolve() == out.resolve():
            raise UsageError(f"--out and --tests are both {tests}; they are two folders")
        folders[tests] = test_files(ops, package)
    return folders


def _word(path: Path) -> str:
    """A folder as it stands on the command line; Path() is the empty word."""
    return "" if path == Path() else str(path)


def _package(out: Path) -> str:
    """The import name of the package written: its folder's name, with its parents where those are packages."""
    parts = [out.name]
    parent = out.resolve().parent
    while (parent / "__init__.py").exists():
        parts.insert(0, parent.name)
        parent = parent.parent
    name = ".".join(parts)
    if not all(part.isidentifier() and not keyword.iskeyword(part) for part in parts):
        raise UsageError(f"--out {out}: {name!r} is no name for a package")
    return name


def _no_repeats(paths: list[Path]) -> None:
    for path in paths:
        same = [str(other) for other in paths if other.stem == path.stem]
        if len(same) > 1:
            raise UsageError(f"two specs of one name: {', '.join(same)}")


if __name__ == "__main__":
    main()
