"""Gets launches from the compiled launcher itself: runs the object that XLA would call, with our versions of CUDA's functions.

CuTe DSL compiles a launcher to a host object, which loads its cubin and launches its kernels with a few functions of
the CUDA runtime. Here llvmlite links the object with our own versions of these functions. The arguments of
`cudaLaunchKernelEx` are the launch and its parameters.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import re
import struct
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from codegen import extras
from codegen.interpret.lanes import MOST_SHARED, LaunchConfig
from codegen.interpret.ptx import Program

_PREFIX = "_mlir_"  # symbols of packed entry points: every argument by pointer
_ENTRY = "cutlass_jit_wrapper"
_RELOCATABLE = 1  # e_type of an unlinked object file
_WITHOUT_BYTES = (0, 8)  # sh_type of sections without bytes in the file: none, and zeroed memory
_lock = threading.RLock()


def llvm_binding() -> Any:
    """The library that links launchers, loaded lazily. Raises `MissingExtra`."""
    with extras.needed("interpret"):
        import llvmlite.binding

    return llvmlite.binding


class _Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint32 * 16)]


class _Config(ctypes.Structure):
    """cudaLaunchConfig_t."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_size_t),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(_Attribute)), ("count", ctypes.c_uint),
    ]  # fmt: skip


_CLUSTER_DIMENSION = 4  # cudaLaunchAttributeClusterDimension


class _Runtime:
    """Our versions of CUDA's functions, one instance for the process, since symbols are per process."""

    def __init__(self) -> None:
        self.kernels: list[str] = []
        self.programs: dict[str, Program] = {}
        self.found: list[LaunchConfig] = []
        self.keep: list[object] = []

    def install(self) -> None:
        llvm = llvm_binding()
        pointer = ctypes.c_void_p
        for name, function, count in (
            ("_cudaLibraryLoadData", lambda *a: 0, 8),
            ("_cudaLibraryGetKernel", self.get_kernel, 3),
            ("_cudaLaunchKernelEx", self.launch, 3),
            ("_cudaGetDevice", self.zero, 1),
            ("_cudaDeviceGetAttribute", self.attribute, 3),
            ("_cudaFuncSetAttribute", lambda *a: 0, 3),
            ("_cudaKernelSetAttributeForDevice", lambda *a: 0, 4),
            ("_cuKernelGetAttribute", self.zero, 4),
        ):
            call = ctypes.CFUNCTYPE(ctypes.c_int32, *[pointer] * count)(function)
            self.keep.append(call)
            llvm.add_symbol(name, ctypes.cast(call, pointer).value)

    def zero(self, out: int, *_: int) -> int:
        ctypes.c_int32.from_address(out).value = 0
        return 0

    def attribute(self, out: int, *_: int) -> int:
        ctypes.c_int32.from_address(out).value = MOST_SHARED
        return 0

    def get_kernel(self, out: int, _library: int, name: int) -> int:
        self.kernels.append(ctypes.string_at(name).decode())
        ctypes.c_void_p.from_address(out).value = len(self.kernels)
        return 0

    def launch(self, config: int, kernel: int, arguments: int) -> int:
        asked = _Config.from_address(config)
        name = self.kernels[kernel - 1]
        program = self.programs[name]
        sizes = [size for _, size in sorted(program.params.values())]
        pointers = (ctypes.c_void_p * len(sizes)).from_address(arguments) if sizes else ()
        params = tuple(ctypes.string_at(p, n) for p, n in zip(pointers, sizes, strict=True))
        cluster = (1, 1, 1)
        for i in range(asked.count):
            attribute = asked.attributes[i]
            if attribute.id == _CLUSTER_DIMENSION:
                x, y, z = attribute.value[:3]
                cluster = int(x), int(y), int(z)
        grid, block = tuple(asked.grid), tuple(asked.block)
        self.found.append(LaunchConfig(name, grid, block, int(asked.shared), params, cluster))
        return 0


_runtime: _Runtime | None = None
_modules = itertools.count()


def _installed() -> _Runtime:
    global _runtime
    if _runtime is None:
        llvm = llvm_binding()
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        _runtime = _Runtime()
        _runtime.install()
    return _runtime


class Launcher:
    """A compiled launcher, linked once and called with addresses of arrays."""

    def __init__(self, module: bytes, programs: dict[str, Program]):
        llvm = llvm_binding()
        with _lock:
            self.runtime, self.programs = _installed(), programs
            machine = llvm.Target.from_default_triple().create_target_machine()
            empty = llvm.parse_assembly("")
            empty.name = f"launcher{next(_modules)}"
            self.engine = llvm.create_mcjit_compiler(empty, machine)
            held = llvm.ObjectFileRef.from_data(module)
            self.engine.add_object_file(held)
            self.engine.finalize_object()
            self.entry = _entry(module)
            self.kernels: list[str] = []
            self.load()

    def call(self, name: str, *arguments: ctypes.c_void_p) -> None:
        packed = (ctypes.c_void_p * len(arguments))(*(ctypes.cast(a, ctypes.c_void_p).value for a in arguments))
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.engine.get_function_address(name))(packed)

    def load(self) -> None:
        """Does what loading the module on a device would do: kernels get their handles."""
        error, device, library = ctypes.c_int32(0), ctypes.c_int32(0), ctypes.c_void_p()
        one = ctypes.pointer(library)
        with self.using():
            for name, extra in (("cuda_init", ()), ("cuda_load_to_device", (ctypes.pointer(device),))):
                self.call(_PREFIX + name, ctypes.pointer(one), *extra, ctypes.pointer(error))  # type: ignore[arg-type]
                if error.value:
                    raise RuntimeError(f"{name} of a compiled launcher failed: {error.value}")
            self.kernels = list(self.runtime.kernels)

    @contextlib.contextmanager
    def using(self) -> Iterator[None]:
        with _lock:
            self.runtime.programs, self.runtime.found = self.programs, []
            self.runtime.kernels = list(getattr(self, "kernels", []))
            yield

    def launches(self, buffers: Sequence[tuple[int, tuple[int, ...]]]) -> list[LaunchConfig]:
        """The launches for buffers, given by address and shape."""
        stream, result = ctypes.c_void_p(0), ctypes.c_int32(0)
        held, arguments = [], []
        for address, shape in buffers:
            dims = (ctypes.c_int64 * max(1, len(shape)))(*shape)
            descriptor = (ctypes.c_void_p * 2)(address, ctypes.addressof(dims))
            pointer = ctypes.c_void_p(ctypes.addressof(descriptor))
            held.append((dims, descriptor, pointer))
            arguments.append(ctypes.pointer(pointer))
        with self.using():
            self.call(self.entry, ctypes.pointer(stream), *arguments, ctypes.pointer(result))  # type: ignore[arg-type]
            if result.value:
                raise RuntimeError(f"a compiled launcher failed: {result.value}")
            return list(self.runtime.found)


def is_launcher(module: bytes) -> bool:
    """Whether bytes are a complete object file (ELF, 64 bits, little-endian, relocatable) with a launcher. Running an op calls
    this, so it needs no library."""
    try:
        magic, kind = struct.unpack_from("<6s10xH", module)
        (start,), (size, count) = struct.unpack_from("<Q", module, 40), struct.unpack_from("<HH", module, 58)
        sections = [struct.unpack_from("<4xI16xQQ", module, start + size * i) for i in range(count)]
    except struct.error:
        return False
    whole = all(place + length <= len(module) for held, place, length in sections if held not in _WITHOUT_BYTES)
    return magic == b"\x7fELF\x02\x01" and kind == _RELOCATABLE and whole and _ENTRY.encode() in module


def _entry(module: bytes) -> str:
    """The launcher's name: the only one in an object file that begins so."""
    found = re.search(rb"\0(" + (_PREFIX + _ENTRY).encode() + rb"[^\0]*)\0", module)
    assert found
    return found[1].decode()
