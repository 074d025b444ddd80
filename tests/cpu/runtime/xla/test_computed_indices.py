"""`take` at a computed index: values at and beyond the ends, and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from codegen.autodiff.backward import Derived
from codegen.checking import testing
from codegen.checking.draw import Case
from codegen.checking.gradients import check_gradient_case
from codegen.checking.testing import check_gradient
from codegen.runtime.call.arguments import Types
from tests.making import make_op, spec_text
from tests.meshes import normal
from tests.turns import EVERY, some

TEXT = spec_text(
    "code: int32[..., N]; book: T[K, N]; flag: bool[(2 K)]; shift: int32[...] = 1", "y: T[..., N]; z: float32[..., N]",
    "i = code + shift; y = take(book, i - 2, axis=K); z = where(take(flag[1], code * 2, axis=K), 1, 0.5)",
    "k = book.shape[0]; i = code + jnp.asarray(shift)[..., None]; y = book[jnp.clip(i - 2, 0, k - 1), jnp.arange(code.shape[-1])]; "
    "z = jnp.where(flag[k:][jnp.clip(code * 2, 0, k - 1)], 1, 0.5)",
    types="{T: [float32, bfloat16]}",
)  # fmt: skip


def test_values_and_gradients(tmp_path):
    op = make_op(tmp_path, TEXT)
    for implementation in ("interpret", "xla"):
        testing.check_op(op, implementation, examples=1)
    code, book, flag = jnp.asarray([[-9, 0, 1], [2, 3, 99]]), normal(3, 3), jnp.asarray([True, False] * 3)
    got = op(code, book, flag, implementation="interpret").y
    expected = np.asarray(book)[[[0, 0, 0], [1, 2, 2]], [[0, 1, 2], [0, 1, 2]]]
    np.testing.assert_array_equal(got, expected)
    assert isinstance(op.backward, Derived), op.backward
    slope = jax.grad(lambda b: jnp.sum(op(code, b, flag, implementation="interpret").y))(book)
    np.testing.assert_array_equal(slope, [[1, 1, 1], [1, 0, 0], [0, 1, 1]])


GRADIENTS = {  # inputs, output, chain, reference
    "of_no_array": ("x: T[..., K]; t: T[G, N]", "T[..., K, N]", "x * take(t, index(K) // 2, axis=G)",
        "x[..., None] * jnp.take(t, jnp.arange(x.shape[-1]) // 2, 0, mode='clip')"),
    "of_a_float": ("x: T[..., N]; t: T[K]", "T[..., N]", "x * take(t, cast(floor(x), int32), axis=K)",
        "x * jnp.take(t, jnp.floor(x).astype(jnp.int32), mode='clip')"),
    "twice": ("x: T[..., N]; c: int32[..., N]; t: T[(2 K)]", "T[..., N]", "take(t[0], c + 1, axis=K) * x + take(t[1], c * 2, axis=K)",
        "jnp.take(t[: t.shape[0] // 2], c + 1, mode='clip') * x + jnp.take(t[t.shape[0] // 2 :], c * 2, mode='clip')"),
    "hashed": ("c: int32[B]; t: T[K, N]", "T[B, N]", "take(t, c * 40503 % size(K), axis=K) * size(K)",
        "t[c * 40503 % t.shape[0]] * t.shape[0]"),
    "hashed_and_reduced": ("c: int32[B]; t: T[K, N]", "T[B, N]", "softmax(take(t, c * 40503 % size(K), axis=K), axis=N)",
        "jax.nn.softmax(t[c * 40503 % t.shape[0]], axis=-1)"),
    "divided_by_its_size": ("x: T[..., N]; i: int32[N]; t: T[K]", "T[...]", "sum(x * take(t, i, axis=K), axis=N) / size(K)",
        "(x * jnp.take(t, i, mode='clip')).sum(-1) / t.shape[0]"),
}  # fmt: skip


@pytest.mark.parametrize("name", some(GRADIENTS, 4))
def test_a_tables_gradient_is_added_up_at_computed_indices(name, tmp_path):
    inputs, output, chain, reference = GRADIENTS[name]
    op = make_op(
        tmp_path,
        spec_text(inputs, f"y: {output}", f"y = {chain}", f"y = {reference}", types="{T: [float32, bfloat16]}"),
    )
    assert isinstance(op.backward, Derived), op.backward
    testing.check_op(op, "interpret", examples=1)
    check_gradient(op, "interpret")


OTHER_ORDERS = {  # of a table's axes than of the output's: inputs, output, chain, reference, sizes
    "scores": (
        "q: T[B, Q, H, D]; k: T[B, S, H, D]; v: T[B, S, H, E]; chosen: bool[B, H, Q, N]; bias: float32[H, M, Q]", "T[B, Q, H, E]",
        "mine = take(chosen, index(S) // 4, axis=N); near = take(bias, index(Q) - index(S), axis=M); "
        "seen = (index(S) <= index(Q)) & (mine | (index(Q) - index(S) < 3)); "
        "y = softmax(where(seen, q @ k + near, -inf), axis=S) @ v",
        "i, j = jnp.arange(q.shape[1])[:, None], jnp.arange(k.shape[1]); mine = jnp.take(chosen, j // 4, axis=3, mode='clip'); "
        "near = jnp.take_along_axis(bias.swapaxes(1, 2), jnp.clip(i - j, 0, bias.shape[1] - 1)[None], axis=2); "
        "s = jnp.where((j <= i) & (mine | (i - j < 3)), jnp.einsum('bqhd,bshd->bhqs', q, k) + near, -jnp.inf); "
        "y = jnp.einsum('bhqs,bshe->bqhe', jax.nn.softmax(s), v)",
        {"B": 2, "Q": 20, "S": 18, "H": 3, "D": 8, "E": 8, "N": 3, "M": 6},
    ),
    "elements": (
        "x: T[B, Q, H]; t: T[H, N, Q]", "T[B, Q, H]", "y = x * take(t, index(Q) // 2 + index(B), axis=N)",
        "i = jnp.arange(x.shape[1]) // 2 + jnp.arange(x.shape[0])[:, None]; "
        "y = x * jnp.take_along_axis(t.transpose(1, 2, 0), jnp.clip(i, 0, t.shape[1] - 1)[..., None], axis=0)",
        {"B": 3, "Q": 5, "H": 4, "N": 3},
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "implementation"),
    [("elements", "interpret"), ("scores", "xla"), *((("scores", "interpret"), ("elements", "xla")) if EVERY else ())],
)
def test_the_order_of_a_tables_axes_is_its_own(name, implementation, tmp_path):
    inputs, output, chain, reference, sizes = OTHER_ORDERS[name]
    op = make_op(tmp_path, spec_text(inputs, f"y: {output}", chain, reference, types="{T: [bfloat16]}"))
    made = Case(Types((("T", "bfloat16"),)), (), tuple(sizes.items()), (), (), False, 1.0, 0)
    testing.check_case(op, implementation, made)
    check_gradient_case(op, implementation, made)
