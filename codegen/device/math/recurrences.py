"""Partial results of scans: what threads exchange of the elements that they have.

A partial result is a tuple of numbers that `combine` joins: (a, b) for h = a h + b, (largest, sum of exponentials) for
cumlogsumexp, one number for others.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Numeric

from codegen.device.math.elementary import LN2, LOG2E

Element: TypeAlias = tuple[Any, ...]


def identity(op: str, dtype: type[Numeric]) -> Element:
    """The partial result of no elements."""
    one, zero, least = dtype(1.0), dtype(0.0), dtype(-float("inf"))
    return {
        "scan": (one, zero),
        "cumsum": (zero,),
        "cumprod": (one,),
        "cummax": (least,),
        "cumlogsumexp": (least, zero),
    }[op]


def combine(op: str, first: Element, second: Element) -> Element:
    """The partial result of two runs of elements, one after the other."""
    if op == "scan":
        return first[0] * second[0], second[0] * first[1] + second[1]
    (a, *_), (b, *_) = first, second
    if op == "cumsum":
        return (a + b,)
    if op == "cumprod":
        return (a * b,)
    top = _larger(a, b)
    if op == "cummax":
        return (top,)
    larger, smaller = pick(a > b, first[1], second[1]), pick(a > b, second[1], first[1])
    nearer = _smaller(type(a)(-cute.math.abs(a - b)), type(a)(0.0))  # 0 of equal infinities
    return top, larger + smaller * _power(nearer)


def _larger(a: Numeric, b: Numeric) -> Numeric:
    """The larger of two numbers; NaN where either is."""
    if isinstance(a, Float32):  # one instruction
        return Float32(cute.arch.fmax(a, b, nan=True))
    return pick((a > b) | (a != a), a, b)


def _power(x: Numeric) -> Numeric:
    """e ** x of a number x <= 0 by which a sum's smaller term is multiplied."""
    if isinstance(x, Float32):  # by the hardware's function: see `exp_term`
        return Float32(cute.math.exp2(x * LOG2E, fastmath=True))
    return type(x)(cute.math.exp(x))


def state(op: str, element: Element) -> Any:
    """The state after the elements of a partial result."""
    if op != "cumlogsumexp":
        return element[-1]
    top, total = element
    if isinstance(total, Float32):  # by the hardware's function, to 2**-22, as each of the exponentials
        return top + Float32(cute.math.log2(total, fastmath=True)) * LN2
    return top + cute.math.log(total)


def element(op: str, values: list[Any]) -> Element:
    """The partial result of one element."""
    if op == "cumlogsumexp":
        return values[0], type(values[0])(1.0)
    return tuple(values[:2])


def select(condition: Boolean, a: Element, b: Element) -> Element:
    """One of two partial results."""
    return tuple(pick(condition, p, q) for p, q in zip(a, b, strict=True))


def pick(condition: Boolean, a: Numeric, b: Numeric) -> Numeric:
    """One of two numbers."""
    return type(a)(cutlass.select_(condition, a, b))


def runs(op: str, elements: list[Element]) -> list[Element]:
    """The partial result of the elements up to each."""
    found = [elements[0]]
    for own in elements[1:]:
        found.append(combine(op, found[-1], own))
    return found


def whole(elements: list[Element]) -> Element:
    """The partial result of all elements of a cumlogsumexp. Equal infinities have no distance."""
    top, _ = elements[0]
    for x, _ in elements[1:]:
        top = _larger(top, x)
    total = type(top)(0.0)
    for x, count in elements:
        total = total + count * _power(_smaller(x - top, type(top)(0.0)))
    return top, total


def _smaller(a: Numeric, b: Numeric) -> Numeric:
    """The smaller of two numbers; b where a is NaN."""
    if isinstance(a, Float32):  # one instruction
        return Float32(cute.arch.fmin(a, b))
    return pick(a < b, a, b)


def first_carried(op: str) -> int:
    """The first number of a partial result that the elements after it need."""
    return 1 if op == "scan" else 0
