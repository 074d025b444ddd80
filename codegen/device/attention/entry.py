"""The entry of generated attention: runs the main loop that the launch selects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cutlass
import cutlass.cute as cute

from codegen.device import vectors
from codegen.device.attention import sm80, sm90
from codegen.device.attention.arguments import Backward, Forward, Functions, Slope, Sums
from codegen.device.attention.backward import joint, pairs
from codegen.device.attention.backward import sm80 as sm80_backward
from codegen.device.attention.backward import sm90 as sm90_backward
from codegen.shared import AttentionLaunch


def arranged(tensor: cute.Tensor, sizes: tuple[Any, ...], batch: tuple[int | None, ...], row: int) -> cute.Tensor:
    """A compact tensor as (batch, rows, columns). Batch is one mode of several axes, the innermost first: their `sizes`, and
    which of the tensor's modes each is, None for an axis that it lacks. Columns are its last mode."""
    last = cute.rank(tensor) - 1
    strides = tuple(0 if mode is None else vectors.compact_stride(tensor, mode) for mode in batch)
    shape = (sizes, tensor.shape[row], tensor.shape[last])
    return cute.make_tensor(
        tensor.iterator, cute.make_layout(shape, stride=(strides, vectors.compact_stride(tensor, row), 1))
    )


@cute.jit
def launch(
    stream: Any,
    q: cute.Tensor,
    k: cute.Tensor,
    v: cute.Tensor,
    o: cute.Tensor,
    tensors: tuple,
    score: cutlass.Constexpr[Callable[..., Any]],
    tiles: cutlass.Constexpr[Callable[..., Any] | None],
    row: cutlass.Constexpr[Callable[..., Any] | None],
    parts: cute.Tensor,
    table: cute.Tensor,
    pages: tuple = (),
    weight: cutlass.Constexpr[Callable[..., Any] | None] = None,
    scale: cutlass.Constexpr[float] = 1.0,
    bend: cutlass.Constexpr[float] = 0.0,
    exponential: cutlass.Constexpr[bool] = True,
    shifts: cutlass.Constexpr[bool] = False,
    *,
    how: cutlass.Constexpr[AttentionLaunch],
) -> None:
    """o = weights(q @ k) @ v, for each element of the batch.

    q: (L, Q, D), k: (L, S, D), v: (L, S, E), o: (L, Q, E), as `arranged` makes them. q, k and v are of one 16-bit type; with
        `how.converts`, that is it, and they may have elements of a byte. o is of a 16-bit type or float32.
    tensors: the chain's other arrays and parameters, and outputs of one value a row.
    score: (at: Scores, s, tensors, masked) -> the scores; without `masked`, where the mask holds for every one.
    tiles: (at: Tile, tensors) -> whether the mask holds for some, and for every, of a tile's rows and columns; None without a
        mask.
    row: (at: Row, top, total, tensors) -> the factor of a row of o, from its largest score and sum(exp(score - top)); it
        stores the row's other outputs. None where the scores are the weights, and rows have no factor.
    parts: float32 (splits, rows, E + 2), room for what the blocks of a row have summed where there are several.
    table: int32, room for bounds of the mask's arrays, `how.listed`.
    pages: integers (L, N), the pages of a sequence's rows of k and of v, as `by_row` makes them; k and v are as `in_pages` makes
        them, and S is N x `how.page`. () where k and v have their rows in order.
    weight: (at: Scores, e, tensors) -> the weights of exponentials e, 0 where e is 0; None where they are the same.
    scale: the scores are so many times what `score` gives, which is all zeros where this is zero.
    bend: where it is positive, `score` gives tanh(bend * s) where the mask holds.
    exponential: whether the weights are exponentials; else they are the scores, and `row` takes their sum alone.
    shifts: whether `score` gives scores without the mask as `shifted` ones.
    """
    functions = Functions.scaled(score, tiles, row, scale, weight, bend, exponential, shifts)
    given = Forward(q, k, v, o, tensors, functions, how, table, pages)
    if cute.size(q, mode=[0]) * q.shape[1] > 0:
        if cutlass.const_expr(how.processors > 0):
            sm90.launch(stream, given)
        else:
            sm80.launch(stream, given, parts)


@cute.jit
def launch_backward(
    stream: Any,
    q: cute.Tensor,
    k: cute.Tensor,
    v: cute.Tensor,
    do: cute.Tensor,
    dq: cute.Tensor,
    dk: cute.Tensor,
    dv: cute.Tensor,
    sums: tuple,
    statistics: tuple,
    tensors: tuple,
    slope: cutlass.Constexpr[Callable[..., Any]],
    tiles: cutlass.Constexpr[Callable[..., Any] | None],
    parts: cute.Tensor,
    table: cute.Tensor,
    turns: cute.Tensor,
    *,
    bend: cutlass.Constexpr[float] = 0.0,
    how: cutlass.Constexpr[AttentionLaunch],
) -> None:
    """Compute the gradients of q, k and v from do, that of o, for each element of the batch.

    q, do, dq: (L, Q, D or E), k, v, dk, dv: (L, S, D or E), as `arranged` makes them, of one 16-bit type. Axes of the batch that
        k lacks, v, dk and dv lack too: dk and dv are sums over them.
    sums: of the other values that `slope` gives, in this order: float32 (L, Q), along each row of scores; float32 (L, S), as k, along
        each column, and over the axes of the batch that k lacks; (L, Q, S), over the axes of the batch that they lack.
    statistics: float32 (L, Q): what `slope` needs of rows, such as their logsumexp and their sums of o * do.
    tensors: the chain's other arrays and parameters.
    slope: (at: Scores, s, dp, row, tensors, masked) -> the weights, the gradients of the products s, and the terms of `sums`, from
        these products, the weights' gradients dp and the row's statistics, (1,) each. Scores may be of one row, or of one column.
    tiles: as in `launch`.
    table: as in `launch`.
    parts, turns: float32 (tiles, elements) and int32 (tiles + 1,), room for one kernel of all gradients, where `how.joint`: for each
        tile of `how.tile_m` rows of q, of each element of the batch. Then there are no sums along rows.
    bend: as in `launch`. `slope` is also called for scores that have tanh(bend * s) where |bend * s| is small: see `Scores.near`.
    """
    given = Backward(
        q, k, v, do, dq, dk, dv, Sums(*sums), statistics, tensors, Slope(slope, tiles, bend), how, parts, table, turns
    )
    if (cute.size(q, mode=[0]) * q.shape[1] > 0) & (k.shape[1] > 0):
        if cutlass.const_expr(how.processors > 0):
            if cutlass.const_expr(how.joint):
                joint.launch(stream, given)
            else:
                sm90_backward.launch(stream, given)
            pairs.launch(stream, given)
        else:
            sm80_backward.launch(stream, given)


def by_row(tensor: cute.Tensor, sizes: tuple[Any, ...], batch: tuple[int | None, ...], row: int) -> cute.Tensor:
    """A compact tensor of one value a row as (batch, rows): as in `arranged`."""
    strides = tuple(0 if mode is None else vectors.compact_stride(tensor, mode) for mode in batch)
    shape = (sizes, tensor.shape[row])
    return cute.make_tensor(
        tensor.iterator, cute.make_layout(shape, stride=(strides, vectors.compact_stride(tensor, row)))
    )


def of_pairs(
    tensor: cute.Tensor, sizes: tuple[Any, ...], batch: tuple[int | None, ...], row: int, column: int
) -> cute.Tensor:
    """A compact tensor of one value a score as (batch, rows, columns): as in `arranged`."""
    strides = tuple(0 if mode is None else vectors.compact_stride(tensor, mode) for mode in batch)
    shape = (sizes, tensor.shape[row], tensor.shape[column])
    own = vectors.compact_stride(tensor, row), vectors.compact_stride(tensor, column)
    return cute.make_tensor(tensor.iterator, cute.make_layout(shape, stride=(strides, *own)))
