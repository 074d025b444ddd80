"""Parameters in every place of a chain: the jnp form, the interpreted kernel and plain NumPy agree."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import generated
from codegen.autodiff.backward import Derived
from tests.making import make_op, spec_text
from tests.turns import some

X = np.array([[-3.0, -0.5, 0.0, 0.5], [1.0, 2.5, 3.0, 7.0]], np.float32)


def op_of(folder, params, expression, result="float32", reduces=""):
    chain = f"y = {expression}" + (f"\n  s = {reduces}" if reduces else "")
    return make_op(
        folder,
        "\n".join(
            [
                "op: of_parameters",
                "summary: An op with parameters.",
                "inputs: {x: 'float32[..., N]'}",
                f"outputs: {{y: '{result}[..., N]'" + (", s: 'float32[...]'}" if reduces else "}"),
                f"params: {{{params}}}",
                f"chain: |\n  {chain}",
                "reference: |\n  y = x" + ("\n  s = jnp.sum(x, axis=-1)" if reduces else ""),
                "grad: none",
            ]
        ),
    )


# The parameter, an expression, its type, the given value, the result
CASES = [
    ("on: {type: bool, default: true}", "where(~on, x, 0)", "float32", {}, 0 * X),
    ("on: {type: bool, default: true}", "where(~on, x, 0)", "float32", {"on": False}, X),
    ("n: 3.0", "where(~(n > 2), x, 0)", "float32", {}, 0 * X),
    ("n: {type: int, default: 3}", "x * n", "float32", {}, X * 3),
    ("n: {type: int, default: 4}", "x / n", "float32", {}, X / 4),
    ("n: {type: int, default: 3}", "clip(x, 0, n)", "float32", {}, np.clip(X, 0, 3)),
    ("n: {type: int, default: 4}", "x + sqrt(n)", "float32", {}, X + 2),
    ("n: {type: int, default: 2}", "x > n", "bool", {}, X > 2),
    ("n: {type: int, default: 2000000000}", "where(x > 0, n + n, 0)", "int32", {}, np.where(X > 0, -294967296, 0)),
    ("n: 1", "(x + n) * sqrt(n + 3) / n", "float32", {}, (X + 1) * 2),
    ("n: 3, m: {default: 2, static: false}", "x * n + m ** 2", "float32", {"m": 3.0, "n": 2.0}, X * 2 + 9),
    ("n: {default: 3, static: false}", "elu(x + 100, n) - 100", "float32", {"n": 7}, X),
    ("a: 1.00390625", "x * cast(a, bfloat16)", "float32", {}, X),
    ("a: 1.0, b: 0.0", "x + a / b", "float32", {}, np.full_like(X, np.inf)),
    ("fill: -1.0e+30", "where(x > 0, x, fill)", "float32", {}, np.where(X > 0, X, np.float32(-1e30))),
    ("fill: 1.0", "where(x > 0, x, fill)", "float32", {"fill": 1e17}, np.where(X > 0, X, np.float32(1e17))),
    ("on: {type: bool, default: true, static: false}", "where(on, x, -x)", "float32", {}, X),
    ("on: {type: bool, default: true, static: false}", "where(on, x, -x)", "float32", {"on": False}, -X),
    ("on: {type: bool, default: true, static: false}", "where(x > 0, on, ~on)", "bool", {"on": False}, X <= 0),
]


@pytest.mark.each
@pytest.mark.parametrize(("params", "expression", "result", "given", "expected"), CASES)
@pytest.mark.parametrize("implementation", ["xla", "interpret"])
def test_an_elementwise_op(tmp_path, implementation, params, expression, result, given, expected):
    op = op_of(tmp_path, params, expression, result)
    found = op(X, **given, implementation=implementation)
    np.testing.assert_array_equal(np.asarray(found), expected.astype(result))


@pytest.mark.parametrize("implementation", ["xla", "interpret"])
def test_a_dynamic_bool_of_a_row_kernel(tmp_path, implementation):
    op = op_of(
        tmp_path,
        "on: {type: bool, default: true, static: false}",
        "where(on, x, -x)",
        reduces="sum(where(on, x, 0), axis=N)",
    )
    for on in (True, False):
        y, s = op(X, on=jnp.asarray(on), implementation=implementation)
        np.testing.assert_array_equal(np.asarray(y), X if on else -X)
        np.testing.assert_array_equal(np.asarray(s), X.sum(-1) if on else 0 * X.sum(-1))


@pytest.mark.parametrize("condition", [True, False])
@pytest.mark.parametrize("implementation", ["xla", "interpret"])
def test_a_condition_that_is_a_constant(tmp_path, implementation, condition):
    op = op_of(tmp_path, "a: 2.0", f"where({condition}, x, a) + x")
    np.testing.assert_array_equal(
        np.asarray(op(X, implementation=implementation)), X + X if condition else X + np.float32(2)
    )


@pytest.mark.parametrize("implementation", ["xla", "interpret"])
@pytest.mark.parametrize(("expression", "value"), [("rem(exp(1), 1.75)", np.e - 1.75), ("rem(maximum(5, -1), 3)", 2)])
def test_functions_of_constants_are_computed_in_32_bits(tmp_path, implementation, expression, value):
    """Not in the type that x64 gives a Python number, which `rem` does not combine with other types."""
    op = op_of(tmp_path, "a: 2.0", f"x + a * {expression}")
    with jax.enable_x64(True):
        got = op(X, implementation=implementation)
    np.testing.assert_allclose(np.asarray(got), X + 2 * np.float32(value), rtol=1e-6)


@pytest.mark.parametrize(
    ("expression", "value"), [("where(1 < 2, 3, 4)", 3), ("cast(2 < 1, int32)", 0), ("softplus(0)", np.log(2))]
)
@pytest.mark.parametrize("implementation", ["xla", "interpret"])
def test_what_is_made_of_constants_alone(tmp_path, implementation, expression, value):
    op = op_of(tmp_path, "a: 2.0", f"a * (x + {expression})")
    expected = 2 * (X + np.float32(value))
    np.testing.assert_allclose(np.asarray(op(X, implementation=implementation)), expected, rtol=1e-6)


@pytest.mark.parametrize("implementation", ["xla", "interpret"])
def test_a_bool_as_a_factor_keeps_no_nan(tmp_path, implementation):
    op = op_of(tmp_path, "a: 2.0", "a * (x * (x > 0))")
    x = np.float32([[-np.inf, np.nan, -1, 2], [np.inf, 0, -0.0, 1]])
    expected = [[0, 0, 0, 4], [np.inf, 0, 0, 2]]
    np.testing.assert_array_equal(np.asarray(op(x, implementation=implementation)), expected)
    np.testing.assert_array_equal(np.asarray(jax.jit(lambda x: 2 * (x * (x > 0)))(x)), expected)


@pytest.mark.turns(2)
@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", ["p", "total", "exact", "vectors", "values", "turn", "rows_vec"])
def test_names_that_kernels_use_themselves(tmp_path, name, static):
    """Parameters with names of a reducing kernel's own variables: in that kernel, and in the backward of a kernel that
    does not reduce."""
    params = f"{name}: {{type: float, default: 2.5, static: {str(static).lower()}}}"
    op = op_of(tmp_path, params, f"x * {name}", reduces=f"sum(x, axis=N) + {name}")
    y, s = op(X, implementation="interpret", **{name: 3.0})
    np.testing.assert_array_equal(y, X * 3)
    np.testing.assert_array_equal(s, X.sum(1) + 3)
    text = spec_text(
        "x: float32[..., N]; w: float32[N]", "y: float32[..., N]", f"y = x * w * {name}", more=f"params: {{{params}}}"
    )
    op = make_op(tmp_path, text)
    assert isinstance(op.backward, Derived)
    got = jax.grad(lambda w: op(X, w, implementation="interpret", **{name: 3.0}).sum())(X[0])
    np.testing.assert_array_equal(got, 3 * X.sum(0))


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", ["turn", "paced", "kernel", "backward_xla", "stage0"])
@pytest.mark.parametrize("place", ["output", "value"])
def test_results_called_what_kernels_use_themselves(tmp_path, name, place):
    """A row's mean, and values computed from it, in a kernel that reduces along rows and over them."""
    mean, out = (name, "y") if place == "value" else ("m", name)
    chain = f"{mean} = mean(x * w, axis=N); {out} = x + {mean}; s = sum({out} * x, axis=...)"
    op = make_op(
        tmp_path, spec_text("x: float32[..., N]; w: float32[N]", f"{out}: float32[..., N]; s: float32[N]", chain)
    )
    y, s = op(X, X[1], implementation="interpret")
    expected = X + (X * X[1]).mean(1, keepdims=True)
    np.testing.assert_allclose(y, expected, rtol=1e-6)
    np.testing.assert_allclose(s, (expected * X).sum(0), rtol=1e-6)


@pytest.mark.parametrize("name", some(["gemm", "functools", "p", "batch", "config"], 1))
def test_names_that_products_use_themselves(tmp_path, name):
    text = spec_text(
        "x: bfloat16[..., K]; w: bfloat16[K, N]",
        "y: float32[..., N]",
        f"y = (x @ w) * {name}",
        more=f"params: {{{name}: 2.0}}",
    )
    x, w = jnp.ones((8, 16), "bfloat16"), jnp.ones((16, 8), "bfloat16")
    np.testing.assert_array_equal(make_op(tmp_path, text)(x, w, implementation="interpret"), np.full((8, 8), 32))


def test_integers_that_32_bits_do_not_hold_are_refused():
    x = jnp.ones((2, 8), jnp.float32)
    with pytest.raises(
        ValueError, match=r"^cross_entropy: 'ignore_index' is an int of 32 bits, and -1099511627776 is out"
    ):
        generated.cross_entropy(x, jnp.zeros(2, jnp.int32), ignore_index=-(2**40))
    a = jnp.ones(4, jnp.int32)
    with pytest.raises(
        ValueError, match=r"^integer_add_clip: 'hi' is an int of 32 bits, and 4294967295 is out of its range"
    ):
        generated.integer_add_clip(a, a, hi=np.uint32(2**32 - 1))
    with pytest.raises(ValueError, match=r"^rmsnorm: 'eps' is a float, and a number of 401 digits is out of its range"):
        generated.rmsnorm(x, jnp.ones(8), eps=10**400)


def test_a_python_integer_is_a_float_where_one_is_wanted():
    x = jnp.ones(4)
    found = generated.axpby(x, x, alpha=2**31, beta=0.0)
    np.testing.assert_array_equal(np.asarray(found), np.full(4, np.float32(2**31)))


COUNTS = """
op: of_counts
summary: An op with parameters that are whole numbers.
inputs: {x: 'float32[..., N]', label: 'int32[..., N]'}
outputs: {y: 'float32[..., N]'}
params: {ignore: 16777217, first: 2, step: {default: 1, static: false}, scale: 1.0}
chain: y = where((label == ignore) | (index(N) < first), x + step, x) * scale
reference: |
  seen = jnp.concatenate([jnp.full_like(label[..., :first], ignore), label[..., first:]], axis=-1) == ignore
  y = jnp.where(seen, x + step, x) * scale
"""


@pytest.mark.parametrize("implementation", ["xla", "interpret"])
def test_a_whole_number_is_an_int(tmp_path, implementation):
    """It equals an int32 input with that value, not one that rounds to the same float; a reference slices with it."""
    op = make_op(tmp_path, COUNTS)
    label = np.int32([[16777216, 0, 16777216, 16777217], [16777217, 16777218, 16777218, 16777215]])
    x = np.zeros((2, 4), "float32")
    expected = [[1, 1, 0, 1], [1, 1, 0, 0]]
    np.testing.assert_array_equal(np.asarray(op(x, label, implementation=implementation)), expected)
    np.testing.assert_array_equal(np.asarray(op.reference(x, label)), expected)
    found = op(x, label, ignore=16777216.0, first=0, step=np.int32(3), scale=2, implementation=implementation)
    np.testing.assert_array_equal(np.asarray(found), [[6, 0, 6, 0], [0, 0, 0, 0]])
    np.testing.assert_array_equal(
        np.asarray(op.reference(x, label, ignore=16777216.0, first=0, step=3, scale=2)), found
    )


def test_an_int_parameter_takes_whole_numbers_only(tmp_path):
    op = make_op(tmp_path, COUNTS)
    x, label = np.zeros((2, 4), "float32"), np.zeros((2, 4), "int32")
    words = (
        r"^of_counts: '{}' is an int, not {}; a default such as 1\.0 in its spec, or `type: float`, makes it a float$"
    )
    for name in ("ignore", "step"):
        for value in (2.5, np.float32(0.5), np.nan, np.inf):
            with pytest.raises(TypeError, match=words.format(name, re.escape(repr(float(value))))):
                op(x, label, **{name: value}, implementation="xla")
        with pytest.raises(TypeError, match=f"^of_counts: '{name}' "):
            op(x, label, **{name: "2"}, implementation="xla")
    with pytest.raises(TypeError, match=r"^of_counts: 'step' must be a scalar int, but has dtype float32"):
        op(x, label, step=jnp.float32(2), implementation="xla")
    with pytest.raises(
        ValueError, match=r"^of_counts: 'first' is an int of 32 bits, and 4294967296 is out of its range"
    ):
        op(x, label, first=2.0**32, implementation="xla")


SCALARS = """
op: of_scalars
summary: An op with scalar arrays.
inputs: {x: 'float32[..., N]', i: 'int8[]', f: 'float32[]', b: 'bool[]'}
outputs: {y: 'float32[..., N]'}
chain: y = where(b, x * f, i)
reference: jnp.where(b, x * f, i)
grad: none
"""


def test_scalars_are_what_they_say(tmp_path):
    op = make_op(tmp_path, SCALARS)
    good = {"i": np.int64(-128), "f": 2, "b": np.bool_(True)}
    np.testing.assert_array_equal(np.asarray(op(X, **good)), X * 2)
    refused = [
        ("i", 1.7, TypeError), ("i", np.float32(2), TypeError), ("i", True, TypeError), ("i", 300, ValueError),
        ("i", np.int32(128), ValueError), ("i", float("nan"), TypeError), ("f", np.complex64(1), TypeError),
        ("f", True, TypeError), ("f", np.str_("a"), TypeError), ("b", 0.5, TypeError), ("b", 2, TypeError),
    ]  # fmt: skip
    for name, value, error in refused:
        with pytest.raises(error, match=f"^of_scalars: '{name}' is "):
            op(X, **good | {name: value})


def test_an_architecture_that_does_not_exist(monkeypatch):
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90A")
    with pytest.raises(ValueError, match=r"^CUTE_DSL_ARCH: there is no architecture 'sm_90A'; there are: .*sm_90a"):
        generated.bias_relu(jnp.ones((2, 8)), jnp.ones(8), implementation="interpret")


def test_one_nan_is_one_function(tmp_path):
    op = op_of(tmp_path, "fill: 0.0", "where(x > 0, x, fill)")
    for _ in range(3):
        op(X, fill=float("nan"))
    assert op._functions.cache_info().currsize == 1


def test_what_is_no_array_is_said_to_be_none():
    w = jnp.ones(8)
    with pytest.raises(TypeError, match=r"^rmsnorm takes arrays; for a jax\.ShapeDtypeStruct"):
        generated.rmsnorm(jax.ShapeDtypeStruct((2, 8), jnp.float32), w)
    with pytest.raises(TypeError, match=r"^rmsnorm: 'x' is T\[..., N\], not of dtype key<fry>"):
        generated.rmsnorm(jax.random.key(0), w)
    x = np.arange(16.0).reshape(2, 8)
    np.testing.assert_array_equal(
        np.asarray(generated.rmsnorm(x.astype(">f4"), w)), np.asarray(generated.rmsnorm(x.astype("f4"), w))
    )


PRODUCT = """
op: of_a_product
summary: A product whose epilogue has parameters.
inputs: {a: 'bfloat16[..., K]', b: 'bfloat16[K, N]'}
outputs: {y: 'float32[..., N]'}
params:
  on: {type: bool, default: true, static: false}
  n: {type: int, default: 3}
  fill: -1.0e+30
chain: |
  z = a @ b
  y = where(on, z * n, fill)
reference: |
  y = jnp.where(on, (a @ b) * n, fill)
grad: none
"""


@pytest.mark.parametrize("implementation", ["xla", "interpret"])
def test_parameters_of_an_epilogue(tmp_path, implementation):
    op = make_op(tmp_path, PRODUCT)
    a, b = (np.arange(n).reshape(shape).astype("bfloat16") for n, shape in ((15, (3, 5)), (20, (5, 4))))
    product = a.astype(np.float64) @ b.astype(np.float64)
    for on in (True, False):
        found = np.asarray(op(a, b, on=on, implementation=implementation))
        np.testing.assert_array_equal(found, product * 3 if on else np.full((3, 4), np.float32(-1e30)))
