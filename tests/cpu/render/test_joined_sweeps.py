"""Outputs along a row that need no statistic of its last sweep: this sweep writes them, and no other one follows."""

import jax.numpy as jnp
import numpy as np
import pytest

from codegen.runtime.ops.backward import backward_ops
from tests.making import make_op, spec_text
from tests.meshes import normal
from tests.turns import some

TYPES = "{T: [float32, bfloat16]}"
ALONE = (
    "x: T[B, N]; w: T[B]", "y: T[B, N]; s: float32[B]", "y = tanh(x) * w; s = sum(x * tanh(x), axis=N)",
    "y = jnp.tanh(x) * w[..., None]; s = jnp.sum(x * jnp.tanh(x), axis=-1)",
)  # fmt: skip
CENTRED = (
    "x: T[B, N]; w: T[N]", "y: T[B, N]; s: float32[B]",
    "c = x - mean(x, axis=N); y = exp(c) * w; s = mean(square(exp(c)), axis=N)",
    "c = x - jnp.mean(x, axis=-1, keepdims=True); y = jnp.exp(c) * w; s = jnp.mean(jnp.square(jnp.exp(c)), axis=-1)",
)  # fmt: skip
WAITS = (
    "x: T[B, N]; w: T[N]", "y: T[B, N]; z: T[B, N]; s: float32[B]",
    "s = mean(square(x), axis=N); z = x * w; y = z * rsqrt(s + 1)",
    "s = jnp.mean(jnp.square(x), axis=-1); z = x * w; y = z * jax.lax.rsqrt(s + 1)[..., None]",
)  # fmt: skip


@pytest.mark.parametrize(("spec", "joins", "passes"), [(ALONE, True, 1), (CENTRED, True, 2), (WAITS, False, 2)])
def test_sweeps(tmp_path, spec, joins, passes):
    plan = make_op(tmp_path, spec_text(*spec, types=TYPES)).plan
    assert (plan.joins, plan.passes, bool(plan.expensive)) == (joins, passes, False)


def test_gradients_of_a_factor_of_rows(tmp_path):
    op = make_op(tmp_path, spec_text("x: T[B, N]; w: T[B]", "y: T[B, N]", "y = silu(x * w)",
                                     "y = jax.nn.silu(x * w[..., None])", types=TYPES))  # fmt: skip
    assert [k.plan.joins for k in backward_ops(op)] == [True]


@pytest.mark.each
@pytest.mark.parametrize("spec", [ALONE, CENTRED])
@pytest.mark.parametrize("columns", some([2048, 1003, 40, 7, 300_000, 70_001], 3))
def test_values(tmp_path, spec, columns, monkeypatch):
    """Rows in registers, ragged, several in a thread, and rows that are read in parts."""
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    op = make_op(tmp_path, spec_text(*spec, types=TYPES))
    x = normal(3, columns).astype(jnp.bfloat16)
    w = normal(3 if spec is ALONE else columns).astype(jnp.bfloat16)
    got = op(x, w, implementation="interpret")
    expected = op.reference(jnp.float32(x), jnp.float32(w))
    for own, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(
            np.float32(own), other, rtol=2**-7, atol=2**-7 * (columns if own.ndim == 1 else 1) ** 0.5
        )
