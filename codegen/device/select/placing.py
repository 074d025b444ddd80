"""Reads and writes at positions of a row, for results and for derivatives."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from codegen.device import functions as device
from codegen.shared import SelectLaunch


@cute.jit
def clear(dst: cute.Tensor, row: Int32, columns: Int32, how: cutlass.Constexpr[SelectLaunch]) -> None:
    """Write zeros to this thread's elements of a row of `columns` elements of a compact tensor (rows, columns)."""
    tidx, _, _ = cute.arch.thread_idx()
    zeros = cute.make_rmem_tensor((how.vec,), dst.element_type)
    zeros.store(device.cast(cute.zeros_like(zeros, Float32), dst.element_type))
    for column in cutlass.range(tidx % how.per_row * how.vec, columns, how.per_row * how.vec):
        cute.autovec_copy(zeros, device.vector(dst, Int64(row) * columns + column, how.vec))


def is_cleared(place: Int32, how: SelectLaunch) -> cutlass.Boolean:
    """Whether this thread writes an element of a row in `clear`."""
    tidx, _, _ = cute.arch.thread_idx()
    return place // how.vec % how.per_row == tidx % how.per_row


@cute.jit
def write_placed(
    dst: cute.Tensor,
    row: Int32,
    columns: Int32,
    places: list[Int32],
    values: list[device.Vector],
    how: cutlass.Constexpr[SelectLaunch],
) -> None:
    """Write values (1,) at different places, and zeros elsewhere, to this thread's elements of a row of `columns` elements of a compact
    tensor (rows, columns)."""
    tidx, _, _ = cute.arch.thread_idx()
    written = cute.make_rmem_tensor((how.vec,), dst.element_type)
    for column in cutlass.range(tidx % how.per_row * how.vec, columns, how.per_row * how.vec):
        written.store(device.cast(cute.zeros_like(written, Float32), dst.element_type))
        for slot in cutlass.range_constexpr(how.count):
            for i in cutlass.range_constexpr(how.vec):
                written[i] = cutlass.select_(places[slot] == column + i, values[slot][0], written[i])
        cute.autovec_copy(written, device.vector(dst, Int64(row) * columns + column, how.vec))


def held_at(src: cute.Tensor, row: Int32, slot: Int32, count: int) -> cutlass.Numeric:
    """One element of a row of a compact tensor (rows, count)."""
    return (src.iterator + (Int64(row) * count + slot)).load()


def value_at(src: cute.Tensor, row: Int32, slot: Int32, count: int) -> device.Vector:
    """One float of a row of a compact tensor (rows, count), in float32, as a vector of one element."""
    return device.floats(device.vector(src, Int64(row) * count + slot, 1))


def put(dst: cute.Tensor, row: Int32, place: Int32, value: device.Vector, count: int) -> None:
    """Store one value (1,) at a place of a row of a compact tensor (rows, count)."""
    (dst.iterator + (Int64(row) * count + place)).store(value[0])
