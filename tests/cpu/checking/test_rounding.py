"""How far rounding may move a reference's gradient, which is the tolerance of gradient tests where terms cancel."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import generated
from codegen.checking.agreement import Disagreement
from codegen.checking.draw import Case
from codegen.checking.gradients import check_gradient_case, difference, gradient_call
from codegen.checking.rounding import UNIT, rounded_apart
from codegen.checking.testing import check_case
from codegen.interpret import approximations
from codegen.runtime.call.arguments import Types
from tests.making import make_op, spec_text
from tests.turns import some

X = np.linspace(0.5, 3, 40)


def off(function, *args):
    """The largest difference of the results, in units."""
    with jax.enable_x64(True):
        args = tuple(jnp.asarray(x) for x in args)
        exact = np.asarray(function(*args))
        found = [np.asarray(rounded_apart(function)(i, *args)) for i in range(8)]
    assert all(y.dtype == exact.dtype for y in found)
    return max(np.max(np.abs(y - exact) / np.abs(exact)) for y in found) / UNIT


@pytest.mark.parametrize(
    ("function", "least", "most"),
    [
        (lambda x: 3 * x, 0.5, 1),
        (lambda x: jnp.exp(x), 0.5, 1),
        (lambda x: jax.jit(lambda x: x / 7)(x), 0.5, 1),
        (lambda x: jnp.sum(x), 0.3, 1),
        (lambda x: (3 * x - 2 * x) / x, 2, 8),  # of 1: 3 + 2 of the products, and two more
        (lambda x: jax.nn.relu(x), 0, 0),  # its maximum is exact, but it has its own rule for derivatives
        (lambda x: jnp.where(x > 1, x, -x), 0, 0),
        (lambda x: jax.lax.scan(lambda c, x: (c, x), 0.0, x)[1], 0, 0),
        (lambda x: (x * 1000).astype(int) % 7 + 1, 0, 10 / UNIT),
    ],
)
def test_each_operation_is_off_by_a_unit(function, least, most):
    assert least <= off(function, X) <= most


@pytest.mark.parametrize(
    ("name", "implementation"), some(itertools.product(["layernorm", "modulated_layernorm"], ["xla", "interpret"]), 3)
)
def test_a_norm_of_one_column(name, implementation):
    """Its gradient is 0, the difference of two terms a thousand times as large as a cotangent, which a compiler may
    fuse."""
    op = getattr(generated, name)
    rows, extents = ((3,), ()) if name == "layernorm" else ((), (("B", 3), ("S", 3)))
    for seed in range(2):
        case = Case(Types((("T", "float32"),)), rows, (*extents, ("N", 1)), (), (("eps", 1e-6),), False, 1.0, seed)
        check_gradient_case(op, implementation, case)


def test_a_wrong_gradient_of_one_column_is_found(tmp_path):
    chain = "d = x - mean(x, axis=N); y = d * rsqrt(mean(d * d, axis=N) + 1e-6)"
    grad = "grad:\n  x: dy * rsqrt(mean((x - mean(x, axis=N)) ** 2, axis=N) + 1e-6)"
    op = make_op(tmp_path, spec_text("x: float32[..., N]", "y: float32[..., N]", chain, "", grad))
    case = Case(Types(()), (3,), (("N", 1),), (), (), False, 1.0, 0)
    with pytest.raises(Disagreement, match="the gradient of 'x' is off by"):
        check_gradient_case(op, "interpret", case)


@pytest.mark.parametrize(
    ("got", "words"),
    [
        ([1, 2, np.nan, np.inf], ""),
        ([1, np.nan, np.nan, np.inf], "is nan at [1], but the reference's is 2 (one of the two is NaN in 1 of 4 elements)"),
        ([1, 2, 4, np.inf], "is 4 at [2], but the reference's is nan (one of the two is NaN in 1 of 4 elements)"),
        ([1, 2.5, np.nan, np.inf], "is off by 2 times what is allowed"),
        ([1, 2.5, np.nan, -np.inf], "is off by inf times what is allowed"),
    ],
)  # fmt: skip
def test_what_is_said_of_a_wrong_gradient(got, words):
    assert difference(np.array(got), np.array([1, 2, np.nan, np.inf]), np.array([0.25, 0.25, np.nan, 0.25])) == words


def test_gradients_where_the_forward_saves_what_all_rows_need(tmp_path):
    """A mean weighted by class: the forward saves the sum of the weights, so that one kernel is enough."""
    chain = """loss = logsumexp(x, axis=C) - sum(where(index(C) == label, x, 0), axis=C)
  w = take(weight, label, axis=C); y = sum(w * loss, axis=...) / sum(w, axis=...)"""
    reference = """loss = -jnp.take_along_axis(jax.nn.log_softmax(x), label[..., None], -1)[..., 0]
  y = (weight[label] * loss).sum() / weight[label].sum()"""
    inputs = "x: float32[..., C]; weight: float32[C]; label: int32[...]"
    more = "domain: {label: index(C), weight: positive}"
    op = make_op(tmp_path, spec_text(inputs, "y: float32[]", chain, reference, more))
    assert op.backward.how.saved == ("y", "column_sum")
    assert op.backward.op.plan.kind == "row"
    check_gradient_case(op, "xla", Case(Types(()), (5,), (("C", 7),), (), (), False, 1.0, 0))


FAST = {  # the largest errors of the hardware's functions and quotients, in addition to others
    "y0": ("x / (1 + w * w)", "x / (1 + w * w)"),
    "y1": ("log(1 + x * 0.01) + log2(1 + w * 0.01)", "jnp.log(1 + x * 0.01) + jnp.log2(1 + w * 0.01)"),
    "y2": ("sin(x) - cos(3 * w)", "jnp.sin(x) - jnp.cos(3 * w)"),
    "y3": ("erf(x * 1e-6) * 1000 * w", "jax.lax.erf(x * 1e-6) * 1000 * w"),
    "y4": ("x * tanh(w * x)", "x * jnp.tanh(w * x)"),
}


def test_bounds_allow_what_fast_functions_may_be_off_by(tmp_path):
    """Values and gradients, with the error of each approximation anywhere within its bound."""
    chain, reference = ("; ".join(f"{name} = {pair[i]}" for name, pair in FAST.items()) for i in (0, 1))
    outputs = "; ".join(f"{name}: float32[..., N]" for name in FAST)
    op = make_op(tmp_path, spec_text("x: float32[..., N]; w: float32[N]", outputs, chain, reference, "math: fast"))
    case = Case(Types(()), (40,), (("N", 64),), (), (), False, 1.0, 0)
    with approximations.noise(1):
        check_case(op, "interpret", case)
        check_gradient_case(op, "interpret", case)


def test_products_kept_in_fewer_bits_may_turn_a_slope(tmp_path):
    """The derivative of a sine of sums of about 30, which bfloat16 resolves to an eighth."""
    inputs = "x: bfloat16[..., K]; w: bfloat16[K, N]"
    op = make_op(tmp_path, spec_text(inputs, "y: bfloat16[..., N]", "y = sin(x @ w)", "y = jnp.sin(x @ w)"))
    check_gradient_case(op, "xla", Case(Types(()), (3,), (("K", 130), ("N", 128)), (), (), False, 1.0, 0))


@pytest.mark.parametrize("implementation", some(["xla", "interpret"], 2))
def test_what_the_forward_saves_is_rounded(tmp_path, implementation):
    """Attention's backward subtracts sum(do * o), with o in bfloat16, from gradients of weights that are equal to it where one key
    has almost all weight. Large scores multiply what is left."""
    chain = """s = (q @ k) * 2.0; m = maximum(max(s, axis=S), sink); e = exp(s - m)
  o = e / (sum(e, axis=S) + exp(sink - m)) @ v"""
    reference = """s = jnp.einsum("bqd,bsd->bqs", q, k) * 2
  total = jnp.logaddexp(jax.nn.logsumexp(s, axis=-1, keepdims=True), sink)
  o = jnp.einsum("bqs,bse->bqe", jnp.exp(s - total), v)"""
    inputs = "q: bfloat16[B, Q, D]; k: bfloat16[B, S, D]; v: bfloat16[B, S, E]; sink: float32[]"
    op = make_op(tmp_path, spec_text(inputs, "o: bfloat16[B, Q, E]", chain, reference))
    sizes = (("B", 4), ("Q", 3), ("S", 2), ("D", 64), ("E", 64))
    case = Case(Types(()), (), sizes, (), (), False, 1.0, 2)
    check_gradient_case(op, implementation, case)
    with jax.enable_x64(True):
        moved = gradient_call(op, case).resaved
    assert moved["v"] < 1e-5 < 1e-2 < moved["q"] < 0.5  # of v, which is weights times do, only float32 numbers move it


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float16"])
def test_a_gradient_that_its_type_does_not_hold(tmp_path, dtype):
    """It is stored like any value: as the largest float8, as infinity in float16."""
    text = spec_text(
        f"x: {dtype}[...]; w: float32[..., N]", "y: float32[..., N]", "y = 1e6 * x * w", "y = 1e6 * x[..., None] * w"
    )
    op = make_op(tmp_path, text)
    for implementation in ("xla", "interpret"):
        check_gradient_case(op, implementation, Case(Types(()), (5,), (("N", 3),), (), (), False, 1.0, 0))


def test_what_is_saved_is_rounded_in_calls_that_leave_inputs_out(tmp_path):
    chain, written = (f"y = {of}tanh(x * w + b) * c" for of in ("", "jnp."))
    text = spec_text(
        "x: float32[..., N]; b: float32[N]; w: float32[N] = 2", "y: float32[..., N]",
        f"c = rsqrt(sum(square(x), axis=N)); {chain}", f"c = jax.lax.rsqrt(jnp.sum(x * x, -1, keepdims=True)); {written}",
    )  # fmt: skip
    op = make_op(tmp_path, text)
    with jax.enable_x64(True):
        moved = gradient_call(op, Case(Types(()), (3,), (("N", 8),), ("w",), (), False, 1.0, 0)).resaved
    assert set(moved) == {"x", "b"}
