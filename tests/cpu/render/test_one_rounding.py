"""A value that is used with a statistic of itself is computed the same everywhere: `z == max(z)` finds its element, `z
- max(z)` is 0 there.

Whether a compiler rounds `x * a + b` once or twice differs from place to place, so these chains are sums of products.
Rows are so long that a kernel recomputes `z` in each sweep, or short. The expected values come from float64, where the
largest random element is far enough from the others.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from codegen.runtime.ops.backward import backward_ops
from tests.making import make_op, spec_text
from tests.turns import some

IMPLEMENTATIONS = ("cute" if jax.default_backend() == "gpu" else "interpret", "xla")
# Each with x (rows, N), a and b (N,), c (rows,): the lines of the chain up to z, and z in NumPy
CHAINS = {
    "products": ("z = x * a + b * c", lambda x, a, b, c: x * a + b * c),
    "shared": ("p = x * a\n  z = p + b * c + 0.0 * p", lambda x, a, b, c: x * a + b * c),
    "square": ("z = x * x * a + x + b * c", lambda x, a, b, c: x * x * a + x + b * c),
    "selected": ("z = where(b > 0, x * a, 0) - b * c", lambda x, a, b, c: np.where(b > 0, x * a, 0) - b * c),
    "function": ("z = a * sigmoid(x) + b * c - x", lambda x, a, b, c: a / (1 + np.exp(-x)) + b * c - x),
    "quotient": ("z = (x * a + b) / (c * c + 1.5)", lambda x, a, b, c: (x * a + b) / (c * c + 1.5)),
}
HEAD = """
op: met
summary: A value and a statistic of itself.
types:
  T: [float32, bfloat16]
inputs:
  x: T[..., N]
  a: float32[N]
  b: float32[N]
  c: float32[...]
outputs:
"""
# The number of elements that equal the statistic, the first of them, and the difference of the statistic and its own
# element
FORWARD = """  count: int32[...]
  first: int32[...]
  left: float32[...]
  y: T[..., N]
chain: |
  {chain}
  m = {stat}(z, axis=N)
  count = sum(where(z == m, 1, 0), axis=N)
  first = min(where(z == m, index(N), size(N)), axis=N)
  left = {stat}(z - m, axis=N)
  y = where(z == m, x, 0)
reference: |
  count = jnp.zeros(x.shape[:-1])
  first, left, y = count, count, x
"""
# The statistic as an output, alone or with a product that uses it
GRADIENT = """  y: T[..., N]
  m: float32{dims}
chain: |
  {chain}
  t = {stat}(z, axis={axis})
  y = z * {factor}
  m = t{also}
reference: |
  y, m = x, c
"""
FACTORS = {"tanh": "tanh(0.125 * t)", "plain": "0.5"}


def arrays(rows: int, n: int, dtype: str) -> tuple[jax.Array, ...]:
    draw = np.random.default_rng(rows * n)
    x, a, b, c = (jnp.asarray(draw.standard_normal(s), jnp.float32) for s in ((rows, n), (n,), (n,), (rows,)))
    return x.astype(dtype), a, b, c


@pytest.mark.turns(20)
@pytest.mark.parametrize("stat", ["max", "min"])
@pytest.mark.parametrize(
    ("rows", "n", "dtype"),
    [(8, 8193, "bfloat16"), (40, 5, "float32"), (16, 1, "float32"), (2, 33333, "float32")],
    ids=str,
)
@pytest.mark.parametrize("chain", CHAINS)
def test_elements_equal_their_statistic(chain, rows, n, dtype, stat, tmp_path):
    op = make_op(tmp_path, HEAD + FORWARD.format(chain=CHAINS[chain][0], stat=stat))
    given = arrays(rows, n, dtype)
    for implementation in IMPLEMENTATIONS:
        got = jax.jit(lambda *a, way=implementation: op(*a, implementation=way))(*given)
        assert (got.count >= 1).all(), f"{implementation}: no element equals its row's {stat}"
        assert (got.first < n).all(), implementation
        assert (got.left == 0).all(), f"{implementation}: z - {stat}(z) is not 0 at that element"


@pytest.mark.turns(40)
@pytest.mark.parametrize("stat", ["max", "min"])
@pytest.mark.parametrize(("axis", "factor"), [("N", "tanh"), ("N", "plain"), ("...", "plain"), ("(..., N)", "plain")])
@pytest.mark.parametrize(("rows", "n"), [(2, 33333), (64, 5), (5, 1), (300, 65)], ids=str)
@pytest.mark.parametrize("chain", CHAINS)
def test_the_gradient_of_a_statistic_is_not_lost(chain, rows, n, axis, stat, factor, tmp_path):
    dims, also = {"N": ("[...]", ""), "...": ("[N]", ""), "(..., N)": ("[]", "")}[axis]
    text, exact = CHAINS[chain]
    text = HEAD + GRADIENT.format(chain=text, stat=stat, axis=axis, dims=dims, also=also, factor=FACTORS[factor])
    op = make_op(tmp_path, text)
    x, a, b, c = arrays(rows, n, "float32")
    draw = np.random.default_rng(n)
    dy, dm = draw.standard_normal((rows, n)), draw.standard_normal()
    expected = dz_of(exact, (x, a, b, c), axis, stat, factor, dy, dm)
    for implementation in IMPLEMENTATIONS:

        def loss(c, way=implementation):
            out = op(x, a, b, c, implementation=way)
            return (out.y * jnp.asarray(dy, jnp.float32)).sum() + (out.m * jnp.float32(dm)).sum()

        got = np.asarray(jax.jit(jax.grad(loss))(c))
        assert np.allclose(got, expected, rtol=2e-3, atol=2e-3 * np.abs(expected).max()), implementation


def dz_of(exact, given, axis, stat, factor, dy, dm) -> np.ndarray:
    """The gradient of c, from central differences of z in float64 and the statistic's own derivative: 1 at its element."""
    x, a, b, c = (np.asarray(v, np.float64) for v in given)
    column = c[:, None]
    z = exact(x, a, b, column)
    dims = {"N": 1, "...": 0, "(..., N)": None}[axis]
    t = getattr(z, stat)(axis=dims, keepdims=True)
    dt = dm * np.ones_like(t)
    if factor == "tanh":
        slope = np.tanh(0.125 * t)
        dz = dy * slope
        dt = dt + (dy * z).sum(axis=1, keepdims=True) * 0.125 * (1 - slope**2)
    else:
        dz = dy * 0.5
    dz = dz + np.where(z == t, dt, 0)
    step = 1e-5
    return (dz * (exact(x, a, b, column + step) - exact(x, a, b, column - step)) / (2 * step)).sum(axis=1)


TOP = """
op: top
summary: A product in 16 bits, and the greatest of each of its rows.
types:
  T: [float32, bfloat16]
inputs:
  x: T[..., K]
  w: T[K, N]
  s: float32[N]
outputs:
  y: T[..., N]
  top: float32[...]
chain: |
  z = (x @ w) * s + 0.5
  y = z
  top = max(z, axis=N)
reference: |
  y = (x @ w) * s + 0.5
  top = jnp.max(y, axis=-1)
"""


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_products_whose_ties_matter_are_kept_as_they_were_compared(implementation, tmp_path):
    op = make_op(tmp_path, TOP)
    draw = np.random.default_rng(0)
    x, w = (jnp.asarray(draw.standard_normal(s), jnp.bfloat16) for s in ((200, 40), (40, 300)))
    s = jnp.asarray(draw.uniform(0.5, 1.5, 300), jnp.float32)
    got = jax.jit(jax.grad(lambda x: op(x, w, s, implementation=implementation).top.sum()))(x)
    exact, factor = np.asarray(w, np.float64), np.asarray(s, np.float64)
    best = np.argmax(np.asarray(x, np.float64) @ exact * factor, axis=1)
    # A false tie would mix two columns of w
    assert np.allclose(np.asarray(got, np.float64), (exact * factor)[:, best].T, rtol=2**-7, atol=2**-7)


SOFTMAX = """
op: one_column
summary: The logsumexp of a scaled row.
inputs:
  x: float32[..., N]
  a: float32[N]
outputs:
  y: float32[..., N]
  lse: float32[...]
chain: |
  z = x * a * 1.7
  y = softmax(z, axis=N)
  lse = logsumexp(z, axis=N)
reference: |
  y, lse = jax.nn.softmax(x * a * 1.7), jax.nn.logsumexp(x * a * 1.7, axis=-1)
"""


def test_softmax_over_one_column_is_one_and_has_no_gradient(tmp_path):
    op = make_op(tmp_path, SOFTMAX)
    x, a, *_ = arrays(64, 1, "float32")
    for implementation in IMPLEMENTATIONS:
        out, pull = jax.vjp(lambda x, way=implementation: op(x, a, implementation=way), x)
        assert (out.y == 1).all(), implementation
        dy = jnp.asarray(np.random.default_rng(1).standard_normal((64, 1)), jnp.float32)
        (dx,) = pull(type(out)(dy, jnp.zeros(64)))
        assert (dx == 0).all(), implementation


# Functions of x, with the derivative in NumPy; `math: auto` has approximate forms of all of them
STEEP = {
    "exp(x)": np.exp,
    "sigmoid(x)": lambda x: np.exp(-x) / (1 + np.exp(-x)) ** 2,
    "gelu(x)": lambda x: 0.5 * special.erfc(-x / 2**0.5) + x * np.exp(-x * x / 2) / (2 * np.pi) ** 0.5,
    "tanh(x / 3.0)": lambda x: 1 / (3 * np.cosh(x / 3) ** 2),
    "1.0 / (3.0 + x * x)": lambda x: -2 * x / (3 + x * x) ** 2,
}
STEEP_HEAD = """
op: steep
summary: Large values of a function, of which a row's statistic is kept.
types:
  T: [float32, bfloat16]
inputs:
  x: T[..., N]
  w: {w}[N]
outputs:
  y: {y}
chain: |
  z = 65536.0 * w * {function}
  y = {chain}
reference: |
  y = x
"""


@pytest.mark.parametrize("function", some(STEEP, 4))
def test_a_function_has_one_precision_in_forward_and_backward(function, tmp_path):
    """The loss is float32 and its gradient bfloat16. A row has one element: its probability is 1."""
    text = STEEP_HEAD.format(w="T", y="float32[...]", function=function, chain="logsumexp(z, axis=N)")
    op = make_op(tmp_path, text)
    x = jnp.asarray(np.random.default_rng(0).standard_normal((400, 1)), jnp.bfloat16)
    expected = 65536 * STEEP[function](np.asarray(x, np.float64))
    for implementation in IMPLEMENTATIONS:
        got = jax.grad(lambda x, way=implementation: op(x, jnp.ones(1, x.dtype), implementation=way).sum())(x)
        assert np.allclose(np.asarray(got, np.float64), expected, rtol=2**-7, atol=65536 * 2**-15), implementation


@pytest.mark.parametrize("function", some(STEEP, 4, 1))
def test_a_function_has_one_precision_where_a_gradient_is_wider_than_the_output(function, tmp_path):
    """The output is bfloat16, one of the gradients float32. The softmax of one element is constant."""
    op = make_op(tmp_path, STEEP_HEAD.format(w="float32", y="T[..., N]", function=function, chain="softmax(z, axis=N)"))
    x = jnp.asarray(np.random.default_rng(0).standard_normal((400, 1)), jnp.bfloat16)
    for implementation in IMPLEMENTATIONS:
        got = jax.grad(lambda w, way=implementation: op(x, w, implementation=way).sum())(jnp.ones(1))
        assert (got == 0).all(), implementation


def test_an_extreme_is_found_again_where_every_type_is_narrow(tmp_path):
    """Nothing decides then whether a function may be approximate: the kernel of a float32 result may not be, and a later one is."""
    text = spec_text(
        "x: int16[B, N]; a: bfloat16[]", "y: bfloat16[B, N]",
        "v = where(x > 0, x * a, 1.0); z = v * shift(v, axis=N, by=2, fill=1.5); y = z * max(exp(z) - z * a, axis=N)",
    )  # fmt: skip
    op, x, a = make_op(tmp_path, text), jnp.zeros((2, 64), jnp.int16), jnp.bfloat16(-0.25)
    found = jax.grad(lambda a: jnp.sum(op(x, a, implementation="interpret").astype(jnp.float32)))(a)
    assert [kernel.plan.kind for kernel in backward_ops(op)][-1] == "staged"
    assert found == -2 * 65 * 1.5  # the largest are the first two elements, of 1.5; 62 of 1.0 and they add up to 65
