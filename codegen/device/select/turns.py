"""Few elements of a short row, which its threads hold, taken in turn."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, Uint32, Uint64

from codegen.device import access
from codegen.device.select.rows import SPARE, keys_of, numbers
from codegen.shared import SelectLaunch


@cute.jit
def take_in_turn(
    src: cute.Tensor, row: Int32, columns: Int32, how: cutlass.Constexpr[SelectLaunch], shared: list[cute.Tensor]
) -> None:
    """`top_k` of a row that its threads hold, in order. An element is one number: above, its key, and below, how far it is from the
    row's end: no two are equal, and of equal keys the first comes first. 0 is no element."""
    tidx, _, _ = cute.arch.thread_idx()
    own, vec, vectors, per_row = tidx % how.per_row, how.vec, how.vectors, how.per_row
    step, elements, spare = per_row * vec, vec * vectors, SPARE.get(src.element_type, 0)
    places = (per_row * elements).bit_length() - 1  # bits of a position
    short = 32 - spare + places <= 32
    number = Uint32 if short else Uint64
    raw = cute.make_rmem_tensor((vec, vectors), src.element_type)
    access.load_row(src, Int64(row) * columns, own * vec, step, columns, raw, 1, how.ragged, False, False)
    held, taken = (cute.make_rmem_tensor((n,), number) for n in (elements, how.held))
    taken.fill(0)
    for v in cutlass.range_constexpr(vectors):
        keys = keys_of(numbers(raw[None, v]), spare)
        for i in cutlass.range_constexpr(vec):
            left = columns - 1 - (own * vec + (v * step + i))
            element = (number(keys[i]) << number(places)) | number(Uint32(left))
            held[v * vec + i] = cutlass.select_(left >= 0, element, number(0))
    _sort_down(held)
    for c in cutlass.range_constexpr(how.count):
        largest = _largest_of_lanes(held[0], number, per_row)
        taken[c // per_row] = cutlass.select_(own == c % per_row, largest, taken[c // per_row])
        mine = held[0] == largest
        for i in cutlass.range_constexpr(min(elements, how.count - 1 - c)):
            following = held[i + 1] if cutlass.const_expr(i + 1 < elements) else number(0)
            held[i] = cutlass.select_(mine, following, held[i])
    for c in cutlass.range_constexpr(how.held):
        if own + c * per_row < how.count:
            shared[0][own + c * per_row] = Uint32(taken[c] >> number(places))
            shared[1][own + c * per_row] = columns - 1 - Int32(Uint32(taken[c]) & Uint32((1 << places) - 1))


def _sort_down(held: cute.Tensor) -> None:
    """Sort registers, the largest element first: an odd-even merge sort."""
    count, run = cute.size(held), 1
    while run < count:
        apart = run
        while apart > 0:
            for start in range(apart % run, count - apart, 2 * apart):
                for i in range(start, min(start + apart, count - apart)):
                    if i // (2 * run) == (i + apart) // (2 * run):
                        one, other = held[i], held[i + apart]
                        swap = other > one
                        held[i] = cutlass.select_(swap, other, one)
                        held[i + apart] = cutlass.select_(swap, one, other)
            apart //= 2
        run *= 2


def _largest_of_lanes(value: cutlass.Numeric, number: type[cutlass.Numeric], lanes: int) -> cutlass.Numeric:
    """The largest value, a `number`, of so many neighbouring lanes."""
    apart = 1
    while apart < lanes:
        if number is Uint32:
            other = Uint32(cute.arch.shuffle_sync_bfly(value, apart))
        else:
            high, low = (cute.arch.shuffle_sync_bfly(Uint32(v), apart) for v in (value >> Uint64(32), value))
            other = (Uint64(high) << Uint64(32)) | Uint64(low)
        value = number(cutlass.select_(other > value, other, value))
        apart *= 2
    return value
