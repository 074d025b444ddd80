"""Gradients of reductions, scans and selections of rows with equal elements, zeros, large numbers, infinities and NaN, against those of jnp."""

import re

import jax
import jax.numpy as jnp
import numpy as np

from tests.making import make_op, spec_text

NAN, INF = np.nan, np.inf
ROWS = np.float32([
    [1, 2, 3, 4, 0, -1, 2, 0.5], [3, 3, 3, 3, 3, 3, 3, 3], [5, 1, 5, 1, 5, 1, 5, 1], [0, -0.0, 0, -0.0, 0, 0, -0.0, 0],
    [-0.0, -0.0, -0.0, -0.0, -0.0, -0.0, -0.0, -0.0], [NAN, 1, 2, 3, 4, 5, 6, 7], [1, 2, NAN, INF, -INF, 0, 5, 3],
    [-INF, -INF, -INF, -INF, -INF, -INF, -INF, -INF], [-INF, 1, 2, -INF, 3, 4, 5, 5], [0, 2, 3, 4, 1, INF, 1, 1],
    [0, 2, 3, 0, 1, 1, 1, 1], [100, 89, 88, -104, 0, 0, 0, 0], [NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN],
    [10000.01, 10000.02, 9999.99, 10000.03, 1e4, 9999.98, 10000.02, 10000.05], [-3e4, -3e4, -3e4, -3e4, -3e4, -3e4, -3e4, -3e4],
])  # fmt: skip
WORDS = {
    "max(x, axis=N)": lambda x: x.max(), "min(x, axis=N)": lambda x: x.min(), "prod(x, axis=N)": lambda x: x.prod(),
    "sum(where(x > 0, x, 0), axis=N)": lambda x: jnp.where(x > 0, x, 0).sum(), "mean(x, axis=N)": lambda x: x.mean(),
    "max(abs(x), axis=N)": lambda x: jnp.abs(x).max(), "std(x, axis=N)": lambda x: x.std(),
    "norm(x, axis=N)": jnp.linalg.norm, "logsumexp(x, axis=N)": jax.scipy.special.logsumexp,
    "softmax(x, axis=N)": jax.nn.softmax, "log_softmax(x, axis=N)": jax.nn.log_softmax,
    "x - max(x, axis=N)": lambda x: x - x.max(), "cumsum(x, axis=N)": jnp.cumsum, "cumprod(x, axis=N)": jnp.cumprod,
    "sort(x, axis=N)": jnp.sort, "mean(top_k(x, K=3, axis=N), axis=K)": lambda x: jax.lax.top_k(x, 3)[0].mean(),
}  # fmt: skip
# Where an element is infinite or NaN, jnp has NaN at other places too
FINITE = ("cumprod(x, axis=N)", "std(x, axis=N)")


def check(folder, words, implementation):
    """An op with each word's result as an output, of inputs of its own, has jnp's values and gradients."""
    rank = [jax.eval_shape(f, ROWS[0]).ndim for f in words.values()]
    text = spec_text(
        "; ".join(f"x{i}: float32[B, N]" for i in range(len(words))),
        "; ".join(f"y{i}: float32[{'B, N' if n else 'B'}]" for i, n in enumerate(rank)),
        "; ".join(f"y{i} = " + re.sub(r"\bx\b", f"x{i}", word) for i, word in enumerate(words)),
    )
    op = make_op(folder, text)
    given = [jnp.asarray(ROWS)] * len(words)
    made, pull = jax.vjp(lambda *x: tuple(op(*x, implementation=implementation)), *given)
    cotangents = tuple(jnp.linspace(1, 2, y.size).reshape(y.shape) for y in made)
    for (word, f), y, slope, g in zip(words.items(), made, pull(cotangents), cotangents, strict=True):
        left = np.isfinite(ROWS).all(1) if word in FINITE else np.full(len(ROWS), True)
        expected, own = jax.vjp(jax.vmap(f), ROWS)
        for got, wanted in ((y, expected), (slope, own(g)[0])):
            np.testing.assert_allclose(got[left], wanted[left], 1e-4, 1e-6, err_msg=word)


def test_gradients_of_special_rows(tmp_path):
    check(tmp_path, WORDS, "xla")


def test_gradients_of_special_rows_in_a_kernel(tmp_path):
    alike = (
        "max(x, axis=N)",
        "min(x, axis=N)",
        "prod(x, axis=N)",
        "logsumexp(x, axis=N)",
        "softmax(x, axis=N)",
        "std(x, axis=N)",
    )
    check(tmp_path, {word: WORDS[word] for word in alike}, "interpret")
