"""Compiles kernels with CuTe DSL, caches them in the process and on disk, and launches them on a GPU.

`cutlass.jax.cutlass_call` compiles again in every process, and for every shape. But the code depends on less: the launcher,
its tensors' types, divisors and alignments, its constants, the architecture and the options (a `CompiledCall`). So this
module compiles with `cutlass.jax`'s own functions, and passes the object to the custom call that `cutlass_call` uses.

The key of an entry on disk covers all of this, and also the source of the launcher and of every function that it may
call, and the version and settings of CuTe DSL. A launcher whose source was edited after its import is compiled for this
process only.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import inspect
import linecache
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, Literal, TypeVar

import jax

from codegen import cache
from codegen.errors import UserError, known
from codegen.interpret import host
from codegen.parsing import PARSER
from codegen.runtime.call.arguments import negative_zeros
from codegen.runtime.call.typed import bridged
from codegen.runtime.compiled import signs
from codegen.runtime.compiled.cubins import are_resident, cubins_in, read_cubin, registers_of
from codegen.runtime.compiled.passes import without_assembling
from codegen.runtime.compiled.platform import COMPILE_OPTIONS, compiling_for, settings_for
from codegen.shared import RowLaunch, ScanLaunch, Walk
from codegen.targets import ARCHITECTURES


@dataclass(frozen=True)
class CompiledCall:
    """Everything that determines a compiled launcher: its source, its tensors' dtypes, divisors and alignments, its constants.
    Sizes are not part of it: kernels take them at run time, and only their divisors are compiled in."""

    launch: Callable[..., None]
    inputs: tuple[tuple[str, tuple[int, ...], int] | None, ...]
    outputs: tuple[tuple[str, tuple[int, ...], int], ...]
    constants: tuple[tuple[str, Any], ...]
    arch: str
    zeros: tuple[str, ...] = field(init=False)  # constants that are -0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "zeros", negative_zeros(self.constants))


class Constant(float):
    """A float that CuTe DSL can use in a kernel's name, as it does with constants: its exponent has no sign."""

    def __repr__(self) -> str:
        return float.__repr__(self).replace("+", "")

    __str__ = __repr__


def nameable(value: Any) -> Any:
    """A constant in the form that the compiler takes."""
    return Constant(value) if isinstance(value, float) else value


@dataclass(frozen=True)
class Binary:
    """A compiled launcher: an object file for the host, which contains the kernels' cubin, or where it was kept their PTX."""

    module: bytes
    ptx: str


# What a compilation keeps: only the object file, or its PTX, or its PTX with source lines, which takes 1.5 times as
# long. Where the PTX is kept, the object file has no machine code.
Kept = Literal["binary", "ptx", "lines"]
OPTIONS: dict[Kept, str] = {
    "binary": COMPILE_OPTIONS, "ptx": "--keep-ptx", "lines": "--keep-ptx --generate-line-info",
}  # fmt: skip


# Bytes of a thread's stack. Of 24 kernels on an H200, the kernels with 72 bytes or more took 5 to 36 % less time with
# fewer blocks and unbounded registers. Kernels with 48 bytes or less took up to 33 % more
MOST_SPILLED = 48
# Launchers that are interpreted run on any processor of this kind: the compiler need not ask for this one's features
HOST = f"{platform.machine()}-unknown-linux-gnu" if sys.platform == "linux" else ""
T = TypeVar("T")


@functools.lru_cache(maxsize=4096)
def binary(call: CompiledCall, kept: Kept = "binary") -> Binary:
    """The call's launcher, compiled for `call.arch`, with the results that are to be `kept`. Threads that request the same one at
    the same time wait until the first has compiled it. Where a launch wants several blocks resident and that spills registers, it may
    be compiled for fewer. Raises ValueError for an unknown architecture, or an invalid limit of the cache."""
    with PARSER:
        if kept != "binary":
            return _binary(call, kept)
        return chosen(call, lambda tried: _binary(tried, kept), lambda found: cubins_in(found.module))


def chosen(call: CompiledCall, compiled: Callable[[CompiledCall], T], cubins: Callable[[T], Sequence[bytes]]) -> T:
    """A launcher, compiled with a bound on registers or without it. With the bound an SM has room for several blocks,
    and ptxas moves loads ahead, which is faster unless it spills. It may spill although the kernel needs no more
    registers without the bound: then the bound is dropped. It is also dropped where it spills much; fewer blocks are
    resident then, and blocks do not keep pace. ptxas may spill without a bound too, so that one more block fits: a
    kernel that then spills more keeps its bound."""
    free = replace(call, constants=tuple((name, _unbound(value)) for name, value in call.constants))
    bound = compiled(call)
    stack = 0 if free == call else _stack(cubins(bound))
    if not stack:
        return bound
    found = compiled(free)
    if _stack(cubins(found)) > stack:
        return bound
    if suffice(call, cubins(found)):
        return found
    if stack <= MOST_SPILLED:
        return bound
    paced = any(isinstance(value, Walk) and value.paced for _, value in call.constants)
    return compiled(_without_pace(free)) if paced else found


def _stack(cubins: Iterable[bytes]) -> int:
    """The bytes of a thread's stack, of the kernel with the most."""
    return max(read_cubin(cubin)[1] for cubin in cubins)


def _unbound(value: Any) -> Any:
    if isinstance(value, Walk) and value.first is not None:
        return replace(value, resident=0, first=replace(value.first, resident=0))
    return replace(value, resident=0) if isinstance(value, RowLaunch | Walk | ScanLaunch) else value


def _without_pace(call: CompiledCall) -> CompiledCall:
    return replace(
        call, constants=tuple((n, replace(v, paced=False) if isinstance(v, Walk) else v) for n, v in call.constants)
    )


def suffice(call: CompiledCall, cubins: Iterable[bytes]) -> bool:
    """Whether the registers of compiled kernels leave room for as many resident blocks as the call's launch wants."""
    launches = [value for _, value in call.constants if isinstance(value, RowLaunch | Walk | ScanLaunch)]
    bound: list[tuple[str, RowLaunch | Walk | ScanLaunch]] = [("_kernel_", how) for how in launches]
    bound += [("_rows_kernel_", how.first) for how in launches if isinstance(how, Walk) and how.first is not None]
    name = name_of(call)
    return all(are_resident(how, registers_of(cubin, name + kernel)) for kernel, how in bound for cubin in cubins)


@functools.lru_cache(maxsize=4096)
def _binary(call: CompiledCall, kept: Kept) -> Binary:
    if call.arch not in ARCHITECTURES:
        hint = known(call.arch, ARCHITECTURES, "there are")
        raise ValueError(f"CUTE_DSL_ARCH: there is no architecture {call.arch!r}; {hint}")
    key, name = key_of(call, OPTIONS[kept], lines=kept == "lines"), name_of(call)
    found = None if key is None else cache.load(name, key)
    if found is None or not _is_compiled(found, kept):
        found = _compile(call, kept)
        if key is not None:
            try:
                cache.store(name, key, found)
            except UserError as error:
                raise ValueError(f"{error.message}; {error.hint}") from None
    return Binary(found["module"], found["ptx"].decode())


def _is_compiled(found: Mapping[str, bytes], kept: Kept) -> bool:
    """Whether an entry of the cache has the form of `_compile`'s result: it is run without further checks."""
    if found.keys() != {"module", "ptx"} or not host.is_launcher(found["module"]):
        return False
    with contextlib.suppress(UnicodeDecodeError):
        text = found["ptx"].decode()
        return not text if kept == "binary" else ".entry" in text
    return False


def forget() -> None:
    """Clear this process's caches of compiled kernels and of sources."""
    for made in (binary, _binary, _sources):
        made.cache_clear()


def launch(
    call: CompiledCall, operands: Sequence[jax.Array], outputs: Sequence[jax.ShapeDtypeStruct], pairs: Mapping[int, int]
) -> list[jax.Array]:
    """Run a launcher on a GPU, within JAX. `operands` are the present inputs. `pairs` maps the positions of inputs whose buffers
    outputs take to the positions of these outputs."""
    import cutlass.jax as bridge

    bridge.register_ffi()
    target = bridge.get_cutlass_call_ffi_name(True, bridge.get_cutlass_call_ffi_version())
    module = binary(call).module
    run = jax.ffi.ffi_call(target, outputs, input_output_aliases=dict(pairs))
    return run(*operands, module=module, key=hashlib.sha256(module).digest())


def _compile(call: CompiledCall, kept: Kept) -> dict[str, bytes]:
    import cuda.bindings.driver as cuda
    import cutlass.cute as cute
    from cutlass.jax.compile import _EXPORT_PREFIX, Arg, FunctionSpec, jit_wrapper
    from cutlass.jax.types import TensorSpec

    def described(tensors: Sequence[tuple[str, tuple[int, ...], int]]) -> tuple[Arg, ...]:
        return tuple(
            Arg(
                i,
                divisors,
                jax.numpy.dtype(bridged(dtype)),
                TensorSpec(divisibility=divisors, ptr_assumed_align=alignment),
            )
            for i, (dtype, divisors, alignment) in enumerate(tensors)
        )

    inputs, outputs = described([t for t in call.inputs if t is not None]), described(call.outputs)
    constants = tuple((name, nameable(value)) for name, value in call.constants)
    spec = FunctionSpec(
        inputs, jax.tree.structure(tuple(None if t is None else 0 for t in call.inputs)),
        outputs, jax.tree.structure(tuple(0 for _ in outputs)), (),
        tuple(a.spec for a in inputs), tuple(a.spec for a in outputs), OPTIONS[kept], False, constants,
    )  # fmt: skip
    stop = without_assembling() if kept != "binary" else contextlib.nullcontext()
    with compiling_for(call.arch) as folder, stop:
        # As cutlass.jax's get_or_compile_kernel, but without an execution engine, which nothing uses
        _load_runtime()
        compiled = cute.compile(
            jit_wrapper, cuda.CUstream(0), *spec.get_compile_args(), wrapped_fn=call.launch, spec=spec,
            options=OPTIONS[kept] if kept != "binary" else f"{OPTIONS[kept]} --keep-ptx", no_jit_engine=True,
        )  # fmt: skip
        if kept == "binary":
            module = compiled.dump_to_object(_EXPORT_PREFIX)
        else:
            module = _to_interpret(compiled, Path(folder) / "launcher.o")
        texts = [path.read_bytes().rstrip(b"\0") for path in Path(folder).glob("*.ptx")]
    ptx = b"".join(texts)
    signs.check(ptx.decode(), call.arch, name_of(call))
    return {"module": module, "ptx": b"" if kept == "binary" else ptx}


def _to_interpret(compiled: Any, path: Path) -> bytes:
    """Write a launcher's object file to a path, as the interpreter calls it. It lacks the functions that only XLA calls, and the
    metadata of exports. LLVM does not optimise it, and makes it for any processor of this kind. This takes less than half of
    the time of `dump_to_object`."""
    module = compiled.ir_module
    for operation in list(module.body.operations):
        name = operation.operation.name
        if name == "gpu.binary" or (name == "llvm.func" and operation.sym_name.value == "cuda_load"):
            operation.operation.erase()
    if "gpu.container_module" in module.operation.attributes:
        del module.operation.attributes["gpu.container_module"]
    write = compiled.export_provider.mlirExecutionEngine.dump_object_file_pic
    write(module, str(path), compiled.function_name, opt_level=0, host_triple=HOST, host_cpu="", host_features="")
    return path.read_bytes()


@functools.cache
def _load_runtime() -> None:
    """Load the libraries that define an object file's symbols, as the engine would."""
    from cutlass.cutlass_dsl.cutlass import CuTeDSL

    for library in CuTeDSL._get_dsl().get_shared_libs():
        ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)


# The key of a compiled kernel


def name_of(call: CompiledCall) -> str:
    """The name under which a compiled call is cached."""
    return "_and_".join(f.__name__.removesuffix("_launch") for f in _launchers(call.launch))


def key_of(call: CompiledCall, options: str, lines: bool = False) -> str | None:
    """Everything that determines the compiled code of a call with these options; None where that is unknown. With `lines`, the
    files' names are part of the code."""
    values = [value for _, value in call.constants]
    if not all(isinstance(value, float) or _is_plain(value) for value in values):
        return None
    sources = _sources(call.launch, tuple(dict.fromkeys(record for value in values for record in _records(value))))
    if sources is None:
        return None
    files, constants = sources
    members = getattr(call.launch, "members", (call.launch,))
    names, dtypes = [f.__qualname__ for f in _launchers(call.launch)], [getattr(m, "dtypes", ()) for m in members]
    source = [
        names,
        list(files.values()),
        list(files) if lines else [],  # which the PTX names
        constants,
    ]
    host = [sys.platform, platform.machine()]
    tensors = [call.inputs, call.outputs, dtypes]
    return repr([source, tensors, call.constants, call.arch, options, _compiler(call.arch), host])


def _is_plain(value: Any) -> bool:
    """Whether `repr` tells a constant from all others: a number or a word, or a record or tuple of such."""
    if is_dataclass(value) and not isinstance(value, type):
        return all(_is_plain(getattr(value, f.name)) for f in fields(value))
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | str)


def _records(value: Any) -> Iterator[type]:
    """The types of all records in a constant: of itself, of its fields, and of members of tuples."""
    if is_dataclass(value):
        yield type(value)
        value = tuple(getattr(value, f.name) for f in fields(value))
    if isinstance(value, tuple):
        for part in value:
            yield from _records(part)


def _compiler(arch: str) -> str:
    """CuTe DSL's version, including its files, and the settings that change its code."""
    with settings_for(arch) as settings:
        return _version() + settings.cache_key_str()


@functools.cache
def _version() -> str:
    from cutlass.cutlass_dsl.cutlass import CuTeDSL

    return CuTeDSL._get_dsl().get_version().hexdigest()


def _launchers(launch: Any) -> list[FunctionType]:
    """The launcher's own functions, without wrappers: several of a joint launch."""
    return [inspect.unwrap(getattr(m, "launch", m)) for m in getattr(launch, "members", (launch,))]


@functools.lru_cache(maxsize=4096)
def _sources(
    launch: Callable[..., None], records: tuple[type, ...] = ()
) -> tuple[dict[str, str], tuple[str, ...]] | None:
    """The sources of a launcher, of its constants' `records` and of all functions that it may reach, without CuTe DSL: files,
    each with a hash of its content, and global constants. None where a file differs from what was imported."""
    functions, constants = _reached(launch, records)
    files: dict[str, set[CodeType]] = {__file__: set()}
    for code in map(_code, functions):
        if code.co_filename != "<string>":  # a dataclass's methods
            files.setdefault(_path(code.co_filename), set()).add(code)
    hashes = {}
    for file, imported in sorted(files.items()):
        try:
            content = _content(file)
            written = _written(content, file)
        except (OSError, SyntaxError, ValueError):
            return None
        if not imported <= written:
            return None
        hashes[file] = hashlib.sha256(content).hexdigest()
    return hashes, tuple(sorted(constants))


@functools.lru_cache(maxsize=1024)
def _path(file: str) -> str:
    """The absolute path of a file, and the name of a module that exists in memory alone."""
    return file if file.startswith("<") else os.path.abspath(file)


def _content(file: str) -> bytes:
    """A file's content, or the text of a module that exists in memory alone. Raises OSError where there is neither."""
    if file.startswith("<"):
        if not (lines := linecache.getlines(file)):
            raise OSError(file)
        return "".join(lines).encode()
    return Path(file).read_bytes()


@functools.lru_cache(maxsize=256)  # launchers share most of what they reach
def _written(content: bytes, file: str) -> frozenset[CodeType]:
    """All code objects of a file with this content. Raises SyntaxError and ValueError where it is not Python."""
    return frozenset(_nested(compile(content, file, "exec", dont_inherit=True)))


# Whoever changes these changes the version that `_version` knows, or nothing that reaches a kernel
_FOREIGN = sys.stdlib_module_names | {"cutlass", "cuda", "jax", "jaxlib", "numpy"}


def _reached(launch: Callable[..., None], records: tuple[type, ...]) -> tuple[list[FunctionType], set[str]]:
    """The functions of this project and its users that tracing a launcher may call, methods of `records` among them, and their
    global constants."""
    functions: list[FunctionType] = []
    constants: set[str] = set()
    seen: set[int] = set()
    members = getattr(launch, "members", ())
    found: list[Any] = [type(launch), launch, *map(type, members), *_launchers(launch), *records]
    while found:
        value = found.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, ModuleType | type):
            if not _is_foreign(value.__name__ if isinstance(value, ModuleType) else value.__module__):
                found += [*vars(value).values(), *getattr(value, "__bases__", ())]
            continue
        value = value.fget if isinstance(value, property) else value
        if _is_foreign(getattr(value, "__module__", None)) or not callable(value):
            continue
        function = inspect.unwrap(value) if hasattr(value, "__wrapped__") else value
        if isinstance(function, FunctionType):
            functions.append(function)
            for name in _names(_code(function)):
                if name in function.__globals__:
                    named = function.__globals__[name]
                    if isinstance(named, bool | int | float | str):
                        constants.add(f"{name} = {named!r}")
                    found.append(named)
    return functions, constants


@functools.lru_cache(maxsize=1024)
def _is_foreign(module: str | None) -> bool:
    return str(module or "builtins").partition(".")[0] in _FOREIGN


def _code(function: FunctionType) -> CodeType:
    """A function's code as imported: CuTe DSL replaces the code of functions that it has traced."""
    return getattr(function, "_original_code", function.__code__)


@functools.lru_cache(maxsize=4096)
def _names(code: CodeType) -> frozenset[str]:
    """The global names that a function and those within it may read."""
    return frozenset(name for nested in _nested(code) for name in nested.co_names)


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)
