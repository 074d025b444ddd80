"""`take` at a computed index: values at and beyond the ends, and gradients."""

import jax
import jax.numpy as jnp
import numpy as np

from codegen.checking import testing
from tests.making import make_op, spec_text
from tests.meshes import normal

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
    slope = jax.grad(lambda b: jnp.sum(op(code, b, flag, implementation="interpret").y))(book)
    np.testing.assert_array_equal(slope, [[1, 1, 1], [1, 0, 0], [0, 1, 1]])
