"""Reductions of a product that begin within its tiles, interpreted or on a GPU: each against its own reference."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import generated
from codegen.checking import testing
from codegen.plan.gemms.tiles import Tile
from codegen.runtime.call.arguments import Axes, Types
from codegen.runtime.compiled import interpreted
from codegen.shared import AmpereTiles
from tests.making import make_op, spec_text

# Name: inputs, outputs, chain, reference
OPS: dict[str, tuple[str, str, str, str]] = {
    "along_over_and_all": (
        "x: T[..., K]; w: T[K, N]; s: float32[...]; g: T[..., N] = 1",
        "z: T[..., N]; low: float32[...]; m: float32[...]; t: float32[]; dg: float32[N]; top: float32[N]",
        "z = x @ w; low = min(z, axis=N) * s; m = mean(z * g, axis=N) + s; t = sum(square(z), axis=(..., N)); "
        "dg = sum(z * g, axis=...) * 2; top = max(z, axis=...)",
        "z = x @ w; h = z * (jnp.ones(z.shape[-1:], z.dtype) * g); low = z.min(-1) * s; m = h.mean(-1) + s; t = (z * z).sum(); "
        "over = (0, 1, 2)[: z.ndim - 1]; dg = 2 * h.sum(over); top = jnp.max(z, axis=over)",
    ),
    "sums": (
        "x: T[..., K]; w: T[K, N]", "z: T[..., N]; s: float32[...]; c: float32[N]; t: float32[]",
        "z = x @ w; s = sum(z, axis=N); c = sum(z, axis=...); t = sum(square(z), axis=(..., N))",
        "z = x @ w; s = z.sum(-1); c = z.sum((0, 1, 2)[: z.ndim - 1]); t = (z * z).sum()",
    ),
    "batches": (
        "q: T[B, H, S, D]; k: T[B, H, P, D]",
        "y: T[B, H, S, P]; lse: float32[B, H, S]; c: float32[B, H, P]; t: float32[H]",
        "y = q @ k; lse = logsumexp(0.5 * y, axis=P); c = sum(abs(y), axis=S); t = max(y, axis=(B, S, P))",
        "y = jnp.einsum('bhsd,bhpd->bhsp', q, k); lse = jax.nn.logsumexp(0.5 * y, axis=-1); c = jnp.abs(y).sum(2); "
        "t = y.max((0, 2, 3))",
    ),
    "integers_and_bools": (
        "x: int8[..., K]; w: int8[N, K]; low: int32[...]",
        "z: int32[..., N]; s: int32[...]; top: int32[...]; p: int32[...]; c: int32[N]; least: int32[N]; above: bool[...]; "
        "bounded: bool[]; far: bool[N]; m: T[...]",
        "z = x @ w; s = sum(z, axis=N); top = max(z, axis=N); p = prod(where(z > 9, -1, 1), axis=N) * 2; c = sum(z, axis=...); "
        "least = min(z, axis=...); above = any(z > low, axis=N); bounded = all(abs(z) < 100, axis=(..., N)); "
        "far = any(z > 30, axis=...); m = mean(z, axis=N)",
        "z = x @ w.T; s = z.sum(-1); top = z.max(-1); p = jnp.where(z > 9, -1, 1).prod(-1) * 2; "
        "over = (0, 1, 2)[: z.ndim - 1]; c = z.sum(over); least = z.min(over); above = (z > low[..., None]).any(-1); "
        "bounded = (jnp.abs(z) < 100).all(); far = (z > 30).any(over); m = z.mean(-1)",
    ),
    "products_of_rows": (
        "x: T[..., K]; w: T[K, N]", "z: T[..., N]; p: float32[...]; c: float32[N]",
        "z = x @ w; p = prod(1 + 0.125 * z, axis=N); c = prod(1 - 0.125 * z, axis=...)",
        "z = x @ w; p = (1 + 0.125 * z).prod(-1); c = (1 - 0.125 * z).prod((0, 1, 2)[: z.ndim - 1])",
    ),
    "halves": (
        "x: T[..., K]; w: T[K, (2 N)]", "y: T[..., N]; amax: float32[...]",
        "y = silu(x @ w[0]) * (x @ w[1]); amax = max(abs(y), axis=N)",
        "a, b = jnp.split(x @ w, 2, axis=-1); y = jax.nn.silu(a) * b; amax = jnp.abs(y).max(-1)",
    ),
    "softmax_statistics": (
        "x: T[..., K]; w: T[N, K]", "z: T[..., N]; top: float32[...]; total: float32[...]",
        "z = x @ w; top = max(z, axis=N); total = sum(exp2(3 * (z - top)), axis=N)",
        "z = x @ w.T; top = z.max(-1); total = jnp.exp2(3 * (z - top[..., None])).sum(-1)",
    ),
    # no output has a tile's axes, and only the factors are read
    "nothing_else": (
        "x: T[..., K]; w: T[K, N]", "lse: float32[...]", "lse = logsumexp(x @ w, axis=N)",
        "lse = jax.nn.logsumexp(x @ w, axis=-1)",
    ),
    # K follows M and N; no array says whether N is next to M
    "weights_of_columns_and_named_rows": (
        "x: T[S, M, K]; w: T[N, K]", "lse: float32[S, M]", "lse = logsumexp(x @ w, axis=N)",
        "lse = jax.nn.logsumexp(x @ w.T, axis=-1)",
    ),
    "exponentials_of_everything": (
        "x: T[B, M, K]; w: T[K, N]", "lse: float32[]", "lse = logsumexp(x @ w, axis=(B, M, N))",
        "lse = jax.nn.logsumexp(x @ w)",
    ),
    "exponentials_of_a_batch": (
        "x: T[B, M, K]; w: T[K, N]", "lse: float32[B]", "lse = logsumexp(2 * (x @ w), axis=(M, N))",
        "lse = jax.nn.logsumexp(2 * (x @ w), axis=(1, 2))",
    ),
    "two_products": (
        "x: T[..., K]; w: T[K, N]; v: T[K, N]", "s: float32[...]", "s = sum(silu(x @ w) * (x @ v), axis=N)",
        "s = jnp.sum(jax.nn.silu(x @ w) * (x @ v), axis=-1)",
    ),
}  # fmt: skip


def made(folder, name: str, types: str = "{T: [float32, bfloat16]}"):
    inputs, outputs, chain, reference = OPS[name]
    text = spec_text(inputs, outputs, chain, reference, types=types)
    return make_op(folder, text.replace("op: made", f"op: {name}"))


@pytest.mark.turns(2)
@pytest.mark.parametrize("name", OPS)
def test_parts_of_tiles_agree_with_the_reference(name, tmp_path):
    types = ("{T: [float32]}", "{T: [bfloat16]}")[list(OPS).index(name) % 2]
    op = made(tmp_path, name, types)
    assert isinstance(op.plan.tile, Tile) and op.plan.tile.folds
    testing.check_op(op, testing.IMPLEMENTATIONS[1])


@pytest.mark.parametrize("dtype", ["float32[...]", "T[...]"])
def test_the_gradient_of_a_maximum_finds_it_among_what_is_kept(dtype, tmp_path):
    """The saved products are not rounded; else no element would equal the maximum."""
    text = spec_text(
        "x: T[..., K]; w: T[K, N]", f"top: {dtype}", "top = max(x @ w, axis=N)", "top = jnp.max(x @ w, axis=-1)",
        types="{T: [float32, bfloat16]}",
    )  # fmt: skip
    op = make_op(tmp_path, text)
    x, w = (
        jax.random.normal(jax.random.key(i), shape).astype("bfloat16") for i, shape in enumerate([(5, 16), (16, 24)])
    )
    dx = jax.grad(lambda x: op(x, w, implementation="interpret").astype("float32").sum())(x)
    wanted = jax.grad(lambda x: jnp.max(x @ w.astype("float32"), axis=-1).sum())(x.astype("float32"))
    np.testing.assert_allclose(dx.astype("float32"), wanted, rtol=2**-7)


@pytest.mark.parametrize("x64", [False, True])
def test_integers_wrap_as_they_do_in_jnp(x64, tmp_path):
    """Also where JAX would add int32 up in int64."""
    text = spec_text(
        "x: int8[..., K]; w: int8[N, K]", "s: int32[...]; p: int32[...]",
        "z = x @ w; s = 2 * sum(z * 30000000, axis=N); p = prod(2 * z + 1, axis=N)",
    )  # fmt: skip
    random = np.random.default_rng(0)
    x, w = (random.integers(-3, 3, shape).astype(np.int8) for shape in ((8, 16), (40, 16)))
    z = x.astype(np.int32) @ w.T.astype(np.int32)
    with jax.enable_x64(x64):
        s, p = make_op(tmp_path, text)(x, w, implementation="interpret")
    np.testing.assert_array_equal(s, 2 * (z * 30_000_000).sum(-1, dtype=np.int32))
    np.testing.assert_array_equal(p, (2 * z + 1).prod(-1, dtype=np.int32))


def test_what_follows_folds_knows_uint32(tmp_path):
    """It is computed in int64, also if JAX has no int64."""
    text = spec_text(
        "x: float32[..., K]; w: float32[N, K]; u: uint32[...]", "y: uint32[...]; q: uint32[...]",
        "z = x @ w; y = where(any(z > 4, axis=N), u, 1); q = where(max(z, axis=N) > 4, u, 1)",
    )  # fmt: skip
    random, u = np.random.default_rng(0), np.arange(2**32 - 8, 2**32, dtype=np.uint32)
    x, w = (random.integers(-3, 3, shape).astype(np.float32) for shape in ((8, 4), (4, 4)))
    expected = np.where((x @ w.T > 4).any(-1), u, 1)
    assert 0 < (expected == 1).sum() < 8
    for got in make_op(tmp_path, text)(x, w, u, implementation="interpret"):
        np.testing.assert_array_equal(got, expected)


def test_one_kernel_leaves_the_parts(tmp_path):
    op = made(tmp_path, "softmax_statistics")
    x, w = np.eye(40, dtype="float32"), np.full((100, 40), 2, "float32")
    got = op(x, w, implementation="interpret")
    assert len(interpreted.last_reports()) == 1
    assert got.top.tolist() == [2] * 40 and got.total.tolist() == [100] * 40


@pytest.mark.parametrize(
    ("name", "fast"), [("dense_amax", True), ("logits_logsumexp", True), ("matmul_drelu_dbias", True), ("matmul_dgelu_dbias", True)]
)  # fmt: skip
def test_what_is_one_kernel_by_default(name, fast):
    op = getattr(generated, name)
    sizes = Axes((512,), {axis: 512 for axis in op.spec.axes if axis != "..."})
    assert op.launch_for(Types((("T", "bfloat16"),)), sizes, arch="sm_90a").fast == fast


def test_a_maximum_that_rises_within_a_lane(tmp_path, monkeypatch):
    """Tiles so wide that a lane has several vectors of a row."""
    wide = AmpereTiles(32, 128, 32, warps_m=2, warps_n=1, stages=2)
    monkeypatch.setattr(Tile, "small", lambda self: wide)
    op = made(tmp_path, "softmax_statistics")
    w = np.arange(200, dtype="float32")[:, None] / 16  # exact in bfloat16
    got = op(jnp.array([[1], [-1]], "bfloat16"), w.astype("bfloat16"), implementation="interpret")
    expected = np.exp2(-3 * np.arange(200, dtype="float64") / 16).sum()
    assert got.top.tolist() == [199 / 16, 0]
    np.testing.assert_allclose(got.total, expected, rtol=1e-5)


@pytest.mark.parametrize(("rows", "columns", "inner"), [(0, 5, 3), (5, 0, 3), (5, 7, 0)])
def test_folds_of_nothing(rows, columns, inner, tmp_path):
    op = made(tmp_path, "sums")
    got = op(np.ones((rows, inner), "float32"), np.ones((inner, columns), "float32"), implementation="interpret")
    assert (got.s == columns * inner).all() and got.s.shape == (rows,)
    assert (got.c == rows * inner).all() and got.c.shape == (columns,)
    assert got.t == rows * columns * inner**2


def test_rows_that_are_not_finite(tmp_path):
    """A tile of only -inf, an infinity, and NaN, each in one of a row's tiles."""
    op = made(tmp_path, "softmax_statistics")
    w = np.ones((100, 1), "float32")
    w[:64] = np.inf
    x = np.array([[-1.0], [1.0], [np.nan], [-np.inf]], "float32")
    got = op(x, w, implementation="interpret")
    assert got.top[0] == -1 and got.total[0] == 36  # 64 columns of -inf
    assert got.top[1] == np.inf and np.isnan(got.top[2]) and got.top[3] == -np.inf


def test_a_sum_of_a_function_of_16_bit_products_takes_the_cheaper_form(tmp_path):
    """Rounding a factor to bfloat16 may move each term by 2**-9 of itself, the cheaper tanh by 2**-16. Float32 factors get neither."""
    text = spec_text(
        "x: T[..., K]; w: T[K, N]", "s: float32[...]", "s = sum(tanh(x @ w), axis=N)", "s = jnp.tanh(x @ w).sum(-1)",
        types="{T: [float32, bfloat16]}",
    )  # fmt: skip
    op = make_op(tmp_path, text)
    x, w = np.array([[1, 1], [4, 8], [16, -16.5]], "float32"), np.full((2, 40), 5 / 128, "float32")  # exact in bfloat16
    exact = np.tanh(x.astype("float64") @ w.astype("float64")).sum(-1)
    errors = {}
    for dtype in ("bfloat16", "float32"):
        got = op(jnp.asarray(x, dtype), jnp.asarray(w, dtype), implementation="interpret")
        errors[dtype] = np.max(abs(got - exact) / abs(exact))
        assert len(interpreted.last_reports()) == 1  # one kernel
    assert 2.0**-20 < errors["bfloat16"] < 2.0**-16
    assert errors["float32"] < 2.0**-21


def test_exponentials_over_rows_are_summed_after_the_product(tmp_path):
    chain = "z = x @ w; rows = logsumexp(z, axis=N); columns = logsumexp(z, axis=M)"
    outputs = "rows: float32[M]; columns: float32[N]"
    op = make_op(tmp_path, spec_text("x: bfloat16[M, K]; w: bfloat16[N, K]", outputs, chain, "rows = x; columns = x"))
    assert "follow the maximum of each column" in str(op.plan.tile)
    x, w = (jnp.asarray(np.random.default_rng(0).normal(size=(n, 8)), jnp.bfloat16) for n in (3, 5))
    rows, columns = op(x, w, implementation="interpret")
    z = np.float64(x) @ np.float64(w).T
    np.testing.assert_allclose(rows, np.log(np.exp(z).sum(1)), rtol=1e-4)
    np.testing.assert_allclose(columns, np.log(np.exp(z).sum(0)), rtol=1e-4)
