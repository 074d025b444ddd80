"""The records that running error analysis (`analysis.py`) keeps of a value, a matrix product and a comparison; how a chain's numbers are
computed, and the errors that this allows."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field

import numpy as np

from codegen.graph.nodes import Node, lost_axes

# The allowed relative error of a function that no standard rounds correctly: 8 ulp of float32. The libraries document 1 to
# 5 ulp, XLA's vectorised functions a little more.
FUNCTION = 2.0**-20
# Where every output is narrower than float32, the approximations of `math: auto` (ops.py)
NARROW = 2.0**-16
# `math: fast` may use the hardware's approximations. The coarsest (tanh) has a relative error of 2**-11. Others also have an
# absolute error where the result is near 0: pairs (largest magnitude of the argument, error), from the PTX manual (ISA 9.0,
# 9.7.3).
FAST = 2.0**-10
_FAST_CIRCULAR = ((2 * math.pi, 2.0**-20.5), (100 * math.pi, 2.0**-14.7), (math.inf, 2.0))
FAST_ABSOLUTE = {
    "sin": _FAST_CIRCULAR, "cos": _FAST_CIRCULAR, "log": ((2.0, 2.0**-22),), "log2": ((2.0, 2.0**-22),),
}  # fmt: skip
# The error of a quotient, in halves of an ulp (`device/math/division.py`)
QUOTIENT = 1 + 2.0**-17
# XLA computes these of exp, whose argument it rounds: exp2(x) is exp(x log(2)), sinh(x) has exp(x - log(2))
BY_EXP = frozenset(("exp2", "sinh", "cosh"))
# Operations without rounding
EXACT = frozenset(
    "where cast neg abs maximum minimum floor ceil round sign stop_gradient ldexp _pinned _others".split()
)
# Operations that are correctly rounded, or nearly so
ROUNDED = frozenset(
    "add sub mul div neg abs sqrt reciprocal maximum minimum floor ceil round rem sign where float".split()
)


def depth(count: int) -> float:
    """The most additions between one of `count` values and their sum: a window, then as many as in windows of sqrt(n)."""
    return min(max(count - 1, 0), 32 + math.sqrt(count))


def nowhere() -> np.ndarray:
    """The flag of a value without doubt."""
    return np.zeros((), bool)


@dataclass(frozen=True)
class Arithmetic:
    """How a chain's numbers are computed: floats in `compute`, "float32" or "float64", integers in `integer`; whether all functions may
    be the hardware's approximations (`fast`); whether XLA computes the chain."""

    compute: str = "float32"
    fast: bool = False
    integer: str = "int32"
    by_xla: bool = False

    @functools.cached_property
    def unit(self) -> float:
        """The unit roundoff: half the distance between 1 and the next number."""
        return float(np.finfo(self.compute).eps) / 2

    @functools.cached_property
    def tiny(self) -> float:
        """The smallest normal number."""
        return float(np.finfo(self.compute).smallest_normal)

    @functools.cached_property
    def top(self) -> float:
        """The largest number."""
        return float(np.finfo(self.compute).max)

    @property
    def function(self) -> float:
        """The relative error of a function that no standard rounds correctly."""
        return (FAST if self.fast else FUNCTION) * self._scale

    @property
    def approximate(self) -> float:
        """The relative error of a function where approximations are allowed."""
        return (FAST if self.fast else NARROW) * self._scale

    @property
    def _scale(self) -> float:
        return self.unit / (float(np.finfo(np.float32).eps) / 2)


@dataclass(frozen=True)
class Bound:
    """A value, and the bound of its error (for a bool: 1 where it is uncertain). Also where float32 overflowed on the way, and
    where an uncertain comparison chose between values that are far apart (`doubt`): the bound then covers both."""

    value: np.ndarray
    error: np.ndarray
    overflow: np.ndarray
    doubt: np.ndarray = field(default_factory=nowhere)


@dataclass(frozen=True)
class Terms:
    """A contraction: its value, the sums of its terms' and of its factors' magnitudes (both over finite ones), and the number of
    terms. Tensor cores may lose the part `lost` of the first sum in addition to float32's roundings."""

    value: np.ndarray
    size: np.ndarray
    spread: np.ndarray
    count: int
    lost: float

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.value, self.size, self.spread

    def of(self, value: np.ndarray, size: np.ndarray, spread: np.ndarray) -> Terms:
        """The terms for some of the elements."""
        return Terms(value, size, spread, self.count, self.lost)


@dataclass(frozen=True)
class Extreme:
    """A comparison of a value with its own maximum (`largest`) or minimum over `axes`, and which argument is the value."""

    place: int
    largest: bool
    axes: tuple[str, ...]


def own_extreme(node: Node) -> Extreme | None:
    """The `Extreme` of a comparison of a value with its own maximum or minimum; None for other comparisons."""
    if len(node.args) != 2:
        return None
    axes: tuple[str, ...]
    for place, value in enumerate(node.args):
        other, axes = node.args[1 - place], ()
        op = other.op
        while op in ("max", "min") and other.op == op:
            other, axes = other.args[0], axes + lost_axes(other)
        if axes and other is value:
            return Extreme(place, op == "max", axes)
    return None
