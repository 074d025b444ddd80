"""Hypothesis strategies for an op's calls, from its spec.

Shapes and structure are drawn, so that a failing call shrinks. The arrays' values come from a drawn seed.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from codegen import extras
from codegen.autodiff.backward import Derived
from codegen.checking.bounds.twins import stored
from codegen.errors import UserError
from codegen.graph.nodes import DTYPES, ROWS, least_sizes
from codegen.plan.access import Plan
from codegen.plan.attention import Attention
from codegen.plan.launches import PlannedCall
from codegen.plan.op import attention_in, contracted_axes
from codegen.plan.planner import overrides
from codegen.plan.rows.launching.walking import ANY, in_parts
from codegen.plan.rows.middle import in_stages
from codegen.runtime.call.arguments import Axes, Types
from codegen.runtime.call.views import user_shape
from codegen.runtime.ops.op import AnyOp
from codegen.spec.spec import Param, positions

with extras.needed("test"):
    from hypothesis import strategies as st

BUDGET = 20_000  # elements of the largest array
SCALES = (1.0, 1.0, 1e-3, 30.0, 1e4)
WHOLE = 32  # elements that are whole vectors of any dtype


@dataclass(frozen=True)
class Case:
    """One call without its values, which `arrays` makes from the seed."""

    types: Types
    rows: tuple[int, ...]
    extents: tuple[tuple[str, int], ...]
    absent: tuple[str, ...]
    params: tuple[tuple[str, Any], ...]
    specials: bool
    scale: float
    seed: int

    @property
    def axes(self) -> Axes:
        return Axes(self.rows, dict(self.extents))

    def __str__(self) -> str:
        words = [f"{name}={value}" for name, value in (*self.types.variables, *self.extents, *self.params)]
        if self.rows:
            words.insert(0, f"...={self.rows}")
        words += [f"without {', '.join(self.absent)}"] if self.absent else []
        return (
            f"{', '.join(words)}, scale {self.scale:g}, {'with' if self.specials else 'no'} specials, seed {self.seed}"
        )


def attention_of(op: AnyOp, gradients: bool) -> tuple[Attention, ...]:
    """The attention plans of an op. With `gradients`, its backward's plans follow."""
    own = attention_in(op.plan)
    return (*own, *attention_in(op.backward.op.plan)) if gradients and isinstance(op.backward, Derived) else own


def types_of_calls(op: AnyOp, implementation: str | None, gradients: bool = False) -> tuple[Types, ...]:
    """The bindings of an op's type variables that such an implementation runs: attention's kernels take some of them, or none."""
    from codegen.runtime.call.arguments import all_types

    bound = tuple(all_types(op.spec))
    if implementation in ("xla", None):
        return bound

    def takes(types: Types) -> bool:
        try:
            for plan in attention_of(op, gradients):
                plan.check_types({v.array.name: types.dtype(v.array) for v in plan.views})
        except UserError:
            return False
        return True

    return tuple(filter(takes, bound))


def cases(
    op: AnyOp,
    specials: bool | None = None,
    types: tuple[Types, ...] | None = None,
    empty: bool | None = None,
    whole: bool = False,
    gradients: bool = False,
) -> st.SearchStrategy[Case]:
    """Calls of an op: sizes 0, 1, primes, and one below, at and above the vector and the block. By default some calls have
    special values, and some an `empty` array. With `whole`, an op that multiplies no matrices has rows of whole vectors. With
    `gradients`, kernels take the sizes for these too."""
    from codegen.runtime.call.arguments import all_types

    spec = op.spec
    bound = types or tuple(all_types(spec))

    @st.composite
    def draw(pick: Any) -> Case:
        choice = pick(st.sampled_from(bound))
        names = [axis for axis in spec.axes if axis != ROWS]
        of_products = functools.partial(_product_sizes, attention=attention_of(op, gradients))
        sizes = of_products if contracted_axes(op.plan) else functools.partial(_sizes, whole=whole)
        rows, extents = sizes(pick, op, {a.name: choice.dtype(a) for a in spec.arrays}, names)
        if (pick(st.integers(0, 9)) == 0) if empty is None else empty:
            # not an axis that a value is picked from: a table's, or one that a max reduces
            needed = {a.index_of[1] for a in op.plan.loads if a.index_of}
            needed |= {s.at.axis for s in op.statements if s.at}
            needed |= {axis for a in op.plan.loads if a.mode == "table" for axis in a.array.axes}
            needed |= {axis for domain in dict(spec.domain).values() for axis in positions(domain)}
            needed |= {p.contracted for p in attention_in(op.plan)}  # there is a kernel for some sizes
            needed |= {axis for node in op.plan.extremes for axis in node.attr}
            needed |= {axis for axes in least_sizes(s.value for s in op.statements) for axis in axes}
            free = [a for a in (*names, *([ROWS] if rows else [])) if a not in spec.extents and a not in needed]
            where = pick(st.sampled_from(free or [""]))
            if where == ROWS:
                rows = (*rows[:-1], 0)
            elif where:
                extents[where] = 0
        optional = [a.name for a in spec.inputs if a.default is not None]
        absent = tuple(name for name in optional if pick(st.booleans()))
        params = tuple((p.name, pick(_param(p, dict(spec.domain).get(p.name)))) for p in spec.params)
        special = pick(st.booleans()) if specials is None else specials
        scale = pick(st.sampled_from(SCALES))
        seed = pick(st.integers(0, 2**32 - 1))
        return Case(choice, rows, tuple(extents.items()), absent, params, special, scale, seed)

    return draw()


def _sizes(
    pick: Any, op: AnyOp, dtypes: Mapping[str, str], names: list[str], whole: bool
) -> tuple[tuple[int, ...], dict[str, int]]:
    """The leading sizes, and the sizes of the named axes."""
    spec = op.spec
    edges = [n for v in op.plan.edges(PlannedCall(dtypes, schedule=overrides(spec, None))) for n in (v - 1, v, v + 1)]
    inner = [n for n in (1, 2, 3, 5, 7, 8, 13, 16, 31, 64, 127, 257, 1021, *edges) if 0 < n <= BUDGET // 2]
    last = ([axis for axis in names if axis not in spec.extents] or [""])[-1]
    columns = op.plan.kind in ("column", "row+column")
    least = _least(op)
    last = next(iter(least), last)
    even = _even(op, dtypes)
    extents: dict[str, int] = {}
    left = BUDGET
    for axis in reversed(names):
        pool = inner if axis == last or (columns and axis == names[0]) else [1, 2, 3, 5, 7]
        pool = [m + least.get(axis, 1) - 1 for m in pool]
        pool = [2 * m for m in pool] if axis in even else pool
        pool = [m for m in pool if m <= max(1, left)]
        pool = ([m for m in pool if m % WHOLE == 0] if whole and axis == last else []) or pool
        n = spec.extents.get(axis) or pick(st.sampled_from(pool))
        extents[axis] = n
        left //= max(1, n)
    rows: tuple[int, ...] = ()
    if ROWS in spec.axes:
        sizes = [n for n in (1, 2, 3, 5, 17, 64, 255, *([] if names and not columns else inner)) if n <= max(1, left)]
        rank = pick(st.integers(0, 3))
        for _ in range(rank):
            n = pick(st.sampled_from([m for m in sizes if m <= max(1, left)]))
            rows, left = (n, *rows), left // n
    return rows, extents


def _least(op: AnyOp) -> dict[str, int]:
    """The least sizes of the axes along which elements are selected."""
    return {axes[-1]: count for axes, count in least_sizes(s.value for s in op.statements).items()}


def _even(op: AnyOp, dtypes: Mapping[str, str]) -> set[str]:
    """The axes with an even size: the last ones of arrays of 4-bit numbers, which kernels read by the byte."""
    last = [a.dims[-1].names for a in op.spec.arrays if a.dims and DTYPES[dtypes[a.name]].packed]
    return {names[-1] for names in last if names}


# Around the tiles of matrices and the vectors of rows
CONTRACTED = (1, 3, 8, 16, 31, 32, 64, 65, 130)
HEADS = (8, 16, 40)
TILED = (1, 2, 3, 5, 8, 13, 16, 31, 64, 65, 127, 128, 136, 257)


def _product_sizes(
    pick: Any, op: AnyOp, dtypes: Mapping[str, str], names: list[str], attention: tuple[Attention, ...]
) -> tuple[tuple[int, ...], dict[str, int]]:
    """The sizes for an op that contracts: no array has all axes, and a contraction should take more than one step."""
    contracted, even, least = contracted_axes(op.plan), _even(op, dtypes), _least(op)
    tiled = {op.plan.order[-1], *([] if ROWS in op.spec.axes else op.plan.order[-2:])}
    extents = {}
    heads = {axis for p in attention for axis in (p.contracted, p.value)}
    if heads:  # scores are made by tiles
        tiled = {axis for p in attention for axis in (p.row, p.keys[-1])}
        contracted -= heads | {axis for p in attention for axis in p.keys}
    for axis in names:
        sizes = HEADS if axis in heads else CONTRACTED if axis in contracted else TILED if axis in tiled else (1, 2, 3)
        pool = [n + least.get(axis, 1) - 1 for n in sizes]
        extents[axis] = op.spec.extents.get(axis) or pick(
            st.sampled_from([2 * n for n in pool] if axis in even else pool)
        )
    rows: tuple[int, ...] = ()
    if ROWS in op.spec.axes:
        left = BUDGET // max(1, *extents.values())
        for _ in range(pick(st.integers(0, 2))):
            n = pick(st.sampled_from([m for m in TILED if m <= max(1, left)]))
            rows, left = (n, *rows), left // n
    return rows, extents


def _param(param: Param, domain: object) -> st.SearchStrategy[Any]:
    default = param.default
    if param.kind == "bool":
        return st.booleans()
    if param.kind == "int":
        whole = {int(default or 0), 0, 1, 3}
        if isinstance(domain, tuple):
            low, high = whole_range("int32", domain, {})
            whole = {v for v in whole if low <= v <= high} | {low}
        elif domain in ("positive", "nonzero"):
            whole = {v for v in whole if v > 0 or (v and domain == "nonzero")}
        return st.sampled_from(sorted(whole))
    values = {1.0 if default is None else float(default), 0.5, 2.0, -1.25}
    if isinstance(domain, tuple):
        low, high = domain
        values = {v for v in values if low <= v <= high} | {low + 0.375 * (high - low)}
    elif domain == "positive":
        values = {v for v in values if v > 0}
    return st.sampled_from(sorted(values))


def arrays(op: AnyOp, case: Case) -> dict[str, np.ndarray]:
    """The inputs of a call, by name."""
    generator = np.random.default_rng(case.seed)
    domains, along = dict(op.spec.domain), reduced_dimension(op.plan, generator)
    contracted = contracted_axes(op.plan)
    distinct = {s.at.index: s.at.axis for s in op.statements if s.at and s.at.how == "set"}
    made = {}
    for array in op.spec.inputs:
        if array.name in case.absent:
            continue
        dtype, shape = case.types.dtype(array), user_shape(array, case.axes)
        own = [i - len(array.dims) for i, d in enumerate(array.dims) if contracted & set(d.names)]
        domain = domains.get(array.name)
        if any(
            array == p.v or (p is not op.plan and {p.value, p.keys[-1]} <= {*array.axes}) for p in attention_in(op.plan)
        ):
            # 0 times infinity is NaN, but a kernel skips tiles of weights that are all 0, and rounds small ones to 0
            domain = domain or "finite"
        if array.name in distinct:
            made[array.name] = _distinct(generator, dtype, shape, case.axes.extents[distinct[array.name]])
        elif own:
            made[array.name] = values(generator, dtype, shape, case, domain, own[0], MODERATE)
        else:
            made[array.name] = values(generator, dtype, shape, case, domain, along)
    return made


def _distinct(generator: np.random.Generator, dtype: str, shape: tuple[int, ...], extent: int) -> np.ndarray:
    """Places along an axis, all different, and others out of range."""
    count, info = math.prod(shape), np.iinfo(jnp.dtype(dtype))
    places = generator.permutation(np.arange(max(info.min, -2), min(info.max, extent + 2)))[:count]
    beyond = np.full(count - len(places), -1 if info.min else min(extent, info.max))
    return np.concatenate([places, beyond]).reshape(shape).astype(info.dtype)


def reduced_dimension(plan: Plan, generator: np.random.Generator) -> int | None:
    """The dimension of arrays that a plan reduces along; a random one of two."""
    dimensions = {"row": (-1,), "column": (0,), "row+column": (-1, 0)}.get(plan.kind)
    return int(generator.choice(dimensions)) if dimensions else None


def values(
    generator: np.random.Generator,
    dtype: str,
    shape: tuple[int, ...],
    case: Case,
    domain: object = None,
    along: int | None = None,
    beyond: float = math.inf,
) -> np.ndarray:
    """Random values of a dtype, with special values where the case asks for them. These are in every fourth place. Where the values
    are reduced `along` a dimension, they are in so few places that the others still matter."""
    kind = DTYPES[dtype].kind
    if kind == "bool":
        return generator.random(shape) < 0.5
    if kind == "int":
        return _integers(generator, dtype, shape, case, domain)
    x = generator.standard_normal(shape) * case.scale
    x = np.abs(x) if DTYPES[dtype].scales else x
    if isinstance(domain, tuple):
        low, high = domain
        x = low + (high - low) * generator.random(shape)
        return stored(np.clip(x, low, high), dtype)
    if case.specials:
        pool = np.array(
            [v for v in special_values(dtype) if not 0 < abs(v) < 1 / beyond and not beyond < abs(v) < math.inf]
        )
        often: Any = 0.25
        if along is not None and shape:
            x = _special_lines(generator, x, along)
            lines = tuple(1 if d == along % len(shape) else n for d, n in enumerate(shape))
            often = generator.choice([0, 0, 0, 1 / max(1, shape[along]), 0.25], lines)
        x = np.where(generator.random(shape) < often, generator.choice(pool, shape), x)
    if domain in ("positive", "nonzero", "finite"):
        x = np.where(np.isfinite(x), x, 1.0)
    if domain == "positive":
        # divisors: XLA on a CPU may multiply by a reciprocal, and flush the reciprocal of more than 2**126 to zero
        x = np.clip(np.abs(x), 1e-3, 2.0**126)
    if domain == "nonzero":
        x = np.where(np.abs(x) < 1e-30, 1.0, x)
    with np.errstate(all="ignore"):
        return x.astype(jnp.dtype(dtype)) if case.specials and domain is None else stored(x, dtype)


MODERATE = 1e4  # products of such factors neither overflow nor underflow


def _special_lines(generator: np.random.Generator, x: np.ndarray, along: int) -> np.ndarray:
    """Replaces some lines along a dimension: all -inf, NaN or 0, with one infinity, or far from 0 with a small variation."""
    lines = np.moveaxis(x.copy(), along, -1)
    count = lines.shape[-1]
    for place in np.ndindex(lines.shape[:-1] if count else (0,)):
        kind = generator.integers(0, 32)
        if kind < 3:
            lines[place] = (-np.inf, np.nan, 0.0)[kind]
        elif kind == 3:
            lines[place][generator.integers(count)] = np.inf
        elif kind < 6:
            lines[place] = (300 if kind == 4 else -300) + 2 * generator.standard_normal(count)
    return np.moveaxis(lines, -1, along)


def whole_range(dtype: str, domain: object, extents: Mapping[str, int]) -> tuple[int, int]:
    """The smallest and the largest integer to draw for an array of an integer dtype: within its domain and its dtype, and
    near 0 where the domain has no bounds."""
    least, most = DTYPES[dtype].low, DTYPES[dtype].high
    if isinstance(domain, tuple):
        low, high = (float(bound) for bound in domain)
        low, high = math.ceil(low), math.floor(high)
    elif along := positions(domain):
        low, high = 0, max(0, math.prod(extents[axis] for axis in along) - 1)
    else:
        low, high = 1 if domain == "positive" else -100, 100
    low = min(max(low, least), most)
    return low, max(low, min(high, most))


def _integers(
    generator: np.random.Generator, dtype: str, shape: tuple[int, ...], case: Case, domain: object
) -> np.ndarray:
    least, most = DTYPES[dtype].low, DTYPES[dtype].high
    low, high = whole_range(dtype, domain, dict(case.extents))
    drawn = generator.integers(low, high, shape, np.int64, endpoint=True)
    if case.specials and (domain is None or domain in ("positive", "nonzero", "finite")):
        pool = [v for v in (least, least + 1, -1, 0, 1, most - 1, most) if least <= v <= most]
        pool = [v for v in pool if v > 0 or domain != "positive"]
        drawn = np.where(generator.random(shape) < 0.25, generator.choice(np.array(pool), shape), drawn)
    if domain == "nonzero":
        drawn = np.where(drawn == 0, 1, drawn)
    return drawn.astype(jnp.dtype(dtype))


def special_values(dtype: str) -> list[float]:
    """NaN, infinities, signed zeros, denormals, the largest and smallest numbers, and the neighbours of 1."""
    info: Any = jnp.finfo(jnp.dtype(dtype))
    top, normal, tiny = float(info.max), float(info.smallest_normal), float(info.smallest_subnormal)
    if DTYPES[dtype].packed:
        return [v * sign for v in (0.0, tiny, normal, 1.5, 2.0, 3.0, top) for sign in (1.0, -1.0)]
    if DTYPES[dtype].scales:
        return [float("nan"), top, tiny, 0.5, 1.0, 2.0]
    positive = [0.0, float("inf"), top, normal, tiny, 1.0, 1.0 + float(info.eps), 0.5, 2.0, 88.0]
    return [float("nan"), *positive, *(-v for v in positive)]


def named(op: AnyOp, case: Case) -> dict[str, Any]:
    """The arguments of the call by name."""
    args, keywords = operands(op, case, arrays(op, case))
    return {a.name: x for a, x in zip(op.spec.inputs, args, strict=True) if x is not None} | keywords


def operands(op: AnyOp, case: Case, made: Mapping[str, np.ndarray]) -> tuple[list[Any], dict[str, Any]]:
    """The positional and keyword arguments of the call."""
    args = [None if a.name in case.absent else jax.device_put(made[a.name]) for a in op.spec.inputs]
    there = {a.dtype for a in op.spec.inputs if a.name not in case.absent}
    free = {name: dtype for name, dtype in case.types.variables if name in op.spec.free_types and name not in there}
    return args, {**dict(case.params), **free}


@contextlib.contextmanager
def walking_far(implementation: str | None, case: Case) -> Iterator[None]:
    """In every other interpreted call, one group of blocks takes all rows, so that each block handles many rows. In three of
    four a thread holds at most two rows: the same code, less often unrolled, so it compiles faster. In every other call an op
    of several kernels is not one kernel, however small the call is."""
    with contextlib.ExitStack() as contexts:
        if implementation == "interpret":
            contexts.enter_context(in_parts(1 if case.seed % 2 else ANY, 2 if case.seed % 4 else ANY))
            contexts.enter_context(in_stages() if case.seed % 8 < 4 else contextlib.nullcontext())
        yield
