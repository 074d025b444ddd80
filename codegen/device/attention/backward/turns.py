"""Sums in global memory to which blocks add tiles in turns, so that each sum has one order.

A tile of q has a word in `turns`, 0 at first. Each block that adds to the tile sets it to one more than the number of its tile of
k, the last one to that negated where it rounds the sums itself. A block adds after the tile of k before its own whose mask holds
somewhere in that tile of q. The first stores its tile, so nothing fills the sums before. Blocks take numbers as they start, and tiles
of k in the order of these numbers: a block waits only for blocks that run already.

A tile of sums has the order of the threads' accumulators, which `joint` defines. Tensor memory accelerators copy it from
shared memory and add it in the L2 cache.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64, Uint32
from cutlass._mlir.dialects import llvm

from codegen.device.attention.arguments import Problem
from codegen.device.attention.scores import Tile
from codegen.shared import HELD, WARP

PAUSE = 20  # nanoseconds between two looks at a turn


def number(places: tuple, tile: Int32, batches: tuple, tiles: Int32) -> Int32:
    """The number of a tile of q among those of all elements of the batch, each of which has `count` tiles."""
    found = Int32(0)
    for place, size in zip(reversed(places), reversed(batches), strict=True):
        found = found * size + place
    return found * tiles + tile


@cute.jit
def take_number(words: cute.Tensor, count: cutlass.Int32, shared: cute.Pointer) -> Int32:
    """The number of this block among those that have started, of so many tiles of q. All threads take part."""
    if cute.arch.thread_idx()[0] == 0:
        held = cute.make_tensor(shared, cute.make_layout((1,)))
        held[0] = cute.arch.atomic_add((words.iterator + count).llvm_ptr, Int32(1), sem="relaxed", scope="gpu")
    cute.arch.sync_threads()
    return cute.make_tensor(shared, cute.make_layout((1,)))[0]


def neighbours(tile: Int32, rows: tuple, places: tuple, problem: Problem) -> tuple[Int32, Boolean]:
    """The word of the turn before a tile of k, for rows of q from the first to the last, and whether the tile is the last for them. Only
    tiles of k that some of these rows see take turns. The word is one more than the last such tile before this one, or 0."""
    if problem.functions.tiles is None:
        return tile, tile + 1 == cute.ceil_div(problem.sizes[1], HELD)
    found: tuple[Int32, Boolean] = _neighbours(tile, rows, places, problem)
    return found


@cute.jit
def _neighbours(tile: cutlass.Int32, rows: tuple, places: tuple, problem: Problem) -> tuple:
    """`neighbours` under a mask. A warp looks at 32 tiles at once, first at those on both sides."""
    start, end = tile - WARP // 2, tile + WARP // 2
    near = _seen(start, rows, places, problem)
    below, above = near & 0xFFFF, near >> (WARP // 2 + 1)
    while (below == 0) & (start > 0):
        start -= WARP
        below = _seen(start, rows, places, problem)
    while (above == 0) & (end * HELD < problem.sizes[1]):
        above = _seen(end, rows, places, problem)
        end += WARP
    last = Int32(WARP) - Int32(cute.arch.clz(below))  # one more than the highest bit
    return cutlass.select_(below == 0, Int32(0), start + last), above == 0


def _seen(first: Int32, rows: tuple, places: tuple, problem: Problem) -> Uint32:
    """Which of 32 tiles of k from the first, some of which there need not be, have a mask that holds somewhere in rows of q, as bits."""
    sizes, own = problem.sizes, first + cute.arch.lane_idx()
    column = cutlass.min(cutlass.max(own, 0) * HELD, sizes[1] - 1)
    at = Tile(places, rows, (column, cutlass.min(column + HELD, sizes[1]) - 1), sizes, apart=True)
    some = Boolean(problem.functions.tiles(at, (problem.tensors, problem.table))[0])
    return Uint32(cute.arch.vote_ballot_sync(some & (own >= 0) & (own * HELD < sizes[1])))


@cute.jit
def wait(word: cute.Pointer, value: cutlass.Int32) -> None:
    """Wait until a turn has a value."""
    seen = cute.arch.load(word.llvm_ptr, Int32, sem="acquire", scope="gpu")
    while seen != value:
        llvm.inline_asm(None, [], f"nanosleep.u32 {PAUSE};", "", has_side_effects=True)
        seen = cute.arch.load(word.llvm_ptr, Int32, sem="acquire", scope="gpu")
    cute.arch.fence_proxy("async")


@cute.jit
def send(target: cutlass.Int64, source: cutlass.Int32, size: cutlass.Constexpr[int], adds: cutlass.Boolean) -> None:
    """Start to add a tile of so many bytes in shared memory to sums, or to store it to them, as a group. One thread
    does so."""
    operands = [target.ir_value(), source.ir_value()]
    name, how = "async.bulk.global.shared::cta.bulk_group", f"[$0], [$1], {size};"
    if adds:
        llvm.inline_asm(None, operands, f"cp.reduce.{name}.add.f32 {how}", "l,r", has_side_effects=True)
    else:
        llvm.inline_asm(None, operands, f"cp.{name} {how}", "l,r", has_side_effects=True)
    cute.arch.cp_async_bulk_commit_group()


@cute.jit
def end(word: cute.Pointer, value: cutlass.Int32) -> None:
    """Set a turn, once this thread's tiles have been added, and so are visible to it."""
    cute.arch.cp_async_bulk_wait_group(0)
    cute.arch.store(word.llvm_ptr, value, sem="release", scope="gpu")


def leave(word: cute.Pointer, tile: Int32) -> None:
    """Set the turn of the last block to add, which rounds the sums itself."""
    cute.arch.store(word.llvm_ptr, -1 - tile, sem="relaxed", scope="gpu")


def load_four(address: Int64) -> list[Uint32]:
    """Load four words of sums, to which other blocks have added, from the L2 cache."""
    word = Uint32.mlir_type
    result = llvm.inline_asm(
        llvm.StructType.get_literal([word] * 4), [address.ir_value()], "ld.relaxed.gpu.global.v4.b32 {$0, $1, $2, $3}, [$4];",
        "=r,=r,=r,=r,l", has_side_effects=True,
    )  # fmt: skip
    return [Uint32(llvm.extractvalue(word, result, [i])) for i in range(4)]


@cute.kernel
def begin(words: cute.Tensor) -> None:
    """Clear the turns."""
    at = Int32(cute.arch.block_idx()[0]) * cute.arch.block_dim()[0] + cute.arch.thread_idx()[0]
    if at < words.shape[0]:
        words[at] = Int32(0)
