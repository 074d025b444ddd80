"""Operands of an epilogue on their way through shared memory: cp.async brings them while the products before are handled,
and no register holds them meanwhile. Each lane copies what it will itself read, so nobody waits for another.

An epilogue reads vectors through a function like `vectors.load`: of a `Slots`, `copy` starts a vector on its way and `load`
is that vector, once `cp.async.wait_group` says that it is there. Both must be asked for the same vectors in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, Uint32

from codegen.runtime import tensorcore, vectors
from codegen.runtime.device import WARP


@dataclass
class Slots:
    """Where a lane's vectors lie for one step of `steps`: those of all lanes side by side."""

    start: Int32  # an address in shared memory, a multiple of 16: of all that one piece needs
    size: int  # bytes from there on
    step: Int32 | int
    steps: int
    lane: Int32
    used: int = 0

    def copy(self, src: cute.Tensor, place: Int64, valid: cutlass.Int32, vec: int, ragged: bool) -> cute.Tensor:
        """Start `vec` elements on their way, zeros where none are `valid`. What is returned holds nothing yet."""
        assert not ragged, "cp.async copies whole words"
        address = (src.iterator + place).toint()
        for first, count in vectors.accesses(vec * src.element_type.width // 32):
            there = cutlass.select_(valid > 0, Int32(4 * count), Int32(0))
            tensorcore.copy_async(self._place(4 * count), address + 4 * first, 4 * count, there)
        return cute.make_rmem_tensor((vec,), src.element_type)

    def load(self, src: cute.Tensor, place: Int64, valid: cutlass.Int32, vec: int, ragged: bool) -> cute.Tensor:
        """The (vec,) registers of what `copy` brought."""
        del place, valid, ragged
        dst = cute.make_rmem_tensor((vec,), src.element_type)
        words = cute.recast_tensor(dst, Uint32)
        for first, count in vectors.accesses(cute.size(words)):
            for i, word in enumerate(tensorcore.load_words(self._place(4 * count), count)):
                words[first + i] = word
        return dst

    def _place(self, width: int) -> Int32:
        """Of the next `width` bytes of this lane."""
        at = self.used
        self.used += self.steps * WARP * width
        assert self.used <= self.size, f"the operands of a piece need more than {self.size} bytes"
        return self.start + at + (self.step * WARP + self.lane) * width
