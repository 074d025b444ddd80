"""Epilogues that reduce along a product's innermost axis, of several, in registers: each against NumPy in float64, interpreted."""

import ml_dtypes
import numpy as np
import pytest

from codegen.plan.gemms.tiles import Tile
from codegen.runtime.compiled import interpreted
from tests.making import make_op, spec_text


def normalised(z, g):
    return z / np.sqrt(np.mean(z * z, -1, keepdims=True) + 0.5) * g


def rotated(first, second, turn):
    return first - turn * second, second + turn * first


def halves(z, g):
    first, second = np.split(z / np.abs(z).max(-1, keepdims=True), 2, -1)
    return np.concatenate(rotated(first, second, np.split(g, 2)[0]), -1)


def pairs(z, g):
    z = z - z.mean(-1, keepdims=True)
    return np.stack(rotated(z[..., ::2], z[..., 1::2], g[::2]), -1).reshape(z.shape)


def upper(z):
    second = np.split(z, 2, -1)[1]
    return second / np.abs(second).max(-1, keepdims=True)


# Name: b, y and how b lies; the chain; the same in NumPy of the product and g
OPS = {
    "norm": ("T[K, H, D]", "T[..., H, D]", "T[D]", "z = x @ w; y = z * rsqrt(mean(square(z), axis=D) + 0.5) * g", normalised),
    "norm_of_columns_first": (
        "T[H, D, K]", "T[..., H, D]", "T[D]", "z = x @ w; y = z * rsqrt(mean(square(z), axis=D) + 0.5) * g", normalised,
    ),
    "halves": (
        "T[H, (2 D), K]", "T[..., H, (2 D)]", "T[(2 D)]",
        "a = x @ w[0]; b = x @ w[1]; top = maximum(max(abs(a), axis=D), max(abs(b), axis=D)); "
        "y[0] = (a - g[0] * b) / top; y[1] = (b + g[0] * a) / top", halves,
    ),
    "pairs": (
        "T[K, H, (D 2)]", "T[..., H, (D 2)]", "T[(D 2)]",
        "a = x @ w[0]; b = x @ w[1]; m = (mean(a, axis=D) + mean(b, axis=D)) / 2; "
        "y[0] = a - m - g[0] * (b - m); y[1] = b - m + g[0] * (a - m)", pairs,
    ),
    "one_half_decides": (
        "T[K, H, (2 D)]", "T[..., H, (2 D)]", "T[(2 D)]", "a = x @ w[0]; b = x @ w[1]; y[0] = a + g[0]; y[1] = b * g[1] / max(abs(b), axis=D)",
        lambda z, g: np.concatenate([np.split(z, 2, -1)[0] + np.split(g, 2)[0], upper(z) * np.split(g, 2)[1]], -1),
    ),
    "several_axes_and_no_reduction": ("T[K, H, D]", "T[..., H, D]", "T[D]", "y = relu(x @ w + g)", lambda z, g: np.maximum(z + g, 0)),
}  # fmt: skip


@pytest.mark.turns(2)
@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize(("dtype", "D"), [("bfloat16", 64), ("bfloat16", 128), ("float32", 128)])
def test_segments_agree_with_numpy(name, dtype, D, tmp_path):
    b, y, g, chain, of_product = OPS[name]
    op = make_op(
        tmp_path, spec_text(f"x: T[..., K]; w: {b}; g: {g}", f"y: {y}", chain, types="{T: [float32, bfloat16]}")
    )
    assert isinstance(op.plan.tile, Tile)
    K, H, rows, random = 9, 2, 19, np.random.default_rng(0)
    first = b.startswith("T[H")

    def whole(*shape):
        return random.integers(-4, 5, shape).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)

    x, w, g = whole(rows, K), whole(*((H, D, K) if first else (K, H, D))), whole(D)
    got = op(x, w, g, implementation="interpret")
    assert len(interpreted.last_reports()) == 1
    z = np.einsum("rk,hdk->rhd" if first else "rk,khd->rhd", x.astype(float), w.astype(float))
    wanted = of_product(z, g.astype(float))
    np.testing.assert_allclose(np.asarray(got, float), wanted, rtol=2**-7 if dtype == "bfloat16" else 1e-5, atol=1e-5)


def test_what_no_tile_has_is_two_kernels(tmp_path):
    """A segment of 40 columns."""
    b, y, g, chain, _ = OPS["norm"]
    op = make_op(tmp_path, spec_text(f"x: T[..., K]; w: {b}; g: {g}", f"y: {y}", chain, types="{T: [float32]}"))
    x, w, g = np.ones((3, 2), "float32"), np.full((2, 1, 40), 2, "float32"), np.ones(40, "float32")
    np.testing.assert_allclose(
        op(x, w, g, implementation="interpret"), np.full((3, 1, 40), 4 / np.sqrt(16.5)), rtol=1e-6
    )
