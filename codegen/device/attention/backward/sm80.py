"""The backward of attention for every architecture since Ampere, as two kernels that compute the scores again. Each gradient is
added up by one thread in a fixed order.

A block has a tile of rows that stay, and tiles of others pass through shared memory. In the kernel of dk and dv, rows of k and v
stay, and rows of q and do pass, of all heads that share k and v. In the kernel of dq, rows of q and do stay, and rows of k and v
pass. A warp has 16 of the rows that stay, and computes

    s, dp = the products of rows that stay with rows that pass
    p, ds = slope(s, dp)            the weights, and the gradient of the products
    dv += p @ do, dk += ds @ q      or dq += ds @ k: p and ds stay in registers

as `sm80` does, whose fragments these are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Uint8, Uint32
from cutlass.memory import SmemAllocator

from codegen.device import vectors
from codegen.device.attention import batches as batches_of
from codegen.device.attention.arguments import Backward, Problem, Slope
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
from codegen.device.gemm.panels import Panels, lane_of_a, lane_of_b
from codegen.shared import WARP, AttentionLaunch


def launch(stream: Any, given: Backward) -> None:
    """As `attention.launch_backward`."""
    q, k, how, sums = given.q, given.k, given.how, given.sums
    batches, lacking = q.shape[0], batches_of.lacking(k.stride[0])
    others = given.statistics, given.tensors, batches
    grid = {"block": (how.threads, 1, 1), "stream": stream, "preferred_smem_carveout": -1}
    count = cute.ceil_div(k.shape[1], how.tile_m) * batches_of.count(batches, lacking, False)
    first = 2 + len(sums.along_rows)
    functions = replace(given.functions, summed=range(first, first + len(sums.along_columns)))
    loop = Loop(functions, lacking, True, how)
    _attention_gradients((k, given.v), (q, given.do), (given.dk, given.dv), sums.along_columns, *others, loop).launch(
        grid=(cutlass.max(count, 1), 1, 1), **grid
    )
    count = cute.ceil_div(q.shape[1], how.tile_m) * cute.size(q, mode=[0])
    functions = replace(given.functions, summed=range(2, first))
    loop = Loop(functions, tuple(False for _ in lacking), False, how)
    _attention_gradients((q, given.do), (k, given.v), (given.dq,), sums.along_rows, *others, loop).launch(
        grid=(count, 1, 1), **grid
    )
    launch_pairs(stream, given)


def launch_pairs(stream: Any, given: Backward) -> None:
    """Compute sums of terms of each score over the axes of the batch that a result lacks. Its axes are (L, Q, S)."""
    q, k, how, sums = given.q, given.k, given.how, given.sums
    factors = q, k, given.v, given.do
    own = AttentionLaunch(64, 32 if max(how.d, how.e) > 64 else 64, how.d, how.e, warps=4, stages=1)
    for number, target in enumerate(sums.pairs, 2 + len(sums.along_rows) + len(sums.along_columns)):
        lacking = batches_of.lacking(target.stride[0])
        tiles = cute.ceil_div(q.shape[1], own.tile_m), cute.ceil_div(k.shape[1], own.tile_n)
        count = tiles[0] * tiles[1] * batches_of.count(q.shape[0], lacking, False)
        loop = Loop(replace(given.functions, summed=range(number, number + 1)), lacking, False, own)
        _attention_pairs(factors, target, given.statistics, given.tensors, q.shape[0], tiles, loop).launch(
            grid=(count, 1, 1), block=(own.threads, 1, 1), stream=stream, preferred_smem_carveout=-1
        )


@dataclass(frozen=True)
class Loop:
    """The constants of a kernel."""

    functions: Slope
    lacking: tuple[bool, ...]  # which axes of the batch the results lack: they are sums over them
    keys: bool  # whether rows of k stay
    how: AttentionLaunch


@dataclass(frozen=True)
class Staying:
    """The rows that stay in a block, with an element of the batch whose rows pass them."""

    problem: Problem
    places: tuple  # of the element
    rows: tuple  # the first and the last that stay
    keys: bool  # whether they are rows of k

    def tile(self, begin: Int32) -> Tile:
        """The tile with the rows that pass from `begin` on."""
        sizes = self.problem.sizes
        passing = (begin, cutlass.min(begin + self.problem.how.tile_n, sizes[0 if self.keys else 1]) - 1)
        rows, columns = (passing, self.rows) if self.keys else (self.rows, passing)
        return Tile(self.places, rows, columns, sizes)


@dataclass(frozen=True)
class Memory:
    """A block's tiles in shared memory: two of `tile_m` rows, 16 for each warp, and two of `tile_n` rows, by which
    these are multiplied. The first of each two has D columns, the second one E."""

    address: Int32
    # A lane's places in the four tiles, and in the last two with their rows as the contracted mode
    own: tuple[Int32, ...]
    how: AttentionLaunch

    @property
    def columns(self) -> tuple[int, ...]:
        return (self.how.d, self.how.e) * 2

    @property
    def panels(self) -> tuple[Panels, ...]:
        rows = (self.how.tile_m,) * 2 + (self.how.tile_n,) * 2
        return tuple(panels_of(r, c, "k") for r, c in zip(rows, self.columns, strict=True))

    @property
    def across(self) -> tuple[Panels, ...]:
        """The last two tiles, with their rows as the contracted mode."""
        return tuple(panels_of(self.how.tile_n, c, "halves") for c in self.columns[2:])

    def tile(self, number: int) -> Int32:
        """The address of a tile."""
        return self.address + sum(p.size for p in self.panels[:number])


def _allocated(warp: Int32, lane: Int32, how: AttentionLaunch) -> Memory:
    """The shared memory of a block, and a lane's places in it."""
    plain = Memory(Int32(0), (), how)
    bytes_of = sum(p.size for p in plain.panels)
    buffer = SmemAllocator().allocate_tensor(Uint8, cute.make_layout((bytes_of,)), 128)
    own_a = [lane_of_a(lane, warp * SLAB, p) for p in plain.panels[:2]]
    own_b = [lane_of_b(lane, Int32(0), p, BYTES) for p in (*plain.panels[2:], *plain.across)]
    return Memory(buffer.iterator.toint(), (*own_a, *own_b), how)


def _load(memory: Memory, number: int, source: cute.Tensor, places: tuple, row: Int32) -> None:
    """Start the copy of a tile's rows, from `row` on."""
    panels, columns = memory.panels[number], memory.columns[number]
    load_tile(source, places, row, memory.tile(number), columns, panels, memory.how)


def _await_loads() -> None:
    cute.arch.cp_async_commit_group()
    cute.arch.cp_async_wait_group(0)
    cute.arch.sync_threads()


@cute.kernel
def _attention_gradients(
    stay: tuple,  # (L, rows, D) and (L, rows, E): k and v, or q and do
    passing: tuple,  # q and do, or k and v
    gradients: tuple,  # dk and dv, or dq
    sums: tuple,  # (L, rows): of what `slope` gives besides, along the rows that stay
    statistics: tuple,
    tensors: tuple,
    batches: tuple,  # sizes of the batch's axes
    loop: cutlass.Constexpr[Loop],
) -> None:
    tensors = tuple(vectors.compacted(t) for t in tensors)
    tidx, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    warp, lane = cute.arch.make_warp_uniform(tidx // WARP), tidx % WARP
    keys, lacking, how = loop.keys, loop.lacking, loop.how
    dtype, wide = stay[0].element_type, how.tile_n
    held, count = stay[0].shape[1], cute.ceil_div(passing[0].shape[1], wide)
    sizes = (passing[0].shape[1], held) if cutlass.const_expr(keys) else (held, passing[0].shape[1])
    number, places = batches_of.own(block, batches, lacking)
    tile = number if cutlass.const_expr(keys) else cute.ceil_div(held, how.tile_m) - 1 - number  # the longest first
    first = tile * how.tile_m
    rows = (first, cutlass.min(first + how.tile_m, held) - 1)
    problem = Problem(sizes, batches, loop.functions, tensors, how, statistics=statistics, lacking=lacking)
    memory = _allocated(warp, lane, how)
    for i in cutlass.range_constexpr(2):
        _load(memory, i, stay[i], places, first)
    cute.arch.cp_async_commit_group()

    acc = tuple(cute.make_rmem_tensor((4, -(-memory.columns[i] // 16) * 2), Float32) for i in range(len(gradients)))
    for a in acc:
        a.fill(0)
    added = cute.make_rmem_tensor((2, max(1, len(sums))), Float32)
    added.fill(0)
    own_row = first + warp * SLAB + lane // 4
    for which in cutlass.range(batches_of.count(batches, lacking, True), unroll=1):
        here = batches_of.sharer(which, places, batches, lacking)
        staying = Staying(problem, here, rows, keys)
        at = _next(Int32(0), count, staying)
        while at < count:
            begin = at * wide
            for i in cutlass.range_constexpr(2):
                _load(memory, 2 + i, passing[i], here, begin)
            _await_loads()
            s, dp = _products(memory, dtype)
            _slopes(s, dp, added, own_row, begin, staying)
            _accumulate(acc[0], memory, 0, dp, dtype)
            if cutlass.const_expr(keys):
                _accumulate(acc[1], memory, 1, s, dtype)
            at = _next(at + 1, count, staying)
            cute.arch.sync_threads()  # the tiles are read
    cute.arch.cp_async_wait_group(0)
    cute.arch.sync_threads()
    for i in cutlass.range_constexpr(len(gradients)):
        own_tile, panels, columns = memory.tile(i), memory.panels[i], memory.columns[i]
        store_rows(acc[i], gradients[i], places, first + warp * SLAB, warp * SLAB, own_tile, panels, columns)
    for n in cutlass.range_constexpr(len(sums)):
        for half in cutlass.range_constexpr(2):
            batches_of.store_sum(added[half, n], sums[n], places, own_row + 8 * half, held)


@cute.jit
def _slopes(s: cute.Tensor, dp: cute.Tensor, added: cute.Tensor, row: Int32, begin: Int32, staying: Staying) -> None:
    """`_slope` of a tile that begins at `begin`: without the mask where it holds in the whole tile."""
    problem = staying.problem
    every, tiles = begin + problem.how.tile_n <= problem.sizes[0 if staying.keys else 1], problem.functions.tiles
    if cutlass.const_expr(tiles is not None):
        every = every & Boolean(tiles(staying.tile(begin), problem.tensors)[1])
    if every:
        _slope(s, dp, added, row, begin, staying, False)
    else:
        _slope(s, dp, added, row, begin, staying, True)


def _products(memory: Memory, dtype: Any) -> tuple[cute.Tensor, cute.Tensor]:
    """A warp's products (4, J) of its rows with the others: of the tiles of D columns, and of those of E."""
    s, dp = (cute.make_rmem_tensor((4, memory.how.tile_n // 8), Float32) for _ in range(2))
    for i, acc in enumerate((s, dp)):
        _multiply(acc, memory, i, dtype)
    return s, dp


def _multiply(acc: cute.Tensor, memory: Memory, which: int, dtype: Any) -> None:
    left, right = which, 2 + which
    words = cute.make_rmem_tensor((4,), Uint32)

    def words_of(step: int) -> list[Uint32]:
        fragment(memory.tile(left), memory.own[left], step, memory.panels[left], words)
        return [words[w] for w in range(4)]

    multiply(acc, words_of, memory.columns[left], memory.tile(right), memory.own[right], memory.panels[right], dtype)


def _accumulate(acc: cute.Tensor, memory: Memory, which: int, factor: cute.Tensor, dtype: Any) -> None:
    """Add to (4, J) the product of a warp's factor, from its accumulators, and the rows of one of the last two tiles."""
    narrow = cute.make_rmem_tensor((cute.size(factor),), dtype)
    flat = cute.make_tensor(factor.iterator, cute.make_layout((cute.size(factor),)))
    narrow.store(flat.load().to(dtype))
    words = cute.recast_tensor(narrow, Uint32)  # two columns of a row: (half, J)

    def words_of(step: int) -> list[Uint32]:
        return [words[(2 * step + i // 2) * 2 + i % 2] for i in range(4)]

    rows, right = 8 * cute.size(factor, mode=[1]), memory.tile(2 + which)
    accumulate(acc, words_of, rows, right, memory.own[4 + which], memory.across[which], dtype)


def _slope(
    s: cute.Tensor, dp: cute.Tensor, added: cute.Tensor, row: Int32, first: Int32, staying: Staying, masked: bool
) -> None:
    """Replace products (4, J) with weights, and the weights' gradients with those of the products. Where `masked`, rows that pass
    have no weight past the last. `added` are the sums (2, n) along a lane's rows that stay."""
    problem, places, keys = staying.problem, staying.places, staying.keys
    sizes, functions = problem.sizes, problem.functions
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
        given = tuple(cute.full((1,), x[places, own], Float32) for x in problem.statistics)
        made = functions.slope(Scores(places, own, others, sizes), a.load(), b.load(), given, problem.tensors, masked)
        a.store(made[0])
        b.store(made[1])
        for n, (i, half) in enumerate(line):
            there = columns[i] < sizes[0 if keys else 1]
            for values, kept in ((s, a[n]), (dp, b[n])):
                values[2 * half + i % 2, i // 2] = cutlass.select_(there, kept, Float32(0)) if masked else kept
        for t, which in enumerate(functions.summed):
            c = cute.make_rmem_tensor((len(line),), Float32)
            c.store(made[which])
            for n, (i, half) in enumerate(line):
                there = columns[i] < sizes[0 if keys else 1]
                added[half, t] += cutlass.select_(there, c[n], Float32(0)) if masked else c[n]


@cute.kernel
def _attention_pairs(
    factors: tuple,  # q, k, v, do
    target: cute.Tensor,  # (L, Q, S)
    statistics: tuple,
    tensors: tuple,
    batches: tuple,  # sizes of the batch's axes
    tiles: tuple,  # along Q and S
    loop: cutlass.Constexpr[Loop],
) -> None:
    """A block has a tile of the target, and walks over the elements of the batch that share it."""
    tensors = tuple(vectors.compacted(t) for t in tensors)
    tidx, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    warp, lane = cute.arch.make_warp_uniform(tidx // WARP), tidx % WARP
    lacking, functions, how = loop.lacking, loop.functions, loop.how
    (q, k, v, do), wide = factors, how.tile_n
    dtype, sizes = q.element_type, (q.shape[1], k.shape[1])
    number, places = batches_of.own(block, batches, lacking)
    first, begin = number // tiles[1] * how.tile_m, number % tiles[1] * wide
    rows = (first, cutlass.min(first + how.tile_m, sizes[0]) - 1)
    problem = Problem(sizes, batches, functions, tensors, how, statistics=statistics, lacking=lacking)
    memory = _allocated(warp, lane, how)
    loads = (q, first), (do, first), (k, begin), (v, begin)
    own_row = first + warp * SLAB + lane // 4
    total = cute.make_rmem_tensor((4, wide // 8), Float32)
    total.fill(0)
    for sharer in cutlass.range(batches_of.count(batches, lacking, True), unroll=1):
        here = batches_of.sharer(sharer, places, batches, lacking)
        staying = Staying(problem, here, rows, False)
        some, every = Boolean(True), begin + wide <= sizes[1]
        if cutlass.const_expr(functions.tiles is not None):
            found = functions.tiles(staying.tile(begin), tensors)
            some, every = Boolean(found[0]), every & Boolean(found[1])
        if some:
            for i in cutlass.range_constexpr(4):
                _load(memory, i, loads[i][0], here, loads[i][1])
            _await_loads()
            s, dp = _products(memory, dtype)
            if every:
                _add_terms(total, s, dp, own_row, begin, staying, False)
            else:
                _add_terms(total, s, dp, own_row, begin, staying, True)
            cute.arch.sync_threads()  # the tiles are read
    for half in cutlass.range_constexpr(2):
        for i in cutlass.range_constexpr(wide // 4):
            _store_pair(
                total[2 * half + i % 2, i // 2], target, places, own_row + 8 * half, _column(begin, lane, i), sizes
            )


def _column(first: Any, lane: Any, i: int) -> Any:
    """The column of a lane's i-th element of a row."""
    return first + (8 * (i // 2) + i % 2) + 2 * (lane % 4)


def _add_terms(
    total: cute.Tensor, s: cute.Tensor, dp: cute.Tensor, row: Int32, first: Int32, staying: Staying, masked: bool
) -> None:
    """Add one of the slope's results to sums (4, J)."""
    problem, places, sizes = staying.problem, staying.places, staying.problem.sizes
    lane, count = cute.arch.lane_idx(), 2 * cute.size(s, mode=[1])
    columns = tuple(_column(first, lane, i) for i in range(count))
    for half in range(2):
        own = cutlass.min(row + 8 * half, sizes[0] - 1)
        a, b = (cute.make_rmem_tensor((count,), Float32) for _ in range(2))
        for i in range(count):
            a[i], b[i] = s[2 * half + i % 2, i // 2], dp[2 * half + i % 2, i // 2]
        given = tuple(cute.full((1,), x[places, own], Float32) for x in problem.statistics)
        apart = () if masked else tuple(_column(0, 0, i) for i in range(count))
        at = Scores(places, own, columns, sizes, apart=apart)
        made = problem.functions.slope(at, a.load(), b.load(), given, problem.tensors, masked)
        a.store(made[problem.functions.summed[0]])
        for i in range(count):
            total[2 * half + i % 2, i // 2] += a[i]


@cute.jit
def _store_pair(
    value: cutlass.Float32, target: cute.Tensor, places: tuple, row: cutlass.Int32, column: cutlass.Int32, sizes: tuple
) -> None:
    if (row < sizes[0]) & (column < sizes[1]):
        target[places, row, column] = value.to(target.element_type)


@cute.jit
def _next(tile: Int32, count: Int32, staying: Staying) -> Int32:
    """The first passing tile from `tile` on for which the mask holds somewhere; `count` if there is none."""
    problem, tiles = staying.problem, staying.problem.functions.tiles
    if cutlass.const_expr(tiles is not None):
        looking = tile < count
        while looking:
            some = Boolean(tiles(staying.tile(tile * problem.how.tile_n), problem.tensors)[0])
            tile = cutlass.select_(some, tile, tile + 1)
            looking = cutlass.select_(some, Boolean(False), tile < count)
    return tile
