"""Epilogues written by hand, as the generator writes them, and launchers that pass them to a main loop.

They are in their own file because CuTe DSL reads a kernel's source.
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32

from codegen import device
from codegen.device.gemm import sm80 as gemm_sm80
from codegen.device.gemm.pieces import product
from codegen.shared import AmpereTiles, Loading


def load(at, m, place):
    """The vector at a place, as float32; zeros outside the output."""
    return at.load(m, place).load().to(Float32)


def store(at, values, m):
    """The vector to (L, M, N)."""
    at.store(values.to(m.element_type), m, (at.batch, at.row, at.column))


def plain_epilogue(at, acc, operands, tensors):
    store(at, acc[0].load(), tensors[0])
    return ()


def bias_relu_epilogue(at, acc, operands, tensors):
    mBias, mY = tensors
    z = acc[0].load().to(Float32) + load(at, mBias, (at.column,))
    store(at, device.where(z > 0.0, z, 0.0), mY)
    return ()


def residual_epilogue(at, acc, operands, tensors):
    """Two outputs: what was added, and its square."""
    mResidual, mZ, mY = tensors
    z = acc[0].load().to(Float32) + load(at, mResidual, (at.batch, at.row, at.column))
    store(at, z, mZ)
    store(at, z * z, mY)
    return ()


def swiglu_epilogue(at, acc, operands, tensors):
    gate, up = acc[0].load().to(Float32), acc[1].load().to(Float32)
    store(at, device.divide(gate, 1.0 + device.exp(-gate, False), False) * up, tensors[0])
    return ()


def statistics_epilogue(at, acc, operands, tensors):
    """Of rows the sum and the largest; of columns the sum and the smallest."""
    y = acc[0].load().to(Float32)
    store(at, y, tensors[0])
    return y, y, y, y


@cute.jit
def plain(
    stream: cuda.CUstream, mA: cute.Tensor, mB: cute.Tensor, mY: cute.Tensor,
    b_is_nk: cutlass.Constexpr[bool], vec: cutlass.Constexpr[int], ragged: cutlass.Constexpr[bool],
    tiles: cutlass.Constexpr[AmpereTiles],
):  # fmt: skip
    own = product((mB,), (mY,), plain_epilogue, vec=vec, ragged=ragged)
    gemm_sm80.launch(stream, mA, (own,), b_is_nk=b_is_nk, tiles=tiles)


@cute.jit
def scaled(
    stream: cuda.CUstream, mA: cute.Tensor, mB: cute.Tensor, mScale: cute.Tensor, mY: cute.Tensor,
    b_is_nk: cutlass.Constexpr[bool], vec: cutlass.Constexpr[int], ragged: cutlass.Constexpr[bool],
    tiles: cutlass.Constexpr[AmpereTiles], loading: cutlass.Constexpr[Loading],
):  # fmt: skip
    own = product((mB,), (mY,), plain_epilogue, vec=vec, ragged=ragged)
    gemm_sm80.launch(stream, mA, (own,), b_is_nk=b_is_nk, tiles=tiles, scales=(mScale,), loading=loading)


@cute.jit
def bias_relu(
    stream: cuda.CUstream, mA: cute.Tensor, mB: cute.Tensor, mBias: cute.Tensor, mY: cute.Tensor,
    b_is_nk: cutlass.Constexpr[bool], vec: cutlass.Constexpr[int], ragged: cutlass.Constexpr[bool],
    tiles: cutlass.Constexpr[AmpereTiles],
):  # fmt: skip
    own = product((mB,), (mBias, mY), bias_relu_epilogue, vec=vec, ragged=ragged)
    gemm_sm80.launch(stream, mA, (own,), b_is_nk=b_is_nk, tiles=tiles)


@cute.jit
def residual(
    stream: cuda.CUstream, mA: cute.Tensor, mB: cute.Tensor, mResidual: cute.Tensor, mZ: cute.Tensor, mY: cute.Tensor,
    b_is_nk: cutlass.Constexpr[bool], vec: cutlass.Constexpr[int], ragged: cutlass.Constexpr[bool],
    tiles: cutlass.Constexpr[AmpereTiles],
):  # fmt: skip
    own = product((mB,), (mResidual, mZ, mY), residual_epilogue, vec=vec, ragged=ragged)
    gemm_sm80.launch(stream, mA, (own,), b_is_nk=b_is_nk, tiles=tiles)


def halves(mB: cute.Tensor, b_is_nk: bool) -> tuple[cute.Tensor, cute.Tensor]:
    """The first and the last half of b's columns."""
    mode = 1 if b_is_nk else 2
    shape = tuple(mB.shape[i] // 2 if i == mode else mB.shape[i] for i in range(3))
    layout = cute.make_layout(shape, stride=mB.stride)
    return cute.make_tensor(mB.iterator, layout), cute.make_tensor(mB.iterator + shape[mode] * mB.stride[mode], layout)


@cute.jit
def swiglu(
    stream: cuda.CUstream, mA: cute.Tensor, mB: cute.Tensor, mUp: cute.Tensor | None, mY: cute.Tensor,
    paired: cutlass.Constexpr[str],
    b_is_nk: cutlass.Constexpr[bool], vec: cutlass.Constexpr[int], ragged: cutlass.Constexpr[bool],
    tiles: cutlass.Constexpr[AmpereTiles],
):  # fmt: skip
    mBs = (mB,)
    if cutlass.const_expr(paired == "halves"):
        mBs = halves(mB, b_is_nk) if mUp is None else (mB, mUp)
    own = product(mBs, (mY,), swiglu_epilogue, paired=paired, vec=vec, ragged=ragged)
    gemm_sm80.launch(stream, mA, (own,), b_is_nk=b_is_nk, tiles=tiles)


@cute.jit
def statistics(
    stream: cuda.CUstream, mA: cute.Tensor, mB: cute.Tensor, mY: cute.Tensor,
    mRowSum: cute.Tensor, mRowMax: cute.Tensor, mColumnSum: cute.Tensor, mColumnMin: cute.Tensor,
    b_is_nk: cutlass.Constexpr[bool], vec: cutlass.Constexpr[int], ragged: cutlass.Constexpr[bool],
    tiles: cutlass.Constexpr[AmpereTiles],
):  # fmt: skip
    own = product(
        (mB,),
        (mY,),
        statistics_epilogue,
        vec=vec,
        ragged=ragged,
        row_ops=("sum", "max"),
        row_parts=(mRowSum, mRowMax),
        column_ops=("sum", "min"),
        column_parts=(mColumnSum, mColumnMin),
    )
    gemm_sm80.launch(stream, mA, (own,), b_is_nk=b_is_nk, tiles=tiles)
