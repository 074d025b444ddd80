"""Counts of a launch: bytes and sectors of each operand, instructions, divergence."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from codegen.interpret.memory.arrays import Array


@dataclass
class Traffic:
    """An operand's memory traffic. `touched` counts each byte once. A warp's request takes at least its bytes divided by 32
    sectors."""

    name: str
    size: int
    loaded: int = 0
    stored: int = 0
    touched: int = 0
    requests: int = 0
    sectors: int = 0

    @property
    def sectors_per_request(self) -> float:
        return self.sectors / self.requests if self.requests else 0.0

    @property
    def coalescing(self) -> float:
        """The fewest sectors that contain the requested bytes, over the touched sectors: 1 where accesses coalesce."""
        return min(1.0, (self.loaded + self.stored) / 32 / self.sectors) if self.sectors else 1.0


@dataclass
class Report:
    """The counts of one launch."""

    kernel: str
    blocks: int = 0
    threads: int = 0
    instructions: int = 0  # executed by threads
    slots: int = 0  # 32 times the instructions that warps issued
    approximate: int = 0  # instructions in the kernel's text whose results PTX defines only within a bound
    operands: dict[str, Traffic] = field(default_factory=dict)

    def start(self, blocks: int, threads: int) -> None:
        self.blocks, self.threads = blocks, threads

    def issue(self, instructions: int, lanes: int, warps: int) -> None:
        """Count instructions that some lanes of some warps execute."""
        self.instructions += instructions * lanes
        self.slots += instructions * 32 * warps

    def finish(self, arrays: list[Array]) -> None:
        """Take the arrays' counts, at the end of the launch."""
        for array in arrays:
            load, store = array.requests["ld"], array.requests["st"]
            assert array.read is not None
            touched = array.read if array.initialised is None else array.read | array.initialised
            self.operands[array.name] = Traffic(
                array.name,
                array.size,
                load[0],
                store[0],
                int(np.count_nonzero(touched)),
                load[1] + store[1],
                load[2] + store[2],
            )

    @property
    def instructions_per_thread(self) -> float:
        return self.instructions / max(1, self.blocks * self.threads)

    @property
    def divergence(self) -> float:
        """The fraction of issued lanes that were idle."""
        return 1 - self.instructions / self.slots if self.slots else 0.0

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        return {
            "kernel": self.kernel, "blocks": self.blocks, "threads": self.threads,
            "instructions_per_thread": round(self.instructions_per_thread, 2), "divergence": round(self.divergence, 4),
            "operands": {
                t.name: {
                    "bytes": t.size, "loaded": t.loaded, "stored": t.stored, "touched": t.touched,
                    "sectors_per_request": round(t.sectors_per_request, 3), "coalescing": round(t.coalescing, 4),
                }
                for t in self.operands.values()
            },
        }  # fmt: skip
