"""User mistakes: where they are, what they look like, and how they print.

A mistake a user can make is a `SpecError`; everything else that goes wrong in the generator is a bug and stays an
ordinary exception. Deep code that knows only the fact raises `Mistake`; the code that knows the place turns it into a
`SpecError` with a `Span`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Span:
    """A place in a text: 1-based line and column, and how many characters to underline."""

    path: str
    line: int
    column: int
    length: int = 1


class Mistake(Exception):
    """A user's mistake without a place; `hint` says what is known or what to write instead."""

    def __init__(self, message: str, hint: str = ""):
        super().__init__(message)
        self.message = message
        self.hint = hint


@dataclass(frozen=True)
class Diagnostic:
    """One mistake with its place and the source line it stands on."""

    span: Span
    message: str
    hint: str = ""
    source: str = ""

    def __str__(self) -> str:
        span = self.span
        lines = [f"{span.path}:{span.line}:{span.column}: error: {self.message}"]
        if self.source.strip():
            # Tabs and wide excerpts are kept printable: the caret counts characters, as the column does.
            text, start = self.source.replace("\t", " "), span.column - 1
            if len(text) > 160:
                cut = max(0, start - 60)
                text, start = text[cut : cut + 160], start - cut
            length = max(1, min(span.length, len(text) - start))
            lines += [f"    {text}", "    " + " " * start + "^" * length]
        lines += [f"  {line}" for line in self.hint.splitlines()]
        return "\n".join(lines)


class SpecError(Exception):
    """All the mistakes of one or more specs, in the order of their places."""

    def __init__(self, diagnostics: Iterable[Diagnostic]):
        found = sorted(dict.fromkeys(diagnostics), key=lambda d: (d.span.path, d.span.line, d.span.column))
        self.diagnostics: tuple[Diagnostic, ...] = tuple(found)
        super().__init__("\n".join(map(str, self.diagnostics)))


def known(word: str, names: Iterable[str], what: str = "known here") -> str:
    """The hint for an unknown name: what is known, and the nearest spelling."""
    names = sorted(set(names))
    close = difflib.get_close_matches(word, names, n=1)
    listing = ", ".join(names) if len(names) <= 40 else ", ".join(names[:40]) + ", ..."
    hint = f"{what}: {listing}." if names else f"{what}: nothing."
    return f"{hint} Did you mean {close[0]!r}?" if close else hint
