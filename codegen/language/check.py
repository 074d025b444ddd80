"""Rules for a whole spec that no single key can check, one function each."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from codegen.errors import Diagnostic, UserError, known, shown
from codegen.graph.nodes import DTYPES, ROWS
from codegen.language.formula.operations import with_article
from codegen.language.formula.reader import reader
from codegen.language.scope import make_scope
from codegen.language.statements import Placed, read_lines
from codegen.spec.spec import Spec, positions


def check(spec: Spec) -> Iterator[Diagnostic]:
    """An error for each broken rule. Formulas outside the chain are not checked if the chain could not be read."""
    rules = (
        fixed_extents_agree, groups_have_sizes, quantised_without_gradient, saved_names_exist, gradients_read, domains_name_axes,
    )  # fmt: skip
    for rule in rules:
        yield from rule(spec)


def fixed_extents_agree(spec: Spec) -> Iterator[Diagnostic]:
    """An axis with a fixed size has the same size everywhere it is written."""
    seen: dict[str, int] = {}
    for array in spec.arrays:
        for dim in array.dims:
            for name, extent in zip(dim.names, dim.extents, strict=False):
                if extent and seen.setdefault(name, extent) != extent:
                    assert array.span
                    message = f"the axis {name} has the size {extent} here and {seen[name]} before"
                    yield spec.source.diagnostic(array.span, message, "give one of them another name")


def groups_have_sizes(spec: Spec) -> Iterator[Diagnostic]:
    """The size of one axis of `(H G)` is known: an array fixes it, or an input without a default has that axis separately."""
    alone = {name for a in spec.inputs if a.default is None for d in a.dims if not d.open_names for name in d.names}
    for array in spec.arrays:
        for dim in array.dims:
            if dim.open_names and not (alone | spec.extents.keys()) & {*dim.open_names}:
                assert array.span
                outer, inner = dim.open_names
                message = f"no input says how large {outer} or {inner} of {dim} is"
                yield spec.source.diagnostic(array.span, message, f"give one a size, as in ({outer} {inner}=4)")


def quantised_without_gradient(spec: Spec) -> Iterator[Diagnostic]:
    """Ops with arrays of float4_e2m1fn or float8_e8m0fnu have no gradient: no cotangent can have these types, which
    have too few numbers, or no negative ones."""
    for array in spec.arrays if spec.grad != "none" else ():
        if found := [d for d in spec.dtypes(array) if DTYPES[d].kind == "float" and DTYPES[d].unusual]:
            message = f"{array.name!r} is {array}: arrays of {found[0]} have no gradient"
            yield spec.source.diagnostic(array.span or spec.chain.span, message, "write `grad: none`")


def saved_names_exist(spec: Spec) -> Iterator[Diagnostic]:
    """`save` lists names that the chain assigns."""
    if not spec.save or not spec.chain.value:
        return
    if spec.graph is not None:
        names = {s.name for s in spec.graph.statements}
    else:
        names = {line.first_name for line in read_lines(spec.chain)[0]}
    names -= {a.name for a in spec.outputs if a.parts}
    for name in spec.save:
        if name not in names:
            message = f"'save' names {shown(name)}, which the chain never assigns"
            yield spec.source.diagnostic(spec.place("save", name), message, known(name, names, "the chain's names"))


def gradients_read(spec: Spec) -> Iterator[Diagnostic]:
    """Every formula under `grad` belongs to an input or one of its parts, and is valid in the chain's language. It may use the
    chain's names, the outputs `y` and their cotangents `dy`."""
    if isinstance(spec.grad, str) or spec.graph is None:
        return
    scope = make_scope(spec, spec.graph)
    for output in spec.outputs:
        cotangent = "d" + output.name
        if cotangent in scope.names():
            message = f"{cotangent!r} would be the cotangent of {output.name!r}, but it names something else"
            yield spec.source.diagnostic(
                output.span or spec.chain.span, message, "rename one of them, or write `grad: auto`"
            )
        scope.inputs |= {output.name: output, cotangent: replace(output, name=cotangent)}
    inputs = [f"{a.name}[{i}]" if a.parts else a.name for a in spec.inputs for i in range(a.parts or 1)]
    inputs += [p.name for p in spec.dynamic_params]
    for name, scalar in spec.grad:
        if name not in inputs:
            hint = known(name, inputs, "inputs and dynamic parameters")
            yield spec.source.diagnostic(spec.place("grad", name), f"no input is named {shown(name)}", hint)
        param = next((p for p in spec.params if p.name == name), None)
        if param is not None and param.kind != "float":
            message = f"{name!r} is {with_article(param.kind)}: it has no gradient"
            yield spec.source.diagnostic(spec.place("grad", name), message, "delete its formula")
        array = next((a for a in spec.inputs if a.name == name.partition("[")[0]), None)
        if array is not None and spec.kind(array) != "float":
            message = f"{array.name!r} is {array}: it has no gradient"
            yield spec.source.diagnostic(spec.place("grad", name), message, "delete its formula")
        lines, diagnostics = read_lines(scalar, "a gradient is one expression, as in dy * (y > 0)")
        yield from diagnostics
        for line in lines if not diagnostics else ():
            try:
                if not isinstance(line.tree, ast.Expr) or line is not lines[0]:
                    assert line.tree
                    raise Placed(line.tree, UserError("a gradient is one expression", "as in dy * (y > 0)"))
                value = reader(scope)(line.tree.value)
                if value.kind == "bool":
                    raise Placed(
                        line.tree, UserError("a gradient is a number, not a bool", "write where(condition, dy, 0)")
                    )
                own = () if array is None else array.axes
                extra = [axis for axis in value.dims if axis not in own]
                if name in inputs and extra:
                    axes = ", ".join(extra)
                    message = f"the gradient of {name!r} varies along {axes}, which {name!r} does not"
                    raise Placed(line.tree, UserError(message, f"sum over {axes}"))
            except Placed as error:
                yield from line.diagnostics(error)


def domains_name_axes(spec: Spec) -> Iterator[Diagnostic]:
    """`index(N)` as a domain names an axis of the spec."""
    for name, domain in spec.domain:
        for axis in positions(domain):
            if axis not in spec.axes:
                hint = known(axis, [a for a in spec.axes if a != ROWS], "the axes")
                message = f"the domain of {name!r} names the unknown axis {shown(axis)}"
                yield spec.source.diagnostic(spec.place("domain", name), message, hint)
