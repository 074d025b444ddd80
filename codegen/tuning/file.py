"""The files of measured launches: `tuning/ARCH.yaml` in a folder of specs, one for each architecture."""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from codegen import extras
from codegen.errors import Diagnostic, Span, SpecError, UserError
from codegen.plan.launches import Tuned
from codegen.targets import ARCHITECTURES
from codegen.tuning.entries import data_of, entry_of

with extras.needed("build"):
    import yaml

FOLDER, VERSION = "tuning", 1
HEAD = """\
# Written by `codegen tune`, read by `codegen build`: for each kernel what was fastest for calls of these types and sizes.
#   take: plan, the planned launch; launch, that with the changes below; xla, the jnp form
#   us, planned_us, xla_us, copy_us: microseconds of the fastest launch, of the planned one, of XLA, of a copy of as many bytes
"""

_PLAIN = re.compile(r"(?!(?i:yes|no|on|off|true|false|null)$)[A-Za-z_](?:[\w. -]*\w)?")

Found = Mapping[str, tuple[Tuned, ...]]  # by the op


def path_of(specs: Path, arch: str) -> Path:
    """The file of an architecture, for a folder of specs."""
    return specs / FOLDER / f"{arch}.yaml"


def tuned_beside(spec: Path) -> tuple[Tuned, ...]:
    """The measurements of a spec file's op. Raises `SpecError` if a file cannot be read."""
    found: list[Tuned] = []
    for path in sorted((spec.parent / FOLDER).glob("*.yaml")):
        status = path.stat()
        found += _read(path, status.st_mtime_ns, status.st_size).get(spec.stem, ())
    return tuple(found)


@functools.lru_cache(maxsize=64)
def _read(path: Path, changed: int, size: int) -> Found:
    del changed, size
    return read(path)


def read(path: Path) -> Found:
    """The measurements in a file. Raises `SpecError`."""

    def at(message: str, hint: str = "", line: int = 1) -> SpecError:
        return SpecError([Diagnostic(Span(str(path), line, 1), message, hint)])

    try:
        data = yaml.load(path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (OSError, UnicodeDecodeError) as error:
        raise at(f"cannot read the file: {error}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise at("not valid YAML", line=mark.line + 1 if mark else 1) from None
    if path.stem not in ARCHITECTURES:
        raise at(f"there is no architecture {path.stem!r}", "the file's name is that of one, as in sm_90a.yaml")
    if not isinstance(data, dict) or data.get("version") != VERSION or not isinstance(data.get("ops"), dict):
        hint = "`codegen tune` writes it: move this file, and run that again"
        raise at(f"not a file of measured launches in version {VERSION}", hint)
    found = {}
    for op, entries in data["ops"].items():
        try:
            if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
                raise UserError("a list of measurements", "")
            found[str(op)] = tuple(entry_of(entry | {"arch": path.stem}) for entry in entries)
        except UserError as error:
            raise at(f"{op}: {error.message}", error.hint) from None
    return found


def text_of(found: Found) -> str:
    """The text of a file: a line for each key of a measurement, so that a change of one is a change of few lines."""
    lines = [HEAD + f"version: {VERSION}", "ops:" if any(found.values()) else "ops: {}"]
    for op in sorted(found):
        lines += [f"  {_flow(op)}:"] if found[op] else []
        for tuned in sorted(found[op], key=lambda t: (t.kernel, t.types, str(t.sizes))):
            pairs = [(key, value) for key, value in data_of(tuned).items() if key != "arch"]
            lines += [f"{'    - ' if not i else '      '}{key}: {_flow(value)}" for i, (key, value) in enumerate(pairs)]
    return "\n".join(lines) + "\n"


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_flow(key)}: {_flow(item)}' for key, item in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_flow, value))}]"
    return json.dumps(value) if not isinstance(value, str) or not _PLAIN.fullmatch(value) else value


def write(path: Path, found: Found) -> None:
    """Writes a file, or leaves the old one. Raises OSError."""
    path.parent.mkdir(exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(text_of(found), encoding="utf-8")
    os.replace(part, path)


def merged(old: Found, new: Iterable[tuple[str, Tuned]]) -> dict[str, tuple[Tuned, ...]]:
    """The measurements of a file, with new ones in place of those for the same calls."""
    found = {op: {_place(t): t for t in entries} for op, entries in old.items()}
    for op, tuned in new:
        found.setdefault(op, {})[_place(tuned)] = tuned
    return {op: tuple(entries.values()) for op, entries in found.items()}


def _place(tuned: Tuned) -> tuple[Any, ...]:
    return tuned.kernel, tuned.arch, tuned.types, tuned.sizes
