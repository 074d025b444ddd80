"""A function as a list of steps: its jaxpr, with calls replaced by their contents. A step is one primitive; each value
is assigned once.

A call of a jitted or checkpointed function is replaced by the function's steps. A function with a derivative of its own
stays one step, `own`, which also has the steps of its value. So does causal attention by cuDNN, which is differentiated
as these steps are.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.extend import core, source_info_util

from codegen.errors import UserError, raised

CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "eval_jaxpr": "call_jaxpr",
    "name": "",
}
REMAT = {"checkpoint": "jaxpr", "remat": "jaxpr", "remat2": "jaxpr"}
OWN = {"custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr", "custom_vjp_call_jaxpr": "fun_jaxpr"}


SMALL = 1024  # elements of a captured array that is computed with


@dataclass(frozen=True, eq=False)
class Value:
    """An array: an input, or the result of a step. `constant` is an array that the function has captured."""

    shape: tuple[int, ...]
    dtype: str
    constant: Any = None

    @property
    def bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * _itemsize(self.dtype)


@functools.cache
def _itemsize(dtype: str) -> int:
    """The bytes of an element; 0 of what has no numbers, as a key of random numbers."""
    try:
        return int(jax.numpy.dtype(dtype).itemsize)
    except TypeError:
        return 0


@dataclass(frozen=True)
class Number:
    """A scalar literal."""

    value: bool | int | float
    dtype: str

    @property
    def shape(self) -> tuple[()]:
        return ()


Atom = Value | Number


@dataclass(frozen=True)
class Place:
    """Where in the user's source a step was called. `line` is 0 where that is unknown."""

    path: str = ""
    line: int = 0
    column: int = 0
    function: str = ""

    def __str__(self) -> str:
        return f"{self.path}:{self.line}" if self.line else "<unknown>"


@dataclass(frozen=True, eq=False)
class Step:
    """One primitive. `inner` are the steps within a function that has its own derivative, on the same values; the last of
    them, `own`, give its outputs. Those of attention are written out, without. `equation` is what it was read from. What is `saved`
    a checkpoint's policy keeps for the gradient."""

    name: str
    inputs: tuple[Atom, ...]
    outputs: tuple[Value, ...]
    params: dict[str, Any]
    place: Place
    inner: tuple[Step, ...] = ()
    equation: Any = None
    saved: bool = False

    @property
    def is_attention(self) -> bool:
        """Whether it is a call of cuDNN's attention."""
        return bool(self.inner) and self.inner[-1].name != "own"


@dataclass(frozen=True, eq=False)
class Flat:
    """A function: its inputs, its steps in order, and its outputs."""

    inputs: tuple[Value, ...]
    steps: tuple[Step, ...]
    outputs: tuple[Atom, ...]


def flatten(closed: Any, remat: bool = True, saves: Callable[[Any], bool] = lambda equation: False) -> Flat:
    """The steps of a closed jaxpr. With `remat`, checkpointed functions are replaced by their steps too. `saves` says of which
    equations a checkpoint's policy keeps the results; a name is a step where it does so because of the name."""
    inputs = tuple(_value(v) for v in closed.jaxpr.invars)
    calls = CALLS | REMAT if remat else CALLS
    steps: list[Step] = []
    with jax.transfer_guard("allow"):  # tracing computes with numbers: the function transfers nothing
        outputs = _inline(closed.jaxpr, closed.consts, inputs, steps, calls, Place(), saves)
        return Flat(inputs, tuple(_simpler(steps)), outputs)


def _simpler(steps: Iterable[Step]) -> Iterator[Step]:
    """The steps, with simpler ones for two kinds of gathers, and for the scatters of their gradients. The first element along a dimension
    of size 1 is the array without that dimension: `x.take(0, axis=-1)`, as in optax's losses. And `x[jnp.arange(n), i]` becomes a gather
    with an index for each row, as of `jnp.take_along_axis`."""
    maker: dict[Atom, Step] = {}
    for step in steps:
        maker |= dict.fromkeys(step.outputs, step)
        how = _simplified(step, maker) if step.name in ("gather", "scatter-add") else None
        if how is None:
            yield step
            continue
        function, arrays = how
        closed = jax.make_jaxpr(function)(*(aval for _, aval in arrays))
        made: list[Step] = []
        _inline(closed.jaxpr, closed.consts, [atom for atom, _ in arrays], made, CALLS, step.place)
        made[-1] = replace(made[-1], outputs=step.outputs)
        yield from (replace(s, place=step.place) for s in made)


def _simplified(step: Step, maker: Mapping[Atom, Step]) -> tuple[Callable[..., Any], Sequence[tuple[Atom, Any]]] | None:
    """A function that does what a gather or a scatter does, and its arguments with their types; None where there is no simpler one."""
    table, index, *value = ((atom, v.aval) for atom, v in zip(step.inputs, step.equation.invars, strict=True))
    made = maker.get(index[0])
    if made is None:
        return None
    if made.name == "broadcast_in_dim" and index[0].shape == (1,) and _is_zero(made.inputs[0]):
        axis = _single(step)
        return None if axis is None else (functools.partial(_joined if value else _squeezed, axis), (table, *value))
    if made.name == "concatenate" and _is_of_rows(step, made, maker):
        last = made.inputs[-1], made.equation.invars[-1].aval
        return functools.partial(_at_rows, step.params), (table, last, *value)
    return None


def _dimensions(step: Step) -> tuple[tuple[int, ...], ...]:
    """The dimensions of the array that a gather or a scatter indexes, those that its slices lack, and those of the slices."""
    numbers = step.params["dimension_numbers"]
    if step.name == "gather":
        return tuple(map(tuple, (numbers.start_index_map, numbers.collapsed_slice_dims, numbers.offset_dims)))
    found = numbers.scatter_dims_to_operand_dims, numbers.inserted_window_dims, numbers.update_window_dims
    return tuple(map(tuple, found))


def _is_of_rows(step: Step, index: Step, maker: Mapping[Atom, Step]) -> bool:
    """Whether an index has the positions along all dimensions of an array but the last."""
    numbers, table, columns = step.params["dimension_numbers"], step.inputs[0], index.inputs
    every = tuple(range(len(table.shape)))
    axes, lost, window = _dimensions(step)
    if axes != every or lost != every or window or numbers.operand_batching_dims or len(columns) != len(every):
        return False
    if len({c.shape for c in columns}) > 1 or columns[0].shape != (*table.shape[:-1], 1):
        return False
    sharding = getattr(step.equation.invars[0].aval, "sharding", None)
    explicit = sharding is not None and jax.sharding.AxisType.Explicit in sharding.mesh.axis_types
    return not explicit and all(_positions(c, maker) == place for place, c in enumerate(columns[:-1]))


def _positions(atom: Atom, maker: Mapping[Atom, Step]) -> int | None:
    """The dimension along which an array of indices has the positions, as `jnp.arange` has; None for others."""
    step = maker.get(atom)
    if step is None:
        return None
    match step.name:
        case "iota":
            return int(step.params["dimension"])
        case "convert_element_type":
            return _positions(step.inputs[0], maker)
        case "broadcast_in_dim":
            before = _positions(step.inputs[0], maker)
            if before is None:
                return None
            after = int(step.params["broadcast_dimensions"][before])
            return after if step.inputs[0].shape[before] == atom.shape[after] else None
        case "select_n" if len(step.inputs) == 3:  # what would count from the end, if it were negative
            below = maker.get(step.inputs[0])
            if below is not None and below.name == "lt" and below.inputs[0] is step.inputs[1]:
                return _positions(step.inputs[1], maker) if _is_zero(below.inputs[1]) else None
    return None


def _at_rows(params: dict[str, Any], table: Any, index: Any, *value: Any) -> Any:
    """The elements at an index for each row, or a value added to them."""
    last, rows = table.ndim - 1, tuple(range(table.ndim - 1))
    if value:
        to = jax.lax.ScatterDimensionNumbers((), (last,), (last,), rows, rows)
        return jax.lax.scatter_add(table, index, value[0], to, mode=params["mode"])
    at = jax.lax.GatherDimensionNumbers((), (last,), (last,), rows, rows)
    sizes, fill = (1,) * table.ndim, params["fill_value"]
    return jax.lax.gather(table, index, at, sizes, mode=params["mode"], fill_value=fill)


def _is_zero(atom: Atom) -> bool:
    return isinstance(atom, Number) and atom.value == 0


def _squeezed(axis: int, table: Any) -> Any:
    return jax.lax.squeeze(table, (axis,))


def _joined(axis: int, table: Any, value: Any) -> Any:
    return table + jax.numpy.expand_dims(value, axis)


def _single(step: Step) -> int | None:
    """The dimension of size 1 along which a gather or a scatter has one index; None for others."""
    table, other = step.inputs[0].shape, (step.outputs[0] if step.name == "gather" else step.inputs[2]).shape
    axes, lost, window = _dimensions(step)
    if len(axes) != 1 or lost != axes or window != tuple(range(len(other))):
        return None
    (axis,) = axes
    return axis if table[axis] == 1 and (*table[:axis], *table[axis + 1 :]) == other else None


def plain(steps: Iterable[Step]) -> Iterator[Step]:
    """The steps, with functions that have a derivative of their own replaced by their steps."""
    for step in steps:
        if step.inner:
            yield from plain(step.inner)
        else:
            yield step


def _value(variable: Any) -> Value:
    aval = variable.aval
    return Value(tuple(aval.shape), str(aval.dtype))


def _inline(
    jaxpr: Any, consts: Sequence[Any], inputs: Sequence[Atom], steps: list[Step], calls: dict[str, str], outer: Place,
    saves: Callable[[Any], bool] = lambda equation: False,
) -> tuple[Atom, ...]:  # fmt: skip
    """Append the steps of a jaxpr on these inputs. Returns its outputs."""
    there: dict[Any, Atom] = dict(zip(jaxpr.invars, inputs, strict=True))
    for variable, constant in zip(jaxpr.constvars, consts, strict=True):
        there[variable] = _captured(variable, constant)

    def read(atom: Any) -> Atom:
        return _number(atom) if isinstance(atom, core.Literal) else there[atom]

    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        given = tuple(map(read, equation.invars))
        place = _place(equation) or outer
        saved = saves(equation)
        if calls.get(name):
            inner, own = _jaxpr(params[calls[name]])
            there |= zip(equation.outvars, _inline(inner, own, given, steps, calls, place, saves), strict=True)
        elif (name == "name" and not saved) or (
            name == "reshard" and equation.invars[0].aval == equation.outvars[0].aval
        ):
            there[equation.outvars[0]] = given[0]  # under a mesh, JAX inserts reshards that change nothing
        elif (known := _computed(equation, given)) is not None:
            there[equation.outvars[0]] = known
        elif name == "scan" and (elements := _elements(params, given)) is not None:
            inner, own = _jaxpr(params["jaxpr"])
            consts, state = given[: -1 - len(equation.outvars)], given[-1 - len(equation.outvars) : -1]
            for element in elements:
                state = _inline(inner, own, (*consts, *state, element), steps, calls, place, saves)
            there |= zip(equation.outvars, state, strict=True)
        else:
            outputs = tuple(_value(v) for v in equation.outvars)
            within = _own(name, params, given, outputs, calls, place) if name in OWN else ()
            steps.append(Step(name, given, outputs, params, place, within, equation, saved))
            there |= zip(equation.outvars, outputs, strict=True)
    return tuple(map(read, jaxpr.outvars))


def _computed(equation: Any, given: Sequence[Atom]) -> Atom | None:
    """What a step computes of numbers, as the count of elements that a variance divides by, or of small captured arrays, as one of their
    elements; None for other steps. A number that is said to vary over a mesh's axes stays a step: what is computed with it needs to know."""
    params = jax.tree.leaves(list(equation.params.values()))
    bodies = any(isinstance(p, core.Jaxpr | core.ClosedJaxpr) for p in params)
    if not given or bodies or equation.effects or equation.primitive.name == "pvary" or len(equation.outvars) != 1:
        return None
    aval, known = equation.outvars[0].aval, [_known(a) for a in given]
    fewer = any(isinstance(a, Value) and aval.size < np.prod(a.shape) for a in given) if _is_small(aval) else False
    if any(k is None for k in known) or not (_is_scalar(aval) or fewer):
        return None
    with jax.ensure_compile_time_eval(), jax.debug_nans(False), jax.debug_infs(False):  # a NaN may be a constant
        return _captured(equation.outvars[0], np.asarray(equation.primitive.bind(*known, **equation.params)))


def _known(atom: Atom) -> np.ndarray | None:
    """A number, or the elements of a small array that the function has captured."""
    if isinstance(atom, Number):
        return np.asarray(atom.value, jax.numpy.dtype(atom.dtype))
    concrete = atom.constant is not None and not isinstance(atom.constant, jax.core.Tracer)
    concrete = concrete and getattr(atom.constant, "is_fully_addressable", True)  # else other processes have elements
    return np.asarray(atom.constant) if concrete and _is_small(jax.typeof(atom.constant)) else None


def _is_small(aval: Any) -> bool:
    return _is_plain(aval.dtype) and all(isinstance(n, int) for n in aval.shape) and aval.size <= SMALL


def _elements(params: dict[str, Any], given: Sequence[Atom]) -> list[Number] | None:
    """The elements of a captured array that a wholly unrolled loop runs over, as of the coefficients of `jnp.polyval`; None for other loops."""
    known = _known(given[-1]) if given and isinstance(given[-1], Value) else None
    inner, _ = _jaxpr(params["jaxpr"])
    if known is None or known.ndim != 1 or params["unroll"] < params["length"] or inner.effects:
        return None
    if len(inner.outvars) >= len(given) or params["length"] != len(known):
        return None
    _, carried = constants_and_carried(params)
    if carried != len(inner.outvars):
        return None
    found = [Number(_python(element), str(known.dtype)) for element in known]
    return found[::-1] if params["reverse"] else found


def constants_and_carried(params: dict[str, Any]) -> tuple[int, int]:
    """How many of a scan's inputs are the same in all iterations, and how many it carries. JAX 0.11 and newer keep trees of both."""
    if "num_carry" in params:
        return params["num_consts"], params["num_carry"]
    constants, carried, _ = params["ft_in"].unpack()
    return len(constants), len(carried)


def _is_scalar(aval: Any) -> bool:
    return getattr(aval, "shape", None) == () and _is_plain(aval.dtype)


def _own(
    name: str, params: dict[str, Any], given: tuple[Atom, ...], outputs: tuple[Value, ...], calls: dict[str, str], place: Place
) -> tuple[Step, ...]:  # fmt: skip
    jaxpr, consts = _jaxpr(params[OWN[name]])
    if attention := _attention(jaxpr, given, outputs, calls):
        return attention
    steps: list[Step] = []
    results = _inline(jaxpr, consts, given, steps, {**calls, **REMAT}, place)
    title = {"name": str(params.get("name", ""))}
    steps += [Step("own", (a,), (b,), title, place) for a, b in zip(results, outputs, strict=True)]
    return tuple(steps)


def _attention(
    jaxpr: Any, given: tuple[Atom, ...], outputs: tuple[Value, ...], calls: dict[str, str]
) -> tuple[Step, ...]:
    """The steps that a call of cuDNN's causal attention stands for; none for other functions, and where it has a bias, a window,
    dropout or rows of another order."""
    name = "dot_product_attention_fwd_wrapper"
    if [e.primitive.name for e in jaxpr.eqns] != [name] or len(outputs) != 1:
        return ()
    params = dict(jaxpr.eqns[0].params)
    scale, mask, _ = (params.pop(key, None) for key in ("scale", "mask_type", "seed"))
    others = jax.tree.leaves(list(params.values()))
    if getattr(mask, "name", "") != "CAUSAL" or any(others):
        return ()
    closed = jax.make_jaxpr(functools.partial(_attended, scale))(*(v.aval for v in jaxpr.invars[:3]))
    steps: list[Step] = []
    (result,) = _inline(closed.jaxpr, closed.consts, given[:3], steps, calls, Place())
    if not steps or steps[-1].outputs != (result,):
        return ()
    return (*steps[:-1], replace(steps[-1], outputs=outputs))


def _attended(scale: float, q: Any, k: Any, v: Any) -> Any:
    """Causal attention. q: [batch, rows, heads, size], k and v: [batch, columns, some of the heads, size]."""
    jnp = jax.numpy
    heads = q.reshape(*q.shape[:2], k.shape[2], -1, q.shape[3])
    scores = jnp.einsum("btkgh,bskh->bkgts", heads, k, preferred_element_type=jnp.float32) * scale
    seen = jnp.arange(q.shape[1])[:, None] >= jnp.arange(k.shape[1])
    weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1).astype(q.dtype)
    return jnp.einsum("bkgts,bskh->btkgh", weights, v).reshape(q.shape)


def _jaxpr(found: Any) -> tuple[Any, Sequence[Any]]:
    return (found.jaxpr, found.consts) if isinstance(found, core.ClosedJaxpr) else (found, ())


def _captured(variable: Any, constant: Any) -> Atom:
    if np.shape(constant) == () and not isinstance(constant, jax.core.Tracer) and _is_plain(variable.aval.dtype):
        return Number(_python(np.asarray(constant)), str(variable.aval.dtype))
    return Value(tuple(variable.aval.shape), str(variable.aval.dtype), constant)


def _is_plain(dtype: Any) -> bool:
    """Whether elements are numbers that the language may have: not complex ones, nor keys of random numbers."""
    others = (jax.dtypes.extended, np.complexfloating)
    return dtype != jax.dtypes.float0 and not any(jax.dtypes.issubdtype(dtype, other) for other in others)


def _number(literal: Any) -> Atom:
    if np.shape(literal.val) != () or not _is_plain(literal.aval.dtype):
        return Value(tuple(literal.aval.shape), str(literal.aval.dtype), literal.val)
    return Number(_python(np.asarray(literal.val)), str(literal.aval.dtype))


def _python(value: np.ndarray) -> bool | int | float:
    """A number as it was written: the shortest decimal that rounds to the value in its type."""
    if value.dtype == bool:
        return bool(value)
    if np.issubdtype(value.dtype, np.integer):
        return int(value)
    wide = float(value)
    if not np.isfinite(wide):
        return wide
    with np.errstate(over="ignore"):  # few digits of the largest numbers round to more than the type holds
        for digits in range(1, 17):
            text = float(f"{wide:.{digits}g}")
            if np.asarray(text, np.float64).astype(value.dtype) == value:
                return text
    return wide


_SUMMARY = re.compile(r"(?P<path>.+?):(?P<line>\d+)(?::(?P<column>\d+))?(?: \((?P<function>.*)\))?$")


def _place(equation: Any) -> Place | None:
    found = _SUMMARY.match(source_info_util.summarize(equation.source_info))
    if found is None:
        return None
    return Place(found["path"], int(found["line"]), int(found["column"] or 0), found["function"] or "")


def traced(function: Callable[..., Any], *examples: Any) -> Flat:
    """The steps of a function on arguments of these shapes and dtypes."""
    return flatten(jax.make_jaxpr(function)(*examples))


def failed(function: Callable[..., Any], error: Exception) -> UserError:
    """The error of a function that cannot be traced, with its line in the user's source."""
    name = getattr(function, "__name__", "the function")
    return UserError(f"{name} cannot be traced with these arguments{raised(error)}")
