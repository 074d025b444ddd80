"""The largest elements of a row that may be longer than its threads hold, piece by piece."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, Uint32

from codegen.device import access
from codegen.device.select.rows import SIGN, SPARE, before, keys_of, meet, numbers, one, own_of, summed
from codegen.shared import SelectLaunch

NOWHERE = 2**31 - 1


@cute.jit
def by_pieces(
    src: cute.Tensor, row: Int32, columns: Int32, how: cutlass.Constexpr[SelectLaunch], shared: list[cute.Tensor]
) -> None:
    """`top_k`, in no order, of a row that may be longer than its threads hold. Each has a vector at a time: the kernel's usual path,
    by a bound, needs few registers."""
    chosen_keys, chosen_places = shared[0], shared[1]
    own, vec, per_row, held = own_of(how), how.vec, how.per_row, how.held
    raw = cute.make_rmem_tensor((vec, 1), src.element_type)
    keys, kept = cute.make_rmem_tensor((vec + held,), Uint32), cute.make_rmem_tensor((held,), Int32)
    keys.fill(0)
    kept.fill(NOWHERE)
    most = Int32(1)
    while most < columns:
        most = most * 2
    turn, spare = Int32(0), SPARE.get(src.element_type, 0)
    for begin in cutlass.range(0, columns, per_row * vec):
        first = begin + own * vec
        access.load_row(src, Int64(row) * columns, first, per_row * vec, columns, raw, 1, how.ragged, False, True)
        # How far an element is from the row's end: of equal ones, the farthest come first; negative for no element
        far, found = cute.make_rmem_tensor((vec + held,), Int32), keys_of(numbers(raw[None, 0]), spare)
        for i in cutlass.range_constexpr(vec):
            far[i] = columns - 1 - (first + i)
            keys[i] = cutlass.select_(far[i] >= 0, found[i], Uint32(0))
        for c in cutlass.range_constexpr(held):
            far[vec + c] = columns - 1 - kept[c]
        turn = _choose(keys, far, spare, most, columns, how, shared, turn)
        for c in cutlass.range_constexpr(held):
            if own + c * per_row < how.count:
                keys[vec + c] = chosen_keys[own + c * per_row]
                kept[c] = chosen_places[own + c * per_row]


@cute.jit
def _choose(
    keys: cute.Tensor, far: cute.Tensor, spare: cutlass.Constexpr[int], most: Int32, columns: Int32,
    how: cutlass.Constexpr[SelectLaunch], shared: list[cute.Tensor], turn: Int32,
) -> Int32:  # fmt: skip
    """Write the largest of a row's elements to shared memory, in no order. The next turn."""
    chosen_keys, chosen_places, counts = shared[0], shared[1], shared[2]
    least, exact, turn = least_reached(keys, spare, how, counts, turn, how.count)
    last = Int32(0)
    if exact == 0:
        last, turn = _last(keys, far, least, most, how, counts, turn)
    own_count = Int32(0)
    for i in cutlass.range_constexpr(cute.size(keys)):
        own_count += one((keys[i] > least) | ((keys[i] == least) & (far[i] >= last)))
    slot, _ = before(own_count, counts, turn, how.per_row)
    turn += 1
    meet(how.per_row)
    for i in cutlass.range_constexpr(cute.size(keys)):
        if (keys[i] > least) | ((keys[i] == least) & (far[i] >= last)):
            chosen_keys[slot] = keys[i]
            chosen_places[slot] = columns - 1 - far[i]
            slot += 1
    meet(how.per_row)
    return turn


@cute.jit
def least_reached(
    keys: cute.Tensor, spare: cutlass.Constexpr[int], how: cutlass.Constexpr[SelectLaunch], counts: cute.Tensor,
    turn: Int32, most: cutlass.Constexpr[int],
) -> tuple[Uint32, Int32, Int32]:  # fmt: skip
    """A key that at least `count` of a row's keys reach, found bit by bit: the first one that at most `most` keys
    reach, else the largest. Then 1 if so few reach it, else 0; and the next turn."""
    least, bit, few = Uint32(0), Uint32(SIGN >> spare), Int32(0)
    while bit > Uint32(0):
        tried, own_count = Uint32(least | bit), Int32(0)
        for i in cutlass.range_constexpr(cute.size(keys)):
            own_count += one(keys[i] >= tried)
        total = summed(own_count, counts, turn, how.per_row)
        turn += 1
        least = Uint32(cutlass.select_(total >= how.count, tried, least))
        few = one((total >= how.count) & (total <= most))
        bit = Uint32(cutlass.select_(few > 0, Uint32(0), bit >> Uint32(1)))
    return least, few, turn


@cute.jit
def _last(
    keys: cute.Tensor, far: cute.Tensor, least: Uint32, most: Int32, how: cutlass.Constexpr[SelectLaunch],
    counts: cute.Tensor, turn: Int32,
) -> tuple[Int32, Int32]:  # fmt: skip
    """How far from the row's end the last selected element with the key `least` is, of a row that is shorter than 2 * `most`; and the
    next turn."""
    own_count = Int32(0)
    for i in cutlass.range_constexpr(cute.size(keys)):
        own_count += one(keys[i] > least)
    wanted = how.count - summed(own_count, counts, turn, how.per_row)
    turn += 1
    last, place = Int32(0), most
    while place > 0:
        tried, own_count = last | place, Int32(0)
        for i in cutlass.range_constexpr(cute.size(keys)):
            own_count += one((keys[i] == least) & (far[i] >= tried))
        total = summed(own_count, counts, turn, how.per_row)
        turn += 1
        last = cutlass.select_(total >= wanted, tried, last)
        place = cutlass.select_(total == wanted, Int32(0), place >> 1)
    return last, turn
