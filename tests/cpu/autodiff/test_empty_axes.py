"""Gradients through reductions over axes of size 0 are those of the reference, computed by JAX."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from making import make_op

from codegen.plan.rows.walking import in_parts
from tests.turns import some

CASES = {
    # name: the chain, the output's type, the reference
    "mean of all": ("y = mean(x * w * s, axis=(..., N))", "[]", "jnp.mean(x * w * s)"),
    "mean of rows": ("y = mean(x * w * s, axis=N)", "[...]", "jnp.mean(x * w * s, axis=-1)"),
    "mean of columns": ("y = mean(x * w * s, axis=...)", "[N]", "jnp.mean(x * w * s, axis=0)"),
    "divided by the size": ("y = sum(x * w * s, axis=N) / size(N)", "[...]", "jnp.sum(x * w * s, axis=-1) / x.shape[-1]"),
    "variance": ("y = var(x * s, axis=N) + sum(w, axis=N)", "[...]", "jnp.var(x * s, axis=-1) + jnp.sum(w)"),
    "root mean square": (
        "y = s * w * x * rsqrt(mean(square(x), axis=N) + 1e-6)", "[..., N]",
        "s * w * x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)",
    ),
    "norm": ("y = norm(x * s, axis=N) + sum(w, axis=N)", "[...]", "jnp.sqrt(jnp.sum(jnp.square(x * s), axis=-1)) + jnp.sum(w)"),
}  # fmt: skip


@pytest.fixture(scope="module")
def ops(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ops")
    made = {}
    for name, (chain, axes, reference) in CASES.items():
        made[name] = make_op(
            folder,
            "op: empty\nsummary: Of nothing.\ninputs:\n  x: float32[..., N]\n  w: float32[N]\n  s: float32[]\n"
            f"outputs:\n  y: float32{axes}\nchain: {chain}\nreference: {reference}\n",
        )
    return made


@pytest.mark.parametrize("shape", [(3, 0), (0, 5)])
@pytest.mark.parametrize("name", some(CASES, 2))
def test_gradients_over_nothing_are_those_of_the_reference(ops, name, shape, monkeypatch):
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    reference = eval(f"lambda x, w, s: {CASES[name][2]}", {"jnp": jnp, "jax": jax})
    given = jnp.ones(shape), jnp.ones(shape[1]), jnp.float32(1.5)

    def pulled(f):
        """The result, and its gradients for a cotangent of ones."""
        y, pull = jax.vjp(f, *given)
        return y, *pull(jnp.ones(y.shape))

    wanted = jax.jit(functools.partial(pulled, reference))()
    for implementation in ("xla", "interpret") if name.startswith("mean") else ("xla",):
        own = functools.partial(ops[name], implementation=implementation)
        with in_parts(2):  # a GPU has some hundred blocks
            ours = jax.jit(functools.partial(pulled, own))()
        for found, expected in zip(ours, wanted, strict=True):
            np.testing.assert_array_equal(found, expected)
