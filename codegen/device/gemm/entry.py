"""The entry of generated contractions: runs the main loop that the plan selects, on operands in JAX's layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from codegen.device import vectors
from codegen.device.gemm import pieces as gemm_pieces
from codegen.device.gemm import sm80 as gemm_sm80
from codegen.device.gemm import sm90 as gemm_sm90
from codegen.device.gemm.pieces import Follows, Segments
from codegen.shared import AmpereTiles, Contraction, Loading, Tiles


@cute.jit
def launch(
    stream: Any,
    mA: cute.Tensor,
    mBs: tuple[cute.Tensor, ...],
    tensors: tuple,
    epilogue: cutlass.Constexpr[Callable[..., tuple]],
    *,
    batched: cutlass.Constexpr[bool],
    b_is_nk: cutlass.Constexpr[bool],
    paired: cutlass.Constexpr[str],
    reads: cutlass.Constexpr[tuple],
    how: cutlass.Constexpr[Contraction],
    row_ops: cutlass.Constexpr[tuple[str, ...]] = (),
    column_ops: cutlass.Constexpr[tuple[str, ...]] = (),
    rescaled: cutlass.Constexpr[tuple[Follows, ...]] = (),
    row_parts: tuple[cute.Tensor, ...] = (),
    column_parts: tuple[cute.Tensor, ...] = (),
    whole: tuple = (),
    scales: tuple[cute.Tensor, ...] = (),
    loading: cutlass.Constexpr[Loading | None] = None,
    segments: cutlass.Constexpr[Segments | None] = None,
) -> None:
    """acc = a @ b, and the epilogue over its tiles.

    mA: (M, K), with `batched` (L, M, K). mBs: (K, N), or (N, K) where `b_is_nk`, with `batched` a leading L: one of them, or
    with paired = "two" two; its columns are (2, N) where they are "halves", (N, 2) where "interleaved", and (N // how.segment, 2,
    how.segment) where "segments".
    how: the main loop, by its tiles, and the epilogue's vectors and segments.
    segments: what is reduced of each segment of a row before the epilogue, which takes the results after the accumulators.
    scales: (B, N), one for each of mBs; loading: how these are read where they are narrower than mA.
    row_parts: (L, M, parts), one for each of `row_ops`, column_parts: (L, parts, N), one for each of `column_ops`, float32
    or int32: the partial results of each tile's rows and columns of the epilogue's results.
    whole: of the tensors that the epilogue prefetches, in its order, those with every element of the output or of a batch
    of it: the number of adjacent elements for each output element, and whether each batch has its own.
    """
    if cutlass.const_expr(not batched):
        mA, mBs = _one(mA), tuple(_one(mB) for mB in mBs)
    columns = 1 if cutlass.const_expr(b_is_nk) else 2
    found: list[Any] = []
    for mB in mBs:
        if cutlass.const_expr(paired == "halves"):
            found += [part(mB, columns, k) for k in range(2)]
        elif cutlass.const_expr(paired == "interleaved"):
            found.append(_joined(mB, columns))
        else:
            found.append(mB)
    bs = tuple(found)
    own = gemm_pieces.product(
        bs, tensors, epilogue, paired="halves" if paired == "two" else paired, vec=how.vec, ragged=how.ragged, reads=reads,
        row_ops=row_ops, column_ops=column_ops, rescaled=rescaled, row_parts=row_parts, column_parts=column_parts, whole=whole,
        segment=how.segment, segments=segments,
    )  # fmt: skip
    if cutlass.const_expr(isinstance(stream, Together)):
        stream.add(mA, own, b_is_nk, how.tiles)
    else:
        N = own.columns(b_is_nk)
        if Int64(mA.shape[0]) * mA.shape[1] * N > 0:
            _launch(stream, mA, (own,), b_is_nk, how.tiles, scales, loading)


class Together:
    """In the place of a stream: products of one a, of which `launch` only notes each, for one launch of all."""

    def __init__(self) -> None:
        self.products: list[gemm_pieces.Product] = []
        self.how: Any = None

    def add(self, mA: cute.Tensor, product: gemm_pieces.Product, b_is_nk: bool, tiles: Tiles | AmpereTiles) -> None:
        """Note a product. All have the same a, order of b, and tiles."""
        assert self.how is None or self.how[1:] == (b_is_nk, tiles), "products in one launch have the same tiles"
        self.how = self.how or (mA, b_is_nk, tiles)
        self.products.append(product)

    def launch(self, stream: Any) -> None:
        """Launch them."""
        mA, b_is_nk, tiles = self.how
        _launch(stream, mA, tuple(self.products), b_is_nk, tiles)


def _launch(
    stream: Any, mA: cute.Tensor, products: tuple[gemm_pieces.Product, ...], b_is_nk: bool, tiles: Tiles | AmpereTiles,
    scales: tuple[cute.Tensor, ...] = (), loading: Loading | None = None,
) -> None:  # fmt: skip
    """Launch the main loop of these tiles."""
    if isinstance(tiles, Tiles):
        gemm_sm90.launch(stream, mA, products, b_is_nk=b_is_nk, tiles=tiles)
    else:
        gemm_sm80.launch(stream, mA, products, b_is_nk=b_is_nk, tiles=tiles, scales=scales, loading=loading)


def part(tensor: cute.Tensor | None, mode: int, which: int) -> cute.Tensor | None:
    """One of the parts along a mode; None for None."""
    if tensor is None:
        return None
    others = [i for i in range(cute.rank(tensor)) if i != mode]
    layout = cute.make_layout(
        tuple(tensor.shape[i] for i in others), stride=tuple(vectors.compact_stride(tensor, i) for i in others)
    )
    return cute.make_tensor(tensor.iterator + which * vectors.compact_stride(tensor, mode), layout)


def _joined(mB: cute.Tensor, mode: int) -> cute.Tensor:
    """Merges a mode with the next one, which is contiguous within it."""
    shape = [mB.shape[i] for i in range(cute.rank(mB))]
    stride = [vectors.compact_stride(mB, i) for i in range(cute.rank(mB))]
    shape[mode : mode + 2] = [shape[mode] * shape[mode + 1]]
    del stride[mode]
    return cute.make_tensor(mB.iterator, cute.make_layout(tuple(shape), stride=tuple(stride)))


def _one(mX: cute.Tensor) -> cute.Tensor:
    """A matrix as a batch of one."""
    shape = tuple(mX.shape[i] for i in range(cute.rank(mX)))
    stride = tuple(vectors.compact_stride(mX, i) for i in range(cute.rank(mX)))
    return cute.make_tensor(mX.iterator, cute.make_layout((Int32(1), *shape), stride=(stride[0], *stride)))
