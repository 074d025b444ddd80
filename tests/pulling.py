"""A call of an op on drawn arguments, and of its gradients with it."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from codegen.runtime import draw


def with_gradients(op, case: draw.Case, implementation: str = "cute") -> Callable[[], list[Any]]:
    """A function that calls the op on a case's arguments: its outputs, and where its gradients are kernels those of all
    floating arguments, for cotangents of ones. To be called where x64 is enabled."""
    args, keywords = draw.operands(op, case, draw.arrays(op, case))
    floating = [i for i, x in enumerate(args) if x is not None and jnp.issubdtype(x.dtype, jnp.floating)]

    def run(*xs):
        full = list(args)
        for i, x in zip(floating, xs, strict=True):
            full[i] = x
        return op(*full, **keywords, implementation=implementation)

    def both() -> list[Any]:
        xs = [args[i] for i in floating]
        if len(op.kernels) == 1 or op.spec.grad == "none" or not floating:
            return jax.tree.leaves(run(*xs))
        made, pull = jax.vjp(run, *xs)
        return jax.tree.leaves((made, pull(jax.tree.map(_ones, made))))

    return both


def _ones(y: jax.Array):
    return jnp.ones_like(y) if jnp.issubdtype(y.dtype, jnp.floating) else np.zeros(y.shape, jax.dtypes.float0)
