"""A call of an op on drawn arguments, and of its gradients with it."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from codegen.pipeline import Derived
from codegen.runtime import draw


def with_gradients(op, case: draw.Case, implementation: str = "cute") -> Callable[[], list[Any]]:
    """A function that calls the op on a case's arguments: its outputs, and where its gradients are kernels those of all
    floating arguments, for cotangents of ones, then those of what rows do not share. To be called where x64 is enabled."""
    args, keywords = draw.operands(op, case, draw.arrays(op, case))
    given = {a.name: x for a, x in zip(op.spec.inputs, args, strict=True) if x is not None} | keywords
    floating = {p.name: jnp.asarray(given[p.name]) for p in op.spec.params if p.kind == "float" and not p.static}
    floating |= {n: x for n, x in given.items() if hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.floating)}

    def run(own):
        return op(**{**given, **own}, implementation=implementation)

    def pulled(own) -> tuple:
        made, pull = jax.vjp(run, own)
        return made, pull(jax.tree.map(_ones, made))

    def everything() -> list[Any]:
        backward = op.backward
        if not isinstance(backward, Derived) or not floating:
            return jax.tree.leaves(run({}))
        found = [pulled(floating)]
        if backward.frozen is not None:
            found.append(pulled({n: x for n, x in floating.items() if n not in backward.shared}))
        return jax.tree.leaves(found)

    return everything


def _ones(y: jax.Array):
    return jnp.ones_like(y) if jnp.issubdtype(y.dtype, jnp.floating) else np.zeros(y.shape, jax.dtypes.float0)
