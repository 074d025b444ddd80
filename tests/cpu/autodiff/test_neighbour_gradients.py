"""Gradients of expensive functions of neighbours, in two kernels."""

import pytest

from codegen.checking import testing
from codegen.plan.op import stages_of
from codegen.runtime.ops.backward import backward_ops
from tests.making import make_op, spec_text
from tests.turns import EVERY, some


@pytest.mark.parametrize("axis", some(["S", "N"], 2))
def test_gradients_of_expensive_values_of_neighbours(tmp_path, axis):
    weights = "w: float32[B]; w2: float32[B]; w3: float32[B]"
    padded = {"S": "((0, 0), (2, 1), (0, 0))", "N": "((0, 0), (0, 0), (2, 1))"}[axis]
    last, next_ = {"S": ("z[:, :-3]", "z[:, 3:]"), "N": ("z[..., :-3]", "z[..., 3:]")}[axis]
    op = make_op(
        tmp_path,
        spec_text(
            f"x: T[B, S, N]; {weights}", "y: T[B, S, N]",
            f"v = x * w + shift(x, axis={axis}, by=2) * w2 + shift(x, axis={axis}, by=-1) * w3; "
            "y = sin(tanh(erf(v))) + softplus(sin(v)) * tanh(v)",
            f"z = jnp.pad(x, {padded}); w, w2, w3 = (k[:, None, None] for k in (w, w2, w3)); "
            f"v = x * w + {last} * w2 + {next_} * w3; "
            "y = jnp.sin(jnp.tanh(jax.lax.erf(v))) + jax.nn.softplus(jnp.sin(v)) * jnp.tanh(v)",
            types="{T: [float32, bfloat16]}",
        ),
    )  # fmt: skip
    assert all(kernel.plan.kind == "staged" for kernel in backward_ops(op))
    testing.check_gradient(op, "interpret", examples=2 if EVERY else None)
    testing.check_gradient(op, "xla", examples=2)


def test_gradients_of_weights_of_neighbours_in_halves(tmp_path):
    """A convolution of a half along rows, with a gate: one kernel reads the neighbours for the weights' gradients too."""
    op = make_op(
        tmp_path,
        spec_text(
            "x: T[B, S, (2 N)]; w: T[N]; w2: T[N]", "y: T[B, S, N]",
            "y = (w * x[0] + w2 * shift(x[0], axis=S, by=1)) * sigmoid(x[1])",
            "a, g = x[..., :w.shape[0]], x[..., w.shape[0]:]; last = jnp.pad(a, ((0, 0), (1, 0), (0, 0)))[:, :-1]; "
            "y = (w * a + w2 * last) * jax.nn.sigmoid(g)",
            types="{T: [float32, bfloat16]}",
        ),
    )  # fmt: skip
    assert backward_ops(op)[-1].plan.kind == "column"
    testing.check_gradient(op, "interpret", examples=4 if EVERY else 2)


def test_rows_of_halves_and_their_neighbours(tmp_path):
    op = make_op(
        tmp_path,
        spec_text(
            "x: T[B, S, (2 N)]", "y: T[B, S, N]",
            "y = softmax(x[0] + shift(x[1], axis=N, by=1) + shift(x[1], axis=S, by=-1), axis=N)",
            "n = x.shape[-1] // 2; a, b = x[..., :n], x[..., n:]; last = jnp.pad(b, ((0, 0), (0, 0), (1, 0)))[..., :-1]; "
            "y = jax.nn.softmax(a + last + jnp.pad(b, ((0, 0), (0, 1), (0, 0)))[:, 1:], axis=-1)",
            types="{T: [float32, bfloat16]}",
        ),
    )  # fmt: skip
    assert op.plan.kind == "row"
    testing.check_op(op, "interpret", examples=4 if EVERY else 2)
    testing.check_gradient(op, "interpret", examples=2 if EVERY else 1)


def test_gradients_of_mixes_with_the_element_before(tmp_path):
    """Each of five results reads the neighbour: their gradients' sum is written, and no gradient is copied."""
    op = make_op(
        tmp_path,
        spec_text(
            "x: T[B, S, N]; mu: T[M=5, N]", "y: T[M, B, S, N]", "y = x + (shift(x, axis=S, by=1) - x) * mu",
            "last = jnp.pad(x, ((0, 0), (1, 0), (0, 0)))[:, :-1]; y = x + (last - x) * mu[:, None, None]",
            types="{T: [float32, bfloat16]}",
        ),
    )  # fmt: skip
    (backward,) = (k for k in backward_ops(op) if not k.spec.op.endswith("_frozen"))
    written = [[a.axes for a in stage.spec.outputs] for stage in stages_of(backward.planned)]
    assert written == [[("B", "S", "N")] * 2, [("B", "S", "N")], [("M", "N")]]
    testing.check_gradient(op, "interpret", examples=2 if EVERY else 1)
