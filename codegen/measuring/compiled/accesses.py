"""The accesses of global memory in a kernel's PTX, and the arrays to which they belong."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Operand:
    """A kernel's array, and the distinct widths of its loads and stores, in bytes, widest first."""

    name: str
    loads: tuple[int, ...]
    stores: tuple[int, ...]


@dataclass(frozen=True)
class MemoryAccess:
    """One load or store of global memory in PTX. `sources` are the possible origins of its address: positions of the kernel's
    parameters, or names of constant tables."""

    store: bool
    width: int
    sources: frozenset[int | str]


_INSTRUCTION = re.compile(r"^\s*(?:@!?%\w+\s+)?([a-z][\w.:]*)\s+(.+);$")
_REGISTER = re.compile(r"%\w+")
_SYMBOL = re.compile(r"(?<![%\w.$])[A-Za-z_$][\w$]*")
_SPACES = {"param", "local", "shared", "const", "tex"}


def entries(ptx: str) -> Iterator[tuple[str, str]]:
    """Each kernel's name and text, without the library functions that it calls."""
    for text in re.split(r"(?m)^}$", ptx):
        if found := re.search(r"(?m)^(?:\.visible )?\.entry (\w+)", text):
            yield found[1], text[found.start() :]


def memory_accesses(entry: str) -> list[MemoryAccess]:
    """Every access of global (or generic) memory in a kernel itself, not in library functions that it calls.

    A pointer is the first eight bytes of a tensor's parameter. Address arithmetic is followed from there.
    """
    body = entry[entry.index("\n{") :]
    instructions = [m.groups() for line in body.splitlines() if (m := _INSTRUCTION.match(line))]
    sources: dict[str, frozenset[int | str]] = {}
    changed = True
    while changed:  # until nothing changes: a register may be written in a later line than it is read
        changed = False
        for name, text in instructions:
            target, found = _pointers(name, text, sources)
            if target and not found <= sources.get(target, frozenset()):
                sources[target] = sources.get(target, frozenset()) | found
                changed = True
    return [a for name, text in instructions if (a := _access(name, text, sources))]


def _pointers(name: str, text: str, sources: dict[str, frozenset[int | str]]) -> tuple[str, frozenset[int | str]]:
    """The 64-bit register that an instruction writes, and its possible origins."""
    words = name.split(".")
    if name.startswith("ld.param."):
        parameter = re.search(r"\[\w*_param_(\d+)(?:\+0)?\]", text)
        target = _REGISTER.search(text)
        if parameter and target and words[-1] in ("b64", "u64", "s64"):
            return target[0], frozenset({int(parameter[1])})
    elif words[0] in ("add", "sub", "mov", "cvta", "mad", "selp") and words[-1] in ("b64", "u64", "s64"):
        registers = _REGISTER.findall(text)
        return registers[0], frozenset(_SYMBOL.findall(text)).union(*(sources.get(r, set()) for r in registers[1:]))
    return "", frozenset()


def _access(name: str, text: str, sources: dict[str, frozenset[int | str]]) -> MemoryAccess | None:
    words = name.replace("::", ".").split(".")
    if copied := re.search(r"\[(%\w+)[^\]]*\], (\d+)", text) if name.startswith("cp.async.c") else None:
        return MemoryAccess(False, int(copied[2]), sources.get(copied[1], frozenset()))
    if words[0] not in ("ld", "st", "ldu") or _SPACES & set(words):
        return None
    bits = next(int(w[1:]) for w in reversed(words) if re.fullmatch(r"[bsuf]\d+", w))
    vector = next((int(w[1:]) for w in words if re.fullmatch(r"v\d", w)), 1)
    address = re.search(r"\[(%\w+)", text)
    found = sources.get(address[1], frozenset()) if address else frozenset()
    return MemoryAccess(words[0] == "st", vector * bits // 8, found)


def operands(found: list[tuple[str, list[str]]], names: list[str]) -> tuple[Operand, ...]:
    """The loads and stores of each array by a launcher's kernels. `found` holds each kernel's text and its arrays, in order;
    `names` are all arrays."""
    widths: dict[tuple[str, bool], list[int]] = {}
    for text, own in found:
        for access in memory_accesses(text):
            tables = all(isinstance(source, str) for source in access.sources)
            if len(access.sources) != 1 or not (tables or access.sources <= set(range(len(own)))):
                raise RuntimeError(f"cannot tell which of {', '.join(own)} a {access.width}-byte access belongs to")
            for source in access.sources:
                if isinstance(source, int):
                    widths.setdefault((own[source], access.store), []).append(access.width)
    return tuple(
        Operand(name, *(widest_first(widths.get((name, store), [])) for store in (False, True))) for name in names
    )


def widest_first(widths: Iterable[int]) -> tuple[int, ...]:
    """Each width once, in descending order."""
    return tuple(sorted(set(widths), reverse=True))
