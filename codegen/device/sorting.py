"""Device functions of kernels that sort rows, and of their derivatives'.

An element is one number: above, a key in the order of the values, and below, its position in the row, of 32 bits each. So no
two elements are equal, and equal values stay in their order. A thread holds neighbouring elements in registers. A bitonic sort
merges runs of 2, 4, 8, ... elements. Each step compares elements that are a power of two apart. The same thread has both, or
another lane of its warp has the other, or another warp, which exchanges it through shared memory.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64, Uint32, Uint64
from cutlass.memory import SmemAllocator

from codegen.device import access, select
from codegen.device import functions as device
from codegen.shared import WARP, SelectLaunch

GAP = 16  # elements: all banks, which neighbours of threads with 2, 4 or 8 elements each would share
NOTHING = (1 << 64) - 1  # after all elements


def memory(how: SelectLaunch) -> cute.Tensor:
    """Shared memory for the elements of this thread's row, with a gap after every 16."""
    tidx, _, _ = cute.arch.thread_idx()
    rows, size = how.threads // how.per_row, how.count + how.count // GAP
    layout = cute.make_layout((rows, size), stride=(size, 1))
    return SmemAllocator().allocate_tensor(Uint64, layout, 16)[tidx // how.per_row, None]


def _least(one: Uint64, other: Uint64, flipped: Boolean) -> Boolean:
    """Whether `other` belongs where `one` is, the place of the smaller one, or of the larger one where `flipped`."""
    return (other < one) ^ flipped


@cute.jit
def _exchange(held: cute.Tensor, apart: cutlass.Constexpr[int], down: Boolean) -> None:
    """Order each two elements of a thread that are so far apart: the smaller one first, or last where `down`."""
    for i in cutlass.range_constexpr(cute.size(held)):
        if cutlass.const_expr(i & apart == 0):
            one, other = held[i], held[i + apart]
            swap = _least(one, other, down)
            held[i] = cutlass.select_(swap, other, one)
            held[i + apart] = cutlass.select_(swap, one, other)


@cute.jit
def _within(held: cute.Tensor, down: Boolean) -> None:
    """The last steps of a merge: those within threads."""
    steps = cute.size(held).bit_length() - 1
    for step in cutlass.range_constexpr(steps):
        _exchange(held, 1 << (steps - 1 - step), down)


def _from_lane(value: cutlass.Numeric, apart: Int32) -> cutlass.Numeric:
    """A lane's value in another lane."""
    if isinstance(value, Uint32):
        return Uint32(cute.arch.shuffle_sync_bfly(value, apart))
    high, low = (cute.arch.shuffle_sync_bfly(Uint32(v), apart) for v in (value >> Uint64(32), value))
    return (Uint64(high) << Uint64(32)) | Uint64(low)


@cute.jit
def _merge(held: cute.Tensor, shared: Any, run: Int32, per_row: cutlass.Constexpr[int]) -> None:
    """Merge every two sorted runs of `run` threads' elements, up and down in turn, into runs of twice as many."""
    tidx, _, _ = cute.arch.thread_idx()
    own, each = tidx % per_row, cute.size(held)
    down = own & (run * 2) != 0
    apart = run
    if cutlass.const_expr(per_row > WARP):
        while apart >= WARP:
            cute.arch.sync_threads()
            for i in cutlass.range_constexpr(each):
                shared[i * per_row + own] = held[i]
            cute.arch.sync_threads()
            flipped = (own & apart != 0) ^ down
            for i in cutlass.range_constexpr(each):
                other = shared[i * per_row + (own ^ apart)]
                held[i] = cutlass.select_(_least(held[i], other, flipped), other, held[i])
            apart = apart >> 1
    while apart > 0:
        flipped = (own & apart != 0) ^ down
        for i in cutlass.range_constexpr(each):
            other = _from_lane(held[i], apart)
            held[i] = cutlass.select_(_least(held[i], other, flipped), other, held[i])
        apart = apart >> 1
    _within(held, down)


@cute.jit
def _sort(held: cute.Tensor, shared: Any, per_row: cutlass.Constexpr[int]) -> None:
    """Sort the elements of a row's threads, of which each has as many neighbours in the end."""
    tidx, _, _ = cute.arch.thread_idx()
    own, each = tidx % per_row, cute.size(held)
    # Which of its elements a thread has at first does not matter: they know their positions
    for step_of in cutlass.range_constexpr(each.bit_length() - 2):
        run = 2 << step_of
        for half in cutlass.range_constexpr(step_of + 1):
            apart = run >> (half + 1)
            for i in cutlass.range_constexpr(each):
                if cutlass.const_expr(i & apart == 0):
                    one, other = held[i], held[i + apart]
                    swap = _least(one, other, Boolean(i & run != 0))
                    held[i] = cutlass.select_(swap, other, one)
                    held[i + apart] = cutlass.select_(swap, one, other)
    _within(held, own & 1 != 0)
    run_of = Int32(1)
    while run_of < per_row:
        _merge(held, shared, run_of, per_row)
        run_of = run_of * 2


@cute.jit
def sort(
    src: cute.Tensor, row: Int32, columns: Int32, how: cutlass.Constexpr[SelectLaunch], shared: cute.Tensor
) -> None:
    """Write a row of at most `how.count` elements, of a compact tensor (rows, columns), to the row's shared memory,
    smallest first. The remaining slots have no elements. NaN comes after all numbers, and -0.0 equals 0.0."""
    tidx, _, _ = cute.arch.thread_idx()
    own, vec, vectors, per_row = tidx % how.per_row, how.vec, how.vectors, how.per_row
    each = how.count // per_row
    raw = cute.make_rmem_tensor((vec, vectors), src.element_type)
    held = cute.make_rmem_tensor((each,), Uint64)
    first, step = own * vec, per_row * vec
    access.load_row(src, Int64(row) * columns, first, step, columns, raw, 1, how.ragged, False, False)
    for v in cutlass.range_constexpr(vectors):
        some = raw[None, v]
        floating = src.element_type.is_float
        # The sum with 0.0 makes -0.0 the other zero
        keys = select.keys_of(device.floats(some) + 0.0 if cutlass.const_expr(floating) else some.load().to(Int32))
        for i in cutlass.range_constexpr(vec):
            place = first + (v * step + i)
            element = (Uint64(keys[i]) << Uint64(32)) | Uint64(Uint32(place))
            held[v * vec + i] = cutlass.select_(place < columns, element, Uint64(NOTHING))
    _sort(held, shared, per_row)
    select.meet(per_row)
    for i in cutlass.range_constexpr(each):
        shared[_apart(own * each + i)] = held[i]
    select.meet(per_row)


@cute.jit
def largest_first(
    src: cute.Tensor, row: Int32, rows: Int32, columns: Int32, found: Int32, how: cutlass.Constexpr[SelectLaunch],
    shared: list[cute.Tensor],
) -> None:  # fmt: skip
    """Write the largest of a row's `found` elements that may be selected (`select.top_k`) where the selected ones are, in order. The
    row's first warp sorts them."""
    tidx, _, _ = cute.arch.thread_idx()
    chosen_keys, chosen_places = shared[0], shared[1]
    own, each, short = tidx % how.per_row, how.few // WARP, how.bits < 32
    number = Uint32 if cutlass.const_expr(short) else Uint64
    above = number(how.bits)
    if own < WARP:
        held = cute.make_rmem_tensor((each,), number)
        for i in cutlass.range_constexpr(each):
            key, column = select.candidate(src, row, rows, columns, i * WARP + own, found, shared)
            element = number(0)
            if i * WARP + own < found:  # of equal keys, the first in the row is the largest
                element = (number(key) << above) | number(Uint32(columns - 1 - column))
            held[i] = ~element
        _sort(held, None, WARP)
        for i in cutlass.range_constexpr(each):
            if own * each + i < how.count:
                element = ~held[i]
                left = Uint32(element & number((1 << how.bits) - 1))
                chosen_keys[own * each + i] = Uint32(element >> above)
                chosen_places[own * each + i] = columns - 1 - Int32(left)
    select.meet(how.per_row)


def _apart(slot: Int32) -> Int32:
    return slot + slot // GAP


def place_of(shared: cute.Tensor, slot: Int32) -> Int32:
    """The position in its row of the element in a slot of a sorted row."""
    return Int32(Uint32(shared[_apart(slot)]))


def value_at(src: cute.Tensor, row: Int32, place: Int32, columns: Int32) -> device.Vector:
    """One element of a row of a compact tensor (rows, columns), as it is computed, as a vector of one element."""
    one = device.vector(src, Int64(row) * columns + place, 1)
    return device.floats(one) if src.element_type.is_float else one.load().to(Int32)
