"""Launches of kernels that select elements of rows."""

from __future__ import annotations

from dataclasses import dataclass

from codegen.shared.numbers import WARP
from codegen.shared.rows import RowLaunch

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
