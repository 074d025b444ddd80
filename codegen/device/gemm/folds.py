"""Reduces the results of a GEMM's epilogue over the rows and columns of a tile, in a fixed order: two runs agree to the bit. Before
the epilogue it reduces the segments of a row, such as the heads of attention that are normalised; the epilogue takes these results.

A warp's accumulators have whole segments: four neighbouring lanes hold all columns of a row. Each lane reduces its own in
registers, then these four lanes reduce their results. The lane that later has a vector of the row takes the result from one of
them, so nothing passes through shared memory again.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Numeric

from codegen.device import reduce
from codegen.device.gemm.pieces import Form, Pieces
from codegen.shared import STAGED_ROWS, WARP

LANES = 4  # that hold a row's accumulators
HIGH = 8  # rows from one of a lane's two rows in a slab to the other


def fold(
    found: tuple, column: Int32, limit: Int32, at: int, turn: int, rRows: list, rColumns: list, form: Form
) -> None:
    """Reduce the epilogue's results for one vector into the statistics of its row and its columns. The vector begins at a `column`
    of a row of `limit` columns, 0 where the row does not exist."""
    inside = reduce.inside(column, limit, form.vec, form.ragged, False)
    ops = form.row_ops + form.column_ops
    assert len(found) == len(ops), f"an epilogue returned {len(found)} vectors to be folded by {ops}"
    followed = {follows[0]: follows[1:] for follows in form.rescaled}
    before = [rRows[k][at] for k in range(len(form.row_ops))]
    for k, op in enumerate(form.row_ops):
        dtype = rRows[k].element_type
        value, total = found[k], cute.full((1,), before[k], dtype)
        if k in followed:
            maximum, power, scale, finite = followed[k]
            now = rRows[maximum][at]
            total = reduce.rescale(total, before[maximum], now, power, scale)
            value = reduce.exponentials(value, now, power, scale, finite)
        one = reduce.accumulator(form.vec, op, dtype)
        reduce.accumulate([one], (op,), value, inside if form.ragged else None)
        folded = reduce.over_vector(one, op)
        if not form.ragged:  # all of the vector counts, or none
            nothing = dtype(reduce.identity(op, dtype))
            folded = cute.full((1,), cutlass.select_(column < limit, folded[0], nothing), dtype)
        rRows[k][at] = reduce.combine(op, total, folded)[0]
    reduce.accumulate_at(turn, rColumns, form.column_ops, tuple(found[len(form.row_ops) :]), inside)


def turn_round(rRows: list) -> None:
    """Rotate the rows' statistics: those of the next row move to the first place, so that a loop over rows finds each
    of them there."""
    for held in rRows:
        first = held[0]
        for at in range(1, cute.size(held)):
            held[at - 1] = held[at]
        held[cute.size(held) - 1] = first


@cute.jit
def store_rows(
    rRows: list,
    walk: cutlass.Constexpr[Pieces],
    lane: cutlass.Int32,
    piece: cutlass.Int32,
    row_parts: tuple,
    form: cutlass.Constexpr[Form],
) -> None:
    """Reduce the rows' statistics over the lanes that share a row, and store them."""
    count = cute.size(rRows[0])
    for at in cutlass.range_constexpr(count):
        r, _, _ = walk.place(at // (count // walk.slabs), 0, at % (count // walk.slabs), lane, Int32(0))
        held = [[cute.full((1,), rRow[at], rRow.element_type)] for rRow in rRows]
        totals = reduce.all_over_lanes(held, form.row_ops, walk.per_row, tuple(f[:4] for f in form.rescaled))
        if (lane % walk.per_row == 0) & (r < walk.M):
            for k in cutlass.range_constexpr(len(rRows)):
                row_parts[k][walk.batch, r, piece] = totals[k][0]


@cute.jit
def store_columns(
    rColumns: list,
    stage: cute.Tensor,
    warp: cutlass.Int32,
    peer: cutlass.Int32,
    walk: cutlass.Constexpr[Pieces],
    lane: cutlass.Int32,
    piece: cutlass.Int32,
    column_parts: tuple,
    form: cutlass.Constexpr[Form],
) -> None:
    """Reduce the columns' statistics over a warp's rows, then, in shared memory, over its peers', and store them."""
    words = [cute.recast_ptr(stage.iterator, dtype=p.element_type) for p in column_parts]
    vec, turns, per_row, column = form.vec, cute.size(rColumns[0], mode=[1]), walk.per_row, walk.column
    span = turns * per_row * vec  # columns of the output
    assert len(form.column_ops) * span <= form.stage, (
        f"{len(form.column_ops)} statistics of {span} columns are too many"
    )
    cute.arch.sync_warp()
    for k in cutlass.range_constexpr(len(form.column_ops)):
        for turn in cutlass.range_constexpr(turns):
            for i in cutlass.range_constexpr(vec):
                total = _over_rows(rColumns[k][i, turn], form.column_ops[k], per_row)
                if lane < per_row:
                    (words[k] + (warp * form.stage + k * span + (turn * per_row + lane) * vec + i)).store(total)
    _meet(warp, form)
    if peer == 0:
        for k in cutlass.range_constexpr(len(form.column_ops)):
            for c in cutlass.range_constexpr(0, span, WARP):
                at = c + lane
                if (at < span) & (column + at < walk.N):
                    first = words[k] + (warp * form.stage + k * span + at)
                    dtype = column_parts[k].element_type
                    column_parts[k][walk.batch, piece, column + at] = _over_peers(
                        first, form.column_ops[k], dtype, form
                    )
    _meet(warp, form)  # the next tile may overwrite them


def _over_rows(value: Numeric, op: str, per_row: int) -> Numeric:
    """The reduction over the lanes of a warp that hold other rows of the same column."""
    total, lanes = cute.full((1,), value, type(value)), WARP // 2
    while lanes >= per_row:
        total = reduce.combine(op, total, cute.full((1,), cute.arch.shuffle_sync_bfly(total[0], lanes), type(value)))
        lanes //= 2
    return total[0]


def _over_peers(first: cute.Pointer, op: str, dtype: type[Numeric], form: Form) -> Numeric:
    """The reduction over the warps that share a column, in their order."""
    total = cute.full((1,), reduce.identity(op, dtype), dtype)
    for p in range(form.warps):
        value = (first + p * (form.step * form.stage)).load()
        total = reduce.combine(op, total, cute.full((1,), value, dtype))
    return total[0]


def _meet(warp: Int32, form: Form) -> None:
    if form.warps == 1:
        cute.arch.sync_warp()
    else:
        set_of_warps = warp // (form.threads // WARP)
        cute.arch.barrier(barrier_id=form.barrier + set_of_warps, number_of_threads=form.threads)


def reduced_segments(acc: cute.Tensor, walk: Pieces, form: Form) -> list[cute.Tensor]:
    """The reductions of each segment of a lane's rows, float32 registers (2, slabs, segments) for each of `form.segments.ops`.

    acc: (2, 2, J, I), as `epilogue.finish` takes them.
    """
    if form.segments is None:
        return []
    blocks = form.segment * form.accumulators // 8
    count = cute.size(acc, mode=[2]) // blocks
    ops = tuple("sum" if op == "mean" else op for op in form.segments.ops)
    found = [cute.make_rmem_tensor((2, walk.slabs, count), Float32) for _ in ops]
    for slab in range(walk.slabs):
        for half in range(2):
            for segment in range(count):
                own = _accumulators(acc, half, slab, segment * blocks, form)
                values = form.segments.run(*(held.load() for held in own))
                totals = [[_over_vector(value, op)] for value, op in zip(values, ops, strict=True)]
                for k, total in enumerate(reduce.all_over_lanes(totals, ops, LANES, ())):
                    mean = form.segments.ops[k] == "mean"
                    found[k][half, slab, segment] = total[0] * (1.0 / form.segment) if mean else total[0]
    return found


def _accumulators(acc: cute.Tensor, half: int, slab: int, first: int, form: Form) -> list[cute.Tensor]:
    """The part of a row's segment that a lane holds, a vector for each accumulator. The segment begins at a block of 8 columns."""
    blocks, parts = form.segment * form.accumulators // 8, form.accumulators
    places = [(j, e) for j in range(blocks) for e in range(2)]
    if form.paired == "interleaved":
        own = [[(j, e) for j, e in places if e == part] for part in range(parts)]
    else:
        own = [places[part * len(places) // parts : (part + 1) * len(places) // parts] for part in range(parts)]
    found = []
    for some in own:
        held = cute.make_rmem_tensor((len(some),), acc.element_type)
        for at, (j, e) in enumerate(some):
            held[at] = acc[e, half, first + j, slab]
        found.append(held)
    return found


def _over_vector(value: cute.TensorSSA, op: str) -> cute.TensorSSA:
    running = cute.make_rmem_tensor((cute.size(value.shape),), Float32)
    running.store(value.to(Float32))
    return reduce.over_vector(running, op)


def segments_of_vector(
    found: list[cute.Tensor], i: int, step: Int32 | int, lane: Int32, walk: Pieces, form: Form
) -> tuple[cute.Tensor, ...]:
    """The reductions for a lane's vector in a step of the i-th piece, each in all elements of (vec,) registers. All lanes take part."""
    if form.segments is None:
        return ()
    turn, slab, part = walk.order[i]
    segment = turn * walk.columns // form.segment
    row = step * walk.high + lane // walk.per_row  # in the piece
    made = []
    for held in found:
        first, second = (
            cute.arch.shuffle_sync(held[half, slab, segment], row % HIGH * LANES)
            for half in ((part, part) if walk.rows < STAGED_ROWS else (0, 1))
        )
        value = first if walk.rows < STAGED_ROWS else cutlass.select_(row < HIGH, first, second)
        filled = cute.make_rmem_tensor((walk.vec,), Float32)
        filled.fill(value)
        made.append(filled)
    return tuple(made)
