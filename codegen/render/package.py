"""Makes the contents of every file of a build from a folder of specs."""

from __future__ import annotations

import ast
import functools
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from codegen.autodiff.backward import Derived, backward_of
from codegen.errors import Diagnostic, Span, SpecError, named
from codegen.language.notices import notices
from codegen.parsing import parse
from codegen.pipeline import read_op
from codegen.plan.op import Op
from codegen.render import environment, render_op
from codegen.render.workers import mapping

A = TypeVar("A")


@dataclass(frozen=True)
class Rendered:
    """The text that a build writes for one op, and the warnings about its spec."""

    op: str
    module: str
    differentiable: bool
    has_backward: bool
    notices: tuple[Diagnostic, ...]


def find_specs(folder: Path) -> list[Path]:
    """The spec files of a folder, by name. Raises `SpecError` if there are none."""
    if folder.is_file():
        hint = f"--specs takes the folder of specs: --specs {named(folder.parent)}"
        raise SpecError([Diagnostic(Span(str(folder)), "this is a file", hint)])
    found = sorted(path for path in folder.glob("*.yaml") if path.is_file() or not path.exists())
    if not found:
        message = "no spec (*.yaml) in this folder" if folder.is_dir() else "no such folder"
        hint = "name it NAME.yaml, not .yml" if any(folder.glob("*.yml")) else "`codegen new OP` writes a first one"
        raise SpecError([Diagnostic(Span(str(folder)), message, hint)])
    return found


def of_each(paths: list[Path], function: Callable[[Op], A]) -> list[A]:
    """Reads every spec, and gives the function's result for each op, in order. Several processes share the work where there
    are many specs, so function and results must be picklable. Raises the errors of all specs together."""
    with mapping(len(paths)) as mapped:
        results = list(mapped(functools.partial(_of_one, function), paths))
    diagnostics = [d for _, found in results for d in found]
    if diagnostics:
        raise SpecError(diagnostics)
    return [result for made, _ in results for result in made]


def _of_one(function: Callable[[Op], A], path: Path) -> tuple[list[A], list[Diagnostic]]:
    """The function's result for the op of a spec, or the errors of the spec."""
    try:
        return [function(read_op(path))], []
    except SpecError as error:
        return [], [*error.diagnostics]


def rendered(op: Op) -> Rendered:
    """An op's part of a build."""
    return Rendered(
        op=op.spec.op,
        module=render_op(op),
        differentiable=op.spec.grad != "none",
        has_backward=isinstance(backward_of(op), Derived),
        notices=tuple(notices(op.spec, op.statements)),
    )


def stale_modules(names: Iterable[str], package: Path, specs: Path) -> list[Path]:
    """The modules that a build would change: their spec, codegen or the module itself changed since the last build. If
    `specs` has no spec of an op, the one in its module counts. Raises `SpecError`, OSError."""
    modules = [package / f"{name}.py" for name in names]
    return [module for module in modules if not _is_fresh(module, specs / f"{module.stem}.yaml")]


def _is_fresh(module: Path, spec: Path) -> bool:
    written = module.read_bytes()
    if spec.is_file():
        return render_op(read_op(spec)).encode() == written
    try:
        return render_op(read_op(f"specs/{module.stem}.yaml", _spec(written.decode()))).encode() == written
    except (SpecError, SyntaxError, ValueError, TypeError, RecursionError):  # it was edited, and no build writes this
        return False


def _spec(module: str) -> dict[str, Any]:
    """The spec that a generated module contains as data; {} if it contains none. Raises the errors of `ast` if it is
    not data."""
    for statement in parse(module).body:
        match statement:
            case ast.Assign(targets=[ast.Name("SPEC")], value=ast.Dict() as value):
                found: dict[str, Any] = ast.literal_eval(value)
                return found
    return {}


def generated_files(
    ops: list[Rendered], package: str, specs: str, also: Mapping[str, str] = MappingProxyType({})
) -> dict[str, str]:
    """The package's files: one module for each op, and the package itself, which also lists the ops of `also`: existing
    modules, each with its first two lines."""
    files = {f"{op.op}.py": op.module for op in ops}
    heads = {**also, **{op.op: "\n".join(op.module.split("\n")[:2]) for op in ops}}
    specs = "".join(c if c.isprintable() else "?" for c in specs)
    template = environment().get_template("init.py.jinja")
    files["__init__.py"] = template.render(ops=sorted(heads), kinds=_by_kind(heads), package=package, specs=specs)
    return files


KINDS = {
    "elementwise": "Element-wise",
    "neighbours": "Element-wise",
    "row": "Reductions along rows",
    "column": "Reductions over rows",
    "gemm": "Contractions",
    "op": "Several kernels",
}


def _by_kind(heads: Mapping[str, str]) -> dict[str, list[str]]:
    """Lines of names of ops, by the kind of their kernel, which the template's name in a module's first two lines tells."""
    kinds = {name: re.search(r"templates/(\w+)\.py\.jinja", line) for name, line in sorted(heads.items())}
    titles = {name: KINDS.get(match[1], "") for name, match in kinds.items() if match}
    found = {
        title: ", ".join(name for name, own in titles.items() if own == title)
        for title in dict.fromkeys(KINDS.values())
    }
    return {title: textwrap.wrap(names, 76) for title, names in found.items() if names}


def test_files(ops: list[Rendered], package: str) -> dict[str, str]:
    """One module of property tests for each op."""
    template = environment().get_template("test.py.jinja")
    return {
        f"test_{op.op}.py": template.render(
            op=op.op,
            path=f"specs/{op.op}.yaml",
            package=package,
            differentiable=op.differentiable,
            backward=op.has_backward,
        )
        for op in ops
    }
