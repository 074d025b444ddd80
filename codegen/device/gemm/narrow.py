"""Converts elements of a byte to 16 bits in registers, exactly: a factor in int8 or float8 that is multiplied in float16 or bfloat16.

A step of 32 bytes along K has 32 elements of a byte, and two steps of 16-bit elements. As `tensorcore` has fragments of bytes, a
lane q of four holds the elements 4q .. 4q + 3 of each 16. A product may take K in any order, so a fragment of 16-bit elements has
4q and 4q + 1 in its first word and the other two in its second, of both operands.
"""

from __future__ import annotations

from cutlass import Float8E4M3FN, Float8E5M2, Float16, Float32, Int8, Int32, Numeric, Uint32
from cutlass._mlir.dialects import llvm

from codegen.device.gemm import tensorcore

FLOAT8: dict[type[Numeric], str] = {Float8E4M3FN: "e4m3x2", Float8E5M2: "e5m2x2"}  # from sm_89 on


def widened(word: Uint32, source: type[Numeric], target: type[Numeric]) -> list[Uint32]:
    """Four int8 or float8 of a word as two words of two float16 or bfloat16."""
    if source is Int8:
        biased = word ^ Uint32(0x80808080)  # x + 128, not negative
        if target is Float16:  # as the last bits of 1024 + 128 + x
            pairs = [tensorcore.pick_bytes(biased, Uint32(0x64646464), places) for places in (0x4140, 0x4342)]
            return [_of_two("sub.f16x2 $0, $1, $2;", pair, Uint32(0x64806480)) for pair in pairs]
        # as the last bits of 2**23 + 128 + x
        bits = [tensorcore.pick_bytes(biased, Uint32(0x4B000000), 0x7440 + e) for e in range(4)]
        return _of_floats([b.bitcast(Float32) - Float32(2**23 + 128) for b in bits])
    halves = [_from_float8(word >> shift, FLOAT8[source]) for shift in (0, 16)]
    if target is Float16:
        return halves
    return _of_floats([_float_of(half >> shift) for half in halves for shift in (0, 16)])


def step_of_a(address: Int32, eight_rows: int) -> list[Uint32]:
    """A fragment of a's 16-bit elements in this order: of a lane's row and of that `eight_rows` further, in bytes."""
    low, high = (tensorcore.load_words(address + more, 2) for more in (0, eight_rows))
    return [low[0], high[0], low[1], high[1]]


def _of_floats(values: list[Float32]) -> list[Uint32]:
    """Four float32 that bfloat16 has, as two words: their upper halves."""
    bits = [v.bitcast(Uint32) for v in values]
    return [tensorcore.pick_bytes(bits[w], bits[w + 1], 0x7632) for w in (0, 2)]


def _of_two(text: str, a: Uint32, b: Uint32) -> Uint32:
    return Uint32(llvm.inline_asm(Uint32.mlir_type, [a.ir_value(), b.ir_value()], text, "=r,r,r"))


def _from_float8(word: Uint32, name: str) -> Uint32:
    """The two float8 in a word's lower half, as two float16."""
    text = f"{{.reg .b16 pair; cvt.u16.u32 pair, $1; cvt.rn.f16x2.{name} $0, pair;}}"
    return Uint32(llvm.inline_asm(Uint32.mlir_type, [word.ir_value()], text, "=r,r"))


def _float_of(word: Uint32) -> Float32:
    """The float16 in a word's lower half."""
    text = "{.reg .b16 one; cvt.u16.u32 one, $1; cvt.f32.f16 $0, one;}"
    return Float32(llvm.inline_asm(Float32.mlir_type, [word.ir_value()], text, "=f,r"))
