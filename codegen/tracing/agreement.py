"""Compares a traced spec with its function: both run on random arguments, on the CPU or wherever JAX runs."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from codegen.graph.nodes import ROWS
from codegen.spec.spec import Array, Spec
from codegen.tracing.ops import op_of
from codegen.tracing.specs import Made
from codegen.tracing.steps import Flat, Value, traced

NARROW = ("bfloat16", "float16")
CLOSE = 2.0**-14  # of the largest element: float32 on both sides
ROUNDED = 8  # the same in eps of a narrow type, where the function rounds on the way
LEADING: tuple[tuple[int, ...], ...] = ((), (2, 1, 3))  # sizes of `...`: a reference is called with any number


def with_reference(made: Made, several: Sequence[tuple[int, ...]] = LEADING, allowed: float = CLOSE) -> str:
    """A message where the op's jnp form and its reference differ by more than this part of the largest element, on small arrays with
    these leading axes, by default none and several; "" where they agree."""
    spec, op = made.planned.spec, op_of(made.planned)
    types = {t: dtypes[0] for t, dtypes in spec.types}
    has_rows = any(ROWS in a.axes for a in spec.inputs)
    for leading in several if has_rows else ((),):
        sizes = {axis: 3 + zlib.crc32(axis.encode()) % 5 for axis in spec.axes} | dict(spec.extents)
        given = [_drawn(spec, a, types, sizes, leading) for a in spec.inputs]
        try:
            wanted, got = op.reference(*given), op(*given, implementation="xla")
        except Exception as error:  # whatever a statement of the source raises with other sizes
            return f"the reference does not take arrays of {[g.shape for g in given]}: {error}"
        for array, a, b in zip(spec.outputs, as_tuple(got), as_tuple(wanted), strict=True):
            if far := difference(a, b, allowed):
                return f"{array.name} and its reference differ {far}"
    return ""


def with_function(
    call: Callable[[list[Any], list[Any]], Any], made: Made, flat: Flat, numbers: list[float], examples: Sequence[Any]
) -> str:
    """A message where the op's jnp form and the function differ on arguments of its shapes, floats in float32; "" where
    they agree."""
    arrays = [e for e in examples if not isinstance(e, float)]
    leaves, tree = jax.tree.flatten(arrays)
    op, spec = op_of(made.planned), made.planned.spec
    values = flat.inputs[: len(leaves)]
    limits, narrow_inputs = _limits(made), {a.value: a.dtype for a in made.inputs if spec.array(a.name).dtype in NARROW}
    given = [drawn(v.shape, narrow_inputs.get(v, v.dtype), place, limits.get(v, 8)) for place, v in enumerate(values)]
    steps = traced(lambda *given: call(jax.tree.unflatten(tree, given), numbers), *given).steps
    narrow = [v.dtype for s in steps for v in s.outputs if v.dtype in NARROW]
    allowed = max([ROUNDED * float(jnp.finfo(d).eps) for d in narrow], default=CLOSE)
    wanted = jax.tree.leaves(jax.jit(call)(jax.tree.unflatten(tree, given), numbers))
    by_value = dict(zip(values, given, strict=True))
    operands = [by_value[a.value].reshape(a.shape) for a in made.inputs]
    got = as_tuple(op(*operands, **_keywords(spec, numbers), implementation="xla"))
    for array, a, b in zip(made.outputs, got, wanted, strict=True):
        if far := difference(a.reshape(b.shape), b, allowed):
            return f"{array.name} of the op and of the function differ {far}"
    return ""


def difference(got: Any, wanted: Any, allowed: float) -> str:
    """A message with the largest difference of results, if that is more than this part of the largest element; ""
    otherwise."""
    a, b = np.asarray(got, np.float64), np.asarray(wanted, np.float64)
    if a.shape != b.shape:
        return f"in shape, {a.shape} and {b.shape}"
    if not np.array_equal(np.isnan(a), np.isnan(b)):
        return "where one is NaN"
    good = np.isfinite(b) & np.isfinite(a)
    size = float(np.max(np.abs(b[good]), initial=0.0))
    worst = float(np.max(np.abs(a[good] - b[good]), initial=0.0))
    if not jnp.issubdtype(wanted.dtype, jnp.floating):
        allowed = 0.0
    return f"by {worst:.3g} of {size:.3g}" if worst > allowed * size else ""


def as_tuple(results: Any) -> tuple[Any, ...]:
    """An op's results: one output is returned bare."""
    return tuple(results) if isinstance(results, tuple) else (results,)


def _keywords(spec: Spec, numbers: list[float]) -> dict[str, float]:
    return {p.name: p.default for p in spec.params if isinstance(p.default, float)} if numbers else {}


def _limits(made: Made) -> dict[Value, int]:
    """For the inputs that are positions along an axis, its size."""
    spec = made.planned.spec
    sizes = {
        n: x.size
        for a in made.inputs
        for n, x in zip(reversed(spec.array(a.name).axes), reversed(a.axes), strict=False)
    }
    domain: Mapping[str, Any] = dict(spec.domain)
    return {a.value: _limit(domain[a.name], sizes) for a in made.inputs if a.name in domain}


def _limit(domain: Any, sizes: Mapping[str, int]) -> int:
    axis = getattr(domain, "axis", None) or str(domain).removeprefix("index(").removesuffix(")")
    return sizes.get(axis, 3)


def _drawn(
    spec: Spec, array: Array, types: Mapping[str, str], sizes: Mapping[str, int], leading: tuple[int, ...]
) -> Any:
    shape: list[int] = []
    for dim in array.dims:
        if dim.names == (ROWS,):
            shape += leading
        else:
            size = 1
            for name in dim.names:
                size *= sizes[name]
            shape.append(size * (dim.parts or 1))
    domain = dict(spec.domain).get(array.name)
    limit = _limit(domain, sizes) if domain is not None else 3
    return drawn(tuple(shape), types.get(array.dtype, array.dtype), zlib.crc32(array.name.encode()), limit)


def drawn(shape: tuple[int, ...], dtype: str, seed: int, limit: int) -> Any:
    """A random array; integers are below the limit."""
    draw, kind = np.random.default_rng(seed), jnp.dtype(dtype)
    if dtype == "bool":
        return jnp.asarray(draw.random(shape) < 0.5)
    if jnp.issubdtype(kind, jnp.integer):
        return jnp.asarray(draw.integers(0, max(1, limit), shape), kind)
    return jnp.asarray(draw.standard_normal(shape, np.float32), kind)
