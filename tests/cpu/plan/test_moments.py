"""A mean and the variance about it in one sweep, about a centre that a sample of the elements gives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from codegen import shared
from codegen.plan.op import Staged
from codegen.plan.rows.middle import in_stages
from codegen.runtime.call.sample import sample
from tests.making import make_op, spec_text

OVER_ROWS = spec_text(
    "x: float32[..., N]", "y: float32[..., N]; m: float32[N]; v: float32[N]",
    "m = mean(x, axis=...); v = var(x, axis=...); y = (x - m) * rsqrt(v + 0.001)",
)  # fmt: skip
BASE = np.random.default_rng(0).standard_normal((640, 8)).astype(np.float32)
OUTLIERS = np.where(np.arange(640)[:, None] % 32 == 0, 100 + BASE, BASE)  # all that are sampled


@pytest.fixture(autouse=True)
def sampled(monkeypatch):
    monkeypatch.setattr(shared, "LEAST_SAMPLED", 0)
    with in_stages():
        yield


def test_one_sweep_after_a_sample(tmp_path):
    plan = make_op(tmp_path, OVER_ROWS).plan
    assert isinstance(plan, Staged)
    assert [stage.plan.kind for stage in plan.stages] == ["column", "column", "elementwise"]
    assert plan.sampled == ((0, ("...",)),)
    assert {a.name for a in plan.stages[1].spec.outputs} == {"m", "v"}


@pytest.mark.parametrize(("rows", "taken"), [(640, 20), (24 * 61, 61), (631, 20), (334, 11), (7, 1), (0, 0)])
def test_rows_of_a_sample(tmp_path, rows, taken):
    """Whatever divides their number: a sample of half of them would take as long as half a sweep."""
    op = make_op(tmp_path, OVER_ROWS)
    found = sample(op.spec.inputs, {"x": jnp.zeros((rows, 8)) + jnp.arange(rows)[:, None]}, ("...",))["x"]
    np.testing.assert_array_equal(found[:, 0], np.arange(taken) * shared.spacing(rows))


def test_a_sum_of_squares_about_the_mean(tmp_path):
    """As in an unbiased variance."""
    chain = "m = mean(x, axis=...); v = sum(square(x - m), axis=...) / (size(...) - 1); y = (x - m) * rsqrt(v + 0.001)"
    op = make_op(tmp_path, spec_text("x: float32[..., N]", "y: float32[..., N]; v: float32[N]", chain))
    assert op.plan.sampled == ((0, ("...",)),) and len(op.plan.stages) == 3
    x = BASE + np.float32(1e4)
    _, v = op(x, implementation="interpret")
    np.testing.assert_allclose(v, x.astype(np.float64).var(0, ddof=1), rtol=2**-20)


def test_the_gradient_of_a_variance_far_from_zero(tmp_path):
    """What the mean's rounding adds to each distance is subtracted, without a sweep of its own."""
    op = make_op(tmp_path, spec_text("x: float32[..., N]", "y: float32[N]", "y = var(x, axis=...)"))
    assert op.backward.op.plan.sampled == ((0, ("...",)),) and len(op.backward.op.plan.stages) == 3
    x = BASE + np.float32(1e4)
    expected = 2 * (x.astype(np.float64) - x.astype(np.float64).mean(0)) / len(x)
    for implementation in ("xla", "interpret"):
        _, pull = jax.vjp(lambda x, how=implementation: op(x, implementation=how), x)
        np.testing.assert_allclose(pull(jnp.ones(8))[0], expected, rtol=0, atol=1e-6 * np.abs(expected).max())


def test_a_row_of_its_own_is_read_once(tmp_path):
    op = make_op(
        tmp_path, spec_text("x: float32[..., N]", "y: float32[..., N]", "y = (x - mean(x, axis=N)) / var(x, axis=N)")
    )
    assert op.plan.kind == "row"


@pytest.mark.each
@pytest.mark.parametrize("implementation", ["xla", "interpret"])
@pytest.mark.parametrize(
    ("x", "allowed"), [(BASE, 2**-21), (BASE + 1e4, 2**-20), (BASE[:631], 2**-21), (OUTLIERS, 2**-14)],
    ids=["near", "far from 0", "a prime number of rows", "outliers alone are sampled"],
)  # fmt: skip
def test_the_variance_is_accurate(tmp_path, x, allowed, implementation):
    """Without a centre, numbers far from 0 would leave no digit: their squares are 1e8 times the variance."""
    y, m, v = make_op(tmp_path, OVER_ROWS)(x.astype(np.float32), implementation=implementation)
    exact = x.astype(np.float32).astype(np.float64)
    np.testing.assert_allclose(v, exact.var(0), rtol=allowed)
    np.testing.assert_allclose(m, exact.mean(0), rtol=2**-22, atol=2**-19 * exact.std(0).max())
    known = (exact - exact.mean(0)) / np.sqrt(exact.var(0) + 0.001)
    np.testing.assert_allclose(y, known, atol=2e-4 + abs(exact.mean()) * 2**-23, rtol=1e-4)


@pytest.mark.each
@pytest.mark.parametrize("implementation", ["xla", "interpret"])
@pytest.mark.parametrize("row", [0, 7])  # in the sample, and not
def test_what_is_no_number(tmp_path, row, implementation):
    x = BASE.copy()
    x[row, :3] = np.inf, -np.inf, np.nan
    _, m, v = make_op(tmp_path, OVER_ROWS)(x, implementation=implementation)
    np.testing.assert_array_equal(m[:3], [np.inf, -np.inf, np.nan])
    assert np.isnan(v[:3]).all() and np.isfinite(v[3:]).all()


@pytest.mark.parametrize("implementation", ["xla", "interpret"])
def test_a_middle_axis(tmp_path, implementation):
    text = spec_text(
        "x: float32[B, C, S]", "y: float32[B, C, S]", "y = (x - mean(x, axis=C)) * rsqrt(var(x, axis=C) + 0.001)"
    )
    op, x = make_op(tmp_path, text), BASE.reshape(5, 128, 8) + 100
    assert op.plan.sampled == ((0, ("C",)),)
    exact = x.astype(np.float64)
    known = (exact - exact.mean(1, keepdims=True)) / np.sqrt(exact.var(1, keepdims=True) + 0.001)
    np.testing.assert_allclose(op(jnp.asarray(x), implementation=implementation), known, atol=2e-4)
