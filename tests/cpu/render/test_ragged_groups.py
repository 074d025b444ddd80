"""Sums over groups of columns whose vectors may belong to two groups."""

import jax.numpy as jnp
import numpy as np
import pytest

from tests.making import make_op, spec_text


@pytest.mark.parametrize("size", [9, 8])
def test_quotients_by_a_value_of_each_group(tmp_path, size):
    text = spec_text(
        "x: float32[B, C, S]; m: float32[C]", "t: float32[C]", "t = sum(x / m, axis=(B, S))", more="grad: none"
    )
    draw = np.random.default_rng(0)
    x, m = draw.standard_normal((5, 3, size)).astype(np.float32), np.array([0.5, -2.0, 7.0], np.float32)
    found = make_op(tmp_path, text)(jnp.asarray(x), jnp.asarray(m), implementation="interpret")
    np.testing.assert_allclose(found, (x / m[:, None]).sum((0, 2)), rtol=1e-5)
