"""A thread's view of neighbouring rows: what it reads and writes of them, and their statistics.

A vector has the same element of `how.vec` neighbouring rows. The threads that share these rows have every `how.per_row`-th element.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64, Numeric, Uint32

from codegen.device import access, reduce, vectors
from codegen.device.functions import Vector, vector
from codegen.device.math.division import divide_by_count
from codegen.device.math.opaque import unseen
from codegen.device.middle.meeting import over_lanes, over_threads, parts_of
from codegen.shared import MiddleLaunch


def grid(how: MiddleLaunch, blocks: Int32, stream: Any) -> dict[str, Any]:
    """The grid and block of a launch of so many blocks."""
    return {
        "grid": (blocks, 1, 1), "block": (how.threads, 1, 1), "stream": stream,
        "min_blocks_per_mp": how.resident, "preferred_smem_carveout": -1,
    }  # fmt: skip


def chunks(how: MiddleLaunch, count: Int32) -> Int32:
    """The number of chunks of rows, each as many as a block has at a time."""
    return (count + how.rows_a_block - 1) // how.rows_a_block


def begin(how: MiddleLaunch) -> None:
    """Where a block begins a chunk: what it has reduced of the last one is read."""
    if parts_of(how) > 1:
        cute.arch.sync_threads()


def rows(how: MiddleLaunch, count: Int32, length: Int32, chunk: Int32) -> Rows:
    """This thread's view of its rows in a chunk, of `count` with `length` elements each."""
    tidx, _, _ = cute.arch.thread_idx()
    index = (chunk * how.lanes + tidx % how.lanes) * how.vec
    there = index < count
    first = unseen(tidx // how.lanes)  # else places would be held from chunk to chunk
    return Rows(how, index, there, first, length, cutlass.select_(there, length, 0))


@dataclass(frozen=True)
class Rows:
    """A thread's view of a vector of rows, or of an element of each of them."""

    how: MiddleLaunch
    index: Int32  # of the first row; all are there, or none
    there: Boolean
    first: Int32  # this thread's first element
    length: Int32  # the elements of a row
    known: Int32  # the same; 0 past the last row, of which nothing is accessed
    # The number of the element among this thread's in a pass; None: the view is of the rows themselves
    v: int | None = None
    number: Int32 | int = 0  # among all of them
    c: Int32 | None = None  # the element

    def element(self, p: Int32, v: int) -> Rows:
        """The v-th of this thread's elements in pass `p`."""
        number = p * self.how.vectors + v if self.how.passes > 1 else v
        return replace(self, v=v, number=number, c=self.first + number * self.how.per_row)

    @property
    def present(self) -> Boolean:
        """Whether the rows, and this element of them, are there."""
        return self.there if self.c is None else self.c < self.known

    def load(
        self, src: cute.Tensor | None, place: cute.Coord, dst: cute.Tensor, memory: cute.Tensor | None = None
    ) -> None:
        """Load a vector, or a single value, from `place` on into registers, or start its copy to this thread's part of shared memory.
        Nothing is read of an input that is left out: `dst` holds the default."""
        if src is not None and memory is not None:
            _fetch(src, cute.crd2idx(place, src.layout), self.present, memory[None, self.number])
        elif src is not None:
            _load(src, cute.crd2idx(place, src.layout), self.present, dst)

    def take(self, dst: cute.Tensor, memory: cute.Tensor | None) -> None:
        """Copy to registers what `load` has copied to shared memory. If it has copied nothing, they have it already."""
        if memory is not None:
            _take(memory[None, self.number], self.present, dst)

    def store(self, values: Vector, dst: cute.Tensor, place: cute.Coord) -> None:
        """Store a vector."""
        held = access.registers_of(values, dst, self.how.vec)
        _store(held, dst, cute.crd2idx(place, dst.layout), self.present)

    def writes(self) -> Boolean:
        """Whether this thread writes the rows' own values."""
        return self.there & (self.first == 0)

    def inside(self) -> reduce.Inside:
        """Whether this element is inside the rows, for all rows of the vector; None where it certainly is."""
        how = self.how
        certain = how.exact or (how.passes == 1 and self.v is not None and self.v < how.vectors - 1)
        return None if certain else cute.full((how.vec,), self.c < self.length, Boolean)

    def forget(self, *arrays: tuple[cute.Tensor | None, cute.Tensor]) -> Rows:
        """Return the view. If registers are to hold nothing but the row (`only_row`), hide from the compiler where the
        contents of these arrays' registers come from. Then it keeps neither values computed from them nor the places of
        elements."""
        if not self.how.only_row:
            return self
        for tensor, registers in arrays:
            if tensor is not None and self.how.passes == 1:
                access.forget(registers)
        return replace(self, first=unseen(self.first))

    def reduce(self, running: list[cute.Tensor], ops: tuple[str, ...], buffers: list[cute.Tensor]) -> list[Vector]:
        """The rows' statistics, from the running values of all threads that share the rows."""
        found = over_threads(running, ops, buffers, self.how)
        return [self._mean(x) if op == "mean" else x for op, x in zip(ops, found, strict=True)]

    def accumulate(self, running: list[cute.Tensor], ops: tuple[str, ...], values: tuple[Vector, ...]) -> None:
        """Reduce the values of all rows of this vector, if they are there, into the running values of this element: (1, elements)."""
        for held, op, value in zip(running, ops, values, strict=True):
            own = reduce.accumulator(self.how.vec, op, held.element_type)
            reduce.accumulate([own], (op,), value, cute.full((self.how.vec,), self.there, Boolean))
            before = cute.full((1,), held[0, self.number], held.element_type)
            held[0, self.number] = reduce.combine(op, before, reduce.over_vector(own, op))[0]

    def _mean(self, total: Vector) -> Vector:
        held = cute.make_rmem_tensor(total.shape, total.dtype)
        for i in range(cute.size(total.shape)):
            held[i] = divide_by_count(total[i], total.dtype(self.length))
        return held.load()


def store_parts(
    how: MiddleLaunch, running: list[cute.Tensor], ops: tuple[str, ...], parts: list[cute.Tensor], part: Int32, length: Int32
) -> None:  # fmt: skip
    """Reduce the running values of the threads that have the same elements, lanes of a warp, and write a block's part of each."""
    for held, op, whole in zip(running, ops, parts, strict=True):
        for v in range(how.passes * how.vectors):
            value = over_lanes(cute.full((1,), held[0, v], held.element_type), op, 1, how.lanes)
            _store_part(value[0], whole, part, v, length, how)


@cute.jit
def _store_part(
    value: Numeric,
    whole: cute.Tensor,
    part: cutlass.Int32,
    v: cutlass.Constexpr[int],
    length: cutlass.Int32,
    how: cutlass.Constexpr[MiddleLaunch],
) -> None:
    tidx, _, _ = cute.arch.thread_idx()
    element = tidx // how.lanes + v * how.per_row
    if (tidx % how.lanes == 0) & (element < length):
        whole[part, element] = value


def _load(src: cute.Tensor, place: Int64, there: Boolean, dst: cute.Tensor) -> None:
    count, bits = cute.size(dst), dst.element_type.width
    # A layout of one element loses its stride: a float64 would have one word
    if count * bits % 32 or count < bits // 32:
        _load_narrow(src, place, there, dst)
        return
    found = vectors.load(src, place, cutlass.select_(there, Int32(1), Int32(0)), count, False)
    words, own = cute.recast_tensor(found, Uint32), cute.recast_tensor(dst, Uint32)
    for i in range(cute.size(words)):
        own[i] = words[i]


def staging(how: MiddleLaunch, tensor: cute.Tensor | None, registers: cute.Tensor) -> cute.Tensor | None:
    """A thread's part of shared memory for its elements of a tensor: (rows of a vector or 1, elements). None if registers hold them."""
    if how.passes == 1 or tensor is None:
        return None
    whole = access.staging(tensor, cute.size(registers, mode=[0]), how.passes * how.vectors, 1, how.threads)
    assert whole is not None
    return whole[None, None, 0]


def arrive(how: MiddleLaunch) -> None:
    """Wait for this thread's copies to shared memory."""
    if how.passes > 1:
        cute.arch.cp_async_commit_group()
        cute.arch.cp_async_wait_group(0)


@cute.jit
def _fetch(src: cute.Tensor, place: Int64, there: Boolean, dst: cute.Tensor) -> None:
    count = cute.size(dst)
    bits = count * src.element_type.width
    if cutlass.const_expr(bits not in (32, 64, 128)):
        held = cute.make_rmem_tensor((count,), src.element_type)
        _load(src, place, there, held)
        cute.autovec_copy(held, dst)
    else:
        mode = cute.nvgpu.cpasync.LoadCacheMode.GLOBAL if bits == 128 else cute.nvgpu.cpasync.LoadCacheMode.ALWAYS
        atom = cute.make_copy_atom(cute.nvgpu.cpasync.CopyG2SOp(mode), src.element_type, num_bits_per_copy=bits)
        if there:
            cute.copy(atom, vector(src, place, count), dst)


@cute.jit
def _take(src: cute.Tensor, there: Boolean, dst: cute.Tensor) -> None:
    dst.fill(0)
    if there:
        cute.autovec_copy(src, dst)


@cute.jit
def _load_narrow(src: cute.Tensor, place: Int64, there: Boolean, dst: cute.Tensor) -> None:
    dst.fill(0)
    if there:
        for i in cutlass.range_constexpr(cute.size(dst)):
            dst[i] = (src.iterator + (place + i)).load()


@cute.jit
def _store(held: cute.Tensor, dst: cute.Tensor, place: Int64, there: Boolean) -> None:
    if there:
        count = cute.size(held)
        whole = cute.make_tensor(dst.iterator + cute.assume(place, divby=count), cute.make_layout((count,)))
        cute.autovec_copy(held, whole)
