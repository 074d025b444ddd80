"""A chain's text as formulas in LaTeX, one a statement, with the names that the spec has."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping

from codegen.spec.spec import Array

GREEK = {
    "alpha": r"\alpha", "beta": r"\beta", "gamma": r"\gamma", "delta": r"\delta", "eps": r"\varepsilon", "mu": r"\mu",
    "sigma": r"\sigma", "tau": r"\tau", "lam": r"\lambda", "pi": r"\pi", "inf": r"\infty",
}  # fmt: skip
REDUCTIONS = {"sum": r"\sum", "prod": r"\prod", "max": r"\max", "min": r"\min"}
OPERATORS = {
    ast.Lt: "<", ast.LtE: r"\le", ast.Gt: ">", ast.GtE: r"\ge", ast.Eq: "=", ast.NotEq: r"\ne", ast.BitAnd: r"\wedge",
    ast.BitOr: r"\vee", ast.BitXor: r"\oplus", ast.LShift: r"\ll", ast.RShift: r"\gg", ast.Mod: r"\bmod",
}  # fmt: skip
AROUND = {
    "sqrt": r"\sqrt{{{0}}}", "rsqrt": r"\frac{{1}}{{\sqrt{{{0}}}}}", "reciprocal": r"\frac{{1}}{{{0}}}",
    "abs": r"\left|{0}\right|", "floor": r"\left\lfloor {0} \right\rfloor", "ceil": r"\left\lceil {0} \right\rceil",
    "square": "{{{0}}}^{{2}}", "exp": "e^{{{0}}}", "exp2": "2^{{{0}}}", "cbrt": r"\sqrt[3]{{{0}}}",
    "where": r"\begin{{cases}} {1} & \text{{if }} {0} \\ {2} & \text{{else}} \end{{cases}}",
    "maximum": r"\max\left({0}, {1}\right)", "minimum": r"\min\left({0}, {1}\right)",
}  # fmt: skip
SUM, PRODUCT, POWER, ATOM = range(4)  # how tightly a text holds together


class Formula:
    """Writes expressions of one spec. `arrays` are its inputs by name, and `kept` the axes of its outputs."""

    def __init__(self, arrays: Mapping[str, Array], kept: Iterable[str]):
        self.arrays, self.kept = arrays, set(kept)

    def statements(self, chain: str) -> list[str]:
        found = []
        for statement in ast.parse(chain).body:
            assert isinstance(statement, ast.Assign)
            found.append(f"{self._text(statement.targets[0])} = {self._text(statement.value)}")
        return found

    def _text(self, node: ast.expr, least: int = SUM) -> str:
        text, tightness = self._written(node)
        return text if tightness >= least else rf"\left({text}\right)"

    def _written(self, node: ast.expr) -> tuple[str, int]:
        match node:
            case ast.Name(name):
                return named(name), ATOM
            case ast.Constant(value):
                return number(value), ATOM
            case ast.Subscript(ast.Name(name), index):
                return f"{named(name)}_{{{self._text(index)}}}", ATOM
            case ast.UnaryOp(ast.USub(), value):
                return f"-{self._text(value, PRODUCT)}", SUM
            case ast.UnaryOp(ast.Invert(), value):
                return rf"\neg {self._text(value, ATOM)}", PRODUCT
            case ast.BinOp(a, op, b):
                return self._binary(a, op, b)
            case ast.Compare(a, [op], [b]):
                return f"{self._text(a)} {OPERATORS[type(op)]} {self._text(b)}", SUM - 1
            case ast.Call(ast.Name(function), arguments, keywords):
                return self._call(function, arguments, {k.arg: k.value for k in keywords})
        return rf"\text{{{ast.unparse(node)}}}", ATOM

    def _binary(self, a: ast.expr, op: ast.operator, b: ast.expr) -> tuple[str, int]:
        match op:
            case ast.Add():
                return f"{self._text(a)} + {self._text(b)}", SUM
            case ast.Sub():
                return f"{self._text(a)} - {self._text(b, PRODUCT)}", SUM
            case ast.Mult():
                between = r" \cdot " if isinstance(b, ast.Constant) else r"\,"
                return f"{self._text(a, PRODUCT)}{between}{self._text(b, PRODUCT)}", PRODUCT
            case ast.Div():
                return rf"\frac{{{self._text(a)}}}{{{self._text(b)}}}", PRODUCT
            case ast.FloorDiv():
                return rf"\left\lfloor \frac{{{self._text(a)}}}{{{self._text(b)}}} \right\rfloor", ATOM
            case ast.Pow():
                return f"{{{self._text(a, ATOM)}}}^{{{self._text(b)}}}", POWER
            case ast.MatMult():
                over = ", ".join(sorted((self._axes(a) & self._axes(b)) - self.kept))
                return rf"\sum_{{{over}}} {self._text(a, PRODUCT)}\,{self._text(b, PRODUCT)}", SUM
        return f"{self._text(a, PRODUCT)} {OPERATORS[type(op)]} {self._text(b, PRODUCT)}", SUM - 1

    def _axes(self, node: ast.expr) -> set[str]:
        """The axes of an input or of a part of one; none where it is something else."""
        name = next((n.id for n in ast.walk(node) if isinstance(n, ast.Name)), "")
        return set(self.arrays[name].axes) if name in self.arrays else set()

    def _call(self, function: str, arguments: list[ast.expr], keywords: dict[str | None, ast.expr]) -> tuple[str, int]:
        axis = axes_text(keywords["axis"]) if "axis" in keywords else ""
        if axis and function in REDUCTIONS:
            return rf"{REDUCTIONS[function]}_{{{axis}}} {self._text(arguments[0], PRODUCT)}", PRODUCT
        if function == "index":
            return f"i_{{{ast.unparse(arguments[0])}}}", ATOM
        if function == "size":
            return axes_text(arguments[0]), ATOM
        if function == "cast":
            return (
                rf"\operatorname{{cast}}_{{{named(ast.unparse(arguments[1]))}}}\left({self._text(arguments[0])}\right)",
                ATOM,
            )
        if function in AROUND:
            texts = [self._text(a, ATOM if function == "square" else SUM - 1) for a in arguments]
            return AROUND[function].format(*texts), PRODUCT if function in ("where", "square", "exp", "exp2") else ATOM
        name = rf"\operatorname{{{function.replace('_', ' ')}}}" + (f"_{{{axis}}}" if axis else "")
        inner = [self._text(a) for a in arguments] + [self._text(v) for k, v in keywords.items() if k != "axis"]
        return rf"{name}\left({', '.join(inner)}\right)", ATOM


def named(name: str) -> str:
    if name in GREEK:
        return GREEK[name]
    return name if len(name) == 1 else rf"\text{{{name}}}"


def number(value: object) -> str:
    if value is Ellipsis:
        return r"\ldots"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    digits, exponent, power = text.partition("e")
    if not exponent:
        return text
    return ("" if digits == "1" else rf"{digits} \cdot ") + f"10^{{{int(power)}}}"


def axes_text(node: ast.expr) -> str:
    parts = node.elts if isinstance(node, ast.Tuple) else [node]
    return ", ".join(number(p.value) if isinstance(p, ast.Constant) else ast.unparse(p) for p in parts)
