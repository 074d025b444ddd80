"""Which outputs a kernel may write into an input's buffer (`aliases` of a spec): where each thread reads an element of the
input before it alone writes that of the output."""

from __future__ import annotations

from codegen.plan.op import Gemm
from codegen.plan.planner import Elementwise
from codegen.plan.reductions import Reduction


def why_not(plan: Elementwise | Reduction | Gemm, output: str, source: str) -> str:
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
