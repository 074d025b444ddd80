"""Device functions of kernels that select the largest elements of a row, in order, and of the kernels of their
derivatives.

An element has a key, a number of up to 32 bits in the same order as the values, and its position in the row. The key 0 with a
position past the row stands for no element. All threads of a row come to the same decisions.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Uint32, Uint64
from cutlass.memory import SmemAllocator

from codegen.device import access
from codegen.device import functions as device
from codegen.shared import SPARE_BITS, WARP, SelectLaunch

NOWHERE = 2**31 - 1
# Of a row's elements, at least, for each one that is selected: their largest ones tell which may be selected
GROUPS = 4
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


def memory(how: SelectLaunch) -> list[cute.Tensor]:
    """Shared memory for this thread's row: the keys and the positions of its selected elements, (count,) each; the numbers that its
    warps count, (2, warps); the keys and positions of elements that may be selected, (few,) each."""
    tidx, _, _ = cute.arch.thread_idx()
    rows, allocator = how.threads // how.per_row, SmemAllocator()
    own = tidx // how.per_row
    layout = cute.make_layout((rows, how.count), stride=(how.count, 1))
    whole = 16 if how.count % 4 == 0 else 4  # bytes: else the compiler reads vectors past the last element
    keys, places = (allocator.allocate_tensor(d, layout, whole)[own, None] for d in (Uint32, Int32))
    warps = max(how.per_row // WARP, 1)
    counts = allocator.allocate_tensor(Int32, cute.make_layout((2, warps)), 16)
    few = cute.make_layout((rows, how.few), stride=(how.few, 1))
    return [keys, places, counts, *(allocator.allocate_tensor(d, few, 16)[own, None] for d in (Uint32, Int32))]


@cute.jit
def meet(per_row: cutlass.Constexpr[int]) -> None:
    """Wait for the other threads of the row."""
    if cutlass.const_expr(per_row > WARP):
        cute.arch.sync_threads()
    else:
        cute.arch.sync_warp()


@cute.jit
def _sum(own: Int32, counts: cute.Tensor, turn: Int32, per_row: cutlass.Constexpr[int]) -> Int32:
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
def _before(own: Int32, counts: cute.Tensor, turn: Int32, per_row: cutlass.Constexpr[int]) -> tuple[Int32, Int32]:
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


def _one(condition: cutlass.Boolean) -> Int32:
    return cutlass.select_(condition, Int32(1), Int32(0))


def keys_of(values: device.Vector, spare: int = 0) -> list[Uint32]:
    """The keys of floats or integers, without so many of their last bits; any NaN is above all numbers."""
    count = cute.size(values.shape)
    held = cute.make_rmem_tensor((count,), values.dtype)
    held.store(values)
    bits = cute.make_tensor(cute.recast_ptr(held.iterator, dtype=Uint32), cute.make_layout((count,)))
    found = []
    for i in range(count):
        key = bits[i] ^ Uint32(SIGN)
        if values.dtype is Float32:
            key = cutlass.select_(bits[i] < Uint32(SIGN), key, ~bits[i])
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


@cute.jit
def top_k(
    src: cute.Tensor, row: Int32, rows: Int32, columns: Int32, how: cutlass.Constexpr[SelectLaunch],
    shared: list[cute.Tensor],
) -> Int32:  # fmt: skip
    """Find the largest elements of a row of `columns` elements, of a compact tensor (rows, columns), and write those that may be
    among them to the row's shared memory, in no order; the number of these. Where elements are taken in turn, write the largest ones
    in order, where the selected ones are. All lanes of a warp take part; past the last row they read that again."""
    row = cutlass.select_(row < rows, row, rows - 1)
    found = Int32(0)
    if cutlass.const_expr(how.in_turn):
        _take_in_turn(src, row, columns, how, shared)
    else:
        found = _candidates(src, row, columns, how, shared)
        if found > how.few:
            meet(how.per_row)
            _by_pieces(src, row, columns, how, shared)
            found = Int32(how.count)
            for c in cutlass.range_constexpr(how.held):
                slot = own_of(how) + c * how.per_row
                if slot < how.count:
                    shared[3][slot], shared[4][slot] = shared[0][slot], shared[1][slot]
        meet(how.per_row)
    return found


@cute.jit
def _piece(
    src: cute.Tensor, row: Int32, columns: Int32, begin: Int32, how: cutlass.Constexpr[SelectLaunch]
) -> tuple[cute.Tensor, cute.Tensor]:
    """This thread's elements of a piece of a row, as float32 or int32, and whether the row has them."""
    first, step, count = begin + own_of(how) * how.vec, how.per_row * how.vec, how.vec * how.vectors
    floating = src.element_type.is_float
    raw = cute.make_rmem_tensor((how.vec, how.vectors), src.element_type)
    access.load_row(src, Int64(row) * columns, first, step, columns, raw, 1, how.ragged, False, False)
    values = cute.make_rmem_tensor((count,), Float32 if cutlass.const_expr(floating) else Int32)
    there = cute.make_rmem_tensor((count,), cutlass.Boolean)
    for v in cutlass.range_constexpr(how.vectors):
        some = device.floats(raw[None, v]) if cutlass.const_expr(floating) else raw[None, v].load().to(Int32)
        for i in cutlass.range_constexpr(how.vec):
            values[v * how.vec + i] = some[i]
            there[v * how.vec + i] = first + (v * step + (i if how.ragged else 0)) < columns
    return values, there


@cute.jit
def _candidates(
    src: cute.Tensor, row: Int32, columns: Int32, how: cutlass.Constexpr[SelectLaunch], shared: list[cute.Tensor]
) -> Int32:
    """Write the elements of a row that reach a bound to shared memory, in no order, if these are few; their number. At least `count`
    groups of elements have a largest element that reaches the bound. It is the largest such number."""
    counts, step, floating = shared[2], how.per_row * how.vec, src.element_type.is_float
    spare = SPARE.get(src.element_type, 0)
    groups = max(1, min(how.vec * how.vectors, GROUPS * how.few // 2 // how.per_row))
    least = Float32(-float("inf")) if cutlass.const_expr(floating) else Int32(-(2**31))
    largest = cute.make_rmem_tensor((groups,), Float32 if cutlass.const_expr(floating) else Int32)
    largest.fill(least)
    for begin in cutlass.range(0, columns, step * how.vectors):
        values, there = _piece(src, row, columns, begin, how)
        for i in cutlass.range_constexpr(how.vec * how.vectors):
            value = cutlass.select_(there[i], values[i], least)
            largest[i % groups] = _larger(largest[i % groups], value)
    keys = cute.make_rmem_tensor((groups,), Uint32)
    for i, key in enumerate(keys_of(largest.load(), spare)):
        keys[i] = key
    bound_key, _, turn = _least(keys, spare, how, counts, Int32(0))
    bound = value_of(bound_key, src.element_type)[0]
    found, turn = _reaching(src, row, columns, bound, False, how, shared, turn)
    if found > how.few:
        found, turn = _reaching(src, row, columns, bound, True, how, shared, turn)
    return found


@cute.jit
def _reaching(
    src: cute.Tensor, row: Int32, columns: Int32, bound: cutlass.Numeric, first_ties: cutlass.Constexpr[bool],
    how: cutlass.Constexpr[SelectLaunch], shared: list[cute.Tensor], turn: Int32,
) -> tuple[Int32, Int32]:  # fmt: skip
    """Write the elements of a row that reach a bound to shared memory, in no order, as many as it holds; their number, and the next
    turn. With `first_ties`, elements that equal the bound are left out after pieces that have `count` of them."""
    counts, few_keys, few_places = shared[2], shared[3], shared[4]
    step, spare, floating = how.per_row * how.vec, SPARE.get(src.element_type, 0), src.element_type.is_float
    found, ties = Int32(0), Int32(0)
    meet(how.per_row)
    for begin in cutlass.range(0, columns, step * how.vectors):
        values, there = _piece(src, row, columns, begin, how)
        reaching, tied = Uint32(0), Uint32(0)
        for i in cutlass.range_constexpr(how.vec * how.vectors):
            # Also of NaN, which reaches every bound, while a bound of NaN excludes none
            reaches = there[i] & ~(values[i] < bound)
            reaching = Uint32(reaching | cutlass.select_(reaches, Uint32(1 << i), Uint32(0)))
            if cutlass.const_expr(first_ties):  # zeros of both signs equal each other, but have different keys
                equal = reaches & (values[i] == bound) & (values[i] != 0)
                tied = Uint32(tied | cutlass.select_(equal, Uint32(1 << i), Uint32(0)))
        if cutlass.const_expr(first_ties):
            reaching = Uint32(cutlass.select_(ties < how.count, reaching, Uint32(reaching ^ tied)))
            ties += _sum(Int32(cute.arch.popc(tied)), counts, turn, how.per_row)
            turn += 1
        slot, every = _before(Int32(cute.arch.popc(reaching)), counts, turn, how.per_row)
        turn += 1
        slot += found
        found += every
        while (reaching != Uint32(0)) & (slot < how.few):
            i = Int32(cute.arch.popc(~reaching & (reaching - Uint32(1))))
            column = begin + own_of(how) * how.vec + i // how.vec * step + i % how.vec
            one = device.vector(src, Int64(row) * columns + column, 1)
            own = device.floats(one) if cutlass.const_expr(floating) else one.load().to(Int32)
            few_keys[slot] = keys_of(own, spare)[0]
            few_places[slot] = column
            reaching = Uint32(reaching & (reaching - Uint32(1)))
            slot += 1
    return found, turn


def _larger(a: cutlass.Numeric, b: cutlass.Numeric) -> cutlass.Numeric:
    """The larger of two numbers; NaN where either is."""
    return Float32(cute.arch.fmax(a, b, nan=True)) if isinstance(a, Float32) else cutlass.select_(a > b, a, b)


def own_of(how: SelectLaunch) -> Int32:
    """The number of this thread among those of its row."""
    tidx, _, _ = cute.arch.thread_idx()
    return tidx % how.per_row


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


@cute.jit
def _take_in_turn(
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
        some = raw[None, v]
        floating = src.element_type.is_float
        keys = keys_of(device.floats(some) if cutlass.const_expr(floating) else some.load().to(Int32), spare)
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


@cute.jit
def _by_pieces(
    src: cute.Tensor, row: Int32, columns: Int32, how: cutlass.Constexpr[SelectLaunch], shared: list[cute.Tensor]
) -> None:
    """`top_k`, in no order, of a row that may be longer than its threads hold."""
    tidx, _, _ = cute.arch.thread_idx()
    chosen_keys, chosen_places = shared[0], shared[1]
    own, vec, vectors, per_row, held = tidx % how.per_row, how.vec, how.vectors, how.per_row, how.held
    step, elements = per_row * vec, vec * vectors
    raw = cute.make_rmem_tensor((vec, vectors), src.element_type)
    keys, kept = cute.make_rmem_tensor((elements + held,), Uint32), cute.make_rmem_tensor((held,), Int32)
    keys.fill(0)
    kept.fill(NOWHERE)
    most = Int32(1)
    while most < columns:
        most = most * 2
    turn, spare = Int32(0), SPARE.get(src.element_type, 0)
    for begin in cutlass.range(0, columns, step * vectors):
        first = begin + own * vec
        access.load_row(src, Int64(row) * columns, first, step, columns, raw, 1, how.ragged, False, True)
        # How far an element is from the row's end: of equal ones, the farthest come first; negative for no element
        far = cute.make_rmem_tensor((elements + held,), Int32)
        for v in cutlass.range_constexpr(vectors):
            some = raw[None, v]
            floating = src.element_type.is_float
            found = keys_of(device.floats(some) if cutlass.const_expr(floating) else some.load().to(Int32), spare)
            for i in cutlass.range_constexpr(vec):
                left = columns - 1 - (first + (v * step + i))
                far[v * vec + i] = left
                keys[v * vec + i] = cutlass.select_(left >= 0, found[i], Uint32(0))
        for c in cutlass.range_constexpr(held):
            far[elements + c] = columns - 1 - kept[c]
        turn = _choose(keys, far, spare, most, columns, how, shared, turn)
        for c in cutlass.range_constexpr(held):
            if own + c * per_row < how.count:
                keys[elements + c] = chosen_keys[own + c * per_row]
                kept[c] = chosen_places[own + c * per_row]


@cute.jit
def _choose(
    keys: cute.Tensor, far: cute.Tensor, spare: cutlass.Constexpr[int], most: Int32, columns: Int32,
    how: cutlass.Constexpr[SelectLaunch], shared: list[cute.Tensor], turn: Int32,
) -> Int32:  # fmt: skip
    """Write the largest of a row's elements to shared memory, in no order. The next turn."""
    chosen_keys, chosen_places, counts = shared[0], shared[1], shared[2]
    least, exact, turn = _least(keys, spare, how, counts, turn)
    last = Int32(0)
    if exact == 0:
        last, turn = _last(keys, far, least, most, how, counts, turn)
    own_count = Int32(0)
    for i in cutlass.range_constexpr(cute.size(keys)):
        own_count += _one((keys[i] > least) | ((keys[i] == least) & (far[i] >= last)))
    slot, _ = _before(own_count, counts, turn, how.per_row)
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
def _least(
    keys: cute.Tensor,
    spare: cutlass.Constexpr[int],
    how: cutlass.Constexpr[SelectLaunch],
    counts: cute.Tensor,
    turn: Int32,
) -> tuple[Uint32, Int32, Int32]:
    """The largest key that at least `count` of a row's keys reach, bit by bit; 1 if exactly so many do, else 0; and the next turn."""
    least, bit, exact = Uint32(0), Uint32(SIGN >> spare), Int32(0)
    while bit > Uint32(0):
        tried, own_count = Uint32(least | bit), Int32(0)
        for i in cutlass.range_constexpr(cute.size(keys)):
            own_count += _one(keys[i] >= tried)
        total = _sum(own_count, counts, turn, how.per_row)
        turn += 1
        least = Uint32(cutlass.select_(total >= how.count, tried, least))
        exact = cutlass.select_(total == how.count, Int32(1), exact)
        bit = Uint32(cutlass.select_(total == how.count, Uint32(0), bit >> Uint32(1)))
    return least, exact, turn


@cute.jit
def _last(
    keys: cute.Tensor, far: cute.Tensor, least: Uint32, most: Int32, how: cutlass.Constexpr[SelectLaunch],
    counts: cute.Tensor, turn: Int32,
) -> tuple[Int32, Int32]:  # fmt: skip
    """How far from the row's end the last selected element with the key `least` is, of a row that is shorter than 2 * `most`; and the
    next turn."""
    own_count = Int32(0)
    for i in cutlass.range_constexpr(cute.size(keys)):
        own_count += _one(keys[i] > least)
    wanted = how.count - _sum(own_count, counts, turn, how.per_row)
    turn += 1
    last, place = Int32(0), most
    while place > 0:
        tried, own_count = last | place, Int32(0)
        for i in cutlass.range_constexpr(cute.size(keys)):
            own_count += _one((keys[i] == least) & (far[i] >= tried))
        total = _sum(own_count, counts, turn, how.per_row)
        turn += 1
        last = cutlass.select_(total >= wanted, tried, last)
        place = cutlass.select_(total == wanted, Int32(0), place >> 1)
    return last, turn


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
