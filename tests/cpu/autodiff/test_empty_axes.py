"""Reductions over axes of size 0: gradients through them are those of the reference, computed by JAX, and a scale that is made of
them does not spoil the product behind which it moved."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from making import make_op

from codegen.plan.rows.launching.walking import in_parts
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


@pytest.mark.each
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


SCALES = {
    # name: the product whose scale moves behind it, where K is 0
    "of rows": "(x * rsqrt(mean(square(x), axis=K))) @ w",
    "a divisor": "(x / sum(abs(x), axis=K)) @ w",
    "of both factors": "(x / sum(abs(x), axis=K)) @ (w * rsqrt(mean(square(w), axis=K)))",
    "of the size": "(x * rsqrt(size(K))) @ w",
}


@pytest.mark.parametrize("implementation", ["xla", "interpret"])
@pytest.mark.parametrize("name", some(SCALES, 2))
def test_a_product_of_nothing_is_zero_whatever_its_scale(tmp_path, name, implementation):
    op = make_op(
        tmp_path,
        "op: scaled\nsummary: Of nothing.\ntypes: {T: [float16, bfloat16]}\ninputs:\n  x: T[..., K]\n  w: T[K, N]\n"
        f"outputs:\n  y: T[..., N]\nchain: y = {SCALES[name]}\nreference: jnp.zeros((*x.shape[:-1], w.shape[1]))\n",
    )
    assert all(not s.why for s in op.plan.scaled), "no scale moved"
    x, w = jnp.zeros((3, 0), "float16"), jnp.zeros((0, 8), "float16")
    np.testing.assert_array_equal(op(x, w, implementation=implementation), np.zeros((3, 8)))
