"""Cross-compiles generated kernels for an architecture, without a GPU, and reads registers, spills and accesses from the code.

It compiles the launcher that calls run, on tensors of which only the divisors of the sizes are known.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import itertools
import json
import math
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax

from codegen import cache
from codegen.errors import UserError
from codegen.graph.nodes import DTYPES
from codegen.language.sizes import Shape, array_shape
from codegen.plan.attention import AttentionBackward, AttentionPlan
from codegen.plan.launches import Extents, PlannedCall
from codegen.plan.planner import planned_call
from codegen.plan.rows.middle import Middle
from codegen.plan.rows.reductions import Reduction
from codegen.plan.rows.scanning import Scan
from codegen.plan.rows.selecting import MOST_THREADS, SORTED, THREAD_ELEMENTS, WARP_ROW, Sort, Threshold
from codegen.plan.rows.single import Single
from codegen.plan.rows.steps import Steps
from codegen.plan.rows.strided import Strided
from codegen.runtime.call import views
from codegen.runtime.call.arguments import Types, all_types
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
from codegen.shared import Launch, RowLaunch, ScanLaunch, Walk, WalkLaunch


@dataclass(frozen=True)
class Variant:
    """One kernel to compile: the bound types, whether rows are ragged, whether inputs with defaults are left out, and, where
    the op reduces, the columns of a row."""

    types: Types
    ragged: bool
    defaults: bool = False
    columns: int | None = None

    def __str__(self) -> str:
        words = [f"{name}={dtype}" for name, dtype in self.types.variables]
        words += [] if self.columns is None else [f"columns={self.columns}"]
        words += ["ragged"] if self.ragged else []
        return " ".join([*words, *(["defaults"] if self.defaults else [])]) or "-"


@dataclass(frozen=True)
class Operand:
    """A kernel's array, and the distinct widths of its loads and stores, in bytes, widest first."""

    name: str
    loads: tuple[int, ...]
    stores: tuple[int, ...]


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
        return _widest_first(w for o in self.operands for w in o.loads)

    @property
    def stores(self) -> tuple[int, ...]:
        return _widest_first(w for o in self.operands for w in o.stores)


def variants(op: AnyOp, wanted: Mapping[str, str] | None = None) -> Iterator[Variant]:
    """Every kernel that calls of an op can need (with the dtypes in `wanted`), for one value of static params, and only for
    rows of the lengths in `row_lengths`."""
    some = any(a.default is not None for a in op.spec.inputs)
    if isinstance(op, GemmOp):
        ways = itertools.product(all_types(op.spec, wanted), (False, True), (False, True) if some else (False,))
        yield from (Variant(types, ragged, defaults) for types, ragged, defaults in ways)
        return
    for types in all_types(op.spec, wanted):
        whole = any(DTYPES[types.dtype(a)].packed for a in op.spec.arrays)  # no row is ragged
        for columns in row_lengths(op, types):
            for ragged in (False, True):
                variant = Variant(types, ragged, False, columns)
                if isinstance(op.plan, Middle | Single | Steps | Strided) and not _has_room(op, variant):
                    continue
                if ragged and (whole or not _may_be_ragged(op, variant)):
                    continue
                for defaults in (False, True) if some else (False,):
                    yield replace(variant, defaults=defaults)


def _may_be_ragged(op: AnyOp, variant: Variant) -> bool:
    """Whether calls have rows of other lengths, for which there is another kernel."""
    if isinstance(op.plan, AttentionPlan) or _fixed_length(op) is not None:
        return False
    return launch_of(op, replace(variant, ragged=False)).vec > 1


def _fixed_length(op: AnyOp) -> int | None:
    """The number of columns where the spec says it."""
    plan, known = op.plan, op.spec.extents
    if not isinstance(plan, Reduction) or plan.collapsed or isinstance(plan, Middle):
        return None
    if any(axis not in known for group in plan.column_groups for axis in group.axes):
        return None
    return plan.rows_and_columns(lambda axes: math.prod(known.get(axis, 1) for axis in axes))[1]


def _has_room(op: AnyOp, variant: Variant) -> bool:
    """Whether a block has room for such rows."""
    try:
        launch_of(op, variant)
    except UserError:
        return False
    return True


# Bytes of a row's inputs: a few threads hold it; a block holds it; a cluster holds it, or, without clusters, it is read again
# for every stage.
ROW_BYTES = (256, 16 * 1024, 256 * 1024)
MIDDLE_LENGTHS = (16, 128)  # elements along a middle axis, and along the innermost one


def row_lengths(op: AnyOp, types: Types) -> tuple[int | None, ...]:
    """Representative numbers of columns: one for each way in which the kernel handles a row."""
    plan = op.plan
    if isinstance(plan, Sort):
        return plan.edges(PlannedCall({}))[-1] // 2, SORTED // 2
    if isinstance(plan, Steps):  # a warp's row, and a block's
        return WARP_ROW // 8, 2 * WARP_ROW
    if isinstance(plan, Threshold):  # whose row registers hold, or not
        return 2 * WARP_ROW, 2 * MOST_THREADS * THREAD_ELEMENTS
    if not isinstance(plan, Reduction) or plan.collapsed:
        return (None,)
    if isinstance(plan, Middle):  # whose threads have all elements of their rows, or share them
        return MIDDLE_LENGTHS
    fixed = _fixed_length(op)
    if fixed is not None:
        return (fixed,)
    call = planned_call(op.spec, types, Extents())
    found = [size // plan.column_bytes(call) // 16 * 16 or 16 for size in ROW_BYTES]
    if not plan.rows:
        found = found[:2]  # kernels that reduce over rows have at most a warp per row
    return tuple(found)


def launch_of(op: AnyOp, variant: Variant, arch: str | None = None) -> Launch | RowLaunch | WalkLaunch:
    """The launch of a variant, for many rows where their number matters."""
    columns = variant.columns
    if columns is None:
        inner = None if variant.ragged else 16
        extents = Extents(inner, inner, turned=inner)
    else:
        columns += variant.ragged
        extents = Extents(columns, columns, columns)
    how: Launch | RowLaunch | WalkLaunch = op.plan.launch(planned_call(op.spec, variant.types, extents, arch))
    return how


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
    wide = any(variant.types.dtype(a) == "float64" for a in there)
    scalar = {"float": "float64" if wide else "float32", "int": "int32", "bool": "bool"}
    tensors = {a.name: array(a) for a in spec.inputs}
    tensors |= {p.name: (scalar[p.kind], (1,), DTYPES[scalar[p.kind]].size) for p in spec.params if not p.static}
    tensors |= {a.name: array(a) for a in spec.outputs}
    for statistic, dtype in views.part_dtypes(op.plan, "float64" if wide else "float32", spec.integer):
        divisors: tuple[int, ...] = (1, 1) if statistic.over == "column" else (1,)
        tensors[f"{statistic.name} parts"] = dtype, divisors, views.PARTS_ALIGNMENT
    for statistic, dtype in views.row_statistic_dtypes(op.plan, "float64" if wide else "float32", spec.integer):
        divisors = (1,) * max(1, op.plan.leading)
        tensors[f"{statistic.name} of rows"] = dtype, divisors, views.PARTS_ALIGNMENT
    if isinstance(op.plan, Scan):
        compute = "float64" if wide else "float32"
        tensors |= dict.fromkeys(op.plan.between, (compute, (1, 1), views.PARTS_ALIGNMENT))
    if isinstance(op.plan, AttentionPlan):
        tensors["parts"] = (
            "float32",
            (1, 1) if isinstance(op.plan, AttentionBackward) else (1, 1, 1),
            views.PARTS_ALIGNMENT,
        )
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
    unbound = (
        0 if kernels.suffice(call, [result.__cubin__]) else max(most_resident(value) for _, value in call.constants)
    )
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
    kernels = [
        k
        for k in module
        if f"{k}_"
        in entry  # with the "_": the types of its arguments follow, and the N of None would end a name that ends in N
        and k.startswith(
            tuple(f"{stem}_{kind}" for kind in ("kernel", "places", "finish", "rows_kernel", "starts_kernel"))
        )
    ]
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
    scalar = {"float": "float32", "int": "int32", "bool": "bool"}
    dynamic = [jax.ShapeDtypeStruct((), scalar[p.kind]) for p in op.spec.params if not p.static]
    static = tuple((p.name, p.example) for p in op.spec.params if p.static)
    call = op._kernel_call(Key("cute", types, tuple(arrays), static), (*arrays.values(), *dynamic), arch)
    module = kernels.binary(call.compiled_for(arch)).module
    return cubins_in(module)


# Global memory in PTX


@dataclass(frozen=True)
class MemoryAccess:
    """One load or store of global memory in PTX. `sources` are the possible origins of its address: positions of the kernel's
    parameters, or names of constant tables."""

    store: bool
    width: int
    sources: frozenset[int | str]


_INSTRUCTION = re.compile(r"^\s*(?:@!?%\w+\s+)?([a-z][\w.:]*)\s+(.+);$")
_REGISTER = re.compile(r"%\w+")
_SYMBOL = re.compile(r"(?<![%\w.$])[A-Za-z_$][\w$]*")
_SPACES = {"param", "local", "shared", "const", "tex"}


def entries(ptx: str) -> Iterator[tuple[str, str]]:
    """Each kernel's name and text, without the library functions that it calls."""
    for text in re.split(r"(?m)^}$", ptx):
        if found := re.search(r"(?m)^(?:\.visible )?\.entry (\w+)", text):
            yield found[1], text[found.start() :]


def memory_accesses(entry: str) -> list[MemoryAccess]:
    """Every access of global (or generic) memory in a kernel itself, not in library functions that it calls.

    A pointer is the first eight bytes of a tensor's parameter. Address arithmetic is followed from there.
    """
    body = entry[entry.index("\n{") :]
    instructions = [m.groups() for line in body.splitlines() if (m := _INSTRUCTION.match(line))]
    sources: dict[str, frozenset[int | str]] = {}
    changed = True
    while changed:  # until nothing changes: a register may be written in a later line than it is read
        changed = False
        for name, text in instructions:
            target, found = _pointers(name, text, sources)
            if target and not found <= sources.get(target, frozenset()):
                sources[target] = sources.get(target, frozenset()) | found
                changed = True
    return [a for name, text in instructions if (a := _access(name, text, sources))]


def _pointers(name: str, text: str, sources: dict[str, frozenset[int | str]]) -> tuple[str, frozenset[int | str]]:
    """The 64-bit register that an instruction writes, and its possible origins."""
    words = name.split(".")
    if name.startswith("ld.param."):
        parameter = re.search(r"\[\w*_param_(\d+)(?:\+0)?\]", text)
        target = _REGISTER.search(text)
        if parameter and target and words[-1] in ("b64", "u64", "s64"):
            return target[0], frozenset({int(parameter[1])})
    elif words[0] in ("add", "sub", "mov", "cvta", "mad", "selp") and words[-1] in ("b64", "u64", "s64"):
        registers = _REGISTER.findall(text)
        return registers[0], frozenset(_SYMBOL.findall(text)).union(*(sources.get(r, set()) for r in registers[1:]))
    return "", frozenset()


def _access(name: str, text: str, sources: dict[str, frozenset[int | str]]) -> MemoryAccess | None:
    words = name.replace("::", ".").split(".")
    if copied := re.search(r"\[(%\w+)[^\]]*\], (\d+)", text) if name.startswith("cp.async.c") else None:
        return MemoryAccess(False, int(copied[2]), sources.get(copied[1], frozenset()))
    if words[0] not in ("ld", "st", "ldu") or _SPACES & set(words):
        return None
    bits = next(int(w[1:]) for w in reversed(words) if re.fullmatch(r"[bsuf]\d+", w))
    vector = next((int(w[1:]) for w in words if re.fullmatch(r"v\d", w)), 1)
    address = re.search(r"\[(%\w+)", text)
    found = sources.get(address[1], frozenset()) if address else frozenset()
    return MemoryAccess(words[0] == "st", vector * bits // 8, found)


def operands(found: list[tuple[str, list[str]]], names: list[str]) -> tuple[Operand, ...]:
    """The loads and stores of each array by a launcher's kernels. `found` holds each kernel's text and its arrays, in order;
    `names` are all arrays."""
    widths: dict[tuple[str, bool], list[int]] = {}
    for text, own in found:
        for access in memory_accesses(text):
            tables = all(isinstance(source, str) for source in access.sources)
            if len(access.sources) != 1 or not (tables or access.sources <= set(range(len(own)))):
                raise RuntimeError(f"cannot tell which of {', '.join(own)} a {access.width}-byte access belongs to")
            for source in access.sources:
                if isinstance(source, int):
                    widths.setdefault((own[source], access.store), []).append(access.width)
    return tuple(
        Operand(name, *(_widest_first(widths.get((name, store), [])) for store in (False, True))) for name in names
    )


def _widest_first(widths: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(set(widths), reverse=True))


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
