"""Sums over rows that follow their maximum in one sweep, interpreted: of exponentials, against NumPy in float64, and numbers of elements
that equal the maximum; with infinities and NaN."""

import jax.numpy as jnp
import numpy as np
import pytest

from codegen.plan.op import Staged
from codegen.plan.rows.launching.walking import in_parts
from codegen.plan.rows.middle import in_stages
from tests.making import make_op

COLUMNS = """\
op: exponentials_over_rows
summary: Sums of exponentials of columns and of everything.
inputs:
  x: float32[R, N]
outputs:
  each: float32[N]
  below: float32[N]
  all: float32[]
chain: |
  each = logsumexp(x, axis=R)
  below = mean(exp2(0.5 * (x - max(x, axis=R))), axis=R)
  all = logsumexp(x * 0.5, axis=(R, N))
reference: |
  each = jax.nn.logsumexp(x, axis=0)
  below = jnp.mean(jnp.exp2(0.5 * (x - jnp.max(x, axis=0))), axis=0)
  all = jax.nn.logsumexp(x * 0.5)
"""
PLACES = """\
op: exponentials_of_places
summary: Sums of exponentials of a middle axis.
inputs:
  x: float32[B, S, N]
outputs:
  y: float32[B, N]
chain: |
  y = logsumexp(x, axis=S)
reference: jax.nn.logsumexp(x, axis=1)
"""
SHARED = """\
op: exponentials_of_heads
summary: Sums of exponentials of columns that share a result.
inputs:
  x: float32[B, S, D]
outputs:
  y: float32[S]
chain: |
  y = logsumexp(x, axis=(B, D))
reference: jax.nn.logsumexp(x, axis=(0, 2))
"""
SOFTMAX = """\
op: softmax_of_places
summary: Softmax along a middle axis.
inputs:
  x: float32[B, S, N]
outputs:
  y: float32[B, S, N]
chain: |
  y = softmax(x, axis=S)
reference: jax.nn.softmax(x, axis=1)
"""


def columns_of(*shape: int) -> np.ndarray:
    """Values whose first columns are special: the maximum rises or falls from row to row, or is infinite or NaN."""
    x = 4 * np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    rows = shape[-2]
    x[..., 0] = -np.inf
    x[..., rows // 2, 1] = np.inf
    x[..., rows // 3, 2] = np.nan
    x[..., : rows // 2, 3] = -np.inf
    x[..., 4] = np.linspace(-300, 300, rows)
    x[..., 5] = np.linspace(300, -300, rows)
    x[..., 6] = 3e38
    x[..., 0, 6] = -3e38
    x[..., 7] = np.inf
    x[..., 0, 8] = -np.inf
    return x


def logsumexp(x: np.ndarray, axis: int | tuple[int, ...]) -> np.ndarray:
    wide = x.astype(np.float64)
    top = wide.max(axis, keepdims=True)
    top = np.where(np.isfinite(top), top, 0)
    with np.errstate(divide="ignore", over="ignore"):
        return np.log(np.exp(wide - top).sum(axis)) + top.squeeze(axis)


def close(found, expected) -> None:
    np.testing.assert_allclose(np.asarray(found, np.float64), expected, rtol=2e-6, atol=2e-6)


def test_columns_and_everything(tmp_path):
    op, x = make_op(tmp_path, COLUMNS), columns_of(61, 36)
    with in_parts(3):  # rows side by side in a block, and parts that are reduced by one thread
        found = op(x, implementation="interpret")
    close(found.each, logsumexp(x, 0))
    wide = x.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        close(found.below, np.exp2(0.5 * (wide - wide.max(0))).mean(0))
    assert np.isnan(found.all)
    rest = np.delete(x, (2, 7), axis=1)
    rest[np.isinf(rest)] = -np.inf
    with in_parts(12):  # that warps share
        found = op(rest, implementation="interpret")
    close(found.each, logsumexp(rest, 0))
    close(found.all, logsumexp(rest * 0.5, (0, 1)))


@pytest.mark.parametrize("walks", [False, True])
def test_middle_axes(tmp_path, walks):
    op, x = make_op(tmp_path, PLACES), columns_of(2, 7, 12)
    with in_parts(2) if walks else in_parts():
        close(op(x, implementation="interpret"), logsumexp(x, 1))


@pytest.mark.whole
def test_columns_that_share_a_result(tmp_path):
    # Special values in the first places of B
    op, x = make_op(tmp_path, SHARED), columns_of(5, 6, 16).transpose(2, 1, 0).copy()
    with in_parts(2):
        close(op(x, implementation="interpret"), logsumexp(x, (0, 2)))
    rows = np.float32([[-np.inf, 2.0, np.inf], [-np.inf, -np.inf, 1.0]]).reshape(2, 3, 1).repeat(8, 2)
    close(op(rows, implementation="interpret"), logsumexp(rows, (0, 2)))


def test_a_softmax_along_a_middle_axis_reads_its_elements_twice(tmp_path):
    op, x = make_op(tmp_path, SOFTMAX), columns_of(2, 9, 12)[..., 4:6]
    assert isinstance(op.plan, Staged)
    assert [stage.plan.kind for stage in op.plan.stages] == ["column", "elementwise"]
    wide = x.astype(np.float64)
    e = np.exp(wide - wide.max(1, keepdims=True))
    with in_stages():
        found = op(jnp.asarray(x), implementation="interpret")
    np.testing.assert_allclose(found, e / e.sum(1, keepdims=True), rtol=2e-5, atol=1e-37)


TIES = """\
op: ties_over_rows
summary: How many elements are the largest or the smallest, of columns, places and everything.
inputs:
  x: float32[{axes}]
outputs:
  y: float32[{kept}]
chain: |
  y = sum(where(x == {most}(x, axis={lost}), 1.0, 0.0), axis={lost})
reference: jnp.sum(x == jnp.{most}(x, axis={places}, keepdims=True), axis={places}, dtype=jnp.float32)
"""


def tied(*shape: int) -> np.ndarray:
    """Few different values, of which many are the largest, and in the first columns infinities and NaN."""
    x = columns_of(*shape)
    x[..., 4:] = np.random.default_rng(1).integers(-2, 3, (*shape[:-1], shape[-1] - 4))
    x[..., -1] = np.linspace(-3, 3, shape[-2]).round()
    return x


@pytest.mark.each
@pytest.mark.parametrize("most", ["max", "min"])
@pytest.mark.parametrize(
    ("axes", "lost", "kept", "shape"),
    [
        ("R, N", "R", "N", (61, 36)),
        ("R, N", "R", "N", (61, 35)),
        ("R, N", "(R, N)", "", (61, 36)),
        ("B, S, N", "S", "B, N", (2, 23, 12)),
        ("B, S, D", "(B, D)", "S", (9, 6, 16)),
    ],
)
def test_elements_that_equal_the_largest(tmp_path, most, axes, lost, kept, shape):
    names = lost.strip("()").split(", ")
    places = tuple(axes.split(", ").index(name) for name in names)
    op = make_op(tmp_path, TIES.format(axes=axes, lost=lost, kept=kept, most=most, places=places))
    assert not isinstance(op.plan, Staged)
    every = tied(*shape)
    for x in (every,) if kept else (every, np.full_like(every, -np.inf), every[..., 5:]):
        with in_parts(3):
            found = op(jnp.asarray(x), implementation="interpret")
        largest = getattr(np, most)(x, axis=places, keepdims=True)
        np.testing.assert_array_equal(found, (x == largest).sum(places))
