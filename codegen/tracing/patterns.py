"""Functions of the language recognised in formulas: each pattern is a JAX function, traced as the user's function is.

So a pattern follows the installed version of JAX. A pattern's argument stands for any formula, its axis for any axes.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from codegen.tracing.axes import Axis
from codegen.tracing.formulas import Formula, Formulas, mapped
from codegen.tracing.steps import traced
from codegen.tracing.translate import translated

# Each differs from all other constants of the patterns
SCALARS = {"lo": 0.25, "hi": 0.75, "negative_slope": 0.375, "alpha": 0.625, "b": 0.875, "d": 7}

# name in the language: forms in JAX. A parameter of SCALARS stands for a number; those of ARRAYS have these shapes and types
FUNCTIONS: dict[str, tuple[Callable[..., jax.Array], ...]] = {
    "floordiv": (lambda i, d: i // d, lambda i, j: i // j, lambda x, d: x // d, lambda x, y: x // y),
    "mod": (lambda i, d: i % d, lambda i, j: i % j, lambda x, d: x % d, lambda x, y: x % y),
    "square": (lambda x: x * x,),
    "sigmoid": (lambda x: 1 / (1 + jnp.exp(-x)),),
    "clip": (lambda x, lo, hi: jnp.clip(x, lo, hi),),
    "relu": (jax.nn.relu,),
    "relu6": (jax.nn.relu6,),
    "softplus": (jax.nn.softplus,),
    "log_sigmoid": (jax.nn.log_sigmoid,),
    "silu": (jax.nn.silu, lambda x: x * jax.nn.sigmoid(x)),
    "gelu": (
        lambda x: jax.nn.gelu(x, approximate=False),
        lambda x: 0.5 * x * (1 + jax.lax.erf(x / math.sqrt(2))),
        lambda x: x * 0.5 * (1 + jax.lax.erf(x * math.sqrt(0.5))),
    ),
    "gelu_tanh": (
        jax.nn.gelu,
        lambda x: 0.5 * x * (1 + jnp.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        lambda x: 0.5 * x * (1 + jnp.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))),
    ),
    "quick_gelu": (lambda x: x * jax.nn.sigmoid(1.702 * x),),
    "hard_sigmoid": (jax.nn.hard_sigmoid,),
    "hard_swish": (jax.nn.hard_swish,),
    "leaky_relu": (lambda x, negative_slope: jax.nn.leaky_relu(x, negative_slope),),
    "elu": (lambda x, alpha: jax.nn.elu(x, alpha), jax.nn.elu),
    "celu": (lambda x, alpha: jax.nn.celu(x, alpha),),
    "selu": (jax.nn.selu,),
    "softsign": (jax.nn.soft_sign,),
    "mish": (jax.nn.mish,),
    "squareplus": (lambda x, b: jax.nn.squareplus(x, b),),
    "squared_relu": (lambda x: jnp.square(jax.nn.relu(x)),),
    "var": (lambda x: jnp.var(x, -1), lambda x: jnp.mean(jnp.square(x - jnp.mean(x, -1, keepdims=True)), -1)),
    "norm": (lambda x: jnp.linalg.norm(x, axis=-1), lambda x: jnp.sqrt(jnp.sum(jnp.square(x), -1))),
    "softmax": (
        lambda x: jax.nn.softmax(x, -1),
        lambda x: (e := jnp.exp(x - jnp.max(x, -1, keepdims=True))) / jnp.sum(e, -1, keepdims=True),
    ),
    "log_softmax": (
        lambda x: jax.nn.log_softmax(x, -1),
        lambda x: (z := x - jnp.max(x, -1, keepdims=True)) - jnp.log(jnp.sum(jnp.exp(z), -1, keepdims=True)),
    ),
    "logsumexp": (lambda x: jax.nn.logsumexp(x, -1),),
}
# The same, times `g`, which is of shape (R,): what JAX's derivatives compute
MULTIPLIED: dict[str, tuple[Callable[[jax.Array, jax.Array], jax.Array], ...]] = {
    "softmax": (
        lambda x, g: jax.vjp(lambda x: jax.nn.logsumexp(x, -1), x)[1](g)[0],
        lambda x, g: (g / jnp.sum(e := jnp.exp(x - jax.lax.stop_gradient(jnp.max(x, -1))[:, None]), -1))[:, None] * e,
    ),
}
ALONG = frozenset({"var", "norm", "softmax", "log_softmax", "logsumexp"})  # they take an axis
FACTOR = "g"
ARRAYS = {
    **{name: jax.ShapeDtypeStruct((3, 5), "float32") for name in "xy"},
    **{name: jax.ShapeDtypeStruct((3, 5), "int32") for name in "ij"},
    FACTOR: jax.ShapeDtypeStruct((3,), "float32"),
}
SWAPPED = frozenset({"add", "mul", "maximum", "minimum", "and", "or", "eq", "ne"})


@dataclass(frozen=True)
class Pattern:
    """A function of the language of some arguments, and a formula that it stands for, perhaps times `g`."""

    name: str
    formula: Formula
    arguments: tuple[str, ...]
    scalars: tuple[str, ...]


@functools.cache
def patterns() -> tuple[Pattern, ...]:
    """All patterns; each is written with those before it."""
    found: list[Pattern] = []
    for name, forms in (*FUNCTIONS.items(), *MULTIPLIED.items()):
        made = []
        for function in forms:
            names = [p for p in inspect.signature(function).parameters if not _has_default(function, p)]
            scalars = tuple(p for p in names if p in SCALARS)
            arguments = tuple(p for p in names if p != FACTOR)
            made.append(Pattern(name, _traced(function, scalars, found), arguments, scalars))
        found += made
    return tuple(found)


def _has_default(function: Callable[..., object], name: str) -> bool:
    return inspect.signature(function).parameters[name].default is not inspect.Parameter.empty


def _traced(function: Callable[..., jax.Array], scalars: tuple[str, ...], known: list[Pattern]) -> Formula:
    names = [p for p in inspect.signature(function).parameters if p in ARRAYS]
    flat = traced(lambda *given: function(*given, *(SCALARS[s] for s in scalars)), *(ARRAYS[n] for n in names))
    made = translated(flat.steps, dict(zip(flat.inputs, names, strict=True)))
    (formula,) = made.parts(flat.outputs[0])
    return recognised(made.formulas, [formula], 1e-6, known)[0]


def recognised(
    formulas: Formulas, roots: list[Formula], tolerance: float, known: list[Pattern] | tuple[Pattern, ...] | None = None
) -> list[Formula]:
    """The same formulas with functions of the language in them. Constants may differ by the relative `tolerance`: in bfloat16
    they were rounded."""
    found = patterns() if known is None else known
    by_op: dict[str, list[Pattern]] = {}
    for pattern in found:
        by_op.setdefault(pattern.formula.op, []).append(pattern)

    def change(formula: Formula) -> Formula:
        while True:
            for pattern in by_op.get(formula.op, ()):
                bound = next(_match(pattern.formula, formula, {}, tolerance, pattern.scalars), None)
                if bound is not None and (new := _called(formulas, pattern, formula, bound)) is not None:
                    break
            else:
                return formula
            formula = new

    return mapped(formulas, roots, change)


Bound = dict[object, object]


def _called(formulas: Formulas, pattern: Pattern, formula: Formula, bound: Bound) -> Formula | None:
    args = tuple(bound[name] for name in pattern.arguments)
    assert all(isinstance(a, Formula) for a in args)
    if any(a.is_number for a in args[:1]):  # type: ignore[attr-defined]
        return None
    attr = bound["axes"] if pattern.name in ALONG else None
    made = formulas.make(pattern.name, args, formula.kind, attr)  # type: ignore[arg-type]
    factor = bound.get(FACTOR)
    return formulas.make("mul", (factor, made), formula.kind) if isinstance(factor, Formula) else made


def _match(
    pattern: Formula, formula: Formula, bound: Bound, tolerance: float, scalars: tuple[str, ...]
) -> Iterator[Bound]:
    """The ways in which a formula is of the pattern's form: what x, the axes and the scalars stand for."""
    if pattern.op == "input":
        name, _ = pattern.attr
        if bound.get(name, formula) is formula and formula.kind == pattern.kind:
            yield {**bound, name: formula}
        return
    if pattern.is_number:
        yield from _number(pattern, formula, bound, tolerance, scalars)
        return
    if pattern.op != formula.op or len(pattern.args) != len(formula.args):
        return
    if isinstance(pattern.attr, frozenset) and any(isinstance(a, Axis) for a in pattern.attr):
        if bound.get("axes", formula.attr) != formula.attr:
            return
        bound = {**bound, "axes": formula.attr}
    elif pattern.attr != formula.attr:
        return
    orders = [formula.args]
    if pattern.op in SWAPPED and len(formula.args) == 2:
        orders.append(formula.args[::-1])
    for args in orders:
        yield from _all(pattern.args, args, bound, tolerance, scalars)


def _all(
    patterns: tuple[Formula, ...], args: tuple[Formula, ...], bound: Bound, tolerance: float, scalars: tuple[str, ...]
) -> Iterator[Bound]:
    if not patterns:
        yield bound
        return
    for first in _match(patterns[0], args[0], bound, tolerance, scalars):
        yield from _all(patterns[1:], args[1:], first, tolerance, scalars)


def _number(
    pattern: Formula, formula: Formula, bound: Bound, tolerance: float, scalars: tuple[str, ...]
) -> Iterator[Bound]:
    if not formula.is_number:
        return
    for scalar in scalars:
        if pattern.attr == SCALARS[scalar]:
            before = bound.get(scalar, formula)
            if isinstance(before, Formula) and before.attr == formula.attr:
                yield {**bound, scalar: formula}
            return
    if pattern.attr == formula.attr or math.isclose(pattern.attr, formula.attr, rel_tol=tolerance):
        yield bound
