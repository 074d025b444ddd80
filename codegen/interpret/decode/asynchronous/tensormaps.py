"""cp.async.bulk.tensor: the tensor memory accelerator (TMA) copies boxes of a tensor to shared memory.

A tensor map describes the tensor, the size of its boxes and their layout in shared memory. NVIDIA does not document its 128
bytes. The fields read here are those that CuTe DSL's launchers write; any other content is an error. Elements of a box outside
the tensor are zeros, and count among the delivered bytes.
"""

from __future__ import annotations

import functools
import itertools
import math
import struct
from dataclasses import dataclass

import numpy as np

from codegen.interpret.decode.decoding import Execute, Machine, Unknown, only
from codegen.interpret.memory.arrays import Fault
from codegen.interpret.ptx import Address, Box, Operand

CHUNK, LINE = 16, 128  # bytes that stay together in shared memory, and bytes across all of its banks
SWIZZLES = {0: 0, 1: 32, 2: 64, 3: 128}
# Bytes of an element: integers of 8, 16, 32, 64 bits, float16, float32, bfloat16
SIZES = {0: 1, 1: 2, 2: 4, 4: 8, 6: 2, 7: 4, 10: 2}
PLAIN = 0x40002  # a map's second word without the rank, the element's type, the swizzle, and
LARGE = 1 << 21  # whether the tensor has 128 kB, which changes no result


@dataclass(frozen=True)
class TensorMap:
    """Sizes and strides in memory order: the first axis is contiguous."""

    address: int
    size: int  # bytes of an element
    extents: tuple[int, ...]
    strides: tuple[int, ...]  # in bytes, of all axes except the first
    box: tuple[int, ...]
    swizzle: int  # bytes of a row whose chunks are permuted, 0 without a swizzle


@functools.lru_cache(maxsize=256)
def read(data: bytes) -> TensorMap:
    """The content of a map. Raises `ValueError` for unknown content."""
    address, kind, *lower = struct.unpack("<QIIIIII", data[:32])
    rank, element, swizzle = (kind >> 4 & 7) + 1, kind >> 7 & 15, kind >> 13 & 3
    strides, above = lower[:4], lower[4]
    extents = struct.unpack("<5I", data[32:52])
    steps, box = int.from_bytes(data[52:55], "little"), data[55:60]
    known = 7 << 4 | 15 << 7 | 3 << 13 | LARGE
    if kind & ~known != PLAIN or element not in SIZES or swizzle not in SWIZZLES or above or steps or rank > 5:
        raise ValueError(f"an unknown tensor map: {data[:64].hex()}")
    return TensorMap(
        address, SIZES[element], tuple(e + 1 for e in extents[:rank]), tuple(16 * s for s in strides[: rank - 1]),
        tuple(b + 1 for b in box[:rank]), SWIZZLES[swizzle],
    )  # fmt: skip


def swizzled(offset: np.ndarray, width: int) -> np.ndarray:
    """The offsets of chunks in shared memory after the swizzle, for rows of `width` bytes. A chunk swaps places with
    another chunk of its row, which the number of its 128-byte line selects."""
    return offset ^ (offset // LINE % (width // CHUNK) * CHUNK)


def copy_box(words: tuple[str, ...], operands: tuple[Operand, ...]) -> Execute:
    """cp.async.bulk.tensor: a box from global memory to the shared memory of one block, or of several in its cluster."""
    tensor, rank, *rest = words
    hint, multicast = "L2::cache_hint" in rest, "multicast::cluster" in rest
    allowed = ("shared::cluster", "shared::cta", "global", "tile", "mbarrier::complete_tx::bytes")
    flags = only(tuple(rest), (*allowed, "multicast::cluster", "L2::cache_hint"))
    if tensor != "tensor" or not {"global", "mbarrier::complete_tx::bytes"} <= flags or rest[0] == "global":
        raise Unknown(".bulk." + ".".join(words))
    target, source, barrier, *more = operands
    mask = more[0] if multicast else None
    if not isinstance(target, Address) or not isinstance(source, Box) or not isinstance(barrier, Address):
        raise Unknown(".bulk." + ".".join(words))
    if rank != f"{len(source.coordinates.items)}d" or len(more) != multicast + hint:
        raise ValueError(f"{len(source.coordinates.items)} coordinates, {len(more)} operands more")
    return lambda m: _copy(m, target, source, barrier, mask)


def _copy(m: Machine, target: Address, source: Box, barrier: Address, mask: Operand | None) -> None:
    lanes = m.active()
    rows, offsets = m.spaces.shared_place("shared::cluster", m.spaces.place(target), lanes)
    homes, barriers = m.spaces.shared_place("shared::cluster", m.spaces.place(barrier), lanes)
    maps = m.spaces.place(source.base)
    starts = [np.broadcast_to(m.read(c, "s32"), lanes.shape) for c in source.coordinates.items if c is not None]
    masks = None if mask is None else np.broadcast_to(m.read(mask, "u16"), lanes.shape)
    over = False
    for i, lane in enumerate(lanes.tolist()):
        try:
            tensor = read(m.spaces.parameter(int(maps[i]), lane))
        except ValueError as error:
            raise Fault(lane, str(error)) from None
        if len(tensor.box) != len(starts):
            raise Fault(lane, f"{len(starts)} coordinates in a tensor with {len(tensor.box)} axes")
        whole = _box(m, tensor, [int(s[i]) for s in starts], lane)
        first = m.block_of[lane] // m.cluster_size * m.cluster_size
        named = [int(rows[i])]
        if masks is not None:
            named = [int(first) + rank for rank in range(16) if masks[i] >> rank & 1]
            if not named or named[-1] >= first + m.cluster_size:
                raise Fault(lane, f"a mask of blocks, {int(masks[i]):#x}, in a cluster of {m.cluster_size}")
        elif homes[i] != rows[i]:
            raise Fault(lane, "a copy to one block's memory, with the mbarrier of another")
        if offsets[i] % LINE:
            raise Fault(lane, f"cp.async.bulk.tensor to byte {int(offsets[i])}, which {LINE} does not divide")
        places = int(offsets[i]) + np.arange(0, whole.size, CHUNK)
        places = swizzled(places, tensor.swizzle) if tensor.swizzle else places
        whose = np.full(places.shape, lane)
        for row in named:
            home = np.full(places.shape, row)
            m.shared.reach(home[:1], whose[:1])
            if not m.shared.mbarriers.of(row, int(barriers[i]), lane).fenced:
                raise Fault(lane, "a copy for an mbarrier that no fence.mbarrier_init follows")
            at = m.shared.deliver(home, places, whole, whose, m.shared.mbarriers.stamp(row, int(barriers[i]), lane))
            over |= m.shared.mbarriers.bring(row, int(barriers[i]), at, lane)
    m.ordering.tick(lanes)
    if over:
        m.wake()


def _box(m: Machine, tensor: TensorMap, start: list[int], lane: int) -> np.ndarray:
    """A box in chunks: (chunks, 16 bytes)."""
    size, (inner, *outer) = tensor.size, tensor.box
    if inner * size % CHUNK or inner * size != (tensor.swizzle or inner * size):
        raise Fault(lane, f"a box whose rows have {inner * size} bytes, of which {tensor.swizzle} are permuted")
    whole = np.zeros((math.prod(outer), inner * size), np.uint8)
    low, high = max(0, -start[0]), min(inner, tensor.extents[0] - start[0])
    places = [
        (k, sum((s + i) * step for s, i, step in zip(start[1:], reversed(index), tensor.strides, strict=True)))
        for k, index in enumerate(itertools.product(*map(range, reversed(outer))))
        if all(0 <= s + i < e for s, i, e in zip(start[1:], reversed(index), tensor.extents[1:], strict=True))
    ]
    if high > low and places:
        width, begin = (high - low) * size, (start[0] + low) * size
        unit = math.gcd(width, begin, CHUNK)
        rows, offsets = (np.array(column, np.int64) for column in zip(*places, strict=True))
        where = (tensor.address + begin + offsets[:, None] + np.arange(0, width, unit)).reshape(-1)
        word = min(unit, 8)
        thread = np.broadcast_to(m.thread[lane], where.shape)
        values = m.memory.load(where, unit // word, word, np.full(where.shape, lane), thread, unit // word)
        found = np.stack(values, axis=1).view(np.uint8).reshape(len(rows), width)
        whole[rows, low * size : high * size] = found
    return whole.reshape(-1, CHUNK)
