"""Estimates a function's rounding error: runs the function with a random error of float32's rounding in the result of each
operation (Monte Carlo arithmetic, Parker 1997). Terms that would cancel exactly get different errors, as from a compiler that
fuses some operations, so their size becomes visible."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np

Error = Callable[[jax.Array], jax.Array]  # a result's errors, in units: between -1 and 1 for each of its elements

UNIT = 2.0**-24  # half the distance between 1 and the next float32
ROUND = {"add", "add_any", "sub", "mul", "div", "integer_pow", "square", "sqrt", "reduce_sum", "cumsum"}
FUNCTIONS = {
    "pow", "rsqrt", "cbrt", "exp", "exp2", "expm1", "log", "log1p", "logistic", "tanh", "sinh", "cosh", "asinh", "acosh",
    "atanh", "sin", "cos", "tan", "asin", "acos", "atan", "atan2", "erf", "erfc", "erf_inv",
}  # fmt: skip
CALLS = {"jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call"}


def rounded_apart(function: Callable[..., Any], functions: float = UNIT, products: float = UNIT) -> Callable[..., Any]:
    """`function`, of pytrees of float64 arrays, with an additional first argument: the seed of its operations' errors. Each error
    is up to `UNIT` of the result for arithmetic, up to `products` for matrix products, and up to `functions` for other
    operations."""
    units = dict.fromkeys(ROUND, UNIT) | dict.fromkeys(FUNCTIONS, functions) | {"dot_general": products}

    def run(error: Error, *args: Any) -> Any:
        closed, shape = jax.make_jaxpr(function, return_shape=True)(*args)
        results = _run(closed.jaxpr, closed.consts, jax.tree.leaves(args), error, units)
        return jax.tree.unflatten(jax.tree.structure(shape), results)

    @functools.lru_cache(maxsize=8)
    def shapes(structure: Any, *leaves: jax.ShapeDtypeStruct) -> list[tuple[int, ...]]:
        """The shapes of the results that have errors, in order."""
        found: list[tuple[int, ...]] = []

        def note(y: jax.Array) -> jax.Array:
            found.append(y.shape)
            return y

        jax.eval_shape(functools.partial(run, note), *jax.tree.unflatten(structure, leaves))
        return found

    def with_errors(errors: list[jax.Array], *args: Any) -> Any:
        left = iter(errors)
        return run(lambda y: next(left).astype(y.dtype), *args)

    compiled = jax.jit(with_errors)

    def noisy(seed: int, *args: Any) -> Any:
        leaves, structure = jax.tree.flatten(args)
        described = [jax.ShapeDtypeStruct(np.shape(x), x.dtype) for x in leaves]
        random = np.random.default_rng(seed)  # XLA would take long to compile a generator for each operation
        return compiled([random.uniform(-1, 1, shape) for shape in shapes(structure, *described)], *args)

    return noisy


def _run(jaxpr: Any, consts: Any, args: list[Any], error: Error, units: dict[str, float]) -> list[Any]:
    known: dict[Any, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))

    def value(atom: Any) -> Any:
        return atom.val if isinstance(atom, jex.Literal) else known[atom]

    for equation in jaxpr.eqns:
        inputs = [value(atom) for atom in equation.invars]
        if equation.primitive.name in CALLS:
            inner = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
            outputs = _run(inner.jaxpr, inner.consts, inputs, error, units)
        else:
            made = equation.primitive.bind(*inputs, **equation.params)
            outputs = list(made) if equation.primitive.multiple_results else [made]
        if (unit := units.get(equation.primitive.name)) is not None:
            outputs = [_rounded(y, error, unit) for y in outputs]
        known |= zip(equation.outvars, outputs, strict=True)
    return [value(atom) for atom in jaxpr.outvars]


def _rounded(y: jax.Array, error: Error, unit: float) -> jax.Array:
    return y * (1 + unit * error(y)) if jnp.issubdtype(y.dtype, jnp.floating) else y
