"""The parts of a random spec: axes, arrays, parameters, values, and the operations that the two printers know."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

ROWS = "..."


@dataclass(frozen=True)
class Dim:
    """A dimension of an array: a named axis, of a fixed `width`; with `parts`, an axis of halves or pairs, or only parts;
    with `inner`, a split, whose inner axis has a fixed `width` or that of another array."""

    axis: str = ""
    parts: int = 0
    interleaved: bool = False
    inner: str = ""
    width: int = 0

    def __str__(self) -> str:
        if self.inner:
            blocks = f"{self.axis} {self.inner}={self.width}" if self.width else f"{self.axis} {self.inner}"
            if self.parts:
                return f"({blocks} {self.parts})" if self.interleaved else f"({self.parts} {blocks})"
            return f"({blocks})"
        if self.width:
            return f"{self.axis}={self.width}"
        if self.parts and self.axis:
            return f"({self.axis} {self.parts})" if self.interleaved else f"({self.parts} {self.axis})"
        return str(self.parts) if self.parts else self.axis


@dataclass(frozen=True)
class Array:
    """An input or an output; `dtype` is a dtype or a type variable."""

    name: str
    dtype: str
    dims: tuple[Dim, ...]
    default: float | int | bool | None = None

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(name for d in self.dims for name in (d.axis, d.inner) if name)

    @property
    def parts(self) -> int:
        return sum(d.parts for d in self.dims)

    def __str__(self) -> str:
        default = "" if self.default is None else f" = {self.default}"
        return f"{self.dtype}[{', '.join(map(str, self.dims))}]{default}"


@dataclass(frozen=True)
class Param:
    """A parameter. `kind` is float, int or bool."""

    name: str
    kind: str
    default: Any
    static: bool


class Node(NamedTuple):
    """A value: an operation of `ROWS_OF`, or one of the leaves and calls that the printers know."""

    op: str
    kind: str
    dims: frozenset[str]
    args: tuple[Node, ...] = ()
    attr: Any = None


def nodes(node: Node) -> Iterator[Node]:
    yield node
    for arg in node.args:
        yield from nodes(arg)


class Row(NamedTuple):
    """An operation: the kinds of its arguments (f: a float, to which integers are converted; n: a number of the other
    arguments' kind; b: a bool) and of its result, its two texts, and the bounds of float arguments that keep values
    moderate."""

    takes: str
    gives: str
    jnp: str
    chain: str = ""
    confined: str = ""


def _functions(gives: str, confined: str, *names: str) -> dict[str, Row]:
    return {name: Row("f", gives, f"jnp.{name}({{0}})", f"{name}({{0}})", confined) for name in names}


def _nn(*names: str) -> dict[str, Row]:
    return {name: Row("f", "f", f"jax.nn.{name}({{0}})", f"{name}({{0}})") for name in names}


def _signs(takes: str, gives: str, **signs: str) -> dict[str, Row]:
    return {name: Row(takes, gives, f"({{0}} {s} {{1}})", f"({{0}} {s} {{1}})") for name, s in signs.items()}


OPS: dict[str, Row] = {
    **_signs("nn", "n", add="+", sub="-", mul="*"),
    **_signs("nn", "b", lt="<", le="<=", gt=">", ge=">=", eq="==", ne="!="),
    **_signs("bb", "b", both="&", either="|", differ="^"),
    **_signs("nn", "n", bits_and="&", bits_or="|", bits_xor="^", shl="<<", shr=">>"),
    "invert": Row("n", "n", "(~{0})", "(~{0})"),
    "popcount": Row("n", "n", "jax.lax.population_count({0})", "popcount({0})"),
    "floordiv": Row("nn", "n", "jnp.floor_divide({0}, {1})", "({0} // {1})"),
    "mod": Row("nn", "n", "jnp.remainder({0}, {1})", "({0} % {1})"),
    "ldexp": Row("fn", "f", "jnp.ldexp({0}, {1})", "ldexp({0}, {1})"),
    "stop_gradient": Row("n", "n", "jax.lax.stop_gradient({0})", "stop_gradient({0})"),
    "logaddexp": Row(  # the slope of jnp's own is wrong where an argument is infinite
        "ff", "f", "jnp.where(jnp.isnan({0} - {1}), {0} + {1}, "
        "jnp.maximum({0}, {1}) + jnp.log1p(jnp.exp(jnp.minimum({0}, {1}) - jnp.maximum({0}, {1}))))", "logaddexp({0}, {1})",
    ),
    "not": Row("b", "b", "(~{0})", "(~{0})"),
    "neg": Row("n", "n", "(-{0})", "(-{0})"),
    "minimum": Row("nn", "n", "jnp.minimum({0}, {1})", "minimum({0}, {1})"),
    "maximum": Row("nn", "n", "jnp.maximum({0}, {1})", "maximum({0}, {1})"),
    "where": Row("bnn", "n", "jnp.where({0}, {1}, {2})", "where({0}, {1}, {2})"),
    "abs": Row("n", "n", "jnp.abs({0})", "abs({0})"),
    "sign": Row("n", "n", "jnp.sign({0})", "sign({0})"),
    "square": Row("n", "n", "jnp.square({0})", "square({0})"),
    "rem": Row("nn", "n", "jnp.fmod({0}, {1})", "rem({0}, {1})"),
    "clip": Row("nnn", "n", "jnp.minimum(jnp.maximum({0}, {1}), {2})", "clip({0}, {1}, {2})"),
    "gate": Row("fb", "f", "jnp.where({1}, {0}, 0)", "({0} * {1})"),
    "div": Row("ff", "f", "({0} / {1})", "({0} / {1})", " positive"),
    "atan2": Row("ff", "f", "jnp.arctan2({0}, {1})", "atan2({0}, {1})", " positive"),
    "pow": Row("f", "f", "({0} ** {attr})", "({0} ** {attr})", "positive"),
    **_functions("f", "positive", "sqrt", "cbrt", "log", "log2"),
    **_functions("f", "bounded", "exp", "exp2", "expm1", "sinh", "cosh"),
    **_functions("f", "", "sin", "cos", "tanh", "floor", "ceil", "round"),
    **_functions("f", "unit", "tan"),
    **_functions("b", "", "isnan", "isinf", "isfinite"),
    "log1p": Row("f", "f", "jnp.log1p({0})", "log1p({0})", "positive"),
    "reciprocal": Row("f", "f", "(1 / {0})", "reciprocal({0})", "positive"),
    "rsqrt": Row("f", "f", "jax.lax.rsqrt({0})", "rsqrt({0})", "positive"),
    "asin": Row("f", "f", "jnp.arcsin({0})", "asin({0})", "unit"),
    "acos": Row("f", "f", "jnp.arccos({0})", "acos({0})", "unit"),
    "atan": Row("f", "f", "jnp.arctan({0})", "atan({0})"),
    "erf": Row("f", "f", "jax.lax.erf({0})", "erf({0})"),
    "erfc": Row("f", "f", "jax.lax.erfc({0})", "erfc({0})"),
    **_nn("relu", "relu6", "elu", "celu", "selu", "silu", "sigmoid", "log_sigmoid", "hard_sigmoid", "hard_swish",
          "softplus", "mish"),
    "squareplus": Row("f", "f", "jax.nn.squareplus({0})", "squareplus({0})"),
    "gelu": Row("f", "f", "jax.nn.gelu({0}, approximate=False)", "gelu({0})"),
    "gelu_tanh": Row("f", "f", "jax.nn.gelu({0}, approximate=True)", "gelu_tanh({0})"),
    "quick_gelu": Row("f", "f", "({0} * jax.nn.sigmoid(1.702 * {0}))", "quick_gelu({0})"),
    "squared_relu": Row("f", "f", "jnp.square(jax.nn.relu({0}))", "squared_relu({0})"),
    "hard_tanh": Row("f", "f", "jax.nn.hard_tanh({0})", "hard_tanh({0})"),
    "leaky_relu": Row("f", "f", "jax.nn.leaky_relu({0}, 0.2)", "leaky_relu({0}, 0.2)"),
    "softsign": Row("f", "f", "jax.nn.soft_sign({0})", "softsign({0})"),
}  # fmt: skip

# Reductions: takes, gives, the jnp text of an array {0} along {1}, and what an argument is confined to
FOLDS: dict[str, Row] = {
    "sum": Row("n", "n", "jnp.sum({0}, axis={1}, keepdims=True, dtype={0}.dtype)"),
    "prod": Row("n", "n", "jnp.prod({0}, axis={1}, keepdims=True, dtype={0}.dtype)", confined="near_one"),
    "max": Row("n", "n", "jnp.max({0}, axis={1}, keepdims=True)"),
    "min": Row("n", "n", "jnp.min({0}, axis={1}, keepdims=True)"),
    "mean": Row("f", "f", "jnp.mean({0}, axis={1}, keepdims=True)"),
    "var": Row("f", "f", "jnp.var({0}, axis={1}, keepdims=True)"),
    "std": Row("f", "f", "jnp.std({0}, axis={1}, keepdims=True)"),
    "norm": Row("f", "f", "jnp.sqrt(jnp.sum(jnp.square({0}), axis={1}, keepdims=True))"),
    "logsumexp": Row("f", "f", "jax.nn.logsumexp({0}, axis={1}, keepdims=True)"),
    "any": Row("b", "b", "jnp.any({0}, axis={1}, keepdims=True)"),
    "all": Row("b", "b", "jnp.all({0}, axis={1}, keepdims=True)"),
    "softmax": Row("f", "f", "jax.nn.softmax({0}, axis={1})"),
    "log_softmax": Row("f", "f", "jax.nn.log_softmax({0}, axis={1})"),
}
KEEPING = {"softmax", "log_softmax"}  # which keep the axis

SATURATING = {"float8_e4m3fn": "448", "float8_e5m2": "57344"}
INTEGERS = {
    **{f"int{b}": (-(2 ** (b - 1)), 2 ** (b - 1) - 1) for b in (8, 16, 32, 64)},
    **{f"uint{b}": (0, 2**b - 1) for b in (8, 16, 32)},
}
NARROW = {"int4": (-8, 7), "uint4": (0, 15)}
WIDE_INTEGERS = {"int64", "uint32"}


def kind_of(dtype: str) -> str:
    return "bool" if dtype == "bool" else "int" if "int" in dtype else "float"
