"""Passes the accumulators of a tile's warps through shared memory, from the layout of tensor cores to an epilogue's vectors.

Tensor cores give each lane pairs of neighbouring columns; an epilogue needs whole vectors of a row. So accumulators pass
through shared memory, in slabs of 16 rows and pieces of at most 64 columns. Each warp has its own piece, and needs only a
barrier of its own lanes. A piece consists of blocks of 8 columns. A block has two planes, its even and its odd columns, each
with 16 bytes of every row: the words that lanes hold, as stmatrix writes them. After each block are GAP * 8 / columns free
bytes, which avoid bank conflicts between lanes that read several blocks and rows. The address is the sum of a lane's offset and
a constant for block, plane and row, so the constant is an immediate of the instruction.

Alternatives: an epilogue directly on accumulators that packs its results to shared memory, fully unrolled, takes three
instructions fewer per element, of seventeen. On an H100 GELU then took 1.13 to 1.16 of the product alone (8192 x 8192,
K = 1024), against 1.09 here; ReLU took the same. With pieces of 16 rows, whose loops are half as many but wait for each
other's shared memory, GELU took 1.10. GELU's time beyond ReLU's was the main loop's wait for instructions (`sm90`). These
products run at the GPU's power limit, where time is energy: an epilogue costs its instructions and its bytes, whether or not
tensor cores work meanwhile. Reading a residual costs 6 %, with SiLU or without.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Numeric, Uint32

from codegen.device import vectors
from codegen.device.gemm import staging, tensorcore
from codegen.device.gemm.vector import Vector
from codegen.shared import GAP, STAGED_ROWS, WARP, stage_bytes

# A fold along rows that sums exponentials: its index, the index of its maximum before it, exp or exp2, the factor of the
# difference, and whether 0 replaces a maximum that is not finite
Follows: TypeAlias = tuple[int, int, str, float, bool]

PIECE = 64  # the most columns that pass through shared memory at once


@dataclass(frozen=True)
class Segments:
    """The reductions of each segment of a row before its epilogue: run(*accumulators) gives a vector for each of `ops`, a "mean" or
    as in `reduce.combine`."""

    run: Callable[..., tuple]
    ops: tuple[str, ...]


@dataclass(frozen=True)
class Form:
    """An epilogue, its operands and results, and how a tile's warps share its columns.

    run(at, acc, operands, tensors) is called for each vector `at`, and returns what is reduced of it. Its operands come from two
    other functions, where there are any: columns(at, tensors), called once for all rows, and tiles(at, tensors), which reads what
    each row has.
    """

    run: Callable[..., tuple]
    columns: Callable[..., tuple] | None
    tiles: Callable[..., tuple] | None
    vec: int  # columns that a lane handles at once: 4, 8 or 16
    ragged: bool = False  # whether N is not a multiple of vec
    # A warp's columns are two accumulators', "halves": one after the other; "interleaved": column by column;
    # "segments": one after the other in each segment
    paired: str = ""
    row_ops: tuple[str, ...] = ()  # reductions along a row of the epilogue's first results, as in `reduce.combine`
    column_ops: tuple[str, ...] = ()  # reductions along a column of its further results
    rescaled: tuple[Follows, ...] = ()  # the row_ops that sum exponentials of results
    fours: bool = False  # whether lanes hold four neighbouring columns of each 16, instead of two of each 8
    matrices: bool = False  # whether a warp writes them to shared memory by stmatrix (from sm_90 on)
    piece: int = PIECE  # the most columns that pass through shared memory at once: 64 or 32
    ahead: int = 1  # how many pieces ahead operands are prefetched; pairs of pieces, where `staged`
    # Whether a loop runs the epilogue of a piece; then the registers of accumulators are free once they are in shared memory. On
    # other architectures as much would be computed at once, but there tensor cores read registers too. On an H100 folds along rows
    # and prefetched tiles took a fifth to a half longer
    rolled: bool = False
    # Bytes of shared memory for prefetched operands of `STAGED_ROWS` rows, if `rolled`; 0: registers hold them
    staged: int = 0
    boxes: tuple[staging.Box, ...] = ()  # of the `staged` operands, in the order in which `tiles` reads them
    warps: int = 1  # the number of warps that hold rows of the same columns, and reduce their statistics together
    step: int = 1  # the difference of their numbers
    barrier: int = 0  # the barrier of the first such warps; the block's next warps have the next one
    threads: int = WARP  # the threads at one barrier
    segment: int = 0  # columns of the output in a segment, of which a warp has whole ones; 0: nothing asks for them
    segments: Segments | None = None

    def vector(self, row: Int32, column: Int32, batch: Int32, valid: Int32, read: Callable = vectors.load) -> Vector:
        """An epilogue's view of a vector."""
        return Vector(row, column, batch, valid, self.vec, self.ragged, read)

    @property
    def early(self) -> bool:
        """Whether a loop loads vectors before they are needed: not where registers hold columns' statistics, or elements."""
        return self.rolled and not self.column_ops and not self.ragged

    @property
    def stage(self) -> int:
        """The words of shared memory that a warp needs, aligned to 16 bytes."""
        return stage_bytes(self.piece) // 4

    @property
    def buffer(self) -> int:
        """The bytes of half of the stage, which holds a piece while another one is read."""
        return stage_bytes(self.piece) // 2

    @property
    def reads(self) -> bool:
        """Whether any operands are prefetched."""
        return self.columns is not None or self.tiles is not None

    @property
    def accumulators(self) -> int:
        """The number of accumulators that an epilogue takes, each with as many columns as the output."""
        return 2 if self.paired else 1

    @property
    def halves(self) -> int:
        """The number of parts of a row of accumulators."""
        return 2 if self.paired in ("halves", "segments") else 1


@dataclass(frozen=True)
class Product:
    """One of the products of a in a launch, and its epilogue with the tensors that this reads and writes."""

    mBs: tuple[cute.Tensor, ...]  # each (L, N, K) or (L, K, N)
    memory: tuple  # the epilogue's tensors, row parts and column parts
    form: Form  # whose settings of the main loop are not set yet
    whole: tuple[tuple[cute.Tensor | None, int, bool], ...] = ()

    def columns(self, b_is_nk: bool) -> Int32:
        """The columns of each b."""
        return self.mBs[0].shape[1 if b_is_nk else 2]


def product(
    mBs: tuple[cute.Tensor, ...],
    tensors: tuple,
    epilogue: Callable[..., tuple],
    *,
    vec: int,
    ragged: bool,
    paired: str = "",
    row_ops: tuple[str, ...] = (),
    column_ops: tuple[str, ...] = (),
    rescaled: tuple[Follows, ...] = (),
    row_parts: tuple[cute.Tensor, ...] = (),
    column_parts: tuple[cute.Tensor, ...] = (),
    reads: tuple[Callable[..., tuple] | None, Callable[..., tuple] | None] = (None, None),
    whole: tuple[tuple[cute.Tensor | None, int, bool], ...] = (),
    segment: int = 0,
    segments: Segments | None = None,
) -> Product:
    """A product and its epilogue.

    mBs: one tensor or two, (L, N, K) or (L, K, N), their last strides 1, their L 1 where the batch shares them. Two give two
        accumulators ("halves"); one with 2N columns too, if "interleaved" or "segments".
    row_parts: (L, M, tiles.row_pieces(N)), column_parts: (L, tiles.column_pieces(M), N), float32 or int32.
    reads: the functions that prefetch the epilogue's operands: columns and tiles of `Form`.
    whole: the tensors that `tiles` reads by `load`, in its order, the number of adjacent elements of each for a column of the
        output, and whether each batch has its own; needed where `staged`, for which their rows must be a multiple of 16 bytes.
    """
    assert len(mBs) == (2 if paired == "halves" else 1), f"{len(mBs)} tensors b, and paired is {paired!r}"
    form = Form(
        epilogue, *reads, vec, ragged, paired, row_ops, column_ops, rescaled, segment=segment, segments=segments
    )
    return Product(mBs, (tensors, row_parts, column_parts), form, whole)


def own_column(column: Int32, firsts: tuple, which: int) -> tuple[Int32, cutlass.Boolean | bool]:
    """A column of tiles as one of that product's, of several, and whether it is: all products but the first one begin at
    `firsts`."""
    own, found = column, True
    if which > 0:
        own, found = column - firsts[which - 1], column >= firsts[which - 1]
    if which < len(firsts):
        found = found & (column < firsts[which])
    return own, found


@dataclass(frozen=True)
class Pieces:
    """The order in which a lane handles its warp's accumulators: piece by piece, and in each piece vector by vector. A piece is
    `rows` rows of a slab and `width` columns. All pieces of the same columns are consecutive."""

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

    @property
    def steps(self) -> int:
        """The number of a lane's vectors in a piece."""
        return self.rows * self.per_row // WARP

    @property
    def buffers(self) -> int:
        """The number of buffers in shared memory: one is written while another is read."""
        return STAGED_ROWS // self.rows

    @property
    def order(self) -> list[tuple[int, int, int]]:
        """The pieces in order: turn, slab, and the index of its rows."""
        return [
            (t, s, p) for t in range(self.turns) for s in range(self.slabs) for p in range(STAGED_ROWS // self.rows)
        ]

    def first_column(self, turn: int, lane: Int32) -> Int32:
        """The first column of a lane's vectors in a turn."""
        return self.column + turn * self.columns + lane % self.per_row * self.vec

    @property
    def high(self) -> int:
        """The number of rows that lanes read at once."""
        return WARP // self.per_row

    @property
    def plane(self) -> int:
        """The bytes of a block's even columns, or of its odd ones."""
        return self.rows * 16

    @property
    def block(self) -> int:
        """The bytes from one block to the next."""
        return 2 * self.plane + GAP * 8 // self.width

    def further(self, step: Int32 | int) -> Int32 | int:
        """The bytes from the first step's vector to a step's vector, in a piece."""
        return step * (self.high * 16)

    def row_of(self, slab: int, part: int, step: Int32 | int, lane: Int32) -> Int32:
        """The row of a lane's vector in a step of a piece."""
        return self.row + slab * self.slab_step + part * self.rows + step * self.high + lane // self.per_row

    def place(self, slab: int, part: int, step: Int32 | int, lane: Int32, column: Int32) -> tuple[Int32, Int32, Int32]:
        """A vector's row, the number of columns of that row, and the number of the vector's columns in it."""
        r = self.row_of(slab, part, step, lane)
        limit = cutlass.select_(r < self.M, self.N, Int32(0))
        return r, limit, cutlass.min(limit - column, Int32(self.vec))

    def whole(self, row: Int32, below: Int32) -> Int32:
        """The number of a vector's elements, all or none, where its columns have `below` rows."""
        return cutlass.select_(row < below, Int32(self.vec), Int32(0))


def piece_of(columns: int, form: Form) -> tuple[int, int]:
    """The rows and columns of a piece, for `columns` columns of accumulators."""
    whole = form.segment * form.accumulators or columns
    width = next(p for p in (64, 32, 16) if p <= form.piece and columns % p == 0 and whole % p == 0)
    per_row = width // (form.accumulators * form.vec)
    assert per_row >= 2, f"a warp's {columns} columns are too few for vectors of {form.vec}"
    return STAGED_ROWS if form.rolled and not form.early else max(STAGED_ROWS // 2, WARP // per_row), width


def walk_over(acc: cute.Tensor, place: tuple, extents: tuple, slab_step: int, form: Form) -> Pieces:
    columns, slabs, count = 8 * cute.size(acc, mode=[2]), cute.size(acc, mode=[3]), form.accumulators
    rows, width = piece_of(columns, form)
    (row, column, batch), (M, N), own = place, extents, width // count
    return Pieces(
        row, column, batch, M, N, slab_step, slabs, columns // width, width, rows, own // form.vec, form.vec, own,
    )  # fmt: skip


def write_place(lane: Int32, walk: Pieces, form: Form) -> Int32:
    """The place to which a lane writes; with stmatrix, the place of the matrix row whose address the lane gives."""
    if form.matrices:  # even columns, odd ones; of 16 rows, then those of the last 8
        which = lane // 8
        return lane % 8 * 16 + which % 2 * walk.plane + (which // 2 * 128 if walk.rows == STAGED_ROWS else 0)
    row, quad = lane // 4, lane % 4
    if form.fours:  # two lanes share a block
        return row * 16 + quad // 2 * (form.halves * walk.block) + quad % 2 * 8
    return row * 16 + quad * 4


def write(acc: cute.Tensor, memory: Int32, place: Int32, piece: tuple[int, int, int], walk: Pieces, form: Form) -> None:
    """Write a piece of accumulators to shared memory, from the address `memory` on. acc: (2, 2, J, I)."""
    turn, slab, part = piece
    words = cute.recast_tensor(acc, Uint32)
    halves, own_blocks = form.halves, walk.width // 8 // form.halves
    each = form.segment // 8 if form.paired == "segments" else cute.size(acc, mode=[2]) // halves
    segment, turn = divmod(turn, each // own_blocks)
    rows = [part] if walk.rows < STAGED_ROWS else [0, 1]
    memory += place
    for block in range(walk.width // 8):
        half, own = block % halves, block // halves
        j = (segment * halves + half) * each + turn * own_blocks + own
        if form.matrices:
            tensorcore.stmatrix(memory + block * walk.block, [words[e, i, j, slab] for i in rows for e in range(2)])
        else:
            before, further = ((own - own % 2) * halves + half, own % 2 * 4) if form.fours else (block, 0)
            for k, i in enumerate(rows):
                for e in range(2):
                    at = before * walk.block + further + e * walk.plane + k * 128
                    tensorcore.store_word(memory + at, words[e, i, j, slab])


def read_place(lane: Int32, walk: Pieces, form: Form) -> Int32:
    """The place of a lane's first vector of a piece."""
    column = lane % walk.per_row * (walk.vec * (2 if form.paired == "interleaved" else 1))
    return lane // walk.per_row * 16 + column // 8 * (form.halves * walk.block) + column % 8 * 2


def read(memory: Int32, walk: Pieces, dtype: type[Numeric], form: Form) -> tuple[cute.Tensor, ...]:
    """Read a lane's vector of each accumulator, from the address `memory` on: (vec,) registers."""
    count = walk.vec * (2 if form.paired == "interleaved" else 1)  # accumulators side by side
    found: list[list[list[Uint32]]] = [[[], []] for _ in range(form.halves)]  # of even columns, of odd ones
    for block in range(-(-count // 8)):
        for half in range(form.halves):
            for plane in range(2):
                at = memory + ((block * form.halves + half) * walk.block + plane * walk.plane)
                found[half][plane] += tensorcore.load_words(at, min(count, 8) // 2)
    if form.paired == "interleaved":
        (lists,) = found
    else:
        lists = [[planes[i % 2][i // 2] for i in range(walk.vec)] for planes in found]
    made = []
    for values in lists:
        held = cute.make_rmem_tensor((walk.vec,), dtype)
        words = cute.recast_tensor(held, Uint32)
        for i, value in enumerate(values):
            words[i] = value
        made.append(held)
    return tuple(made)
