"""Shares work among processes: each spec of a build is read and rendered by itself."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

A = TypeVar("A")
B = TypeVar("B")

FEWEST = 16  # specs for which a process is worth its start
AT_ONCE = 4  # specs that a process takes at a time: their costs differ


@contextmanager
def mapping(items: int) -> Iterator[Callable[[Callable[[A], B], Sequence[A]], Iterable[B]]]:
    """A `map` for this many items, in order. It uses one process for each core, or none if there are few items or this
    process cannot fork. The function and its results must be picklable."""
    processes = min(_cores(), items // FEWEST)
    if processes < 2 or not _forks():
        yield map
        return
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    with ProcessPoolExecutor(processes, get_context("fork"), initializer=_begin) as pool:
        yield lambda function, given: pool.map(function, given, chunksize=AT_ONCE)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


def _forks() -> bool:
    """Whether this process can fork: a copy has none of its other threads, and may wait for their locks for ever."""
    return sys.platform == "linux" and threading.active_count() == 1 and "jax" not in sys.modules


def _begin() -> None:
    """Leaves Ctrl-C to the process that started this one, and cycles of objects to this one's end: a spec makes few."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()
