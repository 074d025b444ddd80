"""The gradients of k and v on Hopper, as `sm90` and `joint` compute them. A tile of k and v stays, and tiles of q and do pass, of
all heads that share k and v. A consumer computes for its 64 rows of k

    s = k @ q^T, dp = v @ do^T      both factors in shared memory
    p, ds = slope(s, dp)            the weights, and the gradient of the products
    dv += p @ do, dk += ds @ q      p and ds in registers

Where registers do not hold both sums, both consumers have the same 64 rows (`how.separate`): the first one computes dk, the other one
p and dv.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Uint32
from cutlass.cute.nvgpu import cpasync, warpgroup
from cutlass.memory import SmemAllocator

from codegen.device.attention import batches as batches_of
from codegen.device.attention import hopper
from codegen.device.attention.arguments import Problem
from codegen.device.attention.batches import store_sum
from codegen.device.attention.scores import Scores
from codegen.device.gemm import tensorcore
from codegen.device.gemm.warpgroups import WARPGROUP, loader, place_in_ring
from codegen.device.math.elementary import SMALL
from codegen.shared import HELD, WARP, AttentionLaunch

# Arrivals until a stage of q is full: of its bytes, and of each lane that stores its rows' statistics
STATED = 1 + WARP


def prepare(
    held: tuple, moving: tuple, columns: tuple[int, int], rows: int, stages: int, staying: int = HELD
) -> tuple[tuple, tuple]:
    """The loads of two tensors whose tiles stay, of `staying` rows, and of two whose tiles of some rows pass; and the layouts of all
    four in shared memory. Two more layouts are of the passing tiles with rows as the contracted mode."""
    dtype = held[0].element_type
    layouts = [hopper.staying((staying, c), dtype) for c in columns]
    layouts += [hopper.passing((rows, c), dtype, stages) for c in columns]
    boxes = [(staying, c) for c in columns] + [(rows, c) for c in columns]
    loads = [loader(t, (1, 2, 0), x, box) for t, x, box in zip((*held, *moving), layouts, boxes, strict=True)]
    return tuple(loads), (*layouts, *(hopper.across((rows, c), dtype, stages) for c in columns))


def boxes_of(rows: int, how: AttentionLaunch, staying: int = HELD) -> tuple[tuple[int, int], ...]:
    """The boxes of two tensors whose tiles stay, and of two whose tiles of some rows pass."""
    return (staying, how.d), (staying, how.e), (rows, how.d), (rows, how.e)


def allocate(allocator: SmemAllocator, layouts: tuple, dtype: Any) -> tuple:
    """The tiles in shared memory, and the passing ones with their rows as the contracted mode."""
    made = tuple(allocator.allocate_tensor(dtype, x.outer, 1024, swizzle=x.inner) for x in layouts[:4])
    return *made, *(cute.make_tensor(t.iterator, x.outer) for t, x in zip(made[2:], layouts[4:], strict=True))


# The producer


def partitions(loads: tuple, shared: tuple, rows: int, how: AttentionLaunch, staying: int = HELD) -> tuple:
    """The boxes, in shared and in global memory, of the tensors whose tiles stay and of the tensors whose tiles of some
    rows pass."""
    for load in loads:
        cpasync.prefetch_descriptor(load[0])
    found = zip(loads, boxes_of(rows, how, staying), shared, strict=True)
    return tuple(hopper.partition(load[0], load[1], box, s) for load, box, s in found)


@cute.jit
def produce_tile(
    loads: tuple, to: tuple, shared: tuple, rings: tuple, at: tuple, back: cutlass.Constexpr[bool], problem: Problem
) -> Uint32:
    """Load a tile of k and v, and the tiles of q and do that pass it, with the statistics of q's rows. `at` is the tile, its batch,
    and how many tiles of k and how many of q this block has loaded before. Gives the number of tiles of q after it."""
    how, sizes, batches, lacking = problem.how, problem.sizes, problem.batches, problem.lacking
    size = tuple(hopper.bytes_of(box, shared[0].element_type) for box in boxes_of(how.tile_m, how, how.held))
    lane, numbers, statistics = cute.arch.lane_idx(), shared[4], problem.statistics
    steps, last = cute.ceil_div(how.tile_m, WARP), cute.ceil_div(sizes[0], how.tile_m) - 1
    held_ring, q_ring, do_ring = rings
    tile, own, turn, filled = at
    held = (loads[0][0], to[0], (tile, 0, own)), (loads[1][0], to[1], (tile, 0, own))
    hopper.fill(held, held_ring, Uint32(turn), 1, size[0] + size[1])
    for which in cutlass.range(batches_of.count(batches, lacking, True), unroll=1):
        places = batches_of.sharer(which, own, batches, lacking)
        passed = hopper.Passing(problem, tile, places, how.tile_m, True, back, how.held)
        walk = hopper.step(hopper.begin(), passed)
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
            walk = hopper.step(walk, passed)
    return filled


# A consumer


@dataclass(frozen=True)
class Consumer:
    """A consumer's factors and accumulators: 64 rows of dk and dv, or of one of them, where the other one's are None. Two tensors are
    of the same registers: as this thread indexes them, and as WGMMA takes them."""

    mmas: tuple  # the first products; those of dk and of dv
    k: cute.Tensor
    v: cute.Tensor
    q: cute.Tensor
    do: cute.Tensor
    across_q: cute.Tensor
    across_do: cute.Tensor
    s: tuple
    dp: tuple | None
    dk: tuple | None
    dv: tuple | None
    p: tuple | None
    ds: tuple | None
    added: cute.Tensor  # the sums along columns

    @staticmethod
    def of(
        shared: tuple, mmas: tuple, number: Int32 | int, terms: int, how: AttentionLaunch, keys: bool = True, values: bool = True
    ) -> Consumer:  # fmt: skip
        """A consumer by the number of its rows, with so many sums along columns. It computes dk, dv or both."""
        (sK, sV, sQ, sDo, tQ, tDo), (first, of_k, of_v), wide = shared, mmas, how.tile_m
        own, own_k, own_v = (mma.get_slice(number * WARPGROUP) for mma in mmas)
        return Consumer(
            mmas=mmas,
            k=first.make_fragment_A(own.partition_A(sK)),
            v=first.make_fragment_A(own.partition_A(sV)),
            q=first.make_fragment_B(own.partition_B(sQ)),
            do=first.make_fragment_B(own.partition_B(sDo)),
            across_q=of_k.make_fragment_B(own_k.partition_B(tQ)),
            across_do=of_v.make_fragment_B(own_v.partition_B(tDo)),
            s=hopper.accumulators(wide),
            dp=hopper.accumulators(wide) if keys else None,
            dk=hopper.accumulators(how.d) if keys else None,
            dv=hopper.accumulators(how.e) if values else None,
            p=hopper.factor(wide, sK.element_type) if values else None,
            ds=hopper.factor(wide, sK.element_type) if keys else None,
            added=cute.make_rmem_tensor((2, max(1, terms)), Float32),
        )

    def clear(self) -> None:
        """Before the first tile of q."""
        for sums in (self.dk, self.dv):
            if sums is not None:
                sums[0].fill(0.0)
        self.added.fill(0.0)

    def multiply(
        self, numbers: cute.Tensor, rings: tuple, used: Uint32, place: tuple, plain: Boolean, problem: Problem
    ) -> Int32:
        """Compute the weights of the tile of q after `used` others, and the gradients of the products; start the products of dv. Gives
        the tile's stage."""
        (_, q_ring, do_ring), (first, _, of_v), dtype = rings, self.mmas, self.mmas[0].op.a_dtype
        stage, phase = place_in_ring(used, problem.how.stages)
        cute.arch.mbarrier_wait(q_ring[0] + stage, phase)
        warpgroup.fence()
        hopper.multiply(first, self.s[1], self.k[None, None, None, 0], self.q[None, None, None, stage], False)
        if self.dp is not None:
            cute.arch.mbarrier_wait(do_ring[0] + stage, phase)
            hopper.multiply(first, self.dp[1], self.v[None, None, None, 0], self.do[None, None, None, stage], False)
        warpgroup.wait_group(0)
        near = numbers[None, None, stage].iterator.toint() + hopper.first_element()[1] * 4
        dp = None if self.dp is None else self.dp[0]
        _slopes(self.s[0], dp, self.added, place, near, plain, problem)
        for values, words in ((self.s, self.p), (self.dp, self.ds)):
            if values is not None and words is not None:
                hopper.rounded(values[0], words[0], dtype)
        if self.dp is None:
            cute.arch.mbarrier_wait(do_ring[0] + stage, phase)
        warpgroup.fence()
        if self.dv is not None and self.p is not None:
            hopper.multiply(of_v, self.dv[1], self.p[1], self.across_do[None, None, None, stage], True)
        return stage

    def add_keys(self, stage: Int32) -> None:
        """Start the products of dk."""
        if self.dk is not None and self.ds is not None:
            hopper.multiply(self.mmas[1], self.dk[1], self.ds[1], self.across_q[None, None, None, stage], True)

    def store(self, targets: tuple, places: tuple, row: Int32, column: Int32, count: Int32) -> None:
        """Store a thread's two rows of dk, dv and the sums, of `count` rows."""
        to_dk, to_dv, sums = targets
        for r in range(2):
            there = row + 8 * r < count
            for found, target in ((self.dk, to_dk), (self.dv, to_dv)):
                if found is not None:
                    hopper.store(found[0], target, places, row + 8 * r, column, there, r)
            for n in range(len(sums) if self.dk is not None else 0):
                store_sum(self.added[r, n], sums[n], places, row + 8 * r, count)


def release(rings: tuple, stage: Int32) -> None:
    """Let the producer fill the stage of a tile of q again, whose products have completed."""
    _, q_ring, do_ring = rings
    signals = cute.arch.lane_idx() == 0
    cute.arch.sync_warp()  # all lanes have read the statistics
    tensorcore.arrive(do_ring[1].toint() + stage * 8, signals, False)
    tensorcore.arrive(q_ring[1].toint() + stage * 8, signals, False)


def _largest(s: cute.Tensor) -> Float32:
    """The largest magnitude of a thread's products."""
    found = [Float32(0.0)] * 4
    for i in range(4 * cute.size(s, mode=[2])):
        found[i % 4] = cute.arch.fmax(found[i % 4], cute.math.abs(s[i % 2, i // 2 % 2, i // 4]), nan=True)
    halves = [cute.arch.fmax(found[i], found[i + 1], nan=True) for i in (0, 2)]
    return cute.arch.fmax(halves[0], halves[1], nan=True)


@cute.jit
def _slopes(
    s: cute.Tensor, dp: cute.Tensor | None, added: cute.Tensor, place: tuple, stated: cutlass.Int32, plain: cutlass.Boolean,
    problem: Problem,
) -> None:  # fmt: skip
    """Replace products with weights and their gradients, or without `dp`, with weights alone: a column of accumulators is a row of q, with
    two rows of k. `stated` is the address of a row's statistics. Tangents of products are polynomials where all of a warp's products are
    near 0."""
    near, bend, how = Boolean(False), problem.functions.bend, problem.how
    if cutlass.const_expr(2.0**-20 < bend < 2.0**10):
        near = cute.arch.vote_all_sync(plain & (_largest(s) * bend <= SMALL))
    if near:
        for j in cutlass.range_constexpr(how.tile_m // 8):
            _slope_column(s, dp, added, j, place, stated, problem, False, True)
    elif plain:
        for j in cutlass.range_constexpr(how.tile_m // 8):
            _slope_column(s, dp, added, j, place, stated, problem, False, False)
    else:
        for j in cutlass.range_constexpr(how.tile_m // 8):
            _slope_column(s, dp, added, j, place, stated, problem, True, False)


def _slope_column(
    s: cute.Tensor, dp: cute.Tensor | None, added: cute.Tensor, j: int, place: tuple, stated: Int32, problem: Problem,
    masked: bool, near: bool,
) -> None:  # fmt: skip
    (places, row, column), sizes, how, functions = place, problem.sizes, problem.how, problem.functions
    count = len(problem.statistics)
    held = [tensorcore.load_words(stated + 4 * (8 * j + n * how.tile_m), 2) for n in range(count)]
    for c in range(2):
        here = column + (8 * j + c)
        own, apart = (cutlass.min(here, sizes[0] - 1), ()) if masked else (here, (0, 8))
        at = Scores(places, own, (row, row + 8), sizes, apart=apart, near=near)
        a, b = cute.make_rmem_tensor((2,), Float32), cute.make_rmem_tensor((2,), Float32)
        for r in range(2):
            a[r], b[r] = s[c, r, j], Float32(0.0) if dp is None else dp[c, r, j]
        given = tuple(cute.full((1,), words[c].bitcast(Float32), Float32) for words in held)
        made = functions.slope(at, a.load(), b.load(), given, problem.tensors, masked)
        a.store(made[0])
        b.store(made[1])
        for n, which in enumerate(functions.summed if dp is not None else ()):
            term = cute.make_rmem_tensor((2,), Float32)
            term.store(made[which])
            for r in range(2):
                added[r, n] += cutlass.select_(here < sizes[0], term[r], Float32(0.0)) if masked else term[r]
        for r in range(2):
            there, outside = here < sizes[0], Float32(0.0)
            s[c, r, j] = cutlass.select_(there, a[r], outside) if masked else a[r]
            if dp is None:
                continue
            # Rows of k past the last are factors of q's gradient: what is infinite there is no number times 0
            if how.joint:
                there = there & (row + 8 * r < sizes[1])
            dp[c, r, j] = cutlass.select_(there, b[r], outside) if masked else b[r]
