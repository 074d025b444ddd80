"""Outputs that take an input's buffer (`aliases` of a spec), where the caller donates it.

XLA would copy a buffer that is still needed, or that the program may not overwrite, before the kernel runs. So an alias
takes effect under two conditions. The program's caller donates an argument with that array's shape and dtype. And each
thread of the kernel reads an element of the input before it writes it, because it works element by element or holds
rows in registers.
"""

from __future__ import annotations

from collections.abc import Sequence

from codegen.plan.launches import AnyLaunch
from codegen.plan.limits import why_not_in_place
from codegen.runtime.call.described import CalledOp
from codegen.shared import Launch, RowLaunch


def in_place(op: CalledOp, how: AnyLaunch) -> dict[str, str]:
    """The inputs whose buffers a launch may overwrite, each with the output it writes there."""
    if not isinstance(how, Launch) and not (isinstance(how, RowLaunch) and how.holds_row):
        return {}
    return {source: output for output, source in op.spec.aliases if not why_not_in_place(op.plan, output, source)}


def pairs(op: CalledOp, how: AnyLaunch, present: Sequence[str], donated: Sequence[bool]) -> dict[int, int]:
    """The `donated` inputs whose buffers a launch may overwrite: positions among the present inputs to positions among the outputs."""
    given = [name for name, gone in zip(present, donated, strict=False) if gone]
    outputs = [a.name for a in op.spec.outputs]
    found = {present.index(i): outputs.index(o) for i, o in in_place(op, how).items() if i in given}
    return found | put_pairs(op, present)


def put_pairs(op: CalledOp, present: Sequence[str]) -> dict[int, int]:
    """The tables that outputs of `put` begin with: positions among the present inputs to positions among the outputs. XLA copies a table
    that is still needed."""
    outputs = [a.name for a in op.spec.outputs]
    return {present.index(a.into): outputs.index(a.array.name) for a in op.plan.stores if a.into and a.array}
