"""Gradients of ops whose arrays may be float64, and the bits of what is kept for them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from making import make_op

from codegen.autodiff.backward import Derived
from codegen.checking import testing
from codegen.graph.nodes import COMPUTE
from codegen.plan.op import Staged
from tests.making import spec_text
from tests.turns import some

OVER_ROWS = "(0, 1, 2, 3, 4, 5, 6, 7)[:x.ndim - 1]"
WIDE_TYPES = {  # of types that may be float64: inputs, output, chain, reference, more
    "what_rows_come_to_is_kept": ("x: T[..., N]; w: T[N]", "T[..., N]",
        "c = x - mean(x, axis=N); y = c * rsqrt(mean(square(c), axis=N) + 1e-5) * w",
        "c = x - x.mean(-1, keepdims=True); y = c * jax.lax.rsqrt(jnp.square(c).mean(-1, keepdims=True) + 1e-5) * w", ""),
    "saved": ("x: T[..., N]", "T[..., N]", "rstd = rsqrt(mean(square(x), axis=N) + 1e-5); y = x * rstd",
        "y = x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-5)", "save: [rstd]\n"),
    "rows_of_a_table": ("x: T[..., N]; t: T[P, N]; i: int32[...]", "T[..., N]", "y = x * take(t, i, axis=P)",
        "y = x * jnp.take(t, i, 0, mode='clip')", "domain: {i: index(P)}\n"),
    "ties_of_columns": ("x: T[..., N]", "T[N]", "y = tanh(max(x, axis=...))", f"y = jnp.tanh(jnp.max(x, {OVER_ROWS}))", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", some(WIDE_TYPES, 2))
def test_backwards_of_types_that_may_be_float64(name, tmp_path):
    """Values that are saved, added up by index or waited for have the compute type's bits."""
    inputs, output, chain, reference, more = WIDE_TYPES[name]
    types = "{T: [float32, bfloat16, float64]}"
    op = make_op(tmp_path, spec_text(inputs, f"y: {output}", chain, reference, more=more, types=types))
    assert isinstance(op.backward, Derived), op.backward
    testing.check_gradient(op, "interpret")
    kept = op.backward.forward.spec.outputs[1:] if op.backward.forward else ()
    assert {a.dtype for a in kept} <= {COMPUTE}
    assert bool(kept) == (name != "rows_of_a_table")


# A backward that no one kernel is: inputs, output, chain, reference, more, and how many stages it has
BESIDE = {
    "of_columns": ("x: T[..., N]; w: T[N]", "T[N]", "y = mean(square(x), axis=...) + square(w)",
        f"y = jnp.mean(jnp.square(x), {OVER_ROWS}) + jnp.square(w)", "", 2),
    "of_columns_and_ties": ("x: T[..., N]; w: T[N]", "T[N]", "y = max(x, axis=...) * w",
        f"y = jnp.max(x, {OVER_ROWS}) * w", "", 2),
    "folded_along_columns": ("x: T[..., N]; w: T[N]", "T[N]", "y = sum(x, axis=...) * a + gelu(w) * a",
        f"y = jnp.sum(x, {OVER_ROWS}) * a + jax.nn.gelu(w, approximate=False) * a",
        "params: {a: {type: float, default: 0.5, static: false}}\n", 2),
}  # fmt: skip


@pytest.mark.parametrize("name", some(BESIDE, 3, 2))
def test_gradients_of_columns_beside_those_of_rows(name, tmp_path):
    inputs, output, chain, reference, more, stages = BESIDE[name]
    op = make_op(
        tmp_path, spec_text(inputs, f"y: {output}", chain, reference, more, "{T: [float32, bfloat16, float64]}")
    )
    assert isinstance(op.backward, Derived), op.backward
    assert isinstance(op.backward.op.plan, Staged)
    assert len(op.backward.op.plan.stages) == stages
    testing.check_gradient(op, "interpret")
    x, w = (jax.random.normal(jax.random.key(i), shape) for i, shape in enumerate([(2, 3, 5), (5,)]))

    def gradients(f):
        of = functools.partial(jax.grad, lambda *xs: jnp.sin(f(*xs)).sum())
        return jax.jit(lambda *xs: [of(places)(*xs) for places in ((0,), (1,), (0, 1))])(x, w)

    found = gradients(functools.partial(op, implementation="interpret"))
    for own, other in zip(jax.tree.leaves(found), jax.tree.leaves(gradients(op.reference)), strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("more", ["", "save: [rstd]\n"])
def test_an_input_that_is_left_out_decides_no_type(more, tmp_path):
    chain = "c = x - mean(x, axis=N); rstd = rsqrt(mean(square(c), axis=N) + 1e-5); y = c * rstd * w"
    text = spec_text(
        "x: float32[..., N]; w: U[N] = 1.0", "y: float32[..., N]", chain, "", more, "{U: [float64, float32]}"
    )
    op, x = make_op(tmp_path, text), jax.random.normal(jax.random.key(0), (3, 5))
    assert op.backward.forward is not None

    def form(x):
        c = x - x.mean(-1, keepdims=True)
        return c * jax.lax.rsqrt(jnp.square(c).mean(-1, keepdims=True) + 1e-5)

    found = jax.grad(lambda x: jnp.sin(op(x, implementation="interpret")).sum())(x)
    np.testing.assert_allclose(found, jax.grad(lambda x: jnp.sin(form(x)).sum())(x), rtol=1e-4, atol=1e-6)


@pytest.mark.whole
def test_what_all_rows_come_to_has_the_bits_of_the_rest(tmp_path):
    """In float32 the product of the other rows would be infinite, since the op that computes it would not read a
    float64 array."""
    types = "{T: [float32, float64], U: [float32, float64]}"
    op = make_op(tmp_path, spec_text("x: T[..., N]; v: U[N]", "z: U[N]", "z = prod(x, axis=...) * v", types=types))
    with jax.enable_x64(True):
        x, v = jnp.full((80, 1), 10.0, "float32"), jnp.ones(1)
        for implementation in ("interpret", "xla"):
            dx = jax.grad(lambda x, how=implementation: op(x, v, implementation=how).sum() * 1e-60)(x)
            np.testing.assert_allclose(dx, 1e19, rtol=1e-6)


def test_what_is_kept_of_float64_has_its_bits(tmp_path):
    """A mean of values that differ only in bits that float32 lacks."""
    inputs, output, chain, reference, _ = WIDE_TYPES["what_rows_come_to_is_kept"]
    op = make_op(tmp_path, spec_text(inputs, f"y: {output}", chain, reference, types="{T: [float32, float64]}"))
    with jax.enable_x64(True):
        x, w = jnp.asarray([[1e9, 1e9 + 1, 1e9 + 3]]), jnp.ones(3)
        dy = jnp.asarray([[1.0, -2.0, 0.5]])
        (found,) = jax.vjp(lambda x: op(x, w, implementation="interpret"), x)[1](dy)
        c = np.asarray(x)[0] - np.asarray(x).mean()
        rstd = (np.square(c).mean() + 1e-5) ** -0.5
        g = np.asarray(dy)[0]
        wanted = rstd * (g - g.mean() - c * rstd**2 * (g * c).mean())
        np.testing.assert_allclose(found[0], wanted, rtol=1e-6)


WIDE = [("{T: [float64]}", "float64"), ("{T: [float32, float64]}", "float64"), ("{T: [float32, float64]}", "float32")]


@pytest.mark.parametrize("implementation", ["xla", "interpret"])
@pytest.mark.turns(2)
@pytest.mark.parametrize(("types", "dtype"), WIDE)
def test_float64_stays_float64(types, dtype, implementation, tmp_path):
    """Means over rows, whose last kernel divides, and the gradient of a dynamic parameter."""
    with jax.enable_x64(True):
        x = np.random.default_rng(0).standard_normal((5, 9)).astype(dtype)
        mean = make_op(tmp_path, spec_text("x: T[..., N]", "y: T[N]", "y = mean(x, axis=...)", types=types))
        got = mean(x, implementation=implementation)
        assert got.dtype == dtype
        np.testing.assert_allclose(got, x.mean(0), rtol=1e-15 if dtype == "float64" else 1e-5, atol=1e-7)
        more = "params:\n  a: {default: 1.0, static: false}"
        scale = make_op(tmp_path, spec_text("x: T[..., N]", "y: T[..., N]", "y = x * a", types=types, more=more))
        x = np.full((1, 1), 1 + 1e-10 if dtype == "float64" else 1.5, dtype)
        slope = jax.grad(lambda a: scale(x, a=a, implementation=implementation).sum())(jnp.asarray(2, dtype))
        assert slope.dtype == dtype and float(slope) == float(x.sum())
