"""Kernels that reduce over several sets of axes, interpreted: each against its own reference."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from codegen.checking import draw, testing
from codegen.checking.expected import error_bounds
from codegen.plan.launches import Extents, PlannedCall
from codegen.plan.rows.launching.walking import in_parts
from codegen.runtime.call.arguments import Types
from codegen.runtime.compiled import interpreted
from tests.making import make_op, spec_text
from tests.turns import some

TYPES = ("{T: [float32]}", "{T: [bfloat16]}")  # in turns
OVER = "over = (0, 1, 2)[: x.ndim - 1]; "

# Name: inputs, outputs, chain, reference, and more of the spec
OPS: dict[str, tuple[str, ...]] = {
    "total_beside_columns": (
        "dy: T[..., N]; x: T[..., N]; scale: float32[]", "dx: T[..., N]; dbias: T[N]; dscale: float32[]",
        "dx = dy * scale; dbias = sum(dy, axis=...); dscale = sum(dy * x, axis=(..., N))",
        OVER + "dx = dy * scale; dbias = dy.sum(over); dscale = (dy * x).sum()",
    ),
    "total_beside_elements": (
        "dy: T[..., N]; x: T[..., N]; scale: float32[]", "dx: T[..., N]; dscale: float32[]",
        "dx = dy * scale; dscale = sum(dy * x, axis=(..., N))", "dx = dy * scale; dscale = (dy * x).sum()",
    ),
    "totals_of_rows_and_columns": (
        "x: T[..., N]; s: float32[...]; w: T[N] = 1", "y: float32[]; m: float32[]",
        "y = sum(x * w * s, axis=(..., N)); m = mean(x, axis=(..., N)) * 2",
        "y = (x * w * s[..., None]).sum(); m = 2 * jnp.mean(x)",
    ),
    "halves": (
        "x: T[..., (2 N)]; g: T[..., N]", "y: float32[]; dx: T[..., (2 N)]; db: float32[(2 N)]",
        "y = sum(x[0] * g, axis=(..., N)); dx[0] = x[1] * g; dx[1] = x[0]; db[0] = sum(x[0], axis=...); "
        "db[1] = sum(x[1] * g, axis=...)",
        OVER + "a, b = jnp.split(x, 2, axis=-1); y = (a * g).sum(); dx = jnp.concatenate([b * g, a], -1); "
        "db = jnp.concatenate([a.sum(over), (b * g).sum(over)])",
    ),
    "pairs": (
        "x: T[..., (N 2)]; w: T[(N 2)]", "y: float32[]; dx: T[..., (N 2)]; db: float32[(N 2)]; dc: float32[N]",
        "y = max(x[0] * x[1], axis=(..., N)); dx[0] = x[1]; dx[1] = x[0] * 2; db[0] = sum(x[0], axis=...) * w[1]; "
        "db[1] = sum(x[1], axis=...) * w[0]; dc = min(x[0] - x[1], axis=...)",
        OVER + "a, b = x[..., ::2], x[..., 1::2]; y = jnp.max(a * b); dx = jnp.stack([b, 2 * a], -1).reshape(x.shape); "
        "db = jnp.stack([a.sum(over) * w[1::2], b.sum(over) * w[::2]], -1).reshape(-1); dc = jnp.min(a - b, axis=over)",
    ),
    "several_names": (
        "dy: T[B, S, D]; x: T[B, S, D]; w: T[D]", "dx: T[B, S, D]; dw: T[D]; ds: float32[S, D]; t: float32[]",
        "dx = dy * w; dw = sum(dy * x, axis=(B, S)); ds = sum(dy, axis=B); t = sum(x, axis=(B, S, D))",
        "dx = dy * w; dw = (dy * x).sum((0, 1)); ds = dy.sum(0); t = x.sum()",
    ),
    "few_rows_of_places": (
        "x: T[B, K, N]; w: float32[B, K]; b: T[N] = 1", "y: T[B, N]; m: float32[B, N]; z: T[B, K, N]; a: bool[B, N]",
        "z = x * w; y = sum(z, axis=K) * b; m = mean(x, axis=K); a = any(x > 1, axis=K)",
        "z = x * w[..., None]; y = z.sum(1) * b; m = x.sum(1) / jnp.maximum(0, x.shape[1]); a = (x > 1).any(1)",
    ),
    "few_rows_of_places_with_statistics": (
        "x: T[B, S, H, N]; bias: T[S, N]", "y: T[B, S, H, N]; s: float32[B, S, N]; t: float32[B, S, H]",
        "t = mean(x, axis=N); y = (x - t) * bias; s = sum(abs(x - t) * index(H), axis=H)",
        "t = x.sum(-1) / jnp.maximum(0, x.shape[-1]); d = x - t[..., None]; y = d * bias[:, None]; "
        "s = (jnp.abs(d) * jnp.arange(x.shape[2])[:, None]).sum(2)",
    ),
    "places": (
        "x: float32[..., N]", "y: float32[]; n: float32[]",
        "y = sum(where(index(N) < 3, x, 0), axis=(..., N)); n = sum(x / size(N), axis=(..., N))",
        "y = x[..., :3].sum(); n = x.sum() / jnp.maximum(1, x.shape[-1])",
    ),
    "one_axis": (
        "x: float32[(N 2)]", "y: float32[]; z: float32[N]", "y = sum(x[0] * x[1], axis=N); z = x[0] + 1",
        "y = (x[::2] * x[1::2]).sum(); z = x[::2] + 1",
    ),
    "total_of_row_statistics": (
        "x: T[..., N]; label: int32[...]", "loss: float32[]; top: float32[]; each: float32[...]",
        "lse = logsumexp(x, axis=N); picked = sum(where(index(N) == label, x, 0), axis=N); each = lse - picked; "
        "loss = mean(lse - picked, axis=...); top = max(x, axis=(..., N))",
        "each = jax.nn.logsumexp(x, axis=-1) - jnp.take_along_axis(x, label[..., None], -1)[..., 0]; "
        "loss = jnp.mean(each); top = jnp.max(x)",
        "domain: {label: index(N)}",
    ),
    "rows_columns_and_totals": (
        "dy: T[..., N]; x: T[..., N]; w: T[N]", "dx: T[..., N]; dw: T[N]; n: float32[]; q: bool[]",
        "r = rsqrt(mean(square(x), axis=N) + 1e-3); g = dy * w; dx = r * (g - x * r * mean(g * x * r, axis=N)); "
        "dw = sum(dy * x * r, axis=...); n = sum(square(dy), axis=(..., N)); q = any(x > 2, axis=(..., N))",
        OVER + "r = 1 / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-3); g = dy * w; "
        "dx = r * (g - x * r * (g * x * r).mean(-1, keepdims=True)); dw = (dy * x * r).sum(over); n = (dy * dy).sum(); "
        "q = jnp.any(x > 2)",
    ),
    "columns_kept_in_part": (
        "x: T[..., C, S]; b: float32[C]",
        "dx: T[..., C, S]; db: float32[C]; ds: float32[S]; dcs: float32[C, S]; m: float32[C]; t: float32[]",
        "dx = x * b; db = sum(x, axis=(..., S)) * b; ds = max(x, axis=(..., C)); dcs = sum(x * b, axis=...) * b; "
        "m = mean(x, axis=(..., S)); t = mean(x, axis=(..., C, S))",
        "over = (0, 1, 2)[: x.ndim - 2]; dx = x * b[:, None]; db = x.sum(over + (-1,)) * b; "
        "ds = jnp.max(x, axis=over + (-2,)); dcs = (x * b[:, None]).sum(over) * b[:, None]; "
        "m = jnp.mean(x, axis=over + (-1,)); t = jnp.mean(x)",
    ),
    "results_of_two_groups": (
        "x: T[..., S, D]; w: float32[D]", "y: float32[S, D]; k: float32[S, D]",
        "s = sum(x, axis=...); y = s * w; k = s * index(S) + index(D) * size(S)",
        "s = x.sum((0, 1, 2)[: x.ndim - 2]); y = s * w; i, j = jnp.indices(s.shape); k = s * i + j * s.shape[0]",
    ),
    "rows_apart": (
        "x: T[..., S, D]; a: float32[..., D] = 0", "m: T[..., D]; k: float32[D]; y: T[..., S, D]",
        "m = max(x, axis=S) + a; k = sum(x * a, axis=(..., S)); y = x + a",
        "b = jnp.zeros_like(x[..., 0, :]) + a; m = jnp.max(x, axis=-2) + a; over = (0, 1, 2, 3)[: x.ndim - 1]; "
        "k = (x * b[..., None, :]).sum(over); y = x + b[..., None, :]",
    ),
    "both_sides": (
        "x: T[B, C, S]", "y: float32[B, S]; z: float32[B, C]", "y = max(x, axis=C); z = sum(x, axis=S)",
        "y = jnp.max(x, axis=1); z = x.sum(2)",
    ),
    "every_other_axis": (
        "x: float32[A, B, C, D]", "y: float32[A, C]; z: float32[A, D]; t: float32[]",
        "y = sum(x, axis=(B, D)); z = min(x, axis=(B, C)); t = mean(x, axis=(A, B, C, D))",
        "y = x.sum((1, 3)); z = jnp.min(x, axis=(1, 2)); t = jnp.mean(x)",
    ),
    "group_norm": (
        "dy: T[B, G, C, S]; x: T[B, G, C, S]; w: T[G, C]", "dx: T[B, G, C, S]; dw: float32[G, C]; n: float32[]; q: float32[]",
        "m = mean(x, axis=(C, S)); r = rsqrt(mean(square(x - m), axis=(C, S)) + 1e-2); h = (x - m) * r; g = dy * w; "
        "dx = r * (g - h * mean(g * h, axis=(C, S))); dw = sum(dy * h, axis=(B, S)); n = mean(x, axis=(B, G, C, S)); "
        "q = mean(r, axis=(B, G))",
        "m = jnp.mean(x, axis=(2, 3), keepdims=True); v = jnp.mean(jnp.square(x - m), axis=(2, 3), keepdims=True); "
        "r = 1 / jnp.sqrt(v + 1e-2); h = (x - m) * r; g = dy * w[..., None]; "
        "dx = r * (g - h * jnp.mean(g * h, axis=(2, 3), keepdims=True)); dw = (dy * h).sum((0, 3)); n = jnp.mean(x); "
        "q = jnp.mean(r)",
    ),
    "groups_in_a_row": (
        "x: T[..., (B G=32)]; w: T[(B G=32)]", "q: float32[..., (B G=32)]; scale: float32[..., B]",
        "r = rsqrt(mean(square(x), axis=(B, G)) + 1e-3); y = x * r * w; scale = max(abs(y), axis=G) + 1; q = y / scale",
        "y = x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-3) * w; "
        "b = y.reshape(x.shape[:-1] + (x.shape[-1] // 32, 32)); scale = jnp.max(jnp.abs(b), axis=-1) + 1; "
        "q = (b / scale[..., None]).reshape(x.shape)",
    ),
    "groups_below_a_vector": (
        "x: T[..., (B G=4)]", "q: float32[..., (B G=4)]; scale: float32[..., B]; db: float32[(B G=4)]; t: float32[]",
        "scale = mean(x, axis=G); q = where(any(x > scale + 1, axis=G), x, scale); db = sum(x, axis=...); "
        "t = sum(q, axis=(..., B, G))",
        OVER + "b = x.reshape(x.shape[:-1] + (x.shape[-1] // 4, 4)); scale = jnp.mean(b, axis=-1); s = scale[..., None]; "
        "q = jnp.where(jnp.any(b > s + 1, axis=-1, keepdims=True), b, s).reshape(x.shape); db = x.sum(over); t = q.sum()",
    ),
    "columns_of_one_result": (
        "x: T[..., G, C, S]; w: T[G, C]", "dx: T[..., G, C, S]; dw: float32[G, C]; m: float32[G, C]; k: float32[G]",
        "h = x * rsqrt(mean(square(x), axis=(C, S)) + 1e-2); dx = h * w; dw = sum(h, axis=(..., S)); "
        "m = max(x * w, axis=(..., S)); k = min(h, axis=(..., C, S))",
        "over = (0, 1, 2)[: x.ndim - 3]; h = x / jnp.sqrt(jnp.mean(x * x, axis=(-2, -1), keepdims=True) + 1e-2); "
        "dx = h * w[..., None]; dw = h.sum(over + (-1,)); m = jnp.max(x * w[..., None], axis=over + (-1,)); "
        "k = jnp.min(h, axis=over + (-2, -1))",
    ),
    "an_axis_called_rows": (
        "x: T[..., Rows, N]; s: T[Rows]", "y: float32[..., Rows, N]", "y = x * s / (1 + sum(abs(x), axis=N))",
        "y = x * s[:, None] / (1 + jnp.sum(jnp.abs(x), -1, keepdims=True))",
    ),
}  # fmt: skip


def made(folder, name: str):
    inputs, outputs, chain, reference, *more = OPS[name]
    types = TYPES[list(OPS).index(name) % 2] if "T[" in inputs else ""
    text = spec_text(inputs, outputs, chain, reference, more="".join(more), types=types)
    return make_op(folder, text.replace("op: made", f"op: {name}"))


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", OPS)
def test_kernels_agree_with_their_reference(name, tmp_path):
    op = made(tmp_path, name)
    testing.check_op(op, "xla")
    testing.check_op(op, "interpret")


def test_a_divisor_whose_reciprocal_is_subnormal(tmp_path):
    """XLA multiplies with the reciprocal, which the CPU flushes; the kernel divides."""
    op = made(tmp_path, "groups_in_a_row")
    x, w = np.ones(64, "float32"), np.full(64, 1.5e38, "float32")
    assert (op(x, w, implementation="interpret").q == 1).all()
    case = draw.Case(Types((("T", "float32"),)), (), (("G", 32), ("B", 127)), (), (), True, 1.0, 421)
    testing.check_case(op, "xla", case)


def test_an_infinity_divided_by_what_has_a_subnormal_reciprocal(tmp_path):
    """XLA may multiply it with 0."""
    op = make_op(tmp_path, spec_text("x: float32[..., N]; w: float32[N]", "y: float32[..., N]", "y = x / w"))
    x, w = np.full((4, 3), -np.inf, "float32"), np.asarray([3e38, 2.0, np.inf], "float32")
    case = draw.Case(Types(()), (4,), (("N", 3),), (), (), True, 1.0, 0)
    with jax.enable_x64(True):
        (bound,) = error_bounds(op, case, [x, w])
    np.testing.assert_array_equal(bound.value[0], [-np.inf, -np.inf, np.nan])
    np.testing.assert_array_equal(bound.error[0] == np.inf, [True, False, False])


def test_results_that_keep_different_axes_have_kernels_of_their_own(tmp_path):
    op = made(tmp_path, "columns_kept_in_part")
    x, b = np.ones((5, 3, 40), "float32"), np.full(3, 2, "float32")
    got = op(x, b, implementation="interpret")
    assert len(interpreted.last_reports()) == op.plan.kernels == 5  # one walks; C, S, C x S and everything
    assert got.t == 1 and got.m.tolist() == [1, 1, 1] and got.dcs[2, 39] == 20


@pytest.mark.parametrize(("rows", "columns"), some([(0, 5), (5, 0), (3, 1000), (0, 0)], 2))
def test_totals_of_nothing(rows, columns, tmp_path):
    op = made(tmp_path, "total_beside_columns")
    x = np.ones((rows, columns), "float32")
    with in_parts(2):
        got = op(x, x, np.float32(2), implementation="interpret")
    assert got.dscale == rows * columns and got.dbias.tolist() == [rows] * columns and got.dx.shape == x.shape


@pytest.mark.parametrize(
    ("places", "rows", "one"), some([(5, 4, True), (3000, 64, True), (3000, 65, False), (5, 5, False)], 1)
)
def test_rows_of_places_take_one_kernel(places, rows, one, tmp_path):
    """Threads have whole places: up to 4 rows at any number of places, and up to 64 at so many that all SMs are busy. Else blocks do."""
    op = made(tmp_path, "few_rows_of_places")
    types = {a.name: "float32" if a.dtype == "T" else a.dtype for a in op.spec.arrays}
    sizes = Extents(100, places * rows * 100, 100, rows, places)
    assert op.plan.launch(PlannedCall(types, sizes, arch="sm_90a")).by_place == one
    x = np.random.default_rng(0).standard_normal((5, rows, 100)).astype("float32")
    got = op(x, np.ones((5, rows), "float32"), implementation="interpret")
    np.testing.assert_allclose(got.y, x.astype("float64").sum(1), rtol=1e-5, atol=1e-5)
    assert len(interpreted.last_reports()) == 1


def test_values_may_have_the_names_of_a_kernels_variables(tmp_path):
    chain = "t = mean(x, axis=N); every = sum(abs(x - t), axis=K); there = max(x, axis=K); all_rows = min(x, axis=K)"
    text = spec_text("x: float32[B, K, N]", "y: float32[B, N]", f"{chain}; y = every * 2 + there * all_rows")
    x = np.random.default_rng(0).standard_normal((3, 4, 100)).astype("float32")
    wanted = 2 * np.abs(x - x.mean(2, keepdims=True)).sum(1) + x.max(1) * x.min(1)
    got = make_op(tmp_path, text)(x, implementation="interpret")
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
    assert len(interpreted.last_reports()) == 1


def test_a_row_counts_once(tmp_path):
    op = made(tmp_path, "total_of_row_statistics")
    got = op(np.zeros((70, 10), "float32"), np.zeros(70, "int32"), implementation="interpret")
    np.testing.assert_allclose(got.loss, np.log(10), rtol=1e-6)


@pytest.mark.parametrize(("columns", "each"), some([(64, 4), (37, 1)], 2))
def test_neighbouring_columns_of_one_result_leave_one_part(columns, each, tmp_path):
    """If no vector spans two results."""
    op = made(tmp_path, "columns_of_one_result")
    x = np.random.default_rng(0).standard_normal((5, 2, 3, columns)).astype("float32")
    got = op(x, np.ones((2, 3), "float32"), implementation="interpret")
    np.testing.assert_array_equal(got.m, x.max((0, 3)))
    bound = {a.name: "float32" for a in op.spec.arrays}
    inner = columns & -columns
    assert op.plan.launch(PlannedCall(bound, Extents(inner, None, 3 * columns, 5, 2), arch="sm_90a")).each == each


def test_sums_of_nothing_have_no_sign(tmp_path):
    """Sums begin at -0.0, so that they keep a -0.0; an empty sum is 0.0, as in jnp."""
    op = made(tmp_path, "total_beside_columns")
    for x in (np.zeros((0, 5), "float32"), np.full((70, 300), -0.0, "float32")):
        with in_parts(4):
            got = op(x, np.ones_like(x), np.float32(1), implementation="interpret")
        assert not np.signbit(got.dscale).any() and not np.signbit(got.dbias).any()
    rows = make_op(tmp_path, spec_text("x: float32[..., N]", "y: float32[...]", "y = sum(x, axis=N)"))
    assert not np.signbit(rows(np.full((3, 300), -0.0, "float32"), implementation="interpret")).any()


def test_means_beside_columns_are_rounded_once(tmp_path):
    """In a loop over rows a sum is multiplied by 1 / N and corrected: the result is the correctly rounded quotient."""
    chain = "m = mean(x, axis=N); k = sum(x, axis=...)"
    op = make_op(tmp_path, spec_text("x: float32[..., N]", "m: float32[...]; k: float32[N]", chain))
    for columns in some((7, 3, 641, 49, 1000), 2):
        x = np.random.default_rng(columns).integers(-(2**12), 2**12, (40, columns)).astype("float32")  # exact sums
        x[0, 0], x[1, 0], x[2, 0] = np.inf, -np.inf, np.nan
        with np.errstate(invalid="ignore"):
            wanted = x.sum(1, dtype="float32") / np.float32(columns)
        np.testing.assert_array_equal(op(x, implementation="interpret").m, wanted)


def test_every_bfloat16_is_widened_as_it_is(tmp_path):
    op = make_op(tmp_path, spec_text("x: bfloat16[..., N]", "y: float32[..., N]", "y = x"))
    x = np.tile(np.arange(2**16, dtype="uint16"), 2).view(jnp.bfloat16).reshape(-1, 64)  # so many have whole vectors
    got = np.asarray(op(jnp.asarray(x), implementation="interpret"))
    np.testing.assert_array_equal(got, x.astype("float32"))
    assert (np.signbit(got) == (x.view("uint16") >= 2**15)).all()


def test_rows_without_columns_count_once(tmp_path):
    chain = "y = sin(sum(x * s, axis=...)); z = cos(sum(s, axis=...))"
    op = make_op(tmp_path, spec_text("x: float32[..., N]; s: float32[...]", "y: float32[N]; z: float32[]", chain))
    s = np.arange(3, dtype="float32") + 1
    np.testing.assert_allclose(op(np.ones((3, 0), "float32"), s, implementation="interpret").z, np.cos(6), rtol=1e-6)
    np.testing.assert_allclose(op(np.ones((3, 5), "float32"), s, implementation="interpret").z, np.cos(6), rtol=1e-6)


@pytest.mark.parametrize("n", [0, 5])
def test_what_rows_have_is_stored_where_there_are_no_columns(n, tmp_path):
    op = make_op(tmp_path, spec_text("x: float32[..., N]; r: float32[...]", "c: float32[N]; z: float32[...]",
                                     "c = sum(x, axis=...); z = r * 2"))  # fmt: skip
    c, z = op(jnp.ones((3, n)), jnp.arange(3.0), implementation="interpret")
    np.testing.assert_array_equal(c, np.full(n, 3.0))
    np.testing.assert_array_equal(z, [0, 2, 4])


@pytest.mark.parametrize("extents", some([(3, 5, 8), (16, 9, 40), (7, 64, 3), (1, 1, 1), (3, 5, 7), (2, 3, 1000)], 2))
def test_coordinates_along_three_axes(extents, tmp_path):
    """Those of a thread's vectors, which are far apart, and of the columns in a vector; with whole and with ragged rows."""
    inputs = "x: float32[..., A, B, C]; w: float32[B]; u: float32[A, C]; q: float32[A, B]"
    chain = "y = (x - mean(x, axis=(A, B, C))) * w + u * index(B) + 2 * q * index(A) + index(C)"
    op = make_op(tmp_path, spec_text(inputs, "y: float32[..., A, B, C]", chain))
    A, B, C = extents
    draw = np.random.default_rng(A + B + C).standard_normal
    x, w, u, q = (draw(shape).astype("float32") for shape in ((2, A, B, C), (B,), (A, C), (A, B)))
    a, b, c = np.arange(A)[:, None, None], np.arange(B)[:, None], np.arange(C)
    wide = x.astype("float64")
    want = (wide - wide.mean((1, 2, 3), keepdims=True)) * w[:, None] + u[:, None] * b + 2 * q[:, :, None] * a + c
    found = op(x, w, u, q, implementation="interpret")
    np.testing.assert_allclose(np.asarray(found), want, rtol=1e-5, atol=1e-4)


WHOLE_ROWS = """
op: sums_of_probabilities
summary: How much of all rows' probability each column has.
inputs: {x: "float32[..., N]"}
outputs: {y: "float32[N]"}
chain: y = sum(square(softmax(x, axis=N)), axis=...)
reference: jnp.sum(jnp.square(jax.nn.softmax(x, axis=-1)).reshape(-1, x.shape[-1]), axis=0)
"""
FEW_AT_A_PLACE = """
op: sums_at_places
summary: Sums of exponentials over a middle axis.
inputs: {x: "float32[B, S, N]"}
outputs: {y: "float32[B, N]"}
chain: y = sum(exp(x), axis=S)
reference: jnp.sum(jnp.exp(x), axis=1)
"""
SHARES_AT_A_PLACE = """
op: shares_at_places
summary: How much of a few rows' probability each column has.
inputs: {x: "float32[B, S, N]"}
outputs: {y: "float32[B, N]"}
chain: y = sum(square(softmax(x, axis=N)), axis=S)
reference: jnp.sum(jnp.square(jax.nn.softmax(x, axis=-1)), axis=1)
"""


@pytest.mark.parametrize(
    ("text", "shape"),
    [(WHOLE_ROWS, (5, 4096)), (FEW_AT_A_PLACE, (2, 3, 1024)), (SHARES_AT_A_PLACE, (2, 3, 8))],
    ids=["rows", "places", "rows at places"],
)
def test_rows_that_do_not_exist_add_nothing(tmp_path, text, shape):
    """A row of zeros would: no vector of these kernels needs a mask, and threads have rows past the last one."""
    op = make_op(tmp_path, text)
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    exact = x.astype("float64")
    shares = np.exp(exact) / np.exp(exact).sum(axis=-1, keepdims=True)
    expected = np.exp(exact).sum(axis=1) if text is FEW_AT_A_PLACE else (shares**2).sum(axis=-2)
    np.testing.assert_allclose(op(jnp.asarray(x), implementation="interpret"), expected, rtol=2e-5)
