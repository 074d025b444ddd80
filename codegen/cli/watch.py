"""When files were saved, found by looking at them a few times a second: that works on every file system."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

PAUSE = 0.2  # seconds from one look to the next


def saves(files: Callable[[], Iterable[Path]], pause: float = PAUSE) -> Iterator[None]:
    """Yields at once, and then each time that one of these files was written, came or went, until Ctrl-C."""
    seen = _states(files())
    yield
    while True:
        time.sleep(pause)
        now = _states(files())
        if now != seen:
            seen = now  # before the files are read: what is saved meanwhile is found next time
            yield


def _states(files: Iterable[Path]) -> dict[Path, tuple[int, int, int] | None]:
    return {path: _state(path) for path in files}


def _state(path: Path) -> tuple[int, int, int] | None:
    """What changes when a file is saved; None where it is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
