"""Reads the registers, stack and shared memory of compiled kernels from their ELF files. No library is needed, since every call of an
op uses it."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from codegen.shared import WARP, RowLaunch, ScanLaunch, Walk
from codegen.targets import REGISTER_UNIT, REGISTERS_OF_SM

_EM_CUDA = 190
# Attributes of .nv.info (EIATTR_... in cuobjdump -elf): a stack's size includes called functions
_REGCOUNT, _MIN_STACK_SIZE = 0x2F, 0x12
_SIZED = 4  # a form of attributes
PARTITIONS = 4  # of an SM, each with a quarter of its registers; a warp is in one of them


def cubins_in(module: bytes) -> list[bytes]:
    """The cubins within an object file, each with what follows it."""
    found, place = [], module.find(b"\x7fELF")
    while place >= 0:
        if struct.unpack_from("<H", module, place + 18)[0] == _EM_CUDA:
            found.append(module[place:])
        place = module.find(b"\x7fELF", place + 4)
    return found


def read_cubin(cubin: bytes) -> tuple[int, int, int]:
    """The registers, the stack and the shared memory of a cubin's kernels, the largest of each, as `cuobjdump -res-usage` shows them."""
    sections = list(_sections(cubin))
    registers = max(_of_functions(sections, _REGCOUNT).values(), default=0)
    if not registers:
        raise RuntimeError("the cubin has no register count for its kernel")
    shared = [s.size for s in sections if s.name.startswith(".nv.shared.") and ".reserved." not in s.name]
    return registers, max(_of_functions(sections, _MIN_STACK_SIZE).values(), default=0), sum(shared)


def registers_of(cubin: bytes, kernel: str) -> int:
    """The most registers of a kernel whose name contains `kernel`; 0 if there is none."""
    sections = list(_sections(cubin))
    names = {s.symbol: s.name for s in sections if s.name.startswith(".text.")}
    found = _of_functions(sections, _REGCOUNT)
    return max((n for symbol, n in found.items() if kernel in names.get(symbol, "")), default=0)


def are_resident(how: RowLaunch | Walk | ScanLaunch, registers: int) -> bool:
    """Whether an SM has registers for as many blocks as a launch wants, where each thread takes `registers` (0: unknown)."""
    return not registers or how.resident <= blocks_that_fit(how.threads, registers)


def blocks_that_fit(threads: int, registers: int) -> int:
    """The number of blocks of `threads` threads that an SM has registers for, if each thread takes `registers`."""
    warps = REGISTERS_OF_SM // PARTITIONS // (WARP * -(-registers // REGISTER_UNIT) * REGISTER_UNIT) * PARTITIONS
    return warps // -(-threads // WARP)


class _Section(NamedTuple):
    name: str
    data: bytes  # none of a section of zeros
    size: int
    symbol: int  # a function's code: the number of its symbol


def _sections(elf: bytes) -> Iterator[_Section]:
    """The sections of an ELF file of 64 bits."""
    (start,), (size, count, names) = struct.unpack_from("<Q", elf, 40), struct.unpack_from("<HHH", elf, 58)
    headers = [struct.unpack_from("<I20xQQ4xI", elf, start + size * i) for i in range(count)]
    for name, place, length, info in headers:
        at = headers[names][1] + name
        yield _Section(elf[at : elf.index(b"\0", at)].decode(), elf[place : place + length], length, info & 0xFFFFFF)


def _of_functions(sections: Iterable[_Section], attribute: int) -> dict[int, int]:
    """An attribute's value for each function that has it, by its symbol's number."""
    found: dict[int, int] = {}
    for data in (s.data for s in sections if s.name == ".nv.info"):
        at = 0
        while at + 4 <= len(data):
            form, kind, size = struct.unpack_from("<BBH", data, at)
            at += 4
            if form == _SIZED:  # `size` bytes follow; other forms have their value in place of the size
                if size == 8 and kind == attribute:
                    symbol, value = struct.unpack_from("<II", data, at)
                    found[symbol] = max(value, found.get(symbol, 0))
                at += size
    return found
