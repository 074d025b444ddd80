"""Parses a chain or a reference: its statements as Python's syntax trees, each with its place in the spec.

A line must be one statement that Python can parse. `chain.py` and `reference.py` check the tree. They raise an error in a tree
as `Placed`, at a node; the `Line` knows the node's place in the spec.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from codegen.errors import Diagnostic, UserError, shown
from codegen.parsing import parse
from codegen.spec.tree import Scalar

MAX_FORMULA = 4000  # characters of one statement
MAX_STATEMENTS = 500
SPLIT = "split it in several names"


class Placed(Exception):
    """An error at an ast node, and `more` errors elsewhere in the same expression."""

    def __init__(self, node: ast.AST, error: UserError):
        super().__init__(error.message)
        self.node, self.cause = node, error
        self.more: list[Placed] = []


class Follows(Placed):
    """An error that follows from another one. It is not reported."""

    def __init__(self, node: ast.AST):
        super().__init__(node, UserError("follows from another error"))


def together(makers: Iterable[Callable[[], Any]]) -> list[Any]:
    """The results of all functions. Raises the errors of all of them as one."""
    made, errors = [], []
    for make in makers:
        try:
            made.append(make())
        except Placed as error:
            errors.append(error)
    if errors:
        errors[0].more += errors[1:]
        raise errors[0]
    return made


# What a chain has instead of other statements of Python, by their first word
_STEPS = "write each step on a line of its own; h = a * h + b along an axis is scan(a, b, axis=N)"
_INSTEAD = {
    "for": _STEPS, "while": _STEPS, **dict.fromkeys(("if", "elif", "else"), "write where(condition, a, b)"),
    "def": "use its formula where it is called", "class": "a chain is formulas", "with": "a chain is formulas",
    "return": "assign every output by its name", "import": "functions are called by their plain name, as in exp(x)",
    "from": "functions are called by their plain name, as in exp(x)",
}  # fmt: skip


@dataclass(frozen=True)
class Line:
    """A statement in the text of a scalar. `tree` is None if Python cannot parse it."""

    scalar: Scalar
    line: int  # 0-based, in the scalar's text
    text: str
    tree: ast.stmt | None

    @functools.cached_property
    def first_name(self) -> str:
        """The name that it assigns, or ""."""
        if isinstance(self.tree, ast.Assign):
            target = self.tree.targets[0]
            target = target.value if isinstance(target, ast.Subscript) else target
            return target.id if isinstance(target, ast.Name) else ""
        return _first_word(re.sub(r"^\s*def\b", "", self.text))

    @functools.cached_property
    def names(self) -> set[str]:
        """The names that it assigns, or seems to, if it is not a statement of the language."""
        targets = self.tree.targets if isinstance(self.tree, ast.Assign) else []
        found = {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}
        return found | {self.first_name, *(() if self.tree else re.findall(r"(\w+)(?:\[\d+\])?\s*=(?!=)", self.text))}

    @property
    def target(self) -> str:
        """The name or the part of an output that it assigns, as text, or ""."""
        return ast.unparse(self.tree.targets[0]) if isinstance(self.tree, ast.Assign) else ""

    def at(self, row: int, column: int, length: int = 1, message: str = "", hint: str = "") -> Diagnostic:
        return self.scalar.source.diagnostic(self.scalar.at(self.line + row, column, length), message, hint)

    def diagnostics(self, error: Placed) -> list[Diagnostic]:
        own = [] if isinstance(error, Follows) else [self.diagnostic(error)]
        return [*own, *(d for more in error.more for d in self.diagnostics(more))]

    def diagnostic(self, error: Placed) -> Diagnostic:
        node: Any = error.node
        row = getattr(node, "lineno", 1) - 1
        text = self.text.split("\n")[row]
        # ast counts bytes
        column = len(text.encode()[: getattr(node, "col_offset", 0)].decode(errors="ignore"))
        end = len(text)
        if getattr(node, "end_lineno", None) == row + 1:
            end = len(text.encode()[: node.end_col_offset].decode(errors="ignore"))
        return self.at(row, column, max(1, end - column), error.cause.message, error.cause.hint)


# A string or a comment: brackets inside do not count
_NO_CODE = re.compile(r"'[^'\\]*(?:\\.[^'\\]*)*'|\"[^\"\\]*(?:\\.[^\"\\]*)*\"|#.*")


def _chunks(text: str) -> Iterator[tuple[int, str]]:
    """The statements, each with the number of its first line. A line that leaves a bracket open continues on the next one."""
    first, depth = 0, 0
    chunk: list[str] = []
    for i, row in enumerate(text.split("\n")):
        code = _NO_CODE.sub("", row)
        if not chunk and not code.strip() and code == row.partition("#")[0]:
            continue
        if not chunk:
            first = i
        chunk.append(row)
        depth += sum(code.count(c) for c in "([{") - sum(code.count(c) for c in ")]}")
        if depth <= 0:
            yield first, "\n".join(chunk)
            chunk, depth = [], 0
    if chunk:
        yield first, "\n".join(chunk)


def read_lines(scalar: Scalar, form: str = "") -> tuple[list[Line], list[Diagnostic]]:
    """The statements of a text, and an error for each one without a tree. `form` is the hint that says what a text may be; a chain
    has none."""
    lines: list[Line] = []
    diagnostics: list[Diagnostic] = []
    refused: int | None = None  # the indentation of a loop or the like, whose lines have no errors of their own
    for first, text in _chunks(scalar.value):
        if len(lines) == MAX_STATEMENTS:
            message = f"more than {MAX_STATEMENTS} statements"
            lines.append(Line(scalar, first, text, None))
            diagnostics.append(lines[-1].at(0, 0, len(text), message, "split it into several ops"))
            break
        unread = Line(scalar, first, text, None)
        start = len(text) - len(text.lstrip())
        word = _first_word(text)
        if refused is not None and (start > refused or (start == refused and word in ("elif", "else"))):
            lines.append(unread)
            continue
        refused = start if word in _INSTEAD else None
        if refused is not None:
            lines.append(unread)
            length = len(text.partition("\n")[0].rstrip()) - start
            message = f"{word!r} is not {'allowed here' if form else 'part of the language'}"
            diagnostics.append(unread.at(0, start, length, message, form or _INSTEAD[word]))
            continue
        try:
            tree, *more = parse_python(text).body
        except UserError as error:
            place = error.place or (0, start, 1)
            lines.append(unread)
            hint = _joined(scalar, form) or error.hint or form or "a statement is `name = expression`"
            diagnostics.append(unread.at(*place, error.message, hint))
            continue
        lines.append(Line(scalar, first, text, None if more else tree))
        if more:
            several = UserError("one statement a line", "write each `name = expression` on a line of its own")
            diagnostics.append(unread.diagnostic(Placed(more[0], several)))
    return lines, diagnostics


def _joined(scalar: Scalar, form: str) -> str:
    """The hint for a text whose lines YAML joins to one."""
    joined = scalar.style == "plain" and "\n" in scalar.source.text[scalar.start : scalar.end]
    return f"YAML joins these lines: write `{'reference' if form else 'chain'}: |` above them" if joined else ""


def _first_word(text: str) -> str:
    found = re.match(r"\s*([A-Za-z_]\w*)", text)
    return found[1] if found else ""


def parse_python(text: str) -> ast.Module:
    """A statement parsed by Python. Raises `UserError`, with a `place` if Python gives one."""
    if len(text) > MAX_FORMULA:
        raise UserError(f"a statement of {len(text)} characters; at most {MAX_FORMULA}", SPLIT)
    lead = len(text) - len(text.lstrip(" \t"))
    try:
        return _shifted(parse(text[lead:]), lead)
    except SyntaxError as error:
        row = max(0, (error.lineno or 1) - 1)
        column = max(0, (error.offset or 1) - 1) + (lead if row == 0 else 0)
        message = f"cannot read this: {_plain(error.msg)}"
        hint = SPLIT if "too many" in message else _instead_of_sign(text.split("\n")[row], column)
        raise UserError(message, hint, (row, column, 1)) from None
    except (RecursionError, MemoryError):
        raise UserError("nested too deeply", SPLIT) from None


# The messages of Python that users see; others differ between its versions
_KEPT = (
    "'(' was never closed", "'[' was never closed", "'{' was never closed", "unmatched", "unterminated string",
    "invalid character", "invalid non-printable", "too many nested",
)  # fmt: skip


def _plain(message: str) -> str:
    return message.partition(" (detected")[0] if message.startswith(_KEPT) else "invalid syntax"


# Signs of other languages
_SIGNS = {
    "&&": "write (a > 0) & (b > 0)", "||": "write (a > 0) | (b > 0)", "!": "write ~condition",
    "?": "write where(condition, a, b)", "²": "write x ** 2", "×": "write a * b", "·": "write a * b", "÷": "write a / b",
    "−": "write a - b", "≤": "write a <= b", "≥": "write a >= b", "≠": "write a != b", "π": "write pi", "∞": "write inf",
}  # fmt: skip


def _instead_of_sign(line: str, column: int) -> str:
    """The hint for a sign at, or just before, a column of a line; "" if there is no such sign."""
    return next((hint for sign, hint in _SIGNS.items() if sign in line[max(0, column - 1) : column + 2]), "")


def _shifted(tree: ast.Module, lead: int) -> ast.Module:
    if lead:
        for node in ast.walk(tree):
            if getattr(node, "lineno", 0) == 1:
                node.col_offset += lead  # type: ignore[attr-defined]
            if getattr(node, "end_lineno", 0) == 1:
                node.end_col_offset += lead  # type: ignore[attr-defined]
    return tree


def literal(value: object) -> str:
    """The text of a literal in a message."""
    return "..." if value is ... else shown(value) if isinstance(value, str) else shown(str(value))


def construct(tree: ast.AST) -> str:
    """The name of a Python construct in a message."""
    names = {
        "Lambda": "lambda", "List": "a list", "Dict": "a dict", "Set": "a set", "Tuple": "a tuple", "Slice": "a slice",
        "Attribute": "an attribute", "NamedExpr": "':='", "JoinedStr": "an f-string", "Starred": "'*'", "Await": "await",
        "ListComp": "a comprehension", "SetComp": "a comprehension", "DictComp": "a comprehension",
        "GeneratorExp": "a comprehension", "Yield": "yield", "YieldFrom": "yield", "BoolOp": "'and' or 'or'",
    }  # fmt: skip
    return names.get(type(tree).__name__, f"this ({type(tree).__name__})")
