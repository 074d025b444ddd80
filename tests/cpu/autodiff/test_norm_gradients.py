"""Gradients of norms that a chain writes out, and of softmaxes, with sums of rows that a second kernel adds up."""

import pytest

from codegen.checking import testing
from codegen.plan.rows.middle import in_stages
from tests.making import make_op, spec_text
from tests.turns import EVERY, some

NORM = "v = x - mean(x, axis={0}); y = v * rsqrt(mean(square(v), axis={0}) + 0.1) * weight"
REFERENCE = (
    "m = jnp.mean(x, axis={0}, keepdims=True); v = jnp.mean(jnp.square(x - m), axis={0}, keepdims=True); "
    "y = (x - m) / jnp.sqrt(v + 0.1) * weight"
)


def norm(axes, places):
    return spec_text(
        "x: T[B, S, N]; weight: T[N]", "y: T[B, S, N]", NORM.format(axes), REFERENCE.format(places),
        types="{T: [float32, bfloat16]}",
    )  # fmt: skip


@pytest.mark.parametrize(("axes", "places"), some([("N", -1), ("S", 1), ("(B, S)", (0, 1))], 2))
def test_gradients_of_a_norm(tmp_path, axes, places):
    op = make_op(tmp_path, norm(axes, places))
    testing.check_gradient(op, "interpret", examples=4 if EVERY else None)


def test_gradients_of_a_bias_before_a_norm(tmp_path):
    chain = "u = x + bias; v = u - mean(u, axis=(B, S)); y = v * rsqrt(mean(square(v), axis=(B, S)) + 0.1) * sin(u)"
    reference = (
        "u = x + bias; m = jnp.mean(u, axis=(0, 1)); v = jnp.mean(jnp.square(u - m), axis=(0, 1)); "
        "y = (u - m) / jnp.sqrt(v + 0.1) * jnp.sin(u)"
    )
    text = spec_text("x: T[B, S, N]; bias: T[N]", "y: T[B, S, N]", chain, reference, types="{T: [float32, bfloat16]}")
    testing.check_gradient(make_op(tmp_path, text), "interpret", examples=2 if EVERY else None)


@pytest.mark.whole
def test_gradients_of_a_norm_in_stages(tmp_path):
    op = make_op(tmp_path, norm("S", 1))
    with in_stages():
        testing.check_gradient(op, "interpret", examples=2 if EVERY else None)


def test_a_parameter_of_a_softmax_along_the_middle(tmp_path):
    text = spec_text(
        "x: T[B, S, N]", "y: T[B, S, N]; z: float32[B, N]", "y = softmax(x * beta, axis=S); z = logsumexp(x * beta, axis=S)",
        "y = jax.nn.softmax(x * beta, axis=1); z = jax.nn.logsumexp(x * beta, axis=1)",
        types="{T: [float32, bfloat16]}", more="params: {beta: {type: float, default: 0.5, static: false}}",
    )  # fmt: skip
    op = make_op(tmp_path, text)
    assert [kernel.planned.spec.op for kernel in op.kernels if "_whole_stage" in kernel.planned.spec.op]
    testing.check_gradient(op, "interpret", examples=2 if EVERY else None)


def test_weights_of_heads(tmp_path):
    text = spec_text(
        "x: T[B, H, S, N]; bias: T[H, S, N]; weight: float32[H]", "y: T[B, H, S, N]", "y = softmax(x + bias, axis=N) * weight",
        "y = jax.nn.softmax(x + bias, axis=-1) * weight[:, None, None]", types="{T: [float32, bfloat16]}",
    )  # fmt: skip
    op = make_op(tmp_path, text)
    testing.check_gradient(op, "interpret", examples=2 if EVERY else None)


def test_a_bias_that_heads_share(tmp_path):
    text = spec_text(
        "x: T[B, S, H, D]; bias: T[B, S]", "y: T[B, S, H, D]", "y = softmax(x * square(bias), axis=D)",
        "y = jax.nn.softmax(x * jnp.square(bias[:, :, None, None]), axis=-1)", types="{T: [float32, bfloat16]}",
    )  # fmt: skip
    testing.check_gradient(make_op(tmp_path, text), "interpret", examples=4 if EVERY else 2)
