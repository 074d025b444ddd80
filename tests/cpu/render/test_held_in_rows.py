"""Expensive values that a kernel of rows holds from each sweep to the next, where its maxima and exponentials need them one by one."""

import jax.numpy as jnp
import numpy as np
import pytest

from codegen.runtime.call import arguments
from codegen.runtime.call.arguments import Types
from codegen.runtime.compiled import interpreted
from tests.making import make_op

SPEC = """\
op: held_in_rows
summary: Drawn by hand.
inputs:
  x: float32[..., N]
  gate: float32[..., N]
outputs:
  y: float32[..., N]
chain: |
  bent = tanh(x) * gate
  y = softmax(bent, axis=N) + mean(bent, axis=N)
reference: |
  bent = jnp.tanh(x) * gate
  y = jax.nn.softmax(bent, axis=-1) + jnp.mean(bent, axis=-1, keepdims=True)
"""


# Rows in registers, of whole vectors and in runs; rows that are read again, of which nothing is held
@pytest.mark.parametrize(("rows", "columns", "arch"), [(5, 96, "sm_90a"), (5, 37, "sm_90a"), (1, 2**16, "sm_80")])
def test_each_expensive_value_is_held(tmp_path, rows, columns, arch):
    op = make_op(tmp_path, SPEC)
    assert [c.stage for c in op.plan.expensive] == [0, 1]
    rng = np.random.default_rng(1)
    x, gate = (jnp.asarray(rng.standard_normal((rows, columns)) * 3, "float32") for _ in range(2))
    with interpreted.interpreting_for(arch):
        how = op.launch_for(Types(()), arguments.bind_axes(op.spec, {"x": x, "gate": gate}))
        found = op(x, gate, implementation="interpret")
    assert how.holds_expensive == how.holds_row == (columns < 2**16)
    bent = np.tanh(np.asarray(x, np.float64)) * np.asarray(gate, np.float64)
    weights = np.exp(bent - bent.max(1, keepdims=True))
    expected = weights / weights.sum(1, keepdims=True) + bent.mean(1, keepdims=True)
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-6)
