"""A GEMM's main loop for every architecture since Ampere: cp.async, ldmatrix, mma.sync, in stages.

A block computes a tile of tile_m x tile_n accumulators, each of its warps a part of tile_m/warps_m x tile_n/warps_n.
Tiles of the operands pass through `stages` buffers in shared memory; while one is multiplied, the next ones are in flight.
Elements outside an operand are zero there, and nothing outside is ever read: any M, N, K is correct.
In shared memory a tile consists of `panels`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64, Numeric, Uint8, Uint16, Uint32
from cutlass.memory import SmemAllocator

from codegen.device import functions as device
from codegen.device.gemm import epilogue as gemm_epilogue
from codegen.device.gemm import narrow, tensorcore
from codegen.device.gemm import split as gemm_split
from codegen.device.gemm.panels import Panels, lane_of_a, lane_of_b, pair_of_b
from codegen.device.gemm.pieces import Product, own_column
from codegen.device.gemm.tensorcore import STEP
from codegen.shared import WARP, AmpereTiles, Loading


def check(tiles: AmpereTiles, bits: tuple[int, int], how: Loading, parts: int, segment: int = 0) -> None:
    """Check that there is a kernel for a and b with elements of these `bits`, for `parts` tensors b, and for segments of `segment`
    accumulators."""
    for good, what in (
        (tiles.tile_k * bits[1] // 8 in (2 * STEP, 4 * STEP), "a tile has 64 or 128 bytes along K"),
        (not how.group or how.group % tiles.tile_k == 0, "a group along K has whole tiles"),
        (tiles.tile_m // tiles.warps_m % 16 == 0, "a warp has 16 rows at least"),
        (tiles.tile_n // tiles.warps_n // parts % 16 == 0, "a warp has 16 columns of each b at least"),
        (not segment or tiles.tile_n // tiles.warps_n % segment == 0, "a warp has whole segments"),
        (tiles.stages >= 2, "there are two stages at least"),
    ):
        assert good, f"{what}: {tiles}"


def launch(
    stream: cuda.CUstream, mA: cute.Tensor, products: Sequence[Product], *, b_is_nk: bool, tiles: AmpereTiles,
    scales: tuple[cute.Tensor, ...] = (), loading: Loading | None = None,
) -> None:  # fmt: skip
    """Compute acc = mA @ mB for each of the products, and run its epilogue on it (`epilogue`).

    mA: (L, M, K); each mB as in `product`, where `b_is_nk` (L, N, K); bfloat16, float16, float32, float8 (from sm_89 on; either of
        each) or int8 (summed in int32). Where mA has 16 bits, mBs may be int8 or float8, which is converted in registers (`narrow`).
        Several products have the same types and one tensor b each.
    scales: one for each of mBs of the one product, (B, N), for `loading`, which says how narrower mBs are read; of 4 bits, two are in a
        byte along K.
    tiles: where they are `precise` and an operand is infinite, the sum may be NaN.
    """
    b_type, parts = products[0].mBs[0].element_type, len(products[0].mBs)
    forms = tuple(
        replace(
            p.form, fours=not b_is_nk and b_type.width == 8, rolled=p.form.tiles is None and not p.form.row_ops,
            warps=tiles.warps_m, step=1, barrier=1, threads=tiles.sharing,
        )
        for p in products
    )  # fmt: skip
    how, width = loading or Loading(), mA.element_type.width
    if b_type.width == width:
        how, scales = Loading(width), ()
    elif how.bits == 8:
        how = replace(how, bits=b_type.width)
    for form in forms:
        check(tiles, (width, how.bits), how, parts, form.segment * form.accumulators)
    L, M, _ = mA.shape
    wide = [cute.ceil_div(p.columns(b_is_nk), tiles.tile_n // parts) for p in products]  # in tiles
    firsts = tuple(itertools.accumulate(wide[:-1]))
    count = cute.ceil_div(M, tiles.tile_m) * (firsts[-1] + wide[-1] if firsts else wide[0]) * L
    bs, memories = tuple(p.mBs for p in products), tuple(p.memory for p in products)
    _kernel(mA, bs, scales, memories, firsts, b_is_nk, tiles, forms, how).launch(
        grid=(cutlass.max(count, 1), 1, 1), block=(tiles.threads, 1, 1), stream=stream, min_blocks_per_mp=tiles.blocks,
        preferred_smem_carveout=-1,  # as much as the driver sees fit
    )  # fmt: skip


@cute.kernel
def _kernel(
    mA: cute.Tensor,  # (L, M, K)
    every: tuple[tuple[cute.Tensor, ...], ...],  # of each product, each (L or 1, N, K) or (L or 1, K, N)
    scales: tuple[cute.Tensor, ...],  # each (B, N)
    memories: tuple,  # of each product: the epilogue's tensors, row parts and column parts
    firsts: tuple,  # the first columns of tiles of all products but one
    b_is_nk: cutlass.Constexpr[bool],
    tiles: cutlass.Constexpr[AmpereTiles],
    forms: cutlass.Constexpr[tuple],
    how: cutlass.Constexpr[Loading],
) -> None:
    mBs, form = every[0], forms[0]
    parts, tile_n = len(mBs), tiles.tile_n // len(mBs)  # columns of each b
    warp_rows, warp_columns = tiles.tile_m // tiles.warps_m, tile_n // tiles.warps_n
    group, tidx = gemm_split.thread_of(tiles)
    warp = cute.arch.make_warp_uniform(tidx // WARP)
    warp_m, warp_n = warp % tiles.warps_m, warp // tiles.warps_m

    L, M, _ = mA.shape
    columns = [own[0].shape[1 if b_is_nk else 2] for own in every]
    tiles_m, tiles_n = cute.ceil_div(M, tiles.tile_m), cute.ceil_div(columns[-1], tile_n)
    if cutlass.const_expr(len(firsts) > 0):
        tiles_n += firsts[-1]
    some = tiles_m * tiles_n * L > 0  # else there is one block, and nothing for it to do
    batch, m, n = _tile(tiles_m, tiles_n, tiles.group)

    operands = _operands(mA, every, (batch, m, n, firsts), some, b_is_nk, tiles, how)
    scaled = narrow.scales_of(scales, tile_n, tiles.tile_k, tiles.sharing, how)
    stages = tiles.stages * (operands.size + scaled.size)  # bytes of a group
    sums = (tiles.warps_k - 1) * tiles.tile_m * tiles.tile_n * 4
    size = max(tiles.warps_k * stages, tiles.warps * form.stage * 4, sums)
    buffer = SmemAllocator().allocate_tensor(Uint8, cute.make_layout((size,)), 128)
    acc = cute.make_rmem_tensor(
        (4, warp_rows // 16, parts * warp_columns // 8), tensorcore.accumulator(mA.element_type)
    )
    acc.fill(0)
    own_a = lane_of_a(tidx % WARP, warp_m * warp_rows, operands.panels[0], operands.each)
    own_b = lane_of_b(tidx % WARP, warp_n * warp_columns, operands.panels[1], mBs[0].element_type.width // 8)
    own = own_a, own_b, warp_n * warp_columns
    _products(
        acc, buffer.iterator.toint() + group * stages, operands, (scaled, scales, n * tile_n, some), own, mA.shape[2], form.fours,
        tiles,
    )  # fmt: skip
    if cutlass.const_expr(tiles.warps_k > 1):
        gemm_split.add_up_groups(acc, cute.recast_ptr(buffer.iterator, dtype=acc.element_type), group, tidx, tiles)

    # What is left of the stages' memory serves the epilogue.
    words = cute.make_tensor(
        cute.recast_ptr(buffer.iterator, dtype=Uint32), cute.make_layout((form.stage, tiles.warps))
    )
    for p in cutlass.range_constexpr(len(forms)):
        own_n, its = own_column(n, firsts, p)
        width = columns[p] * parts // forms[p].accumulators
        extents = (cutlass.select_(some, M, Int32(0)), cutlass.select_(some, width, Int32(0)))
        column = (own_n * tiles.tile_n + warp_n * (parts * warp_columns)) // forms[p].accumulators
        if its & (group == 0):
            gemm_epilogue.finish(
                _for_epilogue(acc, forms[p].fours), words, warp, warp_m, (m * tiles.tile_m + warp_m * warp_rows, column, batch),
                16, extents, (own_n * tiles.warps_n + warp_n, m), memories[p], forms[p],
            )  # fmt: skip


@cute.jit
def _products(
    acc: cute.Tensor, shared: Int32, operands: Operands, scaling: tuple, own: tuple, K: Int32,
    fours: cutlass.Constexpr[bool], tiles: cutlass.Constexpr[AmpereTiles],
) -> None:  # fmt: skip
    """The main loop: add all products of a tile to a warp's accumulators (4, I, J). Nothing is in flight afterwards.

    scaling: the scales in a stage, their tensors, the tile's first column, and whether there is anything to load.
    own: this lane's first places in the tiles of a and b, and the warp's first column.
    """
    scaled, scales, column, some = scaling
    (group, tidx), groups = gemm_split.thread_of(tiles), tiles.warps_k
    (own_a, own_b, first), stage_size, each = own, operands.size + scaled.size, operands.each
    rows, columns = cute.size(acc, mode=[1]), cute.size(acc, mode=[2])

    # All stages but one are filled; beyond K with zeros, here and below.
    for stage in cutlass.range_constexpr(tiles.stages - 1):
        turn = Int32(stage * groups) + group
        _load_stage(turn, shared + stage * stage_size, operands, tidx)
        scaled.load(scales, turn, column, shared + (stage * stage_size + operands.size), tidx, some)
        cute.arch.cp_async_commit_group()
    cute.arch.cp_async_wait_group(tiles.stages - 2)
    gemm_split.meet(group, tiles)

    # One tile of each group per turn. While a step along K is multiplied, the next one's fragments are read. The first step starts the
    # copies that fill the stage which was read in the previous turn.
    sums = scaled.sums(acc)  # of a tile along K, where they are multiplied by scales
    scaled_columns = scaled.columns_of(tidx % WARP, first, columns // operands.parts * 8, fours)
    rA, rB = cute.make_rmem_tensor((4, each * rows, 2), Uint32), cute.make_rmem_tensor((2, columns, 2), Uint32)
    _fragments(shared, own_a, own_b, 0, rA[None, None, 0], rB[None, None, 0], operands)
    read, write = Int32(0), Int32((tiles.stages - 1) * stage_size)
    for turn in cutlass.range(cute.ceil_div(K, tiles.tile_k * groups)):
        factors = scaled.read(shared + (read + operands.size), scaled_columns)
        for step in cutlass.range_constexpr(operands.steps):
            now, then = step % 2, (step + 1) % 2
            if cutlass.const_expr(step == operands.steps - 1):
                read = _next(read, stage_size, tiles.stages)
                cute.arch.cp_async_wait_group(tiles.stages - 2)
                gemm_split.meet(group, tiles)
            next_a, next_b = rA[None, None, then], rB[None, None, then]
            _fragments(shared + read, own_a, own_b, (step + 1) % operands.steps, next_a, next_b, operands)
            if cutlass.const_expr(step == 0):
                later = (turn + (tiles.stages - 1)) * groups + group
                _load_stage(later, shared + write, operands, tidx)
                scaled.load(scales, later, column, shared + (write + operands.size), tidx, some)
                cute.arch.cp_async_commit_group()
                write = _next(write, stage_size, tiles.stages)
            _multiply(operands.types, sums, rA[None, None, now], rB[None, None, now], tiles.precise, operands.how)
        scaled.add(acc, sums, factors)
    cute.arch.cp_async_wait_group(0)
    cute.arch.sync_threads()


def _next(stage: Int32, size: int, stages: int) -> Int32:
    """The start of the next stage."""
    return cutlass.select_(stage == (stages - 1) * size, Int32(0), stage + size)


def _tile(tiles_m: Int32, tiles_n: Int32, group: int) -> tuple[Int32, Int32, Int32]:
    """The batch, row and column of this block's tile: down `group` rows of tiles, then the next column."""
    block, _, _ = cute.arch.block_idx()
    each = cutlass.max(tiles_m * tiles_n, 1)
    batch, block = block // each, block % each
    width = cutlass.max(group * tiles_n, 1)
    first, inside = block // width * group, block % width
    rows = cutlass.max(cutlass.min(tiles_m - first, group), 1)
    return batch, first + inside % rows, inside // rows


# From global to shared memory


@dataclass(frozen=True)
class Operands:
    """The tiles of a and of each b in a stage, one after the other: their places, and the parts that this thread
    copies."""

    panels: list[Panels]
    chunks: list[Chunks]
    sources: list[tuple]
    types: tuple[type[Numeric], type[Numeric]]
    how: Loading

    @property
    def parts(self) -> int:
        """The number of tensors b."""
        return len(self.panels) - 1

    @property
    def starts(self) -> list[int]:
        """The first byte of each tile in a stage."""
        return [sum(p.size for p in self.panels[:k]) for k in range(len(self.panels))]

    @property
    def size(self) -> int:
        """The number of bytes of a stage."""
        return sum(p.size for p in self.panels)

    @property
    def each(self) -> int:
        """The number of steps of a for a step of b."""
        return self.types[0].width // self.how.bits

    @property
    def steps(self) -> int:
        """The number of steps of b along K in a tile."""
        return self.panels[0].width // self.each // STEP


@dataclass(frozen=True)
class Chunks:
    """How a thread copies an operand's tile: in chunks that are `hop` rows apart."""

    panels: Panels
    size: int  # of an element, in bytes
    chunk: int  # bytes that are copied at once
    aligned: bool  # whether chunks are aligned in memory, and each is completely inside or outside the operand
    threads: int
    along_k: tuple[int, int]  # rows and columns from a tile to the next

    @property
    def per_row(self) -> int:
        return self.panels.width // self.chunk

    @property
    def hop(self) -> int:
        return self.threads // self.per_row

    @property
    def count(self) -> int:
        return self.panels.size // (self.chunk * self.threads)


def _operands(
    mA: cute.Tensor, every: tuple[tuple[cute.Tensor, ...], ...], place: tuple, some: Boolean, b_is_nk: bool, tiles: AmpereTiles,
    how: Loading,
) -> Operands:  # fmt: skip
    """The operands' tiles for a block. `place` is the batch, row and column of its tile, and where the products of one launch
    begin. The operands are zeros unless there are `some`."""
    _, tidx = gemm_split.thread_of(tiles)
    (batch, m, n, firsts), mBs = place, every[0]
    parts = len(mBs)
    a_size, size = mA.element_type.width // 8, mBs[0].element_type.width // 8
    tile_n, deep = tiles.tile_n // parts, tiles.tile_k * how.bits // (8 * size)  # of b along K
    across = Panels(deep, tile_n * size, {4: "words", 2: "halves", 1: "bytes"}[size])
    panels = [Panels(tiles.tile_m, tiles.tile_k * a_size, "k")]
    panels += [Panels(tile_n, deep * size, "k") if b_is_nk else across] * parts
    along_k = [(0, tiles.tile_k)] + [(0, deep) if b_is_nk else (deep, 0)] * parts
    place_b = (batch, n * tile_n, Int32(0)) if b_is_nk else (batch, Int32(0), n * tile_n)
    places = [(batch, m * tiles.tile_m, Int32(0))] + [place_b] * parts
    alike = [[mA], *([own[i] for own in every] for i in range(parts))]
    chunks = [_chunks(mXs, p, tiles.sharing, a) for mXs, p, a in zip(alike, panels, along_k, strict=True)]
    sources = [_source(mX, p, some, tidx, c) for mX, p, c in zip((mA, *mBs), places, chunks, strict=True)]
    for which, (mB, *_) in enumerate(every[1:], 1):
        own, its = own_column(n, firsts, which)
        place_b = (batch, own * tile_n, Int32(0)) if b_is_nk else (batch, Int32(0), own * tile_n)
        found = _source(mB, place_b, some, tidx, chunks[1])
        sources[1] = tuple(cutlass.select_(its, x, y) for x, y in zip(found, sources[1], strict=True))
    return Operands(panels, chunks, sources, (mA.element_type, mBs[0].element_type), how)


def _chunks(mXs: list[cute.Tensor], panels: Panels, threads: int, along_k: tuple[int, int]) -> Chunks:
    """The widest chunks that divide the strides and sizes of each of these; cp.async takes at least 4 bytes."""
    size = mXs[0].element_type.width // 8
    known = [cute.get_divisibility(x) * size for mX in mXs for x in (mX.stride[0], mX.stride[1], mX.shape[2])]
    chunk = math.gcd(16, *(mX.iterator.alignment for mX in mXs), *known)
    chunks = Chunks(panels, size, chunk if chunk >= 4 else 16, chunk >= 4, threads, along_k)
    assert chunks.hop and chunks.count * chunks.chunk * threads == panels.size, (
        f"{threads} threads cannot share {chunks}"
    )
    return chunks


def _source(mX: cute.Tensor, place: tuple[Int32, Int32, Int32], some: Boolean, tidx: Int32, chunks: Chunks) -> tuple:
    """The source from which a thread copies the operand's tile at this batch, row and column: the addresses of its
    first chunk and of the operand's end, the stride of rows in bytes, the chunk's row and column, and the numbers of
    rows and columns (0 unless `some`)."""
    batch, row, column = place
    row = row + tidx // chunks.per_row
    column = column + tidx % chunks.per_row * (chunks.chunk // chunks.size)
    batch = cutlass.select_(mX.shape[0] == 1, Int32(0), batch)
    rows = cutlass.select_(some, Int32(mX.shape[1]), Int32(0))

    def address(batch: Int32, row: Int32, column: Int32) -> Int64:
        element = Int64(batch) * mX.stride[0] + Int64(row) * mX.stride[1] + Int64(column)
        return mX.iterator.toint() + element * chunks.size

    end = address(mX.shape[0] - 1, mX.shape[1] - 1, mX.shape[2])
    return address(batch, row, column), end, Int64(mX.stride[1]) * chunks.size, row, column, rows, mX.shape[2]


def _load_stage(turn: Int32, stage: Int32, operands: Operands, tidx: Int32) -> None:
    """Start the copies of the tiles of a turn to the stage at an address."""
    for source, start, chunks in zip(operands.sources, operands.starts, operands.chunks, strict=True):
        _load(source, turn, stage + start, tidx, chunks)


@cute.jit
def _load(
    source: tuple, turn: cutlass.Int32, target: cutlass.Int32, tidx: cutlass.Int32, chunks: cutlass.Constexpr[Chunks]
) -> None:
    """Copy a thread's chunks of the tile of this turn; zeros outside the operand."""
    first, end, stride, row, column, rows, columns = source
    down, right = chunks.along_k
    row, column = row + turn * down, column + turn * right
    first = first + (Int64(turn * down) * stride + Int64(turn * (right * chunks.size)))
    own_row, own_byte = tidx // chunks.per_row, tidx % chunks.per_row * chunks.chunk
    if cutlass.const_expr(chunks.aligned):
        for i in cutlass.range_constexpr(chunks.count):
            there = (row + i * chunks.hop < rows) & (column < columns)
            at = target + chunks.panels.place(own_row + i * chunks.hop, own_byte)
            given = cutlass.select_(there, Int32(chunks.chunk), Int32(0))
            tensorcore.copy_async(at, first + i * (chunks.hop * stride), chunks.chunk, given)
    else:
        at_once = min(chunks.count, 2)
        for batch in cutlass.range(chunks.count // at_once, unroll=1):
            hops = [(batch * at_once + i) * chunks.hop for i in range(at_once)]
            there = [(row + hop < rows) & (column < columns) for hop in hops]
            places = [first + Int64(hop) * stride for hop in hops]
            around = [_around(there[i], places[i], end) for i in range(at_once)]
            for i in cutlass.range_constexpr(at_once):
                held = _found(around[i], there[i], places[i], end, columns - column, chunks.size)
                at = target + chunks.panels.place(own_row + hops[i], own_byte)
                whole = cute.make_ptr(held.element_type, at, cute.AddressSpace.smem, assumed_align=16)
                cute.autovec_copy(held, cute.make_tensor(whole, held.layout))


@cute.jit
def _around(there: cutlass.Boolean, place: cutlass.Int64, end: cutlass.Int64) -> cute.Tensor:
    """The two aligned vectors that contain a chunk, (8,) words; zeros where it does not exist, or where they cross the operand's
    end. They may begin before the operand: arrays begin at multiples of 16 bytes."""
    words = cute.make_rmem_tensor((8,), Uint32)
    words.fill(0)
    low = place & Int64(-16)
    if there & (low + 32 <= end):
        pointer = cute.make_ptr(Uint32, low, cute.AddressSpace.gmem, assumed_align=16)
        for k in cutlass.range_constexpr(2):
            half = cute.make_tensor(words.iterator + 4 * k, cute.make_layout((4,)))
            cute.autovec_copy(cute.make_tensor(pointer + 4 * k, cute.make_layout((4,))), half)
    return words


@cute.jit
def _found(
    around: cute.Tensor,
    there: cutlass.Boolean,
    place: cutlass.Int64,
    end: cutlass.Int64,
    left: cutlass.Int32,
    size: cutlass.Constexpr[int],
) -> cute.Tensor:
    """The elements of a chunk, as unsigned integers of their size. They are shifted out of the vectors that contain them. Near the
    end of a row or of the operand they are loaded one by one."""
    dtype, vec = Uint16 if size == 2 else Uint8, 16 // size
    held = cute.make_rmem_tensor((vec,), dtype)
    device.shift_words([around[w] for w in range(8)], Int32(place & 15) // size, vec - 1, held)
    if there & ((left < vec) | ((place & Int64(-16)) + 32 > end)):
        pointer = cute.make_ptr(dtype, place, cute.AddressSpace.gmem, assumed_align=size)
        for e in cutlass.range_constexpr(vec):
            held[e] = dtype(0)
            if e < left:
                held[e] = (pointer + e).load()
    return held


# From shared memory to registers


def _fragments(
    base: Int32, a: Int32, b: Int32, step: int, rA: cute.Tensor, rB: cute.Tensor, operands: Operands
) -> None:
    """Load the fragments of one step along K from the stage at `base`: rA (4, I) words, for several steps of a one after the
    other, rB (2, J). The lane's first places are `a` and `b`."""
    panels, starts, each = operands.panels, operands.starts, operands.each
    rows = panels[0].panel
    for i in range(cute.size(rA, mode=[1]) // each):
        found = []
        for half in range(1 if each == 1 else 2):  # of a lane's words of b
            flipped, added = panels[0].along(step * each * STEP + half * (16 * each))
            at = base + ((a ^ flipped) + (added + i * 16 * rows))
            found += [tensorcore.ldmatrix(at)] if each == 1 else narrow.steps_of_a(at, 8 * rows, each)
        for k, words in enumerate(found):
            for w in range(4):
                rA[w, i * each + k] = words[w]
    pairs = cute.size(rB, mode=[1]) // (len(panels) - 1) // 2
    for part, (shape, start) in enumerate(zip(panels[1:], starts[1:], strict=True)):
        for pair in range(pairs):  # of blocks of 8 columns
            words = pair_of_b(base + start, b, step, pair, shape)
            for w in range(4):
                rB[w % 2, 2 * (part * pairs + pair) + w // 2] = words[w]


def _multiply(
    types: tuple[type[Numeric], type[Numeric]],
    acc: cute.Tensor,
    rA: cute.Tensor,
    rB: cute.Tensor,
    precise: bool,
    how: Loading,
) -> None:
    """acc (4, I, J) += the products of fragments (4, I) and (2, J); of several steps of a, where b has more elements in a word."""
    if how.bits < types[0].width:
        narrow.multiply(types, acc, rA, rB, how)
        return

    def terms(words: cute.Tensor, place: int) -> list[list[Uint32]]:
        """A fragment; float32 as one or two tf32 that sum to it."""
        own = [words[w, place] for w in range(cute.size(words, mode=[0]))]
        if types[0] is not Float32:
            return [own]
        return [list(part) for part in zip(*(tensorcore.split(word, precise) for word in own), strict=True)]

    a = [terms(rA, i) for i in range(cute.size(rA, mode=[1]))]
    for j in range(cute.size(rB, mode=[1])):
        b = terms(rB, j)
        for i in range(len(a)):
            if precise:
                tensorcore.mma(*types, acc[None, i, j], a[i][1], b[0])
                tensorcore.mma(*types, acc[None, i, j], a[i][0], b[1])
            tensorcore.mma(*types, acc[None, i, j], a[i][0], b[0])


def _for_epilogue(acc: cute.Tensor, fours: bool) -> cute.Tensor:
    """The accumulators (4, I, J) in the epilogue's order: (2, 2, J, I)."""
    rows, columns = cute.size(acc, mode=[1]), cute.size(acc, mode=[2])
    if not fours:
        return cute.make_tensor(acc.iterator, cute.make_layout((2, 2, columns, rows), stride=(1, 2, 4 * rows, 4)))
    shape, stride = (2, 2, (2, columns // 2), rows), (4 * rows, 2, (1, 8 * rows), 4)
    return cute.make_tensor(acc.iterator, cute.make_layout(shape, stride=stride))
