"""Sizes in the scores of attention, such as the number by whose root they are divided: of axes that only q, k or v has too."""

from codegen.checking import testing
from tests.making import make_op, spec_text


def test_sizes_of_any_axis(tmp_path):
    chain = "s = (q @ k) / sqrt(size(D)) / size(B) + index(H) / size(H); o = softmax(s, axis=K) @ v / size(E)"
    reference = (
        "h = q.shape[2]; s = jnp.einsum('bqhd,bkhd->bhqk', q, k) / q.shape[-1] ** 0.5 / q.shape[0];"
        "p = jax.nn.softmax(s + jnp.arange(h)[:, None, None] / h); o = jnp.einsum('bhqk,bkhd->bqhd', p, v) / v.shape[-1]"
    )
    inputs = "q: T[B, Q, H, D]; k: T[B, K, H, D]; v: T[B, K, H, E]"
    op = make_op(tmp_path, spec_text(inputs, "o: T[B, Q, H, E]", chain, reference, types="{T: [bfloat16]}"))
    testing.check_op(op, "interpret", examples=1)
    testing.check_gradient(op, "interpret", examples=1)
