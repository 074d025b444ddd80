"""Which columns and rows count where a kernel walks down whole rows: only a row's last vector may cross its end."""

import jax.numpy as jnp
import numpy as np
import pytest

from codegen.plan.rows.walking import in_parts
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
