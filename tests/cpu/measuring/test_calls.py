"""What is timed of an op, and how results are compared."""

import jax.numpy as jnp
import pytest

from codegen.measuring.times.calls import differences


@pytest.mark.parametrize(
    ("ours", "xla", "off"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0),
        ([jnp.nan, jnp.inf], [jnp.nan, jnp.inf], 0),
        ([1.0, 2.0], [1.0, 2.5], 0.5),
        ([jnp.nan, 2.0], [1.0, 2.0], 0.5),
        ([jnp.inf, 2.0], [1.0, 2.0], 0.5),
        ([1e-9, 2.0], [-1e-9, 2.0], 0),  # next to nothing beside the others
    ],
)
def test_what_differs(ours, xla, off):
    ((found, _),) = differences(jnp.asarray(ours, "float32"), jnp.asarray(xla, "float32"))
    assert float(found) == off
