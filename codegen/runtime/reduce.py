"""Device functions of kernels that reduce: reading rows in pieces, and folding values over threads, blocks and clusters.

A row is shared by `per_row` neighbouring threads of a block (a power of two), and by all blocks of a cluster. Each thread
holds `vectors` pieces of `vec` columns, `step` columns apart. What lies beyond a row's end is never accessed; values
there are replaced by the reduction's identity. Every fold has a fixed order: two runs agree to the bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64, Numeric, Uint32
from cutlass.cutlass_dsl.cutlass import CuTeDSL
from cutlass.memory import SmemAllocator

from codegen.runtime import device

WARP = 32
EVICT = cute.nvgpu.CacheEvictionPriority
Vector = device.Vector
# Which of a vector's columns lie inside a row: all (None), a mask, or its first column and how many the row has
Inside: TypeAlias = Any
# A sum that follows a maximum: their places among the statistics, the exponential, and the factor inside it
Rescaled: TypeAlias = tuple[int, int, str, float]


def identity(op: str, dtype: type[Numeric]) -> bool | int | float:
    """What a reduction of nothing gives."""
    if op in ("sum", "mean"):
        return 0
    if op == "prod":
        return 1
    if op in ("any", "all"):
        return int(op == "all")
    if dtype.is_float:
        return -float("inf") if op == "max" else float("inf")
    low, high = device.limits(dtype)
    return low if op == "max" else high


def combine(op: str, a: Vector, b: Vector) -> Vector:
    """One step of a reduction, element by element."""
    if op in ("sum", "mean"):
        return a + b
    if op == "prod":
        return a * b
    return device.maximum(a, b) if op in ("max", "any") else device.minimum(a, b)


def accumulator(vec: int, op: str, dtype: type[Numeric]) -> cute.Tensor:
    """A thread's running values, one for each element of a vector."""
    return accumulators(vec, 1, op, dtype)[None, 0]


def accumulate(
    running: list[cute.Tensor], ops: tuple[str, ...], values: Vector | tuple[Vector, ...], inside: Inside
) -> None:
    """Fold vectors in, one for each statistic, where their columns lie inside the row."""
    values = values if isinstance(values, tuple) else (values,)
    for held, op, value in zip(running, ops, values, strict=True):
        value = value.to(held.element_type)
        if isinstance(inside, tuple):
            value = _inside_row(value, identity(op, held.element_type), *inside)
        elif inside is not None:
            value = device.where(inside, value, identity(op, held.element_type))
        held.store(combine(op, held.load(), value))


def _inside_row(value: Vector, other: bool | int | float, first: cutlass.Int32, columns: cutlass.Int32) -> Vector:
    """A vector with another value where its columns, from `first` on, lie outside the row."""
    held = cute.make_rmem_tensor(value.shape, value.dtype)
    held.store(value)
    _replace_outside(held, other, first, columns)
    return held.load()


@cute.jit
def _replace_outside(
    held: cute.Tensor, other: cutlass.Constexpr[bool | int | float], first: cutlass.Int32, columns: cutlass.Int32
):
    vec = cute.size(held)
    if (first < 0) | (first + vec > columns):  # few vectors: for the others a branch costs less than masks
        for i in cutlass.range(vec, unroll_full=True):
            if (first + i < 0) | (first + i >= columns):
                held[i] = held.element_type(other)


def accumulators(vec: int, vectors: int, op: str, dtype: type[Numeric]) -> cute.Tensor:
    """A thread's running values, one for each of its columns: (vec, vectors)."""
    dtype = Int32 if dtype is Boolean else dtype
    result = cute.make_rmem_tensor((vec, vectors), dtype)
    result.fill(identity(op, dtype))
    return result


def column_accumulators(
    vec: int, vectors: int, op: str, dtype: type[Numeric], shared: bool, threads: int
) -> cute.Tensor:
    """The same; `shared`: in a thread's own part of shared memory, 16 bytes of it next to those of its neighbour."""
    if not shared:
        return accumulators(vec, vectors, op, dtype)
    dtype = Int32 if dtype is Boolean else dtype
    wide = min(vec, 128 // dtype.width)
    whole = SmemAllocator().allocate_tensor(dtype, cute.make_layout((threads * vec * vectors,)), 16)
    layout = cute.make_layout(((wide, vec // wide), vectors), stride=((1, threads * wide), threads * vec))
    tidx, _, _ = cute.arch.thread_idx()
    result = cute.make_tensor(whole.iterator + cute.assume(tidx * wide, divby=wide), layout)
    for v in range(vectors):
        for i in range(vec):
            result[i, v] = dtype(identity(op, dtype))
    return result


def accumulate_at(
    v: int, running: list[cute.Tensor], ops: tuple[str, ...], values: tuple[Vector, ...], inside: Inside
) -> None:
    """Fold vectors into those of the v-th vector's columns."""
    for held, op, value in zip(running, ops, values, strict=True):
        if held.memspace == cute.AddressSpace.smem:
            own = cute.make_rmem_tensor((cute.size(held, mode=[0]),), held.element_type)
            place = cute.make_tensor(own.iterator, cute.make_layout(held.shape[0]))
            for j in range(held.shape[0][1]):
                cute.autovec_copy(held[(None, j), v], place[None, j])
            accumulate([own], (op,), value, inside)
            for j in range(held.shape[0][1]):
                cute.autovec_copy(place[None, j], held[(None, j), v])
        else:
            accumulate([held[None, v]], (op,), value, inside)


def columns_left(total: cutlass.Int64, row: cutlass.Int32, width: int) -> cutlass.Int32:
    """How many of `total` elements lie in this row of `width`."""
    left = total - Int64(row) * width
    left = cutlass.select_(left < width, left, Int64(width))
    return Int32(cutlass.select_(left < 0, Int64(0), left))


def within(v: int, vectors: int, ragged: bool) -> bool:
    """Whether a thread's v-th vector of a row that exists surely lies inside it: only the last may pass its end, and, where
    vectors do not begin with the row, the last but one, and the first begin before it."""
    return 0 < v < vectors - 2 if ragged else v < vectors - 1


def inside(first: cutlass.Int32, columns: cutlass.Int32, vec: int, ragged: bool, certain: bool) -> Inside:
    """Which of a vector's columns, from `first` on, lie inside the row."""
    if certain:
        return None
    return (first, columns) if ragged else cute.full((vec,), first < columns, Boolean)


def count_up(first: cutlass.Int32, vec: int) -> Vector:
    """The columns of a vector: first, first + 1, ..."""
    return device.counting(vec, first)


# Rows in pieces


@cute.jit
def load_one(src: cute.Tensor, place: cute.Coord, there: cutlass.Boolean, dst: cute.Tensor):
    """The one value of a row; zero where there is no such row."""
    dst.fill(0)
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
):
    """A thread's vectors of a row that begins at element `start` of a compact tensor, into dst (vec, vectors), or (parts,
    vec, vectors) where each column has several parts side by side; zeros outside the tensor, and any values of it outside
    the row. Where that is no multiple of a vector (`ragged`), `aligned` says that vectors are still aligned in memory, for
    which `first` may be negative; else each is put together from the two that hold it. What is read `once` leaves the
    first cache to what is read again."""
    cached = EVICT.NO_ALLOCATE if once else EVICT.EVICT_NORMAL
    vectors = cute.size(dst, mode=[cute.rank(dst) - 1])
    count = cute.size(dst) // vectors
    pieces = [cute.make_tensor(dst.iterator + v * count, cute.make_layout((count,))) for v in range(vectors)]
    dst.fill(0)
    if cutlass.const_expr(not ragged):
        for v in cutlass.range_constexpr(vectors):
            c = first + v * step
            if c < columns:
                place = start + cutlass.Int64(c) * parts
                cute.autovec_copy(device.vector(src, place, count), pieces[v], l1c_evict_priority=cached)
    else:
        whole = device.whole_vectors(src, count) if aligned or device.shiftable(pieces[0]) else Int64(0)
        place = start + cutlass.Int64(first) * parts
        skip = 0 if aligned else device.misalignment(place, count)  # the same for all vectors of a row
        base = place - skip
        left = _at_most(whole - base, Int64(columns - first) * parts + skip)  # of elements to read in vectors
        left = cutlass.select_(columns > 0, left, 0)  # a row that is not there has any place
        both = cute.make_rmem_tensor((count, 2), src.element_type)
        for v in cutlass.range_constexpr(vectors):
            at = v * step * parts
            if cutlass.const_expr(aligned):
                if at < left:
                    cute.autovec_copy(device.vector(src, base + at, count), pieces[v], l1c_evict_priority=cached)
            elif cutlass.const_expr(device.shiftable(pieces[0])):
                both.fill(0)
                if (at < left) & (at >= 2 * count or base + at >= 0):
                    cute.autovec_copy(device.vector(src, base + at, count), both[None, 0])
                if at + count < cutlass.select_(skip == 0, 0, left):
                    cute.autovec_copy(device.vector(src, base + (at + count), count), both[None, 1])
                device.shift_into(both, skip, pieces[v])
        # One by one what fills no vector of memory; apart, since branches between loads would make them wait for each other
        if (columns > 0) & (start + cutlass.Int64(columns) * parts > whole):
            for v in cutlass.range_constexpr(vectors):
                at = v * step * parts
                if (first + v * step < columns) & (place + (at + count) > whole):
                    device.load_elements(src, place + at, pieces[v])
        forget(dst)  # else the compiler would take the vectors apart here, for the few that come one by one


def _at_most(a: cutlass.Int64, b: cutlass.Int64) -> cutlass.Int32:
    """The lesser of the two, in 32 bits: a thread's vectors lie within less than 2**30 elements."""
    least = cutlass.select_(a < b, a, b)
    least = cutlass.select_(least < 2**30, least, Int64(2**30))
    return Int32(cutlass.select_(least < 0, Int64(0), least))


def staging(dtype: type[Numeric], count: int, vectors: int, rows: int, threads: int) -> cute.Tensor:
    """A thread's own part of shared memory, for its vectors of `count` elements of several rows: (count, vectors, rows).
    Neighbouring threads' vectors lie side by side."""
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
):
    """Send for a thread's vectors of a row, as `load_row` reads them, to its part of shared memory: dst (count, vectors)."""
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
):
    """What `fetch_row` brought, in registers: zeros outside the row."""
    count, vectors = cute.size(src, mode=[0]), cute.size(src, mode=[1])
    dst.fill(0)
    for v in cutlass.range_constexpr(vectors):
        if first + v * step < columns:
            cute.autovec_copy(src[None, v], cute.make_tensor(dst.iterator + v * count, cute.make_layout((count,))))


def forget(registers: cute.Tensor) -> None:
    """The same values, but to the compiler others: it keeps nothing that it computed from them, such as wider copies."""
    if cute.size(registers) * registers.element_type.width % 32 == 0:
        words = cute.recast_tensor(registers, Int32)
        for i in range(cute.size(words)):
            words[i] = device.unseen(words[i])


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
):
    """A row of a tensor that has only some of its axes, element by element. `place` are the row's coordinates, `extents`
    the extents of the axes that make a column, and `modes` says which of these each mode of the tensor is. It lacks the
    innermost one, or has it without its neighbours."""
    vec, vectors = cute.size(dst, mode=[0]), cute.size(dst, mode=[1])
    dst.fill(0)
    for v in cutlass.range_constexpr(vectors):
        if cutlass.const_expr(not ragged and len(extents) - 1 not in modes):  # one value serves a vector
            c = first + v * step
            if c < columns:
                column = _coordinates(c, extents)
                value = src[tuple(p if m is None else column[m] for p, m in zip(place, modes, strict=True))]
                for i in cutlass.range_constexpr(vec):
                    dst[i, v] = value
        else:
            _gather_vector(src, place, modes, extents, first + v * step, columns, dst[None, v])


@cute.jit
def _gather_vector(
    src: cute.Tensor,
    place: cute.Coord,
    modes: cutlass.Constexpr[tuple[int | None, ...]],
    extents: tuple[cutlass.Int32, ...],
    first: cutlass.Int32,
    columns: cutlass.Int32,
    dst: cute.Tensor,
):
    """One vector of `gather_row`, element by element."""
    for i in cutlass.range(cute.size(dst), unroll_full=True):
        c = first + i
        if c < columns:
            column = _coordinates(c, extents)
            dst[i] = src[tuple(p if m is None else column[m] for p, m in zip(place, modes, strict=True))]


def load_index(
    mode: int, extents: tuple[cutlass.Int32, ...], first: cutlass.Int32, step: int, dst: cute.Tensor
) -> None:
    """The coordinate along one of several axes that make a column."""
    for v in range(cute.size(dst, mode=[1])):
        for i in range(cute.size(dst, mode=[0])):
            dst[i, v] = _coordinates(first + v * step + i, extents)[mode]


def _coordinates(column: cutlass.Int32, extents: tuple[cutlass.Int32, ...]) -> list[cutlass.Int32]:
    found = []
    for extent in reversed(extents):
        found.append(column % extent)
        column = column // extent
    return found[::-1]


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
):
    """Store one vector of a row, from column + offset on, as `load_row` loads it. Neighbouring threads of a row hold
    neighbouring vectors; all lanes of a warp take part."""
    count = cute.size(src)
    vec, first = count // parts, column + offset
    place = start + cutlass.Int64(column) * parts + offset * parts
    held = cute.make_tensor(src.iterator, cute.make_layout((count,)))
    if cutlass.const_expr(not ragged):
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
    """One bit for each of a vector's columns, from `first` on, that lies inside the row."""
    return device.first_bits(Int64(columns - first), vec) & ~device.first_bits(Int64(-first), vec)


@cute.jit
def scatter_row(
    src: cute.Tensor,
    dst: cute.Tensor,
    place: cute.Coord,
    modes: cutlass.Constexpr[tuple[int | None, ...]],
    extents: tuple[cutlass.Int32, ...],
    first: cutlass.Int32,
    columns: cutlass.Int32,
    width: cutlass.Constexpr[int],
):
    """Store one vector of a row as `gather_row` loads it, element by element; of each `width` columns that share a value, the
    first's."""
    vec = cute.size(src)
    for i in cutlass.range_constexpr(0, vec, min(vec, width)):
        c = first + i
        if (c >= 0) & (c < columns) & (c % width == 0):
            where = _placed(place, modes, c, extents)
            dst[where] = src[i]


def _placed(place: cute.Coord, modes: tuple[int | None, ...], column: cutlass.Int32, extents: tuple) -> cute.Coord:
    """A row's coordinates with those of a column."""
    found = _coordinates(column, extents)
    return tuple(p if m is None else found[m] for p, m in zip(place, modes, strict=True))


# Folding over threads


def shared(
    threads: int, per_row: int, cluster: int, dtypes: tuple[type[Numeric], ...], turns: int = 1
) -> list[cute.Tensor]:
    """Shared memory for one stage's statistics, for each of them (turns, rows, warps of a row, in all blocks that share
    it). In a cluster the last tensor holds a barrier for each turn, which counts the bytes that all blocks send. Rows
    that take turns need no barrier between one's reading and the next but one's writing."""
    if per_row <= WARP and cluster == 1:
        return []
    rows, warps = threads // per_row, max(per_row // WARP, 1) * cluster
    allocator = SmemAllocator()
    held = [Int32 if d is Boolean else d for d in dtypes]
    layout = cute.make_layout((turns, rows, warps), stride=(rows * warps, warps, 1))
    found = [allocator.allocate_tensor(d, layout, 16) for d in held]
    if cluster > 1:
        found.append(allocator.allocate_tensor(Int64, cute.make_layout((turns,)), 16))
    return found


@cute.jit
def meet(buffers: list[cute.Tensor], cluster: cutlass.Constexpr[int]):
    """Before the first fold: the blocks of a cluster are all there, and so are the barriers of their stages, `buffers`
    the shared memory of all of these."""
    if cutlass.const_expr(cluster > 1):
        tidx, _, _ = cute.arch.thread_idx()
        if tidx == 0:
            for buffer in buffers:
                if cutlass.const_expr(cute.rank(buffer) == 1):
                    for turn in range(cute.size(buffer)):
                        cute.arch.mbarrier_init(buffer.iterator + turn, 1)
        cute.arch.mbarrier_init_fence()
        cute.arch.cluster_arrive_relaxed()
        cute.arch.cluster_wait()


def over_vector(running: cute.Tensor, op: str) -> Vector:
    """A thread's own values folded, in pairs."""
    values = [cute.full((1,), running[i], running.element_type) for i in range(cute.size(running))]
    while len(values) > 1:
        values = [combine(op, values[i], values[i + 1]) for i in range(0, len(values), 2)]
    return values[0]


def over_lanes(value: Vector, op: str, lanes: int) -> Vector:
    """Folded over groups of this many neighbouring lanes; all of them get the result."""
    while lanes > 1:
        lanes //= 2
        other = cute.arch.shuffle_sync_bfly(value[0], lanes)
        value = combine(op, value, cute.full((1,), other, value.dtype))
    return value


def over_group(value: Vector, op: str, columns: int) -> Vector:
    """Each group of so many columns of a row folded, to a vector that holds the result for each of its columns. A group lies
    with neighbouring lanes, a whole number of vectors; all lanes of a warp take part."""
    vec = cute.size(value.shape)
    held = cute.make_rmem_tensor((vec,), Int32 if value.dtype is Boolean else value.dtype)
    held.store(value.to(held.element_type))
    total = cute.full((vec,), over_lanes(over_vector(held, op), op, columns // vec)[0], held.element_type)
    if value.dtype is Boolean:
        return total != 0
    return total / columns if op == "mean" else total


@cute.jit
def over_row(
    running: list[cute.Tensor],
    ops: cutlass.Constexpr[tuple[str, ...]],
    buffers: list[cute.Tensor],
    per_row: cutlass.Constexpr[int],
    cluster: cutlass.Constexpr[int],
    turn: cutlass.Int32 = 0,
    rescaled: cutlass.Constexpr[tuple[Rescaled, ...]] = (),
):
    """Each row's statistics, from all its threads' running values; every thread gets them. Rows that a block folds one
    after the other have the turns 0, 1, 2, ..."""
    values = [[over_vector(r, op)] for r, op in zip(running, ops, strict=True)]
    values = all_over_lanes(values, ops, min(per_row, WARP), rescaled)
    if cutlass.const_expr(per_row > WARP or cluster > 1):
        tidx, _, _ = cute.arch.thread_idx()
        lane, warp, row = tidx % WARP, tidx % per_row // WARP, tidx // per_row
        turns = cute.size(buffers[0], mode=[0])
        slot = turn % turns if cutlass.const_expr(turns > 1) else 0
        if cutlass.const_expr(cluster > 1):
            barrier = buffers[len(ops)].iterator + slot
            _send(values, buffers, barrier, slot, row, warp, lane, cluster)
            cute.arch.mbarrier_wait(barrier, turn // turns % 2)
        else:
            if lane == 0:
                for k in cutlass.range_constexpr(len(ops)):
                    buffers[k][slot, row, warp] = values[k][0]
            cute.arch.sync_threads()
        values = [_of_warps(buffers[k], ops[k], slot, row, lane) for k in range(len(ops))]
        values = all_over_lanes(values, ops, min(WARP, cute.size(buffers[0], mode=[2])), rescaled)
    return [v[0] for v in values]


def all_over_lanes(
    values: list[list[Vector]], ops: tuple[str, ...], lanes: int, rescaled: tuple[Rescaled, ...]
) -> list[Vector]:
    """Each statistic folded over what a lane has of it, and over groups of this many neighbouring lanes. Sums that follow
    a maximum are rescaled to that of all these lanes first."""
    followed = {place: (maximum, power, scale) for place, maximum, power, scale in rescaled}
    found: list[Vector] = []
    for k, op in enumerate(ops):
        own = values[k]
        if k in followed:  # a sum, which stands after its maximum
            maximum, power, scale = followed[k]
            seen, risen_to = values[maximum], found[maximum][0]
            own = [rescale(value, m[0], risen_to, power, scale) for value, m in zip(own, seen, strict=True)]
        total = own[0]
        for value in own[1:]:
            total = combine(op, total, value)
        found.append(over_lanes(total, op, lanes))
    return found


@cute.jit
def _send(values: list, buffers: list[cute.Tensor], barrier, slot, row, warp, lane, cluster: cutlass.Constexpr[int]):
    """A warp's values to every block of the cluster, whose barrier counts their bytes as they come."""
    tidx, _, _ = cute.arch.thread_idx()
    own = cute.arch.block_idx_in_cluster() * (cute.size(buffers[0], mode=[2]) // cluster) + warp
    count = cute.size(buffers[0]) // cute.size(buffers[0], mode=[0])
    if tidx == 0:
        total = sum(count * b.element_type.width // 8 for b in buffers[: len(values)])
        cute.arch.mbarrier_arrive_and_expect_tx(barrier, total)
    if lane < cluster:
        for k in cutlass.range_constexpr(len(values)):
            held = cute.make_rmem_tensor((1,), buffers[k].element_type)
            held.store(values[k])
            words = cute.recast_tensor(held, Int32)
            place = buffers[k].iterator + cute.crd2idx((slot, row, own), buffers[k].layout)
            sent = tuple(words[i] for i in range(cute.size(words)))
            cute.arch.store_async_dsmem(place, sent, barrier, lane)


def _of_warps(buffer: cute.Tensor, op: str, slot, row, lane) -> list[Vector]:
    """A lane's share of all warps' values of a row, of every block of the cluster: a power of two of them."""
    count, dtype = cute.size(buffer, mode=[2]), buffer.element_type
    places = [base + lane % min(WARP, count) for base in range(0, count, WARP)]
    return [cute.full((1,), buffer[slot, row, place], dtype) for place in places]


# Sums of exponentials that follow a maximum while it rises (`codegen.online`)


def rescale(value: Vector, was: Numeric, now: Numeric, power: str, scale: float) -> Vector:
    """Sums of `power` of `scale` times differences from the maximum `was`, as sums of those from `now`, which is no less. A
    thread that has met nothing but -inf adds nothing to a row that holds more."""
    was, now = (cute.full((1,), m, value.dtype) for m in (was, now))
    factor = _POWERS[power]((was - now) * scale)
    factor = device.where(was == now, 1.0, factor)  # also where both are infinite
    nothing = (was == -float("inf")) & (now > -float("inf"))
    scaled = value * cute.full(value.shape, factor[0], value.dtype)
    return device.where(cute.full(value.shape, nothing[0], Boolean), 0.0, scaled)


_POWERS = {"exp": cute.math.exp, "exp2": cute.math.exp2}


def exponentials(value: Vector, maximum: Numeric, power: str, scale: float, finite: bool) -> Vector:
    """`power` of `scale` times the differences from a maximum; from 0 where only a `finite` one counts, and it is not."""
    base = cute.full((1,), maximum, value.dtype)
    if finite:
        base = device.where(device.isfinite(base), base, 0.0)
    return _POWERS[power]((value - cute.full(value.shape, base[0], value.dtype)) * scale)


def risen(
    maximum: cute.Tensor, seen: cute.Tensor, sums: list[cute.Tensor], ways: tuple[tuple[str, float], ...], once: bool
) -> Numeric:
    """The maximum of all that a thread has met, which is then what it has `seen`; its sums so far are rescaled to it, each
    in its way (power, scale), unless the row is read `once`, and there are none yet."""
    now = over_vector(maximum, "max")[0]
    if not once:
        for held, (power, scale) in zip(sums, ways, strict=True):
            held.store(rescale(held.load(), seen[0], now, power, scale))
    seen[0] = now
    return now


def rescale_kept(kept: cute.Tensor, seen: cute.Tensor, maximum: Numeric, power: str, scale: float) -> None:
    """Exponentials that a thread keeps, of differences from what it has `seen`, as those from the row's maximum."""
    kept.store(rescale(kept.load(), seen[0], maximum, power, scale))


# Folding over rows


def shared_columns(threads: int, per_row: int, count: int, dtypes: tuple[type[Numeric], ...]) -> list[cute.Tensor]:
    """Shared memory in which the rows of a block meet: `count` columns a thread, one statistic after the other in the
    same place."""
    if threads == per_row:
        return []
    held = [Int32 if d is Boolean else d for d in dtypes]
    layout = cute.make_layout((threads // per_row, per_row, count), stride=(per_row * count, 1, per_row))
    return [SmemAllocator().allocate_tensor(d, layout, 16) for d in held]


@cute.jit
def store_parts(
    running: list[cute.Tensor],
    ops: cutlass.Constexpr[tuple[str, ...]],
    parts: list[cute.Tensor],
    buffers: list[cute.Tensor],
    part: cutlass.Int32,
    first: cutlass.Int32,
    step: cutlass.Constexpr[int],
    columns: cutlass.Int32,
    per_row: cutlass.Constexpr[int],
):
    """Write what a block's rows came to, folded in the order of its threads, to `parts` (parts, columns)."""
    tidx, _, _ = cute.arch.thread_idx()
    row, lane = tidx // per_row, tidx % per_row
    vec, vectors = cute.size(running[0], mode=[0]), cute.size(running[0], mode=[1])
    if cutlass.const_expr(len(buffers) > 0):
        for k in cutlass.range_constexpr(len(ops)):
            for i in cutlass.range_constexpr(vec * vectors):
                buffers[k][row, lane, i] = running[k][i % vec, i // vec]
        cute.arch.sync_threads()
    if row == 0:
        for k in cutlass.range_constexpr(len(ops)):
            if cutlass.const_expr(len(buffers) > 0):
                for other in cutlass.range(1, cute.size(buffers[k], mode=[0])):
                    for i in cutlass.range_constexpr(vec * vectors):
                        mine = cute.full((1,), running[k][i % vec, i // vec], running[k].element_type)
                        theirs = cute.full((1,), buffers[k][other, lane, i], running[k].element_type)
                        running[k][i % vec, i // vec] = combine(ops[k], mine, theirs)[0]
            for v in cutlass.range_constexpr(vectors):
                for i in cutlass.range_constexpr(vec):
                    c = first + v * step + i
                    if c < columns:
                        parts[k][part, c] = running[k][i, v]


def overlaps() -> bool:
    """Whether a kernel may be launched while the one before it ends, which hides some microseconds of the launch."""
    return CuTeDSL._get_dsl().get_arch_enum().major >= 9


@cute.jit
def begin_next():
    """Once all blocks are here, the next kernel is launched."""
    if cutlass.const_expr(overlaps()):
        cute.arch.griddepcontrol_launch_dependents()


@cute.jit
def await_last():
    """Wait for what the kernel before has written."""
    if cutlass.const_expr(overlaps()):
        cute.arch.griddepcontrol_wait()


AT_ONCE = 17  # values that a thread has on their way: 8 warps ask at once for a part of each of 132 multiprocessors


@cute.jit
def fold_every(
    held: cute.Tensor,
    op: cutlass.Constexpr[str],
    read: cutlass.Constexpr[Callable[[cutlass.Int32], Numeric]],
    first: cutlass.Int32,
    end: cutlass.Int32,
    step: cutlass.Constexpr[int],
):
    """Fold what is read at `first`, `first + step`, ... before `end` into what is `held`, in this order."""
    dtype = held.element_type
    for start in cutlass.range(first, end, step * AT_ONCE):
        several = cute.make_rmem_tensor((AT_ONCE,), dtype)
        for i in cutlass.range_constexpr(AT_ONCE):  # no branch stands between one read and the next
            place = start + i * step
            several[i] = cutlass.select_(place < end, read(cutlass.min(place, end - 1)), dtype(identity(op, dtype)))
        for i in cutlass.range_constexpr(AT_ONCE):
            held.store(combine(op, held.load(), cute.full((1,), several[i], dtype)))


@cute.jit
def over_parts(parts: cute.Tensor, op: cutlass.Constexpr[str], column: cutlass.Int32):
    """All parts of a column folded, by the 8 warps of a block: the first one gets the result. `parts` is (parts,
    columns)."""
    tidx, _, _ = cute.arch.thread_idx()
    warp, lane = tidx // WARP, tidx % WARP
    dtype, warps = parts.element_type, 8
    held = cute.make_rmem_tensor((1,), dtype)
    held.fill(identity(op, dtype))
    if column < parts.shape[1]:
        fold_every(held, op, lambda part: parts[part, column], warp, parts.shape[0], warps)
    buffer = SmemAllocator().allocate_tensor(dtype, cute.make_layout((warps, WARP), stride=(WARP, 1)), 16)
    buffer[warp, lane] = held[0]
    cute.arch.sync_threads()
    value = cute.full((1,), buffer[0, lane], dtype)
    for other in cutlass.range_constexpr(1, warps):
        value = combine(op, value, cute.full((1,), buffer[other, lane], dtype))
    return value[0]


@cute.jit
def over_parts_of(
    parts: cute.Tensor,
    op: cutlass.Constexpr[str],
    place: cutlass.Int32,
    extents: tuple[cutlass.Int32, ...],
    kept: cutlass.Constexpr[tuple[bool, ...]],
):
    """All parts of all columns folded that share their `place` along some of several axes, by a block of 256 threads.
    `parts` is (parts, columns), `extents` make a column, `kept` says which of them make a place."""
    tidx, _, _ = cute.arch.thread_idx()
    dtype, threads = parts.element_type, 256
    held = cute.make_rmem_tensor((1,), dtype)
    held.fill(identity(op, dtype))
    count = _product(extents, kept)

    def read(j: cutlass.Int32) -> Numeric:
        return parts[j // count, _interleaved(place, j % count, extents, kept)]

    fold_every(held, op, read, tidx, parts.shape[0] * count, threads)
    buffers = shared(threads, threads, 1, (dtype,))
    (value,) = over_row([held], (op,), buffers, threads, 1)
    return value


def _product(extents: tuple[cutlass.Int32, ...], kept: tuple[bool, ...]) -> cutlass.Int32:
    """The product of the extents that are not kept."""
    count = Int32(1)
    for extent, k in zip(extents, kept, strict=True):
        count = count if k else count * extent
    return count


def _interleaved(
    place: cutlass.Int32, other: cutlass.Int32, extents: tuple[cutlass.Int32, ...], kept: tuple[bool, ...]
) -> cutlass.Int32:
    """The column at a place along the axes that are kept and at another along the rest."""
    column, stride = Int32(0), Int32(1)
    left = {
        True: sum(kept),
        False: len(kept) - sum(kept),
    }  # of the outermost axis of each kind, what is left is the place
    rest = {True: place, False: other}
    for extent, k in zip(reversed(extents), reversed(kept), strict=True):
        left[k] -= 1
        column = column + (rest[k] % extent if left[k] else rest[k]) * stride
        rest[k] = rest[k] // extent if left[k] else Int32(0)
        stride = stride * extent
    return column


@cute.jit
def over_all_parts(parts: cute.Tensor, op: cutlass.Constexpr[str]):
    """All parts folded, by a block of 256 threads. `parts` is (parts,)."""
    tidx, _, _ = cute.arch.thread_idx()
    dtype, threads = parts.element_type, 256
    held = cute.make_rmem_tensor((1,), dtype)
    held.fill(identity(op, dtype))
    fold_every(held, op, lambda part: parts[part], tidx, parts.shape[0], threads)
    buffers = shared(threads, threads, 1, (dtype,))
    (value,) = over_row([held], (op,), buffers, threads, 1)
    return value
