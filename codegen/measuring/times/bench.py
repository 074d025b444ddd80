"""Times ops on a GPU: our kernels, XLA's fusion of the reference, and a copy of the same number of bytes, in one run.

The three take turns, so that a change of the clock or of other load affects all of them. A time is the median over
groups of calls that are queued back to back. It is the time that the GPU works on them (`device_time.py`), or, where
the profiler sees no GPU, the time until they are done. Where a call's arrays would fit a GPU's cache, calls cycle
through several sets of arrays. Bytes count each input read once and each output written once. A copy reads half of them
and writes half.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from codegen.checking.draw import whole_range
from codegen.explain.backward import summed_bytes
from codegen.explain.launching import Binding
from codegen.explain.tables import time_text
from codegen.explain.traffic import fused_bytes
from codegen.graph.nodes import DTYPES
from codegen.language.sizes import Shape, array_shape
from codegen.measuring.compiled import limits
from codegen.measuring.times import device_time
from codegen.measuring.times.device_time import Candidate
from codegen.measuring.times.measurement import Measurement
from codegen.plan.op import Gemm, products_in
from codegen.runtime.call.described import Key
from codegen.runtime.ops.backward import BackwardOp
from codegen.runtime.ops.op import AnyOp
from codegen.spec.spec import Array, Spec

GROUPS, CALLS = 5, 25
BEYOND_CACHE = 384 * 2**20  # three times the largest L2 today
MOST_SETS = 64
WHOLE = 128  # words: a copy of a number that is not a multiple of this does not reach memory bandwidth


# Timing


def measure(
    candidates: Mapping[str, Candidate],
    groups: int = GROUPS,
    calls: int = CALLS,
    clock: Callable[[], float] | None = None,
) -> dict[str, tuple[float, ...]]:
    """Microseconds a call, one number a group, of candidates that take turns: by a `clock` in seconds if one is given, else
    by the device's own where the profiler sees it. The first group of each warms up."""
    if clock is None and device_time.is_available():
        return device_time.measure(candidates, groups, calls)
    clock = clock or time.perf_counter
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for group in range(groups + 1):
        names = list(candidates)
        for name in names if group % 2 else reversed(names):
            elapsed = _group(candidates[name], calls, clock)
            if group:
                times[name].append(elapsed / calls * 1e6)
    return {name: tuple(found) for name, found in times.items()}


def _group(call: Candidate, calls: int, clock: Callable[[], float]) -> float:
    jax.block_until_ready(call(0))
    start = clock()
    for i in range(calls):
        result = call(i)  # frees the last result's memory as soon as the GPU has finished with it
    jax.block_until_ready(result)
    return clock() - start


# Candidates


def bench_op(
    op: AnyOp,
    binding: Binding,
    shape: Shape,
    groups: int = GROUPS,
    calls: int = CALLS,
    implementation: str | None = None,
) -> Measurement:
    """Time one op, or the generated backward of one, at one shape, in microseconds. `implementation` is the one timed as ours, by
    default the one of a call that names none."""
    count = bytes_of(op, binding, shape)
    with wide_types(binding):
        origin = op.origin if isinstance(op, BackwardOp) else op
        static = static_arguments(origin.spec, binding)
        count_of_sets = sets_of(count)
        made = [make_inputs(origin.spec, replace(binding, spec=origin.spec), shape, i) for i in range(count_of_sets)]
        if isinstance(op, BackwardOp):
            ours, xla, sets, others = backward_calls(
                op, made, static, replace(binding, spec=origin.spec), implementation
            )
        else:
            ours = jax.jit(lambda arrays: op(**arrays, **static, implementation=implementation))
            precision = multiplied_in(op, binding)
            xla = jax.jit(lambda arrays: op.reference(**arrays, **static, precision=precision))
            sets = others = made
        words = max(1, count // 8 // WHOLE * WHOLE)
        halves = [jax.random.bits(jax.random.key(i), (words,), "uint32") for i in range(len(sets))]
        copy = jax.jit(lambda words: words ^ 1)  # a kernel: 1% faster on an H100 than the memcpy that jnp.copy becomes
        times = measure(
            {
                "ours": lambda i: ours(sets[i % len(sets)]),
                "xla": lambda i: xla(others[i % len(others)]),
                "copy": lambda i: copy(halves[i % len(halves)]),
            },
            groups,
            calls,
        )
        instructions = limits.instruction_times(op, binding, shape, limits.clock_now())
    found = tuple(shape.items()), binding.types, count, tuple(times.items())
    return Measurement(op.spec.op, *found, kind=op.plan.kind, instructions=instructions)


def bytes_of(op: AnyOp, binding: Binding, shape: Shape) -> int:
    """The bytes that an op, or the generated backward of one, reads and writes at least."""
    count = fused_bytes(binding, shape, op.statements)
    if not isinstance(op, BackwardOp):
        return count
    origin = op.origin.planned
    summed = summed_bytes(origin, op.derived, replace(binding, spec=origin.spec), shape)
    return summed + (0 if op.derived.idle else count)


def multiplied_in(op: AnyOp, binding: Binding) -> str | None:
    """The type of XLA's matrix products: the factors' own type, or bfloat16 for float8 and integers. None where an op does not
    contract: its reference computes in float32, which costs XLA nothing."""
    products = products_in(op.plan)
    if not products:
        return None
    dtype = DTYPES[binding.dtype(products[0].a)]
    return dtype.name if dtype.kind == "float" and dtype.size > 1 else "bfloat16"


def backward_calls(
    op: BackwardOp, made: list[dict[str, Any]], static: dict[str, Any], binding: Binding, implementation: Any
) -> tuple[Callable[..., Any], Callable[..., Any], list[Any], list[Any]]:
    """Our backward and XLA's, and the sets of arrays that each takes. Ours takes the saved arrays. XLA's is jax.vjp of the
    reference with the forward's result unused: it takes the inputs, and recomputes what it needs. A gradient that two inputs
    share, or that is a cotangent, is a result of neither: a program that returned it would copy it."""
    origin = op.origin
    key, _ = origin.bind((), {**made[0], **static, "implementation": implementation})
    sets, others = [], []
    for place, arrays in enumerate(made):
        residuals, outputs = saved_values(op, key, arrays, static)
        cotangents = cotangents_of(outputs, place)
        sets.append((residuals, cotangents))
        others.append((arrays, cotangents))
    how, names = op.derived.how, origin.operand_names(key)
    given_back = {name for name, _ in how.gradients} | {s.table for s in how.scattered}
    if isinstance(origin.plan, Gemm):  # the gradients of products continue to their factors
        given_back |= origin.multiplied
    wanted = [n for n in names if n in given_back and jnp.issubdtype(jnp.result_type(made[0][n]), jnp.floating)]
    own = [i for i, name in enumerate(names) if name not in dict(how.same)]
    product_type = multiplied_in(origin, binding)
    precision = {} if product_type is None else {"precision": product_type}

    def pulled(given: tuple[Any, ...]) -> Any:
        arrays, cotangents = given
        fixed = {n: x for n, x in arrays.items() if n not in wanted}

        def forward(varied: dict[str, Any]) -> tuple[Any, ...]:
            y = origin.reference(**fixed, **varied, **static, **precision)
            return tuple(y) if len(origin.spec.outputs) > 1 else (y,)

        return jax.vjp(forward, {n: arrays[n] for n in wanted})[1](cotangents)

    def ours(given: tuple[Any, ...]) -> list[Any]:
        gradients = op.pull(key, *given)
        return [gradients[i] for i in own]

    return jax.jit(ours), jax.jit(pulled), sets, others


def saved_values(
    op: BackwardOp, key: Key, arrays: dict[str, Any], static: dict[str, Any]
) -> tuple[dict[str, Any], tuple[Any, ...]]:
    """The values that a backward takes besides cotangents, by name, and the forward's outputs."""
    origin = op.origin
    _, operands = origin.bind((), {**arrays, **static})
    outputs, values = op.saved(key, origin._functions(key), operands)
    return values | dict(zip(origin.operand_names(key), operands, strict=True)), outputs


def cotangents_of(outputs: tuple[Any, ...], seed: Any) -> tuple[Any, ...]:
    """Random cotangents of a forward's outputs."""
    return tuple(
        jax.random.normal(jax.random.key(seed + i), y.shape).astype(y.dtype)
        if jnp.issubdtype(y.dtype, jnp.floating) else np.zeros(y.shape, jax.dtypes.float0)
        for i, y in enumerate(outputs)
    )  # fmt: skip


def bench_or_fail(op: AnyOp, binding: Binding, shape: Shape, groups: int = GROUPS) -> Measurement:
    """`bench_op`, which returns an exception (out of memory, say) as a result, so that the other ops still run."""
    try:
        return bench_op(op, binding, shape, groups)
    except Exception as error:
        words = f"{type(error).__name__}: {error}".splitlines()[0]
        return Measurement(
            op.spec.op, tuple(shape.items()), binding.types, bytes_of(op, binding, shape), (), words[:300]
        )


def sets_of(count: int) -> int:
    """The number of sets of arrays, of `count` bytes each, that together exceed a cache."""
    return max(1, min(MOST_SETS, -(-BEYOND_CACHE // max(1, count))))


@contextmanager
def wide_types(binding: Binding) -> Iterator[None]:
    """A context with 64-bit types where the op needs them, and only there: they change the type in which references compute."""
    wide = any(DTYPES[binding.dtype(a)].size == 8 for a in binding.spec.arrays)
    with jax.enable_x64(wide):
        yield


def static_arguments(spec: Spec, binding: Binding) -> dict[str, Any]:
    """The keywords of a call that are not arrays: static params, and dtypes of type variables that no input has."""
    static: dict[str, Any] = {p.name: p.example for p in spec.params if p.static}
    bound = {a.dtype for a in spec.inputs}
    return static | {name: dtype for name, dtype in binding.types if name not in bound}


def make_inputs(spec: Spec, binding: Binding, shape: Shape, seed: int) -> dict[str, jax.Array]:
    """Random inputs and dynamic params within the spec's domains."""
    keys = iter(jax.random.split(jax.random.key(seed), len(spec.inputs)))
    domains = dict(spec.domain)
    arrays = {a.name: _random(next(keys), a, binding.dtype(a), shape, domains.get(a.name)) for a in spec.inputs}
    for param in spec.params:
        if not param.static:
            arrays[param.name] = jnp.asarray(param.example, param.dtype())
    return arrays


def _random(key: jax.Array, array: Array, dtype: str, shape: Shape, domain: object) -> jax.Array:
    size = array_shape(array, shape)
    if DTYPES[dtype].kind == "bool":
        return jax.random.bernoulli(key, 0.5, size)
    if DTYPES[dtype].kind == "int":
        return _whole(key, dtype, size, *whole_range(dtype, domain, shape), domain == "nonzero")
    narrow = dtype if DTYPES[dtype].size in (2, 8) else "float32"
    if isinstance(domain, tuple):
        return jax.random.uniform(key, size, narrow, *domain).astype(dtype)
    x = jax.random.normal(key, size, narrow)
    x = jnp.abs(x) if DTYPES[dtype].scales else x
    return (jnp.abs(x) + 0.125 if domain in ("positive", "nonzero") else x).astype(dtype)


def _whole(key: jax.Array, dtype: str, size: tuple[int, ...], low: int, high: int, nonzero: bool = False) -> jax.Array:
    """Integers from `low` to `high`, which the dtype can hold: computed modulo 2**32 or 2**64, so that no bound overflows."""
    word, bits = ("uint64", 64) if DTYPES[dtype].size == 8 else ("uint32", 32)
    drawn, count = jax.random.bits(key, size, word), high - low + 1
    drawn = drawn if count == 2**bits else drawn % np.array(count, word)
    drawn = (drawn + np.array(low % 2**bits, word)).astype(dtype)
    return jnp.where(drawn == 0, 1, drawn).astype(dtype) if nonzero else drawn


def typical(spec: Spec, wanted: Mapping[str, str]) -> Binding | None:
    """The dtypes to time: the wanted ones, else bfloat16 where an array may have it, else the first. None where an op lacks a
    wanted dtype."""
    bound = {}
    for name, dtypes in spec.types:
        bound[name] = wanted.get(name, "bfloat16" if "bfloat16" in dtypes else dtypes[0])
        if bound[name] not in dtypes:
            return None
    return Binding(spec, tuple(bound.items()))


# Reports


def machine() -> dict[str, str]:
    """The machine and the versions for which the numbers hold."""
    device = jax.devices()[0]
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        driver = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split("\n")[0].strip()
    except (OSError, subprocess.CalledProcessError):
        driver = "unknown"
    return {
        "gpu": device.device_kind,
        "driver": driver,
        "jax": jax.__version__,
        "cutlass-dsl": _version("nvidia-cutlass-dsl"),
        "python": platform.python_version(),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "clock": "device" if device_time.is_available() else "host",
        "empty call": time_text(empty_call_us()),
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def empty_call_us() -> float:
    """Microseconds from Python to Python of a call with next to nothing to do."""
    nothing = jax.jit(lambda words: words ^ 1)
    word = jnp.zeros(1, "uint32")
    return statistics.median(measure({"empty": lambda i: nothing(word)}, clock=time.perf_counter)["empty"])
