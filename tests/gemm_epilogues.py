"""Epilogues of products and their launchers on the Hopper main loop, written by hand for tests and benchmarks.

They have no branches (`vectors`), and their operands are prefetched.
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute

from codegen import device
from codegen.device.gemm import sm90 as gemm_sm90
from codegen.device.gemm.pieces import product
from codegen.shared import Tiles


def store(at, y, mY):
    at.store(y.to(mY.element_type), mY, (at.batch, at.row, at.column))


def floats(rX):
    return rX.load().to(cutlass.Float32)


def tanh(x):
    return cute.math.tanh(x, fastmath=True)


def gelu_tanh(z):
    half = 0.5 * z
    return half + half * tanh(z * (0.7978845608028654 + 0.035677408136300125 * z * z))


def gelu_tanh_slope(z):
    square = z * z
    t = tanh(z * (0.7978845608028654 + 0.035677408136300125 * square))
    return 0.5 + 0.5 * t + (0.5 * z) * (1.0 - t * t) * (0.7978845608028654 + 0.10703222440890037 * square)


def silu(z):
    half = 0.5 * z
    return half + half * tanh(half)


Static = cutlass.Constexpr


def read_row(at, tensors):
    return (at.load(tensors[0], (at.column,)),)


def read_tile(at, tensors):
    return (at.load(tensors[-2], (at.batch, at.row, at.column)),)


def plain(at, acc, operands, tensors):
    """Stores acc: the cost of a product alone, and products of integers."""
    (mY,) = tensors
    store(at, acc[0].load(), mY)
    return ()


def relu(at, acc, operands, tensors):
    mY = tensors[-1]
    y = device.maximum(acc[0].load() + floats(operands[0]), 0.0)
    store(at, y, mY)
    return ()


def gelu(at, acc, operands, tensors):
    mY = tensors[-1]
    y = gelu_tanh(acc[0].load() + floats(operands[0]))
    store(at, y, mY)
    return ()


def gelu_erf(at, acc, operands, tensors):
    mY = tensors[-1]
    z = acc[0].load() + floats(operands[0])
    y = 0.5 * z * device.erfc(-0.7071067811865476 * z, True, False)
    store(at, y, mY)
    return ()


def residual(at, acc, operands, tensors):
    mY = tensors[-1]
    y = silu(acc[0].load() + floats(operands[0])) + floats(operands[1])
    store(at, y, mY)
    return ()


def dgelu(at, acc, operands, tensors):
    mY = tensors[-1]
    y = acc[0].load() * gelu_tanh_slope(floats(operands[0]))
    store(at, y, mY)
    return ()


def swiglu(at, acc, operands, tensors):
    mY = tensors[-1]
    y = silu(acc[0].load()) * acc[1].load()
    store(at, y, mY)
    return ()


def sums(at, acc, operands, tensors):
    """Stores acc, its row sums, row maxima and column sums."""
    (mY,) = tensors
    y = acc[0].load().to(cutlass.Float32)
    store(at, y, mY)
    return (y, y, y)


def row_sums(at, acc, operands, tensors):
    """Stores acc, its row sums and row maxima."""
    return sums(at, acc, operands, tensors)[:2]


EPILOGUES = {f.__name__: f for f in (plain, relu, gelu, gelu_erf, residual, dgelu, swiglu, sums, row_sums)}
READS = {
    "relu": (read_row, None), "gelu": (read_row, None), "gelu_erf": (read_row, None),
    "dgelu": (None, read_tile), "residual": (read_row, read_tile),
}  # fmt: skip


@cute.jit
def one_launch(
    stream: cuda.CUstream, mA: cute.Tensor, mB: cute.Tensor, mY: cute.Tensor,
    name: Static[str], b_is_nk: Static[bool], paired: Static[str], vec: Static[int], ragged: Static[bool],
    tiles: Static[Tiles],
):  # fmt: skip
    """One b, no other operand."""
    own = product(
        (mB,), (mY,), EPILOGUES[name], paired=paired, vec=vec, ragged=ragged, reads=READS.get(name, (None, None))
    )
    gemm_sm90.launch(stream, mA, (own,), b_is_nk=b_is_nk, tiles=tiles)


@cute.jit
def two_launch(
    stream: cuda.CUstream, mA: cute.Tensor, mB0: cute.Tensor, mB1: cute.Tensor, mY: cute.Tensor,
    name: Static[str], b_is_nk: Static[bool], paired: Static[str], vec: Static[int], ragged: Static[bool],
    tiles: Static[Tiles],
):  # fmt: skip
    """Two b."""
    own = product(
        (mB0, mB1), (mY,), EPILOGUES[name], paired=paired, vec=vec, ragged=ragged, reads=READS.get(name, (None, None))
    )
    gemm_sm90.launch(stream, mA, (own,), b_is_nk=b_is_nk, tiles=tiles)


@cute.jit
def with_one_launch(
    stream: cuda.CUstream, mA: cute.Tensor, mB: cute.Tensor, mX: cute.Tensor, mY: cute.Tensor,
    name: Static[str], b_is_nk: Static[bool], paired: Static[str], vec: Static[int], ragged: Static[bool],
    tiles: Static[Tiles],
):  # fmt: skip
    """One operand of the epilogue: a bias, or a tile."""
    own = product(
        (mB,),
        (mX, mY),
        EPILOGUES[name],
        paired=paired,
        vec=vec,
        ragged=ragged,
        reads=READS.get(name, (None, None)),
        whole=((mX, 1, True),) if READS.get(name, (None, None))[1] else (),
    )
    gemm_sm90.launch(stream, mA, (own,), b_is_nk=b_is_nk, tiles=tiles)


@cute.jit
def with_two_launch(
    stream: cuda.CUstream, mA: cute.Tensor, mB: cute.Tensor, mX: cute.Tensor, mZ: cute.Tensor, mY: cute.Tensor,
    name: Static[str], b_is_nk: Static[bool], paired: Static[str], vec: Static[int], ragged: Static[bool],
    tiles: Static[Tiles],
):  # fmt: skip
    """Two operands of the epilogue: a bias and a tile."""
    own = product(
        (mB,),
        (mX, mZ, mY),
        EPILOGUES[name],
        paired=paired,
        vec=vec,
        ragged=ragged,
        reads=READS.get(name, (None, None)),
        whole=((mZ, 1, True),),
    )
    gemm_sm90.launch(stream, mA, (own,), b_is_nk=b_is_nk, tiles=tiles)


@cute.jit
def sums_launch(
    stream: cuda.CUstream, mA: cute.Tensor, mB: cute.Tensor, mY: cute.Tensor,
    mRowSum: cute.Tensor, mRowMax: cute.Tensor, mColumnSum: cute.Tensor,
    name: Static[str], b_is_nk: Static[bool], paired: Static[str], vec: Static[int], ragged: Static[bool],
    tiles: Static[Tiles],
):  # fmt: skip
    """Statistics over rows and columns."""
    own = product(
        (mB,),
        (mY,),
        EPILOGUES[name],
        paired=paired,
        vec=vec,
        ragged=ragged,
        row_ops=("sum", "max"),
        column_ops=("sum",),
        row_parts=(mRowSum, mRowMax),
        column_parts=(mColumnSum,),
        reads=READS.get(name, (None, None)),
    )
    gemm_sm90.launch(stream, mA, (own,), b_is_nk=b_is_nk, tiles=tiles)


@cute.jit
def row_sums_launch(
    stream: cuda.CUstream, mA: cute.Tensor, mB: cute.Tensor, mY: cute.Tensor, mRowSum: cute.Tensor, mRowMax: cute.Tensor,
    name: Static[str], b_is_nk: Static[bool], paired: Static[str], vec: Static[int], ragged: Static[bool],
    tiles: Static[Tiles],
):  # fmt: skip
    """Statistics over rows alone."""
    own = product(
        (mB,),
        (mY,),
        EPILOGUES[name],
        paired=paired,
        vec=vec,
        ragged=ragged,
        row_ops=("sum", "max"),
        row_parts=(mRowSum, mRowMax),
        reads=READS.get(name, (None, None)),
    )
    gemm_sm90.launch(stream, mA, (own,), b_is_nk=b_is_nk, tiles=tiles)


# epilogue -> its launcher, and its operands in addition to a and b: one value a column, or a tile
LAUNCHERS = {
    "plain": (one_launch, ""), "sums": (sums_launch, ""), "row_sums": (row_sums_launch, ""),
    "swiglu": (one_launch, ""), "two": (two_launch, ""),
    "relu": (with_one_launch, "r"), "gelu": (with_one_launch, "r"), "gelu_erf": (with_one_launch, "r"),
    "dgelu": (with_one_launch, "t"), "residual": (with_two_launch, "rt"),
}  # fmt: skip
