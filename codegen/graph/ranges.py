"""Bounds of a chain's values, NaN aside, which let a kernel divide and exponentiate in fewer instructions.

Signs are exact, since rounding keeps them. Other bounds are bounds in exact arithmetic: code that uses them must allow for
rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TypeAlias

from codegen.graph.nodes import DTYPES, Leaf, Node
from codegen.graph.ops import PINNED

Range: TypeAlias = tuple[float, float]

ANY: Range = (-math.inf, math.inf)
POWERS: Range = (-149.0, 127.0)  # the exponents of the powers of two that float32 has
SMALL: Range = (-(2.0**16), 2.0**16)  # whole numbers whose quotients float32 gives (`device.floor_divide_small`)
INT32: Range = (-(2.0**31), 2.0**31 - 1)
WRAPPING = frozenset({"add", "sub", "mul", "neg", "abs", "sum"})  # integers' results may be beyond their type
NORMAL = 2.0**100  # a divisor between 1/NORMAL and NORMAL has a reciprocal that is a normal number, with room to spare


def ranges(nodes: Iterable[Node], arrays: Mapping[str, Range] = MappingProxyType({})) -> dict[int, Range]:
    """The bounds of each node, by identity. `nodes` has arguments before their users. `arrays` are bounds of inputs, by name."""
    found: dict[int, Range] = {}
    for node in nodes:
        if isinstance(node.attr, Leaf):
            found[id(node)] = arrays.get(node.attr.name, ANY)
        else:
            found[id(node)] = _range(node, [found.get(id(a), ANY) for a in node.args])
    return found


def of_types(names: Iterable[str]) -> Range:
    """The bounds of values of some integer types; `ANY` if one is no integer type."""
    types = [DTYPES[name] for name in names]
    if not types or any(t.kind != "int" for t in types):
        return ANY
    return float(min(t.low for t in types)), float(max(t.high for t in types))


def is_normal(bounds: Range) -> bool:
    """Whether a division by any value within the bounds, or by its negative, needs no scaling."""
    low, high = bounds if bounds[0] > 0 else (-bounds[1], -bounds[0])
    return low >= 1 / NORMAL and high <= NORMAL


def is_within(bounds: Range, outer: Range) -> bool:
    return outer[0] <= bounds[0] and bounds[1] <= outer[1]


def _range(node: Node, args: list[Range]) -> Range:
    if node.is_const:
        value = float(str(node.attr)) if node.kind != "bool" else float(bool(node.attr))
        return ANY if math.isnan(value) else (value, value)
    if node.kind == "bool":
        return 0.0, 1.0
    if node.op == "float":
        return args[0] if node.args[0].kind == "float" or is_within(args[0], INT32) else ANY
    if node.op == "cast" and node.kind == "int":  # a NaN becomes 0
        low, high = args[0]
        return (min(low, 0.0), max(high, 0.0)) if is_within(args[0], INT32) and node.attr == "int32" else ANY
    rule = RULES.get(node.op)
    if rule is None:
        return ANY
    found = _square(args[0]) if node.op == "mul" and node.args[0] is node.args[1] else rule(*args)
    wraps = node.kind == "int" and node.op in WRAPPING and not is_within(found, INT32)
    return ANY if wraps else found


def _square(a: Range) -> Range:
    low, high = _abs(a)
    return low * low, high * high


def _abs(a: Range) -> Range:
    ends = abs(a[0]), abs(a[1])
    return (0.0 if a[0] <= 0 <= a[1] else min(ends)), max(ends)


def _add(a: Range, b: Range) -> Range:
    low, high = a[0] + b[0], a[1] + b[1]
    return (-math.inf if math.isnan(low) else low), (math.inf if math.isnan(high) else high)


def _neg(a: Range) -> Range:
    return -a[1], -a[0]


def _mul(a: Range, b: Range) -> Range:
    ends = [0.0 if math.isnan(p * q) else p * q for p in a for q in b]
    return min(ends), max(ends)


def _div(a: Range, b: Range) -> Range:
    if b[0] > 0 or b[1] < 0:
        return _mul(a, (1 / b[1], 1 / b[0]))
    return (0.0, math.inf) if a[0] >= 0 and b[0] >= 0 else ANY


def _and(a: Range, b: Range) -> Range:
    """Bits in common with a number that is not negative."""
    highs = [high for low, high in (a, b) if low >= 0]
    return (0.0, min(highs)) if highs else ANY


def _shr(a: Range, b: Range) -> Range:
    if a[0] < 0:
        return ANY
    known = b[0] == b[1] and 0 <= b[0] < 32 and a[1] < math.inf
    return (a[0] // 2 ** b[0], a[1] // 2 ** b[0]) if known else (0.0, a[1])


def _sum(a: Range) -> Range:
    return (0.0 if a[0] >= 0 else -math.inf), (0.0 if a[1] <= 0 else math.inf)


def _rising(function: Callable[[float], float]) -> Callable[[Range], Range]:
    """The bounds of an increasing function."""

    def at(x: float) -> float:
        try:
            return function(x)
        except OverflowError:
            return math.inf

    return lambda a: (at(a[0]), at(a[1]))


RULES: dict[str, Callable[..., Range]] = {
    "add": _add,
    "sub": lambda a, b: _add(a, _neg(b)),
    "mul": _mul,
    "div": _div,
    "neg": _neg,
    "abs": _abs,
    "reciprocal": lambda a: _div((1.0, 1.0), a),
    "floor": lambda a: (math.floor(a[0]) if a[0] > -math.inf else a[0], a[1]),
    "exp": _rising(math.exp),
    "exp2": _rising(lambda x: 2.0**x),
    "sqrt": lambda a: (math.sqrt(max(a[0], 0.0)), math.sqrt(max(a[1], 0.0))),
    "where": lambda _, a, b: (min(a[0], b[0]), max(a[1], b[1])),
    "maximum": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "minimum": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "tanh": lambda _: (-1.0, 1.0),
    "sigmoid": lambda _: (0.0, 1.0),
    "gelu": lambda a: (-0.17 if a[0] < 0 else 0.0, max(a[1], 0.0)),
    "dgelu": lambda _: (-0.13, 1.13),
    "erf": lambda _: (-1.0, 1.0),
    "erfc": lambda _: (0.0, 2.0),
    "sin": lambda _: (-1.0, 1.0),
    "cos": lambda _: (-1.0, 1.0),
    "exponent": lambda _: (-1075.0, 1024.0),
    "stop_gradient": lambda a: a,
    PINNED: lambda a: a,
    "_bits": lambda *_: (0.0, 2.0**32 - 1),
    "and": _and,
    "mod": lambda a, b: (0.0, b[1] - 1) if b[0] > 0 else ANY,
    "shr": _shr,
    "sum": _sum,
    "mean": lambda a: a,
    "max": lambda a: a,
    "min": lambda a: a,
}
