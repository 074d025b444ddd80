"""Parses YAML text to a tree of mappings, sequences and scalars, each with its place in the file.

The tree is built from PyYAML's events, not its objects. So it keeps places, repeated keys are found, scalars follow YAML
1.2 (`no` is a string, `1e-6` is a number), and aliases, tags and deep nesting are errors.
"""

from __future__ import annotations

import re
from dataclasses import replace

from codegen import extras
from codegen.errors import Diagnostic, Span, SpecError, shown
from codegen.spec.tree import Mapping, Scalar, Sequence, Source, Tree

with extras.needed("build"):
    import yaml

MAX_BYTES = 64 * 1024
MAX_DEPTH = 16

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# Characters that YAML does not allow, line breaks other than \n, lone surrogates, and marks that disguise text
_REFUSED = re.compile(
    r"[^\t\n\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
    r"|[\u061c\u200e\u200f\u2028\u2029\ufeff\u202a-\u202e\u2066-\u2069]"
)


def parse_yaml(path: str, data: bytes | str) -> tuple[Mapping, list[Diagnostic]]:
    """The mapping in a spec file, and the errors that do not prevent reading it: repeated keys, where the first one counts,
    and escapes of forbidden characters, which U+FFFD replaces. Raises `SpecError` where the file is not a YAML mapping."""
    raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    if len(raw) > MAX_BYTES:
        raise _at(
            _source(path, ""),
            0,
            f"the file has {len(raw)} bytes; a spec has at most {MAX_BYTES}",
            "split it into several ops",
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
    """A text with only the line breaks that YAML counts."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _source(path: str, text: str) -> Source:
    text = _lines(text)
    return Source(path, text)


def _at(source: Source, start: int, message: str, hint: str) -> SpecError:
    return SpecError([source.diagnostic(source.span(start, 0), message, hint)])


def _yaml_error(source: Source, error: yaml.MarkedYAMLError) -> SpecError:
    """An error of the YAML parser, with a hint."""
    start = min(error.problem_mark.index, len(source.text))
    place = source.span(start, 0)
    line = source.lines[place.line - 1]
    problem, hint = error.problem, "see `codegen new` for how a spec is written"
    indented = _indentations(source, place.line)
    if error.context_mark:
        hint = f"{error.context} that starts in line {error.context_mark.line + 1}"
    if "\t" in line[: len(line) - len(line.lstrip())]:
        problem, hint = "a tab indents this line", "YAML indents with spaces"
    elif indented is not None and (
        "expected key" in problem or ("mapping values" in problem and indented[0] > indented[1])
    ):
        problem = f"this line begins in column {indented[0]}, and the line above in column {indented[1]}"
        start += indented[0] - place.column
        hint = "the keys of one mapping begin in the same column; text of several lines follows `key: |`"
    elif "mapping values are not allowed" in problem:
        hint = "put text that contains ': ' in quotes, or write `key: |` and the text below it"
    elif "cannot start any token" in problem:
        hint = "put text that starts with this character in quotes"
    return _at(source, start, f"not valid YAML: {problem}", hint)


def _indentations(source: Source, number: int) -> tuple[int, int] | None:
    """The columns in which a line and the line above it begin, if they differ."""
    above = (row for row in reversed(source.lines[: number - 1]) if row.strip() and not row.lstrip().startswith("#"))
    own, other = (len(row) - len(row.lstrip()) + 1 for row in (source.lines[number - 1], next(above, "")))
    return (own, other) if own != other else None


class _Builder:
    """Builds a tree from the parser's events, and collects the errors that do not prevent it."""

    def __init__(self, source: Source):
        self.source = source
        self.events = iter(yaml.parse(source.text, Loader=_Loader))
        self.diagnostics: list[Diagnostic] = []

    def build(self) -> Tree | None:
        tree: Tree | None = None
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent) and tree is not None:
                raise self.error(event, "a spec file has one document", "remove this one")
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
                message = f"repeated key {shown(key.value)}; it is already in line {before}"
                self.diagnostics.append(self.source.diagnostic(key.span, message, "keep one of the two"))
                continue
            pairs[key.value] = key, value
        return Mapping(self.source, self.span(first, event if first.flow_style else first), tuple(pairs.values()))

    def checked(self, scalar: Scalar) -> Scalar:
        """A scalar; reports escapes of forbidden characters, and replaces these."""
        if not _REFUSED.search(scalar.value):
            return scalar
        for bad in _REFUSED.finditer(scalar.value):
            start = scalar.place(bad.start())
            end = max(scalar.place(bad.end()), start + 1)
            self.diagnostics.append(
                self.source.diagnostic(self.source.span(start, end), _refusal(bad), "delete its escape")
            )
        return replace(scalar, value=_REFUSED.sub("\ufffd", scalar.value))
