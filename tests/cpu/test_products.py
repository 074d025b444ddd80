"""Products by XLA: of bytes exact, whichever way is taken."""

import jax
import jax.export
import numpy as np
import pytest

import generated
from codegen.runtime import arguments, products

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
