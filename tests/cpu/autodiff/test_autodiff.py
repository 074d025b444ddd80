"""Generated backwards: of each operation against finite differences, of composite functions where they could overflow,
of formulas in specs, and second derivatives. tests/generated compares the kernels with jax.vjp, op by op."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from making import make_op

import generated
from codegen.autodiff.backward import Derived
from codegen.errors import SpecError
from codegen.graph.ops import OPS, REDUCTIONS
from codegen.language.formula.calls import functions
from codegen.language.prelude import prelude
from codegen.plan.rows.launching.walking import in_parts
from tests.making import spec_text
from tests.turns import some

POINTS = {
    "any": [-2.3, -0.7, 0.4, 1.9], "positive": [0.2, 0.9, 1.7, 3.1], "nonnegative": [0.1, 0.9, 1.7, 3.1],
    "nonzero": [-2.3, -0.7, 0.4, 1.9], "unit": [-0.8, -0.3, 0.2, 0.7], "small": [-2.3, -0.7, 0.4, 1.9],
}  # fmt: skip
OTHERS = [1.3, 0.8, 2.1, 0.6], [0.3, -1.2, 0.9, 2.2]


def op_of(folder, chain: str, more: str = "", inputs: str = "a b c", dims: str = "..., N", out: str = "..., N"):
    """A float64 op with a chain that assigns y."""
    used = [name for name in inputs.split() if re.search(rf"\b{name}\b", chain)]
    rows = "\n".join(f"  {name}: float64[{dims}]" for name in used)
    return make_op(
        folder,
        f"op: made\nsummary: Made here.\ninputs:\n{rows}\noutputs:\n  y: float64[{out}]\n{more}"
        f"chain: |\n  {chain}\nreference: |\n  y = 0\n",
    )  # fmt: skip


def differences(f, xs: list[np.ndarray], place: int, dy: np.ndarray) -> np.ndarray:
    """The gradient of sum(dy * f) by central differences of fourth order, element by element, in float64."""
    found = np.zeros(xs[place].shape)
    for at in np.ndindex(found.shape):
        h = 1e-3 * max(1.0, abs(xs[place][at]))
        total = 0.0
        for step, weight in ((-2, 1 / 12), (-1, -2 / 3), (1, 2 / 3), (2, -1 / 12)):
            moved = [x.copy() for x in xs]
            moved[place][at] += step * h
            total += weight * float(np.sum(dy * np.asarray(f(*moved))))
        found[at] = total / h
    return found


def check_differences(op, *arrays, **keywords) -> None:
    """The op's generated backward (its jnp form) against finite differences of its forward."""
    assert isinstance(op.backward, Derived), op.backward
    with jax.enable_x64(True):
        xs = [np.asarray(a, np.float64) for a in arrays]
        forward = jax.jit(functools.partial(op, **keywords, implementation="xla"))
        y, pull = jax.vjp(forward, *map(jnp.asarray, xs))
        dy = np.linspace(0.5, 1.5, max(1, y.size)).reshape(y.shape)
        made = pull(jnp.asarray(dy))
        for place, got in enumerate(made):
            np.testing.assert_allclose(got, differences(forward, xs, place, dy), rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize(
    "name",
    [
        n
        for n, op in OPS.items()
        if op.rule in ("arith", "float") and n not in ("pow", "sign", "stop_gradient") and not n.startswith("_")
    ],
)
def test_the_derivative_of_every_operation(name, tmp_path):
    op = OPS[name]
    call = op.jnp.format(*"abc") if op.infix or name == "div" else f"{name}({', '.join('abc'[: op.arity])})"
    arrays = [POINTS[op.domain], *OTHERS][: op.arity]
    check_differences(op_of(tmp_path, f"y = {call}"), *([a] for a in arrays))


@pytest.mark.parametrize("exponent", ["2", "3", "-2", "0.5", "1.5", "p"])
def test_the_derivative_of_a_power(exponent, tmp_path):
    more = "params:\n  p: {type: float, default: 2.5}\n" if exponent == "p" else ""
    check_differences(op_of(tmp_path, f"y = a ** {exponent}", more), [POINTS["positive"]])


def test_the_derivative_of_a_power_at_zero(tmp_path):
    op = op_of(tmp_path, "y = a ** 1.5")
    with jax.enable_x64(True):
        assert jax.grad(lambda v: op(v).sum())(jnp.zeros((1, 2))).tolist() == [[0.0, 0.0]]


@pytest.mark.each
@pytest.mark.parametrize("implementation", ["xla", "interpret"])
@pytest.mark.parametrize(("kind", "exponents"), [("float", [2.5, 2, 1, 0.5, 0]), ("int", [0, 1, 2, -1])])
def test_the_derivatives_of_a_power_whose_base_is_zero(kind, exponents, implementation, tmp_path):
    """With respect to a dynamic exponent, where one element is 0; and to the base, also where the exponent is 0."""
    more = f"params:\n  e: {{type: {kind}, default: 2, static: false}}"
    op = make_op(tmp_path, spec_text("x: float32[..., N]", "y: float32[..., N]", "y = x ** e", more=more))
    x = jnp.asarray([[0, 1, 2]], jnp.float32)
    for p in exponents:
        p = jnp.asarray(p, "float32" if kind == "float" else "int32")
        by = (0, 1) if kind == "float" else 0
        got = jax.grad(lambda x, p: op(x, e=p, implementation=implementation).sum(), by)(x, p)
        expected = jax.grad(lambda x, p: (x**p).sum(), by)(x, p)
        # in jnp the derivative of 0 ** 0.0 does not exist; that of a constant is 0
        for g, e in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(g, jnp.where(jnp.isnan(e), 0, e), rtol=1e-6)


@pytest.mark.parametrize("name", [n for n in functions() if n in prelude() and "axis" not in prelude()[n].params])
def test_the_derivative_of_every_composite(name, tmp_path):
    made = prelude()[name]
    words = [
        "a",
        *(
            "-1" if p == "lo" else "1"
            for p, d in zip(made.params, made.defaults, strict=True)
            if d is None and p != "x"
        ),
    ]
    points = {"acosh": [1.2, 1.9, 4.1], "atanh": POINTS["unit"]}.get(name, [-2.3, -0.7, 0.4, 1.9, 4.1])
    check_differences(op_of(tmp_path, f"y = {name}({', '.join(words)})"), [points])


REDUCING = [n for n in functions() if n in prelude() and "axis" in prelude()[n].params and not n.startswith("arg")]


@pytest.mark.each
@pytest.mark.parametrize("axis", ["N", "..."])
@pytest.mark.parametrize("name", [*(n for n, row in REDUCTIONS.items() if row.grad != "0"), *REDUCING])
def test_the_derivative_of_every_reduction(name, axis, tmp_path):
    whole = name.endswith("softmax")
    if axis == "..." and (whole or name in ("var", "std", "norm", "logsumexp")):
        pytest.skip("every row would wait for all others")
    out = "..., N" if whole else "..." if axis == "N" else "N"
    op = op_of(tmp_path, f"y = {name}(a, axis={axis})", out=out)
    check_differences(op, np.random.default_rng(0).standard_normal((3, 5)))


COUNTED = {  # the summed value lacks the axis of the sum: it counts once for each element
    "in_a_logarithm": (
        "x: float32[..., N]; r: float32[...]", "y: float32[...]", "y = log(sum(exp(x) + r, axis=N))",
        lambda x, r: jnp.log(jnp.sum(jnp.exp(x) + r[:, None], 1)),
    ),
    "beside_another_use": (
        "x: float32[..., N]; r: float32[...]", "y: float32[...]; z: float32[..., N]",
        "y = sum(x - r, axis=N); z = square(x) * r", lambda x, r: (jnp.sum(x - r[:, None], 1), x * x * r[:, None]),
    ),
    "in_a_mean": (
        "x: float32[..., N]; r: float32[...]", "y: float32[...]; z: float32[..., N]",
        "y = mean(3 * r + x, axis=N); z = x * r", lambda x, r: (jnp.mean(3 * r[:, None] + x, 1), x * r[:, None]),
    ),
    "over_everything": (
        "x: float32[..., N]; r: float32[...]", "y: float32[]; z: float32[..., N]",
        "y = sum(x + r, axis=(..., N)); z = x * r", lambda x, r: (jnp.sum(x + r[:, None]), x * r[:, None]),
    ),
    "over_rows": (
        "x: float32[..., N]; b: float32[N]", "y: float32[N]; z: float32[..., N]",
        "y = sum(x + b, axis=...); z = x * b", lambda x, b: (jnp.sum(x + b, 0), x * b),
    ),
}  # fmt: skip


@pytest.mark.parametrize("implementation", ["xla", "interpret"])
@pytest.mark.turns(2)
@pytest.mark.parametrize("name", COUNTED)
def test_what_lacks_an_axis_counts_for_each_place_along_it(name, implementation, tmp_path):
    inputs, outputs, chain, reference = COUNTED[name]
    op = make_op(tmp_path, spec_text(inputs, outputs, chain))
    assert isinstance(op.backward, Derived)
    x = jax.random.normal(jax.random.key(0), (4, 3))
    other = jnp.abs(jax.random.normal(jax.random.key(1), (3,) if "b:" in inputs else (4,)))

    def total(f):
        return lambda *args: sum((leaf * jnp.cos(leaf)).sum() for leaf in jax.tree.leaves(f(*args)))

    got = jax.grad(total(lambda *args: op(*args, implementation=implementation)), (0, 1))(x, other)
    for g, want in zip(got, jax.grad(total(reference), (0, 1))(x, other), strict=True):
        np.testing.assert_allclose(g, want, rtol=1e-5, atol=1e-6)


EXTREMES = {
    "of_a_norm": ("m: float32[...]", "m = max(x / norm(x, axis=N) * w, axis=N)"),
    "of_an_output": ("y: float32[..., N]; m: float32[...]", "v = x * rsqrt(mean(square(x), axis=N) + 1e-6) * w; y = v; m = max(abs(v), axis=N)"),
    "of_a_softmax": ("m: float32[...]", "m = max(softmax(x, axis=N) * w, axis=N)"),
    "least": ("y: float32[..., N]; m: float32[...]", "v = (x - mean(x, axis=N)) * rsqrt(var(x, axis=N) + 1e-5) * w; y = v; m = min(v, axis=N)"),
}  # fmt: skip


@pytest.mark.turns(2)
@pytest.mark.parametrize(
    ("name", "implementation"), [*((name, "interpret") for name in EXTREMES), ("of_an_output", "xla")]
)
def test_an_extreme_of_what_is_computed_is_found_again(name, implementation, tmp_path):
    """A kernel that recomputes the elements finds the maximum of another kernel, although recomputed values may differ
    in the last bit."""
    outputs, chain = EXTREMES[name]
    op = make_op(tmp_path, spec_text("x: float32[..., N]; w: float32[N]", outputs, chain))
    assert isinstance(op.backward, Derived) and "m" not in op.backward.how.saved
    for columns in some((256, 33), 2) if implementation == "interpret" else (5, 8, 33, 257, 1000):
        rng = np.random.default_rng(columns)
        x, w = (jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in ((32, columns), (columns,)))
        dx, dw = jax.grad(lambda x, w: jax.tree.leaves(op(x, w, implementation=implementation))[-1].sum(), (0, 1))(x, w)
        assert bool(jnp.isfinite(dx).all() & jnp.isfinite(dw).all())
        assert bool((jnp.abs(dx).max(1) > 0).all())


def test_an_extreme_of_what_functions_give_cannot_be_saved(tmp_path):
    text = "op: made\nsummary: Made here.\ninputs: {x: 'float32[..., N]'}\noutputs: {y: 'float32[..., N]'}\n{more}"
    text += "chain: |\n  m = max({of}, axis=N)\n  y = x / m\nreference: y = 0\n"
    made = [text.replace("{more}", "save: [m]\n").replace("{of}", of) for of in ("abs(x)", "x * x", "exp(x)")]
    assert all(make_op(tmp_path, text).backward.how.saved == ("m",) for text in made[:2])
    with pytest.raises(SpecError) as error:
        make_op(tmp_path, made[2])
    (found,) = error.value.diagnostics
    assert "elements that are recomputed are compared with 'm', and may differ in the last bit" in found.message


UNUSED = {  # x, with zeros; the chain, in which nothing depends on l; the gradient of y
    "a norm": ("float32[..., N]", "float32[...]", "y = x * 2; l = norm(x, axis=N)", lambda x: 2 * x),
    "a root": ("float32[..., N]", "float32[..., N]", "y = x * 2; l = sqrt(x) + 1", lambda x: 2 * x),
    "a scaled logarithm": (
        "float32[..., N]",
        "float32[..., N]",
        "q = x * 3; y = q * q; l = 2 * log(q)",
        lambda x: 9 * x * x,
    ),
    "a quotient": ("float32[..., N]", "float32[..., N]", "y = x * 3; l = 1 / x + rsqrt(x)", lambda x: 3 * x),
    "a power": ("float32[..., N]", "float32[..., N]", "y = sin(x); l = x ** 0.5 - x ** 0.25", lambda x: jnp.sin(x)),
}  # fmt: skip


@pytest.mark.each
@pytest.mark.parametrize("implementation", ["xla", "interpret"])
@pytest.mark.parametrize("name", UNUSED)
def test_outputs_that_nothing_depends_on_add_nothing(name, implementation, tmp_path):
    """Also where their derivative is infinite: JAX would not differentiate them."""
    x_type, l_type, chain, expected = UNUSED[name]
    op = make_op(tmp_path, spec_text(f"x: {x_type}", f"y: {x_type}; l: {l_type}", chain))
    assert isinstance(op.backward, Derived)
    x = jnp.asarray([[0, 0, 0], [1, 0, 4]], jnp.float32)
    got = jax.grad(lambda x: op(x, implementation=implementation)[0].sum())(x)
    np.testing.assert_allclose(got, jax.grad(lambda x: expected(x).sum())(x), rtol=1e-6)
    steep = jax.grad(lambda x: op(x, implementation=implementation)[1].sum())(x)
    assert not np.isfinite(np.asarray(steep)[0]).any()


def test_other_outputs_change_no_gradient(tmp_path):
    """An adjoint may be 0 because a derivative is. Then a NaN behind it stays, although another output has no such values."""
    x = jnp.asarray([[0, 100, -100]], jnp.float32)
    chain, found = "l = 1 / exp(x) + exp(-exp(x))", []
    for more in (("", ""), ("y: float32[B, N]; ", "y = x * 2; ")):
        op = make_op(tmp_path, spec_text("x: float32[B, N]", f"{more[0]}l: float32[B, N]", f"{more[1]}{chain}"))
        found.append(jax.grad(lambda x, op=op, more=more: (op(x).l if more[0] else op(x)).sum())(x))
    assert np.isnan(found[0]).any()
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("implementation", ["xla", "interpret"])
def test_a_product_beyond_the_range_that_nothing_depends_on(implementation, tmp_path):
    op = make_op(tmp_path, spec_text("x: float32[..., N]", "s: float32[...]; p: float32[...]",
                                     "s = sum(x, axis=N); p = prod(x, axis=N)"))  # fmt: skip
    x = jnp.full((2, 3), 1e30)
    np.testing.assert_array_equal(
        jax.grad(lambda x: op(x, implementation=implementation)[0].sum())(x), jnp.ones((2, 3))
    )


@pytest.mark.parametrize("implementation", ["xla", "interpret"])
def test_gradients_of_what_is_repeated_are_summed_in_float32(implementation, tmp_path):
    """Also in the jnp form, where the backward has no kernel: a sum of a few thousand elements stops growing in
    bfloat16."""
    op = make_op(tmp_path, spec_text(
        "x: bfloat16[B, M, N]; table: bfloat16[B, P]; i: int32[B]", "y: bfloat16[B, M, N]",
        "y = mean(x, axis=(M, N)) + take(table, i, axis=P)",
        "y = (jnp.mean(x, (1, 2)) + jnp.take_along_axis(table, i[:, None], 1)[:, 0])[:, None, None]",
    ))  # fmt: skip
    arrays = jnp.zeros((2, 30, 100), jnp.bfloat16), jnp.zeros((2, 3), jnp.bfloat16), jnp.asarray([0, 2])
    for f in (lambda *a: op(*a, implementation=implementation), op.reference):
        pull = jax.vjp(lambda x, t: f(x, t, arrays[2]), *arrays[:2])[1]
        dx, dtable = pull(jnp.ones((2, 30, 100), jnp.bfloat16))
        np.testing.assert_allclose(dx.astype(jnp.float32), jnp.ones((2, 30, 100)), rtol=2**-7)
        np.testing.assert_allclose(dtable.astype(jnp.float32), [[3000, 0, 0], [0, 0, 3000]], rtol=2**-7)


def test_products_of_an_unused_logarithm(tmp_path):
    text = spec_text(
        "x: float32[..., K]; w: float32[K, N]",
        "y: float32[..., N]; l: float32[..., N]",
        "p = x @ w; y = p * 2; l = log(p)",
    )
    op = make_op(tmp_path, text)
    got = jax.grad(lambda x: op(x, jnp.ones((2, 3)), implementation="interpret")[0].sum())(jnp.zeros((1, 2)))
    np.testing.assert_array_equal(got, [[6, 6]])


FACTORS = {
    "one zero": [0, 2, 3], "two zeros": [0, 0, 3], "beyond the range": [1e20, 1e20, 2], "below it": [1e-30, 1e-30, 1e30],
    "far beyond it": [1e30, 1e30, 1e-25], "denormal": [1e-40, 3, -5], "infinite": [np.inf, 2, -3],
    "two of them": [np.inf, -np.inf, 3], "infinite and zero": [np.inf, 0, 3], "NaN": [0, np.nan, 2], "one": [5], "none": [],
}  # fmt: skip


@pytest.mark.each
@pytest.mark.parametrize("implementation", ["xla", "interpret"])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_the_derivatives_of_a_product_are_those_of_jnp(count, implementation):
    """First and second derivatives of rows of so many factors, also where the product divided by an element would be 0 / 0."""
    x = np.asarray([factors for factors in FACTORS.values() if len(factors) == count], np.float32)

    def derivatives(product):
        """Of each row by its elements, and of these by each element."""
        first = jax.grad(lambda v: product(v).sum())
        return jax.jit(lambda v: [first(v)] + [jax.grad(lambda v: first(v)[:, i].sum())(v) for i in range(count)])(x)

    ours = derivatives(functools.partial(generated.row_prod, implementation=implementation))
    for got, wanted in zip(ours, derivatives(lambda v: jnp.prod(v, 1)), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=5e-7, atol=1e-38)  # jnp flushes denormals


@pytest.mark.parametrize("axes", some(["N", "...", "(..., N)"], 3, 2))
def test_the_derivative_of_a_product_along_any_axes(axes, tmp_path):
    """Over rows, elements wait for reductions over all rows. Some elements are zero, and one whole row."""
    shape = {"N": "...", "...": "N", "(..., N)": ""}[axes]
    op = make_op(
        tmp_path,
        f"op: made\nsummary: Made here.\ninputs:\n  x: float32[..., N]\n  w: float32[N]\noutputs:\n  y: float32[{shape}]\n"
        f"chain: y = prod(x * w, axis={axes})\nreference: x[..., 0]\n",
    )
    assert isinstance(op.backward, Derived)
    rng = np.random.default_rng(0)
    first, w = (jnp.asarray(rng.uniform(0.5, 1.5, s) * rng.choice([-1, 1], s), "float32") for s in ((3, 37), (37,)))
    first = first.at[1, 5].set(0).at[2, 7].set(0).at[2, 11].set(0)
    over = {"N": 1, "...": 0, "(..., N)": None}[axes]
    xs = [first, first.at[2].set(1), jnp.abs(first) + 0.5, jnp.zeros((1, 37)), jnp.ones((0, 37))]
    for x in some(xs, 5):
        g = rng.standard_normal(np.prod(x, over).shape).astype(np.float32)

        def pulled(f, x=x, g=g):
            y, pull = jax.vjp(f, x, w)
            return y, *pull(g)

        expected = jax.jit(functools.partial(pulled, lambda x, w: jnp.prod(x * w, over)))()
        with in_parts(2):
            ours = pulled(functools.partial(op, implementation="interpret"))
        for got, wanted in zip(ours, expected, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=1e-30)


SLOPES = {  # far to the left, and far to the right
    "relu": (0, 1), "relu6": (0, 0), "leaky_relu": (0.01, 1), "elu": (0, 1), "selu": (0, 1.0507009873554805), "celu": (0, 1),
    "gelu": (0, 1), "gelu_tanh": (0, 1), "quick_gelu": (0, 1), "silu": (0, 1), "sigmoid": (0, 0), "hard_sigmoid": (0, 0),
    "hard_swish": (0, 1), "softplus": (0, 1), "softsign": (0, 0), "log_sigmoid": (1, 0), "mish": (0, 1),
    "squareplus": (0, 1), "tanh": (0, 0),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "implementation"), [*((n, "xla") for n in SLOPES), *((n, "interpret") for n in some(SLOPES, 3))]
)
def test_no_derivative_overflows_where_the_true_value_is_finite(name, implementation):
    # XLA turns squareplus' 0.5 * x + 0.5 * r into 0.5 * (x + r)
    most = 1e38 if name == "squareplus" else 3e38
    x = jnp.asarray([-most, -1e20, -1e10, 1e10, 1e20, most], jnp.float32)
    slope = jax.grad(lambda v: getattr(generated, name)(v, implementation=implementation).sum())(x)
    left, right = SLOPES[name]
    np.testing.assert_allclose(slope, [left] * 3 + [right] * 3, rtol=1e-6, atol=1e-19)


@pytest.mark.parametrize("implementation", ["xla", "interpret"])
def test_the_derivative_of_picking_one_element_a_row(implementation, tmp_path):
    """Also where the index is out of range, and is clamped."""
    op = make_op(
        tmp_path,
        "op: made\nsummary: Made here.\ninputs:\n  x: float32[..., N]\n  i: int32[...]\noutputs:\n  y: float32[...]\n"
        "chain: y = square(take(x, i, axis=N))\nreference: x[..., 0]\n",
    )
    assert isinstance(op.backward, Derived)
    x, i = jnp.arange(12, dtype=jnp.float32).reshape(4, 3), jnp.asarray([1, 0, -5, 9])
    slope = jax.grad(lambda v: op(v, i, implementation=implementation).sum())(x)
    assert slope.tolist() == [[0, 2, 0], [6, 0, 0], [12, 0, 0], [0, 0, 22]]


# Found by random specs: compiled, run, and compared with jax.vjp of the same function in jnp


def log_softmax(x):
    return x - jax.nn.logsumexp(x, axis=-1, keepdims=True)


X, W, M = "x: float32[..., N]", "w: float32[N]", "m: bool[N]"
FOUND = [
    (X, "float32[...]", "mean(log_softmax(x, axis=N), axis=N)", lambda x: jnp.mean(log_softmax(x), -1)),
    (f"{X}; {M}", "float32[...]", "sum(where(m, x, 0), axis=N) / sum(where(m, 1.0, 0.0), axis=N)",
     lambda x, m: jnp.sum(jnp.where(m, x, 0), -1) / jnp.sum(jnp.where(m, 1.0, 0.0))),
    (f"{X}; {W}; {M}", "float32[..., N]", "x * w / sum(where(m, 1.0, 0.0), axis=N)",
     lambda x, w, m: x * w / jnp.sum(jnp.where(m, 1.0, 0.0))),
    (f"{X}; {W}", "float32[N]", "sum(max(w, axis=N) * x, axis=...)", lambda x, w: jnp.sum(jnp.max(w) * x, 0)),
    (f"{X}; w: float32[..., 3]", "float32[..., N]", "x * w[0] + w[2]", lambda x, w: x * w[:, :1] + w[:, 2:]),
    (f"{X}; {W}", "float32[..., N]", "x * (w > 0)", lambda x, w: x * (w > 0)),
    (f"{X}; w: float32[N, 2]", "float32[..., N]", "x * w[0]", lambda x, w: x * w[:, 0]),
    (X, "float32[]", "sum(x, axis=(..., N)) * abs(-1.5)", lambda x: jnp.sum(x) * 1.5),
    (f"{X}; s: float32[]", "float32[..., N]", "x * atan2(s, 1.3)", lambda x, s: x * jnp.arctan2(s, 1.3)),
    (f"{X}; u: float32[..., N]; {W}", "float32[..., N]", "sin(0.5 * x * w) * (u * 2)",
     lambda x, u, w: jnp.sin(0.5 * x * w) * (u * 2)),
    (f"{X}; t: float32[...]", "float32[..., N]", "t * selu(x) * x + t * selu(x) * x",
     lambda x, t: 2 * t[:, None] * jax.nn.selu(x) * x),
    (f"{X}; c: int32[...]; t: float32[P, N]", "float32[..., N]", "tanh(take(t, c, axis=P)) * x",
     lambda x, c, t: jnp.tanh(t[c]) * x),
    (X, "float32[..., N]", "rem(x, 1.5)", lambda x: jnp.fmod(x, jnp.float32(1.5))),
]  # fmt: skip


@pytest.mark.parametrize("implementation", ["xla", "interpret"])
@pytest.mark.turns(2)
@pytest.mark.parametrize(("inputs", "output", "value", "reference"), FOUND, ids=[f[2] for f in FOUND])
def test_chains_that_random_specs_found(inputs, output, value, reference, implementation, tmp_path):
    op = make_op(tmp_path, spec_text(inputs, f"y: {output}", f"y = {value}"))
    rng = np.random.default_rng(0)
    shapes = {
        "[..., N]": (5, 9),
        "[..., 3]": (5, 3),
        "[N, 2]": (9, 2),
        "[N]": (9,),
        "[...]": (5,),
        "[P, N]": (4, 9),
        "[]": (),
    }
    arrays = [np.float32(rng.standard_normal(shapes["[" + i.split("[")[1]])) for i in inputs.split(";")]
    kinds = {"bool": lambda a: a > 0, "int32": lambda a: np.int32(abs(a) * 2) % 4}
    for k, text in enumerate(inputs.split(";")):
        arrays[k] = kinds.get(text.split(":")[1].split("[")[0].strip(), np.asarray)(arrays[k])
    floats = [k for k, a in enumerate(arrays) if a.dtype == np.float32]

    def run(f):
        def of(*xs):
            given = list(arrays)
            for k, x in zip(floats, xs, strict=True):
                given[k] = x
            return f(*given)

        y, pull = jax.vjp(of, *(jnp.asarray(arrays[k]) for k in floats))
        return (y, *pull(jnp.cos(jnp.arange(y.size, dtype="float32")).reshape(y.shape)))

    for got, expected in zip(run(functools.partial(op, implementation=implementation)), run(reference), strict=True):
        np.testing.assert_allclose(got, expected, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("implementation", ["xla", "interpret"])
def test_the_formula_of_the_documentation(tmp_path, implementation):
    text = spec_text(X, "y: float32[..., N]", "y = relu(x)", more="grad:\n  x: 3 * dy * (y > 0)")
    op = make_op(tmp_path, text)
    slope = jax.grad(lambda x: op(x, implementation=implementation).sum())(jnp.asarray([[-1.0, 2.0]]))
    assert slope.tolist() == [[0, 3]]


def test_a_sum_over_an_axis_that_its_terms_alone_do_not_have(tmp_path):
    """A kernel that reads the sum of all cotangents has no array with the axis along which they are counted."""
    text = spec_text(
        "g: float32[..., B, G]; l: float32[]", "y: float32[..., B]; z: float32[..., B, G]",
        "y = sum(where(index(G) == 0, l, 0.0), axis=G); z = g * l",
    )  # fmt: skip
    op, g = make_op(tmp_path, text), jnp.arange(24.0).reshape(2, 3, 4)
    found = jax.grad(lambda level: sum(jnp.sum(y) for y in op(g, level)))(jnp.float32(2))
    assert found == 2 * 3 + np.arange(24).sum()
