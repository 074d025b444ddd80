"""The commands that read specs and write files: `new`, `build`, `check`, `list` and `schema`. They load neither JAX nor
CuTe DSL.
"""

from __future__ import annotations

import json
import keyword
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from codegen.errors import named, printable
from codegen.options import OUT, SPECS, AsJson, Out, Specs, TestsOut, UsageError

if TYPE_CHECKING:
    from codegen.pipeline import Op


def new(op: Annotated[str, typer.Argument(help="snake_case name of the op.")], specs: Specs = SPECS) -> None:
    """Write a commented starter spec, specs/OP.yaml.

    Example: codegen new my_bias_relu
    """
    from codegen.names import op_name_mistake
    from codegen.outputs import put
    from codegen.scaffold import starter

    mistake = op_name_mistake(op)
    if mistake:
        raise UsageError(f"{mistake.message}\n  {mistake.hint}")
    path = specs / f"{op}.yaml"
    if path.exists():
        raise UsageError(f"{named(path)} exists already; pick another name or edit it")
    specs.mkdir(parents=True, exist_ok=True)
    put(path, starter(op).encode())
    print(f"wrote {named(path)}; next: {_build_command(specs)}")


def build(
    files: Annotated[list[Path] | None, typer.Argument(metavar="[SPEC]...", help="Spec files; all of --specs.")] = None,
    specs: Specs = SPECS,
    out: Out = OUT,
    tests: TestsOut = None,
) -> None:
    """Turn specs into kernels, JAX functions and tests: all of them, or nothing.

    Naming spec files rebuilds only their ops, and removes nothing. Files whose bytes agree are not touched, nor are files
    that no build wrote.

    \b
    Example: codegen build
    Example: codegen build specs/bias_relu.yaml
    Example: codegen build --specs my/specs --out my_package/ops
    """
    from codegen import outputs, placing
    from codegen.build import find_specs, read_ops

    paths = sorted({path.resolve(): path for path in files}.values()) if files else find_specs(specs)
    _no_repeats(paths)
    ops, package = read_ops(paths), _package(out)
    _print_notices(ops)
    with placing.locked(_folders([], specs, out, tests)) as held:
        folders = _folders(ops, specs, out, tests, also=outputs.modules(out) if files else [])
        found = {folder: outputs.compare(folder, contents, package) for folder, contents in folders.items()}
        for path in (d.path for differences in found.values() for d in differences if d.in_the_way):
            message = f"{named(path)} was not generated for this package and would be overwritten"
            raise UsageError(f"{message}; {_way_out(outputs.tested_package(path))}")
        changed = outputs.write(found, held, remove=not files)
    total, removed = sum(len(contents) for contents in folders.values()), sum(not path.exists() for path in changed)
    print(
        f"{len(ops)} ops: {len(changed) - removed} of {total} files changed{f', {removed} removed' if removed else ''}"
    )
    for path in changed[:20]:
        print(f"  {named(path)}")


def check(specs: Specs = SPECS, out: Out = OUT, tests: TestsOut = None) -> None:
    """Say whether the generated files are what a build would write: exit 1 with the difference if not.

    Example: codegen check
    """
    from codegen import outputs, placing
    from codegen.build import find_specs, read_ops

    ops, package = read_ops(find_specs(specs)), _package(out)
    _print_notices(ops)
    folders = _folders(ops, specs, out, tests)
    placing.settle(folders)
    differences = [d for folder, contents in folders.items() for d in outputs.compare(folder, contents, package)]
    for difference in differences:
        print(f"{named(difference.path)}: {difference.state}")
        print(difference.diff, end="")
    if differences:
        total = sum(map(len, folders.values()))
        print(f"{len(differences)} of {total} files differ. Run: {_build_command(specs, out, tests)}")
        sys.exit(1)
    print(f"{len(ops)} ops are up to date")


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


def schema() -> None:
    """Print the JSON Schema of a spec, for editors.

    Example: codegen schema > spec.schema.json
    """
    from codegen.scaffold import json_schema

    print(json.dumps(json_schema(), indent=2))


def _print_notices(ops: Iterable[Op]) -> None:
    for op in ops:
        for notice in op.notices:
            print(notice, file=sys.stderr)


def _folders(
    ops: list[Op], specs: Path, out: Path, tests: Path | None, also: Iterable[str] = ()
) -> dict[Path, dict[str, str]]:
    """What a build writes, by folder."""
    from codegen.build import generated_files, test_files

    package = _package(out)
    tests = _tests_of(out) if tests is None else tests
    folders = {out: generated_files(ops, package, specs.resolve().name, also)}
    if _word(tests):
        if tests.resolve() == out.resolve():
            raise UsageError(f"--out and --tests are both {named(tests)}; they are two folders")
        folders[tests] = test_files(ops, package)
    return folders


def _tests_of(out: Path) -> Path:
    """Where a package's tests go unless the command says: tests/NAME, next to the package."""
    return out.parent / "tests" / out.name


def _way_out(other: str | None) -> str:
    """What to do about a file in the way: a test of another package, or a file that no build wrote."""
    if other is None:
        return "move it, or choose another folder"
    return f"it tests the package {other}: choose another folder with --tests ('' writes no tests)"


def _build_command(specs: Path, out: Path = OUT, tests: Path | None = None) -> str:
    """The command that builds these folders."""
    usual = _tests_of(out)
    options = (("--specs", specs, SPECS), ("--out", out, OUT), ("--tests", usual if tests is None else tests, usual))
    words = [word for name, path, default in options if path != default for word in (name, _word(path))]
    return printable(shlex.join(["codegen", "build", *words]))


def refuse_stale(names: Iterable[str], package: Path, specs: Path) -> None:
    """Raises `UsageError` where a package's ops, those that have a module, are not what their specs make."""
    from codegen.build import stale_modules

    stale = stale_modules([name for name in names if (package / f"{name}.py").is_file()], package, specs)
    if stale:
        first, rest = named(stale[0]), len(stale) - 1
        which = f"{first} is" if not rest else f"{first} and {rest} other module{'s' * (rest > 1)} of it are"
        raise UsageError(
            f"{which} not what the spec makes: one of them was changed since the build, or codegen was\n"
            f"  Run: {_build_command(specs, package)} (or name the folder of their specs with --specs)"
        )


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
        raise UsageError(f"--out {named(out)}: {name!r} is no name for a package")
    return name


def _no_repeats(paths: list[Path]) -> None:
    for path in paths:
        same = [named(other) for other in paths if other.stem == path.stem]
        if len(same) > 1:
            raise UsageError(f"two specs of one name: {', '.join(same)}")
