"""What a build writes: file contents in memory, compared with a folder, and put there all or nothing."""

from __future__ import annotations

import difflib
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from codegen.cli.placing import Change, Locked, is_generated, is_ours, naming
from codegen.errors import named


@dataclass(frozen=True)
class Difference:
    """A file of a folder that is not as a build would leave it: stale (or edited), missing, left over, or in its way."""

    path: Path
    state: str
    text: str | None  # what a build would write; None where it would remove the file
    in_the_way: bool = False  # no build of the package made this file: a build does not replace it

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
    """How a folder differs from the files a build makes of a package and its tests."""
    found = []
    for name, text in sorted(files.items()):
        path = folder / name
        if path.is_file() and path.read_bytes() == text.encode():
            continue
        if not os.path.lexists(path):
            found.append(Difference(path, "missing", text))
        elif not is_ours(path):
            state = "not generated, in the way of a build: move it elsewhere first"
            found.append(Difference(path, state, text, in_the_way=True))
        elif _is_of_another(path, package):
            state = f"it tests the package {tested_package(path)}: choose another folder with --tests"
            found.append(Difference(path, state, text, in_the_way=True))
        else:
            found.append(Difference(path, "stale or edited by hand", text))
    found += [Difference(path, "left over: no spec makes it", None) for path in leftovers(folder, files, package)]
    return found


def modules(folder: Path) -> dict[str, str]:
    """The first lines of the generated modules of a folder, by their names."""
    found = [path for path in sorted(folder.glob("*.py")) if is_generated(path) and path.stem != "__init__"]
    return {path.stem: path.read_text(errors="replace").partition("\n")[0] for path in found}


def leftovers(folder: Path, files: Mapping[str, str], package: str) -> list[Path]:
    """Generated files in a folder that a build does not make, nor one of another package."""
    extra = [p for p in sorted(folder.glob("*.py*")) if p.suffix in (".py", ".pyi") and p.name not in files]
    return [p for p in extra if is_ours(p) and not _is_of_another(p, package)]


def tested_package(path: Path) -> str | None:
    """The package whose op a generated file tests; None where it is no such file."""
    op = path.stem.removeprefix("test_")
    if op == path.stem or not is_generated(path):
        return None
    found = re.search(rf"^from (\S+) import {re.escape(op)}$", path.read_text(errors="replace"), re.MULTILINE)
    return found[1] if found else None


def _is_of_another(path: Path, package: str) -> bool:
    """Whether a generated file tests an op of another package: two may have their tests in one folder."""
    return tested_package(path) not in (None, package)


def write(found: Mapping[Path, Sequence[Difference]], held: Locked, remove: bool = True) -> list[Path]:
    """Put every folder's files in place, or none; a file that agrees is not touched. `remove` deletes leftovers. Returns
    what changed. Raises OSError."""
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
    """One file, all of it or nothing, at what a link refers to; a device or a pipe is written to as it is. Raises OSError."""
    path = path.resolve()
    with naming(path):
        if path.exists() and not path.is_file():
            path.write_bytes(data)
            return
        handle, name = tempfile.mkstemp(".part", path.name, path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(name, 0o666 & ~mask)  # as open() makes it; mkstemp's is private
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
