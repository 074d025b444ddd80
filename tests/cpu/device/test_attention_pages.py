"""Attention to rows of k and v that a table points at: pages of one row, values that are taken by the same table, and pages that the
mask skips."""

import ml_dtypes  # noqa: F401  # so that NumPy knows bfloat16
import numpy as np

from codegen.autodiff.backward import backward_of
from codegen.checking.testing import check_op
from codegen.plan.launches import Extents, PlannedCall
from generated import paged_decoding
from tests.making import make_op, spec_text
from tests.turns import EVERY


def test_rows_of_their_own_pages(tmp_path):
    """The scores take values by the same table; a head's slope is computed from its number and the number of heads."""
    text = spec_text(
        "q: T[B, Q, H, D]; k: T[P, H, D]; v: T[P, H, E]; places: int32[B, S]; unit: float32[P, H]",
        "o: T[B, Q, H, E]",
        "far = exp2(-8 * (index(H) + 1) / size(H)) * index(S); s = (q @ take(k, places, axis=P)) * take(unit, places, axis=P) - far; "
        "o = softmax(s, axis=S) @ take(v, places, axis=P)",
        "i = jnp.clip(places, 0, k.shape[0] - 1); h = k.shape[1]; slopes = (2.0 ** (-8 * (jnp.arange(h) + 1) / h) if h else jnp.zeros(0)); "
        'x = jnp.einsum("bqhd,bshd->bhqs", q, k[i]) * jnp.moveaxis(unit[i], 2, 1)[:, :, None]; '
        "p = jax.nn.softmax(x - (slopes[:, None] * jnp.arange(places.shape[1]))[:, None]); "
        'o = jnp.einsum("bhqs,bshe->bqhe", p, v[i])',
        types="{T: [float16, bfloat16]}",
    )
    op = make_op(tmp_path, text + "\ndomain: {unit: [-1, 1]}")
    assert op.plan.kind == "attention" and "taken from pages" in str(backward_of(op.planned))
    check_op(op, "interpret", examples=2 if EVERY else None)


def test_pages_that_the_mask_skips_are_not_read():
    """Page 2 is NaN, and no tile of scores that are seen has it. Numbers that no page has are clamped."""
    rng = np.random.default_rng(0)
    shapes = (1, 2, 2, 16), (6, 16, 1, 16), (6, 16, 1, 16)
    q, k, v = (rng.standard_normal(shape, np.float32).astype("bfloat16") for shape in shapes)
    k[2], v[2] = np.nan, np.nan
    pages, past = np.array([[3, -7, 99, 1, 2, 2, 2, 2, 2]], np.int32), np.array([62], np.int32)
    o = paged_decoding(q, k, v, pages, past, implementation="interpret")
    keys, values = (x[[3, 0, 5, 1], :, 0].reshape(64, 16).astype(np.float64) for x in (k, v))
    s = np.einsum("qgd,sd->gqs", q[0].astype(np.float64), keys) * 0.088388
    e = np.where(np.arange(64) <= np.array([[62], [63]]), np.exp(s), 0)
    wanted = np.einsum("gqs,sd->qgd", e / e.sum(-1, keepdims=True), values)
    np.testing.assert_allclose(np.asarray(o[0], np.float64), wanted, rtol=1e-2, atol=1e-2)


def test_pages_in_elements_of_a_byte(tmp_path):
    """Keys in int8 and values in float8, with scales, for two rows of several heads; the result is float32."""
    text = spec_text(
        "q: T[B, Q, (H G), D]; k: int8[P, R, H, D]; v: F[P, R, H, E]; unit: float32[P, R, H]; pages: int32[B, N]",
        "o: float32[B, Q, (H G), E]",
        "s = (q @ cast(take(k, pages, axis=P), T)) * take(unit, pages, axis=P); "
        "o = dot(cast(softmax(s, axis=(N, R)), T), take(v, pages, axis=P), axis=(N, R))",
        "i = jnp.clip(pages, 0, k.shape[0] - 1); b, n = pages.shape; h = k.shape[2]; columns = n * k.shape[1]; "
        "keys = (k[i].astype(jnp.float32) * unit[i][..., None]).reshape(b, columns, h, k.shape[3]); "
        "values = v[i].astype(jnp.float32).reshape(b, columns, h, v.shape[3]); "
        "x = q.astype(jnp.float32).reshape(b, q.shape[1], h, q.shape[2] // h if h else 1, q.shape[3]); "
        'p = jax.nn.softmax(jnp.einsum("bqhgd,bshd->bhgqs", x, keys)); '
        'o = jnp.einsum("bhgqs,bshe->bqhge", p, values).reshape(b, q.shape[1], q.shape[2], v.shape[3])',
        types="{T: [float16, bfloat16], F: [float8_e4m3fn, float8_e5m2]}",
    )
    op = make_op(tmp_path, text + "\ngrad: none\ndomain: {unit: [0.001, 0.01]}")
    assert op.plan.kind == "attention"
    check_op(op, "interpret", examples=1)


def test_blocks_share_what_the_mask_leaves():
    """Four blocks share 1024 columns of each sequence, of which one sees 3 tiles and the other one all."""
    rng = np.random.default_rng(1)
    shapes = (2, 1, 1, 16), (70, 16, 1, 16), (70, 16, 1, 16)
    q, k, v = (rng.standard_normal(shape, np.float32).astype("float16") for shape in shapes)
    pages, past = rng.integers(0, 70, (2, 64), np.int32), np.array([150, 1023], np.int32)
    extents = Extents(16, 1024, 16, 1, 2, 1, 16)
    how = paged_decoding.plan.launch(
        PlannedCall({"q": "float16", "k": "float16", "v": "float16", "o": "float16"}, extents)
    )
    assert how.splits == 4 and how.bounded
    o = paged_decoding(q, k, v, pages, past, implementation="interpret")
    keys, values = (x[pages, :, 0].reshape(2, 1024, 16).astype(np.float64) for x in (k, v))
    s = np.einsum("bd,bsd->bs", q[:, 0, 0].astype(np.float64), keys) * 0.088388
    e = np.where(np.arange(1024) <= past[:, None], np.exp(s), 0)
    wanted = np.einsum("bs,bsd->bd", e / e.sum(-1, keepdims=True), values)
    np.testing.assert_allclose(np.asarray(o[:, 0, 0], np.float64), wanted, rtol=1e-2, atol=1e-2)


def test_pages_of_a_slot_for_computed_queries(tmp_path):
    """Stages before the kernel write the queries and each sequence's page numbers, and copy no page."""
    text = spec_text(
        "q: T[B, Q, H, D]; k: T[P, R, H, D]; v: T[P, R, H, E]; pages: int32[M, N]; slot: int32[B]; length: int32[B]",
        "o: T[B, Q, H, E]",
        "n = q * rsqrt(mean(square(q), axis=D) + 0.01); mine = take(pages, slot, axis=M); "
        "s = where(index(N) * size(R) + index(R) < length, n @ take(k, mine, axis=P), -inf); "
        "o = dot(softmax(s, axis=(N, R)), take(v, mine, axis=P), axis=(N, R))",
        "i = jnp.clip(pages[jnp.clip(slot, 0, pages.shape[0] - 1)], 0, k.shape[0] - 1); "
        "b, columns = i.shape[0], i.shape[1] * k.shape[1]; "
        "keys = k[i].reshape(b, columns, *k.shape[2:]); values = v[i].reshape(b, columns, *v.shape[2:]); "
        "n = q * jax.lax.rsqrt(jnp.mean(q * q, -1, keepdims=True) + 0.01); "
        'x = jnp.einsum("bqhd,bshd->bhqs", n, keys); '
        "p = jax.nn.softmax(jnp.where(jnp.arange(columns) < length[:, None, None, None], x, -jnp.inf)); "
        'o = jnp.einsum("bhqs,bshe->bqhe", p, values)',
        types="{T: [float16, bfloat16]}",
    )
    op = make_op(tmp_path, text + "\ngrad: none\ndomain: {length: [1, 40], slot: [0, 3], pages: [0, 5]}")
    *before, last = op.plan.stages
    assert [s.plan.kind for s in before] == ["elementwise", "row"] and last.plan.kind == "attention"
    assert {a.name for a in last.spec.inputs} >= {"k", "v"}
    check_op(op, "interpret", examples=1)
