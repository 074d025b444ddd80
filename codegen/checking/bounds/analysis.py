"""Bounds the error of a chain's float32 result, element by element.

This is running error analysis: every value has a bound on its absolute error. An operation propagates its arguments' errors
(`intervals.py`) and adds its own rounding: half an ulp for a correctly rounded operation, a relative error of `FUNCTION`
for the functions that libraries approximate. Values closer to zero than the smallest normal number may be flushed to zero,
so every result may be off by that much. A comparison whose outcome the errors can change is uncertain. A value that it
selects has the difference of the two choices as an additional error.

A comparison of a value with its own maximum is uncertain only if several elements are within their errors of the maximum. Both
sides have the same error, so a single such element is the maximum.

`reductions.py`, `scans.py`, `products.py` and `selections.py` have the errors of operations on several elements.

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

from codegen.checking.bounds.intervals import distance, lost, reach
from codegen.checking.bounds.products import product, spacing, summed
from codegen.checking.bounds.records import (
    BY_EXP,
    EXACT,
    FAST_ABSOLUTE,
    QUOTIENT,
    ROUNDED,
    Arithmetic,
    Bound,
    Extreme,
    Terms,
    nowhere,
    own_extreme,
)
from codegen.checking.bounds.reductions import reduced
from codegen.checking.bounds.scans import scanned
from codegen.checking.bounds.selections import picked, selected, shifted, threshold, unsorted
from codegen.checking.bounds.twins import FUNCTIONS, density, stored
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
    topological,
)
from codegen.graph.ops import NUCLEUS, OPS, REDUCTIONS, SCANS, UNSORT


class Analysis:
    """The bounds of a chain's values, computed as `how` says. `dimensions` are those that values have for each axis, unless they are
    scalars; `narrow` holds the nodes, by identity, that may be approximate. `casts` has the dtypes of type variables, `arrays` those of
    the inputs, and `lost` the part of a product's terms that tensor cores lose, for factors of some dtypes and a number of terms."""

    def __init__(
        self,
        how: Arithmetic,
        dimensions: Mapping[str, tuple[int, ...]],
        narrow: Collection[int] = (),
        casts: Mapping[str, str] = MappingProxyType({}),
        arrays: Mapping[str, str] = MappingProxyType({}),
        lost: Callable[[Sequence[str], int], float] = lambda dtypes, count: 0.0,
    ):
        self.how, self.dimensions, self.narrow = how, dimensions, narrow
        self.casts, self.arrays, self.lost = casts, arrays, lost

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
                            bound = replace(bound, value=bound.value.astype(self.how.integer).astype(np.int64))
                        bound = replace(bound, doubt=self.doubt(node, args))
                        bounds[id(node)] = self.divided(node, self.factored(node, bound, bounds), bounds)
                results[(statement.name, statement.part)] = bounds[id(statement.value)]
        return results

    def node(self, node: Node, args: list[Bound], leaves: Mapping[tuple[Any, ...], np.ndarray | Bound]) -> Bound:
        """The bound of a node, from the bounds of its arguments or from the leaves."""
        key = leaf_key(node)
        found = leaves.get(key)
        if isinstance(found, Bound):
            return found
        if node.is_const or key in leaves:
            value = np.asarray(node.attr if node.is_const else leaves[key])
            if node.kind == "float":
                value = value.astype(np.float64)
            inexact = node.kind == "float" and (node.is_const or node.op == "param")
            error = np.where(np.isfinite(value), np.abs(value), 0) * self.how.unit if inexact else np.zeros(value.shape)
            return Bound(value, error + (self.how.tiny if node.kind == "float" else 0), np.zeros(value.shape, bool))
        if node.op == "input":  # only a `take` reads it: its table and its index are bound as one leaf
            return Bound(np.zeros(()), np.zeros(()), np.zeros((), bool))
        if node.op in REDUCTIONS:
            return reduced(node, args[0], self.lost_dimensions(node), self.how)
        if node.op == "contract":
            return self.matmul(node, *args)
        if node.op == "pick":
            table = leaves["table", node.args[0].attr]
            assert isinstance(table, np.ndarray)
            return picked(node, args, table, self.how.tiny)
        if node.op in SCANS:
            dimension = self.dimensions[along_of(node).axis][0]
            value, error, beyond = scanned(node, [(a.value, a.error) for a in args], dimension, self.how)
            return Bound(value, error, beyond | np.any([a.overflow.any() for a in args]))
        if node.op == "shift":
            return shifted(node, args[0], self.dimensions)
        if isinstance(node.attr, Selected):
            return self.chosen(node, node.attr, args)
        overflow = functools.reduce(np.bitwise_or, (a.overflow for a in args), nowhere())
        if node.kind == "bool":
            return self.decision(node, args, overflow)
        if node.op == "where":
            value, error = self.selection(*args)
        else:
            value, error = self.function_of(node, args)
        return self.rounded(node, value, error, overflow)

    def chosen(self, node: Node, how: Selected, args: list[Bound]) -> Bound:
        """The bound of a selection, a sort, their derivative, or a threshold."""
        axis = self.dimensions[how.axes[0]][0]
        if node.op == UNSORT:
            return unsorted(args[0], args[1], axis)
        if node.op == NUCLEUS:
            return threshold(args[0], args[1], axis, self.how.unit)
        return selected(node, how, args[0], self.dimensions)

    def lost_dimensions(self, node: Node) -> tuple[int, ...]:
        """The dimensions of the axes over which a node reduces or contracts."""
        return tuple(d for axis in lost_axes(node) for d in self.dimensions[axis])

    def default(self, value: np.ndarray) -> Bound:
        """An input's default: the reference uses the number itself, the op uses it rounded to the compute type."""
        with np.errstate(all="ignore"):
            return Bound(
                value,
                distance(value.astype(self.how.compute).astype(np.float64), value) + self.how.tiny,
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
                beyond = np.isfinite(a) & np.isfinite(b) & (np.abs(a) + np.abs(b) > self.how.top)
                bound = replace(bound, error=np.where(beyond, np.inf, bound.error), overflow=bound.overflow | beyond)
        return bound

    def divided(self, node: Node, bound: Bound, bounds: Mapping[int, Bound]) -> Bound:
        """XLA multiplies by the reciprocal of a divisor that it broadcasts, and the CPU flushes a subnormal reciprocal to 0: the
        quotient may be 0, or NaN for an infinity."""
        if node.op != "div" or bounds[id(node.args[1])].value.size >= bound.value.size:
            return bound
        flushed = np.abs(bounds[id(node.args[1])].value) * self.how.tiny > 1
        return replace(bound, error=np.where(flushed, bound.error + np.abs(bound.value), bound.error))

    def selection(self, condition: Bound, a: Bound, b: Bound) -> tuple[np.ndarray, np.ndarray]:
        """The value and error of `where`: with an uncertain condition, also the distance to the other choice."""
        value = np.where(condition.value, a.value, b.value)
        error = np.where(condition.value, a.error, b.error)
        other = np.maximum(distance(a.value, b.value) + np.maximum(a.error, b.error), error)
        return value, np.where(condition.error > 0, other, error)

    def function_of(self, node: Node, args: list[Bound]) -> tuple[np.ndarray, np.ndarray]:
        """The value of an operation, and its error from the arguments' errors and its approximation, before it is `rounded`."""
        function = self.evaluate(node)
        values = [a.value for a in args]
        value, error = reach(node.op, function, values, [a.error for a in args])
        if node.op in ("gelu", "dgelu"):
            # The exponent x * x / 2 is rounded, and the factor of x may be flushed. The approximations are coarser than
            # others, and that of gelu is 0 at -inf, its limit, where jnp's is NaN
            x, narrow = values[0], id(node) in self.narrow
            unit = self.how.approximate if narrow else 0
            if node.op == "gelu":
                far = np.where((x < -8) & narrow, 2.0**-62, 0)
                own = np.abs(value) * (4 * x**2 * self.how.unit + unit) + np.abs(x) * self.how.tiny + far
            else:
                slope = np.abs(x) * density(x)
                tail = 4 * x**2 * self.how.unit * (slope + special.ndtr(-np.abs(x)))
                own = (special.ndtr(x) + slope) * 2 * (unit or self.how.function) + tail + 16 * self.how.tiny
            error = error + np.where(np.isfinite(own), own, 0)
            if node.op == "gelu":
                error = np.where(narrow & (x == -np.inf), np.inf, error)
        if self.how.by_xla and node.op in BY_EXP:
            error = error + np.where(np.isfinite(value), np.abs(value * values[0]), 0) * self.how.unit
        if self.how.fast and self.how.compute == "float32" and node.op in FAST_ABSOLUTE:
            size, limits = np.abs(values[0]), FAST_ABSOLUTE[node.op]
            error = error + np.select([size <= limit for limit, _ in limits], [own for _, own in limits], 0.0)
        return value, error

    def contraction(self, terms: Terms) -> Bound:
        """A sum of products, in any order. Tensor cores may truncate where others round, and flush denormals."""
        unit = 2 * (terms.count + 2) * self.how.unit + terms.lost
        beyond = terms.size * (1 + unit) > self.how.top
        rounding = np.where(np.isfinite(terms.value), terms.size * unit, 0)
        error = rounding + (terms.spread + terms.count + 1) * self.how.tiny
        return Bound(terms.value, np.where(beyond, np.inf, error), beyond)

    def factor(self, node: Node, bounds: Mapping[int, Bound]) -> Bound:
        """A factor of a product: a computed one may or may not be rounded before the reference multiplies it."""
        value = as_multiplied(node)
        if value.op != "cast" or value.args[0].kind != "float" or DTYPES[self.dtype_of(value)].size == 1:
            return bounds[id(node)]
        own = bounds[id(value.args[0])]
        return replace(own, error=own.error + spacing(own.value, self.dtype_of(value)))

    def dtype_of(self, factor: Node) -> str:
        """The dtype in which a factor of a product is multiplied."""
        value = as_multiplied(factor)
        if isinstance(value.attr, Leaf):
            return self.arrays[value.attr.name]
        return self.casts.get(str(value.attr), str(value.attr))

    def matmul(self, node: Node, a: Bound, b: Bound) -> Bound:
        """A product of values of the chain."""
        axes = self.lost_dimensions(node)
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

    def evaluate(self, node: Node) -> Any:
        """The operation in NumPy: floats in float64, integers in int64."""
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
            unit = self.how.approximate if loose else self.how.function
            if node.op in ROUNDED:  # approximations are within 2 ulp, a division by a row's value within 3
                unit = self.how.unit * (6 if loose and is_approximable(node) else QUOTIENT if node.op == "div" else 1)
            error = error + np.where(np.isfinite(value), np.abs(value), 0) * unit
        error = error + self.how.tiny
        beyond = np.isfinite(value) & (np.abs(value) + error > self.how.top)
        overflow = overflow | beyond
        error = np.where(beyond, np.inf, error)
        return Bound(value, error, overflow)


def dimensions_of(order: Sequence[str], rows: int) -> dict[str, tuple[int, ...]]:
    """The dimensions that values have for each axis of `order`: `rows` of them for `...`."""
    found: dict[str, tuple[int, ...]] = {}
    for axis in order:
        start = sum(map(len, found.values()))
        found[axis] = tuple(range(start, start + (rows if axis == ROWS else 1)))
    return found
