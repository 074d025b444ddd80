"""The bytes that an op's kernels move, and the kernel that moves the most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from codegen.explain import sums
from codegen.explain.launching import Binding, spacing_of
from codegen.graph.nodes import DTYPES, Leaf, Statement, topological
from codegen.language.chain import written_axes
from codegen.language.sizes import Shape, array_bytes, elements
from codegen.plan.op import Op, Staged, Summed, stages_of


def fused_bytes(binding: Binding, shape: Shape, statements: Sequence[Statement]) -> int:
    """The bytes that a kernel of this chain moves: each input and output once, and only the gathered elements of a table."""
    tables: dict[str, int] = {}
    whole = {s.value.attr.name for s in statements if isinstance(s.value.attr, Leaf)}
    for node in topological(s.value for s in statements):
        for place, value in enumerate(node.args):
            if isinstance(value.attr, Leaf) and node.op in ("take", "pick") and place == 0:
                tables[value.attr.name] = tables.get(value.attr.name, 0) + elements(node.dims, shape)
            elif isinstance(value.attr, Leaf):
                whole.add(value.attr.name)
    total, puts = 0, {s.name: s.at for s in statements if s.at}
    whole |= {at.index for at in puts.values()}
    for array in binding.spec.arrays:
        if array.name in {at.table for at in puts.values()}:
            continue  # the elements that stay are not touched
        if (at := puts.get(array.name)) is not None:
            own = written_axes(binding.spec, array, at)
            total += DTYPES[binding.dtype(array)].bytes_of(elements(own, shape))
            continue
        size = array_bytes(array, shape, binding.dtype(array))
        taken = DTYPES[binding.dtype(array)].bytes_of(tables.get(array.name, 0))
        total += size if array.name in whole or not taken else min(size, taken)
    return total


def moved_bytes(op: Op, binding: Binding, shape: Shape) -> int:
    """The bytes that the op's kernels move: what a stage writes and another reads is moved twice."""
    combined = op.plan.summed if isinstance(op.plan, Staged) else ()
    return sum(stage_bytes(op, binding, shape)) + sum(sums.bytes_of(op, s, binding, shape) for s in combined)


def stage_bytes(op: Op, binding: Binding, shape: Shape) -> list[int]:
    """The bytes that the kernel of each stage moves."""
    found = [fused_bytes(replace(binding, spec=s.spec), shape, s.statements) for s in stages_of(op)]
    return [n // spacing_of(op, i, shape) for i, n in enumerate(found)]


def busiest(op: Op, binding: Binding, shape: Shape) -> Op | Summed:
    """What moves the most bytes, the last of equals: the op's one kernel, one of its stages, or a kernel that sums by index."""
    if not isinstance(op.plan, Staged):
        return op
    most, place = max((n, i) for i, n in enumerate(stage_bytes(op, binding, shape)))
    for summed in op.plan.summed:
        if sums.launch_facts(op, summed, binding, shape) and sums.bytes_of(op, summed, binding, shape) > most:
            return summed
    return op.plan.stages[place]
