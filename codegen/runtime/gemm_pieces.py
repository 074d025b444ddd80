"""How what a tile's warps hold passes through shared memory, from tensor cores to an epilogue's vectors.

Tensor cores leave each lane pairs of neighbouring columns; an epilogue wants whole vectors of a row. So accumulators pass
through shared memory, slab by slab of 16 rows, in pieces of at most 64 columns: each warp has a piece of its own, and
needs no barrier but its own lanes'. It holds a piece row by row, its 16-byte chunks permuted within a row (`place_of`)
so that neither the pairs that lanes write nor the chunks that they read meet in a bank.

Without it, an epilogue straight from accumulators that packs its results to shared memory, all of its code unrolled, takes
two instructions less an element; on an H100 GELU then took 1.13 to 1.16 of the product alone (8192 x 8192, K = 1024), and 1.08
to 1.09 so, ReLU as long. Pieces of 16 rows, whose loops are half as many but wait for each other's shared memory: 1.10.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from codegen.runtime import staging
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
class Pieces:
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


def piece_of(columns: int, form: Form) -> tuple[int, int]:
    """Rows and columns of a piece, of so many columns of accumulators."""
    width = next(p for p in (64, 32, 16) if p <= form.piece and columns % p == 0)
    per_row = width // (form.accumulators * form.vec)
    assert per_row >= 2, f"a warp's {columns} columns are too few for vectors of {form.vec}"
    return ROWS if form.rolled and not form.early else max(ROWS // 2, WARP // per_row), width


def walk_over(acc: cute.Tensor, place: tuple, extents: tuple, slab_step: int, form: Form) -> Pieces:
    columns, slabs, count = 8 * cute.size(acc, mode=[2]), cute.size(acc, mode=[3]), form.accumulators
    rows, width = piece_of(columns, form)
    (row, column, batch), (M, N), own = place, extents, width // count
    return Pieces(
        row, column, batch, M, N, slab_step, slabs, columns // width, width, rows, own // form.vec, form.vec, own,
        not form.early,
    )  # fmt: skip


def place_of(row: Int32 | int, chunk: Int32 | int, piece: int) -> Int32 | int:
    """Where a chunk of 4 words of a row lies. Linear in the bits of its arguments: the place of a sum, where no bit is carried,
    is the places' XOR. Bits 2 to 4 alone depend on more than one of them."""
    swizzle = ((row & 3) * 2) ^ (row & 1) ^ ((chunk >> 3) & 1)
    return row * piece + (chunk ^ (swizzle & (piece // 4 - 1))) * 4


def shifted(place: Int32, constant: Int32 | int) -> Int32:
    """The place of a sum whose one part is a constant's, mostly a constant's distance away."""
    return (place ^ (constant & 28)) + (constant & ~28)


def write_place(lane: Int32, walk: Pieces, form: Form) -> Int32:
    """Where a lane writes the first of a piece."""
    row, quad = lane // 4, lane % 4
    # A pair of columns is half a chunk
    return place_of(row, quad, walk.width) if form.fours else place_of(row, quad // 2, walk.width) + quad % 2 * 2


def write(
    acc: cute.Tensor, words, place: Int32, piece: tuple[int, int, int], buffer: int, walk: Pieces, form: Form
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
            at = shifted(place, place_of(8 * i, b // 2 * 4 if form.fours else 2 * b, walk.width))
            at = cute.assume(at + (b % 2 * 2 if form.fours else 0), divby=2)
            cute.autovec_copy(held, cute.make_tensor(words + at, cute.make_layout((2,))))


def read_place(lane: Int32, walk: Pieces, form: Form) -> Int32:
    """Where a lane reads the first vector of a piece."""
    own = walk.width // 2 if form.paired == "halves" else walk.width  # words of an accumulator in a row
    return place_of(lane // walk.per_row, lane % walk.per_row * (own // walk.per_row // 4), walk.width)


def read(
    words, place: Int32, buffer: Int32 | int, step: Int32 | int, walk: Pieces, dtype, form: Form
) -> tuple[cute.Tensor, ...]:
    """A lane's vector of each accumulator, of a piece that lies `buffer` words on: (vec,) registers."""
    own = walk.width // 2 if form.paired == "halves" else walk.width
    count = own // walk.per_row  # of them, a lane's
    further: Int32 | int = step * (WARP // walk.per_row)
    if not isinstance(step, int):
        if WARP // walk.per_row % 4 == 0:  # chunks of rows so far apart are permuted alike
            place += further * walk.width
        else:
            place = shifted(place, place_of(further, 0, walk.width))
        further = 0
    place += buffer
    found = []
    for part in range(walk.width // own):
        held = cute.make_rmem_tensor((count,), dtype)
        for i in range(count // 4):
            at = shifted(place, place_of(further, part * (own // 4) + i, walk.width))
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
