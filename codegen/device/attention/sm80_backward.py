"""The backward of attention for every architecture since Ampere, as two kernels that compute the scores again. Each gradient is
added up by one thread in a fixed order.

A block has a tile of rows that stay, and tiles of others pass through shared memory. In the kernel of dk and dv, rows of k and v
stay, and those of q and do pass, of all heads that share k and v; in that of dq it is the other way round. A warp has 16 of the
rows that stay, and computes

    s, dp = the products of rows that stay with rows that pass
    p, ds = slope(s, dp)            the weights, and the gradient of the products
    dv += p @ do, dk += ds @ q      or dq += ds @ k: p and ds stay in registers

as `sm80` does, whose fragments these are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Uint8, Uint32
from cutlass.memory import SmemAllocator

from codegen.device import vectors
from codegen.device.attention import batches as batches_of
from codegen.device.attention.fragments import (
    BYTES,
    SLAB,
    accumulate,
    fragment,
    load_tile,
    multiply,
    panels_of,
    store_rows,
)
from codegen.device.attention.scores import Scores, Tile
from codegen.device.gemm.sm80 import Panels, lane_of_a, lane_of_b
from codegen.shared import WARP, AttentionLaunch


def launch(
    stream: Any,
    q: cute.Tensor,
    k: cute.Tensor,
    v: cute.Tensor,
    do: cute.Tensor,
    dq: cute.Tensor,
    dk: cute.Tensor,
    dv: cute.Tensor,
    sums: tuple[tuple[cute.Tensor, ...], ...],
    statistics: tuple[cute.Tensor, ...],
    tensors: tuple,
    slope: Callable[..., Any],
    tiles: Callable[..., Any] | None,
    how: AttentionLaunch,
) -> None:
    """As `attention.launch_backward`."""
    lacking = batches_of.lacking(k.stride[0])
    batches = q.shape[0]
    functions = (slope, tiles)
    grid = {"block": (how.threads, 1, 1), "stream": stream, "preferred_smem_carveout": -1}
    count = cute.ceil_div(k.shape[1], how.tile_m) * batches_of.count(batches, lacking, False)
    along_rows, along_columns, pairs = sums
    terms = (0, len(along_rows))  # where those of the sums begin
    _kernel(
        (k, v), (q, do), (dk, dv), along_columns, statistics, tensors, batches, lacking, functions, True, terms[1], how
    ).launch(grid=(cutlass.max(count, 1), 1, 1), **grid)
    none = tuple(False for _ in lacking)
    count = cute.ceil_div(q.shape[1], how.tile_m) * cute.size(q, mode=[0])
    _kernel(
        (q, do), (k, v), (dq,), along_rows, statistics, tensors, batches, none, functions, False, terms[0], how
    ).launch(grid=(count, 1, 1), **grid)
    launch_pairs(
        stream, (q, k, v, do), pairs, statistics, tensors, functions, len(along_rows) + len(along_columns), how
    )


def launch_pairs(
    stream: Any, factors: tuple, pairs: tuple, statistics: tuple, tensors: tuple, functions: tuple, term: int,
    how: AttentionLaunch,
) -> None:  # fmt: skip
    """Compute sums of terms of each score over the axes of the batch that a result lacks. Its axes are (L, Q, S)."""
    q, k, _, _ = factors
    own = AttentionLaunch(64, 32 if max(how.d, how.e) > 64 else 64, how.d, how.e, warps=4, stages=1)
    for number, target in enumerate(pairs):
        lacking = batches_of.lacking(target.stride[0])
        tiles = cute.ceil_div(q.shape[1], own.tile_m), cute.ceil_div(k.shape[1], own.tile_n)
        count = tiles[0] * tiles[1] * batches_of.count(q.shape[0], lacking, False)
        _pairs(
            factors, target, statistics, tensors, q.shape[0], tiles, lacking, functions, 2 + term + number, own
        ).launch(grid=(count, 1, 1), block=(own.threads, 1, 1), stream=stream, preferred_smem_carveout=-1)


@cute.kernel
def _kernel(
    stay: tuple,  # (L, rows, D) and (L, rows, E): k and v, or q and do
    passing: tuple,  # q and do, or k and v
    gradients: tuple,  # dk and dv, or dq
    sums: tuple,  # (L, rows): of what `slope` gives besides, along the rows that stay
    statistics: tuple,
    tensors: tuple,
    batches: tuple,  # sizes of the batch's axes
    lacking: cutlass.Constexpr[tuple[bool, ...]],  # which of them rows that stay lack
    functions: cutlass.Constexpr,  # slope, tiles
    keys: cutlass.Constexpr[bool],  # whether rows of k stay
    term: cutlass.Constexpr[int],  # the number of the first one that is summed
    how: cutlass.Constexpr[AttentionLaunch],
):
    tensors = tuple(vectors.compacted(t) for t in tensors)
    tidx, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    warp, lane = cute.arch.make_warp_uniform(tidx // WARP), tidx % WARP
    dtype, wide = stay[0].element_type, how.tile_n
    held, count = stay[0].shape[1], cute.ceil_div(passing[0].shape[1], wide)
    sizes = (passing[0].shape[1], held) if cutlass.const_expr(keys) else (held, passing[0].shape[1])
    number, places = batches_of.own(block, batches, lacking)
    tile = number if cutlass.const_expr(keys) else cute.ceil_div(held, how.tile_m) - 1 - number  # the longest first
    first = tile * how.tile_m
    rows = (first, cutlass.min(first + how.tile_m, held) - 1)

    # Two tiles that stay, and two that pass, in shared memory
    columns = (how.d, how.e)
    of_stay = tuple(panels_of(how.tile_m, c, "k") for c in columns)
    of_pass = tuple(panels_of(wide, c, "k") for c in columns)
    across = tuple(panels_of(wide, c, "halves") for c in columns)
    sizes_of = [p.size for p in (*of_stay, *of_pass)]
    starts = [sum(sizes_of[:i]) for i in range(4)]
    buffer = SmemAllocator().allocate_tensor(Uint8, cute.make_layout((sum(sizes_of),)), 128)
    shared = buffer.iterator.toint()
    own_a = tuple(lane_of_a(lane, warp * SLAB, p) for p in of_stay)
    own_b = tuple(lane_of_b(lane, Int32(0), p, BYTES) for p in of_pass)
    own_t = tuple(lane_of_b(lane, Int32(0), p, BYTES) for p in across)
    for i in cutlass.range_constexpr(2):
        load_tile(stay[i], places, first, shared + starts[i], columns[i], of_stay[i], how.threads)
    cute.arch.cp_async_commit_group()

    acc = tuple(cute.make_rmem_tensor((4, -(-columns[i] // 16) * 2), Float32) for i in range(len(gradients)))
    for a in acc:
        a.fill(0)
    added = cute.make_rmem_tensor((2, max(1, len(sums))), Float32)
    added.fill(0)
    own_row = first + warp * SLAB + lane // 4
    into = added, 2 + term, len(sums)
    for which in cutlass.range(batches_of.count(batches, lacking, True), unroll=1):
        here = batches_of.sharer(which, places, batches, lacking)
        at = _next(functions[1], here, rows, Int32(0), count, sizes, tensors, keys, wide)
        while at < count:
            begin = at * wide
            for i in cutlass.range_constexpr(2):
                load_tile(passing[i], here, begin, shared + starts[2 + i], columns[i], of_pass[i], how.threads)
            cute.arch.cp_async_commit_group()
            cute.arch.cp_async_wait_group(0)
            cute.arch.sync_threads()
            s, dp = (cute.make_rmem_tensor((4, wide // 8), Float32) for _ in range(2))
            _multiply(s, shared, starts[0], starts[2], own_a[0], own_b[0], (of_stay[0], of_pass[0]), how.d, dtype)
            _multiply(dp, shared, starts[1], starts[3], own_a[1], own_b[1], (of_stay[1], of_pass[1]), how.e, dtype)
            every = begin + wide <= passing[0].shape[1]
            if cutlass.const_expr(functions[1] is not None):
                own = _tile(here, rows, begin, sizes, keys, wide)
                every = every & Boolean(functions[1](own, tensors)[1])
            if every:
                _slope(s, dp, into, here, own_row, begin, sizes, statistics, tensors, functions[0], keys, False)
            else:
                _slope(s, dp, into, here, own_row, begin, sizes, statistics, tensors, functions[0], keys, True)
            _accumulate(acc[0], dp, shared + starts[2], own_t[0], across[0], dtype)
            if cutlass.const_expr(keys):
                _accumulate(acc[1], s, shared + starts[3], own_t[1], across[1], dtype)
            at = _next(functions[1], here, rows, at + 1, count, sizes, tensors, keys, wide)
            cute.arch.sync_threads()  # the tiles are read
    cute.arch.cp_async_wait_group(0)
    cute.arch.sync_threads()
    for i in cutlass.range_constexpr(len(gradients)):
        store_rows(
            acc[i], gradients[i], places, first + warp * SLAB, warp * SLAB, shared + starts[i], of_stay[i], columns[i]
        )
    for n in cutlass.range_constexpr(len(sums)):
        for half in cutlass.range_constexpr(2):
            batches_of.store_sum(added[half, n], sums[n], places, own_row + 8 * half, held)


def _multiply(
    acc: cute.Tensor, shared: Int32, left: int, right: int, own_a: Int32, own_b: Int32, panels: tuple[Panels, Panels],
    columns: int, dtype: Any,
) -> None:  # fmt: skip
    """A warp's products (4, J) of its rows that stay with the rows that pass."""
    words = cute.make_rmem_tensor((4,), Uint32)

    def words_of(step: int) -> list[Uint32]:
        fragment(shared + left, own_a, step, panels[0], words)
        return [words[w] for w in range(4)]

    multiply(acc, words_of, columns, shared + right, own_b, panels[1], dtype)


def _accumulate(acc: cute.Tensor, factor: cute.Tensor, shared: Int32, own: Int32, panels: Panels, dtype: Any) -> None:
    """Add to (4, J) the product of a warp's factor, from its accumulators, and the rows that pass."""
    narrow = cute.make_rmem_tensor((cute.size(factor),), dtype)
    flat = cute.make_tensor(factor.iterator, cute.make_layout((cute.size(factor),)))
    narrow.store(flat.load().to(dtype))
    words = cute.recast_tensor(narrow, Uint32)  # two columns of a row: (half, J)

    def words_of(step: int) -> list[Uint32]:
        return [words[(2 * step + i // 2) * 2 + i % 2] for i in range(4)]

    accumulate(acc, words_of, 8 * cute.size(factor, mode=[1]), shared, own, panels, dtype)


def _slope(
    s: cute.Tensor, dp: cute.Tensor, sums: tuple[cute.Tensor, int, int], places: tuple, row: Int32, first: Int32, sizes: tuple,
    statistics: tuple, tensors: tuple, slope: Callable[..., Any], keys: bool, masked: bool,
) -> None:  # fmt: skip
    """Replace products (4, J) with weights, and the weights' gradients with those of the products. Where `masked`, rows that pass
    have no weight past the last. `sums` are those (2, n) along a lane's rows that stay, the first of the slope's results that they
    add, and their number."""
    lane, count = cute.arch.lane_idx(), 2 * cute.size(s, mode=[1])
    columns = tuple(_column(first, lane, i) for i in range(count))
    # A row of scores is a row of accumulators, or, where rows of k stay, a column of them
    lines = (
        [[(i, half) for half in range(2)] for i in range(count)]
        if keys
        else [[(i, half) for i in range(count)] for half in range(2)]
    )
    for number, line in enumerate(lines):
        place = columns[number] if keys else row + 8 * number
        own = cutlass.min(place, sizes[0] - 1)
        others = tuple(row + 8 * half if keys else columns[i] for i, half in line)
        a, b = (cute.make_rmem_tensor((len(line),), Float32) for _ in range(2))
        for n, (i, half) in enumerate(line):
            a[n], b[n] = s[2 * half + i % 2, i // 2], dp[2 * half + i % 2, i // 2]
        given = tuple(cute.full((1,), x[places, own], Float32) for x in statistics)
        made = slope(Scores(places, own, others, sizes), a.load(), b.load(), given, tensors, masked)
        a.store(made[0])
        b.store(made[1])
        for n, (i, half) in enumerate(line):
            there = columns[i] < sizes[0 if keys else 1]
            for values, kept in ((s, a[n]), (dp, b[n])):
                values[2 * half + i % 2, i // 2] = cutlass.select_(there, kept, Float32(0)) if masked else kept
        added, begin, number_of = sums
        for t, term in enumerate(made[begin : begin + number_of]):
            c = cute.make_rmem_tensor((len(line),), Float32)
            c.store(term)
            for n, (i, half) in enumerate(line):
                there = columns[i] < sizes[0 if keys else 1]
                added[half, t] += cutlass.select_(there, c[n], Float32(0)) if masked else c[n]


@cute.kernel
def _pairs(
    factors: tuple,  # q, k, v, do
    target: cute.Tensor,  # (L, Q, S)
    statistics: tuple,
    tensors: tuple,
    batches: tuple,  # sizes of the batch's axes
    tiles: tuple,  # along Q and S
    lacking: cutlass.Constexpr[tuple[bool, ...]],  # which axes of the batch the target lacks
    functions: cutlass.Constexpr,  # slope, tiles
    which: cutlass.Constexpr[int],  # of the slope's results
    how: cutlass.Constexpr[AttentionLaunch],
):
    """A block has a tile of the target, and walks over the elements of the batch that share it."""
    tensors = tuple(vectors.compacted(t) for t in tensors)
    q, k, v, do = factors
    tidx, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    warp, lane = cute.arch.make_warp_uniform(tidx // WARP), tidx % WARP
    dtype, wide, sizes = q.element_type, how.tile_n, (q.shape[1], k.shape[1])
    number, places = batches_of.own(block, batches, lacking)
    first, begin = number // tiles[1] * how.tile_m, number % tiles[1] * wide
    rows = (first, cutlass.min(first + how.tile_m, sizes[0]) - 1)
    loads = (
        (q, how.d, first, how.tile_m),
        (do, how.e, first, how.tile_m),
        (k, how.d, begin, wide),
        (v, how.e, begin, wide),
    )
    panels = [panels_of(count, columns, "k") for _, columns, _, count in loads]
    starts = [sum(p.size for p in panels[:i]) for i in range(4)]
    buffer = SmemAllocator().allocate_tensor(Uint8, cute.make_layout((sum(p.size for p in panels),)), 128)
    shared = buffer.iterator.toint()
    own_a = [lane_of_a(lane, warp * SLAB, p) for p in panels[:2]]
    own_b = [lane_of_b(lane, Int32(0), p, BYTES) for p in panels[2:]]
    own_row = first + warp * SLAB + lane // 4
    total = cute.make_rmem_tensor((4, wide // 8), Float32)
    total.fill(0)
    for sharer in cutlass.range(batches_of.count(batches, lacking, True), unroll=1):
        here = batches_of.sharer(sharer, places, batches, lacking)
        some, every = Boolean(True), begin + wide <= sizes[1]
        if cutlass.const_expr(functions[1] is not None):
            found = functions[1](_tile(here, rows, begin, sizes, False, wide), tensors)
            some, every = Boolean(found[0]), every & Boolean(found[1])
        if some:
            for i in cutlass.range_constexpr(4):
                source, columns, row, _ = loads[i]
                load_tile(source, here, row, shared + starts[i], columns, panels[i], how.threads)
            cute.arch.cp_async_commit_group()
            cute.arch.cp_async_wait_group(0)
            cute.arch.sync_threads()
            s, dp = (cute.make_rmem_tensor((4, wide // 8), Float32) for _ in range(2))
            _multiply(s, shared, starts[0], starts[2], own_a[0], own_b[0], (panels[0], panels[2]), how.d, dtype)
            _multiply(dp, shared, starts[1], starts[3], own_a[1], own_b[1], (panels[1], panels[3]), how.e, dtype)
            if every:
                _add_terms(total, s, dp, here, own_row, begin, sizes, statistics, tensors, functions[0], which, False)
            else:
                _add_terms(total, s, dp, here, own_row, begin, sizes, statistics, tensors, functions[0], which, True)
            cute.arch.sync_threads()  # the tiles are read
    for half in cutlass.range_constexpr(2):
        for i in cutlass.range_constexpr(wide // 4):
            _store_pair(
                total[2 * half + i % 2, i // 2], target, places, own_row + 8 * half, _column(begin, lane, i), sizes
            )


def _column(first: Int32, lane: Int32, i: int) -> Int32:
    """The column of a lane's i-th element of a row."""
    return first + (8 * (i // 2) + i % 2) + 2 * (lane % 4)


def _add_terms(
    total: cute.Tensor, s: cute.Tensor, dp: cute.Tensor, places: tuple, row: Int32, first: Int32, sizes: tuple, statistics: tuple,
    tensors: tuple, slope: Callable[..., Any], which: int, masked: bool,
) -> None:  # fmt: skip
    """Add one of the slope's results to sums (4, J)."""
    lane, count = cute.arch.lane_idx(), 2 * cute.size(s, mode=[1])
    columns = tuple(_column(first, lane, i) for i in range(count))
    for half in range(2):
        own = cutlass.min(row + 8 * half, sizes[0] - 1)
        a, b = (cute.make_rmem_tensor((count,), Float32) for _ in range(2))
        for i in range(count):
            a[i], b[i] = s[2 * half + i % 2, i // 2], dp[2 * half + i % 2, i // 2]
        given = tuple(cute.full((1,), x[places, own], Float32) for x in statistics)
        a.store(slope(Scores(places, own, columns, sizes), a.load(), b.load(), given, tensors, masked)[which])
        for i in range(count):
            total[2 * half + i % 2, i // 2] += a[i]


@cute.jit
def _store_pair(
    value: cutlass.Float32, target: cute.Tensor, places: tuple, row: cutlass.Int32, column: cutlass.Int32, sizes: tuple
):
    if (row < sizes[0]) & (column < sizes[1]):
        target[places, row, column] = value.to(target.element_type)


def _tile(places: tuple, rows: tuple, begin: Int32, sizes: tuple, keys: bool, wide: int) -> Tile:
    """The tile of rows that stay and `wide` rows that pass."""
    passing = (begin, cutlass.min(begin + wide, sizes[0 if keys else 1]) - 1)
    return Tile(places, passing, rows, sizes) if keys else Tile(places, rows, passing, sizes)


@cute.jit
def _next(
    tiles: cutlass.Constexpr[Callable[..., Any] | None],
    places: tuple,
    rows: tuple,
    tile: Int32,
    count: Int32,
    sizes: tuple,
    tensors: tuple,
    keys: cutlass.Constexpr[bool],
    wide: cutlass.Constexpr[int],
):
    """The first passing tile from `tile` on for which the mask holds somewhere; `count` if there is none."""
    if cutlass.const_expr(tiles is not None):
        looking = tile < count
        while looking:
            some = Boolean(tiles(_tile(places, rows, tile * wide, sizes, keys, wide), tensors)[0])
            tile = cutlass.select_(some, tile, tile + 1)
            looking = cutlass.select_(some, Boolean(False), tile < count)
    return tile
