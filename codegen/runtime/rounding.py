"""What a function's rounding errors come to: the function again, with the result of each of its operations off at random by
what float32 would round away (Monte Carlo arithmetic, Parker 1997). Terms that cancel exactly as the function computes them
are rounded apart, as they are by a compiler that fuses some of its operations, and one sees how large they were."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp

UNIT = 2.0**-24  # half the distance of 1 and the float32 after it
ROUND = {
    "add", "add_any", "sub", "mul", "div", "integer_pow", "pow", "square", "sqrt", "rsqrt", "cbrt", "exp", "exp2", "expm1",
    "log", "log1p", "logistic", "tanh", "sinh", "cosh", "asinh", "acosh", "atanh", "sin", "cos", "tan", "asin", "acos", "atan",
    "atan2", "erf", "erfc", "erf_inv", "reduce_sum", "dot_general", "cumsum",
}  # fmt: skip
CALLS = {"jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call"}


def rounded_apart(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` of pytrees of float64 arrays, with a key before its arguments for the errors of its operations: each up to
    `UNIT` of the result."""

    def noisy(key: jax.Array, *args: Any) -> Any:
        closed, shape = jax.make_jaxpr(function, return_shape=True)(*args)
        results = _run(closed.jaxpr, closed.consts, jax.tree.leaves(args), _keys(key))
        return jax.tree.unflatten(jax.tree.structure(shape), results)

    return jax.jit(noisy)


def _keys(key: jax.Array) -> Iterator[jax.Array]:
    while True:
        key, own = jax.random.split(key)
        yield own


def _run(jaxpr: Any, consts: Any, args: list, keys: Iterator[jax.Array]) -> list:
    known: dict[Any, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))

    def value(atom: Any) -> Any:
        return atom.val if isinstance(atom, jex.Literal) else known[atom]

    for equation in jaxpr.eqns:
        inputs = [value(atom) for atom in equation.invars]
        if equation.primitive.name in CALLS:
            inner = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
            outputs = _run(inner.jaxpr, inner.consts, inputs, keys)
        else:
            made = equation.primitive.bind(*inputs, **equation.params)
            outputs = list(made) if equation.primitive.multiple_results else [made]
        if equation.primitive.name in ROUND:
            outputs = [_rounded(y, next(keys)) for y in outputs]
        known |= zip(equation.outvars, outputs, strict=True)
    return [value(atom) for atom in jaxpr.outvars]


def _rounded(y: jax.Array, key: jax.Array) -> jax.Array:
    if not jnp.issubdtype(y.dtype, jnp.floating):
        return y
    return y * (1 + UNIT * jax.random.uniform(key, y.shape, y.dtype, -1.0, 1.0))
