"""Writes data as readable literals of Python."""

from __future__ import annotations

import json
import re
from typing import Any

from codegen.render.wrapping import WIDTH

INDENT = 4
_TEXT = json.JSONEncoder(ensure_ascii=False)


def dict_literal(data: dict[str, Any]) -> str:
    """A dict with a line or more for each key. A text of several lines is in triple quotes, unchanged."""
    return _expanded(data, 0)


def line_literal(data: dict[str, Any]) -> str:
    """A dict on one line."""
    return _flat(data)


def _literal(value: object, indent: int, before: int) -> str:
    """A value `before` characters into a line; a collection that is too wide has one item on each line."""
    if isinstance(value, str) and "\n" not in value:
        return _line(value, indent, before)
    if not isinstance(value, dict | list):
        return _scalar(value)
    text = _flat(value)
    return text if "\n" not in text and before + len(text) < WIDTH else _expanded(value, indent)


def _flat(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_scalar(key)}: {_flat(item)}" for key, item in value.items()) + "}"
    return "[" + ", ".join(map(_flat, value)) + "]" if isinstance(value, list) else _scalar(value)


def _expanded(value: dict[str, Any] | list[Any], indent: int) -> str:
    inner = indent + INDENT
    items = value.items() if isinstance(value, dict) else [(None, item) for item in value]
    lines = []
    for key, item in items:
        start = " " * inner + (f"{_scalar(key)}: " if isinstance(value, dict) else "")
        lines.append(f"{start}{_literal(item, inner, len(start))},\n")
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return f"{opening}\n{''.join(lines)}{' ' * indent}{closing}"


def _line(text: str, indent: int, before: int) -> str:
    """A text of one line; where it is too wide, in pieces that Python joins, broken after spaces."""
    whole = _scalar(text)
    if before + len(whole) < WIDTH:
        return whole
    inner, pieces = " " * (indent + INDENT), [""]
    for word in re.findall(r"\S*\s*", text):
        if len(inner) + len(_scalar(pieces[-1] + word)) > WIDTH and pieces[-1]:
            pieces.append("")
        pieces[-1] += word
    return "\n".join(["(", *(inner + _scalar(piece) for piece in pieces), " " * indent + ")"])


def _scalar(value: object) -> str:
    if not isinstance(value, str):
        return repr(value)
    return _block(value) if "\n" in value else _TEXT.encode(value)


def _block(text: str) -> str:
    """A text in triple quotes, which can neither end the string nor contain an escape."""
    text = text.replace("\\", "\\\\")
    text = re.sub(r'"{3,}|"+\Z', lambda quotes: quotes[0].replace('"', '\\"'), text)
    return f'"""\\\n{text}"""'
