"""How a kernel computes an array's address from an element's position: groups of axes, views and accesses.

Axes that every array treats alike are collapsed into one group, so most ops have two groups (rows and columns) or need
none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from codegen.graph.nodes import Leaf, Node
from codegen.plan.launches import PlannedCall
from codegen.spec.spec import Array

INT_MAX = 2**31 - 1

# One for each mode of an array's view: a group's position, "parts", or an axis that only a table has
Tokens = tuple[int | str, ...]
ModeOf = Callable[[Tokens], str]  # how an array is reached
Extent = Callable[[tuple[str, ...]], int]  # some axes to the product of their sizes


@dataclass(frozen=True)
class Group:
    """Neighbouring axes that all arrays have together. The kernel has one coordinate for them."""

    name: str  # the name of its size in the kernel
    axes: tuple[str, ...]

    @property
    def coordinate(self) -> str:
        return "row" if self.name == "rows" else f"i{self.name}"


@dataclass(frozen=True)
class View:
    """An array as the kernel sees it: one mode for each group, and one for its parts. A token is a group's position,
    "parts", or an axis that only a table has."""

    array: Array
    tokens: tuple[int | str, ...]


@dataclass(frozen=True)
class Access:
    """How the kernel reaches one input, one output, or one part of it."""

    name: str  # the value's name in the chain
    array: Array | None
    part: int | None
    mode: str  # flat, tile, turned, row, scalar, gather, index, size, or table: whole, for computed indices
    tokens: tuple[int | str, ...] = ()
    group: int | None = None  # index: the group with the coordinate
    index_of: tuple[str, str] | None = None  # take, or put: (index input, table axis)
    into: str = ""  # put: the input whose elements the output has elsewhere
    written: tuple[str, ...] = ()  # put: the axes of what is written
    how: str = "set"  # put: or add, max, min
    back: tuple[tuple[str, int], ...] = ()  # shift: axes, and how many places back along each
    counted: str = ""  # size, index: the axis, where it is no group of its own

    @property
    def interleaved(self) -> bool:
        """Whether the parts at a column are neighbours in memory."""
        return self.mode == "flat" and self.tokens[-1:] == ("parts",)


class BoundTypes(Protocol):
    """The dtypes that a call's arrays give to the type variables."""

    def dtype(self, array: Array | str) -> str: ...


class Plan(Protocol):
    """The part of a plan that every kind has."""

    @property
    def kind(self) -> str: ...
    @property
    def groups(self) -> tuple[Group, ...]: ...
    @property
    def collapsed(self) -> bool: ...
    @property
    def views(self) -> tuple[View, ...]: ...
    @property
    def loads(self) -> tuple[Access, ...]: ...
    @property
    def stores(self) -> tuple[Access, ...]: ...
    @property
    def order(self) -> tuple[str, ...]:
        """Every axis, in the order of the jnp form's operands."""

    @property
    def extremes(self) -> tuple[Node, ...]:
        """The reductions whose result is one of their elements: max and min."""

    @property
    def vector_group(self) -> int:
        """The group along which vectors lie, counted from the first or from the last."""

    @property
    def counted(self) -> tuple[tuple[int, ...], ...]:
        """The groups whose sizes a launch depends on: those of columns, of rows, and of places that have rows of their own."""

    @property
    def full(self) -> tuple[tuple[Array, int], ...]:
        """The arrays that are accessed in vectors, and how many of their elements one access takes at a position."""

    def view(self, name: str) -> View: ...
    def edges(self, call: PlannedCall) -> tuple[int, ...]:
        """The sizes of the innermost axis at which the kernel changes its method, for tests."""


class Unreduced:
    """A plan without reductions along rows or over them: those of attention are within a tile's rows, and stages have their own."""

    vector_group: ClassVar[int] = -1
    rows: ClassVar[tuple[()]] = ()
    columns: ClassVar[tuple[()]] = ()
    inner: ClassVar[tuple[()]] = ()
    apart: ClassVar[tuple[()]] = ()

    @property
    def between(self) -> tuple[str, ...]:
        """The names of the arrays that one of its kernels writes for another, in messages."""
        return ()

    @property
    def counted(self) -> tuple[tuple[int, ...], ...]:
        return ()


def access_key(plan: Plan, access: Access) -> tuple[Any, ...]:
    """The key of an access's value in the chain's graph (`emit.leaf_key`)."""
    if access.counted:
        return access.mode, access.counted
    if access.array is None:
        assert access.group is not None
        return access.mode, plan.groups[access.group].axes[0]
    leaf = Leaf(access.array.name, access.part)
    if access.mode == "table":
        return "table", leaf
    if access.back:
        return "shift", leaf, access.back
    if access.index_of:
        index, axis = access.index_of
        return "take", leaf, Leaf(index), axis
    return "input", leaf


def tokens_of(array: Array, groups: tuple[Group, ...]) -> tuple[int | str, ...]:
    """One token for each mode of the array's view: a group's position, "parts", or the axis that only a table has."""
    tokens: list[int | str] = []
    for dim in array.dims:
        names: list[int | str] = []
        for axis in dim.names:
            place = next((i for i, g in enumerate(groups) if axis in g.axes), axis)
            if not names or names[-1] != place:
                names.append(place)
        if dim.parts is not None:
            names = ["parts", *names] if dim.parts_first else [*names, "parts"]
        tokens += names if not tokens or not names or tokens[-1] != names[0] else names[1:]
    return tuple(tokens)
