"""Extremes whose elements another kernel finds again: those of values that a forward saves, and running ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from codegen.checking.draw import Case
from codegen.checking.gradients import check_gradient_case
from codegen.runtime.call.arguments import Types
from tests.making import make_op, spec_text
from tests.turns import some

TEXT = spec_text(
    "q: T[B, Q, H, D]; k: T[B, S, H, D]; v: T[B, S, H, E]", "o: T[B, Q, H, E]; lse: float32[B, Q, H]",
    "s = where(index(S) <= index(Q), q @ k, -inf); m = max(s, axis=S); e = exp2(s - m); o = e / sum(e, axis=S) @ v;"
    "lse = log2(sum(e, axis=S)) + m",
    "i = jnp.arange(q.shape[1])[:, None]; s = jnp.einsum('bqhd,bshd->bhqs', q, k) * jnp.log(2.0);"
    "s = jnp.where(jnp.arange(k.shape[1]) <= i, s, -jnp.inf); o = jnp.einsum('bhqs,bshe->bqhe', jax.nn.softmax(s), v);"
    "lse = jnp.swapaxes(jax.nn.logsumexp(s, -1) / jnp.log(2.0), 1, 2)",
    types="{T: [float16, bfloat16]}",
)  # fmt: skip


@pytest.mark.parametrize("dtype", some(["float16", "bfloat16"], 1))
def test_the_largest_of_saved_scores_is_found(dtype, tmp_path):
    """Scores were saved in bfloat16: none was equal to their largest, which was float32, and the gradients were 0 / 0."""
    sizes = {"B": 1, "Q": 9, "S": 17, "H": 1, "D": 16, "E": 16}
    case = Case(Types((("T", dtype),)), (), tuple(sizes.items()), (), (), False, 1.0, 0)
    check_gradient_case(make_op(tmp_path, TEXT), "xla", case)


RUNNING = spec_text(
    "x: T[..., N]; w: T[...]; gate: T[..., N]", "y: T[..., N]", "y = cummax(gelu(x * w) * gate, axis=N)",
    "y = jax.lax.cummax(jax.nn.gelu(x * w[..., None], approximate=False) * gate, axis=x.ndim - 1)",
    types="{T: [float32, bfloat16]}",
)  # fmt: skip


def test_equal_elements_share_the_gradient_of_a_running_maximum(tmp_path):
    """The kernel that writes gradients computed gelu approximately, the one before it exactly. It found one of two equal elements
    above the running maximum, or below it: gradients were twice as large, or were lost."""
    op, rows, size, first, second = make_op(tmp_path, RUNNING), 64, 100, 10, 60
    x, gate, dy = (np.random.default_rng(i).standard_normal((rows, size)).astype("float32") for i in range(3))
    x, gate = np.abs(x) / 4, np.abs(gate) / 4
    x[:, [first, second]], gate[:, [first, second]] = np.linspace(1.3, 4, rows)[:, None], 2
    x, w, gate, dy = (jnp.asarray(a, jnp.bfloat16) for a in (x, np.ones(rows), gate, dy))
    _, pull = jax.vjp(lambda x, w, g: op(x, w=w, gate=g, implementation="interpret"), x, w, gate)
    found = np.asarray(pull(dy)[2], float)[:, [first, second]]
    wide = np.asarray(dy, float)
    activated = np.asarray(jax.nn.gelu(jnp.asarray(x, "float32"), approximate=False), float)
    later = wide[:, second:].sum(1) / 2
    wanted = np.stack([wide[:, first:second].sum(1) + later, later], 1) * activated[:, [first]]
    np.testing.assert_allclose(found, wanted, rtol=2**-7, atol=0.05)
