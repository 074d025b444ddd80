"""The phrases that the words of all kinds of plans share, and what each kind says."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from codegen.graph.nodes import ROWS, part_text
from codegen.plan.access import Access, Plan


class Words(Protocol):
    """A plan in words."""

    def kind(self) -> str:
        """The kernel, and why it is one of this kind."""
        ...

    def groups(self) -> str:
        """The axes that the kernel indexes as one each."""
        ...

    def access(self, access: Access) -> tuple[str, str, str]:
        """The value's name; how it is accessed; how in a ragged call."""
        ...

    def ragged(self) -> str:
        """How the kernel handles sizes that are not a multiple of the vector width."""
        ...


def listed(words: Iterable[str]) -> str:
    """a, b and c"""
    words = list(words)
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def axis_word(name: str) -> str:
    """An axis as a person would call it."""
    return "rows (...)" if name == ROWS else name


def value_name(plan: Plan, access: Access) -> str:
    """The value that an access reads or writes, as in the chain."""
    if access.counted:
        return f"{access.mode}({access.counted})"
    if access.array is None:
        assert access.group is not None
        return f"{access.mode}({plan.groups[access.group].axes[0]})"
    name = part_text(access.array.name, access.part)
    if access.back:
        return f"{name} at {', '.join(f'{a} - {n}' if n > 0 else f'{a} + {-n}' for a, n in access.back)}"
    if access.index_of:
        index, axis = access.index_of
        return f"take({name}, {index}, axis={axis})"
    return name


def coordinate_words(access: Access) -> tuple[str, str]:
    """How a position or a size is accessed: in any call, and in a ragged one."""
    return "the position itself, no memory" if access.mode == "index" else "the size itself, no memory", "the same"


def along(axes: Iterable[str]) -> str:
    """Axes as a person would call them: rows (...) x N."""
    return " x ".join(axis_word(axis) for axis in axes)
