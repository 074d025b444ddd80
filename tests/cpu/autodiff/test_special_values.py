"""Each function and operator at zeros, infinities, NaN and the largest numbers: values and slopes of the jnp form are those of
jnp in float64."""

import re

import jax
import jax.numpy as jnp
import numpy as np

from codegen.graph.ops import OPS
from codegen.language.formula.calls import functions
from codegen.language.prelude import prelude
from tests.making import make_jnp_op, make_op, spec_text

LARGEST = 3.4028235e38
NUMBERS = [0.0, -0.0, 1.0, -1.0, 0.5, 6.0, 3.0, -3.0, 2.5, 88.8, -88.8, 1e4, -1e4, 1e18, -1e18, 1e-18, -1e-18]
POINTS = np.array([*NUMBERS, LARGEST, -LARGEST, np.inf, -np.inf, np.nan], np.float32)
ONE = {
    "abs": jnp.abs, "acos": jnp.arccos, "acosh": jnp.arccosh, "asin": jnp.arcsin, "asinh": jnp.arcsinh, "atan": jnp.arctan,
    "atanh": jnp.arctanh, "digamma": jax.lax.digamma, "lgamma": jax.lax.lgamma, "cbrt": jnp.cbrt, "ceil": jnp.ceil,
    "celu": jax.nn.celu, "cos": jnp.cos, "cosh": jnp.cosh, "elu": jax.nn.elu, "erf": jax.lax.erf, "erfc": jax.lax.erfc,
    "exp": jnp.exp, "exp2": jnp.exp2, "expm1": jnp.expm1, "floor": jnp.floor, "hard_sigmoid": jax.nn.hard_sigmoid,
    "hard_swish": jax.nn.hard_swish, "hard_tanh": jax.nn.hard_tanh, "leaky_relu": jax.nn.leaky_relu, "log": jnp.log,
    "log1p": jnp.log1p, "log2": jnp.log2, "log_sigmoid": jax.nn.log_sigmoid, "mish": jax.nn.mish,
    "quick_gelu": lambda x: x * jax.nn.sigmoid(1.702 * x), "reciprocal": jnp.reciprocal, "relu": jax.nn.relu,
    "relu6": jax.nn.relu6, "round": jnp.round, "rsqrt": jax.lax.rsqrt, "selu": jax.nn.selu, "sigmoid": jax.nn.sigmoid,
    "sign": jnp.sign, "silu": jax.nn.silu, "sin": jnp.sin, "sinh": jnp.sinh, "softplus": jax.nn.softplus,
    "softsign": jax.nn.soft_sign, "sqrt": jnp.sqrt, "square": jnp.square, "squareplus": jax.nn.squareplus,
    "squared_relu": lambda x: jnp.square(jax.nn.relu(x)), "tan": jnp.tan, "tanh": jnp.tanh,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False), "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "dgelu": jnp.vectorize(jax.grad(lambda x: jax.nn.gelu(x, approximate=False))),
    "stop_gradient": jax.lax.stop_gradient,
}  # fmt: skip
TWO = {
    "a + b": jnp.add, "a - b": jnp.subtract, "a * b": jnp.multiply, "a / b": jnp.divide, "a % b": jnp.remainder,
    "a // b": jnp.floor_divide, "maximum(a, b)": jnp.maximum, "minimum(a, b)": jnp.minimum, "rem(a, b)": jax.lax.rem,
    "atan2(a, b)": jnp.arctan2, "logaddexp(a, b)": jnp.logaddexp, "clip(a, b, 1)": lambda a, b: jnp.clip(a, b, 1),
    "where(a > b, a, b)": lambda a, b: jnp.where(a > b, a, b),
}  # fmt: skip


def wide(f, arguments):
    """The values of a function of float64 and its slopes, in float32."""
    with jax.enable_x64(True):
        y, pull = jax.vjp(f, *(jnp.asarray(a, jnp.float64) for a in arguments))
        slopes = pull(jnp.ones_like(y))
        with np.errstate(over="ignore"):
            return [np.asarray(v, np.float32) for v in (y, *slopes)]


def check(folder, words, arguments, apart, implementation="xla"):
    """An op with each word's result as an output, of inputs of its own, gives what jnp does except at the points `apart`."""
    names = [[f"{a}{i}" for a in "ab"[: len(arguments)]] for i in range(len(words))]
    formulas = [re.sub(r"\b([ab])\b", rf"\g<1>{i}", word) for i, word in enumerate(words)]
    text = spec_text(
        "; ".join(f"{n}: float32[N]" for own in names for n in own),
        "; ".join(f"y{i}: float32[N]" for i in range(len(words))),
        "; ".join(f"y{i} = {formula}" for i, formula in enumerate(formulas)),
    )
    op = make_op(folder, text)
    given = [jnp.asarray(a, jnp.float32) for _ in words for a in arguments]
    made, pull = jax.vjp(lambda *a: tuple(op(*a, implementation=implementation)), *given)
    slopes = pull(tuple(jnp.ones_like(y) for y in made))
    for i, (word, f) in enumerate(words.items()):
        left = ~np.isin(arguments, apart.get(word, ())).any(0)
        own = [made[i], *slopes[len(arguments) * i : len(arguments) * (i + 1)]]
        for got, wanted in zip(own, wide(f, arguments), strict=True):
            np.testing.assert_allclose(np.asarray(got)[left], wanted[left], 2e-4, 1e-36, err_msg=word)


def is_of_one_number(name):
    if name in OPS:
        return OPS[name].arity == 1 and OPS[name].rule in ("arith", "float", "round")
    return "axis" not in prelude()[name].params and prelude()[name].defaults.count(None) == 1


def test_every_function_of_one_number(tmp_path):
    assert {n for n in functions() if (n in OPS or n in prelude()) and is_of_one_number(n)} == ONE.keys()
    apart = {
        "softsign": [np.inf, -np.inf], "mish": [np.inf],  # jnp's slope is NaN, ours its limit
        "dgelu": [np.inf, -np.inf], "gelu": [-np.inf],
        "rsqrt": [0.0],  # the slope's sign at -0.0
        "squareplus": [-1e18, LARGEST],  # even float64 cancels there; XLA adds before it halves
        "tanh": [6.0],  # 1 - y * y cancels
        "lgamma": [1.0],  # 5e-7, not 0
        "digamma": [-88.8, np.inf, -np.inf],  # jnp's slope is wrong below 0
    }  # fmt: skip
    words = {f"{name}(a)": f for name, f in ONE.items()}
    check(tmp_path, words, [POINTS], {f"{name}(a)": np.float32(points) for name, points in apart.items()})


def test_every_function_of_two_numbers(tmp_path):
    """XLA takes denormal numbers for 0, such as the reciprocal of the largest number. jnp's slope of `logaddexp` is wrong where a
    number is infinite, and where 1 is too small to be added."""
    points = POINTS[np.abs(POINTS) != np.float32(LARGEST)]
    pairs = [x.ravel() for x in np.meshgrid(points, points)]
    check(tmp_path, TWO, pairs, {"logaddexp(a, b)": np.float32([np.inf, 1e18, -1e18])})


def test_quotients_and_remainders_in_a_kernel(tmp_path):
    points = np.float32([0.0, -0.0, 1.0, -1.0, 2.5, -3.0, 1e-38, 3e38, np.inf, -np.inf, np.nan])
    words = {word: TWO[word] for word in ("a // b", "a % b")}
    check(tmp_path, words, [x.ravel() for x in np.meshgrid(points, points)], {}, "interpret")


def test_both_numbers_of_logaddexp_share_the_slope_where_they_are_equal():
    """Also in a second derivative, for which XLA differentiates the first one's jnp form."""
    op = make_jnp_op(spec_text("a: float32[N]; b: float32[N]", "y: float32[N]", "y = logaddexp(a, b)"))
    x = jnp.asarray([0.0, -2.0, 300.0])
    slopes = jax.vjp(lambda a, b: op(a, b, implementation="xla"), x, x)[1](jnp.ones(3))
    np.testing.assert_array_equal(jnp.stack(slopes), 0.5)
