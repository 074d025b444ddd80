"""What a kernel's machine code says of itself, read without a library: running an op needs it."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from codegen.plan.rows.walking import REGISTERS_OF_SM
from codegen.shared import WARP, RowLaunch, Walk

_EM_CUDA = 190
# Attributes of .nv.info (EIATTR_... in cuobjdump -elf): a stack's size includes called functions
_REGCOUNT, _MIN_STACK_SIZE = 0x2F, 0x12
UNIT = 8  # registers: an SM gives each thread a multiple


def cubins_in(module: bytes) -> list[bytes]:
    """The cubins within an object file, each with what follows it."""
    found, place = [], module.find(b"\x7fELF")
    while place >= 0:
        if struct.unpack_from("<H", module, place + 18)[0] == _EM_CUDA:
            found.append(module[place:])
        place = module.find(b"\x7fELF", place + 4)
    return found


def read_cubin(cubin: bytes) -> tuple[int, int, int]:
    """A kernel's registers, stack and shared memory, as `cuobjdump -res-usage` shows them."""
    registers = stack = shared = 0
    for name, data, size in _sections(cubin):
        if name == ".nv.info":
            for kind, value in _attributes(data):
                registers = max(registers, value) if kind == _REGCOUNT else registers
                stack = max(stack, value) if kind == _MIN_STACK_SIZE else stack
        elif name.startswith(".nv.shared.") and not name.startswith(".nv.shared.reserved."):
            shared += size
    if not registers:
        raise RuntimeError("the cubin has no register count for its kernel")
    return registers, stack, shared


def are_resident(how: RowLaunch | Walk, registers: int) -> bool:
    """Whether an SM has registers for as many blocks as a launch wants, if each thread takes so many."""
    return how.resident * -(-how.threads // WARP) * WARP * -(-registers // UNIT) * UNIT <= REGISTERS_OF_SM


def _sections(elf: bytes) -> Iterator[tuple[str, bytes, int]]:
    """The name, the bytes and the size of each section of an ELF file of 64 bits; a section of zeros has no bytes in the file."""
    (start,), (size, count, names) = struct.unpack_from("<Q", elf, 40), struct.unpack_from("<HHH", elf, 58)
    headers = [struct.unpack_from("<I20xQQ", elf, start + size * i) for i in range(count)]
    for name, place, length in headers:
        at = headers[names][1] + name
        yield elf[at : elf.index(b"\0", at)].decode(), elf[place : place + length], length


def _attributes(data: bytes) -> Iterator[tuple[int, int]]:
    """The (attribute, value) pairs of a cubin's .nv.info whose entries are a function's number and a value."""
    at = 0
    while at + 4 <= len(data):
        form, kind, size = struct.unpack_from("<BBH", data, at)
        at += 4
        if form == 4:  # sized: `size` bytes follow; other forms have their value in place of the size
            if size == 8:
                yield kind, struct.unpack_from("<II", data, at)[1]
            at += size
