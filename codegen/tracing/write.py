"""Formulas as text: the statements of a chain."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

from codegen.tracing.axes import Axis
from codegen.tracing.formulas import REDUCING, Formula, walk
from codegen.tracing.layout import ArrayOf, Layout

INFIX = {
    "or": ("|", 2), "xor": ("^", 3), "and": ("&", 4), "shl": ("<<", 5), "shr": (">>", 5), "add": ("+", 6), "sub": ("-", 6),
    "mul": ("*", 7), "div": ("/", 7), "dot": ("@", 7), "floordiv": ("//", 7), "mod": ("%", 7),
    "lt": ("<", 1), "le": ("<=", 1), "gt": (">", 1), "ge": (">=", 1), "eq": ("==", 1), "ne": ("!=", 1),
}  # fmt: skip
UNARY, POWER, ATOM = 8, 9, 10
COMPARISONS = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})
ALONG = frozenset({"softmax", "log_softmax"})
LONG = 200  # characters of an expression, above which its parts are statements of their own
CHEAP = frozenset({"input", "const", "index", "size", "param"})


class Text:
    """Prints formulas; `written` has the names of formulas that were assigned before."""

    def __init__(self) -> None:
        self.written: dict[int, str] = {}

    def at(self, formula: Formula, least: int) -> str:
        """An operand, in parentheses where it binds less than that."""
        if id(formula) in self.written:
            return self.written[id(formula)]
        text, strength = self.expression(formula)
        return text if strength >= least else f"({text})"

    def expression(self, formula: Formula) -> tuple[str, int]:
        """The text of a formula and how strongly it binds."""
        raise NotImplementedError

    def exponent(self, formula: Formula) -> str:
        if not formula.is_number:
            return self.at(formula, ATOM)
        number = float(formula.attr)
        return str(int(number) if number.is_integer() else number)


class Writer(Text):
    """Writes statements. `wished` are names for formulas, and `targets` the names to which the outputs, in order, are
    assigned. `arrays` are the inputs and outputs."""

    def __init__(self, layout: Layout, wished: Mapping[int, str], taken: Collection[str], arrays: Sequence[ArrayOf]):
        self.layout, self.wished, self.taken, self.arrays = layout, wished, set(taken), arrays
        super().__init__()
        self.lines: list[str] = []
        self.results: frozenset[Axis] = frozenset()

    def write(self, targets: Sequence[str], roots: Sequence[Formula]) -> list[str]:
        """The statements that assign each target its formula."""
        uses: dict[int, int] = {}
        for formula in walk(roots):
            for arg in formula.args:
                uses[id(arg)] = uses.get(id(arg), 0) + 1
        self.results = frozenset(axis for root in roots for axis in root.axes)
        own: dict[int, list[str]] = {}
        for target, root in zip(targets, roots, strict=True):
            own.setdefault(id(root), []).append(target)
        for formula in walk(roots):
            assigned = own.get(id(formula), [])
            text, _ = self.expression(formula)
            whole = next((t for t in assigned if "[" not in t), "")
            if whole and formula.op not in CHEAP:
                self.written[id(formula)] = whole
                self.lines.append(f"{whole} = {text}")
                assigned = [t for t in assigned if t != whole]
            elif self.is_named(formula, uses.get(id(formula), 0), len(text)) or (
                assigned and formula.op not in CHEAP and uses.get(id(formula))
            ):
                name = self.fresh(self.wished.get(id(formula)) or short(formula))
                self.lines.append(f"{name} = {text}")
                self.written[id(formula)] = name
            self.lines += [f"{target} = {self.written.get(id(formula), text)}" for target in assigned]
        return self.lines

    def is_named(self, formula: Formula, uses: int, length: int) -> bool:
        """Whether a value has a statement of its own."""
        if formula.op in CHEAP or not uses:
            return False
        if formula.op == "neg" and uses == 1:
            return False
        return uses > 1 or id(formula) in self.wished or length > LONG

    def fresh(self, name: str) -> str:
        found, count = name, 2
        while found in self.taken:
            found, count = f"{name}{count}", count + 1
        self.taken.add(found)
        return found

    def expression(self, formula: Formula) -> tuple[str, int]:
        op, args, attr = formula.op, formula.args, formula.attr
        if op == "input":
            name, part = attr
            return (name if part is None else f"{name}[{part}]"), ATOM
        if op == "param":
            return attr, ATOM
        if op == "const":
            return number(formula, False)
        if op == "own":
            return (self.written[id(args[0])], ATOM) if id(args[0]) in self.written else self.expression(args[0])
        if op == "ne" and args[0] is args[1]:
            return f"isnan({self.at(args[0], 0)})", ATOM
        if op in INFIX and not (op == "dot" and self.names_axes(formula)):
            return self.infix(formula)
        if op in ("neg", "not", "invert"):
            return f"{'-' if op == 'neg' else '~'}{self.at(args[0], UNARY)}", UNARY
        if op == "pow":
            return f"{self.at(args[0], ATOM)} ** {self.exponent(args[1])}", POWER
        if op in ("sum", "mean") and len(args) > 1:
            return self.joined(formula)
        given = [self.at(a, 0) for a in args]
        if op in REDUCING or op in ALONG:
            given.append(f"axis={self.layout.axis(attr)}")
        elif op in ("index", "size"):
            given.append(self.layout.axis([attr]))
        elif op == "take":
            given.append(f"axis={self.layout.axis([attr])}")
        elif op == "cast":
            given.append(str(attr))
        elif op.startswith("cum"):
            given += [f"axis={self.layout.axis([attr[0]])}", *(["reverse=true"] if attr[1] else [])]
        return f"{op}({', '.join(given)})", ATOM

    def names_axes(self, product: Formula) -> bool:
        """Whether a product must name the axes that it contracts: `a @ b` contracts the one that both have, if no
        output has it or if it is a's last."""
        a, b = product.args
        if len(product.attr) != 1 or a.axes & b.axes != product.attr:
            return True
        (axis,) = product.attr
        if axis not in self.results:
            return False
        if a.op == "input":
            return next(x.axes for x in self.arrays if x.name == a.attr[0])[-1] is not axis
        others = a.axes - product.attr - {*self.layout.rows}
        return not all(self.is_before(other, axis) for other in others)

    def is_before(self, first: Axis, second: Axis) -> bool:
        """Whether arrays say that an axis comes before another one."""
        both = [x.axes for x in self.arrays if first in x.axes and second in x.axes]
        return bool(both) and all(axes.index(first) < axes.index(second) for axes in both)

    def infix(self, formula: Formula) -> tuple[str, int]:
        sign, strength = INFIX[formula.op]
        a, b = formula.args
        plain = formula.kind == "float" or formula.op in COMPARISONS
        if formula.op == "dot":
            return f"{self.at(a, ATOM)} @ {self.at(b, ATOM)}", strength
        left = self.operand(a, strength + (formula.op in COMPARISONS), plain and not b.is_number)
        right = self.operand(b, strength + 1, plain and not a.is_number)
        if formula.op == "add" and right.startswith("-") and right[1:2].isalpha():
            return f"{left} - {right[1:]}", strength
        return f"{left} {sign} {right}", strength

    def operand(self, formula: Formula, least: int, plain: bool) -> str:
        if formula.is_number:
            text, strength = number(formula, plain)
            return text if strength >= least else f"({text})"
        return self.at(formula, least)

    def joined(self, formula: Formula) -> tuple[str, int]:
        """A sum or mean over an axis that is cut: of each part, then together."""
        axis = f", axis={self.layout.axis(formula.attr)}" if formula.attr else ""
        each = [f"{formula.op}({self.at(a, 0)}{axis})" if axis else self.at(a, 7) for a in formula.args]
        total = " + ".join(each)
        return (total, 6) if formula.op == "sum" else (f"({total}) / {len(each)}", 7)


def number(formula: Formula, plain: bool) -> tuple[str, int]:
    """A constant. A whole float is written as an integer where it is combined with a float."""
    value = formula.attr
    if isinstance(value, float):
        if not math.isfinite(value):
            return repr(value), UNARY if value < 0 else ATOM
        if plain and value.is_integer() and abs(value) < 1e6:
            value = int(value)
    text = decimal(value) if isinstance(value, float) else repr(value)
    return text, UNARY if value < 0 else ATOM


def decimal(value: float) -> str:
    """The shortest text of a float."""
    text = f"{value:g}"
    text = text if float(text) == value else repr(value)
    text = text.replace("e-0", "e-").replace("e+0", "e")
    return text if any(c in text for c in ".einf") else f"{text}.0"


def short(formula: Formula) -> str:
    """A name for a value, of its operation."""
    return {"dot": "z", "sum": "total", "mean": "average", "var": "variance", "max": "top", "rsqrt": "rstd", "exp": "e", "add": "s",
            "mul": "p", "sub": "d", "where": "chosen"}.get(formula.op, "t")  # fmt: skip


def used_names(roots: Iterable[Formula]) -> set[str]:
    """The inputs and parameters that formulas use."""
    return {f.attr[0] if f.op == "input" else f.attr for f in walk(roots) if f.op in ("input", "param")}
