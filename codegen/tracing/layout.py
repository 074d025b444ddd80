"""The axes of a spec's arrays: which of them are the rows `...`, and the names of the others."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from codegen.errors import UserError
from codegen.tracing.axes import UNEQUAL, Axes, Axis, Parts
from codegen.tracing.formulas import REDUCING, Formula, walk
from codegen.tracing.steps import Value

ROWS = "..."
POSITIONS = ("B", "S", "H")  # the axes before the last one, from the right
POOL = "NMCPQEFGIJLRUVWXYZA"


@dataclass(frozen=True)
class Dim:
    """A dimension of an array: its axis, or the axis of its parts; None for a part of one element."""

    axis: Axis | None
    parts: Parts | None = None


@dataclass(frozen=True)
class ArrayOf:
    """An input or an output: its name, dtype and dimensions. A dimension of size 1 is left out, and one that is split is several."""

    name: str
    dtype: str
    dims: tuple[Dim, ...]
    value: Value

    @property
    def axes(self) -> list[Axis]:
        return [d.axis for d in self.dims if d.axis is not None]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape in which the op takes or gives the array."""
        return tuple((d.axis.size if d.axis else 1) * (d.parts.count if d.parts else 1) for d in self.dims)

    @property
    def is_split(self) -> bool:
        """Whether the op has several dimensions for one of the function's."""
        return self.shape != tuple(n for n in self.value.shape if n != 1)


def array_of(name: str, value: Value, axes: Axes, dtype: str = "") -> ArrayOf:
    """An input or an output. Raises `UserError` for one that another array and one element more are."""
    if any(a.parts is not None and a.parts.alone is not None for a in axes.all(value)):
        raise UserError("an array to which one element was added", UNEQUAL)
    dims = [d for own in axes.dims(value) for d in _dims_of(own)]
    if value in axes.rows:
        dims.insert(-1, Dim(axes.rows[value]))
    return ArrayOf(name, dtype or value.dtype, tuple(dims), value)


def _dims_of(axes: Sequence[Axis]) -> Iterator[Dim]:
    """The dimensions of an array for axes that are one dimension of a value. An axis and single elements of it are `(2 N)` or `(N 2)`."""
    left = list(axes)
    while left:
        axis = left.pop(0)
        parts, after = axis.parts, left[0] if left else None
        if parts is not None and not parts.own and after is not None and after.parts is None:
            yield Dim(left.pop(0), Parts(parts.count, False, after))
        elif parts is None and after is not None and after.parts is not None and not after.parts.own:
            yield Dim(axis, Parts(after.parts.count, True, axis))
            left.pop(0)
        elif parts is None or not parts.own:
            yield Dim(None if parts else axis, parts)
        else:  # of the parts' axes the first or, of interleaved parts, the last is cut
            cut = len(parts.own) - 1 if parts.interleaved else 0
            yield from (Dim(a, parts if place == cut else None) for place, a in enumerate(parts.own))


@dataclass(frozen=True)
class Layout:
    """Names of axes. `rows` are the axes that are `...`; `order` are the others, in the order of the chain's values."""

    rows: tuple[Axis, ...]
    names: dict[Axis, str]
    order: tuple[Axis, ...]

    def dims(self, array: ArrayOf) -> str:
        """The array's dimensions as a spec writes them."""
        found = [ROWS] if self.has_rows(array.axes) else []
        for dim in array.dims:
            if dim.axis in self.rows:
                continue
            name = "" if dim.axis is None else self.names[dim.axis]
            if dim.parts is None:
                found.append(name)
            elif dim.axis is None:
                found.append(str(dim.parts.count))
            else:
                pair = (name, str(dim.parts.count)) if dim.parts.interleaved else (str(dim.parts.count), name)
                found.append(f"({' '.join(pair)})")
        return ", ".join(found)

    def has_rows(self, axes: Iterable[Axis]) -> bool:
        return bool(self.rows) and bool(set(self.rows) & set(axes))

    def axis(self, axes: Iterable[Axis]) -> str:
        """Axes as an argument of a reduction."""
        given = set(axes)
        found = [ROWS] if self.has_rows(given) else []
        found += [self.names[a] for a in self.order if a in given]
        return found[0] if len(found) == 1 else f"({', '.join(found)})"

    def used(self, axes: Iterable[Axis]) -> list[str]:
        given = set(axes)
        return ([ROWS] if self.has_rows(given) else []) + [self.names[a] for a in self.order if a in given]


def layouts(inputs: Sequence[ArrayOf], outputs: Sequence[ArrayOf], formulas: Sequence[Formula]) -> Iterator[Layout]:
    """The possible names of axes: first with as many axes as possible as rows, last without rows."""
    arrays = [*outputs, *inputs]
    widest = max(arrays, key=lambda a: len(a.dims))
    for count in range(max(0, len(widest.dims) - 1), -1, -1):
        rows = tuple(d.axis for d in widest.dims[:count] if d.axis is not None and d.parts is None)
        if len(rows) == count and (not rows or _may_be_rows(rows, arrays, formulas)):
            yield _named(rows, widest, arrays, formulas)


def _may_be_rows(rows: tuple[Axis, ...], arrays: Sequence[ArrayOf], formulas: Sequence[Formula]) -> bool:
    """Whether all arrays have these axes first, or none of them, and no formula treats one of them alone."""
    own = set(rows)
    for array in arrays:
        if own & set(array.axes) and tuple(d.axis for d in array.dims[: len(rows)] if d.parts is None) != rows:
            return False
    for formula in walk(formulas):
        if formula.op in REDUCING and isinstance(formula.attr, frozenset):
            if own & formula.attr and not own <= formula.attr:
                return False
            if own <= formula.attr and formula.op == "dot" and len(own) == 1:
                return False  # one axis that is contracted has a name
        elif (formula.op in ("index", "size", "take") and formula.attr in own) or (
            isinstance(formula.attr, tuple) and formula.attr and formula.attr[0] in own
        ):
            return False
    return True


def _named(rows: tuple[Axis, ...], widest: ArrayOf, arrays: Sequence[ArrayOf], formulas: Sequence[Formula]) -> Layout:
    order = [d.axis for d in widest.dims if d.axis is not None and d.axis not in rows]
    for array in arrays:
        for place, axis in enumerate(array.axes):
            if axis not in order and axis not in rows:
                after = [order.index(a) for a in array.axes[:place] if a in order]
                order.insert(max(after) + 1 if after else 0, axis)
    contracted = {a for f in walk(formulas) if f.op == "dot" for a in f.attr}
    tables = {f.attr for f in walk(formulas) if f.op == "take"}
    names: dict[Axis, str] = {}

    def name(axis: Axis, *wished: str) -> None:
        if axis not in names:
            free = (
                n
                for n in itertools.chain(wished, POOL, (f"A{i}" for i in itertools.count()))
                if n not in names.values()
            )
            names[axis] = next(free)

    for axis in order:
        if axis in contracted:
            name(axis, "K")
        if axis in tables:
            name(axis, "P", "Q")
    main = [d for d in widest.dims if d.axis is not None and d.axis not in rows]
    if main and main[-1].axis is not None:
        name(main[-1].axis, "D" if main[-1].parts else "N")
    for place, dim in enumerate(main[-2::-1] if len(main) > 1 else ()):
        if dim.axis is not None:
            name(dim.axis, *reversed(POSITIONS[: len(POSITIONS) - place]))
    for axis in order:
        name(axis)
    return Layout(rows, names, tuple(order))
