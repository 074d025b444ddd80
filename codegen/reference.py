"""The reference of a spec: jnp text, checked to be only that.

It may use `jnp`, `jax.nn`, `jax.lax`, `jax.jvp`, `jax.vjp`, `jax.grad`, the inputs, params, and names it assigns. It is printed
again from its syntax tree, so nothing else of the text reaches a generated file.
"""

from __future__ import annotations

import ast

from codegen.errors import Diagnostic, Mistake, SpecError, known
from codegen.formula import Placed, _chunks, parse_python
from codegen.spec import Spec
from codegen.text import Scalar

_EXPRESSIONS = (
    ast.Name, ast.Constant, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Call, ast.Attribute, ast.Subscript, ast.Slice,
    ast.Tuple, ast.List, ast.keyword, ast.Lambda, ast.arguments, ast.arg, ast.IfExp, ast.operator, ast.unaryop,
    ast.cmpop, ast.expr_context,
)  # fmt: skip
_MODULES = {"nn", "lax", "jvp", "vjp", "grad", "numpy"}
_SUBMODULES = {"linalg", "fft"}
_METHODS = frozenset(
    "shape dtype ndim size T astype reshape sum mean max min prod any all transpose swapaxes at set add ravel real imag".split()
)
# Functions of jnp that read or write files, or run what they are given
_REFUSED = frozenset(
    "load save savez fromfile frombuffer from_dlpack fromfunction fromiter fromstring vectorize apply_along_axis "
    "apply_over_axes set_printoptions printoptions piecewise frompyfunc".split()
)


class Reference:
    """The checked text: `lines` of a function body that end in a return."""

    def __init__(self, lines: tuple[str, ...]):
        self.lines = lines


def read_reference(spec: Spec) -> Reference:
    """Raises `SpecError` with every mistake of the reference."""
    checker = _Checker(spec)
    diagnostics: list[Diagnostic] = []
    lines: list[str] = []
    outputs = [a.name for a in spec.outputs]
    chunks = list(_chunks(spec.reference.value))
    for first, text in chunks:
        try:
            body = parse_python(text).body
            if len(body) != 1:
                raise Mistake("one statement a line")
            lines += checker.statement(body[0], bare=len(chunks) == 1 and len(outputs) == 1)
        except Mistake as error:
            row, column = getattr(error, "place", (0, len(text) - len(text.lstrip())))
            span = spec.reference.at(first + row, column)
            diagnostics.append(spec.source.diagnostic(span, error.message, error.hint))
        except Placed as error:
            diagnostics.append(_diagnostic(spec.reference, first, text, error))
        except RecursionError:
            span = spec.reference.at(first, 0)
            diagnostics.append(spec.source.diagnostic(span, "nested too deeply", "split it in several names"))
    missing = [name for name in outputs if name not in checker.assigned]
    if missing and not diagnostics:
        hint = "with one output it may be an expression, else statements that assign every output"
        message = f"the reference never assigns {', '.join(map(repr, missing))}"
        diagnostics.append(spec.source.diagnostic(spec.reference.at(0, 0), message, hint))
    if diagnostics:
        raise SpecError(diagnostics)
    if not lines[-1].startswith("return "):
        lines.append("return " + ", ".join(outputs))
    return Reference(tuple(lines))


def _diagnostic(scalar: Scalar, first: int, text: str, error: Placed) -> Diagnostic:
    from codegen.formula import Line

    return Line(scalar, first, text, ast.Pass()).diagnostic(error)


class _Checker:
    def __init__(self, spec: Spec):
        self.spec = spec
        self.names = {a.name for a in spec.inputs} | {p.name for p in spec.params}
        self.assigned: set[str] = set()

    def statement(self, node: ast.stmt, bare: bool) -> list[str]:
        if isinstance(node, ast.Expr) and bare:
            self.expression(node.value, ())
            self.assigned.add(self.spec.outputs[0].name)
            return ["return " + ast.unparse(node.value)]
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            raise Placed(node, Mistake("not a statement of the form `name = expression`"))
        self.expression(node.value, ())
        target = node.targets[0]
        elements = target.elts if isinstance(target, ast.Tuple) else [target]
        for element in elements:
            if not isinstance(element, ast.Name) or not _plain_name(element.id):
                raise Placed(element, Mistake("only names can be assigned"))
            self.assigned.add(element.id)
        return [ast.unparse(node)]

    def expression(self, node: ast.AST, local: tuple[str, ...]) -> None:
        if not isinstance(node, _EXPRESSIONS):
            raise Placed(node, Mistake(f"{type(node).__name__} is not allowed in a reference", "it is a jnp expression"))
        if isinstance(node, ast.Name):
            allowed = self.names | self.assigned | set(local)
            if node.id in ("jnp", "jax"):
                raise Placed(node, Mistake(f"{node.id!r} is a module", "use its functions, as in jnp.maximum(x, 0)"))
            if node.id not in allowed:
                raise Placed(node, Mistake(f"unknown name {node.id[:60]!r}", known(node.id, allowed | {"jnp", "jax"})))
            return
        if isinstance(node, ast.Attribute):
            self.attribute(node, local)
            return
        if isinstance(node, ast.Constant) and not isinstance(node.value, bool | int | float | str | type(...) | None):
            raise Placed(node, Mistake(f"the literal {str(node.value)[:40]!r} is not allowed in a reference"))
        if isinstance(node, ast.Lambda):
            names = [a.arg for a in node.args.args]
            for name in names:
                if not _plain_name(name):
                    raise Placed(node, Mistake(f"{name[:60]!r} is no name for an argument"))
            local = (*local, *names)
        for child in ast.iter_child_nodes(node):
            self.expression(child, local)

    def attribute(self, node: ast.Attribute, local: tuple[str, ...]) -> None:
        path = _path(node)
        if path and path[0] in ("jnp", "jax"):
            good = (
                (len(path) == 2 and path[0] == "jnp" and path[1] not in _REFUSED)
                or (len(path) == 3 and path[0] == "jnp" and path[1] in _SUBMODULES)
                or (len(path) == 2 and path[0] == "jax" and path[1] in ("jvp", "vjp", "grad"))
                or (len(path) == 3 and path[0] == "jax" and path[1] in ("nn", "lax"))
            )
            if not good or not all(_plain_name(p) or p.isidentifier() and not p.startswith("_") for p in path):
                text = ".".join(path)[:80]
                raise Placed(node, Mistake(f"{text!r} is not allowed in a reference", "it may use jnp, jax.nn, jax.lax"))
            return
        if node.attr not in _METHODS:
            raise Placed(node, Mistake(f"the attribute {node.attr[:60]!r} is not allowed", known(node.attr, _METHODS)))
        self.expression(node.value, local)


def _path(node: ast.AST) -> list[str]:
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    return [node.id, *names] if isinstance(node, ast.Name) else []


def _plain_name(name: str) -> bool:
    return name.isidentifier() and not name.startswith("_") and name not in ("jnp", "jax", "runtime", "cute", "cutlass")
