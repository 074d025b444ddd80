"""Cross-compiles generated kernels for an architecture, without a GPU, and reads registers, spills and accesses from the code.

It compiles the launcher that calls run, on tensors of which only the divisors of the sizes are known.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax

from codegen import cache
from codegen.graph.nodes import DTYPES
from codegen.language.sizes import Shape, array_shape
from codegen.measuring.compiled.accesses import Operand, entries, operands, widest_first
from codegen.measuring.compiled.variants import Variant, launch_of
from codegen.plan.attention import AttentionBackward, AttentionPlan
from codegen.plan.rows.scanning import Scan
from codegen.runtime.call import views
from codegen.runtime.call.arguments import Types
from codegen.runtime.call.described import Key
from codegen.runtime.call.typed import element_type
from codegen.runtime.compiled import kernels, signs
from codegen.runtime.compiled.cubins import cubins_in, read_cubin
from codegen.runtime.compiled.kernels import CompiledCall, nameable
from codegen.runtime.compiled.launcher_call import LauncherCall
from codegen.runtime.compiled.platform import COMPILE_OPTIONS, compiling_for
from codegen.runtime.ops.by_graph import ByGraph
from codegen.runtime.ops.gemm_op import GemmOp
from codegen.runtime.ops.op import AnyOp
from codegen.shared import RowLaunch, ScanLaunch, Walk


@dataclass(frozen=True)
class Compiled:
    """A kernel's code for one architecture. Registers are per thread; sizes are in bytes.

    `stack` is a thread's stack frame: local arrays of the source (a library function's tables, say) and spilled registers.
    `spills` counts only the spilled ones, loads and stores together.
    """

    ptx: str
    cubin: bytes
    registers: int
    stack: int
    spills: int
    shared: int
    operands: tuple[Operand, ...]  # in the launcher's order
    unbound: int = 0  # the blocks that an SM should have registers for, where it has not, since the kernel would spill

    @property
    def loads(self) -> tuple[int, ...]:
        return widest_first(w for o in self.operands for w in o.loads)

    @property
    def stores(self) -> tuple[int, ...]:
        return widest_first(w for o in self.operands for w in o.stores)


def compile_kernel(
    op: AnyOp,
    variant: Variant,
    arch: str,
    static: dict[str, Any] | None = None,
) -> Compiled:
    """Compile one kernel, or take it from the cache on disk. `static` overrides the defaults of static params (1 where there
    is none)."""
    call, names = _call(op, variant, arch, static)
    return _with_operands(op, _kept(call) or _compile(op, call), names)


def kept_kernel(op: AnyOp, variant: Variant, arch: str) -> Compiled | None:
    """The kernel of an earlier `compile_kernel`, if the cache on disk has it."""
    call, names = _call(op, variant, arch)
    found = _kept(call)
    return None if found is None else _with_operands(op, found, names)


def compile_call(op: GemmOp[..., Any], example: LauncherCall, arch: str) -> Compiled:
    """The kernel of such a call, without the access widths of its main loop."""
    call = example.compiled_for(arch)
    return _kept(call) or _compile(op, call)


def _call(
    op: AnyOp,
    variant: Variant,
    arch: str,
    static: dict[str, Any] | None = None,
) -> tuple[CompiledCall, dict[str, bool] | None]:
    """The call to compile, and the names of its tensors, each with whether it is present. The names are None for a kernel that
    contracts, which is the one for large matrices."""
    if isinstance(op, GemmOp):
        with jax.enable_x64(any(DTYPES[variant.types.dtype(a)].size == 8 for a in op.spec.arrays)):
            return op.example_call(variant.types, variant.ragged, variant.defaults, arch).compiled_for(arch), None
    spec, how = op.spec, launch_of(op, variant, arch)

    def array(a: Any) -> Any:
        if a.default is not None and variant.defaults:
            return None
        dtype = views.kernel_dtype(a, variant.types.dtype(a), how)
        return dtype, views.divisibility(op.plan, a, how), views.alignment(op.plan, a, dtype)

    there = [a for a in spec.inputs if a.default is None or not variant.defaults]
    compute = "float64" if any(variant.types.dtype(a) == "float64" for a in there) else "float32"
    tensors = {a.name: array(a) for a in spec.inputs}
    scalars = {p.name: p.dtype(compute) for p in spec.dynamic_params}
    tensors |= {name: (dtype, (1,), DTYPES[dtype].size) for name, dtype in scalars.items()}
    tensors |= {a.name: array(a) for a in spec.outputs}
    for statistic, dtype in views.part_dtypes(op.plan, compute, spec.integer):
        divisors: tuple[int, ...] = (1, 1) if statistic.over == "column" else (1,)
        tensors[f"{statistic.name} parts"] = dtype, divisors, views.PARTS_ALIGNMENT
    for statistic, dtype in views.row_statistic_dtypes(op.plan, compute, spec.integer):
        divisors = (1,) * max(1, op.plan.leading)
        tensors[f"{statistic.name} of rows"] = dtype, divisors, views.PARTS_ALIGNMENT
    if isinstance(op.plan, Scan):
        tensors |= dict.fromkeys(op.plan.between, (compute, (1, 1), views.PARTS_ALIGNMENT))
    if isinstance(op.plan, AttentionPlan):
        divisors = (1, 1) if isinstance(op.plan, AttentionBackward) else (1, 1, 1)
        tensors["parts"] = "float32", divisors, views.PARTS_ALIGNMENT
        tensors["table"] = "int32", (1,), views.PARTS_ALIGNMENT
    if views.counts(op.plan):
        tensors["counter"] = "int32", (1,), views.PARTS_ALIGNMENT
    constants: dict[str, Any] = {p.name: (static or {}).get(p.name, p.example) for p in spec.params if p.static}
    constants |= op.passed_types(variant.types) | how.constants
    call = CompiledCall(op._launch, tuple(tensors.values()), (), tuple(constants.items()), arch)
    known = None if isinstance(op, ByGraph) else {name: t is not None for name, t in tensors.items()}
    return call, known


def _with_operands(op: AnyOp, made: Compiled, found: dict[str, bool] | None) -> Compiled:
    if found is None:
        return made
    own = [(text, [n for n in parameters_of(op, name, list(found)) if found[n]]) for name, text in entries(made.ptx)]
    return replace(made, operands=operands(own, [n for n in found if found[n]]))


OPTIONS = f"{COMPILE_OPTIONS} --keep-ptx --keep-cubin"
_KEPT_AS = f"{OPTIONS}, spills and dropped bounds"  # the contents of the cache's entries


def _compile(op: AnyOp, call: CompiledCall) -> Compiled:
    """A launcher's kernels, without their accesses."""
    import cutlass.cute as cute
    from cutlass.cute.runtime import make_fake_stream

    tensors = [None if t is None else _fake(*t) for t in (*call.inputs, *call.outputs)]

    def compiled(tried: CompiledCall, options: str) -> Any:
        constants = (nameable(value) for _, value in tried.constants)
        stream = make_fake_stream()
        return cute.compile(op._launch, stream, *tensors, *constants, options=options, no_jit_engine=True)

    with compiling_for(call.arch):
        tried, result = kernels.chosen(
            call, lambda tried: (tried, compiled(tried, OPTIONS)), lambda found: [found[1].__cubin__]
        )
        signs.check(result.__ptx__, call.arch, kernels.name_of(call))
        registers, stack, shared = read_cubin(result.__cubin__)
        # Spills are on the stack, so only a kernel with a stack is compiled again for ptxas's report
        spills = _spills(lambda: compiled(tried, f"{COMPILE_OPTIONS} remarks{{ptx}}")) if stack else 0
    enough = kernels.suffice(call, [result.__cubin__])
    unbound = 0 if enough else max(most_resident(value) for _, value in call.constants)
    made = Compiled(result.__ptx__, result.__cubin__, registers, stack, spills, shared, (), unbound)
    _keep(call, made)
    return made


def _keep(call: CompiledCall, made: Compiled) -> None:
    """Store it in the cache on disk, where its key covers everything that determines the kernel."""
    key = kernels.key_of(call, _KEPT_AS)
    if key is not None:
        numbers = json.dumps([made.registers, made.stack, made.spills, made.shared, made.unbound]).encode()
        cache.store(kernels.name_of(call), key, {"ptx": made.ptx.encode(), "cubin": made.cubin, "numbers": numbers})


def _kept(call: CompiledCall) -> Compiled | None:
    """The entry that `_keep` stored for this call, without its accesses."""
    key = kernels.key_of(call, _KEPT_AS)
    found = None if key is None else cache.load(kernels.name_of(call), key)
    if found is None or found.keys() != {"ptx", "cubin", "numbers"}:
        return None
    registers, stack, spills, shared, unbound = json.loads(found["numbers"])
    return Compiled(found["ptx"].decode(), found["cubin"], registers, stack, spills, shared, (), unbound)


def most_resident(value: Any) -> int:
    """The blocks that a launcher's constant wants an SM to have registers for, at least."""
    first = most_resident(value.first) if isinstance(value, Walk) and value.first is not None else 0
    return max(value.resident, first) if isinstance(value, RowLaunch | Walk | ScanLaunch) else 0


def _fake(dtype: str, divisors: tuple[int, ...], alignment: int) -> Any:
    """A compact tensor whose sizes are multiples of `divisors`."""
    import cutlass.cute as cute
    from cutlass.cute.runtime import make_fake_compact_tensor

    shape = tuple(cute.sym_int(divisibility=d) for d in divisors)
    order = tuple(reversed(range(len(shape))))
    return make_fake_compact_tensor(element_type(dtype), shape, stride_order=order, assumed_align=alignment)


def kernels_name(op: AnyOp) -> str:
    """The beginning of the names of an op's kernels: its own name, or that of an op in its module with the same kernels."""
    return str(inspect.unwrap(op._launch).__name__).removesuffix("_launch")


def parameters_of(op: AnyOp, entry: str, tensors: list[str]) -> list[str]:
    """The launcher's tensors that a kernel takes, by their names in the generated file."""
    names, stem = list(inspect.signature(op._launch).parameters)[1:], kernels_name(op)
    module = inspect.unwrap(op._launch).__globals__
    beginnings = tuple(f"{stem}_{kind}" for kind in ("kernel", "places", "finish", "rows_kernel", "starts_kernel"))
    # With the "_": the types of its arguments follow, and the N of None would end a name that ends in N
    kernels = [k for k in module if f"{k}_" in entry and k.startswith(beginnings)]
    if not kernels:  # `scan.finish`, `partials.begin`
        return ["parts", op.spec.outputs[0].name] if "_finish_" in entry else ["counter"]
    kernel = module[max(kernels, key=len)]
    own = inspect.signature(kernel).parameters
    return [tensor for name, tensor in zip(names, tensors, strict=False) if name in own]


def _spills(compile_verbosely: Callable[[], object]) -> int:
    """The spilled bytes, stores and loads together, from ptxas's report on stderr, which is wrapped to lines."""
    with contextlib.redirect_stderr(io.StringIO()) as log:
        compile_verbosely()
    found = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", " ".join(log.getvalue().split()))
    if not found:
        raise RuntimeError(f"ptxas did not report spills: {log.getvalue()[:500]!r}")
    return sum(int(stores) + int(loads) for stores, loads in set(found))


def resources_of_call(op: AnyOp, types: Types, shape: Shape, arch: str) -> tuple[int, int, int]:
    """Registers, stack and shared memory of the kernel that a call at a shape runs, the largest of each where it runs several."""
    found = [read_cubin(cubin) for cubin in cubins_of_call(op, types, shape, arch)]
    return tuple(max(numbers) for numbers in zip(*found, strict=True))


def cubins_of_call(op: AnyOp, types: Types, shape: Shape, arch: str) -> list[bytes]:
    """The machine code of the kernels that a call at a shape runs. It is compiled as the call compiles it, or taken from the cache on
    disk."""
    arrays = {a.name: jax.ShapeDtypeStruct(array_shape(a, shape), types.dtype(a)) for a in op.spec.inputs}
    dynamic = [jax.ShapeDtypeStruct((), p.dtype()) for p in op.spec.dynamic_params]
    static = tuple((p.name, p.example) for p in op.spec.params if p.static)
    call = op._kernel_call(Key("cute", types, tuple(arrays), static), (*arrays.values(), *dynamic), arch)
    module = kernels.binary(call.compiled_for(arch)).module
    return cubins_in(module)


def disassemble(cubin: bytes) -> str | None:
    """A kernel's SASS, from the CUDA toolkit's tools; None where neither is on PATH."""
    for tool, option in (("cuobjdump", "-sass"), ("nvdisasm", "-c")):
        if path := shutil.which(tool):
            with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
                file.write(cubin)
                file.flush()
                done = subprocess.run([path, option, file.name], capture_output=True, text=True, check=False)
            if done.returncode == 0:
                return done.stdout
            raise RuntimeError(f"{tool}: {done.stderr.strip()}")
    return None
