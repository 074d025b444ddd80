"""The threads of a row, its shared memory, the numbers that the threads count, and the keys of its elements."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Uint32
from cutlass.memory import SmemAllocator

from codegen.device import functions as device
from codegen.shared import SPARE_BITS, WARP, RowLaunch, SelectLaunch

SIGN = 1 << 31
TYPES = {
    "bfloat16": cutlass.BFloat16,
    "float16": cutlass.Float16,
    "float8_e4m3fn": cutlass.Float8E4M3FN,
    "float8_e5m2": cutlass.Float8E5M2,
}
SPARE = {TYPES[name]: bits for name, bits in SPARE_BITS.items()}  # keys have no such bits


def grid(how: SelectLaunch, rows: Int32, stream: Any) -> dict[str, Any]:
    """The grid and block of a launch for so many rows."""
    return {"grid": (how.blocks(rows), 1, 1), "block": (how.threads, 1, 1), "stream": stream}


def row(how: SelectLaunch) -> Int32:
    """The row of this thread."""
    tidx, _, _ = cute.arch.thread_idx()
    bidx, _, _ = cute.arch.block_idx()
    return bidx * (how.threads // how.per_row) + tidx // how.per_row


def first_row(how: SelectLaunch) -> Int32:
    """The first row of this thread's warp."""
    tidx, _, _ = cute.arch.thread_idx()
    return row(how) - tidx % WARP // how.per_row


def own_row(how: SelectLaunch | RowLaunch) -> Int32:
    """The number of this thread's row among those of its block."""
    tidx, _, _ = cute.arch.thread_idx()
    return tidx // how.per_row


def own_rows(how: SelectLaunch, rows: Int32) -> Int32:
    """The number of rows, of so many, that this block has."""
    bidx, _, _ = cute.arch.block_idx()
    left = rows - bidx * how.rows_a_block
    return cutlass.select_(left < how.rows_a_block, left, Int32(how.rows_a_block))


def rows_of_block(how: SelectLaunch, columns: Int32, most: int, dtype: type[cutlass.Numeric]) -> cute.Tensor:
    """Shared memory for the elements of a block's rows, `columns` of each and at most `most`: (rows, columns)."""
    whole = SmemAllocator().allocate_tensor(dtype, cute.make_layout((how.rows_a_block * most,)), 16)
    return cute.make_tensor(whole.iterator, cute.make_layout((how.rows_a_block, columns), stride=(columns, 1)))


def own_of(how: SelectLaunch) -> Int32:
    """The number of this thread among those of its row."""
    tidx, _, _ = cute.arch.thread_idx()
    return tidx % how.per_row


def memory(how: SelectLaunch) -> list[cute.Tensor]:
    """Shared memory for this thread's row: the keys and the positions of its selected elements, (count,) each; the numbers that its
    warps count, (2, warps); the positions of elements that may be selected, (few,)."""
    tidx, _, _ = cute.arch.thread_idx()
    rows, allocator = how.threads // how.per_row, SmemAllocator()
    own = tidx // how.per_row
    layout = cute.make_layout((rows, how.count), stride=(how.count, 1))
    whole = 16 if how.count % 4 == 0 else 4  # bytes: else the compiler reads vectors past the last element
    keys, places = (allocator.allocate_tensor(d, layout, whole)[own, None] for d in (Uint32, Int32))
    warps = max(how.per_row // WARP, 1)
    counts = allocator.allocate_tensor(Int32, cute.make_layout((2, warps)), 16)
    few = cute.make_layout((rows, how.few), stride=(how.few, 1))
    return [keys, places, counts, allocator.allocate_tensor(Int32, few, 16)[own, None]]


@cute.jit
def meet(per_row: cutlass.Constexpr[int]) -> None:
    """Wait for the other threads of the row."""
    if cutlass.const_expr(per_row > WARP):
        cute.arch.sync_threads()
    else:
        cute.arch.sync_warp()


@cute.jit
def summed(own: Int32, counts: cute.Tensor, turn: Int32, per_row: cutlass.Constexpr[int]) -> Int32:
    """The sum of a row's threads' numbers; the turns 0, 1, 2, ... use the memory in turn."""
    total = cute.arch.warp_redux_sync(own, "add")
    if cutlass.const_expr(per_row > WARP):
        tidx, _, _ = cute.arch.thread_idx()
        warps = per_row // WARP
        if tidx % WARP == 0:
            counts[turn % 2, tidx // WARP] = total
        cute.arch.sync_threads()
        found = counts[turn % 2, tidx % warps]
        total = cute.arch.warp_redux_sync(cutlass.select_(tidx % WARP < warps, found, Int32(0)), "add")
    return total


@cute.jit
def before(own: Int32, counts: cute.Tensor, turn: Int32, per_row: cutlass.Constexpr[int]) -> tuple[Int32, Int32]:
    """The sum of the numbers of a row's threads before this one, and of all."""
    tidx, _, _ = cute.arch.thread_idx()
    lane = tidx % WARP
    total = own
    for i in cutlass.range_constexpr(5):
        other = cute.arch.shuffle_sync_up(total, 1 << i)
        total += cutlass.select_(lane >= (1 << i), other, Int32(0))
    found, every = total - own, cute.arch.shuffle_sync(total, WARP - 1)
    if cutlass.const_expr(per_row > WARP):
        if lane == WARP - 1:
            counts[turn % 2, tidx // WARP] = total
        cute.arch.sync_threads()
        every = Int32(0)
        for w in cutlass.range_constexpr(per_row // WARP):
            found += cutlass.select_(w < tidx // WARP, counts[turn % 2, w], Int32(0))
            every += counts[turn % 2, w]
    return found, every


def one(condition: cutlass.Boolean) -> Int32:
    return cutlass.select_(condition, Int32(1), Int32(0))


def numbers(vector: cute.Tensor) -> device.Vector:
    """A vector of elements as float32 or int32."""
    return device.floats(vector) if vector.element_type.is_float else vector.load().to(Int32)


def keys_of(values: device.Vector, spare: int = 0) -> list[Uint32]:
    """The keys of floats or integers, without so many of their last bits; any NaN is above all numbers."""
    count = cute.size(values.shape)
    held = cute.make_rmem_tensor((count,), values.dtype)
    held.store(values)
    bits = cute.make_tensor(cute.recast_ptr(held.iterator, dtype=Uint32), cute.make_layout((count,)))
    found = []
    for i in range(count):
        key = bits[i] ^ Uint32(SIGN)
        if values.dtype is Float32:  # of a negative number all bits are inverted
            key = bits[i] ^ (Uint32(Int32(bits[i]) >> 31) | Uint32(SIGN))
            key = cutlass.select_(held[i] == held[i], key, Uint32(0xFFC00000))
        found.append(key >> Uint32(spare))
    return found


def value_of(key: Uint32, element: type[cutlass.Numeric]) -> device.Vector:
    """The value of an element's key, as a vector of one float32 or int32."""
    spare, dtype = SPARE.get(element, 0), Float32 if element.is_float else Int32
    whole = key << Uint32(spare)
    bits = whole ^ Uint32(SIGN)
    if dtype is Float32:  # of a negative number all bits are inverted, and the last ones are 0 again
        bits = cutlass.select_(whole >= Uint32(SIGN), bits, ~(whole | Uint32((1 << spare) - 1)))
    held = cute.make_rmem_tensor((1,), Uint32)
    held[0] = bits
    return cute.make_tensor(cute.recast_ptr(held.iterator, dtype=dtype), cute.make_layout((1,))).load()
