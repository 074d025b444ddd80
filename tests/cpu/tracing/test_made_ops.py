"""Ops that are made while a program runs."""

import jax.numpy as jnp
import numpy as np

from codegen.pipeline import read_op
from codegen.tracing.ops import op_of

SPEC = """
op: made
summary: Something.
inputs: {x: "float32[..., N]"}
outputs: {y: "float32[..., N]"}
chain: y = %s
reference: y = %s
"""


def test_ops_of_one_name_have_kernels_of_their_own():
    """Also on disk, where a kernel is found by its source."""
    x = jnp.arange(8.0).reshape(2, 4)
    for text, wanted in (("x + 1", x + 1), ("x * 3", x * 3)):
        op = op_of(read_op("specs/made.yaml", SPEC % (text, text)))
        np.testing.assert_array_equal(op(x, implementation="interpret"), wanted)
