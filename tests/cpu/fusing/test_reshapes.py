"""A reshape that splits a dimension, or joins neighbours, does nothing: chains go through it, and ops have each part as an axis."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import codegen
from codegen.tracing.axes import renames
from tests.meshes import normal

X, W, WIDE, SCALE = (jnp.asarray(normal(*shape)) for shape in ((2, 6, 16), (16, 24), (2, 6, 24), (24,)))
COS, SIN = (jnp.asarray(normal(6, 1, 4, seed=i)) for i in range(2))


def norm(x):
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-6)


def rotated_heads(x, w, cos, sin):
    a, b = jnp.split(norm((x @ w).reshape(2, 6, 3, 8)), 2, -1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def scaled_heads(x, scale):
    return norm(x.reshape(2, 6, 3, 8)).reshape(x.shape) * scale + x


def split_twice(x, scale):
    """Axes of 4, 2 and 3 elements."""
    return norm(x.reshape(2, 6, 8, 3)).reshape(2, 6, 4, 6) * scale[:6]


def rows_joined(x):
    return norm(jnp.sin(x).reshape(12, 24)) * 2.0


def masked_heads(x):
    """Positions along what is split."""
    kept = jnp.where(jnp.arange(24) < 20, jnp.sin(x), 0.0)
    return norm(kept.reshape(2, 6, 3, 8))


def thirds(x):
    """Parts of an axis that a reshape has made."""
    q, k, v = jnp.split(norm(x.reshape(2, 6, 6, 4)), 3, 2)
    return jax.nn.silu(q) * k + v


CASES = {
    "heads": (rotated_heads, (X, W, COS, SIN), ["@ x1[0]", "mean(square(z), axis=D)", "y[1] ="]),
    "joined again": (scaled_heads, (WIDE, SCALE), ["axis=N)", "+ x"]),
    "twice": (split_twice, (WIDE, SCALE), ["* x1"]),
    "rows": (rows_joined, (WIDE,), ["sin(x0)"]),
    "positions": (masked_heads, (WIDE,), ["index(", "< 20"]),
    "parts": (thirds, (WIDE,), ["silu("]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_chain_goes_through_reshapes(name):
    function, arguments, parts = CASES[name]

    def total(f):
        return lambda *args: jnp.sum(jnp.sin(f(*args)))

    fused = codegen.fuse(function)
    np.testing.assert_allclose(jax.jit(fused)(*arguments), function(*arguments), rtol=2e-5, atol=2e-5)
    (chain,) = (r.chain for r in fused.report)
    assert [p for p in parts if p not in chain] == [], chain
    places = tuple(range(len(arguments)))
    got, wanted = (jax.jit(jax.grad(total(f), places))(*arguments) for f in (fused, function))
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def test_a_result_of_a_product_is_written_once():
    """Two products take what several kernels could compute again."""

    def function(x, w):
        y = jax.nn.softmax(x @ w, -1) * 2.0
        return jnp.swapaxes(y, 1, 2) @ x, y @ w.T

    fused = codegen.fuse(function)
    np.testing.assert_allclose(fused(X, W)[0], function(X, W)[0], rtol=2e-5, atol=2e-5)
    assert not [r.chain for r in fused.report if "y2" in r.chain]


@pytest.mark.parametrize(
    ("given", "result", "same"),
    [
        ((2, 12), (2, 3, 4), True), ((2, 3, 4), (6, 4), True), ((4, 6), (8, 3), True), ((4, 1, 6), (24,), True),
        ((4, 6), (6, 4), False), ((6, 64), (4, 96), False), ((0, 4), (0, 2, 2), True), ((4, 0), (0, 4), False),
    ],
)  # fmt: skip
def test_what_a_reshape_renames(given, result, same):
    assert renames(given, result) is same


def test_the_spec_of_a_traced_function_says_what_a_caller_reshapes():
    """An op has each part of a dimension as an axis. The spec was compared with the function on such arrays."""
    lines = codegen.trace(scaled_heads, WIDE, SCALE).splitlines()
    assert lines[:3] == [
        "# A call takes x.reshape(2, 6, 3, 8), where the function takes x of shape (2, 6, 24).",
        "# A call takes scale.reshape(3, 8), where the function takes scale of shape (24,).",
        "# The function's result is y.reshape(2, 6, 24).",
    ]
    assert {"  x: T[..., H, N]", "  scale: T[H, N]"} <= {*lines}
