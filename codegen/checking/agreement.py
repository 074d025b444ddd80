"""Compares an output's elements with their allowed intervals, and reports a run of tests: the number of elements, their errors,
and the number of undecided elements, whose agreement shows nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np

from codegen.checking.bounds.records import Bound
from codegen.checking.bounds.twins import stored, ulp
from codegen.checking.draw import Case
from codegen.graph.nodes import DTYPES

TIGHT = 4.0  # ulps: in a chain with a wider bound, the chain itself magnifies rounding
INFORMATIVE = 2.0**-6  # of the value: a wider bound may hide another outcome of a comparison
ENOUGH = 64  # elements of an output, of which one at least must be decided


@dataclass
class Report:
    """The results of a run of `check_op`. Errors are in ulps of the output's type, over the floats that are decided."""

    examples: int = 0
    elements: int = 0
    tight: int = 0  # floats whose bound is below TIGHT ulps
    worst_ulp: float = 0.0  # of these
    worst_case: str = ""
    worst_of_all: float = 0.0  # of all floats with a bound, and the bound of that float
    bound_of_worst: float = 0.0
    undecided: int = 0  # elements that differ where overflow, or an uncertain comparison, allows anything
    failure: str = ""
    # Of each output: the number of elements, and of undecided ones
    decided: dict[str, list[int]] = field(default_factory=dict)

    def demand_decisions(self, op: str) -> None:
        """Raises `Disagreement` for an output without decided elements: its agreement would show nothing."""
        for name, (elements, undecided) in self.decided.items():
            if elements >= ENOUGH and undecided == elements:
                raise Disagreement(
                    f"{op}: none of {elements} elements of {name} is decided: each differs from the reference where rounding "
                    "may change a comparison, or where float32 overflows"
                )


class Disagreement(AssertionError):
    """An element is outside its allowed interval. The message names the op, the element and the case."""


class BrokenReference(Disagreement):
    """A spec's reference raised an exception."""


class EmptyCall(BrokenReference):
    """A reference raised an exception in a call with an axis of size 0, as many references do."""


@dataclass(frozen=True)
class Result:
    """An output of a call, and what it may be: in intervals around the reference's value in float64, or, where float32 overflows on the
    way, near its value in float32."""

    array: str
    dtype: str
    got: np.ndarray
    expected: np.ndarray  # in float64
    narrow: np.ndarray  # in float32
    bound: Bound


def compare(name: str, result: Result, case: Case, report: Report, made: Mapping[str, np.ndarray]) -> None:
    """Compare each element with its interval. Raises `Disagreement`, with the result's `name`."""
    got, expected, bound = result.got, result.expected, result.bound
    low = high = expected
    if DTYPES[result.dtype].kind == "bool":
        decided = got == expected
        allowed = bound.error > 0
    else:
        low, high, decided, allowed = _numbers(result, case, report)
    good, open_ = decided | allowed, allowed & ~decided
    report.elements += got.size
    report.undecided += int(np.count_nonzero(open_))
    counts = report.decided.setdefault(result.array, [0, 0])
    counts[0] += got.size
    counts[1] += int(np.count_nonzero(open_))
    if not np.all(good):
        place = tuple(int(i) for i in np.argwhere(~good)[0])
        bad = int(np.size(good) - np.count_nonzero(good))
        inputs = ", ".join(f"{n} is {x.dtype}{x.shape}" for n, x in made.items())
        raise Disagreement(
            f"{name}[{', '.join(map(str, place))}] is {got[place]}, but the reference is {expected[place]} "
            f"(allowed {low[place]} to {high[place]}); {bad} of {got.size} elements differ\n  {inputs}\n  {case}"
        )


def _numbers(result: Result, case: Case, report: Report) -> tuple[np.ndarray, ...]:
    """The ends of the intervals; which elements agree, and which are allowed although they are undecided."""
    dtype, got, expected, bound = result.dtype, result.got, result.expected, result.bound
    error, overflow = bound.error, bound.overflow
    with np.errstate(all="ignore"):
        wide = expected.astype(np.float64) if expected.dtype.kind == "f" else expected
        if wide.dtype.kind == "f" or np.any(error):
            low, high = stored(wide - error, dtype), stored(wide + error, dtype)
        else:
            low = high = stored(wide, dtype)
        numbers = np.asarray(got, np.float64)
        center = np.asarray(stored(wide, dtype), np.float64)
        equal = same(numbers, center)
        ends = np.asarray(low, np.float64), np.asarray(high, np.float64)
        within = (ends[0] <= numbers) & (numbers <= ends[1])
        # In a type without negative numbers, an interval around 0 contains NaN and the smallest numbers
        within |= np.isnan(ends[0]) & ((numbers <= ends[1]) | (np.isnan(numbers) & ~np.isnan(ends[1])))
        # Where float32 overflows on the way, so may the reference in float32, or only the chain
        value = bound.value
        model = np.asarray(stored(np.where(np.abs(value) > np.finfo(np.float32).max, np.inf * np.sign(value), value)
                                  if value.dtype.kind == "f" else value, dtype), np.float64)  # fmt: skip
        in_float32 = np.asarray(stored(result.narrow, dtype), np.float64)
        close = np.abs(numbers - in_float32) <= 1e-2 * np.abs(in_float32)
        over = overflow & (same(numbers, model) | same(numbers, in_float32) | close)
        unit = ulp(wide, dtype)
        # Results of a comparison that went the other way, and elements that may have any value
        size = np.where(np.isfinite(wide), np.abs(wide), 0)
        hidden = bound.doubt & (error > np.maximum(TIGHT * unit, INFORMATIVE * size))
        hidden &= ~(np.abs(numbers - center) <= np.maximum(TIGHT * unit, INFORMATIVE * size))
        unknown = (np.isinf(error) & ~overflow) | (overflow & ~np.isfinite(numbers))
        decided = equal | over | (within & ~hidden & ~np.isinf(error))
    if DTYPES[dtype].kind == "float" and got.size:
        _record(report, dtype, numbers, wide, np.where(overflow | hidden, np.inf, error), case)
    return low, high, decided, within | unknown


def _record(report: Report, dtype: str, numbers: np.ndarray, wide: np.ndarray, error: np.ndarray, case: Case) -> None:
    """The worst errors in ulps of the output's type: over elements whose bound is a few ulps, and over all with a bound."""
    with np.errstate(all="ignore"):
        top = float(jnp.finfo(jnp.dtype(dtype)).max)
        wide = np.clip(wide, -top, top) if jnp.dtype(dtype).itemsize == 1 else wide  # saturated values are exact
        unit: Any = ulp(wide, dtype)
        bounded = np.isfinite(wide) & np.isfinite(numbers) & np.isfinite(error)
        errors = np.where(bounded, np.abs(numbers - wide) / unit, 0)
        tight = bounded & (error < TIGHT * unit)
    report.tight += int(np.count_nonzero(tight))
    if (worst := float(np.where(tight, errors, 0).max())) > report.worst_ulp:
        report.worst_ulp, report.worst_case = worst, str(case)
    place = np.unravel_index(int(errors.argmax()), errors.shape)
    if errors[place] > report.worst_of_all:
        report.worst_of_all, report.bound_of_worst = float(errors[place]), float((error / unit)[place])


def same(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Which elements are equal, or both NaN."""
    return (a == b) | (np.isnan(a) & np.isnan(b))
