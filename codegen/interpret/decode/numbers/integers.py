"""Integer instructions: arithmetic, shifts, bits and bytes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from codegen.interpret import arithmetic as ar
from codegen.interpret.arithmetic import PTX_TYPES
from codegen.interpret.decode.decoding import Execute, Machine, Unknown, only
from codegen.interpret.ptx import Operand, Reg

CARRY = Reg("CC.CF")


def extended(operation: str, words: tuple[str, ...], operands: tuple[Operand, ...]) -> Execute:
    """add, sub and mad with a carry in (addc, ...), out (.cc), or both: the limbs of wide numbers."""
    *flags, kind = words
    target, *sources = operands
    takes, part = operation.endswith("c"), "".join(flags[:1]) if operation.startswith("mad") else ""
    gives = "cc" in only(tuple(flags), ("cc", part))
    if kind not in ("u32", "s32", "b32", "u64", "s64", "b64") or (part and part not in ("lo", "hi")):
        raise Unknown("." + kind)
    bits = kind[1:]

    def run(m: Machine) -> None:
        values = [m.read(s, "u" + bits) for s in sources]
        dtype = values[0].dtype.type
        carry = m.read(CARRY, "pred").astype(dtype) if takes else dtype(0)
        if part:
            x, y, add = values
            if part == "lo":
                x, y = x * y, add
            else:
                x, y = ar.multiply_high(m.read(sources[0], kind), m.read(sources[1], kind)).view(dtype), add
        else:
            x, y = values
        if operation.startswith("sub"):
            first = x - y
            result = first - carry
            out = (x < y) | (first < carry)
        else:
            first = x + y
            result = first + carry
            out = (first < x) | (result < first)
        m.write(target, result)
        if gives:
            m.write(CARRY, out)

    return run


def integer_arithmetic(
    scalar: Callable[..., np.ndarray], words: tuple[str, ...], operands: tuple[Operand, ...]
) -> Execute:
    kind = words[-1]
    only(words[:-1], ())
    target, *sources = operands
    pairs = kind in ("s16x2", "u16x2") and scalar in (np.add, np.minimum, np.maximum)
    if not pairs and kind not in PTX_TYPES:
        raise Unknown("." + kind)
    dtype = PTX_TYPES[kind.removesuffix("x2")]

    def run(m: Machine) -> None:
        if pairs:
            words = np.broadcast_arrays(*(m.read(s, "u32") for s in sources))
            halves = scalar(*(np.ascontiguousarray(w).view(dtype) for w in words))
            m.write(target, halves.view(np.uint32))
        else:
            m.write(target, scalar(*(m.read(s, kind) for s in sources)).astype(dtype))

    return run


def multiply_add(words: tuple[str, ...], operands: tuple[Operand, ...]) -> Execute:
    if "cc" in words:
        return extended("mad", words, operands)
    part, kind = words
    target, a, b, c = operands
    if part == "wide":
        wide = {"s16": "s32", "u16": "u32", "s32": "s64", "u32": "u64"}[kind]
        to = PTX_TYPES[wide]
        return lambda m: m.write(target, m.read(a, kind).astype(to) * m.read(b, kind).astype(to) + m.read(c, wide))
    products: dict[str, Callable[..., np.ndarray]] = {"lo": np.multiply, "hi": ar.multiply_high}
    product = products[part]
    return lambda m: m.write(target, product(m.read(a, kind), m.read(b, kind)) + m.read(c, kind))


def shift(scalar: Callable[..., np.ndarray], words: tuple[str, ...], operands: tuple[Operand, ...]) -> Execute:
    (kind,) = words
    target, a, b = operands
    bits = np.dtype(PTX_TYPES[kind]).itemsize * 8

    def run(m: Machine) -> None:
        x, n = m.read(a, kind), m.read(b, "u32")
        m.write(target, scalar(x, n, bits))

    return run


def shl(x: np.ndarray, n: np.ndarray, bits: int) -> np.ndarray:
    return np.where(n >= bits, x.dtype.type(0), x << np.minimum(n, bits - 1).astype(x.dtype))


def shr(x: np.ndarray, n: np.ndarray, bits: int) -> np.ndarray:
    clamped = np.minimum(n, bits - 1).astype(x.dtype)
    gone = np.where(x < 0, x.dtype.type(-1), x.dtype.type(0)) if x.dtype.kind == "i" else x.dtype.type(0)
    return np.where(n >= bits, gone, x >> clamped)


def funnel(words: tuple[str, ...], operands: tuple[Operand, ...]) -> Execute:
    side, clamp, _ = words  # shf.l.wrap.b32 and its kin
    target, a, b, c = operands

    def run(m: Machine) -> None:
        both = m.read(a, "u32").astype(np.uint64) | (m.read(b, "u32").astype(np.uint64) << np.uint64(32))
        n = m.read(c, "u32").astype(np.uint64)
        n = n & np.uint64(31) if clamp == "wrap" else np.minimum(n, np.uint64(32))
        shifted = (both << n) >> np.uint64(32) if side == "l" else both >> n
        m.write(target, (shifted & np.uint64(0xFFFFFFFF)).astype(np.uint32))

    return run


def bitwise(scalar: Callable[..., np.ndarray], words: tuple[str, ...], operands: tuple[Operand, ...]) -> Execute:
    (kind,) = words
    target, *sources = operands
    return lambda m: m.write(target, scalar(*(m.read(s, kind) for s in sources)))


def bfi(words: tuple[str, ...], operands: tuple[Operand, ...]) -> Execute:
    (kind,) = words
    target, a, b, c, d = operands
    dtype, bits = PTX_TYPES[kind], np.dtype(PTX_TYPES[kind]).itemsize * 8

    def run(m: Machine) -> None:
        x, y = m.read(a, kind).astype(np.uint64), m.read(b, kind).astype(np.uint64)
        pos = m.read(c, "u32").astype(np.uint64) & np.uint64(0xFF)
        length = m.read(d, "u32").astype(np.uint64) & np.uint64(0xFF)
        ones = np.where(length >= 64, ~np.uint64(0), (np.uint64(1) << np.minimum(length, np.uint64(63))) - np.uint64(1))
        mask = np.where(pos >= bits, np.uint64(0), ones << np.minimum(pos, np.uint64(63)))
        m.write(target, ((y & ~mask) | ((x << np.minimum(pos, np.uint64(63))) & mask)).astype(dtype))

    return run


def bfe(words: tuple[str, ...], operands: tuple[Operand, ...]) -> Execute:
    (kind,) = words
    target, a, b, c = operands
    bits = np.dtype(PTX_TYPES[kind]).itemsize * 8

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


def count_bits(words: tuple[str, ...], operands: tuple[Operand, ...]) -> Execute:
    (kind,) = words
    target, a = operands
    return lambda m: m.write(target, np.bitwise_count(m.read(a, kind)).astype(np.uint32))


def leading_zeros(words: tuple[str, ...], operands: tuple[Operand, ...]) -> Execute:
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


def lop3(words: tuple[str, ...], operands: tuple[Operand, ...]) -> Execute:
    """Each bit of the result is looked up in a table of eight bits, by the three bits of a (the highest), b and c."""
    only(words, ("b32",))
    target, a, b, c, table = operands

    def run(m: Machine) -> None:
        bits, result = [m.read(x, "u32") for x in (a, b, c)], np.zeros(1, np.uint32)
        for place in range(8):
            same = [x if place & weight else ~x for x, weight in zip(bits, (4, 2, 1), strict=True)]
            held = (m.read(table, "u32") >> np.uint32(place) & np.uint32(1)) * np.uint32(0xFFFFFFFF)
            result = result | (same[0] & same[1] & same[2] & held)
        m.write(target, result)

    return run


def prmt(words: tuple[str, ...], operands: tuple[Operand, ...]) -> Execute:
    only(words, ("b32",))
    target, a, b, c = operands
    return lambda m: m.write(target, ar.permute(m.read(a, "u32"), m.read(b, "u32"), m.read(c, "u32")))
