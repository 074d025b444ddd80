"""Device functions of kernels that reduce along rows, over threads, blocks and clusters.

A row is shared by `per_row` neighbouring threads of a block (a power of two, or a number of warps), and by all blocks of a cluster. Each thread holds
`vectors` pieces of `vec` columns, `step` columns apart. Elements beyond a row's end are never accessed; their values are
replaced by the reduction's identity. Every reduction has a fixed order: two runs agree to the bit. `access` loads and stores
pieces, and `partials` reduces over rows.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64, Numeric, Uint32
from cutlass.memory import SmemAllocator

from codegen.device import functions as device
from codegen.device.math.elementary import exp_term
from codegen.shared import WARP

Vector = device.Vector
# The columns of a vector that are inside a row: all (None), a mask, or its first column and the row's number of columns
Inside: TypeAlias = Any
# A sum that follows a maximum: their places among the statistics, the exponential (or `TIES`), and the factor in its argument
Rescaled: TypeAlias = tuple[int, int, str, float]
Ways: TypeAlias = tuple[tuple[str, float], ...]  # how sums follow one maximum: these two of each
AT_ONCE = 8  # warps' values that every lane reads


def identity(op: str, dtype: type[Numeric]) -> Any:
    """The identity of a reduction. For sums of floats it is -0.0, since adding 0.0 changes -0.0, so the compiler could not drop the
    addition; `result` ends such sums."""
    if op in ("sum", "mean"):
        return device.negative_zero(dtype) if dtype.is_float else 0
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


def result(op: str, value: Vector) -> Vector:
    """The final result of a reduction: an empty sum, or a sum of only -0.0, is 0.0, as in jnp."""
    return value + 0.0 if op in ("sum", "mean") and value.dtype.is_float else value


def accumulator(vec: int, op: str, dtype: type[Numeric]) -> cute.Tensor:
    """A thread's running values, one for each element of a vector."""
    return accumulators(vec, 1, op, dtype)[None, 0]


def accumulate(
    running: list[cute.Tensor],
    ops: tuple[str, ...],
    values: Vector | tuple[Vector, ...],
    inside: Inside,
    rescaled: tuple[Rescaled, ...] = (),
) -> None:
    """Reduce vectors, one for each statistic, into the running values, where their columns are inside the row. Sums that follow a
    maximum are `rescaled` to the largest maximum of all columns; their vector is the maximum's."""
    values = values if isinstance(values, tuple) else (values,)
    for k, (held, op, value) in enumerate(zip(running, ops, values, strict=True)):
        own = _masked(value.to(held.element_type), op, inside) if k not in _followers(rescaled) else value
        if sums := [(place, (power, scale)) for place, maximum, power, scale in rescaled if maximum == k]:
            rise(op, held, [running[place] for place, _ in sums], own, tuple(way for _, way in sums), inside)
        elif k not in _followers(rescaled):
            held.store(combine(op, held.load(), own))


def _followers(rescaled: tuple[Rescaled, ...]) -> list[int]:
    """The places of sums that follow a maximum: they are reduced with it."""
    return [place for place, *_ in rescaled]


def _masked(value: Vector, op: str, inside: Inside) -> Vector:
    """A vector with the identity where its columns are outside the row."""
    if isinstance(inside, tuple):
        return _inside_row(value, op, *inside)
    return value if inside is None else device.where(inside, value, identity(op, value.dtype))


def _inside_row(value: Vector, op: str, first: cutlass.Int32, columns: cutlass.Int32) -> Vector:
    """A vector with the identity where its columns, from `first` on, are outside the row."""
    held = cute.make_rmem_tensor(value.shape, value.dtype)
    held.store(value)
    _replace_outside(held, op, first, columns)
    return held.load()


@cute.jit
def _replace_outside(
    held: cute.Tensor, op: cutlass.Constexpr[str], first: cutlass.Int32, columns: cutlass.Int32
) -> None:
    vec = cute.size(held)
    if (first < 0) | (first + vec > columns):  # true for few vectors: for the others a branch costs less than masks
        nothing = held.element_type(identity(op, held.element_type))
        for i in cutlass.range_constexpr(vec):
            outside = Uint32(first + i) >= Uint32(columns)  # a column before the row is a large number without its sign
            held[i] = cutlass.select_(outside, nothing, held[i])


def accumulators(vec: int, vectors: int, op: str, dtype: type[Numeric]) -> cute.Tensor:
    """A thread's running values, one for each of its columns: (vec, vectors)."""
    dtype = Int32 if dtype is Boolean else dtype
    result = cute.make_rmem_tensor((vec, vectors), dtype)
    result.fill(identity(op, dtype))
    return result


def column_accumulators(
    vec: int, vectors: int, op: str, dtype: type[Numeric], shared: bool, threads: int
) -> cute.Tensor:
    """The accumulators of columns; `shared`: in a thread's part of shared memory, interleaved with its neighbours' by 16 bytes."""
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
    v: int,
    running: list[cute.Tensor],
    ops: tuple[str, ...],
    values: tuple[Vector, ...],
    inside: Inside,
    rescaled: tuple[Rescaled, ...] = (),
) -> None:
    """Reduce vectors into the running values of the v-th vector's columns, or into a single value where these share a result. Sums
    that follow a maximum are `rescaled` where it rises; their vector is the maximum's."""
    for k, op in enumerate(ops):
        if k in _followers(rescaled):
            continue
        sums = [(place, power, scale) for place, maximum, power, scale in rescaled if maximum == k]
        places = [k, *(place for place, _, _ in sums)]
        own = [values_at(v, running[place]) for place in places]
        value, ways = values[k], tuple((power, scale) for _, power, scale in sums)
        shared = cute.size(own[0]) < cute.size(value.shape)
        if ways:
            value = _masked(value.to(own[0].element_type), op, inside)
            (rise if shared else _follow)(op, own[0], own[1:], value, ways, inside)
        elif shared:
            one = accumulator(cute.size(value.shape), op, own[0].element_type)
            accumulate([one], (op,), value, inside)
            own[0].store(combine(op, own[0].load(), over_vector(one, op)))
        else:
            accumulate(own[:1], (op,), value, inside)
        for place, held in zip(places, own, strict=True):
            _keep_at(v, running[place], held)


def values_at(v: int, running: cute.Tensor) -> cute.Tensor:
    """The running values of the v-th vector's columns in registers: their own, or copies of those in shared memory."""
    if running.memspace != cute.AddressSpace.smem:
        return running[None, v]
    own = cute.make_rmem_tensor((cute.size(running, mode=[0]),), running.element_type)
    place = cute.make_tensor(own.iterator, cute.make_layout(running.shape[0]))
    for j in range(running.shape[0][1]):
        cute.autovec_copy(running[(None, j), v], place[None, j])
    return own


def _keep_at(v: int, running: cute.Tensor, own: cute.Tensor) -> None:
    """Writes copies of the v-th vector's running values back to shared memory."""
    if running.memspace == cute.AddressSpace.smem:
        place = cute.make_tensor(own.iterator, cute.make_layout(running.shape[0]))
        for j in range(running.shape[0][1]):
            cute.autovec_copy(place[None, j], running[(None, j), v])


def columns_left(total: cutlass.Int64, row: cutlass.Int32, width: int) -> cutlass.Int32:
    """The number of `total` elements that are in this row of `width` elements."""
    left = total - Int64(row) * width
    left = cutlass.select_(left < width, left, Int64(width))
    return Int32(cutlass.select_(left < 0, Int64(0), left))


def within(v: int, vectors: int, ragged: bool) -> bool:
    """Whether a thread's v-th vector of an existing row is certainly inside it. Only the last one may cross its end. Where vectors
    do not begin with the row, so may the last but one, and the first may begin before the row."""
    return 0 < v < vectors - 2 if ragged else v < vectors - 1


def inside(first: cutlass.Int32, columns: cutlass.Int32, vec: int, ragged: bool, certain: bool) -> Inside:
    """The columns of a vector, from `first` on, that are inside the row."""
    if certain:
        return None
    return (first, columns) if ragged else cute.full((vec,), first < columns, Boolean)


def count_up(first: cutlass.Int32, vec: int) -> Vector:
    """The columns of a vector: first, first + 1, ..."""
    return device.counting(vec, first)


# Reductions over threads


def shared(
    threads: int, per_row: int, cluster: int, dtypes: tuple[type[Numeric], ...], turns: int = 1
) -> list[cute.Tensor]:
    """Shared memory for one stage's statistics, for each of them (turns, rows, warps of a row in all its blocks). In a cluster the
    last tensor holds a barrier for each turn, which counts the bytes that all blocks send. With turns, no barrier is needed
    between the reads of a row and the writes of the row after the next."""
    if per_row <= WARP and cluster == 1:
        return []
    rows, warps = threads // per_row, max(per_row // WARP, 1) * cluster
    allocator = SmemAllocator()
    held = [Int32 if d is Boolean else d for d in dtypes]
    if warps % 2 == 1 and warps > 1:  # the compiler reads four at once; identities fill them up
        warps = -(-warps // 4) * 4
    layout = cute.make_layout((turns, rows, warps), stride=(rows * warps, warps, 1))
    found = [allocator.allocate_tensor(d, layout, 16) for d in held]
    if cluster > 1:
        found.append(allocator.allocate_tensor(Int64, cute.make_layout((turns,)), 16))
    return found


@cute.jit
def meet(buffers: list[cute.Tensor], cluster: cutlass.Constexpr[int]) -> None:
    """Before the first reduction: wait until all blocks of a cluster run and the barriers of their stages are initialised.
    `buffers` is the shared memory of all stages."""
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
    """The reduction of a thread's own values, in pairs."""
    values = [cute.full((1,), running[i], running.element_type) for i in range(cute.size(running))]
    while len(values) > 1:
        odd = values[len(values) & ~1 :]
        values = [combine(op, values[i], values[i + 1]) for i in range(0, len(values) - 1, 2)] + odd
    return values[0]


def over_lanes(value: Vector, op: str, lanes: int) -> Vector:
    """The reduction over groups of `lanes` neighbouring lanes; all of them get the result."""
    while lanes > 1:
        lanes //= 2
        other = cute.arch.shuffle_sync_bfly(value[0], lanes)
        value = combine(op, value, cute.full((1,), other, value.dtype))
    return value


def over_group(value: Vector, op: str, columns: int) -> Vector:
    """The reduction of each group of `columns` columns of a row, as a vector with the result for each column. A group is a whole
    number of vectors of neighbouring lanes. All lanes of a warp take part."""
    vec = cute.size(value.shape)
    held = cute.make_rmem_tensor((vec,), Int32 if value.dtype is Boolean else value.dtype)
    held.store(value.to(held.element_type))
    total = cute.full((vec,), over_lanes(over_vector(held, op), op, columns // vec)[0], held.element_type)
    if value.dtype is Boolean:
        return total != 0
    return total / columns if op == "mean" else total


@cute.jit
def _meet_row(row: cutlass.Int32, rows: cutlass.Constexpr[int], per_row: cutlass.Constexpr[int]) -> None:
    """The threads of a row wait for each other, but not for the block's other rows. Each row's barrier is a constant: for unknown
    numbers the assembler reserves all 16 for a block, and an SM has too few for many blocks."""
    if cutlass.const_expr(1 < rows < 16):
        for i in cutlass.range_constexpr(rows):
            if row == i:
                cute.arch.barrier(barrier_id=i + 1, number_of_threads=per_row)
    else:
        cute.arch.sync_threads()


@cute.jit
def over_row(
    running: list[cute.Tensor],
    ops: cutlass.Constexpr[tuple[str, ...]],
    buffers: list[cute.Tensor],
    per_row: cutlass.Constexpr[int],
    cluster: cutlass.Constexpr[int],
    turn: cutlass.Int32 = 0,
    rescaled: cutlass.Constexpr[tuple[Rescaled, ...]] = (),
) -> list[Numeric]:
    """Each row's statistics, from all its threads' running values; every thread gets them. Rows that a block reduces one after the
    other have the turns 0, 1, 2, ..."""
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
            more = cute.size(buffers[0], mode=[2]) - per_row // WARP
            if cutlass.const_expr(more > 0):
                if (warp == 0) & (lane < more):
                    for k in cutlass.range_constexpr(len(ops)):
                        dtype = buffers[k].element_type
                        buffers[k][slot, row, per_row // WARP + lane] = dtype(identity(ops[k], dtype))
            _meet_row(row, cute.size(buffers[0], mode=[1]), per_row)
        warps = cute.size(buffers[0], mode=[2])
        # For few values, a read by all lanes is faster than shuffles; rescaled values cost more than that
        few = warps in (1, 2, 4, AT_ONCE) and len(rescaled) == 0
        lanes = 1 if cutlass.const_expr(few) else min(WARP, warps & -warps)
        values = [_of_warps(buffers[k], slot, row, lane % lanes, lanes) for k in range(len(ops))]
        values = all_over_lanes(values, ops, lanes, rescaled)
    return [result(op, v)[0] for op, v in zip(ops, values, strict=True)]


def all_over_lanes(
    values: list[list[Vector]], ops: tuple[str, ...], lanes: int, rescaled: tuple[Rescaled, ...]
) -> list[Vector]:
    """The reduction of each statistic over a lane's values, and over groups of `lanes` neighbouring lanes. Sums that follow a
    maximum are first rescaled to the maximum of all these lanes."""
    followed = {place: (maximum, power, scale) for place, maximum, power, scale in rescaled}
    found: list[Vector] = []
    for k, op in enumerate(ops):
        own = values[k]
        if k in followed:  # a sum, which comes after its maximum
            maximum, power, scale = followed[k]
            seen, risen_to = values[maximum], found[maximum][0]
            own = [rescale(value, m[0], risen_to, power, scale) for value, m in zip(own, seen, strict=True)]
        total = own[0]
        for value in own[1:]:
            total = combine(op, total, value)
        found.append(over_lanes(total, op, lanes))
    return found


@cute.jit
def _send(
    values: list[Vector],
    buffers: list[cute.Tensor],
    barrier: cute.Pointer,
    slot: cutlass.Int32,
    row: cutlass.Int32,
    warp: cutlass.Int32,
    lane: cutlass.Int32,
    cluster: cutlass.Constexpr[int],
) -> None:
    """Send a warp's values to every block of the cluster, whose barrier counts the bytes."""
    tidx, _, _ = cute.arch.thread_idx()
    own = cute.arch.block_idx_in_cluster() * (cute.size(buffers[0], mode=[2]) // cluster) + warp
    count = cute.size(buffers[0]) // cute.size(buffers[0], mode=[0])
    if tidx == 0:
        total = sum(count * b.element_type.width // 8 for b in buffers[: len(values)])
        cute.arch.mbarrier_arrive_and_expect_tx(barrier, total)
    if lane < cluster:
        for k in cutlass.range_constexpr(len(values)):
            # A layout of one element loses its stride, with which a float64 would have one word
            held = cute.make_rmem_tensor((2,), buffers[k].element_type)
            held.fill(values[k][0])
            words = cute.recast_tensor(held, Int32)
            place = buffers[k].iterator + cute.crd2idx((slot, row, own), buffers[k].layout)
            sent = tuple(words[i] for i in range(cute.size(words) // 2))
            cute.arch.store_async_dsmem(place, sent, barrier, lane)


def _of_warps(buffer: cute.Tensor, slot: Int32, row: Int32, lane: Int32, lanes: int) -> list[Vector]:
    """The values of a row's warps, in every block of the cluster, that one of `lanes` lanes reduces first: a power of two of them."""
    count = cute.size(buffer, mode=[2])
    if lanes > 1:
        return [cute.full((1,), buffer[slot, row, base + lane], buffer.element_type) for base in range(0, count, lanes)]
    held = cute.make_rmem_tensor((count,), buffer.element_type)
    cute.autovec_copy(buffer[slot, row, None], held)
    return [cute.full((1,), held[i], buffer.element_type) for i in range(count)]


# Sums of exponentials that follow a maximum while it rises, and numbers of elements that equal it (`codegen.graph.online`)
TIES = "ties"


def rescale(value: Vector, was: Numeric, now: Numeric, power: str, scale: float) -> Vector:
    """Rescales sums of `power` of `scale` times differences from the maximum `was` to the maximum `now`, which is no smaller. A
    thread that has seen only -inf adds nothing to a row with larger values."""
    if power == TIES:
        return device.where(cute.full(value.shape, was == now, Boolean), value, 0.0)
    was, now = (cute.full((1,), m, value.dtype) for m in (was, now))
    factor = _POWERS[power]((was - now) * scale)
    factor = device.where(was == now, 1.0, factor)  # also where both are infinite
    nothing = (was == -float("inf")) & (now > -float("inf"))
    scaled = value * cute.full(value.shape, factor[0], value.dtype)
    return device.where(cute.full(value.shape, nothing[0], Boolean), 0.0, scaled)


# `exp_term`: the approximate exponential of an element, at most one
_POWERS = {"exp": cute.math.exp, "exp2": cute.math.exp2, "exp_term": lambda x: exp_term(x, True)}


def exponentials(value: Vector, maximum: Numeric, power: str, scale: float, finite: bool) -> Vector:
    """`power` of `scale` times the differences from a maximum, or from 0 where `finite` and the maximum is not finite."""
    base = cute.full((1,), maximum, value.dtype)
    if finite:
        base = device.where(device.isfinite(base), base, 0.0)
    return _POWERS[power]((value - cute.full(value.shape, base[0], value.dtype)) * scale)


def rise(op: str, maximum: cute.Tensor, sums: list[cute.Tensor], value: Vector, ways: Ways, inside: Inside) -> None:
    """Reduce a vector into a maximum, or by another `op`, and the sums that follow it, each in its way (power, scale). They have one
    element, or one for each of the vector's; the sums are below the largest of the maxima."""
    one = cute.size(maximum) == 1
    was = over_vector(maximum, op)[0]
    maximum.store(combine(op, maximum.load(), _over_values(value, op) if one else value))
    now = over_vector(maximum, op)[0]
    for held, (power, scale) in zip(sums, ways, strict=True):
        if power == TIES:
            terms = _tied(value, cute.full(value.shape, now, value.dtype), inside)
        else:
            terms = exponentials(value, now, power, scale, False)
        held.store(rescale(held.load(), was, now, power, scale) + (_over_values(terms, "sum") if one else terms))


def _tied(value: Vector, maximum: Vector, inside: Inside) -> Vector:
    """1 for elements inside the row that equal a maximum, and 0 for others, which may equal a maximum that is -inf."""
    return _masked(device.where(value == maximum, 1.0, cute.full(value.shape, 0.0, value.dtype)), "sum", inside)


def _over_values(value: Vector, op: str) -> Vector:
    """The reduction of a vector's elements."""
    held = cute.make_rmem_tensor(value.shape, value.dtype)
    held.store(value)
    return over_vector(held, op)


def _follow(op: str, maximum: cute.Tensor, sums: list[cute.Tensor], value: Vector, ways: Ways, inside: Inside) -> None:
    """Reduce a vector into one maximum, or result of another `op`, for each of its elements and the sums that follow
    these. The exponential of the distance to the maximum so far is the new term. Where the maximum rises, that
    exponential rescales the sum instead, and the new term is 1. A distance is NaN where a sum does not matter
    (`settled`), or has only seen -inf, so that it is multiplied by 0 where its maximum rises."""
    was, now = maximum.load(), combine(op, maximum.load(), value)
    apart = value - was
    rises, known = apart > 0, apart == apart
    for held, (power, scale) in zip(sums, ways, strict=True):
        if power == TIES:
            held.store(device.where(was == now, held.load(), 0.0) + _tied(value, now, inside))
            continue
        term = device.where(known, _POWERS[power](-cute.math.abs(apart) * scale), 1.0)
        own = held.load()
        held.store(device.where(rises, own * term + 1.0, own + term))
    maximum.store(now)


def settled(total: Vector, maximum: Vector, finite: bool) -> Vector:
    """A sum of exponentials that followed a maximum, at the end. Where the maximum is not finite, the sum is NaN. If the terms are
    then relative to 0 (`finite`), it is as large as the exponential of the maximum."""
    other = cute.math.exp(maximum) if finite else maximum - maximum
    return device.where(device.isfinite(maximum), result("sum", total), other)


def risen(maximum: cute.Tensor, seen: cute.Tensor, sums: list[cute.Tensor], ways: Ways, once: bool) -> Numeric:
    """The new maximum of a thread's values, which becomes `seen`. Its sums so far are rescaled to it, each in its way (power,
    scale), unless the row is read `once`, where there are none yet."""
    now = over_vector(maximum, "max")[0]
    if not once:
        for held, (power, scale) in zip(sums, ways, strict=True):
            held.store(rescale(held.load(), seen[0], now, power, scale))
    seen[0] = now
    return now


def rescale_held(held: cute.Tensor, seen: cute.Tensor, maximum: Numeric, power: str, scale: float) -> None:
    """Rescales the exponentials that a thread holds from the maximum that it has `seen` to the row's maximum."""
    held.store(rescale(held.load(), seen[0], maximum, power, scale))
