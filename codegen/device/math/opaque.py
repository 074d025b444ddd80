"""Hides facts about values from the compiler, where what it would infer costs time or is wrong."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float32, Int32, Uint32
from cutlass._mlir import ir
from cutlass._mlir.dialects import llvm

_ORDERED = range(2, 10)  # the predicates of `arith.cmpi` but == and !=


def unseen(word: cutlass.Int32) -> cutlass.Int32:
    """The same word, but the compiler does not know that."""
    return Int32(llvm.inline_asm(Int32.mlir_type, [word.ir_value()], "mov.b32 $0, $1;", "=r,r"))


def unseen_one(word: cutlass.Uint32) -> cutlass.Uint32:
    """1, but the compilers do not know that: no word has 64 bits set."""
    text = "{ .reg .b32 bits; popc.b32 bits, $1; shr.u32 bits, bits, 6; add.s32 $0, bits, 1; }"
    return Uint32(llvm.inline_asm(Uint32.mlir_type, [word.ir_value()], text, "=r,r"))


def nothing(x: cutlass.Float32) -> cutlass.Float32:
    """x times 0: the compilers do not know that it is no larger than x."""
    return Float32(llvm.inline_asm(Float32.mlir_type, [x.ir_value()], "mul.f32 $0, $1, 0f00000000;", "=f,f"))


def unmerged(extreme: Any) -> Any:
    """The larger or the smaller of two numbers; if they are words, the assembler shall not merge it with a third one.
    There ptxas (13.0 and 13.4, sm_90a and sm_100a) loses a sign: it computes max(a, b, c) for max(max(a, -b), c). It
    takes the halves of a word apart, and puts them together again. (A saturating sum with 0 would cost nothing, but in
    it ptxas takes -x of the smallest number for the largest number.)"""
    word = extreme.ir_value()
    if word.type != Int32.mlir_type:
        return extreme
    text = "{ .reg .b16 low, high; mov.b32 {low, high}, $1; mov.b32 $0, {low, high}; }"
    return llvm.inline_asm(word.type, [word], text, "=r,r")


def above(a: Any, b: Any, least: float, or_equal: bool) -> Any:
    """a > b or a >= b, of vectors of floats, where no number in `a` is less than `least`. Where a constant b is so small that this holds
    for every number, ptxas (13.0, sm_80 to sm_100a) takes it to hold for NaN too."""
    bound = _number(b)
    if bound is not None and (bound < least or (or_equal and bound == least)):
        return a == a
    return a >= b if or_equal else a > b


def _number(value: Any) -> float | None:
    """A Python number, or the one that all elements of a constant vector are; None for other values."""
    if isinstance(value, int | float):
        return float(value)
    made = value.ir_value().owner
    made = made.operands[0].owner if getattr(made, "name", "") in ("vector.splat", "vector.broadcast") else made
    if getattr(made, "name", "") != "arith.constant":
        return None
    constant = made.attributes["value"]
    if isinstance(constant, ir.FloatAttr):
        return float(constant.value)
    return float(constant.get_splat_value().value) if getattr(constant, "is_splat", False) else None


def orders(condition: Any, *values: Any) -> bool:
    """Whether a condition orders one of some values: then the compiler may find a maximum or minimum where it selects one."""
    made = condition.owner
    if getattr(made, "name", "") != "arith.cmpi" or made.attributes["predicate"].value not in _ORDERED:
        return False
    same = ir.Value.__eq__  # a value's own == is an operation of the kernel
    return any(same(compared, value) for compared in made.operands for value in values)
