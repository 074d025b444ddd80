"""cvt: between floats, integers, and pairs of narrow floats in one register."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from codegen.interpret import arithmetic as ar
from codegen.interpret.arithmetic import PTX_TYPES
from codegen.interpret.decode.decoding import INTEGRAL, ROUNDINGS, Execute, Machine, Unknown, only
from codegen.interpret.ptx import Operand


def convert(words: tuple[str, ...], operands: tuple[Operand, ...]) -> Execute:
    to, source = words[-2:]
    target, *sources = operands
    if words == ("rna", "tf32", "f32"):
        return lambda m: m.write(target, ar.to_tf32(m.read(sources[0], "f32")))
    flags = only(words[:-2], (*ROUNDINGS, *INTEGRAL, "ftz", "sat", "satfinite"))
    mode = next((w for w in words if w in (*ROUNDINGS, *INTEGRAL)), None)
    if to in ("e4m3x2", "e5m2x2", "f16x2", "bf16x2"):
        return convert_pair(to, source, flags, mode, operands)
    (a,) = sources
    floats = ("f16", "bf16", "f32", "f64")
    for kind in (to, source):
        if kind not in floats and kind not in INTEGERS:
            raise Unknown("." + kind)
    scalar = conversion(source, to, mode, "sat" in flags, floats)
    if "satfinite" in flags or ("ftz" in flags and "f32" not in (to, source)):
        raise Unknown(".satfinite" if "satfinite" in flags else ".ftz")

    def run(m: Machine) -> None:
        x = m.number(a, source)
        if "ftz" in flags and source == "f32":
            x = ar.flush(x)
        result = scalar(x)
        m.write(target, ar.flush(result) if "ftz" in flags and to == "f32" else result)

    return run


INTEGERS = ("s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64")


def conversion(
    source: str, to: str, mode: str | None, sat: bool, floats: Sequence[str]
) -> Callable[[np.ndarray], np.ndarray]:
    """The function between two types in a rounding mode."""
    dtype = PTX_TYPES[to]
    if source in floats and to in floats:
        if sat and to not in ("f32", "f64"):
            raise Unknown(".sat")
        if mode in ("rz", "rm", "rp") and (source, to) != ("f64", "f32"):
            raise Unknown("." + mode)
        return lambda x: float_to_float(x, to, mode, sat)
    if source in floats:
        if mode not in INTEGRAL:
            raise Unknown(f".{mode}")
        return lambda x: ar.to_integer(x, dtype, mode)
    if to in floats:
        long = source in ("s64", "u64")
        if mode not in ROUNDINGS or (mode != "rn" and (long or to != "f32")):
            raise Unknown(f".{mode}")
        return lambda x: integer_to_float(x, to, mode)
    if mode is not None:
        raise Unknown("." + mode)
    if not sat:
        return lambda x: x.astype(dtype)
    low = max(int(np.iinfo(dtype).min), int(np.iinfo(PTX_TYPES[source]).min))
    high = min(int(np.iinfo(dtype).max), int(np.iinfo(PTX_TYPES[source]).max))
    return lambda x: np.clip(x, low, high).astype(dtype)


def float_to_float(x: np.ndarray, to: str, mode: str | None, sat: bool) -> np.ndarray:
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


def integer_to_float(x: np.ndarray, to: str, mode: str) -> np.ndarray:
    if to == "f64":
        return x.astype(np.float64)
    if to == "bf16":
        half = x.dtype.type(x.dtype.itemsize * 4)  # 64 bits, which float64 cannot hold, as two halves
        high, low = x >> half << half, x & ((x.dtype.type(1) << half) - x.dtype.type(1))
        return ar.wide_to_bf16(ar.to_odd(*ar.two_sum(high.astype(np.float64), low.astype(np.float64))))
    if to == "f32" and x.dtype.itemsize < 8:
        return ar.round32(x.astype(np.float64), mode)
    return x.astype(np.float32) if to == "f32" else x.astype(np.float16)


def convert_pair(to: str, source: str, flags: set[str], mode: str | None, operands: tuple[Operand, ...]) -> Execute:
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
