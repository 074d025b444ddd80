"""Gradients of norms that a chain writes out, whose sums are of one stage."""

import pytest

from codegen.checking import testing
from tests.making import make_op, spec_text
from tests.turns import EVERY

NORM = "v = x - mean(x, axis={0}); y = v * rsqrt(mean(square(v), axis={0}) + 0.1) * weight"
REFERENCE = (
    "m = jnp.mean(x, axis={0}, keepdims=True); v = jnp.mean(jnp.square(x - m), axis={0}, keepdims=True); "
    "y = (x - m) / jnp.sqrt(v + 0.1) * weight"
)


@pytest.mark.parametrize(("axes", "places"), [("N", -1), ("S", 1), ("(B, S)", (0, 1))])
def test_gradients_of_a_norm(tmp_path, axes, places):
    text = spec_text(
        "x: T[B, S, N]; weight: T[N]", "y: T[B, S, N]", NORM.format(axes), REFERENCE.format(places),
        types="{T: [float32, bfloat16]}",
    )  # fmt: skip
    op = make_op(tmp_path, text)
    testing.check_gradient(op, "interpret", examples=4 if EVERY else 2)
