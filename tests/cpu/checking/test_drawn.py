"""Which calls property tests draw."""

from codegen.checking import draw, testing
from tests.making import make_op

ROUTED = """\
op: routed_rows
summary: Drawn by hand.
inputs:
  x: bfloat16[..., K]
  w: bfloat16[K, E]
outputs:
  y: float32[..., R=4]
chain: |
  y = top_k(softmax(x @ w, axis=E), R, axis=E)
reference: jax.lax.top_k(jax.nn.softmax(x @ w, axis=-1), 4)[0]
"""

ATTENDED = """\
op: attended_rows
summary: Drawn by hand.
types:
  T: [float32, bfloat16]
inputs:
  q: T[B, Q, D]
  k: T[B, S, D]
  v: T[B, S, E]
outputs:
  o: T[B, Q, E]
chain: |
  o = softmax(q @ k, axis=S) @ v
reference: |
  o = jnp.einsum('bqs,bse->bqe', jax.nn.softmax(jnp.einsum('bqd,bsd->bqs', q, k), axis=-1), v)
"""


def test_an_axis_has_as_many_elements_as_are_selected_of_a_product(tmp_path):
    op, sizes = make_op(tmp_path, ROUTED), []
    testing._draw(op, 30, 5, lambda case: sizes.append(dict(case.extents)["E"]), empty=False)
    assert min(sizes) == 4 and len(set(sizes)) > 3


def test_kernels_of_attention_are_called_with_types_that_they_take(tmp_path):
    op = make_op(tmp_path, ATTENDED)

    def drawn(implementation):
        return [dict(types.variables)["T"] for types in draw.types_of_calls(op, implementation)]

    assert drawn("interpret") == ["bfloat16"]
    assert drawn("xla") == ["float32", "bfloat16"]
