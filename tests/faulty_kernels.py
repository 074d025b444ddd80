"""Kernels with one planted fault each, and their sound twin: y = 2 x, one float32 a thread (or four, as one vector).

CuTe DSL reads a kernel's source, so they stand in a file of their own. `fault` picks what is broken.
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute

THREADS = 64


@cute.kernel
def double_kernel(mX: cute.Tensor, mY: cute.Tensor, fault: cutlass.Constexpr[str]):
    tidx, _, _ = cute.arch.thread_idx()
    bidx, _, _ = cute.arch.block_idx()
    i = bidx * THREADS + tidx
    size = mY.shape[0]
    if cutlass.const_expr(fault == "none"):
        if i < size:
            mY[i] = mX[i] * 2.0
    if cutlass.const_expr(fault == "predicate off by one"):
        if i <= size:
            mY[i] = mX[i] * 2.0  # off by one
    if cutlass.const_expr(fault == "missing predicate"):
        mY[i] = mX[i] * 2.0  # no predicate
    if cutlass.const_expr(fault == "wrong index stride"):
        if i < size:
            mY[i] = mX[i * 3] * 2.0  # wrong stride
    if cutlass.const_expr(fault == "unwritten tail"):
        if i < size - 3:
            mY[i] = mX[i] * 2.0
    if cutlass.const_expr(fault == "read before written"):
        if i < size:
            mY[i] = mX[i] * 2.0 + mY[i]  # accumulates
    if cutlass.const_expr(fault == "two writers"):
        if i < size:
            mY[i] = mX[i] * 2.0
            mY[i // 2] = mX[i] * 3.0  # collides
    if cutlass.const_expr(fault == "store into an input"):
        if i < size:
            mX[i] = mX[i] * 2.0  # in place


@cute.jit
def double(stream: cuda.CUstream, mX: cute.Tensor, mY: cute.Tensor, fault: cutlass.Constexpr[str]):
    blocks = (mY.shape[0] + THREADS - 1) // THREADS
    double_kernel(mX, mY, fault).launch(grid=(blocks, 1, 1), block=(THREADS, 1, 1), stream=stream)


@cute.kernel
def double_vectors_kernel(mX: cute.Tensor, mY: cute.Tensor, fault: cutlass.Constexpr[str]):
    tidx, _, _ = cute.arch.thread_idx()
    bidx, _, _ = cute.arch.block_idx()
    start = (bidx * THREADS + tidx) * 4
    rX = cute.make_rmem_tensor((4,), cutlass.Float32)
    if start < mY.shape[0] - 4:
        skew = cutlass.const_expr(1 if fault == "wrong alignment" else 0)
        gX = cute.make_tensor(mX.iterator + cute.assume(start + skew, divby=4), cute.make_layout((4,)))
        gY = cute.make_tensor(mY.iterator + cute.assume(start, divby=4), cute.make_layout((4,)))
        cute.autovec_copy(gX, rX)  # the vector
        rX.store(rX.load() * 2.0)
        cute.autovec_copy(rX, gY)
    elif start < mY.shape[0]:
        for i in cutlass.range_constexpr(4):
            mY[start + i] = mX[start + i] * 2.0


@cute.jit
def double_vectors(stream: cuda.CUstream, mX: cute.Tensor, mY: cute.Tensor, fault: cutlass.Constexpr[str]):
    blocks = (mY.shape[0] + 4 * THREADS - 1) // (4 * THREADS)
    double_vectors_kernel(mX, mY, fault).launch(grid=(blocks, 1, 1), block=(THREADS, 1, 1), stream=stream)
