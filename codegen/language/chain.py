"""Reads a spec's chain as checked statements: each name and part is assigned once, every output is stored, nothing is unused.

`formula/` reads the expressions.
"""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

from codegen.errors import Diagnostic, Later, UserError, shown
from codegen.graph.names import RESERVED, fresh
from codegen.graph.nodes import Chain, Leaf, Node, Put, Statement, lost_axes, topological
from codegen.language.formula.calls import functions, put
from codegen.language.formula.operations import with_article
from codegen.language.formula.reader import part_names, reader
from codegen.language.parted import part_axes, parts_in
from codegen.language.scope import Parted, Scope, make_scope
from codegen.language.statements import MAX_STATEMENTS, Line, Placed, read_lines
from codegen.spec.spec import Array, Spec


def read_chain(spec: Spec) -> tuple[Chain | None, list[Diagnostic]]:
    """The chain of a spec's text and all errors in it. The chain is None if there is an error in a statement."""
    scope = make_scope(spec)
    outputs = {a.name: a for a in spec.outputs}
    lines, diagnostics = read_lines(spec.chain)
    statements: list[Statement] = []
    assigned: dict[tuple[str, int | None], Line] = {}
    broken = scope.broken
    scope.later = frozenset(line.first_name for line in lines)
    for line in lines:
        if line.tree is None:
            broken |= line.names - set(scope.names())
            continue
        try:
            target, part, tree = split_statement(line.tree)
            output = outputs.get(target.id)
            count = parts_in(scope, tree) if part is None and (output is None or output.parts is not None) else None
            if count is not None and (output is None or output.parts == count):
                check_target(spec, target, None if output is None else 0, assigned)
                statements += parted(spec, scope, target.id, output, tree, count)
                assigned |= dict.fromkeys([(target.id, p) for p in ([None] if output is None else range(count))], line)
                continue
            check_target(spec, target, part, assigned)
            assigned[target.id, part] = line
            at = None
            if output is not None and isinstance(tree, ast.Call) and getattr(tree.func, "id", "") == "put":
                at, value = put(reader(scope), tree, output)
            else:
                value = reader(scope)(tree)
            if output is not None:
                value = stored(spec, scope, output, value, tree, at)
            statements.append(Statement(target.id, part, value, at))
            if part is None:
                scope.values[target.id] = value
        except Placed as error:
            diagnostics += line.diagnostics(error)
            broken |= line.names - set(scope.names())
    hidden = {name for value in scope.parted.values() for name in value.names} - scope.used
    statements = reached(spec, [s for s in statements if s.name not in hidden])
    chain = None if diagnostics else Chain(tuple(statements), scope.graph)
    if len(lines) <= MAX_STATEMENTS:
        diagnostics += unassigned(spec, assigned, broken)
    if not diagnostics:
        diagnostics += [*unused(spec, scope, assigned), *read_tables(statements, assigned)]
    return chain, diagnostics


def parted(spec: Spec, scope: Scope, name: str, output: Array | None, tree: ast.expr, count: int) -> list[Statement]:
    """The statements of the parts of a name, or of an output, that is assigned whole arrays with parts."""
    found = []
    taken = {*scope.names(), *scope.later, *(a.name for a in spec.arrays), *(p.name for p in spec.params)}
    names = tuple(name if output is not None else fresh(taken, f"{name}_{part}") for part in range(count))
    for part in range(count):
        scope.part = part
        try:
            value = reader(scope)(tree)
        finally:
            scope.part = None
        if output is not None:
            value = stored(spec, scope, output, value, tree)
        else:
            scope.values[names[part]] = value
        found.append(Statement(names[part], part if output is not None else None, value))
    if output is None:
        scope.parted[name] = Parted(names, part_axes(scope, tree))
    return found


def split_statement(node: ast.stmt) -> tuple[ast.Name, int | None, ast.expr]:
    if isinstance(node, ast.AugAssign):
        raise Placed(
            node, UserError("no statement changes a value", "give the new value a name of its own, as in z = x + bias")
        )
    if not isinstance(node, ast.Assign) or len(node.targets) != 1:
        raise Placed(node, UserError("not a statement of the form `name = expression`", "as in z = x + bias"))
    target = node.targets[0]
    if isinstance(target, ast.Name):
        return target, None, node.value
    if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
        part = target.slice
        if isinstance(part, ast.Constant) and type(part.value) is int:
            return target.value, part.value, node.value
    hint = "assign a name, or an output's part such as y[0]"
    raise Placed(target, UserError("only a name or a part of an output can be assigned", hint))


def check_target(spec: Spec, target: ast.Name, part: int | None, assigned: Container[tuple[str, int | None]]) -> None:
    name = target.id
    output = next((a for a in spec.outputs if a.name == name), None)
    if (name, part) in assigned:
        text = name if part is None else f"{name}[{part}]"
        raise Placed(target, UserError(f"{text!r} is assigned twice", "give the second value a name of its own"))
    if any(a.name == name for a in spec.inputs) or any(p.name == name for p in spec.params):
        hint = "give the value a name of its own"
        raise Placed(target, UserError(f"{name!r} is an input or a parameter and cannot be assigned", hint))
    if output is None:
        if part is not None:
            raise Placed(target, UserError(f"{shown(name)} has no parts: it is not an output", "assign a plain name"))
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or len(name) > 64:
            hint = "names are lower-case letters, digits and underscores, at most 64, a letter first"
            raise Placed(target, UserError(f"{shown(name)} is not a valid name for a value", hint))
        if name in RESERVED or name in functions() or keyword.iskeyword(name):
            why = "is a word of Python" if keyword.iskeyword(name) else "is used by the generated file"
            why = "is a function of the language" if name in functions() else why
            raise Placed(target, UserError(f"{name!r} {why} and cannot name a value", "pick another name"))
    elif output.parts is None and part is not None:
        raise Placed(target, UserError(f"{name!r} is {output} and has no parts", f"assign it whole: {name} = ..."))
    elif output.parts is not None and (part is None or not 0 <= part < output.parts):
        raise Placed(target, UserError(f"{name!r} is {output}; its parts are assigned one by one", part_names(output)))


def _other_product(value: Node, extra: Sequence[str]) -> str:
    """The rest of a hint, where a product within a value is not over an axis of `extra` that both its factors have; else ""."""
    for node in topological([value]):
        kept = [axis for axis in extra if node.op == "contract" and all(axis in arg.dims for arg in node.args)]
        if kept:
            return f"; the product is over {', '.join(lost_axes(node))}: dot(a, b, axis={kept[0]}) is over {kept[0]}"
    return ""


def stored(spec: Spec, scope: Scope, output: Array, value: Node, tree: ast.expr, at: Put | None = None) -> Node:
    """The value that an output stores: constants get the output's kind, and the axes are checked."""
    kind = spec.kind(output)
    extra = [axis for axis in value.dims if axis not in written_axes(spec, output, at)]
    if extra:
        hint = f"reduce over {', '.join(extra)}, or declare {output.name!r} with {'it' if len(extra) == 1 else 'them'}"
        hint += _other_product(value, extra)
        message = f"{output.name!r} is {output} but this varies along {', '.join(extra)}"
        raise Placed(tree, UserError(message, hint))
    if "bool" in (kind, value.kind) and kind != value.kind:
        hint = "write where(condition, 1, 0) to get numbers, a comparison to get a bool"
        raise Placed(tree, UserError(f"{output.name!r} is {output} but this is {with_article(value.kind)}", hint))
    if value.is_const and kind == "float":
        value = scope.graph.const(float(value.attr))  # type: ignore[arg-type]
    elif value.is_const and kind == "int":
        reader(scope).fitting(tree, [value])
    return value


def written_axes(spec: Spec, output: Array, at: Put | None) -> tuple[str, ...]:
    """The axes of what is written to an output: of its elements, or of those at the places of an index."""
    if at is None:
        return output.axes
    own = {*output.axes, *spec.array(at.index).axes} - {at.axis}
    return tuple(axis for axis in spec.axes if axis in own)


def read_tables(
    statements: Iterable[Statement], assigned: Mapping[tuple[str, int | None], Line]
) -> Iterator[Diagnostic]:
    """An error for each `put` into an input that the chain also reads, or writes into twice: its buffer becomes the output's."""
    statements = list(statements)
    leaves = [n.attr.name for n in topological(s.value for s in statements) if isinstance(n.attr, Leaf)]
    leaves += [s.at.table for s in statements if s.at] + [s.at.index for s in statements if s.at]
    for statement in statements:
        if statement.at and leaves.count(statement.at.table) > 1:
            line, hint = assigned[statement.name, statement.part], "compute the other value in an op before this one"
            message = f"'put' writes into {statement.at.table!r}, which something else uses"
            yield line.diagnostic(Placed(line.tree.value, UserError(message, hint)))  # type: ignore[union-attr]


def unassigned(spec: Spec, assigned: Container[tuple[str, int | None]], broken: set[str]) -> Iterator[Diagnostic]:
    """An error for each output that is never assigned, except the `broken` ones."""
    for output in spec.outputs:
        missing = [p for p in output_parts(output) if (output.name, p) not in assigned and output.name not in broken]
        if missing:
            texts = [output.name if p is None else f"{output.name}[{p}]" for p in missing]
            named = ", ".join(map(repr, texts[:4])) + (", ..." if len(texts) > 4 else "")
            assert output.span
            hint = f"add a line `{texts[0]} = ...`"
            yield spec.source.diagnostic(output.span, f"the chain never assigns {named}", hint)


def reached(spec: Spec, statements: Sequence[Statement]) -> list[Statement]:
    """The statements whose values an output is made of, or which another key names: of what is computed from a table, `take` computes its
    own elements alone."""
    named = {*spec.save, *in_formulas(spec), *(a.name for a in spec.outputs)}
    nodes = {id(n) for n in topological(s.value for s in statements if s.name in named)}
    return [s for s in statements if s.name in named or id(s.value) in nodes]


def in_formulas(spec: Spec) -> set[str]:
    """The words in the formulas of gradients."""
    formulas = [] if isinstance(spec.grad, str) else [text.value for _, text in spec.grad]
    return {word for text in formulas for word in re.findall(r"\w+", text)}


def unused(spec: Spec, scope: Scope, assigned: dict[tuple[str, int | None], Line]) -> Iterator[Diagnostic]:
    """An error for each name, input and parameter that is never used. A parameter may be for gradients alone."""
    source = spec.source
    for (name, _), line in assigned.items():
        if name not in scope.outputs | scope.used:
            target = line.tree.targets[0]  # type: ignore[union-attr]
            yield line.diagnostic(Placed(target, UserError(f"{name!r} is never used", "use it, or delete the line")))
    for array in spec.inputs:
        if array.name not in scope.used:
            hint = "use it in the chain, or delete it"
            assert array.span
            yield source.diagnostic(array.span, f"the input {array.name!r} is never used", hint)
    for param in spec.params:
        if param.name not in scope.used | in_formulas(spec):
            hint = "use it in the chain, or delete it"
            yield source.diagnostic(
                spec.place("params", param.name), f"the parameter {param.name!r} is never used", hint
            )


def output_parts(output: Array) -> list[int | None]:
    """The parts of an output that a chain assigns, or [None] if it assigns the whole output."""
    return [None] if output.parts is None else [*range(output.parts)]


def line_with(spec: Spec, statements: Iterable[Statement], node: Node) -> Line:
    """The line of the first statement that computes a node."""
    statement = next(s for s in statements if any(n is node for n in topological([s.value])))
    line = line_assigning(spec, statement.target)
    assert line is not None
    return line


def line_assigning(spec: Spec, target: str) -> Line | None:
    """The line that assigns a name or a part of an output, spelled as in the chain."""
    return next((line for line in read_lines(spec.chain)[0] if line.target == target), None)


def in_chain(spec: Spec, error: Diagnostic) -> Diagnostic:
    """An error in a derived chain, placed at the line of the spec's own chain that assigns the same name."""

    def find() -> Diagnostic:
        line = line_assigning(spec, error.source.partition("=")[0].strip())
        if line is None or not isinstance(line.tree, ast.Assign):
            return spec.source.diagnostic(spec.chain.span, error.message, error.hint)
        return line.diagnostic(Placed(line.tree.value, UserError(error.message, error.hint)))

    return Later(error.message, error.hint, find)
