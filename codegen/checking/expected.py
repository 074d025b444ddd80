"""The expected result of a call: the reference's values, computed on the CPU, and the error bound of the chain."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from codegen.checking.agreement import BrokenReference, EmptyCall
from codegen.checking.bounds.analysis import Analysis, dimensions_of
from codegen.checking.bounds.records import Arithmetic, Bound, Terms, depth
from codegen.checking.draw import Case
from codegen.graph.nodes import DTYPES, nodes_of
from codegen.graph.precision import deciding_types, is_narrow
from codegen.plan.access import Access, access_key
from codegen.runtime.call import arguments, views
from codegen.runtime.call.arguments import Axes, Types
from codegen.runtime.compiled.platform import on_gpu
from codegen.runtime.ops.gemm_op import GemmOp
from codegen.runtime.ops.op import AnyOp
from codegen.runtime.xla import by_position, scatter
from codegen.runtime.xla.evaluate import in_order
from codegen.runtime.xla.products import product
from codegen.spec.spec import Array


@functools.cache
def cpu_options() -> dict[str, str]:
    """XLA options that keep large reductions on the CPU from YNNPACK, whose max and min drop NaN (jaxlib 0.10.2), where the
    option exists."""
    options = {"xla_cpu_experimental_ynn_fusion_type": ""}
    try:
        with jax.default_device(jax.devices("cpu")[0]):
            jax.jit(lambda x: x, compiler_options=options)(0.0)
    except jax.errors.JaxRuntimeError:
        return {}
    return options


def computed_once(function: Callable[..., Any], *args: Any) -> Any:
    """`function(*args)` on the CPU, compiled for a short compile time rather than for speed."""
    with jax.default_device(jax.devices("cpu")[0]):
        options = {**cpu_options(), "xla_backend_optimization_level": "0"}
        return jax.jit(function, compiler_options=options)(*args)


@contextlib.contextmanager
def of_reference(op: AnyOp, axes: Axes) -> Iterator[None]:
    """A context that turns an exception of a spec's reference into `BrokenReference`."""
    try:
        yield
    except BrokenReference:
        raise
    except Exception as error:
        reason = str(error).partition("\n")[0]
        empty = next((name for name, extent in axes.extents.items() if extent == 0), "..." if 0 in axes.rows else "")
        where = f" (in a call whose {empty} is 0)" if empty else ""
        kind = EmptyCall if empty else BrokenReference
        raise kind(f"{op.spec.op}: its reference fails: {type(error).__name__}: {reason}{where}") from error


def shapes_of_outputs(op: AnyOp, axes: Axes) -> tuple[list[tuple[int, ...]], bool]:
    """The shapes of the outputs in a call, and whether all are empty: then there is nothing to compute, which many references can't."""
    shapes = [views.user_shape(a, axes) for a in op.spec.outputs]
    return shapes, all(0 in shape for shape in shapes)


def demand_shapes(op: AnyOp, values: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> None:
    """Raises `BrokenReference` if one of the reference's values does not broadcast to its output's shape, or is complex."""
    for array, value, shape in zip(op.spec.outputs, values, shapes, strict=True):
        own = np.shape(value)
        if len(own) > len(shape) or any(n not in (1, m) for n, m in zip(own[::-1], shape[::-1], strict=False)):
            raise BrokenReference(
                f"{op.spec.op}: its reference gives {array.name} the shape {own}; it is {array}, which is {shape} in this call"
            )
        if np.iscomplexobj(value):
            raise BrokenReference(
                f"{op.spec.op}: its reference gives {array.name} as complex numbers: take jnp.real of it"
            )


def unflushed(x: Any) -> np.ndarray:
    """A float array in float64, with its numbers that are subnormal in float32: XLA on a CPU flushes them where it widens."""
    own = np.asarray(x)
    return own.astype(np.float64) if jnp.issubdtype(own.dtype, jnp.floating) else own


def reference_values(op: AnyOp, args: list[Any], keywords: dict[str, Any], precision: str) -> tuple[np.ndarray, ...]:
    """The reference's unrounded values, computed on the CPU and broadcast to the outputs' shapes."""
    with jax.default_device(jax.devices("cpu")[0]):
        args = [None if a is None else jax.device_put(np.asarray(a)) for a in args]
        key, operands = op.bind(tuple(args), keywords)
        axes = arguments.bind_axes(op.spec, op.arrays(key, operands))
        shapes, empty = shapes_of_outputs(op, axes)
        if empty:
            return tuple(np.zeros(shape) for shape in shapes)
        if precision == "float64":
            operands = tuple(map(unflushed, operands))
        evaluate = functools.partial(op.evaluate_reference, key, precision=precision)
        with of_reference(op, axes):
            values = computed_once(lambda *xs: evaluate(xs), *operands)
            demand_shapes(op, values, shapes)
            return tuple(np.broadcast_to(np.asarray(v), shape) for v, shape in zip(values, shapes, strict=True))


def exact_products(op: GemmOp[..., Any], arrays: dict[str, np.ndarray], axes: Axes, gpu: bool) -> dict[str, Terms]:
    """The exact products, and the error that tensor cores may make, which is larger on a `gpu`."""
    made = {}
    for p in op.plan.products:
        factors = [np.asarray(arrays[x.name]) for x in (p.a, p.b)]
        wide = "int64" if all(DTYPES[x.dtype.name].kind == "int" for x in factors) else "float64"

        def terms(x: jax.Array, y: jax.Array, p: Any = p, wide: Any = wide) -> tuple[jax.Array, ...]:
            a, b = (v.astype(wide) for v in (x, y))
            sizes = [jnp.where(jnp.isfinite(v), abs(v), 0) for v in (a, b)]
            value, size, of_a, of_b = (
                product(p, u, v, axes, wide)
                for u, v in ((a, b), sizes, (sizes[0], jnp.ones_like(b)), (jnp.ones_like(a), sizes[1]))
            )
            return value, size, of_a + of_b

        with jax.default_device(jax.devices("cpu")[0]):
            value, size, spread = (np.asarray(x) for x in jax.jit(terms)(*factors))
        count = math.prod(axes.shape(p.axes))
        lost = lost_terms(op.spec.math, gpu, [x.dtype.name for x in factors], count)
        made[p.acc.name] = Terms(value, size, spread, count, lost)
    return made


def lost_terms(precision: str, gpu: bool, dtypes: Sequence[str], count: int) -> float:
    """The part of the sum of a product's terms that tensor cores may lose, besides float32's roundings."""
    if precision != "precise" and "float32" in dtypes:
        return 2.0**-9  # both factors rounded, or truncated, to TF32
    if gpu and all(DTYPES[d].size == 1 and DTYPES[d].kind == "float" for d in dtypes):
        # Hopper adds 32 products of float8 and the previous sum at the largest exponent, and keeps 13 bits after the
        # point (DeepSeek-V3's report, section 3.5.2; arXiv 2412.19437)
        return (count + count // 32 + 1) * 2.0**-13
    return 0.0


def approximate_nodes(op: AnyOp, types: Types, factors: dict[str, str]) -> set[int]:
    """The operations of a chain that may be approximate in a call, by identity. `factors` has the factors' type for each product."""
    spec = op.spec
    if spec.math != "auto":
        return {id(n) for n in nodes_of(op.statements)} if spec.math == "fast" else set()
    outputs, read = ({a.name: types.dtype(a) for a in arrays} for arrays in (spec.outputs, spec.inputs))
    read = {name: dtype for name, dtype in read.items() if DTYPES[dtype].kind == "float"} | factors
    found = deciding_types(op.statements, outputs, read, {})
    return {i for i, decide in found.items() if all(map(is_narrow, decide))}


def error_bounds(op: AnyOp, case: Case, args: list[Any], by_xla: bool = False) -> list[Bound]:
    """For each output, the chain's value, and its bound in a kernel, or in the `jnp` form, which XLA computes."""
    spec = op.spec
    arrays = {a.name: np.asarray(x) for a, x in zip(spec.inputs, args, strict=True) if x is not None}
    products: dict[str, Terms] = {}
    factors: dict[str, str] = {}  # the types that products are made of
    if isinstance(op, GemmOp):
        factors = {
            p.acc.name: case.types.dtype(p.a) for p in op.plan.products if op.epilogue.spec.kind(p.acc) == "float"
        }
        sizes = {
            n: np.asarray(math.prod(case.axes.shape((axis,))), np.int32)
            for p in op.plan.products
            for n, axis in p.sizes
        }
        products, op = exact_products(op, arrays, case.axes, on_gpu()), op.epilogue
        arrays |= sizes | {name: terms.value for name, terms in products.items()}
    plan = op.plan

    def value(access: Access, arrays: Mapping[str, jax.Array]) -> jax.Array:
        made = by_position.jnp_value(plan, access, arrays, case.axes, "float64", "int64")
        return in_order(access, made, spec.axes)

    widened = {name: unflushed(x) for name, x in arrays.items()}
    loaded = computed_once(lambda given: [value(a, given) for a in plan.loads], widened)
    leaves: dict[tuple[Any, ...], Any] = dict(
        zip((access_key(plan, a) for a in plan.loads), map(np.asarray, loaded), strict=True)
    )
    wide = any(case.types.dtype(a) == "float64" for a in spec.inputs if a.name not in case.absent)
    narrow = approximate_nodes(op, case.types, factors)
    how = Arithmetic("float64" if wide else "float32", spec.math == "fast", spec.integer, by_xla)
    dtypes = {a.name: case.types.dtype(a) for a in spec.inputs}
    lost = functools.partial(lost_terms, spec.math, on_gpu())
    dimensions = dimensions_of(plan.order, len(case.axes.rows))
    analysis = Analysis(how, dimensions, narrow, dict(case.types.variables), dtypes, lost)
    leaves |= {("param", name): np.asarray(value) for name, value in case.params}
    for access in plan.loads:
        if access.array is None or op.spec.kind(access.array) != "float":
            continue
        name = access.array.name
        if name in case.absent:
            leaves[access_key(plan, access)] = analysis.default(leaves[access_key(plan, access)])
        if name in products:
            made = computed_once(
                lambda given, a=access, name=name: [value(a, {name: x}) for x in given], products[name].arrays
            )
            leaves[access_key(plan, access)] = analysis.contraction(products[name].of(*map(np.asarray, made)))
    bounds = analysis.statements(op.statements, leaves)
    tolerance = {name: float(x) for name, x in spec.tolerance if name != "why"}
    results = []
    for array in spec.outputs:
        own = {part: bound for (name, part), bound in bounds.items() if name == array.name}
        found = _of_output(op, case, array, own, arrays, analysis)
        if tolerance:
            finite = np.where(np.isfinite(found.value), np.abs(found.value), 0)
            error = found.error + tolerance.get("atol", 0.0) + tolerance.get("rtol", 0.0) * finite
            found = replace(found, error=error)
        results.append(found)
    return results


def _of_output(
    op: AnyOp, case: Case, array: Array, bounds: Mapping[int | None, Bound], arrays: Mapping[str, np.ndarray], analysis: Analysis
) -> Bound:  # fmt: skip
    """The value of an output and its bound, from those of its parts, in the output's order of axes."""
    plan = op.plan
    put = next((a for a in plan.stores if a.array == array and a.into), None)
    if put is not None and put.how == "add" and op.spec.kind(array) == "float":
        return _of_sums(op, case, array, bounds[None], arrays, analysis)
    axes = array.axes if put is None else put.written
    whole = []
    for pick in ("value", "error", "overflow", "doubt"):
        parts = {
            part: by_position.arranged_as(np.asarray(getattr(bound, pick)), axes, plan.order, case.axes)
            for part, bound in bounds.items()
        }
        with jax.default_device(jax.devices("cpu")[0]):
            if put is None:
                found = by_position.join_parts(array, parts, case.axes)
            else:  # elsewhere it is the input, without an error, but XLA on a CPU may flush denormal elements
                table = arrays[put.into]
                base = table if pick == "value" else np.zeros(table.shape)
                if pick == "error" and op.spec.kind(array) == "float":
                    size = np.abs(np.nan_to_num(table.astype("float64")))
                    base = np.where(size < analysis.how.tiny, size, 0)
                there = {**arrays, put.into: base.astype(parts[None].dtype)}
                # A comparison of any may be uncertain
                how = "max" if put.how != "set" and pick != "value" else put.how
                found = scatter.put(plan, {array: jnp.asarray(parts[None])}, there, case.axes, how)[array]
                found = found.astype("int32") if pick == "value" and put.how == "add" else found  # it wraps
            whole.append(np.asarray(found))
    return Bound(*whole)


def _of_sums(
    op: AnyOp, case: Case, array: Array, added: Bound, arrays: Mapping[str, np.ndarray], analysis: Analysis
) -> Bound:
    """The value and bound of an output that is a table to which floats are added by index. An element's bound is that of a sum of the
    table's element and of all that is added to it."""
    plan = op.plan
    put = next(a for a in plan.stores if a.array == array)
    table = arrays[put.into].astype("float64")

    def summed(values: np.ndarray, base: np.ndarray, how: str = "add") -> np.ndarray:
        placed = jnp.asarray(by_position.arranged_as(values, put.written, plan.order, case.axes))
        return np.asarray(scatter.put(plan, {array: placed}, {**arrays, put.into: base}, case.axes, how)[array])

    with jax.default_device(jax.devices("cpu")[0]):
        x, error, overflow = np.broadcast_arrays(added.value, added.error, added.overflow)
        size, own = (np.where(np.isfinite(a), np.abs(a), 0) for a in (x, table))
        largest = size + np.where(np.isfinite(error), error, 0)
        none = np.zeros(table.shape)
        most = summed(np.ones(x.shape), none).max(initial=0)
        bound = (
            summed(error, none)
            + depth(most + 1) * analysis.how.unit * summed(largest, own)
            + (most + 1) * analysis.how.tiny
        )
        positive = summed(np.where(x > 0, largest, 0), np.where(table > 0, own, 0))
        negative = summed(np.where(x < 0, largest, 0), np.where(table < 0, own, 0))
        beyond = np.maximum(positive, negative) > analysis.how.top
        spilled = summed(overflow.astype("float64"), none, "max") > 0
        doubt = summed(np.broadcast_to(added.doubt, x.shape).astype("float64"), none, "max") > 0
        return Bound(summed(x, table), np.where(beyond, np.inf, bound), spilled | beyond, doubt)
