"""Statements of whole arrays with parts: one statement for each part, as `h = x + bias` of two arrays with halves."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from codegen.errors import UserError
from codegen.language.scope import Scope
from codegen.language.statements import Placed

DRAWS = ("bits", "uniform", "bernoulli", "normal")  # whose key, an array of two numbers, is one value


def parts_in(scope: Scope, tree: ast.expr) -> int | None:
    """The number of parts of an expression that names whole values with parts; None where it names none. Raises `Placed` where they
    have different numbers, and where something is computed along the axis that has the parts."""
    found = list(_whole(scope, tree))
    if not found:
        return None
    counts = [_parts(scope, name.id) for name in found]
    for name, count in zip(found, counts, strict=True):
        if count != counts[0]:
            message = f"{name.id!r} has {count} parts, and {found[0].id!r} has {counts[0]}"
            raise Placed(name, UserError(message, f"name its part, as in {name.id}[0]"))
    for node in ast.walk(tree):
        _refuse_joined(scope, node)
    return counts[0]


def part_axes(scope: Scope, tree: ast.AST) -> frozenset[str]:
    """The axes that have the parts of the whole values in an expression: N of `(2 N)`."""
    return frozenset(axis for name in _whole(scope, tree) for axis in _axes(scope, name.id))


def _whole(scope: Scope, tree: ast.AST) -> Iterator[ast.Name]:
    """The names of whole values with parts, in their order. A formula may be nested too deeply for a function that calls itself."""
    left = [tree]
    while left:
        node = left.pop()
        if isinstance(node, ast.Name) and _parts(scope, node.id):
            yield node
        if isinstance(node, ast.Subscript):
            continue
        children = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in DRAWS:
            key = [k for k in node.keywords if k.arg == "key"]
            children = [c for c in children if c not in (*node.args[:1], *key)]
        left += reversed(children)


def _parts(scope: Scope, name: str) -> int | None:
    if name in scope.parted:
        return len(scope.parted[name].names)
    return scope.inputs[name].parts if name in scope.inputs else None


def _axes(scope: Scope, name: str) -> frozenset[str]:
    if name in scope.parted:
        return scope.parted[name].axes
    return frozenset(axis for dim in scope.inputs[name].dims if dim.parts is not None for axis in dim.names)


def _refuse_joined(scope: Scope, node: ast.AST) -> None:
    """Raises an error for what would join parts: a reduction along their axis, a product of two values with parts."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        if any(_whole(scope, node.left)) and any(_whole(scope, node.right)):
            message = "a product of two values with parts"
            raise Placed(node, UserError(message, "write the parts one by one, as in a[0] @ b[0] + a[1] @ b[1]"))
    if isinstance(node, ast.Call):
        axes = part_axes(scope, node)
        given = [a for a in ast.walk(node) if isinstance(a, ast.Name) and a.id in axes]
        called = node.func.id if isinstance(node.func, ast.Name) else ""
        if given and called not in ("index", "size"):
            first = next(_whole(scope, node)).id
            message = f"{called!r} along {given[0].id}, of which {first!r} has parts"
            raise Placed(given[0], UserError(message, f"write the parts one by one, as in {called}({first}[0], ...)"))
