"""Finds out when files are saved, by polling a few times a second: this works on every file system."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

PAUSE = 0.2  # seconds between two polls


def saves(files: Callable[[], Iterable[Path]], pause: float = PAUSE) -> Iterator[None]:
    """Yields at once, and then each time one of these files was written, added or removed, until Ctrl-C."""
    seen = _states(files())
    yield
    while True:
        time.sleep(pause)
        now = _states(files())
        if now != seen:
            seen = now  # before the files are read, so that a save meanwhile is found by the next poll
            yield


def _states(files: Iterable[Path]) -> dict[Path, tuple[int, int, int] | None]:
    return {path: _state(path) for path in files}


def _state(path: Path) -> tuple[int, int, int] | None:
    """A value that changes when the file is saved; None where it does not exist."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
