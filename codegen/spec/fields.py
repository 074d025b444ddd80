"""Reads the values under a spec's keys (texts, choices, mappings) and collects their errors."""

from __future__ import annotations

from pathlib import Path

from codegen.errors import Diagnostic, Span, UserError, shown
from codegen.spec.tree import LARGEST, Mapping, Scalar, Tree

_MAX_LINE = 300  # characters of a summary or a parameter's doc


class Fields:
    """The keys of a spec's tree, and the errors found so far."""

    def __init__(self, tree: Mapping, path: Path):
        self.tree, self.path, self.stem = tree, path, path.stem
        self.source = tree.source
        self.values = {key.value: value for key, value in tree.items}
        self.keys = {key.value: key for key, _ in tree.items}
        self.diagnostics: list[Diagnostic] = []
        self.places: dict[tuple[str, str], Span] = {}
        self.unread: set[Span] = set()  # scalars whose error is reported: they get no second one

    def error(self, span: Span, message: str, hint: str = "") -> None:
        """Report an error, unless one of this place is reported already."""
        if span not in self.unread:
            self.diagnostics.append(self.source.diagnostic(span, message, hint))

    def resolved(self, value: Tree, infinite: bool = False) -> bool | int | float | str | None:
        """The value of a scalar; None for a collection, and for a number outside the range of float64, which is reported.
        `infinite` says whether infinity is allowed instead."""
        try:
            return value.resolve() if isinstance(value, Scalar) else None
        except UserError as error:
            self.error(value.span, error.message, error.hint if infinite else LARGEST)
            self.unread.add(value.span)
            return None

    def text(self, key: str) -> Scalar | None:
        """The scalar of a key; None if there is none, or for an error, which is reported."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, Scalar) or not value.value.strip():
            self.error(
                self.span(key),
                f"{key!r} must be text",
                f"write `{key}: ...` in one line, or `{key}: |` and the lines below it",
            )
            return None
        return value

    def span(self, key: str) -> Span:
        """The place of a key's value, or of the key where there is no value."""
        value = self.values[key]
        return value.span if not isinstance(value, Scalar) or value.value else self.keys[key].span

    def line(self, key: str) -> str:
        """The text of a key on one line, "" if there is none."""
        value = self.text(key)
        return "" if value is None else self.sentence(key, value)

    def sentence(self, key: str, value: Scalar) -> str:
        """Text on one line."""
        text = " ".join(value.value.split())
        if len(text) > _MAX_LINE:
            hint = f"it has at most {_MAX_LINE}; a `#` comment may be longer"
            self.error(value.span, f"{key!r} has {len(text)} characters", hint)
        return text

    def choice(self, key: str, choices: tuple[str, ...], default: str) -> str:
        """The word of a key, one of the choices; the default if there is none, or for an error, which is reported."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, Scalar) or value.value not in choices:
            got = shown(value.value) if isinstance(value, Scalar) else "a collection"
            self.error(self.span(key), f"{key!r} is {got}", f"it must be one of {', '.join(choices)}")
            return default
        return value.value

    def mapping(self, key: str) -> tuple[tuple[Scalar, Tree], ...]:
        """The entries of a key; none if there is no such key, or for an error, which is reported."""
        value = self.values.get(key)
        if value is None:
            return ()
        if not isinstance(value, Mapping):
            self.error(
                self.span(key), f"{key!r} must be a mapping", f"write `{key}:` and below it one `name: ...` per line"
            )
            return ()
        return value.items

    def declared(self, key: str) -> list[str]:
        """The names that a mapping declares, valid or not."""
        value = self.values.get(key)
        return [name.value for name, _ in value.items] if isinstance(value, Mapping) else []
