"""The gradients of q, k and v in one kernel: five products of tiles instead of the seven that two kernels take.

A tile of k and v stays, tiles of q and do pass, the last first, of all heads that share k and v. A consumer has 64 rows of k:

    s = k @ q^T, dp = v @ do^T      both factors in shared memory
    p, ds = slope(s, dp)            the weights, and the gradient of the products
    dv += p @ do, dk += ds @ q      p and ds in registers
    dq = ds^T @ k                   64 rows of dq or some of its columns, from both consumers' rows of ds in shared memory

The warps beside the producer add dq to sums in global memory, in turns (`turns`), and a second kernel rounds them.
"""

from __future__ import annotations

from dataclasses import dataclass
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
from codegen.device.attention import hopper, sm90_backward
from codegen.device.attention.arguments import Backward
from codegen.device.attention.hopper import HELD
from codegen.device.attention.joint import turns
from codegen.device.gemm import tensorcore
from codegen.device.gemm.warpgroups import CONSUMERS, PRODUCER, THREADS, WARPGROUP, place_in_ring
from codegen.shared import WARP, AttentionLaunch

FLIGHTS = 2  # tiles of ds in shared memory
ADDERS = 2  # warps that add dq, in turns: it takes longer from a block's turn to the next one's than a tile's products
MET = 1  # the number of the barrier of all consumers
LINE = 128  # bytes of 64 rows of q in a row of ds
ROUNDING = 256  # threads of a block that rounds sums


def launch(stream: Any, given: Backward) -> None:
    """As `attention.launch_backward`, but without sums along rows."""
    q, k, how = given.q, given.k, given.how
    batches, sizes, dtype = q.shape[0], (q.shape[1], k.shape[1]), q.element_type
    words, sums = given.turns, given.parts
    turns.begin(words).launch(
        grid=(cute.ceil_div(words.shape[0], ROUNDING), 1, 1), block=(ROUNDING, 1, 1), stream=stream
    )
    columns = how.d, how.e
    loads, layouts = sm90_backward.prepare((k, given.v), (q, given.do), columns, how.tile_m, how.stages)
    layouts = *layouts, hopper.across((HELD, how.d), dtype, 1), _flat((how.tile_m, HELD), dtype)
    mmas = hopper.products(dtype, how.tile_m), *(hopper.weighted(dtype, c) for c in columns), _turned(how, dtype)
    lacking = batches_of.lacking(k.stride[0])
    memory = (given.dk, given.dv, given.sums.along_columns), given.statistics, given.tensors
    count = cute.ceil_div(sizes[1], HELD) * batches_of.count(batches, lacking, False)
    _kernel(loads, layouts, mmas, memory, (words, sums), sizes, batches, lacking, (given.functions.slope, given.functions.tiles, 2), how).launch(
        grid=(count, 1, 1), block=(THREADS, 1, 1), min_blocks_per_mp=1, stream=stream
    )  # fmt: skip
    tiles = cute.ceil_div(sizes[0], how.tile_m)
    _round(words, sums, given.dq, batches, tiles, how).launch(
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
    """The columns of dq that a consumer computes: all, of rows of its own; or the first ones or the last ones, which are whole chunks of
    shared memory's swizzled rows, so that both may have those in the middle."""
    chunk = next(n for n in (64, 32, 16, 8) if how.d % n == 0)
    return how.d if how.tile_m == HELD else -(-how.d // (2 * chunk)) * chunk


def _turned(how: AttentionLaunch, dtype: Any) -> cute.TiledMma:
    """ds^T @ k: 64 rows for each consumer, or the same 64."""
    major, rows = OperandMajorMode.MN, how.tile_m // 64
    return hopper_helpers.make_trivial_tiled_mma(
        dtype, dtype, major, major, Float32, (rows, 1, 1), tiler_mn=(64, _columns(how))
    )


def _turned_factors(
    mma: cute.TiledMma, ds: cute.Tensor, k: cute.Tensor, consumer: Int32, how: AttentionLaunch
) -> tuple:
    """A consumer's factors of dq."""
    if how.tile_m == HELD:
        own = mma.get_slice(consumer * WARPGROUP)
    else:
        count = _columns(how)
        apart = cute.crd2idx((how.d - count, 0, 0), k.layout)
        layout = cute.composition(k.layout, (count, None, None))
        k, own = cute.make_tensor(k.iterator + consumer * apart, layout), mma.get_slice(0)
    return mma.make_fragment_A(own.partition_A(ds)), mma.make_fragment_B(own.partition_B(k))


@cute.kernel
def _kernel(
    loads: tuple,  # of k, v, q and do: TMA's copies, and tensors of coordinates
    layouts: tuple,
    mmas: tuple,  # the first products; those of dk, of dv and of dq
    memory: tuple,  # dk, dv and sums; the statistics of rows; the operands of the functions
    room: tuple,  # the turns, and the sums of dq
    sizes: tuple,  # rows of q and of k
    batches: tuple,  # sizes of the batch's axes
    lacking: cutlass.Constexpr[tuple[bool, ...]],  # which axes of the batch k and v lack
    functions: cutlass.Constexpr,  # slope, tiles, and the first of the slope's results that is summed
    how: cutlass.Constexpr[AttentionLaunch],
):
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    consumer = warp // 4
    memory = *memory[:2], tuple(vectors.compacted(t) for t in memory[2])
    allocator, dtype = SmemAllocator(), mmas[0].op.a_dtype
    tiles = sm90_backward.allocate(allocator, layouts[:6], dtype)
    tall = cute.make_tensor(tiles[0].iterator, layouts[6].outer)
    flat = allocator.allocate_tensor(dtype, layouts[7].outer, 1024, swizzle=layouts[7].inner)
    sums = allocator.allocate_tensor(Float32, cute.make_layout((how.tile_m * how.d * _waiting(how),)), 128)
    numbers = allocator.allocate_tensor(Float32, cute.make_layout((how.tile_m, max(1, len(memory[1])), how.stages)), 16)
    stages = 1, how.stages, how.stages, ADDERS
    rings = hopper.rings(allocator, stages)
    place = allocator.allocate_array(Int32, 1)
    hopper.start(rings, stages, (1, sm90_backward.STATED, 1, 1))
    count = room[0].shape[0] - 1
    index = turns.take_number(room[0], count, place)
    tile, own = batches_of.own(index, batches, lacking)
    at = tile, own
    if consumer == CONSUMERS:
        cute.arch.setmaxregister_decrease(hopper.REGISTERS[0])
        if warp == PRODUCER:
            to = sm90_backward.partitions(loads, tiles[:4], how)
            sm90_backward.produce_tile(
                loads, to, (*tiles[:4], numbers), rings[:3], memory, (*at, Int32(0), Uint32(0)), sizes, batches, lacking, functions, True, how
            )  # fmt: skip
        elif warp <= PRODUCER + ADDERS:
            _add(sums, rings[3], room, memory[2], (*at, warp - PRODUCER - 1), sizes, batches, lacking, functions, how)
    else:
        cute.arch.setmaxregister_increase(hopper.REGISTERS[1])
        shared = *tiles, tall, flat
        _consume(shared, sums, numbers, rings, mmas, memory, at, sizes, batches, consumer, lacking, functions, how)


@cute.jit
def _add(
    sums: cute.Tensor, ring: tuple, room: tuple, tensors: tuple, at: tuple, sizes: tuple, batches: tuple,
    lacking: cutlass.Constexpr, functions: cutlass.Constexpr, how: cutlass.Constexpr[AttentionLaunch],
):  # fmt: skip
    """A warp that adds dq: every `ADDERS`th tile, each in its turn."""
    tile, own, adder = at
    wide, size = how.tile_m, how.tile_m * how.d
    count = cute.ceil_div(sizes[0], wide)
    empty, full = ring
    address, done = sums.iterator.toint(), Uint32(0)
    for which in cutlass.range(batches_of.count(batches, lacking, True), unroll=1):
        here = batches_of.sharer(which, own, batches, lacking)
        walk = hopper.step(hopper.begin(), tile, here, sizes, tensors, functions[1], wide, True, True)
        while walk[3] >= 0:
            if done % ADDERS == adder:
                passing = count - 1 - walk[3]
                rows = passing * wide, cutlass.min((passing + 1) * wide, sizes[0]) - 1
                number = turns.number(here, passing, batches, count)
                word, target = room[0].iterator + number, room[1].iterator.toint() + Int64(number) * (4 * size)
                before = turns.before(tile, rows, here, sizes, tensors, functions[1])
                turns.wait(word, before)
                stage, phase = place_in_ring(done, ADDERS)
                cute.arch.mbarrier_wait(full + stage, phase)
                with cute.arch.elect_one():
                    turns.send(target, address + done % _waiting(how) * (4 * size), 4 * size, before > 0)
                    cute.arch.cp_async_bulk_wait_group(0, read=True)
                    cute.arch.mbarrier_arrive(empty + stage)
                    turns.end(word, tile + 1)
                cute.arch.sync_warp()
            done += 1
            walk = hopper.step(walk, tile, here, sizes, tensors, functions[1], wide, True, True)


@dataclass(frozen=True)
class Consumer:
    """A consumer's registers and factors: 64 rows of dk and dv, and half of dq."""

    mmas: tuple  # the first products; those of dk, of dv and of dq
    k: cute.Tensor
    v: cute.Tensor
    q: cute.Tensor
    do: cute.Tensor
    across_q: cute.Tensor
    across_do: cute.Tensor
    flat: cute.Tensor  # ds, and
    tall: cute.Tensor  # k, as dq's factors
    s: tuple  # accumulators, and as WGMMA takes them
    dp: tuple
    dk: tuple
    dv: tuple
    dq: tuple
    p: tuple
    ds: tuple
    added: cute.Tensor  # the sums along columns

    def scores(self, stage: Int32) -> None:
        hopper.multiply(self.mmas[0], self.s[1], self.k[None, None, None, 0], self.q[None, None, None, stage], False)

    def slopes(self, stage: Int32) -> None:
        hopper.multiply(self.mmas[0], self.dp[1], self.v[None, None, None, 0], self.do[None, None, None, stage], False)

    def add_values(self, stage: Int32) -> None:
        hopper.multiply(self.mmas[2], self.dv[1], self.p[1], self.across_do[None, None, None, stage], True)

    def add_keys(self, stage: Int32) -> None:
        hopper.multiply(self.mmas[1], self.dk[1], self.ds[1], self.across_q[None, None, None, stage], True)

    def queries(self, flight: Int32) -> None:
        hopper.multiply(
            self.mmas[3], self.dq[1], self.flat[None, None, None, flight], self.tall[None, None, None, 0], False
        )


def _consumer(shared: tuple, mmas: tuple, consumer: Int32, terms: int, how: AttentionLaunch) -> Consumer:
    sK, sV, sQ, sDo, tQ, tDo, tK, sDs = shared
    dtype, wide = sK.element_type, how.tile_m
    first, of_k, of_v, of_q = mmas
    own, own_k, own_v = (mma.get_slice(consumer * WARPGROUP) for mma in mmas[:3])
    flat, tall = _turned_factors(of_q, sDs, tK, consumer, how)
    return Consumer(
        mmas=mmas,
        k=first.make_fragment_A(own.partition_A(sK)),
        v=first.make_fragment_A(own.partition_A(sV)),
        q=first.make_fragment_B(own.partition_B(sQ)),
        do=first.make_fragment_B(own.partition_B(sDo)),
        across_q=of_k.make_fragment_B(own_k.partition_B(tQ)),
        across_do=of_v.make_fragment_B(own_v.partition_B(tDo)),
        flat=flat,
        tall=tall,
        s=hopper.accumulators(wide),
        dp=hopper.accumulators(wide),
        dk=hopper.accumulators(how.d),
        dv=hopper.accumulators(how.e),
        dq=hopper.accumulators(_columns(how)),
        p=hopper.factor(wide, dtype),
        ds=hopper.factor(wide, dtype),
        added=cute.make_rmem_tensor((2, max(1, terms)), Float32),
    )


@cute.jit
def _consume(
    shared: tuple, sums: cute.Tensor, numbers: cute.Tensor, rings: tuple, mmas: tuple, memory: tuple, at: tuple, sizes: tuple,
    batches: tuple, consumer: cutlass.Int32, lacking: cutlass.Constexpr, functions: cutlass.Constexpr,
    how: cutlass.Constexpr[AttentionLaunch],
):  # fmt: skip
    """A consumer warpgroup."""
    own = _consumer(shared, mmas, consumer, len(memory[0][2]), how)
    lane = cute.arch.lane_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    wide, last = how.tile_m, cute.ceil_div(sizes[0], how.tile_m) - 1
    tile, places = at
    row, column = tile * HELD + warp * 16 + lane // 4, 2 * (lane % 4)
    rows = shared[7].iterator.toint() + (warp * 16 + lane % 16) * LINE
    apart = how.d if wide == HELD else how.d - _columns(how)  # columns from a consumer's first to the other's
    mine = consumer * (apart // 8 * WARPGROUP) + cute.arch.thread_idx()[0] % WARPGROUP
    target, used = sums.iterator.toint() + mine * 16, Uint32(0)
    own.dk[0].fill(0.0)
    own.dv[0].fill(0.0)
    own.added.fill(0.0)
    cute.arch.mbarrier_wait(rings[0][0], 0)
    for which in cutlass.range(batches_of.count(batches, lacking, True), unroll=1):
        here = batches_of.sharer(which, places, batches, lacking)
        walk = hopper.step(hopper.begin(), tile, here, sizes, memory[2], functions[1], wide, True, True)
        while walk[3] >= 0:
            place = here, row, (last - walk[3]) * wide + column
            _multiply(own, numbers, rings, used, place, hopper.is_plain(walk), rows, sizes, memory, functions, how)
            walk = hopper.step(walk, tile, here, sizes, memory[2], functions[1], wide, True, True)
            _release(own, target, consumer, rings, used, how)
            used += 1
    sm90_backward.store_keys(own.dk[0], own.dv[0], own.added, memory[0], places, row, column, sizes[1])


def _multiply(
    own: Consumer, numbers: cute.Tensor, rings: tuple, used: Uint32, place: tuple, plain: cutlass.Boolean, rows: Int32,
    sizes: tuple, memory: tuple, functions: tuple, how: AttentionLaunch,
) -> None:  # fmt: skip
    """Start all products of a tile of q. Those of dq need the other consumer's ds too."""
    lane, dtype, wide = cute.arch.lane_idx(), own.mmas[0].op.a_dtype, how.tile_m
    stage, phase = place_in_ring(used, how.stages)
    cute.arch.mbarrier_wait(rings[1][0] + stage, phase)
    warpgroup.fence()
    own.scores(stage)
    cute.arch.mbarrier_wait(rings[2][0] + stage, phase)
    own.slopes(stage)
    warpgroup.wait_group(0)
    near = numbers[None, None, stage].iterator.toint() + 2 * (lane % 4) * 4
    sm90_backward.slope_keys(own.s[0], own.dp[0], own.added, place, near, plain, sizes, memory, functions, how)
    hopper.rounded(own.s[0], own.p[0], dtype)
    hopper.rounded(own.dp[0], own.ds[0], dtype)
    warpgroup.fence()
    own.add_values(stage)
    flight = Int32(used % FLIGHTS)
    _spread(own.ds[0], rows + flight * (2 * wide * HELD), lane, wide)
    cute.arch.fence_view_async_shared()
    cute.arch.barrier(barrier_id=MET, number_of_threads=CONSUMERS * WARPGROUP)
    warpgroup.fence()
    own.queries(flight)
    own.add_keys(stage)


def _release(
    own: Consumer, target: Int32, consumer: Int32, rings: tuple, used: Uint32, how: AttentionLaunch
) -> None:  # fmt: skip
    """Wait for these products, and hand dq over while those of dk go on."""
    warpgroup.wait_group(1)
    _hand_over(own.dq[0], target, consumer, rings[3], used, how)
    warpgroup.wait_group(0)
    cute.arch.sync_warp()  # all lanes have read the statistics
    stage, signals = used % how.stages, cute.arch.lane_idx() == 0
    tensorcore.arrive(rings[2][1].toint() + Int32(stage) * 8, signals, False)
    tensorcore.arrive(rings[1][1].toint() + Int32(stage) * 8, signals, False)


# ds and dq in shared memory


def _spread(ds: cute.Tensor, row: Int32, lane: Int32, wide: int) -> None:
    """Store a factor's words, (2 rows of k, 8 rows of q each), to its place in shared memory, in which rows of q are contiguous: those
    of 64 rows of q are a line of each row of k, with permuted chunks of 16 bytes. `row` is the address of a lane's row of k."""
    for j in range(0, wide // 8, 2):
        chunk = (j % 8 + lane // 16) ^ (lane % 8)
        place = row + j // 8 * (HELD * LINE) + chunk * 16
        tensorcore.stmatrix(place, [ds[i % 2, j + i // 2] for i in range(4)])


def _hand_over(
    dq: cute.Tensor, target: Int32, consumer: Int32, ring: tuple, used: Uint32, how: AttentionLaunch
) -> None:  # fmt: skip
    """Store a thread's accumulators for the adders, once a place is free: four of 8 columns are neighbours, those of all threads of a
    warpgroup follow each other. Columns that both consumers have, the first one stores."""
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
def _store_four(place: cutlass.Int32, words: cute.Tensor, there: cutlass.Boolean | bool):
    if there:
        tensorcore.store_words(place, [words[i % 2, i // 2] for i in range(4)])


@cute.kernel
def _round(
    words: cute.Tensor, sums: cute.Tensor, target: cute.Tensor, batches: tuple, tiles: cutlass.Int32,
    how: cutlass.Constexpr[AttentionLaunch],
):  # fmt: skip
    """Round the sums of a tile of dq; those to which no block has added are zeros."""
    number, thread = Int32(cute.arch.block_idx()[0]), Int32(cute.arch.thread_idx()[0])
    places, tile = batches_of.places_of(number // tiles, batches), number % tiles
    there = words[number] > 0
    size = how.tile_m * how.d
    own = cute.make_tensor(
        (sums.iterator + Int64(number) * size).align(16), cute.make_layout((4, size // 4), stride=(1, 4))
    )
    for i in cutlass.range_constexpr(size // 4 // ROUNDING):
        at = i * ROUNDING + thread
        held = cute.make_rmem_tensor((4,), Float32)
        held.fill(0.0)
        if there:
            cute.autovec_copy(own[None, at], held)
        eights, inside = at // WARPGROUP, at % WARPGROUP  # as `_hand_over` places them
        column = eights % (how.d // 8) * 8 + inside % 4 * 2
        row = tile * how.tile_m + eights // (how.d // 8) * 64 + inside // WARP * 16 + inside % WARP // 4
        for r in cutlass.range_constexpr(2):
            if row + 8 * r < target.shape[1]:
                pair = cute.make_rmem_tensor((2,), target.element_type)
                for c in cutlass.range_constexpr(2):
                    pair[c] = held[2 * r + c].to(target.element_type)
                line = target.iterator + cute.crd2idx((places, row + 8 * r, column), target.layout)
                cute.autovec_copy(pair, cute.make_tensor(line.align(4), cute.make_layout((2,))))
