"""A GEMM epilogue's view of its vector: where it lies in the output, with what it reads and writes.

Nothing is read or written outside the output. Loads and stores have no branches (`vectors`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Numeric

from codegen.device import access, vectors
from codegen.device import functions as device
from codegen.device.functions import Vector as Values


@dataclass(frozen=True)
class Vector:
    """`vec` neighbouring columns of one of the output's rows; of what all rows share, the columns alone."""

    row: Int32
    column: Int32  # of its first element
    batch: Int32
    valid: Int32  # how many of its elements there are; none where it lies outside the output
    vec: int
    ragged: bool  # whether the number of columns is not a multiple of vec
    read: Callable[..., cute.Tensor] = vectors.load  # how vectors are read: from global memory, or prefetched ones

    # From memory. `default` stands for an input that is left out.

    def load(
        self,
        src: cute.Tensor | None,
        place: cute.Coord,
        parts: int = 0,
        default: float | None = None,
        dtype: type[Numeric] = Float32,
    ) -> cute.Tensor:
        """Registers with the elements of a row from `place` on: (vec,), or (parts, vec) of an array whose parts lie next to each
        other."""
        shape = (self.vec,) if parts == 0 else (parts, self.vec)
        if src is None:
            return access.registers(src, shape, default, dtype)
        count = max(parts, 1)
        found = self.read(src, _offset(src, place), _times(count, self.valid), count * self.vec, self.ragged)
        return found if parts == 0 else cute.make_tensor(found.iterator, cute.make_layout(shape))

    def load_one(
        self,
        src: cute.Tensor | None,
        place: cute.Coord,
        default: float | None = None,
        dtype: type[Numeric] = Float32,
    ) -> cute.Tensor:
        """Registers (vec,) with one element for the whole vector."""
        found = access.registers(src, (self.vec,), default, dtype)
        if src is not None:
            found.fill(src[place])
        return found

    def gather(
        self,
        src: cute.Tensor | None,
        place: Callable[[Int32], cute.Coord],
        default: float | None = None,
        dtype: type[Numeric] = Float32,
    ) -> cute.Tensor:
        """Registers (vec,) with the elements at the places of the vector's columns."""
        found = access.registers(src, (self.vec,), default, dtype)
        if src is not None:
            for i in range(self.vec):
                _copy_one(src, place, self.column + i, found, i, i < self.valid)
        return found

    def count_up(self, first: Int32) -> cute.Tensor:
        """Registers (vec,) with numbers that begin at `first`."""
        found = cute.make_rmem_tensor((self.vec,), Int32)
        device.count_up(found, first)
        return found

    def fill(self, number: Int32) -> cute.Tensor:
        """Registers (vec,) with one number."""
        found = cute.make_rmem_tensor((self.vec,), Int32)
        found.fill(number)
        return found

    # To memory

    def store(self, values: Values | tuple[Values, ...], dst: cute.Tensor, place: cute.Coord) -> None:
        """Values to a row from `place` on; one for each part of an array whose parts lie next to each other."""
        parts = len(values) if isinstance(values, tuple) else 1
        registers = access.registers_of(values, dst, self.vec)
        flat = cute.make_tensor(registers.iterator, cute.make_layout((parts * self.vec,)))
        vectors.store(flat, dst, _offset(dst, place), _times(parts, self.valid), self.ragged)

    def scatter(self, values: Values, dst: cute.Tensor, place: Callable[[Int32], cute.Coord]) -> None:
        """Values to the places of the vector's columns."""
        registers = access.registers_of(values, dst, self.vec)
        for i in range(self.vec):
            _store_one(registers, i, dst, place(self.column + i), i < self.valid)


def _offset(tensor: cute.Tensor, place: cute.Coord) -> Int64:
    return cute.crd2idx(place, tensor.layout)


def _times(parts: int, count: Int32) -> Int32:
    return count if parts == 1 else parts * count


@cute.jit
def _copy_one(
    src: cute.Tensor,
    place: cutlass.Constexpr[Callable[[Int32], cute.Coord]],
    column: cutlass.Int32,
    dst: cute.Tensor,
    i: cutlass.Constexpr[int],
    there: cutlass.Boolean,
) -> None:
    """Copy an element, if there is one. Only then is its place read, which an array of indices may give."""
    if there:
        dst[i] = src[place(column)]


@cute.jit
def _store_one(
    src: cute.Tensor, i: cutlass.Constexpr[int], dst: cute.Tensor, place: tuple, there: cutlass.Boolean
) -> None:
    if there:
        dst[place] = src[i]
