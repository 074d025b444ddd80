"""`shift`: along the last axis, a middle one, the first; of computed values; gradients by the opposite shift."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from codegen.autodiff.backward import Derived
from codegen.checking import testing
from codegen.runtime.call import arguments
from tests.making import make_op, spec_text
from tests.meshes import P, make_mesh, normal, put
from tests.turns import EVERY, some

OPS = {
    "computed": spec_text(
        "x: float32[B, S, N]; w: float32[S, N]; m: bool[B, S]; i: int32[B, S]", "y: float32[B, S, N]; k: int32[B, S]",
        "z = exp(x * w); y = maximum(z, shift(z, axis=S, by=2, fill=-inf)) + shift(shift(z, axis=N, by=-1) * w, axis=S, by=-1); "
        "k = where(shift(m, axis=S, fill=1), shift(i * index(S), axis=B, by=1, fill=7), 0)",
        "z = jnp.exp(x * w); a = jnp.pad(z, ((0, 0), (2, 0), (0, 0)), constant_values=-jnp.inf)[:, :x.shape[1]]; "
        "b = jnp.pad(z, ((0, 0), (0, 0), (0, 1)))[:, :, 1:] * w; y = jnp.maximum(z, a) + jnp.pad(b, ((0, 0), (0, 1), (0, 0)))[:, 1:]; "
        "p = jnp.pad(m, ((0, 0), (1, 0)), constant_values=True)[:, :x.shape[1]]; "
        "k = jnp.where(p, jnp.pad(i * jnp.arange(x.shape[1]), ((1, 0), (0, 0)), constant_values=7)[:x.shape[0]], 0)",
    ),
    "other_order": spec_text(
        "x: float32[B, S, H]; v: float32[B, S, H]", "y: float32[B, H, S]",
        "y = x - shift(x, axis=S) + shift(v, axis=H, by=2)",
        "a = jnp.pad(x, ((0, 0), (1, 0), (0, 0)))[:, :x.shape[1]]; b = jnp.pad(v, ((0, 0), (0, 0), (2, 0)))[:, :, :x.shape[2]]; "
        "y = (x - a + b).swapaxes(1, 2)",
    ),
    "parts": spec_text(
        "x: float32[B, S, (N 2)]; b: float32[S] = 0", "y: float32[B, S, (2 N)]",
        "y[0] = shift(x[1], axis=S); y[1] = x[0] + shift(b, axis=S, fill=3)",
        "a = jnp.pad(x, ((0, 0), (1, 0), (0, 0)))[:, :x.shape[1]]; "
        "c = jnp.pad(jnp.broadcast_to(b, (x.shape[1],)), (1, 0), constant_values=3)[:x.shape[1], None]; "
        "y = jnp.concatenate([a[:, :, 1::2], x[:, :, ::2] + c], -1)",
    ),
    "reduced": spec_text(
        "x: float32[B, S, N]; w: float32[N]", "y: float32[B, S, N]; m: float32[B]",
        "z = x - 0.5 * shift(x, axis=S) + 0.25 * shift(w * x, axis=N, by=-2, fill=1); m = mean(square(z), axis=(S, N)) + 0.1; "
        "y = z * rsqrt(m)",
        "a = jnp.pad(x, ((0, 0), (1, 0), (0, 0)))[:, :x.shape[1]]; "
        "b = jnp.pad(w * x, ((0, 0), (0, 0), (0, 2)), constant_values=1)[:, :, 2:]; z = x - 0.5 * a + 0.25 * b; "
        "m = jnp.mean(jnp.square(z), axis=(1, 2)) + 0.1; y = z / jnp.sqrt(m)[:, None, None]",
    ),
    "scanned": spec_text(
        "x: float32[B, S]", "y: float32[B, S]",
        "y = cumsum(tanh(shift(x, axis=S, by=2)) - shift(x, axis=B, by=-1, fill=1), axis=S, reverse=true)",
        "a = jnp.pad(x, ((0, 0), (2, 0)))[:, :x.shape[1]]; b = jnp.pad(x, ((0, 1), (0, 0)), constant_values=1)[1:]; "
        "y = jnp.cumsum((jnp.tanh(a) - b)[:, ::-1], 1)[:, ::-1]",
    ),
    "of_a_scan_and_of_takes": spec_text(
        "x: float32[B, S]; t: float32[P, S]; i: int32[B]", "y: float32[B, S]",
        "c = cumsum(x * shift(take(t, i, axis=P), axis=S, by=-1, fill=2.0), axis=S); y = shift(c, axis=S, by=2) * shift(take(t, i + 1, axis=P), axis=S)",
        "u = jnp.take(t, i, 0, mode='clip'); v = jnp.take(t, i + 1, 0, mode='clip'); n = x.shape[1]; "
        "c = jnp.cumsum(x * jnp.pad(u, ((0, 0), (0, 1)), constant_values=2.0)[:, 1:], 1); "
        "y = jnp.pad(c, ((0, 0), (2, 0)))[:, :n] * jnp.pad(v, ((0, 0), (1, 0)))[:, :n]",
        more="domain: {i: index(P)}\n",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "implementation"), [*((n, "interpret") for n in some(OPS, 3)), *((n, "xla") for n in OPS)]
)
def test_values(tmp_path, name, implementation):
    testing.check_op(make_op(tmp_path, OPS[name]), implementation, examples=5 if EVERY else 3)


def test_gradients_of_a_shifted_scan_and_of_shifted_tables(tmp_path):
    op = make_op(tmp_path, OPS["of_a_scan_and_of_takes"])
    assert isinstance(op.backward, Derived), op.backward
    testing.check_gradient(op, "interpret", examples=2 if EVERY else None)


def test_a_difference_and_its_gradient(tmp_path, kernels):
    text = spec_text(
        "x: float32[..., N]", "y: float32[..., N]", "y = shift(x, axis=N, by=-1) - shift(x, axis=N, by=2, fill=5)"
    )
    op, x, dy = make_op(tmp_path, text), normal(8, 16), normal(8, 16, seed=1)

    def plain(x):
        after = jnp.concatenate([x[:, 1:], 0 * x[:, :1]], 1)
        return after - jnp.concatenate([jnp.full_like(x[:, :2], 5), x[:, :-2]], 1)

    expected, pull = jax.vjp(plain, x)
    got, own = jax.vjp(lambda x: op(x, implementation="interpret"), x)
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_allclose(own(dy)[0], pull(dy)[0], rtol=1e-6)
    assert [made.plan.kind for made in op.own_kernels] == ["elementwise"] and op._backward.generated
    for spec in (P("a", "b"), P(None, "a")):
        np.testing.assert_array_equal(jax.jit(op)(put(make_mesh(), x, spec)), expected)
    np.testing.assert_array_equal(jax.vmap(op)(x[:, None])[:, 0], expected)


def test_a_block_has_vectors_of_rows_that_read_each_other(tmp_path):
    """Where whole blocks of vectors fill a row; else a block has vectors that follow each other."""
    chain = "y = shift(x, axis=S, by=3) - shift(x, axis=S, by=2) + shift(x, axis=S, by=-1)"
    op = make_op(tmp_path, spec_text("x: T[B, S, N]", "y: T[B, S, N]", chain, types="{T: [float32, bfloat16]}"))
    for batch, size, columns, rows in ((3, 7, 256, 8), (1, 16, 384, 8), (1, 1, 128, 8), (2, 5, 96, 1)):
        x = normal(batch, size, columns).astype(jnp.float32)
        how = op.launch_for(*op_call(op, x))
        assert how.rows == rows
        near = np.pad(x, ((0, 0), (3, 1), (0, 0)))
        expected = near[:, :size] - near[:, 1 : size + 1] + near[:, 4 : size + 4]
        np.testing.assert_array_equal(op(x, implementation="interpret"), expected)


def op_call(op, x):
    """The types and axes of a call with one array."""
    key, operands = op.bind((x,), {})
    return key.types, arguments.bind_axes(op.spec, op.arrays(key, operands))
