"""Checks that the reference of a spec is jnp code and nothing else.

It may use `jnp`, `jax.nn`, `jax.lax`, `jax.random`, `jax.scipy`'s `special` and `stats`, `jax.jvp`, `jax.vjp`, `jax.grad`, a few of
Python's own functions, the inputs, params, and names that it assigns. The generated file has the text that is printed from its syntax tree, so nothing but checked code gets there.
"""

from __future__ import annotations

import ast
import functools
import keyword
import math

from codegen.errors import SpecError, UserError, known, shown
from codegen.language.statements import MAX_STATEMENTS, SPLIT, Line, Placed, construct, literal, read_lines, together
from codegen.parsing import check_compiles
from codegen.spec.spec import Spec

_EXPRESSIONS = (
    ast.Name, ast.Constant, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Call, ast.Attribute, ast.Subscript, ast.Slice,
    ast.Tuple, ast.List, ast.Starred, ast.keyword, ast.Lambda, ast.arguments, ast.arg, ast.IfExp, ast.operator, ast.unaryop,
    ast.cmpop, ast.expr_context, ast.ListComp, ast.GeneratorExp, ast.comprehension,
)  # fmt: skip
_SUBMODULES = {"linalg", "fft"}
_SCIPY = {"special", "stats"}
_BUILTINS = frozenset("abs enumerate len max min range reversed sum tuple zip".split())
_METHODS = frozenset(
    "shape dtype ndim size T mT astype reshape ravel flatten squeeze transpose swapaxes repeat take diagonal trace dot "
    "sum mean max min prod any all var std argmax argmin sort argsort cumsum cumprod clip round conj real imag "
    "at set add multiply".split()
)
# Functions of jnp that read or write files, or call an argument
_REFUSED = frozenset(
    "load save savez fromfile frombuffer from_dlpack fromfunction fromiter fromstring vectorize apply_along_axis "
    "apply_over_axes set_printoptions printoptions piecewise frompyfunc".split()
)


class Reference:
    """The checked text: `lines` of a function body that end in a return."""

    def __init__(self, lines: tuple[str, ...]):
        self.lines = lines


def read_reference(spec: Spec) -> Reference:
    """The checked reference of a spec. Raises `SpecError` with every error in it."""
    checker = _Checker(spec)
    outputs = [a.name for a in spec.outputs]
    lines, diagnostics = read_lines(
        spec.reference, "a reference is a jnp expression, or statements that assign every output"
    )
    body: list[str] = []
    broken: set[str] = set()  # names that a wrong statement assigns: errors that follow from it are not reported
    checker.later = {name for line in lines if line.tree for name in _assigned(line.tree)}
    for line in lines:
        if line.tree is None:
            broken.add(line.first_name)
            continue
        try:
            body.append(checker.statement(line.tree, len(lines) == 1, broken))
        except Placed as error:
            diagnostics += line.diagnostics(error)
        except (RecursionError, ValueError):  # ValueError: an integer too long to print
            deep = UserError("nested too deeply, or a number too long", SPLIT)
            diagnostics.append(line.diagnostic(Placed(line.tree, deep)))
    missing = [name for name in outputs if name not in checker.assigned | broken]
    if missing and len(lines) <= MAX_STATEMENTS and (len(outputs) > 1 or not diagnostics):
        hint = "with one output it may be an expression, else statements that assign every output"
        message = f"the reference never assigns {', '.join(map(repr, missing))}"
        diagnostics.append(Line(spec.reference, 0, "", None).at(0, 0, 1, message, hint))
    if diagnostics:
        raise SpecError(diagnostics)
    if not body[-1].startswith("return "):
        body.append("return " + ", ".join(outputs))
    return Reference(tuple(body))


class _Checker:
    def __init__(self, spec: Spec):
        self.spec = spec
        self.names = {a.name for a in spec.inputs} | {p.name for p in spec.params}
        self.assigned: set[str] = set()
        self.broken: frozenset[str] = frozenset()
        self.later: set[str] = set()  # names that some statement assigns

    def statement(self, node: ast.stmt, alone: bool, broken: set[str]) -> str:
        self.broken = frozenset(broken)  # without the names that this statement assigns, which it cannot read
        if isinstance(node, ast.Expr) and alone and len(self.spec.outputs) == 1:
            broken.add(self.spec.outputs[0].name)
            self.expression(node.value, ())
            broken.clear()
            self.assigned.add(self.spec.outputs[0].name)
            return "return " + _printed(node.value)
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            if isinstance(node, ast.Expr) and alone:
                broken |= {a.name for a in self.spec.outputs}
                message = "one expression, but the op has several outputs"
                raise Placed(node, UserError(message, "write a statement `name = ...` for each"))
            message = "not a statement of the form `name = expression`"
            raise Placed(node, UserError(message, "as in z = jnp.exp(x)"))
        target = node.targets[0]
        elements = target.elts if isinstance(target, ast.Tuple) else [target]
        names = [e.id for e in elements if isinstance(e, ast.Name)]
        broken |= set(names)
        for element in elements:
            if not isinstance(element, ast.Name) or not (_plain_name(element.id) or element.id == "_"):
                raise Placed(
                    element, UserError("only names can be assigned", "names are letters, digits and underscores")
                )
        self.expression(node.value, ())
        text = _printed(node)
        broken -= set(names)
        self.assigned |= set(names)
        return text

    def expression(self, node: ast.AST, local: tuple[str, ...]) -> None:
        """Checks an expression. The arguments of lambdas around it, and the names of comprehensions, are `local`."""
        if not isinstance(node, _EXPRESSIONS):
            message = f"{construct(node)} is not allowed in a reference"
            raise Placed(node, UserError(message, "write it with functions of jnp"))
        if isinstance(node, ast.Name):
            self.name(node, local)
        elif isinstance(node, ast.Attribute):
            self.attribute(node, local)
        elif isinstance(node, ast.Constant):
            _check_number(node)
        elif isinstance(node, ast.Lambda):
            self.function(node, local)
        elif isinstance(node, ast.ListComp | ast.GeneratorExp):
            self.comprehension(node, local)
        else:
            if isinstance(node, ast.keyword):
                _check_argument(node)
            children = list(ast.iter_child_nodes(node))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _BUILTINS:
                children.remove(node.func)
            together([functools.partial(self.expression, child, local) for child in children])

    def name(self, node: ast.Name, local: tuple[str, ...]) -> None:
        name, spec = node.id, self.spec
        allowed = self.names | self.assigned | set(local)
        if name in ("jnp", "jax"):
            error = UserError(f"{name!r} is a module", "use its functions, as in jnp.maximum(x, 0)")
        elif name in allowed | self.broken:
            return
        elif name in self.later:
            hint = "a name can be used in the lines below the one that assigns it"
            error = UserError(f"{name!r} has no value yet", hint)
        elif name in {a.name for a in spec.outputs}:
            error = UserError(f"{name!r} has no value yet", "compute it from the inputs and the parameters")
        elif name in spec.axes:
            error = UserError(f"{name!r} is an axis, which jnp numbers", "as in axis=-1, or in x.shape[-1]")
        else:
            error = UserError(f"unknown name {shown(name)}", known(name, allowed | {"jnp", "jax"}))
        raise Placed(node, error)

    def function(self, node: ast.Lambda, local: tuple[str, ...]) -> None:
        names = [a.arg for a in node.args.args]
        if ast.unparse(node.args) != ", ".join(names):
            message = "this form of lambda is not allowed in a reference"
            raise Placed(node, UserError(message, "as in lambda a, b: a + b"))
        for argument in node.args.args:
            if not _plain_name(argument.arg):
                message = f"{shown(argument.arg)} is not a valid name for an argument"
                raise Placed(argument, UserError(message, "pick another name"))
        self.expression(node.body, (*local, *names))

    def comprehension(self, node: ast.ListComp | ast.GeneratorExp, local: tuple[str, ...]) -> None:
        """`[f(a) for a in b if c]`: each `for` sees the names of those before it."""
        for part in node.generators:
            self.expression(part.iter, local)
            elements = part.target.elts if isinstance(part.target, ast.Tuple) else [part.target]
            for element in elements:
                if not isinstance(element, ast.Name) or not _plain_name(element.id):
                    raise Placed(element, UserError("only names can be assigned", "as in [f(a) for a in b]"))
            local = (*local, *(e.id for e in elements if isinstance(e, ast.Name)))
            for condition in part.ifs:
                self.expression(condition, local)
        self.expression(node.elt, local)

    def attribute(self, node: ast.Attribute, local: tuple[str, ...]) -> None:
        path = _path(node)
        if path and path[0] in ("jnp", "jax"):
            good = (
                (len(path) == 2 and path[0] == "jnp" and path[1] not in _REFUSED)
                or (len(path) == 3 and path[0] == "jnp" and path[1] in _SUBMODULES)
                or (len(path) == 2 and path[0] == "jax" and path[1] in ("jvp", "vjp", "grad"))
                or (len(path) == 3 and path[0] == "jax" and path[1] in ("nn", "lax", "random"))
                or (len(path) in (4, 5) and path[:2] == ["jax", "scipy"] and path[2] in _SCIPY)
            )
            if not good or not all(map(_plain_name, path[1:])):
                hint = (
                    "it may use jnp, jax.nn, jax.lax, jax.random, jax.scipy.special, jax.scipy.stats, jax.jvp, jax.vjp "
                    "and jax.grad"
                )
                raise Placed(node, UserError(f"{shown('.'.join(path))} is not allowed in a reference", hint))
            return
        if len(path) > 1 and path[0] not in self.names | self.assigned | self.broken | set(local):
            self.expression(_base(node), local)
        if node.attr not in _METHODS:
            hint = known(node.attr, _METHODS, "attributes")
            raise Placed(node, UserError(f"the attribute {shown(node.attr)} is not allowed in a reference", hint))
        self.expression(node.value, local)


def _check_number(node: ast.Constant) -> None:
    if not isinstance(node.value, bool | int | float | complex | str | type(...) | None):
        message = f"the literal {literal(node.value)} is not allowed in a reference"
        raise Placed(node, UserError(message, "write a number"))
    if isinstance(node.value, float) and math.isinf(node.value):
        raise Placed(node, UserError("no float64 holds this number", "write jnp.inf for infinity"))


def _check_argument(node: ast.keyword) -> None:
    """Checks the name of an argument in a call."""
    if node.arg is None:
        raise Placed(node, UserError("'**' in a call is not allowed in a reference", "write every argument out"))
    if not _plain_name(node.arg):
        raise Placed(node, UserError(f"no function takes an argument named {shown(node.arg)}", "check its name"))


def _assigned(tree: ast.stmt) -> set[str]:
    """The names that a statement assigns. The names of a comprehension are its own."""
    targets = tree.targets if isinstance(tree, ast.Assign) else []
    return {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}


def _base(node: ast.Attribute) -> ast.AST:
    """The expression whose attribute, or attribute's attribute, a node is."""
    inner = node.value
    return _base(inner) if isinstance(inner, ast.Attribute) else inner


def _printed(node: ast.AST) -> str:
    """The text of a statement or an expression in a generated file: one line. Raises `Placed` where Python warns about it."""
    text = ast.unparse(node)
    try:
        check_compiles(text)
    except SyntaxError as error:
        raise Placed(node, UserError("Python warns about this", error.msg)) from None
    return text


def _path(node: ast.AST) -> list[str]:
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    return [node.id, *names] if isinstance(node, ast.Name) else []


def _plain_name(name: str) -> bool:
    """Whether generated code may contain a name. `ast` has normalised it, so a name that looks like a keyword is one."""
    reserved = ("jnp", "jax", "runtime", "cute", "cutlass")
    return name.isidentifier() and not name.startswith("_") and not keyword.iskeyword(name) and name not in reserved
