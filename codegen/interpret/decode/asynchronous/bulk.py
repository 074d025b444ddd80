"""cp.async.bulk and cp.reduce.async.bulk from shared to global memory, and the groups that threads wait for."""

from __future__ import annotations

import numpy as np

from codegen.interpret.decode.decoding import Execute, Machine, Unknown
from codegen.interpret.memory.arrays import Fault
from codegen.interpret.memory.bulks import CHUNK
from codegen.interpret.ptx import Address, Imm, Operand

TARGET = ("global", "shared::cta", "bulk_group")


def decode(words: tuple[str, ...], operands: tuple[Operand, ...], adds: bool) -> Execute:
    """The words after `cp.async.bulk`, or, where it `adds`, after `cp.reduce.async.bulk`."""
    if words == ("commit_group",):
        return lambda m: m.bulks.commit(m.active())
    if words[:1] == ("wait_group",) and words[1:] in ((), ("read",)) and isinstance(operands[0], Imm):
        pending = operands[0].value
        return lambda m: m.bulks.wait(m.active(), pending, words[1:] == ("read",))
    if words != (*TARGET, "add", "f32") if adds else words != TARGET:
        raise Unknown(".bulk." + ".".join(words))
    target, source, size = operands
    assert isinstance(target, Address) and isinstance(source, Address)
    return lambda m: _copy(m, target, source, size, adds)


def _copy(m: Machine, target: Address, source: Address, size: Operand, adds: bool) -> None:
    lanes = m.active()
    where, sizes = m.spaces.place(target), np.broadcast_to(m.read(size, "u32"), lanes.shape)
    rows, offsets = m.spaces.shared_place("shared", m.spaces.place(source), lanes)
    for lane, address, row, offset, count in zip(lanes, where, rows, offsets, sizes, strict=True):
        if address % CHUNK or offset % CHUNK or count % CHUNK:
            raise Fault(int(lane), f"cp.async.bulk whose addresses and size {CHUNK} does not divide")
        m.bulks.start(int(lane), int(m.thread[lane]), int(address), int(row), int(offset), int(count), adds)
    m.ordering.tick(lanes)
