"""Formulas: expressions on named axes; equal ones are one object. Constants are folded, and sums divided by a size
become means.

The operations have the names of the language (`graph/ops.py`). Some are only in JAX code: `own` is the value of a
function with its own derivative, and `convert` a rounding that the language may do without being told.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from codegen.tracing.axes import Axis

NUMBERS: dict[str, Callable[..., Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "neg": operator.neg, "maximum": max, "minimum": min,
    "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge, "eq": operator.eq, "ne": operator.ne,
    "and": operator.and_, "or": operator.or_, "abs": abs, "square": lambda x: x * x,
    "sqrt": math.sqrt, "exp": math.exp, "log": math.log, "tanh": math.tanh,
    "div": operator.truediv, "rsqrt": lambda x: 1 / math.sqrt(x),
    "isfinite": math.isfinite, "stop_gradient": lambda x: x,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Formula:
    """An expression. `axes` are the axes along which it varies; `attr` is a constant, an input's name and part, reduced axes,
    a dtype, or an axis."""

    op: str
    args: tuple[Formula, ...]
    attr: Any
    kind: str
    axes: frozenset[Axis]

    @property
    def is_number(self) -> bool:
        return self.op == "const"


class Formulas:
    """Makes formulas; equal formulas are one object."""

    def __init__(self) -> None:
        self._made: dict[tuple[Any, ...], Formula] = {}

    def number(self, value: bool | int | float, kind: str = "") -> Formula:
        kind = kind or ("bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "float")
        if kind == "float":
            value = float(value)
        return self._new("const", (), value, kind, frozenset())

    def leaf(self, name: str, part: int | None, kind: str, axes: Iterable[Axis]) -> Formula:
        return self._new("input", (), (name, part), kind, frozenset(axes))

    def _new(self, op: str, args: tuple[Formula, ...], attr: Any, kind: str, axes: frozenset[Axis]) -> Formula:
        key = (op, tuple(map(id, args)), repr(attr) if op == "const" else attr, kind)
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = Formula(op, args, attr, kind, axes)
        return found

    def make(self, op: str, args: tuple[Formula, ...], kind: str, attr: Any = None) -> Formula:
        """An operation, simplified: constants are folded, and x * 1, x + 0 and max(-inf, x) are x."""
        if args and all(a.is_number for a in args) and op in NUMBERS:
            try:
                return self.number(NUMBERS[op](*(a.attr for a in args)), kind)
            except (ArithmeticError, ValueError):
                pass
        if op == "where" and args[0].is_number:
            return args[1] if args[0].attr else args[2]
        if op == "where" and (args[1].attr, args[2].attr) == (True, False) and kind == "bool":
            return args[0]  # as jnp.tril writes it
        if op == "own" and args[0].is_number:
            return args[0]
        if op in ("mul", "div") and args[1].is_number and args[1].attr == 1 and args[0].kind == kind:
            return args[0]
        if op == "mul" and args[0].is_number and args[0].attr == 1 and args[1].kind == kind:
            return args[1]
        if op in ("add", "sub") and args[1].is_number and args[1].attr == 0 and args[0].kind == kind:
            return args[0]
        if op == "add" and args[0].is_number and args[0].attr == 0 and args[1].kind == kind:
            return args[1]
        if op in ("maximum", "minimum"):
            nothing = -math.inf if op == "maximum" else math.inf
            for one, other in (args, args[::-1]):
                if one.is_number and one.attr == nothing:
                    return other
        if op in ("and", "or"):
            for one, other in (args, args[::-1]):
                if one.is_number and one.kind == "bool":
                    return other if one.attr == (op == "and") else one
        if op == "convert" and args[0].kind == kind == "float":
            return args[0]
        if op in ("div", "mul") and args[0].op == "sum" and args[1].is_number:
            count = args[1].attr if op == "div" else (1 / args[1].attr if args[1].attr else 0)
            inner = args[0]
            size = math.prod(a.size for a in inner.attr) * len(inner.args)
            if math.isclose(count, size, rel_tol=1e-6):
                return self.make("mean", inner.args, "float", inner.attr)
        if op in ("div", "mul") and args[0].op == "neg" and args[0].args[0].op == "sum" and args[1].is_number:
            average = self.make(op, (args[0].args[0], args[1]), kind)
            if average.op == "mean":
                return self.make("neg", (average,), kind)
        if op == "neg" and args[0].op == "neg":
            return args[0].args[0]
        if op == "sum" and len(args) == 1 and (simpler := self._simpler_sum(args[0], attr)) is not None:
            return simpler
        axes = frozenset().union(*(a.axes for a in args)) if args else frozenset()
        if op == "take":  # the index's axes replace the table's axis, which may be one of them
            axes = (args[0].axes - {attr}) | args[1].axes
        return self._new(op, args, attr, kind, self._axes(op, attr, axes))

    def _simpler_sum(self, term: Formula, over: frozenset[Axis]) -> Formula | None:
        """The sum of -x as that of x, and the sum of a value that one position of an axis has as the value."""
        if term.op == "neg":
            return self.make("neg", (self.make("sum", term.args, term.kind, over),), term.kind)
        if term.op != "where" or not (term.args[2].is_number and term.args[2].attr == 0) or len(over) != 1:
            return None
        condition, value, _ = term.args
        (axis,) = over
        index = self.make("index", (), "int", axis)
        if condition.op != "eq" or index not in condition.args or axis in value.axes:
            return None
        (place,) = (
            (a for a in condition.args if a is not index) if condition.args[0] is not condition.args[1] else (index,)
        )
        if axis in place.axes:
            return None
        return self.make("where", (self.within(place, axis), value, term.args[2]), term.kind)

    def within(self, place: Formula, axis: Axis) -> Formula:
        """Whether a position is within an axis."""
        least, most = self.number(0), self.number(axis.size)
        return self.make(
            "and", (self.make("ge", (place, least), "bool"), self.make("lt", (place, most), "bool")), "bool"
        )

    @staticmethod
    def _axes(op: str, attr: Any, axes: frozenset[Axis]) -> frozenset[Axis]:
        if op in REDUCING:
            return axes - frozenset(attr)
        if op in ("index", "size"):
            return frozenset([attr]) if op == "index" else frozenset()
        return axes

    def rebuilt(self, formula: Formula, args: tuple[Formula, ...]) -> Formula:
        """The same operation on other arguments."""
        if args == formula.args:
            return formula
        return self.make(formula.op, args, formula.kind, formula.attr)


REDUCING = frozenset({"sum", "mean", "max", "min", "prod", "any", "all", "argmax", "argmin", "dot",
                      "var", "norm", "logsumexp"})  # fmt: skip


def walk(roots: Iterable[Formula]) -> Iterator[Formula]:
    """Every formula below, arguments before their users."""
    seen: set[int] = set()
    stack = [(root, False) for root in reversed(list(roots))]
    while stack:
        formula, done = stack.pop()
        if done:
            yield formula
        elif id(formula) not in seen:
            seen.add(id(formula))
            stack.append((formula, True))
            stack += [(a, False) for a in reversed(formula.args)]


def mapped(formulas: Formulas, roots: Iterable[Formula], change: Callable[[Formula], Formula]) -> list[Formula]:
    """The roots, with each formula below them changed, from the arguments up."""
    roots = list(roots)
    new: dict[int, Formula] = {}
    for formula in walk(roots):
        new[id(formula)] = change(formulas.rebuilt(formula, tuple(new[id(a)] for a in formula.args)))
    return [new[id(root)] for root in roots]


def with_less_work(formulas: Formulas, roots: Iterable[Formula], picks: bool) -> list[Formula]:
    """The roots, with what JAX's derivatives leave in them gone: a number that is multiplied and then divided by, as in the slope of
    `cap * tanh(x / cap)`. With `picks`, the element of a row at an index is computed alone, of what `take` reads."""

    def change(formula: Formula) -> Formula:
        return (picks and _picked(formulas, formula)) or _with_one_factor(formulas, formula) or formula

    return mapped(formulas, roots, change)


HIDDEN = -1e30  # a score of at most this has no weight in a softmax beside others


def with_masks(formulas: Formulas, roots: Iterable[Formula], copies: Mapping[str, str]) -> list[Formula]:
    """The roots, in which a mask's scores of the lowest numbers, such as `finfo.min`, are -inf where each row of a softmax is known to have
    others: a kernel need not compute these. Inputs that are `copies` of one array have that array's name there."""

    def change(formula: Formula) -> Formula:
        if formula.op not in ("softmax", "logsumexp") or len(formula.attr) != 1:
            return formula
        (axis,), (score,) = formula.attr, formula.args
        found = _mask(score)
        if found is None or not _sees(found[0], axis, copies):
            return formula
        masked = formulas.make("where", (*found, formulas.number(-math.inf)), "float")
        return formulas.make(formula.op, (masked,), formula.kind, formula.attr)

    return mapped(formulas, roots, change)


def _mask(score: Formula) -> tuple[Formula, Formula] | None:
    """The condition outside of which a score is hidden, and the score: of `where(c, s, -1e30)` and of `s + where(c, 0, -1e30)`."""

    def hides(value: Formula) -> bool:
        return value.is_number and value.attr <= HIDDEN

    if score.op == "where" and hides(score.args[2]):
        return score.args[0], score.args[1]
    for one, other in (score.args, score.args[::-1]) if score.op == "add" else ():
        if other.op == "where" and other.args[1].is_number and other.args[1].attr == 0 and hides(other.args[2]):
            return other.args[0], one
    return None


def _sees(condition: Formula, axis: Axis, copies: Mapping[str, str]) -> bool:
    """Whether a condition holds somewhere along an axis whatever the arrays have: at the first place, or where another axis has the same
    place, as of a causal mask."""
    others = [a for a in condition.axes if a is not axis and a.size <= axis.size]
    return any(_holds(condition, axis, at, copies) for at in (None, *others))


def _holds(condition: Formula, axis: Axis, at: Axis | None, copies: Mapping[str, str]) -> bool:
    """Whether a condition holds at the place along `axis` that an index along `at` has, or at the first."""

    def moved(axes: Iterable[Axis]) -> frozenset[Axis | None]:
        return frozenset(at if a is axis else a for a in axes)

    if condition.op in ("and", "or"):
        both = [_holds(a, axis, at, copies) for a in condition.args]
        return all(both) if condition.op == "and" else any(both)
    if condition.op not in ("eq", "lt", "le", "gt", "ge"):
        return condition.is_number and bool(condition.attr)
    a, b = condition.args
    if condition.op == "eq" and a.op == b.op == "input" and at is not None:
        (one, part), (other, another) = a.attr, b.attr
        same = copies.get(one, one) == copies.get(other, other) and part == another
        return same and moved(a.axes) == moved(b.axes)
    if a.kind != "int" or (left := _linear(a, axis, at)) is None or (right := _linear(b, axis, at)) is None:
        return False
    apart = {x: left.get(x, 0) - right.get(x, 0) for x in (*left, *right)}
    ends = [[n, n] if x is None else sorted((0, n * (x.size - 1))) for x, n in apart.items()]
    least, most = (sum(e[i] for e in ends) for i in (0, 1))
    held = {"eq": least == most == 0, "lt": most < 0, "le": most <= 0, "gt": least > 0, "ge": least >= 0}
    return held[condition.op]


def _linear(value: Formula, axis: Axis, at: Axis | None) -> dict[Axis | None, int] | None:
    """A sum of indices times numbers, by axis, with a number by None; None for other values."""
    if value.is_number:
        return {None: int(value.attr)}
    if value.op == "index":
        own = at if value.attr is axis else value.attr
        return {own: 1} if own is not None else {}
    if value.op not in ("add", "sub", "neg"):
        return None
    found: dict[Axis | None, int] = {}
    for place, arg in enumerate(value.args):
        terms = _linear(arg, axis, at)
        if terms is None:
            return None
        sign = -1 if value.op == "neg" or (value.op == "sub" and place) else 1
        for x, n in terms.items():
            found[x] = found.get(x, 0) + sign * n
    return found


LEAST, MOST = 2.0**-60, 2.0**60  # factors that no product of values of their size takes beyond float32


def _with_one_factor(formulas: Formulas, formula: Formula) -> Formula | None:
    """The same product, or quotient, by one number, where a number is a factor of its value too."""
    if formula.op not in ("mul", "div") or formula.kind != "float":
        return None
    value, number = formula.args[::-1] if formula.args[0].is_number and formula.op == "mul" else formula.args
    if not number.is_number or not LEAST < abs(number.attr) < MOST:
        return None
    factor, rest = _factor(formulas, value)
    if factor == 1 or rest is None:
        return None
    total = factor * number.attr if formula.op == "mul" else factor / number.attr
    return formulas.make("mul", (formulas.number(total, "float"), rest), "float") if LEAST < abs(total) < MOST else None


def _factor(formulas: Formulas, value: Formula) -> tuple[float, Formula | None]:
    """The number that is a factor of a value, and the rest of it, which is None for a number."""
    if value.is_number and value.kind == "float" and LEAST < abs(value.attr) < MOST:
        return value.attr, None
    if value.op not in ("mul", "add", "sub") or value.kind != "float":
        return 1.0, value
    (first, a), (second, b) = (_factor(formulas, arg) for arg in value.args)
    if a is None or b is None:
        product = value.op == "mul" and LEAST < abs(first * second) < MOST
        return (first * second, a or b) if product else (1.0, value)
    if value.op != "mul" and first != second:
        return 1.0, value
    factor = first * second if value.op == "mul" else first
    if factor == 1 or not LEAST < abs(factor) < MOST:
        return 1.0, value
    return factor, formulas.make(value.op, (a, b), "float")


def _picked(formulas: Formulas, formula: Formula) -> Formula | None:
    """The element at an index of a row that is computed element by element of arrays; None for other formulas."""
    match formula:
        case Formula(op="sum", args=(Formula(op="where", args=(condition, value, zero)),)):
            if len(formula.attr) != 1 or not zero.is_number or zero.attr != 0 or condition.op != "eq":
                return None
            (axis,) = formula.attr
            index = formulas.make("index", (), "int", axis)
            places = [_unclipped(a, axis) for a in condition.args if a is not index]
            if (
                len(places) == 1
                and places[0].op == "input"
                and places[0].attr[1] is None
                and axis not in places[0].axes
            ):
                return _at(formulas, value, axis, places[0])
    return None


def _unclipped(place: Formula, axis: Axis) -> Formula:
    """A position that is clipped to an axis, without the clip: `take` clamps it anyway."""
    ends = [a.attr for a in place.args[1:]] if place.op == "clip" else []
    return place.args[0] if ends == [0, axis.size - 1] else place


def _at(formulas: Formulas, formula: Formula, axis: Axis, place: Formula) -> Formula | None:
    """A formula's value at one place along an axis."""
    if axis not in formula.axes:
        return formula
    if formula.op == "index":
        return place
    if formula.op == "input":
        return formulas.make("take", (formula, place), formula.kind, axis) if formula.attr[1] is None else None
    if formula.op == "log_softmax" and formula.attr == {axis}:
        element = _at(formulas, formula.args[0], axis, place)
        total = formulas.make("logsumexp", formula.args, formula.kind, formula.attr)
        return element and formulas.make("sub", (element, total), formula.kind)
    if formula.attr is not None and formula.op != "own":  # other operations than element-wise ones
        return None
    args = [_at(formulas, a, axis, place) for a in formula.args]
    return None if None in args else formulas.rebuilt(formula, tuple(a for a in args if a is not None))


def unwrapped(index: Formula, size: int) -> Formula:
    """An index without `where(i < 0, i + size, i)`, which JAX puts around it."""
    match index:
        case Formula(op="where", args=(Formula(op="lt", args=(a, Formula(op="const", attr=0))),
                                       Formula(op="add", args=(b, Formula(op="const", attr=more))), c)):  # fmt: skip
            if a is b is c and more == size:
                return c
    return index


NATURAL = frozenset({"index", "size", "argmax", "argmin", "popcount"})


def is_natural(value: Formula) -> bool:
    """Whether an integer is known not to be negative."""
    match value:
        case Formula(op="const"):
            return bool(value.attr >= 0)
        case Formula(op="maximum" | "and"):
            return any(map(is_natural, value.args))
        case Formula(op="add" | "mul" | "minimum" | "floordiv"):
            return all(map(is_natural, value.args))
        case Formula(op="where" | "clip"):
            return all(map(is_natural, value.args[1:]))
        case Formula(op="rem" | "shr" | "max" | "min"):
            return is_natural(value.args[0])
    return value.op in NATURAL
