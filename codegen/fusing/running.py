"""Steps run again, one by one."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core

from codegen.fusing.graph import FACTOR
from codegen.tracing.steps import Atom, Number, Step, Value


def read(atom: Atom, values: Mapping[Value, Any]) -> Any:
    """The value of a step's argument: a number, a known value, or a constant of the function. A number is an array of NumPy's:
    outside jit, one of JAX's could be a NaN that `jax_debug_nans` reports."""
    if isinstance(atom, Number):
        return np.asarray(atom.value, jax.numpy.dtype(atom.dtype))
    return values.get(atom, atom.constant)


def steps_evaluated(steps: Sequence[Step], values: Mapping[Value, Any]) -> dict[Value, Any]:
    """The values of steps, from the values of their inputs."""
    found = dict(values)
    for step in steps:
        given = [read(a, found) for a in step.inputs]
        results = given if step.name == FACTOR else bound(step.equation, given, step.params)
        found |= zip(step.outputs, results, strict=True)
    return found


def bound(equation: Any, arguments: Sequence[Any], params: Mapping[str, Any]) -> list[Any]:
    """A primitive's results; None for a result that nothing uses. The equation is evaluated as a jaxpr of its own. A reshape that the
    function does not have has none."""
    if equation is None:
        return [jax.numpy.reshape(arguments[0], params["new_sizes"])]
    if params is not equation.params:
        equation = equation.replace(params=dict(params))
    given = {v: a for v, a in zip(equation.invars, arguments, strict=True) if not isinstance(v, core.Literal)}
    results = [v for v in equation.outvars if not isinstance(v, core.DropVar)]
    jaxpr = core.Jaxpr((), list(given), results, [equation], equation.effects, debug_info=_no_source())
    found = iter(core.jaxpr_as_fun(core.ClosedJaxpr(jaxpr, ()))(*given.values()))
    return [None if isinstance(v, core.DropVar) else next(found) for v in equation.outvars]


@functools.cache
def _no_source() -> Any:
    """The source information of a jaxpr that has none."""
    return jax.make_jaxpr(lambda: ())().jaxpr.debug_info
