"""The parts that Hopper's kernels of attention share: tiles that TMA loads into rings, the walk over the tiles that a mask leaves,
and WGMMA's products, whose accumulators and one factor stay in registers.

The producer of a block (`warpgroups`) loads tiles that stay, and fills two rings of stages in shared memory with the tiles that
pass. Each of the two consumers has 64 rows of the tiles that stay.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Boolean, Float32, Int32, Int64, Uint32
from cutlass._mlir.dialects import llvm
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup
from cutlass.memory import SmemAllocator
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import hopper_helpers

from codegen.device import vectors
from codegen.device.attention.arguments import Backward, Forward, Problem
from codegen.device.attention.batches import places_of
from codegen.device.attention.scores import Table, Tile
from codegen.device.gemm.warpgroups import CONSUMERS, place_in_ring
from codegen.shared import HELD, WARP, AttentionLaunch

REGISTERS = 24, 240  # of a producer's and of a consumer's thread

# Bounds of a mask's arrays

WARPS = 8  # of a block that lists bounds


def listed(stream: Any, given: Forward | Backward, tiles: Callable[..., Any] | None) -> tuple[cute.Tensor | None, Any]:
    """Start the kernel that lists the bounds of the mask's arrays, if there are some. Gives their table, and the function of a tile for
    main loops: of the tile, and of tensors and the table."""
    how, words = given.how, None
    if tiles is None:
        return None, None
    own = tiles
    if how.listed and given.table is not None:
        sizes, batches = (given.q.shape[1], given.k.shape[1]), given.q.shape[0]
        blocks = [cute.ceil_div(n, each) for n, each in zip(sizes, how.spans, strict=True)]
        words = cute.make_tensor(given.table.iterator, cute.make_layout((2, sum(blocks), how.listed, batches)))
        most = cutlass.max(*blocks)
        _attention_bounds(words, given.tensors, sizes, batches, most, tiles, how).launch(
            grid=(cute.ceil_div(most, WARPS) * cute.size(batches), 1, 1), block=(WARPS * WARP, 1, 1), stream=stream
        )

    def of_tile(at: Tile, operands: tuple) -> Any:
        tensors, table = operands
        return own(at if table is None else replace(at, table=Table(table, how.spans)), tensors)

    return words, of_tile


@cute.kernel
def _attention_bounds(
    words: cute.Tensor,  # (2, blocks, arrays, batch)
    tensors: tuple,
    sizes: tuple,  # rows and columns
    batches: tuple,  # sizes of the batch's axes
    blocks: cutlass.Int32,  # of rows, or of columns, whichever are more
    tiles: cutlass.Constexpr[Callable[..., Any]],
    how: cutlass.Constexpr[AttentionLaunch],
) -> None:
    """List the bounds of a mask's arrays. A warp has a block of rows, and one of columns."""
    tensors = tuple(vectors.compacted(t) for t in tensors)
    index, each = Int32(cute.arch.block_idx()[0]), cute.ceil_div(blocks, WARPS)
    own = index % each * WARPS + cute.arch.make_warp_uniform(cute.arch.warp_idx())
    first = [cutlass.min(own * n, size - 1) for n, size in zip(how.spans, sizes, strict=True)]
    last = [cutlass.min(own * n + n, size) - 1 for n, size in zip(how.spans, sizes, strict=True)]
    rows, columns = zip(first, last, strict=True)
    if sizes[1] > 0:
        tiles(
            Tile(places_of(index // each, batches), rows, columns, sizes, table=Table(words, how.spans, own)), tensors
        )


# Work


def work_of(tiles: Any, elements: Any, how: AttentionLaunch) -> tuple[tuple, Any]:
    """The tiles of all elements of the batch, the same number for each, in the order in which blocks take them
    (`place`); and the number of blocks. Where there are many tiles, most are taken in pairs of one element: the first
    and the last of its tiles that are left. If a tile's work falls with its number, all pairs have the same work. An
    element's tiles are then taken at about the same time, and find its rows in the L2 cache. The last tiles, of two
    turns or more, are taken in the order of their numbers: the smallest come last.

    An H200's forward in bfloat16 with a causal mask, 2048 tokens and 160 heads of 128 elements took 346 us in pairs. In
    the order of tiles, in which each of 132 blocks has a head of its own, it took 396 us.
    """
    count = tiles * elements
    grid = cutlass.min(count, how.processors)
    return (count, tiles, elements, cutlass.max(count // (2 * grid) - 1, 0) * (2 * grid)), grid


def next_tile(turn: Int32, paired: Any = 0) -> Int32:
    """The number of a block's tile of this turn. After numbers that are `paired`, blocks take tiles forwards and backwards in turns."""
    grid, block = Int32(cute.arch.grid_dim()[0]), Int32(cute.arch.block_idx()[0])
    apart = turn * grid + cutlass.select_(turn % 2 == 0, block, grid - 1 - block)
    return cutlass.select_(turn * grid < paired, 2 * (turn // 2 * grid + block) + turn % 2, apart)


def place(index: Int32, work: tuple) -> tuple[Int32, Int32]:
    """The tile of a number, and its element of the batch."""
    _, tiles, elements, paired = work
    inside = index % tiles
    tile = cutlass.select_(inside % 2 == 0, inside // 2, tiles - 1 - inside // 2)
    element = index // tiles
    # After the pairs: the element that has some of its tiles in pairs has only those in the middle left
    cut, used, rest = paired // tiles, paired % tiles, index - paired
    some, most = elements - cut, cutlass.max(elements - cut - 1, 1)
    first = (used + 1) // 2 * (some - 1)
    middle, last = rest - first, rest - first - (tiles - used) * some
    for there, begin, number, members, where in (
        (index >= paired, 0, rest, most, cut + 1),
        ((index >= paired) & (middle >= 0), (used + 1) // 2, middle, some, cut),
        ((index >= paired) & (last >= 0), tiles - used // 2, last, most, cut + 1),
    ):
        tile = cutlass.select_(there, begin + number // members, tile)
        element = cutlass.select_(there, where + number % members, element)
    return Int32(tile), Int32(element)


@dataclass(frozen=True)
class Passing:
    """The tiles that pass a tile which stays: `wide` rows each of k, or of q where `turned`."""

    problem: Problem
    tile: Int32  # the number of the one that stays, of `staying` rows
    places: tuple  # the positions of its batch
    wide: int
    turned: bool = False
    back: bool = False  # whether tiles are counted from the last
    staying: int = HELD

    @property
    def counts(self) -> tuple[Int32, Int32]:
        """The rows of all tiles that pass, and of all that stay."""
        rows, columns = self.problem.sizes
        return (rows, columns) if self.turned else (columns, rows)


@cute.jit
def _look(group: cutlass.Int32, passing: Passing) -> tuple[Uint32, Uint32]:
    """Which of a group of 32 passing tiles are to be computed, and which of them without the mask, as bits."""
    (count, held), wide, staying, tiles = passing.counts, passing.wide, passing.staying, passing.problem.functions.tiles
    number = group * WARP + cute.arch.lane_idx()
    some = Boolean(number * wide < count)
    if cutlass.const_expr(passing.back):
        number = cutlass.max(cute.ceil_div(count, wide) - 1 - number, 0)
    first, own = number * wide, passing.tile * staying
    every = Boolean(first + wide <= count)
    if cutlass.const_expr(passing.turned):
        every = every & (own + staying <= held)
    if cutlass.const_expr(tiles is not None):
        ends = cutlass.min(first, count - 1), cutlass.min(first + wide, count) - 1
        rows = own, cutlass.min(own + staying, held) - 1
        at = Tile(
            passing.places, *((ends, rows) if passing.turned else (rows, ends)), passing.problem.sizes, apart=True
        )
        seen, whole = tiles(at, (passing.problem.tensors, passing.problem.table))
        some, every = some & Boolean(seen), every & Boolean(whole)
    return Uint32(cute.arch.vote_ballot_sync(some)), Uint32(cute.arch.vote_ballot_sync(every))


@cute.jit
def step(walk: tuple, passing: Passing) -> tuple[Int32, Uint32, Uint32, Int32]:
    """The next of the tiles that pass. A walk has the number of a group of 32 tiles, the bits of the tiles that are left in it, the bits
    of those without a mask, and the tile. After the last tile, this is negative. A warp finds out for 32 tiles at once, each lane for
    one."""
    group, left, plain, _ = walk
    groups = cute.ceil_div(cute.ceil_div(passing.counts[0], passing.wide), WARP)
    while (left == 0) & (group + 1 < groups):
        group += 1
        left, plain = _look(group, passing)
    place = Int32(cute.arch.popc((left & (~left + 1)) - 1))  # of the lowest bit
    found = cutlass.select_(left == 0, Int32(-1), group * WARP + place)
    return group, left & (left - 1), plain, found


def begin() -> tuple[Int32, Uint32, Uint32, Int32]:
    """A walk before its first step."""
    return Int32(-1), Uint32(0), Uint32(0), Int32(-1)


def is_plain(walk: tuple) -> Boolean:
    """Whether the mask holds in the whole tile of a walk."""
    return (walk[2] >> Uint32(walk[3] & (WARP - 1)) & 1) != 0


# Tiles in shared memory


def staying(tile: tuple[int, int], dtype: Any) -> Any:
    """The layout of a tile that stays, (rows, columns, 1)."""
    rows, columns = tile
    return hopper_helpers.make_smem_layout_a(LayoutEnum.ROW_MAJOR, (rows, 8, columns), dtype, 1)


def passing(tile: tuple[int, int], dtype: Any, stages: int) -> Any:
    """The layout of tiles that pass, (rows, columns, stages), as factors of which columns are contracted."""
    rows, columns = tile
    return hopper_helpers.make_smem_layout_b(LayoutEnum.ROW_MAJOR, (HELD, rows, columns), dtype, stages)


def across(tile: tuple[int, int], dtype: Any, stages: int) -> Any:
    """The same bytes as (columns, rows, stages): factors of which rows are contracted."""
    rows, columns = tile
    return hopper_helpers.make_smem_layout_b(LayoutEnum.COL_MAJOR, (HELD, columns, rows), dtype, stages)


def partition(load: cute.CopyAtom, tensor: cute.Tensor, box: tuple[int, int], shared: cute.Tensor) -> tuple:
    """The boxes of a tensor, in shared and in global memory: (box, stages) and (box, tiles, tiles, batch)."""
    boxes: Any = cute.local_tile(tensor, box, (None,) * cute.rank(tensor))
    found: Any = cpasync.tma_partition(
        load, 0, cute.make_layout(1), cute.group_modes(shared, 0, 2), cute.group_modes(boxes, 0, 2)
    )
    return found


def bytes_of(box: tuple[int, int], dtype: Any) -> int:
    return box[0] * box[1] * dtype.width // 8


Ring = tuple[Any, Any]  # barriers: a stage's bytes have come; all warps that read a stage have read it


def rings(allocator: SmemAllocator, stages: tuple[int, ...]) -> tuple[Ring, ...]:
    """The barriers of rings with these numbers of stages."""
    return tuple((allocator.allocate_array(Int64, n), allocator.allocate_array(Int64, n)) for n in stages)


@cute.jit
def start(
    found: tuple, stages: cutlass.Constexpr[tuple[int, ...]], arrivals: cutlass.Constexpr[tuple[int, ...]],
    readers: cutlass.Constexpr[int] = 4 * CONSUMERS,
) -> None:  # fmt: skip
    """Initialise the barriers of rings. A stage is full after some `arrivals`, and free after one arrival of each
    reading warp."""
    if cute.arch.make_warp_uniform(cute.arch.warp_idx()) == 0:
        with cute.arch.elect_one():
            for r in cutlass.range_constexpr(len(stages)):
                for i in cutlass.range_constexpr(stages[r]):
                    cute.arch.mbarrier_init(found[r][0] + i, arrivals[r])
                    cute.arch.mbarrier_init(found[r][1] + i, readers)
        cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()


@cute.jit
def fill(
    boxes: tuple, ring: tuple, filled: cutlass.Uint32, stages: cutlass.Constexpr[int], size: cutlass.Constexpr[int],
    told: tuple = (),
) -> None:  # fmt: skip
    """Load boxes into the next stage of a ring as soon as it is free. Together they have `size` bytes. A box is TMA's
    copy, its partition, and the coordinates of the box. What consumers are `told` of the stage are words in shared
    memory (numbers, stages), and numbers."""
    full, empty = ring
    at, phase = place_in_ring(filled, stages)
    cute.arch.mbarrier_wait(empty + at, phase ^ 1)
    with cute.arch.elect_one():
        if cutlass.const_expr(told != ()):
            for i in cutlass.range_constexpr(len(told[1])):
                told[0][i, at] = told[1][i]
        cute.arch.mbarrier_arrive_and_expect_tx(full + at, size)
    for i in cutlass.range_constexpr(len(boxes)):
        load, (dst, src), where = boxes[i]
        cute.copy(load, src[(None, *where)], dst[None, at], tma_bar_ptr=full + at)


# Products


def products(dtype: Any, columns: int, rows: int = HELD) -> cute.TiledMma:
    """a @ b^T of tiles in shared memory, both with contracted columns: 64 rows for each consumer, or the same 64 for both."""
    major = OperandMajorMode.K
    return hopper_helpers.make_trivial_tiled_mma(
        dtype, dtype, major, major, Float32, (rows // 64, 1, 1), tiler_mn=(64, columns)
    )


def weighted(dtype: Any, columns: int, rows: int = HELD) -> cute.TiledMma:
    """a @ b of a in registers and b in shared memory, of as many rows."""
    return hopper_helpers.make_trivial_tiled_mma(
        dtype, dtype, OperandMajorMode.K, OperandMajorMode.MN, Float32, (rows // 64, 1, 1), tiler_mn=(64, columns),
        a_source=warpgroup.OperandSource.RMEM,
    )  # fmt: skip


@cute.jit
def multiply(
    mma: cute.TiledMma, acc: cute.Tensor, a: cute.Tensor, b: cute.Tensor, adds: cutlass.Boolean | bool
) -> None:
    """Start the products of a tile, as a group. They are added to `acc`, or replace it."""
    for block in cutlass.range_constexpr(cute.size(a, mode=[2])):
        atom = cute.make_mma_atom(mma.op)
        atom.set(warpgroup.Field.ACCUMULATE, adds if cutlass.const_expr(block == 0) else True)
        cute.gemm(atom, acc, a[None, None, block], b[None, None, block], acc)
    warpgroup.commit_group()


def accumulators(columns: int) -> tuple[cute.Tensor, cute.Tensor]:
    """Registers of a thread's part of 64 rows: (2 adjacent columns, 2 rows, columns / 8), and the same as WGMMA takes them. The rows are
    lane // 4 + {0, 8} of the warp's 16, the columns 8j + 2(lane % 4) + {0, 1}."""
    held = cute.make_rmem_tensor((2, 2, columns // 8), Float32)
    return held, cute.make_tensor(held.iterator, cute.make_layout(((2, 2, columns // 8), 1, 1)))


def first_element() -> tuple[Int32, Int32]:
    """The row and the column of a thread's first accumulator, in a tile of 64 rows for each consumer."""
    lane, warp = cute.arch.lane_idx(), cute.arch.make_warp_uniform(cute.arch.warp_idx())
    return warp * 16 + lane // 4, 2 * (lane % 4)


def factor(columns: int, dtype: Any) -> tuple[cute.Tensor, cute.Tensor]:
    """Registers with two adjacent columns in a word, (2 rows, columns / 8); and the same as WGMMA takes a factor, in which 16
    columns are two groups of 8."""
    words = cute.make_rmem_tensor((2, columns // 8), Uint32)
    layout = cute.make_layout(((2, 2, 2), 1, columns // 16), stride=((1, 2, 4), 0, 8))
    return words, cute.make_tensor(cute.recast_tensor(words, dtype).iterator, layout)


@cute.jit
def rounded(values: cute.Tensor, words: cute.Tensor, dtype: cutlass.Constexpr[Any]) -> None:
    """Round accumulators to a factor."""
    for j in cutlass.range_constexpr(cute.size(words, mode=[1])):
        for r in cutlass.range_constexpr(2):
            pair = cute.make_rmem_tensor((2,), dtype)
            pair.store(values[None, r, j].load().to(dtype))
            words[r, j] = cute.recast_tensor(pair, Uint32)[0]


def rounded_row(part: cute.Tensor, words: cute.Tensor, r: int, dtype: Any) -> None:
    """Round a row's numbers (columns,) to a factor here: the compiler may not do so later."""
    text = f"cvt.rn.{'bf16x2' if dtype is BFloat16 else 'f16x2'}.f32 $0, $1, $2;"
    for j in range(cute.size(part) // 2):
        pair = [Float32(part[2 * j + c]).ir_value() for c in (1, 0)]
        words[r, j] = Uint32(llvm.inline_asm(Uint32.mlir_type, pair, text, "=r,f,f", has_side_effects=True))


def moved(source: cute.Tensor, target: cute.Tensor, nothing: Uint32) -> None:
    """Copy words to a factor that products have read. `nothing` is 0, which the assembler must not know: it would use
    one register for both words, and wait for the products before it writes the source."""
    for i in range(cute.size(source)):
        target[i] = source[i] ^ nothing


def row_of(values: cute.Tensor, r: int) -> cute.Tensor:
    """A row's accumulators, copied to (columns,)."""
    count = 2 * cute.size(values, mode=[2])
    part = cute.make_rmem_tensor((count,), Float32)
    for i in range(count):
        part[i] = values[i % 2, r, i // 2]
    return part


def put_row(part: cute.Tensor, values: cute.Tensor, r: int) -> None:
    """The reverse of `row_of`."""
    for i in range(cute.size(part)):
        values[i % 2, r, i // 2] = part[i]


def apart(count: int) -> tuple[int, ...]:
    """How far the columns of a thread's part of a row are after its first."""
    return tuple(i // 2 * 8 + i % 2 for i in range(count))


def columns_of(column: Int32, count: int) -> tuple[Int32, ...]:
    """The columns of a thread's part of a row, from its first."""
    return tuple(column + distance for distance in apart(count))


@cute.jit
def store(values: cute.Tensor, target: cute.Tensor, batch: Any, row: cutlass.Int32, column: cutlass.Int32, there: cutlass.Boolean,
          r: cutlass.Constexpr[int]) -> None:  # fmt: skip
    """Store one of a thread's two rows to (batch, rows, columns). All lanes take part. The four lanes of a row exchange words of 16 bits
    elements, so that each stores 16 bytes."""
    dtype, count = target.element_type, cute.size(values, mode=[2])
    line = target.iterator + cute.crd2idx((batch, row, column), target.layout)
    whole = count // 4 * 4 if cutlass.const_expr(dtype.width == 16) else 0
    for j in cutlass.range_constexpr(0, whole, 4):
        held, words = cute.make_rmem_tensor((8,), dtype), cute.make_rmem_tensor((4,), Uint32)
        part = cute.make_rmem_tensor((8,), Float32)
        for i in cutlass.range_constexpr(8):
            part[i] = values[i % 2, r, j + i // 2]
        held.store(part.load().to(dtype))
        for i, word in enumerate(vectors.exchanged(cute.recast_tensor(held, Uint32))):
            words[i] = word
        if there:
            place = (line + 8 * j + 6 * (cute.arch.lane_idx() % 4)).align(16)
            cute.autovec_copy(cute.recast_tensor(words, dtype), cute.make_tensor(place, cute.make_layout((8,))))
    if there:
        for j in cutlass.range_constexpr(whole, count):
            pair = cute.make_rmem_tensor((2,), dtype)
            pair.store(values[None, r, j].load().to(dtype))
            cute.autovec_copy(pair, cute.make_tensor((line + 8 * j).align(4), cute.make_layout((2,))))
