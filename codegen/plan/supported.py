"""Which architectures an op has a kernel for."""

from __future__ import annotations

import re
from typing import Protocol

from codegen.graph.nodes import DTYPES, Statement, topological
from codegen.spec.spec import Array, Spec


class Op(Protocol):
    """What of an op is looked at."""

    @property
    def spec(self) -> Spec: ...
    @property
    def statements(self) -> tuple[Statement, ...]: ...


class Types(Protocol):
    """What the type variables are bound to."""

    def dtype(self, array: Array | str) -> str: ...


def lacks(op: Op, types: Types, arch: str) -> str | None:
    """Why an architecture, such as sm_90a, has no kernel for these dtypes; None where it has one."""
    number = re.match(r"sm_(\d+)", arch)
    nodes = topological(statement.value for statement in op.statements)
    casts = dict.fromkeys(str(node.attr) for node in nodes if node.op == "cast")
    used = [(f"{a.name!r} is", types.dtype(a)) for a in op.spec.arrays]
    used += [("the chain casts to", types.dtype(name)) for name in casts]
    for words, dtype in used:
        needed = DTYPES[dtype].min_arch
        if number and int(number[1]) < needed:
            return f"{op.spec.op}: {words} {dtype}, which {arch} cannot convert; its kernel needs sm_{needed} or newer"
    return None
