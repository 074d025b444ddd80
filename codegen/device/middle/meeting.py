"""Reductions over the threads of a block that share neighbouring rows: first over the lanes of a warp, then over the
warps through shared memory. Every reduction has a fixed order: two runs agree to the bit."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Numeric
from cutlass.memory import SmemAllocator

from codegen.device.functions import Vector
from codegen.device.reduce import combine, result
from codegen.shared import WARP, MiddleLaunch

FEW = 4  # partial results that every thread reads


def parts_of(how: MiddleLaunch) -> int:
    """The number of partial results of a row that meet in shared memory: of warps, or of threads where a warp shares no row."""
    return how.threads // max(how.lanes, WARP)


def shared(how: MiddleLaunch, *dtypes: type[Numeric]) -> list[cute.Tensor]:
    """Shared memory in which the threads that share rows exchange their partial results of these types: (parts, rows) of each."""
    if parts_of(how) == 1:
        return []
    layout = cute.make_layout((parts_of(how), how.rows_a_block), stride=(how.rows_a_block, 1))
    allocator = SmemAllocator()
    return [allocator.allocate_tensor(Int32 if d is Boolean else d, layout, 16) for d in dtypes]


def over_threads(
    running: list[cute.Tensor], ops: tuple[str, ...], buffers: list[cute.Tensor], how: MiddleLaunch
) -> list[Vector]:
    """Each statistic of a thread's rows, from the running values of all threads that share them; every thread gets them."""
    values = [over_lanes(r.load(), op, how.lanes, WARP) for r, op in zip(running, ops, strict=True)]
    if parts_of(how) > 1:
        for value, buffer in zip(values, buffers, strict=True):
            _put(value, buffer, how)
        cute.arch.sync_threads()
        if parts_of(how) > FEW:
            for op, buffer in zip(ops, buffers, strict=True):
                _join(op, buffer, how)
            cute.arch.sync_threads()
        count = parts_of(how) if parts_of(how) <= FEW else 1
        values = [_taken(op, buffer, count, how) for op, buffer in zip(ops, buffers, strict=True)]
    return [result(op, value) for op, value in zip(ops, values, strict=True)]


def over_lanes(value: Vector, op: str, nearest: int, count: int) -> Vector:
    """The reduction over lanes of a warp that are a multiple of `nearest` apart, of `count` neighbours."""
    apart = count // 2
    while apart >= nearest:
        held = cute.make_rmem_tensor(value.shape, value.dtype)
        for i in range(cute.size(value.shape)):
            held[i] = cute.arch.shuffle_sync_bfly(value[i], apart)
        value = combine(op, value, held.load())
        apart //= 2
    return value


@cute.jit
def _put(value: Vector, buffer: cute.Tensor, how: cutlass.Constexpr[MiddleLaunch]) -> None:
    """A partial result, to shared memory: of the first of a warp's lanes that share rows."""
    tidx, _, _ = cute.arch.thread_idx()
    part, lane = tidx // max(how.lanes, WARP), tidx % how.lanes
    held = cute.make_rmem_tensor((how.vec,), buffer.element_type)
    held.store(value)
    if tidx % max(how.lanes, WARP) < how.lanes:
        cute.autovec_copy(held, _place(buffer, part, lane, how))


def _place(buffer: cute.Tensor, part: Int32 | int, lane: Int32, how: MiddleLaunch) -> cute.Tensor:
    """A thread's rows in one of the parts."""
    place = cute.assume((part * how.lanes + lane) * how.vec, divby=how.vec)
    return cute.make_tensor(buffer.iterator + place, cute.make_layout((how.vec,)))


@cute.jit
def _join(op: cutlass.Constexpr[str], buffer: cute.Tensor, how: cutlass.Constexpr[MiddleLaunch]) -> None:
    """The parts of each row are reduced by one thread, which replaces the first part by the result."""
    tidx, _, _ = cute.arch.thread_idx()
    for i in cutlass.range_constexpr(-(-how.rows_a_block // how.threads)):
        row = tidx + i * how.threads
        if row < how.rows_a_block:
            value = cute.full((1,), buffer[0, row], buffer.element_type)
            for part in cutlass.range_constexpr(1, parts_of(how)):
                value = combine(op, value, cute.full((1,), buffer[part, row], buffer.element_type))
            buffer[0, row] = value[0]


def _taken(op: str, buffer: cute.Tensor, count: int, how: MiddleLaunch) -> Vector:
    """The reduction of the first `count` parts of a thread's rows."""
    tidx, _, _ = cute.arch.thread_idx()
    found: list[Vector] = []
    for part in range(count):
        held = cute.make_rmem_tensor((how.vec,), buffer.element_type)
        cute.autovec_copy(_place(buffer, part, tidx % how.lanes, how), held)
        found.append(held.load())
    value = found[0]
    for other in found[1:]:
        value = combine(op, value, other)
    return value
