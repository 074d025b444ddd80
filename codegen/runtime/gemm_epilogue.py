"""The end of a GEMM: from a warp's accumulators, as tensor cores leave them, to calls of a generated epilogue.

Tensor cores leave each lane pairs of neighbouring columns; an epilogue wants whole vectors of a row. So accumulators pass
through shared memory, slab by slab of 16 rows, in pieces of at most 64 columns: each warp has a piece of its own, and
needs no barrier but its own lanes'. What the epilogue returns is folded over the rows and columns of a tile, in a fixed
order: two runs agree to the bit.

Shared memory holds a piece row by row, its 16-byte chunks permuted within a row (`_place`) so that neither the pairs that
lanes write nor the chunks that they read meet in a bank.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from codegen.runtime import device, reduce, staging, unsigned, vectors
from codegen.runtime.device import WARP

# A fold along rows that sums exponentials: its place, that of its maximum before it, exp or exp2, the factor of the
# difference, and whether 0 stands for a maximum that is not finite
Follows: TypeAlias = tuple[int, int, str, float, bool]

ROWS = 16  # of a slab
PIECE = 64  # columns that pass through shared memory at once, at most
STAGE = ROWS * PIECE  # words of shared memory that a warp needs then, aligned to 16 bytes


@dataclass(frozen=True)
class Form:
    """An epilogue, what it takes and gives, and how a tile's warps share its columns.

    run(acc, row, column, batch, valid, tensors, vec, ragged) is called for each vector, with what was read ahead for it, one
    tuple, as its last argument where there are functions for that: columns(column, batch, valid, tensors, vec, ragged), called
    once for all rows, and tiles(row, column, batch, valid, tensors, vec, ragged, load), which reads vectors by `load`, a
    function like `vectors.load`.
    """

    run: Callable[..., tuple]
    columns: Callable[..., tuple] | None
    tiles: Callable[..., tuple] | None
    vec: int  # columns that a lane handles at once: 4, 8 or 16
    ragged: bool = False  # whether N is no multiple of vec
    paired: str = ""  # "halves": a warp's columns are those of two accumulators, one after the other; "interleaved": column by column
    row_ops: tuple[str, ...] = ()  # folds over a row of what the epilogue returns first: "sum", "max", "min"
    column_ops: tuple[str, ...] = ()  # folds over a column of what it returns after
    rescaled: tuple[Follows, ...] = ()  # which of row_ops sum exponentials of what is returned
    fours: bool = False  # whether lanes hold four neighbouring columns of each 16, instead of two of each 8
    piece: int = PIECE  # columns that pass through shared memory at once, at most: 64 or 32
    ahead: int = 1  # pieces by which operands are read before they are needed; pairs of pieces, where `staged`
    rolled: bool = False  # whether a loop runs the epilogue of a piece: nothing may be folded along rows
    staged: int = (
        0  # bytes of shared memory for the operands of `ROWS` rows, read ahead: else registers do; if `rolled`
    )
    boxes: tuple[staging.Box, ...] = ()  # of what is `staged`, as `tiles` reads it
    warps: int = 1  # that hold other rows of the same columns: their statistics are folded together
    step: int = 1  # between their numbers
    barrier: int = 0  # at which they meet for that; the block's next warps at the next one
    threads: int = WARP  # that meet at one

    @property
    def early(self) -> bool:
        """Whether a loop reads vectors before they are needed: unless registers hold what columns come to, or elements."""
        return self.rolled and not self.column_ops and not self.ragged

    @property
    def frees(self) -> bool:
        """Whether the registers of accumulators are free once they are in shared memory: where tiles are read by way of that.
        Elsewhere an epilogue would compute so much at once that tensor cores, which read registers too, are slower: on an H100
        GELU took 4 % longer, folds along rows 30 to 60 %."""
        return self.staged > 0 and not self.column_ops

    @property
    def stage(self) -> int:
        """Words of shared memory that a warp needs, aligned to 16 bytes."""
        return ROWS * self.piece

    @property
    def reads(self) -> bool:
        """Whether anything is read ahead."""
        return self.columns is not None or self.tiles is not None

    @property
    def accumulators(self) -> int:
        """How many an epilogue is given, each of as many columns as the output: together they are the product's."""
        return 2 if self.paired else 1


@dataclass(frozen=True)
class _Pieces:
    """How a lane walks over its warp's accumulators: from piece to piece, each `rows` rows of a slab and `width` columns, and
    in each piece from vector to vector. All pieces of the same columns come one after another."""

    row: Int32  # of the output, where the warp's accumulators begin, as `column` and `batch`
    column: Int32
    batch: Int32
    M: Int32
    N: Int32
    slab_step: int
    slabs: int
    turns: int  # pieces in a row
    width: int  # accumulators in a row of a piece
    rows: int
    per_row: int  # lanes that share a row
    vec: int
    columns: int  # of the output, in a row of a piece
    crowded: bool  # whether few registers are left

    @property
    def steps(self) -> int:
        """Vectors of a lane in a piece."""
        return self.rows * self.per_row // WARP

    @property
    def buffers(self) -> int:
        """In shared memory: one is written while another is read."""
        return ROWS // self.rows

    @property
    def order(self) -> list[tuple[int, int, int]]:
        """The pieces: turn, slab, and which rows of it."""
        return [(t, s, p) for t in range(self.turns) for s in range(self.slabs) for p in range(ROWS // self.rows)]

    def first_column(self, turn: int, lane: Int32) -> Int32:
        """Of a lane's vectors in a turn."""
        return self.column + turn * self.columns + lane % self.per_row * self.vec

    def place(self, slab: int, part: int, step: Int32 | int, lane: Int32, column: Int32) -> tuple[Int32, Int32, Int32]:
        """Of a vector: its row, the columns that its row has, and how many of them are the vector's."""
        r = self.row + slab * self.slab_step + part * self.rows + step * (WARP // self.per_row) + lane // self.per_row
        limit = cutlass.select_(r < self.M, self.N, Int32(0))
        if self.crowded:
            return r, limit, cutlass.min(limit - column, Int32(self.vec))
        return r, limit, cutlass.select_((r < self.M) & (column < self.N), Int32(self.vec), Int32(0))


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
):
    """Run an epilogue over what a warp holds of a tile; all its lanes take part. If `staged`, `begin` has begun it.

    acc: (2, 2, J, I) registers, float32 or int32: in the i-th slab a lane holds columns 8j + 2*(lane%4) + {0, 1} of rows
        lane//4 + {0, 8}; or, if in `fours`, columns 8(j - j%2) + 4*(lane%4) + 2*(j%2) + {0, 1}. The columns of "halves" are
        those of the one accumulator, then those of the other.
    stage: (form.stage, warps) words of shared memory, 16-byte aligned, which nothing else uses; `warp` is this one's place.
    peer: which of the `form.warps` that share its columns it is.
    place: row and column of the output, and the batch, where the warp's accumulators begin; slabs are `slab_step` rows apart.
    extents: rows and columns of the output.
    memory: the epilogue's tensors; row_parts (L, M, pieces) and column_parts (L, pieces, N), float32, one for each fold.
    pieces: where in these what this warp's columns, and these warps' rows, come to is written.
    operands: what `begin` was given.
    first: what `first_columns` has read, where that was called.
    """
    tensors, row_parts, column_parts = memory
    tensors = tuple(_compact(t) for t in tensors)
    lane = cute.arch.lane_idx()
    walk = _walk(acc, place, extents, slab_step, form)
    words = cute.recast_ptr(stage.iterator, dtype=acc.element_type) + warp * form.stage
    rRows = [cute.make_rmem_tensor((ROWS * walk.slabs * walk.per_row // WARP,), Float32) for _ in form.row_ops]
    for k in cutlass.range_constexpr(len(form.row_ops)):
        rRows[k].fill(reduce.identity(form.row_ops[k], Float32))
    rColumns = [reduce.accumulators(form.vec, walk.turns, op, Float32) for op in form.column_ops]

    cute.arch.sync_warp()  # the tile before is read
    _write(acc, words, _write_place(lane, walk, form), walk.order[0], 0, walk, form)
    if cutlass.const_expr(form.rolled):
        _in_loops(acc, words, walk, tensors, rColumns, form, operands, first)
    else:
        _unrolled(acc, words, walk, tensors, rRows, rColumns, form)

    if cutlass.const_expr(len(form.row_ops) > 0):
        _store_rows(rRows, walk, lane, pieces[0], row_parts, form)
    if cutlass.const_expr(len(form.column_ops) > 0):
        _store_columns(rColumns, stage, warp, peer, walk, lane, pieces[1], column_parts, form)


@cute.jit
def _in_loops(
    acc: cute.Tensor,
    words: cute.Pointer,
    walk: cutlass.Constexpr[_Pieces],
    tensors: tuple,
    rColumns: list,
    form: cutlass.Constexpr[Form],
    operands: tuple | None,
    first: tuple | None,
):
    """The epilogue of each piece in a loop over its vectors: its code is run more often than it is fetched. Each vector, and
    what was read ahead for it into shared memory, comes to registers as soon as the one before is computed that far."""
    order, half = walk.order, form.stage // 2
    lane = device.unseen(cute.arch.lane_idx()) & (WARP - 1)  # or it would divide as negative numbers need it
    coming: Any = _columns(walk, 0, lane, tensors, form) if cutlass.const_expr(first is None) else first
    slots = form.ahead * walk.buffers
    if cutlass.const_expr(form.staged > 0):
        _await_operands(0, walk, form, operands)
    cute.arch.sync_warp()
    early, written, reading = form.early, lane, lane
    vector = own = ()
    if cutlass.const_expr(early):
        written, reading = _write_place(lane, walk, form), _read_place(lane, walk, form)
        vector = _read(words, reading, 0, Int32(0), walk, acc.element_type, form)
        own = _own(_spot(0, Int32(0), lane, walk), 0, Int32(0), lane, walk, tensors, form, operands)
    for i in cutlass.range_constexpr(len(order)):
        turn, slab, part = order[i]
        # Or the compiler would compute all places at once, and keep them in registers
        lane = device.unseen(lane) & (WARP - 1)
        if cutlass.const_expr(early):
            written, reading = device.unseen(written), device.unseen(reading)
        else:
            written, reading = _write_place(lane, walk, form), _read_place(lane, walk, form)
        c = walk.first_column(turn, lane)
        if cutlass.const_expr(slab + part == 0):
            fixed = coming
        if cutlass.const_expr(slab + 1 == walk.slabs and part + 1 == walk.buffers and turn + 1 < walk.turns):
            coming = _columns(walk, turn + 1, lane, tensors, form)
        more = i + 1 < len(order)
        if cutlass.const_expr(walk.buffers > 1 and more):
            if cutlass.const_expr(i > 0):
                cute.arch.sync_warp()  # the piece before is read
            _write(acc, words, written, order[i + 1], (i + 1) % walk.buffers, walk, form)
            if cutlass.const_expr(form.staged > 0):
                _await_operands(i + 1, walk, form, operands)
            cute.arch.sync_warp()
        j = i + 1 if more else i  # past the last piece, what is read again is not used
        here, there = (i % walk.buffers * half, i % slots), (j % walk.buffers * half, j % slots)
        for step in cutlass.range(walk.steps, unroll=1 if early or form.ragged else 2):
            if cutlass.const_expr(early):
                values, beside = vector, own
            else:
                values = _read(words, reading, here[0], step, walk, acc.element_type, form)
                beside = _own(_spot(i, step, lane, walk), here[1], step, lane, walk, tensors, form, operands)
            r, limit, valid = walk.place(slab, part, step, lane, c)
            if cutlass.const_expr(form.tiles is not None and form.staged == 0):
                beside = tuple(form.tiles(r, c, walk.batch, valid, tensors, form.vec, form.ragged, vectors.load))
            given = ((*fixed, *beside),) if cutlass.const_expr(form.reads) else ()
            found = form.run(values, r, c, walk.batch, valid, tensors, form.vec, form.ragged, *given)
            if cutlass.const_expr(early):  # the next one: in this piece or, past its end, the first of the next piece
                inside_it = step + 1 < walk.steps
                at = cutlass.select_(inside_it, step + 1, Int32(0))
                buffer, slot = (
                    cutlass.select_(inside_it, Int32(h), Int32(t)) for h, t in zip(here, there, strict=True)
                )
                _put(_read(words, reading, buffer, at, walk, acc.element_type, form), vector)
                if cutlass.const_expr(form.staged > 0):
                    own_step, first_step = _spot(i, at, lane, walk), _spot(j, Int32(0), lane, walk)
                    spot = tuple(cutlass.select_(inside_it, o, f) for o, f in zip(own_step, first_step, strict=True))
                    _put(_own(spot, slot, at, lane, walk, tensors, form, operands), own)
            else:
                inside = reduce.inside(c, limit, form.vec, form.ragged, False)
                _fold(found, inside, 0, turn, [], rColumns, form)  # of rows, nothing is folded in a loop
        if cutlass.const_expr(form.staged > 0 and i + slots < len(order)):
            _fetch_operands(i + slots, walk, form, operands)
        if cutlass.const_expr(walk.buffers == 1 and more):
            cute.arch.sync_warp()
            _write(acc, words, written, order[i + 1], 0, walk, form)
            if cutlass.const_expr(form.staged > 0):
                _await_operands(i + 1, walk, form, operands)
            cute.arch.sync_warp()
            if cutlass.const_expr(early):
                vector = _read(words, reading, 0, Int32(0), walk, acc.element_type, form)
                spot = _spot(i + 1, Int32(0), lane, walk)
                own = _own(spot, (i + 1) % slots, Int32(0), lane, walk, tensors, form, operands)


def _put(sources: tuple[cute.Tensor, ...], places: tuple[cute.Tensor, ...]) -> None:
    """Registers to others, whose names a loop knows."""
    for source, place in zip(sources, places, strict=True):
        place.store(source.load())


@cute.jit
def _unrolled(
    acc: cute.Tensor,
    words: cute.Pointer,
    walk: cutlass.Constexpr[_Pieces],
    tensors: tuple,
    rRows: list,
    rColumns: list,
    form: cutlass.Constexpr[Form],
):
    """The epilogue of each piece vector by vector, what it needs read pieces ahead into registers."""
    order, lane = walk.order, cute.arch.lane_idx()
    read: list[Any] = [None]  # of the pieces that come next, the one before first
    for i in cutlass.range_constexpr(min(form.ahead, len(order))):
        read.append(_operands(walk, i, lane, read[-1], tensors, form))
    cute.arch.sync_warp()
    for i in cutlass.range_constexpr(len(order)):
        turn, slab, part = order[i]
        lane = device.unseen(lane)  # or the compiler would compute all places at once, and keep them in registers
        if cutlass.const_expr(form.ahead == 0):
            read.append(_operands(walk, i, lane, read[-1], tensors, form))
        read.pop(0)
        now = read[0]
        c = walk.first_column(turn, lane)
        buffer = i % walk.buffers * (form.stage // 2)
        place = _read_place(lane, walk, form)
        values = [_read(words, place, buffer, step, walk, acc.element_type, form) for step in range(walk.steps)]
        _bring_next(acc, words, lane, i, walk, read, tensors, form)
        for step in cutlass.range_constexpr(walk.steps):
            r, limit, valid = walk.place(slab, part, step, lane, c)
            given = (now[step][0] + now[step][1],) if cutlass.const_expr(form.reads) else ()
            found = form.run(values[step], r, c, walk.batch, valid, tensors, form.vec, form.ragged, *given)
            if cutlass.const_expr(len(form.row_ops) + len(form.column_ops) > 0):
                inside = reduce.inside(c, limit, form.vec, form.ragged, False)
                at = (slab * (ROWS // walk.rows) + part) * walk.steps + step
                _fold(found, inside, at, turn, rRows, rColumns, form)


def _compact(tensor: cute.Tensor | None) -> cute.Tensor | None:
    """The same tensor, its strides made of its extents: products of 32-bit numbers, which take fewer instructions than strides
    of 64 bits."""
    if tensor is None or cute.rank(tensor) < 2:
        return tensor
    strides = tuple(vectors.compact_stride(tensor, mode) for mode in range(cute.rank(tensor)))
    made = cute.make_tensor(tensor.iterator, cute.make_layout(tensor.shape, stride=strides))
    return unsigned.typed(made, tensor.element_type)


def piece_of(columns: int, form: Form) -> tuple[int, int]:
    """Rows and columns of a piece, of so many columns of accumulators."""
    width = next(p for p in (64, 32, 16) if p <= form.piece and columns % p == 0)
    per_row = width // (form.accumulators * form.vec)
    assert per_row >= 2, f"a warp's {columns} columns are too few for vectors of {form.vec}"
    return ROWS if form.rolled and not form.early else max(ROWS // 2, WARP // per_row), width


def _walk(acc: cute.Tensor, place: tuple, extents: tuple, slab_step: int, form: Form) -> _Pieces:
    columns, slabs, count = 8 * cute.size(acc, mode=[2]), cute.size(acc, mode=[3]), form.accumulators
    rows, width = piece_of(columns, form)
    (row, column, batch), (M, N), own = place, extents, width // count
    return _Pieces(
        row, column, batch, M, N, slab_step, slabs, columns // width, width, rows, own // form.vec, form.vec, own,
        not form.early,
    )  # fmt: skip


def _bring_next(
    acc: cute.Tensor,
    words,
    lane: Int32,
    i: int,
    walk: _Pieces,
    read: list,
    tensors: tuple,
    form: Form,
) -> None:
    """The piece after the i-th to shared memory, which is read up to that one; and what a later one needs, to `read`."""
    if i + 1 == len(walk.order):
        return
    if walk.buffers == 1:
        cute.arch.sync_warp()
    _write(acc, words, _write_place(lane, walk, form), walk.order[i + 1], (i + 1) % walk.buffers, walk, form)
    if form.ahead > 0 and i + form.ahead < len(walk.order):
        read.append(_operands(walk, i + form.ahead, lane, read[-1], tensors, form))
    cute.arch.sync_warp()


def _operands(walk: _Pieces, i: int, lane: Int32, before: Any, tensors: tuple, form: Form) -> list[tuple]:
    """What the epilogue reads for the vectors of the i-th piece, given what it read for those of the piece before."""
    turn, slab, part = walk.order[i]
    c = walk.first_column(turn, lane)
    # Where the columns are as before, so is what all rows share
    fixed = before[0][0] if slab + part > 0 else _columns(walk, turn, lane, tensors, form)
    found = []
    for step in range(walk.steps):
        r, _, valid = walk.place(slab, part, step, lane, c)
        if form.tiles is None:
            own: tuple = ()
        else:
            own = tuple(form.tiles(r, c, walk.batch, valid, tensors, form.vec, form.ragged, vectors.load))
        found.append((fixed, own))
    return found


def _columns(walk: _Pieces, turn: int, lane: Int32, tensors: tuple, form: Form) -> tuple:
    """What the epilogue reads of a lane's columns in a turn, the same for all rows."""
    if form.columns is None:
        return ()
    c = walk.first_column(turn, lane)
    return tuple(form.columns(c, walk.batch, walk.N - c, tensors, form.vec, form.ragged))


def first_columns(
    acc: cute.Tensor, place: tuple, slab_step: int, extents: tuple, tensors: tuple, form: Form
) -> tuple | None:
    """Before the products of a tile: what the epilogue will read first, on its way meanwhile, for `finish`, which must follow
    with the same arguments. None where it reads that itself."""
    if not form.rolled:
        return None
    tensors = tuple(_compact(t) for t in tensors)
    return _columns(_walk(acc, place, extents, slab_step, form), 0, cute.arch.lane_idx(), tensors, form)


@cute.jit
def begin(
    acc: cute.Tensor,
    place: tuple[cutlass.Int32, cutlass.Int32, cutlass.Int32],
    slab_step: cutlass.Constexpr[int],
    extents: tuple[cutlass.Int32, cutlass.Int32],
    form: cutlass.Constexpr[Form],
    operands: tuple,
):
    """Before the products of a tile, where `form.staged`: send for what its first pieces need. `finish` must follow, with the
    same arguments. operands: a warp's own `staged` bytes of shared memory for each of `ahead` pieces, aligned as
    `staging.ALIGNED` says, and two barriers for each, of one arrival; how many tiles it began before; which row of
    all batches' its first is; the fetchers of `form.boxes`."""
    walk = _walk(acc, place, extents, slab_step, form)
    for i in cutlass.range_constexpr(min(form.ahead * walk.buffers, len(walk.order))):
        _fetch_operands(i, walk, form, operands)


def _fetch_operands(i: int, walk: _Pieces, form: Form, operands: Any) -> None:
    """Send for the operands of the i-th piece, in the place of those before that are read."""
    memory, barriers, _, row, fetchers = operands
    turn, slab, part = walk.order[i]
    slot = i % (form.ahead * walk.buffers)
    further = slab * walk.slab_step + part * walk.rows
    rows = (row + further, walk.row + further)
    cute.arch.sync_warp()
    memory += slot * (form.staged // walk.buffers)
    staging.fetch(form.boxes, fetchers, rows, walk.column + turn * walk.columns, memory, barriers + slot)


def _await_operands(i: int, walk: _Pieces, form: Form, operands: Any) -> None:
    """Until those of the i-th piece have come."""
    (_, barriers, tiles, *_), slots = operands, form.ahead * walk.buffers
    before = len(range(i % slots, len(walk.order), slots)) * tiles  # times that other tiles had its place
    cute.arch.mbarrier_wait(barriers + i % slots, (before + i // slots) & 1)


def _spot(i: int, step: Int32, lane: Int32, walk: _Pieces) -> tuple[Int32, Int32, Int32]:
    """Row and column of a lane's vector in a step of the i-th piece, and how many of its elements there are."""
    turn, slab, part = walk.order[i]
    c = walk.first_column(turn, lane)
    r, _, valid = walk.place(slab, part, step, lane, c)
    return r, c, valid


def _own(
    spot: tuple[Int32, ...], slot: Int32 | int, step: Int32 | int, lane: Int32, walk: _Pieces, tensors: tuple,
    form: Form, operands: Any,
) -> tuple[cute.Tensor, ...]:  # fmt: skip
    """What was read ahead for a vector into the slot-th piece's shared memory, and what is read of its row alone; nothing
    where nothing was read ahead."""
    if form.staged == 0:
        return ()
    start, (r, c, valid) = operands[0].toint() + slot * (form.staged // walk.buffers), spot
    load = staging.Slots(start, form.boxes, step * WARP + lane).load
    return tuple(form.tiles(r, c, walk.batch, valid, tensors, form.vec, form.ragged, load))  # type: ignore[misc]


def _place(row: Int32 | int, chunk: Int32 | int, piece: int) -> Int32 | int:
    """Where a chunk of 4 words of a row lies. Linear in the bits of its arguments: the place of a sum, where no bit is carried,
    is the places' XOR. Bits 2 to 4 alone depend on more than one of them."""
    swizzle = ((row & 3) * 2) ^ (row & 1) ^ ((chunk >> 3) & 1)
    return row * piece + (chunk ^ (swizzle & (piece // 4 - 1))) * 4


def _shifted(place: Int32, constant: Int32 | int) -> Int32:
    """The place of a sum whose one part is a constant's, mostly a constant's distance away."""
    return (place ^ (constant & 28)) + (constant & ~28)


def _write_place(lane: Int32, walk: _Pieces, form: Form) -> Int32:
    """Where a lane writes the first of a piece."""
    row, quad = lane // 4, lane % 4
    # A pair of columns is half a chunk
    return _place(row, quad, walk.width) if form.fours else _place(row, quad // 2, walk.width) + quad % 2 * 2


def _write(
    acc: cute.Tensor, words, place: Int32, piece: tuple[int, int, int], buffer: int, walk: _Pieces, form: Form
) -> None:
    """A piece of accumulators to shared memory; of "halves", as many columns of each. acc: (2, 2, J, I)."""
    turn, slab, part = piece
    blocks, parts = walk.width // 8, 2 if form.paired == "halves" else 1
    halves = [part] if walk.rows < ROWS else [0, 1]
    place += buffer * (form.stage // 2)
    held = cute.make_rmem_tensor((2,), acc.element_type)
    for b in range(blocks):
        which, inside = b // (blocks // parts), b % (blocks // parts)
        j = which * (cute.size(acc, mode=[2]) // parts) + turn * (blocks // parts) + inside
        for i, half in enumerate(halves):
            held[0], held[1] = acc[0, half, j, slab], acc[1, half, j, slab]
            at = _shifted(place, _place(8 * i, b // 2 * 4 if form.fours else 2 * b, walk.width))
            at = cute.assume(at + (b % 2 * 2 if form.fours else 0), divby=2)
            cute.autovec_copy(held, cute.make_tensor(words + at, cute.make_layout((2,))))


def _read_place(lane: Int32, walk: _Pieces, form: Form) -> Int32:
    """Where a lane reads the first vector of a piece."""
    own = walk.width // 2 if form.paired == "halves" else walk.width  # words of an accumulator in a row
    return _place(lane // walk.per_row, lane % walk.per_row * (own // walk.per_row // 4), walk.width)


def _read(
    words, place: Int32, buffer: Int32 | int, step: Int32 | int, walk: _Pieces, dtype, form: Form
) -> tuple[cute.Tensor, ...]:
    """A lane's vector of each accumulator, of a piece that lies `buffer` words on: (vec,) registers."""
    own = walk.width // 2 if form.paired == "halves" else walk.width
    count = own // walk.per_row  # of them, a lane's
    further: Int32 | int = step * (WARP // walk.per_row)
    if not isinstance(step, int):
        if WARP // walk.per_row % 4 == 0:  # chunks of rows so far apart are permuted alike
            place += further * walk.width
        else:
            place = _shifted(place, _place(further, 0, walk.width))
        further = 0
    place += buffer
    found = []
    for part in range(walk.width // own):
        held = cute.make_rmem_tensor((count,), dtype)
        for i in range(count // 4):
            at = _shifted(place, _place(further, part * (own // 4) + i, walk.width))
            src = cute.make_tensor(words + cute.assume(at, divby=4), cute.make_layout((4,)))
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


def _fold(found: tuple, inside, at: int, turn: int, rRows: list, rColumns: list, form: Form) -> None:
    """What the epilogue returned for one vector, into the statistics of its row and its columns."""
    ops = form.row_ops + form.column_ops
    assert len(found) == len(ops), f"an epilogue returned {len(found)} vectors to be folded by {ops}"
    followed = {follows[0]: follows[1:] for follows in form.rescaled}
    before = [rRows[k][at] for k in range(len(form.row_ops))]
    for k, op in enumerate(form.row_ops):
        value, total = found[k], cute.full((1,), before[k], Float32)
        if k in followed:
            maximum, power, scale, finite = followed[k]
            now = rRows[maximum][at]
            total = reduce.rescale(total, before[maximum], now, power, scale)
            value = reduce.exponentials(value, now, power, scale, finite)
        one = reduce.accumulator(form.vec, op, Float32)
        reduce.accumulate([one], (op,), value, inside)
        rRows[k][at] = reduce.combine(op, total, reduce.over_vector(one, op))[0]
    reduce.accumulate_at(turn, rColumns, form.column_ops, tuple(found[len(form.row_ops) :]), inside)


@cute.jit
def _store_rows(
    rRows: list,
    walk: cutlass.Constexpr[_Pieces],
    lane: cutlass.Int32,
    piece: cutlass.Int32,
    row_parts: tuple,
    form: cutlass.Constexpr[Form],
):
    """Rows' statistics, folded over the lanes that share a row, to memory."""
    count = cute.size(rRows[0])
    for at in cutlass.range_constexpr(count):
        r, _, _ = walk.place(at // (count // walk.slabs), 0, at % (count // walk.slabs), lane, Int32(0))
        held = [[cute.full((1,), rRows[k][at], Float32)] for k in range(len(rRows))]
        totals = reduce.all_over_lanes(held, form.row_ops, walk.per_row, tuple(f[:4] for f in form.rescaled))
        if (lane % walk.per_row == 0) & (r < walk.M):
            for k in cutlass.range_constexpr(len(rRows)):
                row_parts[k][walk.batch, r, piece] = totals[k][0]


@cute.jit
def _store_columns(
    rColumns: list,
    stage: cute.Tensor,
    warp: cutlass.Int32,
    peer: cutlass.Int32,
    walk: cutlass.Constexpr[_Pieces],
    lane: cutlass.Int32,
    piece: cutlass.Int32,
    column_parts: tuple,
    form: cutlass.Constexpr[Form],
):
    """Columns' statistics, folded over a warp's rows, then, in shared memory, over those of its peers, to memory."""
    words = cute.recast_ptr(stage.iterator, dtype=Float32)
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
                    (words + (warp * form.stage + k * span + (turn * per_row + lane) * vec + i)).store(total)
    _meet(warp, form)
    if peer == 0:
        for k in cutlass.range_constexpr(len(form.column_ops)):
            for c in cutlass.range_constexpr(0, span, WARP):
                at = c + lane
                if (at < span) & (column + at < walk.N):
                    first = words + (warp * form.stage + k * span + at)
                    column_parts[k][walk.batch, piece, column + at] = _over_peers(first, form.column_ops[k], form)
    _meet(warp, form)  # the next tile may overwrite them


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
        value = (first + p * (form.step * form.stage)).load()
        total = reduce.combine(op, total, cute.full((1,), value, Float32))
    return total[0]


def _meet(warp: Int32, form: Form) -> None:
    if form.warps == 1:
        cute.arch.sync_warp()
    else:
        set_of_warps = warp // (form.threads // WARP)
        cute.arch.barrier(barrier_id=form.barrier + set_of_warps, number_of_threads=form.threads)
