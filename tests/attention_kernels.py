"""Launchers of attention on Hopper with functions written by hand, as the generator writes them.

They are in their own file because CuTe DSL reads a kernel's source.
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from codegen import device
from codegen.device.attention import arranged, by_row, hopper, launch_backward, sm90
from codegen.device.attention.arguments import Forward, Functions
from codegen.shared import AttentionLaunch

LOG2E = 1.4426950408889634


def within(at, values, width):
    """The scores of a window of so many positions up to a row's own; -inf elsewhere."""
    here, row = at.positions().load(), at.fill(at.row).load()
    return device.where((here <= row) & (here > row - width), values, -float("inf"))


def windowed(scale, width):
    return lambda at, s, tensors, masked: within(at, s * scale, width) if masked else s * scale


def window_tiles(width):
    def tiles(at, tensors):
        (first, last), (left, right) = at.rows, at.columns
        return (left <= last) & (right > first - width), (right <= first) & (left > last - width)

    return tiles


def normalised(at, top, total, tensors):
    at.store(top + cute.math.log(total), tensors[0], (at.batch[2], at.batch[1], at.batch[0], at.row))
    return 1.0 / total


def window_slope(scale, width):
    """The weights, and the gradients of products, from those of weights."""

    def slope(at, s, dp, row, tensors, masked):
        base, delta = (cute.full((at.vec,), x[0], Float32) for x in row)
        z = within(at, s * scale, width) if masked else s * scale
        p = cute.math.exp2((z - base) * LOG2E, fastmath=True)
        return (
            p,
            p * (dp - delta) * scale,
            p * (dp - delta) * z if not masked else device.where(p > 0, p * (dp - delta) * z, 0.0),
        )

    return slope


def square(at, s, tensors, masked):
    return s * s


def grouped(tensor, heads, shared=False):
    """(B, rows, heads, G, columns), or without G, as (batch, rows, columns)."""
    modes = (None, 2, 0) if shared else (3, 2, 0)
    return arranged(tensor, heads, modes, 1)


@cute.jit
def window(
    stream: cuda.CUstream, mQ: cute.Tensor, mK: cute.Tensor, mV: cute.Tensor, mO: cute.Tensor, mL: cute.Tensor,
    scale: cutlass.Constexpr[float], width: cutlass.Constexpr[int], how: cutlass.Constexpr[AttentionLaunch],
):  # fmt: skip
    sizes = (mQ.shape[3], mQ.shape[2], mQ.shape[0])
    functions = Functions.scaled(windowed(1.0, width), window_tiles(width), normalised, scale)
    q, o = grouped(mQ, sizes), grouped(mO, sizes)
    sm90.launch(stream, Forward(q, grouped(mK, sizes, True), grouped(mV, sizes, True), o, (mL,), functions, how))


@cute.jit
def squares(
    stream: cuda.CUstream, mQ: cute.Tensor, mK: cute.Tensor, mV: cute.Tensor, mO: cute.Tensor,
    how: cutlass.Constexpr[AttentionLaunch],
):  # fmt: skip
    sizes = (mQ.shape[3], mQ.shape[2], mQ.shape[0])
    functions = Functions.scaled(square, None, None, 1.0)
    q, o = grouped(mQ, sizes), grouped(mO, sizes)
    sm90.launch(stream, Forward(q, grouped(mK, sizes, True), grouped(mV, sizes, True), o, (), functions, how))


@cute.jit
def window_backward(
    stream: cuda.CUstream, mQ: cute.Tensor, mK: cute.Tensor, mV: cute.Tensor, mDo: cute.Tensor, mBase: cute.Tensor,
    mDelta: cute.Tensor, mDq: cute.Tensor, mDk: cute.Tensor, mDv: cute.Tensor, mSum: cute.Tensor, mParts: cute.Tensor,
    mTurns: cute.Tensor,
    scale: cutlass.Constexpr[float], width: cutlass.Constexpr[int], how: cutlass.Constexpr[AttentionLaunch],
):  # fmt: skip
    sizes = (mQ.shape[3], mQ.shape[2], mQ.shape[0])
    q, do, dq = (grouped(m, sizes) for m in (mQ, mDo, mDq))
    k, v, dk, dv = (grouped(m, sizes, True) for m in (mK, mV, mDk, mDv))
    base, delta = (by_row(m, sizes, (2, 1, 0), 3) for m in (mBase, mDelta))
    added = by_row(mSum, sizes, (None, 1, 0), 2) if cutlass.const_expr(how.joint) else by_row(mSum, sizes, (2, 1, 0), 3)
    sums = ((), (added,), ()) if cutlass.const_expr(how.joint) else ((added,), (), ())
    launch_backward(
        stream, q, k, v, do, dq, dk, dv, sums, (base, delta), (), window_slope(scale, width), window_tiles(width), mParts,
        None, mTurns, how=how,
    )  # fmt: skip


@cute.kernel
def _taken(mBlocks: cute.Tensor, mTurns: cute.Tensor, work: tuple):
    turn = Int32(0)
    index = hopper.next_tile(turn, work[3])
    while index < work[0]:
        tile, element = hopper.place(index, work)
        if cute.arch.thread_idx()[0] == 0:
            mBlocks[element, tile] = Int32(cute.arch.block_idx()[0])
            mTurns[element, tile] = turn
        turn += 1
        index = hopper.next_tile(turn, work[3])


@cute.jit
def taken(
    stream: cuda.CUstream, mBlocks: cute.Tensor, mTurns: cute.Tensor, how: cutlass.Constexpr[AttentionLaunch]
):  # fmt: skip
    """Which block takes each tile of an element of the batch, and in which of its turns."""
    work, grid = hopper.work_of(mBlocks.shape[1], mBlocks.shape[0], how)
    _taken(mBlocks, mTurns, work).launch(grid=(grid, 1, 1), block=(32, 1, 1), stream=stream)
