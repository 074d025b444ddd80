"""The weights of a tile's scores, as a consumer of Hopper's main loop computes them, and its state of each row. Weights
are exponentials relative to a level.

A level is an earlier maximum of the row. It rises to the maximum only where that exceeds it by `RISE`, since sums of
earlier weights must then be rescaled. A tile seldom has such a large score. When a row ends, its sums are made relative
to its maximum.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Boolean, Float32, Int32

from codegen.device import functions as device
from codegen.device.attention import hopper
from codegen.device.attention.arguments import Functions, Problem
from codegen.device.attention.scores import Scores, powers, whole
from codegen.device.math.elementary import SMALL, tanh_small

RISE = 8  # powers of 2 by which a maximum may exceed a level: weights are at most so large
EARLY = 12  # powers of 2 up to which sums of weights of a tile may be that are relative to earlier levels
BROAD = 40  # the same of weights of a type with float32's exponents
STEADY = 80  # powers of 2 that scores may reach, and weights with them, if all levels are 0: sums of 2**20 products do not overflow
CONDITIONS = 8  # scores of a row whose conditions are computed at once: more would not fit the predicate registers
NOTHING = 32  # powers of 2 by which a weight is smaller than the largest, and counts for nothing

# Of a thread's two rows, each two numbers: the maximum, the level, this thread's sum of weights, the factor by which earlier weights
# shrank in the last tile, and the factor and the term of exponents relative to the level (`powers`); a term without a level is NaN
State = tuple[cute.Tensor, cute.Tensor, cute.Tensor, cute.Tensor, cute.Tensor, cute.Tensor]


def state() -> State:
    """Registers of a state."""
    top, level, total, factor, by, start = (cute.make_rmem_tensor((2,), Float32) for _ in range(6))
    return top, level, total, factor, by, start


def is_steady(functions: Functions, dtype: Any) -> bool:
    """Whether the level is 0 for every row: scores are tangents, and weights of a type with float32's exponents."""
    return functions.raises and functions.bend > 0 and functions.base <= STEADY and dtype is BFloat16


def begin(state: State, functions: Functions) -> None:
    """Begin rows: nothing is added up."""
    top, level, total, *_ = state
    top.fill(-math.inf)
    level.fill(0.0 if functions.steady else -math.inf)
    total.fill(0.0)


def keep(state: State, kept: State) -> None:
    """Copy a state."""
    for source, target in zip(state, kept, strict=True):
        target.store(source.load())


def has_risen(state: State) -> Boolean:
    """Whether a level of a warp's rows has risen in the last tile."""
    factor = state[3]
    return Boolean(cute.arch.vote_any_sync((factor[0] != 1) | (factor[1] != 1)))


@cute.jit
def rescale(sums: cute.Tensor, state: State) -> None:
    """Make sums relative to the last levels."""
    factor = state[3]
    for r in cutlass.range_constexpr(2):
        for j in cutlass.range_constexpr(cute.size(sums, mode=[2])):
            for c in cutlass.range_constexpr(2):
                sums[c, r, j] = sums[c, r, j] * factor[r]


def of_row(state: State, r: int, functions: Functions) -> tuple[Float32, Float32, Float32]:
    """A row's largest score; the sum of its weights over all lanes that have its columns, relative to that score; and
    the factor that makes other sums relative to it."""
    top, level, total, *_ = (Float32(x[r]) for x in state)
    for other in range(1, 3):
        total += cute.arch.shuffle_sync_bfly(total, offset=other)
    if functions.steady or functions.early:
        top = _of_lanes(top)
    if not functions.raises:
        return top, total, Float32(1)
    shrunk = _factor(level, top, powers(top, functions.base))
    return top, total * shrunk, shrunk


Loaded = tuple[tuple[list[Any], list[Any]], ...]  # of each of a thread's rows: with the mask, and where that holds


def of_rows(rows: tuple, problem: Problem) -> Loaded:
    """What the scores read for each row, in the order in which their function does. A tile would wait for the L2 cache."""
    (places, row), sizes = rows, problem.sizes
    found: Loaded = tuple(([], []) for _ in range(2))
    for r, both in enumerate(found):
        for masked, values in zip((True, False), both, strict=True):

            def kept(load: Callable[[], Any], values: list[Any] = values) -> Any:
                values.append(load())
                return values[-1]

            at = Scores(places, cutlass.min(row + 8 * r, sizes[0] - 1), (Int32(0),), sizes, apart=(0,), held=kept)
            problem.functions.score(at, cute.full((1,), 0.0, Float32), problem.tensors, masked)
    return found


def _score(
    s: cute.Tensor, r: int, place: tuple, problem: Problem, masked: bool, loaded: Loaded, shift: cute.Tensor | None = None,
) -> None:  # fmt: skip
    """Replace products of a row with their scores, less the row's `shift` if there is one."""
    functions = problem.functions

    def scores(at: Scores, products: Any) -> Any:
        values = iter(loaded[r][0 if masked else 1])
        at = replace(at, held=lambda _: next(values))
        if not masked:
            at = replace(at, apart=hopper.apart(at.vec), neighbours=functions.neighbours)
        found = functions.score(at, products, problem.tensors, masked)
        if shift is None:
            return whole(found)
        shift[r] = found[1]
        return found[0]

    _change(s, r, place, problem.sizes, scores, CONDITIONS if masked and not functions.bend else 0)


def _change(
    s: cute.Tensor, r: int, place: tuple, sizes: tuple, function: Callable[[Scores, Any], Any], each: int = 0
) -> None:  # fmt: skip
    """Replace a row's values with a function of them: all at once, or `each` at a time if that is not 0."""
    places, row, column = place
    part = hopper.row_of(s, r)
    count = cute.size(part)
    columns = hopper.columns_of(column, count)
    for first in range(0, count, each or count):
        some = cute.make_tensor(part.iterator + first, cute.make_layout(min(each or count, count - first)))
        own = columns[first : first + cute.size(some)]
        some.store(function(Scores(places, cutlass.min(row + 8 * r, sizes[0] - 1), own, sizes), some.load()))
    hopper.put_row(part, s, r)


@cute.jit
def weigh(
    s: cute.Tensor, state: tuple, place: tuple, plain: cutlass.Boolean, problem: Problem,
    loaded: cutlass.Constexpr[Loaded],
) -> None:  # fmt: skip
    """Replace products with weights: exponentials of scores relative to the row's maximum, which are added up, or scores
    themselves."""
    functions = problem.functions
    bent = cutlass.const_expr(functions.bend > 0 and functions.raises)
    near, largest = Boolean(False), cute.make_rmem_tensor((2,), Float32)
    if cutlass.const_expr(bent):
        near = _is_near(s, largest, state, plain, functions)
    if near:
        for r in cutlass.range_constexpr(2):
            _small_exponentials(s, r, state, largest, functions)
    else:
        shift = cute.make_rmem_tensor((2,), Float32) if functions.shifts and functions.raises else None
        _score_all(s, place, plain, problem, loaded, shift)
        if cutlass.const_expr(functions.raises):
            for r in cutlass.range_constexpr(2):
                _exponentials(s, r, state, shift, functions)
        elif cutlass.const_expr(functions.row is not None):
            for r in cutlass.range_constexpr(2):
                state[2][r] = _summed(hopper.row_of(s, r), state[2][r])
    if cutlass.const_expr(functions.raises and functions.weight is not None):
        for r in cutlass.range_constexpr(2):
            _change(s, r, place, problem.sizes, lambda at, e: functions.weight(at, e, problem.tensors))


@cute.jit
def weigh_next(
    s: cute.Tensor, words: cute.Tensor, state: tuple, place: tuple, plain: cutlass.Boolean, problem: Problem,
    loaded: cutlass.Constexpr[Loaded], dtype: cutlass.Constexpr[Any],
) -> Boolean:  # fmt: skip
    """As `weigh`, of a tile that is not a row's first. Gives whether a level may have risen. Early weights are rounded to `words`. They are
    relative to the levels of the tiles before, and so wait for no maximum of this one. All is done again where a weight of a warp's
    rows is too large, or a row has no level."""
    again, functions = Boolean(True), problem.functions
    if cutlass.const_expr(not functions.early):
        weigh(s, state, place, plain, problem, loaded)
        if cutlass.const_expr(functions.raises and not functions.steady):
            again = has_risen(state)
    else:
        _score_all(s, place, plain, problem, loaded, None)
        again = _early_exponentials(s, words, state, dtype, functions)
        if again:
            for r in cutlass.range_constexpr(2):
                _exponentials(s, r, state, None, functions)
            hopper.rounded(s, words, dtype)
    return again


@cute.jit
def _early_exponentials(
    s: cute.Tensor, words: cute.Tensor, state: tuple, dtype: cutlass.Constexpr[Any],
    functions: cutlass.Constexpr[Functions],
) -> Boolean:  # fmt: skip
    """Round exponentials relative to the levels to `words`, and update the state. If they are too large, or no numbers, give that
    instead. This depends on all that is computed here, or the compiler would compute that behind the question."""
    tops, sums, good = *(cute.make_rmem_tensor((2,), Float32) for _ in range(2)), Boolean(True)
    most = BROAD if cutlass.const_expr(dtype is BFloat16) else EARLY
    for r in cutlass.range_constexpr(2):
        part, by, start = hopper.row_of(s, r), Float32(state[4][r]), Float32(state[5][r])
        tops[r] = state[0][r]
        if cutlass.const_expr(functions.tops):
            tops[r] = _largest(s, r, Float32(state[0][r]))
        exponents = device.fma(part.load(), by, cute.full(part.shape, start, Float32))
        part.store(cute.math.exp2(exponents, fastmath=True))
        hopper.rounded_row(part, words, r, dtype)
        sums[r] = _summed(part, Float32(0.0))
        good = good & (sums[r] <= 2.0**most) & (tops[r] < math.inf)
    again = cute.arch.vote_any_sync(good == Boolean(False))
    if not again:
        state[0].store(tops.load())
        state[2].store(state[2].load() + sums.load())
    return again


@cute.jit
def _score_all(
    s: cute.Tensor, place: tuple, plain: cutlass.Boolean, problem: Problem, loaded: cutlass.Constexpr[Loaded], shift: Any
) -> None:  # fmt: skip
    """Replace products with scores, less a row's `shift`; with those of no column past the last one."""
    count = cute.size(s, mode=[2])
    if cutlass.const_expr(shift is not None):
        shift.fill(0.0)
    if plain:
        for r in cutlass.range_constexpr(2):
            _score(s, r, place, problem, False, loaded, shift)
    else:
        for r in cutlass.range_constexpr(2):
            _score(s, r, place, problem, True, loaded)
        last = problem.sizes[1] - place[2]
        if cute.arch.vote_any_sync(last <= 8 * count - 7):
            outside = Float32(-math.inf if cutlass.const_expr(problem.functions.raises) else 0.0)
            for r in cutlass.range_constexpr(2):
                for j in cutlass.range_constexpr(count):
                    for c in cutlass.range_constexpr(2):
                        s[c, r, j] = cutlass.select_(8 * j + c < last, s[c, r, j], outside)


@cute.jit
def _exponentials(
    s: cute.Tensor, r: cutlass.Constexpr[int], state: tuple, shift: Any,
    functions: cutlass.Constexpr[Functions],
) -> None:  # fmt: skip
    """Replace a row's scores with exponentials, and update its state."""
    base = functions.base
    if cutlass.const_expr(shift is None):
        largest = _largest(s, r, Float32(state[0][r]))
    else:
        largest = cute.arch.fmax(_largest(s, r, Float32(-math.inf)) + shift[r], Float32(state[0][r]), nan=True)
    if cutlass.const_expr(functions.steady):
        state[0][r] = largest
        _raise(s, r, state, lambda part: part * base)
    else:
        state[0][r] = _of_lanes(largest)
        level = _level(state, r, base)
        by, start = powers(level, base)
        _rise(state, r, level, (by, start))
        state[4][r] = by
        state[5][r] = cutlass.select_(level == -math.inf, Float32(math.nan), start)
        if cutlass.const_expr(shift is not None):
            start += shift[r] * by
        _raise(s, r, state, lambda part: device.fma(part, by, cute.full(part.shape, start, Float32)))


def _level(state: tuple, r: int, base: float) -> Float32:
    """What exponentials of a row are relative to from now on: its maximum, if that has risen by much."""
    top, before = Float32(state[0][r]), Float32(state[1][r])
    return Float32(cutlass.select_((top - before) * base <= RISE, before, top))


@cute.jit
def _largest(s: cute.Tensor, r: cutlass.Constexpr[int], least: cutlass.Float32) -> Float32:
    """The largest number of a lane's columns of a row, or `least`."""
    largest = [least] + [Float32(-math.inf)] * 3
    for i in cutlass.range_constexpr(2 * cute.size(s, mode=[2])):
        largest[i % 4] = cute.arch.fmax(largest[i % 4], s[i % 2, r, i // 2], nan=True)
    halves = [cute.arch.fmax(largest[i], largest[i + 1], nan=True) for i in (0, 2)]
    return cute.arch.fmax(halves[0], halves[1], nan=True)


def _of_lanes(largest: Float32) -> Float32:
    """The largest of the numbers of all lanes that have a row's columns."""
    for other in range(1, 3):
        largest = cute.arch.fmax(largest, cute.arch.shuffle_sync_bfly(largest, offset=other), nan=True)
    return largest


def _rise(state: tuple, r: int, level: Float32, powers: tuple) -> None:
    """Make a row's sum relative to a new level."""
    _, before, total, factor, *_ = state
    factor[r] = _factor(Float32(before[r]), level, powers)
    before[r] = level
    total[r] = total[r] * factor[r]


@cute.jit
def _raise(
    s: cute.Tensor, r: cutlass.Constexpr[int], state: tuple, exponents: cutlass.Constexpr[Callable[..., Any]]
) -> None:
    """Replace a row's numbers with powers of 2, whose `exponents` are relative to the level, and add them up."""
    part, total = hopper.row_of(s, r), state[2]
    part.store(cute.math.exp2(exponents(part.load()), fastmath=True))
    hopper.put_row(part, s, r)
    total[r] = _summed(part, Float32(total[r]))


def _factor(before: Float32, level: Float32, powers: tuple) -> Float32:
    """The factor by which exponentials shrink when they become relative to another level; 1 if it is the same."""
    by, start = powers
    fallen = device.fma(cute.full((1,), before, Float32), by, cute.full((1,), start, Float32))
    return Float32(cutlass.select_(before == level, Float32(1), cute.math.exp2(fallen, fastmath=True)[0]))


def _summed(part: cute.Tensor, before: Float32) -> Float32:
    """The sum of a row's numbers and of those `before`."""
    sums = [Float32(part[i]) for i in range(4)]
    for i in range(4, cute.size(part)):
        sums[i % 4] += part[i]
    return before + ((sums[0] + sums[1]) + (sums[2] + sums[3]))


# Scores that are tangents of products. Near 0 a polynomial is the tangent. It rises too, so that the largest product has the largest score;
# and below, it falls without bound, where the tangent falls to -1. There a power is too small to count, if the largest score is large


@cute.jit
def _is_near(
    s: cute.Tensor, largest: cute.Tensor, state: tuple, plain: cutlass.Boolean, functions: cutlass.Constexpr[Functions]
) -> Boolean:  # fmt: skip
    """Whether in a warp's rows of a tile without a mask the polynomial gives all powers; and each row's largest product."""
    bend, near, low = functions.bend, plain, Boolean(True)
    for r in cutlass.range_constexpr(2):
        own = _largest(s, r, Float32(-math.inf))
        largest[r] = own if cutlass.const_expr(functions.steady) else _of_lanes(own)
        top = cute.arch.fmax(Float32(state[0][r]), _tangent(Float32(largest[r]), bend))
        near, low = near & (largest[r] * bend <= SMALL), low & ((top + SMALL) * functions.base >= NOTHING)
    if not low:
        low = cute.arch.fmax(_farthest(s, 0), _farthest(s, 1), nan=True) * bend <= SMALL
    return cute.arch.vote_all_sync(near & low)


@cute.jit
def _farthest(s: cute.Tensor, r: cutlass.Constexpr[int]) -> Float32:
    """The largest magnitude of a lane's columns of a row."""
    most = [Float32(0.0)] * 4
    for i in cutlass.range_constexpr(2 * cute.size(s, mode=[2])):
        most[i % 4] = cute.arch.fmax(most[i % 4], cute.math.abs(s[i % 2, r, i // 2]), nan=True)
    halves = [cute.arch.fmax(most[i], most[i + 1], nan=True) for i in (0, 2)]
    return cute.arch.fmax(halves[0], halves[1], nan=True)


@cute.jit
def _small_exponentials(
    s: cute.Tensor, r: cutlass.Constexpr[int], state: tuple, largest: cute.Tensor,
    functions: cutlass.Constexpr[Functions],
) -> None:  # fmt: skip
    """Replace a row's products with exponentials by the polynomial, and update its state."""
    base, bend = functions.base, functions.bend
    state[0][r] = cute.arch.fmax(Float32(state[0][r]), _tangent(Float32(largest[r]), bend))
    if cutlass.const_expr(functions.steady):
        _raise(s, r, state, lambda x: x * tanh_small(x, bend, base))
    else:
        level = _level(state, r, base)
        start = level * -base
        _rise(state, r, level, (Float32(base), start))
        _raise(s, r, state, lambda x: device.fma(x, tanh_small(x, bend, base), cute.full(x.shape, start, Float32)))


def _tangent(product: Float32, bend: float) -> Float32:
    """The score of a product, by the polynomial."""
    one = cute.full((1,), product, Float32)
    return (one * tanh_small(one, bend))[0]
