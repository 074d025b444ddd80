"""Bounds the error of a chain's float32 result, element by element.

This is running error analysis: every value has a bound on its absolute error. An operation propagates its arguments' errors
(`intervals.py`) and adds its own rounding: half an ulp for a correctly rounded operation, a relative error of `FUNCTION`
for the functions that libraries approximate. Values closer to zero than the smallest normal number may be flushed to zero,
so every result may be off by that much. A comparison whose outcome the errors can change is uncertain. A value that it
selects has the difference of the two choices as an additional error.

A comparison of a value with its own maximum is uncertain only if several elements are within their errors of the maximum. Both
sides have the same error, so a single such element is the maximum.

Reductions, over n values x with errors e:
  sum, mean  An order of summation rounds each x once for every addition on its way to the result, d times at most. So the
             sum is off by sum(e) + d u sum(|x| + e), to first order in the unit roundoff u. A sequential sum has d = n - 1.
             Kernels and XLA sum in lanes, in windows of 32 and in trees, so `depth` allows less, and a lost element is found.
             Partial sums lie between the sum of the negative x and the sum of the positive x: where these overflow, so may a
             partial sum, whatever the size of the result. A mean divides: two more roundings.
  prod       Any order has n - 1 roundings, all of them relative: off by prod(|x| + e) - prod|x| + (n - 1) u prod(|x| + e).
             A partial product that underflows is off by the smallest normal number, times the largest product of the others.
  max, min   The largest x lies between the largest x - e and the largest x + e. Where an x may be NaN, the result is unknown.
  any, all   Uncertain where no certain element decides and an uncertain one may.

The bound covers the errors of float32 arithmetic in this chain. The expected value comes from the reference alone.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
from scipy import special

from codegen.checking.bounds import (
    BY_EXP,
    EXACT,
    FAST,
    FAST_ABSOLUTE,
    FUNCTION,
    NARROW,
    QUOTIENT,
    ROUNDED,
    Bound,
    Extreme,
    Terms,
    depth,
    nowhere,
    own_extreme,
)
from codegen.checking.intervals import distance, lost, reach
from codegen.checking.productbound import product, spacing, summed
from codegen.checking.scanbound import scanned
from codegen.checking.twins import FUNCTIONS, density, stored
from codegen.graph.contraction import is_approximable
from codegen.graph.emit import leaf_key
from codegen.graph.nodes import (
    DTYPES,
    ROWS,
    Leaf,
    Node,
    Selected,
    Statement,
    along_of,
    as_multiplied,
    lost_axes,
    picked_axes,
    topological,
)
from codegen.graph.ops import NUCLEUS, OPS, REDUCTIONS, SCANS, UNSORT


class Analysis:
    """The bounds of a chain's values. `compute` is "float32" or "float64"; values have a dimension for each axis of
    `order`, `rows` of them for `...`, or are scalars; `narrow` holds the nodes, by identity, that may be approximate. `arrays` has
    the inputs' dtypes, and `lost` the part of a product's terms that tensor cores lose, for factors of some dtypes and a number of
    terms. Integers are computed in `integer`. `by_xla` says whether XLA computes the chain."""

    def __init__(
        self,
        compute: str,
        fast: bool,
        narrow: Collection[int],
        casts: Mapping[str, str],
        order: tuple[str, ...] = (),
        rows: int = 0,
        arrays: Mapping[str, str] = MappingProxyType({}),
        lost: Callable[[Sequence[str], int], float] = lambda dtypes, count: 0.0,
        integer: str = "int32",
        by_xla: bool = False,
    ):
        info = np.finfo(compute)
        self.compute = compute
        self.unit, self.tiny, self.top = float(info.eps) / 2, float(info.smallest_normal), float(info.max)
        scale = float(info.eps) / float(np.finfo(np.float32).eps)
        self.fast = fast and compute == "float32"
        self.function = (FAST if fast else FUNCTION) * scale
        self.approximate = (FAST if fast else NARROW) * scale
        self.narrow, self.casts = narrow, casts
        self.arrays, self.lost, self.integer, self.by_xla = arrays, lost, integer, by_xla
        self.dimensions: dict[str, tuple[int, ...]] = {}
        for axis in order:
            start = sum(map(len, self.dimensions.values()))
            self.dimensions[axis] = tuple(range(start, start + (rows if axis == ROWS else 1)))

    def statements(
        self, statements: tuple[Statement, ...], leaves: Mapping[tuple[Any, ...], np.ndarray | Bound]
    ) -> dict[tuple[str, int | None], Bound]:
        """The bound of every value that the statements assign. `leaves` holds the values that they read, by `leaf_key`: exact
        values, or bounds."""
        bounds: dict[int, Bound] = {}
        results = {}
        with np.errstate(all="ignore"):
            for statement in statements:
                for node in topological([statement.value]):
                    if id(node) not in bounds:
                        args = [self.factor(a, bounds) if node.op == "contract" else bounds[id(a)] for a in node.args]
                        bound = self.node(node, args, leaves)
                        if node.kind == "int":  # it wraps
                            bound = replace(bound, value=bound.value.astype(self.integer).astype(np.int64))
                        bound = replace(bound, doubt=self.doubt(node, args))
                        bounds[id(node)] = self.divided(node, self.factored(node, bound, bounds), bounds)
                results[(statement.name, statement.part)] = bounds[id(statement.value)]
        return results

    def node(self, node: Node, args: list[Bound], leaves: Mapping[tuple[Any, ...], np.ndarray | Bound]) -> Bound:
        key = leaf_key(node)
        found = leaves.get(key)
        if isinstance(found, Bound):
            return found
        if node.is_const or key in leaves:
            value = np.asarray(node.attr if node.is_const else leaves[key])
            if node.kind == "float":
                value = value.astype(np.float64)
            inexact = node.kind == "float" and (node.is_const or node.op == "param")
            error = np.where(np.isfinite(value), np.abs(value), 0) * self.unit if inexact else np.zeros(value.shape)
            return Bound(value, error + (self.tiny if node.kind == "float" else 0), np.zeros(value.shape, bool))
        if node.op == "input":  # only a `take` reads it: its table and its index are bound as one leaf
            return Bound(np.zeros(()), np.zeros(()), np.zeros((), bool))
        if node.op in REDUCTIONS:
            return self.reduction(node, args[0])
        if node.op == "contract":
            return self.matmul(node, *args)
        if node.op == "pick":
            return self.picked(node, args, leaves)
        if node.op in SCANS:
            dimension = self.dimensions[along_of(node).axis][0]
            value, error, beyond = scanned(node, [(a.value, a.error) for a in args], dimension, self)
            return Bound(value, error, beyond | np.any([a.overflow.any() for a in args]))
        if node.op == UNSORT:
            return self.unsorted(node, *args)
        if node.op == "shift":
            return self.shifted(node, args[0])
        if node.op == NUCLEUS:
            return self.threshold(node, *args)
        if isinstance(node.attr, Selected):
            return self.selected(node, node.attr, args[0])
        overflow = functools.reduce(np.bitwise_or, (a.overflow for a in args), nowhere())
        if node.kind == "bool":
            return self.decision(node, args, overflow)
        if node.op == "where":
            value, error = self.selection(*args)
        else:
            value, error = self.function_of(node, args)
        return self.rounded(node, value, error, overflow)

    def picked(self, node: Node, args: list[Bound], leaves: Mapping[tuple[Any, ...], np.ndarray | Bound]) -> Bound:
        """A table's elements, of any error where the index is uncertain."""
        table = leaves["table", node.args[0].attr]
        assert isinstance(table, np.ndarray)
        along = dict(zip(picked_axes(node), (a.value.astype(np.int64) for a in args[1:]), strict=True))
        where = [np.clip(along[axis], 0, n - 1) for axis, n in zip(node.args[0].dims, table.shape, strict=True)]
        value = np.asarray(table[tuple(np.broadcast_arrays(*where))])
        uncertain = functools.reduce(np.logical_or, (a.error > 0 for a in args[1:]))
        error = np.where(uncertain, np.inf, self.tiny if node.kind == "float" else 0)
        return Bound(value, np.broadcast_to(error, value.shape), np.zeros(value.shape, bool))

    def default(self, value: np.ndarray) -> Bound:
        """An input's default: the reference uses the number itself, the op uses it rounded to the compute type."""
        with np.errstate(all="ignore"):
            return Bound(
                value,
                distance(value.astype(self.compute).astype(np.float64), value) + self.tiny,
                np.zeros(value.shape, bool),
            )

    def decision(self, node: Node, args: list[Bound], overflow: np.ndarray) -> Bound:
        """A bool, uncertain where the ends of its arguments' intervals disagree, or, of equality, where the intervals meet."""
        function = FUNCTIONS[node.op]
        value = np.asarray(function(*(a.value for a in args)))
        uncertain = np.zeros(value.shape, bool)
        if (extreme := own_extreme(node)) is not None:
            uncertain = self.among_rivals(args, extreme)
        elif args and args[0].value.dtype == np.bool_:
            for arg in args:
                uncertain = uncertain | (arg.error > 0)
        else:
            for signs in ((1, -1), (-1, 1), (1, 1), (-1, -1)):
                ends = [a.value + s * a.error if a.error.any() else a.value for a, s in zip(args, signs, strict=False)]
                uncertain = uncertain | (np.asarray(function(*ends)) != value)
            for arg in args:
                uncertain = uncertain | lost(arg.value, arg.error)
            if node.op in ("eq", "ne"):
                error = args[0].error + args[1].error
                uncertain = uncertain | ((error > 0) & (np.abs(args[0].value - args[1].value) <= error))
        return Bound(value, uncertain.astype(np.float64), overflow)

    def among_rivals(self, args: list[Bound], extreme: Extreme) -> np.ndarray:
        """Where a value's comparison with its own maximum or minimum is uncertain: only where several elements may be the
        extreme. A single such element is the extreme, whatever its error: both sides have the same error."""
        z, along = args[extreme.place], tuple(d for axis in extreme.axes for d in self.dimensions[axis])
        x = np.where(np.isnan(z.value), -np.inf, z.value if extreme.largest else -z.value)
        low, high = (np.where(np.isinf(z.error), s * np.inf, x + s * z.error) for s in (-1, 1))
        rival = high >= low.max(along, keepdims=True)
        alone = rival & (rival.sum(along, keepdims=True) == 1)
        nan, lost = np.isnan(z.value) & np.isfinite(z.error), np.isinf(z.error)
        certain, open_ = nan.any(along, keepdims=True), lost.any(along, keepdims=True)
        uncertain = rival & ~alone & ~(low >= high.max(along, keepdims=True))
        return np.asarray((uncertain | open_) & ~certain)

    def doubt(self, node: Node, args: list[Bound]) -> np.ndarray:
        """Where an uncertain comparison chose, here or on the way, between values whose distance is larger than their errors."""
        if node.kind == "bool" or not args:
            return nowhere()
        if isinstance(node.attr, Selected) or node.op in REDUCTIONS:
            along = node.attr.axes if isinstance(node.attr, Selected) else lost_axes(node)
            axes = tuple(d for axis in along for d in self.dimensions[axis])
            return np.asarray(np.broadcast_to(args[0].doubt, args[0].value.shape).any(axes, keepdims=True))
        if node.op == "contract":
            doubtful = any(a.doubt.any() for a in args)
            return np.full((1,) * max(a.value.ndim for a in args), doubtful)
        if node.op != "where":
            return np.asarray(functools.reduce(np.logical_or, (a.doubt for a in args)))
        condition, a, b = args
        chosen = np.where(condition.value, a.doubt, b.doubt)
        apart = np.asarray(distance(a.value, b.value) > 4 * (a.error + b.error))
        return np.where(condition.error > 0, apart | a.doubt | b.doubt, chosen)

    def factored(self, node: Node, bound: Bound, bounds: Mapping[int, Bound]) -> Bound:
        """XLA factors a power of two out of a sum: it computes a * c + b * c as (a + b) * c, and a + b may overflow."""
        if node.op not in ("add", "sub") or any(a.op != "mul" for a in node.args):
            return bound
        first, second = ([bounds[id(a)].value for a in product.args] for product in node.args)
        for (a, c), (b, d) in itertools.product((first, first[::-1]), (second, second[::-1])):
            if c.ndim == d.ndim == 0 and c == d and abs(np.frexp(c)[0]) == 0.5:
                beyond = np.isfinite(a) & np.isfinite(b) & (np.abs(a) + np.abs(b) > self.top)
                bound = replace(bound, error=np.where(beyond, np.inf, bound.error), overflow=bound.overflow | beyond)
        return bound

    def divided(self, node: Node, bound: Bound, bounds: Mapping[int, Bound]) -> Bound:
        """XLA multiplies by the reciprocal of a divisor that it broadcasts, and the CPU flushes a subnormal reciprocal to 0: the
        quotient may be 0, or NaN for an infinity."""
        if node.op != "div" or bounds[id(node.args[1])].value.size >= bound.value.size:
            return bound
        flushed = np.abs(bounds[id(node.args[1])].value) * self.tiny > 1
        return replace(bound, error=np.where(flushed, bound.error + np.abs(bound.value), bound.error))

    def selection(self, condition: Bound, a: Bound, b: Bound) -> tuple[np.ndarray, np.ndarray]:
        value = np.where(condition.value, a.value, b.value)
        error = np.where(condition.value, a.error, b.error)
        other = np.maximum(distance(a.value, b.value) + np.maximum(a.error, b.error), error)
        return value, np.where(condition.error > 0, other, error)

    def function_of(self, node: Node, args: list[Bound]) -> tuple[np.ndarray, np.ndarray]:
        function = self.evaluate(node)
        values = [a.value for a in args]
        value, error = reach(node.op, function, values, [a.error for a in args])
        if node.op in ("gelu", "dgelu"):
            # The exponent x * x / 2 is rounded, and the factor of x may be flushed. The approximations are coarser than
            # others, and that of gelu is 0 at -inf, its limit, where jnp's is NaN
            x, narrow = values[0], id(node) in self.narrow
            unit = self.approximate if narrow else 0
            if node.op == "gelu":
                far = np.where((x < -8) & narrow, 2.0**-62, 0)
                own = np.abs(value) * (4 * x**2 * self.unit + unit) + np.abs(x) * self.tiny + far
            else:
                slope = np.abs(x) * density(x)
                tail = 4 * x**2 * self.unit * (slope + special.ndtr(-np.abs(x)))
                own = (special.ndtr(x) + slope) * 2 * (unit or self.function) + tail + 16 * self.tiny
            error = error + np.where(np.isfinite(own), own, 0)
            if node.op == "gelu":
                error = np.where(narrow & (x == -np.inf), np.inf, error)
        if self.by_xla and node.op in BY_EXP:
            error = error + np.where(np.isfinite(value), np.abs(value * values[0]), 0) * self.unit
        if self.fast and node.op in FAST_ABSOLUTE:
            size, limits = np.abs(values[0]), FAST_ABSOLUTE[node.op]
            error = error + np.select([size <= limit for limit, _ in limits], [own for _, own in limits], 0.0)
        return value, error

    def contraction(self, terms: Terms) -> Bound:
        """A sum of products, in any order. Tensor cores may truncate where others round, and flush denormals."""
        unit = 2 * (terms.count + 2) * self.unit + terms.lost
        beyond = terms.size * (1 + unit) > self.top
        error = np.where(np.isfinite(terms.value), terms.size * unit, 0) + (terms.spread + terms.count + 1) * self.tiny
        return Bound(terms.value, np.where(beyond, np.inf, error), beyond)

    def factor(self, node: Node, bounds: Mapping[int, Bound]) -> Bound:
        """A factor of a product: a computed one may or may not be rounded before the reference multiplies it."""
        value = as_multiplied(node)
        if value.op != "cast" or value.args[0].kind != "float" or DTYPES[self.dtype_of(value)].size == 1:
            return bounds[id(node)]
        own = bounds[id(value.args[0])]
        return replace(own, error=own.error + spacing(own.value, self.dtype_of(value)))

    def dtype_of(self, factor: Node) -> str:
        value = as_multiplied(factor)
        if isinstance(value.attr, Leaf):
            return self.arrays[value.attr.name]
        return self.casts.get(str(value.attr), str(value.attr))

    def matmul(self, node: Node, a: Bound, b: Bound) -> Bound:
        """A product of values of the chain."""
        axes = tuple(d for axis in lost_axes(node) for d in self.dimensions[axis])
        overflow = np.asarray(a.overflow.any() | b.overflow.any())
        if node.kind == "int":
            value = summed(np.asarray(a.value, np.int64), np.asarray(b.value, np.int64), axes)
            return Bound(value, np.zeros(value.shape), overflow)
        found = product(a, b, axes)
        count = math.prod(max(a.value.shape[d], b.value.shape[d]) for d in axes)
        lost = self.lost([self.dtype_of(n) for n in node.args], count)
        bound = self.contraction(Terms(found.value, found.size, found.spread, count, lost))
        error = np.where(np.isinf(bound.error), np.inf, bound.error + found.error)
        return Bound(bound.value, error, bound.overflow | overflow)

    def reduction(self, node: Node, arg: Bound) -> Bound:
        """The reduced axes stay, with size 1."""
        axes = tuple(d for axis in lost_axes(node) for d in self.dimensions[axis])
        x = arg.value
        error, overflow = np.broadcast_to(arg.error, x.shape), np.broadcast_to(arg.overflow, x.shape)
        overflow = np.any(overflow, axes, keepdims=True)
        if node.op in ("sum", "mean"):
            return self.total(node, x, error, overflow, axes)
        if node.op == "prod":
            return self.product(node, x, error, overflow, axes)
        if node.op in ("max", "min"):
            function = np.max if node.op == "max" else np.min
            value = function(x, axes, keepdims=True)
            low, high = (
                function(np.where(np.isinf(error), s * np.inf, x + s * error), axes, keepdims=True) for s in (-1, 1)
            )
            reach = np.maximum(distance(low, value), distance(high, value))
            # An element without a bound may be NaN, and then so is the result, unless another element is certainly NaN
            open_, certain = np.isinf(error), np.isnan(x) & np.isfinite(error)
            lost = open_.any(axes, keepdims=True) & ~certain.any(axes, keepdims=True)
            return Bound(value, np.where(lost, np.inf, reach), overflow)
        decides = x if node.op == "any" else ~x
        decided = (decides & (error == 0)).any(axes, keepdims=True)
        uncertain = ~decided & (error > 0).any(axes, keepdims=True)
        value = (np.any if node.op == "any" else np.all)(x, axes, keepdims=True)
        return Bound(value, uncertain.astype(np.float64), overflow)

    def selected(self, node: Node, how: Selected, arg: Bound) -> Bound:
        """The largest elements in order, or all with the smallest first, or their positions: these are certain where no other element
        may change places with one."""
        axes, into = tuple(self.dimensions[axis][0] for axis in how.axes), self.dimensions[how.into][0]
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

    def shifted(self, node: Node, arg: Bound) -> Bound:
        """A value at another place, and any where that is outside: there it is not chosen."""
        found = [np.broadcast_to(a, arg.value.shape) for a in (arg.value, arg.error, arg.overflow)]
        assert isinstance(node.attr, tuple)
        for axis, by in node.attr:
            found = [np.roll(a, by, self.dimensions[axis][0]) for a in found]
        return Bound(*found)

    def threshold(self, node: Node, arg: Bound, mass: Bound) -> Bound:
        """A bound of `nucleus`: its threshold, and those for sums that are off by their largest error, up and down."""
        assert isinstance(node.attr, Selected)
        axis = self.dimensions[node.attr.axes[0]][0]
        x, error = (np.broadcast_to(a, arg.value.shape) for a in (np.nan_to_num(arg.value, nan=-1.0), arg.error))
        off = (error + np.abs(x) * x.shape[axis] * self.unit).sum(axis, keepdims=True) + mass.error

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

    def unsorted(self, node: Node, arg: Bound, places: Bound) -> Bound:
        """Elements at their positions; none is certain in a row of uncertain ones."""
        assert isinstance(node.attr, Selected)
        axis, at = self.dimensions[node.attr.axes[0]][0], places.value.astype(np.int64)

        def placed(values: np.ndarray) -> np.ndarray:
            found = np.broadcast_to(values, at.shape).copy()
            np.put_along_axis(found, at, np.broadcast_to(values, at.shape), axis)
            return found

        lost = (places.error > 0).any(axis, keepdims=True)
        return Bound(placed(arg.value), np.where(lost, np.inf, placed(arg.error)), placed(arg.overflow))

    def total(self, node: Node, x: np.ndarray, error: np.ndarray, overflow: np.ndarray, axes: tuple[int, ...]) -> Bound:
        """A sum or a mean."""

        def add(values: np.ndarray) -> np.ndarray:
            return values.sum(axes, keepdims=True)

        value, own = add(x), add(error)
        if node.kind == "int":
            return Bound(value, own, overflow)
        count = math.prod(x.shape[d] for d in axes)
        size = np.where(np.isfinite(x), np.abs(x), 0) + np.where(np.isfinite(error), error, 0)
        bound = own + depth(count) * self.unit * add(size) + count * self.tiny
        beyond = np.maximum(add(np.where(x > 0, size, 0)), add(np.where(x < 0, size, 0))) > self.top
        if node.op == "mean":
            value, bound = value / count, bound / max(count, 1)
            bound = bound + 2 * self.unit * np.where(np.isfinite(value), np.abs(value), 0) + self.tiny
        return Bound(value, np.where(beyond, np.inf, bound), overflow | beyond)

    def product(
        self, node: Node, x: np.ndarray, error: np.ndarray, overflow: np.ndarray, axes: tuple[int, ...]
    ) -> Bound:
        def multiply(values: np.ndarray) -> np.ndarray:
            return values.prod(axes, keepdims=True)

        value = multiply(x)
        finite = np.isfinite(x)
        size = np.where(finite, np.abs(x), 1)
        reach = size + np.where(np.isfinite(error), error, 0)
        bound = np.where(np.isinf(error).any(axes, keepdims=True), np.inf, multiply(reach) - multiply(size))
        if node.kind == "int":
            return Bound(value, np.where((error == 0).all(axes, keepdims=True), 0, bound), overflow)
        count = math.prod(x.shape[d] for d in axes)
        largest = multiply(np.maximum(reach, 1))
        bound = bound + max(count - 1, 0) * self.unit * multiply(reach) + count * self.tiny * largest
        # 0 times infinity, and the sign of an infinity, where a factor or a partial product may be 0
        zero = (size <= error).any(axes, keepdims=True) | (multiply(np.minimum(size, 1)) < self.tiny)
        beyond = (largest > self.top) | (zero & np.isinf(x).any(axes, keepdims=True))
        # Where even float64 may overflow on the way, the reference is no more exact than the chain
        return Bound(value, np.where(beyond, np.inf, bound), (overflow | beyond) & np.isfinite(largest))

    def evaluate(self, node: Node) -> Any:
        if node.op == "float":
            return lambda x: np.asarray(x).astype(np.float64)
        if node.op == "cast":
            dtype = self.casts.get(str(node.attr), str(node.attr))
            return lambda x: stored(x, dtype).astype(np.float64 if node.kind == "float" else np.int64)
        if node.kind == "int" and node.op in OPS and all(a.kind == "int" for a in node.args):
            return lambda *xs: np.asarray(FUNCTIONS[node.op](*(np.asarray(x, np.int64) for x in xs)))
        return FUNCTIONS[node.op]

    def rounded(self, node: Node, value: np.ndarray, error: np.ndarray, overflow: np.ndarray) -> Bound:
        """Adds the operation's own rounding, and overflow of the compute type's range."""
        if node.kind != "float":
            return Bound(value, error, overflow)
        if node.op not in EXACT:
            loose = id(node) in self.narrow
            unit = self.approximate if loose else self.function
            if node.op in ROUNDED:  # approximations are within 2 ulp, a division by a row's value within 3
                unit = self.unit * (6 if loose and is_approximable(node) else QUOTIENT if node.op == "div" else 1)
            error = error + np.where(np.isfinite(value), np.abs(value), 0) * unit
        error = error + self.tiny
        beyond = np.isfinite(value) & (np.abs(value) + error > self.top)
        overflow = overflow | beyond
        error = np.where(beyond, np.inf, error)
        return Bound(value, error, overflow)
