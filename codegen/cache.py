"""Compiled kernels, and builds of specs, on disk: one file for each entry, so that a second process compiles nothing.

Any number of processes may use the folder at once: an entry is written under another name and then renamed. It has a
checksum; a truncated, damaged or unreadable entry is treated as missing. `load` and `store` never raise because of the
disk.

An entry is machine code that is run. So a folder that other users may write to is not used, nor is an entry that they
wrote: a warning says so once (`refusal`). CODEGEN_CACHE_TRUSTED=1 allows both.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
import stat
import tempfile
import time
import warnings
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codegen.errors import UserError, named, printable, shown

LIMIT = "1G"  # what entries may take together, unless CODEGEN_CACHE_LIMIT says otherwise
_MAGIC = b"cutefuse kernel\n"
_SUFFIX, _UNFINISHED = ".kernel", ".part"
# Names of the cache's own files: whatever else lies in the folder is not looked at, and stays
_ENTRIES = re.compile(rf".+-[0-9a-f]{{64}}\{_SUFFIX}", re.DOTALL)
_REMAINS = re.compile(rf"tmp[a-z0-9_]{{8}}\{_UNFINISHED}")
_LARGEST = 1 << 26  # bytes of an entry, packed or not
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
        """The name under which it was stored."""
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
    """The bytes that entries may take: CODEGEN_CACHE_LIMIT, as in 512M; 0 keeps nothing. Raises `UserError`."""
    text = os.environ.get("CODEGEN_CACHE_LIMIT") or LIMIT
    found = re.fullmatch(r"(\d{1,15})([KMG]?)B?", text.strip().upper())
    if not found:
        raise UserError(
            f"CODEGEN_CACHE_LIMIT is {shown(text)}", "it is a number of bytes, as in 512M or 2G; 0 keeps none"
        )
    return int(found[1]) * _UNITS[found[2]]


def refusal(folder: Path) -> str:
    """Why the entries of a folder are neither used nor added to, or "". A folder that is not there yet is made private."""
    try:
        status = folder.stat()
    except OSError:
        return ""
    if _trusted(status):
        return ""
    owned = status.st_uid in (os.geteuid(), _ROOT)
    why = "other users may write to it" if owned else f"it belongs to user {status.st_uid}"
    mend = "`chmod go-w` it or name" if owned else "name"
    return (
        f"no compiled kernel is kept in {named(folder)}: {why}, and what lies there is run. To mend it, {mend} another "
        f"folder in CODEGEN_CACHE_DIR. CODEGEN_CACHE_TRUSTED=1 uses this one; whoever can write to it runs code as you"
    )


_ROOT = 0


def _trusted(status: os.stat_result) -> bool:
    """Whether nobody but this user and root can have changed a file or a folder, or the user says that it does not matter."""
    if os.environ.get("CODEGEN_CACHE_TRUSTED") == "1":
        return True
    return status.st_uid in (os.geteuid(), _ROOT) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _refused(folder: Path) -> bool:
    """Whether a folder is not used, which a warning says."""
    why = refusal(folder)
    if why:
        _warn(why)
    return bool(why)


@functools.cache
def _warn(why: str) -> None:
    """Warn once: Python forgets which warnings it has shown when it enters or leaves `catch_warnings`."""
    warnings.warn(why, RuntimeWarning, stacklevel=1)


def load(kernel: str, key: str) -> dict[str, bytes] | None:
    """The parts that were stored under this name and key, if the entry exists and is intact. `key` is text of any length."""
    folder = location()
    if folder is None or _refused(folder):
        return None
    path = folder / _file(kernel, key)
    try:
        parts = _unpack(_read(path), key)
    except OSError:
        return None
    with contextlib.suppress(OSError):
        if parts is None:
            path.unlink()
        else:
            os.utime(path)  # used last
    return parts


def _read(path: Path) -> bytes:
    """The bytes of a file that nobody else can have written; none of anything else that lies there. Raises OSError."""
    # Not to wait for whoever writes to a pipe, and not to follow links to elsewhere
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(file, "rb", closefd=True) as opened:
        status = os.fstat(file)
        whole = stat.S_ISREG(status.st_mode) and status.st_size <= _LARGEST
        return opened.read() if whole and _trusted(status) else b""


def store(kernel: str, key: str, parts: Mapping[str, bytes]) -> None:
    """Store `parts` under this name and key. Evict the least recently used entries if the cache is over its limit."""
    folder, most = location(), limit()
    if folder is None or not most or sum(map(len, parts.values())) > _LARGEST // 2:
        return
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # what lies there is run: it is nobody else's to write
        if _refused(folder):
            return
        handle, name = tempfile.mkstemp(_UNFINISHED, dir=folder)
        packed = _pack(parts, key)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(packed)
            os.replace(name, folder / _file(kernel, key))
        except OSError:
            os.unlink(name)
            raise
        left = _room.get((folder, most), 0) - len(packed)
        _room[folder, most] = left if left >= 0 else _trim(folder, most) // _WRITERS


def entries(folder: Path) -> list[Entry]:
    """The cache's entries, the most recently used first."""
    return sorted(_files(folder, _ENTRIES), key=lambda entry: entry.used, reverse=True)


def clear(folder: Path) -> list[Entry]:
    """Remove every entry and every unfinished file; return the number of entries removed. Raises OSError."""
    found = entries(folder)
    for entry in (*found, *_files(folder, _REMAINS)):
        entry.path.unlink(missing_ok=True)
    return found


def report(folder: Path, most: int, found: list[Entry]) -> dict[str, Any]:
    """The entries as data for scripts; sizes are in bytes, times in seconds since 1970."""
    kernels: dict[str, dict[str, Any]] = {}
    for entry in sorted(found, key=lambda entry: (entry.kernel, -entry.used)):
        kernel = kernels.setdefault(entry.kernel, {"entries": 0, "bytes": 0, "used": entry.used})
        kernel["entries"] += 1
        kernel["bytes"] += entry.size
    total = sum(entry.size for entry in found)
    return {
        "location": str(folder), "limit": most, "entries": len(found), "bytes": total, "refused": refusal(folder),
        "kernels": kernels,
    }  # fmt: skip


def as_text(report: Mapping[str, Any], cleared: bool) -> str:
    """A report as text for people."""
    total = f"{report['entries']} entries, {_size(report['bytes'])}"
    if cleared:
        return f"removed {total} from {named(report['location'])}"
    lines = [f"{named(report['location'])}: {total} of at most {_size(report['limit'])}"]
    kernels = {printable(name): kernel for name, kernel in report["kernels"].items()}
    width = max(map(len, kernels), default=0)
    for name, kernel in kernels.items():
        when = _date(kernel["used"])
        lines.append(f"  {name:{width}}  {kernel['entries']:4}  {_size(kernel['bytes']):>8}  last used {when}")
    return "\n".join([*lines, *filter(None, (report["refused"],))])


def _date(seconds: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
    except (OverflowError, ValueError, OSError):
        return "at no date"


def _size(count: int) -> str:
    return f"{count / 1e3:.1f} kB" if count < 1e6 else f"{count / 1e6:.1f} MB"


# Bytes that this process may store before it looks at a folder again: its share of the room that it found there
_room: dict[tuple[Path, int], int] = {}
_WRITERS = 8  # processes that may fill a folder at once and stay below its limit
_EVICTED = 16  # a full folder loses one part of so many at once: listing many thousands of entries takes seconds


def _trim(folder: Path, most: int) -> int:
    """Evicts the least recently used entries of a folder with more than `most` bytes; returns the bytes that are free then."""
    found = entries(folder)
    left = sum(entry.size for entry in found)
    kept = most - most // _EVICTED if left > most else most
    while found and left > kept:
        oldest = found.pop()
        left -= oldest.size
        oldest.path.unlink(missing_ok=True)  # another process may have been faster
    for unfinished in _files(folder, _REMAINS):
        if unfinished.used < time.time() - _ABANDONED:
            unfinished.path.unlink(missing_ok=True)
    return most - left


def _files(folder: Path, names: re.Pattern[str]) -> Iterator[Entry]:
    """The folder's entries whose names match. A folder of such a name is not the cache's."""
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as found:
        for file in found:
            if names.fullmatch(file.name) and not file.is_dir(follow_symlinks=False):
                with contextlib.suppress(FileNotFoundError):
                    status = file.stat(follow_symlinks=False)
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
    inflate = zlib.decompressobj()
    try:
        head, _, rest = inflate.decompress(body, _LARGEST).partition(b"\n")
        sizes = json.loads(head)
    except (zlib.error, ValueError, RecursionError):  # whole, but no entry
        return None
    if not isinstance(sizes, dict) or not all(type(n) is int and n >= 0 for n in sizes.values()):
        return None
    if not inflate.eof or inflate.unused_data or sum(sizes.values()) != len(rest):
        return None
    parts, at = {}, 0
    for name, size in sizes.items():
        parts[name] = rest[at : at + size]
        at += size
    return parts


def _checksum(body: bytes, key: str) -> bytes:
    """A digest, of the key too: an entry under another's name is a bad one."""
    return hashlib.sha256(key.encode() + b"\0" + body).digest()
