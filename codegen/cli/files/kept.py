"""Keeps on disk (`codegen.cache`) what a build makes of each spec: a repeated build renders only the specs that changed.

The key of an entry is everything that a spec's part of a build depends on: the spec's path and content, the measured launches next
to it, all files of this program, and the versions of Python and of the libraries for specs and templates. A spec with errors or
warnings is read each time. CODEGEN_BUILD_CACHE=0 renders every spec.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sys
from collections.abc import Iterator
from importlib import metadata
from importlib.resources.abc import Traversable
from pathlib import Path

import codegen
from codegen import cache, library
from codegen.render.package import Rendered, of_each, rendered
from codegen.tuning.file import FOLDER

_LIBRARIES = ("jinja2", "PyYAML")
_FILES = (".py", ".txt", ".jinja")


def rendered_specs(paths: list[Path]) -> list[Rendered]:
    """What a build makes of these specs, in order. Raises `SpecError` with the errors of all specs, and `UserError` for an invalid
    limit of the cache."""
    if os.environ.get("CODEGEN_BUILD_CACHE") == "0" or not cache.limit():
        return of_each(paths, rendered)
    before = _generator()
    keys = [_key(path, before) for path in paths]
    found = [_load(path, key) for path, key in zip(paths, keys, strict=True)]
    missing = [i for i, made in enumerate(found) if made is None]
    made = dict(zip(missing, of_each([paths[i] for i in missing], rendered), strict=True)) if missing else {}
    if made and _contents() == before:  # else a file of the program changed, and may have been imported before or after
        for i, result in made.items():
            if keys[i] and not result.notices and _key(paths[i], before) == keys[i]:
                _store(paths[i], keys[i], result)
    return [made[i] if kept is None else kept for i, kept in enumerate(found)]


def _load(path: Path, key: str) -> Rendered | None:
    parts = cache.load(_name(path), key) if key else None
    if parts is None or parts.keys() != {"facts", "module"}:
        return None
    op, differentiable, has_backward = json.loads(parts["facts"])
    return Rendered(op, parts["module"].decode(), differentiable, has_backward, ())


def _store(path: Path, key: str, made: Rendered) -> None:
    facts = json.dumps([made.op, made.differentiable, made.has_backward]).encode()
    cache.store(_name(path), key, {"facts": facts, "module": made.module.encode()})


def _name(path: Path) -> str:
    """The name of an entry, in the folder that also has compiled kernels."""
    return f"{path.name} (a build)"


def _key(path: Path, generator: str) -> str:
    """Everything that determines what a build makes of a spec; "" where a file cannot be read."""
    measured = sorted((path.parent / FOLDER).glob("*.yaml"))
    try:
        contents = [[str(file), hashlib.sha256(file.read_bytes()).hexdigest()] for file in (path, *measured)]
    except OSError:
        return ""
    return json.dumps([generator, contents])


@functools.cache
def _generator() -> str:
    """The program as it was when this process first built: it has imported that."""
    return _contents()


def _contents() -> str:
    """A hash of this program's files, with the versions of what it uses."""
    found = hashlib.sha256()
    for folder in (Path(codegen.__file__).parent, library.folder("templates")):
        for name, file in sorted(_files(folder, "")):
            found.update(f"{name}\0{hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    versions = [sys.version, *(f"{name} {metadata.version(name)}" for name in _LIBRARIES)]
    return json.dumps([found.hexdigest(), versions])


def _files(folder: Traversable, name: str) -> Iterator[tuple[str, Traversable]]:
    """The files of a folder of the program, and of those in it, by their names there."""
    for entry in folder.iterdir():
        if entry.name.endswith(_FILES):
            yield f"{name}/{entry.name}", entry
        elif entry.is_dir() and entry.name != "__pycache__":
            yield from _files(entry, f"{name}/{entry.name}")
