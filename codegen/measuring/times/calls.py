"""The calls of an op that are timed: arguments from a seed, the kernel and the jnp form as functions to compile, and how much
their results differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from codegen.explain.launching import Binding
from codegen.language.sizes import Shape
from codegen.measuring.times import bench
from codegen.runtime.ops.backward import BackwardOp
from codegen.runtime.ops.op import AnyOp
from codegen.runtime.ops.staged import Stage

# Relative errors that are no error: of results that were rounded once from float32 values that differ by a little
TOLERANCE = {"float64": 1e-9, "float32": 1e-3, "bfloat16": 2**-6, "float16": 2**-8, "float8_e4m3fn": 2**-2,
             "float8_e5m2": 2**-1, "float8_e8m0fnu": 1, "float4_e2m1fn": 2**-1}  # fmt: skip
WRONG = 1e-4  # part of the elements that may differ more, where a value lies at a threshold


@dataclass(frozen=True)
class Calls:
    """The functions that make an op's arguments from a seed, and the functions to call with them, by name of the
    implementation."""

    make: Callable[[Any], Any]
    run: Callable[[str | None], Callable[[Any], Any]]


def calls_of(op: AnyOp, binding: Binding, shape: Shape) -> Calls:
    """The calls of an op at a shape, or of a generated backward at a shape of its op. `binding` has the types of the
    op's spec. All functions can be traced."""
    if isinstance(op, BackwardOp):
        return _backward_calls(op, binding, shape)
    spec, static = op.spec, bench.static_arguments(op.spec, binding)
    if isinstance(op, Stage):
        named = {a.name for a in spec.inputs}
        spec = replace(spec, domain=tuple(pair for pair in op.origin.spec.domain if pair[0] in named))

    def run(implementation: str | None) -> Callable[..., Any]:
        return lambda arrays: op(**arrays, **static, implementation=implementation)

    return Calls(lambda seed: bench.make_inputs(spec, binding, shape, seed), run)


def _backward_calls(op: BackwardOp, binding: Binding, shape: Shape) -> Calls:
    spec = op.origin.spec
    static = bench.static_arguments(spec, binding)

    def inputs(seed: Any) -> dict[str, Any]:
        return bench.make_inputs(spec, binding, shape, seed)

    like: Mapping[str, Any] = jax.eval_shape(inputs, 0)
    arrays = {a.name: like[a.name] for a in spec.inputs}

    def key(implementation: str | None) -> Any:
        return op.origin.bind((), {**arrays, **static, "implementation": implementation})[0]

    def make(seed: Any) -> Any:
        residuals, outputs = bench.saved_values(op, key("xla"), inputs(seed), static)
        random = bench.cotangents_of(outputs, seed)
        return residuals, tuple(dy if jnp.issubdtype(dy.dtype, jnp.floating) else None for dy in random)

    # Of gradients that are one value only one is returned: at the end of a compiled function another one is a copy, which
    # no step of a model makes
    again = {name for name, _ in op.derived.how.same}

    def run(implementation: str | None) -> Callable[..., Any]:
        names = op.origin.operand_names(key(implementation))

        def pull(given: Any) -> list[Any]:
            found = zip(names, op.pull(key(implementation), *given), strict=True)
            return [dx for name, dx in found if dx is not None and name not in again]

        return pull

    return Calls(make, run)


def compiled(call: Callable[..., Any], *given: Any) -> Callable[..., Any]:
    """A function compiled for arguments of these shapes."""
    made: Callable[..., Any] = jax.jit(call).lower(*given).compile()
    return made


def differences(ours: Any, others: Any) -> list[tuple[Any, Any]]:
    """For each result, the share of its elements that differ by more than `TOLERANCE`, and the largest error, relative
    to the element or to the root mean square of all."""
    found = []
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(others), strict=True):
        if not jnp.issubdtype(a.dtype, jnp.floating):
            found.append((jnp.mean(a != b), jnp.float32(0)))
            continue
        tolerance = TOLERANCE[a.dtype.name]
        a, b = a.astype("float32"), b.astype("float32")
        usual = jnp.sqrt(jnp.mean(jnp.square(jnp.where(jnp.isfinite(b), b, 0))))
        same = (a == b) | (jnp.isnan(a) & jnp.isnan(b))
        error = jnp.where(same, 0, jnp.abs(a - b) / jnp.maximum(jnp.abs(b), usual))
        found.append((jnp.mean(~same & ~(error <= tolerance)), jnp.max(error)))
    return found
