"""Device functions of kernels that reduce: reading rows in pieces, and folding values over threads, blocks and clusters.

A row is shared by `per_row` neighbouring threads of a block (a power of two), and by all blocks of a cluster. Each thread
holds `vectors` pieces of `vec` columns, `step` columns apart. What lies beyond a row's end is never accessed; values
there are replaced by the reduction's identity. Every fold has a fixed order: two runs agree to the bit.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64, Numeric
from cutlass.memory import SmemAllocator

from codegen.runtime import device

WARP = 32
Vector = device.Vector


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
    dtype = Int32 if dtype is Boolean else dtype
    result = cute.make_rmem_tensor((vec,), dtype)
    result.fill(identity(op, dtype))
    return result


def accumulate(running: cute.Tensor, op: str, value: Vector, inside: Vector) -> None:
    """Fold a vector in, where its columns lie inside the row."""
    dtype = running.element_type
    value = value.to(dtype)
    running.store(combine(op, running.load(), device.where(inside, value, identity(op, dtype))))


def inside(first: cutlass.Int32, columns: cutlass.Int32, vec: int, ragged: bool) -> Vector:
    """Which of a vector's columns, from `first` on, lie inside the row."""
    mask = cute.make_rmem_tensor((vec,), Boolean)
    if not ragged:
        mask.fill(first < columns)
    else:
        for i in range(vec):
            mask[i] = (first + i >= 0) & (first + i < columns)
    return mask.load()


# Rows in pieces


@cute.jit
def load_row(
    src: cute.Tensor,
    start: cutlass.Int64,
    first: cutlass.Int32,
    step: cutlass.Constexpr[int],
    columns: cutlass.Int32,
    dst: cute.Tensor,
    ragged: cutlass.Constexpr[bool],
    aligned: cutlass.Constexpr[bool],
):
    """A thread's vectors of a row that begins at element `start` of a compact tensor, into dst (vec, vectors); zeros
    outside. Where the row is no multiple of a vector (`ragged`), `aligned` says that vectors are still aligned in memory,
    for which `first` may be negative; else each is put together from the two that hold it."""
    vec, vectors = cute.size(dst, mode=[0]), cute.size(dst, mode=[1])
    dst.fill(0)
    for v in cutlass.range_constexpr(vectors):
        c = first + v * step
        if cutlass.const_expr(not ragged):
            if c < columns:
                place = cute.assume(start + c, divby=vec)
                cute.autovec_copy(cute.make_tensor(src.iterator + place, cute.make_layout((vec,))), dst[None, v])
        else:
            if (c >= 0) & (c + vec <= columns):
                if cutlass.const_expr(aligned):
                    place = cute.assume(start + c, divby=vec)
                    cute.autovec_copy(cute.make_tensor(src.iterator + place, cute.make_layout((vec,))), dst[None, v])
                else:
                    device.load_anywhere(src, start + c, dst[None, v])
            else:
                for i in cutlass.range_constexpr(vec):
                    if (c + i >= 0) & (c + i < columns):
                        dst[i, v] = (src.iterator + start + c + i).load()


@cute.jit
def store_row(
    src: cute.Tensor,
    dst: cute.Tensor,
    start: cutlass.Int64,
    first: cutlass.Int32,
    columns: cutlass.Int32,
    ragged: cutlass.Constexpr[bool],
    aligned: cutlass.Constexpr[bool],
    group: cutlass.Constexpr[int],
):
    """Store one vector of a row, as `load_row` loads it. `group` neighbouring lanes hold neighbouring vectors; all lanes
    take part."""
    vec = cute.size(src)
    if cutlass.const_expr(not ragged):
        if first < columns:
            place = cute.assume(start + first, divby=vec)
            cute.autovec_copy(src, cute.make_tensor(dst.iterator + place, cute.make_layout((vec,))))
    else:
        rest = device.first_bits(Int64(columns - first), vec)
        rest = rest & ~device.first_bits(Int64(-first), vec)
        if cutlass.const_expr(aligned):
            if (first >= 0) & (first + vec <= columns):
                place = cute.assume(start + first, divby=vec)
                cute.autovec_copy(src, cute.make_tensor(dst.iterator + place, cute.make_layout((vec,))))
                rest = cutlass.Uint32(0)
        else:
            rest = rest & device.store_anywhere(
                src, dst, start + first, first, columns - first, Int64(columns - first), group
            )
        if rest != 0:
            for i in cutlass.range_constexpr(vec):
                if device.bit(rest, i):
                    (dst.iterator + start + first + i).store(src[i])


# Folding over threads


def shared(threads: int, per_row: int, cluster: int, dtypes: tuple[type[Numeric], ...]) -> list[cute.Tensor]:
    """Shared memory for one stage's statistics: a value a warp of each row, for each of them."""
    if per_row <= WARP and cluster == 1:
        return []
    rows, warps = threads // per_row, max(per_row // WARP, 1)
    allocator = SmemAllocator()
    held = [Int32 if d is Boolean else d for d in dtypes]
    return [allocator.allocate_tensor(d, cute.make_layout((rows, warps), stride=(warps, 1)), 16) for d in held]


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


@cute.jit
def over_row(
    running: list[cute.Tensor],
    ops: cutlass.Constexpr[tuple[str, ...]],
    buffers: list[cute.Tensor],
    per_row: cutlass.Constexpr[int],
    cluster: cutlass.Constexpr[int],
):
    """Each row's statistics, from all its threads' running values; every thread gets them."""
    values = [over_lanes(over_vector(r, op), op, min(per_row, WARP)) for r, op in zip(running, ops, strict=True)]
    if cutlass.const_expr(per_row > WARP or cluster > 1):
        warps = max(per_row // WARP, 1)
        tidx, _, _ = cute.arch.thread_idx()
        lane, warp, row = tidx % WARP, tidx % per_row // WARP, tidx // per_row
        if lane == 0:
            for k in cutlass.range_constexpr(len(ops)):
                buffers[k][row, warp] = values[k][0]
        if cutlass.const_expr(cluster > 1):
            cute.arch.cluster_arrive()
            cute.arch.cluster_wait()
        else:
            cute.arch.sync_threads()
        values = [_gathered(buffers[k], ops[k], row, lane, warps, cluster) for k in range(len(ops))]
    return [v[0] for v in values]


@cute.jit
def _gathered(
    buffer, op: cutlass.Constexpr[str], row, lane, warps: cutlass.Constexpr[int], cluster: cutlass.Constexpr[int]
):
    """The fold of all warps' values of a row, of every block of the cluster: a power of two of them."""
    count = warps * cluster
    group = min(WARP, count)
    total = cute.full((1,), identity(op, buffer.element_type), buffer.element_type)
    for base in cutlass.range_constexpr(0, count, group):
        j = base + lane % group
        place = buffer.iterator + row * warps + j % warps
        if cutlass.const_expr(cluster > 1):
            place = cute.arch.map_dsmem_ptr(place, j // warps)
        total = combine(op, total, cute.full((1,), place.load(), buffer.element_type))
    return over_lanes(total, op, group)
