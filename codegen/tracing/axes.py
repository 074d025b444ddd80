"""The named axes of a function's arrays: finds which dimensions must be one axis.

Two dimensions are one axis where an operation combines them element by element. An axis that is divided into equal
parts, or joined from equal parts, has an axis for one of its parts. A dimension that a reshape splits, or joins from
neighbours, has several axes: then the reshape does nothing. Dimensions of size 1 have no axis: values broadcast along them by name.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from jax.lax import GatherScatterMode

from codegen.errors import UserError
from codegen.tracing.steps import Atom, Number, Step, Value

_count = itertools.count()
MOST_PARTS = 8


@dataclass(eq=False)
class Axis:
    """An axis of a given size. `same` is the axis with which it was united. One that is `divided` stands for an outer and an inner
    axis."""

    size: int
    number: int = field(default_factory=lambda: next(_count))
    same: Axis | None = None
    parts: Parts | None = None
    divided: tuple[Axis, Axis] | None = None

    @property
    def root(self) -> Axis:
        """The axis that stands for all those it was united with."""
        axis = self
        while axis.same is not None:
            axis = axis.same
        return axis

    @property
    def atoms(self) -> tuple[Axis, ...]:
        """The axes that it stands for, outer first."""
        root = self.root
        return (root,) if root.divided is None else (*root.divided[0].atoms, *root.divided[1].atoms)


@dataclass(frozen=True)
class Parts:
    """How an axis is divided into parts: their number, whether they are consecutive or interleaved, and the `axis` of
    each (None: one element). Of two parts, the one at `alone` may be one element where the other has the axis."""

    count: int
    interleaved: bool
    axis: Axis | None
    alone: int | None = None

    @property
    def own(self) -> tuple[Axis, ...]:
        """The axes of a part."""
        return () if self.axis is None else self.axis.atoms


Dims = tuple[tuple[Axis, ...], ...]


class Axes:
    """The dimensions of values, as axes."""

    def __init__(self) -> None:
        self._of: dict[Value, list[Axis | None]] = {}
        self.rows: dict[Value, Axis] = {}  # axes of one element that values have besides, before their last

    def raw(self, value: Atom) -> list[Axis | None]:
        """The axis of each dimension of a value, as far as known, None for one of size 1; a list that later steps change."""
        if isinstance(value, Number):
            return []
        if value not in self._of:
            self._of[value] = [None if size == 1 else Axis(size) for size in value.shape]
        return self._of[value]

    def dims(self, value: Atom) -> Dims:
        """The axes of each dimension of a value, after all steps were seen: none for one of size 1, several where it is split."""
        return tuple(() if a is None else a.atoms for a in self.raw(value))

    def all(self, value: Atom) -> list[Axis]:
        """The axes of a value."""
        found = [axis for own in self.dims(value) for axis in own]
        if isinstance(value, Value) and value in self.rows:
            found.insert(-1, self.rows[value])
        return found

    def union(self, a: Axis | None, b: Axis | None) -> None:
        """Make two axes one. Raises `UserError` if their sizes differ."""
        if a is None or b is None:
            return
        a, b = a.root, b.root
        if a is b:
            return
        if a.size != b.size:
            raise UserError(f"axes of {a.size} and {b.size} elements are one axis", "")
        if a.number > b.number:
            a, b = b, a
        b.same = a
        if b.divided is not None:
            self.divide(a, *b.divided)
        if b.parts is not None:
            self.cut(a, b.parts)

    def cut(self, axis: Axis, parts: Parts) -> None:
        """Cut an axis into parts: of the outer of its axes, or the inner one where they are interleaved."""
        axis = axis.root
        if axis.divided is not None:
            outer, inner = axis.divided
            own, other = (inner, outer) if parts.interleaved else (outer, inner)
            if own.size % parts.count or parts.axis is None or parts.alone is not None:
                raise UserError("an axis is cut across the axes into which it is split", TWICE)
            left = Axis(own.size // parts.count) if own.size > parts.count else None
            self.cut(own, Parts(parts.count, parts.interleaved and left is not None, left))
            if left is None:
                self.union(parts.axis, other)
            else:
                self.divide(parts.axis, *((other, left) if parts.interleaved else (left, other)))
        elif axis.parts is None:
            axis.parts = parts
        elif replace(axis.parts, axis=None) != replace(parts, axis=None):
            raise UserError("an axis is cut in two ways", TWICE if axis.parts.alone == parts.alone else NEIGHBOURS)
        else:
            self.union(axis.parts.axis, parts.axis)

    def divide(self, axis: Axis, outer: Axis, inner: Axis) -> None:
        """Let an axis stand for two."""
        axis = axis.root
        if axis.divided is not None:
            self.align(axis.atoms, (*outer.atoms, *inner.atoms))
            return
        parts, axis.parts, axis.divided = axis.parts, None, (outer, inner)
        if parts is not None:
            self.cut(axis, parts)

    def align(self, a: Sequence[Axis], b: Sequence[Axis]) -> None:
        """Divide and unite axes, so that two sequences of the same elements in the same order have the same axes. Raises `UserError`
        where they have none in common."""
        left, other = list(a), list(b)
        while left and other:
            x, y = left.pop(0).root, other.pop(0).root
            if x.size == y.size:
                self.union(x, y)
                continue
            wide, narrow, rest = (x, y, left) if x.size > y.size else (y, x, other)
            if narrow.size == 0 or wide.size % narrow.size:
                raise UserError("axes that overlap", "")
            rest.insert(0, Axis(wide.size // narrow.size))
            self.divide(wide, narrow, rest[0])
        if left or other:
            raise UserError("axes of different numbers of elements", "")

    def together(self, values: Iterable[Atom], skip: Sequence[int] = ()) -> None:
        """Unite the dimensions of values of one rank, one by one, except at the places to skip."""
        whole = [self.raw(v) for v in values if isinstance(v, Value) and v.shape]
        for other in whole[1:]:
            for place, (a, b) in enumerate(zip(whole[0], other, strict=True)):
                if place not in skip:
                    self.union(a, b)

    def see(self, step: Step) -> None:
        """Unite the dimensions that a step combines."""
        own = getattr(self, f"_{step.name.replace('-', '_')}", None)
        if own is not None:
            own(step)
        elif step.outputs:
            out = step.outputs[0]
            self.together([out, *(i for i in step.inputs if len(i.shape) == len(out.shape))])

    def _broadcast_in_dim(self, step: Step) -> None:
        given, out = self.raw(step.inputs[0]), self.raw(step.outputs[0])
        for axis, place in zip(given, step.params["broadcast_dimensions"], strict=False):
            self.union(axis, out[place])

    def _transpose(self, step: Step) -> None:
        given, out = self.raw(step.inputs[0]), self.raw(step.outputs[0])
        for axis, place in zip(out, step.params["permutation"], strict=True):
            self.union(axis, given[place])

    def _reduce(self, step: Step) -> None:
        lost = step.params["axes"]
        for value in step.inputs:
            given = [a for i, a in enumerate(self.raw(value)) if i not in lost]
            for out in step.outputs:
                for a, b in zip(given, self.raw(out), strict=True):
                    self.union(a, b)

    _reduce_sum = _reduce_max = _reduce_min = _reduce_prod = _reduce_and = _reduce_or = _argmax = _argmin = _reduce

    def _squeeze(self, step: Step) -> None:
        self._without_ones(step)

    def _without_ones(self, step: Step) -> None:
        given = [a for a in self.raw(step.inputs[0]) if a is not None]
        for a, b in zip(given, [a for a in self.raw(step.outputs[0]) if a is not None], strict=True):
            self.union(a, b)

    def _reshape(self, step: Step) -> None:
        """Dimensions of size 1 may come and go, and neighbours be split and joined."""
        given, out = ([x for x in self.raw(v) if x is not None] for v in (step.inputs[0], step.outputs[0]))
        try:
            self.align(given, out)
        except UserError:
            raise UserError(f"a reshape from {step.inputs[0].shape} to {step.outputs[0].shape}", RESHAPE) from None

    def _iota(self, step: Step) -> None:
        self.raw(step.outputs[0])

    def _dot_general(self, step: Step) -> None:
        (contracted, batch) = step.params["dimension_numbers"]
        a, b = (self.raw(v) for v in step.inputs)
        for pair in (contracted, batch):
            for i, j in zip(*pair, strict=True):
                self.union(a[i], b[j])
        free = [x for i, x in enumerate(a) if i not in (*contracted[0], *batch[0])]
        free += [x for i, x in enumerate(b) if i not in (*contracted[1], *batch[1])]
        for x, y in zip([*(a[i] for i in batch[0]), *free], self.raw(step.outputs[0]), strict=True):
            self.union(x, y)

    def _slice(self, step: Step) -> None:
        value, out = step.inputs[0], step.outputs[0]
        for place, (a, b) in enumerate(zip(self.raw(value), self.raw(out), strict=True)):
            if value.shape[place] == out.shape[place]:
                self.union(a, b)
            else:
                parts, _ = sliced(step, place)
                assert a is not None
                if parts.alone is not None and a.root.parts is None:
                    raise UserError(f"a slice of {out.shape[place]} of {value.shape[place]} elements", SLICE)
                self.cut(a, replace(parts, axis=b))

    def _split(self, step: Step) -> None:
        place, sizes = step.params["axis"], step.params["sizes"]
        if len(set(map(int, sizes))) > 1 or len(sizes) > MOST_PARTS:
            raise UserError("a split into parts of several sizes", "split into equal parts")
        self._parts(step.inputs[0], step.outputs, place)

    def _concatenate(self, step: Step) -> None:
        place = step.params["dimension"]
        sizes = [v.shape[place] for v in step.inputs]
        if len(sizes) == 2 and sizes.count(1) == 1 and 0 not in sizes:
            self._with_one(step.outputs[0], step.inputs, place, sizes.index(1))
        elif len(set(sizes)) > 1 or len(sizes) > MOST_PARTS:
            raise UserError("a concatenation of parts of several sizes", UNEQUAL)
        else:
            self._parts(step.outputs[0], step.inputs, place)

    def _with_one(self, whole: Value, parts: Sequence[Atom], place: int, alone: int) -> None:
        """One element more at an end of an axis, as a sink that a softmax has besides the scores."""
        self.together([whole, *parts], skip=(place,))
        axis, other = self.raw(whole)[place], self.raw(parts[1 - alone])[place]
        assert axis is not None
        self.cut(axis, Parts(2, False, other, alone))

    def _parts(self, whole: Atom, parts: Sequence[Atom], place: int) -> None:
        self.together(parts)
        self.together([whole, parts[0]], skip=(place,))
        axis = self.raw(whole)[place]
        if axis is not None:
            self.cut(axis, Parts(len(parts), False, self.raw(parts[0])[place]))

    def _stack(self, step: Step) -> None:
        place = step.params["axis"]
        self.together(step.inputs)
        out = list(self.raw(step.outputs[0]))
        axis = out.pop(place)
        for a, b in zip(out, self.raw(step.inputs[0]), strict=True):
            self.union(a, b)
        if axis is not None:
            self.cut(axis, Parts(len(step.inputs), False, None))

    def _unstack(self, step: Step) -> None:
        place = step.params["axis"]
        if len(step.outputs) > MOST_PARTS:
            raise UserError(f"{len(step.outputs)} elements of an axis, one by one", "")
        whole = list(self.raw(step.inputs[0]))
        axis = whole.pop(place)
        for out in step.outputs:
            for a, b in zip(whole, self.raw(out), strict=True):
                self.union(a, b)
        if axis is not None:
            self.cut(axis, Parts(len(step.outputs), False, None))

    def _gather(self, step: Step) -> None:
        how = taken(step)
        table, index, out = self.raw(step.inputs[0]), self.raw(step.inputs[1])[:-1], self.raw(step.outputs[0])
        if how is None:
            raise UserError("a gather of this form", GATHER)
        numbers = step.params["dimension_numbers"]
        if how.batched:  # as of take_along_axis: the index has all axes but one
            for place, own in zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True):
                self.union(table[place], index[own])
        else:  # the table's other axes, and the index's axes
            rest = [a for place, a in enumerate(table) if place != how.axis]
            for other, place in zip(rest, numbers.offset_dims, strict=True):
                self.union(other, out[place])
        self._each(index, out, numbers.offset_dims)

    def _each(self, index: Sequence[Axis | None], values: Sequence[Axis | None], window: Sequence[int]) -> None:
        """Unite the dimensions of an index with those of the values at it, except the dimensions `window` of a slice."""
        others = [a for place, a in enumerate(values) if place not in window]
        for own, other in zip(index, others, strict=True):
            self.union(own, other)

    def _scatter_add(self, step: Step) -> None:
        axis = added(step)
        if axis is None:
            raise UserError("a scatter-add of this form", SCATTER)
        self.together([step.inputs[0], step.outputs[0]])
        numbers = step.params["dimension_numbers"]
        table, index, value = (self.raw(v) for v in step.inputs)
        for place, own in zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True):
            self.union(table[place], index[own])
        self._each(index[:-1], value, numbers.update_window_dims)


TWICE = "use halves or interleaved pairs of it, not both"
NEIGHBOURS = (
    "in a spec, shift(x, axis=N) is the element before. It gives `fill` at the end of the axis, and does not wrap round"
)
SLICE = "the language has equal parts of an axis, x[..., :D] and x[..., D:] or x[..., ::2] and x[..., 1::2]"
UNEQUAL = "the language joins equal parts alone"
RESHAPE = "the language names axes: reshape the argument before the call, and the result after it"
SCATTER = "leave it to XLA: take(table, i, axis=P) in a spec has a gradient that adds up rows with equal indices"
GATHER = "jnp.take(x, i, axis) and jnp.take_along_axis with one index along the axis can be expressed"


def renames(given: Sequence[int], result: Sequence[int]) -> bool:
    """Whether a reshape between these shapes only splits and joins neighbouring dimensions."""
    axes = Axes()
    try:
        axes.align(*([Axis(n) for n in shape if n != 1] for shape in (given, result)))
    except UserError:
        return False
    return True


@dataclass(frozen=True)
class Taken:
    """A gather of the form of jnp.take along an axis, or, if `batched`, of take_along_axis with one index."""

    axis: int
    batched: bool


def taken(step: Step) -> Taken | None:
    """The axis along which a gather takes, if it has such a form."""
    numbers, sizes = step.params["dimension_numbers"], step.params["slice_sizes"]
    table = step.inputs[0]
    if len(numbers.start_index_map) != 1 or not isinstance(table, Value):
        return None
    axis = numbers.start_index_map[0]
    if sizes[axis] != 1 or tuple(numbers.collapsed_slice_dims) not in ((axis,), ()):
        return None
    others = [i for i in range(len(table.shape)) if i != axis]
    if list(numbers.operand_batching_dims) == others and all(s == 1 for s in sizes):
        return Taken(axis, True)
    whole = numbers.collapsed_slice_dims and all(sizes[i] == table.shape[i] for i in others)
    return Taken(axis, False) if whole and not numbers.operand_batching_dims else None


def filled(step: Step) -> bool | int | float | None:
    """What a gather gives for an index outside of the axis, where the caller chose it. JAX's own choice is NaN, or the least integer."""
    if step.params["mode"] is not GatherScatterMode.FILL_OR_DROP or step.params["fill_value"] is None:
        return None
    fill: bool | int | float = np.asarray(step.params["fill_value"]).item()
    own: bool | int = step.outputs[0].dtype == "bool"
    if "int" in step.outputs[0].dtype:
        limits = np.iinfo(step.outputs[0].dtype)
        own = int(limits.min or limits.max)
    return None if math.isnan(fill) or (own and fill == own) else fill


def added(step: Step) -> int | None:
    """The axis along which a scatter-add adds one element to each row, as the gradient of take_along_axis with one index does; None
    for other forms."""
    numbers, (table, index, value) = step.params["dimension_numbers"], step.inputs
    if len(numbers.scatter_dims_to_operand_dims) != 1:
        return None
    (axis,) = numbers.scatter_dims_to_operand_dims
    others = tuple(i for i in range(len(table.shape)) if i != axis)
    one = tuple(numbers.inserted_window_dims) == (axis,) or len(numbers.update_window_dims) == 1
    if tuple(numbers.operand_batching_dims) != others or not one:
        return None
    rows = math.prod(table.shape[i] for i in others)
    return axis if math.prod(index.shape) == math.prod(value.shape) == rows else None


def sliced(step: Step, place: int) -> tuple[Parts, int]:
    """A slice along a dimension as a part of it: how the dimension is divided, without the axis of a part, and the part's number. Raises
    `UserError` if the parts are neither equal nor one element at an end and the others."""
    whole, size = step.inputs[0].shape[place], step.outputs[0].shape[place]
    start, stride = step.params["start_indices"][place], (step.params["strides"] or {place: 1})[place]
    count = whole // size if size else 0
    if size and whole % size == 0 and count <= MOST_PARTS:
        if stride == 1 and start % size == 0:
            return Parts(count, False, None), start // size
        if stride == count and start < count:
            return Parts(count, True, None), start
    if size and stride == 1 and size + 1 == whole:
        return Parts(2, False, None, 1 - start), start
    if size == 1 and start in (0, whole - 1):
        return Parts(2, False, None, min(start, 1)), min(start, 1)
    raise UserError(f"a slice of {size} of {whole} elements", SLICE)
