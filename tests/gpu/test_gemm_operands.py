"""Operands of a product's epilogue with the output's shape, in every layout of an array, on a GPU: TMA copies boxes if
rows are multiples of 16 bytes, else elements are loaded one by one. The sizes are odd, and the results are compared
with float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from making import make_op

from codegen.runtime.compiled.platform import current_arch

pytestmark = pytest.mark.skipif(current_arch() != "sm_90a", reason="TMA is Hopper's")

PRODUCT = {"x": "bfloat16[..., K]", "w": "bfloat16[K, N]"}
# Other inputs, the chain, and the same in NumPy
CASES = {
    "float32": ({"r": "float32[..., N]"}, "x @ w + r", lambda p, r: p + r),
    "halves": ({"r": "bfloat16[..., (2 N)]"}, "(x @ w) * r[0] + r[1]", lambda p, r: p * halves(r)[0] + halves(r)[1]),
    "pairs": ({"r": "bfloat16[..., (N 2)]"}, "(x @ w) * r[0] + r[1]", lambda p, r: p * r[..., ::2] + r[..., 1::2]),
    "fours": ({"r": "bfloat16[..., (N 4)]"}, "(x @ w) * r[0] + r[3]", lambda p, r: p * r[..., ::4] + r[..., 3::4]),
    "int8": ({"r": "int8[..., N]"}, "x @ w + r", lambda p, r: p + r),
    "bool": ({"r": "bool[..., N]", "s": "float32[..., N]"}, "where(r, x @ w, s)", lambda p, r, s: np.where(r, p, s)),
    "left out": ({"r": "float32[..., N] = 0", "s": "bfloat16[..., N] = 1"}, "(x @ w) * s + r", lambda p, s: p * s),
    "all there": ({"s": "bfloat16[..., N]", "r": "float32[..., N] = 0"}, "(x @ w) * s + r", lambda p, r, s: p * s + r),
}


def halves(r: np.ndarray) -> list[np.ndarray]:
    return np.split(r, 2, -1)


def drawn(dtype: str, shape: tuple[int, ...], seed: int) -> jax.Array:
    values = np.random.default_rng(seed).standard_normal(shape)
    return jnp.asarray(20 * values if dtype == "int8" else values > 0 if dtype == "bool" else values, dtype)


@pytest.mark.parametrize("name", CASES)
def test_operands_of_every_layout(name, tmp_path):
    others, chain, expected = CASES[name]
    inputs = ", ".join(f"{k}: '{v}'" for k, v in (PRODUCT | others).items())
    op = make_op(
        tmp_path,
        f"op: made\nsummary: Made here.\ninputs: {{{inputs}}}\noutputs: {{y: 'bfloat16[..., N]'}}\nchain: y = {chain}\nreference: y = 0\n",
    )
    given = {k: v for k, v in others.items() if not (name == "left out" and v.endswith("= 0"))}
    for M, K, N in [
        (1, 16, 8),
        (7, 64, 16),
        (13, 64, 24),
        (129, 256, 264),
        (300, 512, 392),
        (257, 72, 200),
        (8, 0, 16),
    ]:
        x, w = drawn("bfloat16", (M, K), 0), drawn("bfloat16", (K, N), 1)
        arrays = {}
        for seed, (key, text) in enumerate(given.items(), 2):
            parts = 4 if "4)" in text else 2 if "2" in text.partition("[")[2] else 1
            arrays[key] = drawn(text.partition("[")[0], (M, N * parts), seed)
        found = np.asarray(op(x, w, **arrays, implementation="cute"), np.float64)
        wide = {k: np.asarray(v, bool if v.dtype == bool else np.float64) for k, v in arrays.items()}
        want = expected(np.asarray(x, np.float64) @ np.asarray(w, np.float64), **wide)
        np.testing.assert_allclose(found, want, rtol=2.0**-8, atol=1e-3 * (K + 1) ** 0.5)


def test_boxes_of_batches(tmp_path):
    """A box at the end of a batch reaches into the next one."""
    op = make_op(
        tmp_path,
        "op: made\nsummary: Made here.\ninputs: {x: 'bfloat16[..., M, K]', w: 'bfloat16[..., K, N]', r: 'bfloat16[..., M, N]'}\n"
        "outputs: {y: 'bfloat16[..., M, N]'}\nchain: y = x @ w + r\nreference: y = 0\n",
    )
    for M, K, N in [(1, 16, 8), (13, 64, 24), (130, 256, 264)]:
        x, w, r = (drawn("bfloat16", s, i) for i, s in enumerate([(5, M, K), (5, K, N), (5, M, N)]))
        want = np.asarray(x, np.float64) @ np.asarray(w, np.float64) + np.asarray(r, np.float64)
        np.testing.assert_allclose(
            np.asarray(op(x, w, r, implementation="cute"), np.float64), want, rtol=2.0**-8, atol=0.02
        )
