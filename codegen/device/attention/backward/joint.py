"""The gradients of q, k and v in one kernel: five products of tiles instead of the seven that two kernels take.

dk and dv are as `keys` says, with the last tiles of q first. A consumer also computes

    dq = ds^T @ k       64 rows of dq or some of its columns, from both consumers' rows of ds in shared memory

The warps beside the producer add dq to sums in global memory, in turns (`turns`). A block may be the last to add
to a tile of dq. If the tile is among the block's last ones, as under a causal mask, it is still in shared memory. Then the consumers
add the sums to it, and round it. A second kernel rounds all other sums.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Uint32
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup
from cutlass.memory import SmemAllocator
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import hopper_helpers

from codegen.device import vectors
from codegen.device.attention import batches as batches_of
from codegen.device.attention import hopper
from codegen.device.attention.arguments import Backward, Problem, Slope
from codegen.device.attention.backward import keys, turns
from codegen.device.gemm import tensorcore
from codegen.device.gemm.warpgroups import CONSUMERS, PRODUCER, THREADS, WARPGROUP, place_in_ring
from codegen.shared import HELD, WARP, AttentionLaunch

FLIGHTS = 2  # tiles of ds in shared memory
ADDERS = 2  # warps that add dq, in turns: it takes longer from a block's turn to the next one's than a tile's products
NEAR = 8  # blocks that have tiles of one element of the batch at a time
MET, ADDED = 1, 2  # the numbers of the barriers of all consumers, and of these and the adders
LINE = 128  # bytes of 64 rows of q in a row of ds
ROUNDING = CONSUMERS * WARPGROUP  # threads of a block that rounds sums


def launch(stream: Any, given: Backward) -> None:
    """As `attention.launch_backward`, but without sums along rows."""
    q, k, how = given.q, given.k, given.how
    batches, sizes, dtype = q.shape[0], (q.shape[1], k.shape[1]), q.element_type
    words, sums = given.turns, given.parts
    turns.begin(words).launch(
        grid=(cute.ceil_div(words.shape[0], ROUNDING), 1, 1), block=(ROUNDING, 1, 1), stream=stream
    )
    columns = how.d, how.e
    loads, layouts = keys.prepare((k, given.v), (q, given.do), columns, how.tile_m, how.stages)
    layouts = *layouts, hopper.across((HELD, how.d), dtype, 1), _flat((how.tile_m, HELD), dtype)
    mmas = hopper.products(dtype, how.tile_m), *(hopper.weighted(dtype, c) for c in columns), _turned(how, dtype)
    lacking = batches_of.lacking(k.stride[0])
    table, of_tile = hopper.listed(stream, given, given.functions.tiles)
    memory = (given.dk, given.dv, given.sums.along_columns), given.statistics, given.tensors, table
    functions = replace(given.functions, tiles=of_tile, summed=range(2, 2 + len(given.sums.along_columns)))
    count = cute.ceil_div(sizes[1], HELD) * batches_of.count(batches, lacking, False)
    room = words, sums, given.dq
    _attention_gradients(loads, layouts, mmas, memory, room, sizes, batches, lacking, functions, how).launch(
        grid=(count, 1, 1), block=(THREADS, 1, 1), min_blocks_per_mp=1, stream=stream
    )
    tiles = cute.ceil_div(sizes[0], how.tile_m)
    _attention_rounding(*room, batches, tiles, how).launch(
        grid=(tiles * cute.size(q, mode=[0]), 1, 1), block=(ROUNDING, 1, 1), stream=stream
    )


def _waiting(how: AttentionLaunch) -> int:
    """Tiles of dq in shared memory."""
    return HELD // how.tile_m


def _flat(tile: tuple[int, int], dtype: Any) -> Any:
    """The layout of ds in shared memory, (rows of q, rows of k, stages): rows of q are contiguous."""
    rows, columns = tile
    return hopper_helpers.make_smem_layout_a(LayoutEnum.COL_MAJOR, (rows, 8, columns), dtype, FLIGHTS)


def _columns(how: AttentionLaunch) -> int:
    """The number of columns of dq that a consumer computes. It computes all columns of rows of its own, or the first or the last
    columns of all rows. These are whole chunks of shared memory's swizzled rows, so both consumers may have the columns in the
    middle."""
    chunk = next(n for n in (64, 32, 16, 8) if how.d % n == 0)
    return how.d if how.tile_m == HELD else -(-how.d // (2 * chunk)) * chunk


def _place_of_sums(how: AttentionLaunch) -> Int32:
    """Where a consumer's thread has its first four sums, among the fours of a tile of dq."""
    apart = how.d if how.tile_m == HELD else how.d - _columns(how)  # columns from a consumer's first to the other's
    thread = cute.arch.thread_idx()[0]
    return thread // WARPGROUP * (apart // 8 * WARPGROUP) + thread % WARPGROUP


def _turned(how: AttentionLaunch, dtype: Any) -> cute.TiledMma:
    """ds^T @ k: 64 rows for each consumer, or the same 64."""
    major, rows = OperandMajorMode.MN, how.tile_m // 64
    return hopper_helpers.make_trivial_tiled_mma(
        dtype, dtype, major, major, Float32, (rows, 1, 1), tiler_mn=(64, _columns(how))
    )


def _turned_factors(
    mma: cute.TiledMma, ds: cute.Tensor, k: cute.Tensor, consumer: Int32, how: AttentionLaunch
) -> tuple[cute.Tensor, cute.Tensor]:
    """A consumer's factors of dq."""
    if how.tile_m == HELD:
        own = mma.get_slice(consumer * WARPGROUP)
    else:
        count = _columns(how)
        apart = cute.crd2idx((how.d - count, 0, 0), k.layout)
        layout = cute.composition(k.layout, (count, None, None))
        k, own = cute.make_tensor(k.iterator + consumer * apart, layout), mma.get_slice(0)
    return mma.make_fragment_A(own.partition_A(ds)), mma.make_fragment_B(own.partition_B(k))


def _place(index: Int32, problem: Problem) -> tuple[Int32, tuple]:
    """The tile of k and the positions of its batch, of a number. Elements of the batch come in groups, so that about
    `NEAR` blocks have tiles of one element at a time. They find its rows of q in the L2 cache, and few wait for each
    other's turns. In a group the first tiles come first, which are seen most under a causal mask."""
    batches, lacking = problem.batches, problem.lacking
    tiles, elements = cute.ceil_div(problem.sizes[1], HELD), Int32(batches_of.count(batches, lacking, False))
    each = max(problem.how.processors // NEAR, 1)
    first = index // (each * tiles) * each
    inside, members = index - first * tiles, cutlass.min(each, elements - first)
    return inside // members, batches_of.own(first + inside % members, batches, lacking)[1]


@cute.kernel
def _attention_gradients(
    loads: tuple,  # of k, v, q and do: TMA's copies, and tensors of coordinates
    layouts: tuple,
    mmas: tuple,  # the first products; those of dk, of dv and of dq
    memory: tuple,  # dk, dv and sums; the statistics of rows; the operands of the functions; bounds of the mask's arrays
    room: tuple,  # the turns, the sums of dq, and dq
    sizes: tuple,  # rows of q and of k
    batches: tuple,  # sizes of the batch's axes
    lacking: cutlass.Constexpr[tuple[bool, ...]],  # which axes of the batch k and v lack
    functions: cutlass.Constexpr[Slope],
    how: cutlass.Constexpr[AttentionLaunch],
) -> None:
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    consumer = warp // 4
    targets, statistics, tensors, table = memory
    tensors = tuple(vectors.compacted(t) for t in tensors)
    problem = Problem(sizes, batches, functions, tensors, how, (), table, statistics, lacking)
    allocator, dtype = SmemAllocator(), mmas[0].op.a_dtype
    tiles = keys.allocate(allocator, layouts[:6], dtype)
    tall = cute.make_tensor(tiles[0].iterator, layouts[6].outer)
    flat = allocator.allocate_tensor(dtype, layouts[7].outer, 1024, swizzle=layouts[7].inner)
    sums = allocator.allocate_tensor(Float32, cute.make_layout((how.tile_m * how.d * _waiting(how),)), 128)
    numbers = allocator.allocate_tensor(
        Float32, cute.make_layout((how.tile_m, max(1, len(statistics)), how.stages)), 16
    )
    stages = 1, how.stages, how.stages, ADDERS
    rings = hopper.rings(allocator, stages)
    place = allocator.allocate_array(Int32, 1)
    ended = allocator.allocate_tensor(Int32, cute.make_layout((ADDERS, 2)), 4)
    hopper.start(rings, stages, (1, keys.STATED, 1, 1))
    count = room[0].shape[0] - 1
    index = turns.take_number(room[0], count, place)
    tile, own = _place(index, problem)
    at = tile, own
    if consumer == CONSUMERS:
        cute.arch.setmaxregister_decrease(hopper.REGISTERS[0])
        if warp == PRODUCER:
            to = keys.partitions(loads, tiles[:4], how.tile_m, how)
            keys.produce_tile(loads, to, (*tiles[:4], numbers), rings[:3], (*at, Int32(0), Uint32(0)), True, problem)
        elif warp <= PRODUCER + ADDERS:
            _add(sums, rings[3], room, ended, (*at, warp - PRODUCER - 1), problem)
    else:
        cute.arch.setmaxregister_increase(hopper.REGISTERS[1])
        shared = *tiles, tall, flat
        _consume(shared, sums, numbers, rings, mmas, targets, at, consumer, problem)
        _round_ended(ended, sums, room, batches, cute.ceil_div(sizes[0], how.tile_m), how)


@cute.jit
def _add(sums: cute.Tensor, ring: tuple, room: tuple, ended: cute.Tensor, at: tuple, problem: Problem) -> None:
    """A warp that adds dq: every `ADDERS`th tile, each in its turn. It tells which tile it leaves to the consumers, and whether there
    are sums to add to it."""
    tile, own, adder = at
    sizes, batches, lacking, how = problem.sizes, problem.batches, problem.lacking, problem.how
    wide, size, heads = how.tile_m, how.tile_m * how.d, batches_of.count(batches, lacking, True)
    count = cute.ceil_div(sizes[0], wide)
    empty, full = ring
    address, done, left, some = sums.iterator.toint(), Uint32(0), Int32(-1), Int32(0)
    for which in cutlass.range(heads, unroll=1):
        here = batches_of.sharer(which, own, batches, lacking)
        passed = hopper.Passing(problem, tile, here, wide, True, True)
        walk = hopper.step(hopper.begin(), passed)
        while walk[3] >= 0:
            if done % ADDERS == adder:
                passing = count - 1 - walk[3]
                rows = passing * wide, cutlass.min((passing + 1) * wide, sizes[0]) - 1
                number = turns.number(here, passing, batches, count)
                word, target = room[0].iterator + number, room[1].iterator.toint() + Int64(number) * (4 * size)
                before, last = turns.neighbours(tile, rows, here, problem)
                ahead = walk
                for _ in cutlass.range_constexpr(_waiting(how)):
                    ahead = hopper.step(ahead, passed)
                turns.wait(word, before)
                stage, phase = place_in_ring(done, ADDERS)
                cute.arch.mbarrier_wait(full + stage, phase)
                if last & (ahead[3] < 0) & (which == heads - 1):
                    left, some = number, before
                    with cute.arch.elect_one():
                        turns.leave(word, tile)
                else:
                    with cute.arch.elect_one():
                        turns.send(target, address + done % _waiting(how) * (4 * size), 4 * size, before > 0)
                        cute.arch.cp_async_bulk_wait_group(0, read=True)
                        cute.arch.mbarrier_arrive(empty + stage)
                        turns.end(word, tile + 1)
                cute.arch.sync_warp()
            done += 1
            walk = hopper.step(walk, passed)
    with cute.arch.elect_one():
        ended[adder, 0] = left
        ended[adder, 1] = some
    cute.arch.sync_warp()
    cute.arch.barrier_arrive(barrier_id=ADDED, number_of_threads=ROUNDING + ADDERS * WARP)


@dataclass(frozen=True)
class Queries:
    """A consumer's part of dq: ds and k as its factors, and accumulators."""

    mma: cute.TiledMma
    ds: cute.Tensor
    k: cute.Tensor
    dq: tuple  # as this thread indexes them, and as WGMMA takes them

    def multiply(self, flight: Int32) -> None:
        """Start the products, from a tile of ds in shared memory."""
        hopper.multiply(self.mma, self.dq[1], self.ds[None, None, None, flight], self.k[None, None, None, 0], False)


@cute.jit
def _consume(
    shared: tuple, sums: cute.Tensor, numbers: cute.Tensor, rings: tuple, mmas: tuple, targets: tuple, at: tuple,
    consumer: cutlass.Int32, problem: Problem,
) -> None:  # fmt: skip
    """A consumer warpgroup."""
    sizes, batches, lacking, how = problem.sizes, problem.batches, problem.lacking, problem.how
    tiles, (k, ds), wide = shared[:6], shared[6:], how.tile_m
    own = keys.Consumer.of(tiles, mmas[:3], consumer, len(problem.functions.summed), how)
    of_q = Queries(mmas[3], *_turned_factors(mmas[3], ds, k, consumer, how), hopper.accumulators(_columns(how)))
    lane, (own_row, own_column) = cute.arch.lane_idx(), hopper.first_element()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    last = cute.ceil_div(sizes[0], wide) - 1
    tile, places = at
    row = tile * HELD + own_row
    rows = ds.iterator.toint() + (warp * 16 + lane % 16) * LINE
    target, used = sums.iterator.toint() + _place_of_sums(how) * 16, Uint32(0)
    own.clear()
    cute.arch.mbarrier_wait(rings[0][0], 0)
    for which in cutlass.range(batches_of.count(batches, lacking, True), unroll=1):
        here = batches_of.sharer(which, places, batches, lacking)
        passed = hopper.Passing(problem, tile, here, wide, True, True)
        walk = hopper.step(hopper.begin(), passed)
        while walk[3] >= 0:
            place = here, row, (last - walk[3]) * wide + own_column
            stage = own.multiply(numbers, rings[:3], used, place, hopper.is_plain(walk), problem)
            _multiply_queries(own, of_q, rows, used, how)
            own.add_keys(stage)
            walk = hopper.step(walk, passed)
            warpgroup.wait_group(1)  # waits for the products of dq, and not for those of dk
            _hand_over(of_q.dq[0], target, consumer, rings[3], used, how)
            warpgroup.wait_group(0)
            keys.release(rings[:3], stage)
            used += 1
    own.store(targets, places, row, own_column, sizes[1])


def _multiply_queries(own: keys.Consumer, of_q: Queries, rows: Int32, used: Uint32, how: AttentionLaunch) -> None:
    """Store ds to shared memory, and start the products of dq once the other consumer has stored its rows too."""
    flight = Int32(used % FLIGHTS)
    assert own.ds is not None
    _spread(own.ds[0], rows + flight * (2 * how.tile_m * HELD), cute.arch.lane_idx(), how.tile_m)
    cute.arch.fence_view_async_shared()
    cute.arch.barrier(barrier_id=MET, number_of_threads=CONSUMERS * WARPGROUP)
    warpgroup.fence()
    of_q.multiply(flight)


# ds and dq in shared memory


def _spread(ds: cute.Tensor, row: Int32, lane: Int32, wide: int) -> None:
    """Store a factor's words, (2 rows of k, 8 rows of q each), to shared memory, in which rows of q are contiguous. A row of k has
    a line for each 64 rows of q, with permuted chunks of 16 bytes. `row` is the address of a lane's row of k."""
    for j in range(0, wide // 8, 2):
        chunk = (j % 8 + lane // 16) ^ (lane % 8)
        place = row + j // 8 * (HELD * LINE) + chunk * 16
        tensorcore.stmatrix(place, [ds[i % 2, j + i // 2] for i in range(4)])


def _hand_over(
    dq: cute.Tensor, target: Int32, consumer: Int32, ring: tuple, used: Uint32, how: AttentionLaunch
) -> None:  # fmt: skip
    """Store a thread's accumulators for the adders, once a place is free. The four of 8 columns are neighbours, and those of a
    warpgroup's threads follow each other. Columns that both consumers have, the first one stores."""
    places, twice = _waiting(how), 0 if how.tile_m == HELD else 2 * _columns(how) - how.d
    stage, phase = place_in_ring(used - places, ADDERS)  # of the tile that was there; a wait for none returns at once
    cute.arch.mbarrier_wait(ring[0] + stage, phase)
    target = target + Int32(used % places) * (4 * how.tile_m * how.d)
    for j in range(cute.size(dq, mode=[2])):
        words = cute.recast_tensor(dq[None, None, j], Uint32)
        _store_four(target + j * (WARPGROUP * 16), words, consumer == 0 if 8 * j < twice else True)
    cute.arch.fence_view_async_shared()
    cute.arch.sync_warp()
    tensorcore.arrive(ring[1].toint() + Int32(used % ADDERS) * 8, cute.arch.lane_idx() == 0, False)


@cute.jit
def _store_four(place: cutlass.Int32, words: cute.Tensor, there: cutlass.Boolean | bool) -> None:
    if there:
        tensorcore.store_words(place, [words[i % 2, i // 2] for i in range(4)])


# Rounding dq


@cute.jit
def _round_ended(
    ended: cute.Tensor, shared: cute.Tensor, room: tuple, batches: tuple, tiles: cutlass.Int32,
    how: cutlass.Constexpr[AttentionLaunch],
) -> None:  # fmt: skip
    """Add the sums to the tiles of dq that the adders have left, and round them. All consumers take part."""
    cute.arch.barrier(barrier_id=ADDED, number_of_threads=ROUNDING + ADDERS * WARP)
    first = shared.iterator.toint() + _place_of_sums(how) * 16
    held = tuple(_sums(ended[i, 0], ended[i, 1] > 0, room[1], how) for i in range(ADDERS))
    for i in cutlass.range_constexpr(ADDERS):
        if ended[i, 0] >= 0:
            place = first + i % _waiting(how) * (4 * how.tile_m * how.d)
            for j in cutlass.range_constexpr(_columns(how) // 8):
                for n, word in enumerate(tensorcore.load_words(place + j * (WARPGROUP * 16), 4)):
                    held[i][n % 2, n // 2, j] += word.bitcast(Float32)
            _store_rounded(held[i], ended[i, 0], room[2], batches, tiles, how)


@cute.kernel
def _attention_rounding(
    words: cute.Tensor, sums: cute.Tensor, target: cute.Tensor, batches: tuple, tiles: cutlass.Int32,
    how: cutlass.Constexpr[AttentionLaunch],
) -> None:  # fmt: skip
    """Round the sums of a tile of dq that no block has rounded; those to which no block has added are zeros."""
    number = Int32(cute.arch.block_idx()[0])
    turn = words[number]
    if turn >= 0:
        _store_rounded(_sums(number, turn > 0, sums, how), number, target, batches, tiles, how)


@cute.jit
def _sums(
    number: cutlass.Int32, there: cutlass.Boolean, sums: cute.Tensor, how: cutlass.Constexpr[AttentionLaunch]
) -> cute.Tensor:
    """The sums of the tile of a number which this thread has as a consumer; zeros unless they are `there`."""
    held = hopper.accumulators(_columns(how))[0]
    held.fill(0.0)
    if there:
        source = sums.iterator.toint() + (Int64(number) * (how.tile_m * how.d) + _place_of_sums(how) * 4) * 4
        for j in cutlass.range_constexpr(_columns(how) // 8):
            for i, word in enumerate(turns.load_four(source + j * (WARPGROUP * 16))):
                held[i % 2, i // 2, j] = word.bitcast(Float32)
    return held


def _store_rounded(
    held: cute.Tensor, number: Int32, target: cute.Tensor, batches: tuple, tiles: Int32, how: AttentionLaunch
) -> None:
    """Round a thread's part of the tile of a number."""
    places, tile = batches_of.places_of(number // tiles, batches), number % tiles
    own_row, column = hopper.first_element()
    if how.tile_m < HELD:
        column += cute.arch.make_warp_uniform(cute.arch.warp_idx()) // 4 * (how.d - _columns(how))
    for r in range(2):
        row = tile * how.tile_m + own_row % how.tile_m + 8 * r
        hopper.store(held, target, places, row, column, row < target.shape[1], r)
