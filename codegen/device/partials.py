"""Device functions of kernels that fold over rows: what a block's rows come to, and, in a kernel of its own that follows,
what all blocks' do. Every fold has a fixed order: two runs agree to the bit.
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

from codegen.device.functions import WARP, Vector, vector
from codegen.device.reduce import combine, identity, over_row, result, shared
from codegen.shared import COUNTER


def shared_columns(threads: int, per_row: int, count: int, dtypes: tuple[type[Numeric], ...]) -> list[cute.Tensor]:
    """Shared memory in which the rows of a block meet: `count` columns a thread, one statistic after the other in the
    same place."""
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
):
    """Write what a block's rows came to, folded in the order of its threads, to `parts` (parts, columns). Where they are not
    `ragged`, a vector of columns is written at once."""
    tidx, _, _ = cute.arch.thread_idx()
    row, lane = tidx // per_row, tidx % per_row
    vec, vectors = cute.size(running[0], mode=[0]), cute.size(running[0], mode=[1])
    if cutlass.const_expr(len(buffers) > 0):
        for k in cutlass.range_constexpr(len(ops)):
            for i in cutlass.range_constexpr(vec * vectors):
                buffers[k][row, lane, i] = running[k][i % vec, i // vec]
        cute.arch.sync_threads()
    if row == 0:
        for k in cutlass.range_constexpr(len(ops)):
            if cutlass.const_expr(len(buffers) > 0):
                for other in cutlass.range(1, cute.size(buffers[k], mode=[0])):
                    for i in cutlass.range_constexpr(vec * vectors):
                        mine = cute.full((1,), running[k][i % vec, i // vec], running[k].element_type)
                        theirs = cute.full((1,), buffers[k][other, lane, i], running[k].element_type)
                        running[k][i % vec, i // vec] = combine(ops[k], mine, theirs)[0]
            for v in cutlass.range_constexpr(vectors):
                c = first + v * step
                if cutlass.const_expr(ragged):
                    for i in cutlass.range_constexpr(vec):
                        if c + i < columns:
                            parts[k][part, c + i] = running[k][i, v]
                elif c < columns:
                    own = cute.make_rmem_tensor((vec,), running[k].element_type)
                    for i in cutlass.range_constexpr(vec):
                        own[i] = running[k][i, v]
                    cute.autovec_copy(own, vector(parts[k], cute.crd2idx((part, c), parts[k].layout), vec))


def overlaps() -> bool:
    """Whether a kernel may be launched while the one before it ends, which hides some microseconds of the launch."""
    return CuTeDSL._get_dsl().get_arch_enum().major >= 9


@cute.jit
def begin_next():
    """Once all blocks are here, the next kernel is launched."""
    if cutlass.const_expr(overlaps()):
        cute.arch.griddepcontrol_launch_dependents()


@cute.jit
def await_last():
    """Wait for what the kernel before has written."""
    if cutlass.const_expr(overlaps()):
        cute.arch.griddepcontrol_wait()


# Keeping pace
#
# Blocks that walk down rows have equal shares of them, so that sums have one order. Memory does not serve all processors alike:
# one half of an H100's is done after 3/4 of the time (three of its five stacks lie on one side), and leaves the other half with
# a memory that this alone cannot keep busy. So all blocks count the rows that they have done, and one that is ahead of their
# mean pauses. What is computed does not depend on it.

AHEAD = 1  # rows that a block may be ahead
PAUSE = 600  # nanoseconds


@cute.kernel
def begin(counter: cute.Tensor):
    """Before a kernel whose blocks keep pace: nobody has done a row."""
    begin_next()
    tidx, _, _ = cute.arch.thread_idx()
    if tidx < COUNTER:
        counter[tidx] = Int32(0)


@cute.jit
def rows_seen(at_once: cutlass.Constexpr[int]):
    """Shared memory for how many rows all blocks had done when this one came to its last rows, of the first word: (COUNTER,
    at_once)."""
    seen = SmemAllocator().allocate_tensor(Int32, cute.make_layout((COUNTER, at_once)), 16)
    tidx, _, _ = cute.arch.thread_idx()
    if tidx == 0:
        seen.fill(2**31 - 1)
    return seen


@cute.jit
def keep_pace(counter: cute.Tensor, done: cutlass.Int32, seen: cute.Tensor, apart: cutlass.Constexpr[bool]):
    """A block comes to a row. Its first thread pauses if the block was ahead when it had `done` so many rows, and all blocks
    those that it has `seen` (COUNTER,). Then it counts this row in the `counter` (COUNTER,), and sends for what that is now: it
    is there when the copies are that the thread commits next. `apart`: the block's threads do not wait for each other in a row.
    Of a counter without words, there is nothing to keep to."""
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


AT_ONCE = 17  # values that a thread has on their way: 8 warps ask at once for a part of each of 132 multiprocessors


@cute.jit
def fold_every(
    held: list[cute.Tensor],
    ops: cutlass.Constexpr[tuple[str, ...]],
    read: cutlass.Constexpr[Callable[[int, cutlass.Int32], Numeric]],
    first: cutlass.Int32,
    end: cutlass.Int32,
    step: cutlass.Constexpr[int],
):
    """Fold what is read, of each statistic by its number, at `first`, `first + step`, ... before `end` into what is `held`, in
    this order."""
    for start in cutlass.range(first, end, step * AT_ONCE):
        several = [cute.make_rmem_tensor((AT_ONCE,), h.element_type) for h in held]
        for k in cutlass.range_constexpr(len(ops)):
            nothing = held[k].element_type(identity(ops[k], held[k].element_type))
            for i in cutlass.range_constexpr(AT_ONCE):  # no branch stands between one read and the next
                place = start + i * step
                several[k][i] = cutlass.select_(place < end, read(k, cutlass.min(place, end - 1)), nothing)
        for k in cutlass.range_constexpr(len(ops)):
            for i in cutlass.range_constexpr(AT_ONCE):
                value = cute.full((1,), several[k][i], held[k].element_type)
                held[k].store(combine(ops[k], held[k].load(), value))


FEW = 8  # parts of a column that one thread folds alone


def columns_beside(parts: cute.Tensor) -> cutlass.Int32:
    """Columns that a block of 256 threads finishes: 32, whose parts 8 warps share, or where these are few, one a thread."""
    return cutlass.select_(parts.shape[0] > FEW, Int32(WARP), Int32(256))


@cute.jit
def over_parts(parts: list[cute.Tensor], ops: cutlass.Constexpr[tuple[str, ...]], column: cutlass.Int32):
    """All parts of a column folded, of each statistic, by a thread, or by the 8 warps of a block, of which the first one gets
    the results (`columns_beside`), in one order. Each of `parts` is (parts, columns)."""
    tidx, _, _ = cute.arch.thread_idx()
    warp, lane, warps = tidx // WARP, tidx % WARP, 8
    held = _nothing(parts, ops)
    layout = cute.make_layout((warps, WARP), stride=(WARP, 1))
    buffers = [SmemAllocator().allocate_tensor(p.element_type, layout, 16) for p in parts]
    if parts[0].shape[0] <= FEW:
        if column < parts[0].shape[1]:
            for part in cutlass.range(parts[0].shape[0]):
                for k in cutlass.range_constexpr(len(ops)):
                    held[k].store(combine(ops[k], held[k].load(), _one(parts[k], (part, column))))
    else:
        if column < parts[0].shape[1]:
            fold_every(held, ops, lambda k, part: parts[k][part, column], warp, parts[0].shape[0], warps)
        for k in cutlass.range_constexpr(len(ops)):
            buffers[k][warp, lane] = held[k][0]
        cute.arch.sync_threads()
        for k in cutlass.range_constexpr(len(ops)):
            held[k].store(_one(buffers[k], (0, lane)))
            for other in cutlass.range_constexpr(1, warps):
                held[k].store(combine(ops[k], held[k].load(), _one(buffers[k], (other, lane))))
    return [result(op, h.load())[0] for op, h in zip(ops, held, strict=True)]


def _one(values: cute.Tensor, place: tuple[Any, Any]) -> Vector:
    """One of them, as a vector."""
    return cute.full((1,), values[place], values.element_type)


@cute.jit
def over_parts_of(
    parts: list[cute.Tensor],
    ops: cutlass.Constexpr[tuple[str, ...]],
    place: cutlass.Int32,
    extents: tuple[cutlass.Int32, ...],
    kept: cutlass.Constexpr[tuple[bool, ...]],
):
    """All parts of all columns folded, of each statistic, that share their `place` along some of several axes, by a block of
    256 threads. Each of `parts` is (parts, columns), `extents` make a column, `kept` says which of them make a place."""
    tidx, _, _ = cute.arch.thread_idx()
    held, threads = _nothing(parts, ops), 256
    count = _product(extents, kept)

    def read(k: int, j: cutlass.Int32) -> Numeric:
        return parts[k][j // count, _interleaved(place, j % count, extents, kept)]

    fold_every(held, ops, read, tidx, parts[0].shape[0] * count, threads)
    return over_row(held, ops, shared(threads, threads, 1, tuple(p.element_type for p in parts)), threads, 1)


@cute.jit
def over_all_parts(parts: list[cute.Tensor], ops: cutlass.Constexpr[tuple[str, ...]]):
    """All parts folded, of each statistic, by a block of 256 threads. Each of `parts` is (parts,)."""
    tidx, _, _ = cute.arch.thread_idx()
    held, threads = _nothing(parts, ops), 256
    fold_every(held, ops, lambda k, part: parts[k][part], tidx, parts[0].shape[0], threads)
    return over_row(held, ops, shared(threads, threads, 1, tuple(p.element_type for p in parts)), threads, 1)


def _nothing(parts: list[cute.Tensor], ops: tuple[str, ...]) -> list[cute.Tensor]:
    """Registers for a thread's values, one of each statistic."""
    held = [cute.make_rmem_tensor((1,), p.element_type) for p in parts]
    for h, op in zip(held, ops, strict=True):
        h.fill(identity(op, h.element_type))
    return held


def _product(extents: tuple[cutlass.Int32, ...], kept: tuple[bool, ...]) -> cutlass.Int32:
    """The product of the extents that are not kept."""
    count = Int32(1)
    for extent, k in zip(extents, kept, strict=True):
        count = count if k else count * extent
    return count


def _interleaved(
    place: cutlass.Int32, other: cutlass.Int32, extents: tuple[cutlass.Int32, ...], kept: tuple[bool, ...]
) -> cutlass.Int32:
    """The column at a place along the axes that are kept and at another along the rest."""
    column, stride = Int32(0), Int32(1)
    left = {
        True: sum(kept),
        False: len(kept) - sum(kept),
    }  # of the outermost axis of each kind, what is left is the place
    rest = {True: place, False: other}
    for extent, k in zip(reversed(extents), reversed(kept), strict=True):
        left[k] -= 1
        column = column + (rest[k] % extent if left[k] else rest[k]) * stride
        rest[k] = rest[k] // extent if left[k] else Int32(0)
        stride = stride * extent
    return column
