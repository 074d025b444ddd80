"""Floating-point instructions: arithmetic in every rounding and packing, division, roots, functions, minimum, maximum."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from codegen.interpret import arithmetic as ar
from codegen.interpret.arithmetic import PTX_TYPES
from codegen.interpret.decode.decoding import ROUNDINGS, Execute, Machine, Unknown, only
from codegen.interpret.decode.numbers.integers import integer_arithmetic
from codegen.interpret.ptx import Operand


def finish(x: np.ndarray, ftz: bool) -> np.ndarray:
    return ar.canonical(ar.flush(x) if ftz else x)


def float_arithmetic(
    scalar: Callable[..., np.ndarray], words: tuple[str, ...], operands: tuple[Operand, ...]
) -> Execute:
    """add, sub, mul, fma over f32, f64, f32x2, f16x2, bf16x2, and over f32 with all operands but the last of f16 or bf16:
    `scalar(mode, *args)` works on float32 or float64."""
    narrow = words[-1] if words[-2:-1] == ("f32",) and words[-1] in ("f16", "bf16") else ""
    words = words[:-1] if narrow else words
    kind = words[-1]
    flags = only(words[:-1], (*ROUNDINGS, "ftz", "sat"))
    mode = next((w for w in words if w in ROUNDINGS), "rn")
    ftz, sat = "ftz" in flags, "sat" in flags
    target, *sources = operands
    if kind == "f64" and (mode != "rn" or flags & {"ftz", "sat"}):
        raise Unknown("." + (mode if mode != "rn" else "ftz" if ftz else "sat"))

    def compute(*args: np.ndarray) -> np.ndarray:
        if ftz:
            args = tuple(ar.flush(a) for a in args)
        result = scalar(mode, *args)
        if sat:
            result = np.where(np.isnan(result), result.dtype.type(0), np.clip(result, 0, 1))
        return finish(result, ftz)

    if narrow:
        if ftz:
            raise Unknown(".ftz")

        def widened(m: Machine) -> None:
            args = [half(np.ascontiguousarray(m.read(s, narrow)).view(np.uint16), narrow) for s in sources[:-1]]
            m.write(target, compute(*args, m.read(sources[-1], kind)))

        return widened
    if kind in ("f32", "f64"):
        return lambda m: m.write(target, compute(*(m.read(s, kind) for s in sources)))
    if kind == "f32x2":

        def pairs(m: Machine) -> None:
            args = wide([m.read(s, kind) for s in sources])
            m.write(target, compute(*(a.view(np.float32) for a in args)).view(np.uint64))

        return pairs
    if kind in ("bf16x2", "f16x2", "bf16", "f16"):
        if mode != "rn" or ftz or sat:
            raise Unknown("." + (mode if mode != "rn" else "ftz" if ftz else "sat"))
        return in_halves(kind, ar.fma_odd if scalar is fma else partial(scalar, "rn"), operands)
    raise Unknown("." + kind)


def in_halves(kind: str, exact: Callable[..., np.ndarray], operands: tuple[Operand, ...]) -> Execute:
    """An instruction on f16 or bf16, or on pairs of them: `exact` works on float64, and its result is rounded once."""
    narrow = kind.removesuffix("x2")
    target, *sources = operands

    def run(m: Machine) -> None:
        args = [half(a.view(np.uint16), narrow) for a in wide([m.read(s, kind) for s in sources])]
        result = exact(*(a.astype(np.float64) for a in args))
        bits = ar.wide_to_bf16(result) if narrow == "bf16" else wide_to_f16(result)
        m.write(target, bits.view(PTX_TYPES[kind]) if kind != "f16" else bits.view(np.float16))

    return run


def wide(values: list[np.ndarray]) -> list[np.ndarray]:
    """Contiguous arrays of one length, so that their elements can be seen as pairs."""
    return [np.ascontiguousarray(x) for x in np.broadcast_arrays(*values)]


def half(bits: np.ndarray, kind: str) -> np.ndarray:
    return ar.bf16_to_32(bits) if kind == "bf16" else bits.view(np.float16).astype(np.float32)


def wide_to_f16(x: np.ndarray) -> np.ndarray:
    return ar.canonical(x.astype(np.float16)).view(np.uint16)


def add(mode: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return ar.add32(a, b, mode) if a.dtype == np.float32 and b.dtype == np.float32 else a + b


def sub(mode: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return add(mode, a, -b)


def mul(mode: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return ar.mul32(a, b, mode) if a.dtype == np.float32 and b.dtype == np.float32 else a * b


def fma(mode: str, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    return ar.fma32(a, b, c, mode) if a.dtype == np.float32 else ar.fma64(*np.broadcast_arrays(a, b, c))


def divide(words: tuple[str, ...], operands: tuple[Operand, ...]) -> Execute:
    kind = words[-1]
    target, a, b = operands
    if not kind.startswith("f"):
        return integer_arithmetic(ar.divide, words, operands)
    flags = only(words[:-1], ("rn", "full", "approx", "ftz"))
    ftz = "ftz" in flags

    def run(m: Machine) -> None:
        x, y = m.read(a, kind), m.read(b, kind)
        if ftz:
            x, y = ar.flush(x), ar.flush(y)
        result = x / y
        if "approx" in flags:  # above 2**126 the divisor's reciprocal is flushed
            big = (np.abs(y) > np.float32(2.0**126)) & np.isfinite(y)
            zero = np.copysign(np.where(np.isinf(x), np.float32(np.nan), np.float32(0)), result)
            result = np.where(big & ~np.isnan(x), zero, result)
        m.write(target, finish(result, ftz))

    return run


def sign(words: tuple[str, ...], operands: tuple[Operand, ...], negate: bool) -> Execute:
    """neg and abs: of floats only the sign bit changes."""
    kind = words[-1]
    only(words[:-1], ("ftz",))
    ftz = "ftz" in words
    target, a = operands
    if kind in ("s16", "s32", "s64"):
        return lambda m: m.write(target, -m.read(a, kind) if negate else np.abs(m.read(a, kind)))
    bits, unsigned = {
        "f32": (1 << 31, "u32"), "f64": (1 << 63, "u64"), "f16": (1 << 15, "u16"), "bf16": (1 << 15, "u16"),
        "f16x2": (0x80008000, "u32"), "bf16x2": (0x80008000, "u32"), "f32x2": (0x8000000080000000, "u64"),
    }[kind]  # fmt: skip
    dtype = PTX_TYPES[unsigned]

    def run(m: Machine) -> None:
        x = m.read(a, unsigned)
        x = x ^ dtype(bits) if negate else x & ~dtype(bits)
        m.write(target, ar.flush(x.view(np.float32)) if ftz else x)

    return run


def copysign(words: tuple[str, ...], operands: tuple[Operand, ...]) -> Execute:
    (kind,) = words
    target, a, b = operands
    unsigned, bit = {"f32": ("u32", 1 << 31), "f64": ("u64", 1 << 63)}[kind]
    mask = PTX_TYPES[unsigned](bit)
    return lambda m: m.write(target, (m.read(a, unsigned) & mask) | (m.read(b, unsigned) & ~mask))


def function(
    scalar: Callable[[np.ndarray], np.ndarray], words: tuple[str, ...], operands: tuple[Operand, ...]
) -> Execute:
    """A function of one argument: rounded where PTX says how, else the nearest value to the true one."""
    kind = words[-1]
    flags = only(words[:-1], ("rn", "approx", "ftz"))
    ftz = "ftz" in flags
    target, a = operands
    dtype = PTX_TYPES[kind]
    if kind not in ("f32", "f64"):
        raise Unknown("." + kind)

    if kind == "f64" and "approx" in flags:
        if not ftz:
            raise Unknown(".approx")
        return lambda m: m.write(target, gross(scalar, m.read(a, kind)))

    def run(m: Machine) -> None:
        x = m.read(a, kind)
        x = ar.flush(x) if ftz else x
        m.write(target, finish(scalar(x.astype(np.float64)).astype(dtype) if dtype is np.float32 else scalar(x), ftz))

    return run


def gross(scalar: Callable[[np.ndarray], np.ndarray], x: np.ndarray) -> np.ndarray:
    """rcp and rsqrt.approx.ftz.f64: of the upper 32 bits of an operand, with zeros below the upper 32 of the result."""
    upper = np.uint64(0xFFFFFFFF00000000)
    top = ar.flush((x.view(np.uint64) & upper).view(np.float64))
    result = ar.flush(scalar(top))
    cut = (result.view(np.uint64) & upper).view(np.float64)
    nan = np.uint64(0x7FFFFFFF00000000).view(np.float64)
    return np.where(np.isnan(cut), nan, cut)


def sqrt(words: tuple[str, ...], operands: tuple[Operand, ...]) -> Execute:
    if "rn" in words:
        kind = words[-1]
        target, a = operands
        ftz = "ftz" in only(words[:-1], ("rn", "ftz"))
        return lambda m: m.write(target, finish(np.sqrt(ar.flush(m.read(a, kind)) if ftz else m.read(a, kind)), ftz))
    return function(np.sqrt, words, operands)


def extreme(
    scalar: Callable[..., np.ndarray],
    integer: Callable[..., np.ndarray],
    words: tuple[str, ...],
    operands: tuple[Operand, ...],
) -> Execute:
    kind = words[-1]
    target, *sources = operands
    if list(words) == ["relu", "s32"]:  # negative results become 0
        return integer_arithmetic(lambda a, b: np.maximum(integer(a, b), 0), words[1:], operands)
    if not kind.startswith(("f", "bf")):
        return integer_arithmetic(integer, words, operands)
    flags = only(words[:-1], ("NaN", "ftz"))

    def among(*values: np.ndarray) -> np.ndarray:
        result = values[0]
        for value in values[1:]:
            result = scalar(result, value, "NaN" in flags)
        return result

    if kind in ("f16", "bf16", "f16x2", "bf16x2") and "ftz" not in flags:
        return in_halves(kind, among, operands)
    if kind not in ("f32", "f64"):
        raise Unknown("." + kind)

    def run(m: Machine) -> None:
        values = [m.read(s, kind) for s in sources]
        m.write(target, ar.canonical(among(*(ar.flush(v) if "ftz" in flags else v for v in values))))

    return run


def rcp(x: np.ndarray) -> np.ndarray:
    return 1 / x


def rsqrt(x: np.ndarray) -> np.ndarray:
    return 1 / np.sqrt(x)
