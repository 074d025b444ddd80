"""Attention's kernels for Hopper, interpreted, against float64: masks of which tiles are skipped, heads that share k and v, sizes
that no tile divides, and every swizzle of TMA."""

from dataclasses import replace

import attention_kernels
import numpy as np
import pytest
from making import attention_inputs

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
    q, k, v, _ = attention_inputs(rows, columns, groups, d, e, dtype)
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
    q, k, v, _ = (x.astype(np.float32) / 4 for x in attention_inputs(rows, columns, 2, d, d, "float32"))
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
    q, k, v, _ = attention_inputs(130, 50, 1, 64, 64, "bfloat16")
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
    none. The block that adds the last ones rounds its last tiles, which are of the second head."""
    rows = 260 if joint else 150
    q, k, v, do = (x[: 1 if joint else 2] for x in attention_inputs(rows, 140, 2, d, e, "bfloat16"))
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
        of_head = {64: [1, 1, 2, 2, 0], 128: [1, 2, 0]}[joint]
        assert turns.tolist() == [*of_head, *(-turn for turn in of_head), 2]
    for ours, theirs in zip(made, wanted, strict=True):
        np.testing.assert_allclose(ours.astype(np.float64), theirs, rtol=2e-2, atol=3e-2)
