"""Bounds the error of a reduction over n values x with errors e:

sum, mean  An order of summation rounds each x once for every addition on its way to the result, d times at most. So the
           sum is off by sum(e) + d u sum(|x| + e), to first order in the unit roundoff u. A sequential sum has d = n - 1.
           Kernels and XLA sum in lanes, in windows of 32 and in trees, so `depth` allows less, and a lost element is found.
           Partial sums lie between the sum of the negative x and the sum of the positive x: where these overflow, so may a
           partial sum, whatever the size of the result. A mean divides: two more roundings.
prod       Any order has n - 1 roundings, all of them relative: off by prod(|x| + e) - prod|x| + (n - 1) u prod(|x| + e).
           A partial product that underflows is off by the smallest normal number, times the largest product of the others.
max, min   The largest x lies between the largest x - e and the largest x + e. Where an x may be NaN, the result is unknown.
any, all   Uncertain where no certain element decides and an uncertain one may.
"""

from __future__ import annotations

import math

import numpy as np

from codegen.checking.bounds.intervals import distance
from codegen.checking.bounds.records import Arithmetic, Bound, depth
from codegen.graph.nodes import Node


def reduced(node: Node, arg: Bound, axes: tuple[int, ...], how: Arithmetic) -> Bound:
    """The bound of a reduction over some dimensions, which stay with size 1."""
    x = arg.value
    error, overflow = np.broadcast_to(arg.error, x.shape), np.broadcast_to(arg.overflow, x.shape)
    overflow = np.any(overflow, axes, keepdims=True)
    if node.op in ("sum", "mean"):
        return _total(node, x, error, overflow, axes, how)
    if node.op == "prod":
        return _product(node, x, error, overflow, axes, how)
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


def _total(
    node: Node, x: np.ndarray, error: np.ndarray, overflow: np.ndarray, axes: tuple[int, ...], how: Arithmetic
) -> Bound:
    """A sum or a mean."""

    def add(values: np.ndarray) -> np.ndarray:
        return values.sum(axes, keepdims=True)

    value, own = add(x), add(error)
    if node.kind == "int":
        return Bound(value, own, overflow)
    count = math.prod(x.shape[d] for d in axes)
    size = np.where(np.isfinite(x), np.abs(x), 0) + np.where(np.isfinite(error), error, 0)
    bound = own + depth(count) * how.unit * add(size) + count * how.tiny
    beyond = np.maximum(add(np.where(x > 0, size, 0)), add(np.where(x < 0, size, 0))) > how.top
    if node.op == "mean":
        value, bound = value / count, bound / max(count, 1)
        bound = bound + 2 * how.unit * np.where(np.isfinite(value), np.abs(value), 0) + how.tiny
    return Bound(value, np.where(beyond, np.inf, bound), overflow | beyond)


def _product(
    node: Node, x: np.ndarray, error: np.ndarray, overflow: np.ndarray, axes: tuple[int, ...], how: Arithmetic
) -> Bound:
    """A product of elements."""

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
    bound = bound + max(count - 1, 0) * how.unit * multiply(reach) + count * how.tiny * largest
    # 0 times infinity, and the sign of an infinity, where a factor or a partial product may be 0
    zero = (size <= error).any(axes, keepdims=True) | (multiply(np.minimum(size, 1)) < how.tiny)
    beyond = (largest > how.top) | (zero & np.isinf(x).any(axes, keepdims=True))
    # If a partial product may overflow in float64 too, the reference is as wrong as the chain
    return Bound(value, np.where(beyond, np.inf, bound), (overflow | beyond) & np.isfinite(largest))
