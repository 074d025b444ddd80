"""The generated backward of an op, and the stages of one, for `explain`: what they take, compute and write."""

from __future__ import annotations

from collections import Counter
from typing import Any

from codegen.autodiff.backward import Derived, backward_of
from codegen.explain.launching import Binding, bindings
from codegen.explain.words import words
from codegen.language.sizes import Shape, array_bytes, elements
from codegen.plan.by_index import Sums
from codegen.plan.op import Op, Staged


def backward(op: Op, shape: Shape) -> dict[str, Any] | None:
    """The generated backward, written as in a spec; None where the op has no gradient."""
    if op.spec.grad == "none":
        return None
    found = backward_of(op)
    if not isinstance(found, Derived):
        return {"kernel": False, "why": found.message}
    spec = found.op.spec
    return {
        "kernel": True,
        "kind": found.op.plan.kind,
        "why": words(found.op.plan).kind(),
        "inputs": {a.name: str(a) for a in spec.inputs},
        "outputs": {a.name: str(a) for a in spec.outputs},
        "chain": spec.chain.value.splitlines(),
        "stages": stages(found.op),
        "same": {name: array.name for name, array in found.how.same},
        "by_index": _by_index(op, found, shape),
        "idle": found.idle,
        "frozen": _frozen(found),
    }


def _by_index(op: Op, found: Derived, shape: Shape) -> list[dict[str, Any]]:
    """The cotangents and the outputs of the backward that are added to the gradients of tables by index. Also why XLA adds it in a
    call of such a shape with the first of the types, or ""."""
    passed, binding = dict(found.how.passed), next(iter(bindings(op.spec)))
    written = {a.name: a for a in found.op.spec.outputs}
    places = [written.get(s.index) or op.spec.array(s.index) for s in found.how.scattered]
    rows = Counter[tuple[str, int | None]]()  # all that is added to one part of a table is sorted together
    for s, index in zip(found.how.scattered, places, strict=True):
        rows[s.table, s.part] += elements(index.axes, shape)
    made = []
    for s, index in zip(found.how.scattered, places, strict=True):
        added, table = passed.get(s.output, s.output), op.spec.array(s.table)
        picked = tuple(a for a in table.axes if a == s.axis or a in index.axes)
        columns = tuple(a for a in table.axes if a not in picked)
        y = next((y for y, dy in found.how.cotangents if dy == added), None)
        dtype = binding.dtype(found.op.spec.array(added) if y is None else op.spec.array(y))
        count, keys = elements(columns, shape), elements(picked, shape)
        sums = Sums(1, rows[s.table, s.part], count, keys, dtype, binding.dtype(table))
        row = {"table": s.table, "added": added, "divided": list(s.divided), "index": s.index, "axis": s.axis}
        made.append({**row, "left_to_xla": sums.left_to_xla()})
    return made


def summed_bytes(op: Op, found: Derived, binding: Binding, shape: Shape) -> int:
    """The bytes that sums by index read and write, besides the bytes that the backward's kernels move: the gradients of tables, and the
    cotangents and given indices that no kernel reads for them."""
    read = set() if found.idle else {a.name for a in found.op.spec.inputs}
    tables, indices = ({getattr(s, what) for s in found.how.scattered} for what in ("table", "index"))
    passed = {y for y, dy in found.how.cotangents if dy in dict(found.how.passed).values() and dy not in read}
    arrays = [a for a in op.spec.inputs if a.name in tables | (indices - read)]
    arrays += [a for a in op.spec.outputs if a.name in passed]
    return sum(array_bytes(a, shape, binding.dtype(a)) for a in arrays)


def _frozen(found: Derived) -> dict[str, Any] | None:
    """The frozen backward: it runs where no array that all rows share needs a gradient."""
    gradients = list(dict.fromkeys(name for name, _ in (*found.how.gradients, *found.how.same)))
    names = [name for name in gradients if name in found.shared]
    if not names or len(names) == len(gradients):
        return None
    if found.frozen is None:
        why = "XLA: nothing is computed" if found.copies_rows else "the same"
        return {"without": names, "kernel": False, "why": why, "inputs": {}, "chain": []}
    spec = found.frozen.op.spec
    return {
        "without": names,
        "kernel": True,
        "why": words(found.frozen.op.plan).kind(),
        "inputs": {a.name: str(a) for a in spec.inputs},
        "chain": spec.chain.value.splitlines(),
    }


def stages(op: Op) -> list[dict[str, Any]]:
    """The kernels of an op that needs several: what each reads, writes and computes, and why it is not one with those before."""
    if not isinstance(op.plan, Staged):
        return []
    made: dict[str, int] = {}
    found = []
    for place, stage in enumerate(op.plan.stages):
        waits = [a.name for a in stage.spec.inputs if a.name in made]
        found.append(
            {
                "kind": stage.plan.kind,
                "why": words(stage.plan).kind()
                + (", on a sample of the elements" if op.plan.sampled_axes(place) else ""),
                "waits_for": waits,
                "inputs": {a.name: str(a) for a in stage.spec.inputs},
                "outputs": {a.name: str(a) for a in stage.spec.outputs},
                "chain": stage.spec.chain.value.splitlines(),
            }
        )
        made |= dict.fromkeys((a.name for a in stage.spec.outputs), place)
    return found
