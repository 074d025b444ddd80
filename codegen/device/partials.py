"""Device functions of kernels that reduce over rows: the partial results of each block, and, in a second kernel, their
reduction. Every reduction has a fixed order: two runs agree to the bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Numeric
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl.cutlass import CuTeDSL
from cutlass.memory import SmemAllocator

from codegen.device import reduce
from codegen.device.functions import Vector, vector
from codegen.device.reduce import Rescaled, combine, identity, over_row, rescale, result, shared
from codegen.shared import COUNTER, WARP


def shared_columns(threads: int, per_row: int, count: int, dtypes: tuple[type[Numeric], ...]) -> list[cute.Tensor]:
    """Shared memory in which a block reduces its rows: `count` columns per thread, and one statistic after the other in the same
    place."""
    if threads == per_row:
        return []
    held = [Int32 if d is Boolean else d for d in dtypes]
    layout = cute.make_layout((threads // per_row, per_row, count), stride=(per_row * count, 1, per_row))
    return [SmemAllocator().allocate_tensor(d, layout, 16) for d in held]


@cute.jit
def store_parts(
    running: list[cute.Tensor],
    ops: cutlass.Constexpr[tuple[str, ...]],
    parts: list[cute.Tensor],
    buffers: list[cute.Tensor],
    part: cutlass.Int32,
    first: cutlass.Int32,
    step: cutlass.Constexpr[int],
    columns: cutlass.Int32,
    per_row: cutlass.Constexpr[int],
    ragged: cutlass.Constexpr[bool],
    rescaled: cutlass.Constexpr[tuple[Rescaled, ...]] = (),
) -> None:
    """Reduce a block's rows in the order of its threads, and write the partial results to `parts` (parts, columns). Each vector of
    columns is reduced by one thread, in registers. Where not `ragged`, it is written at once."""
    tidx, _, _ = cute.arch.thread_idx()
    row, lane = tidx // per_row, tidx % per_row
    vec, vectors = cute.size(running[0], mode=[0]), cute.size(running[0], mode=[1])
    if cutlass.const_expr(len(buffers) == 0):
        for k in cutlass.range_constexpr(len(ops)):
            for v in cutlass.range_constexpr(vectors):
                _store_vector(running[k][None, v], parts[k], part, first + v * step, columns, ragged)
    else:
        rows, width = cute.size(buffers[0], mode=[0]), per_row * vectors
        for k in cutlass.range_constexpr(len(ops)):
            for i in cutlass.range_constexpr(vec * vectors):
                buffers[k][row, lane, i] = running[k][i % vec, i // vec]
        cute.arch.sync_threads()
        for k in cutlass.range_constexpr(len(ops)):
            own = (tidx + (-k * width) % (rows * per_row)) % (rows * per_row)  # other threads for each statistic
            for s in cutlass.range_constexpr(-(-vectors // rows)):
                place = own + s * rows * per_row
                if place < width:
                    its, v = place % per_row, place // per_row
                    dtype, ways = running[k].element_type, [way for way in rescaled if way[0] == k]
                    if cutlass.const_expr(len(ways) == 1):
                        most = ways[0][1]
                        found = _over_rows_below(buffers[k], buffers[most], ops[most], ways[0][2:], dtype, its, v, vec)
                    else:
                        found = _over_rows(buffers[k], dtype, ops[k], its, v, vec)
                    _store_vector(found, parts[k], part, first + (its - lane) * vec + v * step, columns, ragged)


@cute.jit
def _over_rows(
    buffer: cute.Tensor,
    dtype: cutlass.Constexpr[type[Numeric]],
    op: cutlass.Constexpr[str],
    lane: cutlass.Int32,
    v: cutlass.Int32,
    vec: cutlass.Constexpr[int],
) -> cute.Tensor:
    """The v-th vector of a lane's columns, of all rows of a block in their order. The buffer is (rows, lanes, elements)."""
    found = cute.make_rmem_tensor((vec,), dtype)
    for i in cutlass.range_constexpr(vec):
        found[i] = buffer[0, lane, v * vec + i]
    for other in cutlass.range(1, cute.size(buffer, mode=[0])):
        for i in cutlass.range_constexpr(vec):
            theirs = cute.full((1,), buffer[other, lane, v * vec + i], dtype)
            found[i] = combine(op, cute.full((1,), found[i], dtype), theirs)[0]
    return found


@cute.jit
def _over_rows_below(
    buffer: cute.Tensor,
    maxima: cute.Tensor,
    op: cutlass.Constexpr[str],
    way: cutlass.Constexpr[tuple[str, float]],
    dtype: cutlass.Constexpr[type[Numeric]],
    lane: cutlass.Int32,
    v: cutlass.Int32,
    vec: cutlass.Constexpr[int],
) -> cute.Tensor:
    """As `_over_rows`, for sums that are relative to `maxima` or to results of another `op`; `way` is (power, scale)."""
    largest, found = _over_rows(maxima, dtype, op, lane, v, vec), cute.make_rmem_tensor((vec,), dtype)
    found.fill(identity("sum", dtype))
    for row in cutlass.range(cute.size(buffer, mode=[0])):
        for i in cutlass.range_constexpr(vec):
            place = row, lane, v * vec + i
            term = rescale(one(buffer, place), one(maxima, place)[0], largest[i], *way)
            found[i] = combine("sum", cute.full((1,), found[i], dtype), term)[0]
    return found


@cute.jit
def _store_vector(
    own: cute.Tensor,
    parts: cute.Tensor,
    part: cutlass.Int32,
    column: cutlass.Int32,
    columns: cutlass.Int32,
    ragged: cutlass.Constexpr[bool],
) -> None:
    """Write a vector of columns into a row of `parts` (parts, columns), as far as there are columns."""
    vec = cute.size(own)
    if cutlass.const_expr(ragged):
        for i in cutlass.range_constexpr(vec):
            if column + i < columns:
                parts[part, column + i] = own[i]
    elif column < columns:
        held = cute.make_rmem_tensor((vec,), own.element_type)
        for i in cutlass.range_constexpr(vec):
            held[i] = own[i]
        cute.autovec_copy(held, vector(parts, cute.crd2idx((part, column), parts.layout), vec))


def overlaps() -> bool:
    """Whether a kernel may be launched before the previous one has ended, which hides some microseconds of its
    launch."""
    return CuTeDSL._get_dsl().get_arch_enum().major >= 9


def finishing_grid(blocks: Int32, stream: Any) -> dict[str, Any]:
    """The grid and block of a launch, in so many blocks, of a kernel that reduces partial results."""
    return {"grid": (blocks, 1, 1), "block": (256, 1, 1), "stream": stream, "use_pdl": overlaps()}


@cute.jit
def begin_next() -> None:
    """Allow the launch of the next kernel, once all blocks run."""
    if cutlass.const_expr(overlaps()):
        cute.arch.griddepcontrol_launch_dependents()


@cute.jit
def await_last() -> None:
    """Wait for the writes of the previous kernel."""
    if cutlass.const_expr(overlaps()):
        cute.arch.griddepcontrol_wait()


# Keeping pace
#
# Blocks that loop over rows have equal shares of them, so that sums have one order. But memory does not serve all SMs equally: three
# of an H100's five memory stacks are on one side. Half of its SMs finish after 3/4 of the time, and the other half alone cannot
# saturate the memory. So all blocks count their finished rows, and a block that is ahead of their mean pauses. Results do not depend
# on it.

AHEAD = 1  # rows that a block may be ahead
PAUSE = 600  # nanoseconds


@cute.kernel
def begin(counter: cute.Tensor) -> None:
    """Reset the counter before a kernel whose blocks keep pace with each other."""
    begin_next()
    tidx, _, _ = cute.arch.thread_idx()
    if tidx < COUNTER:
        counter[tidx] = Int32(0)


@cute.jit
def rows_seen(at_once: cutlass.Constexpr[int]) -> cute.Tensor:
    """Shared memory, (COUNTER, at_once), for the number of rows that all blocks had finished when this block started
    its last rows. The first word has it."""
    seen = SmemAllocator().allocate_tensor(Int32, cute.make_layout((COUNTER, at_once)), 16)
    tidx, _, _ = cute.arch.thread_idx()
    if tidx == 0:
        seen.fill(2**31 - 1)
    return seen


@cute.jit
def keep_pace(counter: cute.Tensor, done: cutlass.Int32, seen: cute.Tensor, apart: cutlass.Constexpr[bool]) -> None:
    """Called where a block starts a row. Its first thread pauses if the block was ahead when it had `done` rows and all blocks the
    rows that it has `seen` (COUNTER,). Then it counts this row in the `counter` (COUNTER,), and starts a copy of the counter, which
    completes with the copies that the thread commits next. `apart`: the block's threads do not wait for each other in a row.
    Without words in the counter, it does nothing."""
    tidx, _, _ = cute.arch.thread_idx()
    if tidx * COUNTER < counter.shape[0]:
        blocks, _, _ = cute.arch.grid_dim()
        if (done - AHEAD) * blocks > seen[0]:
            _pause()
        cute.arch.atomic_add(counter.iterator, Int32(1), sem="relaxed", scope="gpu")
        mode = cute.nvgpu.cpasync.LoadCacheMode.GLOBAL
        atom = cute.make_copy_atom(cute.nvgpu.cpasync.CopyG2SOp(mode), Int32, num_bits_per_copy=32 * COUNTER)
        cute.copy(atom, cute.make_tensor(counter.iterator, cute.make_layout((COUNTER,))), seen)
    if cutlass.const_expr(apart):
        cute.arch.sync_threads()


def _pause() -> None:
    llvm.inline_asm(None, [], f"nanosleep.u32 {PAUSE};", "", has_side_effects=True)


AT_ONCE = 17  # loads that a thread has in flight: 8 warps load the partial results of 132 SMs at once


@cute.jit
def fold_every(
    held: list[cute.Tensor],
    ops: cutlass.Constexpr[tuple[str, ...]],
    read: cutlass.Constexpr[Callable[[int, cutlass.Int32], Numeric]],
    first: cutlass.Int32,
    end: cutlass.Int32,
    step: cutlass.Int32,
    rescaled: cutlass.Constexpr[tuple[Rescaled, ...]] = (),
) -> None:
    """Reduce the values that `read` returns for `first`, `first + step`, ... before `end` into `held`, for each
    statistic, in this order."""
    for start in cutlass.range(first, end, step * AT_ONCE):
        several = [cute.make_rmem_tensor((AT_ONCE,), h.element_type) for h in held]
        for k in cutlass.range_constexpr(len(ops)):
            nothing = held[k].element_type(identity(ops[k], held[k].element_type))
            for i in cutlass.range_constexpr(AT_ONCE):  # no branch is between one read and the next
                place = start + i * step
                several[k][i] = cutlass.select_(place < end, read(k, cutlass.min(place, end - 1)), nothing)
        for i in cutlass.range_constexpr(AT_ONCE):
            combine_all(held, ops, [one(s, i) for s in several], rescaled)


def combine_all(
    held: list[cute.Tensor], ops: tuple[str, ...], others: list[Vector], rescaled: tuple[Rescaled, ...]
) -> None:
    """One step of the reductions of all statistics; of sums that follow a maximum, both are rescaled to the larger maximum first."""
    followers = [place for place, *_ in rescaled]
    was = [h[0] for h in held]
    for k, op in enumerate(ops):
        if k not in followers:
            held[k].store(combine(op, held[k].load(), others[k]))
    for place, maximum, power, scale in rescaled:
        now = held[maximum][0]
        own = rescale(held[place].load(), was[maximum], now, power, scale)
        held[place].store(own + rescale(others[place], others[maximum][0], now, power, scale))


def settled(total: Numeric, maximum: Numeric, finite: bool) -> Numeric:
    """As `reduce.settled`, for single values."""
    own, largest = (cute.full((1,), value, type(total)) for value in (total, maximum))
    return reduce.settled(own, largest, finite)[0]


FINISHING = 256  # threads of a block of a finishing kernel
FEW = 8  # partial results of a column that a single thread reduces
SOME = 64  # partial results of a column that 8 threads share, each with a warp's columns
SECTOR, MOST_COLUMNS = 8, 4096  # columns that a block has where more threads share them: only of so few, in all


def _beside(count: cutlass.Int32, results: cutlass.Int32) -> cutlass.Int32:
    """The number of neighbouring results that a block finishes, where each has `count` partial results. It is one for
    each thread; or 32, so that warps read whole lines; or, if results are few, 8, which fill a sector of memory, so
    that more blocks and threads share the work."""
    several = cutlass.select_((count > SOME) & (results <= MOST_COLUMNS), Int32(SECTOR), Int32(WARP))
    return cutlass.select_(count > FEW, several, Int32(FINISHING))


def columns_beside(parts: cute.Tensor) -> cutlass.Int32:
    """The number of columns that a block of a finishing kernel reduces."""
    return _beside(parts.shape[0], parts.shape[1])


def blocks_to_finish(parts: cute.Tensor, columns: cutlass.Int32) -> cutlass.Int32:
    """The number of blocks of a finishing kernel, whose threads reduce a column each."""
    beside = columns_beside(parts)
    return (columns + beside - 1) // beside


def column_to_finish(parts: cute.Tensor) -> tuple[cutlass.Int32, cutlass.Boolean]:
    """The column that this thread of a finishing kernel reduces, and whether it writes the results."""
    tidx, _, _ = cute.arch.thread_idx()
    bidx, _, _ = cute.arch.block_idx()
    beside = columns_beside(parts)
    c = bidx * beside + tidx % beside
    return c, (tidx < beside) & (c < parts.shape[1])


@cute.jit
def over_parts(
    parts: list[cute.Tensor],
    ops: cutlass.Constexpr[tuple[str, ...]],
    column: cutlass.Int32,
    rescaled: cutlass.Constexpr[tuple[Rescaled, ...]] = (),
) -> list[Numeric]:
    """Reduce all partial results of a column, for each statistic, in a fixed order. One thread does so, or some of a block, whose first
    ones get the results (`columns_beside`). Each of `parts` is (parts, columns)."""
    tidx, _, _ = cute.arch.thread_idx()
    beside, held, buffers = columns_beside(parts[0]), nothing(parts, ops), _for_threads(parts)
    count = parts[0].shape[0]
    if count <= FEW:
        if column < parts[0].shape[1]:
            for part in cutlass.range(count):
                combine_all(held, ops, [one(p, (part, column)) for p in parts], rescaled)
    else:
        if column < parts[0].shape[1]:
            step = FINISHING // beside
            fold_every(held, ops, lambda k, part: parts[k][part, column], tidx // beside, count, step, rescaled)
        _over_threads(held, ops, buffers, beside, rescaled)
    return [result(op, h.load())[0] for op, h in zip(ops, held, strict=True)]


def _for_threads(parts: list[cute.Tensor]) -> list[cute.Tensor]:
    """Shared memory in which the threads of a block combine what they have of neighbouring results."""
    layout = cute.make_layout((FINISHING,))
    return [SmemAllocator().allocate_tensor(p.element_type, layout, 16) for p in parts]


@cute.jit
def _over_threads(
    held: list[cute.Tensor],
    ops: cutlass.Constexpr[tuple[str, ...]],
    buffers: list[cute.Tensor],
    beside: cutlass.Int32,
    rescaled: cutlass.Constexpr[tuple[Rescaled, ...]],
) -> None:
    """Combine what the threads of a block hold of each of some results `beside` each other, in their order."""
    tidx, _, _ = cute.arch.thread_idx()
    for k in cutlass.range_constexpr(len(ops)):
        buffers[k][tidx] = held[k][0]
    cute.arch.sync_threads()
    for k in cutlass.range_constexpr(len(ops)):
        held[k].store(one(buffers[k], tidx % beside))
    for other in cutlass.range(tidx % beside + beside, FINISHING, beside, unroll=7):
        combine_all(held, ops, [one(b, other) for b in buffers], rescaled)


def one(values: cute.Tensor, place: Any) -> Vector:
    """One of the values, as a vector."""
    return cute.full((1,), values[place], values.element_type)


# A result may have the partial results of several columns. A thread reduces at most `FEW_OF_RESULT` of them alone. A
# block computes several neighbouring results from `MANY_RESULTS` on
FEW_OF_RESULT, MANY_RESULTS = 64, 256


def _ways(parts: cute.Tensor, extents: tuple[cutlass.Int32, ...], kept: tuple[bool, ...]) -> tuple[Boolean, Boolean]:
    """Whether each thread of a finishing kernel reduces a result of its own. If not, whether the threads of a block share
    neighbouring results (`_beside`), whose partial results lie side by side. Else a block has one result."""
    total, results = parts.shape[0] * _product(extents, kept), _results(extents, kept)
    if not kept[-1]:
        return total <= FEW_OF_RESULT, Boolean(False)
    return total <= FEW, (total > FEW) & ((total <= FEW_OF_RESULT) | (results >= MANY_RESULTS))


def _results(extents: tuple[cutlass.Int32, ...], kept: tuple[bool, ...]) -> cutlass.Int32:
    return _product(extents, tuple(not k for k in kept))


def blocks_of_results(
    parts: cute.Tensor, extents: tuple[cutlass.Int32, ...], kept: tuple[bool, ...], results: cutlass.Int32
) -> cutlass.Int32:
    """The number of blocks of a finishing kernel with so many results of several columns each (`over_parts_of`)."""
    alone, beside = _ways(parts, extents, kept)
    own = _beside(parts.shape[0] * _product(extents, kept), _results(extents, kept))
    several = cutlass.select_(alone, (results + 255) // 256, (results + own - 1) // own)
    return Int32(cutlass.select_(alone | beside, several, results))


def result_to_finish(
    parts: cute.Tensor, extents: tuple[cutlass.Int32, ...], kept: tuple[bool, ...]
) -> tuple[cutlass.Int32, cutlass.Boolean]:
    """The result that this thread reduces, alone or with others of its block, and whether it writes it."""
    tidx, _, _ = cute.arch.thread_idx()
    bidx, _, _ = cute.arch.block_idx()
    alone, beside = _ways(parts, extents, kept)
    own = _beside(parts.shape[0] * _product(extents, kept), _results(extents, kept))
    c = cutlass.select_(alone, bidx * 256 + tidx, cutlass.select_(beside, bidx * own + tidx % own, bidx))
    first = cutlass.select_(alone, Boolean(True), tidx < cutlass.select_(beside, own, Int32(1)))
    return Int32(c), first & (c < _results(extents, kept))


@cute.jit
def over_parts_of(
    parts: list[cute.Tensor],
    ops: cutlass.Constexpr[tuple[str, ...]],
    place: cutlass.Int32,
    extents: tuple[cutlass.Int32, ...],
    kept: cutlass.Constexpr[tuple[bool, ...]],
    rescaled: cutlass.Constexpr[tuple[Rescaled, ...]] = (),
) -> list[Numeric]:
    """Reduce all partial results of all columns with the same `place` along some axes, for each statistic. One thread does so, or
    the threads of a block for neighbouring places, or a block of 256 threads for one (`_ways`). Each of `parts` is (parts, columns),
    `extents` are the sizes of the axes of a column, and `kept` says which of them make a place."""
    tidx, _, _ = cute.arch.thread_idx()
    held, threads = nothing(parts, ops), 256
    count, results = _product(extents, kept), _results(extents, kept)
    total = parts[0].shape[0] * count
    alone, beside = _ways(parts[0], extents, kept)
    own = cutlass.select_(place < results, place, results - 1)

    def read(k: int, j: cutlass.Int32) -> Numeric:
        return parts[k][j // count, _interleaved(own, j % count, extents, kept)]

    buffers = shared(threads, threads, 1, tuple(p.element_type for p in parts))
    if alone:
        fold_every(held, ops, read, 0, total, 1, rescaled)
    if cutlass.const_expr(kept[-1]):
        beside_each_other, width = _for_threads(parts), _beside(total, results)
        if beside:
            fold_every(held, ops, read, tidx // width, total, FINISHING // width, rescaled)
            _over_threads(held, ops, beside_each_other, width, rescaled)
    if ~(alone | beside):
        fold_every(held, ops, read, tidx, total, threads, rescaled)
        found = over_row(held, ops, buffers, threads, 1, rescaled=rescaled)
        for k in cutlass.range_constexpr(len(ops)):
            held[k][0] = found[k]
    return [result(op, h.load())[0] for op, h in zip(ops, held, strict=True)]


@cute.jit
def over_all_parts(
    parts: list[cute.Tensor],
    ops: cutlass.Constexpr[tuple[str, ...]],
    rescaled: cutlass.Constexpr[tuple[Rescaled, ...]] = (),
) -> list[Numeric]:
    """Reduce all partial results, for each statistic, by a block of 256 threads. Each of `parts` is (parts,)."""
    tidx, _, _ = cute.arch.thread_idx()
    held, threads = nothing(parts, ops), 256
    fold_every(held, ops, lambda k, part: parts[k][part], tidx, parts[0].shape[0], threads, rescaled)
    buffers = shared(threads, threads, 1, tuple(p.element_type for p in parts))
    return over_row(held, ops, buffers, threads, 1, rescaled=rescaled)


def nothing(parts: list[cute.Tensor], ops: tuple[str, ...]) -> list[cute.Tensor]:
    """Registers for a thread's values, one for each statistic, with the identity."""
    held = [cute.make_rmem_tensor((1,), p.element_type) for p in parts]
    for h, op in zip(held, ops, strict=True):
        h.fill(identity(op, h.element_type))
    return held


def _product(extents: tuple[cutlass.Int32, ...], kept: tuple[bool, ...]) -> cutlass.Int32:
    """The product of the sizes that are not kept."""
    count = Int32(1)
    for extent, k in zip(extents, kept, strict=True):
        count = count if k else count * extent
    return count


def _interleaved(
    place: cutlass.Int32, other: cutlass.Int32, extents: tuple[cutlass.Int32, ...], kept: tuple[bool, ...]
) -> cutlass.Int32:
    """The column at one place along the kept axes and at another along the rest."""
    column, stride = Int32(0), Int32(1)
    # The axes of each kind that are left: for the outermost one, the quotient is the coordinate
    left = {True: sum(kept), False: len(kept) - sum(kept)}
    rest = {True: place, False: other}
    for extent, k in zip(reversed(extents), reversed(kept), strict=True):
        left[k] -= 1
        column = column + (rest[k] % extent if left[k] else rest[k]) * stride
        rest[k] = rest[k] // extent if left[k] else Int32(0)
        stride = stride * extent
    return column
