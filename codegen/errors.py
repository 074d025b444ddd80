"""User errors: their places, their messages, and how they print.

An error that a user can make is a `SpecError`. Any other failure of the generator is a bug and stays an ordinary exception.
Code that does not know the place raises `UserError`. Code that knows the place turns it into a `SpecError` with a `Span`.
"""

from __future__ import annotations

import difflib
import functools
import heapq
import re
import string
import sysconfig
import textwrap
import traceback
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

EXCERPT = 160  # characters of a source line that are shown
_LISTED = 40  # names that a hint lists together with the nearest one
_ALL = 150  # names that a hint lists
_FEW = 150  # names that an unknown word is compared with one by one
_SHOWN = 100  # errors that are printed
_LIKE = 0.5  # how similar a name must be, of 1, to be suggested
_WORD = 60  # characters of a user's word that a message repeats


@dataclass(frozen=True)
class Span:
    """A place in a text: 1-based line and column, and how many characters to underline. Line 0 is the whole file or folder."""

    path: str
    line: int = 0
    column: int = 0
    length: int = 1


class UserError(Exception):
    """A user's error without a place in a file. `hint` says what is known or what to write instead. `place` is the 0-based
    row and column in the text that was read, and the length, where they are known."""

    def __init__(self, message: str, hint: str = "", place: tuple[int, int, int] | None = None):
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.place = place

    def without_frames(self) -> UserError:
        """The error for whatever keeps it: one that was raised keeps the frames that it passed, and all that they hold."""
        return UserError(self.message, self.hint, self.place)


@dataclass(frozen=True)
class Diagnostic:
    """One error or warning, with its place and its source line."""

    span: Span
    message: str
    hint: str = ""
    source: str = ""
    severity: str = "error"

    def __str__(self) -> str:
        span = self.span
        place = f":{span.line}:{span.column}" if span.line else ""
        lines = [f"{printable(span.path)}{place}: {self.severity}: {printable(self.message)}"]
        if self.source.strip():
            start = span.column - 1
            lead = min(start, len(self.source) - len(self.source.lstrip()))
            text, start = self.source[lead:].replace("\t", " "), start - lead
            if len(text) > EXCERPT:
                cut = max(0, start - 60)
                text, start = text[cut : cut + EXCERPT], start - cut
            marked = text[start : start + span.length]
            lines += [f"    {text.rstrip()}", "    " + " " * _cells(text[:start]) + "^" * max(1, _cells(marked))]
        for line in self.hint.split("\n") if self.hint else ():
            lines += textwrap.wrap(
                printable(line), 116, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
            )
        return "\n".join(lines)


class Later(Diagnostic):
    """An error that finds its place when someone asks for it: most are of plans that are tried before one that fits."""

    def __init__(self, message: str, hint: str, find: Callable[[], Diagnostic]):
        for name, value in (("message", message), ("hint", hint), ("severity", "error"), ("find", find)):
            object.__setattr__(self, name, value)

    @functools.cached_property
    def found(self) -> Diagnostic:
        made: Diagnostic = self.find()  # type: ignore[attr-defined]
        return made

    @property
    def span(self) -> Span:
        return self.found.span

    @property
    def source(self) -> str:
        return self.found.source

    def __reduce__(self) -> tuple[type[Diagnostic], tuple[object, ...]]:
        return Diagnostic, (self.span, self.message, self.hint, self.source, self.severity)


def _cells(text: str) -> int:
    """The number of terminal columns of a text. The caret counts these; the message's column counts characters."""
    if text.isascii():
        return len(text)
    unseen = ("Mn", "Me", "Cf")
    return sum(0 if unicodedata.category(c) in unseen else 1 + (unicodedata.east_asian_width(c) in "WF") for c in text)


class SpecError(Exception):
    """All the errors of one or more specs, in the order of their places."""

    def __init__(self, diagnostics: Iterable[Diagnostic]):
        super().__init__()
        found = [*diagnostics]
        if len(found) > 1:  # one need not find its place
            found = sorted(dict.fromkeys(found), key=lambda d: (d.span.path, d.span.line, d.span.column))
        self.diagnostics: tuple[Diagnostic, ...] = tuple(found)

    def __str__(self) -> str:
        shown = [str(d) for d in self.diagnostics[:_SHOWN]]
        if len(self.diagnostics) > _SHOWN:
            shown.append(f"and {len(self.diagnostics) - _SHOWN} more errors")
        return "\n".join(shown)


def raised(error: Exception) -> str:
    """How a message ends that reports an exception of the user's code: its line there, where it is known, its class and its text."""
    others = ("<", f"{sysconfig.get_path('stdlib')}/", f"{Path(__file__).parent}/")
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(others)]
    own = [f for f in frames if not re.search("/(site|dist)-packages/", f.filename)]
    place = f" at {own[-1].filename}:{own[-1].lineno}" if own else ""
    said = f"{type(error).__name__}: {error}".split("\n")[0]
    return f"{place}: {said[:400]}"


def printable(text: str, keep: str = "") -> str:
    """A text that is safe on a terminal: unprintable characters, except those in `keep`, are escaped as in Python's strings."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else repr(c)[1:-1] for c in text)


def named(path: object) -> str:
    """A path for a message."""
    return printable(str(path))


def shown(word: str) -> str:
    """A user's word for a message: quoted, escaped, and cut where it is long."""
    return repr(word if len(word) <= _WORD else word[: _WORD - 3] + "...")


def nearest(word: str, names: Iterable[str]) -> list[str]:
    """The name that a misspelled word probably stands for, if any."""
    names, word = set(names), word[:_WORD]
    if same := sorted(name for name in names if name.lower() == word.lower()):
        return same[:1]
    if len(names) > _FEW:  # too many to compare each of them with every unknown word
        return sorted(names & edits(word))[:1]
    return _nearest(word, tuple(sorted(names)))


@functools.lru_cache(maxsize=64)
def _nearest(word: str, names: tuple[str, ...]) -> list[str]:
    letters = set(word)  # a name without any of them is not close, and this is faster than difflib
    return difflib.get_close_matches(word, [name for name in names if not letters.isdisjoint(name)], n=1)


def edits(word: str) -> set[str]:
    """The words at edit distance one: one letter added, removed or replaced, or two neighbours swapped."""
    halves = [(word[:i], word[i:]) for i in range(len(word) + 1)]
    letters = string.ascii_lowercase + string.digits + "_"
    found = {left + right[1:] for left, right in halves}
    found |= {left + right[1] + right[0] + right[2:] for left, right in halves if len(right) > 1}
    for letter in letters:
        found |= {left + letter + right[skip:] for left, right in halves for skip in (0, 1)}
    return found - {word}


def known(word: str, names: Iterable[str], what: str = "known here") -> str:
    """The hint for an unknown name: the known names, and the nearest spelling."""
    names = set(names)
    close = nearest(word, names)
    meant = f"Did you mean {close[0]!r}?" if close else ""
    if len(names) > _LISTED and close:
        return meant
    listed = ", ".join(map(printable, heapq.nsmallest(_ALL, names))) or "nothing"
    more = f" and {len(names) - _ALL} more" if len(names) > _ALL else "."
    return f"{what}: {listed}{more} {meant}".rstrip()


def suggested(word: str, names: Iterable[str], most: int = 3) -> str:
    """The hint for an unknown name among many: the `most` nearest names, by letters or by words; all names where they are few."""
    names = sorted({printable(name) for name in names})
    if len(names) <= most:
        return f"There {'is' if len(names) == 1 else 'are'} {_or(names, 'and') or 'none'}."
    sorted_word = " ".join(sorted(word[:_WORD].split("_")))

    def likeness(name: str) -> float:
        pairs = ((word[:_WORD], name), (sorted_word, " ".join(sorted(name.split("_")))))
        return max(difflib.SequenceMatcher(None, *pair).ratio() for pair in pairs)

    close = [name for name in heapq.nlargest(most, names, key=likeness) if likeness(name) > _LIKE]
    return f"Did you mean {_or([repr(name) for name in close])}?" if close else f"There are {len(names)} others."


def _or(words: list[str], last: str = "or") -> str:
    return f" {last} ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))
