"""The lanes of a batch as memory, barriers and instructions see them: registers, places, and which lanes are active."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from codegen.interpret.memory.arrays import Array
from codegen.interpret.ptx import Instruction, Operand, Program

Dim = tuple[int, int, int]
WARPGROUP = 128  # threads
MOST_SHARED = 227 << 10  # bytes of shared memory of a block, on sm_90 and sm_100; other architectures have fewer


@dataclass(frozen=True)
class LaunchConfig:
    """A launch, as the compiled launcher requests it."""

    kernel: str
    grid: Dim
    block: Dim
    shared: int  # bytes of dynamic shared memory
    params: tuple[bytes, ...]
    cluster: Dim = (1, 1, 1)


class Lanes(Protocol):
    """A batch of blocks whose threads step together. Values are arrays over the active lanes, or of length one where all
    lanes agree."""

    program: Program
    launch: LaunchConfig
    params: dict[str, bytes]
    constants: list[Array]  # the module's global variables
    lanes: int
    per_block: int  # threads
    cluster_size: int  # blocks
    block_of: np.ndarray  # each lane's block in this batch
    thread: np.ndarray  # each lane's place among all threads of the launch
    at: np.ndarray  # the basic block that each lane is at, or what it waits for
    idle: np.ndarray  # lanes that wait from the end of this basic block on
    pausing: bool  # whether some of those that wait go on once no others can
    select: np.ndarray | None  # the active lanes; None: all
    current: Instruction

    def width(self) -> int: ...
    def active(self) -> np.ndarray: ...
    def predicate(self, instruction: Instruction) -> np.ndarray: ...
    def read(self, operand: Operand, kind: str) -> np.ndarray: ...
    def number(self, operand: Operand, kind: str) -> np.ndarray: ...
    def write(self, target: Operand, value: np.ndarray) -> None: ...
    def repack(self, target: Operand, source: Operand, kind: str) -> None: ...
    def instruction_at(self, lane: int) -> Instruction | None: ...
    def where(self, lane: int) -> str: ...
    def aside(self, lanes: np.ndarray) -> None: ...
    def wake(self) -> None: ...


def inside(m: Lanes, lanes: np.ndarray) -> np.ndarray:
    """The places of lanes in their warps."""
    return lanes % m.per_block % 32


def ballot(m: Lanes, lanes: np.ndarray, holds: np.ndarray | None = None) -> np.ndarray:
    """For each of the lanes, a mask of these lanes in its warp (for which a predicate holds)."""
    place = inside(m, lanes)
    bits = np.zeros(m.lanes, np.uint32)
    mine = np.uint32(1) << place.astype(np.uint32)
    np.bitwise_or.at(bits, lanes - place, mine if holds is None else np.where(holds, mine, np.uint32(0)))
    return bits[lanes - place]


def absent(m: Lanes, lanes: np.ndarray, named: np.ndarray, there: np.ndarray) -> np.ndarray:
    """For each of the lanes, a mask of its warp's lanes that are named, exist and are not there."""
    left = np.minimum(m.per_block - (lanes - inside(m, lanes)) % m.per_block, 32)
    return named & ((np.int64(1) << left) - 1).astype(np.uint32) & ~there


def highest(bits: int) -> int:
    """The place of the highest bit."""
    return int(bits).bit_length() - 1
