"""cumlogsumexp of elements that are infinite, or far from those before, and its gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from codegen.autodiff.backward import backward_of
from codegen.pipeline import read_op
from tests.making import make_op, spec_text


def text(axes: str, more: str = "") -> str:
    return spec_text(f"x: float32[{axes}]", f"y: float32[{axes}]", "y = cumlogsumexp(x, axis=S)", "y = x", more=more)


def elements() -> np.ndarray:
    """Seven columns: ordinary, increasing and decreasing by much, with -infinity first, between, and alone."""
    x = np.random.default_rng(0).standard_normal((150, 7))
    x[:, 1] = np.linspace(-300, 300, 150)
    x[:, 2] = -x[:, 1]
    x[:40, 3] = x[60:70, 4] = x[::2, 5] = x[:, 6] = -np.inf
    return x.astype("float32")


@pytest.mark.parametrize("axes", ["S, N", "N, S"])
def test_states(tmp_path, axes):
    x = np.concatenate([elements(), elements()[:, :3]], axis=1)
    x[100, 7:] = np.inf, np.nan, -np.inf
    x[120, 7] = np.inf
    found = make_op(tmp_path, text(axes, "grad: none"))(
        jnp.asarray(x if axes == "S, N" else x.T), implementation="interpret"
    )
    with np.errstate(invalid="ignore"):
        exact = np.logaddexp.accumulate(x.astype("float64"), 0)
    np.testing.assert_allclose(found, exact if axes == "S, N" else exact.T, rtol=1e-6, atol=2e-6)


def test_gradients_need_the_states_before_alone(tmp_path):
    stages = backward_of(read_op("specs/made.yaml", text("S, N"))).op.plan.stages
    assert [len(op.spec.outputs) for op in stages] == [1, 1]
    op, x = make_op(tmp_path, text("S, N")), elements()
    weights = np.cos(np.arange(x.size)).reshape(x.shape)
    found = jax.grad(lambda x: (jnp.where(x > -jnp.inf, op(x, implementation="interpret"), 0) * weights).sum())(x)
    near = x.astype("float64")  # dx_s is the sum over t >= s of the cotangent times exp(x_s - y_t)
    states = np.where(np.isneginf(near), 0, np.logaddexp.accumulate(near, 0))
    given = np.where(np.isneginf(near), 0, weights)
    exact = [np.sum(given[s:] * np.exp(np.minimum(near[s] - states[s:], 0)), axis=0) for s in range(len(x))]
    np.testing.assert_allclose(found, np.where(np.isneginf(near), 0, exact), rtol=2e-5, atol=2e-5)
