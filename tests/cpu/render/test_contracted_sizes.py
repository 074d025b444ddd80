"""Sizes of contracted axes after a product: the epilogue's kernel takes them as numbers."""

from codegen.checking import testing
from tests.making import make_op, spec_text


def test_values_and_gradients(tmp_path):
    chain = "h = silu(x @ w / size(K)); y = h @ v / sqrt(size(N)) + size(N)"
    reference = "y = jax.nn.silu(x @ w / w.shape[0]) @ v / v.shape[0] ** 0.5 + v.shape[0]"
    op = make_op(
        tmp_path,
        spec_text("x: T[..., K]; w: T[K, N]; v: T[N, M]", "y: T[..., M]", chain, reference, types="{T: [bfloat16]}"),
    )
    for implementation in ("interpret", "xla"):
        testing.check_op(op, implementation, examples=1)
    testing.check_gradient(op, "interpret", examples=1)
