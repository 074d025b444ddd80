"""Element-wise kernels in which an expensive value is the same in all rows: a thread computes it once for several rows."""

import jax.numpy as jnp
import numpy as np
import pytest

from codegen.plan.launches import Extents, PlannedCall
from tests.making import make_op, spec_text
from tests.meshes import normal

TYPES = "{T: [float32, bfloat16]}"
HILL = (
    "x: T[..., N]; k: float32[N]; n: float32[N]", "y: T[..., N]", "a = abs(x) ** n; y = a / (abs(k) ** n + a + 0.5)",
    "a = jnp.abs(x) ** n; y = a / (jnp.abs(k) ** n + a + 0.5)",
)  # fmt: skip
CHEAP = ("x: T[..., N]; k: float32[N]", "y: T[..., N]", "y = x * rsqrt(k * k + 1)", "y = x / jnp.sqrt(k * k + 1)")
OF_ROWS = (
    "x: T[B, S, N]; k: float32[S, N]; w: T[B, S]", "y: T[B, S, N]", "y = x * abs(k) ** 1.7 * w",
    "y = x * jnp.abs(k) ** 1.7 * w[..., None]",
)  # fmt: skip
CODES = (
    "x: T[B, S, N]; w: T[B, S]", "y: T[B, S, N]", "a = index(S) * 100.0 ** (-index(N) / size(N)); y = x * w + sin(a) + cos(a)",
    "a = jnp.arange(5.0)[:, None] * 100.0 ** (-jnp.arange(16.0) / 16); y = x * w[..., None] + jnp.sin(a) + jnp.cos(a)",
)  # fmt: skip


def launch(op, rows, columns):
    dtypes = {a.name: "bfloat16" if a.dtype == "T" else a.dtype for a in op.spec.arrays}
    return op.plan.launch(
        PlannedCall(dtypes, Extents(columns, rows * columns, columns, rows, outer=rows // 8), arch="sm_90a")
    )


@pytest.mark.parametrize(("text", "repeats"), [(HILL, "rows"), (CHEAP, ""), (OF_ROWS, "outer")])
def test_which_values_are_computed_again(tmp_path, text, repeats):
    op = make_op(tmp_path, spec_text(*text, types=TYPES))
    assert (op.plan.repeats, op.plan.reads_rows) == (repeats, bool(repeats))
    many, few = launch(op, 2**15, 4096), launch(op, 16, 4096)
    assert (many.down, many.rows) == {"rows": (4, 8), "outer": (4, 1), "": (1, 1)}[repeats]
    assert few.down == 1


@pytest.mark.parametrize(("rows", "columns"), [(6, 512), (5, 24), (3, 7)])
def test_values(tmp_path, rows, columns):
    """Of rows that fill blocks, and of others."""
    op = make_op(tmp_path, spec_text(*HILL, types=TYPES))
    x, k, n = normal(rows, columns).astype(jnp.bfloat16), normal(columns), abs(normal(columns)) + 0.5
    got = op(x, k, n, implementation="interpret")
    expected = op.reference(jnp.float32(x), k, n)
    np.testing.assert_allclose(np.float32(got), expected, rtol=2**-7, atol=2**-7)


def test_threads_of_several_rows(tmp_path, monkeypatch):
    op = make_op(tmp_path, spec_text(*HILL, types=TYPES))
    monkeypatch.setattr("codegen.plan.elementwise.BUSY", 16)
    monkeypatch.setattr("codegen.plan.elementwise.MANY_ROWS", 8)
    assert launch(op, 40, 256).down == 4
    x, k, n = normal(40, 256).astype(jnp.bfloat16), normal(256), abs(normal(256)) + 0.5
    got = op(x, k, n, implementation="interpret")
    np.testing.assert_allclose(np.float32(got), op.reference(jnp.float32(x), k, n), rtol=2**-7, atol=2**-7)


def test_threads_of_several_outermost_positions(tmp_path, monkeypatch):
    """What a code costs that each batch has: its place and its frequency are axes of their own."""
    op = make_op(tmp_path, spec_text(*CODES, types=TYPES))
    assert op.plan.repeats == "outer"
    monkeypatch.setattr("codegen.plan.elementwise.BUSY", 16)
    dtypes = {a.name: "bfloat16" for a in op.spec.arrays}
    several, odd = (
        op.plan.launch(PlannedCall(dtypes, Extents(16, b * 5 * 16, 16, b * 5, outer=b), arch="sm_90a")).down
        for b in (8, 7)
    )
    assert (several, odd) == (4, 1)
    for b in (8, 6, 7):
        x, w = normal(b, 5, 16).astype(jnp.bfloat16), normal(b, 5).astype(jnp.bfloat16)
        got = op(x, w, implementation="interpret")
        expected = op.reference(jnp.float32(x), jnp.float32(w))
        np.testing.assert_allclose(np.float32(got), expected, rtol=2**-7, atol=2**-7)


NEAR = (
    "x: T[B, S, N]; g: T[B, S, N]; w: float32[N]; k: float32[S, N]", "y: T[B, S, N]",
    "v = x * sigmoid(g * k) * w; a = v + shift(v, axis=S, by=1) - shift(v, axis=S, by=-2); y = tanh(a) - shift(tanh(a), axis=S, by=1)",
    """
    v = x * jax.nn.sigmoid(g * k) * w
    p = jnp.pad(v, ((0, 0), (1, 2), (0, 0)))
    a = v + p[:, :-3] - p[:, 3:]
    y = jnp.tanh(a) - jnp.pad(jnp.tanh(a), ((0, 0), (1, 0), (0, 0)))[:, :-1]
    """,
)  # fmt: skip


@pytest.mark.parametrize(("batch", "columns", "down"), [(8, 512, 8), (12, 64, 4), (3, 512, 1), (8, 24, 1)])
def test_values_of_neighbouring_rows(tmp_path, monkeypatch, batch, columns, down):
    """A thread's rows may be of two batches; what is past the end of one of them is not used."""
    op = make_op(tmp_path, spec_text(*NEAR, types=TYPES))
    monkeypatch.setattr("codegen.plan.elementwise.BUSY", 16)
    dtypes = {a.name: "bfloat16" if a.dtype == "T" else a.dtype for a in op.spec.arrays}
    sizes = Extents(columns, batch * 5 * columns, columns, batch * 5, outer=batch)
    assert op.plan.launch(PlannedCall(dtypes, sizes, arch="sm_90a")).down == down
    assert [tuple(value.places.values()) for value in op.plan.nearby] == [(0, 1, -2, 2, -1)]
    x, g = (normal(batch, 5, columns).astype(jnp.bfloat16) for _ in range(2))
    w, k = normal(columns), normal(5, columns)
    got = op(x, g, w, k, implementation="interpret")
    expected = op.reference(jnp.float32(x), jnp.float32(g), w, k)
    np.testing.assert_allclose(np.float32(got), expected, rtol=2**-6, atol=2**-6)
