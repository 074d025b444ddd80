"""The order in which the stages of an op go through large arrays.

A kernel that has read or written an array leaves the array's end in the cache. So an element-wise stage that reads the array next begins
at its end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from codegen.plan.elementwise import Elementwise
from codegen.plan.op import Op
from codegen.plan.rows.reductions import Reduction
from codegen.plan.rows.scanning import Scan


def from_the_end(stages: Iterable[Op]) -> tuple[Op, ...]:
    """The stages. Those that read elements which an earlier one has left in the cache begin with the last elements."""
    left: set[str] = set()  # the arrays whose end was read or written last
    found: list[Op] = []
    for op in stages:
        plan, whole = op.plan, {a.name for a in op.spec.arrays if {*a.axes} == {*op.spec.axes}}
        if isinstance(plan, Elementwise) and _in_order(plan) and left & whole:
            op = replace(op, plan=replace(plan, backwards=True))
            left -= whole
        elif isinstance(plan, Reduction) or (isinstance(plan, Elementwise) and _in_order(plan)):
            left |= whole
        found.append(op)
    return tuple(found)


def _in_order(plan: Elementwise) -> bool:
    """Whether a kernel goes through its outputs in the order of memory."""
    return not isinstance(plan, Scan) and plan.turned is None and not any(a.into for a in plan.stores)
