"""The GEMM main loop for Hopper (sm_90a): acc = a @ b by TMA and WGMMA, then the epilogue.

The producer of a block (`warpgroups`) fills a ring of stages in shared memory with tiles of a and b. The two consumers multiply
with WGMMA and pass accumulators to the epilogue. They share one tile (cooperative: 64 rows each, alternately), or have a tile each
and take turns on the tensor cores (pingpong: the epilogue of one runs while the other multiplies). Blocks are persistent: each
loops over the tiles of the product, in an order that keeps tiles that its neighbours read in the L2 cache. In a cluster of two,
tiles that both blocks read are loaded once and multicast: b where the cluster is two tiles high, a where it is two tiles wide. Or a
cluster shares one tile, and each of its blocks has a part of the contracted axis (`split`): there are then as many clusters as
tiles.

Two stages alternate: the products of one run, 768 cycles with the widest tiles, while the other waits. While another
warp runs an epilogue on the same schedulers and register ports, a warp issues an instruction every five to ten cycles.
So a stage must take few instructions, above all between the end of its products and the start of the products of the
stage after the next. On an H100 (8192 x 8192, K = 1024), GELU took 314 thousand cycles with 84 instructions per stage,
during which tensor cores were idle, and 296 thousand with 65. ReLU took 295 thousand.

TMA reads zeros outside a and b, and nothing outside the product is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Numeric, Uint32
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup
from cutlass.memory import SmemAllocator
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import hopper_helpers

from codegen.device.gemm import epilogue as gemm_epilogue
from codegen.device.gemm import pieces as gemm_pieces
from codegen.device.gemm import split as gemm_split
from codegen.device.gemm import staging, tensorcore
from codegen.device.gemm.pieces import Form, Product
from codegen.device.gemm.warpgroups import CONSUMERS, PRODUCER, THREADS, WARPGROUP, free_barrier, loader, place_in_ring
from codegen.device.math.opaque import unseen
from codegen.shared import WARP, WARPS, Tiles

TURN, MEET = 1, 3  # named barriers, one for each consumer: for its turn to multiply; for its warps to meet
ROW_MAJOR, COLUMN_MAJOR = LayoutEnum.ROW_MAJOR, LayoutEnum.COL_MAJOR


def launch(stream: cuda.CUstream, mA: cute.Tensor, products: Sequence[Product], *, b_is_nk: bool, tiles: Tiles) -> None:
    """Compute acc = mA @ mB for each of the products, and run its epilogue on it (`epilogue`).

    mA: (L, M, K); each mB as in `product`, where `b_is_nk` (L, N, K); bfloat16, float16, or, where `b_is_nk`, float8 or int8 (summed
    in int32). All strides but the last ones are multiples of 16 bytes. Any size may be 0. Several products have the same types and
    one tensor b each; no epilogue's operands are `staged` then.
    tiles: `hopper_tiles.refusal` says which products they do not fit.

    WGMMA sums float8 products with fewer bits than float32 has, and nothing here compensates for that.
    """
    parts, warps = len(products[0].mBs), 4 if tiles.pingpong else 4 * CONSUMERS  # warps that share a tile
    forms, fetchers = list[Form](), tuple[staging.Fetcher, ...]()
    for p in products:
        staged = 0 if p.form.ragged or p.form.tiles is None or tiles.splits > 1 or len(products) > 1 else tiles.staged
        form = replace(
            p.form, piece=tiles.piece, ahead=tiles.ahead, rolled=tiles.rolled, staged=staged, matrices=True, warps=warps, step=1,
            barrier=MEET, threads=32 * warps,
        )  # fmt: skip
        form, fetchers = _fetched(form, p.whole, tiles)
        forms.append(form)
    box = (tiles.tile_m, tiles.tile_n // parts, tiles.tile_k)
    b_type = products[0].mBs[0].element_type
    tiled_mma, a_layout, b_layout, b_part = _layouts(mA.element_type, b_type, b_is_nk, parts, tiles)

    # As WGMMA names modes: (M, K, L) and (N, K, L)
    load_a, tA = loader(mA, (1, 2, 0), a_layout, box[::2], tiles.cluster_n)
    modes = (1, 2, 0) if b_is_nk else (2, 1, 0)
    loads = [[loader(mB, modes, b_part, box[1:], tiles.cluster_m) for mB in p.mBs] for p in products]

    L, M, K = mA.shape
    high, wide = cute.ceil_div(cute.ceil_div(M, tiles.tile_m), tiles.cluster_m), 0  # in clusters
    firsts, columns = [], []  # the first column of tiles of all products but one, and the columns of each output
    for p, form in zip(products, forms, strict=True):
        columns.append(p.columns(b_is_nk) * parts // form.accumulators)
        if p is not products[0]:
            firsts.append(wide * tiles.cluster_n)
        wide += cute.ceil_div(cute.ceil_div(p.columns(b_is_nk), box[1]), tiles.cluster_n)
    bs = tuple(tuple(load for load, _ in own) for own in loads), tuple(tuple(t for _, t in own) for own in loads)
    clusters, extents = (high, wide, L, tuple(firsts)), (M, tuple(columns), K)
    memories, layouts = tuple(p.memory for p in products), (a_layout, b_layout)
    _launch(stream, (load_a, tA), bs, memories, fetchers, clusters, extents, tiled_mma, layouts, tiles, tuple(forms))


@dataclass(frozen=True)
class Work:
    """The tiles of all products, and which of them a block has."""

    clusters: tuple  # rows and columns of clusters, batches; the divisors in `place`; further products' first columns of tiles
    extents: tuple  # rows of the output, columns of each product's, K
    rank: Int32  # of the block in its cluster
    k_tiles: Int32  # of the block's part of K
    tiles: Tiles

    @property
    def count(self) -> Int32:
        """The number of clusters' tiles."""
        high, wide, batches, *_ = self.clusters
        return high * wide * batches

    @property
    def firsts(self) -> tuple:
        """The first column of tiles of each further product."""
        firsts: tuple = self.clusters[4]
        return firsts

    def place(self, index: Int32) -> tuple[Int32, Int32, Int32]:
        """The row, column and batch, in tiles, of this block's tile in the index-th cluster. Clusters are in bands of `group` rows,
        and within a band in order of columns."""
        high, _, _, (of_batch, of_band, last), _ = self.clusters
        group = self.tiles.group
        batch, index = map(Int32, divmod(index, of_batch))
        band, index = map(Int32, divmod(index, of_band))
        column, row = map(Int32, divmod(index, last))
        first = band * group
        whole = first + group <= high
        column = cutlass.select_(whole, index // group, column)
        row = first + cutlass.select_(whole, index % group, row)
        if self.tiles.cluster_m > 1:
            row = row * 2 + self.rank
        if self.tiles.cluster_n > 1:
            column = column * 2 + self.rank
        return row, column, batch


def _layouts(
    a_type: type[Numeric], b_type: type[Numeric], b_is_nk: bool, parts: int, tiles: Tiles
) -> tuple[cute.TiledMma, cute.ComposedLayout, cute.ComposedLayout, cute.ComposedLayout]:
    """The products of a stage, and the layouts in shared memory of a's tiles, of b's, and of the part of each tensor b in them."""
    tile = (tiles.tile_m, tiles.tile_n, tiles.tile_k)
    b_order, b_major = (ROW_MAJOR, OperandMajorMode.K) if b_is_nk else (COLUMN_MAJOR, OperandMajorMode.MN)
    tiled_mma = hopper_helpers.make_trivial_tiled_mma(
        a_type, b_type, OperandMajorMode.K, b_major, Float32 if a_type.is_float else Int32,
        (1 if tiles.pingpong else CONSUMERS, 1, 1), tiler_mn=(64, tiles.tile_n),
    )  # fmt: skip
    a_layout = hopper_helpers.make_smem_layout_a(ROW_MAJOR, tile, a_type, tiles.stages)
    b_layout = hopper_helpers.make_smem_layout_b(b_order, tile, b_type, tiles.stages)
    box = (tiles.tile_m, tiles.tile_n // parts, tiles.tile_k)
    return tiled_mma, a_layout, b_layout, hopper_helpers.make_smem_layout_b(b_order, box, b_type, 1)


def _fetched(
    form: Form, whole: tuple[tuple[cute.Tensor | None, int, bool], ...], tiles: Tiles
) -> tuple[Form, tuple[staging.Fetcher, ...]]:
    """The form with the boxes of its staged operands, and their copies."""
    if not form.staged:
        return form, ()
    high, wide = gemm_pieces.piece_of(tiles.tile_n, form)
    wide //= form.accumulators
    found = [staging.fetcher(t, count, batched, high, wide) for t, count, batched in whole if t is not None]
    return replace(form, boxes=tuple(box for box, _ in found)), tuple(f for _, f in found)


@cute.jit
def _launch(
    stream: Any, a: tuple, bs: tuple, memories: tuple, fetchers: tuple, clusters: tuple, extents: tuple,
    tiled_mma: cute.TiledMma, layouts: tuple, tiles: cutlass.Constexpr[Tiles], forms: cutlass.Constexpr,
) -> None:  # fmt: skip
    """Launch the kernel, unless there is nothing to do."""
    high, wide, batches, firsts = clusters
    count = high * wide * batches
    last = high - (high - 1) // tiles.group * tiles.group  # rows of the last band
    if count > 0:
        divisors = tuple(cute.fast_divmod_create_divisor_v2(d) for d in (high * wide, tiles.group * wide, last))
        if cutlass.const_expr(tiles.splits == 1):
            count = cutlass.min(count, tiles.blocks // tiles.multicast)
        _kernel(
            a, bs, memories, fetchers, (high, wide, batches, divisors, firsts), extents, tiled_mma, layouts, tiles, forms,
        ).launch(
            grid=(tiles.cluster * count, 1, 1), block=(THREADS, 1, 1),
            cluster=(tiles.cluster, 1, 1), min_blocks_per_mp=1, stream=stream,
        )  # fmt: skip


@cute.kernel
def _kernel(
    a: tuple,  # the copy of its tiles, and its coordinates (M, K, L)
    bs: tuple,  # of each product: the copies, and the coordinates (N, K, L or 1)
    memories: tuple,  # of each product: the epilogue's tensors, row parts and column parts
    fetchers: tuple,  # of the one epilogue's prefetched operands
    clusters: tuple,  # as of `Work`
    extents: tuple,  # as of `Work`
    tiled_mma: cute.TiledMma,
    layouts: tuple,  # of a's tiles (tile_m, tile_k, stages), and of b's (tile_n, tile_k, stages)
    tiles: cutlass.Constexpr,
    forms: cutlass.Constexpr,
) -> None:
    form = forms[0]  # the shared memory of all is the same
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    consumer = warp // 4  # which warpgroup
    rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
    k_tiles = cute.ceil_div(cute.ceil_div(extents[2], tiles.tile_k), tiles.splits)
    work, (a_layout, b_layout) = Work(clusters, extents, rank, k_tiles, tiles), layouts
    a_type, b_type = tiled_mma.op.a_dtype, tiled_mma.op.b_dtype

    allocator = SmemAllocator()
    sA = allocator.allocate_tensor(a_type, a_layout.outer, 1024, swizzle=a_layout.inner)
    sB = allocator.allocate_tensor(b_type, b_layout.outer, 1024, swizzle=b_layout.inner)
    stage = allocator.allocate_tensor(Float32, cute.make_layout((form.stage, 4 * CONSUMERS)), 16)
    size = max(16, WARPS * form.ahead * form.staged)
    operands = allocator.allocate_tensor(cutlass.Uint8, cute.make_layout((size,)), staging.ALIGNED).iterator
    full = allocator.allocate_array(Int64, tiles.stages)  # a stage's bytes have come
    empty = allocator.allocate_array(Int64, tiles.stages)  # all that read a stage have read it
    pieces = 2 * form.ahead if form.staged > 0 else 0  # pieces whose operands a warp waits for
    here = allocator.allocate_array(Int64, max(1, WARPS * pieces))  # these have come

    if warp == 0:
        with cute.arch.elect_one():
            readers = (4 if tiles.pingpong else 4 * CONSUMERS) * tiles.multicast  # warps
            for i in cutlass.range_constexpr(tiles.stages):
                cute.arch.mbarrier_init(full + i, 1)
                cute.arch.mbarrier_init(empty + i, readers)
            for i in cutlass.range_constexpr(WARPS * pieces):
                cute.arch.mbarrier_init(here + i, 1)
        cute.arch.mbarrier_init_fence()
    if cutlass.const_expr(tiles.multicast > 1):
        cute.arch.cluster_arrive_relaxed()
        cute.arch.cluster_wait()
    else:
        cute.arch.sync_threads()

    if consumer == CONSUMERS:
        cute.arch.setmaxregister_decrease(tiles.registers[0])
        if warp == PRODUCER:
            _produce(a, bs, (sA, sB), (full, empty), work)
    else:
        cute.arch.setmaxregister_increase(tiles.registers[1])
        shared = sA, sB, stage
        _consume(shared, (operands, here, fetchers), (full, empty), work, consumer, memories, tiled_mma, forms)


@cute.jit
def _produce(a: tuple, bs: tuple, shared: tuple, ring: tuple, work: Work) -> None:
    """The producer warp: loads the tiles of this block, stage by stage, as soon as a stage is free. `ring` are the barriers of full and
    of free stages."""
    (load_a, tA), (load_bs, tBs), (sA, sB), (full, empty), rank, tiles = a, bs, shared, ring, work.rank, work.tiles
    cpasync.prefetch_descriptor(load_a)
    stages, part_n, k_tiles = tiles.stages, tiles.tile_n // len(tBs[0]), work.k_tiles
    both = cutlass.Int16(0b11)  # the blocks of a cluster
    a_mask = both if cutlass.const_expr(tiles.cluster_n > 1) else None
    b_mask = both if cutlass.const_expr(tiles.cluster_m > 1) else None
    gA = cute.local_tile(tA, (tiles.tile_m, tiles.tile_k), (None, None, None))
    a_copy = staging.partition(load_a, gA, sA, rank, tiles.cluster_n)  # (box, stages) and (box, tiles, K tiles, L)
    b_copies: list = []  # of each product
    for p in cutlass.range_constexpr(len(tBs)):
        b_copies.append([])
        for i in cutlass.range_constexpr(len(tBs[p])):
            cpasync.prefetch_descriptor(load_bs[p][i])
            gB = cute.local_tile(tBs[p][i], (part_n, tiles.tile_k), (None, None, None))
            sPart = cute.local_tile(sB, (part_n, tiles.tile_k), (i, 0, None))
            b_copies[p].append(staging.partition(load_bs[p][i], gB, sPart, rank, tiles.cluster_m))
    b_batches = cute.size(tBs[0][0], mode=[2])
    size = (tiles.tile_m * sA.element_type.width + tiles.tile_n * sB.element_type.width) * tiles.tile_k // 8

    filled = Uint32(0)  # stages so far
    first = rank * k_tiles if cutlass.const_expr(tiles.splits > 1) else 0
    index = cute.arch.block_idx()[0] // tiles.cluster
    while index < work.count:
        row, column, batch = work.place(index)
        b_batch = cutlass.min(batch, b_batches - 1)
        for k in cutlass.range(k_tiles, unroll=1):
            at, phase = place_in_ring(filled, stages)
            cute.arch.mbarrier_wait(empty + at, phase ^ 1)
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(full + at, size)
            dst, src = a_copy
            cute.copy(load_a, src[None, row, first + k, batch], dst[None, at], tma_bar_ptr=full + at, mcast_mask=a_mask)
            if cutlass.const_expr(len(tBs) == 1):
                _load_b(load_bs[0], b_copies[0], (column, first + k, b_batch), at, full + at, b_mask)
            else:
                for p in cutlass.range_constexpr(len(tBs)):
                    own, its = gemm_pieces.own_column(column, work.firsts, p)
                    if its:
                        _load_b(load_bs[p], b_copies[p], (own, first + k, b_batch), at, full + at, b_mask)
            filled += 1
        index += cute.arch.grid_dim()[0] // tiles.cluster
    # The other block of a cluster signals this one's barriers, which must exist until then
    for _ in cutlass.range_constexpr(stages):
        at, phase = place_in_ring(filled, stages)
        cute.arch.mbarrier_wait(empty + at, phase ^ 1)
        filled += 1


def _load_b(
    loads: tuple, copies: list, place: tuple, at: Int32, barrier: cute.Pointer, mask: cutlass.Int16 | None
) -> None:
    """Start the copies of a product's tiles b to a stage."""
    for load, (dst, src) in zip(loads, copies, strict=True):
        cute.copy(load, src[(None, *place)], dst[None, at], tma_bar_ptr=barrier, mcast_mask=mask)


def _pass_turn(consumer: Int32, tiles: Tiles) -> None:
    """Let the other consumer multiply."""
    if tiles.pingpong:
        cute.arch.barrier_arrive(barrier_id=TURN + 1 - consumer, number_of_threads=2 * WARPGROUP)


@cute.jit
def _multiply(
    tiled_mma: cute.TiledMma, acc: cute.Tensor, tCrA: cute.Tensor, tCrB: cute.Tensor, at: cutlass.Int32,
    adds: cutlass.Boolean | bool,
) -> None:  # fmt: skip
    """Start the products of the stage at a place. They are added to `acc`, or replace it."""
    warpgroup.fence()
    for block in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):
        mma = cute.make_mma_atom(tiled_mma.op)
        mma.set(warpgroup.Field.ACCUMULATE, adds if cutlass.const_expr(block == 0) else True)
        cute.gemm(mma, acc, tCrA[None, None, block, at], tCrB[None, None, block, at], acc)
    warpgroup.commit_group()


@cute.jit
def _products(
    tiled_mma: cute.TiledMma, factors: tuple, ring: tuple, used: cutlass.Uint32, consumer: cutlass.Int32, work: Work,
    anew: cutlass.Constexpr[bool],
) -> None:  # fmt: skip
    """All products of a tile, whose first stage comes after `used` others. While tensor cores work on one stage, the warpgroup waits
    for the next one, issues it, and releases the previous one.

    factors: the accumulators, fragments of a and b.
    ring: the barriers of full stages; the address of the barrier of the first free stage, and whether this lane arrives there.
    anew: whether the accumulators' registers are free before, for which the first stage's products are issued separately; then
        K is not 0.
    """
    (acc, tCrA, tCrB), (full, freed, signals), k_tiles, tiles = factors, ring, work.k_tiles, work.tiles
    stages, everywhere = tiles.stages, tiles.multicast > 1
    at, phase = place_in_ring(used, stages)
    if cutlass.const_expr(anew):
        cute.arch.mbarrier_wait(full + at, phase)
        _multiply(tiled_mma, acc, tCrA, tCrB, at, False)
    for k in cutlass.range(1 if cutlass.const_expr(anew) else 0, k_tiles, unroll=1):
        before = at
        at, phase = place_in_ring(used + k, stages)
        cute.arch.mbarrier_wait(full + at, phase)
        _multiply(tiled_mma, acc, tCrA, tCrB, at, True if cutlass.const_expr(anew) else k > 0)
        warpgroup.wait_group(1)
        tensorcore.arrive(freed + before * 8, signals if cutlass.const_expr(anew) else signals & (k > 0), everywhere)
    _pass_turn(consumer, tiles)
    warpgroup.wait_group(0)
    tensorcore.arrive(freed + at * 8, signals & (k_tiles > 0), everywhere)


@cute.jit
def _tile_products(
    tiled_mma: cute.TiledMma, factors: tuple, ring: tuple, used: cutlass.Uint32, consumer: cutlass.Int32, work: Work,
    rolled: cutlass.Constexpr[bool],
) -> None:  # fmt: skip
    """`_products`, also where K is 0. Before a `rolled` epilogue the accumulators' registers are free."""
    if cutlass.const_expr(not rolled):
        _products(tiled_mma, factors, ring, used, consumer, work, False)
    elif work.k_tiles == 0:
        factors[0].fill(0)
        _pass_turn(consumer, work.tiles)
    else:
        _products(tiled_mma, factors, ring, used, consumer, work, True)


def _fragments(
    tiled_mma: cute.TiledMma, sA: cute.Tensor, sB: cute.Tensor, consumer: Int32, slabs: int, tiles: Tiles
) -> tuple[cute.Tensor, tuple[cute.Tensor, cute.Tensor, cute.Tensor]]:
    """A consumer's accumulators, (2, 2, J, slabs); and as WGMMA takes them, with the fragments of a and b."""
    accumulators = cute.make_rmem_tensor((2, 2, tiles.tile_n // 8, slabs), tiled_mma.op.acc_dtype)
    acc = cute.make_tensor(accumulators.iterator, cute.make_layout(((2, 2, tiles.tile_n // 8), slabs, 1)))
    own = tiled_mma.get_slice((0 if tiles.pingpong else consumer) * WARPGROUP)
    a = tiled_mma.make_fragment_A(own.partition_A(sA))  # (MMA, slabs, K blocks, stages)
    b = tiled_mma.make_fragment_B(own.partition_B(sB))  # (MMA, 1, K blocks, stages)
    return accumulators, (acc, a, b)


def _own_operands(operands: tuple, warp: Int32, form: Form) -> tuple:
    """A warp's room for prefetched operands, its barriers, and the copies."""
    room, here, fetchers = operands
    room += cute.assume(warp * (form.ahead * form.staged), divby=staging.ALIGNED)
    return room, here + warp * (2 * form.ahead), fetchers


@cute.jit
def _begin(consumer: Int32, k_tiles: Int32, tiles: cutlass.Constexpr[Tiles]) -> tuple[Int32, Int32, Uint32]:
    """The first cluster of a consumer's tiles, the number of clusters to the next, and the stages so far, by both consumers."""
    step = cute.arch.grid_dim()[0] // tiles.cluster
    index = cute.arch.block_idx()[0] // tiles.cluster
    used = Uint32(0)
    if cutlass.const_expr(tiles.pingpong):
        if consumer == 1:
            index += step
            used = Uint32(k_tiles)
            cute.arch.barrier_arrive(barrier_id=TURN, number_of_threads=2 * WARPGROUP)  # the other begins
        step = step * CONSUMERS
    return index, step, used


def _share(
    accumulators: cute.Tensor, sB: cute.Tensor, rank: Int32, warp: Int32, thread: Int32, tiles: Tiles, form: Form
) -> cute.Tensor:
    """This block's columns (2, 2, J / splits, slabs) of the sum of its cluster's accumulators."""
    shape = 2, 2, tiles.tile_n // 8 // tiles.splits, cute.size(accumulators, mode=[3])
    share = cute.make_rmem_tensor(shape, accumulators.element_type)
    gemm_split.add_up(
        accumulators, share, sB.iterator, rank, tiles.splits, 2 if form.paired == "halves" else 1, thread, form.threads,
        MEET + warp // form.warps,
    )  # fmt: skip
    return share


@cute.jit
def _finish(
    acc: cute.Tensor, way: tuple, work: Work, memories: tuple, forms: cutlass.Constexpr, sent: tuple | None,
    first: tuple | None,
) -> None:  # fmt: skip
    """Run the epilogue of the product that has a tile.

    way: shared memory, this warp, its number among those of its tile; the tile's row, column and batch.
    """
    ((stage, warp, peer), (row, column, batch)), (M, columns, _), tiles = way, work.extents, work.tiles
    for p in cutlass.range_constexpr(len(forms)):
        own, its = gemm_pieces.own_column(column, work.firsts, p)
        if cutlass.const_expr(tiles.splits > 1):
            own = own * tiles.splits + work.rank
        place = row * tiles.tile_m + peer * 16, own * (tiles.tile_n // forms[p].accumulators // tiles.splits), batch
        if its & (row * tiles.tile_m < M) & (place[1] < columns[p]):
            rows = 64 if cutlass.const_expr(tiles.pingpong) else 64 * CONSUMERS
            gemm_epilogue.finish(
                acc, stage, warp, peer, place, rows, (M, columns[p]), (own, row), memories[p], forms[p], sent, first
            )


@cute.jit
def _consume(
    shared: tuple,  # tiles of a and of b, and room for partial results
    operands: tuple,  # room for prefetched operands, barriers, and the copies
    ring: tuple,  # the barriers of full and of free stages
    work: Work,
    consumer: cutlass.Int32,
    memories: tuple,
    tiled_mma: cute.TiledMma,
    forms: cutlass.Constexpr,
) -> None:
    """A consumer warpgroup: multiplies every tile of this block, or every second one, and runs its product's epilogue on it."""
    (sA, sB, stage), (full, empty), (M, columns, _), k_tiles, tiles = (
        shared,
        ring,
        work.extents,
        work.k_tiles,
        work.tiles,
    )
    N, form, memory = columns[0], forms[0], memories[0]  # of the first product
    lane = cute.arch.lane_idx()
    freed, signals = free_barrier(empty, lane, tiles)
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    groups = 1 if cutlass.const_expr(tiles.pingpong) else CONSUMERS  # that share a tile
    rows, slabs = 64 * groups, tiles.tile_m // 64 // groups
    accumulators, factors = _fragments(tiled_mma, sA, sB, consumer, slabs, tiles)
    if cutlass.const_expr(not form.rolled):
        factors[0].fill(0)  # the result where K is 0
    peer = warp % 4 if cutlass.const_expr(tiles.pingpong) else warp
    mine, here, fetchers = _own_operands(operands, warp, form)
    begun = Int32(0)  # tiles
    index, step, used = _begin(consumer, k_tiles, tiles)
    while index < work.count:
        row, column, batch = work.place(index)
        row0, column0 = row * tiles.tile_m + peer * 16, column * (tiles.tile_n // form.accumulators)
        inside, sent, first = (row * tiles.tile_m < M) & (column0 < N), None, None
        if cutlass.const_expr(form.staged > 0):
            top = unseen(batch * M + row0)  # or it would be computed again for each piece
            sent = (mine, here, begun, top, fetchers)
            if inside:
                gemm_epilogue.begin(accumulators, (row0, column0, batch), rows, (M, N), form, sent)
        if cutlass.const_expr(tiles.splits == 1 and len(forms) == 1):
            first = gemm_epilogue.first_columns(accumulators, (row0, column0, batch), rows, (M, N), memory[0], form)
        if cutlass.const_expr(tiles.pingpong):
            cute.arch.barrier(barrier_id=TURN + consumer, number_of_threads=2 * WARPGROUP)
        _tile_products(tiled_mma, factors, (full, freed, signals), used, consumer, work, form.rolled)
        used += k_tiles

        share = accumulators
        if cutlass.const_expr(tiles.splits > 1):
            share = _share(accumulators, sB, work.rank, warp, peer * WARP + lane, tiles, form)
        way = (stage, warp, peer), (row, column, batch)
        _finish(share, way, work, memories, forms, sent, first)
        begun += Int32(inside)
        if cutlass.const_expr(tiles.splits > 1):
            cute.arch.cluster_wait()  # the others have read this block's shared memory
        index += step
        if cutlass.const_expr(tiles.pingpong):
            used += k_tiles
