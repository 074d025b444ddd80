"""The backward of attention for Hopper (sm_90a), as two kernels that compute the scores again. Each gradient is added up by one
thread in a fixed order.

`keys`: a tile of k and v stays, tiles of q and do pass, of all heads that share k and v. A consumer computes for its 64 rows of k

    s = k @ q^T, dp = v @ do^T      both factors in shared memory
    p, ds = slope(s, dp)            the weights, and the gradient of the products
    dv += p @ do, dk += ds @ q      p and ds in registers

`queries`: a tile of q and do stays, tiles of k and v pass. It is s = q @ k^T, dp = do @ v^T and dq += ds @ k.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Uint32
from cutlass.cute.nvgpu import cpasync, warpgroup
from cutlass.memory import SmemAllocator

from codegen.device import vectors
from codegen.device.attention import batches as batches_of
from codegen.device.attention import hopper
from codegen.device.attention.arguments import Backward
from codegen.device.attention.batches import store_sum
from codegen.device.attention.hopper import HELD
from codegen.device.attention.scores import Scores
from codegen.device.gemm import tensorcore
from codegen.device.gemm.warpgroups import CONSUMERS, PRODUCER, THREADS, WARPGROUP, loader, place_in_ring
from codegen.shared import WARP, AttentionLaunch

# Arrivals until a stage of q is full: of its bytes, and of each lane that stores its rows' statistics
STATED = 1 + WARP


def launch(stream: Any, given: Backward) -> None:
    """As `attention.launch_backward`. `tile_m` rows of q pass a tile of k and v, and `tile_n` rows of k and v one of q. `slope` is
    called with two columns of one row, or with a row's columns of a tile.

    On an H100 with 16384 tokens and 16 heads of 128 elements, bfloat16, under a causal mask, the two kernels took 3.34 and 2.31 ms
    with 64 rows of q and 112 of k; cuDNN's forward and backward took 6.92 ms, its forward 1.73 ms.
    """
    _launch_keys(stream, given)
    _launch_queries(stream, given)


def _launch_keys(stream: Any, given: Backward) -> None:
    """Compute the gradients of k and v, and sums along rows of k."""
    q, k, how, sums = given.q, given.k, given.how, given.sums
    batches, sizes, columns = q.shape[0], (q.shape[1], k.shape[1]), (how.d, how.e)
    loads, layouts = prepare((k, given.v), (q, given.do), columns, how.tile_m, how.stages)
    mmas = hopper.products(q.element_type, how.tile_m), *(hopper.weighted(q.element_type, c) for c in columns)
    lacking = batches_of.lacking(k.stride[0])
    count = cute.ceil_div(sizes[1], HELD) * batches_of.count(batches, lacking, False)
    memory = (given.dk, given.dv, sums.along_columns), given.statistics, given.tensors
    functions = given.functions.slope, given.functions.tiles, 2 + len(sums.along_rows)
    _keys(loads, layouts, mmas, memory, sizes, batches, count, lacking, functions, how).launch(
        grid=(cutlass.min(count, how.processors), 1, 1),
        block=(THREADS, 1, 1),
        min_blocks_per_mp=1,
        stream=stream,
    )


def _launch_queries(stream: Any, given: Backward) -> None:
    """Compute the gradient of q, and sums along its rows."""
    q, k, how = given.q, given.k, given.how
    sizes = q.shape[1], k.shape[1]
    loads, layouts = prepare((q, given.do), (k, given.v), (how.d, how.e), how.tile_n, how.stages)
    mmas = hopper.products(q.element_type, how.tile_n), hopper.weighted(q.element_type, how.d)
    batches = cute.size(q, mode=[0])
    count = cute.ceil_div(sizes[0], HELD) * batches
    work = (count, cute.fast_divmod_create_divisor_v2(batches))
    memory = (given.dq, given.sums.along_rows), given.statistics, given.tensors
    functions = given.functions.slope, given.functions.tiles
    _queries(loads, layouts, mmas, memory, sizes, q.shape[0], work, functions, how).launch(
        grid=(cutlass.min(count, how.processors), 1, 1),
        block=(THREADS, 1, 1),
        min_blocks_per_mp=1,
        stream=stream,
    )


def prepare(held: tuple, moving: tuple, columns: tuple[int, int], rows: int, stages: int) -> tuple[tuple, tuple]:
    """The loads of two tensors whose tiles stay, and of two whose tiles of some rows pass; and their layouts in shared memory: those
    of the second ones also with their rows as the contracted mode."""
    dtype = held[0].element_type
    layouts = [hopper.staying((HELD, c), dtype) for c in columns]
    layouts += [hopper.passing((rows, c), dtype, stages) for c in columns]
    boxes = [(HELD, c) for c in columns] + [(rows, c) for c in columns]
    loads = [loader(t, (1, 2, 0), x, box) for t, x, box in zip((*held, *moving), layouts, boxes, strict=True)]
    return tuple(loads), (*layouts, *(hopper.across((rows, c), dtype, stages) for c in columns))


def boxes_of(rows: int, how: AttentionLaunch) -> tuple[tuple[int, int], ...]:
    return (HELD, how.d), (HELD, how.e), (rows, how.d), (rows, how.e)


def allocate(allocator: SmemAllocator, layouts: tuple, dtype: Any) -> tuple:
    """The tiles in shared memory, and the passing ones with their rows as the contracted mode."""
    made = tuple(allocator.allocate_tensor(dtype, x.outer, 1024, swizzle=x.inner) for x in layouts[:4])
    return *made, *(cute.make_tensor(t.iterator, x.outer) for t, x in zip(made[2:], layouts[4:], strict=True))


# k and v stay


@cute.kernel
def _keys(
    loads: tuple,  # of k, v, q and do: TMA's copies, and tensors of coordinates
    layouts: tuple,
    mmas: tuple,  # the first products; those of dk and of dv
    memory: tuple,  # dk, dv and sums; the statistics of rows; the operands of the functions
    sizes: tuple,  # rows of q and of k
    batches: tuple,  # sizes of the batch's axes
    work: cutlass.Int32,  # tiles of k
    lacking: cutlass.Constexpr[tuple[bool, ...]],  # which axes of the batch k and v lack
    functions: cutlass.Constexpr,  # slope, tiles, and the first of the slope's results that is summed
    how: cutlass.Constexpr[AttentionLaunch],
):
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    consumer = warp // 4
    memory = *memory[:2], tuple(vectors.compacted(t) for t in memory[2])
    allocator = SmemAllocator()
    shared = allocate(allocator, layouts, mmas[0].op.a_dtype)
    numbers = allocator.allocate_tensor(Float32, cute.make_layout((how.tile_m, max(1, len(memory[1])), how.stages)), 16)
    stages = 1, how.stages, how.stages
    rings = hopper.rings(allocator, stages)
    hopper.start(rings, stages, (1, STATED, 1))
    if consumer == CONSUMERS:
        cute.arch.setmaxregister_decrease(hopper.REGISTERS[0])
        if warp == PRODUCER:
            _produce_keys(loads, (*shared[:4], numbers), rings, memory, sizes, batches, work, lacking, functions, how)
    else:
        cute.arch.setmaxregister_increase(hopper.REGISTERS[1])
        _consume_keys(shared, numbers, rings, mmas, memory, sizes, batches, work, consumer, lacking, functions, how)


@cute.jit
def _produce_keys(
    loads: tuple, shared: tuple, rings: tuple, memory: tuple, sizes: tuple, batches: tuple, work: cutlass.Int32,
    lacking: cutlass.Constexpr, functions: cutlass.Constexpr, how: cutlass.Constexpr[AttentionLaunch],
):  # fmt: skip
    """The producer warp: loads the tiles of this block, and the statistics of q's rows."""
    to = partitions(loads, shared[:4], how)
    filled, turn = Uint32(0), Int32(0)
    index = hopper.next_tile(turn)
    while index < work:
        tile, own = batches_of.own(index, batches, lacking)
        filled = produce_tile(
            loads, to, shared, rings, memory, (tile, own, turn, filled), sizes, batches, lacking, functions, False, how
        )
        turn += 1
        index = hopper.next_tile(turn)


def partitions(loads: tuple, shared: tuple, how: AttentionLaunch) -> tuple:
    """The boxes of k, v, q and do, in shared and in global memory."""
    for load in loads:
        cpasync.prefetch_descriptor(load[0])
    found = zip(loads, boxes_of(how.tile_m, how), shared, strict=True)
    return tuple(hopper.partition(load[0], load[1], box, s) for load, box, s in found)


@cute.jit
def produce_tile(
    loads: tuple, to: tuple, shared: tuple, rings: tuple, memory: tuple, at: tuple, sizes: tuple, batches: tuple,
    lacking: cutlass.Constexpr, functions: cutlass.Constexpr, back: cutlass.Constexpr[bool],
    how: cutlass.Constexpr[AttentionLaunch],
):  # fmt: skip
    """Load a tile of k and v, and the tiles of q and do that pass it, with the statistics of q's rows. `at` is the tile, its batch, the
    number of tiles of k before it in this block, and that of tiles of q; the result is the latter after it."""
    size = tuple(hopper.bytes_of(box, shared[0].element_type) for box in boxes_of(how.tile_m, how))
    lane, numbers, statistics = cute.arch.lane_idx(), shared[4], memory[1]
    steps, last = cute.ceil_div(how.tile_m, WARP), cute.ceil_div(sizes[0], how.tile_m) - 1
    held_ring, q_ring, do_ring = rings
    tile, own, turn, filled = at
    held = (loads[0][0], to[0], (tile, 0, own)), (loads[1][0], to[1], (tile, 0, own))
    hopper.fill(held, held_ring, Uint32(turn), 1, size[0] + size[1])
    for which in cutlass.range(batches_of.count(batches, lacking, True), unroll=1):
        places = batches_of.sharer(which, own, batches, lacking)
        walk = hopper.step(hopper.begin(), tile, places, sizes, memory[2], functions[1], how.tile_m, True, back)
        while walk[3] >= 0:
            passing = last - walk[3] if cutlass.const_expr(back) else walk[3]
            found = cute.make_rmem_tensor((steps, max(1, len(statistics))), Float32)
            for i in cutlass.range_constexpr(steps):
                for n in cutlass.range_constexpr(len(statistics)):
                    row = cutlass.min(passing * how.tile_m + i * WARP + lane, sizes[0] - 1)
                    found[i, n] = statistics[n][places, row]
            hopper.fill(((loads[2][0], to[2], (passing, 0, places)),), q_ring, filled, how.stages, size[2])
            stage, _ = place_in_ring(filled, how.stages)
            for i in cutlass.range_constexpr(steps):
                if i * WARP + lane < how.tile_m:
                    for n in cutlass.range_constexpr(len(statistics)):
                        numbers[i * WARP + lane, n, stage] = found[i, n]
            cute.arch.mbarrier_arrive(q_ring[0] + stage)  # every lane, after its own words
            hopper.fill(((loads[3][0], to[3], (passing, 0, places)),), do_ring, filled, how.stages, size[3])
            filled += 1
            walk = hopper.step(walk, tile, places, sizes, memory[2], functions[1], how.tile_m, True, back)
    return filled


@cute.jit
def _consume_keys(
    shared: tuple, numbers: cute.Tensor, rings: tuple, mmas: tuple, memory: tuple, sizes: tuple, batches: tuple, work: cutlass.Int32,
    consumer: cutlass.Int32, lacking: cutlass.Constexpr, functions: cutlass.Constexpr,
    how: cutlass.Constexpr[AttentionLaunch],
):  # fmt: skip
    """A consumer warpgroup: 64 rows of dk and dv of each tile of this block."""
    (sK, sV, sQ, sDo, tQ, tDo), (held_ring, q_ring, do_ring), dtype = shared, rings, shared[0].element_type
    first, of_k, of_v = mmas
    own, own_k, own_v = (mma.get_slice(consumer * WARPGROUP) for mma in mmas)
    k, v = (first.make_fragment_A(own.partition_A(x)) for x in (sK, sV))
    q, do = (first.make_fragment_B(own.partition_B(x)) for x in (sQ, sDo))
    across_q, across_do = of_k.make_fragment_B(own_k.partition_B(tQ)), of_v.make_fragment_B(own_v.partition_B(tDo))
    wide = how.tile_m
    (s, acc_s), (dp, acc_dp) = hopper.accumulators(wide), hopper.accumulators(wide)
    (dk, acc_dk), (dv, acc_dv) = hopper.accumulators(how.d), hopper.accumulators(how.e)
    (p, a_p), (ds, a_ds) = hopper.factor(wide, dtype), hopper.factor(wide, dtype)
    added = cute.make_rmem_tensor((2, max(1, len(memory[0][2]))), Float32)
    lane = cute.arch.lane_idx()
    signals = lane == 0
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    own_row, own_column = warp * 16 + lane // 4, 2 * (lane % 4)
    q_free, do_free, held_free = (ring[1].toint() for ring in (q_ring, do_ring, held_ring))
    used, turn = Uint32(0), Int32(0)
    index = hopper.next_tile(turn)
    while index < work:
        tile, places = batches_of.own(index, batches, lacking)
        row = tile * HELD + own_row
        dk.fill(0.0)
        dv.fill(0.0)
        added.fill(0.0)
        cute.arch.mbarrier_wait(held_ring[0], turn & 1)
        for which in cutlass.range(batches_of.count(batches, lacking, True), unroll=1):
            here = batches_of.sharer(which, places, batches, lacking)
            walk = hopper.step(hopper.begin(), tile, here, sizes, memory[2], functions[1], wide, True)
            while walk[3] >= 0:
                at, phase = place_in_ring(used, how.stages)
                cute.arch.mbarrier_wait(q_ring[0] + at, phase)
                warpgroup.fence()
                hopper.multiply(first, acc_s, k[None, None, None, 0], q[None, None, None, at], False)
                cute.arch.mbarrier_wait(do_ring[0] + at, phase)
                hopper.multiply(first, acc_dp, v[None, None, None, 0], do[None, None, None, at], False)
                warpgroup.wait_group(0)
                place = here, row, walk[3] * wide + own_column
                near = numbers[None, None, at].iterator.toint() + own_column * 4
                slope_keys(s, dp, added, place, near, hopper.is_plain(walk), sizes, memory, functions, how)
                hopper.rounded(s, p, dtype)
                hopper.rounded(dp, ds, dtype)
                warpgroup.fence()
                hopper.multiply(of_v, acc_dv, a_p, across_do[None, None, None, at], True)
                hopper.multiply(of_k, acc_dk, a_ds, across_q[None, None, None, at], True)
                walk = hopper.step(walk, tile, here, sizes, memory[2], functions[1], wide, True)
                warpgroup.wait_group(0)
                cute.arch.sync_warp()  # all lanes have read the statistics
                tensorcore.arrive(do_free + at * 8, signals, False)
                tensorcore.arrive(q_free + at * 8, signals, False)
                used += 1
        tensorcore.arrive(held_free, signals, False)
        store_keys(dk, dv, added, memory[0], places, row, own_column, sizes[1])
        turn += 1
        index = hopper.next_tile(turn)


def store_keys(
    dk: cute.Tensor, dv: cute.Tensor, added: cute.Tensor, targets: tuple, places: tuple, row: Int32, column: Int32, count: Int32
) -> None:  # fmt: skip
    """Store a thread's two rows of dk, dv and the sums, of `count` rows."""
    to_dk, to_dv, sums = targets
    for r in range(2):
        there = row + 8 * r < count
        hopper.store(dk, to_dk, places, row + 8 * r, column, there, r)
        hopper.store(dv, to_dv, places, row + 8 * r, column, there, r)
        for n in range(len(sums)):
            store_sum(added[r, n], sums[n], places, row + 8 * r, count)


@cute.jit
def slope_keys(
    s: cute.Tensor, dp: cute.Tensor, added: cute.Tensor, place: tuple, near: cutlass.Int32, plain: cutlass.Boolean, sizes: tuple,
    memory: tuple, functions: cutlass.Constexpr, how: cutlass.Constexpr[AttentionLaunch],
):  # fmt: skip
    """Replace products with weights and their gradients: a column of accumulators is a row of q, with two rows of k."""
    if plain:
        for j in cutlass.range_constexpr(how.tile_m // 8):
            _slope_column(s, dp, added, j, place, near, sizes, memory, functions, how, False)
    else:
        for j in cutlass.range_constexpr(how.tile_m // 8):
            _slope_column(s, dp, added, j, place, near, sizes, memory, functions, how, True)


def _slope_column(
    s: cute.Tensor, dp: cute.Tensor, added: cute.Tensor, j: int, place: tuple, near: Int32, sizes: tuple, memory: tuple,
    functions: tuple, how: AttentionLaunch, masked: bool,
) -> None:  # fmt: skip
    places, row, column = place
    _, statistics, tensors = memory
    held = [tensorcore.load_words(near + 4 * (8 * j + n * how.tile_m), 2) for n in range(len(statistics))]
    for c in range(2):
        here = column + (8 * j + c)
        at = Scores(places, cutlass.min(here, sizes[0] - 1), (row, row + 8), sizes)
        a, b = cute.make_rmem_tensor((2,), Float32), cute.make_rmem_tensor((2,), Float32)
        for r in range(2):
            a[r], b[r] = s[c, r, j], dp[c, r, j]
        given = tuple(cute.full((1,), words[c].bitcast(Float32), Float32) for words in held)
        made = functions[0](at, a.load(), b.load(), given, tensors, masked)
        a.store(made[0])
        b.store(made[1])
        for n in range(len(memory[0][2])):
            term = cute.make_rmem_tensor((2,), Float32)
            term.store(made[functions[2] + n])
            for r in range(2):
                added[r, n] += cutlass.select_(here < sizes[0], term[r], Float32(0.0)) if masked else term[r]
        for r in range(2):
            there, outside = here < sizes[0], Float32(0.0)
            s[c, r, j] = cutlass.select_(there, a[r], outside) if masked else a[r]
            # Rows of k past the last are factors of q's gradient: what is infinite there is no number times 0
            if how.joint:
                there = there & (row + 8 * r < sizes[1])
            dp[c, r, j] = cutlass.select_(there, b[r], outside) if masked else b[r]


# q and do stay


@cute.kernel
def _queries(
    loads: tuple,  # of q, do, k and v: TMA's copies, and tensors of coordinates
    layouts: tuple,
    mmas: tuple,  # the first products; those of dq
    memory: tuple,  # dq and sums; the statistics of rows; the operands of the functions
    sizes: tuple,  # rows of q and of k
    batches: tuple,  # sizes of the batch's axes
    work: tuple,  # tiles of q, and the divisor in `_place`
    functions: cutlass.Constexpr,  # slope, tiles
    how: cutlass.Constexpr[AttentionLaunch],
):
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    consumer = warp // 4
    memory = *memory[:2], tuple(vectors.compacted(t) for t in memory[2])
    allocator = SmemAllocator()
    shared = allocate(allocator, layouts, mmas[0].op.a_dtype)
    stages = 1, how.stages, how.stages
    rings = hopper.rings(allocator, stages)
    hopper.start(rings, stages, (1, 1, 1))
    if consumer == CONSUMERS:
        cute.arch.setmaxregister_decrease(hopper.REGISTERS[0])
        if warp == PRODUCER:
            _produce_queries(loads, shared[:4], rings, memory, sizes, batches, work, functions, how)
    else:
        cute.arch.setmaxregister_increase(hopper.REGISTERS[1])
        _consume_queries(shared, rings, mmas, memory, sizes, batches, work, consumer, functions, how)


def _place(index: Int32, sizes: tuple, batches: tuple, work: tuple) -> tuple[Int32, tuple]:
    """The tile of q, and the positions of its batch. The last tiles, which see most under a causal mask, come first."""
    back, batch = map(Int32, divmod(index, work[1]))
    return cute.ceil_div(sizes[0], HELD) - 1 - back, batches_of.places_of(batch, batches)


@cute.jit
def _produce_queries(
    loads: tuple, shared: tuple, rings: tuple, memory: tuple, sizes: tuple, batches: tuple, work: tuple,
    functions: cutlass.Constexpr, how: cutlass.Constexpr[AttentionLaunch],
):  # fmt: skip
    """The producer warp: loads the tiles of this block."""
    boxes, dtype = boxes_of(how.tile_n, how), shared[0].element_type
    to = tuple(hopper.partition(load[0], load[1], box, s) for load, box, s in zip(loads, boxes, shared, strict=True))
    for load in loads:
        cpasync.prefetch_descriptor(load[0])
    held_ring, k_ring, v_ring = rings
    size = tuple(hopper.bytes_of(box, dtype) for box in boxes)
    filled, turn = Uint32(0), Int32(0)
    index = hopper.next_tile(turn)
    while index < work[0]:
        tile, places = _place(index, sizes, batches, work)
        hopper.fill(
            ((loads[0][0], to[0], (tile, 0, places)), (loads[1][0], to[1], (tile, 0, places))), held_ring, Uint32(turn), 1,
            size[0] + size[1],
        )  # fmt: skip
        walk = hopper.step(hopper.begin(), tile, places, sizes, memory[2], functions[1], how.tile_n)
        while walk[3] >= 0:
            hopper.fill(((loads[2][0], to[2], (walk[3], 0, places)),), k_ring, filled, how.stages, size[2])
            hopper.fill(((loads[3][0], to[3], (walk[3], 0, places)),), v_ring, filled, how.stages, size[3])
            filled += 1
            walk = hopper.step(walk, tile, places, sizes, memory[2], functions[1], how.tile_n)
        turn += 1
        index = hopper.next_tile(turn)


@cute.jit
def _consume_queries(
    shared: tuple, rings: tuple, mmas: tuple, memory: tuple, sizes: tuple, batches: tuple, work: tuple,
    consumer: cutlass.Int32, functions: cutlass.Constexpr, how: cutlass.Constexpr[AttentionLaunch],
):  # fmt: skip
    """A consumer warpgroup: 64 rows of dq of each tile of this block."""
    (sQ, sDo, sK, sV, tK, _), (held_ring, k_ring, v_ring), dtype = shared, rings, shared[0].element_type
    first, of_q = mmas
    own, own_q = (mma.get_slice(consumer * WARPGROUP) for mma in mmas)
    q, do = (first.make_fragment_A(own.partition_A(x)) for x in (sQ, sDo))
    k, v = (first.make_fragment_B(own.partition_B(x)) for x in (sK, sV))
    across_k = of_q.make_fragment_B(own_q.partition_B(tK))
    wide, statistics, (gradient, sums) = how.tile_n, memory[1], memory[0]
    (s, acc_s), (dp, acc_dp), (dq, acc_dq) = (hopper.accumulators(n) for n in (wide, wide, how.d))
    ds, a_ds = hopper.factor(wide, dtype)
    held = cute.make_rmem_tensor((2, max(1, len(statistics))), Float32)
    added = cute.make_rmem_tensor((2, max(1, len(sums))), Float32)
    lane = cute.arch.lane_idx()
    signals = lane == 0
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    own_row, own_column = warp * 16 + lane // 4, 2 * (lane % 4)
    k_free, v_free, held_free = (ring[1].toint() for ring in (k_ring, v_ring, held_ring))
    used, turn = Uint32(0), Int32(0)
    index = hopper.next_tile(turn)
    while index < work[0]:
        tile, places = _place(index, sizes, batches, work)
        row = tile * HELD + own_row
        dq.fill(0.0)
        added.fill(0.0)
        for r in cutlass.range_constexpr(2):
            for n in cutlass.range_constexpr(len(statistics)):
                held[r, n] = statistics[n][places, cutlass.min(row + 8 * r, sizes[0] - 1)]
        walk = hopper.step(hopper.begin(), tile, places, sizes, memory[2], functions[1], wide)
        cute.arch.mbarrier_wait(held_ring[0], turn & 1)
        while walk[3] >= 0:
            at, phase = place_in_ring(used, how.stages)
            cute.arch.mbarrier_wait(k_ring[0] + at, phase)
            warpgroup.fence()
            hopper.multiply(first, acc_s, q[None, None, None, 0], k[None, None, None, at], False)
            cute.arch.mbarrier_wait(v_ring[0] + at, phase)
            hopper.multiply(first, acc_dp, do[None, None, None, 0], v[None, None, None, at], False)
            warpgroup.wait_group(0)
            tensorcore.arrive(v_free + at * 8, signals, False)
            place = places, row, walk[3] * wide + own_column
            _slope_queries(s, dp, held, added, place, hopper.is_plain(walk), sizes, memory, functions)
            hopper.rounded(dp, ds, dtype)
            warpgroup.fence()
            hopper.multiply(of_q, acc_dq, a_ds, across_k[None, None, None, at], True)
            walk = hopper.step(walk, tile, places, sizes, memory[2], functions[1], wide)
            warpgroup.wait_group(0)
            tensorcore.arrive(k_free + at * 8, signals, False)
            used += 1
        tensorcore.arrive(held_free, signals, False)
        for r in cutlass.range_constexpr(2):
            hopper.store(dq, gradient, places, row + 8 * r, own_column, row + 8 * r < sizes[0], r)
            for n in cutlass.range_constexpr(len(sums)):
                store_sum(added[r, n], sums[n], places, row + 8 * r, sizes[0])
        turn += 1
        index = hopper.next_tile(turn)


@cute.jit
def _slope_queries(
    s: cute.Tensor, dp: cute.Tensor, held: cute.Tensor, added: cute.Tensor, place: tuple, plain: cutlass.Boolean, sizes: tuple,
    memory: tuple, functions: cutlass.Constexpr,
):  # fmt: skip
    """Replace the weights' gradients with those of the products."""
    if plain:
        for r in cutlass.range_constexpr(2):
            _slope_row(s, dp, held, added, r, place, sizes, memory, functions, False)
    else:
        for r in cutlass.range_constexpr(2):
            _slope_row(s, dp, held, added, r, place, sizes, memory, functions, True)


def _slope_row(
    s: cute.Tensor, dp: cute.Tensor, held: cute.Tensor, added: cute.Tensor, r: int, place: tuple, sizes: tuple, memory: tuple,
    functions: tuple, masked: bool,
) -> None:  # fmt: skip
    places, row, column = place
    _, statistics, tensors = memory
    a, b = hopper.row_of(s, r), hopper.row_of(dp, r)
    columns = hopper.columns_of(column, cute.size(a))
    at = Scores(places, cutlass.min(row + 8 * r, sizes[0] - 1), columns, sizes)
    given = tuple(cute.full((1,), Float32(held[r, n]), Float32) for n in range(len(statistics)))
    made = functions[0](at, a.load(), b.load(), given, tensors, masked)
    b.store(made[1])
    if masked:
        for i, here in enumerate(columns):
            b[i] = cutlass.select_(here < sizes[1], b[i], Float32(0.0))
    hopper.put_row(b, dp, r)
    for n in range(len(memory[0][1])):
        a.store(made[2 + n])
        for i, here in enumerate(columns):
            added[r, n] += cutlass.select_(here < sizes[1], a[i], Float32(0.0)) if masked else a[i]
