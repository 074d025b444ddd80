"""Memory instructions: loads, stores, atomics, and addresses between spaces. `memory/` checks them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from codegen.interpret.arithmetic import PTX_TYPES
from codegen.interpret.decode.asynchronous import bulk, mbarriers, tensormaps
from codegen.interpret.decode.decoding import Execute, Machine, Unknown, only
from codegen.interpret.memory.spaces import WINDOWS
from codegen.interpret.ptx import Address, Imm, Operand, Symbol, Vector

SPACES = ("global", "shared", "shared::cta", "shared::cluster", "local", "param", "const")
# Cache hints have no effect here: there is one memory. Memory orders have none either, except that they mark accesses
# with which threads synchronise, since lanes step together
HINTS = (
    "weak", "volatile", "relaxed", "acquire", "release", "acq_rel", "cta", "cluster", "gpu", "sys",
    "nc", "ca", "cg", "cs", "lu", "cv", "wb", "wt",
)  # fmt: skip


STRONG = {"volatile", "relaxed", "acquire", "release"}


def memory_of(words: tuple[str, ...]) -> tuple[str, list[str]]:
    """The space, and the words that are neither a space nor a hint."""
    space = next((w for w in words if w in SPACES), "generic")
    rest = [w for w in words if w != space and w not in HINTS and not w.startswith(("L1::", "L2::"))]
    return "shared" if space == "shared::cta" else space, rest


def vector_of(words: tuple[str, ...]) -> tuple[str, int, str]:
    """The space, the number of words, and their type."""
    space, rest = memory_of(words)
    count = 1
    if rest and rest[0] in ("v2", "v4", "v8"):
        count = int(rest.pop(0)[1:])
    (kind,) = rest
    if kind not in PTX_TYPES:
        raise Unknown("." + kind)
    return space, count, kind


def load(words: tuple[str, ...], operands: tuple[Operand, ...]) -> Execute:
    space, count, kind = vector_of(words)
    target, address = operands
    targets = target.items if isinstance(target, Vector) else (target,)
    assert isinstance(address, Address) and len(targets) == count
    signed, strong = kind.startswith("s"), bool(STRONG & {*words})
    # Words without a register are not read: the compiler may load whole vectors at an array's end
    used = max((i + 1 for i, item in enumerate(targets) if item is not None), default=0)

    def run(m: Machine) -> None:
        values = m.spaces.load(space, address, used, np.dtype(PTX_TYPES[kind]).itemsize, count, strong)
        for item, value in zip(targets, values, strict=False):
            if item is not None:
                m.write(item, value.view(PTX_TYPES[kind]) if signed else value)

    return run


def store(words: tuple[str, ...], operands: tuple[Operand, ...]) -> Execute:
    if words[:1] == ("async",):
        return mbarriers.store_async(words[1:], operands)
    space, count, kind = vector_of(words)
    address, source = operands
    sources = source.items if isinstance(source, Vector) else (source,)
    assert isinstance(address, Address) and len(sources) == count
    held = [s for s in sources if s is not None]
    if space == "const":
        raise Unknown(".const")
    unsigned, strong = f"u{np.dtype(PTX_TYPES[kind]).itemsize * 8}", bool(STRONG & {*words})
    return lambda m: m.spaces.store(
        space, address, [m.read(s, unsigned) for s in held], np.dtype(PTX_TYPES[kind]).itemsize, strong
    )


ATOMS: dict[str, Callable[..., np.ndarray]] = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "exch": lambda old, new: new,
}  # fmt: skip


def atomic(words: tuple[str, ...], operands: tuple[Operand, ...], result: bool) -> Execute:
    space, (op, kind) = memory_of(words)
    if space not in ("global", "shared", "shared::cluster") or op not in (*ATOMS, "cas"):
        raise Unknown(f".{op}")
    target = operands[0] if result else None
    address, *values = operands[1:] if result else operands
    assert isinstance(address, Address)
    return lambda m: m.spaces.atomic(space, address, op, ATOMS.get(op), kind, values, target)


def address(words: tuple[str, ...], operands: tuple[Operand, ...]) -> Execute:
    """cvta: between a space's addresses and generic ones, which differ by the start of the space's window."""
    back = words[:1] == ("to",)
    space, kind = words[1:] if back else words
    target, a = operands
    if space not in WINDOWS or kind not in ("u64", "u32"):
        raise Unknown("." + space)
    start = WINDOWS[space]

    def run(m: Machine) -> None:
        where = m.spaces.address_of(a.name) if isinstance(a, Symbol) else m.read(a, "u64")
        m.write(
            target, where.astype(np.uint64) - np.uint64(start) if back else where.astype(np.uint64) + np.uint64(start)
        )

    return run


# Clusters


def map_address(words: tuple[str, ...], operands: tuple[Operand, ...]) -> Execute:
    """mapa: the address in another block's shared memory, within the cluster, that corresponds to an address in this
    block's."""
    only(words, ("shared::cluster", "u32"))
    target, a, rank = operands
    if isinstance(a, Symbol):
        return lambda m: m.spaces.map_shared(target, m.spaces.address_of(a.name), m.read(rank, "u32"))
    return lambda m: m.spaces.map_shared(target, m.read(a, "u32"), m.read(rank, "u32"))


def rank_of(words: tuple[str, ...], operands: tuple[Operand, ...]) -> Execute:
    """getctarank: the rank of the block whose shared memory an address is in."""
    only(words, ("shared::cluster", "u32"))
    target, a = operands
    return lambda m: m.write(target, m.spaces.rank_of(m.read(a, "u32").astype(np.int64)))


def fence(words: tuple[str, ...], operands: tuple[Operand, ...]) -> Execute:
    """A fence. Lanes step together, so memory is in order; only a relaxed arrival at a cluster's barrier needs a fence."""
    flags = set(words)
    allowed = ("acq_rel", "acquire", "release", "sc", "cta", "cluster", "gpu", "gl", "sys")
    if words[:1] == ("proxy",):
        only(words[1:], ("async", "shared::cta"))
        return lambda m: m.shared.fence(m.active())
    if words[:1] == ("mbarrier_init",):
        only(words[1:], ("release", "cluster"))
        return lambda m: m.shared.mbarriers.fence(m.active())
    only(words, allowed)
    if flags & {"cluster", "gpu", "gl", "sys"}:
        return lambda m: m.ordering.fence(m.active())
    return lambda m: None


# Asynchronous copies


def copy_async(words: tuple[str, ...], operands: tuple[Operand, ...]) -> Execute:
    """cp.async of global to shared memory, and the groups that threads wait for; cp.async.bulk."""
    if words[:3] == ("reduce", "async", "bulk"):
        return bulk.decode(words[3:], operands, True)
    if words[:2] == ("async", "bulk"):
        towards = words[2] in ("global", "commit_group", "wait_group")
        return bulk.decode(words[2:], operands, False) if towards else tensormaps.copy_box(words[2:], operands)
    if words[:2] == ("async", "commit_group"):
        return lambda m: m.shared.commit(m.active())
    if words[:2] == ("async", "wait_group"):
        (pending,) = operands
        return lambda m: m.shared.wait(m.active(), int(m.read(pending, "u32")[0]))
    if words[:2] == ("async", "wait_all"):

        def everything(m: Machine) -> None:
            m.shared.commit(m.active())
            m.shared.wait(m.active(), 0)

        return everything
    prefetches = ("L2::64B", "L2::128B", "L2::256B")
    only(words, (*prefetches, "async", "ca", "cg", "shared", "shared::cta", "global"))
    if words[:1] != ("async",) or not {"ca", "cg"} & set(words) or "global" not in words:
        raise Unknown("." + words[0])
    target, source, size, *rest = operands
    if not isinstance(target, Address) or not isinstance(source, Address) or not isinstance(size, Imm) or len(rest) > 1:
        raise Unknown(".async")
    if size.value not in ((16,) if "cg" in words else (4, 8, 16)):
        raise Unknown(f".async of {size.value} bytes")
    return lambda m: m.spaces.copy_async(target, source, size.value, rest[0] if rest else None)
