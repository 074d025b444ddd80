"""Random numbers of a chain: the bits of `jax.random`, in kernels and in jnp, mapped and sharded."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import generated
from tests.making import make_op, spec_text
from tests.meshes import P, make_mesh, normal, put

TEXT = spec_text(
    "x: float32[B, S, N]; key: uint32[2]; other: uint32[2]", "a: uint32[S, B, N]; u: float32[S, B, N]; m: bool[S, B, N]",
    "a = bits(key); u = uniform(other) + 0 * x; m = bernoulli(key, 0.3, axes=(B, N))",
    "s = (x.shape[1], x.shape[0], x.shape[2]); a = jax.random.bits(key, s, 'uint32'); "
    "u = jax.random.uniform(other, s, 'float32'); m = jax.random.bernoulli(key, jnp.float32(0.3), (s[1], s[2]))[None]",
)  # fmt: skip
KEY, OTHER = (jnp.asarray(np.array(key, "uint32")) for key in ([7, 1], [1 << 31, 5]))


def mask(key, shape):
    return jax.random.bernoulli(key, jnp.float32(0.9), shape)


@pytest.mark.parametrize(("n", "implementation"), [(5, "interpret"), (8, "interpret"), (5, "xla")])
def test_bits_are_those_of_jax(tmp_path, n, implementation):
    """Rows are whole vectors, whose places follow each other, or not."""
    op = make_op(tmp_path, TEXT)
    got = op(normal(2, 3, n), KEY, OTHER, implementation=implementation)
    np.testing.assert_array_equal(got.a, jax.random.bits(KEY, (3, 2, n), "uint32"))
    np.testing.assert_array_equal(got.u, jax.random.uniform(OTHER, (3, 2, n), "float32"))
    mask = jax.random.bernoulli(KEY, jnp.float32(0.3), (2, n))
    np.testing.assert_array_equal(got.m, jnp.broadcast_to(mask, (3, 2, n)))


@pytest.mark.parametrize("implementation", ["interpret", "xla"])
def test_narrow_draws_are_those_of_jax(tmp_path, implementation):
    op = make_op(tmp_path, spec_text(
        "x: float32[N]; key: uint32[2]", "a: uint16[N]; b: uint8[N]; h: float16[N]; y: bfloat16[N]",
        "a = bits(key, dtype=uint16); b = bits(key, dtype=uint8); h = uniform(key, dtype=float16) + 0 * x; "
        "y = uniform(key, dtype=bfloat16)",
        "n = x.shape; a = jax.random.bits(key, n, 'uint16'); b = jax.random.bits(key, n, 'uint8'); "
        "h = jax.random.uniform(key, n, 'float16'); y = jax.random.uniform(key, n, 'bfloat16')",
    ))  # fmt: skip
    got = op(jnp.zeros(300), KEY, implementation=implementation)
    np.testing.assert_array_equal(got.a, jax.random.bits(KEY, (300,), "uint16"))
    np.testing.assert_array_equal(got.b, jax.random.bits(KEY, (300,), "uint8"))
    np.testing.assert_array_equal(got.h, jax.random.uniform(KEY, (300,), "float16"))
    np.testing.assert_array_equal(got.y, jax.random.uniform(KEY, (300,), "bfloat16"))


@pytest.mark.parametrize("implementation", ["interpret", "xla"])
def test_normal_numbers_are_those_of_jax_but_for_the_last_bits(implementation):
    zero = jnp.zeros((8, 256))
    got = generated.gaussian_sample(zero, zero, KEY, implementation=implementation)
    np.testing.assert_array_max_ulp(np.asarray(got), np.asarray(jax.random.normal(KEY, (8, 256))), 4)


def test_a_gradient_has_the_mask_of_its_key(tmp_path):
    x, key = normal(3, 40), jax.random.key(3)
    slope = jax.grad(lambda x: jnp.sum(generated.dropout(x, x * 0, key, implementation="interpret")))(x)
    np.testing.assert_array_equal(slope != 0, mask(key, x.shape))
    with pytest.raises((TypeError, ValueError), match="key"):
        generated.dropout(x, x, jax.random.key(3, impl="rbg"))


@pytest.mark.parametrize("implementation", ["interpret", None])
def test_mapped_keys_and_mapped_arrays(implementation):
    x, keys = normal(2, 3, 40) + 9, jax.random.split(jax.random.key(3), 2)
    words = jax.random.key_data(keys)

    def call(x, key):
        return generated.dropout(x, x * 0, key, implementation=implementation)

    own = jax.vmap(lambda key: mask(key, (3, 40)))(keys)
    np.testing.assert_array_equal(jax.vmap(call)(x, words) != 0, own)
    np.testing.assert_array_equal(jax.vmap(call, (None, 0))(x[0], words) != 0, own)
    shared = mask(keys[0], (3, 40))
    np.testing.assert_array_equal(jax.vmap(call, (0, None))(x, words[0]) != 0, jnp.broadcast_to(shared, x.shape))


@pytest.mark.parametrize("spec", [P("a"), P(None, "b"), P("b", "a"), P(None, "a", "b")], ids=str)
def test_sharded_arrays_have_the_bits_of_whole_ones(kernels, spec):
    x, mesh = normal(4, 8, 16) + 9, make_mesh()
    args = put(mesh, x, spec), put(mesh, x * 0, spec), put(mesh, KEY, P())
    compiled = jax.jit(generated.dropout).lower(*args).compile()
    assert "all-gather" not in compiled.as_text()
    np.testing.assert_array_equal(compiled(*args) != 0, mask(KEY, x.shape))


@pytest.mark.parametrize("implementation", ["interpret", "xla"])
def test_any_probability(tmp_path, implementation):
    """A probability is compared as an integer: at the ends, beyond them, between two draws, and where it is no number."""
    more = "params: {p: {type: float, default: 0.5, static: false}}"
    spec = spec_text(
        "x: float32[B, N]; key: uint32[2]", "y: float32[B, N]", "y = where(bernoulli(key, p), x, 0)", "y = x", more
    )
    op, x = make_op(tmp_path, spec), jnp.ones((3, 50))
    draws = np.sort(jax.random.uniform(KEY, x.shape), axis=None)
    for p in (0.0, 1.0, -1.0, 2.0, np.inf, np.nan, draws[70], np.nextafter(draws[70], np.float32(1)), 1e-9):
        mask = jax.random.bernoulli(KEY, jnp.float32(p), x.shape)
        np.testing.assert_array_equal(op(x, KEY, p=p, implementation=implementation), mask.astype("float32"), str(p))
