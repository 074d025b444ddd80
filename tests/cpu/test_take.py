"""Gathering along a named axis: the kernel, interpreted, against its reference."""

import pytest

from codegen.runtime.testing import check_op
from tests.making import make_op

SPEC = """
op: embed
summary: Add the position's row of a table.
types:
  T: [float32, bfloat16]
inputs:
  x: T[..., N]
  table: float32[P, N]
  positions: int32[...]
outputs:
  y: T[..., N]
chain: |
  y = x + take(table, positions, axis=P)
reference: x + jnp.take(table, jnp.clip(positions, 0, table.shape[0] - 1), axis=0)
domain:
  positions: index(P)
grad: none
"""


@pytest.mark.parametrize("implementation", ["xla", "interpret"])
def test_a_gather_agrees_with_its_reference(implementation, tmp_path):
    check_op(make_op(tmp_path, SPEC), implementation, examples=10)
