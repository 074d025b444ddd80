"""Device functions of kernels that reduce: how a thread loads and stores its pieces of a row (`reduce` defines the pieces).

Elements beyond a row's end are never accessed; registers hold zeros for them.
"""

from __future__ import annotations

import math

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, Numeric, Uint32
from cutlass.memory import SmemAllocator

from codegen.device import functions as device
from codegen.device import vectors as vectors_of
from codegen.device.math.narrow import bytes_of
from codegen.device.math.opaque import unseen
from codegen.device.places import Places, coordinates, places_of
from codegen.shared import WARP

EVICT = cute.nvgpu.CacheEvictionPriority
SECTOR = 256  # bits that caches read at once


def registers(
    tensor: cute.Tensor | None,
    shape: tuple[int, ...],
    default: float | None = None,
    dtype: type[Numeric] = cutlass.Float32,
) -> cute.Tensor:
    """A thread's registers for elements of a tensor; of one that is left out, they hold its default, of type `dtype`."""
    found = cute.make_rmem_tensor(shape, dtype if tensor is None else tensor.element_type)
    if tensor is None:
        found.fill(default)
    return found


def registers_of(values: device.Vector | tuple[device.Vector, ...], tensor: cute.Tensor, vec: int) -> cute.Tensor:
    """Registers with what is to be stored in a tensor: (vec,), or (parts, vec) of one vector for each part."""
    if not isinstance(values, tuple):
        found = registers(tensor, (vec,))
        found.store(values)
        return found
    found = registers(tensor, (len(values), vec))
    for part, value in enumerate(values):
        found[part, None].store(value)
    return found


@cute.jit
def load_one(src: cute.Tensor, place: cute.Coord, there: cutlass.Boolean, dst: cute.Tensor) -> None:
    """A row's single value; zero where the row does not exist."""
    clear(dst)
    if there:
        dst[0] = src[place]


@cute.jit
def load_row(
    src: cute.Tensor,
    start: cutlass.Int64,
    first: cutlass.Int32,
    step: cutlass.Constexpr[int],
    columns: cutlass.Int32,
    dst: cute.Tensor,
    parts: cutlass.Constexpr[int],
    ragged: cutlass.Constexpr[bool],
    aligned: cutlass.Constexpr[bool],
    once: cutlass.Constexpr[bool],
    last: cutlass.Constexpr[int] = 0,
) -> None:
    """Load a thread's vectors of a row that begins at element `start` of a compact tensor into dst (vec, vectors), or (parts, vec,
    vectors) where each column has several adjacent parts. Elements outside the tensor are zeros; elements outside the row may have
    any value. Where N is not a multiple of the vector width (`ragged`), `aligned` says that vectors are still aligned in memory.
    `first` may be negative for that. Without it each vector is assembled from the two aligned ones that contain it. No vector
    before the one of the number `last` has the row's end. Data that is read `once` is not kept in the L1 cache."""
    vectors = cute.size(dst, mode=[cute.rank(dst) - 1])
    count = cute.size(dst) // vectors
    pieces = [cute.make_tensor(dst.iterator + v * count, cute.make_layout((count,))) for v in range(vectors)]
    clear(dst)
    if cutlass.const_expr(not ragged):
        for v in cutlass.range_constexpr(vectors):
            c = first + v * step
            if c < columns:
                place = start + cutlass.Int64(c) * parts
                vectors_of.take(src, place, pieces[v], once)
        # Else the compiler keeps narrow elements apart, because of the branches, and puts them into words again
        if cutlass.const_expr(src.element_type.width < 32):
            forget(dst)
    else:
        in_vectors = aligned or device.shiftable(pieces[0])
        whole = device.whole_vectors(src, count) if in_vectors else Int64(0)
        place = start + cutlass.Int64(first) * parts
        skip = 0 if aligned else device.misalignment(place, count)  # equal for all vectors of a row
        base = place - skip
        left = _at_most(whole - base, Int64(columns - first) * parts + skip)  # elements to read in vectors
        left = cutlass.select_(columns > 0, left, 0)  # a row that does not exist may have any place
        both = cute.make_rmem_tensor((count, 2), src.element_type)
        for v in cutlass.range_constexpr(vectors):
            at = v * step * parts
            if cutlass.const_expr(aligned):
                if at < left:
                    vectors_of.take(src, base + at, pieces[v], once)
            elif cutlass.const_expr(device.shiftable(pieces[0])):
                clear(both)
                if (at < left) & (at >= 2 * count or base + at >= 0):
                    cute.autovec_copy(device.vector(src, base + at, count), both[None, 0])
                if at + count < cutlass.select_(skip == 0, 0, left):
                    cute.autovec_copy(device.vector(src, base + (at + count), count), both[None, 1])
                device.shift_into(both, skip, pieces[v])
        # The elements that fill no aligned vector, one by one; separately, since branches between loads would serialise them
        if (columns > 0) & (start + cutlass.Int64(columns) * parts > whole):
            for v in cutlass.range_constexpr(last if in_vectors else 0, vectors):
                at = v * step * parts
                if (first + v * step < columns) & (place + (at + count) > whole):
                    device.load_elements(src, place + at, pieces[v])
        forget(dst)  # else the compiler would split the vectors here, because of the few single elements


def _at_most(a: cutlass.Int64, b: cutlass.Int64) -> cutlass.Int32:
    """The smaller of two numbers, but not below 0, in 32 bits: a thread's vectors lie within 2**30 elements."""
    least = cutlass.select_(a < b, a, b)
    least = cutlass.select_(least < 2**30, least, Int64(2**30))
    return Int32(cutlass.select_(least < 0, Int64(0), least))


def meeting_place(threads: int, *registers: cute.Tensor) -> cute.Pointer:
    """Shared memory in which the lanes of each warp exchange the contents of any of these registers."""
    size = max(cute.size(r) * r.element_type.width // 8 for r in registers)
    tidx, _, _ = cute.arch.thread_idx()
    whole = SmemAllocator().allocate_tensor(cutlass.Uint8, cute.make_layout((threads * size,)), 16)
    return whole.iterator + cute.assume(tidx // WARP * (WARP * size), divby=16)


@cute.jit
def load_rows(src: cute.Tensor, row: cutlass.Int32, dst: cute.Tensor, place: cute.Pointer) -> None:
    """Load neighbouring whole rows of a compact tensor, from `row` on, into dst (..., rows): together they are vectors in memory.
    Zeros past the last row. A warp loads its lanes' rows together, neighbouring vectors by neighbouring lanes, and
    redistributes them in its part of shared memory."""
    src, dst = bytes_of(src), bytes_of(dst)
    start, left, vec = _neighbours(src, row, dst)
    lane, count = cute.arch.lane_idx(), cute.size(dst)
    found, pieces = cute.make_tensor(dst.iterator, cute.make_layout((count,))), _pieces(src, count, vec)
    if left >= WARP * count:
        for i in cutlass.range_constexpr(count // vec):
            cute.autovec_copy(device.vector(src, start + (i * WARP + lane) * vec, vec), pieces[i])
        _hand_on(pieces, place, (vec, WARP * vec), (count, vec))
        _regroup(pieces, [found])
    else:
        own = unseen(Int32(left)) - lane * count
        for k in cutlass.range(count, unroll_full=True):
            found[k] = src.element_type(0)
            if k < own:
                found[k] = (src.iterator + (start + lane * count + k)).load()


@cute.jit
def store_rows(src: cute.Tensor, dst: cute.Tensor, row: cutlass.Int32, place: cute.Pointer) -> None:
    """Store neighbouring whole rows as `load_rows` loads them."""
    src, dst = bytes_of(src), bytes_of(dst)
    start, left, vec = _neighbours(dst, row, src)
    lane, count = cute.arch.lane_idx(), cute.size(src)
    held, pieces = cute.make_tensor(src.iterator, cute.make_layout((count,))), _pieces(dst, count, vec)
    if left >= WARP * count:
        _regroup([held], pieces)
        _hand_on(pieces, place, (count, vec), (vec, WARP * vec))
        for i in cutlass.range_constexpr(count // vec):
            cute.autovec_copy(pieces[i], device.vector(dst, start + (i * WARP + lane) * vec, vec))
    else:
        own = unseen(Int32(left)) - lane * count
        for k in cutlass.range(count, unroll_full=True):
            if k < own:
                (dst.iterator + (start + lane * count + k)).store(held[k])


def _hand_on(pieces: list[cute.Tensor], place: cute.Pointer, out: tuple[int, int], back: tuple[int, int]) -> None:
    """Store each lane's vectors to shared memory and load others back. `out` and `back` are the strides in elements between
    neighbouring lanes, and between a lane's own vectors. A lane with a single vector keeps it."""
    if len(pieces) == 1:
        return
    lane, vec = cute.arch.lane_idx(), cute.size(pieces[0])
    shared = cute.recast_ptr(place, dtype=pieces[0].element_type)

    def there(i: int, apart: tuple[int, int]) -> cute.Tensor:
        return cute.make_tensor(
            shared + cute.assume(lane * apart[0] + i * apart[1], divby=vec), cute.make_layout((vec,))
        )

    cute.arch.sync_warp()  # the previous contents are read
    for i, piece in enumerate(pieces):
        cute.autovec_copy(piece, there(i, out))
    cute.arch.sync_warp()
    for i, piece in enumerate(pieces):
        cute.autovec_copy(there(i, back), piece)


def _regroup(sources: list[cute.Tensor], targets: list[cute.Tensor]) -> None:
    """Copy elements between registers that are grouped differently: one by one, or they would be in local memory."""
    values = [source[i] for source in sources for i in range(cute.size(source))]
    for target in targets:
        for i in range(cute.size(target)):
            target[i] = values.pop(0)


def _pieces(tensor: cute.Tensor, count: int, vec: int) -> list[cute.Tensor]:
    """Registers for `count` elements of a tensor, in vectors."""
    return [cute.make_rmem_tensor((vec,), tensor.element_type) for _ in range(count // vec)]


def _neighbours(tensor: cute.Tensor, row: Int32, registers: cute.Tensor) -> tuple[Int64, Int64, int]:
    """For a lane's rows from `row` on: their start in a tensor, the number of elements from there to its end, and the number of
    elements of each access."""
    count = cute.size(registers)
    rows = cute.size(registers, mode=[cute.rank(registers) - 1])
    first = Int64(row - cute.arch.lane_idx() * rows) * (count // rows)
    return first, device.extent_of(tensor) - first, math.gcd(count, 128 // tensor.element_type.width)


def staging(tensor: cute.Tensor | None, count: int, vectors: int, rows: int, threads: int) -> cute.Tensor | None:
    """A thread's part of shared memory, for its vectors of `count` elements of several rows of a tensor that is there: (count,
    vectors, rows). The vectors of neighbouring threads are adjacent."""
    if tensor is None:
        return None
    dtype = tensor.element_type
    tidx, _, _ = cute.arch.thread_idx()
    whole = SmemAllocator().allocate_tensor(dtype, cute.make_layout((threads * count * vectors * rows,)), 16)
    layout = cute.make_layout((count, vectors, rows), stride=(1, threads * count, threads * count * vectors))
    return cute.make_tensor(whole.iterator + cute.assume(tidx * count, divby=count), layout)


@cute.jit
def fetch_row(
    src: cute.Tensor,
    start: cutlass.Int64,
    first: cutlass.Int32,
    step: cutlass.Constexpr[int],
    columns: cutlass.Int32,
    dst: cute.Tensor,
    parts: cutlass.Constexpr[int],
) -> None:
    """Start asynchronous copies of a thread's vectors of a row, as `load_row` reads them, to its part of shared memory: dst
    (count, vectors)."""
    count, vectors = cute.size(dst, mode=[0]), cute.size(dst, mode=[1])
    bits = count * src.element_type.width
    mode = cute.nvgpu.cpasync.LoadCacheMode.GLOBAL if bits == 128 else cute.nvgpu.cpasync.LoadCacheMode.ALWAYS
    atom = cute.make_copy_atom(cute.nvgpu.cpasync.CopyG2SOp(mode), src.element_type, num_bits_per_copy=bits)
    for v in cutlass.range_constexpr(vectors):
        c = first + v * step
        if c < columns:
            cute.copy(atom, device.vector(src, start + cutlass.Int64(c) * parts, count), dst[None, v])


@cute.jit
def take_row(
    src: cute.Tensor,
    first: cutlass.Int32,
    step: cutlass.Constexpr[int],
    columns: cutlass.Int32,
    dst: cute.Tensor,
) -> None:
    """Load the vectors that `fetch_row` copied into registers; zeros outside the row."""
    count, vectors = cute.size(src, mode=[0]), cute.size(src, mode=[1])
    clear(dst)
    for v in cutlass.range_constexpr(vectors):
        if first + v * step < columns:
            cute.autovec_copy(src[None, v], cute.make_tensor(dst.iterator + v * count, cute.make_layout((count,))))


def clear(registers: cute.Tensor) -> None:
    """Fill with zeros. There is no constant of 4 bits, so two of them are a byte."""
    bytes_of(registers).fill(0)


def forget(registers: cute.Tensor) -> None:
    """Hide from the compiler that the values are the same, so that it keeps no values computed from them, such as wider copies. Vectors
    that are no whole words stay as they are: the compiler does not take words of several."""
    vectors = cute.size(registers, mode=[cute.rank(registers) - 1]) if cute.rank(registers) > 1 else 1
    if cute.size(registers) // vectors * registers.element_type.width % 32 == 0:
        words = cute.recast_tensor(registers, Int32)
        for i in range(cute.size(words)):
            words[i] = unseen(words[i])


@cute.jit
def gather_row(
    src: cute.Tensor,
    place: cute.Coord,
    modes: cutlass.Constexpr[tuple[int | None, ...]],
    extents: tuple[cutlass.Int32, ...],
    first: cutlass.Int32,
    step: cutlass.Constexpr[int],
    columns: cutlass.Int32,
    dst: cute.Tensor,
    ragged: cutlass.Constexpr[bool],
    back: cutlass.Constexpr[tuple[int, ...]] = (),
) -> None:
    """Load a row of a tensor that has only some of the axes. `place` are the row's coordinates, `extents` the sizes of the axes
    that make a column, and `modes` the axis of each mode of the tensor. With `back` it loads neighbours, so many places back along
    each mode; one that lies outside is any element. Where the columns of a vector are adjacent in the tensor,
    they are loaded as one; where they are the same element, it is loaded once."""
    vec, vectors = cute.size(dst, mode=[0]), cute.size(dst, mode=[1])
    inner = len(extents) - 1
    adjacent = not ragged and modes[-1] == inner and src.stride[-1] == 1 and not back
    each = vec if cutlass.const_expr(adjacent or (not ragged and inner not in modes)) else 1
    clear(dst)
    places = places_of(first, step, vectors, vec, each, extents)
    for v in cutlass.range_constexpr(vectors):
        for i in cutlass.range_constexpr(0, vec, each):
            one = cute.make_rmem_tensor((1,), src.element_type)
            clear(one)
            if first + v * step + i < columns:
                where = _in_row(place, modes, places[v][i // each])
                if cutlass.const_expr(back):
                    where = _back(where, back, src.shape)
                if cutlass.const_expr(adjacent):
                    cute.autovec_copy(device.vector(src, cute.crd2idx(where, src.layout), vec), dst[None, v])
                else:
                    one[0] = src[where]
            # Outside the branch, so that the compiler sees that elements are the same
            if cutlass.const_expr(not adjacent):
                for k in cutlass.range_constexpr(each):
                    dst[i + k, v] = one[0]
    if cutlass.const_expr(adjacent and src.element_type.width < 32):
        forget(dst)  # as `load_row` does


@cute.jit
def pick_row(
    src: cute.Tensor,
    place: cute.Coord,
    modes: cutlass.Constexpr[tuple[int | None, ...]],
    extents: tuple[cutlass.Int32, ...],
    along: cutlass.Constexpr[int],
    index: cute.Tensor,
    index_place: cute.Coord,
    index_modes: cutlass.Constexpr[tuple[int | None, ...]],
    first: cutlass.Int32,
    step: cutlass.Constexpr[int],
    columns: cutlass.Int32,
    dst: cute.Tensor,
    ragged: cutlass.Constexpr[bool],
) -> None:
    """`gather_row` with a separate place for each column along one mode of the tensor, from an `index`, which is accessed like
    the tensor."""
    vec, vectors = cute.size(dst, mode=[0]), cute.size(dst, mode=[1])
    each = vec if cutlass.const_expr(not ragged and len(extents) - 1 not in (*modes, *index_modes)) else 1
    clear(dst)
    places = places_of(first, step, vectors, vec, each, extents)
    for v in cutlass.range_constexpr(vectors):
        picked = cute.make_rmem_tensor((vec // each,), Int32)
        # All loads of a vector are in flight before the first is needed
        for i in cutlass.range_constexpr(0, vec, each):
            if first + v * step + i < columns:
                at = index[_in_row(index_place, index_modes, places[v][i // each])]
                picked[i // each] = device.clip_index(at, src.shape[along])
        for i in cutlass.range_constexpr(0, vec, each):
            if first + v * step + i < columns:
                own = list(_in_row(place, modes, places[v][i // each]))
                own[along] = picked[i // each]
                value = src[tuple(own)]
                for k in cutlass.range_constexpr(each):
                    dst[i + k, v] = value


def load_index(
    mode: int, extents: tuple[cutlass.Int32, ...], first: cutlass.Int32, step: int, dst: cute.Tensor, apart: bool
) -> None:
    """The coordinate along one of several axes that make a column. `apart`: whether a vector may have columns of two groups."""
    vec, vectors = cute.size(dst, mode=[0]), cute.size(dst, mode=[1])
    each = 1 if apart else vec
    places = places_of(first, step, vectors, vec, each, extents)
    for v in range(vectors):
        for i in range(vec):
            further = i % each if mode == len(extents) - 1 else 0
            dst[i, v] = places[v][i // each][mode] + further


@cute.jit
def store_row(
    src: cute.Tensor,
    dst: cute.Tensor,
    start: cutlass.Int64,
    column: cutlass.Int32,
    offset: cutlass.Constexpr[int],
    columns: cutlass.Int32,
    parts: cutlass.Constexpr[int],
    ragged: cutlass.Constexpr[bool],
    aligned: cutlass.Constexpr[bool],
    per_row: cutlass.Constexpr[int],
    certain: cutlass.Constexpr[bool],
) -> None:
    """Store one vector of a row, from column + offset on, as `load_row` loads it. Neighbouring threads of a row have neighbouring
    vectors. All lanes of a warp take part. `certain`: it has neither the row's first nor its last column."""
    count = cute.size(src)
    vec, first = count // parts, column + offset
    place = start + cutlass.Int64(column) * parts + offset * parts
    held = cute.make_tensor(src.iterator, cute.make_layout((count,)))
    if cutlass.const_expr(not ragged or (aligned and certain)):
        if first < columns:
            cute.autovec_copy(held, device.vector(dst, place, count))
    else:
        rest = Uint32(0)
        if cutlass.const_expr(aligned):
            if (first >= 0) & (first + vec <= columns):
                cute.autovec_copy(held, device.vector(dst, place, count))
            else:
                rest = _bits_inside(first, columns, vec)
        else:
            rest = _bits_inside(first, columns, vec)
            if cutlass.const_expr(parts == 1):
                left, group = columns - first, min(per_row, WARP)
                rest = rest & device.store_anywhere(held, dst, place, first, left, Int64(left), group)
        if rest != 0:
            for i in cutlass.range(vec, unroll_full=True):
                if device.bit(rest, i):
                    for part in cutlass.range_constexpr(parts):
                        (dst.iterator + place + (i * parts + part)).store(held[i * parts + part])


def _bits_inside(first: cutlass.Int32, columns: cutlass.Int32, vec: int) -> cutlass.Uint32:
    """A bit mask of a vector's columns, from `first` on, that are inside the row."""
    return device.first_bits(Int64(columns - first), vec) & ~device.first_bits(Int64(-first), vec)


@cute.jit
def scatter_row(
    src: cute.Tensor, dst: cute.Tensor, place: cute.Coord, modes: cutlass.Constexpr[tuple[int | None, ...]],
    extents: tuple[cutlass.Int32, ...], first: cutlass.Int32, columns: cutlass.Int32, width: cutlass.Constexpr[int],
    ragged: cutlass.Constexpr[bool],
) -> None:  # fmt: skip
    """Store one vector of a row as `gather_row` loads it: as one where its columns are adjacent in the tensor, else element by element.
    Of `width` columns that share a value, the first is stored."""
    vec = cute.size(src)
    adjacent = not ragged and width == 1 and modes[-1] == len(extents) - 1 and dst.stride[-1] == 1
    if cutlass.const_expr(adjacent):
        if first < columns:
            where = _in_row(place, modes, coordinates(first, extents))
            cute.autovec_copy(src, device.vector(dst, cute.crd2idx(where, dst.layout), vec))
    else:
        for i in cutlass.range_constexpr(0, vec, min(vec, width)):
            c = first + i
            if (c >= 0) & (c < columns) & (c % width == 0):
                dst[_in_row(place, modes, coordinates(c, extents))] = src[i]


def _back(where: cute.Coord, back: tuple[int, ...], shape: cute.Shape) -> cute.Coord:
    """The coordinates so many places back along each mode, brought inside the tensor."""
    return tuple(device.clip_index(p - n, s) if n else p for p, n, s in zip(where, back, shape, strict=True))


def _in_row(place: cute.Coord, modes: tuple[int | None, ...], column: Places) -> cute.Coord:
    """A row's coordinates joined with a column's."""
    return tuple(p if m is None else column[m] for p, m in zip(place, modes, strict=True))


def pick(table: cute.Tensor, where: tuple[device.Vector | int, ...], dtype: type[Numeric]) -> device.Vector:
    """A table's elements in the compute type `dtype`, at a place for each element of a vector. A place has an integer for each mode
    of the table. They are vectors, which are clamped to the mode, or numbers."""
    first = next(w for w in where if isinstance(w, cute.TensorSSA))
    count = cute.size(first.shape)
    found = cute.make_rmem_tensor((count,), table.element_type)
    for i in range(count):
        place = [
            device.clip_index(w[i], n) if isinstance(w, cute.TensorSSA) else w
            for w, n in zip(where, table.shape, strict=True)
        ]
        found[i] = table[tuple(place)]
    return found.load() != 0 if dtype is cutlass.Boolean else device.cast(found.load(), dtype)
