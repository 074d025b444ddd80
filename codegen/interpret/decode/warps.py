"""Instructions between the lanes of a warp."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from codegen.interpret import arithmetic as ar
from codegen.interpret.decode.decoding import Execute, Machine, Unknown, only
from codegen.interpret.lanes import absent, ballot, highest, inside
from codegen.interpret.memory.arrays import Fault
from codegen.interpret.ptx import Operand, Vector


def members(m: Machine, lanes: np.ndarray, mask: Operand) -> np.ndarray:
    """The mask of a warp's lanes. All of them must be active, and each active lane must be in its mask."""
    named = np.broadcast_to(m.read(mask, "u32"), lanes.shape)
    missing = absent(m, lanes, named, ballot(m, lanes))
    if missing.any():
        first = int(np.flatnonzero(missing)[0])
        raise Fault(int(lanes[first]), f"lane {highest(missing[first])} of its warp is in the mask but not here")
    place = inside(m, lanes)
    outside = (named >> place.astype(np.uint32)) & np.uint32(1) == 0
    if outside.any():
        raise Fault(int(lanes[outside][0]), "a lane executes this that is not in its mask")
    return named


def shuffle(words: tuple[str, ...], operands: tuple[Operand, ...]) -> Execute:
    sync, mode, _ = words
    target, a, b, c, mask = operands
    if sync != "sync" or mode not in ("up", "down", "bfly", "idx"):
        raise Unknown("." + mode)

    def run(m: Machine) -> None:
        lanes = m.active()
        members(m, lanes, mask)
        value = np.broadcast_to(m.read(a, "u32"), lanes.shape)
        step = np.broadcast_to(m.read(b, "u32"), lanes.shape).astype(np.int64) & 31
        control = np.broadcast_to(m.read(c, "u32"), lanes.shape).astype(np.int64)
        clamp, segment = control & 31, (control >> 8) & 31
        lane = inside(m, lanes)
        top, bottom = (lane & segment) | (clamp & ~segment), lane & segment
        source = {"up": lane - step, "down": lane + step, "bfly": lane ^ step, "idx": bottom | (step & ~segment)}[mode]
        good = source >= top if mode == "up" else source <= top
        wanted = sources(m, lanes, np.where(good, source, lane))
        whole = np.zeros(m.lanes, np.uint32)
        whole[lanes] = value
        both = target.items if isinstance(target, Vector) else (target, None)
        if both[0] is not None:
            m.write(both[0], whole[wanted])
        if both[1] is not None:
            m.write(both[1], good)

    return run


def sources(m: Machine, lanes: np.ndarray, source: np.ndarray) -> np.ndarray:
    """The lane of the batch for a lane of the warp, which must be active."""
    wanted = lanes - inside(m, lanes) + source
    active = np.zeros(m.lanes + 32, bool)
    active[lanes] = True
    missing = ~active[wanted]
    if missing.any():
        first = int(np.flatnonzero(missing)[0])
        raise Fault(int(lanes[first]), f"shuffle from lane {int(source[first])} of its warp, which is not active")
    return wanted


def vote(words: tuple[str, ...], operands: tuple[Operand, ...]) -> Execute:
    sync, mode, _ = words
    if sync != "sync" or mode not in ("all", "any", "uni", "ballot"):
        raise Unknown("." + mode)
    target, p, mask = operands

    def run(m: Machine) -> None:
        lanes = m.active()
        members(m, lanes, mask)
        there = ballot(m, lanes)
        yes = ballot(m, lanes, np.broadcast_to(m.read(p, "pred"), lanes.shape))
        m.write(
            target,
            {"ballot": yes, "any": yes != 0, "all": yes == there, "uni": (yes == 0) | (yes == there)}[mode],
        )

    return run


def active_mask(words: tuple[str, ...], operands: tuple[Operand, ...]) -> Execute:
    only(words, ("b32",))
    (target,) = operands
    return lambda m: m.write(target, ballot(m, m.active()))


def elect(words: tuple[str, ...], operands: tuple[Operand, ...]) -> Execute:
    """The leader is the lowest lane of the mask. PTX does not define the choice, but it must be the same each time."""
    only(words, ("sync",))
    target, mask = operands
    if not isinstance(target, Vector):
        raise Unknown(".sync")

    def run(m: Machine) -> None:
        lanes = m.active()
        named = members(m, lanes, mask)
        leader = np.bitwise_count((named & -named) - np.uint32(1)).astype(np.uint32)
        if target.items[0] is not None:
            m.write(target.items[0], leader)
        if target.items[1] is not None:
            m.write(target.items[1], leader == inside(m, lanes))

    return run


def reduce(words: tuple[str, ...], operands: tuple[Operand, ...]) -> Execute:
    """redux.sync: one value from the values of a mask's lanes."""
    sync, operation, *flags, kind = words
    target, a, mask = operands
    integers: dict[str, Callable[..., np.ndarray]] = {"add": np.add, "min": np.minimum, "max": np.maximum}
    bits: dict[str, Callable[..., np.ndarray]] = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
    chosen = only(tuple(flags), ("abs", "NaN") if kind == "f32" else ())
    table = bits if kind == "b32" else integers if kind in ("u32", "s32", "f32") else {}
    if sync != "sync" or operation not in table or (kind == "f32" and operation == "add"):
        raise Unknown("." + operation)

    def combine(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        if kind != "f32":
            return table[operation](x, y)
        return (ar.smaller if operation == "min" else ar.larger)(x, y, "NaN" in chosen)

    def run(m: Machine) -> None:
        lanes = m.active()
        named = members(m, lanes, mask)
        value = np.broadcast_to(m.read(a, kind), lanes.shape)
        value = np.abs(value) if "abs" in chosen else value
        whole: np.ndarray = np.zeros(m.lanes + 32, value.dtype)
        whole[lanes] = value
        start = lanes - inside(m, lanes)
        size = np.minimum(m.per_block - start % m.per_block, 32)
        result, found = np.zeros(lanes.shape, value.dtype), np.zeros(lanes.shape, bool)
        for place in range(32):
            here = ((named >> np.uint32(place)) & np.uint32(1) != 0) & (place < size)
            other = whole[start + place]
            result = np.where(here, np.where(found, combine(result, other), other), result)
            found |= here
        m.write(target, ar.canonical(result) if kind == "f32" else result)

    return run
