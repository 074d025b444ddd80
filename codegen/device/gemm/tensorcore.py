"""PTX for tensor cores from Ampere on: mma.sync, ldmatrix and cp.async; and from Hopper on: stmatrix, and arrivals at mbarriers.

Fragments are 32-bit words in registers. A step along K is 32 bytes for every type: 16 elements of bfloat16 or float16, 8 of float32
(as tf32), 32 of int8 or float8. So the fragments of all types have the same layout in words. Lane `l` of a warp, with g = l//4 and
q = l%4, holds of a (16 rows, 8 words) words 0..3: (g, q), (g + 8, q), (g, q + 4), (g + 8, q + 4); of b (8 columns, 8 words) words
0, 1: (g, q), (g, q + 4); of the product elements 0..3: (g, 2q), (g, 2q + 1), (g + 8, 2q), (g + 8, 2q + 1).
"""

from __future__ import annotations

import math

import cutlass.cute as cute
from cutlass import BFloat16, Boolean, Float8E4M3FN, Float8E5M2, Float16, Float32, Int8, Int32, Int64, Numeric, Uint32
from cutlass._mlir.dialects import llvm

STEP = 32  # bytes of K that one instruction takes

# PTX's names of operand types
NAMES: dict[type[Numeric], str] = {
    BFloat16: "bf16", Float16: "f16", Float32: "tf32", Int8: "s8", Float8E4M3FN: "e4m3", Float8E5M2: "e5m2"
}  # fmt: skip


def accumulator(dtype: type[Numeric]) -> type[Numeric]:
    """The type in which products of this type are summed."""
    return Int32 if dtype is Int8 else Float32


def mma(a_type: type[Numeric], b_type: type[Numeric], acc: cute.Tensor, a: list[Uint32], b: list[Uint32]) -> None:
    """acc (4,) += the product of a, 4 words, and b, 2 words. The types are one, or both float8 (from sm_89 on)."""
    total = accumulator(a_type)
    kind, name = ("f", "f32") if total is Float32 else ("r", "s32")
    shape = f"m16n8k{8 * STEP // a_type.width}.row.col.{name}.{NAMES[a_type]}.{NAMES[b_type]}.{name}"
    text = f"mma.sync.aligned.{shape} {{$0, $1, $2, $3}}, {{$4, $5, $6, $7}}, {{$8, $9}}, {{$10, $11, $12, $13}};"
    operands = [x.ir_value() for x in (*a, *b, *(acc[i] for i in range(4)))]
    result = llvm.inline_asm(
        llvm.StructType.get_literal([total.mlir_type] * 4), operands, text,
        ",".join(["=" + kind] * 4 + ["r"] * 6 + [kind] * 4), has_side_effects=False,
    )  # fmt: skip
    for i in range(4):
        acc[i] = total(llvm.extractvalue(total.mlir_type, result, [i]))


def ldmatrix(address: Int32, transposed: bool = False) -> list[Uint32]:
    """Four 8 x 8 matrices of 16-bit elements from shared memory: lanes 8i .. 8i+7 give the addresses of the rows of the
    i-th. Lane l gets of each the elements 2*(l%4) + {0, 1} of row l//4 or, transposed, of column l//4, as one word."""
    trans = ".trans" if transposed else ""
    result = llvm.inline_asm(
        llvm.StructType.get_literal([Uint32.mlir_type] * 4), [address.ir_value()],
        f"ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {{$0, $1, $2, $3}}, [$4];", "=r,=r,=r,=r,r", has_side_effects=True,
    )  # fmt: skip
    return [Uint32(llvm.extractvalue(Uint32.mlir_type, result, [i])) for i in range(4)]


def stmatrix(address: Int32, words: list[Uint32]) -> None:
    """Two or four 8 x 8 matrices of 16-bit elements to shared memory, from sm_90 on: lanes 8i .. 8i+7 give the addresses of the
    rows of the i-th, of which lane l has the elements 2*(l%4) + {0, 1} of row l//4, as one word."""
    names = ", ".join(f"${1 + i}" for i in range(len(words)))
    llvm.inline_asm(
        None, [x.ir_value() for x in (address, *words)],
        f"stmatrix.sync.aligned.m8n8.x{len(words)}.shared.b16 [$0], {{{names}}};", ",".join(["r"] * (1 + len(words))),
        has_side_effects=True,
    )  # fmt: skip


def store_word(address: Int32, word: Uint32) -> None:
    """Store a word to shared memory."""
    llvm.inline_asm(
        None, [address.ir_value(), word.ir_value()], "st.shared.b32 [$0], $1;", "r,r", has_side_effects=True
    )


def store_words(address: Int32, words: list[Uint32]) -> None:
    """Store four words to shared memory in one access."""
    llvm.inline_asm(
        None, [x.ir_value() for x in (address, *words)], "st.shared.v4.b32 [$0], {$1, $2, $3, $4};", "r,r,r,r,r",
        has_side_effects=True,
    )  # fmt: skip


def load_word(address: Int32) -> Uint32:
    """Load a word of shared memory."""
    return load_words(address, 1)[0]


def load_words(address: Int32, count: int) -> list[Uint32]:
    """Load 1, 2 or 4 words of shared memory in one access."""
    word = Uint32.mlir_type
    if count == 1:
        text = "ld.shared.b32 $0, [$1];"
        return [Uint32(llvm.inline_asm(word, [address.ir_value()], text, "=r,r", has_side_effects=True))]
    names = ", ".join(f"${i}" for i in range(count))
    result = llvm.inline_asm(
        llvm.StructType.get_literal([word] * count), [address.ir_value()],
        f"ld.shared.v{count}.b32 {{{names}}}, [${count}];", ",".join(["=r"] * count + ["r"]), has_side_effects=True,
    )  # fmt: skip
    return [Uint32(llvm.extractvalue(word, result, [i])) for i in range(count)]


def copy_async(target: Int32, source: Int64, size: int, there: Int32) -> None:
    """cp.async of 4, 8 or 16 bytes from global to shared memory: zeros where `there`, the bytes to read, is 0."""
    kind = "cg" if size == 16 else "ca"  # data that is read at once need not stay in the L1 cache
    llvm.inline_asm(
        None, [target.ir_value(), source.ir_value(), there.ir_value()],
        f"cp.async.{kind}.shared.global.L2::128B [$0], [$1], {size}, $2;", "r,l,r", has_side_effects=True,
    )  # fmt: skip


def pick_bytes(low: Uint32, high: Uint32, places: int) -> Uint32:
    """Four bytes of two words, each by its place, 0..7, in a digit of `places`."""
    operands = [low.ir_value(), high.ir_value()]
    return Uint32(llvm.inline_asm(Uint32.mlir_type, operands, f"prmt.b32 $0, $1, $2, {places};", "=r,r,r"))


def replace_bits(word: Uint32, kept: int, others: int) -> Uint32:
    """The bits of a word that are `kept`, and all of `others`: one instruction, where ptxas makes two of & and |."""
    operands = [x.ir_value() for x in (word, Uint32(kept), Uint32(others))]
    return Uint32(llvm.inline_asm(Uint32.mlir_type, operands, "lop3.b32 $0, $1, $2, $3, 0xEA;", "=r,r,r,r"))


def split(word: Uint32, precise: bool) -> list[Uint32]:
    """A float32 as tf32; `precise`: and the remainder as another tf32. Tensor cores truncate the 13 bits that tf32 lacks, so each is
    first increased by the average loss: see `_raised`."""
    if not precise:
        return [_raised(word)]
    big = _raised(word) & Uint32(0xFFFFE000)
    return [big, _raised((word.bitcast(Float32) - big.bitcast(Float32)).bitcast(Uint32))]


def _raised(word: Uint32) -> Uint32:
    """x * (1 + log(2) * 2**-11): increased by 0.35 to 0.69 of tf32's unit in the last place, by half of it on average over typical
    mantissas. Truncated, it is x itself where tf32 has x, and otherwise within 0.7 units of x, as often above as below.
    (Rounding to nearest would be within half a unit, for twice the instructions.)"""
    return (word.bitcast(Float32) * Float32(1 + 2.0**-11 * math.log(2))).bitcast(Uint32)


def in_cluster(address: Int32, rank: Int32) -> Int32:
    """The address in the shared memory of a block of the cluster that corresponds to an address in this block's."""
    text = "mapa.shared::cluster.u32 $0, $1, $2;"
    return Int32(llvm.inline_asm(Int32.mlir_type, [address.ir_value(), rank.ir_value()], text, "=r,r,r"))


def arrive(barrier: Int32, there: Boolean, cluster: bool) -> None:
    """Arrive at an mbarrier, predicated without a branch: in shared memory, or at an address from `in_cluster`."""
    space = "shared::cluster" if cluster else "shared"
    operands = [barrier.ir_value(), there.ir_value()]
    llvm.inline_asm(None, operands, f"@$1 mbarrier.arrive.{space}.b64 _, [$0];", "r,b", has_side_effects=True)
