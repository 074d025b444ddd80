"""Kernels that scan and sum along the same axis: the sums, and gradients of what sequences share, which read no states again; and
states that memory holds."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from codegen.autodiff.backward import backward_of
from codegen.pipeline import read_op
from codegen.plan.launches import Extents, PlannedCall
from codegen.plan.rows import scanning
from tests.making import make_op, spec_text
from tests.turns import some

LAST = "last = sum(where(index(S) == size(S) - 1, h, 0.0), axis=S)"
SUMS = f"h = scan(0.9, x * w, axis=S); y = h; {LAST}; total = sum(h * x, axis=S); across = sum(h * x, axis=N)"


def states(x: np.ndarray, decay: float = 0.9) -> np.ndarray:
    found, h = np.zeros_like(x), 0.0
    for t in range(x.shape[1]):
        found[:, t] = h = h * decay + x[:, t]
    return found


# Fewer elements than the warps that share an axis have; four blocks that share it, the last not full; columns that do not fill a warp
@pytest.mark.parametrize("shape", [(1, 5, 8), (2, 250, 33)])
def test_sums_along_the_axis_of_a_scan_are_its_kernels(tmp_path, shape):
    outputs = "y: float32[B, S, N]; last: float32[B, N]; total: float32[B, N]; across: float32[B, S]"
    reference = "y = x; last = x[:, 0]; total = last; across = x[:, :, 0]"
    op = make_op(tmp_path, spec_text("x: float32[B, S, N]; w: float32[N]", outputs, SUMS, reference, more="grad: none"))
    assert op.plan.kind == "scan" and (len(op.plan.sums), len(op.plan.across)) == (2, 1)
    extents = Extents(shape[2], math.prod(shape), shape[1], shape[0] * shape[2])
    launch = op.plan.launch(PlannedCall({a.name: "float32" for a in op.spec.arrays}, extents, arch="sm_90a"))
    assert launch.cluster == (4 if shape[1] > 64 else 1)
    x, w = np.random.default_rng(0).standard_normal(shape), np.linspace(0.5, 1.5, shape[-1])
    h = states(x * w)
    for how in ("interpret", "xla"):
        y, last, total, across = op(jnp.asarray(x, "float32"), jnp.asarray(w, "float32"), implementation=how)
        np.testing.assert_allclose(y, h, atol=1e-5)
        np.testing.assert_allclose(last, h[:, -1], atol=1e-5)
        np.testing.assert_allclose(total, (h * x).sum(axis=1), rtol=1e-5, atol=1e-4)
        np.testing.assert_allclose(across, (h * x).sum(axis=2), rtol=1e-5, atol=1e-4)


def test_gradients_of_what_sequences_share_are_summed_by_the_kernel_that_scans(tmp_path):
    chain = "y = square(scan(0.9, x * w, axis=S))"
    text = spec_text("x: float32[B, S, N]; w: float32[N]", "y: float32[B, S, N]", chain, "y = x")
    stages = backward_of(read_op("specs/made.yaml", text)).op.plan.stages
    assert [op.plan.kind for op in stages] == ["scan", "scan", "column"]
    assert [a.axes for a in stages[-1].spec.inputs] == [("B", "N")]
    op, x = make_op(tmp_path, text), jnp.asarray(np.random.default_rng(0).standard_normal((3, 40, 20)), "float32")

    def loss(x, w, how):
        return (op(x, w, implementation=how) * jnp.cos(x)).sum()

    found, expected = (jax.grad(loss, (0, 1))(x, jnp.linspace(0.5, 1.5, 20), how) for how in ("interpret", "xla"))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


# One of two scans goes the other way: a thread's steps divide the axis, or not. States are read one by one, or with neighbours
@pytest.mark.parametrize(
    ("count", "dtype", "shape"), some([(3, "float32", (3, 32, 20)), (4, "bfloat16", (1, 75, 33))], 2, 1)
)
def test_gradients_of_states_are_summed_by_the_kernel_that_scans(tmp_path, count, dtype, shape):
    inputs = f"x: float32[B, S, N]; b: {dtype}[B, S, K={count}]; c: {dtype}[B, S, K={count}]; w: float32[N, K={count}]"
    chain = "y = sum(scan(exp(x * w), x * b, axis=S) * c, axis=K)"
    op = make_op(tmp_path, spec_text(inputs, "y: float32[B, S, N]", chain, "y = x"))
    first, last = backward_of(op.planned).op.plan.stages
    assert (len(first.plan.back), len(first.plan.across), len(first.plan.sums)) == (1, 2, 1)
    types = {a.name: a.dtype for a in first.spec.arrays}
    assert first.plan.launch(PlannedCall(types, Extents(columns=shape[1], rows=33))).uneven == (shape[1] % 8 != 0)
    assert [a.axes for a in last.spec.inputs] == [("B", "N", "K")]
    random, shapes = np.random.default_rng(0), (shape, (*shape[:2], count), (*shape[:2], count), (shape[2], count))
    made = [random.uniform(-1, 0.9, own) for own in shapes]
    given = [jnp.asarray(own, types[a.name]) for own, a in zip(made, op.spec.inputs, strict=True)]

    def loss(given, how):
        return (op(*given, implementation=how) * jnp.cos(given[0])).sum()

    found, expected = (jax.grad(loss)(given, how) for how in ("interpret", "xla"))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(
            *(np.asarray(v, "float32") for v in (one, other)), rtol=1e-2 if dtype == "bfloat16" else 1e-4, atol=1e-3
        )


def test_states_that_memory_holds(tmp_path, monkeypatch):
    """A thread has four of them. What they share, the softplus, an earlier kernel writes."""
    monkeypatch.setitem(scanning.BUSY, False, 1)
    chain = "h = scan(exp(softplus(t) * a), x * b, axis=S); y = h; z = sum(h, axis=D)"
    inputs = "x: float32[B, S, D]; t: float32[B, S, D]; a: float32[D, N=8]; b: float32[B, S, N=8]"
    outputs = "y: float32[B, S, D, N=8]; z: float32[B, S, N=8]"
    op = make_op(tmp_path, spec_text(inputs, outputs, chain, "y = x; z = x", more="grad: none"))
    assert [stage.plan.kind for stage in op.plan.stages][:2] == ["elementwise", "scan"]
    shapes = ((2, 21, 6), (2, 21, 6), (6, 8), (2, 21, 8))
    given = [jnp.asarray(np.random.default_rng(i).uniform(-1, 0.5, s), "float32") for i, s in enumerate(shapes)]
    for found, expected in zip(*(op(*given, implementation=how) for how in ("interpret", "xla")), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
