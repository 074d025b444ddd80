"""Breaks long lines of generated code as a person would: at the commas of a bracket, or at operators."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

WIDTH = 120
OPENING, CLOSING = "([{", ")]}"
# Words before which a line may break, from the lowest precedence on
OPERATORS = (("if", "else"), ("or",), ("and",), ("|",), ("&",), ("+", "-"), ("*", "/", "//", "%"))
ASSIGNING = ("+=", "-=", "*=", "/=", "//=", "%=", "&=", "|=", "^=", "**=", "<<=", ">>=", "@=")

# A string, or a comment: quotes in it do not begin one
STRING = r"""\"\"\"(?:\\.|[^\\])*?\"{3}|'''(?:\\.|[^\\])*?'{3}|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'"""
_STRING = re.compile(rf"{STRING}|#[^\n]*", re.DOTALL)
_NUMBER = r"(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][+-]?\d+)?"
_SIGN = r"\.\.\.|->|:=|(?:\*\*|//|<<|>>|[-+*/%&|^@=<>!])=|\*\*|//|<<|>>|\S"
_TOKEN = re.compile(
    rf"(\s*)(?:(#.*)|((?=[A-Za-z]{{0,2}}[\"'])[A-Za-z]{{0,2}}(?:{STRING})|[^\W\d]\w*|{_NUMBER}|{_SIGN}))"
)


def wrapped(text: str, width: int = WIDTH) -> str:
    """Python source with lines longer than `width` broken. Each logical line of the source is on one line, unless it
    has a string of several lines. A comment at the end of a broken line is put above it."""
    if all(len(line) <= width for line in text.split("\n")):
        return text
    inside = _lines_of_strings(text)
    lines: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        lines += [line] if len(line) <= width or number in inside else _broken(line, width)
    return "\n".join(lines)


def _lines_of_strings(text: str) -> set[int]:
    """The numbers of the lines of strings that have several lines."""
    found: set[int] = set()
    for match in _STRING.finditer(text):
        if "\n" in match[0]:
            first = text.count("\n", 0, match.start()) + 1
            found |= set(range(first, first + match[0].count("\n") + 1))
    return found


class _Word(NamedTuple):
    """A word of a line. A build makes hundreds of thousands."""

    text: str
    spaced: str  # with the space before it, if there is one


def _broken(line: str, width: int) -> list[str]:
    """One line of code, on as many lines as it needs."""
    code = line.lstrip()
    indent = line[: len(line) - len(code)]
    words, comment = _words(code)
    if not words:
        return [line]
    return [*([indent + comment] if comment else []), *_laid_out(words, indent, "", width)]


def _words(code: str) -> tuple[list[_Word], str]:
    """The tokens of a piece of code, and the comment after it."""
    found, comment = [], ""
    for space, after, text in _TOKEN.findall(code):
        if after:
            comment = after
        else:
            found.append(_Word(text, " " + text if space else text))
    return found, comment


def _join(words: list[_Word]) -> str:
    return "".join([w.spaced for w in words]).removeprefix(" ")


def _laid_out(words: list[_Word], indent: str, tail: str, width: int) -> list[str]:
    """Words at an indent, with `tail` after them."""
    text = indent + _join(words) + tail
    if len(text) <= width:
        return [text]
    pair = _widest(words)
    if pair is None:
        return _at_operators(words, indent, tail, width) or [text]
    first, last = pair
    head, inner, rest = words[: first + 1], words[first + 1 : last], words[last:]
    if not _fits_alone(words, first, last, width - len(indent)):
        return _at_operators(words, indent, tail, width) or _at_targets(words, indent, tail, width) or [text]
    return [indent + _join(head), *_filled(inner, indent + "    ", width), indent + _join(rest) + tail]


def _at_targets(words: list[_Word], indent: str, tail: str, width: int) -> list[str]:
    """An assignment to several names, in parentheses on their own lines; [] for another statement."""
    equals = _value(words) - 1
    if not any(w.text == "," and not _depth(words[:i]) for i, w in enumerate(words[: max(0, equals)])):
        return []
    rest = [_Word(")", ")"), *words[equals:]]
    return [indent + "(", *_filled(words[:equals], indent + "    ", width), *_laid_out(rest, indent, tail, width)]


def _fits_alone(words: list[_Word], first: int, last: int, width: int) -> bool:
    """Whether the parts before and after a bracket are short enough for their own lines."""
    return len(_join(words[: first + 1])) <= width and len(_join(words[last:])) <= width


def _widest(words: list[_Word]) -> tuple[int, int] | None:
    """The outermost brackets with the most text between them."""
    found: list[tuple[int, int, int]] = []
    open_at: list[int] = []
    for i, word in enumerate(words):
        if word.text in OPENING:
            open_at.append(i)
        elif word.text in CLOSING and open_at:
            start = open_at.pop()
            if not open_at and i > start + 1:
                found.append((len(_join(words[start:i])), start, i))
    return max(found, default=(0, 0, 0))[1:] if found else None


def _filled(words: list[_Word], indent: str, width: int) -> list[str]:
    """The items between brackets, as many on each line as fit."""
    items = list(_split(words, (",",), after=True))
    if len(items) == 1:
        return _at_operators(items[0], indent, "", width) or _laid_out(items[0], indent, "", width)
    if items[-1][-1].text != "," and not any(w.text == "for" for w in words):
        items[-1] = [*items[-1], _Word(",", ",")]
    lines, current = [], ""
    for item in items:
        text = _join(item)
        if current and len(indent) + len(current) + 1 + len(text) <= width:
            current += " " + text
            continue
        lines += [indent + current] if current else []
        current = text
        if len(indent) + len(text) > width:
            *more, last = _laid_out(item, indent, "", width)
            lines += more
            current = last.removeprefix(indent)
    return [*lines, indent + current]


def _at_operators(words: list[_Word], indent: str, tail: str, width: int) -> list[str]:
    """An expression broken before operators: those outside brackets with the lowest precedence; [] if there are none."""
    if len(indent + _join(words) + tail) <= width:
        return [indent + _join(words) + tail]
    if words[-1].text == ",":
        return _at_operators(words[:-1], indent, "," + tail, width)
    start = _value(words)
    body = words[start:]
    for operators in OPERATORS:
        parts = list(_split(body, operators, after=False))
        if len(parts) > 1:
            break
    else:
        return []
    if start:
        inner = _at_operators(body, indent + "    ", "", width)
        space = "" if words[start - 1].text == "=" and words[start - 1].spaced == "=" else " "  # of a keyword argument
        return [indent + _join(words[:start]) + space + "(", *inner, indent + ")" + tail]
    lines, current = [], ""
    for part in parts:
        text = _join(part)
        if current and len(indent) + len(current) + 1 + len(text) + len(tail) <= width:
            current += " " + text
            continue
        lines += [indent + current] if current else []
        current = text
        if len(indent) + len(text) + len(tail) > width:
            *more, last = _laid_out(part, indent, "", width)
            lines += more
            current = last.removeprefix(indent)
    return [*lines, indent + current + tail]


def _value(words: list[_Word]) -> int:
    """The place of the first word of the value that a statement assigns or returns; 0 for other statements."""
    for i, word in enumerate(words):
        if word.text == "lambda":
            break
        if (word.text in ("=", "return") or word.text in ASSIGNING) and not _depth(words[:i]):
            return i + 1
    return 0


def _depth(words: list[_Word]) -> int:
    return sum((w.text in OPENING) - (w.text in CLOSING) for w in words)


def _split(words: list[_Word], at: tuple[str, ...], after: bool) -> Iterator[list[_Word]]:
    """The words in pieces that begin with (or end with) one of some words outside brackets, and not between a lambda's parameters."""
    piece: list[_Word] = []
    depth, named = 0, False
    for word in words:
        if depth == 0:
            named = word.text == "lambda" or (named and word.text != ":")
        split = depth == 0 and not named and word.text in at and (after or (bool(piece) and word.spaced != word.text))
        if split and not after:
            yield piece
            piece = []
        depth += (word.text in OPENING) - (word.text in CLOSING)
        piece.append(word)
        if split and after:
            yield piece
            piece = []
    if piece:
        yield piece
