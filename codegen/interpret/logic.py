"""Moves, selections and comparisons."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from codegen.interpret import arithmetic as ar
from codegen.interpret.decoding import Execute, Unknown, only
from codegen.interpret.ptx import Symbol, Vector

if TYPE_CHECKING:
    from codegen.interpret.machine import Machine


def move(words, operands) -> Execute:
    (kind,) = words
    target, a = operands
    if isinstance(target, Vector) or isinstance(a, Vector):
        return lambda m: m.repack(target, a, kind)
    if isinstance(a, Symbol):
        return lambda m: m.write(target, m.address_of(a.name))
    return lambda m: m.write(target, m.read(a, kind))


def select(words, operands) -> Execute:
    (kind,) = words
    target, a, b, p = operands
    unsigned = kind if kind == "pred" else "u" + kind.lstrip("bfsu")

    def run(m: Machine) -> None:
        m.write(target, np.where(m.read(p, "pred"), m.read(a, unsigned), m.read(b, unsigned)))

    return run


COMPARISONS: dict[str, Callable] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
}  # fmt: skip


def set_predicate(words, operands) -> Execute:
    comparison, *rest = words
    kind = rest[-1]
    combine = next((w for w in rest[:-1] if w in ("and", "or", "xor")), None)
    only(tuple(rest[:-1]), ("and", "or", "xor", "ftz"))
    target, a, b = operands[:3]
    floating = kind.startswith(("f", "bf"))
    unordered = floating and comparison.endswith("u") and comparison[:-1] in COMPARISONS
    name = comparison[:-1] if unordered else comparison
    if name not in (*COMPARISONS, *(("num", "nan") if floating else ())):
        raise Unknown("." + comparison)
    if kind in ("f16x2", "bf16x2"):
        raise Unknown("." + kind)

    both = isinstance(target, Vector)
    first, second = target.items if isinstance(target, Vector) else (target, None)

    def run(m: Machine) -> None:
        x, y = m.number(a, kind), m.number(b, kind)
        if "ftz" in rest:
            x, y = ar.flush(x), ar.flush(y)
        if floating:
            nan = np.isnan(x) | np.isnan(y)
            if name in ("num", "nan"):
                result = nan if name == "nan" else ~nan
            else:
                result = COMPARISONS[name](x, y)
                result = result | nan if unordered else result & ~nan
        else:
            result = COMPARISONS[name](x, y)
        opposite = ~result
        if combine:
            other = m.read(operands[3], "pred")
            operation = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}[combine]
            result, opposite = operation(result, other), operation(opposite, other)
        if first is not None:
            m.write(first, result)
        if both and second is not None:
            m.write(second, opposite)

    return run
