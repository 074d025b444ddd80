"""Sums of exponentials that follow their maximum, interpreted: rows in one sweep, in pieces and in clusters, with
infinities and NaN, against NumPy in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import generated
from codegen.plan.launches import Extents, PlannedCall
from tests.making import make_op, spec_text
from tests.turns import some


def rows_of(columns: int) -> np.ndarray:
    """Rows with the maximum in the first piece, in the last, or rising in every piece; and rows of special values."""
    noise = np.random.default_rng(columns).standard_normal((12, columns)).astype(np.float32)
    rows = 3 * noise
    rows[1] += 40
    rows[1, 0] = 60
    rows[2, -1] = 70
    rows[3] += np.linspace(-90, 90, columns)
    rows[4] += np.linspace(90, -90, columns)
    rows[5] = -np.inf
    rows[6, : columns // 2] = -np.inf  # whole threads and pieces without an element so far
    rows[7, 1:] = -np.inf
    rows[8, columns // 3] = np.inf
    rows[9, columns // 3] = np.nan
    rows[10] = -3e38
    rows[11, ::2] = -np.inf
    return rows


def softmax(rows: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        e = np.exp(rows.astype(np.float64) - rows.max(1, keepdims=True).astype(np.float64))
        return e / e.sum(1, keepdims=True)


def logsumexp(rows: np.ndarray) -> np.ndarray:
    wide = rows.astype(np.float64)
    top = wide.max(1)
    top = np.where(np.isfinite(top), top, 0)
    with np.errstate(divide="ignore"):
        return np.log(np.exp(wide - top[:, None]).sum(1)) + top


@pytest.mark.parametrize(
    ("arch", "columns", "kept", "cluster"),
    some(
        [
            ("sm_80", 300, True, 1),
            ("sm_80", 9, True, 1),
            ("sm_80", 16_397, False, 1),  # pieces, none of them full of whole vectors
            ("sm_80", 20_000, False, 1),  # three pieces
            ("sm_90a", 40_000, True, 4),  # a few vectors at a time
            ("sm_90a", 70_000, True, 8),
            ("sm_80", 4099, True, 1),
            ("sm_90a", 9_001, True, 1),
        ],
        2,
    ),
)
def test_rows_as_the_formula_is_written(arch, columns, kept, cluster, monkeypatch):
    monkeypatch.setenv("CUTE_DSL_ARCH", arch)
    how = generated.softmax.plan.launch(
        PlannedCall({"x": "float32", "y": "float32"}, Extents(columns, columns, columns), arch=arch)
    )
    assert (how.holds_row, how.cluster) == (kept, cluster)
    rows = rows_of(columns)
    y = np.asarray(generated.softmax(rows, implementation="interpret"))
    np.testing.assert_allclose(y, softmax(rows), rtol=2e-5, atol=1e-37)
    lse = np.asarray(generated.logsumexp(rows, implementation="interpret"))
    np.testing.assert_allclose(lse, logsumexp(rows), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("columns", [9, 4099, 20_000])
def test_exponentials_of_bounded_values_without_a_maximum(tmp_path, columns):
    """At the bounds, and where a row has a NaN; and their gradients."""
    op = make_op(
        tmp_path, spec_text('x: "float32[..., N]"', 'y: "float32[...]"', "y = logsumexp(15 * tanh(x), axis=N)")
    )
    rows = rows_of(columns)
    capped = 15 * np.tanh(rows.astype(np.float64))
    found, pull = jax.vjp(functools.partial(op, implementation="interpret"), jnp.asarray(rows))
    np.testing.assert_allclose(found, logsumexp(capped), rtol=1e-6)
    with np.errstate(invalid="ignore"):
        expected = softmax(capped) * (15 - capped**2 / 15)
    np.testing.assert_allclose(pull(jnp.ones(len(rows)))[0], expected, rtol=2e-5, atol=1e-5)
