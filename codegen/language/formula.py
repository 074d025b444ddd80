"""Reads expressions into the typed graph.

`Reader` takes the syntax tree of an expression. It raises an error, with its place, for a construct that the language lacks and
for a name, kind or axis that does not fit. Calls of the prelude's functions are expanded, and share the nodes of arguments.

Longer than 500 lines: one reader has a method for each kind of expression.
"""

from __future__ import annotations

import ast
import functools
import math
import operator
from collections.abc import Callable, Iterable
from typing import Any

from codegen.errors import UserError, known, shown
from codegen.graph.nodes import DTYPES, ROWS, Along, Call, Leaf, Node, Put, Selected, dtypes_of, topological
from codegen.graph.ops import BINARY, COMPARE, OPERATORS, OPS, REDUCTIONS, SCANS, SELECTIONS
from codegen.graph.shifting import shift
from codegen.language.prelude import Composite, prelude
from codegen.language.products import contracted, product_of, rounded
from codegen.language.scope import Scope
from codegen.language.statements import SPLIT, Follows, Placed, construct, literal, together
from codegen.spec.spec import Array

MAX_EXPONENT = 64
CONSTANTS = {"pi": math.pi, "e": math.e, "inf": math.inf, "nan": math.nan}
FARTHEST = 1024  # places that `shift` reaches
EVERY_AXIS = ast.Constant(None)  # a draw's axes where a call names none
# What jnp has and the language has not, and what serves instead
INSTEAD = {
    "std": "write sqrt(var(x, axis=N))",
    "sort": "no function sorts: pass the sorted array as an input",
}
# What serves instead of an operation on integers
NUMBER = "write where(condition, 1, 0) for the bool"
WHOLE = "convert it first, as in cast(floor(x), int32)"
FOR_FLOATS = {"floordiv": "write floor(a / b)", "mod": "write a - floor(a / b) * b, or rem(a, b), which has a's sign"}
SPECIAL = {
    "cast": ("e", "dtype"),
    "dot": ("a", "b", "axis"),
    "index": ("axis",),
    "size": ("axis",),
    "take": ("table", "i", "axis"),
    "put": ("table", "value", "i", "axis", "how"),
    "shift": ("x", "axis", "by", "fill"),
    "bits": ("key", "axes"),
    "uniform": ("key", "axes"),
    "bernoulli": ("key", "p", "axes"),
}
ULP = 2.0**-23  # of float32 from 1 to 2: the distance of uniform numbers


WAYS = ("set", "add", "max", "min")  # of `put`

_SCAN = ("a", "b", "axis", "initial", "reverse", "before")
_DEFAULTS: dict[str, ast.expr] = {
    "initial": ast.Constant(0.0),
    "reverse": ast.Constant(False),
    "before": ast.Constant(False),
}


@functools.cache
def functions() -> tuple[str, ...]:
    """The names of all functions that a formula may call."""
    names = (set(OPS) - OPERATORS) | set(REDUCTIONS) | set(SCANS) | set(SELECTIONS) | set(SPECIAL) | set(prelude())
    return tuple(sorted(name for name in names if not name.startswith("_")))


def reader(scope: Scope) -> Reader:
    """A reader of expressions in `scope`."""
    return Reader(scope)


class Reader:
    """Has a method for each construct of the language. All other constructs are errors."""

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

    def fail(self, tree: ast.AST, message: str, hint: str = "") -> Placed:
        return Placed(self.site or tree, UserError(message, hint))

    def __call__(self, tree: ast.expr) -> Node:
        """The value of an expression. Raises `Placed`."""
        try:
            return self.read(tree)
        except RecursionError:
            raise Placed(tree, UserError("nested too deeply", SPLIT)) from None

    def read(self, tree: ast.expr) -> Node:
        method = getattr(self, "read_" + type(tree).__name__, None)
        if method is None:
            hint = "formulas have numbers, names, + - * / // % **, comparisons, & | ^ ~ << >>, x[0], a @ b and calls"
            raise self.fail(tree, f"{construct(tree)} is not part of the language", hint)
        made: Node = method(tree)
        return made

    def read_all(self, trees: Iterable[ast.expr]) -> list[Node]:
        return together([functools.partial(self.read, tree) for tree in trees])

    def read_Constant(self, tree: ast.Constant) -> Node:
        value = tree.value
        if not isinstance(value, bool | int | float):
            raise self.fail(tree, f"the literal {literal(value)} is not part of the language", "write a number")
        if isinstance(value, float) and math.isinf(value):  # a literal that Python could not hold
            raise Placed(self.site or tree, UserError("no float64 holds this number", "write inf for infinity"))
        return self.const(tree, value)

    def const(self, tree: ast.AST, value: bool | int | float) -> Node:
        try:
            return self.graph.const(value)
        except UserError as error:
            raise Placed(self.site or tree, error) from None

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
            if array.parts is not None:
                raise self.fail(tree, f"{name!r} is {array}: name its part", part_names(array))
            return self.leaf(array, None)
        if name in CONSTANTS:
            return self.graph.const(CONSTANTS[name])
        if name in functions():
            raise self.fail(tree, f"{name!r} is a function", f"call it: {name}(...)")
        if name in scope.axes:
            raise self.fail(tree, f"{name!r} is an axis", f"its position is index({name}), its size size({name})")
        if name in scope.broken:
            raise Follows(tree)
        if name in scope.later:
            hint = "a name can be used in the lines below the one that assigns it"
            raise self.fail(tree, f"{name!r} has no value yet", hint)
        raise self.fail(tree, f"unknown name {shown(name)}", known(name, scope.names()))

    def leaf(self, array: Array, part: int | None) -> Node:
        kind = DTYPES[dtypes_of(array.dtype, self.scope.types)[0]].kind
        return self.graph.node("input", attr=Leaf(array.name, part), kind=kind, dims=array.axes)

    def read_Subscript(self, tree: ast.Subscript) -> Node:
        base, index = tree.value, tree.slice
        array = self.scope.inputs.get(base.id) if isinstance(base, ast.Name) else None
        if array is None:
            hint = "parts come from (2 N), (N 2) or T[3]"
            if isinstance(base, ast.Name) and base.id in self.scope.outputs:
                hint = "give the value a name of its own, and use it in both places"
            raise self.fail(tree, "only an input with parts can be indexed", hint)
        self.scope.used.add(array.name)
        if array.parts is None:
            raise self.fail(tree, f"{array.name!r} is {array} and has no parts", f"write {array.name}")
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
        return self.apply(tree, BINARY[kind], [left, right])

    def read_BoolOp(self, tree: ast.BoolOp) -> Node:
        raise self.fail(tree, "'and' and 'or' are not part of the language", "write (a > 0) & (b > 0)")

    def read_Compare(self, tree: ast.Compare) -> Node:
        if len(tree.ops) != 1:
            raise self.fail(tree, "chained comparisons are not part of the language", "write (a < b) & (b < c)")
        kind = type(tree.ops[0]).__name__
        if kind not in COMPARE:
            sign = {"Is": "is", "IsNot": "is not", "In": "in", "NotIn": "not in"}[kind]
            raise self.fail(tree, f"{sign!r} is not part of the language", "it has < <= > >= == !=")
        return self.apply(tree, COMPARE[kind], self.read_all([tree.left, *tree.comparators]))

    def read_IfExp(self, tree: ast.IfExp) -> Node:
        raise self.fail(tree, "'if' is not part of the language", "write where(condition, a, b)")

    def read_Call(self, tree: ast.Call) -> Node:
        if not isinstance(tree.func, ast.Name):
            raise self.fail(tree.func, "functions are called by their plain name", "as in tanh(x), not jnp.tanh(x)")
        name = tree.func.id
        if any(isinstance(a, ast.Starred) for a in tree.args) or any(k.arg is None for k in tree.keywords):
            raise self.fail(tree, "'*' and '**' in a call are not part of the language", "write every argument out")
        if name in SPECIAL:
            made: Node = getattr(self, "call_" + name)(tree)
            return made
        if name in REDUCTIONS:
            return self.reduction(tree, name)
        if name in SCANS:
            return self.scan(tree, name)
        if name in SELECTIONS:
            return self.selection(tree, name)
        internal = self.bound is not None or not name.startswith(
            "_"
        )  # only the language's own formulas may call "_" names
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
        hint = INSTEAD.get(name) or known(name, functions(), "functions")
        raise self.fail(tree.func, f"unknown function {shown(name)}", hint)

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
        value = inner.read(made.body)
        if not value.is_const and value not in inner.bound.values():
            self.graph.calls.setdefault(id(value), Call(made.name, inner.bound))
        return value

    def expanded(self, tree: ast.AST, name: str, value: Node) -> Node:
        """A composite function of one float, called by an operator."""
        bound: dict[str, Node | tuple[str, ...]] = {"x": self.to_float(value)}
        result = Reader(self.scope, bound, self.site or tree).read(prelude()[name].body)
        self.graph.calls.setdefault(id(result), Call(name, bound))
        return result

    def arguments(
        self, tree: ast.Call, params: tuple[str, ...], defaults: tuple[ast.expr | None, ...] = ()
    ) -> dict[str, ast.expr]:
        """The arguments of a call, by the names of the parameters."""
        name = tree.func.id if isinstance(tree.func, ast.Name) else ""
        values: dict[str, str] = {p: f"={ast.unparse(d)}" for p, d in zip(params, defaults, strict=False) if d}
        if params[-1] == "axis" and len(params) > 1:
            values["axis"] = f"={self.scope.example_axis}"
        usage = f"it is {name}({', '.join(p + values.get(p, '') for p in params)})"
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

    # The language's own calls

    def call_cast(self, tree: ast.Call) -> Node:
        given = self.arguments(tree, SPECIAL["cast"])
        dtype = given["dtype"]
        names = [*self.scope.types, *DTYPES]
        if not isinstance(dtype, ast.Name) or dtype.id not in names:
            text = str(dtype.value) if isinstance(dtype, ast.Constant) else ast.unparse(dtype)
            plain = text.rpartition(".")[2]
            hint = f"write {plain}" if plain in names else known(plain, names, "types")
            raise self.fail(dtype, f"{shown(ast.unparse(dtype))} is not a type", hint)
        value = self.read(given["e"])
        kind = DTYPES[dtypes_of(dtype.id, self.scope.types)[0]].kind
        if kind == "bool" and value.kind != "bool":
            raise self.fail(tree, "a number is not cast to bool", "compare it: e != 0")
        self.fitting(given["e"], [value])
        return self.cast(tree, value, dtype.id)

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

    def call_index(self, tree: ast.Call) -> Node:
        axis = self.one_axis(tree, "index")
        return self.graph.node("index", attr=axis, kind="int", dims=(axis,))

    def call_size(self, tree: ast.Call) -> Node:
        """The size of an axis as an int, or the product of several sizes as a float, since it may be large."""
        return self.size(tree, self.axes(self.arguments(tree, SPECIAL["size"])["axis"]))

    def call_shift(self, tree: ast.Call) -> Node:
        given = self.arguments(tree, SPECIAL["shift"], (None, None, ast.Constant(1), ast.Constant(0)))
        value, axes = together([lambda: self.read(given["x"]), lambda: self.axes(given["axis"])])
        if len(axes) != 1 or axes[0] == ROWS:
            raise self.fail(
                given["axis"], "'shift' takes one named axis", f"as in shift(x, axis={self.scope.example_axis})"
            )
        self.along(given["axis"], "shift", axes, value)
        by, fill = self.read(given["by"]), self.read(given["fill"])
        if not by.is_const or by.kind != "int" or not 0 < abs(by.attr) <= FARTHEST:  # type: ignore[arg-type]
            message = f"'shift' goes a whole number of places, at most {FARTHEST}, and not 0"
            raise self.fail(given["by"], message, "as in by=1 for the element before, by=-1 for the next")
        if value.kind == "bool" and fill.is_const and fill.attr in (0, 1):
            fill = self.graph.const(bool(fill.attr))
        if "bool" in (value.kind, fill.kind) and value.kind != fill.kind:
            raise self.fail(
                given["fill"],
                f"'shift' fills {with_article(value.kind)} with another kind",
                "fill with a value of x's kind",
            )
        value, fill = self.same_kind(value, fill)
        try:
            return shift(self.graph, value, axes[0], by.attr, fill)  # type: ignore[arg-type]
        except UserError as error:
            raise Placed(self.site or tree, error) from None

    def call_bits(self, tree: ast.Call) -> Node:
        return self.bits(tree, self.draw(tree))

    def call_uniform(self, tree: ast.Call) -> Node:
        return self.uniform(tree, self.draw(tree))

    def call_bernoulli(self, tree: ast.Call) -> Node:
        given = self.draw(tree)
        p = self.read(given["p"])
        if p.kind == "bool":
            raise self.fail(given["p"], "'bernoulli' takes a number, not a bool", NUMBER)
        return self.apply(tree, "lt", [self.uniform(tree, given), self.cast(tree, self.to_float(p), "float32")])

    def draw(self, tree: ast.Call) -> dict[str, ast.expr]:
        """The arguments of a draw of random numbers: `axes` may be left out."""
        assert isinstance(tree.func, ast.Name)
        return self.arguments(tree, SPECIAL[tree.func.id], (None,) * (len(SPECIAL[tree.func.id]) - 1) + (EVERY_AXIS,))

    def uniform(self, tree: ast.Call, given: dict[str, ast.expr]) -> Node:
        """The upper 23 bits, as a fraction."""
        upper = self.apply(tree, "shr", [self.bits(tree, given), self.graph.const(9)])
        return self.apply(tree, "mul", [self.to_float(upper), self.graph.const(ULP)])

    def bits(self, tree: ast.Call, given: dict[str, ast.expr]) -> Node:
        key, axes = given["key"], self.scope.draw_axes
        array = self.scope.inputs.get(key.id) if isinstance(key, ast.Name) else None
        if array is None or array.axes or array.dtype != "uint32" or array.parts != 2 or array.default is not None:
            raise self.fail(key, "a draw takes a key, an input", "declare key: uint32[2]")
        if given["axes"] is not EVERY_AXIS:
            axes = self.axes(given["axes"])
        if not axes:
            raise self.fail(tree, "a draw has the axes of the first output, which has none", "name some: axes=N")
        self.scope.used.add(array.name)
        words = self.leaf(array, 0), self.leaf(array, 1)
        place = self.graph.node("index", attr=axes[0], kind="int", dims=axes[:1])
        for axis in axes[1:]:
            place = self.apply(tree, "mul", [place, self.size(tree, [axis])])
            place = self.apply(tree, "add", [place, self.graph.node("index", attr=axis, kind="int", dims=(axis,))])
        return self.graph.node("_bits", (*words, place), axes, kind="int", dims=axes)

    def size(self, tree: ast.AST, axes: Iterable[str]) -> Node:
        sizes = [self.graph.node("size", attr=axis, kind="int", dims=()) for axis in axes]
        if len(sizes) == 1:
            return sizes[0]
        return functools.reduce(lambda a, b: self.apply(tree, "mul", [a, b]), map(self.to_float, sizes))

    def one_axis(self, tree: ast.Call, name: str) -> str:
        axes = self.axes(self.arguments(tree, SPECIAL[name])["axis"])
        if len(axes) != 1 or axes[0] == ROWS:
            call = f"{name}(N)"
            if isinstance(self.site, ast.Call) and isinstance(self.site.func, ast.Name):
                name = self.site.func.id
                call = f"{name}(x, axis=N)"
            raise self.fail(tree, f"{name!r} takes one named axis", f"as in {call}")
        return axes[0]

    def call_take(self, tree: ast.Call) -> Node:
        given = self.arguments(tree, SPECIAL["take"])
        axes = self.axes(given["axis"])
        table, place = self.read_all([given["table"], given["i"]])
        if table.op != "input" or place.kind != "int":
            hint = "as in take(cos, positions, axis=P); cast(e, int32) makes an integer"
            raise self.fail(tree, "'take' gathers from an input by integers", hint)
        assert isinstance(table.attr, Leaf)
        if self.scope.inputs[table.attr.name].default is not None:
            message = f"'take' needs arrays that are always there, and {table.attr.name!r} has a default"
            raise self.fail(given["table"], message, "delete the default")
        if len(axes) != 1 or axes[0] == ROWS or axes[0] not in table.dims:
            has = f"it has {', '.join(table.dims)}" if table.dims else "it is a scalar"
            raise self.fail(given["axis"], "'take' gathers along one named axis of its table", has)
        dims = set(table.dims) - set(axes) | set(place.dims)
        if isinstance(place.attr, Leaf) and place.attr.part is None:
            if self.scope.inputs[place.attr.name].default is None:
                return self.graph.node("take", (table, place), axes[0], kind=table.kind, dims=dims)
        if ROWS in table.dims:
            message = f"'take' by a computed index needs a table without '...', and {table.attr.name!r} has it"
            raise self.fail(given["table"], message, "name its axes")
        others = [axis for axis in table.dims if axis != axes[0]]
        places = [self.graph.node("index", attr=axis, kind="int", dims=(axis,)) for axis in others]
        return self.graph.node("pick", (table, place, *places), axes[0], kind=table.kind, dims=dims)

    def call_put(self, tree: ast.Call) -> Node:
        raise self.fail(
            tree, "'put' gives an output, and nothing else uses it", "as in y = put(cache, value, i, axis=P)"
        )

    def put(self, tree: ast.Call, output: Array) -> tuple[Put, Node]:
        """Where `output = put(...)` writes, and the value that it writes there."""
        given = self.arguments(tree, SPECIAL["put"], (None, None, None, None, ast.Name("set")))
        how = given["how"].id if isinstance(given["how"], ast.Name) else ""
        if how not in WAYS or (how != "set" and output.dtype != "int32"):
            hint = (
                "sums and extremes are of int32, whatever the order of threads"
                if how in WAYS
                else known(how, WAYS, "there are")
            )
            raise self.fail(given["how"], f"'put' does not take how={ast.unparse(given['how'])} for {output}", hint)
        axes = self.axes(given["axis"])
        table, place, value = self.read_all([given["table"], given["i"], given["value"]])
        for argument, node in (("table", table), ("i", place)):
            leaf = node.attr if node.op == "input" else None
            array = self.scope.inputs[leaf.name] if isinstance(leaf, Leaf) else None
            whole = array is not None and array.parts is None and array.default is None
            if not whole or (argument == "i" and place.kind != "int"):
                hint = "as in put(cache, value, slots, axis=P)"
                raise self.fail(given[argument], "'put' writes into an input at an integer input's places", hint)
        assert isinstance(table.attr, Leaf) and isinstance(place.attr, Leaf)
        array = self.scope.inputs[table.attr.name]
        if (array.dtype, array.dims) != (output.dtype, output.dims):
            message = f"{output.name!r} is {output}, but 'put' writes into {array.name!r}, {array}"
            raise self.fail(tree, message, f"declare {output.name!r} as {array}")
        if len(axes) != 1 or axes[0] == ROWS or axes[0] not in array.axes or axes[0] in place.dims:
            hint = f"{array.name!r} has {', '.join(array.axes)}, and the index {', '.join(place.dims) or 'no axes'}"
            raise self.fail(
                given["axis"], "'put' writes along one named axis of its table, which its index lacks", hint
            )
        return Put(array.name, place.attr.name, axes[0], how), value

    def reduction(self, tree: ast.Call, name: str) -> Node:
        if name in ("max", "min") and len(tree.args) == 2 and not tree.keywords and not self.is_axis(tree.args[1]):
            hint = f"of two values, write {name}imum(a, b)"
            raise self.fail(tree, f"{name!r} reduces along an axis: {name}(e, axis={self.scope.example_axis})", hint)
        given = self.arguments(tree, ("e", "axis"))
        value, axes = together([lambda: self.read(given["e"]), lambda: self.axes(given["axis"])])
        if self.derived and name == "sum" and (same := [axis for axis in axes if axis not in value.dims]):
            return self.sum_of_same(tree, value, axes, same)
        self.along(given["axis"], name, axes, value)
        rule = REDUCTIONS[name][0]
        if rule == "logic" and value.kind != "bool":
            raise self.fail(
                tree, f"{name!r} takes a bool, not {with_article(value.kind)}", "compare first, as in x > 0"
            )
        if rule != "logic" and value.kind == "bool":
            raise self.fail(tree, f"{name!r} takes numbers, not a bool", "write where(condition, 1, 0)")
        if rule == "float":
            value = self.to_float(value)
        dims = [d for d in value.dims if d not in axes]
        return self.graph.node(name, (value,), self.graph.order(axes), kind=value.kind, dims=dims)

    def scan(self, tree: ast.Call, name: str) -> Node:
        """A value that has the axis along which it is computed: its dims are those of all operands."""
        operands = SCANS[name]
        params = (*operands, "axis", "reverse", "before") if name != "scan" else _SCAN
        defaults = tuple(_DEFAULTS.get(p) for p in params)
        given = self.arguments(tree, params, defaults)
        *found, axes = together(
            [*(functools.partial(self.read, given[o]) for o in operands), lambda: self.axes(given["axis"])]
        )
        if len(axes) != 1 or axes[0] == ROWS:
            raise self.fail(
                given["axis"], f"{name!r} runs along one named axis", f"as in axis={self.scope.example_axis}"
            )
        for operand, value in zip(operands, found, strict=True):
            if value.kind != "float" and not value.is_const:
                hint = "write where(condition, 1.0, 0.0)" if value.kind == "bool" else "write 1.0 * value"
                raise self.fail(given[operand], f"{name!r} takes floats, not {with_article(value.kind)}", hint)
        values = [self.to_float(v) for v in found]
        if name == "scan" and axes[0] in values[2].dims:
            message = f"'initial' has the axis {axes[0]}, along which 'scan' runs"
            raise self.fail(given["initial"], message, "it is the state before the first element")
        dims = {d for v in values for d in v.dims}
        if axes[0] not in dims:
            has = f"they vary along {', '.join(self.graph.order(dims))}" if dims else "they are scalars"
            raise self.fail(given["axis"], f"{name!r} along {axes[0]}, which its arguments do not have", has)
        along = Along(axes[0], self.flag(given["reverse"]), self.flag(given["before"]))
        return self.graph.node(name, tuple(values), along, kind="float", dims=dims)

    def flag(self, tree: ast.expr) -> bool:
        word = tree.value if isinstance(tree, ast.Constant) else getattr(tree, "id", None)
        if word not in (True, False, "true", "false") or (isinstance(word, int) and not isinstance(word, bool)):
            raise self.fail(tree, "it is true or false, known when the kernel is built", "as in reverse=true")
        return word in (True, "true")

    def selection(self, tree: ast.Call, name: str) -> Node:
        """The largest elements along an axis, in order, or their positions."""
        given = self.arguments(tree, ("x", "k", "axis"))
        value, axes = together([lambda: self.read(given["x"]), lambda: self.axes(given["axis"])])
        if len(axes) != 1 or axes[0] == ROWS:
            raise self.fail(given["axis"], f"{name!r} selects along one named axis", f"as in {name}(x, K, axis=N)")
        self.along(given["axis"], name, axes, value)
        if value.kind == "bool":
            raise self.fail(tree, f"{name!r} takes numbers, not a bool", "write where(condition, 1, 0)")
        hint = f"declare an output with it, as in T[..., K=8], and write {name}(x, K, axis={axes[0]})"
        into = given["k"].id if isinstance(given["k"], ast.Name) else None
        if into is None or into not in self.scope.sizes:
            raise self.fail(given["k"], f"{name!r} needs an axis of a fixed size for its results", hint)
        if into in value.dims:
            raise self.fail(given["k"], f"the argument of {name!r} has the axis {into} already", hint)
        dims = {*value.dims, into} - set(axes)
        attr = Selected(axes[0], into, self.scope.sizes[into])
        return self.graph.node(name, (value,), attr, kind=SELECTIONS[name] or value.kind, dims=dims)

    def sum_of_same(self, tree: ast.AST, value: Node, axes: tuple[str, ...], same: list[str]) -> Node:
        """A sum along axes, of which the value lacks the `same`: there it is multiplied by their size."""
        value = self.apply(tree, "mul", [value, self.size(tree, same)])
        rest = [axis for axis in axes if axis not in same]
        dims = [d for d in value.dims if d not in rest]
        return self.graph.node("sum", (value,), self.graph.order(rest), kind="float", dims=dims) if rest else value

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

    # Operations

    def call_dot(self, tree: ast.Call) -> Node:
        given = self.arguments(tree, SPECIAL["dot"])
        axes = self.axes(given["axis"])
        left, right = self.read_all([given["a"], given["b"]])
        for value in (left, right):
            self.along(given["axis"], "dot", axes, value)
        return self.contract(tree, left, right, axes)

    def contract(self, tree: ast.AST, left: Node, right: Node, axes: tuple[str, ...] = ()) -> Node:
        """A matrix product over some axes, or over the one that `@` contracts. Its other axes are those of both sides."""
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

    def power(self, tree: ast.BinOp, base: Node, exponent: Node) -> Node:
        if "bool" in (base.kind, exponent.kind):
            raise self.fail(tree, "'**' takes numbers, not a bool", "write where(condition, 1, 0) for the bool")
        parts = topological([exponent])
        if not exponent.is_const and all(n.args or n.is_const or n.op == "param" for n in parts):
            return self.fold(tree, "pow", [self.to_float(base), self.to_float(exponent)])
        if not exponent.is_const:
            hint = "write exp2(x)" if base.is_const and base.attr == 2 else "where a > 0, write exp(b * log(a))"
            raise self.fail(tree.right, "the exponent must be made of numbers and parameters", hint)
        n = exponent.attr
        assert isinstance(n, int | float)
        if not abs(n) <= MAX_EXPONENT:
            raise self.fail(
                tree.right, f"the exponent must be from -{MAX_EXPONENT} to {MAX_EXPONENT}", "write exp(b * log(a))"
            )
        if n == 0 and not base.is_const:
            raise self.fail(tree, "the power 0 of anything is 1", "write 1")
        if n == 0.5:
            return self.apply(tree, "sqrt", [base]) if base.is_const else self.expanded(tree, "_half_power", base)
        if n != int(n):
            return self.apply(tree, "pow", [base, exponent])
        if isinstance(n, float):
            base = self.to_float(base)
        if (
            n < 0
        ):  # a power of the reciprocal: the derivative of a power's reciprocal would overflow before x ** (n - 1) does
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

    def apply(self, tree: ast.AST, name: str, args: list[Node]) -> Node:
        """An operation of the table. The kinds of its arguments are checked, and numbers are brought to one kind."""
        op, kinds = OPS[name], [a.kind for a in args]
        sign = repr(op.jnp.replace("{0}", "").replace("{1}", "").strip() if name in OPERATORS else name)
        if op.rule == "whole" or (op.rule == "bits" and "int" in kinds):
            if set(kinds) != {"int"}:
                other = next(k for k in kinds if k != "int")
                hint = NUMBER if other == "bool" else FOR_FLOATS.get(name, WHOLE)
                raise self.fail(tree, f"{sign} takes integers, not {with_article(other)}", hint)
            return self.fold(tree, name, args)
        if op.rule in ("logic", "bits") or (name in ("eq", "ne") and kinds == ["bool", "bool"]):
            if set(kinds) != {"bool"}:
                other = next(k for k in kinds if k != "bool")
                raise self.fail(
                    tree, f"{sign} takes bools, not {with_article(other)}", "compare first, as in (x > 0) & (x < 1)"
                )
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


def part_names(array: Array) -> str:
    count = array.parts or 0
    names = [f"{array.name}[{i}]" for i in range(count)]
    return f"its parts are {', '.join(names if count <= 4 else [*names[:2], '...', names[-1]])}"


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
