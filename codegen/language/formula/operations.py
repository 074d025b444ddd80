"""Makes the nodes of a formula: operations of the table, with the kinds of their arguments checked and constants computed; and reads
what calls are written with: their arguments by name, and axes."""

from __future__ import annotations

import ast
import functools
import math
import operator
from collections.abc import Callable, Iterable
from typing import Any

from codegen.errors import UserError, known, shown
from codegen.graph.nodes import DTYPES, ROWS, Leaf, Node, dtypes_of
from codegen.graph.ops import OPERATORS, OPS
from codegen.language.formula.products import contracted, product_of, rounded
from codegen.language.scope import Scope
from codegen.language.statements import Placed, together
from codegen.spec.spec import Array

# What serves instead of an operation on integers
NUMBER = "write where(condition, 1, 0) for the bool"
WHOLE = "convert it first, as in cast(floor(x), int32)"
POWER = "a power is a ** b"


class Operations:
    """Makes nodes in the graph of a scope. `read` of a subclass reads expressions."""

    def __init__(
        self,
        scope: Scope,
        bound: dict[str, Node | tuple[str, ...]] | None = None,
        site: ast.AST | None = None,
        derived: bool = False,
    ):
        self.scope, self.graph = scope, scope.graph
        self.bound = bound  # within a prelude function: the values of its parameters
        self.site = site  # within a prelude function: the call, at which errors are reported
        self.derived = derived  # a derivative: it may sum a value over axes that the value lacks

    def read(self, tree: ast.expr) -> Node:
        """The value of an expression. Raises `Placed`."""
        raise NotImplementedError

    def expanded(self, tree: ast.AST, name: str, *values: Node) -> Node:
        """A composite function of floats, called by an operator or by another function."""
        raise NotImplementedError

    def fail(self, tree: ast.AST, message: str, hint: str = "") -> Placed:
        return Placed(self.site or tree, UserError(message, hint))

    def read_all(self, trees: Iterable[ast.expr]) -> list[Node]:
        return together([functools.partial(self.read, tree) for tree in trees])

    def const(self, tree: ast.AST, value: bool | int | float) -> Node:
        try:
            return self.graph.const(value)
        except UserError as error:
            raise Placed(self.site or tree, error) from None

    def leaf(self, array: Array, part: int | None) -> Node:
        kind = DTYPES[dtypes_of(array.dtype, self.scope.types)[0]].kind
        return self.graph.node("input", attr=Leaf(array.name, part), kind=kind, dims=array.axes)

    def arguments(
        self, tree: ast.Call, params: tuple[str, ...], defaults: tuple[ast.expr | None, ...] = ()
    ) -> dict[str, ast.expr]:
        """The arguments of a call, by the names of the parameters."""
        name = tree.func.id if isinstance(tree.func, ast.Name) else ""
        values: dict[str, str] = {p: f"={ast.unparse(d)}" for p, d in zip(params, defaults, strict=False) if d}
        if params[-1] == "axis" and len(params) > 1:
            values["axis"] = f"={self.scope.example_axis}"
        words = ["K=8" if p == "k" else p + values.get(p, "") for p in params]  # an axis of the result, and its size
        usage = f"it is {name}({', '.join(words)})"
        given = dict(zip(params, tree.args, strict=False))
        for keyword_ in tree.keywords:
            if keyword_.arg not in params or keyword_.arg in given:
                raise self.fail(keyword_, f"{name!r} does not take {shown(str(keyword_.arg))} here", usage)
            given[keyword_.arg] = keyword_.value
        for param, default in zip(params, defaults, strict=False):
            if param not in given and default is not None:
                given[param] = default
        if len(tree.args) > len(params) or set(given) != set(params):
            raise self.fail(tree, f"{name!r} does not take these arguments", usage)
        return given

    def axes(self, tree: ast.expr) -> tuple[str, ...]:
        """The axes of an argument: N, `...`, or a tuple of them."""
        if isinstance(tree, ast.Name) and self.bound and isinstance(self.bound.get(tree.id), tuple):
            return self.bound[tree.id]  # type: ignore[return-value]
        items = tree.elts if isinstance(tree, ast.Tuple) else [tree]
        names: list[str] = []
        for item in items:
            if isinstance(item, ast.Constant) and item.value is Ellipsis:
                name = ROWS
            elif isinstance(item, ast.Name):
                name = item.id
            else:
                raise self.fail(item, "an axis is named, not numbered", f"the axes: {', '.join(self.graph.axes)}")
            if name not in self.scope.axes:
                raise self.fail(item, f"unknown axis {shown(name)}", known(name, self.graph.axes, "the axes"))
            if name in names:
                raise self.fail(item, f"axis {name!r} is repeated", "name it once")
            names.append(name)
        if not names:
            raise self.fail(tree, "no axis is named", f"the axes: {', '.join(self.graph.axes)}")
        return tuple(names)

    def along(self, tree: ast.AST, name: str, axes: tuple[str, ...], value: Node) -> None:
        """Raises an error for a reduction over axes that a value does not have."""
        missing = [axis for axis in axes if axis not in value.dims]
        if missing:
            has = f"it varies along {', '.join(value.dims)}" if value.dims else "it is a scalar"
            raise self.fail(tree, f"{name!r} over {', '.join(missing)}, which its argument does not have", has)

    def is_axis(self, tree: ast.expr) -> bool:
        items = tree.elts if isinstance(tree, ast.Tuple) else [tree]
        return all(
            (isinstance(i, ast.Name) and i.id in self.scope.axes) or (isinstance(i, ast.Constant) and i.value is ...)
            for i in items
        )

    def contract(self, tree: ast.AST, left: Node, right: Node, axes: tuple[str, ...] = ()) -> Node:
        """A matrix product over some axes, or over the one that `@` contracts. It has the other axes of both sides."""
        if "bool" in (left.kind, right.kind):
            raise self.fail(tree, "'@' takes numbers, not a bool", "write where(condition, 1, 0)")
        try:
            axes = axes or (contracted(left, right, self.scope.output_axes, self.scope.inputs),)
            left, right = rounded(
                self.graph, *self.same_kind(left, right), arrays=self.scope.inputs, types=self.scope.types
            )
        except UserError as error:
            raise Placed(self.site or tree, error) from None
        return product_of(self.graph, left, right, axes)

    def apply(self, tree: ast.AST, name: str, args: list[Node]) -> Node:
        """An operation of the table. The kinds of its arguments are checked, and numbers are brought to one kind."""
        op, kinds = OPS[name], [a.kind for a in args]
        sign = repr(op.jnp.replace("{0}", "").replace("{1}", "").strip() if name in OPERATORS else name)
        if op.rule == "whole" or (op.rule == "bits" and "int" in kinds):
            if set(kinds) != {"int"}:
                other = next(k for k in kinds if k != "int")
                hint = NUMBER if other == "bool" else POWER if name == "xor" else WHOLE
                raise self.fail(tree, f"{sign} takes integers, not {with_article(other)}", hint)
            return self.fold(tree, name, args)
        if op.rule in ("logic", "bits") or (name in ("eq", "ne") and kinds == ["bool", "bool"]):
            if set(kinds) != {"bool"}:
                other = next(k for k in kinds if k != "bool")
                hint = POWER if name == "xor" and "bool" not in kinds else "compare first, as in (x > 0) & (x < 1)"
                raise self.fail(tree, f"{sign} takes bools, not {with_article(other)}", hint)
            return self.fold(tree, name, args)
        if op.rule == "select":
            condition, *rest = args
            if condition.kind != "bool":
                raise self.fail(
                    tree,
                    f"{name!r} takes a bool first, not {with_article(condition.kind)}",
                    "compare first, as in x > 0",
                )
            if [n.kind for n in rest] == ["bool", "bool"]:
                return self.fold(tree, name, args)
            args, kinds = rest, kinds[1:]
        if "bool" in kinds:
            hint = NUMBER if op.rule != "select" else "both values are numbers, or both bools"
            raise self.fail(tree, f"{sign} takes numbers, not a bool", hint)
        if op.rule == "scale" and kinds[1] != "int":
            hint = "as in ldexp(x, exponent(y)), or ldexp(x, cast(floor(y), int32))"
            raise self.fail(tree, f"{name!r} takes an integer second, not {with_article(kinds[1])}", hint)
        if op.rule == "scale":
            args = [self.to_float(args[0]), args[1]]
        elif op.rule in ("float", "predicate", "digits"):
            args = [self.to_float(a) for a in args]
        elif len(args) == 2:
            args = list(self.same_kind(*args))
        if op.rule == "round" and args[0].kind == "int":
            return args[0]
        if op.rule == "select":
            args = [condition, *args]
        return self.fold(tree, name, args)

    def fold(self, tree: ast.AST, name: str, args: list[Node]) -> Node:
        """The node of an operation, or a constant if all arguments are constants and Python computes the result as a kernel does."""
        op = OPS[name]
        if name in EVALUATED and all(a.is_const for a in args):
            values: list[Any] = [a.attr for a in args]
            try:
                return self.const(tree, EVALUATED[name](*values))
            except (ArithmeticError, ValueError):
                pass  # such as 1 / 0, which the kernel computes
        self.fitting(tree, args)
        given = {"compare": "bool", "predicate": "bool", "logic": "bool", "digits": "int", "scale": "float"}
        kind = given.get(op.rule, args[-1].kind)
        return self.graph.node(name, tuple(args), kind=kind, dims=[d for a in args for d in a.dims])

    def fitting(self, tree: ast.AST, args: list[Node]) -> None:
        """Raises an error for a constant that does not fit the kernel's integers."""
        integer = self.scope.integer
        for node in args:
            if node.is_const and node.kind == "int" and not integer.low <= node.attr <= integer.high:  # type: ignore[operator]
                hint = f"write it as a float, {node.attr}.0, or declare an int64 array"
                message = f"the constant {node.attr} does not fit {integer.name}, in which this op computes integers"
                raise self.fail(tree, message, hint)

    def same_kind(self, left: Node, right: Node) -> tuple[Node, Node]:
        if left.kind == right.kind:
            return left, right
        return self.to_float(left), self.to_float(right)

    def to_float(self, node: Node) -> Node:
        assert node.kind != "bool", node
        if node.kind == "float":
            return node
        if node.is_const:
            return self.graph.const(float(node.attr))  # type: ignore[arg-type]
        return self.graph.node("float", (node,), kind="float", dims=node.dims)

    def cast(self, tree: ast.AST, value: Node, dtype: str) -> Node:
        """A value rounded to a type. The values of an integer type must fit the type that the op computes integers in."""
        integer, dtypes = self.scope.integer, [DTYPES[name] for name in dtypes_of(dtype, self.scope.types)]
        for d in dtypes:
            if d.kind == "int" and not (integer.low <= d.low and d.high <= integer.high):
                message = (
                    f"a cast to {d.name}, whose values do not fit {integer.name}, in which this op computes integers"
                )
                raise self.fail(tree, message, "declare an array of int64 or uint32, or cast to a narrower type")
        return self.graph.node("cast", (value,), dtype, kind=dtypes[0].kind, dims=value.dims)

    def size(self, tree: ast.AST, axes: Iterable[str]) -> Node:
        sizes = [self.graph.node("size", attr=axis, kind="int", dims=()) for axis in axes]
        if len(sizes) == 1:
            return sizes[0]
        return functools.reduce(lambda a, b: self.apply(tree, "mul", [a, b]), map(self.to_float, sizes))


def with_article(kind: str) -> str:
    return f"an {kind}" if kind == "int" else f"a {kind}"


# Operations on constants that are evaluated while a formula is read
EVALUATED: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "neg": operator.neg,
    "sqrt": math.sqrt,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "shl": lambda a, b: a << b if b < 64 else 0,
    "shr": operator.rshift,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "invert": operator.invert,
}
