"""Barriers of a warp, of a block or some of its warps, of a cluster, and wgmma.fence. They end a block of instructions."""

from __future__ import annotations

from codegen.interpret.decode.decoding import Unknown, only
from codegen.interpret.memory.barriers import Barrier
from codegen.interpret.ptx import Imm, Instruction


def decode(instruction: Instruction) -> Barrier:
    """The barrier of an instruction. Raises `Unknown` for an unknown one."""
    first, *words = instruction.words
    operands = instruction.operands
    if first == "wgmma":
        only(tuple(words), ("fence", "sync", "aligned"))
        return Barrier("warpgroup")
    if words[:1] == ["warp"] and words[1:] == ["sync"]:
        return Barrier("warp", takes=operands[0])
    if words[:1] == ["cluster"] and first == "barrier":
        if words[1:2] == ["arrive"]:
            flags = only(tuple(words[2:]), ("release", "relaxed", "aligned"))
            return Barrier("cluster", waits=False, releases="relaxed" not in flags)
        only(tuple(words[1:]), ("wait", "acquire", "aligned"))
        return Barrier("cluster")
    words = [w for w in words if w not in ("cta", "aligned")]
    if words not in (["sync"], ["arrive"]) or len(operands) not in ((1, 2) if words == ["sync"] else (2,)):
        raise Unknown(instruction.words[0])
    return Barrier("block", operands[0], operands[1] if len(operands) == 2 else Imm(0), waits=words == ["sync"])
