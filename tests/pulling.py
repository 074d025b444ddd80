"""A call of an op on drawn arguments, and of its gradients with it."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from codegen.autodiff.backward import Derived
from codegen.checking import draw


def with_gradients(op, case: draw.Case, implementation: str = "cute") -> Callable[[], list[Any]]:
    """A function that calls the op on a case's arguments: its outputs, and where its gradients are kernels those of all
    floating arguments, for cotangents of ones, then those of what rows do not share. To be called where x64 is enabled."""
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
