"""Counts the instructions of a compiled kernel's main loop, from its machine code: no disassembler is needed.

Every instruction takes 16 bytes. Its low nine bits are its opcode, on all architectures from Volta to Blackwell. Only instructions
that run for most vectors count: those in basic blocks that every path to a load or store of global memory, or from one to the end,
passes through. This leaves out slow paths, such as those of divisions and of large angles.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from codegen import extras
from codegen.targets import Work, family

with extras.needed("build"):
    from elftools.elf.elffile import ELFFile

# Low nine bits of instructions: MUFU and conversions (F2F, F2I, I2F, of 64 bits as well), on the unit for special functions
SPECIAL = frozenset({0x108, 0x104, 0x110, 0x105, 0x111, 0x106, 0x112})
# Integers, comparisons, selections, packed conversions: FSEL FMNMX FSETP ISETP SEL IADD3 LEA LOP3 IABS PRMT IMNMX PLOP3 SHF IADD
# VIADD F2FP I2FP VIMNMX FMNMX3
HALF = frozenset(
    {0x8, 0x9, 0xB, 0xC, 0x7, 0x10, 0x11, 0x12, 0x13, 0x16, 0x17, 0x1C, 0x19, 0x35, 0x36, 0x3E, 0x45, 0x48, 0x76}
)
GLOBAL = frozenset({0x181, 0x186, 0x1AE})  # LDG, STG, LDGSTS
WIDTHS = (1, 1, 2, 2, 4, 8, 16, 16)  # bytes, by a field of their second word
NOP, BRA, EXIT, RET = 0x118, 0x147, 0x14D, 0x150
LEAST = 0.5  # part of the widest access that a main loop moves at least: a loop that waits for a word moves four bytes
UNIFORM = 0x400  # the form of a branch
ALWAYS = 7  # the predicate of instructions that are always executed


@dataclass(frozen=True)
class Instruction:
    """One instruction: its kind, whether it is predicated, where a branch leads to (an instruction's number), and the bytes of an
    access of global memory."""

    kind: int
    predicated: bool
    target: int | None = None
    width: int = 0


def kernels(cubin: bytes, arch: str) -> Iterator[tuple[str, list[Instruction]]]:
    """Each kernel's name and instructions."""
    wide_offsets = int(family(arch).removeprefix("sm_")) >= 90  # of branches
    for section in ELFFile(io.BytesIO(cubin)).iter_sections():
        if section.name.startswith(".text."):
            words = struct.iter_unpack("<QQ", section.data())
            code = [_decoded(place, low, high, wide_offsets) for place, (low, high) in enumerate(words)]
            yield section.name.removeprefix(".text."), code


def _decoded(place: int, low: int, high: int, wide_offsets: bool) -> Instruction:
    kind, both = low & 0x1FF, low | high << 64
    if kind != BRA:
        width = WIDTHS[(high >> 9) & 7] if kind in GLOBAL else 0
        return Instruction(kind, (low >> 12) & 0xF != ALWAYS, width=width)
    offset = (both >> 34) & (2**46 - 1)
    offset -= (offset >> 45) << 46  # signed
    if wide_offsets:
        offset = offset << 8 | (low >> 16) & 0xFF
    uniform = low & 0xE00 == UNIFORM  # predicated by a register that a warp's threads share
    predicated = uniform or (low >> 12) & 0xF != ALWAYS or (both >> 87) & 0xF != ALWAYS
    return Instruction(kind, predicated, place + 1 + offset // 4)


def main_loop(code: Sequence[Instruction]) -> Work:
    """The instructions that a thread executes in one iteration of each innermost loop that reads or writes much of global memory, all
    of these together; the whole kernel's where there is no such loop."""
    blocks = _blocks(code)
    following = [_successors(code, block, blocks) for block in blocks]
    reached = _reached(following, 0)
    loops = []
    for tail in sorted(reached):
        for head in following[tail]:
            if head <= tail:
                inside = set(range(head, tail + 1)) & reached
                loops.append((head, tail, inside, sum(code[i].width for b in inside for i in blocks[b])))
    most = max((moved for *_, moved in loops), default=0)
    loops = [found for found in loops if found[3] > most / 4]  # not loops that wait for a word
    inner = [a for a in loops if not any(b[2] < a[2] for b in loops)]
    if not most or most < LEAST * max(i.width for i in code):
        ends = [b for b in reached if not following[b]]
        return _counted(code, blocks, following, reached, 0, ends)
    found = [_counted(code, blocks, following, inside, head, [tail]) for head, tail, inside, _ in inner]
    return sum(found, Work(0, 0, 0))


def _blocks(code: Sequence[Instruction]) -> list[range]:
    """The runs of instructions without branches in or out."""
    starts = {0, *(i.target for i in code if i.target is not None)}
    starts |= {n + 1 for n, i in enumerate(code) if i.kind in (BRA, EXIT, RET)}
    order = sorted(s for s in starts if s < len(code))
    return [range(a, b) for a, b in zip(order, [*order[1:], len(code)], strict=True)]


def _successors(code: Sequence[Instruction], block: range, blocks: Sequence[range]) -> list[int]:
    last, numbers = code[block[-1]], {b.start: n for n, b in enumerate(blocks)}
    found = [] if last.target is None else [numbers[last.target]]
    ends = last.kind in (BRA, EXIT, RET) and not last.predicated
    return found if ends or block.stop not in numbers else [*found, numbers[block.stop]]


def _reached(following: Sequence[Sequence[int]], start: int) -> set[int]:
    found, stack = set(), [start]
    while stack:
        block = stack.pop()
        if block not in found:
            found.add(block)
            stack += following[block]
    return found


def _accesses(code: Sequence[Instruction], block: range) -> bool:
    return any(code[i].kind in GLOBAL for i in block)


def _counted(
    code: Sequence[Instruction],
    blocks: Sequence[range],
    following: Sequence[Sequence[int]],
    inside: set[int],
    head: int,
    ends: Sequence[int],
) -> Work:
    """The instructions of a part of the code that is entered at one block and left at some."""
    onward = {b: [n for n in following[b] if n in inside and n != head] for b in inside}
    back: dict[int, list[int]] = {b: [] for b in inside}
    for block, found in onward.items():
        for other in found:
            back[other].append(block)
    before, after = _on_every_way(onward, back, [head]), _on_every_way(back, onward, list(ends))
    accesses = [b for b in inside if _accesses(code, blocks[b])]
    passed = set().union(*(before[b] | after[b] for b in accesses)) if accesses else {head}
    kinds = [code[i].kind for b in passed for i in blocks[b] if code[i].kind != NOP]
    return Work(len(kinds), sum(k in SPECIAL for k in kinds), sum(k in HALF for k in kinds))


def _on_every_way(onward: dict[int, list[int]], back: dict[int, list[int]], starts: list[int]) -> dict[int, set[int]]:
    """The blocks on each way from the starts to a block: its dominators. Empty for blocks that no way leads to."""
    everything = set(onward)
    found = {b: {b} if b in starts else everything for b in everything}
    changed = True
    while changed:
        changed = False
        for block in sorted(everything - set(starts)):
            ways = [found[b] for b in back[block]]
            now = {block} | set.intersection(*ways) if ways else set()
            if now != found[block]:
                found[block], changed = now, True
    return found
