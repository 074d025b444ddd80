"""The approximations of device functions, interpreted in float32 (`math: fast` requests them), against float64."""

import textwrap

import jax.numpy as jnp
import numpy as np
import pytest
from making import import_op, make_op
from scipy import special

from codegen.pipeline import read_op
from codegen.render import render_op

SPEC = """
op: approximated
summary: Made here.
inputs:
  x: float32[N]
outputs:
  y: float32[N]
math: fast
chain: y = {}
reference: y = {}
"""
LEAST = float(np.finfo(np.float32).smallest_subnormal)
SMALLEST = float(np.finfo(np.float32).smallest_normal)
NEGATIVE = -np.concatenate([np.geomspace(1e-6, 103, 4000), [0.0]]).astype(np.float32)
EVERY = np.concatenate([NEGATIVE, -NEGATIVE]).astype(np.float32)


def evaluate(folder, chain: str, x: np.ndarray, reference: str = "x") -> np.ndarray:
    op = make_op(folder, SPEC.format(chain, reference))
    return np.asarray(op(jnp.asarray(x), implementation="interpret"), np.float64)


def check(got: np.ndarray, exact: np.ndarray, relative: float) -> None:
    """The relative error is within a bound. For denormal results the error is relative to the smallest normal number."""
    assert (np.abs(got - exact) <= relative * np.maximum(np.abs(exact), SMALLEST)).all()


def test_exponentials_of_what_is_below_zero(tmp_path):
    got = evaluate(tmp_path, "exp(-abs(x))", NEGATIVE)
    exact = np.exp(NEGATIVE.astype(np.float64))
    check(got, exact, 2.0**-17)
    near = NEGATIVE > -1
    check(got[near], exact[near], 2.0**-22)  # the remainder of one is right, too
    assert (got[exact > 2 * LEAST] > 0).all() and (exact < SMALLEST).sum() > 30  # denormal results are not flushed


def test_divisions_by_normal_numbers(tmp_path):
    got = evaluate(tmp_path, "x / (1 + abs(clip(x, -1e6, 1e6)))", EVERY)
    exact = EVERY.astype(np.float64)
    check(got, exact / (1 + np.abs(exact)), 2.0**-22)


def test_the_reciprocal_of_every_magnitude(tmp_path):
    """Of each of a vector's elements, and of a statistic, which is one value."""
    x = np.geomspace(2.0**-127, 2.0**127, 4000).astype(np.float32)
    exact = 1 / x.astype(np.float64)
    check(evaluate(tmp_path, "reciprocal(x)", x), exact, 2.0**-22)
    text = SPEC.format("reciprocal(sum(x, axis=N))", "1 / x.sum(-1)").replace("float32[N]", "float32[..., N]", 1)
    op = make_op(tmp_path, text.replace("y: float32[N]", "y: float32[...]"))
    got = op(jnp.asarray(x[:, None]), implementation="interpret")
    check(np.asarray(got, np.float64), exact, 2.0**-22)


def test_a_division_by_a_constant(tmp_path):
    check(evaluate(tmp_path, "x / 448.0", EVERY), EVERY.astype(np.float64) / 448, 2.0**-22)


@pytest.mark.parametrize("chain", ["sqrt(x)", "rsqrt(x)"])
def test_roots_of_every_magnitude(tmp_path, chain):
    """Also of denormals, which sums of squares of ordinary numbers may be."""
    x = np.geomspace(2.0**-140, 3e38, 4000).astype(np.float32)
    exact = np.sqrt(x.astype(np.float64))
    check(evaluate(tmp_path, chain, x), exact if chain == "sqrt(x)" else 1 / exact, 2.0**-22)


@pytest.mark.parametrize("chain", ["erfc(x)", "erfc(abs(x))"])
def test_the_complementary_error_function(tmp_path, chain):
    x = np.concatenate([np.linspace(-6, 6, 2000), np.linspace(6, 10.05, 2000)]).astype(np.float32)
    exact = special.erfc(np.abs(x.astype(np.float64)) if "abs" in chain else x.astype(np.float64))
    got = evaluate(tmp_path, chain, x)
    check(got, exact, 2.0**-16)
    assert (got[exact > 64 * LEAST] > 0).all() and ((exact < SMALLEST) & (exact > 64 * LEAST)).sum() > 50


def test_the_sigmoid(tmp_path):
    got = evaluate(tmp_path, "sigmoid(x)", EVERY)
    exact = special.expit(EVERY.astype(np.float64))
    check(got, exact, 2.0**-17)
    assert (got[exact > 2 * LEAST] > 0).all() and ((exact < SMALLEST) & (exact > 2 * LEAST)).sum() > 30


@pytest.mark.parametrize("approx", [True, False])
def test_sigmoids_of_an_argument_and_its_negative(tmp_path, approx):
    """Made together, each is as accurate as alone, in its tail as well, and has the same bits."""
    text = (
        SPEC.replace("  y: float32[N]\n", "  y: float32[N]\n  z: float32[N]\n")
        .replace("fast", "auto")
        .replace("y = {}", "{}")
    )
    text = text.format("|\n  y = sigmoid(x)\n  z = sigmoid(-x)", "|\n  y = x\n  z = x")
    source = render_op(read_op("specs/approximated.yaml", text))
    assert "device.both_sigmoids(x, False)" in source
    both = import_op(tmp_path, "approximated", source.replace("both_sigmoids(x, False)", f"both_sigmoids(x, {approx})"))
    x = np.concatenate([EVERY, np.float32([104, -104, 110, -110, 3e38, -3e38, np.inf, -np.inf, np.nan])])
    y, z = (np.asarray(v, np.float64) for v in both(jnp.asarray(x), implementation="interpret"))
    np.testing.assert_array_equal(y, elementary(tmp_path, "sigmoid", approx, x))
    np.testing.assert_array_equal(z, elementary(tmp_path, "sigmoid", approx, -x))
    for got, sign in ((y, 1), (z, -1)):
        check(got[:-1], special.expit(sign * x[:-1].astype(np.float64)), 2.0**-17 if approx else 2.0**-21)
        assert np.isnan(got[-1])


def test_gelu(tmp_path):
    """Also in its tail."""
    x = np.concatenate([np.linspace(-8, 6, 20000), np.geomspace(1e-30, 1e30, 200)]).astype(np.float32)
    wide = x.astype(np.float64)
    exact = wide * special.ndtr(wide)
    got = evaluate(tmp_path, "gelu(x)", x)
    assert (np.abs(got - exact) <= (2.0**-15 + wide**2 * 2.0**-22) * np.maximum(np.abs(exact), SMALLEST)).all()
    tail = np.concatenate([np.linspace(-200, -8, 5000), [-1e30]]).astype(np.float32)
    exact = tail * special.ndtr(tail.astype(np.float64))
    got = evaluate(tmp_path, "gelu(x)", tail)
    assert (np.abs(got - exact) < 2.0**-62).all() and (got <= 0).all() and (np.diff(np.abs(got[:-1])) >= 0).all()
    assert (got[tail < -13.5] == 0).all()


def test_the_slope_of_gelu(tmp_path):
    """The error is relative to its two terms, which cancel at -0.75."""
    x = np.concatenate([np.linspace(-200, 200, 40000), np.linspace(-13, 6, 20000), [-1e30, 0.0, 1e30]]).astype(
        np.float32
    )
    wide = x.astype(np.float64)
    below, slope = special.ndtr(wide), wide * np.exp(-0.5 * np.clip(wide, -1e3, 1e3) ** 2) / np.sqrt(2 * np.pi)
    size = below + np.abs(slope)
    got = evaluate(tmp_path, "dgelu(x)", x)
    assert (np.abs(got - (below + slope)) <= (2.0**-15 + wide**2 * 2.0**-22) * size + 16 * SMALLEST).all()
    exact = make_op(tmp_path, SPEC.format("dgelu(x)", "x").replace("fast", "auto"))
    got = np.asarray(exact(jnp.asarray(x), implementation="interpret"), np.float64)
    assert (np.abs(got - (below + slope)) <= (2.0**-21 + np.minimum(wide**2, 200) * 2.0**-22) * size + SMALLEST).all()


def test_what_is_not_finite(tmp_path):
    x = np.array([np.inf, -np.inf, np.nan], np.float32)
    np.testing.assert_array_equal(evaluate(tmp_path, "exp(-abs(x))", x), [0, 0, np.nan])
    np.testing.assert_array_equal(evaluate(tmp_path, "1 / (1 + exp(-abs(x)))", x), [1, 1, np.nan])
    np.testing.assert_array_equal(evaluate(tmp_path, "erfc(x)", x), [0, 2, np.nan])
    np.testing.assert_array_equal(evaluate(tmp_path, "sigmoid(x)", x), [1, 0, np.nan])
    np.testing.assert_array_equal(evaluate(tmp_path, "gelu(x)", x), [np.inf, 0, np.nan])
    np.testing.assert_array_equal(evaluate(tmp_path, "dgelu(x)", x), [np.nan] * 3)


def elementary(folder, function: str, approx: bool, x: np.ndarray) -> np.ndarray:
    """An operation in its precise or in its approximate form, whatever `math: fast` uses instead."""
    module = render_op(read_op("specs/approximated.yaml", SPEC.format(f"{function}(x)", "x").replace("fast", "auto")))
    assert f"device.{function}(x, False" in module
    op = import_op(
        folder, "approximated", module.replace(f"device.{function}(x, False", f"device.{function}(x, {approx}")
    )
    with np.errstate(all="ignore"):
        return np.asarray(op(jnp.asarray(x), implementation="interpret"), np.float64)


FINE = np.concatenate(
    [s * np.geomspace(1e-4, 110, 3000) for s in (1, -1)]
    + [1 + np.geomspace(1e-6, 0.5, 500), 1 - np.geomspace(1e-6, 0.5, 500)]
)
FUNCTIONS = {
    "tanh": np.tanh, "erf": special.erf, "log": np.log, "log2": np.log2, "log1p": np.log1p, "expm1": np.expm1, "sinh": np.sinh,
    "cosh": np.cosh, "sin": np.sin, "cos": np.cos, "tan": np.tan,
}  # fmt: skip
SPECIAL = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-41, -1e-41, 3e38, -3e38], np.float32)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_that_may_be_approximate(tmp_path, name):
    x = np.concatenate([FINE.astype(np.float32), SPECIAL])
    with np.errstate(all="ignore"):
        exact = FUNCTIONS[name](x.astype(np.float64)).astype(np.float32).astype(np.float64)
    got = elementary(tmp_path, name, True, x)
    finite = np.isfinite(exact)
    check(got[finite], exact[finite], 2.0**-16)
    np.testing.assert_array_equal(got[~finite], exact[~finite])
    zero = exact == 0
    np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(exact[zero]))
    if name in ("tanh", "erf"):
        assert (np.abs(got[~np.isnan(got)]) <= 1).all()


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_the_sine_and_the_cosine_of_any_angle(tmp_path, name):
    """Within 2 ulp, also near their zeros; large angles do not change the results of their neighbours."""
    turns = np.concatenate([np.arange(-3000, 3000), np.geomspace(3000, 2e38, 3000)])
    x = (turns * np.pi / 2).astype(np.float32)
    x = np.concatenate(
        [x, FINE.astype(np.float32), [0.0, -0.0, 99999.99, -100000.01, 5.5e37], 2.0 ** np.arange(-126, 128)]
    )
    x = np.random.default_rng(1).permutation(x.astype(np.float32))
    got, exact = elementary(tmp_path, name, False, x), FUNCTIONS[name](x.astype(np.float64))
    unit = np.ldexp(1.0, np.maximum(np.frexp(exact)[1], -125) - 24)
    assert (np.abs(got - exact) <= 2 * unit).all()
    small = np.abs(x) < 1e5
    np.testing.assert_array_equal(elementary(tmp_path, name, False, x[small]), got[small])


@pytest.mark.parametrize("approx", [(False, True), (True, False)])
def test_a_sine_and_a_cosine_of_which_one_is_approximate(tmp_path, approx):
    """Each has the bits that it has alone."""
    x = np.concatenate([FINE.astype(np.float32), SPECIAL])
    text = SPEC.format("sin(x)", "x").replace("fast", "auto").replace("y: float32[N]", "y: float32[N]\n  z: float32[N]")
    text = text.replace("chain: y = sin(x)", "chain: |\n  y = sin(x)\n  z = cos(x)").replace(
        "reference: y = x", "reference: |\n  y = x\n  z = x"
    )
    module = render_op(read_op("specs/approximated.yaml", text)).partition("def approximated_xla")
    both = module[0].replace("sine_and_cosine(x, False)", f"sine_and_cosine(x, {approx[0]}, {approx[1]})")
    assert both != module[0]
    op = import_op(tmp_path, "approximated", both + "".join(module[1:]))
    found = op(jnp.asarray(x), implementation="interpret")
    np.testing.assert_array_equal(np.asarray(found.y, np.float64), elementary(tmp_path, "sin", approx[0], x))
    np.testing.assert_array_equal(np.asarray(found.z, np.float64), elementary(tmp_path, "cos", approx[1], x))


def test_the_reciprocal_root_is_within_one_ulp(tmp_path):
    x = np.concatenate([np.geomspace(2.0**-149, 3e38, 4000), [0.0, -0.0, np.inf, np.nan, -1.0]]).astype(np.float32)
    with np.errstate(all="ignore"):
        exact = 1 / np.sqrt(x.astype(np.float64))
        unit = np.ldexp(1.0, np.frexp(exact)[1] - 24)
    got = elementary(tmp_path, "rsqrt", False, x)
    assert (np.abs(got[:4000] - exact[:4000]) <= unit[:4000]).all()
    np.testing.assert_array_equal(got[4000:], exact[4000:])


def test_the_slope_of_an_approximate_tanh_does_not_cancel(tmp_path):
    """1 - tanh(x)**2 is its derivative, in chains and in backwards: where tanh is nearly 1, its whole error remains."""
    text = "op: slope\nsummary: The slope of tanh.\ninputs:\n  x: float32[N]\noutputs:\n  y: bfloat16[N]\n"
    op = make_op(tmp_path, text + "chain: |\n  t = tanh(x)\n  y = 1 - t * t\nreference: 1 / jnp.cosh(x) ** 2\n")
    x = np.linspace(-6, 6, 4001, dtype=np.float32)
    got = np.asarray(op(jnp.asarray(x), implementation="interpret"), np.float64)
    np.testing.assert_allclose(got, 1 / np.cosh(x.astype(np.float64)) ** 2, rtol=2**-7)


DIVISION = """
op: quotient
summary: A row over one number.
inputs:
  x: float32[..., N]
  s: float32[...]
outputs:
  y: float32[..., N]
params:
  p: {{type: float, default: 3.0, static: {}}}
chain: |
  {}
reference: x / s[..., None] * p
"""
DIVISORS = np.array(
    [3, -3, 0.1, 448, 1, -2, 1 + 2**-23, 2 - 2**-23, 2.0**-126, 1e-39, -1e-45, 2.0**100, 3e38, -2.0**127, 2.0**-70, 7e19,
     0.0, -0.0, np.inf, -np.inf, np.nan], np.float32,
)  # fmt: skip
WAYS = {
    "element by element": "y = where(p > 1e38, x, x / s)",
    "in a row": "y = where(isnan(max(where(isfinite(x), x, 0), axis=N)), p, x / s)",
}


def dividends() -> np.ndarray:
    draw = np.random.default_rng(3)
    mantissas = np.ldexp(1 + draw.random(4000), draw.integers(-126, 127, 4000)) * draw.choice([-1, 1], 4000)
    small = np.arange(-2000, 2000)
    special = [np.inf, -np.inf, np.nan, 0.0, -0.0, LEAST, -LEAST, SMALLEST, 3.4e38, -3.4e38]
    return np.concatenate([mantissas, small, small * LEAST, special]).astype(np.float32)


def check_quotients(got: np.ndarray, x: np.ndarray, by: np.ndarray) -> None:
    """Correctly rounded from 2**-102 on, but for a few that lie next to the middle of two floats; else within one ulp."""
    with np.errstate(all="ignore"):
        exact = x.astype(np.float64) / by.astype(np.float64)
        nearest = exact.astype(np.float32)
        unit = np.ldexp(1.0, np.maximum(np.frexp(exact)[1], -125) - 24)
        special = ~np.isfinite(nearest) | (exact == 0)
        np.testing.assert_array_equal(got[special], nearest[special])
        np.testing.assert_array_equal(np.signbit(got[exact == 0]), np.signbit(exact[exact == 0]))
        error = np.abs(got.astype(np.float64) - exact) / unit
    large = ~special & (np.abs(exact) >= 2.0**-102)
    assert (error[~special] <= 1).all() and (error[large] <= 0.5 + 2**-18).all()
    assert (
        got[large] != nearest[large]
    ).mean() < 2.0**-11  # whole numbers over 1 + 2**-23 are often next to the middle


@pytest.mark.parametrize("way", WAYS)
def test_quotients_of_a_vector_by_one_number(tmp_path, way):
    op = make_op(tmp_path, DIVISION.format("true", WAYS[way]))
    x = np.broadcast_to(dividends(), (len(DIVISORS), dividends().size))
    got = np.asarray(op(jnp.asarray(x), jnp.asarray(DIVISORS), implementation="interpret"))
    check_quotients(got, x, np.broadcast_to(DIVISORS[:, None], x.shape))


@pytest.mark.each
@pytest.mark.parametrize("static", ["true", "false"])
@pytest.mark.parametrize("p", [3.0, -0.7, 2.0, 15.0, 1e-39, 3e38])
def test_quotients_by_a_parameter(tmp_path, p, static):
    op = make_op(tmp_path, DIVISION.format(static, "y = where(s > 0, x / p, x / p)"))
    x = dividends()[None]
    got = np.asarray(op(jnp.asarray(x), jnp.ones(1), p=p, implementation="interpret"))
    check_quotients(got, x, np.full_like(x, p))


@pytest.mark.parametrize("by", ["448.0", "0.1", "4.0", "(3 + abs(clip(s, 0, 9)))"])
def test_quotients_by_what_is_never_small_or_large(tmp_path, by):
    op = make_op(tmp_path, DIVISION.format("true", f"y = where(p > 1e38, s, x / {by})"))
    x = dividends()[None]
    s = np.array([0.7], np.float32)
    number = np.float32(3) + s[0] if "abs" in by else np.float32(float(by))
    got = np.asarray(op(jnp.asarray(x), jnp.asarray(s), implementation="interpret"))
    check_quotients(got, x, np.full_like(x, number))


def test_a_hyperbolic_tangent_as_a_term_of_an_exponent(tmp_path):
    """Attention's scores under a soft cap: exp(cap * tanh(x / cap)), where 1 - tanh counts for nothing."""
    text = """
    op: capped
    summary: Made here.
    types: {T: [bfloat16]}
    inputs: {q: "T[Q, D]", k: "T[S, D]", v: "T[S, E]"}
    outputs: {o: "T[Q, E]", lse: "float32[Q]"}
    chain: |
      s = 40 * tanh(q @ k / 40)
      o = softmax(s, axis=S) @ v
      lse = logsumexp(s, axis=S)
    reference: |
      o = q
      lse = q[:, 0]
    """
    text = textwrap.dedent(text)
    op = make_op(tmp_path, text)
    assert "tanh_term" in render_op(read_op("capped.yaml", text.encode()))
    values = np.array([-400, -90, -30, -4, -0.5, -0.01, 0, 0.003, 0.3, 5, 33, 80, 1000], np.float32)
    near = np.linspace(-27.9, 27.9, 200, dtype=np.float32)  # of whole warps
    for x in (values, values[np.abs(values) < 28], near):
        q = jnp.zeros((len(x), 8), jnp.bfloat16).at[:, 0].set(jnp.asarray(x, jnp.bfloat16))
        k = jnp.zeros((1, 8), jnp.bfloat16).at[0, 0].set(1)
        got = op(q, k, jnp.ones((1, 8), jnp.bfloat16), implementation="interpret").lse  # of a single column: its score
        exact = 40 * np.tanh(np.asarray(q[:, 0], np.float64) / 40)
        np.testing.assert_allclose(np.asarray(got, np.float64), exact, rtol=2.0**-16, atol=40 * 2.0**-24)


@pytest.mark.parametrize("math", ["precise", "fast"])
def test_powers(math, tmp_path):
    """Of a root, and of logarithms: their values, and what any power is of zeros, infinities and negative numbers."""
    x = np.concatenate([np.geomspace(1e-44, 3e38, 2000), [0.0, -0.0, np.inf, -np.inf, np.nan, -1.0]]).astype(np.float32)
    for exponent in (-0.5, 0.5, 1.5, 2.5, 0.375, -2.25):
        made = SPEC.replace("math: fast", f"math: {math}").format(f"x ** {exponent}", "x")
        op = make_op(tmp_path, made)
        got = np.asarray(op(jnp.asarray(x), implementation="interpret"), np.float64)
        with np.errstate(all="ignore"):
            exact = np.power(x.astype(np.float64), np.full(x.shape, exponent))  # of a number would be a square root
        special = ~np.isfinite(exact) | (exact == 0)
        np.testing.assert_array_equal(got[special], exact[special])
        assert not np.signbit(got[x == 0]).any()
        fits = ~special & (exact < 2.0**127)
        check(got[fits], exact[fits], 2.0**-22 if math == "precise" else 2.0**-15)


def test_quotients_are_correctly_rounded_and_zeros_keep_their_signs(tmp_path):
    """Of every pair of some numbers, with zeros, infinities, NaN, the least and the largest numbers among them."""
    some = np.float32([0.0, -0.0, 1.0, -3.0, 0.1, 7e-20, 3e38, -1e-38, LEAST, SMALLEST, np.inf, -np.inf, np.nan])
    a, b = (np.tile(part.ravel(), 8) for part in np.meshgrid(some, some))
    made = SPEC.replace("math: fast", "math: precise").replace("  x: float32[N]", "  x: float32[N]\n  b: float32[N]")
    op = make_op(tmp_path, made.format("x / b", "x"))
    got = np.asarray(op(jnp.asarray(a), jnp.asarray(b), implementation="interpret"))
    with np.errstate(all="ignore"):
        exact = a / b
    np.testing.assert_array_equal(got, exact)
    there = ~np.isnan(exact)
    np.testing.assert_array_equal(np.signbit(got[there]), np.signbit(exact[there]))
