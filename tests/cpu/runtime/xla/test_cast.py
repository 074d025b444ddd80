"""A cast within a chain rounds, as on a GPU, also where XLA would leave out a conversion to a narrow float and back."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from codegen.runtime.call.cast import cast

NARROW = (ml_dtypes.bfloat16, np.float16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)


def near(dtype) -> np.ndarray:
    """Every finite value of a narrow type, the middles between two of them, and numbers slightly off those."""
    bits = np.arange(256**dtype.itemsize, dtype=f"uint{8 * dtype.itemsize}")
    with np.errstate(invalid="ignore"):
        values = np.unique(bits.view(dtype).astype(np.float64))
    values = values[np.isfinite(values)]
    halfway = (values[1:] + values[:-1]) / 2
    return np.concatenate(
        [values, halfway, halfway * (1 + 2**-20), halfway * (1 - 2**-20), [np.inf, -np.inf, np.nan, -0.0]]
    )


@pytest.mark.parametrize("narrow", NARROW, ids=lambda t: np.dtype(t).name)
def test_a_cast_rounds(narrow):
    dtype = np.dtype(narrow)
    x = near(dtype).astype(np.float32)
    x = np.concatenate([x, np.random.default_rng(0).integers(0, 2**32, 20000, np.uint32).view(np.float32)])
    x = x[~((np.abs(x) < np.finfo(np.float32).tiny) & (x != 0))]  # flushed, or not
    top = float(jnp.finfo(dtype).max)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = (np.clip(x, -top, top) if dtype.itemsize == 1 else x).astype(dtype).astype(np.float32)
    got = np.asarray(jax.jit(lambda x: cast(x, dtype).astype(jnp.float32))(x))
    assert np.array_equal(got, expected, equal_nan=True)
    assert np.array_equal(np.signbit(got)[x == 0], np.signbit(x)[x == 0])


def test_a_cast_has_the_slope_1():
    slope = jax.vmap(jax.grad(lambda x: cast(x, jnp.float8_e5m2).astype(jnp.float32)))(jnp.array([1e-7, 0.3, 7.0]))
    assert (slope == 1).all()
