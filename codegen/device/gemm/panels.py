"""Operands of mma.sync in shared memory: where their bytes are, and how a lane reads its fragments.

A tile consists of panels 128 bytes wide (or as wide as the tile), row after row. Their 16-byte chunks are permuted by row, so that
rows that ldmatrix or a warp's loads read at once have no bank conflicts.
"""

from __future__ import annotations

from dataclasses import dataclass

from cutlass import Int32, Uint32

from codegen.device.gemm import tensorcore
from codegen.device.gemm.tensorcore import STEP


@dataclass(frozen=True)
class Panels:
    """An operand's tile in shared memory: `rows` of `width` bytes, which are contiguous in global memory too."""

    rows: int
    width: int
    kind: str  # how it is read: "k" (along K), or across it, as "words", "bytes" or pairs of bytes, "halves"

    @property
    def panel(self) -> int:
        return min(self.width, 128)

    @property
    def size(self) -> int:
        return self.rows * self.width

    def swizzle(self, row: Int32) -> Int32:
        """The number with which the bytes' places in a row's panel are XORed."""
        if self.kind == "words":  # rows 0..3 are read together, 32 bytes of each
            bits = row << 5
        elif self.kind == "bytes":  # rows 0, 1, 4, 5, 8, 9, 12, 13
            bits = ((row & 1) | ((row >> 1) & 6)) << 4
        else:  # eight consecutive rows
            bits = (row // (128 // self.panel)) << 4
        return bits & (96 if self.kind == "words" else 112) & (self.panel - 1)

    def place(self, row: Int32, byte: Int32) -> Int32:
        """The place of a byte of a row."""
        return (byte // self.panel * self.rows + row) * self.panel + ((byte % self.panel) ^ self.swizzle(row))

    def along(self, byte: int) -> tuple[int, int]:
        """The number to XOR with a place, and the number to add then, to advance `byte` bytes along the row from a place where
        these bits are zero."""
        return byte % self.panel, byte // self.panel * self.rows * self.panel


def lane_of_a(lane: Int32, row: Int32, panels: Panels, each: int = 1) -> Int32:
    """The place of the first row whose address a lane gives ldmatrix: matrices of rows 0..7 and 8..15, then further along K. With
    several steps for `each` of b, the place of the elements that it loads itself (`narrow`)."""
    if each > 1:
        return panels.place(row + lane // 4, lane % 4 * (4 * each))
    return panels.place(row + lane % 16, lane // 16 * 16)


def lane_of_b(lane: Int32, column: Int32, panels: Panels, size: int) -> Int32:
    """The same for b; for words, the place of the lane's first word."""
    if panels.kind == "k":  # matrices of columns 0..7, then further along K, then of columns 8..15
        return panels.place(column + lane % 8 + lane // 16 * 8, lane // 8 % 2 * 16)
    if panels.kind == "halves":  # matrices of k 0..7 and 8..15, then of columns 8..15
        return panels.place(lane % 16, (column + lane // 16 * 8) * size)
    if panels.kind == "bytes":  # of k 0, 1, 4, 5, ..., 13 and 2, 3, 6, 7, ..., 15, then of those 16 further on
        k = lane % 2 + lane % 8 // 2 * 4 + lane // 8 % 2 * 2 + lane // 16 * 16
        return panels.place(k, column * size)
    return panels.place(lane % 4, (column + lane // 4) * size)


def pair_of_b(base: Int32, own: Int32, step: int, pair: int, panels: Panels) -> list[Uint32]:
    """The words of b for 16 columns: two blocks of 8 neighbours, or, from bytes across K, the even and the odd columns."""
    if panels.kind == "k":
        return tensorcore.ldmatrix(base + ((own ^ (step * STEP)) + pair * 16 * panels.panel))
    if panels.kind == "words":
        words = []
        for block in (2 * pair, 2 * pair + 1):
            flipped, added = panels.along(block * 32)
            for k in (8 * step, 8 * step + 4):
                words.append(tensorcore.load_word(base + ((own ^ flipped) + (added + k * panels.panel))))
        return words
    flipped, added = panels.along(pair * (32 if panels.kind == "halves" else 16))
    k = step * (16 if panels.kind == "halves" else 32)
    words = tensorcore.ldmatrix(base + ((own ^ flipped) + (added + k * panels.panel)), transposed=True)
    if panels.kind == "halves":
        return words
    # A word has two rows of K with two columns each, but a fragment's word needs four rows of one column
    return [
        tensorcore.pick_bytes(words[2 * w], words[2 * w + 1], places) for places in (0x6420, 0x7531) for w in (0, 1)
    ]
