"""Expensive values that a kernel which walks down rows holds from one reduction along its row to the next."""

import jax.numpy as jnp
import numpy as np
import pytest

from codegen.plan.rows.launching.walking import in_parts
from codegen.runtime.call import arguments
from codegen.runtime.call.arguments import Types
from codegen.runtime.compiled import interpreted
from tests.making import make_op
from tests.turns import some

SPEC = """\
op: held_in_walks
summary: Drawn by hand.
inputs:
  x: float32[..., N]
  weight: float32[N]
outputs:
  y: float32[..., N]
  total: float32[N]
chain: |
  bent = tanh(x * weight)
  w = exp(bent - mean(bent, axis=N))
  y = w / sum(w, axis=N) + bent
  total = sum(y * bent, axis=...)
reference: |
  bent = jnp.tanh(x * weight)
  w = jnp.exp(bent - jnp.mean(bent, axis=-1, keepdims=True))
  y = w / jnp.sum(w, axis=-1, keepdims=True) + bent
  total = jnp.sum(y * bent, axis=0)
"""


def by_hand(x, weight):
    x, weight = (np.asarray(a, np.float64) for a in (x, weight))
    bent = np.tanh(x * weight)
    w = np.exp(bent - bent.mean(1, keepdims=True))
    y = w / w.sum(1, keepdims=True) + bent
    return y, (y * bent).sum(0)


# Runs of long rows, rows of a warp's threads of whole vectors, runs of columns
@pytest.mark.parametrize("columns", some([1025, 64, 37], 1))
def test_values_are_held(tmp_path, columns):
    op = make_op(tmp_path, SPEC)
    assert [(c.name, c.stage) for c in op.plan.expensive] == [("bent", 0), ("w", 1)]
    rng = np.random.default_rng(1)
    x, weight = (jnp.asarray(rng.standard_normal(shape), "float32") for shape in ((11, columns), (columns,)))
    with in_parts(1):
        how = op.launch_for(Types(()), arguments.bind_axes(op.spec, {"x": x, "weight": weight}))
        found = op(x, weight, implementation="interpret")
    assert how.holds_expensive and how.by_runs == bool(columns % 4)
    y, total = by_hand(x, weight)
    np.testing.assert_allclose(found.y, y, rtol=2e-6, atol=1e-6)
    np.testing.assert_allclose(found.total, total, rtol=1e-5, atol=1e-5)


# A kernel before it has reduced along the rows: nothing is held
def test_rows_that_are_too_long_for_a_block(tmp_path):
    op = make_op(tmp_path, SPEC)
    rng = np.random.default_rng(2)
    x, weight = (jnp.asarray(rng.standard_normal(shape), "float32") for shape in ((2, 2**16), (2**16,)))
    with interpreted.interpreting_for("sm_80"):
        how = op.launch_for(Types(()), arguments.bind_axes(op.spec, {"x": x, "weight": weight}))
        found = op(x, weight, implementation="interpret")
    assert not how.whole and not how.holds_expensive
    y, total = by_hand(x, weight)
    np.testing.assert_allclose(found.y, y, rtol=2e-6, atol=1e-6)
    np.testing.assert_allclose(found.total, total, rtol=1e-5, atol=1e-5)


GATHERED = """\
op: gathered_in_walks
summary: Drawn by hand.
types:
  T: [float32, bfloat16]
inputs:
  dy: T[B, H, C, S]
  q: int8[B, H, C, S]
  scale: float32[B, H, C]
  weight: T[H, C]
outputs:
  dq: float32[B, H, C, S]
  dweight: float32[H, C]
chain: |
  x = q * scale
  g = dy * sin(x)
  dq = g * weight * mean(g * x, axis=(C, S)) + cos(x)
  dweight = sum(g * x, axis=(B, S))
reference: |
  x = q * jnp.expand_dims(scale, -1)
  g = dy * jnp.sin(x)
  dq = g * jnp.expand_dims(weight, -1) * jnp.mean(g * x, axis=(2, 3), keepdims=True) + jnp.cos(x)
  dweight = jnp.sum(g * x, axis=(0, 3))
"""


def test_rows_with_gathered_values_are_prefetched(tmp_path):
    op = make_op(tmp_path, GATHERED)
    rng = np.random.default_rng(3)
    dy, scale, weight = (
        jnp.asarray(rng.integers(-8, 9, shape) / 8, dtype)
        for shape, dtype in (((7, 3, 4, 128), "bfloat16"), ((7, 3, 4), "float32"), ((3, 4), "bfloat16"))
    )
    q = jnp.asarray(rng.integers(-9, 10, dy.shape), "int8")
    with in_parts(1):
        arrays = {"dy": dy, "q": q, "scale": scale, "weight": weight}
        how = op.launch_for(Types((("T", "bfloat16"),)), arguments.bind_axes(op.spec, arrays))
        found = op(dy, q, scale, weight, implementation="interpret")
    assert how.staged and how.at_once > 1 and how.holds_expensive
    dy, q, scale, weight = (np.asarray(a, np.float64) for a in (dy, q, scale, weight))
    x = q * scale[..., None]
    g = dy * np.sin(x)
    dq = g * weight[..., None] * (g * x).mean((2, 3), keepdims=True) + np.cos(x)
    np.testing.assert_allclose(found.dq, dq, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found.dweight, (g * x).sum((0, 3)), rtol=1e-4, atol=1e-4)
