"""Arrays with more elements than an int32 can count."""

import jax
import jax.numpy as jnp
import pytest

import generated


def pattern(shape):
    """Values that change along every axis, cheap to make at any size."""
    row = jax.lax.broadcasted_iota(jnp.int32, shape, 0)
    col = jax.lax.broadcasted_iota(jnp.int32, shape, len(shape) - 1)
    return ((row * 7 + col * 3) % 251 - 125).astype(jnp.bfloat16)


@pytest.mark.parametrize("shape", [(262145, 8192), (262147, 8193)], ids=str)
def test_rows_and_columns_beyond_two_to_the_31(shape):
    x, bias = jax.jit(pattern, static_argnums=0)(shape), pattern((1, shape[1]))[0]
    got = generated.bias_relu(x, bias, implementation="cute")
    assert bool(jnp.array_equal(got, generated.bias_relu(x, bias, implementation="xla")))


@pytest.mark.parametrize("count", [2**31 + 8192, 3 * 715827883], ids=str)
def test_one_axis_beyond_two_to_the_31(count):
    x = jax.jit(lambda: (jnp.arange(count // 3 + 1, dtype=jnp.int32) % 251).astype(jnp.bfloat16))()
    x = jnp.concatenate([x, -x, x])[:count]
    got = generated.relu(x, implementation="cute")
    assert bool(jnp.array_equal(got, generated.relu(x, implementation="xla")))


def test_a_count_that_does_not_factor_says_so():
    x = jnp.zeros(2**31 + 11, jnp.int8).astype(jnp.bfloat16)  # a prime number
    with pytest.raises(ValueError, match="split the array"):
        generated.relu(x, implementation="cute")
    assert generated.relu(x).shape == x.shape
