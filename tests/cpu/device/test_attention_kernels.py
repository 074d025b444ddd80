"""Attention's kernels for Hopper, interpreted, against float64: masks of which tiles are skipped, heads that share k and v, sizes
that no tile divides, and every swizzle of TMA."""

import itertools
from dataclasses import replace

import attention_kernels
import jax
import jax.numpy as jnp
import ml_dtypes  # noqa: F401  # so that NumPy knows bfloat16
import numpy as np
import pytest
from making import make_op

from codegen.plan import attention
from codegen.plan.launches import Extents
from codegen.plan.scales import Bend, Scale
from codegen.runtime.compiled import interpreted, kernels
from codegen.shared import AttentionLaunch
from tests.turns import EVERY, some

WIDTH = 70  # of the window


def run(
    name, inputs, outputs, tile_m, tile_n, arch="sm_90a", joint=False, separate=False, early=False, tops=True, written=None, **constants
):  # fmt: skip
    """The outputs of a launcher, for outputs given as shapes and dtypes, of which the first are `written`."""

    def described(shape, dtype):
        return str(dtype), (*(1 for _ in shape[:-1]), 16 if len(shape) == 5 else 1), 16

    d, e = inputs[0].shape[-1], inputs[2].shape[-1]
    hopper = arch == "sm_90a"
    how = AttentionLaunch(tile_m, tile_n, d, e, 8 if hopper else 4, 2 if hopper else 1, processors=3 if hopper else 0)
    how = replace(how, joint=joint, separate=separate, early=early, tops=tops)
    if inputs[0].dtype.itemsize == 1:
        how = replace(how, converts=str(inputs[2].dtype))
    call = kernels.CompiledCall(
        getattr(attention_kernels, name), tuple(described(x.shape, x.dtype) for x in inputs),
        tuple(described(*x) for x in outputs), (*constants.items(), ("how", how)), arch,
    )  # fmt: skip
    names = [f"input {i}" for i in range(len(inputs))] + [f"output {i}" for i in range(len(outputs))]
    return interpreted.run(call, names, inputs, [shape for shape, _ in outputs], whole=written)


def draw(rows, columns, groups, d, e, dtype):
    """q, k, v and the cotangent of o."""
    rng = np.random.default_rng(rows)
    shapes = (2, rows, 1, groups, d), (2, columns, 1, d), (2, columns, 1, e), (2, rows, 1, groups, e)
    return [rng.standard_normal(shape, np.float32).astype(dtype) for shape in shapes]


def weights(q, k, scale):
    """The weights of a window, and the logarithms of their sums: (B, H, G, Q, S) and (B, H, G, Q)."""
    s = np.einsum("bqhgd,bshd->bhgqs", q, k) * scale
    row, column = np.arange(q.shape[1])[:, None], np.arange(k.shape[1])
    s = np.where((column <= row) & (column > row - WIDTH), s, -np.inf)
    with np.errstate(all="ignore"):
        base = np.log(np.exp(s).sum(-1))
        return np.exp(s - base[..., None]), base


@pytest.mark.parametrize(
    ("tiles", "elements", "blocks"), [(4, 10, 3), (5, 9, 3), (16, 9, 5), (7, 1, 4), (1, 40, 3), (2, 1, 5)], ids=str
)
def test_the_order_of_tiles(tiles, elements, blocks):
    """Each tile is taken once. Where a tile's work falls with its number, blocks have as much, but for half of a large tile."""
    how = AttentionLaunch(128, 64, 64, 64, 12, 2, processors=blocks)
    given = ("int32", (1, 1), 16)
    call = kernels.CompiledCall(attention_kernels.taken, (), (given, given), (("how", how),), "sm_90a")
    block, turn = interpreted.run(call, ["block", "turn"], [], [(elements, tiles)] * 2)
    assert len({*zip(block.ravel().tolist(), turn.ravel().tolist(), strict=True)}) == tiles * elements
    work = np.bincount(block.ravel(), np.tile(np.arange(tiles, 0, -1), elements), blocks)
    assert work.max() - work.mean() <= max(1, tiles / 2) or tiles * elements < 2 * blocks
    if tiles * elements > 4 * blocks:  # an element's first tiles are taken long before another's
        assert turn[0].max() < turn[-1].max() / 2


WINDOWS = [
    (300, 290, 2, 64, 64, 32, "bfloat16", ""),
    (140, 150, 1, 96, 32, 48, "bfloat16", "float8_e4m3fn"),
    (90, 1100, 1, 32, 32, 16, "bfloat16", ""),
    (900, 150, 1, 64, 64, 32, "bfloat16", ""),
    (140, 130, 1, 80, 96, 64, "float16", ""),
    (70, 90, 1, 128, 16, 32, "float16", "float8_e5m2"),
]


@pytest.mark.parametrize(
    ("rows", "columns", "groups", "d", "e", "tile_n", "dtype", "narrow"), some(WINDOWS, 1), ids=str
)
def test_a_window(rows, columns, groups, d, e, tile_n, dtype, narrow):
    """The third case has 69 tiles of k, more than a warp finds at once, of which most are skipped. In the fourth, a block has tiles of q that
    see nothing before and between others. In two of them, q and k are float8."""
    q, k, v, _ = draw(rows, columns, groups, d, e, dtype)
    if narrow:
        q, k = q.astype(narrow), k.astype(narrow)
    outputs = ((2, rows, 1, groups, e), dtype), ((2, 1, groups, rows), "float32")
    o, base = run("window", [q, k, v], outputs, 128, tile_n, early=True, tops=False, scale=d**-0.5, width=WIDTH)
    p, expected = weights(*(x.astype(np.float64) for x in (q, k)), d**-0.5)
    seen = np.isfinite(expected)
    np.testing.assert_allclose(base[seen], expected[seen], rtol=1e-5, atol=1e-5)
    wanted = np.einsum("bhgqs,bshe->bqhge", p, v.astype(np.float64))
    np.testing.assert_allclose(o.astype(np.float64), wanted, rtol=2e-2, atol=2e-2)


RISING = [("bfloat16", True, False), ("float16", True, False), ("bfloat16", True, True), ("bfloat16", False, True)]


@pytest.mark.parametrize(("dtype", "early", "tops"), some(RISING, 4), ids=str)
def test_scores_that_rise(dtype, early, tops):
    """Sums are relative to an earlier maximum while the largest score rises by little, as it does for the first head. They are rescaled
    when it rises by much. Early weights are computed again then; so are those of rows that see nothing in the tile before."""
    rows, columns, d = 300, 290, 64
    q, k, v, _ = (x.astype(np.float32) / 4 for x in draw(rows, columns, 2, d, d, "float32"))
    q[..., 0], k[..., 0] = np.array([0.1, 2.0]) * d**0.5, np.arange(columns)[:, None] / 4
    q, k, v = (x.astype(dtype) for x in (q, k, v))
    outputs = (q.shape, dtype), ((2, 1, 2, rows), "float32")
    o, base = run("window", [q, k, v], outputs, 128, 32, early=early, tops=tops, scale=d**-0.5, width=WIDTH)
    p, expected = weights(*(x.astype(np.float64) for x in (q, k)), d**-0.5)
    np.testing.assert_allclose(base, expected, rtol=1e-5, atol=1e-5)
    wanted = np.einsum("bhgqs,bshe->bqhge", p, v.astype(np.float64))
    np.testing.assert_allclose(o.astype(np.float64), wanted, rtol=2e-2, atol=1e-2)


def test_weights_without_statistics():
    """Columns past the last have no weight, though the square of nothing is not the least score."""
    q, k, v, _ = draw(130, 50, 1, 64, 64, "bfloat16")
    (o,) = run("squares", [q / 8, k, v], [(q.shape, "bfloat16")], 128, 64)
    s = np.einsum("bqhgd,bshd->bhgqs", *(x.astype(np.float64) for x in (q / 8, k)))
    wanted = np.einsum("bhgqs,bshe->bqhge", s * s, v.astype(np.float64))
    np.testing.assert_allclose(o.astype(np.float64), wanted, rtol=3e-2, atol=0.3)


GRADIENTS = [
    ("sm_80", 40, 72, 32, 0, False),
    ("sm_90a", 64, 64, 64, 0, False),
    ("sm_90a", 128, 128, 64, 64, False),
    ("sm_90a", 80, 48, 64, 128, False),
    ("sm_90a", 96, 32, 64, 64, False),
    ("sm_90a", 80, 80, 64, 64, False),
    ("sm_90a", 48, 32, 48, 0, True),
    ("sm_90a", 256, 256, 48, 0, True),
]


@pytest.mark.parametrize(
    ("arch", "d", "e", "tile_n", "joint", "separate"), GRADIENTS if EVERY else GRADIENTS[::3], ids=str
)
def test_gradients(arch, d, e, tile_n, joint, separate):
    """Of heads that share k and v, in a fixed order; and a sum along each row of scores, or where one kernel computes all of them, along
    each column. A tile of q, of `joint` rows, then takes the sums of two tiles of k, and the rows after the last column's window have
    none."""
    rows = 260 if joint else 150
    q, k, v, do = (x[: 1 if joint else 2] for x in draw(rows, 140, 2, d, e, "bfloat16"))
    wide = q64, k64, v64, do64 = [x.astype(np.float64) for x in (q, k, v, do)]
    p, base = weights(q64, k64, 0.125)
    p, base = np.nan_to_num(p), np.where(np.isfinite(base), base, 0.0)
    dp = np.einsum("bqhge,bshe->bhgqs", do64, v64)
    delta = (p * dp).sum(-1)
    ds = p * (dp - delta[..., None]) * 0.125
    wanted = (
        np.einsum("bhgqs,bshd->bqhgd", ds, k64), np.einsum("bhgqs,bqhgd->bshd", ds, q64),
        np.einsum("bhgqs,bqhge->bshe", p, do64),
    )  # fmt: skip
    inputs = [q, k, v, do, base.astype(np.float32), delta.astype(np.float32)]
    s = np.einsum("bqhgd,bshd->bhgqs", q64, k64) * 0.125
    total = ds / 0.125 * s
    total = total.sum((2, 3)) if joint else total.sum(-1)
    tiles = 2 * -(-rows // joint) if joint else 0
    outputs = [*((x.shape, "bfloat16") for x in wide[:3]), (total.shape, "float32")]
    outputs += [((tiles, joint * d), "float32"), ((tiles + 1 if joint else 0,), "int32")]
    *made, added, _, turns = run(
        "window_backward", inputs, outputs, joint or 64, tile_n, arch, joint > 0, separate, written=4, scale=0.125, width=WIDTH
    )  # fmt: skip
    np.testing.assert_allclose(added, total, rtol=1e-3, atol=1e-2)
    if joint:
        assert turns.tolist() == {64: [1, 1, 2, 2, 0], 128: [1, 2, 0]}[joint] * 2 + [2]
    for ours, theirs in zip(made, wanted, strict=True):
        np.testing.assert_allclose(ours.astype(np.float64), theirs, rtol=2e-2, atol=3e-2)


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
    q, k, v, _ = draw(rows, 1100, 3, 16, 24, "bfloat16")
    q, k, v = (np.concatenate([x, x[::-1]], 2) for x in (q, k, v))  # two heads of k
    length, sink = np.array([1090, 0], np.int32), np.linspace(-1, 2, 6).reshape(2, 3).astype(np.float32)
    types = {
        a.name: "int32" if a.name == "length" else "float32" if a.name in ("sink", "lse") else "bfloat16"
        for a in op.spec.arrays
    }
    how = op.plan.launch(types, Extents(24, 1100, 16, rows, 12, 3), {}, "sm_90a")
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
    q, k, v, _ = draw(2, 600, 2, 16, 24, "bfloat16")
    k, v = (np.concatenate([x, x[::-1]], 2) for x in (k, v))  # a head of k for each of q
    length, slope = np.array([590, 0], np.int32), np.array([-0.01, -0.002], np.float32)
    types = {"length": "int32", "slope": "float32"}
    types = {a.name: types.get(a.name, "bfloat16") for a in op.spec.arrays}
    how = op.plan.launch(types, Extents(24, 600, 16, 2, 4, 1), {}, "sm_90a")
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
    q, k, v = (x[0].reshape(-1, 16) for x in draw(40, 70, 1, 16, 16, "bfloat16")[:3])
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
    q, k, v, do = (jnp.asarray(x[:, :, 0] / 4) for x in draw(rows, columns, 1, d, e, "bfloat16"))
    q, do, k, v = (x.reshape(2, -1, 1, x.shape[-1]) for x in (q, do, k, v))
    mine = jnp.asarray(np.stack([np.arange(rows) // 40, np.arange(rows) // 100]), "int32")
    theirs = jnp.asarray(np.stack([np.arange(columns) // 100, np.arange(columns) // 90 - 1]), "int32")
    types = {a.name: "int32" if a.dtype == "int32" else "bfloat16" for a in op.spec.arrays}
    how = op.plan.launch(types, Extents(e, columns, d, rows, 2, 1), {}, "sm_90a")
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
    q, k, v = (np.asarray(x[0].reshape(-1, 16) * spread, x.dtype) for x in draw(140, 400, 1, 16, 16, "bfloat16")[:3])
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
    q, k, v, _ = (x[0].reshape(-1, 2, 16) for x in draw(140, 800, 2, 16, 16, "bfloat16"))
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
    q, k, v = (jnp.asarray(x[0].reshape(-1, d)) for x in draw(140, 200, 1, d, d, "bfloat16")[:3])
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
        q, k, v = (x[0].reshape(-1, 16) / 2 for x in draw(140, columns, 1, 16, 16, "bfloat16")[:3])
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
    q, k, v, do = (jnp.asarray(x[:, :, 0]) for x in draw(rows, columns, 2, 16, 32, "bfloat16"))
    k, v = (jnp.stack([x, x[::-1]], 2) for x in (k, v))
    bias = jnp.asarray(np.random.default_rng(0).standard_normal((2, rows, columns)), kind)

    def gradients(implementation):
        return jax.vjp(lambda *x: op(*x, implementation=implementation), q, k, v, bias)[1](do)

    for x, y in zip(gradients("interpret"), gradients("xla"), strict=True):
        np.testing.assert_allclose(np.asarray(x, np.float64), np.asarray(y, np.float64), rtol=3e-2, atol=2e-2)
