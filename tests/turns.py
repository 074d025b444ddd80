"""Of tests that are many and alike, and each compile a kernel: some, so that all tests take a quarter of an hour on two
processors; every one where CODEGEN_EVERY_TEST=1 asks for them. `@pytest.mark.turns(n)` says so of a test's parameters."""

import os
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")
EVERY = os.environ.get("CODEGEN_EVERY_TEST") == "1"
SPARSER = 4  # how many times fewer sets of parameters than `turns` says, so that all tests take 12 minutes
FEWER = 1 if EVERY else 3  # by how much, of calls that Hypothesis draws


def some(items: Iterable[T], step: int, first: int = 0) -> list[T]:
    """One of so many, beginning with the `first`."""
    return list(items)[0 if EVERY else first :: 1 if EVERY else step]
