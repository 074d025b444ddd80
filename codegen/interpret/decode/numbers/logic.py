"""Moves, selections and comparisons."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from codegen.interpret import arithmetic as ar
from codegen.interpret.arithmetic import PTX_TYPES
from codegen.interpret.decode.decoding import Execute, Machine, Unknown, only
from codegen.interpret.ptx import Operand, Reg, Symbol, Vector


def move(words: tuple[str, ...], operands: tuple[Operand, ...]) -> Execute:
    (kind,) = words
    target, a = operands
    if isinstance(target, Vector) or isinstance(a, Vector):
        return lambda m: m.repack(target, a, kind)
    if isinstance(a, Symbol):
        return lambda m: m.write(target, m.spaces.address_of(a.name))

    def run(m: Machine) -> None:
        if isinstance(a, Reg) and a.name in m.products.writing and isinstance(target, Reg):
            m.products.move(m, target, a, kind)
        else:
            m.write(target, m.read(a, kind))

    return run


def select(words: tuple[str, ...], operands: tuple[Operand, ...]) -> Execute:
    (kind,) = words
    target, a, b, p = operands
    unsigned = kind if kind == "pred" else "u" + kind.lstrip("bfsu")

    def run(m: Machine) -> None:
        m.write(target, np.where(m.read(p, "pred"), m.read(a, unsigned), m.read(b, unsigned)))

    return run


COMPARISONS: dict[str, Callable[..., np.ndarray]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
}  # fmt: skip


def comparison_of(words: tuple[str, ...]) -> tuple[Callable[..., np.ndarray], str, str | None, str]:
    """The function of two arrays, the operands' type, how a predicate is combined, and the result's type for `set`."""
    comparison, *flags, kind = words
    combine = next((w for w in flags if w in COMBINE), None)
    made = next((w for w in flags if w in PTX_TYPES), "pred")
    only(tuple(flags), (*COMBINE, "ftz", made))
    floating = kind.startswith(("f", "bf"))
    unordered = floating and comparison.endswith("u") and comparison[:-1] in COMPARISONS
    name = comparison[:-1] if unordered else comparison
    if name not in (*COMPARISONS, *(("num", "nan") if floating else ())):
        raise Unknown("." + comparison)

    def compare(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        if "ftz" in flags:
            x, y = ar.flush(x), ar.flush(y)
        if not floating:
            return COMPARISONS[name](x, y)
        nan = np.isnan(x) | np.isnan(y)
        if name in ("num", "nan"):
            return nan if name == "nan" else ~nan
        result = COMPARISONS[name](x, y)
        return result | nan if unordered else result & ~nan

    return compare, kind, combine, made


COMBINE: dict[str, Callable[..., np.ndarray]] = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def both_halves(m: Machine, operand: Operand, kind: str) -> list[np.ndarray]:
    """The numbers in the lower and the upper half of a packed operand."""
    bits = m.read(operand, "u32")
    halves = [(bits >> np.uint32(shift)).astype(np.uint16) for shift in (0, 16)]
    return [ar.bf16_to_32(h) if kind == "bf16x2" else h.view(np.float16) for h in halves]


def set_predicate(words: tuple[str, ...], operands: tuple[Operand, ...]) -> Execute:
    compare, kind, combine, made = comparison_of(words)
    if made != "pred":
        raise Unknown("." + made)
    target, a, b = operands[:3]
    first, second = target.items if isinstance(target, Vector) else (target, None)
    packed = kind in ("f16x2", "bf16x2")
    if packed and not isinstance(target, Vector):
        raise Unknown("." + kind)

    def run(m: Machine) -> None:
        if packed:  # one predicate a half
            x, y = both_halves(m, a, kind), both_halves(m, b, kind)
            results = [compare(x[0], y[0]), compare(x[1], y[1])]
        else:  # the comparison, and its opposite
            result = compare(m.number(a, kind), m.number(b, kind))
            results = [result, ~result]
        if combine:
            other = m.read(operands[3], "pred")
            results = [COMBINE[combine](r, other) for r in results]
        for place, result in zip((first, second), results, strict=True):
            if place is not None:
                m.write(place, result)

    return run


TRUE = {
    "u32": 0xFFFFFFFF,
    "s32": 0xFFFFFFFF,
    "u16": 0xFFFF,
    "s16": 0xFFFF,
    "f32": 0x3F800000,
    "f16": 0x3C00,
    "bf16": 0x3F80,
}


def set_value(words: tuple[str, ...], operands: tuple[Operand, ...]) -> Execute:
    """set: a comparison as a number, all bits or 1.0; for packed operands one a half."""
    compare, kind, combine, made = comparison_of(words)
    target, a, b = operands[:3]
    packed = kind in ("f16x2", "bf16x2")
    if made.removesuffix("x2") not in TRUE or packed != made.endswith("x2") or (packed and made != kind):
        raise Unknown("." + made)
    true = TRUE[made.removesuffix("x2")]
    dtype: type = np.uint32 if true > 0xFFFF else np.uint16

    def run(m: Machine) -> None:
        if packed:
            pairs = zip(both_halves(m, a, kind), both_halves(m, b, kind), strict=True)
        else:
            pairs = zip([m.number(a, kind)], [m.number(b, kind)], strict=True)
        results = [compare(x, y) for x, y in pairs]
        if combine:
            other = m.read(operands[3], "pred")
            results = [COMBINE[combine](r, other) for r in results]
        values = [np.where(r, dtype(true), dtype(0)) for r in results]
        m.write(
            target, values[0].astype(np.uint32) | values[1].astype(np.uint32) << np.uint32(16) if packed else values[0]
        )

    return run
