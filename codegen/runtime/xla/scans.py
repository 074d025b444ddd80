"""The jnp form of a scan."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def scanned(op: str, axis: int, reverse: bool, before: bool, *operands: jax.Array) -> jax.Array:
    """The states of a scan (`graph.ops.SCANS`) after each element along an axis, or `before` it. Operands broadcast; the third of
    a "scan" is the initial state, with size 1 along the axis. In the operands' dtype."""
    if op == "scan":
        a, b, initial = operands
        a, b = jnp.broadcast_arrays(*jnp.broadcast_arrays(a, b, initial)[:2])
    else:
        (x,) = operands
        start = {"cumsum": 0, "cumprod": 1}.get(op, -jnp.inf)
        a, b, initial = x, x, jnp.full((1,) * x.ndim, start, x.dtype)
    axis, size = axis % b.ndim, b.shape[axis]
    if size == 0:
        return b
    edge = jax.lax.slice_in_dim(b, 0, 1, axis=axis)
    initial = jnp.broadcast_to(initial, edge.shape).astype(b.dtype)
    if op == "scan":
        at = (slice(None),) * axis + (-1 if reverse else 0,)
        b = b.at[at].add(jnp.squeeze(jax.lax.index_in_dim(a, -1 if reverse else 0, axis) * initial, axis))
        states = jax.lax.associative_scan(_after, (a, b), reverse, axis)[1]
    else:
        function = {
            "cumsum": jax.lax.cumsum,
            "cumprod": jax.lax.cumprod,
            "cummax": jax.lax.cummax,
            "cumlogsumexp": jax.lax.cumlogsumexp,
        }[op]
        states = function(b, axis, reverse)
    if not before:
        return states
    if reverse:
        return jnp.concatenate([jax.lax.slice_in_dim(states, 1, size, axis=axis), initial], axis)
    return jnp.concatenate([initial, jax.lax.slice_in_dim(states, 0, size - 1, axis=axis)], axis)


def _after(first: tuple[jax.Array, jax.Array], second: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Two steps h = a h + b as one."""
    return first[0] * second[0], second[0] * first[1] + second[1]
