"""Bounds the error of values that are chosen by position: selections, sorts, shifts, and elements of tables."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from codegen.checking.bounds.intervals import distance
from codegen.checking.bounds.records import Bound
from codegen.graph.nodes import Node, Selected, picked_axes

Dimensions = Mapping[str, tuple[int, ...]]  # of values, by axis


def selected(node: Node, how: Selected, arg: Bound, dimensions: Dimensions) -> Bound:
    """The largest elements in order, or all with the smallest first, or their positions: these are certain where no other element
    may change places with one."""
    axes, into = tuple(dimensions[axis][0] for axis in how.axes), dimensions[how.into][0]
    ends, shape = tuple(range(-len(axes), 0)), arg.value.shape

    def along(a: np.ndarray) -> np.ndarray:
        moved = np.moveaxis(np.broadcast_to(a, shape), axes, ends)
        return moved.reshape(*moved.shape[: -len(axes)], math.prod(shape[axis] for axis in axes))

    x, error, overflow = (along(a) for a in (arg.value, arg.error, arg.overflow))
    # Of a sort, the largest of the negated elements, among which NaN is the smallest
    sign, last = (-1, x.shape[-1]) if how.sorts else (1, how.count)
    numbers = np.where(np.isnan(x), sign * np.inf, sign * x)
    order = np.lexsort((-numbers, np.isnan(x) == how.sorts), axis=-1)  # stable: equal elements stay in order
    low, high = (np.where(np.isinf(error), s * np.inf, numbers + s * error) for s in (-1, 1))
    if node.op in ("top_k", "sort"):
        value = np.take_along_axis(x, order, -1)
        both = [-np.sort(-end, axis=-1) for end in (low, high)]
        own = np.maximum(*(distance(end, np.take_along_axis(numbers, order, -1)) for end in both))
    else:
        value = order
        low, high = (np.take_along_axis(end, order, -1) for end in (low, high))
        before = np.minimum.accumulate(low, -1)
        after = np.maximum.accumulate(high[..., ::-1], -1)[..., ::-1]
        moved = np.zeros(value.shape, bool)
        moved[..., 1:] |= high[..., 1:] > before[..., :-1]
        moved[..., :-1] |= low[..., :-1] < after[..., 1:]
        own = np.where(moved, np.inf, 0.0)
    own = np.where(np.isinf(error).any(-1, keepdims=True), np.inf, own)
    overflow = np.broadcast_to(overflow.any(-1, keepdims=True), value.shape)

    def back(a: np.ndarray) -> np.ndarray:
        kept = a[..., :last]
        kept = kept.reshape(*kept.shape, *(1,) * (len(axes) - 1))
        return np.swapaxes(np.moveaxis(kept, ends, axes), axes[0], into)

    return Bound(back(value), back(own), back(overflow))


def threshold(arg: Bound, mass: Bound, axis: int, unit: float) -> Bound:
    """A bound of `nucleus`: its threshold, and those for sums that are off by their largest error, up and down."""
    x, error = (np.broadcast_to(a, arg.value.shape) for a in (np.nan_to_num(arg.value, nan=-1.0), arg.error))
    off = (error + np.abs(x) * x.shape[axis] * unit).sum(axis, keepdims=True) + mass.error

    def least(some: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        order = -np.sort(-np.maximum(some, 0), axis=axis)
        short = np.cumsum(order, axis) - order < np.maximum(wanted, 0)  # before it the sum does not reach the mass
        short |= order == order.max(axis, keepdims=True, initial=0)
        found = np.where(short, order, np.inf).min(axis, keepdims=True, initial=np.inf)
        return np.where(order.sum(axis, keepdims=True) < wanted, 0, found)

    value = least(x, mass.value)
    ends = least(x - error, mass.value + off), least(x + error, mass.value - off)
    own = np.maximum(*(np.where(end == value, 0, np.abs(end - value)) for end in ends))
    return Bound(value, own, np.asarray(np.broadcast_to(arg.overflow, x.shape).any(axis, keepdims=True)))


def unsorted(arg: Bound, places: Bound, axis: int) -> Bound:
    """Elements at their positions; none is certain in a row of uncertain ones."""
    at = places.value.astype(np.int64)

    def placed(values: np.ndarray) -> np.ndarray:
        found = np.broadcast_to(values, at.shape).copy()
        np.put_along_axis(found, at, np.broadcast_to(values, at.shape), axis)
        return found

    lost = (places.error > 0).any(axis, keepdims=True)
    return Bound(placed(arg.value), np.where(lost, np.inf, placed(arg.error)), placed(arg.overflow))


def shifted(node: Node, arg: Bound, dimensions: Dimensions) -> Bound:
    """A value at another place, and any where that is outside: there it is not chosen."""
    found = [np.broadcast_to(a, arg.value.shape) for a in (arg.value, arg.error, arg.overflow)]
    assert isinstance(node.attr, tuple)
    for axis, by in node.attr:
        found = [np.roll(a, by, dimensions[axis][0]) for a in found]
    return Bound(*found)


def picked(node: Node, args: Sequence[Bound], table: np.ndarray, tiny: float) -> Bound:
    """A table's elements, of any error where the index is uncertain."""
    along = dict(zip(picked_axes(node), (a.value.astype(np.int64) for a in args[1:]), strict=True))
    where = [np.clip(along[axis], 0, n - 1) for axis, n in zip(node.args[0].dims, table.shape, strict=True)]
    value = np.asarray(table[tuple(np.broadcast_arrays(*where))])
    uncertain = functools.reduce(np.logical_or, (a.error > 0 for a in args[1:]))
    error = np.where(uncertain, np.inf, tiny if node.kind == "float" else 0)
    return Bound(value, np.broadcast_to(error, value.shape), np.zeros(value.shape, bool))
