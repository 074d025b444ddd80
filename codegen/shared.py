"""What plans and device code agree on: sizes of memory that both count with, and the text of a GEMM's main loop."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from codegen.parsing import parse_expression

COUNTER = 4  # words of memory by which blocks keep pace: the first counts; so many are copied past the nearest cache

# The Hopper GEMM
STAGED_ROWS = 16  # of accumulators that each warp keeps in shared memory at once, `piece` columns wide
GAP = 128  # bytes of a piece of them that nothing uses, part of it after each block of columns
WARPS = 8  # that multiply


def stage_bytes(piece: int) -> int:
    """Shared memory that a warp needs for pieces of so many columns: one of `STAGED_ROWS` rows, or two of half as many."""
    return STAGED_ROWS * piece * 4 + 2 * GAP


def read_config(config: str) -> tuple[str, dict[str, Any]]:
    """The main loop, and its options: "sm_80(tile_m=128, ...)"."""
    call = parse_expression(config)
    assert isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
    return call.func.id, {k.arg: ast.literal_eval(k.value) for k in call.keywords if k.arg}


def write_config(name: str, options: Mapping[str, int | bool]) -> str:
    return f"{name}({', '.join(f'{key}={value}' for key, value in options.items())})"


@dataclass(frozen=True)
class Tiles:
    """How the Hopper main loop cuts a product."""

    tile_m: int  # rows of a tile
    tile_n: int  # its columns, of both b together where there are two
    tile_k: int
    stages: int  # tiles of the operands in shared memory
    cluster_m: int = 1  # tiles above each other that share what they read of b
    cluster_n: int = 1  # tiles side by side that share what they read of a
    pingpong: bool = False  # whether each of two warpgroups has a tile of its own, or both share one
    group: int = 8  # rows of clusters that are walked column by column
    blocks: int = 132  # at most: the multiprocessors
    piece: int = 64  # columns of accumulators that pass through shared memory at once
    ahead: int = 1  # pieces by which the epilogue's operands are read before they are needed
    rolled: bool = False  # whether a loop runs the epilogue of a piece
    staged: int = (
        0  # bytes of `STAGED_ROWS` rows of operands that a warp reads ahead into shared memory; 0: into registers
    )
    splits: int = 1  # blocks of a cluster that share a tile, each with a part of K

    @property
    def multicast(self) -> int:
        """Blocks that load for each other."""
        return self.cluster_m * self.cluster_n

    @property
    def cluster(self) -> int:
        """Blocks in a cluster."""
        return self.multicast * self.splits

    @property
    def accumulators(self) -> int:
        """Registers of a thread that hold accumulators."""
        return self.tile_m * self.tile_n // (128 if self.pingpong else 256)

    @property
    def registers(self) -> tuple[int, int]:
        """A thread's, where it loads and where it multiplies: together what a multiprocessor has."""
        return (24, 240) if self.accumulators >= 160 else (40, 232)

    def shared(self, a: int, b: int) -> int:
        """Bytes of shared memory for operands whose elements have so many bytes."""
        stage = (self.tile_m * a + self.tile_n * b) * self.tile_k + 16
        operands = WARPS * self.ahead * (self.staged + 2 * 8) if self.staged else 16 + 8  # and barriers; one of none
        return self.stages * stage + WARPS * stage_bytes(self.piece) + operands

    def row_pieces(self, N: int, paired: str = "") -> int:
        """Tiles side by side, or blocks that share them, each of which writes one partial result of a fold over a row."""
        return -(-N // (self.tile_n // (2 if paired else 1) // self.splits))

    def column_pieces(self, M: int) -> int:
        """Tiles above each other, each of which writes one partial result of a fold over a column."""
        return -(-M // self.tile_m)
