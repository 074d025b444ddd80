"""Memory instructions: loads, stores, atomics, and addresses between spaces. `memory` checks what they do."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from codegen.interpret.decoding import DTYPES, Execute, Unknown
from codegen.interpret.ptx import Address, Symbol, Vector

if TYPE_CHECKING:
    from codegen.interpret.machine import Machine


def memory_of(words) -> tuple[str, int, str]:
    """The space, how many words, and their type."""
    space = words[0] if words and words[0] in ("global", "shared", "local", "param", "const") else "generic"
    rest = [
        w
        for w in words
        if w not in (space, "nc", "relaxed", "weak", "gpu", "cta", "sys", "acquire", "release", "volatile")
    ]
    rest = [w for w in rest if not w.startswith(("L1::", "L2::", "cta"))]
    count = 1
    if rest and rest[0] in ("v2", "v4", "v8"):
        count = int(rest.pop(0)[1:])
    (kind,) = rest
    if kind not in DTYPES:
        raise Unknown("." + kind)
    return space, count, kind


def load(words, operands) -> Execute:
    space, count, kind = memory_of(words)
    target, address = operands
    targets = target.items if isinstance(target, Vector) else (target,)
    assert isinstance(address, Address) and len(targets) == count
    if space == "generic":
        raise Unknown("generic address")
    signed = kind.startswith("s")
    # What goes to no register is not read: the compiler may ask for whole vectors at an array's end
    used = max((i + 1 for i, item in enumerate(targets) if item is not None), default=0)

    def run(m: Machine) -> None:
        values = m.load(space, address, used, np.dtype(DTYPES[kind]).itemsize, count)
        for item, value in zip(targets, values, strict=False):
            if item is not None:
                m.write(item, value.view(DTYPES[kind]) if signed else value)

    return run


def store(words, operands) -> Execute:
    space, count, kind = memory_of(words)
    address, source = operands
    sources = source.items if isinstance(source, Vector) else (source,)
    assert isinstance(address, Address) and len(sources) == count
    held = [s for s in sources if s is not None]
    if space not in ("global", "shared", "local"):
        raise Unknown(space)
    unsigned = f"u{np.dtype(DTYPES[kind]).itemsize * 8}"
    return lambda m: m.store(space, address, [m.read(s, unsigned) for s in held], np.dtype(DTYPES[kind]).itemsize)


ATOMS: dict[str, Callable] = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "exch": lambda old, new: new,
}  # fmt: skip


def atomic(words, operands, result: bool) -> Execute:
    words = tuple(w for w in words if w not in ("relaxed", "acq_rel", "acquire", "release", "gpu", "cta", "sys"))
    space, op, kind = words
    if space not in ("global", "shared") or op not in (*ATOMS, "cas"):
        raise Unknown(f".{op}")
    target = operands[0] if result else None
    address, *values = operands[1:] if result else operands
    assert isinstance(address, Address)
    return lambda m: m.atomic(space, address, op, ATOMS.get(op), kind, values, target)


def address(words, operands) -> Execute:
    """cvta: global, shared and local addresses are what they are."""
    target, a = operands[:2]
    if isinstance(a, Symbol):
        return lambda m: m.write(target, m.address_of(a.name))
    return lambda m: m.write(target, m.read(a, "u64"))
