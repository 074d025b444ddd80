"""`vmap` of an op: where possible, the mapped axis joins an axis of the op, and a single call computes everything.

It becomes one more axis of `...` where every output and every mapped array has `...`. In an op without `...`, it joins the
first axis of all outputs and mapped arrays. No value may depend on a position along that axis, on its size, or on a reduction
over it. Arrays that are
not mapped are unchanged, unless they have that axis themselves: these are repeated.

In other cases (a mapped weight, a mapped scalar, a result over all rows) the jnp form is mapped. With
`implementation="cute"`, one call follows the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from codegen.graph.nodes import ROWS, lost_axes, nodes_of
from codegen.graph.ops import REDUCTIONS
from codegen.runtime.call.described import CalledOp, Key
from codegen.runtime.sharding.partition import asked_axes, whole_axes
from codegen.spec.spec import Array


def batch(
    op: CalledOp, key: Key, call: Callable[..., tuple[Any, ...]], jnp_form: Callable[..., tuple[Any, ...]], size: int, mapped: Sequence[bool],
    operands: Sequence[Any],
) -> tuple[jax.Array, ...]:  # fmt: skip
    """The outputs of `call` for each of `size` positions of the leading axis that the `mapped` operands have."""
    arrays = [op.spec.array(name) for name in key.present]
    within = [*arrays, *(None for _ in operands[len(arrays) :])]  # dynamic parameters are not arrays
    axis = joined_axis(op, [a for a, m in zip(within, mapped, strict=True) if m])
    if axis is None:
        if key.implementation in ("cute", "interpret"):
            return _one_by_one(call, mapped, operands)
        return jax.vmap(jnp_form, in_axes=[0 if m else None for m in mapped])(*operands)

    def join(array: Array | None, value: Any, is_mapped: bool) -> Any:
        if array is None or axis not in array.axes:
            return value
        if not is_mapped:
            value = jnp.broadcast_to(value, (size, *value.shape))
        return value if axis == ROWS else value.reshape(size * value.shape[1], *value.shape[2:])

    outputs = call(*(join(*each) for each in zip(within, operands, mapped, strict=True)))
    if axis == ROWS:
        return outputs
    extent = next(x.shape[1] for a, x, m in zip(within, operands, mapped, strict=True) if m and a is not None)
    return tuple(y.reshape(size, extent, *y.shape[1:]) for y in outputs)


def joined_axis(op: CalledOp, mapped: Sequence[Array | None]) -> str | None:
    """The axis that the mapped axis joins, or None."""
    first = [_first(array) for array in (*op.spec.outputs, *mapped)]
    axis = first[0]
    if axis is None or any(other != axis for other in first):
        return None
    apart = axis != ROWS and any(axis in a.axes and _first(a) != axis for a in op.spec.inputs)
    reduced = {a for n in nodes_of(op.statements) if n.op in REDUCTIONS for a in lost_axes(n)}
    return None if apart or axis in whole_axes(op) | asked_axes(op) | reduced else axis


def _first(array: Array | None) -> str | None:
    """An array's first axis, if no other axis shares its dimension."""
    if array is None or not array.dims or array.dims[0].parts is not None or len(array.dims[0].names) > 1:
        return None
    return array.dims[0].names[0]


def _one_by_one(
    call: Callable[..., tuple[Any, ...]], mapped: Sequence[bool], operands: Sequence[Any]
) -> tuple[jax.Array, ...]:
    def one(given: list[Any]) -> tuple[Any, ...]:
        values = iter(given)
        return call(*(next(values) if m else x for m, x in zip(mapped, operands, strict=True)))

    return jax.lax.map(one, [x for m, x in zip(mapped, operands, strict=True) if m])
