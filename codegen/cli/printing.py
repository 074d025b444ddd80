"""What commands print: tables to the terminal's width, bars of progress, and what there is when Ctrl-C ends a run early."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, TypeVar

T = TypeVar("T")
INTERRUPTED = 130  # the exit status of a command that Ctrl-C ended, as in a shell


def show(*things: Any) -> None:
    """To the terminal's width; into a pipe or a file as wide as it gets."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console = Console(width=200)
    console.print(*things)


def gather(items: Iterable[T], total: int, words: str) -> tuple[list[T], bool]:
    """The items, with a bar on stderr where that is a terminal, and whether they are all: Ctrl-C ends them early."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    found: list[T] = []
    try:
        for item in track(items, words, total=total, console=console, transient=True, disable=not console.is_terminal):
            found.append(item)
    except KeyboardInterrupt:
        return found, False
    return found, True


def end(bad: bool, whole: bool, done: int, total: int) -> None:
    """The exit status of a run of many: 1 where one of them is bad, 130 where Ctrl-C ended it, which is said."""
    if not whole:
        print(f"interrupted: these are {done} of {total}", file=sys.stderr)
        sys.exit(INTERRUPTED)
    if bad:
        sys.exit(1)
