"""The table of primitive operations: one row for each, with everything known about it.

`cute` and `jnp` are the operation's text in a kernel and in the jnp form; `{0}`, `{1}`, ... are its arguments, `{floating}` and
`{integer}` the types in which the op computes floats and integers. `{exact}` in a
CuTe text is `True` under `math: precise`: the library's float64 function replaces the float32 one, of 2 to 5 ulp. `{approx}`
enables a cheaper approximation: it is `False` under `math: precise`, `True` under `math: fast`, and under `math: auto` the
kernel's own flag, set for outputs narrower than float32 and for some terms of sums (`Context.approximations`). `auto` uses
only approximations with a relative error within 2**-16 (gelu, dgelu, pow: 2**-15), whatever the chain does with them afterwards.
`cute_fast` is an additional approximation for `math: fast`.

`grad` has one formula for each argument, in the language of the chain: `a`, `b`, `c` are the arguments, `y` the result, `g`
its cotangent; "0" means that the derivative is zero everywhere it exists. Ties and kinks follow jax.vjp of `jnp`.
`domain` is where the operation is finite and smooth, for derivative tests.

`rule` gives the kinds of an operation's arguments and of its result:
  arith    numbers, brought to one kind; the result has it       float    numbers brought to float; a float
  compare  numbers of one kind, or bools for == and !=; a bool   predicate  a float; a bool
  logic    bools; a bool                                         select   a bool, then two values of one kind
  bits     integers, or bools; the same                          whole    integers; an integer
  digits   a number brought to float; an integer                 scale    a number brought to float, an integer; a float
  round    a number; its kind (integers unchanged)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Operation:
    """A row of the table; the module's first lines say what each column means."""

    name: str
    arity: int
    rule: str
    cute: str
    jnp: str
    grad: tuple[str, ...]
    domain: str = "any"  # any, positive, nonnegative, nonzero, unit (open -1..1), small (|x| <= 4)
    cute_fast: str = ""
    infix: bool = False  # cute and jnp are operator expressions: they may mix scalars and vectors, and need parentheses


def _unary(name: str, grad: str, domain: str = "any", jnp: str = "", cute: str = "", fast: str = "") -> Operation:
    cute = cute or f"cute.math.{name}({{0}})"
    return Operation(name, 1, "float", cute, jnp or f"jnp.{name}({{0}})", (grad,), domain, fast)


def _operator(name: str, sign: str, rule: str, grad: tuple[str, ...]) -> Operation:
    text = f"{{0}} {sign} {{1}}"
    return Operation(name, 2, rule, text, text, grad, infix=True)


_TWO_OVER_SQRT_PI = "1.1283791670955126"
_LN2, _LOG2E = "0.6931471805599453", "1.4426950408889634"
LOWERED_POWER = "_lowered_power"  # in derived graphs: no chain can call it
PINNED = "_pinned"  # a mark in derived graphs: no chain can call it
_FAST = "cute.math.{}({{0}}, fastmath=True)"

OPS: dict[str, Operation] = {
    op.name: op
    for op in (
        # arithmetic operators
        _operator("add", "+", "arith", ("g", "g")),
        _operator("sub", "-", "arith", ("g", "-g")),
        _operator("mul", "*", "arith", ("g * b", "g * a")),
        Operation("div", 2, "float", "device.divide({0}, {1}, {approx})", "{0} / {1}", ("g / b", "-(g / b) * y"), "nonzero"),
        Operation("neg", 1, "arith", "-{0}", "-{0}", ("-g",), infix=True),
        Operation("pow", 2, "float", "device.power({0}, {1}, {approx})", "{0} ** {1}", ("g * where(b == 0, 0, b * a ** (b - 1))", "g * y * log(where(a == 0, 1, a))"), "positive"),
        # comparisons and logic
        _operator("lt", "<", "compare", ("0", "0")),
        _operator("le", "<=", "compare", ("0", "0")),
        _operator("gt", ">", "compare", ("0", "0")),
        _operator("ge", ">=", "compare", ("0", "0")),
        _operator("eq", "==", "compare", ("0", "0")),
        _operator("ne", "!=", "compare", ("0", "0")),
        _operator("and", "&", "bits", ("0", "0")),
        _operator("or", "|", "bits", ("0", "0")),
        _operator("xor", "^", "bits", ("0", "0")),
        Operation("not", 1, "logic", "{0} ^ True", "~{0}", ("0",), infix=True),
        # integers: as XLA, also where b is 0 or no amount of a shift
        Operation("invert", 1, "whole", "{0} ^ -1", "~{0}", ("0",), infix=True),
        Operation("floordiv", 2, "whole", "device.floor_divide({0}, {1})", "{0} // {1}", ("0", "0")),
        Operation("mod", 2, "whole", "device.modulo({0}, {1})", "{0} % {1}", ("0", "0")),
        Operation("shl", 2, "whole", "device.shift_left({0}, {1})", "{0} << {1}", ("0", "0")),
        Operation("shr", 2, "whole", "device.shift_right({0}, {1})", "{0} >> {1}", ("0", "0")),
        Operation("popcount", 1, "whole", "device.popcount({0})", "jax.lax.population_count({0})", ("0",)),
        Operation("where", 3, "select", "device.where({0}, {1}, {2})", "jnp.where({0}, {1}, {2})",
           ("0", "where(a, g, 0)", "where(a, 0, g)")),
        Operation("isnan", 1, "predicate", "device.isnan({0})", "jnp.isnan({0})", ("0",)),
        Operation("isinf", 1, "predicate", "device.isinf({0})", "jnp.isinf({0})", ("0",)),
        Operation("isfinite", 1, "predicate", "device.isfinite({0})", "jnp.isfinite({0})", ("0",)),
        # order: NaN wins, as in jnp; a tie splits the gradient
        Operation("maximum", 2, "arith", "device.maximum({0}, {1})", "jnp.maximum({0}, {1})",
           ("g * where(a > b, 1, where(a == b, 0.5, 0))", "g * where(b > a, 1, where(a == b, 0.5, 0))")),
        Operation("minimum", 2, "arith", "device.minimum({0}, {1})", "jnp.minimum({0}, {1})",
           ("g * where(a < b, 1, where(a == b, 0.5, 0))", "g * where(b < a, 1, where(a == b, 0.5, 0))")),
        Operation("abs", 1, "arith", "cute.math.abs({0})", "jnp.abs({0})", ("g * where(a >= 0, 1.0, -1.0)",)),
        Operation("sign", 1, "arith", "device.sign({0})", "jnp.sign({0})", ("0",)),
        Operation("rem", 2, "arith", "device.remainder({0}, {1})", "jax.lax.rem({0}, {1})",
           ("g", "-g * where(a / b >= 0, floor(a / b), ceil(a / b))"), "nonzero"),
        # rounding to an integral value
        Operation("floor", 1, "round", "cute.math.floor({0})", "jnp.floor({0})", ("0",)),
        Operation("ceil", 1, "round", "cute.math.ceil({0})", "jnp.ceil({0})", ("0",)),
        Operation("round", 1, "round", "cute.math.roundeven({0})", "jnp.round({0})", ("0",)),
        # powers of two
        Operation("exponent", 1, "digits", "device.exponent({0}, {integer})", "runtime.exponent({0}, {integer})", ("0",), "nonzero"),
        Operation("ldexp", 2, "scale", "device.ldexp({0}, {1}, {floating})", "runtime.ldexp({0}, {1}, {floating})",
           ("ldexp(g, b)", "0")),
        # roots and reciprocals
        _unary("sqrt", "g * 0.5 / y", "positive", cute="device.sqrt({0}, {approx})"),
        _unary("rsqrt", "-0.5 * g * y * (y * y)", "positive", "jax.lax.rsqrt({0})", "device.rsqrt({0}, {approx})"),
        _unary("cbrt", "g / (3 * (y * y))", "nonzero"),
        _unary("reciprocal", "-g * y * y", "nonzero", cute="device.reciprocal({0}, {approx})"),
        # exponentials and logarithms
        _unary("exp", "g * y", "small", cute="device.exp({0}, {approx})"),
        _unary("exp2", f"g * y * {_LN2}", "small", cute="device.exp2({0}, {approx}, {exact})"),
        _unary("expm1", "g * (y + 1)", "small", cute="device.expm1({0}, {approx})"),
        _unary("log", "g / a", "positive", cute="device.log({0}, {approx})", fast=_FAST.format("log")),
        _unary("log2", f"g * {_LOG2E} / a", "positive", cute="device.log2({0}, {approx})", fast=_FAST.format("log2")),
        _unary("log1p", "g / (a + 1)", "nonnegative", cute="device.log1p({0}, {approx})"),
        # circular and hyperbolic functions
        _unary("sin", "g * cos(a)", cute="device.sin({0}, {approx})", fast=_FAST.format("sin")),
        _unary("cos", "-g * sin(a)", cute="device.cos({0}, {approx})", fast=_FAST.format("cos")),
        _unary("tan", "g * (1 + y * y)", "unit", cute="device.tan({0}, {approx}, {exact})"),
        _unary("asin", "g * rsqrt(1 - a * a)", "unit"),
        _unary("acos", "-g * rsqrt(1 - a * a)", "unit"),
        _unary("atan", "g / (1 + a * a)"),
        Operation("atan2", 2, "float", "device.wide(cute.math.atan2, {exact}, {0}, {1})", "jnp.arctan2({0}, {1})",
           ("g * (b / _hypot(a, b) * (1 / _hypot(a, b)))", "-g * (a / _hypot(a, b) * (1 / _hypot(a, b)))"), "nonzero"),
        _unary("sinh", "g * cosh(a)", "small", cute="device.sinh({0}, {approx}, {exact})"),
        _unary("cosh", "g * sinh(a)", "small", cute="device.cosh({0}, {approx}, {exact})"),
        _unary("tanh", "g * (1 - y * y)", cute="device.tanh({0}, {approx})", fast=_FAST.format("tanh")),
        _unary("sigmoid", "g * y * sigmoid(-a)", jnp="jax.lax.logistic({0})", cute="device.sigmoid({0}, {approx})"),
        # the error function
        _unary("erf", f"g * {_TWO_OVER_SQRT_PI} * exp(-(a * a))", jnp="jax.lax.erf({0})", cute="device.erf({0}, {approx})"),
        _unary("erfc", f"-g * {_TWO_OVER_SQRT_PI} * exp(-(a * a))", jnp="jax.lax.erfc({0})", cute="device.erfc({0}, {approx}, {exact})"),
        _unary("gelu", "g * dgelu(a)", jnp="jax.nn.gelu({0}, approximate=False)", cute="device.gelu({0}, {approx}, {exact})"),
        _unary("dgelu", "g * (2 - minimum(a * a, 2000)) * exp(-0.5 * (a * a)) * 0.3989422804014327", jnp="runtime.dgelu({0})",
               cute="device.dgelu({0}, {approx}, {exact})"),
        # random bits of a key's two words, at a place: a chain calls it `bits(key)`
        Operation("_bits", 3, "whole", "device.random_bits({0}, {1}, {2})", "runtime.random_bits({0}, {1}, {2})", ("0", "0", "0")),
        # a constant for derivatives
        Operation("stop_gradient", 1, "arith", "{0}", "jax.lax.stop_gradient({0})", ("0",)),
        # `a`, computed by the same uncontracted operations wherever it is computed (`contraction.py`)
        Operation(PINNED, 1, "arith", "{0}", "{0}", ("g",)),
        # a ** b, from `c`, which is a ** (b + 1) and is there anyway
        Operation(LOWERED_POWER, 3, "float", "device.lowered_power({0}, {1}, {2}, {approx})", "jnp.power({0}, {1})", ("", "", "")),
        # `a`, a product of the elements beside `b`, over the axes that `c` lacks: in jnp it is differentiated as that
        Operation("_others", 3, "float", "{0}", "runtime.product_of_others({0}, {1}, {2})", ("", "", "")),
    )
}  # fmt: skip

# Operations that cost many additions: it is cheaper to hold their results, or floats that are made of them, than to recompute them.
COSTLY = frozenset({
    *(name for name, op in OPS.items() if op.rule == "float" and ("math" in op.cute or "device" in op.cute)), "_bits"
})  # fmt: skip

# Python operators of the language, by the name of their ast class.
BINARY = {
    "Add": "add", "Sub": "sub", "Mult": "mul", "Div": "div", "FloorDiv": "floordiv", "Mod": "mod", "LShift": "shl",
    "RShift": "shr", "BitAnd": "and", "BitOr": "or", "BitXor": "xor",
}  # fmt: skip
COMPARE = {"Lt": "lt", "LtE": "le", "Gt": "gt", "GtE": "ge", "Eq": "eq", "NotEq": "ne"}

# Operations that formulas write only as operators, not as calls.
OPERATORS = {*BINARY.values(), *COMPARE.values(), "neg", "pow", "not", "invert"}

# Selections of the largest elements along an axis, in order: the kind of the result ("" is the argument's)
SORTS = {"sort": "", "argsort": "int"}  # these select all of them, smallest first
SELECTIONS = {"top_k": "", "top_k_index": "int", **SORTS}
PLACED = "_placed"  # the derivative of `top_k`: zeros, but for `a` at the positions `b` of selected elements; `c` is the index
UNSORT = "unsort"  # the derivative of `sort`: the elements of `a`, each at its position `b`
NUCLEUS = "nucleus"  # along an axis, the largest number such that the elements of `a` from it on sum to `b` or more
ALONE = SELECTIONS.keys() | {PLACED, UNSORT, NUCLEUS}  # a kernel computes one of them, and nothing else

TAKES = ("take", "pick")  # from a table, by an integer input, and by a computed index


class Reducing(NamedTuple):
    """A reduction; jnp has a function of the same name. The rule gives the kinds of its argument and of its result, as an operation's
    does, and the derivative is in terms of the argument `a`, the result `y`, its cotangent `g` and `axis`."""

    rule: str
    grad: str


# Elements that tie share the gradient. A product's elements are replaced by their roots, so that the product of all is in
# range wherever the product of the others is. Elements whose root cannot be a divisor (0, infinity, NaN) are counted
# separately.
_SHARED = "where(a == y, g / sum(where(a == y, 1.0, 0.0), axis=axis), where(isnan(y), y, 0))"
REDUCTIONS = {
    "sum": Reducing("arith", "g"),
    "mean": Reducing("float", "g / size(axis)"),
    "max": Reducing("arith", _SHARED),
    "min": Reducing("arith", _SHARED),
    "prod": Reducing("arith",
             "g * _others(_of_others(prod(_root(a), axis=axis) / _root(a), _besides(_is_zero(a), axis=axis), "
             "_besides(_is_inf(a), axis=axis), _besides(_is_nan(a), axis=axis)), a, prod(_root(a), axis=axis))"),
    "any": Reducing("logic", "0"),
    "all": Reducing("logic", "0"),
}  # fmt: skip

# Scans: the names of their operands. Each gives the state after (or before) every element along an axis, in order from the
# `initial` state or the operation's identity. scan: h = a h + b.
SCANS = {
    "cumsum": ("e",),
    "cumprod": ("e",),
    "cummax": ("e",),
    "cumlogsumexp": ("e",),
    "scan": ("a", "b", "initial"),
}
IN_STAGES = REDUCTIONS.keys() | SCANS.keys() | ALONE  # results that later kernels read from memory
