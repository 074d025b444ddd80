"""Selects some of many similar tests that each compile a kernel, so that all tests take some minutes on two processors.
CODEGEN_EVERY_TEST=1 runs every one. `@pytest.mark.turns(n)` marks the parameters of such a test."""

import os
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")
EVERY = os.environ.get("CODEGEN_EVERY_TEST") == "1"
SPARSER = 6  # so many times fewer sets of parameters than `turns` says
APART = 2  # so many times fewer items than `some` says
FEWER = 1 if EVERY else 12  # how many times fewer calls Hypothesis draws


def some(items: Iterable[T], step: int, first: int = 0) -> list[T]:
    """The item whose number is `first`, and those whose numbers are multiples of `step` * APART more."""
    return list(items)[0 if EVERY else first :: 1 if EVERY else step * APART]
