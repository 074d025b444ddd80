"""Epilogues of GEMMs and their launchers, written by hand as the generator would: what tests and benchmarks compile."""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute

from codegen.hopper_tiles import Tiles
from codegen.runtime import device, gemm_sm90
from codegen.runtime.gemm_epilogue import Form


def load(mX, place, valid, rX, ragged):
    """A vector of an operand in memory, or what there is of it."""
    vec = cute.size(rX)
    gX = cute.make_tensor(mX.iterator + cute.assume(place, divby=1 if ragged else vec), cute.make_layout((vec,)))
    if ragged:
        device.copy_whole_or_part(gX, rX, cutlass.Int64(valid))
    else:
        cute.autovec_copy(gX, rX)


def store(y, mY, place, valid, ragged):
    vec = cute.size(y.shape)
    rY = cute.make_rmem_tensor((vec,), mY.element_type)
    rY.store(y.to(mY.element_type))
    gY = cute.make_tensor(mY.iterator + cute.assume(place, divby=1 if ragged else vec), cute.make_layout((vec,)))
    if ragged:
        device.copy_whole_or_part(rY, gY, cutlass.Int64(valid))
    else:
        cute.autovec_copy(rY, gY)


def offset(mX, batch, row, column):
    return (cutlass.Int64(batch) * mX.shape[1] + row) * mX.shape[2] + column


def gelu_tanh(z):
    inner = z * (0.7978845608028654 + 0.035677408136300125 * z * z)
    return 0.5 * z * (1.0 + cute.math.tanh(inner, fastmath=True))


def silu(z):
    return z * cute.math.rcp(1.0 + cute.math.exp2(z * -1.4426950408889634, fastmath=True), approx=True, ftz=True)


@cute.jit
def plain(acc: tuple, row, column, batch, valid, tensors: tuple, vec: cutlass.Constexpr, ragged: cutlass.Constexpr):
    (mY,) = tensors
    if valid > 0:
        store(acc[0].load(), mY, offset(mY, batch, row, column), valid, ragged)
    return ()


@cute.jit
def bias_gelu(acc: tuple, row, column, batch, valid, tensors: tuple, vec: cutlass.Constexpr, ragged: cutlass.Constexpr):
    mBias, mY = tensors
    rBias = cute.make_rmem_tensor((vec,), mBias.element_type)
    if valid > 0:
        load(mBias, column, valid, rBias, ragged)
        y = gelu_tanh(acc[0].load() + rBias.load().to(cutlass.Float32))
        store(y, mY, offset(mY, batch, row, column), valid, ragged)
    return ()


@cute.jit
def bias_gelu_launch(
    stream: cuda.CUstream,
    mA: cute.Tensor, mB: cute.Tensor, mBias: cute.Tensor, mY: cute.Tensor,
    b_is_nk: cutlass.Constexpr[bool], vec: cutlass.Constexpr[int], ragged: cutlass.Constexpr[bool],
    tile_m: cutlass.Constexpr[int], tile_n: cutlass.Constexpr[int], tile_k: cutlass.Constexpr[int],
    stages: cutlass.Constexpr[int], cluster_m: cutlass.Constexpr[int], cluster_n: cutlass.Constexpr[int],
    pingpong: cutlass.Constexpr[bool], group: cutlass.Constexpr[int], blocks: cutlass.Constexpr[int],
):
    tiles = Tiles(tile_m, tile_n, tile_k, stages, cluster_m, cluster_n, pingpong, group, blocks)
    gemm_sm90.launch(stream, mA, (mB,), (mBias, mY), bias_gelu, tiles, Form(vec, ragged), b_is_nk)
