"""The sums by index that follow an op's stages: what they move, and how the kernel that adds is launched."""

from __future__ import annotations

from typing import Any

from codegen.explain.launching import Binding
from codegen.graph.nodes import DTYPES
from codegen.language.sizes import Shape, array_bytes, elements
from codegen.plan.by_index import Sums
from codegen.plan.op import Op, Summed
from codegen.shared import TallyLaunch


def accesses(op: Op, sums: Summed) -> list[dict[str, Any]]:
    """How a sum accesses its values and its output, in words."""
    how = f"add by {sums.at.index}: rows in the order of their indices" if sums.at.how == "add" else "XLA's scatter"
    output = op.spec.array(sums.output)
    common = {"mode": "index", "how": how, "ragged": "the same"}
    return [
        {"value": a.name, "array": a.name, "type": str(a), "stored": a is output} | common
        for a in (sums.values, output)
    ]


def bytes_of(op: Op, sums: Summed, binding: Binding, shape: Shape) -> int:
    """The bytes that a sum moves: values, indices, factors, and the table twice."""
    table = op.spec.array(sums.at.table)
    own = [(sums.values, _dtype(op, sums, binding)), (op.spec.array(sums.at.index), "")]
    own += [(table, ""), (table, ""), *([(sums.factors, sums.factors.dtype)] if sums.factors else [])]
    return sum(array_bytes(a, shape, dtype or binding.dtype(a)) for a, dtype in own)


def launch_facts(op: Op, sums: Summed, binding: Binding, shape: Shape) -> dict[str, Any] | None:
    """The launch of the kernel that adds, as --json prints it; None where XLA's scatter combines."""
    values, index, table = sums.values, op.spec.array(sums.at.index), op.spec.array(sums.at.table)
    own = [a for a in values.axes if a in index.axes]
    begin = values.axes.index(own[0]) if own else 0
    before = values.axes[:begin] if list(values.axes[begin : begin + len(own)]) == own else ()
    outer = elements(before, shape)
    columns = elements(tuple(a for a in values.axes if a not in (*own, *before)), shape)
    keys = elements(tuple(a for a in table.axes if a == sums.at.axis or a in own), shape)
    dtype, result = _dtype(op, sums, binding), binding.dtype(table)
    wide = dtype if DTYPES[dtype].size > 1 else "float32"
    count = elements(index.axes, shape)
    call = Sums(outer, count, columns, keys, wide, result, count // max(elements(tuple(own), shape), 1))
    how = call.launch() if sums.at.how == "add" and min(outer, count, columns, keys) > 0 else None
    if how is None:
        return None
    widths = {values.name: DTYPES[wide].bytes_of(how.vec), sums.output: DTYPES[result].bytes_of(how.vec)}
    if isinstance(how, TallyLaunch):
        blocks = how.parts * outer
    else:
        down, across = how.threads // how.across * how.steps, how.across * how.vec
        blocks = outer * -(-keys // down) * -(-columns // across) + 1
    return {
        "of": f"the sum by {index.name}",
        "vector": how.vec,
        "vector_bytes": widths,
        "threads": how.threads,
        "ragged": False,
        "blocks": blocks,
    }


def _dtype(op: Op, sums: Summed, binding: Binding) -> str:
    """The type of the values in memory."""
    return binding.dtype(sums.values) if sums.values in op.spec.inputs else sums.values.dtype
