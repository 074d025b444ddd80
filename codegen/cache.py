"""Compiled kernels on disk: one file an entry, so that a second process compiles nothing.

Any number of processes may use the folder at once: an entry is written under another name and then renamed. It holds a
checksum, and one that is truncated, damaged or unreadable is as good as none. `load` and `store` never raise because of
the disk.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codegen.errors import Mistake, shown

LIMIT = "1G"  # what entries may take together, unless CODEGEN_CACHE_LIMIT says otherwise
_MAGIC = b"cutefuse kernel\n"
_SUFFIX, _UNFINISHED = ".kernel", ".part"
_ABANDONED = 3600  # seconds after which nobody is still writing an unfinished entry
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}


@dataclass(frozen=True)
class Entry:
    """A file of the cache. `used` is when it was last read or written, in seconds since 1970."""

    path: Path
    size: int
    used: float

    @property
    def kernel(self) -> str:
        """The name it was kept under."""
        return self.path.name.rpartition("-")[0]


def location() -> Path | None:
    """CODEGEN_CACHE_DIR, else `cutefuse` in XDG_CACHE_HOME, else in ~/.cache; None where there is no home either."""
    if named := os.environ.get("CODEGEN_CACHE_DIR"):
        return Path(named).absolute()
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):  # the XDG specification ignores a relative one
        return Path(base) / "cutefuse"
    home = os.path.expanduser("~")
    return Path(home) / ".cache" / "cutefuse" if os.path.isabs(home) else None


def limit() -> int:
    """The bytes that entries may take: CODEGEN_CACHE_LIMIT, as in 512M; 0 keeps nothing. Raises `Mistake`."""
    text = os.environ.get("CODEGEN_CACHE_LIMIT") or LIMIT
    found = re.fullmatch(r"(\d{1,15})([KMG]?)B?", text.strip().upper())
    if not found:
        raise Mistake(
            f"CODEGEN_CACHE_LIMIT is {shown(text)}", "it is a number of bytes, as in 512M or 2G; 0 keeps none"
        )
    return int(found[1]) * _UNITS[found[2]]


def load(kernel: str, key: str) -> dict[str, bytes] | None:
    """What was stored under this name and key, if it is there and sound. `key` is text of any length."""
    folder = location()
    if folder is None:
        return None
    path = folder / _file(kernel, key)
    try:
        parts = _unpack(path.read_bytes(), key)
    except OSError:
        return None
    with contextlib.suppress(OSError):
        if parts is None:
            path.unlink()
        else:
            os.utime(path)  # used last
    return parts


def store(kernel: str, key: str, parts: Mapping[str, bytes]) -> None:
    """Keep `parts` under this name and key, and let go of what was not used for longest where there is too much."""
    folder, most = location(), limit()
    if folder is None or not most:
        return
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # what lies there is run: it is nobody else's to write
        handle, name = tempfile.mkstemp(_UNFINISHED, dir=folder)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_pack(parts, key))
            os.replace(name, folder / _file(kernel, key))
        except OSError:
            os.unlink(name)
            raise
        _trim(folder, most)


def entries(folder: Path) -> list[Entry]:
    """The cache's entries, the one used last first."""
    return sorted(_files(folder, _SUFFIX), key=lambda entry: entry.used, reverse=True)


def clear(folder: Path) -> list[Entry]:
    """Remove every entry, and what was left unfinished; returns the entries removed. Raises OSError."""
    found = entries(folder)
    for entry in (*found, *_files(folder, _UNFINISHED)):
        entry.path.unlink(missing_ok=True)
    return found


def report(folder: Path, most: int, found: list[Entry]) -> dict[str, Any]:
    """The entries as a script reads them; sizes are bytes, times seconds since 1970."""
    kernels: dict[str, dict[str, Any]] = {}
    for entry in sorted(found, key=lambda entry: (entry.kernel, -entry.used)):
        kernel = kernels.setdefault(entry.kernel, {"entries": 0, "bytes": 0, "used": entry.used})
        kernel["entries"] += 1
        kernel["bytes"] += entry.size
    total = sum(entry.size for entry in found)
    return {"location": str(folder), "limit": most, "entries": len(found), "bytes": total, "kernels": kernels}


def as_text(report: Mapping[str, Any], cleared: bool) -> str:
    """A report as a person reads it."""
    total = f"{report['entries']} entries, {_size(report['bytes'])}"
    if cleared:
        return f"removed {total} from {report['location']}"
    lines = [f"{report['location']}: {total} of at most {_size(report['limit'])}"]
    width = max(map(len, report["kernels"]), default=0)
    for name, kernel in report["kernels"].items():
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(kernel["used"]))
        lines.append(f"  {name:{width}}  {kernel['entries']:4}  {_size(kernel['bytes']):>8}  last used {used}")
    return "\n".join(lines)


def _size(count: int) -> str:
    return f"{count / 1e3:.1f} kB" if count < 1e6 else f"{count / 1e6:.1f} MB"


def _trim(folder: Path, most: int) -> None:
    found = entries(folder)
    left = sum(entry.size for entry in found)
    while found and left > most:
        oldest = found.pop()
        left -= oldest.size
        oldest.path.unlink(missing_ok=True)  # another process may have been faster
    for unfinished in _files(folder, _UNFINISHED):
        if unfinished.used < time.time() - _ABANDONED:
            unfinished.path.unlink(missing_ok=True)


def _files(folder: Path, suffix: str) -> Iterator[Entry]:
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as found:
        for file in found:
            if file.name.endswith(suffix):
                with contextlib.suppress(FileNotFoundError):
                    status = file.stat()
                    yield Entry(Path(file.path), status.st_size, status.st_mtime)


def _file(kernel: str, key: str) -> str:
    return f"{kernel}-{hashlib.sha256(key.encode()).hexdigest()}{_SUFFIX}"


def _pack(parts: Mapping[str, bytes], key: str) -> bytes:
    sizes = json.dumps({name: len(part) for name, part in parts.items()}).encode()
    body = zlib.compress(sizes + b"\n" + b"".join(parts.values()), 1)
    return _MAGIC + _checksum(body, key) + body


def _unpack(data: bytes, key: str) -> dict[str, bytes] | None:
    start = len(_MAGIC) + hashlib.sha256().digest_size
    body = data[start:]
    if data[:start] != _MAGIC + _checksum(body, key):
        return None
    sizes, _, rest = zlib.decompress(body).partition(b"\n")
    parts, at = {}, 0
    for name, size in json.loads(sizes).items():
        parts[name] = rest[at : at + size]
        at += size
    return parts


def _checksum(body: bytes, key: str) -> bytes:
    """Of the key too: an entry under another's name is a bad one."""
    return hashlib.sha256(key.encode() + b"\0" + body).digest()
