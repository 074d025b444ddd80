"""Rules for a whole spec that no single key can check, one function each."""

from __future__ import annotations

from collections.abc import Iterator

from codegen.errors import Diagnostic, Mistake, known
from codegen.formula import Line, Placed, make_scope, parse_python, reader, statement_lines
from codegen.spec import Spec


def check(spec: Spec) -> Iterator[Diagnostic]:
    """Every broken rule."""
    for rule in (fixed_extents_agree, saved_names_exist, gradients_read, domains_name_axes):
        yield from rule(spec)


def fixed_extents_agree(spec: Spec) -> Iterator[Diagnostic]:
    """An axis with a fixed extent has the same one everywhere it is written."""
    seen: dict[str, int] = {}
    for array in spec.arrays:
        for dim in array.dims:
            for name, extent in zip(dim.names, dim.extents, strict=False):
                if extent and seen.setdefault(name, extent) != extent and array.span:
                    message = f"the axis {name} has the extent {extent} here and {seen[name]} before"
                    yield spec.source.diagnostic(array.span, message, "give one of them another name")


def saved_names_exist(spec: Spec) -> Iterator[Diagnostic]:
    """`save` lists names that the chain assigns."""
    names = {t.id for line in statement_lines(spec.chain) for t in getattr(line.tree, "targets", []) if hasattr(t, "id")}
    for name in spec.save:
        if name not in names:
            row = next((i for i, text in enumerate(spec.source.lines) if text.startswith("save")), 0)
            column = max(0, spec.source.lines[row].find(name))
            span = type(spec.chain.span)(spec.path, row + 1, column + 1, len(name))
            yield spec.source.diagnostic(span, f"'save' names {name!r}, which the chain never assigns", known(name, names))


def gradients_read(spec: Spec) -> Iterator[Diagnostic]:
    """Every formula under `grad` names an input (or a part) and reads in the chain's language."""
    if isinstance(spec.grad, str):
        return
    scope = make_scope(spec)
    for output in spec.outputs:
        if output.parts is None:
            leaf = scope.graph.node("output", attr=output.name, kind=spec.kind(output), dims=output.axes)
            scope.values[output.name] = leaf
            scope.values["d" + output.name] = leaf
    for line in statement_lines(spec.chain):
        try:
            value = reader(scope)(line.tree.value)  # type: ignore[attr-defined]
            target = line.tree.targets[0]  # type: ignore[attr-defined]
            scope.values.setdefault(getattr(target, "id", ""), value)
        except (Placed, AttributeError):
            return  # the chain's own mistakes are reported where it is read
    inputs = {a.name for a in spec.inputs} | {f"{a.name}[{i}]" for a in spec.inputs for i in range(a.parts or 0)}
    inputs |= {p.name for p in spec.params if not p.static}
    for name, scalar in spec.grad:
        if name not in inputs:
            yield spec.source.diagnostic(scalar.span, f"no input is named {name[:60]!r}", known(name, inputs))
            continue
        try:
            tree = parse_python(scalar.value)
            expression = tree.body[0].value if len(tree.body) == 1 else None  # type: ignore[attr-defined]
            if expression is None or not hasattr(tree.body[0], "value") or hasattr(tree.body[0], "targets"):
                raise Mistake("a gradient is one expression", "as in dy * (y > 0)")
            reader(scope)(expression)
        except Placed as error:
            yield Line(scalar, 0, scalar.value, tree.body[0]).diagnostic(error)
        except Mistake as error:
            yield spec.source.diagnostic(scalar.span, error.message, error.hint)


def domains_name_axes(spec: Spec) -> Iterator[Diagnostic]:
    """`index(N)` as a domain names an axis of the spec."""
    for name, domain in spec.domain:
        if isinstance(domain, str) and domain.startswith("index("):
            axis = domain[6:-1]
            if axis not in spec.axes:
                row = next((i for i, text in enumerate(spec.source.lines) if f"index({axis})" in text), 0)
                column = spec.source.lines[row].find(axis)
                span = type(spec.chain.span)(spec.path, row + 1, column + 1, len(axis))
                hint = known(axis, [a for a in spec.axes if a != "..."], "axes")
                yield spec.source.diagnostic(span, f"the domain of {name!r} names the unknown axis {axis!r}", hint)


