"""Attention's main loop for every architecture since Ampere: cp.async, ldmatrix, mma.sync.

A block has `tile_m` rows of q, each warp 16 of them; where there are few, they may be of all heads that share k and v. Tiles of k
and v pass through shared memory; tiles for which the mask holds nowhere are skipped. Blocks may share a row's tiles: each writes
what it has summed, and another kernel adds that up in a fixed order. A lane holds the scores of two of the warp's rows, lane // 4 +
{0, 8}, at the columns 8j + 2(lane % 4) + {0, 1}. The weights stay in registers: as a product leaves them, the next one takes them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64, Uint8, Uint32
from cutlass.memory import SmemAllocator

from codegen.device import functions as device
from codegen.device import vectors
from codegen.device.attention import batches as batches_of
from codegen.device.attention import joining
from codegen.device.attention import pages as pages_of
from codegen.device.attention.arguments import Forward, Functions, Problem
from codegen.device.attention.fragments import (
    BYTES,
    SLAB,
    accumulate,
    fragment,
    load_rows,
    load_tile,
    multiplied,
    multiply,
    panels_of,
    store_packed,
    store_part,
    store_rows,
)
from codegen.device.attention.scores import Row, Scores, Tile, powers, whole
from codegen.device.gemm.panels import Panels, lane_of_a, lane_of_b
from codegen.shared import LEAST_COLUMNS, WARP, AttentionLaunch

MOST_HELD = 8  # steps along D of which a warp holds q in registers


def launch(stream: Any, given: Forward, parts: cute.Tensor) -> None:
    """As `attention.launch`."""
    q, k, pages, how = given.q, given.k, given.pages, given.how
    batches = q.shape[0]
    lacking = pages_of.lacking(k, pages) if how.packed else tuple(False for _ in batches)
    own = batches_of.count(batches, lacking, False)
    rows = q.shape[1] * batches_of.count(batches, lacking, True)
    count = cute.ceil_div(rows, how.tile_m) * own * how.splits
    _attention(q, k, given.v, pages, given.o, given.tensors, given.functions, parts, batches, lacking, how).launch(
        grid=(count, 1, 1), block=(how.threads, 1, 1), stream=stream, preferred_smem_carveout=-1
    )
    if how.splits > 1:
        sizes = q.shape[1], pages_of.count(k, pages, how)
        joining.join(given.o, given.tensors, given.functions, parts, batches, lacking, sizes, how).launch(
            grid=(cute.ceil_div(own * rows, joining.JOINED), 1, 1), block=(joining.JOINED * WARP, 1, 1), stream=stream
        )


@dataclass(frozen=True)
class Memory:
    """The tiles of a block in shared memory: q, whose place o takes, then the stages of k and v."""

    how: AttentionLaunch

    @property
    def q(self) -> Panels:
        return panels_of(self.how.tile_m, self.how.d, "k")

    @property
    def o(self) -> Panels:
        return panels_of(self.how.tile_m, self.how.e, "k")

    @property
    def k(self) -> Panels:
        return panels_of(self.how.tile_n, self.how.d, "k")

    @property
    def v(self) -> Panels:
        return panels_of(self.how.tile_n, self.how.e, "halves")

    @property
    def begin(self) -> int:
        """The number of bytes before the first stage."""
        return max(self.q.size, self.o.size)

    @property
    def stage(self) -> int:
        """The number of bytes of a stage."""
        return self.k.size + self.v.size

    @property
    def held(self) -> int:
        """The number of steps along D of which a warp holds q in registers: all of them, or 0."""
        steps = -(-self.how.d // 16)
        return steps if steps <= MOST_HELD else 0


@cute.kernel
def _attention(
    q: cute.Tensor,  # (L, Q, D)
    k: cute.Tensor,  # (L, S, D)
    v: cute.Tensor,  # (L, S, E)
    pages: tuple,  # (L, N) each, of k and of v, or nothing: then these are (L, (R, P), D) and (L, (R, P), E)
    o: cute.Tensor,  # (L, Q, E)
    tensors: tuple,
    functions: cutlass.Constexpr[Functions],
    parts: cute.Tensor,  # (splits, rows, E + 2): what blocks have summed, and their rows' `top` and `total`
    batches: tuple,  # sizes of the batch's axes
    lacking: cutlass.Constexpr[tuple[bool, ...]],  # which of them a block's rows are of
    how: cutlass.Constexpr[AttentionLaunch],
) -> None:
    tensors = tuple(vectors.compacted(t) for t in tensors)
    tidx, _, _ = cute.arch.thread_idx()
    index, _, _ = cute.arch.block_idx()
    warp, lane = cute.arch.make_warp_uniform(tidx // WARP), tidx % WARP
    split, dtype = index % how.splits, multiplied(q, how)
    sizes = q.shape[1], pages_of.count(k, pages, how)
    block = batches_of.block(index // how.splits, sizes, batches, lacking, how)
    problem, memory = Problem(sizes, batches, functions, tensors, how, lacking=lacking), Memory(how)
    first_n, tiles_n = _tiles_of(split, block, problem)
    buffer = SmemAllocator().allocate_tensor(Uint8, cute.make_layout((memory.begin + how.stages * memory.stage,)), 128)
    shared = buffer.iterator.toint()
    own_q, own_k = lane_of_a(lane, warp * SLAB, memory.q), lane_of_b(lane, Int32(0), memory.k, BYTES)
    own_v = lane_of_b(lane, Int32(0), memory.v, BYTES)

    _load_rows(q, block, shared, memory)
    tile = _next(first_n, tiles_n, block, problem)
    if cutlass.const_expr(how.stages > 1):
        if tile < tiles_n:
            _load_stage(k, v, pages, block.places, tile, shared + memory.begin, memory)
    cute.arch.cp_async_commit_group()

    rQ = _held_rows(shared, own_q, memory)
    acc_o, top, total = _accumulators(how)
    own_row = block.first + warp * SLAB + lane // 4
    halves = tuple(block.at(own_row + 8 * half) for half in range(2))

    reading = Int32(memory.begin)
    while tile < tiles_n:
        after = _next(tile + 1, tiles_n, block, problem)
        writing = 2 * memory.begin + memory.stage - reading if how.stages > 1 else Int32(memory.begin)
        coming = after if how.stages > 1 else tile
        if coming < tiles_n:
            _load_stage(k, v, pages, block.places, coming, shared + writing, memory)
        cute.arch.cp_async_commit_group()
        _await_loads(how.stages - 1)

        acc = cute.make_rmem_tensor((4, how.tile_n // 8), Float32)
        _multiply(acc, rQ, shared, own_q, shared + reading, own_k, memory, dtype)
        column = tile * how.tile_n
        weigh = functools.partial(_weigh, halves, column, problem)
        _scores(acc, halves, column, block, problem)
        weights = _weights(acc, acc_o, top, total, dtype, functions, weigh)
        _accumulate(acc_o, weights, shared + reading + memory.k.size, own_v, memory, dtype)
        cute.arch.sync_threads()  # the tile is read
        reading, tile = Int32(writing), after
    _await_loads(0)
    _store(acc_o, top, total, o, parts, split, block, halves, own_row, warp * SLAB, shared, problem)


def _tiles_of(split: Int32, block: batches_of.Block, problem: Problem) -> tuple[Int32, Int32]:
    """The first tile of k of a block that takes this of a row's `splits`, and the end of its tiles."""
    how = block.how
    first, end = Int32(0), Int32(cute.ceil_div(block.sizes[1], how.tile_n))
    if how.bounded:
        first, end = _seen(end, block, problem)
    each = cutlass.max(cute.ceil_div(end - first, how.splits), LEAST_COLUMNS // how.tile_n)
    return Int32(first + split * each), cutlass.min(first + (split + 1) * each, end)


@cute.jit
def _seen(count: Int32, block: batches_of.Block, problem: Problem) -> tuple[Int32, Int32]:
    """Of `count` tiles, the first one in which the mask holds somewhere, and the number after the last one. A warp
    looks at 32 at once."""
    how, lane = block.how, cute.arch.lane_idx()
    first, end = count, Int32(0)
    for start in cutlass.range(0, count, WARP):
        tile = cutlass.min(start + lane, count - 1)
        some = Boolean(problem.functions.tiles(_tile(block, tile * how.tile_n, True), problem.tensors)[0])
        first = cutlass.select_(some, cutlass.min(first, tile), first)
        end = cutlass.select_(some, tile + 1, end)
    for i in cutlass.range_constexpr(5):
        first = cutlass.min(first, cute.arch.shuffle_sync_bfly(first, 1 << i))
        end = cutlass.max(end, cute.arch.shuffle_sync_bfly(end, 1 << i))
    return first, cutlass.max(first, end)


def _accumulators(how: AttentionLaunch) -> tuple[cute.Tensor, cute.Tensor, cute.Tensor]:
    """A lane's sums of o, (4, J), and of each of its two rows the largest score and the sum of exponentials, before the first tile."""
    acc = cute.make_rmem_tensor((4, -(-how.e // 16) * 2), Float32)
    acc.fill(0)
    top, total = cute.make_rmem_tensor((2,), Float32), cute.make_rmem_tensor((2,), Float32)
    top.fill(-math.inf)
    total.fill(0)
    return acc, top, total


def _await_loads(in_flight: int) -> None:
    """Wait for all groups of copies but the last few."""
    cute.arch.cp_async_wait_group(in_flight)
    cute.arch.sync_threads()


def _load_rows(q: cute.Tensor, block: batches_of.Block, target: Int32, memory: Memory) -> None:
    """Start the copy of a block's rows of q."""
    how = block.how
    if how.packed:
        _load_packed(q, block, target, memory)
    else:
        load_tile(q, block.places, block.first, target, how.d, memory.q, how)


def _load_stage(
    k: cute.Tensor, v: cute.Tensor, pages: tuple, places: tuple, tile: Int32, target: Int32, memory: Memory
) -> None:
    """Start the copies of a tile of k and of v."""
    how, (of_k, of_v) = memory.how, pages or (None, None)
    pages_of.load(k, of_k, places, tile * how.tile_n, target, how.d, memory.k, how)
    pages_of.load(v, of_v, places, tile * how.tile_n, target + memory.k.size, how.e, memory.v, how)


def _held_rows(left: Int32, own_q: Int32, memory: Memory) -> cute.Tensor:
    """A warp's rows of q in registers, (4, steps along D), as soon as they are loaded; nothing where too many would be held."""
    rQ = cute.make_rmem_tensor((4, max(memory.held, 1)), Uint32)
    if memory.held > 0:
        _await_loads(0)
    for step in range(memory.held):
        fragment(left, own_q, step, memory.q, rQ[None, step])
    return rQ


def _multiply(
    acc: cute.Tensor, rQ: cute.Tensor, left: Int32, own_q: Int32, right: Int32, own_k: Int32, memory: Memory, dtype: Any
) -> None:  # fmt: skip
    """A warp's products (4, J) of its rows of q with those of a tile of k. q is in registers, or in shared memory at `left`."""

    def words_of(step: int) -> list[Uint32]:
        a = rQ[None, step % max(memory.held, 1)]
        if memory.held == 0:
            fragment(left, own_q, step, memory.q, a)
        return [a[w] for w in range(4)]

    multiply(acc, words_of, memory.how.d, right, own_k, memory.k, dtype)


def _accumulate(acc: cute.Tensor, weights: cute.Tensor, right: Int32, own_v: Int32, memory: Memory, dtype: Any) -> None:
    """Add to (4, J) the product of a warp's weights, words (J, 2), and a tile of v."""

    def words_of(step: int) -> list[Uint32]:
        return [weights[step * 2 + i // 2, i % 2] for i in range(4)]

    accumulate(acc, words_of, memory.how.tile_n, right, own_v, memory.v, dtype)


def _store(
    acc: cute.Tensor, top: cute.Tensor, total: cute.Tensor, o: cute.Tensor, parts: cute.Tensor, split: Int32, block: batches_of.Block, halves: tuple,
    row: Int32, slab: Int32, shared: Int32, problem: Problem,
) -> None:  # fmt: skip
    """Store a lane's two rows, the first of which is `row`: to o, or to `parts` if blocks share rows. The warp's first
    row is `slab` in the block."""
    how = block.how
    for half in range(2):
        for apart in range(2):
            total[half] = total[half] + cute.arch.shuffle_sync_bfly(total[half], 1 << apart)
    if how.splits > 1:
        for half in range(2):
            r = row + 8 * half
            there = r < block.count
            store_part(acc, top[half], total[half], parts, split, block.batch * block.count + r, there, half, how.e)
        return
    _finish(acc, top, total, block, halves, row, problem)
    if how.packed or o.element_type.width != 8 * BYTES:
        for half in range(2):
            store_packed(acc, o, halves[half], row + 8 * half < block.count, half, how.e)
    else:
        store_rows(acc, o, block.places, block.first + slab, slab, shared, Memory(how).o, how.e)


def _finish(
    acc: cute.Tensor, top: cute.Tensor, total: cute.Tensor, block: batches_of.Block, halves: tuple, row: Int32, problem: Problem,
) -> None:  # fmt: skip
    """Multiply a lane's two rows, the first of which is `row`, by their factors."""
    functions = problem.functions
    if functions.row is None:
        return
    for half, (here, position) in enumerate(halves):
        there = (row + 8 * half < block.count) & (cute.arch.lane_idx() % 4 == 0)
        values = (cute.full((1,), x[half], Float32) for x in (top, total))
        factor = functions.row(Row(here, position, block.sizes, there, page=block.how.page), *values, problem.tensors)[
            0
        ]
        for j in range(cute.size(acc, mode=[1])):
            for e in range(2):
                acc[2 * half + e, j] = acc[2 * half + e, j] * factor


def _load_packed(source: cute.Tensor, block: batches_of.Block, target: Int32, memory: Memory) -> None:
    """As `load_tile`, of rows of all that share k and v."""
    each = source.element_type.width // 8

    def row_of(r: Int32) -> tuple[Int64, Boolean]:
        here, position = block.at(block.first + r)
        offset = Int64(cute.crd2idx((here, position, 0), source.layout))
        return source.iterator.toint() + offset * each, block.first + r < block.count

    load_rows(source, row_of, target, block.how.d, memory.q, block.how)


def _tile(block: batches_of.Block, column: Int32, apart: bool = False) -> Tile:
    """The tile of a block's rows from a column on; `apart` where each lane has its own."""
    columns = column, cutlass.min(column + block.how.tile_n, block.sizes[1]) - 1
    return Tile(block.places, block.rows, columns, block.sizes, apart, block.how.page)


@cute.jit
def _next(tile: Int32, count: Int32, block: batches_of.Block, problem: Problem) -> Int32:
    """The first tile from `tile` on for which the mask holds somewhere; `count` if there is none."""
    tiles = problem.functions.tiles
    if cutlass.const_expr(tiles is not None):
        looking = tile < count
        while looking:
            some = Boolean(tiles(_tile(block, tile * block.how.tile_n), problem.tensors)[0])
            tile = cutlass.select_(some, tile, tile + 1)
            looking = cutlass.select_(some, Boolean(False), tile < count)
    return tile


def _columns(column: Int32, count: int) -> tuple[Int32, ...]:
    """The columns of a lane's scores, of a tile that begins at `column`."""
    lane = cute.arch.lane_idx()
    return tuple(column + (8 * (i // 2) + i % 2) + 2 * (lane % 4) for i in range(count))


@cute.jit
def _scores(acc: cute.Tensor, halves: tuple, column: Int32, block: batches_of.Block, problem: Problem) -> None:
    """`_score` of a tile from `column` on: without the mask where it holds in the whole tile."""
    every, tiles = column + problem.how.tile_n <= problem.sizes[1], problem.functions.tiles
    if cutlass.const_expr(tiles is not None):
        every = every & Boolean(tiles(_tile(block, column), problem.tensors)[1])
    if every:
        _score(acc, halves, column, problem, False)
    else:
        _score(acc, halves, column, problem, True)


def _score(acc: cute.Tensor, halves: tuple, column: Int32, problem: Problem, masked: bool) -> None:
    """The scores of a tile, from its products (4, J), of a lane's two rows; where `masked`, columns past the last have no weight."""
    count, functions, sizes = 2 * cute.size(acc, mode=[1]), problem.functions, problem.sizes
    columns = _columns(column, count)
    for half, (here, position) in enumerate(halves):
        held = cute.make_rmem_tensor((count,), Float32)
        for i in range(count):
            held[i] = acc[2 * half + i % 2, i // 2]
        at = Scores(here, position, columns, sizes, problem.how.page)
        held.store(whole(functions.score(at, held.load(), problem.tensors, masked)))
        for i in range(count):
            value = held[i]
            if masked:
                value = cutlass.select_(columns[i] < sizes[1], value, Float32(-math.inf if functions.raises else 0))
            acc[2 * half + i % 2, i // 2] = value


def _weigh(halves: tuple, column: Int32, problem: Problem, half: int, held: cute.Tensor) -> None:
    """Replace the exponentials of one of a lane's rows with its weights."""
    if problem.functions.weight is not None:
        here, position = halves[half]
        at = Scores(here, position, _columns(column, cute.size(held)), problem.sizes, problem.how.page)
        held.store(problem.functions.weight(at, held.load(), problem.tensors))


def _weights(
    acc: cute.Tensor, acc_o: cute.Tensor, top: cute.Tensor, total: cute.Tensor, dtype: Any, functions: Functions,
    weigh: Callable[[int, cute.Tensor], None],
) -> cute.Tensor:  # fmt: skip
    """The weights of a tile, from its scores (4, J), as words (J, 2) of two neighbours. Those of a softmax are powers of score -
    top; where `top` rises, the sums so far are rescaled. `weigh` makes weights of the exponentials of one of the two rows."""
    count = 2 * cute.size(acc, mode=[1])
    words = cute.make_rmem_tensor((count // 2, 2), Uint32)
    for half in range(2):
        held = cute.make_rmem_tensor((count,), Float32)
        for i in range(count):
            held[i] = acc[2 * half + i % 2, i // 2]
        if functions.row is not None and not functions.exponential:
            total[half] = total[half] + held.load().reduce(cute.ReductionOp.ADD, Float32(0), 0)
        if functions.raises:
            largest = top[half]
            for i in range(count):
                largest = cute.arch.fmax(largest, held[i], nan=True)
            for apart in (1, 2):
                largest = cute.arch.fmax(largest, cute.arch.shuffle_sync_bfly(largest, apart), nan=True)
            by, shift = powers(largest, functions.base)
            fallen = device.fma(cute.full((1,), top[half], Float32), by, cute.full((1,), shift, Float32))
            scale = cute.math.exp2(fallen, fastmath=True)[0]
            exponents = device.fma(held.load(), by, cute.full((count,), shift, Float32))
            held.store(cute.math.exp2(exponents, fastmath=True))
            top[half] = largest
            total[half] = total[half] * scale + held.load().reduce(cute.ReductionOp.ADD, Float32(0), 0)
            for j in range(cute.size(acc_o, mode=[1])):
                for e in range(2):
                    acc_o[2 * half + e, j] = acc_o[2 * half + e, j] * scale
            weigh(half, held)
        narrow = cute.make_rmem_tensor((count,), dtype)
        narrow.store(held.load().to(dtype))
        pairs = cute.recast_tensor(narrow, Uint32)
        for j in range(count // 2):
            words[j, half] = pairs[j]
    return words
