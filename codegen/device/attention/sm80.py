"""Attention's main loop for every architecture since Ampere: cp.async, ldmatrix, mma.sync.

A block has `tile_m` rows of q, each warp 16 of them; where there are few, they may be of all heads that share k and v. Tiles of k and
v pass through shared memory; tiles for which the mask holds nowhere are skipped. Blocks may share a row's tiles: each writes what it has
summed, and another kernel adds that up in a fixed order. A lane holds of a row's scores the columns 8j + 2(lane % 4) + {0, 1}, for its rows lane // 4 + {0, 8}
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
from codegen.device.attention import batches as batches_of
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
    parts: cute.Tensor,
    how: AttentionLaunch,
) -> None:
    """As `attention.launch`."""
    batches = q.shape[0]
    lacking = batches_of.lacking(k.stride[0]) if how.packed else tuple(False for _ in batches)
    own = batches_of.count(batches, lacking, False)
    rows = q.shape[1] * batches_of.count(batches, lacking, True)
    count = cute.ceil_div(rows, how.tile_m) * own * how.splits
    _kernel(q, k, v, o, tensors, score, tiles, row, parts, batches, lacking, how).launch(
        grid=(count, 1, 1), block=(how.threads, 1, 1), stream=stream, preferred_smem_carveout=-1
    )
    if how.splits > 1:
        sizes = q.shape[1], k.shape[1]
        _join(o, tensors, row, parts, batches, lacking, sizes, how).launch(
            grid=(cute.ceil_div(own * rows, JOINED), 1, 1), block=(JOINED * WARP, 1, 1), stream=stream
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
    parts: cute.Tensor,  # (splits, rows, E + 2): what blocks have summed, and their rows' `top` and `total`
    batches: tuple,  # sizes of the batch's axes
    lacking: cutlass.Constexpr[tuple[bool, ...]],  # which of them a block's rows are of
    how: cutlass.Constexpr[AttentionLaunch],
):
    tensors = tuple(vectors.compacted(t) for t in tensors)
    tidx, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    warp, lane = cute.arch.make_warp_uniform(tidx // WARP), tidx % WARP
    Q, S, dtype = q.shape[1], k.shape[1], q.element_type
    R = Q * batches_of.count(batches, lacking, True)  # rows of an element of the batch
    tiles_m, every_n = cute.ceil_div(R, how.tile_m), cute.ceil_div(S, how.tile_n)
    split, number = block % how.splits, block // how.splits
    batch, sizes = number // tiles_m, (Q, S)
    places = batches_of.own(batch, batches, lacking)[1]
    first = (tiles_m - 1 - number % tiles_m) * how.tile_m  # the last rows first: under a causal mask they take longest
    rows = (Int32(0), Q - 1) if cutlass.const_expr(how.packed) else (first, cutlass.min(first + how.tile_m, Q) - 1)
    each = cute.ceil_div(every_n, how.splits)
    tiles_n = cutlass.min((split + 1) * each, every_n)

    # q, then the stages of k and v, in shared memory
    of_q, of_o = panels_of(how.tile_m, how.d, "k"), panels_of(how.tile_m, how.e, "k")
    of_k, of_v = panels_of(how.tile_n, how.d, "k"), panels_of(how.tile_n, how.e, "halves")
    begin, stage = max(of_q.size, of_o.size), of_k.size + of_v.size
    buffer = SmemAllocator().allocate_tensor(Uint8, cute.make_layout((begin + how.stages * stage,)), 128)
    shared = buffer.iterator.toint()
    own_q, own_k = lane_of_a(lane, warp * SLAB, of_q), lane_of_b(lane, Int32(0), of_k, BYTES)
    own_v = lane_of_b(lane, Int32(0), of_v, BYTES)

    if cutlass.const_expr(how.packed):
        _load_packed(q, places, batches, lacking, first, R, shared, how.d, of_q, how.threads)
    else:
        load_tile(q, places, first, shared, how.d, of_q, how.threads)
    tile = _next(tiles, places, rows, Int32(split * each), tiles_n, sizes, tensors, how)
    if cutlass.const_expr(how.stages > 1):
        if tile < tiles_n:
            load_tile(k, places, tile * how.tile_n, shared + begin, how.d, of_k, how.threads)
            load_tile(v, places, tile * how.tile_n, shared + (begin + of_k.size), how.e, of_v, how.threads)
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
    halves = tuple(_at(own_row + 8 * half, places, batches, lacking, Q, R, how.packed) for half in range(2))

    reading = Int32(begin)
    while tile < tiles_n:
        after = _next(tiles, places, rows, tile + 1, tiles_n, sizes, tensors, how)
        writing = begin + stage - (reading - begin) if how.stages > 1 else Int32(begin)
        coming = after if how.stages > 1 else tile
        if coming < tiles_n:
            load_tile(k, places, coming * how.tile_n, shared + writing, how.d, of_k, how.threads)
            load_tile(v, places, coming * how.tile_n, shared + (writing + of_k.size), how.e, of_v, how.threads)
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
            _score(acc, halves, column, sizes, tensors, score, False, row is None)
        else:
            _score(acc, halves, column, sizes, tensors, score, True, row is None)
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

    for half in cutlass.range_constexpr(2):
        for apart in cutlass.range_constexpr(2):
            total[half] = total[half] + cute.arch.shuffle_sync_bfly(total[half], 1 << apart)
    if cutlass.const_expr(how.splits > 1):
        for half in cutlass.range_constexpr(2):
            r = own_row + 8 * half
            _store_part(acc_o, top[half], total[half], parts, split, batch * R + r, r < R, half, how.e)
    else:
        if cutlass.const_expr(row is not None):
            for half in cutlass.range_constexpr(2):
                here, position = halves[half]
                at = Row(here, position, sizes, (own_row + 8 * half < R) & (lane % 4 == 0))
                values = (cute.full((1,), x[half], Float32) for x in (top, total))
                factor = row(at, *values, tensors)[0]
                for j in cutlass.range_constexpr(cute.size(acc_o, mode=[1])):
                    for e in cutlass.range_constexpr(2):
                        acc_o[2 * half + e, j] = acc_o[2 * half + e, j] * factor
        if cutlass.const_expr(how.packed):
            for half in cutlass.range_constexpr(2):
                _store_packed(acc_o, o, halves[half], own_row + 8 * half < R, half, how.e)
        else:
            store_rows(acc_o, o, places, first + warp * SLAB, warp * SLAB, shared, of_o, how.e)


JOINED = 8  # rows of a block that joins parts, one for each warp


@cute.kernel
def _join(
    o: cute.Tensor,  # (L, Q, E)
    tensors: tuple,
    row: cutlass.Constexpr[Callable[..., Any] | None],
    parts: cute.Tensor,
    batches: tuple,
    lacking: cutlass.Constexpr[tuple[bool, ...]],
    sizes: tuple,
    how: cutlass.Constexpr[AttentionLaunch],
):
    """Add up what the blocks of a row have summed, in their order. A warp has a row."""
    tensors = tuple(vectors.compacted(t) for t in tensors)
    tidx, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    lane, count = tidx % WARP, parts.shape[1]
    R = sizes[0] * batches_of.count(batches, lacking, True)
    index = block * JOINED + cute.arch.make_warp_uniform(tidx // WARP)
    there = index < count
    own = cutlass.min(index, count - 1)
    places = batches_of.own(own // R, batches, lacking)[1]
    here, position = _at(own % R, places, batches, lacking, sizes[0], R, how.packed)
    top, total = Float32(-math.inf), Float32(0)
    for split in cutlass.range_constexpr(how.splits):
        top = cute.arch.fmax(top, parts[split, own, how.e], nan=True)
    shift = cutlass.select_((top == -math.inf) | (top == math.inf), Float32(0), top)
    pieces = -(-how.e // WARP)
    found = cute.make_rmem_tensor((pieces,), Float32)
    found.fill(0)
    for split in cutlass.range_constexpr(how.splits):
        scale = Float32(1)
        if cutlass.const_expr(row is not None):
            scale = cute.math.exp2((parts[split, own, how.e] - shift) * Float32(LOG2E), fastmath=True)
            total = total + parts[split, own, how.e + 1] * scale
        for i in cutlass.range_constexpr(pieces):
            column = lane + i * WARP
            if column < how.e:
                found[i] = found[i] + parts[split, own, column] * scale
    factor = Float32(1)
    if cutlass.const_expr(row is not None):
        at = Row(here, position, sizes, there & (lane == 0))
        factor = row(at, cute.full((1,), top, Float32), cute.full((1,), total, Float32), tensors)[0]
    for i in cutlass.range_constexpr(pieces):
        column = lane + i * WARP
        if there & (column < how.e):
            o[here, position, column] = (found[i] * factor).to(o.element_type)


def _at(
    row: Int32, places: tuple, batches: tuple, lacking: tuple[bool, ...], Q: Int32, R: Int32, packed: bool
) -> tuple[tuple, Int32]:
    """The batch and the position along Q of one of a block's rows, or of the last one."""
    own = cutlass.min(row, R - 1)
    return (batches_of.sharer(own // Q, places, batches, lacking), own % Q) if packed else (places, own)


@cute.jit
def _load_packed(
    source: cute.Tensor,
    places: tuple,
    batches: tuple,
    lacking: cutlass.Constexpr[tuple[bool, ...]],
    first: Int32,
    rows: Int32,
    target: Int32,
    columns: cutlass.Constexpr[int],
    panels: cutlass.Constexpr[Panels],
    threads: cutlass.Constexpr[int],
):
    """As `load_tile`, of rows of all that share k and v."""
    tidx, _, _ = cute.arch.thread_idx()
    per_row = panels.width // CHUNK
    for i in cutlass.range_constexpr(panels.rows * per_row // threads):
        place = tidx + i * threads
        r, byte = place // per_row, place % per_row * CHUNK
        here, position = _at(first + r, places, batches, lacking, source.shape[1], rows, True)
        base = source.iterator.toint() + Int64(cute.crd2idx((here, position, 0), source.layout)) * BYTES
        there = (first + r < rows) & (byte < columns * BYTES)
        given = cutlass.select_(there, Int32(CHUNK), Int32(0))
        tensorcore.copy_async(target + panels.place(r, byte), base + Int64(byte), CHUNK, given)


@cute.jit
def _store_packed(
    acc: cute.Tensor,
    o: cute.Tensor,
    at: tuple,
    there: Boolean,
    half: cutlass.Constexpr[int],
    columns: cutlass.Constexpr[int],
):
    """A lane's part of a row of o."""
    column = 2 * (cute.arch.lane_idx() % 4)
    for j in cutlass.range_constexpr(-(-columns // 8)):
        for e in cutlass.range_constexpr(2):
            if there & (8 * j + column + e < columns):
                o[at[0], at[1], 8 * j + column + e] = acc[2 * half + e, j].to(o.element_type)


@cute.jit
def _store_part(
    acc: cute.Tensor,
    top: Float32,
    total: Float32,
    parts: cute.Tensor,
    split: Int32,
    row: Int32,
    there: Boolean,
    half: cutlass.Constexpr[int],
    columns: cutlass.Constexpr[int],
):
    """A lane's part of what a block has summed for a row."""
    column = 2 * (cute.arch.lane_idx() % 4)
    if there:
        for j in cutlass.range_constexpr(columns // 8):
            for e in cutlass.range_constexpr(2):
                parts[split, row, 8 * j + column + e] = acc[2 * half + e, j]
        if column == 0:
            parts[split, row, columns] = top
            parts[split, row, columns + 1] = total


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
    halves: tuple,
    column: Int32,
    sizes: tuple,
    tensors: tuple,
    score: Callable[..., Any],
    masked: bool,
    plain: bool,
) -> None:
    """The scores of a tile, from its products (4, J), of a lane's two rows; where `masked`, columns past the last have no weight."""
    lane, count = cute.arch.lane_idx(), 2 * cute.size(acc, mode=[1])
    columns = tuple(column + (8 * (i // 2) + i % 2) + 2 * (lane % 4) for i in range(count))
    for half, (here, position) in enumerate(halves):
        held = cute.make_rmem_tensor((count,), Float32)
        for i in range(count):
            held[i] = acc[2 * half + i % 2, i // 2]
        held.store(score(Scores(here, position, columns, sizes), held.load(), tensors, masked))
        for i in range(count):
            value = held[i]
            if masked:
                value = cutlass.select_(columns[i] < sizes[1], value, Float32(0 if plain else -math.inf))
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
