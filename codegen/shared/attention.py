"""The launches of attention."""

from __future__ import annotations

import math
from dataclasses import dataclass

from codegen.shared.numbers import WARP

HELD = 128  # rows of attention's tiles that stay, on Hopper: 64 for each of two consumers
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
