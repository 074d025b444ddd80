"""Products by XLA: of bytes exact, whichever way is taken."""

import jax
import numpy as np
import pytest

import generated
from codegen.runtime import arguments, products


@pytest.mark.parametrize("tuned", [True, False])
@pytest.mark.parametrize(
    "extents", [(2, 2, 1), (3, 5, 0), (0, 3, 5), (4, 7, 1024), (4, 7, 1025), (3, 2, 4100)], ids=str
)
def test_products_of_bytes_are_exact(extents, tuned, monkeypatch):
    """Sums at their largest, too, where a float32 would lose what is added last."""
    monkeypatch.setattr(products, "_tuned", lambda: tuned)
    m, n, k = extents
    rng = np.random.default_rng(k)
    for edge in (False, True):
        a, b = (rng.integers(-128, 128, shape).astype(np.int8) for shape in ((m, k), (k, n)))
        if edge:
            a[:], b[:] = -128, -128
            a[:, -1:], b[-1:] = 127, 1
        op = generated.scaled_matmul_int8
        axes = arguments.bind_axes(op.spec, {"a": a, "b": b})
        with jax.default_device(jax.devices("cpu")[0]):
            got = products.product(op.plan.products[0], a, b, axes, "int32")
        assert got.dtype == np.int32
        np.testing.assert_array_equal(got, a.astype(np.int64) @ b.astype(np.int64))


@pytest.mark.parametrize(
    ("flags", "tuned"),
    [("", True), ("--xla_gpu_autotune_level=0", False), ("--x=1 --xla_gpu_autotune_level=3 --y=2", False),
     ("--xla_gpu_autotune_level=4", True), ("--xla_gpu_autotune_level=5", True)],
)  # fmt: skip
def test_whether_xla_tries_its_kernels(flags, tuned, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", flags)
    assert products._tuned() == tuned
