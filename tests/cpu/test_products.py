"""Products by XLA: of bytes exact, whichever way is taken. And what is kept of products for their gradients."""

import functools

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from making import make_op

import generated
from codegen.runtime import arguments, products
from tests.cpu.test_reductions import spec_text

OP = generated.scaled_matmul_int8


def product(a, b):
    with jax.default_device(jax.devices("cpu")[0]):
        axes = arguments.bind_axes(OP.spec, {"a": a, "b": b})
        return products.product(OP.plan.products[0], a, b, axes, "int32")


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize(
    "extents", [(2, 2, 1), (3, 5, 0), (0, 3, 5), (4, 7, 1024), (4, 7, 1025), (3, 2, 4100)], ids=str
)
def test_products_of_bytes_are_exact(extents, dtype, checked, monkeypatch):
    """Sums at their largest, too, where a float32 would lose what is added last."""
    monkeypatch.setattr(products, "_checked", lambda: checked)
    m, n, k = extents
    rng, limits = np.random.default_rng(k), np.iinfo(dtype)
    for edge in (False, True):
        a, b = (rng.integers(limits.min, limits.max, shape, dtype, endpoint=True) for shape in ((m, k), (k, n)))
        if edge:
            a[:] = b[:] = max(limits.min, limits.max, key=abs)
            a[:, -1:], b[-1:] = 127, 1
        got = product(a, b)
        assert got.dtype == np.int32
        np.testing.assert_array_equal(got, a.astype(np.int64) @ b.astype(np.int64))


@pytest.mark.parametrize("checked", [True, False])
def test_products_of_bytes_over_an_extent_that_is_not_known(checked, monkeypatch):
    monkeypatch.setattr(products, "_checked", lambda: checked)
    (k,) = jax.export.symbolic_shape("k")
    shapes = [jax.ShapeDtypeStruct(shape, "int8") for shape in ((2, k), (k, 3))]
    held = jax.export.export(jax.jit(product))(*shapes)
    a, b = np.full((2, 1500), -128, np.int8), np.full((1500, 3), 127, np.int8)
    np.testing.assert_array_equal(held.call(a, b), np.full((2, 3), -128 * 127 * 1500))


@pytest.mark.parametrize(
    ("flags", "checked"),
    [("", True), ("--xla_gpu_autotune_level=0", False), ("--x=1 --xla_gpu_autotune_level=3 --y=2", False),
     ("--xla_gpu_autotune_level=0 --xla_gpu_autotune_level=4", True), ("--xla_gpu_autotune_level=5", True)],
)  # fmt: skip
def test_whether_xla_compares_its_kernels(flags, checked, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", flags)
    assert products._checked() == checked


# What is kept of products for the backward


def scaled_by_rows(rows: str, factors: str, types: str = "{T: [float16, bfloat16]}") -> str:
    inputs = f'x: "{factors}[..., K]"; w: "{factors}[N, K]"; rs: "float32[...]"'
    return spec_text(inputs, 'y: "T[..., N]"', f"y = {rows}", types=types)


@pytest.mark.parametrize("implementation", ["xla", "interpret"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_products_of_integers_are_kept_as_they_are(tmp_path, dtype, implementation):
    op = make_op(tmp_path, scaled_by_rows("rs * (x @ w)", "int8"))
    x, w = jnp.full((2, 8), 127, "int8"), jnp.full((3, 8), 127, "int8")
    run = functools.partial(op, x, w, T=dtype, implementation=implementation)
    (found,) = jax.vjp(run, jnp.full((2,), 1e-4, "float32"))[1](jnp.ones((2, 3), dtype))
    np.testing.assert_array_equal(found, [3 * 8 * 127 * 127] * 2)


@pytest.mark.parametrize("implementation", ["xla", "interpret"])
def test_products_that_float16_does_not_hold_are_kept(tmp_path, implementation):
    op = make_op(tmp_path, scaled_by_rows("silu(rs * (x @ w))", "float16", "{T: [float16]}"))
    x, w, rs = jnp.full((2, 128), 100, "float16"), jnp.full((3, 128), 100, "float16"), jnp.full((2,), 1e-6, "float32")
    z = 1e-6 * 128 * 100 * 100
    s = 1 / (1 + np.exp(-z))
    slope = s * (1 + z * (1 - s))
    run = functools.partial(op, implementation=implementation)
    _, dw, drs = jax.vjp(run, x, w, rs)[1](jnp.ones((2, 3), "float16"))
    np.testing.assert_allclose(drs, [3 * slope * 128 * 100 * 100] * 2, rtol=1e-3)
    np.testing.assert_allclose(np.asarray(dw, "float32"), np.full((3, 128), 2 * 100 * 1e-6 * slope), rtol=0.1)


@pytest.mark.parametrize("implementation", ["xla", "interpret"])
def test_products_are_kept_in_the_outputs_type(tmp_path, implementation):
    text = spec_text('x: "bfloat16[..., K]"; w: "bfloat16[K, N]"', 'y: "float32[..., N]"', "y = sin(x @ w)")
    op = make_op(tmp_path, text)
    x, w = jnp.asarray([[64, 0.125]], "bfloat16"), jnp.ones((2, 3), "bfloat16")
    dx, _ = jax.vjp(functools.partial(op, implementation=implementation), x, w)[1](jnp.ones((1, 3), "float32"))
    np.testing.assert_allclose(np.asarray(dx, "float32"), np.full((1, 2), 3 * np.cos(64.125)), rtol=2**-7)
