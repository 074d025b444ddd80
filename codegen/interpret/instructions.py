"""Instructions to functions on the machine: decoded once, an unknown one named at once.

A decoder takes the words of the opcode and gives a function of the machine and the instruction's operands. Values are
arrays over the active lanes, or of length one where all lanes agree.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from codegen.interpret import arithmetic as ar
from codegen.interpret.ptx import Address, Instruction, Operand, PtxError, Symbol, Vector

if TYPE_CHECKING:
    from codegen.interpret.machine import Machine

Execute = Callable[["Machine"], None]

DTYPES: dict[str, type] = {
    "s8": np.int8, "u8": np.uint8, "b8": np.uint8, "s16": np.int16, "u16": np.uint16, "b16": np.uint16,
    "s32": np.int32, "u32": np.uint32, "b32": np.uint32, "s64": np.int64, "u64": np.uint64, "b64": np.uint64,
    "f16": np.float16, "bf16": np.uint16, "f32": np.float32, "f64": np.float64, "f16x2": np.uint32, "bf16x2": np.uint32,
    "f32x2": np.uint64, "pred": np.bool_,
}  # fmt: skip
ROUNDINGS = ("rn", "rz", "rm", "rp")
INTEGRAL = ("rni", "rzi", "rmi", "rpi")


class Unknown(Exception):
    """A modifier that a decoder does not know."""


def decode(instruction: Instruction, kernel: str) -> Execute:
    """The function that runs an instruction. Raises `PtxError` for one that is not known."""
    words = instruction.words
    make = TABLE.get(words[0])
    try:
        if make is None:
            raise Unknown(words[0])
        return make(words[1:], instruction.operands)
    except Unknown as error:
        detail = "" if str(error) == words[0] else f" (its {error} is not known)"
        raise PtxError(f"{kernel}: unknown instruction {instruction.op!r}{detail}: {instruction.text}") from None
    except (KeyError, IndexError, ValueError, AttributeError) as error:
        raise PtxError(f"{kernel}: unknown form of {instruction.op!r} ({error}): {instruction.text}") from None


def known(op: str) -> bool:
    """Whether an opcode, modifiers included, is one the interpreter has a meaning for (operands aside)."""
    return op.split(".")[0] in TABLE


def _only(words: tuple[str, ...], allowed: tuple[str, ...]) -> set[str]:
    """The modifiers, all of them allowed."""
    for word in words:
        if word not in allowed:
            raise Unknown("." + word)
    return set(words)


def _finish(x: np.ndarray, ftz: bool) -> np.ndarray:
    return ar.canonical(ar.flush(x) if ftz else x)


# Floating arithmetic


def _float2(scalar: Callable[..., np.ndarray], words, operands: tuple[Operand, ...]) -> Execute:
    """add, sub, mul, fma over f32, f64, f32x2, f16x2, bf16x2: `scalar(mode, *args)` works on float32 or float64."""
    kind = words[-1]
    flags = _only(words[:-1], (*ROUNDINGS, "ftz", "sat"))
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
        return _finish(result, ftz)

    if kind in ("f32", "f64"):
        return lambda m: m.write(target, compute(*(m.read(s, kind) for s in sources)))
    if kind == "f32x2":

        def pairs(m: Machine) -> None:
            args = _wide([m.read(s, kind) for s in sources])
            m.write(target, compute(*(a.view(np.float32) for a in args)).view(np.uint64))

        return pairs
    if kind in ("bf16x2", "f16x2", "bf16", "f16"):
        if mode != "rn" or ftz or sat:
            raise Unknown("." + (mode if mode != "rn" else "ftz" if ftz else "sat"))
        exact = ar.fma_odd if scalar is _fma else partial(scalar, "rn")
        narrow = kind.removesuffix("x2")

        def halves(m: Machine) -> None:
            args = [_half(a.view(np.uint16), narrow) for a in _wide([m.read(s, kind) for s in sources])]
            result = exact(*(a.astype(np.float64) for a in args))
            bits = ar.wide_to_bf16(result) if narrow == "bf16" else _wide_to_f16(result)
            m.write(target, bits.view(DTYPES[kind]) if kind != "f16" else bits.view(np.float16))

        return halves
    raise Unknown("." + kind)


def _wide(values: list[np.ndarray]) -> list[np.ndarray]:
    """Contiguous arrays of one length, so that their elements can be seen as pairs."""
    return [np.ascontiguousarray(x) for x in np.broadcast_arrays(*values)]


def _half(bits: np.ndarray, kind: str) -> np.ndarray:
    return ar.bf16_to_32(bits) if kind == "bf16" else bits.view(np.float16).astype(np.float32)


def _wide_to_f16(x: np.ndarray) -> np.ndarray:
    return ar.canonical(x.astype(np.float16)).view(np.uint16)


def _add(mode: str, a, b):
    return ar.add32(a, b, mode) if a.dtype == np.float32 and b.dtype == np.float32 else a + b


def _sub(mode: str, a, b):
    return _add(mode, a, -b)


def _mul(mode: str, a, b):
    return ar.mul32(a, b, mode) if a.dtype == np.float32 and b.dtype == np.float32 else a * b


def _fma(mode: str, a, b, c):
    return ar.fma32(a, b, c, mode) if a.dtype == np.float32 else ar.fma64(*np.broadcast_arrays(a, b, c))


# Integer arithmetic


def _integer2(scalar: Callable, words, operands) -> Execute:
    kind = words[-1]
    _only(words[:-1], ())
    target, *sources = operands
    pairs = kind in ("s16x2", "u16x2") and scalar in (np.add, np.minimum, np.maximum)
    if not pairs and kind not in DTYPES:
        raise Unknown("." + kind)
    dtype = DTYPES[kind.removesuffix("x2")]

    def run(m: Machine) -> None:
        if pairs:
            halves = scalar(*(a.view(dtype) for a in _wide([m.read(s, "u32") for s in sources])))
            m.write(target, halves.view(np.uint32))
        else:
            m.write(target, scalar(*(m.read(s, kind) for s in sources)).astype(dtype))

    return run


def _arith(floating: Callable, integer: Callable, words, operands) -> Execute:
    if words[-1].startswith(("f", "bf")):
        return _float2(floating, words, operands)
    return _integer2(integer, words, operands)


def _multiply(words, operands) -> Execute:
    if words[0] not in ("lo", "hi", "wide"):
        return _float2(_mul, words, operands)
    part, kind = words
    target, a, b = operands
    if part == "lo":
        return _integer2(np.multiply, (kind,), operands)
    if part == "hi":
        return _integer2(ar.multiply_high, (kind,), operands)
    wide = {"s16": np.int32, "u16": np.uint32, "s32": np.int64, "u32": np.uint64}[kind]
    return lambda m: m.write(target, m.read(a, kind).astype(wide) * m.read(b, kind).astype(wide))


def _multiply_add(words, operands) -> Execute:
    part, kind = words
    target, a, b, c = operands
    if part == "wide":
        wide = {"s16": "s32", "u16": "u32", "s32": "s64", "u32": "u64"}[kind]
        to = DTYPES[wide]
        return lambda m: m.write(target, m.read(a, kind).astype(to) * m.read(b, kind).astype(to) + m.read(c, wide))
    products: dict[str, Callable] = {"lo": np.multiply, "hi": ar.multiply_high}
    product = products[part]
    return lambda m: m.write(target, product(m.read(a, kind), m.read(b, kind)) + m.read(c, kind))


def _divide(words, operands) -> Execute:
    kind = words[-1]
    target, a, b = operands
    if not kind.startswith("f"):
        return _integer2(ar.divide, words, operands)
    flags = _only(words[:-1], ("rn", "full", "approx", "ftz"))
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
        m.write(target, _finish(result, ftz))

    return run


def _shift(scalar: Callable, words, operands) -> Execute:
    (kind,) = words
    target, a, b = operands
    bits = np.dtype(DTYPES[kind]).itemsize * 8

    def run(m: Machine) -> None:
        x, n = m.read(a, kind), m.read(b, "u32")
        m.write(target, scalar(x, n, bits))

    return run


def _shl(x, n, bits):
    return np.where(n >= bits, x.dtype.type(0), x << np.minimum(n, bits - 1).astype(x.dtype))


def _shr(x, n, bits):
    clamped = np.minimum(n, bits - 1).astype(x.dtype)
    gone = np.where(x < 0, x.dtype.type(-1), x.dtype.type(0)) if x.dtype.kind == "i" else x.dtype.type(0)
    return np.where(n >= bits, gone, x >> clamped)


def _funnel(words, operands) -> Execute:
    side, clamp, _ = words  # shf.l.wrap.b32 and its kin
    target, a, b, c = operands

    def run(m: Machine) -> None:
        both = m.read(a, "u32").astype(np.uint64) | (m.read(b, "u32").astype(np.uint64) << np.uint64(32))
        n = m.read(c, "u32").astype(np.uint64)
        n = n & np.uint64(31) if clamp == "wrap" else np.minimum(n, np.uint64(32))
        shifted = (both << n) >> np.uint64(32) if side == "l" else both >> n
        m.write(target, (shifted & np.uint64(0xFFFFFFFF)).astype(np.uint32))

    return run


def _bitwise(scalar: Callable, words, operands) -> Execute:
    (kind,) = words
    target, *sources = operands
    return lambda m: m.write(target, scalar(*(m.read(s, kind) for s in sources)))


def _bfi(words, operands) -> Execute:
    (kind,) = words
    target, a, b, c, d = operands
    dtype, bits = DTYPES[kind], np.dtype(DTYPES[kind]).itemsize * 8

    def run(m: Machine) -> None:
        x, y = m.read(a, kind).astype(np.uint64), m.read(b, kind).astype(np.uint64)
        pos = m.read(c, "u32").astype(np.uint64) & np.uint64(0xFF)
        length = m.read(d, "u32").astype(np.uint64) & np.uint64(0xFF)
        ones = np.where(length >= 64, ~np.uint64(0), (np.uint64(1) << np.minimum(length, np.uint64(63))) - np.uint64(1))
        mask = np.where(pos >= bits, np.uint64(0), ones << np.minimum(pos, np.uint64(63)))
        m.write(target, ((y & ~mask) | ((x << np.minimum(pos, np.uint64(63))) & mask)).astype(dtype))

    return run


def _bfe(words, operands) -> Execute:
    (kind,) = words
    target, a, b, c = operands
    bits = np.dtype(DTYPES[kind]).itemsize * 8

    def run(m: Machine) -> None:
        x = m.read(a, kind)
        pos = np.minimum(m.read(b, "u32") & np.uint32(0xFF), 64).astype(np.int64)
        length = np.minimum(m.read(c, "u32") & np.uint32(0xFF), 64).astype(np.int64)
        wide = x.astype(np.int64 if x.dtype.kind == "i" else np.uint64).astype(object)
        out = []
        for value, p, n in np.broadcast(wide, pos, length):
            unsigned = int(value) % (1 << bits)
            field = (unsigned >> int(p)) & ((1 << int(n)) - 1) if p < bits else 0
            if x.dtype.kind == "i" and n:
                sign = (unsigned >> min(int(p) + int(n) - 1, bits - 1)) & 1
                if sign:
                    field |= -1 << min(int(n), bits - int(p)) if p < bits else -1
            out.append(field % (1 << bits))
        m.write(target, np.array(out, np.uint64).astype(f"u{bits // 8}").view(x.dtype))

    return run


def _count_bits(words, operands) -> Execute:
    (kind,) = words
    target, a = operands
    return lambda m: m.write(target, np.bitwise_count(m.read(a, kind)).astype(np.uint32))


def _leading_zeros(words, operands) -> Execute:
    (kind,) = words
    target, a = operands
    bits = int(kind[1:])

    def run(m: Machine) -> None:
        x = m.read(a, kind).astype(np.uint64)
        length = np.zeros(x.shape, np.int64)
        for step in (32, 16, 8, 4, 2, 1):
            high = x >> np.uint64(step)
            length += np.where(high != 0, step, 0)
            x = np.where(high != 0, high, x)
        m.write(target, (bits - length - (x != 0)).astype(np.uint32))

    return run


def _prmt(words, operands) -> Execute:
    _only(words, ("b32",))
    target, a, b, c = operands
    return lambda m: m.write(target, ar.permute(m.read(a, "u32"), m.read(b, "u32"), m.read(c, "u32")))


# One operand


def _sign(words, operands, negate: bool) -> Execute:
    """neg and abs: of floats only the sign bit changes."""
    kind = words[-1]
    _only(words[:-1], ("ftz",))
    ftz = "ftz" in words
    target, a = operands
    if kind in ("s16", "s32", "s64"):
        return lambda m: m.write(target, -m.read(a, kind) if negate else np.abs(m.read(a, kind)))
    bits, unsigned = {
        "f32": (1 << 31, "u32"), "f64": (1 << 63, "u64"), "f16": (1 << 15, "u16"), "bf16": (1 << 15, "u16"),
        "f16x2": (0x80008000, "u32"), "bf16x2": (0x80008000, "u32"), "f32x2": (0x8000000080000000, "u64"),
    }[kind]  # fmt: skip
    dtype = DTYPES[unsigned]

    def run(m: Machine) -> None:
        x = m.read(a, unsigned)
        x = x ^ dtype(bits) if negate else x & ~dtype(bits)
        m.write(target, ar.flush(x.view(np.float32)) if ftz else x)

    return run


def _copysign(words, operands) -> Execute:
    (kind,) = words
    target, a, b = operands
    unsigned, bit = {"f32": ("u32", 1 << 31), "f64": ("u64", 1 << 63)}[kind]
    mask = DTYPES[unsigned](bit)
    return lambda m: m.write(target, (m.read(a, unsigned) & mask) | (m.read(b, unsigned) & ~mask))


def _function(scalar: Callable[[np.ndarray], np.ndarray], words, operands) -> Execute:
    """A function of one argument: rounded where PTX says how, else the nearest value to the true one."""
    kind = words[-1]
    flags = _only(words[:-1], ("rn", "approx", "ftz"))
    ftz = "ftz" in flags
    target, a = operands
    dtype = DTYPES[kind]
    if kind not in ("f32", "f64"):
        raise Unknown("." + kind)

    def run(m: Machine) -> None:
        x = m.read(a, kind)
        x = ar.flush(x) if ftz else x
        m.write(target, _finish(scalar(x.astype(np.float64)).astype(dtype) if dtype is np.float32 else scalar(x), ftz))

    return run


def _sqrt(words, operands) -> Execute:
    if "rn" in words:
        kind = words[-1]
        target, a = operands
        ftz = "ftz" in _only(words[:-1], ("rn", "ftz"))
        return lambda m: m.write(target, _finish(np.sqrt(ar.flush(m.read(a, kind)) if ftz else m.read(a, kind)), ftz))
    return _function(np.sqrt, words, operands)


def _extreme(scalar: Callable, integer: Callable, words, operands) -> Execute:
    kind = words[-1]
    target, *sources = operands
    if not kind.startswith(("f", "bf")):
        return _integer2(integer, words, operands)
    flags = _only(words[:-1], ("NaN", "ftz"))
    if kind not in ("f32", "f64"):
        raise Unknown("." + kind)

    def run(m: Machine) -> None:
        values = [m.read(s, kind) for s in sources]
        if "ftz" in flags:
            values = [ar.flush(v) for v in values]
        result = values[0]
        for value in values[1:]:
            result = scalar(result, value, "NaN" in flags)
        m.write(target, ar.canonical(result))

    return run


# Moves, selections, comparisons


def _move(words, operands) -> Execute:
    (kind,) = words
    target, a = operands
    if isinstance(target, Vector) or isinstance(a, Vector):
        return lambda m: m.repack(target, a, kind)
    if isinstance(a, Symbol):
        return lambda m: m.write(target, m.address_of(a.name))
    return lambda m: m.write(target, m.read(a, kind))


def _select(words, operands) -> Execute:
    (kind,) = words
    target, a, b, p = operands
    unsigned = kind if kind == "pred" else "u" + kind.lstrip("bfsu")

    def run(m: Machine) -> None:
        m.write(target, np.where(m.read(p, "pred"), m.read(a, unsigned), m.read(b, unsigned)))

    return run


_COMPARISONS: dict[str, Callable] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
}  # fmt: skip


def _set_predicate(words, operands) -> Execute:
    comparison, *rest = words
    kind = rest[-1]
    combine = next((w for w in rest[:-1] if w in ("and", "or", "xor")), None)
    _only(tuple(rest[:-1]), ("and", "or", "xor", "ftz"))
    target, a, b = operands[:3]
    floating = kind.startswith(("f", "bf"))
    unordered = floating and comparison.endswith("u") and comparison[:-1] in _COMPARISONS
    name = comparison[:-1] if unordered else comparison
    if name not in (*_COMPARISONS, *(("num", "nan") if floating else ())):
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
                result = _COMPARISONS[name](x, y)
                result = result | nan if unordered else result & ~nan
        else:
            result = _COMPARISONS[name](x, y)
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


# Conversions


def _convert(words, operands) -> Execute:
    to, source = words[-2:]
    target, *sources = operands
    flags = _only(words[:-2], (*ROUNDINGS, *INTEGRAL, "ftz", "sat", "satfinite"))
    mode = next((w for w in words if w in (*ROUNDINGS, *INTEGRAL)), None)
    if to in ("e4m3x2", "e5m2x2", "f16x2", "bf16x2"):
        return _convert_pair(to, source, flags, mode, operands)
    (a,) = sources
    floats = ("f16", "bf16", "f32", "f64")
    for kind in (to, source):
        if kind not in floats and kind not in _INTEGERS:
            raise Unknown("." + kind)
    scalar = _conversion(source, to, mode, "sat" in flags, floats)
    if "satfinite" in flags or ("ftz" in flags and "f32" not in (to, source)):
        raise Unknown(".satfinite" if "satfinite" in flags else ".ftz")

    def run(m: Machine) -> None:
        x = m.number(a, source)
        if "ftz" in flags and source == "f32":
            x = ar.flush(x)
        result = scalar(x)
        m.write(target, ar.flush(result) if "ftz" in flags and to == "f32" else result)

    return run


_INTEGERS = ("s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64")


def _conversion(source: str, to: str, mode: str | None, sat: bool, floats) -> Callable[[np.ndarray], np.ndarray]:
    """The function between two types in a rounding mode."""
    dtype = DTYPES[to]
    if source in floats and to in floats:
        if sat and to not in ("f32", "f64"):
            raise Unknown(".sat")
        if mode in ("rz", "rm", "rp") and (source, to) != ("f64", "f32"):
            raise Unknown("." + mode)
        return lambda x: _float_to_float(x, to, mode, sat)
    if source in floats:
        if mode not in INTEGRAL:
            raise Unknown(f".{mode}")
        return lambda x: ar.to_integer(x, dtype, mode)
    if to in floats:
        long = source in ("s64", "u64")
        if mode not in ROUNDINGS or (mode != "rn" and (long or to != "f32")) or (long and to == "bf16"):
            raise Unknown(f".{mode}")
        return lambda x: _integer_to_float(x, to, mode)
    if mode is not None:
        raise Unknown("." + mode)
    if not sat:
        return lambda x: x.astype(dtype)
    low = max(int(np.iinfo(dtype).min), int(np.iinfo(DTYPES[source]).min))
    high = min(int(np.iinfo(dtype).max), int(np.iinfo(DTYPES[source]).max))
    return lambda x: np.clip(x, low, high).astype(dtype)


def _float_to_float(x, to: str, mode: str | None, sat: bool):
    if mode in INTEGRAL:
        x = ar.round_integral(x, mode)
    if to == "bf16":
        return ar.to_bf16(x) if x.dtype == np.float32 else ar.wide_to_bf16(x.astype(np.float64))
    if to == "f16":
        return ar.canonical(x.astype(np.float16))
    if to == "f32":
        wide = x.dtype == np.float64
        x = ar.round32(x, mode or "rn") if wide and mode not in INTEGRAL else x.astype(np.float32)
    else:
        x = x.astype(np.float64)
    if sat:
        x = np.where(np.isnan(x), x.dtype.type(0), np.clip(x, 0, 1))
    return ar.canonical(x)


def _integer_to_float(x, to: str, mode: str):
    if to == "f64":
        return x.astype(np.float64)
    if to == "bf16":
        return ar.wide_to_bf16(x.astype(np.float64))
    if to == "f32" and x.dtype.itemsize < 8:
        return ar.round32(x.astype(np.float64), mode)
    return x.astype(np.float32) if to == "f32" else x.astype(np.float16)


def _convert_pair(to: str, source: str, flags: set[str], mode: str | None, operands) -> Execute:
    """Two values packed in one register: the first operand in the upper half."""
    if mode != "rn":
        raise Unknown(f".{mode}")
    target, *sources = operands
    narrow = to.removesuffix("x2")
    if source == "f32":
        high, low = sources
        width = 8 if narrow in ("e4m3", "e5m2") else 16
        relu = "relu" in flags
        if relu or (width == 8) != ("satfinite" in flags):
            raise Unknown(".satfinite" if not relu else ".relu")
        round_to = {"bf16": ar.to_bf16, "f16": ar.to_f16}.get(narrow) or (lambda x: ar.to_float8(x, narrow))
        word: type = np.uint16 if width == 8 else np.uint32

        def pack(m: Machine) -> None:
            upper: np.ndarray = round_to(m.read(high, "f32")).astype(word)
            lower: np.ndarray = round_to(m.read(low, "f32")).astype(word)
            m.write(target, (upper << word(width)) | lower)

        return pack
    (a,) = sources
    if to == "f16x2" and source in ("e4m3x2", "e5m2x2"):
        kind = source.removesuffix("x2")

        def unpack(m: Machine) -> None:
            x = m.read(a, "u16")
            low, high = ar.from_float8(x & np.uint16(0xFF), kind), ar.from_float8(x >> np.uint16(8), kind)
            m.write(target, (high.astype(np.uint32) << np.uint32(16)) | low)

        return unpack
    if source == "f16x2" and narrow in ("e4m3", "e5m2") and "satfinite" in flags:

        def repack(m: Machine) -> None:
            x = m.read(a, "u32")
            low, high = (x & np.uint32(0xFFFF)).astype(np.uint16), (x >> np.uint32(16)).astype(np.uint16)
            parts = [ar.to_float8(v.view(np.float16).astype(np.float32), narrow).astype(np.uint16) for v in (low, high)]
            m.write(target, (parts[1] << np.uint16(8)) | parts[0])

        return repack
    raise Unknown("." + source)


# Memory


def _memory(words) -> tuple[str, int, str]:
    """The space, how many words, and their type."""
    space = words[0] if words and words[0] in ("global", "shared", "local", "param", "const") else "generic"
    rest = [
        w
        for w in words
        if w not in (space, "nc", "relaxed", "weak", "gpu", "cta", "sys", "acquire", "release", "volatile")
    ]
    rest = [w for w in rest if not w.startswith(("L1::", "L2::", "cta"))]
    count = 1
    if rest and rest[0] in ("v2", "v4", "v8"):
        count = int(rest.pop(0)[1:])
    (kind,) = rest
    if kind not in DTYPES:
        raise Unknown("." + kind)
    return space, count, kind


def _load(words, operands) -> Execute:
    space, count, kind = _memory(words)
    target, address = operands
    targets = target.items if isinstance(target, Vector) else (target,)
    assert isinstance(address, Address) and len(targets) == count
    if space == "generic":
        raise Unknown("generic address")
    signed = kind.startswith("s")
    # What goes to no register is not read: the compiler may ask for whole vectors at an array's end
    used = max((i + 1 for i, item in enumerate(targets) if item is not None), default=0)

    def run(m: Machine) -> None:
        values = m.load(space, address, used, np.dtype(DTYPES[kind]).itemsize, count)
        for item, value in zip(targets, values, strict=False):
            if item is not None:
                m.write(item, value.view(DTYPES[kind]) if signed else value)

    return run


def _store(words, operands) -> Execute:
    space, count, kind = _memory(words)
    address, source = operands
    sources = source.items if isinstance(source, Vector) else (source,)
    assert isinstance(address, Address) and len(sources) == count
    held = [s for s in sources if s is not None]
    if space not in ("global", "shared", "local"):
        raise Unknown(space)
    unsigned = f"u{np.dtype(DTYPES[kind]).itemsize * 8}"
    return lambda m: m.store(space, address, [m.read(s, unsigned) for s in held], np.dtype(DTYPES[kind]).itemsize)


_ATOMS: dict[str, Callable] = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "exch": lambda old, new: new,
}  # fmt: skip


def _atomic(words, operands, result: bool) -> Execute:
    words = tuple(w for w in words if w not in ("relaxed", "acq_rel", "acquire", "release", "gpu", "cta", "sys"))
    space, op, kind = words
    if space not in ("global", "shared") or op not in (*_ATOMS, "cas"):
        raise Unknown(f".{op}")
    target = operands[0] if result else None
    address, *values = operands[1:] if result else operands
    assert isinstance(address, Address)
    return lambda m: m.atomic(space, address, op, _ATOMS.get(op), kind, values, target)


def _address(words, operands) -> Execute:
    """cvta: global, shared and local addresses are what they are."""
    target, a = operands[:2]
    if isinstance(a, Symbol):
        return lambda m: m.write(target, m.address_of(a.name))
    return lambda m: m.write(target, m.read(a, "u64"))


# Warps


def _shuffle(words, operands) -> Execute:
    sync, mode, _ = words
    target, a, b, c, mask = operands
    if sync != "sync" or mode not in ("up", "down", "bfly", "idx"):
        raise Unknown("." + mode)
    return lambda m: m.shuffle(mode, target, a, b, c, mask)


def _vote(words, operands) -> Execute:
    sync, mode, _ = words
    if sync != "sync" or mode not in ("all", "any", "uni", "ballot"):
        raise Unknown("." + mode)
    target, p, mask = operands
    return lambda m: m.vote(mode, target, p, mask)


def _nothing(words, operands) -> Execute:
    """Fences and hints: lanes step together, so memory is always in order."""
    return lambda m: None


def _rcp(x):
    return 1 / x


def _rsqrt(x):
    return 1 / np.sqrt(x)


TABLE: dict[str, Callable[..., Execute]] = {
    "add": partial(_arith, _add, np.add),
    "sub": partial(_arith, _sub, np.subtract),
    "mul": _multiply,
    "fma": partial(_float2, _fma),
    "mad": _multiply_add,
    "div": _divide,
    "rem": partial(_integer2, ar.remainder),
    "min": partial(_extreme, ar.smaller, np.minimum),
    "max": partial(_extreme, ar.larger, np.maximum),
    "neg": partial(_sign, negate=True),
    "abs": partial(_sign, negate=False),
    "copysign": _copysign,
    "sqrt": _sqrt,
    "rcp": partial(_function, _rcp),
    "rsqrt": partial(_function, _rsqrt),
    "ex2": partial(_function, np.exp2),
    "lg2": partial(_function, np.log2),
    "sin": partial(_function, np.sin),
    "cos": partial(_function, np.cos),
    "tanh": partial(_function, np.tanh),
    "and": partial(_bitwise, np.bitwise_and),
    "or": partial(_bitwise, np.bitwise_or),
    "xor": partial(_bitwise, np.bitwise_xor),
    "not": partial(_bitwise, np.bitwise_not),
    "shl": partial(_shift, _shl),
    "shr": partial(_shift, _shr),
    "shf": _funnel,
    "bfi": _bfi,
    "bfe": _bfe,
    "popc": _count_bits,
    "clz": _leading_zeros,
    "prmt": _prmt,
    "mov": _move,
    "selp": _select,
    "setp": _set_predicate,
    "cvt": _convert,
    "cvta": _address,
    "ld": _load,
    "st": _store,
    "atom": partial(_atomic, result=True),
    "red": partial(_atomic, result=False),
    "shfl": _shuffle,
    "vote": _vote,
    "membar": _nothing,
    "fence": _nothing,
    "griddepcontrol": _nothing,
}

CONTROL = ("bra", "ret", "exit", "bar", "barrier", "trap")
