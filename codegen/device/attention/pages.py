"""k and v in pages: which rows a sequence has, and copies of their tiles (Kwon et al., arXiv:2309.06180)."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64

from codegen.device import functions as device
from codegen.device import vectors
from codegen.device.attention import batches as batches_of
from codegen.device.attention.fragments import load_rows, load_tile
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
        load_tile(source, batch, row, target, columns, panels, how)
    else:
        _load(source, pages, batch, row, target, columns, panels, how)


def _load(
    source: cute.Tensor, pages: cute.Tensor, batch: Any, row: Int32, target: Int32, columns: int, panels: Panels,
    how: AttentionLaunch,
) -> None:  # fmt: skip
    size, each = how.page or 1, source.element_type.width // 8
    apart, pages_apart = (Int64(stride) * each for stride in source.stride[1])
    base = source.iterator.toint() + Int64(cute.crd2idx((batch, 0, 0), source.layout)) * each
    end = pages.shape[1] * size
    together = size % panels.rows == 0  # a tile is within a page
    number = _page(source, pages, batch, cutlass.min(row, end - 1) // size) if together else Int32(0)

    def row_of(r: Int32) -> tuple[Int64, Boolean]:
        position = cutlass.min(row + r, end - 1)
        own = number if together else _page(source, pages, batch, position // size)
        return base + Int64(own) * pages_apart + Int64(position % size) * apart, row + r < end

    load_rows(source, row_of, target, columns, panels, how)


def _page(source: cute.Tensor, pages: cute.Tensor, batch: Any, place: Int32) -> Int32:
    """The page at a place of a sequence, clamped as `take` does."""
    return device.clip_index(pages[batch, place], source.shape[1][1])
