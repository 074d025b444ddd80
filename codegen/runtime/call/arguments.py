"""Checks a call's arguments against the spec, and binds types and axes.

Raises TypeError for a wrong count, name or dtype, and ValueError for a wrong shape. Each message names the op, the argument,
what it got and what the spec says.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from codegen.errors import known
from codegen.graph.nodes import COMPUTE, DTYPES, ROWS, dtype_of, least_sizes
from codegen.plan.access import Plan
from codegen.spec.spec import Array, Axis, Param, Spec, fits


@dataclass(frozen=True)
class Types:
    """The types of a call: the dtype of each type variable, and so of each array."""

    variables: tuple[tuple[str, str], ...]
    compute: str | None = None  # the type in which the call computes floats, where the present inputs decide

    def dtype(self, array: Array | str) -> str:
        """The dtype of an array, or of what a spec names as a type."""
        name = array if isinstance(array, str) else array.dtype
        if name == COMPUTE and self.compute is not None:
            return self.compute
        return dtype_of(name, dict(self.variables))


def negative_zeros(values: Iterable[tuple[str, Any]]) -> tuple[str, ...]:
    """The names of the values that are -0.0. They equal 0.0, but must not share its cache entries."""
    return tuple(
        name for name, value in values if isinstance(value, float) and value == 0 and math.copysign(1, value) < 0
    )


@dataclass(frozen=True)
class Axes:
    """The sizes of a call's axes: of the leading axes, and of each named axis (symbolic under export)."""

    rows: tuple[Any, ...]
    extents: Mapping[str, Any]

    def shape(self, axes: tuple[str, ...]) -> tuple[Any, ...]:
        """The sizes along these axes; `...` stands for each of the leading axes."""
        return tuple(n for axis in axes for n in (self.rows if axis == ROWS else (self.extents[axis],)))

    def count(self, array: Array) -> Any:
        """The number of an array's elements."""
        return math.prod(self.shape(array.axes)) * (array.parts or 1)


def bind_names(spec: Spec, names: list[str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by name: inputs by position or name, everything else by keyword."""
    inputs = [a.name for a in spec.inputs]
    if len(args) > len(inputs):
        raise TypeError(f"{spec.op} takes {len(inputs)} arrays by position ({', '.join(inputs)}), not {len(args)}")
    given = dict(zip(inputs, args, strict=False))
    for name, value in kwargs.items():
        if name in given:
            raise TypeError(f"{spec.op} got {name!r} twice, by position and by name")
        if name not in names:
            raise TypeError(f"{spec.op} takes no argument {name!r}. {known(name, names, 'It takes')}")
        given[name] = value
    for array in spec.inputs:
        if given.get(array.name) is None and array.default is None:
            raise TypeError(f"{spec.op} needs {array.name!r}: {array}")
    return given


def bind_arrays(spec: Spec, given: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays that are given, by name. A scalar has the dtype that its type variable has in the others."""
    found: dict[str, Any] = {}
    for array in sorted(spec.inputs, key=lambda a: not a.dims):
        if given.get(array.name) is not None:
            bound = {a.dtype: jnp.dtype(found[a.name].dtype).name for a in spec.inputs if a.name in found}
            found[array.name] = _as_array(spec, array, given[array.name], bound)
    return {a.name: found[a.name] for a in spec.inputs if a.name in found}


def _as_array(spec: Spec, array: Array, value: Any, types: Mapping[str, str]) -> Any:
    """The value as an array. Python and NumPy scalars are accepted where the spec has a scalar of known dtype. Raises TypeError."""
    if not array.dims and isinstance(value, bool | int | float | np.generic):
        names = spec.dtypes(array)
        if len(names) == 1 or array.dtype in types:
            return _scalar(spec, array, value, names[0] if len(names) == 1 else types[array.dtype])
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key) and array.dtype == "uint32":
        return jax.random.key_data(value)
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        raise TypeError(f"{spec.op}: {array.name!r} must be an array, {array}, not {type(value).__name__}")
    try:
        dtype = jnp.dtype(value.dtype)
    except TypeError:
        raise TypeError(f"{spec.op}: {array.name!r} is {array}, not of dtype {value.dtype}") from None
    if isinstance(value, np.ndarray) and not dtype.isnative:
        return value.astype(dtype.newbyteorder("="))
    return value


def _scalar(spec: Spec, array: Array, value: Any, dtype: str) -> jax.Array:
    """A Python or NumPy scalar as an array of `dtype`. Raises TypeError or ValueError where that changes its value."""
    kind, own = DTYPES[dtype].kind, value.dtype if isinstance(value, np.generic) else None
    if own is None:
        fits = {"bool": bool, "int": int, "float": int | float}[kind]
        good = isinstance(value, fits) and isinstance(value, bool) == (kind == "bool")
    else:
        good = jnp.issubdtype(own, {"bool": jnp.bool_, "int": jnp.integer, "float": jnp.number}[kind])
        good = good and not jnp.issubdtype(own, jnp.complexfloating)
    if not good:
        raise TypeError(f"{spec.op}: {array.name!r} is {array} with dtype {dtype}, not {type(value).__name__}")
    if kind == "int" and not jnp.iinfo(dtype).min <= int(value) <= jnp.iinfo(dtype).max:
        raise ValueError(f"{spec.op}: {array.name!r} is {array} with dtype {dtype}, and {value} is out of its range")
    return jnp.asarray(_as_float(spec, array.name, value) if kind == "float" else value, dtype)


def _as_float(spec: Spec, name: str, value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        raise ValueError(
            f"{spec.op}: {name!r} is a float, and a number of {len(str(value))} digits is out of its range"
        ) from None


def bind_types(spec: Spec, arrays: Mapping[str, Any], chosen: Mapping[str, str]) -> Types:
    """Binds each type variable by the dtypes of the given arrays, or by the keyword of its name. Raises TypeError."""
    bound: dict[str, tuple[str, str]] = {}
    for array in spec.inputs:
        value = arrays.get(array.name)
        if value is None:
            continue
        got, allowed = jnp.dtype(value.dtype).name, spec.dtypes(array)
        if got not in allowed:
            raise TypeError(f"{spec.op}: {array.name!r} is {array} with dtype {_either(allowed)}, not {got}")
        if array.dtype in dict(spec.types):
            first = bound.setdefault(array.dtype, (got, array.name))
            if first[0] != got:
                where = f"{array.dtype} is {first[0]} by {first[1]!r}"
                raise TypeError(f"{spec.op}: {array.name!r} is {array} with dtype {got}, but {where}")
    types = {name: got for name, (got, _) in bound.items()}
    for name, allowed in spec.types:
        value = chosen.get(name)
        if name in types:
            if value is not None and _dtype_name(spec, name, value) != types[name]:
                raise TypeError(
                    f"{spec.op}: {name} is {types[name]} by {bound[name][1]!r}, not {_dtype_name(spec, name, value)}"
                )
            continue
        got = allowed[0] if value is None else _dtype_name(spec, name, value)
        if got not in allowed:
            raise TypeError(f"{spec.op}: {name} is {_either(allowed)}, not {got}")
        types[name] = got
    compute = None
    if spec.compute == COMPUTE:
        compute = "float64" if any(jnp.dtype(x.dtype) == "float64" for x in arrays.values()) else "float32"
    made = Types(tuple((name, types[name]) for name, _ in spec.types), compute)
    there = [a for a in spec.arrays if a.name in arrays or a in spec.outputs]
    for array in there if not jax.config.jax_enable_x64 else ():
        dtype = made.dtype(array)
        if DTYPES[dtype].size == 8:
            message = f"{array.name!r} is {array} with dtype {dtype}, which JAX has only with jax_enable_x64"
            raise TypeError(f"{spec.op}: {message}")
    return made


def _dtype_name(spec: Spec, name: str, value: Any) -> str:
    try:
        return jnp.dtype(value).name
    except TypeError:
        raise TypeError(f"{spec.op}: {name} must be a dtype, not {value!r}") from None


def bind_axes(spec: Spec, arrays: Mapping[str, Any]) -> Axes:
    """Binds each axis's size by the shapes of the given arrays. Raises ValueError."""
    rows: tuple[tuple[Any, ...], str] | None = None
    extents: dict[str, tuple[Any, str]] = {name: (n, "the spec") for name, n in spec.extents.items()}
    groups: list[tuple[Array, tuple[Any, ...], Axis, Any]] = []
    for array in spec.inputs:
        value = arrays.get(array.name)
        if value is None:
            continue
        shape = tuple(value.shape)
        fixed = sum(dim.names != (ROWS,) for dim in array.dims)
        lead = len(shape) - fixed
        has_rows = len(array.dims) > fixed
        if lead < 0 or (lead > 0 and not has_rows):
            needs = ("at least " if has_rows else "") + ("1 axis" if fixed == 1 else f"{fixed} axes")
            raise ValueError(f"{spec.op}: {array.name!r} has shape {shape}, but {array} has {needs}")
        if has_rows:
            if rows is None:
                rows = (shape[:lead], array.name)
            elif rows[0] != shape[:lead]:
                message = f"its leading axes are {shape[:lead]} but those of {rows[1]!r} are {rows[0]}"
                raise ValueError(f"{spec.op}: {array.name!r} has shape {shape} for {array}: {message}")
        named = list(zip([d for d in array.dims if d.names != (ROWS,)], shape[lead:], strict=True))
        for dim, n in [pair for pair in named if not pair[0].open_names]:
            for name, extent in _dim_extents(spec, array, dim, n, shape):
                first = extents.setdefault(name, (extent, repr(array.name)))
                if first[0] != extent:
                    message = f"{name} is {extent} here but {first[0]} by {first[1]}"
                    raise ValueError(f"{spec.op}: {array.name!r} has shape {shape} for {array}: {message}")
        groups += [(array, shape, dim, n) for dim, n in named if dim.open_names]
    for array, shape, dim, n in groups:  # the size of one of its axes is known by now
        outer, inner = dim.open_names
        known = (dim.parts or 1) * math.prod(extent or 1 for extent in dim.extents)
        given, other = (inner, outer) if inner in extents else (outer, inner)
        size, where = extents[given]
        first = extents.setdefault(other, (n // (known * size) if size else 0, repr(array.name)))
        if first[0] * known * size != n:
            message = f"{given} is {size} by {where}"
            message += "" if first[1] == repr(array.name) else f", and {other} is {first[0]} by {first[1]}"
            raise ValueError(f"{spec.op}: {array.name!r} has shape {shape} for {array}, but {message}")
    return Axes(rows[0] if rows else (), {name: extent for name, (extent, _) in extents.items()})


def refuse_empty(spec: Spec, plan: Plan, axes: Axes) -> None:
    """Raises ValueError where a max or min would reduce an axis of size 0, or where an axis has fewer elements than are selected."""
    for along, count in least_sizes(s.value for s in spec.read.statements).items():
        size = math.prod(axes.extents[axis] for axis in along)
        if isinstance(size, int) and size < count:
            words = " x ".join(along)
            raise ValueError(f"{spec.op}: {words} is {size}, and the largest {count} of its elements are selected")
    for reduction in plan.extremes:
        lost = reduction.attr
        assert isinstance(lost, tuple)
        for axis in lost:
            extents = axes.shape((axis,))
            if any(isinstance(n, int) and n == 0 for n in extents):
                got = f"the leading axes are {extents}" if axis == ROWS else f"{axis} is 0"
                raise ValueError(f"{spec.op}: {reduction.op} over {', '.join(lost)} has no value where {got}")


def _dim_extents(spec: Spec, array: Array, dim: Axis, n: int, shape: tuple[int, ...]) -> list[tuple[str, Any]]:
    """The sizes of named axes that one dimension of an array binds."""
    if dim.parts is not None:
        if not dim.names:
            if n != dim.parts:
                raise ValueError(
                    f"{spec.op}: {array.name!r} has shape {shape}, but {array} has {dim.parts} there, not {n}"
                )
            return []
    known_sizes = dim.extents if len(dim.names) != 1 else (None,)  # that of an axis by itself is compared by the caller
    each = (dim.parts or 1) * math.prod(extent or 1 for extent in known_sizes)
    unknown = None in known_sizes
    if n % each != 0 or (not unknown and n != each):
        verb = f"divides {n} by {each}" if unknown else f"has {each} there, not {n}"
        raise ValueError(f"{spec.op}: {array.name!r} has shape {shape}, but {array} {verb}")
    return [(name, extent or n // each) for name, extent in zip(dim.names, known_sizes, strict=True)]


def _type_words(value: Any) -> str:
    """The type of a value that is no Python number, and what to do about it."""
    if not isinstance(value, jax.Array):
        return type(value).__name__
    made = "a traced value" if isinstance(value, jax.core.Tracer) else "a JAX array"
    return f"{made}: pass a Python number, or declare it with `static: false`"


def static_value(spec: Spec, param: Param, value: Any) -> Any:
    """A static param's value: a Python number of its type."""
    value = (
        value.item() if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0) else value
    )
    value = _whole(spec, param, value)
    good = {"float": (int, float), "int": (int,), "bool": (bool,)}[param.kind]
    if not isinstance(value, good) or (param.kind != "bool" and isinstance(value, bool)):
        raise TypeError(
            f"{spec.op}: {param.name!r} is a static {param.kind}, compiled into the kernel, not {_type_words(value)}"
        )
    _refuse_wide(spec, param, value)
    if param.kind != "float":
        return value
    value = _as_float(spec, param.name, value)
    return math.nan if math.isnan(value) else value  # always the same NaN object, so that caches of calls find it


def _whole(spec: Spec, param: Param, value: Any) -> Any:
    """A float that is a whole number, converted to int for an int param; raises TypeError for other floats. Other values are
    unchanged."""
    if param.kind != "int" or not isinstance(value, float | np.floating):
        return value
    if not float(value).is_integer():
        hint = "a default such as 1.0 in its spec, or `type: float`, makes it a float"
        raise TypeError(f"{spec.op}: {param.name!r} is an int, not {float(value)!r}; {hint}")
    return int(value)


def _refuse_wide(spec: Spec, param: Param, value: float) -> None:
    if not fits(param.kind, value):
        raise ValueError(f"{spec.op}: {param.name!r} is an int of 32 bits, and {value} is out of its range")


def dynamic_value(spec: Spec, param: Param, value: Any, dtype: str) -> Any:
    """A dynamic param's value as a scalar array of `dtype`, its default for None. `jax.transfer_guard` is for what callers pass: it does
    not refuse a default."""
    if value is None:
        with jax.transfer_guard_host_to_device("allow"):
            return dynamic_value(spec, param, param.default, dtype)
    value = _whole(spec, param, value)
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        _refuse_wide(spec, param, int(value))
        value = _as_float(spec, param.name, value) if param.kind == "float" else value
    try:
        array = jnp.asarray(value)
    except TypeError:
        raise TypeError(
            f"{spec.op}: {param.name!r} must be a scalar {param.kind}, not {type(value).__name__}"
        ) from None
    if array.shape != ():
        raise ValueError(f"{spec.op}: {param.name!r} must be a scalar {param.kind}, but has shape {array.shape}")
    kinds = {"float": (jnp.floating, jnp.integer), "int": (jnp.integer,), "bool": (jnp.bool_,)}[param.kind]
    if not any(jnp.issubdtype(array.dtype, k) for k in kinds):
        raise TypeError(f"{spec.op}: {param.name!r} must be a scalar {param.kind}, but has dtype {array.dtype}")
    return array.astype(dtype)


def _either(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def all_types(spec: Spec, wanted: Mapping[str, str] | None = None) -> Iterator[Types]:
    """Every combination of the type variables' dtypes. A variable in `wanted` has only that dtype."""
    names = [name for name, _ in spec.types]
    for values in itertools.product(*(dtypes for _, dtypes in spec.types)):
        bound = dict(zip(names, values, strict=True))
        if all(bound.get(name, dtype) == dtype for name, dtype in (wanted or {}).items()):
            yield Types(tuple(bound.items()))
