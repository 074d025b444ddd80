"""Attention for Hopper (sm_90a): o = weights(q @ k^T) @ v by TMA and WGMMA, in one pass over k and v.

A tile of q stays, tiles of k and v pass (`hopper`). A consumer computes for its 64 rows, and for each tile of k and v

    s = q @ k^T                                 both factors in shared memory
    p = exp(score(s) - level)                   level is a maximum of the row (`weights`)
    o = o * exp(last level - level) + p @ v     p in registers

The tensor cores multiply p @ v of one tile and then q @ k^T of the next, both of which a consumer has started.
Meanwhile the other consumer computes its exponentials: the consumers take turns to start their products. The tiles of k
that pass all tiles of q are one sequence, so products and exponentials overlap between two tiles of q, too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Uint32
from cutlass.cute.nvgpu import cpasync, warpgroup
from cutlass.memory import SmemAllocator

from codegen.device import vectors
from codegen.device.attention import hopper, weights
from codegen.device.attention.arguments import Forward, Functions, Problem
from codegen.device.attention.batches import places_of
from codegen.device.attention.fragments import multiplied
from codegen.device.attention.scores import Row
from codegen.device.gemm import tensorcore
from codegen.device.gemm.warpgroups import CONSUMERS, PRODUCER, THREADS, WARPGROUP, loader, place_in_ring
from codegen.shared import HELD, AttentionLaunch

TURN = 1  # named barriers, one for each consumer: for its turn to multiply
AHEAD = 16  # tiles of k that are found before they are loaded
PLAIN, LAST = 2, 1  # bits of a tile of k: the mask holds in all of it; it is the last that passes a tile of q


def launch(stream: Any, given: Forward) -> None:
    """As `attention.launch`. D and E are multiples of 16, and rows begin at multiples of 16 bytes. q and k may be of one float8 type,
    where D is a multiple of 32; v is of the products' type."""
    q, k, v, how = given.q, given.k, given.v, given.how
    dtype, narrow = multiplied(q, how), q.element_type
    layouts = (
        hopper.staying((HELD, how.d), narrow),
        hopper.passing((how.tile_n, how.d), narrow, how.stages),
        hopper.across((how.tile_n, how.e), dtype, how.stages),
    )
    loads = (
        loader(q, (1, 2, 0), layouts[0], (HELD, how.d)),
        loader(k, (1, 2, 0), layouts[1], (how.tile_n, how.d)),
        loader(v, (2, 1, 0), layouts[2], (how.e, how.tile_n)),
    )
    mmas = hopper.products(narrow, how.tile_n), hopper.weighted(dtype, how.e)
    work, grid = hopper.work_of(cute.ceil_div(q.shape[1], HELD), cute.size(q, mode=[0]), how)
    table, tiles = hopper.listed(stream, given, given.functions.tiles)
    steady = weights.is_steady(given.functions, dtype)
    # Scores with a distance rise from tile to tile, so much with a steep slope that early weights are computed again
    early = how.early and not given.functions.shifts
    _attention(
        loads, layouts, mmas, (given.o, given.tensors, table), (q.shape[1], k.shape[1]), q.shape[0],
        work, replace(given.functions, tiles=tiles, neighbours=how.neighbours, steady=steady, early=early, tops=how.tops), how,
    ).launch(
        grid=(grid, 1, 1), block=(THREADS, 1, 1), min_blocks_per_mp=1, stream=stream
    )  # fmt: skip


@cute.kernel
def _attention(
    loads: tuple,  # of q, k and v: TMA's copies, and tensors of coordinates
    layouts: tuple,  # of their tiles in shared memory
    mmas: tuple,  # q @ k^T and p @ v
    memory: tuple,  # o, the operands of the functions, and the table of the mask's bounds
    sizes: tuple,  # rows of q and of k
    batches: tuple,  # sizes of the batch's axes
    work: tuple,  # as `hopper.work_of` gives it
    functions: cutlass.Constexpr[Functions],
    how: cutlass.Constexpr[AttentionLaunch],
) -> None:
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    consumer = warp // 4  # which warpgroup
    types = mmas[0].op.a_dtype, mmas[0].op.a_dtype, mmas[1].op.a_dtype
    target, tensors, table = memory
    tensors = tuple(vectors.compacted(t) for t in tensors)
    problem = Problem(sizes, batches, functions, tensors, how, work, table)
    allocator = SmemAllocator()
    shared = tuple(
        allocator.allocate_tensor(dtype, x.outer, 1024, swizzle=x.inner)
        for x, dtype in zip(layouts, types, strict=True)
    )
    stages = 1, how.stages, how.stages
    rings, count = hopper.rings(allocator, stages), 3 + len(batches)
    (found,) = hopper.rings(allocator, (AHEAD,))
    listed, told = (
        cute.make_tensor(allocator.allocate_array(Int32, count * n), cute.make_layout((count, n)))
        for n in (AHEAD, how.stages)
    )
    hopper.start((found,), (AHEAD,), (1,), 1)
    hopper.start(rings, stages, (1, 1, 1))
    if consumer == CONSUMERS:
        cute.arch.setmaxregister_decrease(hopper.REGISTERS[0])
        if warp == PRODUCER:
            _produce(loads, shared, rings, told, found, listed, how)
        if warp == PRODUCER + 1:
            _find(found, listed, problem)
    else:
        cute.arch.setmaxregister_increase(hopper.REGISTERS[1])
        _consume(shared, rings, told, mmas, target, consumer, problem)


def _place(index: Int32, problem: Problem) -> tuple[Int32, tuple]:
    """The tile of q, and the positions of its batch. The last tiles, which see most under a causal mask, come first."""
    back, batch = hopper.place(index, problem.work)
    return cute.ceil_div(problem.sizes[0], HELD) - 1 - back, places_of(batch, problem.batches)


# The warp that finds the tiles of k that pass each tile of q, and the warp that loads them. The first is ahead of the second, which is ahead
# of the consumers. Words in shared memory say of a tile of k: its number and bits of it; the turn of the block in which it has the tile of q
# that this one passes; that tile's number, and the positions of its batch. After the last one comes a negative number, and so many turns


@cute.jit
def _find(found: tuple, listed: cute.Tensor, problem: Problem) -> None:
    """List the tiles of k that pass the tiles of q of this block."""
    count, turn, work = Uint32(0), Int32(0), problem.work
    index = hopper.next_tile(turn, work[3])
    while index < work[0]:
        tile, places = _place(index, problem)
        passing = hopper.Passing(problem, tile, places, problem.how.tile_n)
        walk = hopper.step(hopper.begin(), passing)
        while walk[3] >= 0:
            number = 4 * walk[3] + PLAIN * Int32(hopper.is_plain(walk))
            walk = hopper.step(walk, passing)
            number += LAST * Int32(walk[3] < 0)
            hopper.fill((), found, count, AHEAD, 0, (listed, (number, turn, tile, *places)))
            count += 1
        turn += 1
        index = hopper.next_tile(turn, work[3])
    end = Int32(-1), turn, *(Int32(0) for _ in range(1 + len(problem.batches)))
    hopper.fill((), found, count, AHEAD, 0, (listed, end))


@cute.jit
def _produce(
    loads: tuple, shared: tuple, rings: tuple, told: cute.Tensor, found: tuple, listed: cute.Tensor,
    how: cutlass.Constexpr[AttentionLaunch],
) -> None:  # fmt: skip
    """The producer warp: loads the tiles of this block, stage by stage, as soon as a stage is free."""
    boxes = (HELD, how.d), (how.tile_n, how.d), (how.e, how.tile_n)
    to_q, to_k, to_v = (
        hopper.partition(load[0], load[1], box, s) for load, box, s in zip(loads, boxes, shared, strict=True)
    )
    (load_q, _), (load_k, _), (load_v, _) = loads
    for load in (load_q, load_k, load_v):
        cpasync.prefetch_descriptor(load)
    q_ring, k_ring, v_ring = rings
    q_size, k_size, v_size = (hopper.bytes_of(box, s.element_type) for box, s in zip(boxes, shared, strict=True))
    # Tiles of k and of q so far; whether the next k is the first that passes its tile of q
    filled, used, last = Uint32(0), Uint32(0), Boolean(True)
    now = _read(found, listed, filled, AHEAD)
    before = now
    while now[0] >= 0:
        hopper.fill(((load_k, to_k, (now[0] // 4, 0, now[3:])),), k_ring, filled, how.stages, k_size, (told, now))
        if filled > 0:
            place = 0, before[0] // 4, before[3:]
            hopper.fill(((load_v, to_v, place),), v_ring, filled - 1, how.stages, v_size)
        if last:
            hopper.fill(((load_q, to_q, (now[2], 0, now[3:])),), q_ring, used, 1, q_size)
            used += 1
        filled += 1
        last, before = Boolean(now[0] & LAST != 0), now
        now = _read(found, listed, filled, AHEAD)
    hopper.fill((), k_ring, filled, how.stages, 0, (told, now))
    if filled > 0:
        hopper.fill(((load_v, to_v, (0, before[0] // 4, before[3:])),), v_ring, filled - 1, how.stages, v_size)


@cute.jit
def _read(ring: tuple, words: cute.Tensor, used: cutlass.Uint32, stages: cutlass.Constexpr[int]) -> tuple:
    """The words of a stage as soon as they are there. It is free then."""
    at, phase = place_in_ring(used, stages)
    cute.arch.mbarrier_wait(ring[0] + at, phase)
    numbers = _words(words, at, 0)
    _free(ring, used, Boolean(True), stages)
    return numbers


def _words(words: cute.Tensor, at: Int32, first: int) -> tuple:
    """The words of a stage from the first of them on, which all lanes have read then."""
    numbers = tuple(words[i, at] for i in range(first, cute.size(words, mode=[0])))
    cute.arch.sync_warp()
    return tuple(cute.arch.make_warp_uniform(n) for n in numbers)


@cute.jit
def _told(ring: tuple, told: cute.Tensor, used: cutlass.Uint32, stages: cutlass.Constexpr[int]) -> Int32:
    """The number of the next tile of k with its bits, as soon as that is loaded."""
    at, phase = place_in_ring(used, stages)
    cute.arch.mbarrier_wait(ring[0] + at, phase)
    number = told[0, at]
    cute.arch.sync_warp()
    return Int32(cute.arch.make_warp_uniform(number))


def _rows_told(told: cute.Tensor, used: Uint32, own: tuple, stages: int) -> tuple:
    """The turn of a tile of k, and of its tile of q the batch and a thread's first row."""
    turn, tile, *places = _words(told, place_in_ring(used, stages)[0], 1)
    return turn, (tuple(places), tile * HELD + own[0])


@cute.jit
def _consume(
    shared: tuple, rings: tuple, told: cute.Tensor, mmas: tuple, target: cute.Tensor, consumer: cutlass.Int32,
    problem: Problem,
) -> None:  # fmt: skip
    """A consumer warpgroup: computes 64 rows of each tile of this block. The tiles of k that pass all of them are one
    sequence: a tile's first products are started before the last ones of the tile before, whose results are stored then."""
    functions, how = problem.functions, problem.how
    stages, own, dtype = how.stages, hopper.first_element(), shared[2].element_type
    s, o, p, factors = _factors(shared, mmas, consumer, how)
    early, nothing = cute.make_rmem_tensor(p.layout, Uint32), Uint32(cute.arch.block_idx()[1])  # the next p, and 0
    # Of the rows of a tile of q, and of those whose results are not stored
    state, done = weights.state(), weights.state()
    used, begun, turn = Uint32(0), Uint32(0), Int32(0)  # tiles of k and of q before; turns whose results are stored
    if consumer == 1:
        cute.arch.barrier_arrive(barrier_id=TURN, number_of_threads=2 * WARPGROUP)  # the other begins
    _reset(o, state, functions)
    left = _rows(turn, own, problem)  # the rows of that turn
    now = _told(rings[1], told, used, stages)
    whose, rows = _rows_told(told, used, own, stages)
    if now >= 0:
        _first_scores(factors, rings, now)
    while now >= 0:
        loaded = weights.of_rows(rows, problem)
        weights.keep(state, done)
        weights.begin(state, functions)
        place = *rows, now // 4 * how.tile_n + own[1]
        weights.weigh(s, state, place, now & PLAIN != 0, problem, loaded)
        following = _told(rings[1], told, used + 1, stages)
        warpgroup.wait_group(0)
        _free(rings[2], used - 1, used > 0, stages)
        turn = _finish_turns((turn, whose), left, own, o, done, target, problem)
        left = rows
        hopper.rounded(s, p, dtype)
        while now & LAST == 0:
            used += 1
            now = following
            _multiply(factors, rings, used, now, consumer, stages)
            place = *rows, now // 4 * how.tile_n + own[1]
            risen = weights.weigh_next(s, early, state, place, now & PLAIN != 0, problem, loaded, dtype)
            # A branch is in this, or the assembler would wait for p @ v before the exponentials
            following = _told(rings[1], told, used + 1, stages)
            warpgroup.wait_group(0)
            _free(rings[2], used - 1, Boolean(True), stages)
            if cutlass.const_expr(functions.early):
                hopper.moved(early, p, nothing)
            else:
                hopper.rounded(s, p, dtype)
            if cutlass.const_expr(functions.raises and not functions.steady):
                if risen:
                    weights.rescale(o, state)
        now = following
        used += 1
        begun += 1
        whose, rows = _rows_told(told, used, own, stages)
        if now >= 0:
            cute.arch.mbarrier_wait(rings[0][0], begun & 1)
            _multiply(factors, rings, used, now, consumer, stages)
    if used > 0:
        _last_values(factors, used - 1, rings[2], stages)
    _finish_turns((turn, whose), left, own, o, state, target, problem)


@cute.jit
def _finish_turns(
    turns: tuple, rows: tuple, own: tuple, o: cute.Tensor, state: tuple, target: cute.Tensor, problem: Problem
) -> Int32:
    """Store the rows of turns from the first, whose rows these are, up to the last. Nothing passes the rows of the others."""
    turn, last = turns
    while turn < last:
        _finish(o, state, rows, own[1], target, problem)
        _reset(o, state, problem.functions)
        turn += 1
        if turn < last:
            rows = _rows(turn, own, problem)
    return turn


@dataclass(frozen=True)
class Factors:
    """The factors of a consumer: tiles of q, k and v in shared memory, and weights in registers."""

    of_scores: cute.TiledMma
    of_values: cute.TiledMma
    q: cute.Tensor  # (MMA, 1, D / 16, 1)
    k: cute.Tensor  # (MMA, 1, D / 16, stages)
    p: cute.Tensor
    v: cute.Tensor  # (MMA, 1, tile_n / 16, stages)
    acc_s: cute.Tensor
    acc_o: cute.Tensor

    def scores(self, at: Int32) -> None:
        """Start s = q @ k^T with the k of a stage."""
        hopper.multiply(self.of_scores, self.acc_s, self.q[None, None, None, 0], self.k[None, None, None, at], False)

    def values(self, at: Int32) -> None:
        """Start o += p @ v with the v of a stage."""
        hopper.multiply(self.of_values, self.acc_o, self.p, self.v[None, None, None, at], True)


def _factors(shared: tuple, mmas: tuple, consumer: Int32, how: AttentionLaunch) -> tuple:
    """A consumer's registers of s, o and p, and its factors."""
    (sQ, sK, sV), (of_scores, of_values) = shared, mmas
    own, own_v = of_scores.get_slice(consumer * WARPGROUP), of_values.get_slice(consumer * WARPGROUP)
    q = of_scores.make_fragment_A(own.partition_A(sQ))
    k = of_scores.make_fragment_B(own.partition_B(sK))
    v = of_values.make_fragment_B(own_v.partition_B(sV))
    s, acc_s = hopper.accumulators(how.tile_n)
    o, acc_o = hopper.accumulators(how.e)
    p, a_p = hopper.factor(how.tile_n, sV.element_type)
    return s, o, p, Factors(of_scores, of_values, q, k, a_p, v, acc_s, acc_o)


def _reset(o: cute.Tensor, state: tuple, functions: Functions) -> None:
    """Begin rows: nothing is added up."""
    o.fill(0.0)
    weights.begin(state, functions)


def _rows(turn: Int32, own: tuple, problem: Problem) -> tuple[tuple, Int32]:
    """The batch and the first row of a thread in the block's tile of a turn."""
    tile, places = _place(hopper.next_tile(turn, problem.work[3]), problem)
    return places, tile * HELD + own[0]


def _free(ring: tuple, used: Uint32, there: Boolean, stages: int) -> None:
    """Say that a warp has read the stage after so many others, if it is there."""
    at, _ = place_in_ring(used, stages)
    tensorcore.arrive(ring[1].toint() + at * 8, (cute.arch.lane_idx() == 0) & there, False)


def _first_scores(factors: Factors, rings: tuple, now: Int32) -> None:
    """Compute q @ k^T of the first tile."""
    cute.arch.mbarrier_wait(rings[0][0], 0)
    warpgroup.fence()
    factors.scores(Int32(0))
    warpgroup.wait_group(0)
    _free_keys(rings, Uint32(0), now, 1)


def _free_keys(rings: tuple, used: Uint32, now: Int32, stages: int) -> None:
    """Say that a warp has read a tile of k; and the tile of q, if no further tile of k passes it."""
    _free(rings[1], used, Boolean(True), stages)
    _free(rings[0], Uint32(0), now & LAST != 0, 1)


def _multiply(factors: Factors, rings: tuple, used: Uint32, now: Int32, consumer: Int32, stages: int) -> None:
    """Start q @ k^T of a tile, and p @ v of the one before, when it is the consumer's turn. Waits for the first."""
    at, _ = place_in_ring(used, stages)
    before, phase = place_in_ring(used - 1, stages)
    cute.arch.barrier(barrier_id=TURN + consumer, number_of_threads=2 * WARPGROUP)
    warpgroup.fence()
    factors.scores(at)
    cute.arch.mbarrier_wait(rings[2][0] + before, phase)
    factors.values(before)
    cute.arch.barrier_arrive(barrier_id=TURN + 1 - consumer, number_of_threads=2 * WARPGROUP)
    warpgroup.wait_group(1)
    _free_keys(rings, used, now, stages)


def _last_values(factors: Factors, used: Uint32, ring: tuple, stages: int) -> None:
    """Add p @ v of the last tile."""
    at, phase = place_in_ring(used, stages)
    cute.arch.mbarrier_wait(ring[0] + at, phase)
    warpgroup.fence()
    factors.values(at)
    warpgroup.wait_group(0)


@cute.jit
def _finish(
    o: cute.Tensor, state: tuple, rows: tuple, column: cutlass.Int32, target: cute.Tensor, problem: Problem
) -> None:
    """Store rows of o, and what else the rows give."""
    sizes, functions = problem.sizes, problem.functions
    places, row = rows
    for r in cutlass.range_constexpr(2):
        here = row + 8 * r
        if cutlass.const_expr(functions.row is not None):
            top, total, shrunk = weights.of_row(state, r, functions)
            at = Row(places, cutlass.min(here, sizes[0] - 1), sizes, (here < sizes[0]) & (column == 0))
            one = cute.full((1,), top, Float32), cute.full((1,), total, Float32)
            factor = functions.row(at, *one, problem.tensors)[0] * shrunk
            for j in cutlass.range_constexpr(cute.size(o, mode=[2])):
                for c in cutlass.range_constexpr(2):
                    o[c, r, j] = o[c, r, j] * factor
        hopper.store(o, target, places, here, column, here < sizes[0], r)
