"""Instructions on mbarriers: initialise, arrive, wait for a phase; and st.async, which delivers bytes for one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from codegen.interpret.arithmetic import PTX_TYPES
from codegen.interpret.decode.decoding import Execute, Machine, Unknown, only
from codegen.interpret.memory.arrays import Fault
from codegen.interpret.ptx import Address, Imm, Operand, Vector

SPACES = ("shared", "shared::cta", "b64")


def decode(words: tuple[str, ...], operands: tuple[Operand, ...]) -> Execute:
    """mbarrier.init, .arrive, .arrive.expect_tx and .try_wait.parity."""
    action, *rest = words
    if action == "init":
        only(tuple(rest), SPACES)
        place, count = operands
        at = _address(place)
        return lambda m: _init(m, at, count)
    if action == "arrive" and rest[:1] == ["expect_tx"]:
        only(tuple(rest[1:]), ("release", "cta", *SPACES))
        _, place, expected = operands
        at = _address(place)
        return lambda m: _arrive(m, at, expected, Imm(1))
    if action == "arrive":
        space = "shared::cluster" if "shared::cluster" in rest else "shared"
        only(tuple(rest), ("release", "cta", "cluster", "shared::cluster", *SPACES))
        _, place, *more = operands
        at = _address(place)
        return lambda m: _arrive(m, at, Imm(0), more[0] if more else Imm(1), space)
    if action in ("try_wait", "test_wait") and rest[:1] == ["parity"]:
        only(tuple(rest[1:]), ("acquire", "cta", *SPACES))
        target, place, parity, *_ = operands
        at = _address(place)
        return lambda m: _wait(m, target, at, parity)
    raise Unknown("." + ".".join(words))


def store_async(words: tuple[str, ...], operands: tuple[Operand, ...]) -> Execute:
    """st.async: a store to the shared memory of a block of the cluster, whose mbarrier counts the bytes."""
    *rest, kind = words
    count = int(rest.pop()[1:]) if rest[-1] in ("v2", "v4") else 1
    if only(tuple(rest), ("weak", "shared::cluster", "mbarrier::complete_tx::bytes")) < {"shared::cluster"}:
        raise Unknown(".async")
    place, source, barrier = operands
    sources = source.items if isinstance(source, Vector) else (source,)
    assert isinstance(place, Address) and isinstance(barrier, Address) and len(sources) == count
    return lambda m: _send(m, place, sources, kind, barrier)


def _places(m: Machine, address: Address, space: str = "shared") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The active lanes, and the block and offset of each one's address."""
    lanes = m.active()
    row, offset = m.spaces.shared_place(space, m.spaces.place(address), lanes)
    return lanes, row, np.broadcast_to(offset, lanes.shape)


def _init(m: Machine, address: Address, count: Operand) -> None:
    counts = np.broadcast_to(m.read(count, "u32"), m.active().shape)
    for lane, row, offset, number in zip(*_places(m, address), counts, strict=True):
        m.shared.mbarriers.make(int(row), int(offset), int(number), int(lane))


def _arrive(m: Machine, address: Address, expected: Operand, count: Operand, space: str = "shared") -> None:
    sizes, counts = (np.broadcast_to(m.read(x, "u32"), m.active().shape) for x in (expected, count))
    over = False
    lanes, rows, offsets = _places(m, address, space)
    m.shared.reach(rows, lanes)
    for lane, row, offset, size, number in zip(lanes, rows, offsets, sizes, counts, strict=True):
        over |= m.shared.mbarriers.arrive(int(row), int(offset), int(size), int(lane), int(number))
    m.ordering.tick(m.active())
    if over:
        m.wake()


def _wait(m: Machine, target: Operand, address: Address, parity: Operand) -> None:
    lanes, rows, offsets = _places(m, address)
    parities = np.broadcast_to(m.read(parity, "u32"), lanes.shape)
    over = np.zeros(lanes.shape, bool)
    for row, offset, bit in {(int(r), int(o), int(b)) for r, o, b in zip(rows, offsets, parities, strict=True)}:
        chosen = (rows == row) & (offsets == offset) & (parities == bit)
        over[chosen] = m.shared.mbarriers.over(row, offset, bit, lanes[chosen])
    m.write(target, over)
    m.aside(lanes[~over])


def _address(operand: Operand) -> Address:
    assert isinstance(operand, Address)
    return operand


def _send(m: Machine, address: Address, sources: Sequence[Operand | None], kind: str, barrier: Address) -> None:
    lanes, row, offset = _places(m, address, "shared::cluster")
    size = np.dtype(PTX_TYPES[kind]).itemsize
    values = [m.read(s, f"u{8 * size}") for s in sources if s is not None]
    m.shared.reach(row, lanes)
    _, homes, places = _places(m, barrier, "shared::cluster")
    at = m.shared.send(row, offset, values, size, lanes, homes, places)
    over = False
    for i, (lane, home, place) in enumerate(zip(lanes, homes, places, strict=True)):
        if home != row[i]:
            raise Fault(int(lane), "st.async to one block's memory, with the mbarrier of another")
        m.shared.mbarriers.tell(m.shared.mbarriers.of(int(home), int(place), int(lane)), int(lane))
        over |= m.shared.mbarriers.bring(int(home), int(place), at[i], int(lane))
    m.ordering.tick(lanes)
    if over:
        m.wake()
