"""Attention's main loop for every architecture since Ampere: cp.async, ldmatrix, mma.sync.

A block has `tile_m` rows of q, each warp 16 of them. Tiles of k and v pass through shared memory; tiles for which the mask
holds nowhere are skipped. A lane holds of a row's scores the columns 8j + 2(lane % 4) + {0, 1}, for its rows lane // 4 + {0, 8}
of the warp's. The weights stay in registers: as a product leaves them, the next one takes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64, Uint8, Uint32
from cutlass.memory import SmemAllocator

from codegen.device import functions as device
from codegen.device import vectors
from codegen.device.attention.batches import places_of
from codegen.device.attention.scores import Row, Scores, Tile
from codegen.device.gemm import tensorcore
from codegen.device.gemm.sm80 import Panels, lane_of_a, lane_of_b, pair_of_b
from codegen.device.gemm.tensorcore import STEP
from codegen.shared import WARP, AttentionLaunch

SLAB = 16  # rows of a warp
BYTES = 2  # of an element
CHUNK = 16  # bytes of a copy
LOG2E = math.log2(math.e)
MOST_HELD = 8  # steps along D of which a warp holds q in registers


def panels_of(rows: int, columns: int, kind: str) -> Panels:
    """A tile in shared memory: its rows are filled up to a power of two, or to whole panels."""
    width = max(32, columns * BYTES)
    return Panels(rows, 1 << (width - 1).bit_length() if width < 128 else -(-width // 128) * 128, kind)


def launch(
    stream: Any,
    q: cute.Tensor,
    k: cute.Tensor,
    v: cute.Tensor,
    o: cute.Tensor,
    tensors: tuple,
    score: Callable[..., Any],
    tiles: Callable[..., Any] | None,
    row: Callable[..., Any] | None,
    how: AttentionLaunch,
) -> None:
    """As `attention.launch`."""
    count = cute.size(q, mode=[0]) * cute.ceil_div(q.shape[1], how.tile_m)
    _kernel(q, k, v, o, tensors, score, tiles, row, how).launch(
        grid=(count, 1, 1), block=(how.threads, 1, 1), stream=stream, preferred_smem_carveout=-1
    )


@cute.kernel
def _kernel(
    q: cute.Tensor,  # (L, Q, D)
    k: cute.Tensor,  # (L, S, D)
    v: cute.Tensor,  # (L, S, E)
    o: cute.Tensor,  # (L, Q, E)
    tensors: tuple,
    score: cutlass.Constexpr[Callable[..., Any]],
    tiles: cutlass.Constexpr[Callable[..., Any] | None],
    row: cutlass.Constexpr[Callable[..., Any] | None],
    how: cutlass.Constexpr[AttentionLaunch],
):
    tensors = tuple(vectors.compacted(t) for t in tensors)
    tidx, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    warp, lane = cute.arch.make_warp_uniform(tidx // WARP), tidx % WARP
    Q, S, dtype = q.shape[1], k.shape[1], q.element_type
    tiles_m, tiles_n = cute.ceil_div(Q, how.tile_m), cute.ceil_div(S, how.tile_n)
    batch = block // tiles_m
    places, sizes = places_of(batch, q.shape[0]), (Q, S)
    first = (tiles_m - 1 - block % tiles_m) * how.tile_m  # the last rows first: under a causal mask they take longest
    rows = (first, cutlass.min(first + how.tile_m, Q) - 1)

    # q, then the stages of k and v, in shared memory
    of_q, of_o = panels_of(how.tile_m, how.d, "k"), panels_of(how.tile_m, how.e, "k")
    of_k, of_v = panels_of(how.tile_n, how.d, "k"), panels_of(how.tile_n, how.e, "halves")
    begin, stage = max(of_q.size, of_o.size), of_k.size + of_v.size
    buffer = SmemAllocator().allocate_tensor(Uint8, cute.make_layout((begin + how.stages * stage,)), 128)
    shared = buffer.iterator.toint()
    own_q, own_k = lane_of_a(lane, warp * SLAB, of_q), lane_of_b(lane, Int32(0), of_k, BYTES)
    own_v = lane_of_b(lane, Int32(0), of_v, BYTES)

    load_tile(q, batch, first, shared, how.d, of_q, how.threads)
    tile = _next(tiles, places, rows, Int32(0), tiles_n, sizes, tensors, how)
    if cutlass.const_expr(how.stages > 1):
        if tile < tiles_n:
            load_tile(k, batch, tile * how.tile_n, shared + begin, how.d, of_k, how.threads)
            load_tile(v, batch, tile * how.tile_n, shared + (begin + of_k.size), how.e, of_v, how.threads)
    cute.arch.cp_async_commit_group()

    steps = -(-how.d // 16)
    held = steps if steps <= MOST_HELD else 0
    rQ = cute.make_rmem_tensor((4, max(held, 1)), Uint32)
    if cutlass.const_expr(held > 0):
        cute.arch.cp_async_wait_group(0)
        cute.arch.sync_threads()
        for step in cutlass.range_constexpr(held):
            fragment(shared, own_q, step, of_q, rQ[None, step])
    acc_o = cute.make_rmem_tensor((4, -(-how.e // 16) * 2), Float32)
    acc_o.fill(0)
    top, total = cute.make_rmem_tensor((2,), Float32), cute.make_rmem_tensor((2,), Float32)
    top.fill(-math.inf)
    total.fill(0)
    own_row = first + warp * SLAB + lane // 4

    reading = Int32(begin)
    while tile < tiles_n:
        after = _next(tiles, places, rows, tile + 1, tiles_n, sizes, tensors, how)
        writing = begin + stage - (reading - begin) if how.stages > 1 else Int32(begin)
        coming = after if how.stages > 1 else tile
        if coming < tiles_n:
            load_tile(k, batch, coming * how.tile_n, shared + writing, how.d, of_k, how.threads)
            load_tile(v, batch, coming * how.tile_n, shared + (writing + of_k.size), how.e, of_v, how.threads)
        cute.arch.cp_async_commit_group()
        cute.arch.cp_async_wait_group(how.stages - 1)
        cute.arch.sync_threads()

        acc = cute.make_rmem_tensor((4, how.tile_n // 8), Float32)
        acc.fill(0)
        for step in cutlass.range_constexpr(steps):
            a = rQ[None, step % max(held, 1)]
            if cutlass.const_expr(held == 0):
                fragment(shared, own_q, step, of_q, a)
            flipped, added = of_k.along(step * STEP)
            for pair in cutlass.range_constexpr(how.tile_n // 16):
                at = shared + reading + ((own_k ^ flipped) + (added + pair * 16 * of_k.panel))
                b = tensorcore.ldmatrix(at)
                words = [a[w] for w in range(4)]
                tensorcore.mma(dtype, dtype, acc[None, 2 * pair], words, b[:2])
                tensorcore.mma(dtype, dtype, acc[None, 2 * pair + 1], words, b[2:])

        column = tile * how.tile_n
        every = column + how.tile_n <= S
        if cutlass.const_expr(tiles is not None):
            every = every & Boolean(tiles(_tile(places, rows, column, sizes, how), tensors)[1])
        if every:
            _score(acc, places, own_row, column, sizes, tensors, score, False, row is None)
        else:
            _score(acc, places, own_row, column, sizes, tensors, score, True, row is None)
        weights = _weights(acc, acc_o, top, total, dtype, row is not None)
        for step in cutlass.range_constexpr(how.tile_n // 16):
            words = [weights[step * 2 + i // 2, i % 2] for i in range(4)]
            for pair in cutlass.range_constexpr(-(-how.e // 16)):
                b = pair_of_b(shared + reading + of_k.size, own_v, step, pair, of_v)
                tensorcore.mma(dtype, dtype, acc_o[None, 2 * pair], words, b[:2])
                tensorcore.mma(dtype, dtype, acc_o[None, 2 * pair + 1], words, b[2:])
        cute.arch.sync_threads()  # the tile is read
        reading = Int32(writing)
        tile = after
    cute.arch.cp_async_wait_group(0)
    cute.arch.sync_threads()

    if cutlass.const_expr(row is not None):
        for half in cutlass.range_constexpr(2):
            sum_of = total[half]
            for apart in cutlass.range_constexpr(2):
                sum_of = sum_of + cute.arch.shuffle_sync_bfly(sum_of, 1 << apart)
            r = own_row + 8 * half
            at = Row(places, cutlass.min(r, Q - 1), sizes, (r < Q) & (lane % 4 == 0))
            factor = row(at, cute.full((1,), top[half], Float32), cute.full((1,), sum_of, Float32), tensors)[0]
            for j in cutlass.range_constexpr(cute.size(acc_o, mode=[1])):
                for e in cutlass.range_constexpr(2):
                    acc_o[2 * half + e, j] = acc_o[2 * half + e, j] * factor
    store_rows(acc_o, o, batch, first + warp * SLAB, warp * SLAB, shared, of_o, how.e)


def _tile(places: tuple, rows: tuple, column: Int32, sizes: tuple, how: AttentionLaunch) -> Tile:
    """The tile from a column on."""
    return Tile(places, rows, (column, cutlass.min(column + how.tile_n, sizes[1]) - 1), sizes)


@cute.jit
def _next(
    tiles: cutlass.Constexpr[Callable[..., Any] | None],
    places: tuple,
    rows: tuple,
    tile: Int32,
    count: Int32,
    sizes: tuple,
    tensors: tuple,
    how: cutlass.Constexpr[AttentionLaunch],
):
    """The first tile from `tile` on for which the mask holds somewhere; `count` if there is none."""
    if cutlass.const_expr(tiles is not None):
        looking = tile < count
        while looking:
            some = Boolean(tiles(_tile(places, rows, tile * how.tile_n, sizes, how), tensors)[0])
            tile = cutlass.select_(some, tile, tile + 1)
            looking = cutlass.select_(some, Boolean(False), tile < count)
    return tile


@cute.jit
def load_tile(
    source: cute.Tensor,
    batch: Any,
    row: Int32,
    target: Int32,
    columns: cutlass.Constexpr[int],
    panels: cutlass.Constexpr[Panels],
    threads: cutlass.Constexpr[int],
):
    """Start the copy of a tile's rows, from `row` on; zeros past the last row and column."""
    tidx, _, _ = cute.arch.thread_idx()
    stride = Int64(source.stride[1]) * BYTES
    base = source.iterator.toint() + Int64(cute.crd2idx((batch, 0, 0), source.layout)) * BYTES + Int64(row) * stride
    per_row = panels.width // CHUNK
    for i in cutlass.range_constexpr(panels.rows * per_row // threads):
        place = tidx + i * threads
        r, byte = place // per_row, place % per_row * CHUNK
        there = (row + r < source.shape[1]) & (byte < columns * BYTES)
        given = cutlass.select_(there, Int32(CHUNK), Int32(0))
        tensorcore.copy_async(target + panels.place(r, byte), base + Int64(r) * stride + Int64(byte), CHUNK, given)


def fragment(shared: Int32, own: Int32, step: int, panels: Panels, words: cute.Tensor) -> None:
    """A fragment of a warp's 16 rows, for a step along their columns."""
    flipped, added = panels.along(step * STEP)
    for w, word in enumerate(tensorcore.ldmatrix(shared + ((own ^ flipped) + added))):
        words[w] = word


def _score(
    acc: cute.Tensor,
    places: tuple,
    row: Int32,
    column: Int32,
    sizes: tuple,
    tensors: tuple,
    score: Callable[..., Any],
    masked: bool,
    plain: bool,
) -> None:
    """The scores of a tile, from its products (4, J); where `masked`, columns past the last have no weight."""
    lane, count = cute.arch.lane_idx(), 2 * cute.size(acc, mode=[1])
    Q, S = sizes
    columns = tuple(column + (8 * (i // 2) + i % 2) + 2 * (lane % 4) for i in range(count))
    for half in range(2):
        held = cute.make_rmem_tensor((count,), Float32)
        for i in range(count):
            held[i] = acc[2 * half + i % 2, i // 2]
        at = Scores(places, cutlass.min(row + 8 * half, Q - 1), columns, sizes)
        held.store(score(at, held.load(), tensors, masked))
        for i in range(count):
            value = held[i]
            if masked:
                value = cutlass.select_(columns[i] < S, value, Float32(0 if plain else -math.inf))
            acc[2 * half + i % 2, i // 2] = value


def _weights(
    acc: cute.Tensor, acc_o: cute.Tensor, top: cute.Tensor, total: cute.Tensor, dtype: Any, online: bool
) -> cute.Tensor:
    """The weights of a tile, from its scores (4, J), as words (J, 2) of two neighbours; for `online` ones, exp(score - top), with
    the sums so far rescaled where `top` rises."""
    count = 2 * cute.size(acc, mode=[1])
    words = cute.make_rmem_tensor((count // 2, 2), Uint32)
    for half in range(2):
        held = cute.make_rmem_tensor((count,), Float32)
        for i in range(count):
            held[i] = acc[2 * half + i % 2, i // 2]
        if online:
            largest = top[half]
            for i in range(count):
                largest = cute.arch.fmax(largest, held[i], nan=True)
            for apart in (1, 2):
                largest = cute.arch.fmax(largest, cute.arch.shuffle_sync_bfly(largest, apart), nan=True)
            # A row of -inf so far: exp(-inf - 0) is 0, where exp(-inf + inf) is NaN
            shift = cutlass.select_((largest == -math.inf) | (largest == math.inf), Float32(0), largest) * Float32(
                -LOG2E
            )
            scaled = device.fma(cute.full((1,), top[half], Float32), LOG2E, cute.full((1,), shift, Float32))
            scale = cute.math.exp2(scaled, fastmath=True)[0]
            held.store(
                cute.math.exp2(device.fma(held.load(), LOG2E, cute.full((count,), shift, Float32)), fastmath=True)
            )
            top[half] = largest
            total[half] = total[half] * scale + held.load().reduce(cute.ReductionOp.ADD, Float32(0), 0)
            for j in range(cute.size(acc_o, mode=[1])):
                for e in range(2):
                    acc_o[2 * half + e, j] = acc_o[2 * half + e, j] * scale
        narrow = cute.make_rmem_tensor((count,), dtype)
        narrow.store(held.load().to(dtype))
        pairs = cute.recast_tensor(narrow, Uint32)
        for j in range(count // 2):
            words[j, half] = pairs[j]
    return words


@cute.jit
def store_rows(
    acc: cute.Tensor,
    o: cute.Tensor,
    batch: Any,
    row: Int32,
    own: Int32,
    shared: Int32,
    panels: cutlass.Constexpr[Panels],
    columns: cutlass.Constexpr[int],
):
    """A warp's 16 rows of o, through its own rows of shared memory, which hold q until then."""
    lane = cute.arch.lane_idx()
    narrow = cute.make_rmem_tensor((cute.size(acc),), o.element_type)
    flat = cute.make_tensor(acc.iterator, cute.make_layout((cute.size(acc),)))
    narrow.store(flat.load().to(o.element_type))
    words = cute.recast_tensor(narrow, Uint32)
    cute.arch.sync_warp()
    for j in cutlass.range_constexpr(-(-columns // 8)):
        for half in cutlass.range_constexpr(2):
            place = panels.place(own + lane // 4 + 8 * half, Int32(j * CHUNK) + lane % 4 * 4)
            tensorcore.store_word(shared + place, words[2 * j + half])
    cute.arch.sync_warp()
    stride = Int64(o.stride[1]) * BYTES
    base = o.iterator.toint() + Int64(cute.crd2idx((batch, 0, 0), o.layout)) * BYTES + Int64(row) * stride
    per_row = columns * BYTES // CHUNK
    for i in cutlass.range_constexpr(-(-SLAB * per_row // WARP)):
        place = lane + i * WARP
        r, byte = place // per_row, place % per_row * CHUNK
        if (r < SLAB) & (row + r < o.shape[1]):
            held = cute.make_rmem_tensor((4,), Uint32)
            for w, word in enumerate(tensorcore.load_words(shared + panels.place(own + r, byte), 4)):
                held[w] = word
            pointer = cute.make_ptr(
                Uint32, base + Int64(r) * stride + Int64(byte), cute.AddressSpace.gmem, assumed_align=16
            )
            cute.autovec_copy(held, cute.make_tensor(pointer, cute.make_layout((4,))))
