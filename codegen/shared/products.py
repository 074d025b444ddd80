"""The tiles of matrix products, and what else their kernels are compiled for."""

from __future__ import annotations

from dataclasses import dataclass

from codegen.shared.numbers import WARP

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
