"""The reference of a traced function: its own source, if a spec may contain it, else its steps in jnp."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from codegen.errors import UserError
from codegen.tracing.axes import Axis
from codegen.tracing.formulas import REDUCING, Formula, walk
from codegen.tracing.layout import ArrayOf, Layout
from codegen.tracing.naming import function_tree
from codegen.tracing.write import CHEAP, INFIX, POWER, UNARY, Text, number, short

NAMES = {
    "asin": "jnp.arcsin", "acos": "jnp.arccos", "atan": "jnp.arctan", "atan2": "jnp.arctan2", "rsqrt": "jax.lax.rsqrt",
    "sigmoid": "jax.nn.sigmoid", "erf": "jax.lax.erf", "erfc": "jax.lax.erfc", "rem": "jax.lax.rem",
    "popcount": "jax.lax.population_count", "stop_gradient": "jax.lax.stop_gradient",
    "asinh": "jnp.arcsinh", "acosh": "jnp.arccosh", "atanh": "jnp.arctanh",
    "lgamma": "jax.lax.lgamma", "digamma": "jax.lax.digamma",
}  # fmt: skip

SCANNED = {
    "cumsum": "jnp.cumsum(", "cumprod": "jnp.cumprod(", "cummax": "jax.lax.associative_scan(jnp.maximum, ",
    "cumlogsumexp": "jax.lax.associative_scan(jnp.logaddexp, ",
}  # fmt: skip


def source_of(function: Callable[..., Any], names: Sequence[str], outputs: Sequence[str]) -> list[str]:
    """The statements of a function whose parameters have these names, as a spec's reference; [] where a spec cannot have them."""
    tree = function_tree(function)
    if not isinstance(tree, ast.FunctionDef) or getattr(function, "__closure__", None):
        return []
    try:
        parameters = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return []
    body = tree.body[1:] if ast.get_docstring(tree) is not None else tree.body
    *assigns, last = body
    whole = all(isinstance(a, ast.Assign) and len(a.targets) == 1 for a in assigns) and isinstance(last, ast.Return)
    text = "\n".join(map(ast.unparse, body))
    if not whole or parameters[: len(names)] != list(names) or "astype" in text or "dtype" in text:
        return []
    if len(parameters) != len(names):
        return []
    assert isinstance(last, ast.Return)
    if last.value is None:
        return []
    lines = [ast.unparse(a) for a in assigns]
    values = last.value.elts if isinstance(last.value, ast.Tuple) and len(outputs) > 1 else [last.value]
    if len(values) != len(outputs):
        return []
    assigned = {t.id for a in assigns if isinstance(a, ast.Assign) for t in a.targets if isinstance(t, ast.Name)}
    if len(outputs) == 1 and not lines:
        return [ast.unparse(values[0])]
    for output, value in zip(outputs, values, strict=True):
        if isinstance(value, ast.Name) and value.id == output:
            continue
        if output in assigned | set(names):  # a name of its own in between: the statements would disagree
            return []
        lines.append(f"{output} = {ast.unparse(value)}")
    return lines


class NoSize(UserError):
    """The size of an axis is in no input's shape."""

    def __init__(self, axis: Axis):
        super().__init__(
            f"an axis of {axis.size} elements that no input has", "pass an array that has this axis as an argument"
        )
        self.axis = axis


class Printer(Text):
    """Formulas in jnp. Every value has the rows and all named axes in the layout's order, those it lacks of size 1."""

    def __init__(self, layout: Layout, inputs: Sequence[ArrayOf], taken: Sequence[str]):
        self.layout, self.inputs = layout, {a.name: a for a in inputs}
        self.taken = {*taken, *self.inputs}
        self.order = layout.order
        super().__init__()
        self.lines: list[str] = []

    def write(self, outputs: Sequence[ArrayOf], roots: Sequence[Sequence[Formula]]) -> list[str]:
        """The statements that assign each output. Raises `UserError` where there is no such text."""
        everything = [f for parts in roots for f in parts]
        inner = {a for f in walk(everything) if f.op == "dot" for a in f.attr}
        inner |= {f.attr for f in walk(everything) if f.op == "take"}
        elsewhere = {a for f in walk(everything) if f.op not in ("input", "take") for a in f.axes}
        self.order = tuple(a for a in self.order if a not in inner or a in elsewhere)
        uses: dict[int, int] = {}
        for formula in walk(everything):
            for arg in formula.args:
                uses[id(arg)] = uses.get(id(arg), 0) + 1
        for formula in walk(everything):
            cut = formula.op == "input" and formula.attr[1] is not None
            if cut and not any(f.op in ("dot", "take") and formula in f.args for f in walk(everything)):
                self.name(formula, f"{formula.attr[0]}{formula.attr[1]}")
            elif formula.op not in CHEAP and uses.get(id(formula), 0) > 1:
                self.name(formula, short(formula))
        for array, parts in zip(outputs, roots, strict=True):
            self.lines.append(f"{array.name} = {self.output(array, parts)}")
        return self.lines

    def name(self, formula: Formula, wished: str) -> None:
        text, _ = self.expression(formula)
        own, count = wished, 2
        while own in self.taken:
            own, count = f"{wished}{count}", count + 1
        self.taken.add(own)
        self.lines.append(f"{own} = {text}")
        self.written[id(formula)] = own

    def output(self, array: ArrayOf, parts: Sequence[Formula]) -> str:
        """An output, made of its parts, with only its own axes, in its order."""
        own = [a for a in self.order if a in array.axes]
        rows = self.layout.has_rows(array.axes)
        made = [self.without(p, own, rows) for p in parts]
        place = next((i for i, d in enumerate(array.dims) if d.parts is not None), None)
        if place is None:
            return self.moved(made[0], own, array.axes, rows)
        if [a for a in array.axes if a not in self.layout.rows] != own:
            raise UserError("an output with parts whose axes are in another order", "")
        axis = place - len(array.dims)
        parts_of = array.dims[place].parts
        assert parts_of is not None
        if parts_of.axis is None:
            return f"jnp.stack([{', '.join(made)}], axis={axis})"
        if not parts_of.interleaved:
            return f"jnp.concatenate([{', '.join(made)}], axis={axis})"
        like = next((a.name for a in self.inputs.values() if a.dims == array.dims), None)
        if like is None:
            raise UserError("an output of interleaved parts that no input has", "")
        stacked = f"jnp.stack([{', '.join(made)}], axis={axis})" if axis == -1 else ""
        if not stacked:
            raise UserError("interleaved parts of an axis that is not the last", "")
        return f"{stacked}.reshape({like}.shape)"

    def without(self, formula: Formula, own: Sequence[Axis], rows: bool) -> str:
        """A value without the axes that an output lacks."""
        missing = [a for a in self.order if a not in own]
        if not rows and self.layout.rows:
            sizes = ", ".join(map(self.size, own))
            return f"jnp.reshape({self.at(formula, 0)}, ({sizes}{',' if len(own) == 1 else ''}))"
        text = self.at(formula, 10 if missing else 0)
        absent = [a for a in own if a not in formula.axes]
        if absent or (rows and not self.layout.has_rows(formula.axes)):
            like = next(
                (
                    a.name
                    for a in self.inputs.values()
                    if list(a.axes) == [*self.layout.rows, *self.order] and not any(d.parts for d in a.dims)
                ),
                None,
            )
            if like is None:
                raise UserError("an output that is the same along an axis", "")
            text = f"jnp.broadcast_to({text}, {like}.shape)"
        if not missing:
            return text
        return f"{text}[{', '.join(['...', *('0' if a in missing else ':' for a in self.order)])}]"

    def moved(self, text: str, own: Sequence[Axis], wanted: Sequence[Axis], rows: bool) -> str:
        target = [a for a in wanted if a not in self.layout.rows]
        if target == list(own):
            return text
        return f'jnp.einsum("{self.letters(own, rows)}->{self.letters(target, rows)}", {text})'

    def letters(self, axes: Sequence[Axis], rows: bool) -> str:
        names = {a: chr(ord("a") + i) for i, a in enumerate(self.layout.order)}
        return ("..." if rows else "") + "".join(names[a] for a in axes)

    def size(self, axis: Axis) -> str:
        """The size of an axis, from the shape of an input that has it."""
        for array in self.inputs.values():
            for place, dim in enumerate(array.dims):
                if dim.axis is axis:
                    text = f"{array.name}.shape[{place - len(array.dims)}]"
                    return f"{text} // {dim.parts.count}" if dim.parts else text
        raise NoSize(axis)

    def raw(self, formula: Formula) -> tuple[str, list[Axis], bool]:
        """An input, or a part of one, as it is: its text, its named axes, and whether it has the rows."""
        name, part = formula.attr
        array = self.inputs[name]
        rows = self.layout.has_rows(array.axes)
        axes = [a for a in array.axes if a not in self.layout.rows]
        if part is None:
            return name, axes, rows
        place = next(i for i, d in enumerate(array.dims) if d.parts is not None)
        parts, axis = array.dims[place].parts, place - len(array.dims)
        assert parts is not None
        after = ", :" * (-axis - 1)
        if parts.axis is None:
            return f"{name}[..., {part}{after}]", axes, rows
        if parts.interleaved:
            return f"{name}[..., {part}::{parts.count}{after}]", axes, rows
        return f"jnp.split({name}, {parts.count}, axis={axis})[{part}]", axes, rows

    def factor(self, formula: Formula) -> tuple[str, list[Axis], bool]:
        """A factor of a product without the axes that it lacks."""
        if formula.op == "input":
            return self.raw(formula)
        axes, rows = [a for a in self.order if a in formula.axes], self.layout.has_rows(formula.axes)
        marks = [":" if a in axes else "0" for a in self.order]
        index = f"[{', '.join(['...', *marks])}]" if "0" in marks else ""
        if not rows and self.layout.rows and "0" in marks:
            raise UserError("a computed factor without rows has no reference", "")
        return f"{self.at(formula, 10 if index else 0)}{index}", axes, rows

    def aligned(self, text: str, axes: list[Axis], rows: bool) -> str:
        """Text with these axes, in their order and with those missing of size 1."""
        wanted = [a for a in self.order if a in axes]
        text = self.moved(text, axes, wanted, rows)
        if not axes and not rows:
            return text
        marks = [":" if a in axes else "None" for a in self.order]
        if "None" not in marks:
            return text
        return f"{text}[{', '.join([*(['...'] if rows else []), *marks])}]"

    def expression(self, formula: Formula) -> tuple[str, int]:
        op, args, attr = formula.op, formula.args, formula.attr
        if op == "input":
            return self.aligned(*self.raw(formula)), 10
        if op == "param":
            return attr, 10
        if op == "const":
            if (isinstance(attr, float) and attr != attr) or attr in (float("inf"), float("-inf")):
                return {"nan": "jnp.nan", "inf": "jnp.inf", "-inf": "-jnp.inf"}[str(attr)], UNARY
            return number(formula, False)
        if op == "own":
            return (self.written[id(args[0])], 10) if id(args[0]) in self.written else self.expression(args[0])
        if op == "dot":
            (a, axes_a, rows_a), (b, axes_b, rows_b) = map(self.factor, args)
            out = [x for x in self.order if x in formula.axes]
            rows = rows_a or rows_b
            text = f'jnp.einsum("{self.letters(axes_a, rows_a)},{self.letters(axes_b, rows_b)}->{self.letters(out, rows)}", {a}, {b})'
            return self.aligned(text, out, rows), 10
        if op in INFIX:
            sign, strength = INFIX[op]
            return f"{self.at(args[0], strength + (strength == 1))} {sign} {self.at(args[1], strength + 1)}", strength
        if op in ("neg", "not", "invert"):
            return f"{'-' if op == 'neg' else '~'}{self.at(args[0], UNARY)}", UNARY
        if op == "pow":
            return f"{self.at(args[0], 10)} ** {self.exponent(args[1])}", POWER
        if op in ("sum", "mean") and len(args) > 1:
            each = [self.reduced(op, self.at(a, 0), attr) if attr else self.at(a, 7) for a in args]
            return (" + ".join(each), 6) if op == "sum" else (f"({' + '.join(each)}) / {len(each)}", 7)
        given = [self.at(a, 0) for a in args]
        if op in REDUCING:
            return self.reduced(op, given[0], attr), 10
        match op:
            case "index":
                return self.aligned(f"jnp.arange({self.size(attr)})", [attr], False), 10
            case "size":
                return self.size(attr), 7
            case "take":
                return self.take(formula), 10
            case "cast":
                return self.cast(formula, given[0]), 10
        if op.startswith("cum"):
            axis, reverse = attr
            place = self.order.index(axis) - len(self.order)
            value = f"jnp.flip({given[0]}, {place})" if reverse else given[0]
            text = f"{SCANNED[op]}{value}, axis={place})"
            return f"jnp.flip({text}, {place})" if reverse else text, 10
        return f"{NAMES.get(op, f'jnp.{op}')}({', '.join(given)})", 10

    def cast(self, formula: Formula, value: str) -> str:
        if formula.kind == "float" and formula.args[0].kind == "int":
            return f"({value}) * 1.0"
        if formula.attr == "float16":
            return f"jnp.asarray(jnp.asarray({value}, jnp.float16), jnp.float32)"
        if formula.kind == "float":
            raise UserError(f"a rounding to {formula.attr} has no reference", "")
        return f"jnp.asarray(jnp.trunc({value}), jnp.int32)"

    def reduced(self, op: str, value: str, attr: frozenset[Axis]) -> str:
        places = [str(i - len(self.order)) for i, a in enumerate(self.order) if a in attr]
        if self.layout.has_rows(attr):
            like = next(a for a in self.inputs.values() if self.layout.has_rows(a.axes))
            rest = len(like.dims) - len(self.layout.rows)
            rows = f"(0, 1, 2, 3)[:{like.name}.ndim{f' - {rest}' if rest else ''}]"
            axis = f"{rows} + ({', '.join(places)},)" if places else rows
        else:
            axis = places[0] if len(places) == 1 else f"({', '.join(places)})"
        return f"jnp.{op}({value}, axis={axis}, keepdims=True)"

    def take(self, formula: Formula) -> str:
        """The table with its axis first, then the index's axes in the place of it."""
        table, index = formula.args
        text, axes, rows = self.raw(table)
        if rows:
            raise UserError("a gather from an array with rows has no reference", "")
        first = [formula.attr, *(a for a in self.order if a in axes and a is not formula.attr)]
        text = self.moved(text, axes, first, False)
        place, own, has_rows = self.factor(index)
        return self.aligned(f'jnp.take({text}, {place}, axis=0, mode="clip")', [*own, *first[1:]], has_rows)
