"""Cross-compiling a generated kernel for an architecture, with no GPU needed, and what came out of it.

The launcher compiled is the one that `cutlass_call` runs, on tensors whose extents are unknown but for divisibility.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import re
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from codegen.ir import DTYPES
from codegen.plan import Launch, launch
from codegen.runtime import views
from codegen.runtime.arguments import Types
from codegen.runtime.op import Op
from codegen.spec import Spec

ARCHITECTURES = ("sm_80", "sm_90a", "sm_100a", "sm_120a")


@dataclass(frozen=True)
class Variant:
    """One kernel to compile: the types bound, whether rows are ragged, whether inputs with defaults are there."""

    types: Types
    ragged: bool
    defaults: bool = False

    def __str__(self) -> str:
        words = [f"{name}={dtype}" for name, dtype in self.types.variables]
        words += ["ragged"] if self.ragged else []
        return " ".join([*words, *(["defaults"] if self.defaults else [])]) or "-"


@dataclass(frozen=True)
class Compiled:
    """A kernel's code for one architecture. Sizes are bytes; registers are a thread's; `stack` counts what the source
    asks for (`local`, such as a library function's tables) and what the compiler spilled."""

    ptx: str
    cubin: bytes
    registers: int
    stack: int
    local: int
    shared: int
    loads: tuple[int, ...]  # widths of global loads and stores, each distinct one once, widest first
    stores: tuple[int, ...]

    @property
    def spills(self) -> int:
        return max(0, self.stack - self.local)


def bindings(spec: Spec) -> Iterator[Types]:
    """Every combination of the type variables' dtypes."""
    names = [name for name, _ in spec.types]
    for values in itertools.product(*(dtypes for _, dtypes in spec.types)):
        yield Types(tuple(zip(names, values, strict=True)))


def supports(spec: Spec, types: Types, arch: str) -> bool:
    """Whether an architecture has every dtype: float8 begins with sm_89."""
    number = int(re.sub(r"\D", "", arch))
    return all(DTYPES[types.dtype(a)].min_arch <= number for a in spec.arrays)


def variants(op: Op) -> Iterator[Variant]:
    """Every kernel that calls of an op can need, but for static params."""
    some = any(a.default is not None for a in op.spec.inputs)
    for types in bindings(op.spec):
        for ragged in (False, True):
            if ragged and launch_of(op, types, False).vec == 1:
                continue
            for defaults in (False, True) if some else (False,):
                yield Variant(types, ragged, defaults)


def launch_of(op: Op, types: Types, ragged: bool) -> Launch:
    dtypes = {a.name: types.dtype(a) for a in op.spec.arrays}
    inner = None if ragged else 16
    return launch(op.plan, dtypes, inner, inner, dict(op.spec.schedule))


def compile_kernel(op: Op, variant: Variant, arch: str, static: dict[str, Any] | None = None) -> Compiled:
    """Compile one kernel. `static` overrides the defaults of static params (1 where there is none)."""
    import cutlass
    import cutlass.cute as cute
    from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream

    spec, how = op.spec, launch_of(op, variant.types, variant.ragged)

    def tensor(dtype: str, divisors: tuple[int, ...]):
        shape = tuple(cute.sym_int(divisibility=d) for d in divisors)
        order = tuple(reversed(range(len(shape))))
        return make_fake_compact_tensor(getattr(cutlass, dtype), shape, stride_order=order, assumed_align=256)

    def array(a):
        if a.default is not None and variant.defaults:
            return None
        return tensor(DTYPES[variant.types.dtype(a)].cutlass, views.divisibility(op.plan, a, how))

    wide = any(variant.types.dtype(a) == "float64" for a in spec.inputs)
    scalar = {"float": "Float64" if wide else "Float32", "int": "Int32", "bool": "Boolean"}
    arguments = [array(a) for a in spec.inputs]
    arguments += [tensor(scalar[p.kind], (1,)) for p in spec.params if not p.static]
    arguments += [array(a) for a in spec.outputs]
    for p in spec.params:
        if p.static:
            arguments.append((static or {}).get(p.name, 1 if p.default is None else p.default))
    arguments += [how.vec, how.ragged, how.threads]
    options = f"--gpu-arch {arch} --keep-ptx --keep-cubin"
    with _kept_files_elsewhere():
        compiled = cute.compile(op._launch, make_fake_stream(), *arguments, options=options)
        return read_compiled(compiled.__ptx__, compiled.__cubin__)


@contextlib.contextmanager
def _kept_files_elsewhere() -> Iterator[None]:
    """The compiler hands PTX and cubin over through files: not in the user's folder."""
    from cutlass.cutlass_dsl.cutlass import CuTeDSL

    environment = CuTeDSL._get_dsl().envar
    before = environment.dump_dir
    with tempfile.TemporaryDirectory(prefix="codegen-") as folder:
        environment.dump_dir = folder
        try:
            yield
        finally:
            environment.dump_dir = before


def read_compiled(ptx: str, cubin: bytes) -> Compiled:
    """A compiled kernel's resources, from its PTX and its cubin."""
    from elftools.elf.elffile import ELFFile

    elf = ELFFile(io.BytesIO(cubin))
    registers = stack = shared = 0
    for section in elf.iter_sections():
        if section.name.startswith(".text."):
            registers = max(registers, section["sh_info"] >> 24)
        elif section.name.startswith(".nv.shared."):
            shared += section["sh_size"]
        elif section.name == ".nv.info":
            stack = max([stack, *(v for kind, v in _attributes(section.data()) if kind == _MIN_STACK_SIZE)])
            registers = max([registers, *(v for kind, v in _attributes(section.data()) if kind == _REGCOUNT)])
    depots = re.findall(r"\.local\s+\.align\s+\d+\s+\.b8\s+\S+\[(\d+)\]", ptx)
    return Compiled(
        ptx, cubin, registers, stack, sum(map(int, depots)), shared, widths(ptx, "ld"), widths(ptx, "st")
    )  # fmt: skip


_REGCOUNT, _MIN_STACK_SIZE = 0x2F, 0x12


def _attributes(data: bytes) -> Iterator[tuple[int, int]]:
    """The (attribute, value) pairs of a cubin's .nv.info that hold a function's number and a value."""
    at = 0
    while at + 4 <= len(data):
        form, kind, size = struct.unpack_from("<BBH", data, at)
        at += 4
        if form == 4:  # sized: `size` bytes follow
            if size == 8:
                yield kind, struct.unpack_from("<II", data, at)[1]
            at += size


def widths(ptx: str, op: str) -> tuple[int, ...]:
    """The widths in bytes of the global loads ("ld") or stores ("st") in PTX, widest first."""
    found = set()
    for vector, bits in re.findall(rf"\b{op}\.global(?:\.\w+)*?(?:\.v(\d))?\.[bfsu](\d+)\b", ptx):
        found.add(int(vector or 1) * int(bits) // 8)
    return tuple(sorted(found, reverse=True))
