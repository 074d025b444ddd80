"""Powers of two as scales: `exponent` and `ldexp` against NumPy's float64, which is exact."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.making import make_op, spec_text

NORMALS = np.array([1, 1.5, 3, 2**-126, 3e-38, 3.4e38, 448, 2.0**127, 1 - 2.0**-24, 1 + 2.0**-23], np.float32)
DENORMALS = np.array([1e-45, 3e-45, 2.0**-127, 2.0**-126 - 2.0**-149], np.float32)
POWERS = np.array(
    [-(2**31), -400, -300, -277, -254, -252, -150, -149, -127, -126, -48, -1, 0, 1, 127, 128, 250, 277, 2**31 - 1]
)


@pytest.fixture(scope="module")
def op(tmp_path_factory):
    text = spec_text(
        "x: T[..., N]; k: int32[..., N]", "e: int32[..., N]; y: T[..., N]; z: T[..., N]; one: T[..., N]",
        "e = exponent(x); y = ldexp(x, k); z = ldexp(x, clip(k, -149, 127)); one = ldexp(1.0, clip(-e, -126, 127))",
        types="{T: [float32, float64]}",
    )  # fmt: skip
    return make_op(tmp_path_factory.mktemp("scales"), text)


@pytest.mark.parametrize("implementation", ["interpret", "xla"])
def test_float32(op, implementation):
    numbers = NORMALS if implementation == "xla" else np.concatenate([NORMALS, DENORMALS])  # XLA flushes others on CPUs
    numbers = np.concatenate([numbers, -numbers])
    x, k = (a.ravel() for a in np.meshgrid(numbers, POWERS.astype(np.int32)))
    got = op(x[None], k[None], implementation=implementation)
    np.testing.assert_array_equal(got.e[0], np.frexp(x.astype(np.float64))[1] - 1)
    with np.errstate(all="ignore"):
        for found, power in ((got.y, k), (got.z, np.clip(k, -149, 127))):
            expected = np.ldexp(x.astype(np.float64), np.clip(power, -700, 700)).astype(np.float32)
            known = np.abs(expected) > (2.0**-126 if implementation == "xla" else -1)
            np.testing.assert_array_equal(np.asarray(found[0])[known], expected[known])
    np.testing.assert_array_equal(
        got.one[0], np.ldexp(1.0, np.clip(-np.asarray(got.e[0]), -126, 127)).astype(np.float32)
    )


@pytest.mark.parametrize("implementation", ["interpret", "xla"])
def test_values_without_an_exponent(op, implementation):
    x = jnp.array([[0.0, -0.0, jnp.inf, -jnp.inf, jnp.nan]])
    got = op(x, jnp.full((1, 5), -3), implementation=implementation)
    assert got.e.tolist() == [[-150, -150, 128, 128, 128]]
    np.testing.assert_array_equal(got.y, x)


def test_float64(op):
    with jax.enable_x64(True):
        x = jnp.array([[1.5, -3.0, 5e-324, 2.0**-1030, 1.7e308, 0.0]])
        got = op(x, jnp.array([[-1074, 1022, 1074, 2000, -2060, 5]], jnp.int32), implementation="interpret")
        assert got.e.tolist() == [[0, 1, -1074, -1030, 1023, -1075]]
        expected = np.ldexp(np.asarray(x), [[-1074, 1022, 1074, 2000, -2060, 5]])
        np.testing.assert_array_equal(got.y, expected)


def test_gradient(op):
    x, k = jnp.array([[3.0, -5.0]]), jnp.array([[4, -7]], jnp.int32)
    for implementation in ("interpret", "xla"):
        slope = jax.grad(lambda x, how=implementation: op(x, k, implementation=how).y.sum())(x)
        assert slope.tolist() == [[16.0, 2.0**-7]]
