"""Bounds the change of a function's value while its arguments change within intervals.

A monotonic function changes most at the ends of an interval. For other functions it also matters whether the interval
contains an extremum (of a sine), a jump (of a remainder, at each multiple of the divisor), or a pole, where the value is
unbounded.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

GELU_LEAST = (-0.7517915246935644, -0.16997120747990369)  # the minimum of gelu: its argument and its value
BITS = frozenset("and or xor mod popcount".split())  # of integers: not monotonic
DGELU_TURNS = ((2**0.5, 1.128904145185155), (-(2**0.5), -0.1289041451851548))


def reach(
    op: str, function: Callable[..., Any], values: Sequence[np.ndarray], errors: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """An operation's value at `values`, and the largest change of that value where each argument changes by up to its error:
    infinite where there is no bound."""
    value = np.asarray(function(*values))
    error = np.zeros(value.shape)
    for i, (x, e) in enumerate(zip(values, errors, strict=True)):
        if not np.any(e):
            continue
        low, high = x - e, x + e
        moved = np.zeros(value.shape)
        for end in (low, high):
            moved = np.maximum(moved, distance(function(*values[:i], end, *values[i + 1 :]), value))
        for held, there in _turns(op, i, low, high, values):
            moved = np.where(held, np.maximum(moved, distance(there, value)), moved)
        error = error + np.where(lost(x, e), np.inf, moved)
    if op == "rem":
        error = _of_remainder(value, error, *values, *errors)
    elif op == "mul":
        error = error + np.where((errors[0] > 0) & (errors[1] > 0), errors[0] * errors[1], 0)
    elif op in ("div", "pow", "atan2", "ldexp"):  # both ends at once
        for signs in itertools.product((-1, 1), repeat=2):
            corner = function(*(x + s * e for x, e, s in zip(values, errors, signs, strict=True)))
            error = np.where(np.isnan(corner), error, np.maximum(error, distance(corner, value)))
    elif op in BITS and any(map(np.any, errors)):
        # Exact where an argument is off by 1 at most: then all corners are here
        for signs in itertools.product((-1, 0, 1), repeat=len(values)):
            corner = function(*(x + s * e for x, e, s in zip(values, errors, signs, strict=True)))
            error = np.maximum(error, distance(corner, value))
        for e in errors:
            error = np.where(e > 1, np.inf, error)
    if op == "atan2":
        a, b = zip(values, errors, strict=True)
        turned = (abs(a[0]) <= a[1]) & (b[0] < b[1]) & (a[1] > 0)  # from -pi to pi
        error = np.where(turned, np.maximum(error, math.pi + np.abs(value)), error)
    return value, error


def distance(a: np.ndarray | float, b: np.ndarray) -> np.ndarray:
    """|a - b|: 0 between equal infinities or two NaN, infinite between NaN and a number."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    gap = np.abs(a - b)
    return np.where(same, 0, np.where(np.isnan(gap), np.inf, gap))


def lost(x: np.ndarray, error: np.ndarray) -> np.ndarray:
    """Where a value is NaN but may as well be a number: its interval has no ends."""
    return np.isnan(x) & np.isinf(error) if x.dtype.kind == "f" else np.zeros(x.shape, bool)


def _turns(
    op: str, place: int, low: np.ndarray, high: np.ndarray, values: Sequence[np.ndarray]
) -> Iterator[tuple[np.ndarray, float]]:
    """Where an argument's interval contains an extremum or a pole of the operation, and the operation's value there."""
    if op == "sin":
        yield _holds(low, high, math.pi / 2, 2 * math.pi), 1.0
        yield _holds(low, high, -math.pi / 2, 2 * math.pi), -1.0
    elif op == "cos":
        yield _holds(low, high, 0, 2 * math.pi), 1.0
        yield _holds(low, high, math.pi, 2 * math.pi), -1.0
    elif op == "tan":
        yield _holds(low, high, math.pi / 2, math.pi), math.inf
    elif (op, place) in (("reciprocal", 0), ("div", 1), ("rem", 1)):
        yield (low < 0) & (high > 0), math.inf
    elif (op, place) == ("pow", 0):
        yield (low < 0) & (high > 0) & (values[1] < 0), math.inf
    elif op == "exponent":
        yield (low < 0) & (high > 0), -150.0
    elif op in ("gelu", "dgelu"):
        for where, there in (GELU_LEAST,) if op == "gelu" else DGELU_TURNS:
            yield (low < where) & (where < high), there


def _holds(low: np.ndarray, high: np.ndarray, place: float, period: float) -> np.ndarray:
    """Whether an interval contains `place` plus a multiple of `period`. An interval too short for float64 contains none."""
    first = place + np.ceil((low - place) / period) * period
    return (low < high) & ((first <= high) | (high - low >= period))


def _of_remainder(
    value: np.ndarray, error: np.ndarray, a: np.ndarray, b: np.ndarray, error_a: np.ndarray, error_b: np.ndarray
) -> np.ndarray:
    """The bound of a - n * b, which changes with a and b while n, which is a / b toward zero, stays the same. Otherwise the value
    is anything below the divisor, with the sign of a. `error` is the bound from the ends of the intervals."""
    low_a, high_a, low_b, high_b = a - error_a, a + error_a, b - error_b, b + error_b
    quotients = [np.trunc(x / y) for x in (low_a, high_a) for y in (low_b, high_b)]
    least, most = np.minimum.reduce(quotients), np.maximum.reduce(quotients)
    of_b = np.where(most == 0, 0, np.abs(most) * np.maximum(high_b - b, b - low_b))
    moved = np.maximum(high_a - a, a - low_a) + of_b
    anywhere = np.maximum(np.abs(low_b), np.abs(high_b)) + np.where(low_a * high_a < 0, np.abs(value), 0)
    moved = np.where(least == most, np.minimum(moved, anywhere), anywhere)
    known = np.isfinite(least) & np.isfinite(most) & ((low_b > 0) | (high_b < 0))
    return np.where(known, moved, error)
