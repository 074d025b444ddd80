"""Accesses of single vectors. In global memory they may be predicated, without a branch, so that later instructions can move before them.

A branch around a load or a store keeps the compiler from overlapping one vector's arithmetic with the next one's memory. An
instruction under a predicate does not.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int64, Uint32
from cutlass._mlir import ir
from cutlass._mlir.dialects import llvm

from codegen.device import functions as device

_SUFFIX = {1: "b32", 2: "v2.b32", 4: "v4.b32"}


def take(src: cute.Tensor, place: Int64, dst: cute.Tensor, once: bool) -> None:
    """Load a vector of a compact tensor to registers. Global memory that is read `once` is not kept in the L1 cache."""
    kept = not once or src.memspace != cute.AddressSpace.gmem
    how = {} if kept else {"l1c_evict_priority": cute.nvgpu.CacheEvictionPriority.NO_ALLOCATE}
    cute.autovec_copy(device.vector(src, place, cute.size(dst)), dst, **how)


def load(src: cute.Tensor, place: Int64, valid: cutlass.Int32, vec: int, ragged: bool) -> cute.Tensor:
    """Load `vec` elements from `place` on of a compact tensor, or the first `valid` of them: (vec,) registers. Where not `ragged`,
    all or none are valid, and `place` is a multiple of `vec`."""
    dst = cute.make_rmem_tensor((vec,), src.element_type)
    if ragged or not _whole_words(dst):
        _load_some(src, place, valid, dst)
    else:
        address, words = (src.iterator + place).toint(), _words(dst)
        for first, count in accesses(cute.size(words)):
            for i, word in enumerate(_load_words(address + 4 * first, count, valid > 0)):
                words[first + i] = word
    return dst


def store(src: cute.Tensor, dst: cute.Tensor, place: Int64, valid: cutlass.Int32, ragged: bool) -> None:
    """Store (vec,) registers, or the first `valid` of them, to a compact tensor from `place` on, as `load` loads them."""
    if ragged or not _whole_words(src):
        _store_some(src, dst, place, valid)
    else:
        address, words = (dst.iterator + place).toint(), _words(src)
        for first, count in accesses(cute.size(words)):
            _store_words(address + 4 * first, [words[first + i] for i in range(count)], valid > 0)


def compact_stride(tensor: cute.Tensor, mode: int) -> Any:
    """A compact tensor's stride: the product of the sizes within the mode, in 64 bits, with their known divisors."""
    stride: Any = 1
    known = 1  # converting an extent to 64 bits forgets its divisors
    for inner in range(cute.rank(tensor) - 1, mode, -1):
        extent = tensor.shape[inner]
        stride = (extent if isinstance(extent, int) else Int64(extent)) * stride
        known *= cute.get_divisibility(extent)
    return stride if isinstance(stride, int) else cute.assume(stride, divby=known)


def compacted(tensor: cute.Tensor | None) -> cute.Tensor | None:
    """The same tensor with strides computed from its sizes: products of 32-bit numbers take fewer instructions than 64-bit
    strides."""
    if tensor is None or cute.rank(tensor) < 2:
        return tensor
    strides = tuple(compact_stride(tensor, mode) for mode in range(cute.rank(tensor)))
    made = cute.make_tensor(tensor.iterator, cute.make_layout(tensor.shape, stride=strides))
    return typed(made, tensor.element_type)


def _whole_words(registers: cute.Tensor) -> bool:
    return cute.size(registers) * registers.element_type.width % 32 == 0


def _words(registers: cute.Tensor) -> cute.Tensor:
    """Registers as words of 32 bits. `recast_tensor` makes one word of one element of 64 bits, which has no stride."""
    if cute.size(registers) > 1:
        return cute.recast_tensor(registers, Uint32)
    words = cute.recast_ptr(registers.iterator, dtype=Uint32)
    return cute.make_tensor(words, cute.make_layout((registers.element_type.width // 32,)))


def accesses(words: int) -> list[tuple[int, int]]:
    """The first word and the count of each access, 16 bytes where possible."""
    widest = next(count for count in (4, 2, 1) if words % count == 0)
    return [(first, widest) for first in range(0, words, widest)]


@cute.jit
def _load_some(src: cute.Tensor, place: cutlass.Int64, valid: cutlass.Int32, dst: cute.Tensor) -> None:
    if valid > 0:
        gX = cute.make_tensor(src.iterator + place, cute.make_layout((cute.size(dst),)))
        device.copy_whole_or_part(gX, dst, Int64(valid))


@cute.jit
def _store_some(src: cute.Tensor, dst: cute.Tensor, place: cutlass.Int64, valid: cutlass.Int32) -> None:
    if valid > 0:
        gX = cute.make_tensor(dst.iterator + place, cute.make_layout((cute.size(src),)))
        device.copy_whole_or_part(src, gX, Int64(valid))


def _load_words(address: Int64, count: int, there: Boolean) -> list[Uint32]:
    names = ", ".join(f"${i}" for i in range(count))
    zeros = "\n".join(f"mov.b32 ${i}, 0;" for i in range(count))
    text = f"{zeros}\n@${count} ld.global.{_SUFFIX[count]} {{{names}}}, [${count + 1}];"
    operands = [there.ir_value(), address.ir_value()]
    outputs = ",".join(["=&r"] * count)
    word = Uint32.mlir_type
    if count == 1:
        text = text.replace("{$0}", "$0")
        return [Uint32(llvm.inline_asm(word, operands, text, f"{outputs},b,l", has_side_effects=True))]
    struct = llvm.StructType.get_literal([word] * count)
    found = llvm.inline_asm(struct, operands, text, f"{outputs},b,l", has_side_effects=True)
    return [Uint32(llvm.extractvalue(word, found, ir.DenseI64ArrayAttr.get([i]))) for i in range(count)]


def _store_words(address: Int64, words: list[Uint32], there: Boolean) -> None:
    names = ", ".join(f"${i + 2}" for i in range(len(words)))
    values = names if len(words) == 1 else f"{{{names}}}"
    text = f"@$0 st.global.{_SUFFIX[len(words)]} [$1], {values};"
    operands = [there.ir_value(), address.ir_value(), *(word.ir_value() for word in words)]
    llvm.inline_asm(None, operands, text, "b,l" + ",r" * len(words), has_side_effects=True)


def typed(tensor: Any, dtype: Any) -> Any:
    """The same tensor, of this CuTe dtype: a tensor made from a pointer is signed, because a pointer has no sign."""
    return type(tensor)(tensor, dtype=dtype)


def exchanged(held: cute.Tensor) -> list[Uint32]:
    """Transpose four words of each of four neighbouring lanes: the n-th lane gets the n-th words, in the order of the lanes."""
    words, lane = [held[i] for i in range(4)], cute.arch.lane_idx()
    for apart in (1, 2):
        upper = (lane & apart) != 0
        for low in (i for i in range(4) if not i & apart):
            high = low + apart
            own, other = words[low], words[high]
            got = Uint32(cute.arch.shuffle_sync_bfly(cutlass.select_(upper, own, other), offset=apart))
            words[low] = cutlass.select_(upper, got, own)
            words[high] = cutlass.select_(upper, other, got)
    return words
