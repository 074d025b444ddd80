"""Attention's kernels of whole ops, interpreted: few rows, scales, documents, soft caps, distances, biases."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from making import attention_inputs, make_op

from codegen.plan import attention
from codegen.plan.launches import Extents, PlannedCall
from codegen.plan.scales import Bend, Scale
from codegen.runtime.compiled import interpreted
from tests.turns import EVERY, some

DECODING = """
op: decoding
summary: Made here.
types: {T: [bfloat16]}
inputs: {q: "T[B, Q, (H G), D]", k: "T[B, S, H, D]", v: "T[B, S, H, E]", length: "int32[B]", sink: "float32[H, G]"}
outputs: {o: "T[B, Q, (H G), E]", lse: "float32[B, Q, (H G)]"}
chain: |
  s = where(index(S) < length + index(Q), 0.25 * (q @ k), -inf)
  m = maximum(max(s, axis=S), sink)
  e = exp(s - m)
  total = sum(e, axis=S) + exp(sink - m)
  o = e / total @ v
  lse = log(total) + m
reference: |
  o, lse = q, q[..., 0]
"""


@pytest.mark.parametrize("rows", [1, 3], ids=str)
def test_few_rows(rows, tmp_path):
    """Blocks share a row's columns, and a tile has rows of all heads that share k and v. The second sequence has
    no length yet: its first row sees nothing but the sink, and all of its blocks but for the first have nothing to add."""
    op = make_op(tmp_path, DECODING)
    q, k, v, _ = attention_inputs(rows, 1100, 3, 16, 24, "bfloat16")
    q, k, v = (np.concatenate([x, x[::-1]], 2) for x in (q, k, v))  # two heads of k
    length, sink = np.array([1090, 0], np.int32), np.linspace(-1, 2, 6).reshape(2, 3).astype(np.float32)
    types = {
        a.name: "int32" if a.name == "length" else "float32" if a.name in ("sink", "lse") else "bfloat16"
        for a in op.spec.arrays
    }
    how = op.plan.launch(PlannedCall(types, Extents(24, 1100, 16, rows, 12, 3), arch="sm_90a"))
    assert (how.splits, how.packed, how.processors) == (4, True, 0)
    o, lse = op(q.reshape(2, rows, 6, 16), k, v, length, sink, implementation="interpret")
    s = 0.25 * np.einsum("bqhgd,bshd->bqhgs", *(x.astype(np.float64) for x in (q, k)))
    seen = np.arange(1100) < length[:, None, None, None, None] + np.arange(rows)[:, None, None, None]
    e = np.where(seen, np.exp(s), 0)
    total = e.sum(-1) + np.exp(sink)
    np.testing.assert_allclose(np.asarray(lse).reshape(total.shape), np.log(total), rtol=1e-5, atol=1e-5)
    wanted = np.einsum("bqhgs,bshe->bqhge", e / total[..., None], v.astype(np.float64))
    np.testing.assert_allclose(np.asarray(o, np.float64).reshape(wanted.shape), wanted, rtol=2e-2, atol=1e-2)


RETENTION = """
op: retention
summary: Made here.
types: {T: [bfloat16]}
inputs: {q: "T[B, Q, H, D]", k: "T[B, S, H, D]", v: "T[B, S, H, E]", length: "int32[B]", slope: "float32[H]"}
outputs: {o: "T[B, Q, H, E]"}
chain: |
  distance = length + index(Q) - 1 - index(S)
  o = where(distance >= 0, 0.25 * (q @ k) * exp(slope * distance), 0) @ v
reference: |
  o = q
"""


def test_few_rows_without_softmax(tmp_path):
    """Weights that are the scores, which decay with distance: what blocks have summed is added up as it is."""
    op = make_op(tmp_path, RETENTION)
    q, k, v, _ = attention_inputs(2, 600, 2, 16, 24, "bfloat16")
    k, v = (np.concatenate([x, x[::-1]], 2) for x in (k, v))  # a head of k for each of q
    length, slope = np.array([590, 0], np.int32), np.array([-0.01, -0.002], np.float32)
    types = {"length": "int32", "slope": "float32"}
    types = {a.name: types.get(a.name, "bfloat16") for a in op.spec.arrays}
    how = op.plan.launch(PlannedCall(types, Extents(24, 600, 16, 2, 4, 1), arch="sm_90a"))
    assert (how.splits, how.packed) == (2, False)
    q = q.reshape(2, 2, 2, 16)
    o = op(q, k, v, length, slope, implementation="interpret")
    distance = (length[:, None, None] + np.arange(2)[:, None] - 1 - np.arange(600))[:, :, None]
    decay = np.exp(slope[:, None].astype(np.float64) * np.maximum(distance, 0)) * (distance >= 0)
    s = 0.25 * np.einsum("bqhd,bshd->bqhs", *(x.astype(np.float64) for x in (q, k)))
    wanted = np.einsum("bqhs,bshe->bqhe", s * decay, v.astype(np.float64))
    assert not wanted[1, 0].any()
    np.testing.assert_allclose(np.asarray(o, np.float64), wanted, rtol=2e-2, atol=5e-2)


SCALED = """
op: scaled
summary: Made here.
types: {T: [bfloat16]}
inputs: {q: "T[Q, D]", k: "T[S, D]", v: "T[S, E]"}
outputs: {o: "T[Q, E]", lse: "float32[Q]"}
params: {scale: 0.5}
chain: |
  s = where(index(S) <= index(Q), (q @ k) * scale / -2, -inf)
  o = softmax(s, axis=S) @ v
  lse = logsumexp(s, axis=S)
reference: |
  o, lse = q, q[..., 0]
"""


@pytest.mark.usefixtures("narrow_tiles")
@pytest.mark.parametrize("scale", some([-0.25, 0.5, 0.0], 2))
def test_a_scale_of_any_sign(scale, tmp_path):
    """The kernel multiplies by a scale's magnitude where it takes exponentials; a row that sees nothing keeps weights of zero."""
    op = make_op(tmp_path, SCALED)
    assert op.plan.scale == Scale(0.5, ("scale",), ())
    q, k, v = (x[0].reshape(-1, 16) for x in attention_inputs(40, 70, 1, 16, 16, "bfloat16")[:3])
    o, lse = op(q, k, v, scale=scale, implementation="interpret")
    s = np.einsum("qd,sd->qs", q.astype(np.float64), k.astype(np.float64)) * scale / -2
    e = np.exp(np.where(np.arange(70) <= np.arange(40)[:, None], s, -np.inf))
    np.testing.assert_allclose(np.asarray(lse), np.log(e.sum(-1)), rtol=1e-5, atol=1e-5)
    wanted = e / e.sum(-1, keepdims=True) @ v.astype(np.float64)
    np.testing.assert_allclose(np.asarray(o, np.float64), wanted, rtol=2e-2, atol=1e-2)


DOCUMENTS = """
op: documents
summary: Made here.
types: {T: [bfloat16]}
inputs: {q: "T[B, Q, H, D]", k: "T[B, S, H, D]", v: "T[B, S, H, E]", mine: "int32[B, Q]", theirs: "int32[B, S]"}
outputs: {o: "T[B, Q, H, E]"}
chain: |
  o = softmax(where((mine == theirs) & (theirs >= 0), q @ k, -inf), axis=S) @ v
reference: |
  o = q
"""


@pytest.mark.usefixtures("narrow_tiles")
@pytest.mark.parametrize(("d", "e"), some([(16, 16), (192, 16), (192, 192)], 3), ids=str)
def test_documents(d, e, tmp_path, monkeypatch):
    """A first kernel lists the bounds of documents over tiles; tiles of k that no row of q sees are not read. Gradients with heads of
    192 are two kernels, of tiles of two sizes. With values of 192, both consumers have the same rows of k."""
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    op, (rows, columns) = make_op(tmp_path, DOCUMENTS), (150, 520)
    q, k, v, do = (jnp.asarray(x[:, :, 0] / 4) for x in attention_inputs(rows, columns, 1, d, e, "bfloat16"))
    q, do, k, v = (x.reshape(2, -1, 1, x.shape[-1]) for x in (q, do, k, v))
    mine = jnp.asarray(np.stack([np.arange(rows) // 40, np.arange(rows) // 100]), "int32")
    theirs = jnp.asarray(np.stack([np.arange(columns) // 100, np.arange(columns) // 90 - 1]), "int32")
    types = {a.name: "int32" if a.dtype == "int32" else "bfloat16" for a in op.spec.arrays}
    how = op.plan.launch(PlannedCall(types, Extents(e, columns, d, rows, 2, 1), arch="sm_90a"))
    assert (how.listed, how.spans) == (2, (128, how.tile_n))

    def both(implementation):
        o, pull = jax.vjp(lambda *x: op(*x, mine, theirs, implementation=implementation), q, k, v)
        reports = interpreted.last_reports()
        return (o, *pull(do)), reports

    got, reports = both("interpret")
    for x, y in zip(got, both("xla")[0], strict=True):
        np.testing.assert_allclose(np.asarray(x, np.float64), np.asarray(y, np.float64), rtol=3e-2, atol=2e-2)
    assert len(reports) == 2
    n = how.tile_n
    seen = (
        sum(-(-last // n) - first // n for first, last in ((0, 400), (90, 270))) * n
    )  # of both sequences, the first documents
    assert reports[1].operands["k"].touched == seen * d * 2
    assert reports[1].operands["table"].loaded > 0


CAPPED = """
op: capped
summary: Made here.
types: {T: [bfloat16]}
inputs: {q: "T[Q, D]", k: "T[S, D]", v: "T[S, E]"}
outputs: {o: "T[Q, E]", lse: "float32[Q]", top: "float32[Q]"}
params: {scale: 0.25, cap: 50.0}
chain: |
  s = cap * tanh((q @ k) * scale / cap)
  t = where(index(S) <= index(Q) + 300, s, -inf)
  o = softmax(t, axis=S) @ v
  lse = logsumexp(t, axis=S)
  top = max(stop_gradient(t), axis=S)
reference: |
  o = q
  lse = q[:, 0]
  top = q[:, 0]
"""


@pytest.mark.usefixtures("narrow_tiles")
def test_a_soft_cap(tmp_path, monkeypatch):
    """Where products are small against the cap, a polynomial gives exponents in fewer instructions than the scores of a chain that is
    no tangent. A negative cap has its sign twice, and weights relative to a row's largest score, since it is large."""
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    op, other = (make_op(tmp_path, x) for x in (CAPPED, CAPPED.replace("300, s, -inf", "300, s + 1e-9, -inf")))
    assert op.plan.bend == Bend(("scale",), ("cap",), ("cap",)) and other.plan.bend is None
    for cap, spread in [(50.0, 1), (50.0, 3), *([(-50.0, 1), (5.0, 0.5)] if EVERY else [])]:  # each cap has a kernel
        capped(op, other, cap, spread)


def capped(op, other, cap, spread):
    q, k, v = (
        np.asarray(x[0].reshape(-1, 16) * spread, x.dtype)
        for x in attention_inputs(140, 400, 1, 16, 16, "bfloat16")[:3]
    )
    o, lse, top = op(q, k, v, cap=cap, implementation="interpret")
    issued = interpreted.last_reports()[0].instructions
    s = cap * np.tanh(q.astype(np.float64) @ k.astype(np.float64).T * 0.25 / cap)
    t = np.where(np.arange(400) <= np.arange(140)[:, None] + 300, s, -np.inf)
    e = np.exp(t)
    np.testing.assert_allclose(np.asarray(top), t.max(-1), rtol=2.0**-15)
    np.testing.assert_allclose(np.asarray(lse), np.log(e.sum(-1)), rtol=2.0**-16, atol=3e-4)
    wanted = e / e.sum(-1, keepdims=True) @ v.astype(np.float64)
    np.testing.assert_allclose(np.asarray(o, np.float64), wanted, rtol=2e-2, atol=1e-2 * spread)
    if EVERY:  # it is another kernel to compile, which has as many for every cap
        other(q, k, v, cap=50.0, implementation="interpret")
        assert issued < interpreted.last_reports()[0].instructions * (0.97 if spread < 3 else 1.1)


SLOPED = """
op: sloped
summary: Made here.
types: {T: [bfloat16]}
inputs: {q: "T[Q, H, D]", k: "T[S, H, D]", v: "T[S, H, E]", slopes: "float32[H]"}
outputs: {o: "T[Q, H, E]"}
params: {scale: 0.25}
chain: |
  s = q @ k * scale - slopes * (index(Q) + 260 - index(S))
  o = softmax(where(index(S) <= index(Q) + 260, s, -inf), axis=S) @ v
reference: |
  o = q
"""


@pytest.mark.usefixtures("narrow_tiles")
def test_slopes(tmp_path, monkeypatch):
    """What the scores read of a row is loaded once for a tile of q, though several tiles of k pass: here by each thread for both of its rows.
    The distances' factor is divided by the scale, unless that is 0."""
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    op = make_op(tmp_path, SLOPED)
    q, k, v, _ = (x[0].reshape(-1, 2, 16) for x in attention_inputs(140, 800, 2, 16, 16, "bfloat16"))
    q, k, v, slopes = q[:140], k[:400], v[:400], np.float32([0.01, 0.2])
    for scale in (0.25, *((0.0, -0.25) if EVERY else ())):
        o = op(q, k, v, slopes, scale=scale, implementation="interpret")
        # Heads, tiles of q, threads
        assert interpreted.last_reports()[0].operands["slopes"].loaded == 2 * 2 * 256 * 4
        np.testing.assert_allclose(np.asarray(o, np.float64), sloped(q, k, v, slopes, scale), rtol=2e-2, atol=1e-2)
    if EVERY:
        constant = SLOPED.replace(', slopes: "float32[H]"', "").replace("slopes", "0.2")
        o = make_op(tmp_path, constant)(q, k, v, implementation="interpret")
        wanted = sloped(q, k, v, np.float32([0.2, 0.2]), 0.25)
        np.testing.assert_allclose(np.asarray(o, np.float64), wanted, rtol=2e-2, atol=1e-2)


def sloped(q, k, v, slopes, scale):
    row, column = np.arange(140)[:, None] + 260, np.arange(400)
    products = np.einsum("qhd,shd->hqs", *(x.astype(np.float64) for x in (q, k)))
    p = np.exp(np.where(column <= row, products * scale - slopes[:, None, None] * (row - column), -np.inf))
    return np.einsum("hqs,she->qhe", p / p.sum(-1, keepdims=True), v.astype(np.float64))


@pytest.mark.usefixtures("narrow_tiles")
@pytest.mark.parametrize("d", some([16, 192], 2))
def test_the_gradient_of_a_soft_cap(d, tmp_path, monkeypatch):
    """Where products are small against the cap, a polynomial gives the tangents, in fewer instructions."""
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    op, issued = make_op(tmp_path, CAPPED), []
    q, k, v = (jnp.asarray(x[0].reshape(-1, d)) for x in attention_inputs(140, 200, 1, d, d, "bfloat16")[:3])
    q *= (16 / d) ** 0.5
    do = jnp.ones((140, d), "bfloat16")
    for cap in some((100.0, 4.0), 2):  # each has its kernels

        def gradients(implementation, cap=cap):
            return jax.vjp(lambda *x: op(*x, cap=cap, implementation=implementation).o, q, k, v)[1](do)

        wanted = gradients("xla")
        for x, y in zip(gradients("interpret"), wanted, strict=True):
            np.testing.assert_allclose(np.asarray(x, np.float64), np.asarray(y, np.float64), rtol=3e-2, atol=3e-2)
        issued.append(sum(report.instructions for report in interpreted.last_reports()))
    if EVERY:
        assert issued[0] < 0.99 * issued[1]


BIASED = """
op: biased
summary: Made here.
types: {T: [bfloat16]}
inputs: {q: "T[Q, D]", k: "T[S, D]", v: "T[S, E]", bias: "T[Q, S]"}
outputs: {o: "T[Q, E]"}
chain: |
  o = softmax(q @ k + bias, axis=S) @ v
reference: |
  o = q
"""


@pytest.mark.usefixtures("narrow_tiles")
def test_a_bias(tmp_path, monkeypatch):
    """A thread loads eight neighbours of a row at once where they divide the number of columns, two where that is even."""
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    op, requests = make_op(tmp_path, BIASED), []
    for columns in (304, 300, 301) if EVERY else (304, 301):
        q, k, v = (x[0].reshape(-1, 16) / 2 for x in attention_inputs(140, columns, 1, 16, 16, "bfloat16")[:3])
        bias = np.random.default_rng(0).standard_normal((140, columns)).astype(q.dtype)
        o = op(q, k, v, bias, implementation="interpret")
        requests.append(interpreted.last_reports()[0].operands["bias"].requests)
        e = np.exp(q.astype(np.float64) @ k.astype(np.float64).T + bias.astype(np.float64))
        wanted = e / e.sum(-1, keepdims=True) @ v.astype(np.float64)
        np.testing.assert_allclose(np.asarray(o, np.float64), wanted, rtol=2e-2, atol=1e-2)
    assert all(wide < 0.8 * narrow for wide, narrow in itertools.pairwise(requests))


SHARED_BIAS = """
op: shared_bias
summary: Made here.
types: {T: [bfloat16]}
inputs: {q: "T[B, Q, H, D]", k: "T[B, S, H, D]", v: "T[B, S, H, E]", bias: "KIND[H, Q, S]"}
outputs: {o: "T[B, Q, H, E]"}
chain: |
  o = softmax(where(index(S) <= index(Q) + 40, 0.25 * (q @ k) + bias, -inf), axis=S) @ v
reference: |
  o = q
"""


@pytest.mark.usefixtures("narrow_tiles")
@pytest.mark.parametrize(("columns", "kind"), some([(131, "float32"), (260, "float32"), (264, "bfloat16")], 3), ids=str)
def test_the_gradient_of_a_bias(columns, kind, tmp_path, monkeypatch):
    """A block, which has several tiles, sums over the sequences that share a bias. Tiles of which the mask hides all have zeros; eight
    neighbours or two are stored at once where these divide the number of columns."""
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    monkeypatch.setattr(attention, "SMS", 3)
    op, rows = make_op(tmp_path, SHARED_BIAS.replace("KIND", kind)), 140
    q, k, v, do = (jnp.asarray(x[:, :, 0]) for x in attention_inputs(rows, columns, 2, 16, 32, "bfloat16"))
    k, v = (jnp.stack([x, x[::-1]], 2) for x in (k, v))
    bias = jnp.asarray(np.random.default_rng(0).standard_normal((2, rows, columns)), kind)

    def gradients(implementation):
        return jax.vjp(lambda *x: op(*x, implementation=implementation), q, k, v, bias)[1](do)

    for x, y in zip(gradients("interpret"), gradients("xla"), strict=True):
        np.testing.assert_allclose(np.asarray(x, np.float64), np.asarray(y, np.float64), rtol=3e-2, atol=2e-2)
