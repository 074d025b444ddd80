"""Ops of several kernels: their values and gradients, and JAX's transformations of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import generated
from codegen.checking import testing
from codegen.errors import UserError
from codegen.plan.op import Staged
from codegen.plan.rows.middle import in_stages
from tests.making import make_op, spec_text
from tests.meshes import normal
from tests.turns import some

X = "x: T[..., N]"
OVER = "(0, 1, 2, 3, 4, 5)[:x.ndim - 1]"

# inputs, outputs, chain, reference
OPS = {
    "softmax_of_columns": (X, "y: T[..., N]", "y = softmax(x, axis=...)", f"y = jax.nn.softmax(x, axis={OVER})"),
    "softmax_of_a_middle_axis": (
        "x: T[B, C, S]", "y: T[B, C, S]", "y = softmax(x, axis=C)", "y = jax.nn.softmax(x, axis=1)",
    ),
    "scales_of_blocks": (
        "x: T[(P R=16), (Q C=32)]", "y: T[(P R=16), (Q C=32)]; s: float32[P, Q]",
        "s = max(abs(x), axis=(R, C)) + 1; y = x / s",
        "v = x.reshape(x.shape[0] // 16, 16, x.shape[1] // 32, 32); s = jnp.max(jnp.abs(v), axis=(1, 3)) + 1; "
        "y = (v / s[:, None, :, None]).reshape(x.shape)",
    ),
    "steps_of_sinkhorn": (
        "x: T[B, M, N]", "y: T[B, M, N]", "e = exp(tanh(x)); a = e / sum(e, axis=N); y = a / sum(a, axis=M)",
        "e = jnp.exp(jnp.tanh(x)); a = e / jnp.sum(e, axis=2, keepdims=True); y = a / jnp.sum(a, axis=1, keepdims=True)",
    ),
    "two_levels": (
        "x: T[B, S, N]", "y: T[B]", "y = sum(logsumexp(x, axis=N), axis=S)",
        "y = jnp.sum(jax.nn.logsumexp(x, axis=2), axis=1)",
    ),
    "centred_both_ways": (
        "x: T[M, N]", "y: T[M, N]", "y = x - mean(x, axis=M) - mean(x, axis=N) + mean(x, axis=(M, N))",
        "y = x - jnp.mean(x, 0) - jnp.mean(x, 1, keepdims=True) + jnp.mean(x)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", some(OPS, 2))
def test_values_and_gradients(name, tmp_path):
    inputs, outputs, chain, reference = OPS[name]
    op = make_op(tmp_path, spec_text(inputs, outputs, chain, reference, types="{T: [float32, bfloat16]}"))
    assert isinstance(op.plan, Staged)
    for implementation in ("interpret", "xla"):
        testing.check_op(op, implementation)
    testing.check_gradient(op, "interpret")


NORM, SCALE, SHIFT = generated.batch_norm_train, normal(5), normal(5, seed=1)


def reference(x):
    return NORM.reference(x, SCALE, SHIFT)


@pytest.mark.parametrize("implementation", ["interpret", "xla"])
def test_a_mapped_array_has_statistics_of_its_own(implementation):
    x = normal(3, 4, 5)
    got = jax.vmap(lambda x: NORM(x, SCALE, SHIFT, implementation=implementation))(x)
    for own, expected in zip(got, jax.vmap(reference)(x), strict=True):
        np.testing.assert_allclose(own, expected, rtol=1e-5, atol=1e-5)


def test_derivatives_of_second_order():
    def loss(f):
        return lambda x: jnp.sum(jnp.sin(f(x).y)) + jnp.sum(f(x).var)

    x, v = normal(6, 5), normal(6, 5, seed=3)

    def along(f):
        return jax.grad(lambda x: jnp.vdot(jax.grad(loss(f))(x), v))(x)

    got = along(lambda x: NORM(x, SCALE, SHIFT, implementation="interpret"))
    np.testing.assert_allclose(got, along(reference), rtol=2e-4, atol=2e-4)


def test_a_gradient_of_several_stages_in_jnp_is_rounded_once(tmp_path):
    """The gradients of a softmax of two elements are opposite numbers. Those of its stages cancel: rounded before they are added, each
    would lose most of its bits."""
    chain = ("x: bfloat16[S, E]", "y: float32[E, K=2]", "y = top_k(softmax(x, axis=E), K, axis=S)", "y = x")
    op = make_op(tmp_path, spec_text(*chain))
    assert isinstance(op.backward, UserError)  # no kernel reads p[S, E] with a selection along S
    x = jnp.array([[1.5, -2.25], [0.3, 2.7], [2.0, -1.1], [-0.6, 1.9]], jnp.bfloat16)
    (dx,) = jax.vjp(lambda x: op(x, implementation="xla"), x)[1](jnp.array([[1.0, -0.7], [0.4, 1.3]]))
    assert jnp.any(dx != 0) and jnp.array_equal(dx[:, 0], -dx[:, 1])


def test_an_array_without_elements():
    assert NORM(jnp.zeros((3, 0)), implementation="interpret").y.shape == (3, 0)
    assert np.isnan(NORM(jnp.zeros((0, 5)), implementation="interpret").mean).all()


def test_calls_of_its_kernels_are_found_by_name():
    names = [kernel.spec.op for kernel in NORM.kernels]
    assert names == [f"batch_norm_train_{name}" for name in (
        "whole", "stage1", "stage2", "stage3", "backward_whole", "backward_stage1", "backward_stage2",
    )]  # fmt: skip
    assert NORM.own_kernels == NORM.kernels[:4]


@pytest.mark.parametrize("columns", some([37, 8], 2), ids=some(["ragged", "whole vectors"], 2))
def test_a_stage_that_begins_with_the_last_elements(columns, tmp_path):
    op = make_op(tmp_path, spec_text("x: float32[..., N]", "y: float32[..., N]", "y = x - mean(x, axis=...)"))
    x = normal(700, columns)
    with in_stages():
        got = op(x, implementation="interpret")
    np.testing.assert_allclose(got, x - np.mean(x, 0), rtol=1e-4, atol=1e-4)
