"""The benchmark's comparison with float64: what is said of results that differ, on a CPU."""

import jax
import jax.numpy as jnp
import pytest

from benchmarks.exact import fault
from codegen.measuring.times import bench, calls
from codegen.runtime.ops.backward import backward_ops
from tests.making import make_op, spec_text

SOFTMAX = spec_text(
    "x: T[..., N]; bias: float32[...]", "y: T[..., N]", "y = softmax(x + bias, axis=N)",
    "y = jax.nn.softmax(x + bias[..., None], axis=-1)", types="{T: [bfloat16]}",
)  # fmt: skip
CHOSEN = spec_text(
    "x: T[..., N]", "place: int32[..., K=4]", "place = top_k_index(softmax(x, axis=N), K, axis=N)",
    "place = jax.lax.top_k(jax.nn.softmax(x), 4)[1]", more="grad: none", types="{T: [bfloat16]}",
)  # fmt: skip


def said(op, kernel, spoil, shape={"...": 16, "N": 32, "K": 4}):  # noqa: B006
    """What is said of the jnp form's results that are spoiled."""
    binding = bench.typical(op.spec, {})
    found = calls.calls_of(kernel, binding, shape)
    xla = jax.jit(found.run("xla"))
    return fault(kernel, binding, jax.jit(found.make), lambda given: jax.tree.map(spoil, xla(given)), xla)


def noisy(size):
    return lambda x: x + (size * jax.random.normal(jax.random.key(1), x.shape)).astype(x.dtype)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda x: x, ""),
        (lambda x: x * (1 + 2**-7), ""),
        (lambda x: x + 1, "result 0: 1 of the elements are off, 0 of the jnp form's"),
        (lambda x: x.at[0, 0].set(jnp.nan), "result 0: 0.002 of the elements are off"),
    ],
)
def test_results(spoil, words, tmp_path):
    op = make_op(tmp_path, SOFTMAX)
    found = said(op, op, spoil)
    assert found.startswith(words)
    assert bool(found) == bool(words)


def test_a_gradient_that_cancels_is_rounding_errors(tmp_path):
    """A softmax does not see a bias that a row shares: results that have no bit in common may both be right."""
    op = make_op(tmp_path, SOFTMAX)
    backward = backward_ops(op)[-1]
    assert said(op, backward, lambda x: x if x.ndim > 1 else -x) == ""
    assert "errors of" in said(op, backward, lambda x: x if x.ndim > 1 else noisy(1e-2)(x))
    assert "result 0: 1 of the elements are off" in said(op, backward, lambda x: x + 1)


def test_integers(tmp_path):
    op = make_op(tmp_path, CHOSEN)
    assert said(op, op, lambda x: x) == ""
    assert "1 of the elements are off" in said(op, op, lambda x: x + 1)
