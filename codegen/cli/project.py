"""A project's folders of specs, generated ops and tests: from the command line, else from the section `[tool.cutefuse]` of
a pyproject.toml, else the defaults."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codegen.errors import Diagnostic, Span, SpecError, UserError, known, shown
from codegen.targets import ARCHITECTURES

SECTION = "[tool.cutefuse]"
KEYS = ("specs", "package", "tests", "arch")
SPECS, PACKAGE = Path("specs"), Path("generated")  # the default folders


@dataclass(frozen=True)
class Project:
    """The folders of a project, as seen from the current one, and the architectures that its kernels are for."""

    specs: Path = SPECS
    package: Path = PACKAGE
    tests_folder: Path | None = None  # Path(): no tests are written
    arch: tuple[str, ...] = ()

    @property
    def tests(self) -> Path:
        """The folder of the package's tests: tests/NAME next to the package, unless the project names another."""
        beside = self.package.parent / "tests" / self.package.name
        return beside if self.tests_folder is None else self.tests_folder

    def at(self, specs: Path | None = None, package: Path | None = None, tests: Path | None = None) -> Project:
        """The same with the folders that a command line names. The tests of another package are next to it."""
        own = package is None or package.resolve() == self.package.resolve()
        return Project(
            specs=self.specs if specs is None else specs,
            package=self.package if package is None else package,
            tests_folder=tests if tests is not None else self.tests_folder if own else None,
            arch=self.arch,
        )


def find_project(start: Path | None = None) -> Project:
    """The project of a folder, by default the current one: the nearest pyproject.toml in it or above it with a section
    `[tool.cutefuse]`. Raises `SpecError` where the file cannot be read or has an invalid section."""
    here = Path.cwd() if start is None else start.resolve()
    for folder in (here, *here.parents):
        path = folder / "pyproject.toml"
        text = _text(path) if path.is_file() else ""
        section = _section(path, text) if "cutefuse" in text else None
        if section is not None:
            return _project(path, text, section)
    return Project()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not valid UTF-8 text"
        raise SpecError([Diagnostic(Span(_shown(path)), f"cannot read the file: {reason}")]) from None


def _section(path: Path, text: str) -> Any:
    """The section's value; None where the file has none."""
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"at line (\d+), column (\d+)", str(error))
        line, column = map(int, place.groups()) if place else (1, 1)
        message = str(error).partition(" (at")[0]
        raise SpecError([Diagnostic(Span(_shown(path), line, column), f"not valid TOML: {message}")]) from None
    tool = found.get("tool")
    return tool.get("cutefuse") if isinstance(tool, dict) else None


def _project(path: Path, text: str, section: Any) -> Project:
    if not isinstance(section, dict):
        raise _error(path, text, "cutefuse", f"{SECTION} must be a table", 'such as specs = "specs"')
    for key in section:
        if key not in KEYS:
            raise _error(path, text, key, f"unknown key {shown(key)} in {SECTION}", known(key, KEYS))
    folders = {key: _folder(path, text, key, section[key]) for key in ("specs", "package", "tests") if key in section}
    return Project(
        folders.get("specs", _seen(path.parent / SPECS)),
        folders.get("package", _seen(path.parent / PACKAGE)),
        folders.get("tests"),
        _architectures(path, text, section),
    )


def _folder(path: Path, text: str, key: str, value: object) -> Path:
    if key == "tests" and value == "":
        return Path()
    if not isinstance(value, str) or not value:
        why = 'relative to this file; tests = "" writes none' if key == "tests" else "relative to this file"
        raise _error(path, text, key, f"{key} must be the path of a folder", why)
    return _seen(path.parent / value)


def _architectures(path: Path, text: str, section: Mapping[str, Any]) -> tuple[str, ...]:
    value = section.get("arch", [])
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise _error(path, text, "arch", "arch must be a list of architectures", 'such as arch = ["sm_90a"]')
    try:
        return checked_architectures(names)
    except UserError as error:
        raise _error(path, text, "arch", error.message, error.hint) from None


def checked_architectures(names: list[str]) -> tuple[str, ...]:
    """Architectures by name, without repeats. Raises `UserError` for an unknown name."""
    names = [name.strip() for name in names]
    for name in names:
        if name not in ARCHITECTURES:
            raise UserError(f"no architecture {shown(name)}", known(name, ARCHITECTURES, "there are"))
    return tuple(dict.fromkeys(names))


def _seen(path: Path) -> Path:
    """A path relative to the current folder."""
    return Path(os.path.relpath(path))


def _shown(path: Path) -> str:
    return str(_seen(path))


def _error(path: Path, text: str, key: str, message: str, hint: str = "") -> SpecError:
    """An error at the section's line with the key, or at the section."""
    lines = text.splitlines()
    first = next((i for i, line in enumerate(lines) if line.strip().startswith(SECTION)), 0)
    found = re.compile(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=") if key else None
    at = next((i for i in range(first, len(lines)) if found and found.match(lines[i])), first)
    source = lines[at] if lines else ""
    column = len(source) - len(source.lstrip()) + 1
    return SpecError([Diagnostic(Span(_shown(path), at + 1, column, len(key) or 1), message, hint, source)])
