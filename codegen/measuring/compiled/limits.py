"""The least time that a kernel's instructions take, counted in its machine code (`sass.py`)."""

from __future__ import annotations

import functools
import os
import subprocess

import jax

from codegen.explain.launching import Binding
from codegen.language.sizes import Shape, array_shape, elements
from codegen.measuring.compiled import sass
from codegen.measuring.compiled.compile import cubins_of_call, kernels_name
from codegen.plan.elementwise import Elementwise
from codegen.plan.rows.reductions import Reduction
from codegen.runtime.call import arguments
from codegen.runtime.call.arguments import Types
from codegen.runtime.compiled.platform import current_arch
from codegen.runtime.ops.op import AnyOp
from codegen.shared import Launch, RowLaunch, WalkLaunch
from codegen.targets import GPUS, Gpu, Work

Times = tuple[tuple[str, float], ...]


def instruction_times(op: AnyOp, binding: Binding, shape: Shape, clock: float | None = None) -> Times:
    """The microseconds that a call's instructions take on this GPU, by their kind (`targets.LIMITS`), at a `clock` in hertz or
    the highest one. None are known of an op that contracts, scans, selects or has stages, or of a GPU that `targets.GPUS` lacks."""
    arch = current_arch()
    gpu = None if arch is None else this_gpu(arch, jax.devices()[0].device_kind)
    counted = isinstance(op.plan, Elementwise | Reduction) and op.plan.uniform
    if not counted or arch is None or gpu is None:
        return ()
    rows, columns = op.plan.rows_and_columns(functools.partial(elements, shape=shape))
    work = work_of_element(op, Types(binding.types), shape, arch)
    return tuple((name, us * 1e6) for name, us in gpu.seconds(work.times(rows * columns), clock).items())


def this_gpu(arch: str, kind: str) -> Gpu | None:
    """The figures of the GPU that JAX gives this name, of an architecture; None if there are none."""
    words = set(kind.replace("-", " ").split())
    return next((g for g in GPUS if g.arch == arch and set(g.name.split()) - {"SXM", "80GB"} <= words), None)


def work_of_element(op: AnyOp, types: Types, shape: Shape, arch: str) -> Work:
    """The instructions for each element of the main loops of a call's kernels: not of kernels that only finish a reduction over rows."""
    arrays = {a.name: jax.ShapeDtypeStruct(array_shape(a, shape), types.dtype(a)) for a in op.spec.inputs}
    how = op.launch_for(types, arguments.bind_axes(op.spec, arrays), arch)
    _, columns = op.plan.rows_and_columns(functools.partial(elements, shape=shape))
    total, name = Work(0, 0, 0), kernels_name(op)
    for cubin in cubins_of_call(op, types, shape, arch):
        for kernel, code in sass.kernels(cubin, arch):
            first = getattr(how, "first", None)
            assert isinstance(how, Launch | RowLaunch | WalkLaunch)
            mine = any(f"{name}_{kind}" in kernel for kind in ("kernel", "places"))
            own = first if f"{name}_rows_kernel" in kernel else how if mine else None
            if own is not None:
                total += sass.main_loop(code).times(1 / elements_of_thread(own, columns))
    return total


def elements_of_thread(how: Launch | RowLaunch | WalkLaunch, columns: int) -> float:
    """The elements that a thread has in one iteration of its main loop, on average."""
    if isinstance(how, Launch):
        return how.vec * how.down
    lanes, most = how.per_row * how.cluster, how.vec * how.vectors
    if isinstance(how, RowLaunch):
        passes = 1 if how.holds_row else -(-columns // (lanes * most))
        return columns / (lanes * passes) * how.at_once
    # The pieces of a place, each of which has threads of its own
    pieces = -(-columns // how.width_of_piece) if how.by_place else 1
    return (columns / (lanes * pieces) if how.whole and columns else most) * how.at_once


def clock_now() -> float | None:
    """The clock of the first GPU's SMs in hertz, which it keeps for a while after its last kernel; None where it cannot
    be read."""
    # The first that this process sees, which may be another than the machine's
    first, _, _ = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")
    query = ["nvidia-smi", "--query-gpu=clocks.sm", "--format=csv,noheader,nounits", "-i", first or "0"]
    try:
        found = subprocess.run(query, capture_output=True, text=True, check=True, timeout=10).stdout
        return float(found.split()[0]) * 1e6
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
