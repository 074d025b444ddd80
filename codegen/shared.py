"""The definitions that plans and device code both use: launches, which plans make and kernels read; sizes of memory that both
compute with; and exponents that have a kernel function of their own."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

WARP = 32  # threads
HELD = 128  # rows of attention's tiles that stay, on Hopper: 64 for each of two consumers
HALF_POWERS = (-2.5, -1.5, -0.5, 0.5, 1.5, 2.5)  # exponents of powers that are computed by a square root
WHOLE_POWERS = (1.0, 2.0, 3.0, 4.0)  # exponents of powers that are products
COUNTER = 4  # words of the memory by which blocks keep pace: the first counts; copies of four words bypass the L1 cache


@dataclass(frozen=True)
class Launch:
    """The launch of an element-wise kernel: what a call adds to its plan. Each launch has a compiled kernel of its
    own."""

    vec: int  # elements of a thread
    ragged: bool  # whether a vector may cross the arrays' end or, where coordinates count, a row's
    threads: int  # of a block
    across: int = 0  # threads of a block along the innermost axis, if some arrays have another order of axes; else 0
    # Rows of a thread, if some arrays have another order of axes, if it reads several neighbours of each, or if these share values
    down: int = 1
    backwards: bool = False  # whether the first blocks have the last elements, which an earlier kernel read last
    rows: int = 1  # neighbouring rows of a block, which read each other's elements
    lanes: int = 0  # neighbouring threads along one of two axes, where the other one is read element by element; else 0
    # Elements of the tables that a block holds in shared memory; none if it reads them from memory
    tables: tuple[int, ...] = ()

    @property
    def constants(self) -> dict[str, Launch]:
        """The constants that the launcher is called with."""
        return {"how": self}

    def blocks(self, rows: int, columns: int) -> int:
        """The number of blocks: one more than are full, for the last vectors, or for arrays without elements."""
        if self.rows > 1:
            return (rows // (self.rows * self.down) + 1) * (columns * self.rows // (self.vec * self.threads))
        return rows * columns // (self.vec * self.threads * self.down) + 1


@dataclass(frozen=True)
class ScanLaunch(Launch):
    """The launch of a kernel that scans: what a call adds to its plan. Each has a compiled kernel. Vectors never cross a row's end."""

    along: int = 1  # warps that share an axis' elements
    steps: int = 1  # vectors of a thread at once
    apart: bool = False  # whether each lane has its own scans, since the scanned axis is not innermost
    cluster: int = 1  # blocks that share an axis' elements
    resident: int = 0  # blocks that an SM has registers for, at least, unless 0
    uneven: bool = False  # whether steps may not divide an axis that is scanned in both directions

    @property
    def each(self) -> int:
        """The number of scans of a cluster."""
        return self.threads // WARP // self.along * (WARP * self.vec if self.apart else 1)

    def blocks(self, rows: int, columns: int) -> int:
        """The number of blocks for this many scans: one more than are full."""
        del columns
        return (rows // self.each + 1) * self.cluster


@dataclass(frozen=True)
class RowLaunch:
    """The launch of a kernel that reduces along rows: what a call adds to its plan. Each launch has a compiled kernel
    of its own."""

    vec: int  # columns of a vector; all of a row, where a thread has several rows
    ragged: bool  # whether N is not a multiple of vec
    threads: int  # of a block
    per_row: int  # threads of a block that share a row
    vectors: int  # of a thread
    cluster: int  # blocks that share a row
    holds_row: bool  # whether registers hold the row; else each pass reads it again
    exact: bool  # whether every vector of every thread lies inside the row
    holds_expensive: bool  # whether registers hold expensive values; else each pass recomputes them
    only_row: bool = False  # whether they hold nothing else, not even what the compiler would hold
    resident: int = 0  # blocks that an SM has registers for, at least, unless 0
    at_once: int = 1  # neighbouring rows of a thread, which are read and written together
    crossing: bool = False  # whether a vector may hold columns of two groups, in a row of whole vectors
    by_runs: bool = False  # whether rows are loaded and stored through shared memory (`device/runs.py`)
    neighbours: bool = False  # whether a thread's columns are neighbours, of two groups at most

    @property
    def constants(self) -> dict[str, RowLaunch]:
        """The constants that the launcher is called with."""
        return {"how": self}

    @property
    def rows_a_block(self) -> int:
        return self.threads // self.per_row * self.at_once

    @property
    def splits(self) -> bool:
        """Whether a block has only some of a row's columns."""
        return self.cluster > 1

    def blocks(self, rows: int, columns: int = 0) -> int:
        """The number of blocks: one more than are full, for the last rows, or for arrays without rows."""
        del columns
        return (rows // self.rows_a_block + 1) * self.cluster


@dataclass(frozen=True)
class MiddleLaunch(RowLaunch):
    """The launch of a kernel that reduces along axes before the innermost ones. A thread's vector has one element of each of `vec`
    neighbouring rows. Neighbouring threads have neighbouring rows, and `per_row` threads share the same rows."""

    # With several, shared memory holds a thread's elements, and registers `vectors` of them at a time
    passes: int = 1
    parts: int = 0  # blocks that loop over all rows, where rows are reduced, too; else each block has its own rows
    each: int = 1  # neighbouring elements that share a result

    @property
    def constants(self) -> dict[str, RowLaunch]:
        """The constants that the launcher is called with. The number of blocks is not among them."""
        return {"how": replace(self, parts=0)}

    @property
    def lanes(self) -> int:
        """The threads of a block that have rows of their own."""
        return self.threads // self.per_row

    @property
    def rows_a_block(self) -> int:
        return self.lanes * self.vec

    def blocks(self, rows: int, columns: int = 0) -> int:
        """The number of blocks."""
        return self.parts or super().blocks(rows, columns)


@dataclass(frozen=True)
class Walk:
    """The settings that a kernel which loops over rows is compiled for."""

    vec: int  # columns of a vector
    ragged: bool  # whether N is not a multiple of vec; of arrays that are one long row, whether their number of elements is not
    threads: int  # of a block
    per_row: int  # threads of a block that share a row
    vectors: int  # of a thread
    cluster: int  # blocks that share a row
    at_once: int  # rows that a thread has: one is reduced while the others are in flight
    exact: bool  # whether every vector of every thread lies inside a row
    whole: bool  # whether a block or a cluster has all columns; else a block has one vector of each of its threads
    only_row: bool = False  # whether registers hold a row as it was read, and nothing that was computed of it
    resident: int = 0  # blocks that an SM has registers for, at least, unless 0
    staged: bool = False  # whether rows are loaded to shared memory, and to registers one by one; else all to registers
    shared_sums: bool = False  # whether the partial results of a thread's columns lie there; else in registers
    paced: bool = False  # whether in long calls blocks wait for blocks that memory serves more slowly
    each: int | None = None  # neighbouring columns that share a result: a vector, or 1; None if each column has its own
    first: RowLaunch | None = None  # the launch of the kernel that writes the rows' statistics, where another one does
    by_place: bool = False  # whether each place has so few rows that neighbouring threads reduce all rows of a place
    crossing: bool = False  # whether a vector may hold columns of two groups, in a row of whole vectors
    by_runs: bool = False  # whether rows are loaded and stored through shared memory, as in RowLaunch
    joins: bool = False  # whether a block's rows, neighbours in memory, are copied as one run; else one by one
    holds_expensive: bool = False  # whether registers hold expensive values; else each reduction recomputes them
    settles: bool = False  # whether a block reduces all rows of a place, and writes the columns' results itself
    meets: int = 0  # blocks of a cluster that share all rows, and whose first one writes the results; 0 where none does

    @property
    def width_of_piece(self) -> int:
        """The number of columns that the threads of a row have in a block."""
        return self.per_row * self.vectors * self.vec

    @property
    def splits(self) -> bool:
        """Whether a block has only some of a row's columns."""
        return self.cluster > 1 or not self.whole


@dataclass(frozen=True)
class WalkLaunch(Walk):
    """The launch of a kernel that loops over rows. The blocks are in `parts` groups. Group p takes the rows p, p +
    parts, p + 2 * parts, ..., one at a time or as many as a block holds, and writes one partial result for each column."""

    parts: int = 1
    long: bool = False  # whether there are enough rows for blocks to keep pace, where they may

    @property
    def constants(self) -> dict[str, Walk]:
        """The constants that the launcher is called with. The number of rows is not among them: kernels do not depend
        on it."""
        return {"how": Walk(**{f.name: getattr(self, f.name) for f in fields(Walk)})}

    def blocks(self, rows: int, columns: int) -> int:
        """The number of blocks that walk down the rows, one at least. Where each place has its own threads (`by_place`), `rows` is the
        number of places, and `columns` that of all their columns."""
        if self.by_place:
            return rows * -(-columns // self.width_of_piece) // (self.threads // self.per_row) + 1
        pieces = self.cluster if self.whole else -(-columns // self.width_of_piece)
        return self.parts * (1 if isinstance(pieces, int) and pieces == 0 else pieces)


# The last bits of a float32 that are the same in all numbers of a narrower type
SPARE_BITS = {"bfloat16": 16, "float16": 13, "float8_e4m3fn": 20, "float8_e5m2": 21}


@dataclass(frozen=True)
class SelectLaunch:
    """The launch of a kernel that selects the largest elements of rows: what a call adds to its plan. Each launch has a
    compiled kernel of its own."""

    vec: int  # elements of a vector
    ragged: bool  # whether N is not a multiple of vec
    threads: int  # of a block
    per_row: int  # threads of a block that share a row: a part of a warp, a warp, or all
    vectors: int  # of a thread, in a piece of the row
    count: int  # elements that are selected
    whole: bool = False  # whether registers are known to hold the row; with `in_turn`, equally many in each thread
    bits: int = 32  # of a position in the row; fewer where 32 bits hold both a key and a position
    in_turn: bool = False  # whether the largest elements are taken one after the other from a row that registers hold

    @property
    def constants(self) -> dict[str, SelectLaunch]:
        """The constants that the launcher is called with."""
        return {"how": self}

    @property
    def held(self) -> int:
        """The number of selected elements that a thread holds."""
        return -(-self.count // self.per_row)

    @property
    def few(self) -> int:
        """The most candidates that are sorted to select the largest of them."""
        return max(WARP, 2 << (self.count - 1).bit_length())

    @property
    def rows_a_block(self) -> int:
        return self.threads // self.per_row

    def blocks(self, rows: int, columns: int = 0) -> int:
        """The number of blocks: one more than are full, for the last rows, or for arrays without rows."""
        del columns
        return rows // self.rows_a_block + 1


@dataclass(frozen=True)
class StepsLaunch(SelectLaunch):
    """The launch of a kernel in steps: each block computes, selects, and computes again, on its own rows."""

    room: int = 0  # elements of a row for which shared memory has room
    steps: tuple[RowLaunch | SelectLaunch, ...] = ()


def slot_bytes(row: int, single: bool) -> int:
    """The bytes of shared memory for a row of `row` bytes, which may begin anywhere in a vector of 16 bytes. With `single`, threads have
    single columns; else the last thread's vector may end one vector later. The number of vectors is odd, so that neighbouring rows
    begin in different banks."""
    return 16 * (-(-row // 16) + (1 if single else 2) | 1)


# The Hopper GEMM
STAGED_ROWS = 16  # rows of accumulators that each warp has in shared memory at once, `piece` columns wide
GAP = 128  # unused bytes of such a piece, some after each block of columns
WARPS = 8  # warps that multiply


def stage_bytes(piece: int) -> int:
    """The bytes of shared memory that a warp needs for pieces of `piece` columns: one piece of `STAGED_ROWS` rows, or two of half as
    many."""
    return STAGED_ROWS * piece * 4 + 2 * GAP


@dataclass(frozen=True)
class Cut:
    """How a main loop cuts a product into tiles."""

    tile_m: int  # rows of a tile
    tile_n: int  # its columns, of both b together where there are two
    tile_k: int

    def columns(self, paired: str) -> int:
        """The number of columns of the outputs in a tile."""
        return self.tile_n // (2 if paired else 1)

    def column_pieces(self, M: int) -> int:
        """The number of tiles in a column of tiles. Each writes one partial result of a reduction over the rows."""
        return -(-M // self.tile_m)


@dataclass(frozen=True)
class Tiles(Cut):
    """How the Hopper main loop cuts a product."""

    stages: int  # tiles of the operands in shared memory
    cluster_m: int = 1  # tiles above each other that share their loads of b
    cluster_n: int = 1  # tiles side by side that share their loads of a
    pingpong: bool = False  # whether each of two warpgroups has a tile of its own, or both share one
    group: int = 8  # rows of clusters in which tiles are taken column by column
    blocks: int = 132  # at most: the number of SMs
    piece: int = 64  # columns of accumulators that pass through shared memory at once
    ahead: int = 1  # pieces by which the epilogue's operands are prefetched
    rolled: bool = False  # whether the epilogue of a piece is a loop, not unrolled
    # Bytes of `STAGED_ROWS` rows of operands that a warp reads ahead into shared memory; 0: into registers
    staged: int = 0
    splits: int = 1  # blocks of a cluster that share a tile, each with a part of K

    @property
    def multicast(self) -> int:
        """The number of blocks that load for each other."""
        return self.cluster_m * self.cluster_n

    @property
    def cluster(self) -> int:
        """The number of blocks in a cluster."""
        return self.multicast * self.splits

    @property
    def accumulators(self) -> int:
        """The number of a thread's registers that hold accumulators."""
        return self.tile_m * self.tile_n // (128 if self.pingpong else 256)

    @property
    def registers(self) -> tuple[int, int]:
        """The registers of a thread that loads and of a thread that multiplies. Together they take all registers of an SM."""
        return (24, 240) if self.accumulators >= 160 else (40, 232)

    def shared(self, a: int, b: int) -> int:
        """The bytes of shared memory, for operands whose elements have `a` and `b` bytes."""
        stage = (self.tile_m * a + self.tile_n * b) * self.tile_k + 16
        operands = WARPS * self.ahead * (self.staged + 2 * 8) if self.staged else 16 + 8  # and barriers; one of none
        return self.stages * stage + WARPS * stage_bytes(self.piece) + operands

    def row_pieces(self, N: int, paired: str = "") -> int:
        """The number of tiles in a row of tiles, or of blocks that share them. Each writes one partial result of a
        reduction along a row."""
        return -(-N // (self.columns(paired) // self.splits))


@dataclass(frozen=True)
class AmpereTiles(Cut):
    """The tiles of the main loop for all other architectures: powers of two, except the number of stages."""

    warps_m: int
    warps_n: int
    stages: int  # tiles of the operands in shared memory
    group: int = 8  # tiles above each other that run one after another, and find b in the L2 cache
    blocks: int = 1  # resident blocks wanted on an SM
    precise: bool = False  # whether a float32 is multiplied as the sum of two tf32
    warps_k: int = 1  # groups of warps_m x warps_n warps that share a tile: each has every warps_k-th piece of K

    @property
    def warps(self) -> int:
        """The warps of a group, which together have a whole tile."""
        return self.warps_m * self.warps_n

    @property
    def sharing(self) -> int:
        """The threads of a group."""
        return WARP * self.warps

    @property
    def threads(self) -> int:
        """The threads of a block."""
        return self.sharing * self.warps_k

    def row_pieces(self, N: int, paired: str = "") -> int:
        """The number of warps in a row of tiles. Each writes one partial result of a reduction along a row."""
        return -(-N // self.columns(paired)) * self.warps_n


LEAST_COLUMNS = 256  # rows of k at least, for a block of attention that shares a row of q with others


@dataclass(frozen=True)
class AttentionLaunch:
    """The settings that the kernel of attention is compiled for."""

    tile_m: int  # rows of q that a block has
    tile_n: int  # rows of k and v of a tile
    d: int  # the sizes of rows of q and k, and of v
    e: int
    warps: int
    stages: int  # tiles of k and of v in shared memory
    processors: int = 0  # SMs, each with one block of Hopper's main loop; 0 for the main loop of all architectures
    splits: int = 1  # blocks that share a row's columns
    # Whether these share only the columns from the first to the last tile in which the mask holds somewhere
    bounded: bool = False
    packed: bool = False  # whether a block has rows of all heads that share k and v
    page: int = 0  # rows of a page, where k and v come in pages; else 0
    joint: bool = False  # whether one kernel computes the gradients of q, k and v
    separate: bool = False  # whether one consumer computes the gradient of k, and the other that of v
    converts: str = ""  # the 16-bit type that elements of a byte are converted to; "" where there are none
    converted: tuple[str, ...] = ()  # the arrays of bytes that are converted before the kernel
    listed: int = 0  # arrays of positions in the mask, on Hopper: a first kernel lists their bounds over blocks
    # Elements of a row of an array that are accessed at once, on Hopper: their number divides that of the columns
    neighbours: int = 1
    # Whether a tile's exponentials are relative to the largest scores of the tiles before it, on Hopper: they need not wait for its own
    early: bool = False
    tops: bool = True  # whether results depend on a row's largest score; else an earlier one will do for early weights

    @property
    def spans(self) -> tuple[int, int]:
        """The rows and the columns of the blocks that are listed: those of a tile, or a divisor of two kernels' tiles."""
        columns = HELD if self.joint else self.tile_n if self.tile_m == HELD else math.gcd(self.held, self.tile_n)
        return math.gcd(HELD, self.tile_m), columns

    @property
    def held(self) -> int:
        """The rows of k and v that stay in the kernel of their gradients, on Hopper."""
        return HELD // 2 if self.separate else HELD

    @property
    def vec(self) -> int:
        """The elements of a vector in memory."""
        return 8

    @property
    def ragged(self) -> bool:
        return False

    def blocks(self, rows: int, columns: int = 0) -> int:
        """The number of blocks for so many rows of q."""
        del columns
        found = -(-rows // self.tile_m)
        return min(found, self.processors) if self.processors else found

    @property
    def constants(self) -> dict[str, AttentionLaunch]:
        """The constants that the launcher is called with."""
        return {"how": self}

    @property
    def threads(self) -> int:
        """The threads of a block."""
        return WARP * self.warps


@dataclass(frozen=True)
class Loading:
    """How a product's kernel converts the bytes of b to 16 bits. A byte is one element, or two numbers `(bits ^ flip) - offset` of 4 bits,
    the first in its lower half. Each `group` of elements along K is multiplied by a scale."""

    bits: int = 8
    flip: int = 0
    offset: int = 0
    group: int = 0  # 0 without scales


@dataclass(frozen=True)
class Contraction:
    """The settings that the kernel of a contraction is compiled for."""

    vec: int  # elements of the epilogue's vectors
    ragged: bool  # whether N is not a multiple of vec
    tiles: Tiles | AmpereTiles  # they name the main loop
    # Columns of a segment of the output's rows, where the epilogue needs whole segments; else 0
    segment: int = 0


# Evenly spaced elements are the sample from which the centre of a variance is computed
SPACING = 32  # the largest distance between them: a compromise of accuracy and bytes
LEAST_SAMPLED = 2**20  # elements of an array: a smaller one is in a cache when it is read again
LEAST_SPACING = 8  # the least distance that divides a size: each device of a sharded axis has a part of the sample


def spacing(size: object) -> int:
    """The distance along an axis between elements of the sample: the largest one that divides the size, unless that is small; 1 where
    the size is unknown."""
    if not isinstance(size, int) or size <= 0:
        return 1
    return next((s for s in range(SPACING, LEAST_SPACING - 1, -1) if size % s == 0), min(SPACING, size))


@dataclass(frozen=True)
class SumLaunch(Launch):
    """The launch of a sum by index. A thread's columns are whole vectors, and rows are read in the order of their keys. Chunks of
    neighbouring rows with one key are summed first, then chunks of these sums, `levels` times."""

    ranks: bool = False  # whether a kernel finds the order of the rows; else XLA has sorted them
    levels: int = 0
    chunk: int = 16  # rows of a chunk
    chunk_vec: int = 1  # columns of a thread that sums a chunk
    chunk_across: int = 1  # threads of such a block along the columns
    steps: int = 4  # vectors of a thread, one after the other
    at_once: int = 8  # rows that a thread has in flight

    @property
    def of_chunks(self) -> SumLaunch:
        """The launch of the kernels that sum chunks."""
        return replace(self, vec=self.chunk_vec, across=self.chunk_across)


@dataclass(frozen=True)
class TallyLaunch(Launch):
    """The launch of a sum by few keys. Each warp has tables of sums in shared memory. Lanes that share a table add in turn."""

    keys: int = 1
    columns: int = 1  # sums of a key
    alike: int = 1  # neighbouring keys that share a row of values
    clamp: bool = False  # whether a key out of range counts as the nearest one; else it adds to no row
    copies: int = WARP  # tables of a warp
    parts: int = 1  # blocks that share the rows, whose tables another kernel adds up
    at_once: int = 4  # groups of `vec` rows that a thread has in flight
