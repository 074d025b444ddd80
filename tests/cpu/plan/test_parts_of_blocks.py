"""Parts of an axis of blocks: `(2 B G=16)` and `(B G=16 2)`, in and out, with their gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.making import make_op, spec_text

X = np.random.default_rng(0).standard_normal((3, 96)).astype(np.float32)


@pytest.mark.each
@pytest.mark.parametrize("implementation", ["xla", "interpret"])
@pytest.mark.parametrize("written", ["(2 B G=16)", "(B G=16 2)"])
@pytest.mark.parametrize("value", ["s", "sum(x[0] * x[1], axis=G)"], ids=["elements", "rows"])
def test_parts_of_blocks(tmp_path, written, value, implementation):
    text = spec_text(
        f"x: float32[M, {written}]; s: float32[M, B]", f"y: float32[M, {written}]",
        f"t = {value}; y[0] = x[0] * t + s; y[1] = x[1] - t", "y = x",
    )  # fmt: skip
    halves = written.startswith("(2")

    def expected(x, s):
        a, b = (x[:, :48], x[:, 48:]) if halves else (x[:, 0::2], x[:, 1::2])
        a, b = a.reshape(3, 3, 16), b.reshape(3, 3, 16)
        t = s[:, :, None] if value == "s" else (a * b).sum(-1, keepdims=True)
        parts = [(a * t + s[:, :, None]).reshape(3, 48), (b - t).reshape(3, 48)]
        return jnp.concatenate(parts, -1) if halves else jnp.stack(parts, -1).reshape(3, 96)

    op, s = make_op(tmp_path, text), jnp.asarray(X[:, :3])
    known = expected(X, s)

    def pulled(f):
        y, pull = jax.vjp(f, X, s)
        return y, *pull(known)

    own = jax.jit(functools.partial(pulled, functools.partial(op, implementation=implementation)))()
    for found, exact in zip(own, jax.jit(functools.partial(pulled, expected))(), strict=True):
        np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-4)


def test_a_size_that_blocks_with_parts_do_not_divide(tmp_path):
    op = make_op(tmp_path, spec_text("x: float32[M, (2 B G=16)]", "y: float32[M, (B G=16)]", "y = x[0] + x[1]", ""))
    with pytest.raises(ValueError, match=r"shape \(3, 80\), but float32\[M, \(2 B G=16\)\] divides 80 by 32"):
        op(X[:, :80])


def test_halves_of_blocks_go_through_shared_memory(tmp_path):
    """Three parts make threads read single elements, so a block copies its rows. Rows of halves of blocks are not neighbours."""
    text = spec_text(
        "x: float32[M, (2 B G=8)]", "y: float32[M, (B G=8 3)]",
        "m = max(x[0] + x[1], axis=G); y[0] = x[0] - m; y[1] = x[1]; y[2] = x[0] * x[1]", "y = x",
    )  # fmt: skip
    op, (a, b) = make_op(tmp_path, text), X.reshape(3, 2, 6, 8).swapaxes(0, 1)
    expected = np.stack([a - (a + b).max(-1, keepdims=True), b, a * b], -1)
    np.testing.assert_array_equal(op(X, implementation="interpret"), expected.reshape(3, 144))


@pytest.mark.parametrize("more", ["", "schedule: {vector_bytes: 4}"])
def test_rows_of_4_bits_are_reduced(tmp_path, more):
    text = spec_text(
        "x: int4[M, (B G=8)]; s: float32[M]",
        "y: float32[M, (B G=8)]",
        "y = x * s - max(x, axis=G)",
        "y = x",
        f"grad: none\n{more}",
    )
    op, x = make_op(tmp_path, text), np.random.default_rng(1).integers(-8, 8, (3, 5, 8))
    expected = x * X[:, :1, None] - x.max(-1, keepdims=True)
    got = op(jnp.asarray(x.reshape(3, 40)).astype("int4"), X[:, 0], implementation="interpret")
    np.testing.assert_allclose(got, expected.reshape(3, 40), rtol=1e-6)


@pytest.mark.each
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_one_part_beside_a_product(tmp_path, arch, monkeypatch):
    """The kernel reads it as an array without parts: Hopper's copies boxes of it."""
    monkeypatch.setenv("CUTE_DSL_ARCH", arch)
    text = spec_text(
        "x: bfloat16[M, K]; w: bfloat16[K, N]; s: float32[M, N, 1]", "y: float32[M, N]", "y = (x @ w) * s[0]", ""
    )
    x, s = jnp.asarray(X[:, :16], jnp.bfloat16), X[:, :64, None]
    w = jnp.asarray(X[:, :64].T @ X[:, :16], jnp.bfloat16).T
    y = make_op(tmp_path, text)(x, w, s, implementation="interpret")
    exact = (np.asarray(x, np.float32) @ np.asarray(w, np.float32)) * s[..., 0]
    np.testing.assert_allclose(y, exact, rtol=1e-4, atol=1e-4)
