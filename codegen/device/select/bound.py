"""Candidates: the elements of a row that reach a bound, which at least as many elements reach as are selected."""

from __future__ import annotations

from dataclasses import replace

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Uint32
from cutlass._mlir.dialects import llvm

from codegen.device import access
from codegen.device import functions as device
from codegen.device.select.pieces import least_reached
from codegen.device.select.rows import SPARE, before, keys_of, meet, numbers, one, own_of, summed, value_of
from codegen.shared import SelectLaunch

# Groups of a row's elements, at least, for each one that is selected: their largest ones tell which may be selected
GROUPS = 4
MORE = 8  # of the groups that should reach a bound, one eighth more may
PAIRS = {cutlass.BFloat16: "bf16x2", cutlass.Float16: "f16x2"}  # types that have a maximum of two words' halves


@cute.jit
def _piece(
    src: cute.Tensor, row: Int32, columns: Int32, own: Int32, begin: Int32, how: cutlass.Constexpr[SelectLaunch]
) -> cute.Tensor:
    """This thread's vectors of a piece of a row, (vec, vectors); past column `own` they may have any value."""
    raw = cute.make_rmem_tensor((how.vec, how.vectors), src.element_type)
    first = begin + own_of(how) * how.vec
    access.load_row(src, Int64(row) * columns, first, how.per_row * how.vec, own, raw, 1, how.ragged, False, False)
    return raw


def _in_pairs(element: type[cutlass.Numeric], groups: int, how: SelectLaunch) -> bool:
    """Whether words of two elements each are combined."""
    return element in PAIRS and groups % 2 == 0 and how.vec % 2 == 0 and not how.ragged


@cute.jit
def candidates(
    src: cute.Tensor, row: Int32, columns: Int32, how: cutlass.Constexpr[SelectLaunch], shared: list[cute.Tensor]
) -> Int32:
    """Write the positions of a row's elements that reach a bound to shared memory, in any order, if they are few. Returns their number.
    The bound is such that the largest elements of at least `count` groups reach it, and of few more."""
    counts, step, spare = shared[2], how.per_row * how.vec, SPARE.get(src.element_type, 0)
    groups = max(1, min(how.vec * how.vectors, GROUPS * how.few // 2 // how.per_row))
    pairs = _in_pairs(src.element_type, groups, how)
    number = src.element_type if cutlass.const_expr(pairs) else Float32 if src.element_type.is_float else Int32
    least = number(-float("inf")) if cutlass.const_expr(number.is_float) else number(-(2**31))
    largest = cute.make_rmem_tensor((groups,), number)
    largest.fill(least)
    for begin in cutlass.range(0, columns, step * how.vectors):
        raw, first = _piece(src, row, columns, columns, begin, how), begin + own_of(how) * how.vec
        for v in cutlass.range_constexpr(how.vectors):
            if first + v * step < columns:
                if cutlass.const_expr(pairs):
                    _larger_pairs(largest, raw[None, v], v * how.vec // 2)
                else:
                    some = numbers(raw[None, v])
                    for i in cutlass.range_constexpr(how.vec):
                        value, group = some[i], (v * how.vec + i) % groups
                        if cutlass.const_expr(how.ragged and i > 0):
                            value = cutlass.select_(first + (v * step + i) < columns, value, least)
                        largest[group] = _larger(largest[group], value)
    keys = cute.make_rmem_tensor((groups,), Uint32)
    for i, key in enumerate(keys_of(numbers(largest), spare)):
        keys[i] = key
    bound_key, _, turn = least_reached(keys, spare, how, counts, Int32(0), how.count + how.count // MORE)
    some, above = cutlass.Boolean(False), Int32(0)
    for i in cutlass.range_constexpr(groups):
        some |= keys[i] >= bound_key
        above += one(keys[i] > bound_key)
    own = cutlass.select_(some, columns, 0)  # a thread without such a group reads nothing again
    found, turn = _reaching(src, row, columns, own, bound_key, how, shared, turn)
    if found > how.few:
        above = summed(above, counts, turn, how.per_row)
        found = _first_ties(src, row, columns, own, bound_key, above, how, shared, turn + 1)
    return found


@cute.jit
def _reaching(
    src: cute.Tensor, row: Int32, columns: Int32, own: Int32, bound_key: Uint32, how: cutlass.Constexpr[SelectLaunch],
    shared: list[cute.Tensor], turn: Int32,
) -> tuple[Int32, Int32]:  # fmt: skip
    """Write to shared memory the positions of a row's elements that reach a bound, in no order, as many as it holds.
    Gives their number, or a larger one if they are more, and the next turn. This thread has elements up to column
    `own`."""
    step, found, begin, bound = how.per_row * how.vec, Int32(0), Int32(0), value_of(bound_key, src.element_type)[0]
    meet(how.per_row)
    while (begin < columns) & (found <= how.few):
        raw, first = _piece(src, row, columns, own, begin, how), begin + own_of(how) * how.vec
        reaching = Uint32(0)
        for v in cutlass.range_constexpr(how.vectors):
            values = numbers(raw[None, v])
            for i in cutlass.range_constexpr(how.vec):
                # Also of NaN, which reaches every bound, while a bound of NaN excludes none
                bit = Uint32(1 << (v * how.vec + i))
                reaching |= cutlass.select_(values[i] < bound, Uint32(0), bit)
        reaching &= _in_row(own - first, step, how)
        found = _write(reaching, found, first, how, shared, turn)
        turn, begin = turn + 1, begin + step * how.vectors
    return found, turn


@cute.jit
def _first_ties(
    src: cute.Tensor, row: Int32, columns: Int32, own: Int32, bound_key: Uint32, above: Int32,
    how: cutlass.Constexpr[SelectLaunch], shared: list[cute.Tensor], turn: Int32,
) -> Int32:  # fmt: skip
    """As `_reaching`, with only the first `count` elements that equal the bound. A thread has a vector at a time: threads are in the
    order of positions. None is larger where no group has an element `above` the bound."""
    one_vector, found, ties, begin = replace(how, vectors=1), Int32(0), Int32(0), Int32(0)
    meet(how.per_row)
    while (begin < columns) & ((above > 0) | (ties < how.count)) & (found <= how.few):
        raw, first = _piece(src, row, columns, own, begin, one_vector), begin + own_of(how) * how.vec
        keys = keys_of(numbers(raw[None, 0]), SPARE.get(src.element_type, 0))
        larger, tied = Uint32(0), Uint32(0)
        for i in cutlass.range_constexpr(how.vec):
            larger |= cutlass.select_(keys[i] > bound_key, Uint32(1 << i), Uint32(0))
            tied |= cutlass.select_(keys[i] == bound_key, Uint32(1 << i), Uint32(0))
        inside = _in_row(own - first, how.per_row * how.vec, one_vector)
        larger, tied = Uint32(larger & inside), Uint32(tied & inside)
        earlier, every = before(Int32(cute.arch.popc(tied)), shared[2], turn, how.per_row)
        left = how.count - ties - earlier
        while (tied != Uint32(0)) & (left > 0):
            rest = Uint32(tied & (tied - Uint32(1)))
            larger, tied, left = Uint32(larger | (tied ^ rest)), rest, left - 1
        ties += every
        found = _write(larger, found, first, one_vector, shared, turn + 1)
        turn, begin = turn + 2, begin + how.per_row * how.vec
    return found


@cute.jit
def _write(
    chosen: Uint32,
    found: Int32,
    first: Int32,
    how: cutlass.Constexpr[SelectLaunch],
    shared: list[cute.Tensor],
    turn: Int32,
) -> Int32:
    """Write the positions of a thread's chosen elements of a piece, which begin at a column, after `found` ones; their number then."""
    slot, every = before(Int32(cute.arch.popc(chosen)), shared[2], turn, how.per_row)
    slot, step = slot + found, how.per_row * how.vec
    while (chosen != Uint32(0)) & (slot < how.few):
        i = Int32(cute.arch.popc(~chosen & (chosen - Uint32(1))))
        shared[3][slot] = first + (i // how.vec * step + i % how.vec)
        chosen = Uint32(chosen & (chosen - Uint32(1)))
        slot += 1
    return found + every


def _in_row(left: Int32, step: int, how: SelectLaunch) -> Uint32:
    """A bit for each of a thread's elements of a piece, from the first to the last: whether the element is in the row,
    which ends so many elements after the first."""
    bits, whole = Uint32(0), (1 << how.vec) - 1
    for v in range(how.vectors):
        own = left - v * step
        some = cutlass.select_(own < how.vec, Uint32((Uint32(1) << Uint32(own)) - Uint32(1)), Uint32(whole))
        inside = cutlass.select_(own > 0, some if how.ragged else Uint32(whole), Uint32(0))
        bits |= inside << Uint32(v * how.vec)
    return bits


@cute.jit
def candidate(
    src: cute.Tensor, row: Int32, rows: Int32, columns: Int32, slot: Int32, found: Int32, shared: list[cute.Tensor]
) -> tuple[Uint32, Int32]:
    """The key and the position of an element that may be selected (`top_k`); past the last one of those found, 0 and any position."""
    row, key, column = cutlass.select_(row < rows, row, rows - 1), Uint32(0), Int32(0)
    if slot < found:
        column = shared[3][slot]
        own = numbers(device.vector(src, Int64(row) * columns + column, 1))
        key = keys_of(own, SPARE.get(src.element_type, 0))[0]
    return key, column


def _larger_pairs(largest: cute.Tensor, values: cute.Tensor, first: int) -> None:
    """Combine words of two elements each with those of groups, from word `first` of a thread's piece on."""
    held, words = (cute.recast_tensor(t, Uint32) for t in (largest, values))
    text = f"max.NaN.{PAIRS[values.element_type]} $0, $1, $2;"
    for w in range(cute.size(words)):
        at = (first + w) % cute.size(held)
        both = [held[at].ir_value(), words[w].ir_value()]
        held[at] = Uint32(llvm.inline_asm(Uint32.mlir_type, both, text, "=r,r,r"))


def _larger(a: cutlass.Numeric, b: cutlass.Numeric) -> cutlass.Numeric:
    """The larger of two numbers; NaN where either is."""
    return Float32(cute.arch.fmax(a, b, nan=True)) if isinstance(a, Float32) else cutlass.select_(a > b, a, b)
