"""Element-wise kernels of rows that are not whole vectors: a vector has the values of two rows, or of several short ones."""

import jax.numpy as jnp
import numpy as np
import pytest

from tests.making import make_op

SPEC = """\
op: values_of_rows
summary: Drawn by hand.
inputs:
  x: bfloat16[B, C, S]
  bias: bfloat16[C]
  weight: float32[B, C]
  mask: bool[C]
  q: int8[C]
  narrow: float8_e4m3fn[C]
outputs:
  y: float32[B, C, S]
chain: y = where(mask, (x + bias) * weight + q + narrow + index(C), x)
reference: |
  wide = lambda a: jnp.expand_dims(a.astype(jnp.float32), -1)
  channel = jnp.expand_dims(jnp.arange(x.shape[1]), -1)
  y = (x.astype(jnp.float32) + wide(bias)) * wide(weight) + wide(q) + wide(narrow) + channel
  y = jnp.where(jnp.expand_dims(mask, -1), y, x.astype(jnp.float32))
grad: none
"""


@pytest.mark.parametrize("shape", [(3, 5, 49), (5, 3, 9), (3, 4, 3)])
def test_values_that_rows_share(tmp_path, shape):
    op, rng = make_op(tmp_path, SPEC), np.random.default_rng(1)
    b, c, _ = shape

    def drawn(shape, dtype):
        return jnp.asarray(rng.standard_normal(shape) * 2, dtype)

    arrays = {"x": drawn(shape, "bfloat16"), "bias": drawn(c, "bfloat16"), "weight": drawn((b, c), "float32")}
    arrays |= {"mask": jnp.arange(c) % 3 > 0, "q": drawn(c, "int8"), "narrow": drawn(c, "float8_e4m3fn")}
    found = op(**arrays, implementation="interpret")
    np.testing.assert_allclose(found, op.reference(**arrays), rtol=1e-6, atol=1e-5)
