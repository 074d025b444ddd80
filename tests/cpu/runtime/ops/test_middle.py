"""Ops in stages that one kernel computes, where it has room: reductions along middle axes, and what uses them."""

import jax
import numpy as np
import pytest

from codegen.checking import testing
from codegen.plan.rows.launching.walking import in_parts
from codegen.runtime.call import arguments
from codegen.shared import MiddleLaunch
from tests.making import make_op, spec_text
from tests.meshes import normal
from tests.turns import EVERY

TYPES = "{T: [float32, bfloat16]}"
SOFTMAX = spec_text(
    "x: T[B, S, H]; bias: T[S] = 0", "y: T[B, S, H]; top: float32[B, H]", "z = x + bias; top = max(z, axis=S); y = softmax(z, axis=S)",
    types=TYPES,
)  # fmt: skip


@pytest.fixture(scope="module")
def softmax(tmp_path_factory):
    return make_op(tmp_path_factory.mktemp("softmax"), SOFTMAX)


def launch(op, x):
    """The launch of a call, and why the one kernel has no room."""
    bound = arguments.bind_types(op.spec, {"x": x}, {}), arguments.bind_axes(op.spec, {"x": x})
    return op.default_launch(*bound), op.whole._refused(*bound)


# Vectors of one row and of several; rows that one thread has, that lanes of a warp share, that warps share, and that are in shared
# memory; with rows left over
@pytest.mark.parametrize("shape", [(2, 3, 5), (1, 37, 24), (2, 300, 16), (1, 5000, 8)])
def test_rows_of_any_length(softmax, shape):
    x, bias = normal(*shape), normal(shape[1], seed=1)
    assert isinstance(launch(softmax, x)[0], MiddleLaunch)
    got = softmax(x, bias, implementation="interpret")
    z = np.asarray(x, np.float64) + np.asarray(bias, np.float64)[:, None]
    e = np.exp(z - z.max(1, keepdims=True))
    np.testing.assert_allclose(got.y, e / e.sum(1, keepdims=True), rtol=3e-6, atol=1e-7)
    np.testing.assert_array_equal(got.top, z.astype(np.float32).max(1))


def test_a_statistic_that_is_read_for_each_element_and_after_them(tmp_path):
    text = spec_text(
        "x: T[B, S, H]", "y: T[B, S, H]; z: T[B, H]", "m = max(x, axis=S); y = x / m; z = (m + 1) / m", types=TYPES
    )
    x = (abs(normal(1, 6, 8)) + 1).astype("bfloat16")
    got = make_op(tmp_path, text)(x, implementation="interpret")
    wide = np.asarray(x, np.float64)
    top = wide.max(1)
    np.testing.assert_allclose(np.asarray(got.y, np.float64), wide / top[:, None], rtol=2**-8)
    np.testing.assert_allclose(np.asarray(got.z, np.float64), (top + 1) / top, rtol=2**-8)


def test_gradients_that_all_rows_share(softmax):
    """A block has all rows, chunk by chunk, of which shared memory holds the elements."""
    shape = 2, 2000, 8
    x, bias, dy = normal(*shape), normal(shape[1], seed=1), normal(*shape, seed=2)

    def pulled(f):
        return jax.vjp(f, x, bias)[1](dy)

    with in_parts(1):
        got = pulled(lambda x, bias: softmax(x, bias, implementation="interpret").y)
    expected = pulled(lambda x, bias: jax.nn.softmax(x + bias[:, None], axis=1))
    for own, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(own, other, rtol=2e-5, atol=1e-6)


def test_a_call_without_room_runs_the_stages(softmax):
    """Values of 4 bytes along 1 MB of a middle axis: no block holds four of its rows."""
    how, why = launch(softmax, jax.ShapeDtypeStruct((1, 2**18, 4), "float32"))
    assert not isinstance(how, MiddleLaunch) and "no block can hold" in why


def test_a_mapped_call_is_one_kernel(softmax):
    x = normal(2, 2, 5, 8)
    got = jax.vmap(lambda x: softmax(x, implementation="interpret").y)(x)
    np.testing.assert_allclose(got, jax.nn.softmax(x, axis=2), rtol=1e-5)


POOL = spec_text(
    "x: T[B, H, P=2, W, Q=2, C]; b: T[C]", "y: T[B, H, W, C]", "y = relu(max(x + b, axis=(P, Q)))",
    "y = jax.nn.relu(jnp.max(x + b, axis=(2, 4)))", types="{T: [float32, bfloat16]}",
)  # fmt: skip


def test_pooling_is_one_kernel(tmp_path):
    """No block reduces few elements along each of two axes to partial results in memory."""
    op = make_op(tmp_path, POOL)
    assert op.plan.kind == "middle" and op.plan.kernels == 1
    testing.check_op(op, "interpret", examples=4 if EVERY else None)
    testing.check_gradient(op, "interpret", examples=1)


def test_mapped_pooling_is_one_kernel(tmp_path):
    op = make_op(tmp_path, POOL)
    x, b = normal(3, 2, 2, 2, 3, 2, 8), normal(8)
    got = jax.vmap(lambda x: op(x, b, implementation="interpret"))(x)
    np.testing.assert_array_equal(got, [op.reference(x, b) for x in x])


def test_reductions_over_many_elements_are_not(tmp_path):
    text = ("x: float32[B, P, W, Q, C]", "y: float32[B, W, C]", "y = max(x, axis=(P, Q))")
    assert make_op(tmp_path, spec_text(*text)).plan.kind == "column"


@pytest.mark.parametrize("rows", [16, 13])
def test_single_elements_behind_the_innermost_axis(tmp_path, rows):
    """An array of boxes: neighbouring rows are not neighbours in memory. `a` has one box for each element along a row."""
    chain = "r = minimum(a[1], b[1]) - maximum(a[0], b[0]); best = max(r, axis=N); y = r - best"
    text = spec_text("a: float32[B, N, 2]; b: float32[B, M, 2]", "y: float32[B, N, M]; best: float32[B, M]", chain)
    a, b = normal(2, 6, 2), normal(2, rows, 2, seed=1)
    got = make_op(tmp_path, text)(a, b, implementation="interpret")
    p, q = np.asarray(a)[:, :, None], np.asarray(b)[:, None]
    expected = np.minimum(p[..., 1], q[..., 1]) - np.maximum(p[..., 0], q[..., 0])
    np.testing.assert_array_equal(got.best, expected.max(1))
    np.testing.assert_array_equal(got.y, expected - expected.max(1, keepdims=True))
