"""The commands that read specs and write files: `new`, `build`, `check`, `list` and `schema`. They load neither JAX nor
CuTe DSL, but for `new --from`.
"""

from __future__ import annotations

import contextlib
import json
import keyword
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from codegen.cli.completing import specified_ops
from codegen.cli.options import (
    AsJson,
    Kind,
    Like,
    OldPackage,
    Package,
    Specs,
    Tests,
    UsageError,
    check_kind,
    print_error,
    usage,
)
from codegen.cli.project import Project, find_project
from codegen.errors import SpecError, named, printable

if TYPE_CHECKING:
    from codegen.plan.op import Op
    from codegen.render.package import Rendered


def new(
    op: Annotated[str, typer.Argument(help="snake_case name of the op.")],
    specs: Specs = None,
    function: Annotated[
        str, typer.Option("--from", help="A JAX function, MODULE:FUNCTION, that the spec computes.", metavar="FUNCTION")
    ] = "",
    like: Like = None,
) -> None:
    """Write a commented starter spec, specs/OP.yaml, and next to it the JSON Schema that its first line names for editors.

    With --from, the spec computes what a JAX function does: the function is traced with arguments --like these, and the op's
    results are compared with its own. What the language lacks is an error at the function's line.

    \b
    Example: codegen new my_bias_relu
    Example: codegen new my_norm --from my_module:norm --like "x=bfloat16[8192,4096]" --like "weight=bfloat16[4096]"
    """
    from codegen.cli.files.outputs import put
    from codegen.cli.files.scaffold import starter
    from codegen.cli.schema import keep_schema
    from codegen.graph.names import op_name_error

    if like and not function:
        raise UsageError("--like gives the arguments of a function that --from names")
    error = op_name_error(op)
    if error:
        raise UsageError(f"{error.message}\n  {error.hint}")
    project = find_project().at(specs)
    path = project.specs / f"{op}.yaml"
    if path.exists():
        raise UsageError(f"{named(path)} exists already; pick another name or edit it")
    text = _traced(op, function, like or []) if function else starter(op)
    project.specs.mkdir(parents=True, exist_ok=True)
    put(path, text.encode())
    keep_schema(project.specs)
    print(f"wrote {named(path)}; next: {_build_command(project)}")


def _traced(op: str, function: str, like: list[str]) -> str:
    """The spec of a function. Raises `UsageError`, `SpecError`."""
    from codegen.cli.loading import arguments_like, load_function
    from codegen.cli.schema import SCHEMA_FILE

    found = load_function(function)
    arguments = arguments_like(found, like)
    from codegen.tracing.trace import trace

    with usage():
        text = trace(found, *arguments, op=op)
    return f"# yaml-language-server: $schema={SCHEMA_FILE}\n{text}"


def init(specs: Specs = None, package: Package = None, tests: Tests = None) -> None:
    """Make this folder a project: [tool.cutefuse] in its pyproject.toml, a first spec, and `codegen check` before commits.

    Existing files and settings stay.

    \b
    Example: codegen init
    Example: codegen init --package src/mine/ops
    """
    from codegen.cli.files import scaffold
    from codegen.cli.files.outputs import put
    from codegen.cli.schema import keep_schema

    files: dict[Path, str] = {}
    project = Project().at(specs, package, tests)
    root = project.package.parents[_import_name(project.package).count(".")]
    with usage():
        if scaffold.has_section(Path("pyproject.toml")):
            project = find_project().at(specs, package, tests)
        else:
            files[Path("pyproject.toml")] = scaffold.with_section(Path("pyproject.toml"), project, root)
        hooks = Path(".pre-commit-config.yaml")
        files[hooks] = scaffold.with_hook(hooks)
    if not any(project.specs.glob("*.yaml")):
        files[project.specs / f"{scaffold.FIRST}.yaml"] = scaffold.starter(scaffold.FIRST)
    project.specs.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            put(path, text.encode())
            print(f"wrote {named(path)}")
    keep_schema(project.specs)
    print("next: codegen build")


def build(
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="SPEC", help="Spec files; by default all of --specs.")
    ] = None,
    specs: Specs = None,
    package: Package = None,
    tests: Tests = None,
    watch: Annotated[bool, typer.Option("--watch", help="Build again whenever a spec is saved, until Ctrl-C.")] = False,
    out: OldPackage = None,
) -> None:
    """Turn specs into kernels, JAX functions and tests: all of them, or nothing.

    With spec files, only their ops are rebuilt, and nothing is removed. Files that are up to date are not touched, nor are
    files that no build wrote.

    \b
    Example: codegen build
    Example: codegen build specs/bias_relu.yaml
    Example: codegen build --watch
    Example: codegen build --specs my/specs --package my_package/ops
    """
    project = find_project().at(specs, package or out, tests)
    if not watch:
        _build(files, project)
        return
    from codegen.cli.files.watch import saves

    def watched() -> Iterable[Path]:
        return files or sorted(project.specs.glob("*.yaml"))

    print(f"watching {named(project.specs)} (Ctrl-C ends)", file=sys.stderr)
    with contextlib.suppress(KeyboardInterrupt):
        for _ in saves(watched):
            try:
                _build(files, project)
            except (SpecError, UsageError, OSError) as error:
                print_error(error)
            sys.stdout.flush()


def _build(files: list[Path] | None, project: Project) -> None:
    """Build all specs of a project, or these files. Raises `SpecError`, `UsageError`, OSError."""
    from codegen.cli.files import outputs, placing
    from codegen.cli.files.kept import rendered_specs
    from codegen.cli.schema import keep_schema
    from codegen.render.package import find_specs

    paths = sorted({path.resolve(): path for path in files}.values()) if files else find_specs(project.specs)
    _no_repeats(paths)
    with usage():
        ops, name = rendered_specs(paths), _import_name(project.package)
    _print_notices(ops)
    with placing.locked(_folders([], project)) as held:
        folders = _folders(ops, project, also=outputs.modules(project.package) if files else {})
        found = {folder: outputs.compare(folder, contents, name) for folder, contents in folders.items()}
        for path in (d.path for differences in found.values() for d in differences if d.in_the_way):
            message = f"{named(path)} was not generated for this package and would be overwritten"
            raise UsageError(f"{message}; {_way_out(outputs.tested_package(path))}")
        changed = outputs.write(found, held, remove=not files)
    keep_schema(project.specs, only_where_there=True)
    total, removed = sum(len(contents) for contents in folders.values()), sum(not path.exists() for path in changed)
    print(f"{_counted(ops)}: {len(changed) - removed} of {total} files changed{f', {removed} removed' * bool(removed)}")
    for path in changed[:20]:
        print(f"  {named(path)}")


def check(specs: Specs = None, package: Package = None, tests: Tests = None, out: OldPackage = None) -> None:
    """Check that the generated files are up to date; print the difference and exit with status 1 if not.

    Example: codegen check
    """
    from codegen.cli.files import outputs, placing
    from codegen.cli.files.kept import rendered_specs
    from codegen.render.package import find_specs

    project = find_project().at(specs, package or out, tests)
    with usage():
        ops, name = rendered_specs(find_specs(project.specs)), _import_name(project.package)
    _print_notices(ops)
    folders = _folders(ops, project)
    placing.settle(folders)
    differences = [d for folder, contents in folders.items() for d in outputs.compare(folder, contents, name)]
    for difference in differences:
        print(f"{named(difference.path)}: {difference.state}")
        print(difference.diff, end="")
    if differences:
        total = sum(map(len, folders.values()))
        print(f"{len(differences)} of {total} files differ. Run: {_build_command(project)}")
        sys.exit(1)
    print(f"{_counted(ops)} {'is' if len(ops) == 1 else 'are'} up to date")


def list_ops(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="WORD", help="Only ops with these words in name or summary.", autocompletion=specified_ops
        ),
    ] = None,
    kind: Kind = "",
    long: Annotated[bool, typer.Option("--long", "-l", help="Show types, arguments and results.")] = False,
    specs: Specs = None,
    as_json: AsJson = False,
) -> None:
    """List the ops, one line each: name, kind, summary.

    \b
    Example: codegen list
    Example: codegen list norm --kind row
    Example: codegen list rmsnorm --long
    Example: codegen list --json
    """
    from codegen.render.package import find_specs, of_each

    listed = of_each(find_specs(find_project().at(specs).specs), _listed)
    check_kind(kind, {row["kind"] for row in listed})
    rows = [row for row in listed if not kind or row["kind"] == kind]
    wanted = [word.lower() for word in words or []]
    rows = [row for row in rows if all(word in f"{row['op']} {row['summary']}".lower() for word in wanted)]
    if as_json:
        print(json.dumps(rows, indent=2))
    elif not rows:
        raise UsageError(f"no op has {' and '.join(map(repr, words or []))} in its name or summary")
    else:
        _print_ops(rows, long)


def _listed(op: Op) -> dict[str, Any]:
    """The entry of an op in --json."""
    spec = op.spec
    return {
        "op": spec.op,
        "kind": op.plan.kind,
        "types": {name: list(dtypes) for name, dtypes in spec.types},
        "inputs": {a.name: str(a) for a in spec.inputs},
        "outputs": {a.name: str(a) for a in spec.outputs},
        "params": {p.name: p.kind for p in spec.params},
        "summary": spec.summary,
    }


def _print_ops(rows: list[dict[str, Any]], long: bool) -> None:
    """Print one line per op, cut to the terminal's width, or one paragraph where `long`."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    longest, kinds = (max(len(row[key]) for row in rows) for key in ("op", "kind"))
    for row in rows:
        line = f"{row['op']:{longest}}  {row['kind']:{kinds}}  {row['summary']}"
        if not long:
            print(line if width is None or len(line) <= width else f"{line[: width - 1]}…")
            continue
        print(f"{row['op']}  {row['kind']}\n  {row['summary']}")
        for what in ("types", "inputs", "params", "outputs"):
            for name, form in row[what].items():
                print(f"  {what:8} {name}: {form if isinstance(form, str) else ', '.join(form)}")


def schema() -> None:
    """Print the JSON Schema of a spec, for editors.

    Example: codegen schema > spec.schema.json
    """
    from codegen.cli.schema import schema_text

    print(schema_text(), end="")


def _counted(ops: list[Rendered]) -> str:
    return f"{len(ops)} op{'s' * (len(ops) != 1)}"


def _print_notices(ops: Iterable[Rendered]) -> None:
    for op in ops:
        for notice in op.notices:
            print(notice, file=sys.stderr)


def _folders(
    ops: list[Rendered], project: Project, also: Mapping[str, str] = MappingProxyType({})
) -> dict[Path, dict[str, str]]:
    """The files that a build writes, by folder."""
    from codegen.render.package import generated_files, test_files

    name, tests = _import_name(project.package), project.tests
    folders = {project.package: generated_files(ops, name, project.specs.resolve().name, also)}
    if _word(tests):
        if tests.resolve() == project.package.resolve():
            raise UsageError(f"--package and --tests are both {named(tests)}; they must be two folders")
        folders[tests] = test_files(ops, name)
    return folders


def _way_out(other: str | None) -> str:
    """The hint for a file in the way: a test of another package, or a file that no build wrote."""
    if other is None:
        return "move it, or choose another folder"
    return f"it tests the package {other}: choose another folder with --tests ('' writes no tests)"


def _build_command(project: Project) -> str:
    """The command that builds a project's folders from here, with options for the folders that no pyproject.toml gives."""
    own = find_project()
    usual = own.at(package=project.package)
    options = (
        ("--specs", project.specs, own.specs),
        ("--package", project.package, own.package),
        ("--tests", project.tests, usual.tests),
    )
    words = [word for name, path, default in options if path != default for word in (name, _word(path))]
    return printable(shlex.join(["codegen", "build", *words]))


def refuse_stale(names: Iterable[str], project: Project) -> None:
    """Raises `UsageError` where the module of one of these ops differs from what a build of its spec would write."""
    from codegen.render.package import stale_modules

    package = project.package
    stale = stale_modules([name for name in names if (package / f"{name}.py").is_file()], package, project.specs)
    if stale:
        first, rest = named(stale[0]), len(stale) - 1
        which = f"{first} is" if not rest else f"{first} and {rest} other module{'s' * (rest > 1)} of it are"
        raise UsageError(
            f"{which} out of date: a file was changed since the build, or codegen was\n"
            f"  Run: {_build_command(project)} (or name the folder of their specs with --specs)"
        )


def _word(path: Path) -> str:
    """A folder as written on the command line; Path() is the empty word."""
    return "" if path == Path() else str(path)


def _import_name(package: Path) -> str:
    """The import name of the written package: its folder's name, after the names of its parents that are packages."""
    parts = [package.name]
    parent = package.resolve().parent
    while (parent / "__init__.py").exists():
        parts.insert(0, parent.name)
        parent = parent.parent
    name = ".".join(parts)
    if not all(part.isidentifier() and not keyword.iskeyword(part) for part in parts):
        raise UsageError(f"--package {named(package)}: {name!r} is not a valid package name")
    return name


def _no_repeats(paths: list[Path]) -> None:
    by_name: dict[str, list[str]] = {}
    for path in paths:
        by_name.setdefault(path.stem, []).append(named(path))
    for same in by_name.values():
        if len(same) > 1:
            raise UsageError(f"two specs have the same name: {', '.join(same)}")
