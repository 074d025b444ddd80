"""The limits of kernels: dtypes that an architecture cannot convert, outputs that cannot take an input's buffer, and sizes for
which XLA's form is faster."""

from __future__ import annotations

import re
from typing import Protocol

from codegen.errors import Diagnostic
from codegen.graph.nodes import DTYPES, Statement, nodes_of
from codegen.plan.access import BoundTypes
from codegen.plan.attention import AttentionPlan
from codegen.plan.elementwise import Elementwise
from codegen.plan.launches import AnyLaunch, PlannedCall
from codegen.plan.op import AnyPlan, Gemm, KernelPlan, Staged
from codegen.plan.rows.reductions import Reduction
from codegen.plan.rows.selecting import Selection
from codegen.shared import RowLaunch, WalkLaunch
from codegen.spec.spec import Spec

# Calls in which an H100 was slower than XLA are left to it (`left_to_xla`)
BUSY = 64  # blocks that share few rows: with fewer most of a GPU is idle
PIECE = 768 * 1024  # bytes of a row for each of them, above which kernels that split rows further are faster
MANY = 2**20  # columns that are reduced over few rows
FEW, SOME = 8, 64  # rows: fewer than a block has at a time; fewer if nothing is written along them


class Described(Protocol):
    """An op's spec and its chain."""

    @property
    def spec(self) -> Spec: ...
    @property
    def statements(self) -> tuple[Statement, ...]: ...


def lacks(op: Described, types: BoundTypes, arch: str) -> str | None:
    """Why an architecture, such as sm_90a, has no kernel for these dtypes; None if it has one."""
    number = re.match(r"sm_(\d+)", arch)
    nodes = nodes_of(op.statements)
    casts = dict.fromkeys(str(node.attr) for node in nodes if node.op == "cast")
    used = [(f"{a.name!r} is", types.dtype(a)) for a in op.spec.arrays]
    used += [("the chain casts to", types.dtype(name)) for name in casts]
    for words, dtype in used:
        needed = DTYPES[dtype].min_arch
        if number and int(number[1]) < needed:
            return f"{op.spec.op}: {words} {dtype}, which {arch} cannot convert; its kernel needs sm_{needed} or newer"
    return None


def whole_bytes(plan: KernelPlan | Gemm, spec: Spec) -> Diagnostic | None:
    """Why a kernel would read or write half of a byte, in which two 4-bit numbers are; None if it does not. Vectors along the last
    axis of an array are whole bytes."""
    for array in spec.arrays:
        if not any(DTYPES[d].packed for d in spec.dtypes(array)):
            continue
        own = [a for a in (*plan.loads, *plan.stores) if a.array == array] if not isinstance(plan, Gemm) else []
        if isinstance(plan, Elementwise):
            inner = len(plan.groups) - 1
            fits = plan.turned is None and all(
                a.mode in ("flat", "tile") and a.tokens[-1:] == (inner,) and not (a.into or a.back) for a in own
            )
        else:
            fits = isinstance(plan, Reduction) and plan.kind == "row" and not plan.collapsed
            fits = fits and all(a.mode == "flat" and not a.interleaved and not a.back for a in own)
        if not own or not fits:
            message = f"{array.name!r} is {array}, with two numbers in a byte: this kernel would access single numbers"
            hint = "they are read and written along the last axis, by element-wise kernels and kernels that reduce along rows"
            return spec.source.diagnostic(array.span or spec.chain.span, message, hint)
    return None


def why_not_in_place(plan: AnyPlan, output: str, source: str) -> str:
    """Why no kernel of a plan writes an output into an input's buffer; "" if one does."""
    if isinstance(plan, AttentionPlan):
        return "rows are written while other blocks still read"
    if isinstance(plan, Gemm):
        return "tiles of a product (@) are written while others are still read"
    if isinstance(plan, Staged):
        return "it is several kernels, one after the other, which read the inputs again"
    if isinstance(plan, Selection):
        return "a kernel that selects writes elements at other places than it reads them"
    if plan.columns:
        return "a kernel that reduces over rows may read a row again after it has written it"
    if any(a.into == source for a in plan.stores if a.array and a.array.name == output):
        return ""
    reads = [a for a in plan.loads if source in (a.array and a.array.name, a.index_of and a.index_of[0])]
    if any(a.index_of for a in reads):
        return f"{source!r} is read where an index says ('take'), or is that index"
    writes = [a for a in plan.stores if a.array and a.array.name == output]
    if [(a.mode, a.tokens) for a in reads] != [("flat", a.tokens) for a in writes]:
        return f"{source!r} is not read in the order in which {output!r} is written"
    return ""


def left_to_xla(
    plan: AnyPlan,
    how: AnyLaunch,
    call: PlannedCall,
) -> str:
    """Why XLA's form is faster; "" if it is not. XLA splits long rows into more parts than a cluster has blocks, and
    reduces a few rows of many columns in fewer blocks."""
    if not isinstance(plan, Reduction) or not isinstance(how, RowLaunch | WalkLaunch):
        return ""
    rows, columns = call.extents.rows, call.extents.columns
    if not rows or columns is None or plan.collapsed or plan.apart:
        return ""
    words = "one row" if rows == 1 else f"{rows} rows"
    if isinstance(how, WalkLaunch):  # over rows
        written = any(a.mode == "flat" for a in plan.stores if a.name not in plan.late)
        of_columns = all(s.keeps == plan.spread for s in plan.columns)
        if how.whole or not of_columns or columns < MANY or rows >= (FEW if written else SOME):
            return ""
        return f"{words} of {columns} columns would give each block little to do"
    size = columns * plan.column_bytes(call)
    if how.holds_row or rows * how.cluster >= BUSY or size < how.cluster * PIECE:
        return ""
    return f"{words} of {size / 1e6:.3g} MB would leave most of a GPU idle"
