"""The end of a GEMM: from a warp's accumulators, as tensor cores leave them, to calls of a generated epilogue.

Tensor cores leave each lane pairs of neighbouring columns; an epilogue wants whole vectors of a row. So accumulators pass
through shared memory, slab by slab of 16 rows, in pieces of at most 64 columns: each warp has a piece of its own, and
needs no barrier but its own lanes'. What the epilogue returns is folded over the rows and columns of a tile, in a fixed
order: two runs agree to the bit.

Shared memory holds a piece row by row, 8 words of padding after each, and each 16 bytes of a row change places with their
neighbour in odd rows, and again from column 32 on: then neither the pairs that lanes write nor the 16 bytes that they
read meet in a bank (vectors of 4, 8 or 16 columns, and pieces of 32 or 64).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from codegen.runtime import reduce
from codegen.runtime.reduce import WARP

ROWS = 16  # of a slab
PIECE = 64  # columns that pass through shared memory at once
PADDING = 8
STAGE = ROWS * (PIECE + PADDING)  # words of shared memory that a warp needs, aligned to 16 bytes


@dataclass(frozen=True)
class Form:
    """What an epilogue takes and gives, and how a tile's warps share its columns."""

    vec: int  # columns that a lane handles at once: 4, 8 or 16
    ragged: bool = False  # whether N is no multiple of vec
    paired: str = ""  # "halves": a warp's columns are those of two accumulators, one after the other; "interleaved": column by column
    row_ops: tuple[str, ...] = ()  # folds over a row of what the epilogue returns first: "sum", "max", "min"
    column_ops: tuple[str, ...] = ()  # folds over a column of what it returns after
    fours: bool = False  # whether lanes hold four neighbouring columns of each 16, instead of two of each 8
    warps: int = 1  # that hold other rows of the same columns: their statistics are folded together
    step: int = 1  # between their numbers
    barrier: int = 0  # at which they meet for that
    threads: int = WARP  # that meet there

    @property
    def accumulators(self) -> int:
        """How many an epilogue is given, each of as many columns as the output: together they are the product's."""
        return 2 if self.paired else 1


@cute.jit
def finish(
    acc: cute.Tensor,
    stage: cute.Tensor,
    warp: cutlass.Int32,
    peer: cutlass.Int32,
    place: tuple[cutlass.Int32, cutlass.Int32, cutlass.Int32],
    slab_step: cutlass.Constexpr[int],
    extents: tuple[cutlass.Int32, cutlass.Int32],
    pieces: tuple[cutlass.Int32, cutlass.Int32],
    epilogue: cutlass.Constexpr[Callable],
    tensors: tuple,
    row_parts: tuple,
    column_parts: tuple,
    form: cutlass.Constexpr[Form],
):
    """Run an epilogue over what a warp holds of a tile; all its lanes take part.

    acc: (2, 2, J, I) registers, float32 or int32: in the i-th slab a lane holds columns 8j + 2*(lane%4) + {0, 1} of rows
        lane//4 + {0, 8}; or, if in `fours`, columns 8(j - j%2) + 4*(lane%4) + 2*(j%2) + {0, 1}. The columns of "halves" are those of the one accumulator, then those of the other.
    stage: (STAGE, warps) words of shared memory, 16-byte aligned, which nothing else uses; `warp` is this one's place.
    peer: which of the `form.warps` that share its columns it is.
    place: row and column of the output, and the batch, where the warp's accumulators begin; slabs are `slab_step` rows apart.
    extents: rows and columns of the output.
    pieces: where row_parts (L, M, pieces) and column_parts (L, pieces, N), float32, one tensor for each fold, take what
        this warp's columns, and these warps' rows, come to.
    """
    row, column, batch = place
    M, N = extents
    lane = cute.arch.lane_idx()
    blocks, slabs = cute.size(acc, mode=[2]), cute.size(acc, mode=[3])
    vec, count = form.vec, form.accumulators
    piece = next(p for p in (PIECE, PIECE // 2, PIECE // 4) if 8 * blocks % p == 0)
    own = piece // count if form.paired == "halves" else piece  # of one accumulator
    width = 2 * vec if form.paired == "interleaved" else vec  # words that a lane reads of it
    per_row = own // width  # lanes that share a row
    rows = WARP // per_row  # that are read at once
    columns = piece // count  # of the output
    assert per_row >= 2, f"a warp's {8 * blocks} columns are too few for vectors of {vec}"
    words = cute.recast_ptr(stage.iterator, dtype=acc.element_type) + warp * STAGE
    turns, steps = 8 * blocks // piece, ROWS // rows
    rRows = [cute.make_rmem_tensor((steps,), Float32) for _ in form.row_ops]
    rColumns = [reduce.accumulators(vec, turns, op, Float32) for op in form.column_ops]

    for slab in cutlass.range_constexpr(slabs):
        for held, op in zip(rRows, form.row_ops, strict=True):
            held.fill(reduce.identity(op, Float32))
        for turn in cutlass.range_constexpr(turns):
            cute.arch.sync_warp()  # what was read there before, was read
            _write(acc[None, None, None, slab], words, lane, turn, piece, form)
            cute.arch.sync_warp()
            for step in cutlass.range_constexpr(steps):
                values = _read(words, lane, step, piece, own, width, acc.element_type, form)
                r = row + slab * slab_step + step * rows + lane // per_row
                c = column + turn * columns + lane % per_row * vec
                limit = cutlass.select_(r < M, N, Int32(0))
                valid = cutlass.min(limit - c, Int32(vec))
                found = epilogue(values, r, c, batch, valid, tensors, vec, form.ragged)
                if cutlass.const_expr(len(form.row_ops) + len(form.column_ops) > 0):
                    inside = reduce.inside(c, limit, vec, form.ragged, False)
                    _fold(found, inside, step, turn, rRows, rColumns, form)
        for k in cutlass.range_constexpr(len(form.row_ops)):
            for step in cutlass.range_constexpr(steps):
                r = row + slab * slab_step + step * rows + lane // per_row
                total = reduce.over_lanes(cute.full((1,), rRows[k][step], Float32), form.row_ops[k], per_row)
                if (lane % per_row == 0) & (r < M):
                    row_parts[k][batch, r, pieces[0]] = total[0]
    if cutlass.const_expr(len(form.column_ops) > 0):
        _store_columns(rColumns, stage, warp, peer, lane, per_row, column, N, batch, pieces[1], column_parts, form)


def _write(acc: cute.Tensor, words, lane, turn: int, piece: int, form: Form) -> None:
    """A slab's columns of one turn to shared memory: a piece of them, or as many of each half. acc: (2, 2, J)."""
    stride, blocks = piece + PADDING, piece // 8
    parts = 2 if form.paired == "halves" else 1
    row, pair = lane // 4, lane % 4 * (4 if form.fours else 2)
    places = [row * stride + (pair ^ ((row ^ far) & 1) * 4) for far in range(2)]
    held = cute.make_rmem_tensor((2,), acc.element_type)
    for b in range(blocks):
        part, inside = b // (blocks // parts), b % (blocks // parts)
        j = part * (cute.size(acc, mode=[2]) // parts) + turn * (blocks // parts) + inside
        column = b // 2 * 16 + b % 2 * 2 if form.fours else b * 8
        for half in range(2):
            held[0], held[1] = acc[0, half, j], acc[1, half, j]
            at = cute.assume(places[b // 4], divby=2) + (8 * half * stride + column)
            cute.autovec_copy(held, cute.make_tensor(words + at, cute.make_layout((2,))))


def _read(words, lane, step: int, piece: int, own: int, width: int, dtype, form: Form) -> tuple[cute.Tensor, ...]:
    """A lane's vector of each accumulator: (vec,) registers."""
    per_row = own // width
    row = lane // per_row
    found = []
    for part in range(piece // own):
        held = cute.make_rmem_tensor((width,), dtype)
        for i in range(width // 4):
            chunk = lane % per_row * (width // 4) + (i + part * (own // 4))
            at = row * (piece + PADDING) + (chunk ^ (((chunk >> 3) ^ row) & 1)) * 4
            at = cute.assume(at, divby=4) + step * (WARP // per_row) * (piece + PADDING)
            src = cute.make_tensor(words + at, cute.make_layout((4,)))
            cute.autovec_copy(src, cute.make_tensor(held.iterator + 4 * i, cute.make_layout((4,))))
        found.append(held)
    if form.paired == "interleaved":
        both = found.pop()
        for part in range(2):
            held = cute.make_rmem_tensor((form.vec,), dtype)
            for i in range(form.vec):
                held[i] = both[2 * i + part]
            found.append(held)
    return tuple(found)


def _fold(found: tuple, inside, step: int, turn: int, rRows: list, rColumns: list, form: Form) -> None:
    """What the epilogue returned for one vector, into the statistics of its row and its columns."""
    ops = form.row_ops + form.column_ops
    assert len(found) == len(ops), f"an epilogue returned {len(found)} vectors to be folded by {ops}"
    for k, op in enumerate(form.row_ops):
        one = reduce.accumulator(form.vec, op, Float32)
        reduce.accumulate([one], (op,), found[k], inside)
        total = cute.full((1,), rRows[k][step], Float32)
        rRows[k][step] = reduce.combine(op, total, reduce.over_vector(one, op))[0]
    reduce.accumulate_at(turn, rColumns, form.column_ops, tuple(found[len(form.row_ops) :]), inside)


@cute.jit
def _store_columns(
    rColumns: list,
    stage: cute.Tensor,
    warp: cutlass.Int32,
    peer: cutlass.Int32,
    lane: cutlass.Int32,
    per_row: cutlass.Constexpr[int],
    column: cutlass.Int32,
    N: cutlass.Int32,
    batch: cutlass.Int32,
    piece: cutlass.Int32,
    column_parts: tuple,
    form: cutlass.Constexpr[Form],
):
    """Columns' statistics, folded over a warp's rows, then, in shared memory, over those of its peers, to memory."""
    words = cute.recast_ptr(stage.iterator, dtype=Float32)
    vec, turns = form.vec, cute.size(rColumns[0], mode=[1])
    span = turns * per_row * vec  # columns of the output
    assert len(form.column_ops) * span <= STAGE, f"{len(form.column_ops)} statistics of {span} columns are too many"
    cute.arch.sync_warp()
    for k in cutlass.range_constexpr(len(form.column_ops)):
        for turn in cutlass.range_constexpr(turns):
            for i in cutlass.range_constexpr(vec):
                total = _over_rows(rColumns[k][i, turn], form.column_ops[k], per_row)
                if lane < per_row:
                    (words + (warp * STAGE + k * span + (turn * per_row + lane) * vec + i)).store(total)
    _meet(form)
    if peer == 0:
        for k in cutlass.range_constexpr(len(form.column_ops)):
            for c in cutlass.range_constexpr(0, span, WARP):
                at = c + lane
                if (at < span) & (column + at < N):
                    first = words + (warp * STAGE + k * span + at)
                    column_parts[k][batch, piece, column + at] = _over_peers(first, form.column_ops[k], form)
    _meet(form)  # the next tile may overwrite them


def _over_rows(value: cutlass.Float32, op: str, per_row: int) -> cutlass.Float32:
    """Folded over the lanes of a warp that hold the same column of other rows."""
    total, lanes = cute.full((1,), value, Float32), WARP // 2
    while lanes >= per_row:
        total = reduce.combine(op, total, cute.full((1,), cute.arch.shuffle_sync_bfly(total[0], lanes), Float32))
        lanes //= 2
    return total[0]


def _over_peers(first, op: str, form: Form) -> cutlass.Float32:
    """Folded over the warps that share a column, in their order."""
    total = cute.full((1,), reduce.identity(op, Float32), Float32)
    for p in range(form.warps):
        value = (first + p * (form.step * STAGE)).load()
        total = reduce.combine(op, total, cute.full((1,), value, Float32))
    return total[0]


def _meet(form: Form) -> None:
    if form.warps == 1:
        cute.arch.sync_warp()
    else:
        cute.arch.barrier(barrier_id=form.barrier, number_of_threads=form.threads)
