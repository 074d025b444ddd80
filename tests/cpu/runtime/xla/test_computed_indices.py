"""`take` at a computed index: values at and beyond the ends, and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from codegen.autodiff.backward import Derived
from codegen.checking import testing
from codegen.checking.testing import check_gradient
from tests.making import make_op, spec_text
from tests.meshes import normal
from tests.turns import some

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
