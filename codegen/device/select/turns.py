"""Few elements of a short row, which its threads hold, taken in turn."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, Uint32, Uint64

from codegen.device import access
from codegen.device.select.rows import SPARE, keys_of, meet, numbers
from codegen.shared import WARP, SelectLaunch


@cute.jit
def take_in_turn(
    src: cute.Tensor, row: Int32, columns: Int32, how: cutlass.Constexpr[SelectLaunch], shared: list[cute.Tensor]
) -> None:
    """`top_k` of a row that its threads hold, in order. An element is one number. Its upper bits are the key, its lower
    bits the distance from the row's end. So no two are equal, and among equal keys the first comes first. 0 is no
    element. Lanes compare the keys, and the rest only where several have the largest one."""
    tidx, _, _ = cute.arch.thread_idx()
    own, vec, vectors, per_row = tidx % how.per_row, how.vec, how.vectors, how.per_row
    step, elements, spare = per_row * vec, vec * vectors, SPARE.get(src.element_type, 0)
    places = (per_row * elements).bit_length() - 1  # bits of a position
    short = 32 - spare + places <= 32
    raw = cute.make_rmem_tensor((vec, vectors), src.element_type)
    access.load_row(src, Int64(row) * columns, own * vec, step, columns, raw, 1, how.ragged, False, False)
    held = [cute.make_rmem_tensor((elements,), Uint32) for _ in range(1 if short else 2)]  # its words, the first above
    for v in cutlass.range_constexpr(vectors):
        keys = keys_of(numbers(raw[None, v]), spare)
        for i in cutlass.range_constexpr(vec):
            left = columns - 1 - (own * vec + (v * step + i))
            element = [(keys[i] << Uint32(places)) | Uint32(left)] if short else [keys[i], Uint32(left)]
            for words, word in zip(held, element, strict=True):
                words[v * vec + i] = word if how.whole else cutlass.select_(left >= 0, word, Uint32(0))
    elements = _keep_largest(held, how.count)
    for c in cutlass.range_constexpr(how.count):
        first = held[0][0]
        mine = first == _largest_of_lanes(first, per_row)
        if cutlass.const_expr(not short):
            mine = _first_of(mine, held[1][0], per_row)
        if mine:
            shared[0][c] = Uint32(first >> Uint32(places)) if cutlass.const_expr(short) else first
            far = first & Uint32((1 << places) - 1) if cutlass.const_expr(short) else held[1][0]
            shared[1][c] = columns - 1 - Int32(far)
        for i in cutlass.range_constexpr(min(elements, how.count - 1 - c)):
            for words in held:
                following = words[i + 1] if cutlass.const_expr(i + 1 < elements) else Uint32(0)
                words[i] = cutlass.select_(mine, following, words[i])
    meet(per_row)


@cute.jit
def _first_of(mine: cutlass.Boolean, left: Uint32, lanes: cutlass.Constexpr[int]) -> cutlass.Boolean:
    """Whether this lane has the first of the elements marked `mine`, among `lanes` neighbouring lanes. `left` is larger the earlier an
    element is; it is compared only where several lanes have one."""
    tidx, _, _ = cute.arch.thread_idx()
    first = tidx % WARP // lanes * lanes
    alike = Uint32(cute.arch.vote_ballot_sync(mine)) >> Uint32(first)
    alike &= Uint32((1 << lanes) - 1)
    if cute.arch.vote_any_sync((alike & (alike - Uint32(1))) != Uint32(0)):
        own = Uint32(cutlass.select_(mine, left, Uint32(0)))
        mine = mine & (own == _largest_of_lanes(own, lanes))
    return mine


def _keep_largest(held: list[cute.Tensor], count: int) -> int:
    """Put at least `count` of the largest numbers first, in order, and return how many: a power of two. Runs of that length are sorted,
    then merged two by two: numbers from the front of one run are compared with numbers from the back of the other. The larger ones rise
    and then fall, so that sorting them takes half the comparisons."""
    size, kept = cute.size(held[0]), 1
    while kept < min(count, size):
        kept *= 2
    for begin in range(0, size, kept):
        _sort_run(held, begin, kept)
    apart = kept
    while apart < size:
        for begin in range(0, size, 2 * apart):
            for i in range(kept):
                _order(held, begin + i, begin + apart + kept - 1 - i)
            half = kept // 2
            while half > 0:
                for i in range(begin, begin + kept):
                    if (i - begin) // half % 2 == 0:
                        _order(held, i, i + half)
                half //= 2
        apart *= 2
    return kept


def _sort_run(held: list[cute.Tensor], begin: int, count: int) -> None:
    """Sort some of the numbers, the largest first: an odd-even merge sort."""
    run = 1
    while run < count:
        apart = run
        while apart > 0:
            for start in range(apart % run, count - apart, 2 * apart):
                for i in range(start, min(start + apart, count - apart)):
                    if i // (2 * run) == (i + apart) // (2 * run):
                        _order(held, begin + i, begin + i + apart)
            apart //= 2
        run *= 2


def _order(held: list[cute.Tensor], i: int, k: int) -> None:
    """Put the larger of two numbers of one or two words first."""
    swap = _number(held, k) > _number(held, i)
    for words in held:
        one, other = words[i], words[k]
        words[i] = cutlass.select_(swap, other, one)
        words[k] = cutlass.select_(swap, one, other)


def _number(held: list[cute.Tensor], i: int) -> Uint32 | Uint64:
    """The i-th number."""
    if len(held) == 1:
        return held[0][i]
    return (Uint64(held[0][i]) << Uint64(32)) | Uint64(held[1][i])


def _largest_of_lanes(value: Uint32, lanes: int) -> Uint32:
    """The largest number of so many neighbouring lanes."""
    if lanes == WARP:
        return Uint32(cute.arch.warp_redux_sync(value, "max"))
    apart = 1
    while apart < lanes:
        other = Uint32(cute.arch.shuffle_sync_bfly(value, apart))
        value = Uint32(cutlass.select_(other > value, other, value))
        apart *= 2
    return value
