"""Calls an op and its gradients on drawn arguments."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from codegen.autodiff.backward import Derived
from codegen.checking import draw


def with_gradients(op, case: draw.Case, implementation: str = "cute") -> Callable[[], list[Any]]:
    """A function that calls the op on a case's arguments. It returns the outputs, and, if gradients are computed by
    kernels, those of all floating arguments for cotangents of ones, then those of arguments that rows do not share. It
    is called with x64 enabled."""
    given = draw.named(op, case)
    key, operands = op.bind((), given)
    named = zip(op.operand_names(key), operands, strict=True)
    floating = {name: x for name, x in named if jnp.issubdtype(x.dtype, jnp.floating)}

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
