"""A spec's tree: mappings, sequences and scalars, each with its place in a text.

`text.py` reads it from YAML, `embedding.py` from the data that a generated module embeds.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from codegen.errors import Diagnostic, Span, UserError, shown

_INT = re.compile(r"[-+]?[0-9]{1,300}")  # few enough digits for float64
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL = {".inf": float("inf"), "+.inf": float("inf"), "-.inf": float("-inf"), ".nan": float("nan")}


@dataclass(frozen=True)
class Source:
    """A file's text, for places and excerpts."""

    path: str
    text: str

    @functools.cached_property
    def lines(self) -> tuple[str, ...]:
        return tuple(self.text.split("\n"))

    def diagnostic(self, span: Span, message: str, hint: str = "", severity: str = "error") -> Diagnostic:
        line = self.lines[span.line - 1] if 0 < span.line <= len(self.lines) else ""
        return Diagnostic(span, message, hint, line, severity)

    @functools.cached_property
    def starts(self) -> tuple[int, ...]:
        """The start of each line in the text."""
        return tuple(itertools.accumulate((len(line) + 1 for line in self.lines), initial=0))

    def span(self, start: int, end: int) -> Span:
        """The place of a range of the text, cut at the end of its first line."""
        line = bisect.bisect_right(self.starts, start) - 1
        column = start - self.starts[line]
        last = min(end - self.starts[line], len(self.lines[line].rstrip()))
        return Span(self.path, line + 1, column + 1, max(1, last - column))


@dataclass(frozen=True)
class Scalar:
    """A scalar's text. Plain ones may be numbers, booleans or null, as in YAML 1.2's core schema."""

    source: Source = field(repr=False)
    value: str
    style: str  # "plain", "single", "double" (both quoted) or "block"
    start: int  # its range in the file's text, with quotes and block indicators
    end: int

    @property
    def span(self) -> Span:
        return self.source.span(self.start, self.end)

    def at(self, line: int, column: int, length: int = 1) -> Span:
        """The place in the file of a 0-based line and column of the scalar's text."""
        rows = self.value.split("\n")
        first = sum(len(row) + 1 for row in rows[:line]) + column
        last = max(first, min(first + length, len(self.value)) - 1)
        return self.source.span(self.place(first), self.place(last) + 1)

    def place(self, index: int) -> int:
        """The index in the file of a character of the value."""
        return self._places[min(index, len(self._places) - 1)]

    @functools.cached_property
    def _places(self) -> list[int]:
        # Characters correspond one to one, except folding, indentation and escapes, which only the file has
        text, at = self.source.text + "\0", self.start + (self.style in ("single", "double"))
        double = self.style == "double"
        if self.style == "block":
            at = text.find("\n", at) + 1 or len(text) - 1
        places = []
        for char in self.value:
            while double and text.startswith("\\\n", at):
                at += 2
                while text[at] in " \t":
                    at += 1
            while text[at] in " \t\n" and char not in " \t\n":
                at += 1
            places.append(at)
            if double and text[at] == "\\":
                at += {"x": 4, "u": 6, "U": 10}.get(text[at + 1], 2)
            elif text[at] == char or text[at] in " \t":
                at += 2 if self.style == "single" and char == "'" else 1
            at = min(at, len(text) - 1)
        return [*places, at]

    def resolve(self) -> bool | int | float | str | None:
        """The scalar's value. Raises `UserError` for a number outside the range of float64."""
        return resolve(self.value) if self.style == "plain" else self.value


def resolve(text: str) -> bool | int | float | str | None:
    """The value of a plain scalar's text. Raises `UserError` for a number outside the range of float64."""
    if text in ("", "~", "null", "Null", "NULL"):
        return None
    if text in ("true", "True", "TRUE"):
        return True
    if text in ("false", "False", "FALSE"):
        return False
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        number = float(text)
        if math.isinf(number):
            raise too_large(text, "-.inf" if number < 0 else ".inf")
        return number
    return _SPECIAL.get(text.lower(), text)


LARGEST = "the largest number is about 1.8e308"


def too_large(text: str, infinity: str) -> UserError:
    """The error for a number outside the range of float64."""
    return UserError(f"{shown(text)} is outside the range of float64", f"{LARGEST}; write {infinity} for infinity")


class Printed(Source):
    """A text that no file holds, made when someone asks for it."""

    def __init__(self, path: str, make: Callable[[], str]):
        object.__setattr__(self, "path", path)
        object.__setattr__(self, "make", make)

    @functools.cached_property
    def text(self) -> str:
        made: str = self.make()  # type: ignore[attr-defined]
        return made


class Whole(Scalar):
    """A text as one scalar."""

    def __init__(self, source: Source):
        object.__setattr__(self, "source", source)
        object.__setattr__(self, "style", "plain")
        object.__setattr__(self, "start", 0)

    @property
    def value(self) -> str:
        return self.source.text

    @property
    def end(self) -> int:
        return len(self.value)


@dataclass(frozen=True)
class Sequence:
    source: Source
    span: Span
    items: tuple[Tree, ...]


@dataclass(frozen=True)
class Mapping:
    source: Source
    span: Span
    items: tuple[tuple[Scalar, Tree], ...]


Tree = Scalar | Sequence | Mapping
