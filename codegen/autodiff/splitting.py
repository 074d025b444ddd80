"""Splits an op in which each row needs a reduction over all rows into two: one reduces over the rows, the other takes the results.
One kernel cannot do both: blocks that wait for all others would deadlock unless all of them are resident."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from codegen.errors import Mistake
from codegen.graph.contraction import marks, meetings
from codegen.graph.nodes import Call, Leaf, Node, Statement, topological
from codegen.graph.precision import deciding_types
from codegen.language.transfer import Values, derived_spec
from codegen.spec.spec import Array, Axis, Spec, types_of


def split(spec: Spec, statements: Sequence[Statement], waited: Sequence[Node]) -> tuple[Spec, Spec]:
    """The op with the nodes that are `waited` for as outputs, and the op that takes them as inputs after its own."""
    taken = {a.name for a in spec.arrays} | {p.name for p in spec.params} | {s.name for s in statements}
    dtypes = {"float": spec.compute, "int": spec.integer, "bool": "bool"}
    kept, count = [], 0
    for node in waited:
        while (name := f"of_rows{count}") in taken:
            count += 1
        taken.add(name)
        kept.append(Array(name, dtypes[node.kind], tuple(Axis((a,), extents=(None,)) for a in node.dims)))
    own = {a.name for a in spec.outputs}
    # One op reduces these values, and the other recomputes them and uses them with the results
    pinned = [value for value, _ in meetings(list(topological(s.value for s in statements)))]
    read, variables = spec.float_types(spec.inputs), dict(spec.types)
    asked = deciding_types(statements, spec.asked_types, read, variables)
    names = {id(s.value): s.name for s in reversed(statements) if s.part is None and s.name not in own}
    results = [Statement(a.name, None, node) for a, node in zip(kept, waited, strict=True)]
    marked = marks(pinned, asked, deciding_types(results, types_of(kept), read, variables))
    first = restricted(spec, f"{spec.op} (reductions over all rows)", results, kept, [], names, {}, {}, marked)
    if not first.computes_as(spec):
        raise Mistake("reductions over all rows would be computed in float32, and lose the bits of float64")
    leaves = {id(node): Leaf(a.name) for a, node in zip(kept, waited, strict=True)}
    assigned = [s for s in statements if s.name in own]
    # It takes all parameters, since the caller takes the first op's values from them
    held = {id(node): a.dtype for a, node in zip(kept, waited, strict=True)}
    marked = marks(pinned, asked, deciding_types(assigned, types_of(spec.outputs), read, variables, held))
    then = restricted(spec, spec.op, assigned, list(spec.outputs), kept, names, leaves, {}, marked)
    return first, replace(then, params=spec.params)


def restricted(
    spec: Spec,
    title: str,
    statements: Iterable[Statement],
    outputs: list[Array],
    more: list[Array],
    names: Mapping[int, str],
    leaves: Mapping[int, Leaf],
    calls: Mapping[int, Call],
    pinned: Mapping[int, tuple[str, ...]] = MappingProxyType({}),
) -> Spec:
    """A spec with only some statements. Its inputs are those that the statements read or need for the size of an axis, and `more`.
    `pinned` values are marked."""
    statements = list(statements)
    nodes = list(topological((s.value for s in statements), lambda n: id(n) in leaves))
    read = {n.attr.name for n in nodes if isinstance(n.attr, Leaf)}
    params = tuple(p for p in spec.params if any(n.op == "param" and n.attr == p.name for n in nodes))
    axes = {axis for a in outputs for axis in a.axes} | {str(n.attr) for n in nodes if n.op in ("size", "index")}
    taken = {a.name for a in (*spec.arrays, *more)} | {p.name for p in spec.params}
    inputs = (*spec.inputs_for(read, more, axes), *more)
    own = replace(spec, inputs=inputs, outputs=tuple(outputs), params=params)
    return derived_spec(own, title, Values(tuple(statements), calls, names, leaves, pinned=pinned), taken)
