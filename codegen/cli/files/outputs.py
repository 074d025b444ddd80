"""The files that a build writes: compared with a folder, and written all or nothing."""

from __future__ import annotations

import difflib
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from codegen.cli.files.placing import Change, Locked, is_generated, is_ours, naming
from codegen.errors import named


@dataclass(frozen=True)
class Difference:
    """A file that differs from what a build would write: stale (or edited), missing, left over, or in the way."""

    path: Path
    state: str
    text: str | None  # what a build would write; None where it would remove the file
    in_the_way: bool = False  # no build of the package wrote this file, so a build does not replace it

    @property
    def diff(self) -> str:
        """How the file differs from the text; "" where one of them is missing."""
        if self.text is None or not self.path.is_file():
            return ""
        rows = self.path.read_bytes().decode(errors="replace").replace("\r", "\\r").splitlines(True)
        names = f"{named(self.path)} (on disk)", f"{named(self.path)} (as generated)"
        lines = difflib.unified_diff(rows, self.text.splitlines(True), *names)
        return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def compare(folder: Path, files: Mapping[str, str], package: str) -> list[Difference]:
    """How a folder differs from the `files` that a build of the package writes there."""
    found = []
    for name, text in sorted(files.items()):
        path = folder / name
        if path.is_file() and path.read_bytes() == text.encode():
            continue
        if not os.path.lexists(path):
            found.append(Difference(path, "missing", text))
        elif not is_ours(path):
            state = "not generated, and in the way of a build: move it elsewhere first"
            found.append(Difference(path, state, text, in_the_way=True))
        elif _is_of_another(path, package):
            state = f"it tests the package {tested_package(path)}: choose another folder with --tests"
            found.append(Difference(path, state, text, in_the_way=True))
        else:
            found.append(Difference(path, "stale or edited by hand", text))
    found += [Difference(path, "left over: no spec makes it", None) for path in leftovers(folder, files, package)]
    return found


def modules(folder: Path) -> dict[str, str]:
    """The first two lines of each generated module of a folder, by the module's name."""
    found = [path for path in sorted(folder.glob("*.py")) if is_generated(path) and path.stem != "__init__"]
    return {path.stem: "\n".join(path.read_text(errors="replace").split("\n")[:2]) for path in found}


def leftovers(folder: Path, files: Mapping[str, str], package: str) -> list[Path]:
    """Generated files in a folder that neither this build nor a build of another package writes."""
    extra = [p for p in sorted(folder.glob("*.py*")) if p.suffix in (".py", ".pyi") and p.name not in files]
    return [p for p in extra if is_ours(p) and not _is_of_another(p, package)]


def tested_package(path: Path) -> str | None:
    """The package whose op a generated file tests; None for any other file."""
    op = path.stem.removeprefix("test_")
    if op == path.stem or not is_generated(path):
        return None
    found = re.search(rf"^from (\S+) import {re.escape(op)}$", path.read_text(errors="replace"), re.MULTILINE)
    return found[1] if found else None


def _is_of_another(path: Path, package: str) -> bool:
    """Whether a generated file tests an op of another package: two packages may share a folder of tests."""
    return tested_package(path) not in (None, package)


def write(found: Mapping[Path, Sequence[Difference]], held: Locked, remove: bool = True) -> list[Path]:
    """Put every folder's files in place, or none. A file that is up to date is not touched. `remove` deletes leftovers. Returns
    the files that changed. Raises OSError."""
    changes = [
        Change(
            folder,
            {d.path.name: d.text.encode() for d in differences if d.text is not None},
            [d.path.name for d in differences if d.text is None and remove],
        )
        for folder, differences in found.items()
    ]
    held.place(changes)
    return [change.folder / name for change in changes for name in (*change.written, *change.removed)]


def put(path: Path, data: bytes) -> None:
    """Write one file completely or not at all. A link is followed; a device or a pipe is written to directly. Raises OSError."""
    with naming(path):
        path = path.resolve()
        if path.exists() and not path.is_file():
            path.write_bytes(data)
            return
        handle, name = tempfile.mkstemp(".part", path.name, path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(name, 0o666 & ~mask)  # the mode that open() gives a file; mkstemp's is private
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
