"""Which of two results is at fault where they differ: both are compared with the spec's reference in float64.

The terms of a gradient may cancel: a softmax is the same whatever is added to a whole row, so that bias has the gradient 0. Then both
results are rounding errors, and differ by as much. An element near a threshold may be rounded to its other side in either result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from codegen.explain.launching import Binding
from codegen.measuring.times import bench
from codegen.measuring.times.calls import TOLERANCE, WRONG
from codegen.runtime.call.cast import store
from codegen.runtime.ops.backward import BackwardOp
from codegen.runtime.ops.op import AnyOp

Call = Callable[[Any], Any]
CALLS = 8  # a single rounding error of a scalar may be small by chance
NOISE = 4  # our errors may be so many times as large as the jnp form's: both are rounding errors
MORE = 2  # so many times as many of our elements may be at the other side of a threshold


def fault(op: AnyOp, binding: Binding, make: Call, ours: Call, xla: Call) -> str:
    """What is wrong with our results on calls that `make` makes from a seed, or nothing: that too many elements are off, or that
    errors are too large, where the jnp form's are not. `binding` has the types of the op's own spec."""
    with jax.enable_x64(True):
        exact, compare = jax.jit(exact_results(op, binding, make(jnp.uint32(0)))), jax.jit(compared)
    rows, dtypes = [], list[str]()
    for seed in range(CALLS):  # the arrays of one call at a time: in float64 they are several times as large
        given = make(jnp.uint32(seed))
        pair = jax.tree.leaves((ours(given), xla(given)))
        dtypes = [x.dtype.name for x in pair[: len(pair) // 2]]
        with jax.enable_x64(True):
            rows.append([np.asarray(row, float) for row in compare(pair, exact(given))])
    found = [np.mean(numbers, axis=0) for numbers in zip(*rows, strict=True)]
    words = [_words(dtype, numbers) for dtype, numbers in zip(dtypes, found, strict=True)]
    return "; ".join(f"result {i}: {said}" for i, said in enumerate(words) if said)


def _words(dtype: str, numbers: np.ndarray) -> str:
    (off, off_of_xla), (square, square_of_xla), usual = numbers[:2], numbers[2:4], numbers[4]
    if off > WRONG + MORE * off_of_xla:
        return f"{off:.2g} of the elements are off, {off_of_xla:.2g} of the jnp form's"
    if square**0.5 > NOISE * square_of_xla**0.5 + TOLERANCE.get(dtype, 0) * usual**0.5:
        return f"errors of {square**0.5:.2g}, the jnp form's of {square_of_xla**0.5:.2g}, in {usual**0.5:.2g}"
    return ""


def exact_results(op: AnyOp, binding: Binding, given: Any) -> Call:
    """The reference in float64, or its gradients, as a function of what the op's calls take: the arrays by name, or a backward's
    values and cotangents."""
    origin = op.origin if isinstance(op, BackwardOp) else op
    static = bench.static_arguments(origin.spec, binding)
    arrays = given[0] if isinstance(op, BackwardOp) else given
    known = {*(a.name for a in origin.spec.inputs), *(p.name for p in origin.spec.params)}
    key, _ = origin.bind((), {n: x for n, x in arrays.items() if n in known} | static | {"implementation": "xla"})
    names = origin.operand_names(key)

    def forward(operands: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(map(jnp.asarray, origin.evaluate_reference(key, operands, "float64")))

    if not isinstance(op, BackwardOp):
        return lambda arrays: forward(tuple(arrays[name] for name in names))
    again = {name for name, _ in op.derived.how.same}
    found = jax.eval_shape(lambda given: op.pull(key, *given), given)
    wanted = [i for i, dx in enumerate(found) if dx is not None and names[i] not in again]

    def pulled(given: Any) -> list[Any]:
        operands = [given[0][name] for name in names]
        outer = [dy for dy in given[1] if dy is not None]

        def of(varied: list[Any]) -> list[Any]:
            full = list(operands)
            for i, x in zip(wanted, varied, strict=True):
                full[i] = x
            made = [y for y in forward(tuple(full)) if jnp.issubdtype(y.dtype, jnp.floating)]
            return [jnp.broadcast_to(y, dy.shape) for y, dy in zip(made, outer, strict=True)]

        wide = [operands[i].astype("float64") for i in wanted]
        gradients: list[Any] = jax.vjp(of, wide)[1]([dy.astype("float64") for dy in outer])[0]
        return gradients

    return pulled


def compared(pair: list[Any], exact: Any) -> list[jax.Array]:
    """For each result of two: the shares of elements that are off, the mean squares of their errors, and that of the exact values."""
    found = []
    wanted = jax.tree.leaves(exact)
    for a, b, wide in zip(pair[: len(wanted)], pair[len(wanted) :], wanted, strict=True):
        e = jnp.broadcast_to(store(wide, a.dtype), a.shape)
        if not jnp.issubdtype(a.dtype, jnp.floating):
            found.append(jnp.stack([jnp.mean(a != e), jnp.mean(b != e), *[jnp.float64(0)] * 3]))
            continue
        e, usual = e.astype("float64"), _square(e.astype("float64"))
        numbers = [_errors(x.astype("float64"), e, usual, TOLERANCE[a.dtype.name]) for x in (a, b)]
        found.append(jnp.stack([numbers[0][0], numbers[1][0], numbers[0][1], numbers[1][1], usual]))
    return found


def _errors(x: jax.Array, exact: jax.Array, usual: jax.Array, tolerance: float) -> tuple[jax.Array, jax.Array]:
    """The share of elements that are off, and the mean square of errors."""
    same = (x == exact) | (jnp.isnan(x) & jnp.isnan(exact))
    error = jnp.where(same, 0, x - exact)
    size = jnp.maximum(jnp.abs(exact), jnp.sqrt(usual))
    return jnp.mean(~(jnp.abs(error) <= tolerance * size)), _square(error)


def _square(x: jax.Array) -> jax.Array:
    """The mean square of the finite elements."""
    return jnp.mean(jnp.square(jnp.where(jnp.isfinite(x), x, 0)))
