"""What an op's kernel cannot do: dtypes that an architecture cannot convert, and outputs that take no input's buffer."""

from __future__ import annotations

import re
from typing import Protocol

from codegen.graph.nodes import DTYPES, Statement, topological
from codegen.plan.access import BoundTypes
from codegen.plan.elementwise import Elementwise
from codegen.plan.op import Gemm
from codegen.plan.reductions import Reduction
from codegen.spec.spec import Spec


class Described(Protocol):
    """An op's spec and its chain."""

    @property
    def spec(self) -> Spec: ...
    @property
    def statements(self) -> tuple[Statement, ...]: ...


def lacks(op: Described, types: BoundTypes, arch: str) -> str | None:
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


def why_not_in_place(plan: Elementwise | Reduction | Gemm, output: str, source: str) -> str:
    """Why no kernel of a plan writes an output into an input's buffer; empty where one does."""
    if isinstance(plan, Gemm):
        return "tiles of a product (@) are written while others are still read"
    if plan.columns:
        return "a kernel that reduces over rows may read a row again after it has written it"
    reads = [a for a in plan.loads if source in (a.array and a.array.name, a.index_of and a.index_of[0])]
    if any(a.index_of for a in reads):
        return f"{source!r} is read where an index says ('take'), or is that index"
    writes = [a for a in plan.stores if a.array and a.array.name == output]
    if [(a.mode, a.tokens) for a in reads] != [("flat", a.tokens) for a in writes]:
        return f"{source!r} is not read in the order in which {output!r} is written"
    return ""
