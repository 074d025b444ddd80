"""Parts of heads whose size another array gives, `(3 H D)`: queries, keys and values along one axis of an array."""

import jax.numpy as jnp
import pytest

from codegen.checking.draw import Case
from codegen.checking.gradients import check_gradient_case
from codegen.checking.testing import check_case
from codegen.runtime.call.arguments import Types
from tests.making import make_jnp_op, make_op, spec_text

CHAIN = """q = qkv[0] * rsqrt(sum(square(qkv[0]), axis=D) + 1e-6) * g
k = qkv[1] * rsqrt(sum(square(qkv[1]), axis=D) + 1e-6)
v = qkv[2]"""
REFERENCE = """a = qkv.reshape(*qkv.shape[:2], 3, g.shape[0], -1).astype(jnp.float32)
unit = a / jnp.sqrt(jnp.sum(a * a, -1, keepdims=True) + 1e-6)
q = jnp.swapaxes(unit[:, :, 0] * g[:, None], 1, 2)
k = jnp.swapaxes(unit[:, :, 1], 1, 2)
v = jnp.swapaxes(a[:, :, 2], 1, 2)"""
TEXT = spec_text(
    "qkv: T[B, S, (3 H D)]; g: float32[H]", "q: T[B, H, S, D]; k: T[B, H, S, D]; v: T[B, H, S, D]",
    CHAIN.replace("\n", ";"), REFERENCE.replace("\n", ";"), types="{T: [float16]}",
)  # fmt: skip


@pytest.mark.parametrize("sizes", [{"B": 1, "S": 1, "H": 1, "D": 1}, {"B": 2, "S": 5, "H": 3, "D": 24}])
def test_queries_keys_and_values_of_one_array(sizes, tmp_path):
    """Rows of one element had more slots of shared memory in a block than there is."""
    op = make_op(tmp_path, TEXT)
    case = Case(Types((("T", "float16"),)), (), tuple(sizes.items()), (), (), False, 1.0, 0)
    check_case(op, "interpret", case)
    check_gradient_case(op, "interpret", case)


def test_the_shape_of_heads_is_refused_where_it_does_not_fit():
    op = make_jnp_op(TEXT)
    with pytest.raises(ValueError, match=r"'qkv' has shape \(2, 5, 30\) for .*\(3 H D\).*, but H is 4 by 'g'"):
        op(jnp.zeros((2, 5, 30), "float16"), jnp.zeros(4))
