"""Reads expressions into the typed graph.

`Reader` takes the syntax tree of an expression. It raises an error, with its place, for a construct that the language lacks and
for a name, kind or axis that does not fit. Calls of the prelude's functions are expanded, and share the nodes of arguments.
"""

from __future__ import annotations

import ast
import functools
import math

from codegen.errors import UserError, shown
from codegen.graph.nodes import Call, Node, topological
from codegen.graph.ops import BINARY, COMPARE, OPERATORS, OPS
from codegen.graph.ranges import is_within, ranges
from codegen.language.formula.calls import FORMS, functions
from codegen.language.formula.instead import for_call, for_construct, for_function, for_index, for_name
from codegen.language.formula.operations import Operations
from codegen.language.prelude import Composite, prelude
from codegen.language.scope import CONSTANTS, Scope
from codegen.language.statements import SPLIT, Follows, Placed, construct, literal, together
from codegen.spec.spec import Array

MAX_EXPONENT = 64
EXPONENTS = (-60.0, 60.0)  # of e: float32 holds sums of 2**31 such powers, and none is denormal
FOR_FLOATS = {"Mod": "_modulo", "FloorDiv": "_floor_divide"}  # operators that have functions of their own for floats


def reader(scope: Scope) -> Reader:
    """A reader of expressions in `scope`."""
    return Reader(scope)


class Reader(Operations):
    """Has a method for each construct of the language. All other constructs are errors."""

    def __call__(self, tree: ast.expr) -> Node:
        """The value of an expression. Raises `Placed`."""
        try:
            return self.read(tree)
        except RecursionError:
            raise Placed(tree, UserError("nested too deeply", SPLIT)) from None

    def read(self, tree: ast.expr) -> Node:
        method = getattr(self, "read_" + type(tree).__name__, None)
        if method is None:
            raise self.fail(tree, f"{construct(tree)} is not part of the language", for_construct(tree))
        made: Node = method(tree)
        return made

    def read_Constant(self, tree: ast.Constant) -> Node:
        value = tree.value
        if not isinstance(value, bool | int | float):
            raise self.fail(tree, f"the literal {literal(value)} is not part of the language", "write a number")
        if isinstance(value, float) and math.isinf(value):  # a literal that Python could not hold
            raise Placed(self.site or tree, UserError("no float64 holds this number", "write inf for infinity"))
        return self.const(tree, value)

    def read_Name(self, tree: ast.Name) -> Node:
        name, scope = tree.id, self.scope
        if self.bound is not None:
            value = self.bound[name] if name in self.bound else self.graph.const(CONSTANTS[name])
            assert isinstance(value, Node)
            return value
        if name in scope.values:
            scope.used.add(name)
            return scope.values[name]
        if name in scope.inputs:
            array = scope.inputs[name]
            scope.used.add(name)
            if array.parts is not None and scope.part is None:
                raise self.fail(tree, f"{name!r} is {array}: name its part", part_names(array))
            return self.leaf(array, scope.part if array.parts is not None else None)
        if name in scope.parted:
            return self.part(tree, name, scope.part)
        if name in CONSTANTS:
            return self.graph.const(CONSTANTS[name])
        if name in functions() and name not in scope.broken:
            raise self.fail(tree, f"{name!r} is a function", f"call it: {name}(...)")
        if name in scope.axes:
            raise self.fail(tree, f"{name!r} is an axis", f"its position is index({name}), its size size({name})")
        if name in scope.broken:
            raise Follows(tree)
        if name in scope.later:
            hint = "a name can be used in the lines below the one that assigns it"
            raise self.fail(tree, f"{name!r} has no value yet", hint)
        raise self.fail(tree, f"unknown name {shown(name)}", for_name(name, scope))

    def part(self, tree: ast.AST, name: str, part: object) -> Node:
        """The value of a part of a name."""
        names = self.scope.parted[name].names
        if type(part) is not int or not 0 <= part < len(names):
            raise self.fail(tree, f"{name!r} has {len(names)} parts: name one", f"as in {name}[0]")
        self.scope.used |= {name, names[part]}
        return self.scope.values[names[part]]

    def read_Subscript(self, tree: ast.Subscript) -> Node:
        base, index = tree.value, tree.slice
        if isinstance(base, ast.Name) and base.id in self.scope.parted:
            return self.part(tree, base.id, index.value if isinstance(index, ast.Constant) else None)
        array = self.scope.inputs.get(base.id) if isinstance(base, ast.Name) else None
        if array is None:
            hint = for_index(tree) or "parts come from (2 N), (N 2) or T[3]"
            if isinstance(base, ast.Name) and base.id in self.scope.outputs:
                hint = "give the value a name of its own, and use it in both places"
            raise self.fail(tree, "only an input with parts can be indexed", hint)
        self.scope.used.add(array.name)
        if array.parts is None:
            raise self.fail(
                tree,
                f"{array.name!r} is {array} and has no parts",
                for_index(tree) or without_parts(array),
            )
        if not isinstance(index, ast.Constant) or type(index.value) is not int or not 0 <= index.value < array.parts:
            raise self.fail(index, f"{array.name!r} is {array} and has no such part", part_names(array))
        return self.leaf(array, index.value)

    def read_UnaryOp(self, tree: ast.UnaryOp) -> Node:
        if isinstance(tree.op, ast.Not):
            raise self.fail(tree, "'not' is not part of the language", "write ~condition")
        number = tree.operand.value if isinstance(tree.operand, ast.Constant) else None
        if isinstance(tree.op, ast.USub) and type(number) is int:
            return self.const(tree, -number)  # with its sign: -2**63 fits where 2**63 does not
        value = self.read(tree.operand)
        if isinstance(tree.op, ast.UAdd):
            return value
        if isinstance(tree.op, ast.USub):
            return self.apply(tree, "neg", [value])
        return self.apply(tree, "invert" if value.kind == "int" else "not", [value])

    def read_BinOp(self, tree: ast.BinOp) -> Node:
        kind = type(tree.op).__name__
        left, right = self.read_all([tree.left, tree.right])
        if kind == "Pow":
            return self.power(tree, left, right)
        if kind == "MatMult":
            return self.contract(tree, left, right)
        if kind == "Mult" and (left.kind == "bool") != (right.kind == "bool"):  # as in dy * (y > 0)
            condition, value = (left, right) if left.kind == "bool" else (right, left)
            return self.apply(tree, "where", [condition, value, self.graph.const(0.0 if value.kind == "float" else 0)])
        if kind in FOR_FLOATS and "float" in (left.kind, right.kind) and "bool" not in (left.kind, right.kind):
            return self.expanded(tree, FOR_FLOATS[kind], left, right)
        return self.apply(tree, BINARY[kind], [left, right])

    def read_BoolOp(self, tree: ast.BoolOp) -> Node:
        raise self.fail(tree, "'and' and 'or' are not part of the language", "write (a > 0) & (b > 0)")

    def read_Compare(self, tree: ast.Compare) -> Node:
        if len(tree.ops) != 1:
            raise self.fail(tree, "chained comparisons are not part of the language", "write (a < b) & (b < c)")
        kind = type(tree.ops[0]).__name__
        if kind not in COMPARE:
            sign = {"Is": "is", "IsNot": "is not", "In": "in", "NotIn": "not in"}[kind]
            hint = _instead_of_is(tree) if "Is" in kind else "write (a == 1) | (a == 2)"
            raise self.fail(tree, f"{sign!r} is not part of the language", hint)
        return self.apply(tree, COMPARE[kind], self.read_all([tree.left, *tree.comparators]))

    def read_IfExp(self, tree: ast.IfExp) -> Node:
        raise self.fail(tree, "'if' is not part of the language", "write where(condition, a, b)")

    def read_Call(self, tree: ast.Call) -> Node:
        if not isinstance(tree.func, ast.Name):
            raise self.fail(tree.func, "functions are called by their plain name", for_call(tree, self.scope))
        name = tree.func.id
        if any(isinstance(a, ast.Starred) for a in tree.args) or any(k.arg is None for k in tree.keywords):
            raise self.fail(tree, "'*' and '**' in a call are not part of the language", "write every argument out")
        # only the language's own formulas may call "_" names
        internal = self.bound is not None or not name.startswith("_")
        if name in FORMS and internal:
            return FORMS[name].read(self, tree)
        if name in OPS and name not in OPERATORS and internal:
            op = OPS[name]
            if tree.keywords or len(tree.args) != op.arity:
                raise self.fail(
                    tree, f"{name!r} does not take these arguments", f"it is {name}({', '.join('abc'[: op.arity])})"
                )
            return self.apply(tree, name, self.read_all(tree.args))
        if name in prelude() and internal:
            return self.composite(tree, prelude()[name])
        if name in self.scope.names():
            raise self.fail(tree.func, f"{name!r} is a value, not a function", f"multiply with *: {name} * (...)")
        if name in self.scope.broken:
            raise Follows(tree)
        raise self.fail(tree.func, f"unknown function {shown(name)}", for_function(name))

    def composite(self, tree: ast.Call, made: Composite) -> Node:
        given = self.arguments(tree, made.params, made.defaults)
        inner = Reader(self.scope, {}, self.site or tree)

        def argument(name: str, value: ast.expr) -> Node | tuple[str, ...]:
            if name == "axis":
                return self.axes(value)
            node = inner.read(value) if value in made.defaults else self.read(value)
            if node.kind == "bool":
                raise self.fail(value, f"{made.name!r} takes numbers, not a bool", "write where(condition, 1, 0)")
            return node

        values = together([functools.partial(argument, name, value) for name, value in given.items()])
        inner.bound = dict(zip(given, values, strict=True))
        if "axis" in given:
            self.along(given["axis"], made.name, inner.bound["axis"], inner.bound["x"])  # type: ignore[arg-type]
        value = inner.read(made.bounded if made.bounded and self.is_bounded(inner.bound["x"]) else made.body)
        if not value.is_const and value not in inner.bound.values():
            self.graph.calls.setdefault(id(value), Call(made.name, inner.bound))
        return value

    def is_bounded(self, value: Node | tuple[str, ...]) -> bool:
        """Whether the exponentials of a value are far from the largest and the smallest float32. Products' epilogues and attention
        follow the maximum in any case."""
        assert isinstance(value, Node)
        nodes = list(topological([value]))
        if any(n.op == "contract" for n in nodes):
            return False
        return is_within(ranges(nodes)[id(value)], EXPONENTS)

    def expanded(self, tree: ast.AST, name: str, *values: Node) -> Node:
        """A composite function of floats, called by an operator or by another function."""
        floats = map(self.to_float, values)
        bound: dict[str, Node | tuple[str, ...]] = dict(zip(prelude()[name].params, floats, strict=True))
        result = Reader(self.scope, bound, self.site or tree).read(prelude()[name].body)
        self.graph.calls.setdefault(id(result), Call(name, bound))
        return result

    def power(self, tree: ast.BinOp, base: Node, exponent: Node) -> Node:
        if "bool" in (base.kind, exponent.kind):
            raise self.fail(tree, "'**' takes numbers, not a bool", "write where(condition, 1, 0) for the bool")
        if not exponent.is_const:
            floats = [self.to_float(base), self.to_float(exponent)]
            parts = topological([exponent])
            if all(n.args or n.is_const or n.op == "param" for n in parts):
                return self.fold(tree, "pow", floats)
            return self.apply(tree, "exp2", floats[1:]) if base.attr == 2 else self.apply(tree, "pow", floats)
        n = exponent.attr
        assert isinstance(n, int | float)
        if MAX_EXPONENT < abs(n) < math.inf and base.kind == "float":
            return self.apply(tree, "pow", [base, exponent])
        if not abs(n) <= MAX_EXPONENT:
            hint = "write exp(b * log(a))"
            raise self.fail(tree.right, f"the exponent must be from -{MAX_EXPONENT} to {MAX_EXPONENT}", hint)
        if n == 0 and not base.is_const:
            raise self.fail(tree, "the power 0 of anything is 1", "write 1")
        if n == 0.5:
            return self.apply(tree, "sqrt", [base]) if base.is_const else self.expanded(tree, "_half_power", base)
        if n != int(n):
            return self.apply(tree, "pow", [base, exponent])
        if isinstance(n, float):
            base = self.to_float(base)
        # A power of the reciprocal: the derivative of a power's reciprocal would overflow before x ** (n - 1) does
        if n < 0:
            return self.integer_power(tree, self.apply(tree, "reciprocal", [self.to_float(base)]), -int(n))
        return self.integer_power(tree, base, int(n))

    def integer_power(self, tree: ast.AST, base: Node, n: int) -> Node:
        """The power by repeated squaring, as in `lax.integer_pow`."""
        result = None
        while n:
            if n & 1:
                result = base if result is None else self.apply(tree, "mul", [result, base])
            n >>= 1
            if n:
                base = self.apply(tree, "mul", [base, base])
        return result or self.graph.const(1.0 if base.kind == "float" else 1)


def without_parts(array: Array) -> str:
    """The hint for an index of an array that has no parts."""
    for dim in array.dims:
        if len(dim.names) > 1 and dim.extents[0]:
            named, _, rest = str(dim).partition(" ")
            return f"{named[1:]} is an axis; for parts, write ({dim.extents[0]} {rest}"
    return f"write {array.name}, or declare its parts: (2 N), (N 2) or T[3]"


def part_names(array: Array) -> str:
    count = array.parts or 0
    names = [f"{array.name}[{i}]" for i in range(count)]
    return f"its parts are {', '.join(names if count <= 4 else [*names[:2], '...', names[-1]])}"


def _instead_of_is(tree: ast.Compare) -> str:
    """The hint for `is` and `is not`."""
    words = {ast.unparse(side).lower().rpartition(".")[2] for side in (tree.left, *tree.comparators)}
    if "none" in words:
        return "where a call leaves out an input, the formulas take its default: w: T[N] = 1"
    return "write isnan(x)" if "nan" in words else "it has < <= > >= == !="
