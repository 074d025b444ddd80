"""Kernels with one planted fault each, and their sound twins: y = 2 x, one float32 a thread (or four, as one vector),
and the sum of a row by a cluster of blocks.

They are in their own file because CuTe DSL reads a kernel's source. `fault` selects the fault.
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T, dsl_user_op

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


# A cluster of blocks sums a row: each block sums its share, then every block's partial results


@dsl_user_op
def remote_load(pointer: cute.Pointer, rank, offset: int, space: str, *, loc=None, ip=None) -> cutlass.Float32:
    """Loads the word `offset` bytes after a shared-memory pointer, in the block of a rank."""
    operands = [x.ir_value(loc=loc, ip=ip) for x in (pointer.toint(loc=loc, ip=ip), cutlass.Int32(rank))]
    load = f"ld.{space}.f32 $0, [there+{offset}];"
    text = "{\n\t.reg .b32 there;\n\tmapa.shared::cluster.u32 there, $1, $2;\n\t" + load + "\n}"
    return cutlass.Float32(_assembly(T.f32(), operands, text, "=f,r,r", loc, ip))


@dsl_user_op
def remote_store(pointer: cute.Pointer, rank, value: cutlass.Float32, *, loc=None, ip=None) -> None:
    """Stores a value at a shared-memory pointer, in the block of a rank."""
    operands = [x.ir_value(loc=loc, ip=ip) for x in (pointer.toint(loc=loc, ip=ip), cutlass.Int32(rank), value)]
    text = "{\n\t.reg .b32 there;\n\tmapa.shared::cluster.u32 there, $0, $1;\n\tst.shared::cluster.f32 [there], $2;\n}"
    _assembly(None, operands, text, "r,r,f", loc, ip)


def _assembly(result, operands, text: str, constraints: str, loc, ip):
    return llvm.inline_asm(
        result, operands, text, constraints, has_side_effects=True, is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT, loc=loc, ip=ip,
    )  # fmt: skip


@cute.kernel
def cluster_sum_kernel(mX: cute.Tensor, mY: cute.Tensor, fault: cutlass.Constexpr[str]):
    tidx, _, _ = cute.arch.thread_idx()
    _, row, _ = cute.arch.block_idx()
    rank, blocks = cute.arch.block_idx_in_cluster(), cute.arch.cluster_size()
    sPartial = cutlass.memory.SmemAllocator().allocate_tensor(
        cutlass.Float32, cute.make_layout((2,)), byte_alignment=16
    )

    acc = cutlass.Float32(0.0)
    for i in cutlass.range(rank * THREADS + tidx, mX.shape[1], blocks * THREADS):
        acc += mX[row, i]
    acc = cute.arch.warp_reduction_sum(acc)
    if cutlass.const_expr(fault == "remote store before the other block started"):
        if tidx == 0:
            remote_store(sPartial.iterator, (rank + 1) % blocks, acc)  # too early
    if cutlass.const_expr(fault == "a warp's partial sum missing"):
        if tidx == 0:
            sPartial[0] = acc
    else:
        if tidx % 32 == 0:
            sPartial[tidx // 32] = acc

    if cutlass.const_expr(fault == "a block's barrier"):
        cute.arch.sync_threads()
    elif cutlass.const_expr(fault == "a relaxed arrival"):
        cute.arch.cluster_arrive_relaxed()
        cute.arch.cluster_wait()
    elif cutlass.const_expr(fault == "a relaxed arrival behind a fence"):
        cute.arch.fence_acq_rel_cluster()
        cute.arch.cluster_arrive_relaxed()
        cute.arch.cluster_wait()
    elif cutlass.const_expr(fault == "an arrival by half the threads"):
        if tidx < 32:
            cute.arch.cluster_arrive()
            cute.arch.cluster_wait()  # half
    elif cutlass.const_expr(fault == "two arrivals"):
        cute.arch.cluster_arrive()
        cute.arch.cluster_arrive()  # again
        cute.arch.cluster_wait()
    elif cutlass.const_expr(fault == "a wait with no arrival"):
        cute.arch.cluster_wait()  # unannounced
    else:
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()

    total = cutlass.Float32(0.0)
    space = cutlass.const_expr("shared" if fault == "an instruction for the block's own" else "shared::cluster")
    beyond = cutlass.const_expr(8 if fault == "out of the other block's bounds" else 0)
    extra = cutlass.const_expr(1 if fault == "a block outside the cluster" else 0)
    for other in cutlass.range(blocks + extra):
        for warp in cutlass.range_constexpr(2):
            total += remote_load(sPartial.iterator, other, 4 * warp + beyond, space)
    if cutlass.const_expr(fault == "overwritten while others read"):
        if tidx == 0:
            sPartial[0] = total  # while others read
    if cutlass.const_expr(fault != "exit while others read"):
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
    if rank == 0 and tidx == 0:
        mY[row] = total


@cute.jit
def cluster_sum(
    stream: cuda.CUstream, mX: cute.Tensor, mY: cute.Tensor, blocks: cutlass.Constexpr[int], fault: cutlass.Constexpr[str]
):  # fmt: skip
    cluster_sum_kernel(mX, mY, fault).launch(
        grid=(blocks, mY.shape[0], 1), block=(THREADS, 1, 1), cluster=(blocks, 1, 1), stream=stream
    )


# A block stages its vectors in shared memory, then each thread doubles those of another one


@cute.kernel
def staged_kernel(mX: cute.Tensor, mY: cute.Tensor, fault: cutlass.Constexpr[str]):
    tidx, _, _ = cute.arch.thread_idx()
    bidx, _, _ = cute.arch.block_idx()
    layout = cute.make_layout((4,))
    sX = cutlass.memory.SmemAllocator().allocate_tensor(
        cutlass.Float32, cute.make_layout((4 * THREADS,)), byte_alignment=16
    )
    start = cute.assume((bidx * THREADS + tidx) * 4, divby=4)
    atom = cute.make_copy_atom(cute.nvgpu.cpasync.CopyG2SOp(), cutlass.Float32, num_bits_per_copy=128)
    mine = cute.assume(tidx * 4, divby=4)
    cute.copy(atom, cute.make_tensor(mX.iterator + start, layout), cute.make_tensor(sX.iterator + mine, layout))
    cute.arch.cp_async_commit_group()
    if cutlass.const_expr(fault != "no wait"):
        cute.arch.cp_async_wait_group(0)
    if cutlass.const_expr(fault != "no barrier"):
        cute.arch.sync_threads()
    other = (THREADS - 1 - tidx) * 4
    for i in cutlass.range_constexpr(4):
        mY[start + i] = sX[other + i] * 2.0  # another's


@cute.jit
def staged(stream: cuda.CUstream, mX: cute.Tensor, mY: cute.Tensor, fault: cutlass.Constexpr[str]):
    blocks = mY.shape[0] // (4 * THREADS)
    staged_kernel(mX, mY, fault).launch(grid=(blocks, 1, 1), block=(THREADS, 1, 1), stream=stream)
