"""Optional libraries, which running an op does not need, and the error where one is missing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


class MissingExtra(ImportError):
    """A library of one of the distribution's extras is not installed."""


@contextlib.contextmanager
def needed(extra: str) -> Iterator[None]:
    """A context for imports of the libraries of an extra (`build`, `interpret`, `test`, `bench`). Raises `MissingExtra`, whose
    message has the command that installs them, where one is missing."""
    try:
        yield
    except MissingExtra:
        raise
    except ModuleNotFoundError as error:
        raise MissingExtra(f"{error.name} is not installed: pip install 'cutefuse[{extra}]'", name=error.name) from None
