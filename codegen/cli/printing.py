"""Prints for commands: tables as wide as the terminal, progress bars, and partial results where Ctrl-C, or `timeout`, ends a run
early."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterable
from typing import Any, TypeVar

T = TypeVar("T")
WIDTH = 200  # of what is not printed to a terminal
INTERRUPTED = 130  # the exit status of a command that Ctrl-C ended, as in a shell


def show(*things: Any) -> None:
    """Print as wide as the terminal. Into a pipe or a file, lines have up to `WIDTH` columns, and no blanks at their ends."""
    from rich.console import Console

    console = Console()
    if console.is_terminal:
        console.print(*things)
        return
    console = Console(width=WIDTH)
    with console.capture() as captured:
        console.print(*things)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def gather(items: Iterable[T], total: int, words: str) -> tuple[list[T], bool]:
    """The items, and whether they are complete: Ctrl-C or SIGTERM ends them early. Before the first item, it ends the program. Shows a
    progress bar where stderr is a terminal."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    found: list[T] = []
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for item in track(items, words, total=total, console=console, transient=True, disable=not console.is_terminal):
            found.append(item)
    except KeyboardInterrupt:
        if not found:
            print("interrupted", file=sys.stderr)
            sys.exit(INTERRUPTED)
        return found, False
    finally:
        signal.signal(signal.SIGTERM, before)
    return found, True


def end(bad: bool, whole: bool, done: int, total: int) -> None:
    """Exit with the status of a run: 1 where `bad`, or 130, with a message, where Ctrl-C ended it."""
    if not whole:
        print(f"interrupted: these are {done} of {total}", file=sys.stderr)
        sys.exit(INTERRUPTED)
    if bad:
        sys.exit(1)
