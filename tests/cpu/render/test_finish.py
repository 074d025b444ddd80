"""Results that have the partial results of several columns: a thread reduces a few, warps those of neighbouring results, a block many."""

import jax.numpy as jnp
import numpy as np
import pytest

from codegen.plan.rows.launching.walking import in_parts
from tests.making import make_op, spec_text
from tests.turns import some

SPEC = """\
op: sums_over_heads
summary: Drawn by hand.
types:
  T: [float32, bfloat16]
inputs:
  x: T[B, S, H, D]
  scale: T[B, S, H]
  mask: bool[S, D]
outputs:
  scaled: T[B, S, H, D]
  total: float32[S, D]
  largest: float32[S, D]
chain: |
  scaled = where(mask, x * scale, 0)
  total = sum(x, axis=(B, H))
  largest = max(x, axis=(B, H))
reference: |
  scaled = jnp.where(mask[:, None], x * scale[..., None], 0)
  total = jnp.sum(x, axis=(0, 2))
  largest = jnp.max(x, axis=(0, 2))
"""


@pytest.mark.parametrize(
    ("shape", "parts"),
    some([((3, 2, 5, 8), 1), ((2, 3, 20, 16), 1), ((2, 2, 70, 8), 1), ((2, 4, 20, 80), 1), ((2, 4, 100, 68), 1)], 2),
)
def test_results_of_several_columns(tmp_path, shape, parts):
    op = make_op(tmp_path, SPEC)
    x = jnp.asarray(np.random.default_rng(1).integers(-8, 9, shape) / 4, "float32")
    with in_parts(parts):
        found = op(x, jnp.ones(shape[:3]), jnp.ones((shape[1], shape[3]), bool), implementation="interpret")
    wide = np.asarray(x, np.float64)
    assert np.array_equal(found.total, wide.sum((0, 2))) and np.array_equal(found.largest, wide.max((0, 2)))


@pytest.mark.parametrize(("rows", "most"), some([(500, 1), (6000, 64), (24000, 132)], 1))
def test_partial_results_of_blocks(tmp_path, rows, most):
    """One thread reduces those of a column, or warps do, or every eighth thread of a block; the last of 20 columns has neighbours."""
    op = make_op(
        tmp_path,
        spec_text(
            "x: float32[..., N]", "y: float32[N]; z: float32[N]", "y = logsumexp(x, axis=...); z = sum(x, axis=...)",
            "y = jax.nn.logsumexp(x, axis=0); z = jnp.sum(x, axis=0)",
        ),
    )  # fmt: skip
    x = jnp.asarray(np.random.default_rng(1).integers(-8, 9, (rows, 20)) / 4, "float32")
    with in_parts(most):
        found = op(x, implementation="interpret")
    wide = np.asarray(x, np.float64)
    np.testing.assert_allclose(found.y, np.log(np.exp(wide).sum(0)), rtol=1e-6)
    assert np.array_equal(found.z, wide.sum(0))
