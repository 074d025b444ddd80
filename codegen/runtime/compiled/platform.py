"""The architecture and options of kernels, and a primitive that is lowered differently on CUDA and elsewhere.

`jax.lax.platform_dependent` is no alternative, because it lowers every branch for every platform of a multi-platform export,
and a kernel has no lowering for a CPU. The rules of a primitive are lowered only for their own platform.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.extend
from jax._src.dispatch import prim_requires_devices_during_lowering
from jax.interpreters import mlir
from jax.sharding import NamedSharding, PartitionSpec

from codegen.parsing import PARSER
from codegen.runtime.compiled.tracing import traced_quickly

Function = Callable[..., Sequence[jax.Array]]

# The options of every kernel. The assembler does not fuse products and sums that are separate in the PTX. So a GPU computes
# what the PTX says, to the bit, and a chain is rounded as its formula says.
COMPILE_OPTIONS = "--ptxas-options '-fmad=false'"


def on_gpu() -> bool:
    """Whether JAX has an NVIDIA GPU."""
    return jax.default_backend() == "gpu"


def current_arch() -> str | None:
    """The architecture of kernels: CUTE_DSL_ARCH where it is set, else the first GPU's, else None."""
    named = os.environ.get("CUTE_DSL_ARCH")
    if named or not on_gpu():
        return named or None
    major, minor = str(jax.devices()[0].compute_capability).split(".")
    number = f"{major}{minor}"
    return f"sm_{number}a" if int(major) >= 9 else f"sm_{number}"


def arch_alone() -> str | None:
    """The architecture where JAX has one GPU. On several, XLA may shard what a product contracts, and then adds the devices' sums."""
    return current_arch() if jax.device_count() == 1 else None


@contextlib.contextmanager
def compiling_for(arch: str) -> Iterator[str]:
    """A context in which the compiler compiles for an architecture. It yields a temporary folder for the PTX and cubins
    that the compiler keeps. One thread at a time: the settings are per process, and the compiler parses Python."""
    with PARSER, tempfile.TemporaryDirectory(prefix="codegen-") as folder, traced_quickly():
        with settings_for(arch, folder):
            yield folder


@contextlib.contextmanager
def settings_for(arch: str, folder: str = "") -> Iterator[Any]:
    """A context in which the compiler's settings are those for an architecture; yields them. One thread at a time."""
    from cutlass.cutlass_dsl.cutlass import CuTeDSL

    with PARSER:
        environment = CuTeDSL._get_dsl().envar
        before = environment.dump_dir, environment.arch
        environment.dump_dir, environment.arch = folder or before[0], arch
        try:
            yield environment
        finally:
            environment.dump_dir, environment.arch = before


_choose_p = jax.extend.core.Primitive("codegen_op")
_choose_p.multiple_results = True
prim_requires_devices_during_lowering.add(_choose_p)  # the lowering of a kernel does, but JAX does not see it


Kernel = Callable[[tuple[bool, ...]], Function]


def choose(cuda: Kernel, default: Function, *operands: jax.Array, refuse: str = "") -> Sequence[jax.Array]:
    """`cuda(donated)(*operands)` on CUDA, `default(*operands)` elsewhere; both return tuples of the same shapes and dtypes.
    `donated` says for each operand whether the program's caller donates an argument of its type. With `refuse`, a ValueError
    with that message is raised elsewhere."""
    return tuple(_choose_p.bind(*operands, cuda=cuda, default=default, refuse=refuse))


@_choose_p.def_abstract_eval
def _shapes(*operands: Any, cuda: Kernel, default: Function, refuse: str) -> list[Any]:
    del cuda, refuse
    shapes = jax.eval_shape(default, *(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in operands))
    # A shard of a partition has no mesh
    mesh = next((x.sharding.mesh for x in operands if not x.sharding.mesh.empty), None)
    if mesh is None:
        return [jax.core.ShapedArray(s.shape, s.dtype) for s in shapes]
    whole = [NamedSharding(mesh, PartitionSpec(*(None for _ in s.shape))) for s in shapes]
    return [jax.core.ShapedArray(s.shape, s.dtype, sharding=w) for s, w in zip(shapes, whole, strict=True)]


@_choose_p.def_impl
def _run(*operands: Any, cuda: Kernel, default: Function, refuse: str) -> Sequence[jax.Array]:
    """Outside any jit, as under jax.disable_jit."""
    all_there = all(d.platform == "gpu" for x in operands for d in jax.numpy.asarray(x).devices())
    if refuse and not all_there:
        raise ValueError(refuse)
    return cuda((False,) * len(operands))(*operands) if all_there else default(*operands)


def _lower_default(ctx: Any, *operands: Any, cuda: Kernel, default: Function, refuse: str) -> Any:
    del cuda
    if refuse:
        raise ValueError(refuse)
    return mlir.lower_fun(default, multiple_results=True)(ctx, *operands)


def _lower_cuda(ctx: Any, *operands: Any, cuda: Kernel, default: Function, refuse: str) -> Any:
    del default, refuse
    module = ctx.module_context
    if len(module.platforms) > 1:
        ctx = ctx.replace(module_context=module.replace(platforms=("cuda",)))
    kinds = _donated_types(module.module)
    kernel = cuda(tuple(x.type in kinds for x in operands))

    def apart(*arrays: jax.Array) -> Sequence[jax.Array]:
        """Without the barrier, XLA takes the call and the write of its result into an array that a loop stacks as one. Where others
        use the result too, the kernel runs twice."""
        return tuple(jax.lax.optimization_barrier(tuple(kernel(*arrays))))

    return mlir.lower_fun(apart, multiple_results=True)(ctx, *operands)


def _donated_types(module: Any) -> set[Any]:
    """The types of a program's donated arguments."""
    for function in module.body.operations:
        if getattr(function, "name", None) is not None and function.name.value == "main":
            names = ("tf.aliasing_output", "jax.buffer_donor")
            attributes = zip(function.type.inputs, function.arg_attrs, strict=True)
            return {kind for kind, own in attributes if any(name in own for name in names)}
    return set()


mlir.register_lowering(_choose_p, _lower_default)
mlir.register_lowering(_choose_p, _lower_cuda, platform="cuda")
