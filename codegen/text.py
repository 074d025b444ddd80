"""YAML text to a tree of mappings, sequences and scalars, each with its place in the file.

The tree is built from PyYAML's events rather than its objects, so that places survive, repeated keys are seen, scalars
follow YAML 1.2 (`no` is a string, `1e-6` is a number), and aliases, tags and runaway nesting are refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import yaml

from codegen.errors import Diagnostic, Span, SpecError

MAX_BYTES = 256 * 1024
MAX_DEPTH = 16

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_INT = re.compile(r"[-+]?[0-9]{1,18}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]{1,6})?")
_SPECIAL = {".inf": float("inf"), "+.inf": float("inf"), "-.inf": float("-inf"), ".nan": float("nan")}


@dataclass(frozen=True)
class Source:
    """A file's text, for places and excerpts."""

    path: str
    text: str
    lines: tuple[str, ...] = field(repr=False)

    def diagnostic(self, span: Span, message: str, hint: str = "") -> Diagnostic:
        line = self.lines[span.line - 1] if 0 < span.line <= len(self.lines) else ""
        return Diagnostic(span, message, hint, line)


@dataclass(frozen=True)
class Scalar:
    """A scalar's text; `plain` ones may be numbers, booleans or null, as YAML 1.2's core schema says."""

    source: Source
    value: str
    style: str  # "plain", "quoted" or "block"
    line: int
    column: int
    end_line: int

    @property
    def span(self) -> Span:
        if self.style == "block" or self.end_line != self.line:
            return Span(self.source.path, self.line, self.column)
        return Span(self.source.path, self.line, self.column, len(self.value) + 2 * (self.style == "quoted"))

    def at(self, line: int, column: int, length: int = 1) -> Span:
        """The place of the text's own 0-based line and column."""
        path, lines = self.source.path, self.source.lines
        if self.style == "block":
            first = self.line  # 0-based index of the line after the indicator
            indent = next(
                (len(row) - len(row.lstrip(" ")) for row in lines[first : self.end_line] if row.strip(" ")), 0
            )
            return Span(path, first + 1 + line, indent + 1 + column, length)
        if self.end_line == self.line:
            return Span(path, self.line, self.column + column + (self.style == "quoted"), length)
        return self.span

    def resolve(self) -> None | bool | int | float | str:
        if self.style != "plain":
            return self.value
        text = self.value
        if text in ("", "~", "null", "Null", "NULL"):
            return None
        if text in ("true", "True", "TRUE"):
            return True
        if text in ("false", "False", "FALSE"):
            return False
        if _INT.fullmatch(text):
            return int(text)
        if _FLOAT.fullmatch(text):
            return float(text)
        return _SPECIAL.get(text.lower(), text)


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


def parse_yaml(path: str, data: bytes | str) -> Mapping:
    """The mapping that a spec file holds. Raises `SpecError` for whatever is not one."""
    raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    if len(raw) > MAX_BYTES:
        raise _at(path, "", 1, 1, f"the file has {len(raw)} bytes; a spec has at most {MAX_BYTES}")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        column = error.start - raw.rfind(b"\n", 0, error.start)
        raise _at(path, "", line, column, "not valid UTF-8 text") from None
    # Lines as YAML counts them
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    source = Source(path, text, tuple(text.split("\n")))
    bad = re.search(r"[^\t\n\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|[\u2028\u2029\x85\ufeff]", text)
    if bad:
        line = text.count("\n", 0, bad.start()) + 1
        column = bad.start() - text.rfind("\n", 0, bad.start())
        raise _at(path, text, line, column, f"the character U+{ord(bad.group()):04X} is not allowed in a spec")
    try:
        tree = _Builder(source).build()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        raise _at(path, text, line, column, f"not valid YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise _at(path, text, 1, 1, f"not valid YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(tree, Mapping):
        raise SpecError([source.diagnostic(Span(path, 1, 1), "a spec is a mapping of keys such as 'op' and 'chain'")])
    return tree


def _at(path: str, text: str, line: int, column: int, message: str) -> SpecError:
    source = Source(path, text, tuple(text.split("\n")))
    return SpecError([source.diagnostic(Span(path, line, column), message)])


class _Builder:
    def __init__(self, source: Source):
        self.source = source
        self.events = iter(yaml.parse(source.text, Loader=_Loader))
        self.diagnostics: list[Diagnostic] = []

    def build(self) -> Tree | None:
        tree: Tree | None = None
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent) and tree is not None:
                raise self.error(event, "a spec file holds one document; remove this one")
            if isinstance(event, yaml.NodeEvent):
                tree = self.tree(event, 0)
        if self.diagnostics:
            raise SpecError(self.diagnostics)
        return tree

    def error(self, event: yaml.Event, message: str) -> SpecError:
        return SpecError([self.source.diagnostic(self.span(event), message)])

    def span(self, event: yaml.Event) -> Span:
        mark = event.start_mark
        return Span(self.source.path, mark.line + 1, mark.column + 1)

    def tree(self, event: yaml.Event, depth: int) -> Tree:
        if isinstance(event, yaml.AliasEvent):
            raise self.error(event, "aliases (*name) are not allowed in a spec; write the value out")
        if event.anchor is not None:
            raise self.error(event, "anchors (&name) are not allowed in a spec")
        if event.tag is not None and event.tag != "!":
            raise self.error(event, "tags (!name) are not allowed in a spec")
        if depth > MAX_DEPTH:
            raise self.error(event, f"nested deeper than {MAX_DEPTH} levels")
        span = self.span(event)
        if isinstance(event, yaml.ScalarEvent):
            style = {None: "plain", "": "plain", "'": "quoted", '"': "quoted"}.get(event.style, "block")
            end = event.end_mark.line + 1
            return Scalar(self.source, event.value, style, span.line, span.column, end)
        items: list = []
        if isinstance(event, yaml.SequenceStartEvent):
            while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
                items.append(self.tree(event, depth + 1))
            return Sequence(self.source, span, tuple(items))
        seen: dict[str, Scalar] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            key = self.tree(event, depth + 1)
            if not isinstance(key, Scalar):
                raise SpecError([self.source.diagnostic(key.span, "a key must be a name, not a list or a mapping")])
            value = self.tree(next(self.events), depth + 1)
            if key.value in seen:
                first = seen[key.value]
                message = f"repeated key {key.value!r}; it stands already in line {first.line}"
                self.diagnostics.append(self.source.diagnostic(key.span, message))
            seen[key.value] = key
            items.append((key, value))
        return Mapping(self.source, span, tuple(items))
