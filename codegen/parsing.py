"""Python's parser, for one thread at a time.

`ast.parse` counts how deep it is in one place for all threads (in Python 3.11, for one): two that parse at the same time
fail with "AST constructor recursion depth mismatch". So whoever parses holds `PARSER`, and so does whoever calls code that
parses: CuTe DSL reads a kernel's source while it traces it.

`PARSER` is taken last. A thread that holds it starts no JAX trace, waits for no other thread and imports no generated module. JAX
and Python's import system have locks of their own, and a thread may wait for `PARSER` while it holds one.
"""

from __future__ import annotations

import ast
import contextlib
import threading
import warnings
from collections.abc import Iterator

PARSER = threading.RLock()


def parse(text: str) -> ast.Module:
    """Statements as a syntax tree. Raises what `ast.parse` does, and SyntaxError for what it only warns of, as `1if`."""
    with _no_warnings():
        return ast.parse(text)


def parse_expression(text: str) -> ast.expr:
    """An expression as a syntax tree. Raises what `ast.parse` does."""
    with PARSER:
        return ast.parse(text, mode="eval").body


def check_compiles(text: str) -> None:
    """Raises SyntaxError for text that Python does not compile, or warns of as it does."""
    with _no_warnings():
        compile(text, _UNNAMED, "exec")


_UNNAMED = "<unknown>"  # the file, in the parser's warnings, of text that is from no file


@contextlib.contextmanager
def _no_warnings() -> Iterator[None]:
    """Warnings of the parser are errors. Filters are the process's: those of other threads' warnings stay as they are."""
    with PARSER, warnings.catch_warnings():
        warnings.filterwarnings("error", module=_UNNAMED)
        yield
