"""Tiles in shared memory, and fragments of them, of the main loops with cp.async, ldmatrix and mma.sync."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Boolean, Float16, Int32, Int64, Numeric, Uint32

from codegen.device.gemm import narrow, tensorcore
from codegen.device.gemm.panels import Panels, pair_of_b
from codegen.device.gemm.tensorcore import STEP
from codegen.shared import WARP, AttentionLaunch, Loading

SLAB = 16  # rows of a warp
BYTES = 2  # of an element
CHUNK = 16  # bytes of a copy
TYPES: dict[str, type[Numeric]] = {"float16": Float16, "bfloat16": BFloat16}


def panels_of(rows: int, columns: int, kind: str) -> Panels:
    """A tile in shared memory: its rows are filled up to a power of two, or to whole panels."""
    width = max(32, columns * BYTES)
    return Panels(rows, 1 << (width - 1).bit_length() if width < 128 else -(-width // 128) * 128, kind)


def multiplied(q: cute.Tensor, how: AttentionLaunch) -> type[Numeric]:
    """The 16-bit type of the products' factors."""
    return TYPES[how.converts] if how.converts else q.element_type


def load_tile(
    source: cute.Tensor, batch: Any, row: Int32, target: Int32, columns: int, panels: Panels, how: AttentionLaunch
) -> None:
    """Start the copy of a tile's rows, from `row` on; zeros past the last row and column."""
    each = source.element_type.width // 8
    stride = Int64(source.stride[1]) * each
    base = source.iterator.toint() + Int64(cute.crd2idx((batch, 0, 0), source.layout)) * each + Int64(row) * stride
    load_rows(
        source, lambda r: (base + Int64(r) * stride, row + r < source.shape[1]), target, columns, panels, how
    )  # fmt: skip


def load_rows(
    source: cute.Tensor, row_of: Callable[[Int32], tuple[Int64, Boolean]], target: Int32, columns: int, panels: Panels,
    how: AttentionLaunch,
) -> None:  # fmt: skip
    """Start the copy of a tile's rows; zeros past the last column. `row_of` gives the address of one, and whether it is there: else it
    is zeros. Elements of a byte are converted to 16 bits on the way: all chunks are loaded before the first one is stored."""
    tidx, _, _ = cute.arch.thread_idx()
    dtype, per_row, loaded = source.element_type, panels.width // CHUNK, []
    for i in range(panels.rows * per_row // how.threads):
        place = tidx + i * how.threads
        r, byte = place // per_row, place % per_row * CHUNK
        address, there = row_of(r)
        there, to = there & (byte < columns * BYTES), target + panels.place(r, byte)
        if dtype.width == 8 * BYTES:
            given = cutlass.select_(there, Int32(CHUNK), Int32(0))
            tensorcore.copy_async(to, address + Int64(byte), CHUNK, given)
        else:
            loaded.append((to, _loaded(address + Int64(byte // BYTES), there)))
    for to, words in loaded:
        wide = [w for i in range(2) for w in narrow.widened(words[i], dtype, TYPES[how.converts], Loading())]
        tensorcore.store_words(to, wide)


@cute.jit
def _loaded(address: Int64, there: Boolean) -> cute.Tensor:
    """Eight bytes of global memory as two words: zeros unless they are there."""
    words = cute.make_rmem_tensor((2,), Uint32)
    words.fill(0)
    if there:
        source = cute.make_ptr(Uint32, address, cute.AddressSpace.gmem, assumed_align=8)
        cute.autovec_copy(cute.make_tensor(source, cute.make_layout((2,))), words)
    return words


def fragment(shared: Int32, own: Int32, step: int, panels: Panels, words: cute.Tensor) -> None:
    """A fragment of a warp's 16 rows, for a step along their columns."""
    flipped, added = panels.along(step * STEP)
    for w, word in enumerate(tensorcore.ldmatrix(shared + ((own ^ flipped) + added))):
        words[w] = word


@cute.jit
def store_rows(
    acc: cute.Tensor,
    o: cute.Tensor,
    batch: Any,
    row: Int32,
    own: Int32,
    shared: Int32,
    panels: cutlass.Constexpr[Panels],
    columns: cutlass.Constexpr[int],
) -> None:
    """A warp's 16 rows of o, through its own rows of shared memory, which hold q until then."""
    lane = cute.arch.lane_idx()
    rounded = cute.make_rmem_tensor((cute.size(acc),), o.element_type)
    flat = cute.make_tensor(acc.iterator, cute.make_layout((cute.size(acc),)))
    rounded.store(flat.load().to(o.element_type))
    words = cute.recast_tensor(rounded, Uint32)
    cute.arch.sync_warp()
    for j in cutlass.range_constexpr(-(-columns // 8)):
        for half in cutlass.range_constexpr(2):
            place = panels.place(own + lane // 4 + 8 * half, Int32(j * CHUNK) + lane % 4 * 4)
            tensorcore.store_word(shared + place, words[2 * j + half])
    cute.arch.sync_warp()
    stride = Int64(o.stride[1]) * BYTES
    base = o.iterator.toint() + Int64(cute.crd2idx((batch, 0, 0), o.layout)) * BYTES + Int64(row) * stride
    per_row = columns * BYTES // CHUNK
    for i in cutlass.range_constexpr(-(-SLAB * per_row // WARP)):
        place = lane + i * WARP
        r, byte = place // per_row, place % per_row * CHUNK
        if (r < SLAB) & (row + r < o.shape[1]):
            held = cute.make_rmem_tensor((4,), Uint32)
            for w, word in enumerate(tensorcore.load_words(shared + panels.place(own + r, byte), 4)):
                held[w] = word
            pointer = cute.make_ptr(
                Uint32, base + Int64(r) * stride + Int64(byte), cute.AddressSpace.gmem, assumed_align=16
            )
            cute.autovec_copy(held, cute.make_tensor(pointer, cute.make_layout((4,))))


@cute.jit
def store_packed(
    acc: cute.Tensor,
    o: cute.Tensor,
    at: tuple,
    there: cutlass.Boolean,
    half: cutlass.Constexpr[int],
    columns: cutlass.Constexpr[int],
) -> None:
    """A lane's part of a row of o."""
    column = 2 * (cute.arch.lane_idx() % 4)
    for j in cutlass.range_constexpr(-(-columns // 8)):
        for e in cutlass.range_constexpr(2):
            if there & (8 * j + column + e < columns):
                o[at[0], at[1], 8 * j + column + e] = acc[2 * half + e, j].to(o.element_type)


@cute.jit
def store_part(
    acc: cute.Tensor,
    top: cutlass.Float32,
    total: cutlass.Float32,
    parts: cute.Tensor,
    split: Int32,
    row: Int32,
    there: cutlass.Boolean,
    half: cutlass.Constexpr[int],
    columns: cutlass.Constexpr[int],
) -> None:
    """A lane's part of what a block has summed for a row."""
    column = 2 * (cute.arch.lane_idx() % 4)
    if there:
        for j in cutlass.range_constexpr(columns // 8):
            for e in cutlass.range_constexpr(2):
                parts[split, row, 8 * j + column + e] = acc[2 * half + e, j]
        if column == 0:
            parts[split, row, columns] = top
            parts[split, row, columns + 1] = total


def multiply(
    acc: cute.Tensor, words_of: Callable[[int], list[Uint32]], columns: int, right: Int32, own: Int32, panels: Panels, dtype: Any
) -> None:  # fmt: skip
    """A warp's products (4, J) with the rows of a tile. `words_of` gives the fragment of the warp's rows for a step along the columns."""
    acc.fill(0)
    for step in range(-(-columns // 16)):
        a = words_of(step)
        flipped, added = panels.along(step * STEP)
        for pair in range(cute.size(acc, mode=[1]) // 2):
            b = tensorcore.ldmatrix(right + ((own ^ flipped) + (added + pair * 16 * panels.panel)))
            tensorcore.mma(dtype, dtype, acc[None, 2 * pair], a, b[:2])
            tensorcore.mma(dtype, dtype, acc[None, 2 * pair + 1], a, b[2:])


def accumulate(
    acc: cute.Tensor, words_of: Callable[[int], list[Uint32]], rows: int, right: Int32, own: Int32, panels: Panels, dtype: Any
) -> None:  # fmt: skip
    """Add to (4, J) a warp's products with the columns of a tile of so many rows. `words_of` gives the factor's fragment of 16 rows."""
    for step in range(rows // 16):
        a = words_of(step)
        for pair in range(cute.size(acc, mode=[1]) // 2):
            b = pair_of_b(right, own, step, pair, panels)
            tensorcore.mma(dtype, dtype, acc[None, 2 * pair], a, b[:2])
            tensorcore.mma(dtype, dtype, acc[None, 2 * pair + 1], a, b[2:])
