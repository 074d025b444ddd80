"""YAML text to a tree of mappings, sequences and scalars, each with its place in the file.

The tree is built from PyYAML's events rather than its objects, so that places survive, repeated keys are seen, scalars
follow YAML 1.2 (`no` is a string, `1e-6` is a number), and aliases, tags and runaway nesting are refused.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
import re
from dataclasses import dataclass, field, replace

import yaml

from codegen.errors import Diagnostic, Mistake, Span, SpecError, shown

MAX_BYTES = 64 * 1024
MAX_DEPTH = 16

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_INT = re.compile(r"[-+]?[0-9]{1,300}")  # each of them is a float too
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
# What YAML does not allow, line breaks other than \n, lone surrogates, and marks that make text look other than it is
_REFUSED = re.compile(
    r"[^\t\n\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
    r"|[\u061c\u200e\u200f\u2028\u2029\ufeff\u202a-\u202e\u2066-\u2069]"
)
_SPECIAL = {".inf": float("inf"), "+.inf": float("inf"), "-.inf": float("-inf"), ".nan": float("nan")}


@dataclass(frozen=True)
class Source:
    """A file's text, for places and excerpts."""

    path: str
    text: str
    lines: tuple[str, ...] = field(repr=False)

    def diagnostic(self, span: Span, message: str, hint: str = "", severity: str = "error") -> Diagnostic:
        line = self.lines[span.line - 1] if 0 < span.line <= len(self.lines) else ""
        return Diagnostic(span, message, hint, line, severity)

    @functools.cached_property
    def starts(self) -> tuple[int, ...]:
        """Where each line starts in the text."""
        return tuple(itertools.accumulate((len(line) + 1 for line in self.lines), initial=0))

    def span(self, start: int, end: int) -> Span:
        """The place of a stretch of the text, cut at the end of its first line."""
        line = bisect.bisect_right(self.starts, start) - 1
        column = start - self.starts[line]
        last = min(end - self.starts[line], len(self.lines[line].rstrip()))
        return Span(self.path, line + 1, column + 1, max(1, last - column))


@dataclass(frozen=True)
class Scalar:
    """A scalar's text; `plain` ones may be numbers, booleans or null, as YAML 1.2's core schema says."""

    source: Source = field(repr=False)
    value: str
    style: str  # "plain", "single", "double" (both quoted) or "block"
    start: int  # where it begins and ends in the file's text, quotes and block indicators included
    end: int

    @property
    def span(self) -> Span:
        return self.source.span(self.start, self.end)

    def at(self, line: int, column: int, length: int = 1) -> Span:
        """The place of the text's own 0-based line and column."""
        rows = self.value.split("\n")
        first = sum(len(row) + 1 for row in rows[:line]) + column
        last = max(first, min(first + length, len(self.value)) - 1)
        return self.source.span(self.place(first), self.place(last) + 1)

    def place(self, index: int) -> int:
        """Where a character of the value stands in the file."""
        return self._places[min(index, len(self._places) - 1)]

    @functools.cached_property
    def _places(self) -> list[int]:
        # Character for character, except that folding, indentation and escapes stand only in the file
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
        """What the scalar means. Raises `Mistake` for a number that no float64 holds."""
        return resolve(self.value) if self.style == "plain" else self.value


def resolve(text: str) -> bool | int | float | str | None:
    """What a plain scalar's text means. Raises `Mistake` for a number that no float64 holds."""
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


def too_large(text: str, infinity: str) -> Mistake:
    """The mistake of a number that no float64 holds."""
    return Mistake(f"no float64 holds {shown(text)}", f"{LARGEST}; write {infinity} for infinity")


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


def parse_yaml(path: str, data: bytes | str) -> tuple[Mapping, list[Diagnostic]]:
    """The mapping that a spec file holds, and the mistakes in it that leave a mapping: repeated keys, of which the first
    counts, and escapes of characters that no spec may hold, in whose place U+FFFD stands. Raises `SpecError` for what is
    no such file."""
    raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    if len(raw) > MAX_BYTES:
        raise _at(
            _source(path, ""),
            0,
            f"the file has {len(raw)} bytes; a spec has at most {MAX_BYTES}",
            "make it several ops",
        )
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        source = _source(path, _REFUSED.sub("\ufffd", _lines(raw.decode("utf-8-sig", "replace"))))
        good = _lines(raw[: error.start].decode("utf-8-sig"))
        raise _at(source, len(good), "not valid UTF-8 text", "save the file in UTF-8") from None
    source = _source(path, text)
    text = source.text
    bad = _REFUSED.search(text)
    if bad:
        source = _source(path, _REFUSED.sub("\ufffd", text))
        raise _at(source, bad.start(), _refusal(bad), "delete it")
    try:
        builder = _Builder(source)
        tree = builder.build()
    except yaml.MarkedYAMLError as error:
        raise _yaml_error(source, error) from None
    if not isinstance(tree, Mapping):
        raise _at(source, 0, "a spec is a mapping of keys such as 'op' and 'chain'", "see `codegen new` for a start")
    return tree, builder.diagnostics


def _refusal(bad: re.Match[str]) -> str:
    return f"the character U+{ord(bad.group()):04X} is not allowed in a spec"


def _lines(text: str) -> str:
    """A text with its lines as YAML counts them."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _source(path: str, text: str) -> Source:
    text = _lines(text)
    return Source(path, text, tuple(text.split("\n")))


def _at(source: Source, start: int, message: str, hint: str) -> SpecError:
    return SpecError([source.diagnostic(source.span(start, 0), message, hint)])


def _yaml_error(source: Source, error: yaml.MarkedYAMLError) -> SpecError:
    """A mistake that the YAML parser found, with what to do about it."""
    start = min(error.problem_mark.index, len(source.text))
    line = source.lines[source.span(start, 0).line - 1]
    problem, hint = error.problem, "see `codegen new` for how a spec is written"
    if error.context_mark:
        hint = f"{error.context} that starts in line {error.context_mark.line + 1}"
    if "\t" in line[: len(line) - len(line.lstrip())]:
        problem, hint = "a tab indents this line", "YAML indents with spaces"
    elif "mapping values are not allowed" in problem:
        hint = "put a text that holds ': ' in quotes, or write `key: |` and the text below it"
    elif "cannot start any token" in problem:
        hint = "put a text that starts with this character in quotes"
    return _at(source, start, f"not valid YAML: {problem}", hint)


class _Builder:
    """A tree from the parser's events, and the mistakes that leave a tree."""

    def __init__(self, source: Source):
        self.source = source
        self.events = iter(yaml.parse(source.text, Loader=_Loader))
        self.diagnostics: list[Diagnostic] = []

    def build(self) -> Tree | None:
        tree: Tree | None = None
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent) and tree is not None:
                raise self.error(event, "a spec file holds one document", "remove this one")
            if isinstance(event, yaml.NodeEvent):
                tree = self.tree(event, 0)
        return tree

    def error(self, event: yaml.Event, message: str, hint: str) -> SpecError:
        return SpecError([self.source.diagnostic(self.span(event), message, hint)])

    def span(self, first: yaml.Event, last: yaml.Event | None = None) -> Span:
        return self.source.span(first.start_mark.index, (last or first).end_mark.index)

    def tree(self, event: yaml.Event, depth: int) -> Tree:
        if isinstance(event, yaml.AliasEvent):
            raise self.error(event, "aliases (*name) are not allowed in a spec", "write the value out")
        if event.anchor is not None:
            raise self.error(event, "anchors (&name) are not allowed in a spec", "delete it")
        if event.tag is not None and event.tag != "!":
            raise self.error(event, "tags (!name) are not allowed in a spec", "delete it")
        if depth > MAX_DEPTH:
            raise self.error(event, f"nested deeper than {MAX_DEPTH} levels", "no key of a spec needs that")
        if isinstance(event, yaml.ScalarEvent):
            style = {None: "plain", "": "plain", "'": "single", '"': "double"}.get(event.style, "block")
            return self.checked(Scalar(self.source, event.value, style, event.start_mark.index, event.end_mark.index))
        first = event
        if isinstance(event, yaml.SequenceStartEvent):
            items = []
            while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
                items.append(self.tree(event, depth + 1))
            return Sequence(self.source, self.span(first, event if first.flow_style else first), tuple(items))
        pairs: dict[str, tuple[Scalar, Tree]] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            key = self.tree(event, depth + 1)
            if not isinstance(key, Scalar):
                message = "a key must be a name, not a list or a mapping"
                raise SpecError([self.source.diagnostic(key.span, message, "write `key: value`")])
            value = self.tree(next(self.events), depth + 1)
            if key.value in pairs:
                before = pairs[key.value][0].span.line
                message = f"repeated key {shown(key.value)}; it stands already in line {before}"
                self.diagnostics.append(self.source.diagnostic(key.span, message, "keep one of the two"))
                continue
            pairs[key.value] = key, value
        return Mapping(self.source, self.span(first, event if first.flow_style else first), tuple(pairs.values()))

    def checked(self, scalar: Scalar) -> Scalar:
        """A scalar whose escapes stand for nothing that a spec may not hold."""
        if not _REFUSED.search(scalar.value):
            return scalar
        for bad in _REFUSED.finditer(scalar.value):
            start = scalar.place(bad.start())
            end = max(scalar.place(bad.end()), start + 1)
            self.diagnostics.append(
                self.source.diagnostic(self.source.span(start, end), _refusal(bad), "delete its escape")
            )
        return replace(scalar, value=_REFUSED.sub("\ufffd", scalar.value))
