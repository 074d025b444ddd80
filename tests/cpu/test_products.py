"""Products by XLA: of bytes exact, whichever way is taken."""

import numpy as np
import pytest

import generated
from codegen.runtime import arguments, products


@pytest.mark.parametrize("level", [None, 0, 4])
@pytest.mark.parametrize("extents", [(2, 2, 1), (3, 5, 0), (0, 3, 5), (4, 7, 1024), (4, 7, 1025), (3, 2, 4100)], ids=str)
def test_products_of_bytes_are_exact(extents, level, monkeypatch):
    """Sums at their largest, too, where a float32 would lose what is added last; XLA not told to try its kernels, told not
    to, and told to."""
    monkeypatch.setenv("XLA_FLAGS", "" if level is None else f"--xla_gpu_autotune_level={level}")
    assert products._tuned() == (level != 0)
    m, n, k = extents
    rng = np.random.default_rng(k)
    for edge in (False, True):
        a, b = (rng.integers(-128, 128, shape).astype(np.int8) for shape in ((m, k), (k, n)))
        if edge:
            a[:], b[:] = -128, -128
            a[:, -1:], b[-1:] = 127, 1
        op = generated.scaled_matmul_int8
        axes = arguments.bind_axes(op.spec, {"a": a, "b": b})
        got = products.product(op.plan.products[0], a, b, axes, "int32")
        assert got.dtype == np.int32
        np.testing.assert_array_equal(got, a.astype(np.int64) @ b.astype(np.int64))
