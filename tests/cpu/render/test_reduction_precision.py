"""The precision that reductions need whatever their bounds allow: the generated kernels, interpreted, and their jnp
forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from making import make_op

import generated
from codegen.checking.agreement import Disagreement
from codegen.checking.expected import cpu_options
from codegen.checking.testing import check_gradient
from tests.turns import some

IMPLEMENTATIONS = ["xla", "interpret"]
VARIANCE = """
op: variance
summary: Variance of each row.
inputs: {x: 'float32[..., N]'}
outputs: {y: 'float32[...]'}
chain: y = var(x, axis=N)
reference: jnp.var(x, axis=-1)
"""
NORM = """
op: norm_of_rows
summary: Each row over its root mean square.
inputs: {x: 'float32[..., N]'}
outputs: {y: 'float32[..., N]'}
chain: y = x * rsqrt(mean(square(x), axis=N) + 1e-6)
reference: x / jnp.sqrt(REST(jnp.mean(x * x, axis=-1, keepdims=True)) + 1e-6)
"""


def run(op, implementation, *args):
    """The op's outputs, under `jit` with CPU reductions of XLA that keep NaN."""
    call = lambda *xs: op(*xs, implementation=implementation)  # noqa: E731
    return (jax.jit(call, compiler_options=cpu_options()) if implementation == "xla" else call)(*args)


def normal(*shape, mean=0.0, std=1.0):
    return jnp.asarray(mean + std * np.random.default_rng(sum(shape)).standard_normal(shape), "float32")


@pytest.mark.each
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("columns", [255, 4096])
def test_variance_far_from_zero(implementation, columns, tmp_path):
    """The error of E[x**2] - E[x]**2 would be 300**2 / 2**2 * 2**-24, 1e-3 of the variance after some additions."""
    x = normal(5, columns, mean=300, std=2)
    got = run(make_op(tmp_path, VARIANCE), implementation, x)
    np.testing.assert_allclose(np.asarray(got), np.var(np.asarray(x, np.float64), axis=-1), rtol=1e-5)


@pytest.mark.each
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("columns", [3, 256, 1021])
def test_softmax_of_special_rows(implementation, columns):
    x = np.array(normal(5, columns))
    x[0] = -np.inf
    x[1, columns // 2] = np.inf
    x[2, columns - 1] = np.nan
    x[3, 1:] = -np.inf
    got = np.asarray(run(generated.softmax, implementation, jnp.asarray(x)))
    assert np.isnan(got[:3]).all()
    assert got[3].tolist() == [1, *[0] * (columns - 1)]
    wide = np.exp(x[4].astype(np.float64) - x[4].max())
    np.testing.assert_allclose(got[4], wide / wide.sum(), rtol=1e-5)


@pytest.mark.each
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("rows", some([3, 1, 2], 2))
@pytest.mark.parametrize("columns", some([8, 1, 5], 2))
def test_sums_over_few_rows(rows, columns, implementation):
    x = jnp.asarray(np.arange(1, rows * columns + 1).reshape(rows, columns), "float32")
    got = run(generated.column_sum, implementation, x)
    assert np.asarray(got, np.float64).tolist() == np.asarray(x, np.float64).sum(0).tolist()


def test_a_gradient_that_cancels_is_no_mistake_and_one_that_lacks_a_term_is(tmp_path):
    """The norm of one column hardly depends on it: the difference of two terms is their rounding error."""
    check_gradient(make_op(tmp_path, NORM.replace("REST", "")), examples=8)
    with pytest.raises(Disagreement, match="the gradient of 'x' is off"):
        check_gradient(make_op(tmp_path, NORM.replace("REST", "jax.lax.stop_gradient")), examples=8)


def test_names_of_a_kernel_s_own(tmp_path):
    """A spec may give its values the names of the kernel's variables."""
    text = """
op: own_names
summary: A softmax whose names the kernel has too.
inputs: {first: 'float32[..., N]', step: 'float32[N]'}
outputs: {columns: 'float32[..., N]', p: 'float32[...]'}
params: {factor: 2.0}
chain: |
  c = max(first * step, axis=N)
  row_sum = first * step - c
  p = sum(exp(row_sum), axis=N) * factor
  columns = exp(row_sum) / p
reference: |
  columns = jax.nn.softmax(first * step, axis=-1) / factor
  p = jnp.exp(first * step - jnp.max(first * step, axis=-1, keepdims=True)).sum(-1) * factor
"""
    op = make_op(tmp_path, text)
    x, w = normal(5, 37), normal(37)
    for implementation in IMPLEMENTATIONS:
        for got, expected in zip(run(op, implementation, x, w), op.reference(x, w), strict=True):
            np.testing.assert_allclose(np.asarray(got), np.asarray(expected), rtol=1e-5)


def test_a_bias_left_out_decides_nothing(tmp_path):
    """The terms of a sum are computed from x and a bias, which a call may leave out."""
    op = make_op(tmp_path, """
op: biased_logsumexp
summary: Log of the sum of exponentials of x + bias.
types: {T: [float32, bfloat16]}
inputs: {x: "T[..., N]", bias: "T[N] = 0"}
outputs: {y: "float32[...]"}
chain: |
  z = x + bias
  y = log(sum(exp(z - max(z, axis=N)), axis=N)) + max(z, axis=N)
reference: jax.nn.logsumexp(x + bias, axis=-1)
""")  # fmt: skip
    x = np.random.default_rng(0).normal(size=(3, 40)).astype(np.float32)
    for dtype in ("float32", "bfloat16"):
        given = jnp.asarray(x, dtype)
        exact = np.log(np.exp(np.asarray(given, np.float64)).sum(-1))
        np.testing.assert_allclose(op(given, implementation="interpret"), exact, rtol=1e-6)


QUOTIENTS = """\
op: quotients_by_column
summary: Drawn by hand.
inputs:
  x: float32[..., N]
  by: float32[N]
outputs:
  y: float32[..., N]
chain: y = x / by
reference: x / by
"""


def test_quotients_by_a_value_of_each_column(tmp_path):
    """Within 1 ulp for dividends and divisors of all sizes, and as a division where one is 0, infinite or not a number."""
    rng, special = np.random.default_rng(3), [0.0, -0.0, np.inf, -np.inf, np.nan]
    x = rng.normal(size=(24, 32)) * 10.0 ** rng.integers(-44, 38, (24, 32))
    by = rng.normal(size=32) * 10.0 ** rng.integers(-37, 37, 32)
    x[0], x[1, :5], by[5:10] = 0.0, special, special
    x, by = x.astype("float32"), by.astype("float32")
    found = np.asarray(make_op(tmp_path, QUOTIENTS)(jnp.asarray(x), jnp.asarray(by), implementation="interpret"))
    with np.errstate(all="ignore"):
        exact = x.astype("float64") / by.astype("float64")
        rounded = exact.astype("float32")
        near = np.abs(found - exact) <= np.spacing(np.abs(rounded)).astype("float64")
    assert np.all(near | (found == rounded) | (np.isnan(found) & np.isnan(rounded)))
    assert np.array_equal(np.signbit(found[rounded == 0]), np.signbit(rounded[rounded == 0]))
