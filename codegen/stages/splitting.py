"""Makes a spec from some of another spec's statements."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from codegen.graph.names import fresh
from codegen.graph.nodes import Leaf, Node, Put, Statement, put_inputs, topological
from codegen.language.chain import written_axes
from codegen.language.transfer import Values, derived_spec
from codegen.plan.op import Summed
from codegen.spec.spec import Array, Spec


def restricted(spec: Spec, title: str, values: Values, outputs: list[Array], more: Sequence[Array] = ()) -> Spec:
    """A spec of some statements of another one. Its inputs are the inputs that the statements read, the inputs that give the sizes of
    their axes, and `more`."""
    nodes = list(topological((s.value for s in values.statements), values.is_leaf))
    read = {n.attr.name for n in nodes if isinstance(n.attr, Leaf) and not values.is_leaf(n)}
    read |= put_inputs(values.statements)
    axes = {axis for a in outputs for axis in a.axes} | {str(n.attr) for n in nodes if n.op in ("size", "index")}
    taken = {a.name for a in (*spec.arrays, *more)} | {p.name for p in spec.params}
    inputs = [*spec.inputs_for(read, more, axes)]
    sizes = dict[str, int]()
    for axis in {str(n.attr): None for n in nodes if n.op == "size"}:  # of a fixed size: an array says so, or a number
        if not any(axis in a.axes for a in (*inputs, *more, *outputs)):
            having = [a for a in spec.inputs if axis in a.axes and a.default is None][:1]
            inputs += having
            sizes |= {} if having else {axis: spec.extents[axis]}
    inputs = [*sorted(inputs, key=spec.inputs.index), *more]
    given = {axis for a in inputs for axis in a.axes}
    sized = tuple(_sized(a, {axis: size for axis, size in spec.extents.items() if axis not in given}) for a in outputs)
    part = replace(spec, inputs=tuple(inputs), outputs=sized, params=spec.params_of(nodes))
    return derived_spec(part, title, replace(values, sizes=sizes), taken)


def _sized(array: Array, extents: Mapping[str, int]) -> Array:
    """The array with the sizes of axes that no input gives, which another array of the spec may say: K of `T[B, K=8]`."""
    dims = [replace(d, extents=tuple(extents.get(name) for name in d.names)) for d in array.dims]
    return replace(
        array, dims=tuple(new if any(new.extents) else own for new, own in zip(dims, array.dims, strict=True))
    )


def with_addends(spec: Spec) -> tuple[Spec, tuple[Summed, ...]]:
    """A spec that writes the floats which the chain adds to tables by index, in place of these tables, and where they are added."""
    taken = {a.name for a in spec.arrays} | {p.name for p in spec.params} | {s.name for s in spec.read.statements}
    outputs, statements = {a.name: a for a in spec.outputs}, list[Statement]()
    summed = list[Summed]()
    for statement in spec.read.statements:
        if statement.at is not None and statement.at.apart:
            axes, value = written_axes(spec, outputs[statement.name], statement.at), statement.value
            array, factor = _scaled_input(spec, value, axes, statement.at)
            if factor is not None:
                axes, value = tuple(a for a in axes if a in spec.array(statement.at.index).axes), factor
            dtype = str(value.attr) if value.op == "cast" else spec.compute
            what = "added" if factor is None else "factors"
            written = Array(fresh(taken, f"{statement.name}_{what}"), dtype, spec.dims(axes))
            outputs[statement.name] = written
            if array is None:
                summed.append(Summed(statement.name, written, statement.at))
            else:
                summed.append(Summed(statement.name, array, statement.at, written))
            statement = replace(statement, name=written.name, value=value, at=None)
        statements.append(statement)
    names = {a.name for a in outputs.values()}
    assigned = [s for s in statements if s.name in names]
    called = {id(s.value): s.name for s in reversed(statements) if s.part is None and s.name not in names}
    values = Values(tuple(assigned), spec.read.graph.calls, called)
    made = restricted(spec.plain(), spec.source.path, values, [*outputs.values()])
    return made, tuple(summed)


def _scaled_input(spec: Spec, value: Node, axes: tuple[str, ...], at: Put) -> tuple[Array | None, Node | None]:
    """The input whose rows are added to a table's, and the factor of each row; None if the added value is not such a
    product."""
    if value.op != "mul" or at.how != "add":
        return None, None
    index = spec.array(at.index).axes
    for own, factor in (value.args, value.args[::-1]):
        if not isinstance(own.attr, Leaf) or own.op != "input" or own.kind != "float" or own.attr.part is not None:
            continue
        array = spec.array(own.attr.name)
        if array.default is None and {*array.axes} == {*axes} and {*factor.dims} <= {*index} < {*axes}:
            return array, factor
    return None, None


def only(spec: Spec, names: Collection[str]) -> Spec:
    """A spec with only some of its outputs."""
    statements = spec.read.statements
    outputs = [a for a in spec.outputs if a.name in names]
    assigned = [s for s in statements if s.name in names]
    called = {id(s.value): s.name for s in reversed(statements) if s.part is None}
    title = f"{spec.source.path} ({', '.join(names)})"
    return restricted(spec, title, Values(tuple(assigned), spec.read.graph.calls, called), outputs)
