"""Which calls property tests draw."""

import pytest

from codegen.checking import draw, testing
from tests.making import make_op, spec_text

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
    wide = make_op(tmp_path, ATTENDED.replace("T: [float32, bfloat16]", "T: [float32]"))
    assert testing.check_op(wide, "interpret").examples == testing.check_op(wide, "interpret", 2).examples == 0
    testing.check_gradient(wide, "interpret")


def test_calls_with_gradients_suit_the_kernels_of_these(tmp_path):
    """No kernel of the op is attention, and its backward has one: the gradient of logsumexp is a softmax, which multiplies k."""
    inputs = "q: T[B, Q, D]; k: T[B, S, D]; v: T[B, S, E]"
    chain = "s = q @ k; o = sigmoid(s) @ v; l = logsumexp(s, axis=S)"
    op = make_op(
        tmp_path, spec_text(inputs, "o: T[B, Q, E]; l: float32[B, Q]", chain, types="{T: [float32, bfloat16]}")
    )
    sizes: dict[bool, set[int]] = {False: set(), True: set()}
    for gradients, found in sizes.items():
        check = lambda case, found=found: found.add(dict(case.extents)["D"])  # noqa: E731
        testing._draw(op, 30, 5, check, empty=False, gradients=gradients)
    assert all(n % 8 == 0 for n in sizes[True]) and any(n % 8 for n in sizes[False])
    kinds = [{dict(types.variables)["T"] for types in draw.types_of_calls(op, "interpret", g)} for g in (False, True)]
    assert kinds == [{"float32", "bfloat16"}, {"bfloat16"}]


@pytest.mark.parametrize(
    ("x", "y", "chain"),
    [
        ("float32[..., N]", "float32[...]", "y = sum(x, axis=N)"),
        ("float32[B, N, S=3]", "float32[B, S]", "y = sum(x, axis=N)"),
        ("float32[..., (N 2)]", "float32[...]", "y = sum(x[0] + x[1], axis=N)"),
    ],
)
def test_rows_of_whole_vectors(x, y, chain, tmp_path):
    """Where they are requested, and not elsewhere."""
    op = make_op(tmp_path, spec_text(f"x: {x}", f"y: {y}", chain))
    for whole in (True, False):
        sizes = set()
        testing._draw(op, 30, 5, lambda case, sizes=sizes: sizes.add(dict(case.extents)["N"]), empty=False, whole=whole)
        assert len(sizes) > 1 and all(n % draw.WHOLE == 0 for n in sizes) == whole


def test_two_in_three_ops_have_them_where_kernels_are_only_sampled(tmp_path, monkeypatch):
    text = spec_text("x: float32[..., N]", "y: float32[...]", "y = sum(x, axis=N)")
    ops = [make_op(tmp_path, text.replace("op: made", f"op: made_{i}")) for i in range(24)]
    found = {}
    for whole in (True, False):
        monkeypatch.setattr(testing, "WHOLE_ROWS", whole)
        sizes = []
        for op in ops:
            testing.each_call(op, "interpret", 0, lambda case, sizes=sizes: sizes.append(dict(case.extents)["N"]))
        found[whole] = sum(n % draw.WHOLE == 0 and n > 0 for n in sizes) / len(sizes)
    assert 0.5 < found[True] < 0.95 and found[False] < 0.5
