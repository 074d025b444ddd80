"""Device functions of element-wise kernels: a thread's vector of consecutive elements, with what it reads and writes.

`Flat` is what a thread knows of its vector. An array with every element of the outputs, in their order, is read and written from
where the vector starts. Any other array is read at a place, which has an entry for each of the array's modes. An entry is an axis
of the elements (`Flat.axes`), a number, a neighbour's position (`back`), or what an index says (`pick`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Numeric
from cutlass.memory import SmemAllocator

from codegen.device import access
from codegen.device import functions as device
from codegen.device.functions import Vector
from codegen.shared import Launch


def grid(how: Launch, extents: Sequence[Int32], stream: Any) -> dict[str, Any]:
    """The grid and block of a launch for arrays of these sizes: one block more than are full, for the last vectors, or
    for arrays without elements."""
    if how.rows > 1:
        blocks = (_size(extents) // extents[-1] // (how.rows * how.down) + 1) * _blocks_across(how, extents)
    else:
        blocks = _size(extents) // (how.vec * how.threads * how.down) + 1
    return {"grid": (blocks, 1, 1), "block": (how.threads, 1, 1), "stream": stream}


def _blocks_across(how: Launch, extents: Sequence[Int32]) -> Int32:
    """How many blocks have vectors of the same rows."""
    return extents[-1] // (how.vec * how.threads // how.rows)


def _size(extents: Sequence[Int32]) -> Int64:
    size = Int64(1) if not extents else Int64(extents[0])
    for extent in extents[1:]:
        size = size * extent
    return size


@dataclass(frozen=True)
class Axis:
    """The position of an element along one of the axes."""

    number: int


@dataclass(frozen=True)
class Pick:
    """The element of an integer array at a place, clamped to the mode that it indexes."""

    index: cute.Tensor
    place: Place


@dataclass(frozen=True)
class Back:
    """The position so many places back along an axis, clamped to the mode that it indexes."""

    axis: Axis
    by: int


Place: TypeAlias = tuple[Axis | Pick | Back | int, ...]


@dataclass(frozen=True)
class Read:
    """An array that a vector reads."""

    tensor: Any  # a cute.Tensor, or None where it is left out
    place: Place | None = None  # None: every element, in the outputs' order
    parts: int = 0  # of each element, which lie next to each other; 0 for one that has none
    default: float | None = None  # where the array is left out
    dtype: type[Numeric] = Float32  # of the default


back, pick, read = Back, Pick, Read  # as generated kernels write them


def _at_place(read: Read | Axis, number: int) -> bool:
    """Whether a read's place depends on an axis."""
    return isinstance(read, Read) and read.place is not None and _mentions(read.place, number)


def _mentions(place: Place, number: int) -> bool:
    plain = [p.axis if isinstance(p, Back) else p for p in place]
    return any(_mentions(p.place, number) if isinstance(p, Pick) else p == Axis(number) for p in plain)


Operand: TypeAlias = cute.Tensor | Read | Axis


def registers(vec: int, *operands: Operand) -> tuple[cute.Tensor, ...]:
    """Registers for a vector of each operand of `Flat.load`; of an array that is left out, they hold its default."""
    found = []
    for own in operands:
        if isinstance(own, Axis):
            found.append(cute.make_rmem_tensor((vec,), Int32))
        else:
            own = own if isinstance(own, Read) else read(own)
            shape = (own.parts, vec) if own.parts else (vec,)
            found.append(access.registers(own.tensor, shape, own.default, own.dtype))
    return tuple(found)


@dataclass(frozen=True)
class Flat:
    """A thread's vector: `how.vec` consecutive elements of the outputs in memory order."""

    how: Launch
    extents: tuple[Int32, ...]  # along the axes
    start: Int64  # the number of its first element
    valid: Int64  # how many elements there are from there on
    first: tuple[Int32, ...]  # the first element's position along each axis

    @property
    def axes(self) -> tuple[Axis, ...]:
        return tuple(Axis(i) for i in range(len(self.extents)))

    @property
    def inner(self) -> int:
        """The number of the innermost axis."""
        return len(self.extents) - 1

    # From memory

    def load(self, *operands: Operand) -> tuple[cute.Tensor, ...]:
        """Registers with the vector of each operand: an array with every element, another `read`, or an axis, for the elements'
        positions along it (int32)."""
        reads = [o if isinstance(o, (Read, Axis)) else read(o) for o in operands]
        found = registers(self.how.vec, *reads)
        given = [(r, x) for r, x in zip(reads, found, strict=True) if isinstance(r, Axis) or r.tensor is not None]
        if not self.how.ragged:
            for r, x in given:
                self._load_whole(r, x)
            return found
        rest = []
        for r, x in given:
            if isinstance(r, Read) and r.place is None:
                device.copy_whole_or_part(self._own(r.tensor, r.parts), x, _times(r.parts, self.valid))
            else:
                rest.append((r, x))
        axes = [[i for i in range(len(self.extents)) if self._asks(r, i)] for r, _ in rest]
        alike = [o for o, asked in zip(rest, axes, strict=True) if not asked]
        of_row = [o for o, asked in zip(rest, axes, strict=True) if asked and self.inner not in asked]
        inside = [o for o, asked in zip(rest, axes, strict=True) if self.inner in asked]
        self._load_in_row(alike)
        if of_row:
            _load_of_rows(self, of_row, min(i for asked in axes for i in asked))
        if inside:
            _load_ragged(self, inside, min(i for asked in axes for i in asked))
        return found

    @staticmethod
    def _asks(read: Read | Axis, number: int) -> bool:
        """Whether what is read depends on an axis."""
        return read == Axis(number) or _at_place(read, number)

    def _own(self, tensor: cute.Tensor, parts: int) -> cute.Tensor:
        """The vector in memory of an array with every element."""
        shape = (parts, self.how.vec) if parts else (self.how.vec,)
        return cute.make_tensor(tensor.iterator + _times(parts, self.start), cute.make_layout(shape))

    def _row(self, tensor: cute.Tensor, place: Place) -> cute.Tensor:
        """The vector in memory of an array whose last mode is the innermost axis, where rows hold whole vectors."""
        where = (*_where(tensor, place, self.first)[:-1], None)
        row = tensor if len(where) == 1 else tensor[where]
        return cute.local_tile(row, (self.how.vec,), (self.first[-1] // self.how.vec,))

    def _at(self, i: int) -> tuple[Int32, ...]:
        """The positions of the vector's element `i`, where all elements lie in one row."""
        return (*self.first[:-1], self.first[-1] + i) if self.first else ()

    def _is_wide(self, place: Place) -> bool:
        """Whether the vector's elements lie next to each other at a place."""
        return place[-1] == Axis(self.inner) and not _mentions(place[:-1], self.inner)

    def _load_whole(self, read: Read | Axis, dst: cute.Tensor) -> None:
        """A vector whose elements lie in one row, where rows hold whole vectors."""
        if isinstance(read, Axis):
            if read.number == self.inner:
                device.count_up(dst, self.first[-1])
            else:
                dst.fill(self.first[read.number])
        elif read.place is None:
            cute.autovec_copy(self._own(read.tensor, read.parts), dst)
        elif self._is_wide(read.place):
            cute.autovec_copy(self._row(read.tensor, read.place), dst)
        elif not _mentions(read.place, self.inner):
            dst.fill(read.tensor[_where(read.tensor, read.place, self.first)])
        else:
            for i in range(self.how.vec):
                dst[i] = read.tensor[_where(read.tensor, read.place, self._at(i))]

    def _load_in_row(self, rest: list[tuple[Read | Axis, cute.Tensor]]) -> None:
        """Vectors whose elements lie in one row, wherever that starts."""
        for r, x in rest:
            if isinstance(r, Read) and r.place is not None and self._is_wide(r.place):
                offset = cute.crd2idx(_where(r.tensor, r.place, self.first), r.tensor.layout)
                device.load_anywhere(r.tensor, offset, x)
            else:
                self._load_whole(r, x)

    # To memory

    def store(self, values: Vector | tuple[Vector, ...], dst: cute.Tensor) -> None:
        """Store the vector to an array with every element; one value for each part if the array's parts are
        adjacent."""
        parts = len(values) if isinstance(values, tuple) else 0
        registers = access.registers_of(values, dst, self.how.vec)
        if self.how.ragged:
            device.copy_whole_or_part(registers, self._own(dst, parts), _times(parts, self.valid))
        else:
            once = access.EVICT.EVICT_FIRST if self.how.backwards else access.EVICT.EVICT_NORMAL
            cute.autovec_copy(registers, self._own(dst, parts), l1c_evict_priority=once)

    def store_at(self, src: cute.Tensor, dst: cute.Tensor, place: Place) -> None:
        """Store the vector to another array, where rows are whole vectors; else `store_ragged` does it."""
        if self.how.ragged:
            return
        if self._is_wide(place):
            cute.autovec_copy(src, self._row(dst, place))
        else:
            for i in range(self.how.vec):
                dst[_where(dst, place, self._at(i))] = src[i]

    def put(self, values: Vector, dst: cute.Tensor, place: Place, how: str = "set") -> None:
        """Store the vector to the elements of an array at an index, or "add" it to these elements, or combine it with
        them by "max" or "min". Elements with an index out of range are not written."""
        src = access.registers_of(values, dst, self.how.vec)
        _put(self, src, dst, place, how)

    def store_ragged(self, *written: tuple[cute.Tensor, cute.Tensor, Place]) -> None:
        """Store vectors to other arrays, as (registers, array, place), by all lanes together: an aligned vector may
        begin with the end of the previous lane's. Where rows are whole vectors, `store_at` has done it."""
        if self.how.ragged:
            mentioned = [i for i in range(len(self.extents)) if any(_mentions(place, i) for *_, place in written)]
            _store_ragged(self, written, mentioned[0])


def vector(how: Launch, extents: Sequence[Int32]) -> Flat:
    """This thread's vector of outputs with these sizes."""
    tidx, _, _ = cute.arch.thread_idx()
    bidx, _, _ = cute.arch.block_idx()
    if how.backwards:
        blocks, _, _ = cute.arch.grid_dim()
        bidx = blocks - 1 - bidx
    size, first = _size(extents), list[Int32]()
    if how.rows > 1:  # rows are whole blocks: their number and the column need no division of 64 bits
        across, blocks = how.threads // how.rows, _blocks_across(how, extents)
        rest = Int32((bidx // blocks * how.rows + tidx // across) * how.down)
        first.append(Int32((bidx % blocks * across + tidx % across) * how.vec))
        start = Int64(rest) * extents[-1] + first[0]
    else:
        start = rest = (Int64(bidx) * how.threads + tidx) * how.vec
    for i in reversed(range(len(extents) - len(first))):
        first.insert(0, Int32(rest % extents[i] if i else rest))
        rest = rest // extents[i]
    if how.rows == 1 and how.down > 1:  # several outermost positions, which are a multiple of as many
        start += _size(extents[1:]) * first[0] * (how.down - 1)
        first[0] = first[0] * how.down
    start = cute.assume(start, divby=how.vec)
    return Flat(how, tuple(extents), start, size - start, tuple(first))


def vectors(how: Launch, extents: Sequence[Int32]) -> list[Flat]:
    """This thread's vectors of outputs with these sizes, in neighbouring rows, or at neighbouring outermost positions. It has all of them
    or none."""
    found = [vector(how, extents)]
    for _ in range(how.down - 1):
        last = found[-1]
        if how.rows > 1:
            first = (*device.next_coordinates(last.first[:-1], last.extents[1:-1]), last.first[-1])
            step = Int64(extents[-1])
        else:
            first, step = (last.first[0] + 1, *last.first[1:]), _size(extents[1:])
        start = cute.assume(last.start + step, divby=how.vec)
        found.append(Flat(how, last.extents, start, last.valid - step, first))
    return found


def near(rows: list[Flat], *back: int) -> dict[int, Flat]:
    """By number, the vectors of the rows that are so many places back from some of these. Past an end of the axis, that of the last row."""
    last = len(rows) - 1
    needed = sorted({number - places for number in range(len(rows)) for places in back})
    return {n: _moved(rows[0], n) if n < 0 else rows[n] if n <= last else _moved(rows[last], n - last) for n in needed}


def _moved(row: Flat, by: int) -> Flat:
    """The vector so many rows further along the axis before the innermost one."""
    at = device.clip_index(row.first[-2] + by, row.extents[-2])
    step = cute.assume(Int64(at - row.first[-2]) * row.extents[-1], divby=row.how.vec)
    return Flat(row.how, row.extents, row.start + step, row.valid - step, (*row.first[:-2], at, row.first[-1]))


def _times(parts: int, count: Int64) -> Int64:
    return parts * count if parts else count


def _where(tensor: cute.Tensor, place: Place, at: tuple[Int32, ...]) -> tuple:
    """A place in a tensor as coordinates, for the element at these positions."""

    def coordinate(mode: int, entry: Axis | Pick | Back | int) -> Int32 | int:
        if isinstance(entry, Axis):
            return at[entry.number]
        if isinstance(entry, Back):
            return device.clip_index(at[entry.axis.number] - entry.by, tensor.shape[mode])
        if isinstance(entry, Pick):
            return device.clip_index(entry.index[_where(entry.index, entry.place, at)], tensor.shape[mode])
        return entry

    return tuple(coordinate(mode, entry) for mode, entry in enumerate(place))


def _next(at: tuple[Int32, ...], own: Flat, outermost: int) -> tuple[Int32, ...]:
    """The next element's position along the axes from the `outermost` on."""
    return (*at[:outermost], *device.next_coordinates(at[outermost:], own.extents[max(outermost, 1) :]))


def _load_elements(rest: list[tuple[Read | Axis, cute.Tensor]], i: int, at: tuple[Int32, ...]) -> None:
    for r, x in rest:
        x[i] = _of_row(r, at)


def _load_elements_at_places(own: Flat, rest: list[tuple[Read | Axis, cute.Tensor]], outermost: int) -> None:
    """Every element at its own place, which depends on the axes from the `outermost` on."""
    at = own.first
    for i in range(own.how.vec):
        _load_element(own, rest, i, at)
        at = _next(at, own, outermost)


@cute.jit
def _load_element(
    own: cutlass.Constexpr[Flat], rest: cutlass.Constexpr[list], i: cutlass.Constexpr[int], at: tuple[Int32, ...]
) -> None:
    if i < own.valid:
        _load_elements(rest, i, at)


@cute.jit
def _load_of_rows(
    own: cutlass.Constexpr[Flat], rest: cutlass.Constexpr[list], outermost: cutlass.Constexpr[int]
) -> None:
    """Load values that are the same for all elements of a row. Where rows are not shorter than vectors, a vector has elements of
    two rows at most."""
    vec, left = own.how.vec, own.extents[-1] - own.first[-1]
    if own.extents[-1] >= vec:
        after = _next((*own.first[:-1], own.extents[-1] - 1), own, outermost)
        for k in cutlass.range_constexpr(len(rest)):
            rest[k][1].fill(_of_row(rest[k][0], own.first))
        if (left < vec) & (left < own.valid):
            _load_after(rest, after, left)
    else:
        _load_elements_at_places(own, rest, outermost)


def _load_after(rest: list[tuple[Read | Axis, cute.Tensor]], after: tuple[Int32, ...], left: Int32) -> None:
    """Load the values of the row `after` for all elements but the first `left`."""
    others = [_of_row(r, after) for r, _ in rest]  # all loads before the first value is needed
    for (_, x), other in zip(rest, others, strict=True):
        for i in range(cute.size(x)):
            x[i] = cutlass.select_(i < left, x[i], other)


def _of_row(read: Read | Axis, at: tuple[Int32, ...]) -> Numeric:
    """The value at a position, which all elements of a row may share."""
    if isinstance(read, Axis):
        return at[read.number]
    assert read.place is not None
    return read.tensor[_where(read.tensor, read.place, at)]


@cute.jit
def _load_ragged(
    own: cutlass.Constexpr[Flat], rest: cutlass.Constexpr[list], outermost: cutlass.Constexpr[int]
) -> None:
    """Vectors that may cross the end of a row. Where they do not, wide loads read them, wherever they start. Else every element is
    read at its own place, which depends on the axes from the `outermost` on."""
    whole = own.valid >= own.how.vec if len(own.extents) <= 1 else own.first[-1] + own.how.vec <= own.extents[-1]
    if whole:
        own._load_in_row(rest)
    else:
        _load_elements_at_places(own, rest, outermost)


def _stored_wide(own: Flat, written: tuple[tuple[cute.Tensor, cute.Tensor, Place], ...]) -> list[cutlass.Uint32]:
    """Store what fills aligned vectors; the bits of the elements that are left over."""
    found = []
    for src, dst, place in written:
        if own._is_wide(place):
            before = own.first[-1]
            after = own.valid if len(own.extents) <= 1 else own.extents[-1] - before
            offset = cute.crd2idx(_where(dst, place, own.first), dst.layout)
            found.append(device.store_anywhere(src, dst, offset, before, after, own.valid))
        else:
            found.append(device.first_bits(own.valid, own.how.vec))
    return found


@cute.jit
def _store_element(
    rest: cutlass.Uint32, i: cutlass.Constexpr[int], src: cute.Tensor, dst: cute.Tensor, where: tuple
) -> None:
    if device.bit(rest, i):
        dst[where] = src[i]


def _store_elements(rests: list[cutlass.Uint32], written: tuple, i: int, at: tuple[Int32, ...]) -> None:
    for rest, (src, dst, place) in zip(rests, written, strict=True):
        _store_element(rest, i, src, dst, _where(dst, place, at))


@cute.jit
def _store_ragged(
    own: cutlass.Constexpr[Flat], written: cutlass.Constexpr[tuple], outermost: cutlass.Constexpr[int]
) -> None:
    rests = _stored_wide(own, written)
    every = rests[0]
    for k in cutlass.range_constexpr(1, len(rests)):
        every = every | rests[k]
    if every != 0:
        at = own.first
        for i in cutlass.range_constexpr(own.how.vec):
            _store_elements(rests, written, i, at)
            at = _next(at, own, outermost)


def _put(own: Flat, src: cute.Tensor, dst: cute.Tensor, place: Place, how: str) -> None:
    if how == "set" and not own.how.ragged and own._is_wide(place):
        where, there = _where_put(dst, place, own.first)
        row = dst[(*where[:-1], None)] if len(where) > 1 else dst
        _put_vector(src, cute.local_tile(row, (own.how.vec,), (own.first[-1] // own.how.vec,)), there)
        return
    at = own.first
    for i in range(own.how.vec):
        _put_element(own, src, i, dst, place, at, how)
        at = _next(at, own, 0) if own.first else at


def _where_put(tensor: cute.Tensor, place: Place, at: tuple[Int32, ...]) -> tuple[tuple, cutlass.Boolean]:
    """A place in a tensor as coordinates, for the element at these positions, and whether it is inside."""
    there, found = cutlass.Boolean(True), []
    for mode, entry in enumerate(place):
        if isinstance(entry, Pick):
            index = Int64(entry.index[_where(entry.index, entry.place, at)])
            there = there & (index >= 0) & (index < tensor.shape[mode])
            found.append(Int32(index))
        else:
            found.append(at[entry.number] if isinstance(entry, Axis) else entry)
    return tuple(found), there


@cute.jit
def _put_vector(src: cute.Tensor, dst: cute.Tensor, there: cutlass.Boolean) -> None:
    if there:
        cute.autovec_copy(src, dst)


@cute.jit
def _put_element(
    own: cutlass.Constexpr[Flat], src: cute.Tensor, i: cutlass.Constexpr[int], dst: cute.Tensor,
    place: cutlass.Constexpr[Place], at: tuple[Int32, ...], how: cutlass.Constexpr[str],
) -> None:  # fmt: skip
    if i < own.valid:
        where, there = _where_put(dst, place, at)
        if there:
            if cutlass.const_expr(how == "set"):
                dst[where] = src[i]
            else:
                _combine(how, dst.iterator + cute.crd2idx(where, dst.layout), src[i])


def _combine(how: str, pointer: cute.Pointer, value: Int32) -> None:
    """The sum or an extreme of what is in memory and a value, whatever other threads add at the same time."""
    combine = {"add": cute.arch.atomic_add, "max": cute.arch.atomic_max, "min": cute.arch.atomic_min}[how]
    combine(pointer, value, sem="relaxed", scope="gpu")


def held(how: Launch, number: int, table: cute.Tensor) -> cute.Tensor:
    """A table that computed indices read: its copy in the block's shared memory, if the launch has it there."""
    return _copied(table, how.threads, how.tables[number]) if how.tables else table


@cute.jit
def _copied(table: cute.Tensor, threads: cutlass.Constexpr[int], count: cutlass.Constexpr[int]) -> cute.Tensor:
    tidx, _, _ = cute.arch.thread_idx()
    copy = SmemAllocator().allocate_tensor(table.element_type, cute.make_layout((count,)), 16)
    source = cute.make_tensor(table.iterator, copy.layout)
    for i in cutlass.range(tidx, count, threads):
        copy[i] = source[i]
    cute.arch.sync_threads()
    return cute.make_tensor(copy.iterator, table.layout)
