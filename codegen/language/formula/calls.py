"""The functions that formulas call with named arguments: a table of their parameters, and how each makes its node."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from codegen.errors import known, shown
from codegen.graph.nodes import DTYPES, ROWS, Along, Leaf, Node, Put, Selected, axes_text, dtypes_of
from codegen.graph.ops import NUCLEUS, OPERATORS, OPS, REDUCTIONS, SCANS, SELECTIONS, SORTS, TAKES, UNSORT
from codegen.graph.shifting import shift
from codegen.language.formula.operations import NUMBER, Operations, with_article
from codegen.language.formula.taken import computed_at, within
from codegen.language.prelude import prelude
from codegen.language.statements import together
from codegen.spec.notation import known_type
from codegen.spec.spec import Array

Drawn = TypeVar("Drawn")
Given: TypeAlias = Mapping[str, ast.expr]  # the arguments of a call, by the names of the parameters

FARTHEST = 1024  # places that `shift` reaches
EVERY_AXIS = ast.Constant(None)  # a draw's axes where a call names none
WIDTHS = {"uint8": 8, "uint16": 16, "uint32": 32}  # bits of a draw
# Uniform numbers as jax.random makes them: the lowest bits of a draw, and how many of these, from the top, are the fraction
FRACTIONS = {"bfloat16": (8, 7), "float16": (16, 10), "float32": (32, 23)}
WAYS = ("set", "add", "max", "min")  # of `put`


@dataclass(frozen=True)
class Form:
    """A function: its parameters, and the value of a call."""

    node: Callable[[Operations, ast.Call, Given], Node]
    params: tuple[str, ...]
    defaults: Given = field(default_factory=dict)

    def arguments(self, own: Operations, tree: ast.Call) -> Given:
        return own.arguments(tree, self.params, tuple(map(self.defaults.get, self.params)))

    def read(self, own: Operations, tree: ast.Call) -> Node:
        tree = _with_axis(own, tree) if "k" in self.params else tree
        return self.node(own, tree, self.arguments(own, tree))


def called(tree: ast.Call) -> str:
    """The name of the function that is called."""
    return tree.func.id if isinstance(tree.func, ast.Name) else ""


def _cast(own: Operations, tree: ast.Call, given: Given) -> Node:
    dtype = given["dtype"]
    names = [*own.scope.types, *DTYPES]
    if not isinstance(dtype, ast.Name) or dtype.id not in names:
        text = str(dtype.value) if isinstance(dtype, ast.Constant) else ast.unparse(dtype)
        plain = text.rpartition(".")[2]
        hint = f"write {plain}" if plain in names else known_type(plain, own.scope.types)
        raise own.fail(dtype, f"{shown(ast.unparse(dtype))} is not a type", hint)
    value = own.read(given["e"])
    kind = DTYPES[dtypes_of(dtype.id, own.scope.types)[0]].kind
    if kind == "bool" and value.kind != "bool":
        raise own.fail(tree, "a number is not cast to bool", "compare it: e != 0")
    own.fitting(given["e"], [value])
    return own.cast(tree, value, dtype.id)


def _index(own: Operations, tree: ast.Call, given: Given) -> Node:
    """The position along an axis; in a function of the prelude also along several axes, as if they were one."""
    axes = own.axes(given["axis"])
    inside = isinstance(own.site, ast.Call)  # within a function of the prelude, which the user calls
    if ROWS in axes or (len(axes) != 1 and not inside):
        name = called(own.site) if isinstance(own.site, ast.Call) else "index"
        count, written = ("named axes", f"{name}(x, axis=N)") if inside else ("one named axis", "index(N)")
        raise own.fail(tree, f"{name!r} takes {count}", f"as in {written}")
    return _position(own, tree, axes)


def _position(own: Operations, tree: ast.Call, axes: Sequence[str]) -> Node:
    """The position along an axis, or along several as if they were one."""
    places = [own.graph.node("index", attr=axis, kind="int", dims=(axis,)) for axis in own.graph.order(axes)]
    found = places[0]
    for place in places[1:]:
        found = own.apply(tree, "mul", [found, own.size(tree, [str(place.attr)])])
        found = own.apply(tree, "add", [found, place])
    return found


def _end(own: Operations, tree: ast.Call, given: Given) -> Node:
    """The position after the last one along some axes, an int."""
    sizes = [own.size(tree, [axis]) for axis in own.axes(given["axis"])]
    return functools.reduce(lambda a, b: own.apply(tree, "mul", [a, b]), sizes)


def _size(own: Operations, tree: ast.Call, given: Given) -> Node:
    """The size of an axis as an int, or the product of several sizes as a float, since it may be large."""
    return own.size(tree, own.axes(given["axis"]))


def _take(own: Operations, tree: ast.Call, given: Given) -> Node:
    axes = own.axes(given["axis"])
    table, place = own.read_all([given["table"], given["i"]])
    # Only the place may have axes of a few elements, such as those of `top_k_index`: each position along them picks an element
    own_rows = {*place.dims} <= {*table.dims, *own.scope.sizes}
    if table.op == "input" and place.kind == "int" and (len(axes) == 1 or not own_rows):
        return _taken_from_input(own, tree, given, table, place, axes, own_rows)
    if table.op not in TAKES and place.kind == "int" and {*axes} <= {*table.dims}:
        if own_rows:
            return _taken_by_sum(own, tree, table, place, axes)
        if len(axes) == 1 and axes[0] != ROWS and not {*axes} & {*place.dims}:
            take = functools.partial(_taken_from_input, own, tree, given, place=place, axes=axes, own_rows=False)
            if (found := computed_at(own.graph, table, axes[0], place, take)) is not None:
                return found
    raise own.fail(tree, *_no_table(table, place, axes))


def _taken_from_input(
    own: Operations, tree: ast.Call, given: Given, table: Node, place: Node, axes: tuple[str, ...], own_rows: bool
) -> Node:
    assert isinstance(table.attr, Leaf)
    if own.scope.inputs[table.attr.name].default is not None:
        message = f"'take' needs arrays that are always there, and {table.attr.name!r} has a default"
        raise own.fail(given["table"], message, "delete the default")
    if len(axes) != 1 or axes[0] == ROWS or axes[0] not in table.dims:
        has = f"it has {', '.join(table.dims)}" if table.dims else "it is a scalar"
        raise own.fail(given["axis"], "'take' gathers along one named axis of its table", has)
    dims = set(table.dims) - set(axes) | set(place.dims)
    if isinstance(place.attr, Leaf) and place.attr.part is None:
        if own.scope.inputs[place.attr.name].default is None:
            return own.graph.node("take", (table, place), axes[0], kind=table.kind, dims=dims)
    if ROWS in table.dims:
        if own_rows and not {*place.dims} & {*axes}:
            return _taken_by_sum(own, tree, table, place, axes)
        message = f"'take' by a computed index needs a table without '...', and {table.attr.name!r} has it"
        raise own.fail(given["table"], message, "name its axes")
    others = [axis for axis in table.dims if axis != axes[0]]
    places = [own.graph.node("index", attr=axis, kind="int", dims=(axis,)) for axis in others]
    return own.graph.node("pick", (table, place, *places), axes[0], kind=table.kind, dims=dims)


def _no_table(table: Node, place: Node, axes: Sequence[str]) -> tuple[str, str]:
    """What is wrong with the first two arguments of a `take`, and what to write."""
    if table.op in TAKES:
        hint = "a table of two indices has one axis for both, which is reshaped: take(t, i * columns + j, axis=N)"
    elif place.kind != "int":
        hint = "as in take(cos, positions, axis=P); cast(e, int32) makes an integer"
    elif len(axes) == 1 and axes[0] in table.dims and axes[0] not in place.dims:
        others = ", ".join(d for d in place.dims if d not in table.dims)
        message = f"'take' of this value takes an index without axes of its own, and the index has {others}"
        return message, f"along a short axis, write sum(where(index({axes[0]}) == i, value, 0), axis={axes[0]})"
    else:
        hint = "the table is an input, or a value with this axis, which the index lacks"
    return "'take' gathers from an input by integers", hint


def _taken_by_sum(own: Operations, tree: ast.Call, value: Node, place: Node, axes: tuple[str, ...]) -> Node:
    """The elements of a value at places in its own rows: sums in which at most one term is not 0."""
    if ROWS in axes or {*axes} & {*place.dims} or value.kind == "bool":
        hint = "as in take(log_softmax(x, axis=N), label, axis=N), where label lacks N"
        if len(axes) == 1 and axes[0] != ROWS and axes[0] in place.dims:
            hint = f"where the index has each position once, write unsort(value, argsort(i, axis={axes[0]}), axis={axes[0]})"
        raise own.fail(tree, "'take' of a computed value gathers numbers along named axes", hint)
    own_place = within(own.graph, axes, place)
    position = _position(own, tree, axes)
    zero = own.graph.const(0 if value.kind == "int" else 0.0)
    terms = own.apply(tree, "where", [own.apply(tree, "eq", [position, own_place]), value, zero])
    dims = [d for d in terms.dims if d not in axes]
    return own.graph.node("sum", (terms,), own.graph.order(axes), kind=value.kind, dims=dims)


def _put(own: Operations, tree: ast.Call, given: Given) -> Node:
    raise own.fail(tree, "'put' must be all of an output's right-hand side", "as in y = put(cache, value, i, axis=P)")


def put(own: Operations, tree: ast.Call, output: Array) -> tuple[Put, Node]:
    """Where `output = put(...)` writes, and the value that it writes there."""
    given = FORMS["put"].arguments(own, tree)
    how = given["how"].id if isinstance(given["how"], ast.Name) else ""
    ordered = how in WAYS[1:] and own.scope.kind(output) == "float"
    if how not in WAYS or (how != "set" and output.dtype != "int32" and not ordered):
        hint = (
            "add, max and min take int32 and floats: then the result does not depend on the order of threads"
            if how in WAYS
            else known(how, WAYS, "there are")
        )
        raise own.fail(given["how"], f"'put' does not take how={ast.unparse(given['how'])} for {output}", hint)
    axes = own.axes(given["axis"])
    table, place, value = own.read_all([given["table"], given["i"], given["value"]])
    for argument, node in (("table", table), ("i", place)):
        leaf = node.attr if node.op == "input" else None
        array = own.scope.inputs[leaf.name] if isinstance(leaf, Leaf) else None
        whole = array is not None and array.parts is None and array.default is None
        if not whole or (argument == "i" and place.kind != "int"):
            apart = argument == "table" and array is not None and array.parts is not None
            hint = "declare it without parts: shift reads the other one of a pair, or the other half of an axis of a fixed size"
            hint = hint if apart else "as in put(cache, value, slots, axis=P)"
            words = "'put' writes into an input without parts" if apart else "'put' writes into an input"
            raise own.fail(given[argument], f"{words}, at the indices in an integer input", hint)
    assert isinstance(table.attr, Leaf) and isinstance(place.attr, Leaf)
    array = own.scope.inputs[table.attr.name]
    if (array.dtype, array.dims) != (output.dtype, output.dims):
        message = f"{output.name!r} is {output}, but 'put' writes into {array.name!r}, {array}"
        raise own.fail(tree, message, f"declare {output.name!r} as {array}")
    if len(axes) != 1 or axes[0] == ROWS or axes[0] not in array.axes or axes[0] in place.dims:
        hint = f"{array.name!r} has {', '.join(array.axes)}, and the index {', '.join(place.dims) or 'no axes'}"
        raise own.fail(given["axis"], "'put' writes along one named axis of its table, which its index lacks", hint)
    return Put(array.name, place.attr.name, axes[0], how, ordered), value


def _shift(own: Operations, tree: ast.Call, given: Given) -> Node:
    value, axes = together([lambda: own.read(given["x"]), lambda: own.axes(given["axis"])])
    if len(axes) != 1 or axes[0] == ROWS:
        raise own.fail(given["axis"], "'shift' takes one named axis", f"as in shift(x, axis={own.scope.example_axis})")
    own.along(given["axis"], "shift", axes, value)
    by, fill = own.read(given["by"]), own.read(given["fill"])
    if not by.is_const or by.kind != "int" or not 0 < abs(by.attr) <= FARTHEST:  # type: ignore[arg-type]
        message = f"'shift' goes a whole number of places, at most {FARTHEST}, and not 0"
        raise own.fail(given["by"], message, "as in by=1 for the element before, by=-1 for the next")
    if value.kind == "bool" and fill.is_const and fill.attr in (0, 1):
        fill = own.graph.const(bool(fill.attr))
    if "bool" in (value.kind, fill.kind) and value.kind != fill.kind:
        raise own.fail(
            given["fill"],
            f"'shift' fills {with_article(value.kind)} with another kind",
            "fill with a value of x's kind",
        )
    value, fill = own.same_kind(value, fill)
    return shift(own.graph, value, axes[0], by.attr, fill)  # type: ignore[arg-type]


def _bernoulli(own: Operations, tree: ast.Call, given: Given) -> Node:
    p = own.read(given["p"])
    if p.kind == "bool":
        raise own.fail(given["p"], "'bernoulli' takes a number, not a bool", NUMBER)
    limit = own.cast(tree, own.to_float(p), "float32")
    if limit.dims:
        return own.apply(tree, "lt", [_uniform(own, tree, given), limit])
    # One limit for all: it is made an integer once, and no draw a float
    limit = own.apply(tree, "ceil", [own.apply(tree, "mul", [limit, own.graph.const(2.0 ** FRACTIONS["float32"][1])])])
    return own.apply(tree, "lt", [_upper(own, tree, given)[0], own.cast(tree, limit, "int32")])


def _normal(own: Operations, tree: ast.Call, given: Given) -> Node:
    return own.expanded(tree, "_normal_of", _uniform(own, tree, given))


def _uniform(own: Operations, tree: ast.Call, given: Given) -> Node:
    """The upper bits of a draw, as a fraction."""
    upper, digits = _upper(own, tree, given)
    return own.apply(tree, "mul", [own.to_float(upper), own.graph.const(2.0**-digits)])


def _upper(own: Operations, tree: ast.Call, given: Given) -> tuple[Node, int]:
    """The upper bits of a draw, and how many they are."""
    width, digits = _drawn_type(own, given, FRACTIONS)
    return own.apply(tree, "shr", [_lowest(own, tree, given, width), own.graph.const(width - digits)]), digits


def _narrow_bits(own: Operations, tree: ast.Call, given: Given) -> Node:
    return _lowest(own, tree, given, _drawn_type(own, given, WIDTHS))


def _lowest(own: Operations, tree: ast.Call, given: Given, width: int) -> Node:
    """The lowest bits of a draw of 32."""
    drawn = _bits(own, tree, given)
    return drawn if width == 32 else own.apply(tree, "and", [drawn, own.graph.const(2**width - 1)])


def _drawn_type(own: Operations, given: Given, types: Mapping[str, Drawn]) -> Drawn:
    dtype = given.get("dtype", ast.Name(list(types)[-1]))
    if not isinstance(dtype, ast.Name) or dtype.id not in types:
        message = f"{shown(ast.unparse(dtype))} is not a type of these random numbers"
        raise own.fail(dtype, message, f"it is {', '.join(list(types)[:-1])} or {list(types)[-1]}")
    return types[dtype.id]


def _bits(own: Operations, tree: ast.Call, given: Given) -> Node:
    key, axes = given["key"], own.scope.draw_axes
    array = own.scope.inputs.get(key.id) if isinstance(key, ast.Name) else None
    if array is None or array.axes or array.dtype != "uint32" or array.parts != 2 or array.default is not None:
        raise own.fail(key, "a draw takes a key, an input", "declare key: uint32[2]")
    if given["axes"] is not EVERY_AXIS:
        axes = own.axes(given["axes"])
    if not axes:
        raise own.fail(tree, "a draw has the axes of the first output, which has none", "name some: axes=N")
    own.scope.used.add(array.name)
    words = own.leaf(array, 0), own.leaf(array, 1)
    place = own.graph.node("index", attr=axes[0], kind="int", dims=axes[:1])
    for axis in axes[1:]:
        place = own.apply(tree, "mul", [place, own.size(tree, [axis])])
        place = own.apply(tree, "add", [place, own.graph.node("index", attr=axis, kind="int", dims=(axis,))])
    return own.graph.node("_bits", (*words, place), axes, kind="int", dims=axes)


def _reduction(own: Operations, tree: ast.Call, given: Given) -> Node:
    name = called(tree)
    if name in ("max", "min") and len(tree.args) == 2 and not tree.keywords and not own.is_axis(tree.args[1]):
        hint = f"of two values, write {name}imum(a, b)"
        raise own.fail(tree, f"{name!r} reduces along an axis: {name}(e, axis={own.scope.example_axis})", hint)
    value, axes = together([lambda: own.read(given["e"]), lambda: own.axes(given["axis"])])
    if own.derived and name == "sum" and (same := [axis for axis in axes if axis not in value.dims]):
        return _sum_of_same(own, tree, value, axes, same)
    own.along(given["axis"], name, axes, value)
    rule = REDUCTIONS[name].rule
    if rule == "logic" and value.kind != "bool":
        raise own.fail(tree, f"{name!r} takes a bool, not {with_article(value.kind)}", "compare first, as in x > 0")
    if name in ("sum", "mean") and value.kind == "bool":  # they count, as jnp's do
        value = own.apply(tree, "where", [value, own.graph.const(1), own.graph.const(0)])
    if rule != "logic" and value.kind == "bool":
        raise own.fail(tree, f"{name!r} takes numbers, not a bool", "write where(condition, 1, 0)")
    if rule == "float":
        value = own.to_float(value)
    dims = [d for d in value.dims if d not in axes]
    return own.graph.node(name, (value,), own.graph.order(axes), kind=value.kind, dims=dims)


def _sum_of_same(own: Operations, tree: ast.AST, value: Node, axes: tuple[str, ...], same: list[str]) -> Node:
    """A sum along axes. The value lacks the axes `same`, so that it is multiplied by their size."""
    value = own.apply(tree, "mul", [value, own.size(tree, same)])
    rest = [axis for axis in axes if axis not in same]
    dims = [d for d in value.dims if d not in rest]
    return own.graph.node("sum", (value,), own.graph.order(rest), kind="float", dims=dims) if rest else value


def _scan(own: Operations, tree: ast.Call, given: Given) -> Node:
    """A value that has the axis along which it is computed: it has the axes of all operands."""
    name = called(tree)
    operands = SCANS[name]
    *found, axes = together(
        [*(functools.partial(own.read, given[o]) for o in operands), lambda: own.axes(given["axis"])]
    )
    if len(axes) != 1 or axes[0] == ROWS:
        raise own.fail(given["axis"], f"{name!r} runs along one named axis", f"as in axis={own.scope.example_axis}")
    for operand, value in zip(operands, found, strict=True):
        if value.kind != "float" and not value.is_const:
            hint = "write where(condition, 1.0, 0.0)" if value.kind == "bool" else "write 1.0 * value"
            raise own.fail(given[operand], f"{name!r} takes floats, not {with_article(value.kind)}", hint)
    values = [own.to_float(v) for v in found]
    if name == "scan" and axes[0] in values[2].dims:
        message = f"'initial' has the axis {axes[0]}, along which 'scan' runs"
        raise own.fail(given["initial"], message, "it is the state before the first element")
    dims = {d for v in values for d in v.dims}
    if axes[0] not in dims:
        has = f"they vary along {', '.join(own.graph.order(dims))}" if dims else "they are scalars"
        raise own.fail(given["axis"], f"{name!r} along {axes[0]}, which its arguments do not have", has)
    along = Along(axes[0], _flag(own, given["reverse"]), _flag(own, given["before"]))
    return own.graph.node(name, tuple(values), along, kind="float", dims=dims)


def _flag(own: Operations, tree: ast.expr) -> bool:
    word = tree.value if isinstance(tree, ast.Constant) else getattr(tree, "id", None)
    if word not in (True, False, "true", "false") or (isinstance(word, int) and not isinstance(word, bool)):
        raise own.fail(tree, "it is true or false, known when the kernel is built", "as in reverse=true")
    return word in (True, "true")


def _with_axis(own: Operations, tree: ast.Call) -> ast.Call:
    """A call `top_k(x, K=8, axis=N)` as `top_k(x, k=K, axis=N)`."""
    keywords = list(tree.keywords)
    for i, given in enumerate(keywords):
        if given.arg is None or given.arg not in own.scope.axes or not isinstance(given.value, ast.Constant):
            continue
        if given.value.value != (size := own.scope.sizes.get(given.arg)):
            message = f"the axis {given.arg} has " + (f"the size {size}" if size else "no fixed size")
            raise own.fail(given, message, "give the axis of the results another name")
        keywords[i] = ast.copy_location(ast.keyword("k", ast.Name(given.arg)), given)
    return ast.copy_location(ast.Call(tree.func, tree.args, keywords), tree)


def _selection(own: Operations, tree: ast.Call, given: Given) -> Node:
    """The largest elements along an axis, in order, or their positions."""
    name = called(tree)
    value, axes = together([lambda: own.read(given["x"]), lambda: own.axes(given["axis"])])
    if ROWS in axes:
        raise own.fail(given["axis"], f"{name!r} selects along named axes", f"as in {name}(x, K, axis=N)")
    own.along(given["axis"], name, axes, value)
    if value.kind == "bool":
        raise own.fail(tree, f"{name!r} takes numbers, not a bool", "write where(condition, 1, 0)")
    axes = own.graph.order(axes)
    hint = f"write {name}(x, K=8, axis={axes_text(axes)})"
    into = given["k"].id if isinstance(given["k"], ast.Name) else None
    if into is None or into not in own.scope.sizes:
        raise own.fail(given["k"], f"{name!r} needs an axis of a fixed size for its results", hint)
    if into in value.dims:
        raise own.fail(given["k"], f"the argument of {name!r} has the axis {into} already", hint)
    dims = {*value.dims, into} - set(axes)
    attr = Selected(axes, into, own.scope.sizes[into])
    return own.graph.node(name, (value,), attr, kind=SELECTIONS[name] or value.kind, dims=dims)


def _sort(own: Operations, tree: ast.Call, given: Given) -> Node:
    """The elements along an axis, smallest first, or their positions."""
    name = called(tree)
    value, axes = together([lambda: own.read(given["x"]), lambda: own.axes(given["axis"])])
    if len(axes) != 1 or axes[0] == ROWS:
        raise own.fail(given["axis"], f"{name!r} sorts along one named axis", f"as in {name}(x, axis=N)")
    own.along(given["axis"], name, axes, value)
    if value.kind == "bool":
        raise own.fail(tree, f"{name!r} takes numbers, not a bool", NUMBER)
    attr = Selected(axes, axes[0], 0)
    return own.graph.node(name, (value,), attr, kind=SORTS[name] or value.kind, dims=value.dims)


def _unsort(own: Operations, tree: ast.Call, given: Given) -> Node:
    """The elements along an axis, each at its position."""
    value, places = own.read_all([given["x"], given["places"]])
    axes = own.axes(given["axis"])
    hint = "as in unsort(x, argsort(score, axis=N), axis=N)"
    leaf = places.attr if isinstance(places.attr, Leaf) and places.attr.part is None else None
    held = places.op == "argsort" or (leaf is not None and own.scope.inputs[leaf.name].default is None)
    if len(axes) != 1 or places.kind != "int" or not held:
        raise own.fail(given["places"], "'unsort' takes the result of an argsort, or an integer input", hint)
    own.along(given["axis"], "unsort", axes, places)
    if value.kind == "bool" or value.dims != places.dims:
        message = f"'unsort' takes numbers along {', '.join(places.dims)}, as the positions are"
        raise own.fail(
            given["x"], message, f"it is {with_article(value.kind)} along {', '.join(value.dims) or 'no axis'}"
        )
    attr = Selected(axes, axes[0], 0)
    return own.graph.node(UNSORT, (value, places), attr, kind=value.kind, dims=value.dims)


def _nucleus(own: Operations, tree: ast.Call, given: Given) -> Node:
    """The least of the largest elements along an axis that sum to a mass."""
    value, mass = own.read_all([given["x"], given["mass"]])
    axes = own.axes(given["axis"])
    if len(axes) != 1 or axes[0] == ROWS:
        raise own.fail(given["axis"], "'nucleus' is of elements along one named axis", "as in nucleus(p, 0.9, axis=N)")
    own.along(given["axis"], "nucleus", axes, value)
    rest = tuple(a for a in value.dims if a != axes[0])
    leaf = mass.attr if mass.op == "input" else None
    array = own.scope.inputs[leaf.name] if isinstance(leaf, Leaf) and leaf.part is None else None
    of_rows = array is not None and array.default is None and array.axes == rest
    if value.kind != "float" or not (of_rows or mass.is_const or mass.op == "param") or mass.kind == "bool":
        along = f"along {', '.join(rest)}" if rest else "without axes"
        hint = f"mass is a number, a parameter, or an input {along}"
        raise own.fail(tree, "'nucleus' takes floats, and a mass for each row", hint)
    mass = own.to_float(mass)
    if mass.op == "float":
        raise own.fail(given["mass"], "the mass of 'nucleus' is a float", "declare it as one")
    return own.graph.node(NUCLEUS, (value, mass), Selected(axes, "", 0), kind="float", dims=rest)


def _dot(own: Operations, tree: ast.Call, given: Given) -> Node:
    axes = own.axes(given["axis"])
    left, right = own.read_all([given["a"], given["b"]])
    for value in (left, right):
        own.along(given["axis"], "dot", axes, value)
    return own.contract(tree, left, right, axes)


DRAWN: Given = {"axes": EVERY_AXIS}
DIRECTION: Given = {"reverse": ast.Constant(False), "before": ast.Constant(False)}
OWN = {
    "cast": Form(_cast, ("e", "dtype")),
    "dot": Form(_dot, ("a", "b", "axis")),
    "index": Form(_index, ("axis",)),
    "_end": Form(_end, ("axis",)),
    "size": Form(_size, ("axis",)),
    "take": Form(_take, ("table", "i", "axis")),
    "put": Form(_put, ("table", "value", "i", "axis", "how"), {"how": ast.Name("set")}),
    "shift": Form(_shift, ("x", "axis", "by", "fill"), {"by": ast.Constant(1), "fill": ast.Constant(0)}),
    "bits": Form(_narrow_bits, ("key", "axes", "dtype"), {**DRAWN, "dtype": ast.Name("uint32")}),
    "uniform": Form(_uniform, ("key", "axes", "dtype"), {**DRAWN, "dtype": ast.Name("float32")}),
    "normal": Form(_normal, ("key", "axes"), DRAWN),
    "bernoulli": Form(_bernoulli, ("key", "p", "axes"), DRAWN),
}
FORMS = {
    **OWN,
    **{name: Form(_reduction, ("e", "axis")) for name in REDUCTIONS},
    **{name: Form(_scan, (*operands, "axis", "reverse", "before"), DIRECTION) for name, operands in SCANS.items()},
    "scan": Form(
        _scan, ("a", "b", "axis", "initial", "reverse", "before"), {"initial": ast.Constant(0.0), **DIRECTION}
    ),
    **{name: Form(_selection, ("x", "k", "axis")) for name in SELECTIONS},
    **{name: Form(_sort, ("x", "axis")) for name in SORTS},
    UNSORT: Form(_unsort, ("x", "places", "axis")),
    NUCLEUS: Form(_nucleus, ("x", "mass", "axis")),
}


@functools.cache
def functions() -> tuple[str, ...]:
    """The names of all functions that a formula may call."""
    names = (set(OPS) - OPERATORS) | set(FORMS) | set(prelude())
    return tuple(sorted(name for name in names if not name.startswith("_")))
