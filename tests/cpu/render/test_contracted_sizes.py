"""Sizes of axes that no array of an epilogue has, such as contracted ones: its kernel takes them as numbers."""

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


def test_of_an_array_that_only_another_output_reads(tmp_path):
    spec = spec_text(
        "x: T[B, K]; w: T[K, N]; t: T[P, N]", "y: T[B, N]; z: T[N]", "y = (x @ w) / size(P); z = sum(t, axis=P)",
        "y = x @ w / t.shape[0]; z = t.sum(0)", types="{T: [bfloat16]}",
    )  # fmt: skip
    op = make_op(tmp_path, spec)
    for implementation in ("interpret", "xla"):
        testing.check_op(op, implementation, examples=1)
    testing.check_gradient(op, "interpret", examples=1)


def test_of_the_rows_that_a_product_contracts(tmp_path):
    reference = (
        "y = jnp.einsum('rk,rn->kn', x.reshape(-1, x.shape[-1]), w.reshape(-1, w.shape[-1])) / (x.size // x.shape[-1])"
    )
    spec = spec_text(
        "x: T[..., K]; w: T[..., N]", "y: T[K, N]", "y = dot(x, w, axis=...) / size(...)", reference,
        types="{T: [bfloat16]}",
    )  # fmt: skip
    op = make_op(tmp_path, spec)
    for implementation in ("interpret", "xla"):
        testing.check_op(op, implementation, examples=1)
    testing.check_gradient(op, "interpret", examples=1)
