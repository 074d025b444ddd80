"""k and v in pages: which rows a sequence has, and copies of their tiles (Kwon et al., arXiv:2309.06180)."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from codegen.device import functions as device
from codegen.device import vectors
from codegen.device.attention import batches as batches_of
from codegen.device.attention.fragments import BYTES, CHUNK, load_tile
from codegen.device.gemm import tensorcore
from codegen.device.gemm.panels import Panels
from codegen.shared import AttentionLaunch


def in_pages(
    tensor: cute.Tensor, sizes: tuple[Any, ...], batch: tuple[int | None, ...], page: int, row: int | None
) -> cute.Tensor:
    """A compact tensor as (batch, (rows of a page, pages), columns). Batch is as in `arranged`; `page` and `row` are the tensor's
    modes, `row` None where a page is one row."""
    last = cute.rank(tensor) - 1
    strides = tuple(0 if mode is None else vectors.compact_stride(tensor, mode) for mode in batch)
    rows, apart = (1, 0) if row is None else (tensor.shape[row], vectors.compact_stride(tensor, row))
    shape = (sizes, (rows, tensor.shape[page]), tensor.shape[last])
    stride = (strides, (apart, vectors.compact_stride(tensor, page)), 1)
    return cute.make_tensor(tensor.iterator, cute.make_layout(shape, stride=stride))


def count(k: cute.Tensor, pages: tuple, how: AttentionLaunch) -> Any:
    """The number of a sequence's rows of k."""
    return pages[0].shape[1] * (how.page or 1) if pages else k.shape[1]


def lacking(k: cute.Tensor, pages: tuple) -> tuple[bool, ...]:
    """Which axes of the batch k lacks."""
    found = batches_of.lacking(k.stride[0])
    if not pages:
        return found
    return tuple(a and b for a, b in zip(found, batches_of.lacking(pages[0].stride[0]), strict=True))


def load(
    source: cute.Tensor, pages: cute.Tensor | None, batch: Any, row: Int32, target: Int32, columns: int, panels: Panels,
    how: AttentionLaunch,
) -> None:  # fmt: skip
    """Start the copy of a tile's rows, from `row` of a sequence on; zeros past the last row and column."""
    if pages is None:
        load_tile(source, batch, row, target, columns, panels, how.threads)
    else:
        _load(source, pages, batch, row, target, columns, panels, how)


@cute.jit
def _load(
    source: cute.Tensor,
    pages: cute.Tensor,
    batch: Any,
    row: Int32,
    target: Int32,
    columns: cutlass.Constexpr[int],
    panels: cutlass.Constexpr[Panels],
    how: cutlass.Constexpr[AttentionLaunch],
):
    tidx, _, _ = cute.arch.thread_idx()
    size = how.page or 1
    apart, pages_apart = (Int64(stride) * BYTES for stride in source.stride[1])
    base = source.iterator.toint() + Int64(cute.crd2idx((batch, 0, 0), source.layout)) * BYTES
    end, per_row = pages.shape[1] * size, panels.width // CHUNK
    together = size % panels.rows == 0  # a tile is within a page
    number = _page(source, pages, batch, cutlass.min(row, end - 1) // size) if together else Int32(0)
    for i in cutlass.range_constexpr(panels.rows * per_row // how.threads):
        place = tidx + i * how.threads
        r, byte = place // per_row, place % per_row * CHUNK
        position = cutlass.min(row + r, end - 1)
        own = number if together else _page(source, pages, batch, position // size)
        there = (row + r < end) & (byte < columns * BYTES)
        given = cutlass.select_(there, Int32(CHUNK), Int32(0))
        start = base + Int64(own) * pages_apart + Int64(position % size) * apart
        tensorcore.copy_async(target + panels.place(r, byte), start + Int64(byte), CHUNK, given)


def _page(source: cute.Tensor, pages: cute.Tensor, batch: Any, place: Int32) -> Int32:
    """The page at a place of a sequence, clamped as `take` does."""
    return device.clip_index(pages[batch, place], source.shape[1][1])
