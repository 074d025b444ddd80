"""Reduces the segments of a tile's rows before the epilogue, which takes the results: the heads of attention, which are normalised.

A warp's accumulators have whole segments: four neighbouring lanes hold all columns of a row. Each lane reduces its own in
registers, then these four lanes reduce their results. The lane that later has a vector of the row takes the result from one of
them, so nothing passes through shared memory again.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from codegen.device import reduce
from codegen.device.gemm.pieces import Form, Pieces
from codegen.shared import STAGED_ROWS

LANES = 4  # that hold a row's accumulators
HIGH = 8  # rows from one of a lane's two rows in a slab to the other


def reduced(acc: cute.Tensor, walk: Pieces, form: Form) -> list[cute.Tensor]:
    """The reductions of each segment of a lane's rows, float32 registers (2, slabs, segments) for each of `form.segments.ops`.

    acc: (2, 2, J, I), as `epilogue.finish` takes them.
    """
    if form.segments is None:
        return []
    blocks = form.segment * form.accumulators // 8
    count = cute.size(acc, mode=[2]) // blocks
    ops = tuple("sum" if op == "mean" else op for op in form.segments.ops)
    found = [cute.make_rmem_tensor((2, walk.slabs, count), Float32) for _ in ops]
    for slab in range(walk.slabs):
        for half in range(2):
            for segment in range(count):
                own = _accumulators(acc, half, slab, segment * blocks, form)
                values = form.segments.run(*(held.load() for held in own))
                totals = [[_over_vector(value, op)] for value, op in zip(values, ops, strict=True)]
                for k, total in enumerate(reduce.all_over_lanes(totals, ops, LANES, ())):
                    mean = form.segments.ops[k] == "mean"
                    found[k][half, slab, segment] = total[0] * (1.0 / form.segment) if mean else total[0]
    return found


def _accumulators(acc: cute.Tensor, half: int, slab: int, first: int, form: Form) -> list[cute.Tensor]:
    """What a lane holds of a row's segment, which begins at a block of 8 columns: a vector for each accumulator."""
    blocks, parts = form.segment * form.accumulators // 8, form.accumulators
    places = [(j, e) for j in range(blocks) for e in range(2)]
    if form.paired == "interleaved":
        own = [[(j, e) for j, e in places if e == part] for part in range(parts)]
    else:
        own = [places[part * len(places) // parts : (part + 1) * len(places) // parts] for part in range(parts)]
    found = []
    for some in own:
        held = cute.make_rmem_tensor((len(some),), acc.element_type)
        for at, (j, e) in enumerate(some):
            held[at] = acc[e, half, first + j, slab]
        found.append(held)
    return found


def _over_vector(value, op: str) -> cute.TensorSSA:
    running = cute.make_rmem_tensor((cute.size(value.shape),), Float32)
    running.store(value.to(Float32))
    return reduce.over_vector(running, op)


def of_vector(
    found: list[cute.Tensor], i: int, step: Int32 | int, lane: Int32, walk: Pieces, form: Form
) -> tuple[cute.Tensor, ...]:
    """The reductions for a lane's vector in a step of the i-th piece, each in all elements of (vec,) registers. All lanes take part."""
    if form.segments is None:
        return ()
    turn, slab, part = walk.order[i]
    segment = turn * walk.columns // form.segment
    row = step * walk.high + lane // walk.per_row  # in the piece
    made = []
    for held in found:
        first, second = (
            cute.arch.shuffle_sync(held[half, slab, segment], row % HIGH * LANES)
            for half in ((part, part) if walk.rows < STAGED_ROWS else (0, 1))
        )
        value = first if walk.rows < STAGED_ROWS else cutlass.select_(row < HIGH, first, second)
        filled = cute.make_rmem_tensor((walk.vec,), Float32)
        filled.fill(value)
        made.append(filled)
    return tuple(made)
