"""The end of a GEMM: from a warp's accumulators, in the layout of tensor cores, to calls of a generated epilogue.

Accumulators pass through shared memory piece by piece and become vectors of rows (`pieces`). The epilogue's operands are
prefetched, and its results are reduced (`folds`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from codegen.device import reduce, vectors
from codegen.device.gemm import folds as gemm_folds
from codegen.device.gemm import pieces as gemm_pieces
from codegen.device.gemm import staging
from codegen.device.gemm.pieces import Form, Pieces
from codegen.device.gemm.vector import Vector
from codegen.device.math.opaque import unseen
from codegen.shared import STAGED_ROWS, WARP


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
    memory: tuple,
    form: cutlass.Constexpr[Form],
    operands: tuple | None = None,
    first: tuple | None = None,
) -> None:
    """Run an epilogue on a warp's part of a tile; all its lanes take part. If `staged`, `begin` must be called before.

    acc: (2, 2, J, I) registers, float32 or int32: in the i-th slab a lane holds columns 8j + 2*(lane%4) + {0, 1} of rows
        lane//4 + {0, 8}; or, if in `fours`, columns 8(j - j%2) + 4*(lane%4) + 2*(j%2) + {0, 1}. The columns of "halves" are
        the columns of the first accumulator, then of the second; those of "segments" are so in each segment.
    stage: (form.stage, warps) words of shared memory, 16-byte aligned, which nothing else uses; `warp` is the warp's index.
    peer: the warp's index among the `form.warps` that share its columns.
    place: row and column of the output, and the batch, where the warp's accumulators begin; slabs are `slab_step` rows apart.
    extents: rows and columns of the output.
    memory: the epilogue's tensors; row_parts (L, M, pieces) and column_parts (L, pieces, N), float32 or int32, one for each
        fold.
    pieces: the indices in these of the partial results of this warp's columns and of these warps' rows.
    operands: the operands given to `begin`.
    first: the result of `first_columns`, where that was called.
    """
    tensors, row_parts, column_parts = memory
    tensors = tuple(vectors.compacted(t) for t in tensors)
    lane = cute.arch.lane_idx()
    walk = gemm_pieces.walk_over(acc, place, extents, slab_step, form)
    shared = stage.iterator.toint() + warp * (form.stage * 4)
    count = STAGED_ROWS * walk.slabs * walk.per_row // WARP
    rRows = [reduce.accumulator(count, op, p.element_type) for op, p in zip(form.row_ops, row_parts, strict=True)]
    columns = zip(form.column_ops, column_parts, strict=True)
    rColumns = [reduce.accumulators(form.vec, walk.turns, op, p.element_type) for op, p in columns]

    rSegments = gemm_folds.reduced_segments(acc, walk, form)
    cute.arch.sync_warp()  # the previous tile is read
    gemm_pieces.write(acc, shared, gemm_pieces.write_place(lane, walk, form), walk.order[0], walk, form)
    if cutlass.const_expr(form.rolled):
        _in_loops(acc, shared, walk, tensors, rRows, rColumns, rSegments, form, operands, first)
    else:
        _unrolled(acc, shared, walk, tensors, rRows, rColumns, rSegments, form)

    if cutlass.const_expr(len(form.row_ops) > 0):
        gemm_folds.store_rows(rRows, walk, lane, pieces[0], row_parts, form)
    if cutlass.const_expr(len(form.column_ops) > 0):
        gemm_folds.store_columns(rColumns, stage, warp, peer, walk, lane, pieces[1], column_parts, form)


@cute.jit
def _in_loops(
    acc: cute.Tensor, shared: cutlass.Int32, walk: cutlass.Constexpr[Pieces], tensors: tuple, rRows: list, rColumns: list,
    rSegments: list, form: cutlass.Constexpr[Form], operands: tuple | None, first: tuple | None,
) -> None:  # fmt: skip
    """The epilogue of each piece in a loop over its vectors, so that its code is executed more often than it is fetched. Each vector
    and its prefetched operands in shared memory are loaded to registers while the previous vector is computed."""
    order, lane = walk.order, cute.arch.lane_idx()
    coming: Any = _columns(walk, 0, lane, tensors, form) if cutlass.const_expr(first is None) else first
    _await_operands(0, walk, form, operands)
    cute.arch.sync_warp()
    early, vector, own, c, below = form.early, (), (), Int32(0), Int32(0)
    written, reading = _places(lane, None, walk, form)
    if cutlass.const_expr(early):
        vector = gemm_pieces.read(shared + reading, walk, acc.element_type, form)
        own = _own_at(0, lane, walk, tensors, form, operands)
    for i in cutlass.range_constexpr(len(order)):
        (turn, slab, part), more = order[i], i + 1 < len(order)
        # Or the compiler would compute all places at once, and keep them in registers
        lane = unseen(lane) & (WARP - 1)  # or it would divide as negative numbers need it
        written, reading = _places(lane, (written, reading), walk, form)
        if cutlass.const_expr(slab + part == 0):
            fixed = coming
            c = walk.first_column(turn, lane)
            below = cutlass.select_(c < walk.N, walk.M, Int32(0))
        if cutlass.const_expr(slab + 1 == walk.slabs and part + 1 == walk.buffers and turn + 1 < walk.turns):
            coming = _columns(walk, turn + 1, lane, tensors, form)
        if cutlass.const_expr(walk.buffers > 1 and more):
            if cutlass.const_expr(i > 0):
                cute.arch.sync_warp()  # the previous piece is read
            _bring(acc, shared, i + 1, written, walk, form, operands)
        first_spot = (reading, Int32(0), lane, walk.row_of(0, 0, 0, lane), walk.first_column(0, lane))
        following = _following(first_spot, i, 0, walk, form)
        rOwn, rHere = _rows_of_piece(rRows, slab * walk.buffers + part, walk)
        for step in cutlass.range(walk.steps, unroll=1 if early or form.ragged else 2):
            r = walk.row_of(slab, part, step, lane)
            if cutlass.const_expr(early):
                values, beside, limit, valid = vector, own, walk.N, walk.whole(r, below)
            else:
                at, slot, which = _moved((reading, Int32(0), lane), _spot(i, step, walk, form)[:3])
                values = gemm_pieces.read(shared + at, walk, acc.element_type, form)
                _, limit, valid = walk.place(slab, part, step, lane, c)
                beside = _own((r, c, valid), slot, which, walk, tensors, form, operands)
            held = gemm_folds.segments_of_vector(rSegments, i, step, lane, walk, form)
            found = form.run(form.vector(r, c, walk.batch, valid), (*values, *held), (*fixed, *beside), tensors)
            if cutlass.const_expr(early):
                _put(gemm_pieces.read(shared + following[0], walk, acc.element_type, form), vector)
                _put(_own_there(following, below, walk, tensors, form, operands), own)
                if cutlass.const_expr(walk.steps > 1):
                    following = _following(first_spot, i, step + 1, walk, form)
            if cutlass.const_expr(len(form.row_ops) + len(form.column_ops) > 0):
                gemm_folds.fold(found, c, limit, 0, turn, rHere, rColumns, form)
                gemm_folds.turn_round(rHere)
        _put(rHere, rOwn)
        _fetch_operands(i + form.ahead * walk.buffers, walk, form, operands)
        if cutlass.const_expr(walk.buffers == 1 and more):
            cute.arch.sync_warp()
            _bring(acc, shared, i + 1, written, walk, form, operands)
            if cutlass.const_expr(early):
                vector = gemm_pieces.read(shared + reading, walk, acc.element_type, form)
                own = _own_at(i + 1, lane, walk, tensors, form, operands)


def _places(lane: Int32, before: tuple[Int32, Int32] | None, walk: Pieces, form: Form) -> tuple[Int32, Int32]:
    """Where a lane writes and reads in a piece. Where vectors are read early, registers hold the places from one piece
    to the next. Otherwise they are computed for each piece."""
    if form.early and before is not None:
        return unseen(before[0]), unseen(before[1])
    return gemm_pieces.write_place(lane, walk, form), gemm_pieces.read_place(lane, walk, form)


def _following(first: tuple[Int32, ...], i: int, step: Int32 | int, walk: Pieces, form: Form) -> tuple[Int32, ...]:
    """The spot of the vector after the one of this step of the i-th piece. Past the piece's end, it is the first of the next piece.
    After the last piece it is not used."""
    after = _spot(min(i + 1, len(walk.order) - 1), 0, walk, form)
    if isinstance(step, int):
        return _moved(first, _spot(i, step + 1, walk, form) if step + 1 < walk.steps else after)
    more = step + 1 < walk.steps
    ways = zip(_spot(i, step + 1, walk, form), after, strict=True)
    return _moved(first, tuple(cutlass.select_(more, Int32(a), Int32(b)) for a, b in ways))


def _rows_of_piece(rRows: list, number: int, walk: Pieces) -> tuple[list[cute.Tensor], list[cute.Tensor]]:
    """A lane's partial results of the rows of a piece, and a copy of them, which its loop carries."""
    layout = cute.make_layout((walk.steps,))
    own = [cute.make_tensor(rRow.iterator + number * walk.steps, layout) for rRow in rRows]
    copies = [cute.make_rmem_tensor((walk.steps,), rRow.element_type) for rRow in rRows]
    _put(own, copies)
    return own, copies


def _bring(acc: cute.Tensor, shared: Int32, i: int, place: Int32, walk: Pieces, form: Form, operands: Any) -> None:
    """Write the i-th piece to shared memory, and wait for its operands there, for all lanes to read."""
    gemm_pieces.write(acc, shared + i % walk.buffers * form.buffer, place, walk.order[i], walk, form)
    _await_operands(i, walk, form, operands)
    cute.arch.sync_warp()


def _put(sources: Sequence[cute.Tensor], places: Sequence[cute.Tensor]) -> None:
    """Copy registers to others, which a loop carries."""
    for source, place in zip(sources, places, strict=True):
        place.store(source.load())


@cute.jit
def _unrolled(
    acc: cute.Tensor,
    shared: cutlass.Int32,
    walk: cutlass.Constexpr[Pieces],
    tensors: tuple,
    rRows: list,
    rColumns: list,
    rSegments: list,
    form: cutlass.Constexpr[Form],
) -> None:
    """The epilogue of each piece, vector by vector, unrolled; its operands are prefetched into registers some pieces before."""
    order, lane = walk.order, cute.arch.lane_idx()
    read: list[Any] = [None]  # the operands of the next pieces
    for i in cutlass.range_constexpr(min(form.ahead, len(order))):
        read.append(_operands(walk, i, lane, read[-1], tensors, form))
    cute.arch.sync_warp()
    for i in cutlass.range_constexpr(len(order)):
        turn, slab, part = order[i]
        lane = unseen(lane)  # or the compiler would compute all places at once, and keep them in registers
        if cutlass.const_expr(form.ahead == 0):
            read.append(_operands(walk, i, lane, read[-1], tensors, form))
        read.pop(0)
        now = read[0]
        c = walk.first_column(turn, lane)
        place, buffer = gemm_pieces.read_place(lane, walk, form), i % walk.buffers * form.buffer
        values = [
            gemm_pieces.read(shared + place + (walk.further(step) + buffer), walk, acc.element_type, form)
            for step in range(walk.steps)
        ]
        _bring_next(acc, shared, lane, i, walk, read, tensors, form)
        for step in cutlass.range_constexpr(walk.steps):
            r, limit, valid = walk.place(slab, part, step, lane, c)
            given = now[step][0] + now[step][1] if cutlass.const_expr(form.reads) else ()
            held = gemm_folds.segments_of_vector(rSegments, i, step, lane, walk, form)
            found = form.run(form.vector(r, c, walk.batch, valid), (*values[step], *held), given, tensors)
            if cutlass.const_expr(len(form.row_ops) + len(form.column_ops) > 0):
                at = (slab * (STAGED_ROWS // walk.rows) + part) * walk.steps + step
                gemm_folds.fold(found, c, limit, at, turn, rRows, rColumns, form)


def _bring_next(
    acc: cute.Tensor,
    shared: Int32,
    lane: Int32,
    i: int,
    walk: Pieces,
    read: list,
    tensors: tuple,
    form: Form,
) -> None:
    """Write the piece after the i-th to shared memory, whose pieces up to the i-th are read; load a later piece's operands to
    `read`."""
    if i + 1 == len(walk.order):
        return
    if walk.buffers == 1:
        cute.arch.sync_warp()
    gemm_pieces.write(
        acc, shared + (i + 1) % walk.buffers * form.buffer, gemm_pieces.write_place(lane, walk, form), walk.order[i + 1],
        walk, form,
    )  # fmt: skip
    if form.ahead > 0 and i + form.ahead < len(walk.order):
        read.append(_operands(walk, i + form.ahead, lane, read[-1], tensors, form))
    cute.arch.sync_warp()


def _operands(walk: Pieces, i: int, lane: Int32, before: Any, tensors: tuple, form: Form) -> list[tuple]:
    """The epilogue's operands for the vectors of the i-th piece, given those of the previous piece."""
    turn, slab, part = walk.order[i]
    c = walk.first_column(turn, lane)
    # For the same columns, operands that all rows share are the same
    fixed = before[0][0] if slab + part > 0 else _columns(walk, turn, lane, tensors, form)
    found = []
    for step in range(walk.steps):
        r, _, valid = walk.place(slab, part, step, lane, c)
        found.append((fixed, _of_row(form.vector(r, c, walk.batch, valid), tensors, form)))
    return found


def _columns(walk: Pieces, turn: int, lane: Int32, tensors: tuple, form: Form) -> tuple:
    """The epilogue's operands for a lane's columns in a turn, which all rows share."""
    if form.columns is None:
        return ()
    c = walk.first_column(turn, lane)
    return tuple(form.columns(form.vector(Int32(0), c, walk.batch, walk.N - c), tensors))


def _of_row(at: Vector, tensors: tuple, form: Form) -> tuple:
    """The epilogue's operands that each row has of its own. Outside the output, where nothing is stored, it reads no row but the
    first."""
    if form.tiles is None:
        return ()
    return tuple(form.tiles(replace(at, row=cutlass.select_(at.valid > 0, at.row, Int32(0))), tensors))


def first_columns(
    acc: cute.Tensor, place: tuple, slab_step: int, extents: tuple, tensors: tuple, form: Form
) -> tuple | None:
    """Before the products of a tile: prefetch the epilogue's first operands for `finish`, which must follow with the same arguments.
    None where `finish` loads them itself."""
    if not form.rolled:
        return None
    tensors = tuple(vectors.compacted(t) for t in tensors)
    return _columns(gemm_pieces.walk_over(acc, place, extents, slab_step, form), 0, cute.arch.lane_idx(), tensors, form)


@cute.jit
def begin(
    acc: cute.Tensor,
    place: tuple[cutlass.Int32, cutlass.Int32, cutlass.Int32],
    slab_step: cutlass.Constexpr[int],
    extents: tuple[cutlass.Int32, cutlass.Int32],
    form: cutlass.Constexpr[Form],
    operands: tuple,
) -> None:
    """Start the copies of the operands of a tile's first pieces, before its products, if operands are staged
    (`form.staged`). `finish` must follow, with the same arguments. operands: a warp's `staged` bytes of shared memory
    for each of `ahead` pieces, aligned to `staging.ALIGNED`, and two barriers for each, of one arrival; the number of
    tiles that it began before; the index of its first row among all batches' rows; the fetchers of `form.boxes`."""
    walk = gemm_pieces.walk_over(acc, place, extents, slab_step, form)
    for i in cutlass.range_constexpr(min(form.ahead * walk.buffers, len(walk.order))):
        _fetch_operands(i, walk, form, operands)


def _fetch_operands(i: int, walk: Pieces, form: Form, operands: Any) -> None:
    """Start the copies of the i-th piece's operands, if it has staged ones, into the place of earlier ones that are read."""
    if form.staged == 0 or i >= len(walk.order):
        return
    memory, barriers, _, row, fetchers = operands
    turn, slab, part = walk.order[i]
    slot = i % (form.ahead * walk.buffers)
    further = slab * walk.slab_step + part * walk.rows
    rows = (row + further, walk.row + further)
    cute.arch.sync_warp()
    memory += slot * (form.staged // walk.buffers)
    staging.fetch(form.boxes, fetchers, rows, walk.column + turn * walk.columns, memory, barriers + slot)


def _await_operands(i: int, walk: Pieces, form: Form, operands: Any) -> None:
    """Wait for the staged operands of the i-th piece."""
    if form.staged == 0:
        return
    (_, barriers, tiles, *_), slots = operands, form.ahead * walk.buffers
    before = len(range(i % slots, len(walk.order), slots)) * tiles  # earlier uses of its place by other tiles
    cute.arch.mbarrier_wait(barriers + i % slots, (before + i // slots) & 1)


def _spot(i: int, step: Int32 | int, walk: Pieces, form: Form) -> tuple[Int32 | int, ...]:
    """The offsets of a step of the i-th piece from a lane's first: of its accumulators, of its slot in bytes, of its vector there, of
    its row and column."""
    turn, slab, part = walk.order[i]
    slot = i % (form.ahead * walk.buffers) * (form.staged // walk.buffers)
    row = slab * walk.slab_step + part * walk.rows + step * walk.high
    return walk.further(step) + i % walk.buffers * form.buffer, slot, step * WARP, row, turn * walk.columns


def _moved(spot: tuple[Int32, ...], way: tuple[Int32 | int, ...]) -> tuple[Int32, ...]:
    """A spot plus offsets."""
    return tuple(a + b for a, b in zip(spot, way, strict=True))


def _own_at(i: int, lane: Int32, walk: Pieces, tensors: tuple, form: Form, operands: Any) -> tuple[cute.Tensor, ...]:
    """`_own` of the i-th piece's first vector."""
    (turn, slab, part), (_, slot, *_) = walk.order[i], _spot(i, 0, walk, form)
    c = walk.first_column(turn, lane)
    r, _, valid = walk.place(slab, part, 0, lane, c)
    return _own((r, c, valid), slot, lane, walk, tensors, form, operands)


def _own_there(
    spot: tuple[Int32, ...], below: Int32, walk: Pieces, tensors: tuple, form: Form, operands: Any
) -> tuple[cute.Tensor, ...]:
    """`_own` of a vector at a spot; `below` is the end of the rows, or 0 for a lane whose columns are all outside."""
    _, slot, which, row, column = spot
    # Staged operands are there for every column
    end = below if form.staged > 0 else cutlass.select_(column < walk.N, walk.M, Int32(0))
    return _own((row, column, walk.whole(row, end)), slot, which, walk, tensors, form, operands)


def _own(
    place: tuple[Int32, ...], slot: Int32 | int, vector: Int32, walk: Pieces, tensors: tuple, form: Form, operands: Any
) -> tuple[cute.Tensor, ...]:
    """The epilogue's operands for a vector of a row, column and count: prefetched ones from shared memory, at `slot` bytes, the
    others from global memory."""
    row, column, valid = place
    read: Any = vectors.load
    if form.staged > 0:
        read = staging.Slots(operands[0].toint() + slot, form.boxes, vector).load
    return _of_row(form.vector(row, column, walk.batch, valid, read), tensors, form)
