"""Values of scores, such as the gradient of a bias, as Hopper (sm_90a) computes them: sums over the axes of the batch that a result
lacks. A block has a tile of the result. For each element of the batch that shares it, a consumer computes for 64 rows

    s = q @ k^T, dp = do @ v^T      both factors in shared memory
    total += term(s, dp)            one of the slope's results

so that each sum has one order.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Uint32
from cutlass.cute.nvgpu import cpasync, warpgroup
from cutlass.memory import SmemAllocator

from codegen.device import vectors
from codegen.device.attention import batches as batches_of
from codegen.device.attention import hopper
from codegen.device.attention.arguments import Backward, Problem, Slope
from codegen.device.attention.scores import Scores, Tile
from codegen.device.gemm import tensorcore
from codegen.device.gemm.warpgroups import CONSUMERS, PRODUCER, THREADS, WARPGROUP, loader, place_in_ring
from codegen.shared import HELD, AttentionLaunch

ROOM = 226 << 10  # bytes of shared memory for tiles


def launch(stream: Any, given: Backward) -> None:
    """Compute the sums of `given.sums.pairs`, (L, Q, S)."""
    q, k, how, sums = given.q, given.k, given.how, given.sums
    if not sums.pairs:
        return
    wide, stages = _fitting(how)
    how = replace(how, tile_n=wide)
    boxes = ((HELD, how.d), (wide, how.d)), ((HELD, how.e), (wide, how.e))
    factors, dtype = ((q, k), (given.do, given.v)), q.element_type
    layouts = tuple(tuple(hopper.passing(box, dtype, n) for box in pair) for pair, n in zip(boxes, stages, strict=True))
    loads = tuple(
        tuple(loader(t, (1, 2, 0), x, box) for t, x, box in zip(*each, strict=True))
        for each in zip(factors, layouts, boxes, strict=True)
    )
    sizes = q.shape[1], k.shape[1]
    tiles = cute.ceil_div(sizes[0], HELD), cute.ceil_div(sizes[1], wide)
    for number, target in enumerate(sums.pairs, 2 + len(sums.along_rows) + len(sums.along_columns)):
        lacking = batches_of.lacking(target.stride[0])
        work = tiles[0] * tiles[1] * batches_of.count(q.shape[0], lacking, False), *tiles
        memory = target, given.statistics, given.tensors
        functions = replace(given.functions, summed=range(number, number + 1))
        _attention_pairs(
            loads, layouts, hopper.products(dtype, wide), memory, sizes, q.shape[0], work, lacking, functions, stages, how
        ).launch(
            grid=(cutlass.min(work[0], how.processors), 1, 1), block=(THREADS, 1, 1), min_blocks_per_mp=1, stream=stream
        )  # fmt: skip


def _fitting(how: AttentionLaunch) -> tuple[int, tuple[int, int]]:
    """The columns of a tile, and the stages of q and k and of do and v."""
    for wide in (96, 64, 32):
        for stages in ((2, 2), (2, 1), (1, 1)):
            if 2 * (HELD + wide) * (stages[0] * how.d + stages[1] * how.e) <= ROOM:
                return wide, stages
    raise AssertionError("a tile of 32 columns fits for every size of heads")


@cute.kernel
def _attention_pairs(
    loads: tuple,  # of q and k, and of do and v: TMA's copies, and tensors of coordinates
    layouts: tuple,
    mma: cute.TiledMma,
    memory: tuple,  # the target; the statistics of rows; the operands of the functions
    sizes: tuple,  # rows of q and of k
    batches: tuple,  # sizes of the batch's axes
    work: tuple,  # tiles: all, those along rows and along columns
    lacking: cutlass.Constexpr[tuple[bool, ...]],  # which axes of the batch the target lacks
    functions: cutlass.Constexpr[Slope],
    stages: cutlass.Constexpr[tuple[int, int]],
    how: cutlass.Constexpr[AttentionLaunch],
) -> None:
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    consumer = warp // 4
    target, statistics, tensors = memory
    tensors = tuple(vectors.compacted(t) for t in tensors)
    problem = Problem(sizes, batches, functions, tensors, how, work, None, statistics, lacking)
    allocator, dtype = SmemAllocator(), mma.op.a_dtype
    shared = tuple(
        tuple(allocator.allocate_tensor(dtype, x.outer, 1024, swizzle=x.inner) for x in pair) for pair in layouts
    )
    rings = hopper.rings(allocator, stages)
    hopper.start(rings, stages, (1, 1))
    if consumer == CONSUMERS:
        cute.arch.setmaxregister_decrease(hopper.REGISTERS[0])
        if warp == PRODUCER:
            _produce(loads, shared, rings, stages, problem)
    else:
        cute.arch.setmaxregister_increase(hopper.REGISTERS[1])
        _consume(shared, rings, mma, target, consumer, stages, problem)


def _place(index: Int32, problem: Problem) -> tuple[Int32, Int32, tuple]:
    """The tile along rows, that along columns, and the positions of its batch. Neighbours share rows of q."""
    _, rows, columns = problem.work
    batch, inside = index // (rows * columns), index % (rows * columns)
    return inside // columns, inside % columns, batches_of.own(batch, problem.batches, problem.lacking)[1]


def _seen(tile: tuple, places: tuple, problem: Problem) -> tuple[Boolean, Boolean]:
    """Whether the mask holds for some, and for every, of a tile's elements."""
    sizes, wide, tiles = problem.sizes, problem.how.tile_n, problem.functions.tiles
    first, begin = tile[0] * HELD, tile[1] * wide
    some, every = Boolean(True), begin + wide <= sizes[1]
    if tiles is not None:
        rows, columns = (
            (at, cutlass.min(at + n, size) - 1) for at, n, size in ((first, HELD, sizes[0]), (begin, wide, sizes[1]))
        )
        found = tiles(Tile(places, rows, columns, sizes), problem.tensors)
        some, every = Boolean(found[0]), every & Boolean(found[1])
    return some, every


@cute.jit
def _produce(
    loads: tuple, shared: tuple, rings: tuple, stages: cutlass.Constexpr[tuple[int, int]], problem: Problem
) -> None:
    """The producer warp: loads the factors of each product."""
    how, work, batches, lacking = problem.how, problem.work, problem.batches, problem.lacking
    columns, wide = (how.d, how.e), how.tile_n
    to = tuple(
        tuple(
            hopper.partition(load[0], load[1], (rows, c), x) for load, x, rows in zip(*pair, (HELD, wide), strict=True)
        )
        for *pair, c in zip(loads, shared, columns, strict=True)
    )
    for pair in loads:
        for load in pair:
            cpasync.prefetch_descriptor(load[0])
    filled, turn = Uint32(0), Int32(0)
    index = hopper.next_tile(turn)
    while index < work[0]:
        row, column, own = _place(index, problem)
        for which in cutlass.range(batches_of.count(batches, lacking, True), unroll=1):
            here = batches_of.sharer(which, own, batches, lacking)
            if _seen((row, column), here, problem)[0]:
                for i in cutlass.range_constexpr(2):
                    at_a, at_b = (row, 0, here), (column, 0, here)
                    boxes = (loads[i][0][0], to[i][0], at_a), (loads[i][1][0], to[i][1], at_b)
                    size = hopper.bytes_of((HELD + wide, columns[i]), shared[0][0].element_type)
                    hopper.fill(boxes, rings[i], filled, stages[i], size)
                filled += 1
        turn += 1
        index = hopper.next_tile(turn)


@cute.jit
def _consume(
    shared: tuple, rings: tuple, mma: cute.TiledMma, target: cute.Tensor, consumer: cutlass.Int32,
    stages: cutlass.Constexpr[tuple[int, int]], problem: Problem,
) -> None:  # fmt: skip
    """A consumer warpgroup: 64 rows of each tile of this block."""
    how, work, batches, lacking = problem.how, problem.work, problem.batches, problem.lacking
    own, wide = mma.get_slice(consumer * WARPGROUP), how.tile_n
    factors = tuple(
        (mma.make_fragment_A(own.partition_A(a)), mma.make_fragment_B(own.partition_B(b))) for a, b in shared
    )
    made, total = tuple(hopper.accumulators(wide) for _ in range(2)), hopper.accumulators(wide)[0]
    signals = cute.arch.lane_idx() == 0
    own_row, own_column = hopper.first_element()
    used, turn = Uint32(0), Int32(0)
    index = hopper.next_tile(turn)
    while index < work[0]:
        row, column, places = _place(index, problem)
        at = row * HELD + own_row, column * wide + own_column
        total.fill(0.0)
        for which in cutlass.range(batches_of.count(batches, lacking, True), unroll=1):
            here = batches_of.sharer(which, places, batches, lacking)
            some, every = _seen((row, column), here, problem)
            if some:
                numbers = _numbers(problem.statistics, here, at[0], problem.sizes[0])
                held = [place_in_ring(used, n) for n in stages]
                for i in cutlass.range_constexpr(2):
                    stage, phase = held[i]
                    cute.arch.mbarrier_wait(rings[i][0] + stage, phase)
                    warpgroup.fence()
                    a, b = factors[i]
                    hopper.multiply(mma, made[i][1], a[None, None, None, stage], b[None, None, None, stage], False)
                for i in cutlass.range_constexpr(2):
                    warpgroup.wait_group(1 - i)
                    tensorcore.arrive(rings[i][1].toint() + held[i][0] * 8, signals, False)
                _add_terms(total, made[0][0], made[1][0], numbers, (here, *at), every, problem)
                used += 1
        for r in cutlass.range_constexpr(2):
            _store(total, target, places, (at[0] + 8 * r, at[1]), problem.sizes, r, how)
        turn += 1
        index = hopper.next_tile(turn)


def _numbers(statistics: tuple, places: tuple, row: Int32, rows: Int32) -> tuple:
    """A thread's two rows of each statistic."""
    found = tuple(cute.make_rmem_tensor((2,), Float32) for _ in statistics)
    for numbers, source in zip(found, statistics, strict=True):
        for r in range(2):
            numbers[r] = source[places, cutlass.min(row + 8 * r, rows - 1)]
    return found


@cute.jit
def _add_terms(
    total: cute.Tensor,
    s: cute.Tensor,
    dp: cute.Tensor,
    held: tuple,
    place: tuple,
    every: cutlass.Boolean,
    problem: Problem,
) -> None:
    """Add one of the slope's results to a thread's two rows of sums."""
    if every:
        for r in cutlass.range_constexpr(2):
            _add_row(total, s, dp, held, r, place, problem, False)
    else:
        for r in cutlass.range_constexpr(2):
            _add_row(total, s, dp, held, r, place, problem, True)


def _add_row(
    total: cute.Tensor, s: cute.Tensor, dp: cute.Tensor, held: tuple, r: int, place: tuple, problem: Problem, masked: bool,
) -> None:  # fmt: skip
    """Add one of the slope's results to a row of sums."""
    (places, row, column), sizes, functions = place, problem.sizes, problem.functions
    own = cutlass.min(row + 8 * r, sizes[0] - 1)
    a, b, sums = (hopper.row_of(x, r) for x in (s, dp, total))
    columns = hopper.columns_of(column, cute.size(a))
    apart, neighbours = ((), 1) if masked else (hopper.apart(len(columns)), problem.how.neighbours)
    at = Scores(places, own, columns, sizes, apart=apart, neighbours=neighbours)
    given = tuple(cute.full((1,), x[r], Float32) for x in held)
    made = functions.slope(at, a.load(), b.load(), given, problem.tensors, masked)
    sums.store(sums.load() + made[functions.summed[0]])
    hopper.put_row(sums, total, r)


@cute.jit
def _store(
    total: cute.Tensor, target: cute.Tensor, places: tuple, at: tuple, sizes: tuple, r: cutlass.Constexpr[int],
    how: cutlass.Constexpr[AttentionLaunch],
) -> None:  # fmt: skip
    """Store one of a thread's two rows: in whole vectors if all columns of the tile exist, and in pairs of neighbours
    if both of each pair exist or neither does. All lanes take part."""
    row, column = at
    neighbours = how.neighbours if isinstance(target.stride[2], int) and target.stride[2] == 1 else 1
    inside = Boolean(False)
    if cutlass.const_expr(neighbours == 8):
        inside = column - 2 * (cute.arch.lane_idx() % 4) + 8 * cute.size(total, mode=[2]) <= sizes[1]
    if inside:
        hopper.store(total, target, places, row, column, row < sizes[0], r)
    elif row < sizes[0]:
        for j in cutlass.range_constexpr(cute.size(total, mode=[2])):
            pair = cute.make_rmem_tensor((2,), target.element_type)
            pair.store(total[None, r, j].load().to(target.element_type))
            if cutlass.const_expr(neighbours > 1):
                if column + 8 * j < sizes[1]:
                    line = target.iterator + cute.crd2idx((places, row, column + 8 * j), target.layout)
                    whole = line.align(target.element_type.width // 4)
                    cute.autovec_copy(pair, cute.make_tensor(whole, cute.make_layout((2,))))
            else:
                for c in cutlass.range_constexpr(2):
                    if column + (8 * j + c) < sizes[1]:
                        target[places, row, column + (8 * j + c)] = pair[c]
