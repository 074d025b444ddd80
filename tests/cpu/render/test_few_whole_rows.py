"""Kernels that reduce along rows and over them, where rows are so few that a thread has one: nothing is in flight meanwhile."""

import jax.numpy as jnp
import numpy as np
import pytest

from codegen.runtime.call import arguments
from codegen.runtime.call.arguments import Types
from tests.making import make_op
from tests.turns import some

TEXT = """
op: few_whole_rows
summary: A softmax of each row, and sums over rows.
types:
  T: [float32, bfloat16]
inputs:
  x: T[..., N]
outputs:
  y: T[..., N]
  z: float32[N]
chain: |
  v = softmax(x, axis=N)
  y = v
  z = sum(v, axis=...)
reference: |
  v = jax.nn.softmax(x, axis=-1)
  y = v
  z = jnp.sum(v, axis=tuple(range(v.ndim - 1)))
"""


# The last block is not full, or threads of a row have no columns
@pytest.mark.parametrize(
    ("dtype", "rows", "columns"), some([("bfloat16", 37, 96), ("float32", 9, 64), ("bfloat16", 1, 304)], 2)
)
def test_few_whole_rows(tmp_path, dtype, rows, columns):
    op = make_op(tmp_path, TEXT)
    x = jnp.asarray(np.random.default_rng(rows).normal(size=(rows, columns)), dtype)
    types = Types(tuple((t, dtype) for t, _ in op.spec.types))
    how = op.launch_for(types, arguments.bind_axes(op.spec, {"x": x}))
    assert how.staged and how.at_once == 1 and rows <= how.parts * (how.threads // how.per_row)
    found = op(x, implementation="interpret")
    wide = np.exp(np.asarray(x, np.float64))
    wanted = wide / wide.sum(1, keepdims=True)
    np.testing.assert_allclose(np.asarray(found.y, np.float64), wanted, rtol=2**-8 if dtype == "bfloat16" else 1e-5)
    np.testing.assert_allclose(found.z, wanted.sum(0), rtol=1e-4)
