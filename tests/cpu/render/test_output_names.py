"""Outputs with the names of a kernel's own variables and modules."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.making import make_op, spec_text
from tests.meshes import normal

ELEMENTS = (
    "x: float32[..., N]",
    "i: {}; at: {}; flat: {}; valid: {}",
    "i = x + 1; at = i * 2; flat = x * 3; valid = at - x",
)
ROWS = ("x: float32[..., N]", "row: {}; rest: {}; start: {}", "row = x - max(x, axis=N); rest = row * 2; start = x + 1")
OPS = {
    "elements": (*ELEMENTS, "i = x + 1; at = i * 2; flat = x * 3; valid = at - x"),
    "rows": (*ROWS, "row = x - jnp.max(x, -1, keepdims=True); rest = row * 2; start = x + 1"),
}


@pytest.mark.parametrize("name", OPS)
def test_kernels_have_other_names_for_them(name, tmp_path):
    inputs, outputs, chain, reference = OPS[name]
    op = make_op(tmp_path, spec_text(inputs, outputs.replace("{}", "float32[..., N]"), chain, reference))
    x = jnp.asarray(normal(5, 24))
    expected = op.reference(x)
    for implementation in ("interpret", "xla"):
        for got, value in zip(op(x, implementation=implementation), expected, strict=True):
            np.testing.assert_allclose(got, value, rtol=1e-6)
    pulled = jax.vjp(lambda x: op(x, implementation="interpret"), x)[1](expected)
    np.testing.assert_allclose(pulled[0], jax.vjp(op.reference, x)[1](expected)[0], rtol=1e-4, atol=1e-4)
