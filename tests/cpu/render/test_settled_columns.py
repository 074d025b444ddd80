"""Blocks that reduce all rows at a place: they write the results of columns, and no kernel finishes partial results."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from codegen.plan.launches import Extents, PlannedCall
from codegen.plan.rows.launching.walking import in_parts
from codegen.runtime.ops.backward import backward_ops
from tests.making import make_op, spec_text
from tests.meshes import normal
from tests.turns import some

SOFTMAX = (
    "x: T[B, S, N]; bias: float32[S, N]", "y: T[B, S, N]", "y = softmax(x + bias * a, axis=N)",
    "y = jax.nn.softmax(x + bias * a, axis=-1)",
)  # fmt: skip
SHARED = (
    "x: T[B, S, N]; bias: T[S, N]; weight: T[N]", "y: T[B, S, N]", "y = softmax(x * a + bias, axis=N) * weight",
    "y = jax.nn.softmax(x * a + bias, axis=-1) * weight",
)  # fmt: skip
MEANS = (
    "x: T[B, S, N]; bias: T[S, N]", "y: T[S, N]; z: T[B, S]",
    "m = max(x, axis=N); y = mean(x - m, axis=B) * bias; z = m",
    "m = jnp.max(x, axis=-1, keepdims=True); y = jnp.mean(x - m, axis=0) * bias; z = m[..., 0]",
)  # fmt: skip


def launch(op, rows, columns, places=200):
    dtypes = {a.name: "float32" for a in op.spec.arrays}
    return op.plan.launch(
        PlannedCall(dtypes, Extents(columns, rows and rows * places * columns, columns, rows, places), arch="sm_90a")
    )


@pytest.mark.parametrize("rows", some([3, 1], 2))
def test_gradients_of_what_some_rows_share(tmp_path, rows):
    op = make_op(tmp_path, spec_text(*SOFTMAX, types="{T: [float32, bfloat16]}", more="params: {a: 2.0}"))
    (backward,) = backward_ops(op)[-1:]
    assert launch(backward, rows, 2048).settles
    x, bias, dy = normal(rows, 200, 2048), normal(200, 2048), normal(rows, 200, 2048)

    def gradients(implementation):
        return jax.vjp(lambda x, bias: op(x, bias, implementation=implementation), x, bias)[1](dy)

    for got, expected in zip(gradients("interpret"), gradients("xla"), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)


def test_results_that_take_other_arrays(tmp_path):
    """A mean, in vectors of which some lie past the end, times what all rows share."""
    op = make_op(tmp_path, spec_text(*MEANS, types="{T: [float32, bfloat16]}"))
    x, bias = normal(2, 200, 1032).astype(jnp.bfloat16), normal(200, 1032).astype(jnp.bfloat16)
    with in_parts(1):
        assert launch(op, 2, 1032).settles
        got = op(x, bias, implementation="interpret")
    for own, other in zip(got, op.reference(jnp.float32(x), jnp.float32(bias)), strict=True):
        np.testing.assert_allclose(np.float32(own), other, rtol=2**-7, atol=2**-7)


@pytest.mark.parametrize("places", some([200, 40], 1))
def test_others_are_finished(tmp_path, places):
    """Blocks write the gradient of what rows at a place share, and partial results of a weight and of a parameter. Each element of the
    weight has one from each place, which few or many threads of a block reduce."""
    op = make_op(
        tmp_path,
        spec_text(
            *SHARED, types="{T: [float32, bfloat16]}", more="params: {a: {type: float, default: 2.0, static: false}}"
        ),
    )
    (backward,) = backward_ops(op)[-1:]
    given = normal(2, places, 1024), normal(places, 1024), normal(1024), 2.0
    dy = normal(2, places, 1024)

    def gradients(implementation):
        def call(x, bias, weight, a):
            return op(x, bias, weight, a=a, implementation=implementation)

        return jax.vjp(call, *given)[1](dy)

    with in_parts(1):
        assert launch(backward, 2, 1024, places).settles
        found = gradients("interpret")
    for got, expected in zip(found, gradients("xla"), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-5)


def test_partial_results_where_rows_are_on_other_devices_or_in_parts(tmp_path):
    op = make_op(tmp_path, spec_text(*SOFTMAX, types="{T: [float32, bfloat16]}", more="params: {a: 2.0}"))
    (backward,) = backward_ops(op)[-1:]
    assert not launch(backward, None, 2048).settles
    assert not launch(backward, 10_000, 2048).settles
    with in_parts(1):
        assert launch(backward, 10_000, 2048).settles
