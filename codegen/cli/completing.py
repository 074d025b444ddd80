"""Shell completion of op names. It loads no JAX and reads no spec.

Where it returns nothing, the shell completes files, as it does for spec files and folders.
"""

from __future__ import annotations

from pathlib import Path

import typer

from codegen.cli.project import Project, find_project
from codegen.errors import SpecError


def built_ops(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of ops in the package, or of ops with a spec where nothing is built yet."""
    project = _project(ctx)
    return _starting(incomplete, _modules(project.package) or _specs(project.specs))


def specified_ops(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of ops with a spec, or of ops in the package where there are no specs."""
    project = _project(ctx)
    return _starting(incomplete, _specs(project.specs) or _modules(project.package))


def _project(ctx: typer.Context) -> Project:
    """The project, with the folders that earlier words of the command line name. An unreadable project counts as none: the
    command itself reports its error."""
    try:
        found = find_project()
    except SpecError:
        found = Project()
    named = {key: Path(value) for key in ("specs", "package") if (value := ctx.params.get(key))}
    return found.at(**named)


def _modules(package: Path) -> list[str]:
    from codegen.cli.files.outputs import modules

    return list(modules(package))


def _specs(specs: Path) -> list[str]:
    return [path.stem for path in specs.glob("*.yaml")]


def _starting(incomplete: str, names: list[str]) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete))
