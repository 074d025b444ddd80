"""Second and third derivatives, gradients at kinks and far from zero."""

import functools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from making import make_op

import generated
from codegen.autodiff.backward import Derived
from codegen.checking import testing
from tests.making import make_jnp_op, spec_text
from tests.turns import some


@pytest.mark.parametrize("name", some(["rmsnorm", "softmax", "gelu", "swiglu"], 1))
def test_second_derivatives(name):
    """Forward over reverse and reverse over reverse, through the backward's own jnp form."""
    op = getattr(generated, name)
    x = jnp.asarray(np.random.default_rng(0).standard_normal((3, 8)), jnp.float32)

    def loss(f):
        return lambda v: jnp.sum(jnp.sin(f(v)))

    ours = jax.grad(lambda v: jnp.sum(jax.grad(loss(op))(v) ** 2))(x)
    theirs = jax.grad(lambda v: jnp.sum(jax.grad(loss(op.reference))(v) ** 2))(x)
    np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)


@pytest.mark.each
@pytest.mark.parametrize("implementation", ["xla", "interpret"])
@pytest.mark.parametrize("name", ["relu", "relu6", "squared_relu", "hard_sigmoid", "hard_swish", "leaky_relu"])
def test_gradients_at_kinks_and_at_nan_are_those_of_the_reference(name, implementation):
    op = getattr(generated, name)
    x = jnp.array([-jnp.inf, -7.0, -3.0, -1e-30, -0.0, 0.0, 1e-30, 3.0, 6.0, 7.0, jnp.inf, jnp.nan], jnp.float32)
    found = jax.grad(lambda x: op(x, implementation=implementation).sum())(x)
    expected = jax.grad(lambda x: op.reference(x).sum())(x)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-38)


# At 0 and far from it, of every order

AT_ZERO = {  # the second and third derivative at 0
    "sigmoid": (0, -1 / 8), "silu": (1 / 2, 0), "log_sigmoid": (-1 / 4, 0), "softplus": (1 / 4, 0), "mish": (0.64, None),
    "gelu_tanh": (1.5957691216057308 / 2, 0), "quick_gelu": (1.702 / 2, 0), "tanh": (0, -2),
}  # fmt: skip


@pytest.mark.parametrize("name", AT_ZERO)
def test_higher_derivatives_at_zero(name):
    f = functools.partial(getattr(generated, name), implementation="xla")
    found, of = [], lambda v: f(v[None])[0]
    for _ in range(3):
        of = jax.grad(of)
        found.append(of(jnp.float32(0)))
    for got, expected in zip(found[1:], AT_ZERO[name], strict=True):
        if expected is not None:
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_opposite_sigmoids_at_zero(tmp_path):
    """Those that share a column's maximum are counted once that is known."""
    op = make_op(
        tmp_path,
        spec_text(
            "x: float32[..., N]; w: float32[N]", "y: float32[N]", "y = max(sigmoid(x) * sigmoid(-x), axis=...) * w"
        ),
    )
    for implementation in ("interpret", "xla"):
        slope = jax.grad(lambda x, how=implementation: op(x, jnp.ones(2), implementation=how).sum())(jnp.zeros((3, 2)))
        np.testing.assert_array_equal(slope, np.zeros((3, 2)))


@pytest.mark.parametrize("name", ["silu", "gelu", "gelu_tanh", "sigmoid", "softplus", "log_sigmoid", "mish", "tanh"])
def test_second_derivatives_are_finite_far_out(name):
    f = functools.partial(getattr(generated, name), implementation="xla")
    x = jnp.asarray([-1e20, -1e10, -300, 300, 1e10, 1e20], jnp.float32)
    np.testing.assert_array_equal(jax.vmap(jax.grad(jax.grad(lambda v: f(v[None])[0])))(x), jnp.zeros(6))


def test_the_second_derivative_of_lgamma():
    """At whole numbers the formula below 0.5 divides by 0, and at -6.5 the other one does: XLA differentiates both."""
    op = make_jnp_op(spec_text("x: float32[N]", "y: float32[N]", "y = lgamma(x)"))
    found = jax.vmap(jax.grad(jax.grad(lambda v: op(v[None], implementation="xla")[0])))
    x = jnp.asarray([1, 2, 2e7, 0.5, -6.5], jnp.float32)
    expected = [np.pi**2 / 6, np.pi**2 / 6 - 1, 5e-8, np.pi**2 / 2, 9.7269885]
    np.testing.assert_allclose(found(x), expected, rtol=1e-5)


# How XLA compiles for a CPU without the flags of tests/conftest.py
QUICK = "xla_cpu_use_fusion_emitters=false" in os.environ["XLA_FLAGS"]
USUAL = {"xla_backend_optimization_level": "3", "xla_cpu_use_fusion_emitters": True} if QUICK else {}


@pytest.mark.parametrize("implementation", ["xla", "interpret"])
def test_slopes_that_only_a_detour_overflows(tmp_path, implementation):
    """Squares of large or small values overflow or underflow, the derivatives do not."""
    op = make_op(tmp_path, spec_text("x: float32[N]; w: float32[N]", "y: float32[N]", "y = atan2(x, w)"))
    x, w = np.float32([1e-25, 1e25, 3.0]), np.float32([2e-25, -3e25, 4.0])
    wide = [v.astype("float64") for v in (x, w)]
    found = jax.vjp(functools.partial(op, implementation=implementation), x, w)[1](jnp.ones(3))
    square = wide[0] ** 2 + wide[1] ** 2
    for got, expected in zip(found, (wide[1] / square, -wide[0] / square), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6)

    op = make_op(tmp_path, spec_text("x: float32[N]", "y: float32[N]", "y = cbrt(x)"))
    x = np.float32([3e38, -3e38, 8.0, 0.0, np.inf])

    def pull(x: jax.Array) -> tuple[jax.Array]:
        return jax.vjp(functools.partial(op, implementation=implementation), x)[1](jnp.ones(5))

    (got,) = jax.jit(pull, compiler_options=USUAL)(x)  # XLA's cube root without fusion emitters has an error of 2e-6
    np.testing.assert_allclose(got, [*(1 / (3 * np.cbrt(x[:3].astype("float64")) ** 2)), np.inf, 0], rtol=1e-6)

    op = make_op(
        tmp_path, spec_text("x: float32[N]; z: float32[N]", "y: float32[N]", "y = x ** -8 + x * 1e-30 * z * 1e-30")
    )
    x, z = np.float32([1e-4, 1e4]), np.float32([1e30, 1e30])
    dx, dz = jax.vjp(functools.partial(op, implementation=implementation), x, z)[1](jnp.ones(2))
    np.testing.assert_allclose(dx[0], -8 * 1e-4**-9, rtol=1e-5)
    if implementation == "interpret":  # XLA merges two constants, under jit in jnp as well
        op = make_op(tmp_path, spec_text("x: float32[N]; z: float32[N]", "y: float32[N]", "y = x * 1e-30 * z * 1e-30"))
        dx, dz = jax.vjp(functools.partial(op, implementation=implementation), 1e30 * jnp.ones(2), z)[1](jnp.ones(2))
        np.testing.assert_allclose([dx, dz], np.full((2, 2), 1e-30), rtol=1e-6)


@pytest.mark.parametrize("implementation", ["xla", "interpret"])
def test_integers_with_a_dynamic_parameter_have_its_gradient(tmp_path, implementation):
    more = "params:\n  scale: {type: float, default: 1.0, static: false}\n"
    op = make_op(tmp_path, spec_text("q: int8[..., N]", "y: float32[..., N]", "y = q * scale", more=more))
    q = jnp.asarray([[1, -2, 3], [4, 5, -7]], "int8")
    assert jax.grad(lambda s: op(q, scale=s, implementation=implementation).sum())(2.0) == 4.0


@pytest.mark.whole
def test_the_gradient_of_a_parameter_of_some_calls_in_float64(tmp_path):
    more = "params: {a: {type: float, default: 0.5, static: false}}\n"
    text = spec_text(
        "x: T[..., N]", "y: T[..., N]", "y = x * a", "y = x * a", more, "{T: [float32, bfloat16, float64]}"
    )
    op = make_op(tmp_path, text)
    assert isinstance(op.backward, Derived)
    x = jnp.asarray([[1.5, 2.0], [3.0, 4.0]], "bfloat16")
    assert jax.grad(lambda a: op(x, a=a, implementation="interpret").sum())(0.5) == 10.5
    with jax.enable_x64(True):
        x = jnp.asarray([[1e39, 2e40], [3e41, 4.0]])
        assert jax.grad(lambda a: op(x, a=a, implementation="interpret").sum())(0.5) == x.sum()
    testing.check_gradient(op, "interpret")
