"""Finds PTX in which ptxas loses a sign.

For Hopper and B200, ptxas 13.0 and 13.4 merge two maxima, or minima, of integers into one of three numbers, and compile
max(max(a, -b), c) as max(a, b, c). Kernels keep their maxima apart (`codegen.device.math.opaque`), but a compiler may make others of
selections, or of the arithmetic of positions. A kernel that has one is refused, since its results would be wrong.
"""

from __future__ import annotations

import re

MERGING = ("sm_90", "sm_100", "sm_101", "sm_103")  # architectures with that instruction
_MADE = re.compile(r"^\s*(max|min|neg|sub)\.(s32|s16|s16x2)\s+(%\w+), (.*);", re.MULTILINE)


def check(ptx: str, arch: str, name: str) -> None:
    """Raises RuntimeError if an architecture's assembler would lose a sign of a module's."""
    for body in re.split(r"(?m)^}$", ptx) if arch.startswith(MERGING) else ():
        if found := _lost(body):
            raise RuntimeError(
                f"{name}: {found!r} is an argument of two nested maxima or minima of integers, and the assembler for {arch} would lose"
                " its sign; write these with maximum and minimum, or ask for implementation='xla'"
            )


def _lost(body: str) -> str | None:
    """An instruction of a kernel whose sign is lost."""
    negated, extremes = dict[str, str](), dict[str, tuple[str, list[str]]]()
    for made in _MADE.finditer(body):
        operation, kind, target, text = made.groups()
        sources = text.split(", ")
        if operation in ("max", "min"):
            extremes[target] = f"{operation}.{kind}", sources
        elif operation == "neg" or sources[0] == "0":
            negated[target] = made[0].strip()
    for kind, sources in extremes.values():
        for inner in sources:
            same = inner in extremes and extremes[inner][0] == kind
            signs = [negated[s] for s in extremes[inner][1] if s in negated] if same else []
            if signs and len(re.findall(rf"{inner}\b", body)) == 2:  # written once, read once
                return signs[0]
    return None
