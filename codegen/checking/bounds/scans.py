"""Bounds the error of a scan: part of running error analysis (`analysis.py`).

A state h_t = a_t h_(t-1) + b_t may be computed in any association. M_t = |a_t| M_(t-1) + |b_t| bounds every partial result that
ends at t. An operand's error reaches a state as it does in the recurrence. Each of the at most t + 8 combinations on its way rounds
a product and a sum of at most M_t. A partial product of the a that underflows is off by the smallest normal number, times the
states and the products around it. Where these overflow, the result may be anything.

A running sum is such a recurrence with a = 1, and a running product is one with b = 0. A running maximum lies between the
running maxima of x - e and of x + e. The exponentials of cumlogsumexp are positive. So the relative error of its sum is that of
the largest term, and each of the at most t + 8 combinations adds that of an exponential and of a sum.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from codegen.checking.bounds.records import Arithmetic
from codegen.graph.nodes import Node, along_of

EXTRA = 8  # more combinations, between threads and between tiles


Values = tuple[np.ndarray, np.ndarray]  # and their errors


def scanned(
    node: Node, args: Sequence[Values], dimension: int, how: Arithmetic
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The states, their errors, and where float32 overflows on the way. `dimension` is the scanned one."""
    along = along_of(node)
    whole = np.broadcast_shapes(*(v.shape for v, _ in args[:2]), *(v.shape for v, _ in args[2:]))
    size = whole[dimension]

    def ordered(x: np.ndarray, count: int = size) -> np.ndarray:
        shape = (*whole[:dimension], count, *whole[dimension + 1 :])
        moved = np.moveaxis(np.broadcast_to(x, shape), dimension, 0)
        return moved[::-1] if along.reverse else moved

    one, zero = np.ones(()), np.zeros(())
    operands = [(ordered(value), ordered(error)) for value, error in args[:2]]
    if node.op in ("cummax", "cumlogsumexp"):
        found = _maxima(*operands[0]) if node.op == "cummax" else _exponentials(*operands[0], how)
        start: Values = (-np.inf * one, zero)
    else:
        none = (ordered(zero), ordered(zero))
        if node.op == "scan":
            a, b = operands
            start = ordered(args[2][0], 1)[0], ordered(args[2][1], 1)[0]
        elif node.op == "cumsum":
            a, b, start = (ordered(one), ordered(zero)), operands[0], (zero, zero)
        else:
            a, b, start = operands[0], none, (one, zero)
        found = _linear(a, b, start, how)
    states, errors, beyond = found
    if along.before:
        first = (start[0], start[1], np.zeros((), bool))
        states, errors, beyond = (
            np.concatenate([np.broadcast_to(f, x.shape[1:])[None], x])[:size] for f, x in zip(first, found, strict=True)
        )

    def back(x: np.ndarray) -> np.ndarray:
        return np.moveaxis(x[::-1] if along.reverse else x, 0, dimension)

    return back(states), np.where(back(beyond), np.inf, back(errors)), back(beyond)


def _linear(a: Values, b: Values, start: Values, how: Arithmetic) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    shape = np.broadcast_shapes(a[0].shape, b[0].shape)
    h, error = (np.broadcast_to(x, shape[1:]).astype(np.float64) for x in start)
    size, product, largest, below = np.abs(h), np.ones(shape[1:]), np.abs(h), np.ones(shape[1:])
    states, errors, beyond = np.zeros(shape), np.zeros(shape), np.zeros(shape, bool)
    lost = np.zeros(shape[1:], bool)
    for t in range(shape[0]):
        factor, added = np.abs(a[0][t]) + a[1][t], np.abs(b[0][t]) + b[1][t]
        error = factor * error + a[1][t] * size + b[1][t]
        size = factor * size + added
        product = np.maximum(product, 1) * factor
        below = np.minimum(below, 1) * np.where(np.abs(a[0][t]) == 0, 1, np.abs(a[0][t]))
        h = a[0][t] * h + b[0][t]
        largest = np.maximum(largest, size)
        lost = lost | ~np.isfinite(size) | (size > how.top) | (product > how.top)
        flushed = np.where(below < how.tiny, largest * np.maximum(product, 1), 0) + np.maximum(product, 1)
        own = (2 * (t + 1) + EXTRA) * how.unit * size + (t + 1) * how.tiny * flushed
        states[t], errors[t], beyond[t] = h, error + own, lost
    return states, errors, beyond


def _maxima(x: np.ndarray, error: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    states = np.maximum.accumulate(x, 0)
    low, high = (np.maximum.accumulate(x + s * error, 0) for s in (-1, 1))
    reach = np.maximum(np.abs(high - states), np.abs(states - low))
    same = np.isinf(states) & (high == states) & (low == states)
    return states, np.where(same | np.isnan(states), 0, reach), np.zeros(x.shape, bool)


def _exponentials(x: np.ndarray, error: np.ndarray, how: Arithmetic) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    states = np.logaddexp.accumulate(x, 0) if x.size else x
    steps = np.arange(1, x.shape[0] + 1).reshape(-1, *(1,) * (x.ndim - 1)) + EXTRA
    size = np.where(np.isfinite(states), np.abs(states), 0)
    # the exponents are differences of values as large as the largest: each is rounded once
    spread = np.maximum.accumulate(np.where(np.isfinite(x), np.abs(x), 0), 0)
    own = steps * (2 * how.function + how.unit * 2 * spread) + size * 4 * how.unit
    reach = np.maximum.accumulate(error, 0) if x.size else error
    return states, np.where(np.isfinite(states), reach + own + how.tiny, 0), np.zeros(x.shape, bool)
