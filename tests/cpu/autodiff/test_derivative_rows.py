"""Each derivative of the table of operations against jax.vjp of the same row's jnp form, at smooth points, ties and
kinks."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from codegen import runtime
from codegen.graph.ops import OPS
from codegen.language.prelude import prelude
from tests.making import make_jnp_op, make_op, spec_text

SMOOTH = [name for name, op in OPS.items() if op.rule in ("arith", "float", "round", "select") and all(op.grad)]
POINTS = {
    "any": [-2.3, -0.7, 0.4, 1.9], "positive": [0.2, 0.9, 1.7, 3.1], "nonnegative": [0.1, 0.9, 1.7, 3.1],
    "nonzero": [-2.3, -0.7, 0.4, 1.9], "unit": [-0.8, -0.3, 0.2, 0.7], "small": [-2.3, -0.7, 0.4, 1.9],
}  # fmt: skip


def function(name):
    text = OPS[name].jnp.format(*"abc")
    return eval(f"lambda {', '.join('abc'[: OPS[name].arity])}: {text}", {"jnp": jnp, "jax": jax, "runtime": runtime})


def table_gradient(folder, name, formula, values):
    """The value of a derivative's formula, computed by the generator."""
    if "**" in formula:  # exponents are numbers, so each has its own spec
        apart = [{n: v[i : i + 1] for n, v in values.items()} for i in range(len(values["b"]))]
        formulas = [re.sub(r"\bb\b", str(float(v["b"][0])), formula) for v in apart]
        made = [table_gradient(folder, name, f.replace("**", "POWER"), v) for f, v in zip(formulas, apart, strict=True)]
        return jnp.concatenate(made)
    formula = formula.replace("POWER", "**").replace(
        "_hypot(a, b)", "sqrt(a * a + b * b)"
    )  # operations that specs cannot call
    used = [n for n in ("a", "b", "c", "y", "g") if re.search(rf"\b{n}\b", formula)]
    if not used:
        return jnp.full_like(values["g"], float(formula))
    types = {n: "bool" if values[n].dtype == bool else "float32" for n in used}
    inputs = "\n".join(f"  {n}: {types[n]}[N]" for n in used)
    text = f"op: row\nsummary: A derivative.\ninputs:\n{inputs}\noutputs:\n  d: float32[N]\nchain: |\n  d = {formula}\nreference: {used[0]}\n"
    return make_op(folder, text)(*(values[n] for n in used), implementation="xla")


def check(folder, name, arguments):
    f, g = function(name), jnp.asarray(np.linspace(0.5, 1.5, len(arguments[0])), jnp.float32)
    floating = [i for i, a in enumerate(arguments) if a.dtype != bool]

    def of(*xs):
        full = list(arguments)
        for i, x in zip(floating, xs, strict=True):
            full[i] = x
        return f(*full)

    y, pull = jax.vjp(of, *(arguments[i] for i in floating))
    values = {**dict(zip("abc", arguments, strict=False)), "y": y, "g": g}
    for i, expected in zip(floating, pull(g), strict=True):
        got = table_gradient(folder, name, OPS[name].grad[i], values)
        np.testing.assert_allclose(got, expected, rtol=2e-5, atol=1e-6, err_msg=f"{name}, argument {'abc'[i]}")


@pytest.mark.parametrize("name", SMOOTH)
def test_at_smooth_points(name, tmp_path):
    op = OPS[name]
    first = jnp.asarray(POINTS[op.domain], jnp.float32)
    others = [jnp.asarray(v, jnp.float32) for v in ([1.3, 0.8, 2.1, 0.6], [0.3, -1.2, 0.9, 2.2])]
    arguments = [first, *others][: op.arity]
    if op.rule == "select":
        arguments = [jnp.asarray([True, False, True, False]), *others]
    check(tmp_path, name, arguments)


@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_a_tie_splits_the_gradient(name, tmp_path):
    x = jnp.asarray([0.0, 1.0, -2.0], jnp.float32)
    check(tmp_path, name, [x, x])


@pytest.mark.parametrize("name", ["abs", "sign", "floor", "ceil", "round"])
def test_at_zero(name, tmp_path):
    check(tmp_path, name, [jnp.zeros(2, jnp.float32)])


KINKS = {"relu": jax.nn.relu, "relu6": jax.nn.relu6, "leaky_relu": jax.nn.leaky_relu, "elu": jax.nn.elu,
         "celu": jax.nn.celu, "selu": jax.nn.selu, "hard_sigmoid": jax.nn.hard_sigmoid,
         "hard_swish": jax.nn.hard_swish, "silu": jax.nn.silu, "sigmoid": jax.nn.sigmoid, "softplus": jax.nn.softplus,
         "log_sigmoid": jax.nn.log_sigmoid, "softsign": jax.nn.soft_sign, "mish": jax.nn.mish,
         "squareplus": jax.nn.squareplus}  # fmt: skip


def test_the_power_one_half_is_jnp_s(tmp_path):
    """inf at -inf and 0 at -0.0, where a square root is NaN and -0.0."""
    lines = "op: half\nsummary: A root.\ninputs:\n  x: float32[N]\noutputs:\n  y: float32[N]\nchain: y = x ** 0.5\nreference: x ** 0.5\n"
    op = make_op(tmp_path, lines)
    x = jnp.asarray([-jnp.inf, -0.0, 0.0, 1e-30, 0.25, 2.0, -1.0, jnp.inf, jnp.nan])
    expected, pull = jax.vjp(lambda x: x**0.5, x)
    for implementation in ("xla", "interpret"):
        y, own = jax.vjp(lambda x: op(x, implementation=implementation), x)
        for found, wanted in ((y, expected), (own(jnp.ones_like(x))[0], pull(jnp.ones_like(x))[0])):
            np.testing.assert_allclose(found, wanted, rtol=1e-6)
            np.testing.assert_array_equal(np.signbit(found[:6]), np.signbit(wanted[:6]))


@pytest.mark.parametrize("name", KINKS)
def test_activations_have_jax_nn_s_gradient_at_their_kinks(name):
    import generated

    assert name in prelude() or name in OPS
    x = jnp.asarray([0.0, 6.0, -3.0, 3.0, 0.5, -0.5], jnp.float32)
    ours = jax.grad(lambda v: getattr(generated, name)(v).sum())(x)
    theirs = jax.grad(lambda v: KINKS[name](v).sum())(x)
    np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("name", KINKS)
def test_activations_are_nan_where_jax_nn_s_are(name):
    import generated

    x = jnp.asarray([jnp.inf, -jnp.inf, jnp.nan, 30.0, -30.0], jnp.float32)
    np.testing.assert_allclose(getattr(generated, name)(x)[:3], KINKS[name](x)[:3], rtol=1e-6)
    np.testing.assert_allclose(jax.grad(lambda v: getattr(generated, name)(v).sum())(x)[2:],
                               jax.grad(lambda v: KINKS[name](v).sum())(x)[2:], rtol=1e-4, atol=1e-6)  # fmt: skip


def test_xla_differentiates_squareplus_where_it_is_large():
    """It differentiates both choices, of which neither may divide by 0."""
    op = make_jnp_op(spec_text("x: float32[N]", "y: float32[N]", "y = squareplus(x)", "y = jax.nn.squareplus(x)"))
    x = jnp.asarray([1e4, 1e10, 0.0, -1e4, 100.0], jnp.float32)
    slope = jax.grad(lambda v: op(v, implementation="xla").sum())(x)
    np.testing.assert_allclose(slope, [1, 1, 0.5, 1e-8, 0.9999], rtol=1e-5)
