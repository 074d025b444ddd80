"""Device functions of kernels that find the largest number for which the elements of a row that reach it sum to a mass.

The bits of positive numbers are in the order of these numbers. They are found two at a time, from the sums of the elements that
reach each of three numbers. Each thread adds up its elements in order, and then the threads' sums are added, always in the same
order. So a sum of more elements is not smaller, and all threads of a row decide the same.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64
from cutlass.memory import SmemAllocator

from codegen.device import access
from codegen.device import functions as device
from codegen.shared import WARP, SelectLaunch

TRIED = 3  # numbers at once, of two bits


def memory(how: SelectLaunch) -> cute.Tensor:
    """Shared memory for the sums that the warps of a row add up, (2, TRIED, warps)."""
    warps = max(how.per_row // WARP, 1)
    return SmemAllocator().allocate_tensor(Float32, cute.make_layout((2, TRIED, warps)), 16)


def _number(bits: Int32) -> Float32:
    """The number with these bits."""
    held = cute.make_rmem_tensor((1,), Int32)
    held[0] = bits
    return cute.make_tensor(cute.recast_ptr(held.iterator, dtype=Float32), cute.make_layout((1,)))[0]


@cute.jit
def _load(
    src: cute.Tensor, row: Int32, columns: Int32, begin: Int32, raw: cute.Tensor, values: cute.Tensor,
    how: cutlass.Constexpr[SelectLaunch],
) -> None:  # fmt: skip
    """Bring this thread's elements of a piece of a row to registers, as floats; past the row's end these are 0."""
    tidx, _, _ = cute.arch.thread_idx()
    step = how.per_row * how.vec
    first = begin + tidx % how.per_row * how.vec
    access.load_row(src, Int64(row) * columns, first, step, columns, raw, 1, how.ragged, False, True)
    for v in cutlass.range_constexpr(how.vectors):
        found = device.floats(raw[None, v])
        for i in cutlass.range_constexpr(how.vec):
            inside = first + (v * step + i) < columns
            values[v * how.vec + i] = cutlass.select_(inside, found[i], Float32(0))


@cute.jit
def _add(values: cute.Tensor, tried: cute.Tensor, sums: cute.Tensor) -> None:
    """Add to each sum the values that reach its number."""
    for i in cutlass.range_constexpr(cute.size(values)):
        for k in cutlass.range_constexpr(TRIED):
            sums[k] += cutlass.select_(values[i] >= tried[k], values[i], Float32(0))


@cute.jit
def _meet(sums: cute.Tensor, shared: cute.Tensor, turn: Int32, per_row: cutlass.Constexpr[int]) -> None:
    """The sums of all threads of a row; the turns 0, 1, 2, ... use the memory in turn."""
    tidx, _, _ = cute.arch.thread_idx()
    for k in cutlass.range_constexpr(TRIED):
        for i in cutlass.range_constexpr(5):
            sums[k] += cute.arch.shuffle_sync_bfly(sums[k], 16 >> i)
    if cutlass.const_expr(per_row > WARP):
        warps = per_row // WARP
        if tidx % WARP == 0:
            for k in cutlass.range_constexpr(TRIED):
                shared[turn % 2, k, tidx // WARP] = sums[k]
        cute.arch.sync_threads()
        for k in cutlass.range_constexpr(TRIED):
            sums[k] = shared[turn % 2, k, tidx % warps]
            for i in cutlass.range_constexpr(warps.bit_length() - 1):
                sums[k] += cute.arch.shuffle_sync_bfly(sums[k], warps >> (i + 1))


@cute.jit
def nucleus(
    src: cute.Tensor,
    row: Int32,
    columns: Int32,
    mass: Float32,
    how: cutlass.Constexpr[SelectLaunch],
    shared: cute.Tensor,
) -> Float32:
    """The number for a row of `columns` elements of a compact tensor (rows, columns), in float32."""
    piece = how.per_row * how.vec * how.vectors
    raw = cute.make_rmem_tensor((how.vec, how.vectors), src.element_type)
    values = cute.make_rmem_tensor((how.vec * how.vectors,), Float32)
    tried, sums = cute.make_rmem_tensor((TRIED,), Float32), cute.make_rmem_tensor((TRIED,), Float32)
    if cutlass.const_expr(how.whole):
        _load(src, row, columns, Int32(0), raw, values, how)
    least, shift = Int32(0), Int32(30)
    while shift >= 0:
        for k in cutlass.range_constexpr(TRIED):
            tried[k] = _number(least | (Int32(k + 1) << shift))
        sums.fill(0.0)
        if cutlass.const_expr(how.whole):
            _add(values, tried, sums)
        else:
            for begin in cutlass.range(0, columns, piece):
                _load(src, row, columns, begin, raw, values, how)
                _add(values, tried, sums)
        _meet(sums, shared, shift // 2, how.per_row)
        found = least
        for k in cutlass.range_constexpr(TRIED):
            bits = least | (Int32(k + 1) << shift)  # negative with the sign's bit, which no number here has
            reached = Boolean((bits > 0) & (sums[k] >= mass) & (sums[k] > 0.0))
            found = cutlass.select_(reached, bits, found)
        least = found
        shift -= 2
    return _number(least)
