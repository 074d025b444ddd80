"""Compiled kernels: what CuTe DSL makes of a call, kept in the process and on disk, and its launch on a GPU.

`cutlass.jax.cutlass_call` compiles again in every process, and for every shape. What it compiles depends on less: the
launcher, its tensors' types, divisors and alignments, its constants, the architecture and the options (a `CompiledCall`, here).
So this compiles by `cutlass.jax`'s own functions, and hands the object to the custom call that `cutlass_call` uses.

An entry on disk is found by all that, by the source of the launcher and of every function that it may reach, and by
the version and settings of CuTe DSL. A launcher whose source was edited after it was imported is compiled for this
process alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import inspect
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, Literal

import jax

from codegen import cache
from codegen.errors import Mistake, known
from codegen.interpret import host
from codegen.parsing import PARSER
from codegen.runtime.call.arguments import negative_zeros
from codegen.runtime.compiled.platform import COMPILE_OPTIONS, compiling_for
from codegen.targets import ARCHITECTURES


@dataclass(frozen=True)
class CompiledCall:
    """What compiles to one launcher: its source, its tensors' dtypes, divisors and alignments, its constants. Extents are
    not part of it: kernels take them at run time, and know of them only what divides them."""

    launch: Callable[..., None]
    inputs: tuple[tuple[str, tuple[int, ...], int] | None, ...]
    outputs: tuple[tuple[str, tuple[int, ...], int], ...]
    constants: tuple[tuple[str, Any], ...]
    arch: str
    zeros: tuple[str, ...] = field(init=False)  # constants that are -0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "zeros", negative_zeros(self.constants))


class Constant(float):
    """A float that CuTe DSL can make part of a kernel's name, as it does with constants: no sign stands in its exponent."""

    def __repr__(self) -> str:
        return float.__repr__(self).replace("+", "")

    __str__ = __repr__


def nameable(value: Any) -> Any:
    """A constant as the compiler takes it."""
    return Constant(value) if isinstance(value, float) else value


@dataclass(frozen=True)
class Binary:
    """A compiled launcher: an object file for the host, the kernels' cubin inside; and their PTX where it was kept."""

    module: bytes
    ptx: str


# What is kept of a compilation: the object file alone, its PTX too, or its PTX with the source lines it was made from, which
# takes half as long again. Where only the PTX is wanted, the assembler need not optimise.
Kept = Literal["binary", "ptx", "lines"]
OPTIONS: dict[Kept, str] = {
    "binary": COMPILE_OPTIONS, "ptx": "--ptxas-options -O1 --keep-ptx",
    "lines": "--ptxas-options -O1 --keep-ptx --generate-line-info",
}  # fmt: skip


@functools.lru_cache(maxsize=4096)
def binary(call: CompiledCall, kept: Kept = "binary") -> Binary:
    """The call's launcher, compiled for `call.arch`, and what else is `kept` of it. Threads that ask for the same one at the
    same time wait for the first of them to compile it. Raises ValueError for an unknown architecture, or a cache's limit
    that cannot be read."""
    with PARSER:
        return _binary(call, kept)


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
            except Mistake as mistake:
                raise ValueError(f"{mistake.message}; {mistake.hint}") from None
    return Binary(found["module"], found["ptx"].decode())


def _is_compiled(found: Mapping[str, bytes], kept: Kept) -> bool:
    """Whether an entry of the cache holds what `_compile` gives: it is run as it is."""
    if found.keys() != {"module", "ptx"} or not host.is_launcher(found["module"]):
        return False
    with contextlib.suppress(UnicodeDecodeError):
        text = found["ptx"].decode()
        return not text if kept == "binary" else ".entry" in text
    return False


def forget() -> None:
    """Forget what this process has compiled, and read of sources."""
    for made in (binary, _binary, _sources):
        made.cache_clear()


def launch(
    call: CompiledCall, operands: Sequence[jax.Array], outputs: Sequence[jax.ShapeDtypeStruct], pairs: Mapping[int, int]
) -> list[jax.Array]:
    """Run a launcher on a GPU, within JAX: `operands` are the inputs that are there, `pairs` the places of those whose
    buffers are outputs' as well, with these outputs' places."""
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
            Arg(i, divisors, jax.numpy.dtype(dtype), TensorSpec(divisibility=divisors, ptr_assumed_align=alignment))
            for i, (dtype, divisors, alignment) in enumerate(tensors)
        )

    inputs, outputs = described([t for t in call.inputs if t is not None]), described(call.outputs)
    constants = tuple((name, nameable(value)) for name, value in call.constants)
    spec = FunctionSpec(
        inputs, jax.tree.structure(tuple(None if t is None else 0 for t in call.inputs)),
        outputs, jax.tree.structure(tuple(0 for _ in outputs)), (),
        tuple(a.spec for a in inputs), tuple(a.spec for a in outputs), OPTIONS[kept], False, constants,
    )  # fmt: skip
    with compiling_for(call.arch) as folder:
        # As cutlass.jax's get_or_compile_kernel, but without an engine to call the launcher by, which nobody does
        _load_runtime()
        compiled = cute.compile(
            jit_wrapper, cuda.CUstream(0), *spec.get_compile_args(), wrapped_fn=call.launch, spec=spec,
            options=OPTIONS[kept], no_jit_engine=True,
        )  # fmt: skip
        module = compiled.dump_to_object(_EXPORT_PREFIX)
        texts = [path.read_bytes().rstrip(b"\0") for path in Path(folder).glob("*.ptx")]
    return {"module": module, "ptx": b"".join(texts)}


@functools.cache
def _load_runtime() -> None:
    """Load what an object file's symbols are looked up in, as the engine would."""
    from cutlass.cutlass_dsl.cutlass import CuTeDSL

    for library in CuTeDSL._get_dsl().get_shared_libs():
        ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)


# What decides a compiled kernel


def name_of(call: CompiledCall) -> str:
    """The name under which what is compiled of a call is kept."""
    return _launcher(call.launch).__name__.removesuffix("_launch")


def key_of(call: CompiledCall, options: str, lines: bool = False) -> str | None:
    """All that decides what the compiler makes of a call with these options; None where that cannot be told. With `lines`,
    the files' names are part of what is made."""
    sources = _sources(call.launch)
    if sources is None or not all(isinstance(value, bool | int | float | str) for _, value in call.constants):
        return None
    files, constants = sources
    name, dtypes = _launcher(call.launch).__qualname__, getattr(call.launch, "dtypes", ())
    source = [
        name,
        list(files.values()),
        list(files) if lines else [],  # which the PTX names
        constants,
    ]
    host = [sys.platform, platform.machine()]
    tensors = [call.inputs, call.outputs, dtypes]
    return repr([source, tensors, call.constants, call.arch, options, _compiler(call.arch), host])


def _compiler(arch: str) -> str:
    """CuTe DSL's version, down to its files, and those of its settings that change what it compiles."""
    from cutlass.cutlass_dsl.cutlass import CuTeDSL

    with compiling_for(arch):
        return _version() + CuTeDSL._get_dsl().envar.cache_key_str()


@functools.cache
def _version() -> str:
    from cutlass.cutlass_dsl.cutlass import CuTeDSL

    return CuTeDSL._get_dsl().get_version().hexdigest()


def _launcher(launch: Any) -> FunctionType:
    """The function that a person would call the launcher."""
    return inspect.unwrap(getattr(launch, "launch", launch))


@functools.lru_cache(maxsize=4096)
def _sources(launch: Callable[..., None]) -> tuple[dict[str, str], tuple[str, ...]] | None:
    """What a launcher and all that it may reach, but for CuTe DSL itself, are made from: files, with a hash of each one's
    content, and the numbers and words that they name. None where a file is not what was imported."""
    functions, constants = _reached(launch)
    files: dict[str, set[CodeType]] = {__file__: set()}
    for code in map(_code, functions):
        if not code.co_filename.startswith("<"):  # made by a decorator, as a dataclass's methods are
            files.setdefault(os.path.abspath(code.co_filename), set()).add(code)
    hashes = {}
    for file, imported in sorted(files.items()):
        try:
            content = Path(file).read_bytes()
            written = _written(content, file)
        except (OSError, SyntaxError, ValueError):
            return None
        if not imported <= written:
            return None
        hashes[file] = hashlib.sha256(content).hexdigest()
    return hashes, tuple(sorted(constants))


@functools.lru_cache(maxsize=256)  # launchers share most of what they reach
def _written(content: bytes, file: str) -> frozenset[CodeType]:
    """All code that a file of this content has. Raises SyntaxError and ValueError where it is no Python."""
    return frozenset(_nested(compile(content, file, "exec", dont_inherit=True)))


# Whoever changes these changes the version that `_version` knows, or nothing that reaches a kernel
_FOREIGN = sys.stdlib_module_names | {"cutlass", "cuda", "jax", "jaxlib", "numpy"}


def _reached(launch: Callable[..., None]) -> tuple[list[FunctionType], set[str]]:
    """The functions that tracing a launcher may call, this project's and its users' own, and their global constants."""
    functions: list[FunctionType] = []
    constants: set[str] = set()
    seen: set[int] = set()
    found: list[Any] = [type(launch), launch, _launcher(launch)]
    while found:
        value = found.pop()
        module = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        if id(value) in seen or str(module or "builtins").partition(".")[0] in _FOREIGN:
            continue
        seen.add(id(value))
        function = inspect.unwrap(value) if callable(value) else None
        if isinstance(value, ModuleType | type):
            found += vars(value).values()
        elif isinstance(function, FunctionType):
            functions.append(function)
            names = {name for code in _nested(_code(function)) for name in code.co_names}
            named = {name: function.__globals__[name] for name in names if name in function.__globals__}
            constants |= {f"{name} = {v!r}" for name, v in named.items() if isinstance(v, bool | int | float | str)}
            found += named.values()
    return functions, constants


def _code(function: FunctionType) -> CodeType:
    """As it was imported: CuTe DSL puts its own in place of a function's that it has traced."""
    return getattr(function, "_original_code", function.__code__)


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)
