"""Which columns and rows count where a kernel walks down whole rows: only a row's last vector may cross its end."""

import jax.numpy as jnp
import numpy as np
import pytest

from codegen.plan.rows.launching.walking import in_parts
from codegen.runtime.call import arguments
from codegen.runtime.call.arguments import Types
from tests.making import make_op

# Of zeros, which are read past a row's end and of rows past the last one, no value is 0
SPEC = """\
op: walk_masks
summary: Drawn by hand.
types:
  T: [float32, bfloat16]
inputs:
  x: T[..., N]
outputs:
  y: float32[..., N]
  columns: float32[N]
  most: float32[N]
  everything: float32[]
chain: |
  raised = x + 3.0
  share = raised / sum(raised, axis=N)
  y = share
  columns = sum(share + 1.0, axis=...)
  most = max(4.0 - x, axis=...)
  everything = sum(share * raised + 1.0, axis=(..., N))
reference: |
  raised = x + 3.0
  share = raised / jnp.sum(raised, axis=-1, keepdims=True)
  y = share
  columns = jnp.sum(share + 1.0, axis=0)
  most = jnp.max(4.0 - x, axis=0)
  everything = jnp.sum(share * raised + 1.0)
"""


# Long runs of rows, whose threads have several vectors; whole vectors of several rows of a block, and of several rows of a warp; runs of
# columns. The last rows do not fill a block
@pytest.mark.parametrize(("dtype", "columns", "per_row"), [
    ("bfloat16", 2051, 96), ("float32", 1028, 64), ("bfloat16", 200, 16), ("float32", 37, 4),
])  # fmt: skip
def test_only_columns_and_rows_that_exist_count(tmp_path, dtype, columns, per_row):
    op = make_op(tmp_path, SPEC)
    x = jnp.asarray(np.random.default_rng(1).integers(0, 9, (13, columns)) / 8, dtype)
    with in_parts(1):
        how = op.launch_for(Types((("T", dtype),)), arguments.bind_axes(op.spec, {"x": x}))
        found = op(x, implementation="interpret")
    assert how.per_row == per_row
    assert how.whole and not how.exact and how.vectors > 1
    raised = np.asarray(x, np.float64) + 3
    share = raised / raised.sum(1, keepdims=True)
    np.testing.assert_allclose(found.y, share, rtol=1e-6)
    np.testing.assert_allclose(found.columns, (share + 1).sum(0), rtol=1e-6)
    np.testing.assert_array_equal(found.most, 7 - raised.min(0))
    np.testing.assert_allclose(found.everything, (share * raised + 1).sum(), rtol=1e-6)


PARTS = """\
op: joined_runs
summary: Drawn by hand.
types:
  T: [float32, bfloat16]
inputs:
  x: T[A, B, N]
  pair: T[A, B, (N 2)]
  weight: T[N]
outputs:
  y: T[A, B, N]
  swapped: T[A, B, (N 2)]
  total: float32[N]
chain: |
  shared = x * weight + pair[0]
  y = shared - max(shared, axis=N)
  swapped[0] = pair[1] + y
  swapped[1] = pair[0]
  total = sum(shared + 1.0, axis=(A, B))
reference: |
  even, odd = pair[..., ::2], pair[..., 1::2]
  shared = x * weight + even
  y = shared - jnp.max(shared, axis=-1, keepdims=True)
  swapped = jnp.stack([odd + y, even], axis=-1).reshape(pair.shape)
  total = jnp.sum(shared + 1.0, axis=(0, 1))
"""


# Blocks with all rows, with some, and with none; runs that end with a vector of the array, and that do not
@pytest.mark.parametrize(
    ("dtype", "shape"), [("bfloat16", (11, 19, 37)), ("float32", (3, 7, 49)), ("bfloat16", (8, 32, 21))]
)
def test_rows_of_a_block_are_one_run(tmp_path, dtype, shape):
    op = make_op(tmp_path, PARTS)
    rng = np.random.default_rng(2)
    sizes = shape, (*shape[:2], 2 * shape[2]), shape[2:]
    x, pair, weight = (jnp.asarray(rng.integers(-8, 9, size) / 4, dtype) for size in sizes)
    with in_parts(1):
        arrays = {"x": x, "pair": pair, "weight": weight}
        how = op.launch_for(Types((("T", dtype),)), arguments.bind_axes(op.spec, arrays))
        found = op(x, pair, weight, implementation="interpret")
    assert how.by_runs and how.joins and how.threads > how.per_row
    x, pair, weight = (np.asarray(a, np.float64) for a in (x, pair, weight))
    even, odd = pair[..., ::2], pair[..., 1::2]
    shared = x * weight + even
    y = shared - shared.max(-1, keepdims=True)
    swapped = np.stack([odd + y, even], axis=-1).reshape(pair.shape)
    rounded = {"float32": 0, "bfloat16": 2**-8}[dtype]
    np.testing.assert_allclose(np.asarray(found.y, np.float64), y, rtol=rounded)
    np.testing.assert_allclose(np.asarray(found.swapped, np.float64), swapped, rtol=rounded)
    np.testing.assert_array_equal(found.total, (shared + 1).sum((0, 1)))
