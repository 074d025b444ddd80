"""The parts that all Hopper kernels with WGMMA share: the warpgroups of a block, TMA's loads, and the ring of stages that they
fill.

A block has three warpgroups. The first two are consumers, which multiply; one warp of the last is the producer, which loads.
"""

from __future__ import annotations

import cutlass.cute as cute
from cutlass import Boolean, Int32, Uint32
from cutlass.cute.nvgpu import cpasync

from codegen.device.gemm import tensorcore
from codegen.shared import Tiles

WARPGROUP = 128  # threads
CONSUMERS = 2  # warpgroups, the first two of a block
THREADS = (CONSUMERS + 1) * WARPGROUP
PRODUCER = 4 * CONSUMERS  # the warp that loads


def loader(
    tensor: cute.Tensor, modes: tuple[int, ...], layout: cute.ComposedLayout, box: tuple[int, int], sharers: int = 1
) -> tuple[cute.CopyAtom, cute.Tensor]:
    """TMA's copy of a tensor's boxes into shared memory, and the tensor of coordinates for it, with permuted modes. A box is loaded
    once for all blocks of a cluster that share it."""
    tensor = cute.make_tensor(tensor.iterator, cute.select(tensor.layout, mode=list(modes)))
    op = cpasync.CopyBulkTensorTileG2SOp() if sharers == 1 else cpasync.CopyBulkTensorTileG2SMulticastOp()
    info = cpasync.make_tiled_tma_atom(op, tensor, cute.select(layout, mode=[0, 1]), box, num_multicast=sharers)
    return info[0], info[1]


def place_in_ring(count: Uint32, stages: int) -> tuple[Int32, Int32]:
    """The stage after `count` others in a ring of so many, and the parity of its barriers' phases then."""
    return Int32(count % stages), Int32(count // stages & 1)


def free_barrier(empty: cute.Pointer, lane: Int32, tiles: Tiles) -> tuple[Int32, Boolean]:
    """The address of the first free stage's barrier, and whether a lane arrives there: one for each block of the cluster, since both
    fill this one's stages."""
    freed, signals = empty.toint(), lane < tiles.multicast
    return tensorcore.in_cluster(freed, lane % tiles.multicast) if tiles.multicast > 1 else freed, signals
