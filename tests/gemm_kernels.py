"""Epilogues written by hand, as the generator writes them, and launchers that pass them to a main loop.

They are in their own file because CuTe DSL reads a kernel's source.
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from codegen import device
from codegen.device.gemm import sm80 as gemm_sm80
from codegen.shared import AmpereTiles


@cute.jit
def load(
    m: cute.Tensor,
    place: Int64,
    valid: Int32,
    vec: cutlass.Constexpr[int],
    ragged: cutlass.Constexpr[bool],
):
    """vec elements from a position on, as float32; zeros from `valid` on."""
    held = cute.make_rmem_tensor((vec,), m.element_type)
    held.fill(0)
    if cutlass.const_expr(ragged):
        for i in cutlass.range_constexpr(vec):
            if i < valid:
                held[i] = (m.iterator + place + i).load()
    else:
        if valid > 0:
            src = m.iterator + cute.assume(place, divby=vec)
            cute.autovec_copy(cute.make_tensor(src, cute.make_layout((vec,))), held)
    return held.load().to(Float32)


@cute.jit
def store(
    values,
    m: cute.Tensor,
    place: Int64,
    valid: Int32,
    vec: cutlass.Constexpr[int],
    ragged: cutlass.Constexpr[bool],
):
    """Stores vec elements at a position, only the first `valid` of them."""
    held = cute.make_rmem_tensor((vec,), m.element_type)
    held.store(values.to(m.element_type))
    if cutlass.const_expr(ragged):
        for i in cutlass.range_constexpr(vec):
            if i < valid:
                (m.iterator + place + i).store(held[i])
    else:
        if valid > 0:
            target = m.iterator + cute.assume(place, divby=vec)
            cute.autovec_copy(held, cute.make_tensor(target, cute.make_layout((vec,))))


def tile_place(m: cute.Tensor, batch: Int32, row: Int32, column: Int32) -> Int64:
    """The position of an element of (L, M, N)."""
    return (Int64(batch) * m.shape[1] + row) * m.shape[2] + column


@cute.jit
def plain_epilogue(
    acc: tuple, row, column, batch, valid, tensors: tuple, vec: cutlass.Constexpr[int], ragged: cutlass.Constexpr[bool]
):
    (mY,) = tensors
    store(acc[0].load(), mY, tile_place(mY, batch, row, column), valid, vec, ragged)
    return ()


@cute.jit
def bias_relu_epilogue(
    acc: tuple, row, column, batch, valid, tensors: tuple, vec: cutlass.Constexpr[int], ragged: cutlass.Constexpr[bool]
):
    mBias, mY = tensors
    z = acc[0].load().to(Float32) + load(mBias, Int64(column), valid, vec, ragged)
    y = device.where(z > 0.0, z, 0.0)
    store(y, mY, tile_place(mY, batch, row, column), valid, vec, ragged)
    return ()


@cute.jit
def residual_epilogue(
    acc: tuple, row, column, batch, valid, tensors: tuple, vec: cutlass.Constexpr[int], ragged: cutlass.Constexpr[bool]
):
    """Two outputs: the sum and its square."""
    mResidual, mZ, mY = tensors
    place = tile_place(mY, batch, row, column)
    z = acc[0].load().to(Float32) + load(mResidual, place, valid, vec, ragged)
    store(z, mZ, place, valid, vec, ragged)
    store(z * z, mY, place, valid, vec, ragged)
    return ()


@cute.jit
def swiglu_epilogue(
    acc: tuple, row, column, batch, valid, tensors: tuple, vec: cutlass.Constexpr[int], ragged: cutlass.Constexpr[bool]
):
    (mY,) = tensors
    gate, up = acc[0].load().to(Float32), acc[1].load().to(Float32)
    y = device.divide(gate, 1.0 + device.exp(-gate, False), False) * up
    store(y, mY, tile_place(mY, batch, row, column), valid, vec, ragged)
    return ()


@cute.jit
def statistics_epilogue(
    acc: tuple, row, column, batch, valid, tensors: tuple, vec: cutlass.Constexpr[int], ragged: cutlass.Constexpr[bool]
):
    """The sum and the maximum of rows; the sum and the minimum of columns."""
    (mY,) = tensors
    y = acc[0].load().to(Float32)
    store(y, mY, tile_place(mY, batch, row, column), valid, vec, ragged)
    return y, y, y, y


@cute.jit
def plain(
    stream: cuda.CUstream, mA: cute.Tensor, mB: cute.Tensor, mY: cute.Tensor,
    b_is_nk: cutlass.Constexpr[bool], vec: cutlass.Constexpr[int], ragged: cutlass.Constexpr[bool],
    tiles: cutlass.Constexpr[AmpereTiles],
):  # fmt: skip
    gemm_sm80.launch(
        stream, mA, (mB,), (mY,), plain_epilogue, b_is_nk=b_is_nk, vec=vec, ragged=ragged, tiles=tiles,
    )  # fmt: skip


@cute.jit
def bias_relu(
    stream: cuda.CUstream, mA: cute.Tensor, mB: cute.Tensor, mBias: cute.Tensor, mY: cute.Tensor,
    b_is_nk: cutlass.Constexpr[bool], vec: cutlass.Constexpr[int], ragged: cutlass.Constexpr[bool],
    tiles: cutlass.Constexpr[AmpereTiles],
):  # fmt: skip
    gemm_sm80.launch(
        stream, mA, (mB,), (mBias, mY), bias_relu_epilogue, b_is_nk=b_is_nk, vec=vec, ragged=ragged, tiles=tiles,
    )  # fmt: skip


@cute.jit
def residual(
    stream: cuda.CUstream, mA: cute.Tensor, mB: cute.Tensor, mResidual: cute.Tensor, mZ: cute.Tensor, mY: cute.Tensor,
    b_is_nk: cutlass.Constexpr[bool], vec: cutlass.Constexpr[int], ragged: cutlass.Constexpr[bool],
    tiles: cutlass.Constexpr[AmpereTiles],
):  # fmt: skip
    gemm_sm80.launch(
        stream, mA, (mB,), (mResidual, mZ, mY), residual_epilogue, b_is_nk=b_is_nk, vec=vec, ragged=ragged, tiles=tiles,
    )  # fmt: skip


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
    gemm_sm80.launch(
        stream, mA, mBs, (mY,), swiglu_epilogue, b_is_nk=b_is_nk, paired=paired, vec=vec, ragged=ragged, tiles=tiles,
    )  # fmt: skip


@cute.jit
def statistics(
    stream: cuda.CUstream, mA: cute.Tensor, mB: cute.Tensor, mY: cute.Tensor,
    mRowSum: cute.Tensor, mRowMax: cute.Tensor, mColumnSum: cute.Tensor, mColumnMin: cute.Tensor,
    b_is_nk: cutlass.Constexpr[bool], vec: cutlass.Constexpr[int], ragged: cutlass.Constexpr[bool],
    tiles: cutlass.Constexpr[AmpereTiles],
):  # fmt: skip
    gemm_sm80.launch(
        stream, mA, (mB,), (mY,), statistics_epilogue, b_is_nk=b_is_nk, vec=vec, ragged=ragged, tiles=tiles,
        row_ops=("sum", "max"), row_parts=(mRowSum, mRowMax),
        column_ops=("sum", "min"), column_parts=(mColumnSum, mColumnMin),
    )  # fmt: skip
