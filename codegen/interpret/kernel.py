"""A kernel's PTX, ready to run: basic blocks whose instructions are decoded."""

from __future__ import annotations

from dataclasses import dataclass

from codegen.interpret.approximations import bounds_of
from codegen.interpret.decode import barriers
from codegen.interpret.decode.decoding import Execute, Unknown
from codegen.interpret.decode.instructions import decode, refuse_converted_stores
from codegen.interpret.memory.barriers import Barrier
from codegen.interpret.memory.products import registers
from codegen.interpret.ptx import Instruction, Program, PtxError, begins_block, ends_block

MBARRIERS = 64  # per block that are distinguished, at most: fewer where the kernel initialises fewer


@dataclass(frozen=True)
class Decoded:
    """A basic block, ready to run: instructions with their guards, and its last one."""

    body: tuple[tuple[Execute, Instruction], ...]
    end: Instruction | None
    barrier: Barrier | None  # where that is one
    meeting: Instruction | None  # its first instruction, if lanes of a warp wait for each other there
    goes_on: bool  # to the next block, which has no other predecessor


class Kernel:
    """A parsed entry function, every instruction decoded."""

    def __init__(self, program: Program):
        self.program = program
        refuse_converted_stores(program)
        self.blocks: list[Decoded] = []
        meetings = [block[0] if block and begins_block(block[0].words) else None for block in program.blocks]
        for i, block in enumerate(program.blocks):
            end = block[-1] if block and ends_block(block[-1].words) else None
            body = block[:-1] if end is not None else block
            barrier = None if end is None else self.control(end)
            joined = i + 1 < len(meetings) and meetings[i + 1] is not None and i + 1 not in program.labels.values()
            decoded = tuple((decode(instruction, program.name), instruction) for instruction in body)
            self.blocks.append(Decoded(decoded, end, barrier, meetings[i], end is None and joined))
        self.of_products = registers(program)
        self.approximate = sum(bounds_of(i.op) is not None for block in program.blocks for i in block)
        made = sum(i.words[:2] == ("mbarrier", "init") for block in program.blocks for i in block)
        self.mbarriers = min(made, MBARRIERS)
        self.shared = _layout(program, "shared")
        self.local = _layout(program, "local")

    def control(self, instruction: Instruction) -> Barrier | None:
        """The barrier of an instruction of control flow, if it is one. Raises `PtxError` for an unknown instruction."""
        if instruction.words[0] in ("bra", "ret", "exit", "trap"):
            return None
        try:
            if instruction.words[0] not in ("bar", "barrier", "wgmma"):
                raise Unknown
            return barriers.decode(instruction)
        except Unknown:
            op = instruction.op
            raise PtxError(f"{self.program.name}: unknown instruction {op!r}: {instruction.text}") from None


def _layout(program: Program, space: str) -> int:
    """Assigns offsets to a space's variables; returns its size."""
    size = 0
    for variable in sorted(program.variables.values(), key=lambda v: v.size == 0):  # dynamic shared memory comes last
        if variable.space == space:
            size = -(-size // variable.align) * variable.align
            variable.offset = size
            size += variable.size
    return size
