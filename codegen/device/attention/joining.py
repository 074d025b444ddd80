"""The sum of a row's parts, which several blocks have written: one block for each range of tiles of k and v."""

from __future__ import annotations

import math

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from codegen.device import vectors
from codegen.device.attention import batches as batches_of
from codegen.device.attention.arguments import Functions
from codegen.device.attention.scores import Row
from codegen.shared import WARP, AttentionLaunch

JOINED = 8  # rows of a block that joins parts, one for each warp


@cute.kernel
def join(
    o: cute.Tensor,  # (L, Q, E)
    tensors: tuple,
    functions: cutlass.Constexpr[Functions],
    parts: cute.Tensor,
    batches: tuple,
    lacking: cutlass.Constexpr[tuple[bool, ...]],
    sizes: tuple,
    how: cutlass.Constexpr[AttentionLaunch],
) -> None:
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
    here, position = batches_of.Block(own // R, places, Int32(0), R, batches, lacking, sizes, how).at(own % R)
    top, total, scales = _statistics(parts, own, lane, functions, how)
    pieces = -(-how.e // WARP)
    found = cute.make_rmem_tensor((pieces,), Float32)
    found.fill(0)
    for split in cutlass.range_constexpr(how.splits):
        scale = Float32(1)
        if cutlass.const_expr(functions.raises):
            scale = cute.arch.shuffle_sync(scales[split // WARP], split % WARP)
        if scale >= 0:
            for i in cutlass.range_constexpr(pieces):
                column = lane + i * WARP
                if column < how.e:
                    found[i] = found[i] + parts[split, own, column] * scale
    factor = Float32(1)
    if cutlass.const_expr(functions.row is not None):
        at = Row(here, position, sizes, there & (lane == 0), page=how.page)
        factor = functions.row(at, cute.full((1,), top, Float32), cute.full((1,), total, Float32), tensors)[0]
    for i in cutlass.range_constexpr(pieces):
        column = lane + i * WARP
        if there & (column < how.e):
            o[here, position, column] = (found[i] * factor).to(o.element_type)


def _statistics(parts: cute.Tensor, row: Int32, lane: Int32, functions: Functions, how: AttentionLaunch) -> tuple:
    """A row's largest score, its sum of weights, and the scales of its parts; these and the score only of exponentials. Each lane of a warp has every 32nd scale. A
    scale is negative where nothing has been summed, as in blocks without a tile."""
    top, total = Float32(-math.inf), Float32(0)
    if functions.row is None:
        return top, total, []
    own = [lane + first for first in range(0, how.splits, WARP)]
    held, scales = [], [Float32(1) for _ in own]
    if functions.exponential:
        held = [parts[cutlass.min(split, how.splits - 1), row, how.e] for split in own]
        for other in held:
            top = cute.arch.fmax(top, other, nan=True)
        for i in range(5):
            top = cute.arch.fmax(top, cute.arch.shuffle_sync_bfly(top, 1 << i), nan=True)
        shift = cutlass.select_((top == -math.inf) | (top == math.inf), Float32(0), top)
        scales = [cute.math.exp2((other - shift) * Float32(functions.base), fastmath=True) for other in held]
    for split, scale in zip(own, scales, strict=True):
        part = parts[cutlass.min(split, how.splits - 1), row, how.e + 1] * scale
        total = total + cutlass.select_(split < how.splits, part, Float32(0))
    for i in range(5):
        total = total + cute.arch.shuffle_sync_bfly(total, 1 << i)
    pairs = zip(held, scales, strict=functions.exponential)
    return top, total, [cutlass.select_(other == -math.inf, Float32(-1), x) for other, x in pairs]
