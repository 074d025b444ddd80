"""Values of products that a forward saves, and whose largest element the backward searches."""

import pytest

from codegen.checking.draw import Case
from codegen.checking.gradients import check_gradient_case
from codegen.runtime.call.arguments import Types
from tests.making import make_op, spec_text

TEXT = spec_text(
    "q: T[B, Q, H, D]; k: T[B, S, H, D]; v: T[B, S, H, E]", "o: T[B, Q, H, E]; lse: float32[B, Q, H]",
    "s = where(index(S) <= index(Q), q @ k, -inf); m = max(s, axis=S); e = exp2(s - m); o = e / sum(e, axis=S) @ v;"
    "lse = log2(sum(e, axis=S)) + m",
    "i = jnp.arange(q.shape[1])[:, None]; s = jnp.einsum('bqhd,bshd->bhqs', q, k) * jnp.log(2.0);"
    "s = jnp.where(jnp.arange(k.shape[1]) <= i, s, -jnp.inf); o = jnp.einsum('bhqs,bshe->bqhe', jax.nn.softmax(s), v);"
    "lse = jnp.swapaxes(jax.nn.logsumexp(s, -1) / jnp.log(2.0), 1, 2)",
    types="{T: [float16, bfloat16]}",
)  # fmt: skip


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_largest_of_saved_scores_is_found(dtype, tmp_path):
    """Scores were saved in bfloat16: none was equal to their largest, which was float32, and the gradients were 0 / 0."""
    sizes = {"B": 1, "Q": 9, "S": 17, "H": 1, "D": 16, "E": 16}
    case = Case(Types((("T", dtype),)), (), tuple(sizes.items()), (), (), False, 1.0, 0)
    check_gradient_case(make_op(tmp_path, TEXT), "xla", case)
