"""Rows that come and go by way of shared memory, in runs of a block's rows: where N is not a multiple of the vector width."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from codegen.graph.nodes import DTYPES
from codegen.plan.launches import Extents, PlannedCall
from codegen.plan.rows.launching.walking import in_parts
from codegen.runtime.call import arguments
from codegen.runtime.call.arguments import Types
from tests.making import make_op
from tests.turns import some

HEAD = "op: {name}\nsummary: Drawn by hand.\ntypes:\n  T: [float32, bfloat16]\n"
GROUPS = (
    HEAD.format(name="groups_by_runs")
    + """\
inputs:
  x: T[B, H, C, S]
  weight: T[H, C] = 1.0
outputs:
  y: T[B, H, C, S]
  positive: bool[B, H, C, S]
chain: |
  moved = x + index(S) - index(C)
  y = moved * rsqrt(mean(square(moved), axis=(C, S)) + 1e-6) * weight
  positive = moved > 0
reference: |
  moved = x + jnp.arange(x.shape[3]) - jnp.arange(x.shape[2])[:, None]
  mean = jnp.mean(moved * moved, axis=(2, 3), keepdims=True)
  y = moved / jnp.sqrt(mean + 1e-6) * jnp.expand_dims(jnp.asarray(weight), -1)
  positive = moved > 0
"""
)
PARTS = (
    HEAD.format(name="parts_by_runs")
    + """\
inputs:
  x: T[..., (2 N)]
  pair: T[..., (N 2)]
  bias: float32[N]
outputs:
  y: T[..., N]
  swapped: T[..., (N 2)]
  total: float32[...]
chain: |
  total = sum(x[0] * pair[1], axis=N)
  y = x[1] - total + bias
  swapped[0] = pair[1] - total
  swapped[1] = -pair[0]
reference: |
  n = bias.shape[0]
  even, odd = pair[..., ::2], pair[..., 1::2]
  total = jnp.sum(x[..., :n] * odd, axis=-1)
  y = x[..., n:] - total[..., None] + bias
  swapped = jnp.stack([odd - total[..., None], -even], axis=-1).reshape(pair.shape)
"""
)


CHANNELS = (
    HEAD.format(name="channels_by_runs")
    + """\
inputs:
  x: T[B, H, C, S]
  bias: T[B, H, C]
  weight: T[B, H, C]
outputs:
  y: T[B, H, C, S]
  total: float32[B, H]
chain: |
  moved = (x + bias) * weight
  total = sum(moved, axis=(C, S))
  y = moved - max(moved, axis=(C, S))
reference: |
  moved = (x + bias[..., None]) * weight[..., None]
  total = moved.astype("float32").sum((-2, -1))
  y = moved - moved.max((-2, -1), keepdims=True)
"""
)


def drawn(seed, *shapes, dtype):
    """Arrays of halves, which products and short sums of them do not round."""
    rng = np.random.default_rng(seed)
    return [jnp.asarray(rng.integers(-4, 5, shape) / 2, dtype) for shape in shapes]


def launch_of(op, dtype, **arrays):
    types = Types(tuple((t, dtype) for t, _ in op.spec.types))
    return op.launch_for(types, arguments.bind_axes(op.spec, arrays))


def goes_by_runs(op, dtype, **arrays):
    return launch_of(op, dtype, **arrays).by_runs


# The last block has no rows, some, or all; the array's end lies within a vector; a row has more threads than columns of one
@pytest.mark.parametrize(
    ("dtype", "shape"),
    some([("bfloat16", (16, 8, 3, 7)), ("float32", (0, 2, 3, 7)), ("float32", (5, 1, 1, 37)), ("bfloat16", (3, 3, 5, 49))], 2),
)  # fmt: skip
def test_groups_of_columns(tmp_path, dtype, shape):
    op = make_op(tmp_path, GROUPS)
    x, weight = drawn(1, shape, shape[1:3], dtype=dtype)
    assert goes_by_runs(op, dtype, x=x, weight=weight)
    found = op(x, weight, implementation="interpret")
    wide, scale = np.asarray(x, np.float64), np.asarray(weight, np.float64)[..., None]
    moved = wide + np.arange(shape[3]) - np.arange(shape[2])[:, None]
    y = moved / np.sqrt(np.mean(moved * moved, axis=(2, 3), keepdims=True) + 1e-6) * scale
    np.testing.assert_allclose(np.asarray(found.y, np.float64), y, rtol=2e-6 if dtype == "float32" else 2**-8)
    assert np.array_equal(found.positive, moved > 0)


# The last threads' columns end a row, so others have them too; a group ends within a thread's columns, or with them
@pytest.mark.parametrize(
    ("dtype", "shape"),
    some([("bfloat16", (3, 5, 6, 49)), ("float32", (2, 1, 5, 27)), ("bfloat16", (5, 1, 2, 99)), ("float32", (3, 3, 13, 21))], 2),
)  # fmt: skip
def test_neighbouring_columns_share_elements(tmp_path, dtype, shape):
    op = make_op(tmp_path, CHANNELS)
    x, bias, weight = drawn(7, shape, shape[:3], shape[:3], dtype=dtype)
    assert launch_of(op, dtype, x=x, bias=bias, weight=weight).neighbours
    found = op(x, bias, weight, implementation="interpret")
    x, bias, weight = (np.asarray(a, np.float64) for a in (x, bias, weight))
    moved = (x + bias[..., None]) * weight[..., None]
    assert np.array_equal(found.total, moved.sum((-2, -1)))
    assert np.array_equal(found.y, jnp.asarray(moved - moved.max((-2, -1), keepdims=True), dtype))


def test_an_input_that_is_left_out(tmp_path):
    op = make_op(tmp_path, GROUPS)
    (x,) = drawn(2, (2, 2, 3, 7), dtype="float32")
    found, given = (op(x, *w, implementation="interpret") for w in ((), (jnp.ones((2, 3)),)))
    assert np.array_equal(found.y, given.y)


@pytest.mark.parametrize(("rows", "columns"), some([(1, 33), (70, 17)], 1, 1))
def test_halves_and_pairs(tmp_path, rows, columns):
    op = make_op(tmp_path, PARTS)
    x, pair = drawn(3, (rows, 2 * columns), (rows, 2 * columns), dtype="bfloat16")
    (bias,) = drawn(4, (columns,), dtype="float32")
    assert goes_by_runs(op, "bfloat16", x=x, pair=pair, bias=bias)
    found = op(x, pair, bias, implementation="interpret")
    x, pair, bias = (np.asarray(a, np.float64) for a in (x, pair, bias))
    total = np.sum(x[:, :columns] * pair[:, 1::2], axis=-1, keepdims=True)
    assert np.array_equal(found.total, total[:, 0])
    swapped = np.stack([pair[:, 1::2] - total, -pair[:, ::2]], axis=-1).reshape(pair.shape)
    for name, wanted in (("y", x[:, columns:] - total + bias), ("swapped", swapped)):
        assert np.array_equal(
            getattr(found, name),
            jnp.asarray(wanted, "bfloat16"),
        ), name


# Blocks walk down many rows, of which the last step has some
def test_gradients_over_rows(tmp_path):
    op, shape = make_op(tmp_path, GROUPS), (37, 2, 3, 7)
    x, weight = drawn(5, shape, shape[1:3], dtype="float32")
    dy = jnp.cos(jnp.arange(x.size, dtype="float32")).reshape(shape)

    def by_hand(x, weight):
        moved = x + jnp.arange(shape[3]) - jnp.arange(shape[2])[:, None]
        return moved / jnp.sqrt(jnp.mean(moved * moved, axis=(2, 3), keepdims=True) + 1e-6) * weight[..., None]

    with in_parts(1):
        found = jax.vjp(lambda *a: op(*a, implementation="interpret").y, x, weight)[1](dy)
    for own, wanted in zip(found, jax.vjp(by_hand, x, weight)[1](dy), strict=True):
        np.testing.assert_allclose(own, wanted, rtol=2e-5, atol=2e-5)


SCORES = (
    HEAD.format(name="scores_by_runs")
    + """\
inputs:
  x: T[B, H, S]
  bias: T[B, S]
outputs:
  y: T[B, H, S]
chain: y = softmax(x + bias, axis=S)
reference: jax.nn.softmax(x + bias[:, None], axis=-1)
"""
)


def test_a_row_that_others_share(tmp_path):
    op = make_op(tmp_path, SCORES)
    x, bias = drawn(6, (3, 5, 35), (3, 35), dtype="bfloat16")
    assert goes_by_runs(op, "bfloat16", x=x, bias=bias)
    wide = np.asarray(x, np.float64) + np.asarray(bias, np.float64)[:, None]
    wanted = np.exp(wide) / np.sum(np.exp(wide), axis=-1, keepdims=True)
    found = np.asarray(op(x, bias, implementation="interpret"), np.float64)
    np.testing.assert_allclose(found, wanted, rtol=2**-7)


LONG = (
    HEAD.format(name="long_runs")
    + """\
inputs:
  q: int8[..., (N 2)]
  x: T[..., (2 N)]
  scale: float32[...]
  weight: T[N]
outputs:
  y: T[..., N]
  most: float32[...]
  positive: bool[..., N]
  swapped: int8[..., (N 2)]
  halves: T[..., (2 N)]
chain: |
  moved = q[0] * scale + x[1] - x[0] * q[1]
  most = max(moved, axis=N)
  y = (moved - most) * weight
  positive = moved > 0
  swapped[0] = q[1]
  swapped[1] = q[0]
  halves[0] = x[1]
  halves[1] = x[0] - most
reference: |
  n = weight.shape[0]
  even, odd = q[..., ::2], q[..., 1::2]
  moved = even * scale[..., None] + x[..., n:] - x[..., :n] * odd
  swapped = jnp.stack([odd, even], axis=-1).reshape(q.shape)
  most = jnp.max(moved, axis=-1, initial=-jnp.inf)
  y = (moved - most[..., None]) * weight
  positive = moved > 0
  halves = jnp.concatenate([x[..., n:], x[..., :n] - most[..., None]], axis=-1)
"""
)


# Rows that begin at every place of a vector, and none; the array's end lies within a vector. One block has the row, or a cluster, each of
# whose blocks has a piece of each half
@pytest.mark.parametrize(
    ("rows", "columns", "cluster"),
    some([(17, 1501, False), (0, 1501, False), (3, 6007, True), (1, 1039, False)], 3),
)
def test_long_rows_begin_a_vector(tmp_path, rows, columns, cluster):
    op = make_op(tmp_path, LONG)
    x, weight = drawn(7, (rows, 2 * columns), (columns,), dtype="bfloat16")
    (scale,) = drawn(8, (rows,), dtype="float32")
    q = jnp.asarray(np.random.default_rng(9).integers(-128, 128, (rows, 2 * columns)), "int8")
    how = launch_of(op, "bfloat16", q=q, x=x, scale=scale, weight=weight)
    assert how.by_runs and how.vec > 1 and (how.cluster > 1) == cluster
    found = op(q, x, scale, weight, implementation="interpret")
    q, x, scale, weight = (np.asarray(a, np.float64) for a in (q, x, scale, weight))
    moved = q[:, ::2] * scale[:, None] + x[:, columns:] - x[:, :columns] * q[:, 1::2]
    most = np.max(moved, axis=-1, initial=-np.inf)
    assert np.array_equal(found.most, most)
    assert np.array_equal(found.y, jnp.asarray((moved - most[:, None]) * weight, "bfloat16"))
    assert np.array_equal(found.positive, moved > 0)
    assert np.array_equal(found.swapped, np.stack([q[:, 1::2], q[:, ::2]], axis=-1).reshape(q.shape))
    halves = np.concatenate([x[:, columns:], x[:, :columns] - most[:, None]], axis=1)
    assert np.array_equal(found.halves, jnp.asarray(halves, "bfloat16"))


COSTLY = (
    HEAD.format(name="costly_long_runs")
    + """\
inputs:
  x: T[..., N]
  gate: T[..., N]
  mask: bool[..., N]
outputs:
  most: float32[...]
  y: T[..., N]
chain: |
  v = where(mask, exp2(x) * gate, -100.0)
  most = max(v, axis=N)
  y = v - most
reference: |
  v = jnp.where(mask, jnp.exp2(x) * gate, -100.0)
  most = jnp.max(v, axis=-1, initial=-jnp.inf)
  y = v - most[..., None]
"""
)


# Every array has all axes, so vectors could be shifted; in float32, one column would be a vector that divides the row. One block has the
# row, or the blocks of a cluster
@pytest.mark.parametrize(
    ("dtype", "rows", "columns", "cluster"),
    some([("bfloat16", 2, 30011, True), ("float32", 3, 1031, False), ("bfloat16", 5, 1541, False)], 3),
)
def test_expensive_values_of_long_rows(tmp_path, dtype, rows, columns, cluster):
    op = make_op(tmp_path, COSTLY)
    x, gate = drawn(12, (rows, columns), (rows, columns), dtype=dtype)
    mask = jnp.asarray(np.random.default_rng(13).random((rows, columns)) < 0.75)
    how = launch_of(op, dtype, x=x, gate=gate, mask=mask)
    assert how.by_runs and how.vec > 1 and (how.cluster > 1) == cluster
    found = op(x, gate, mask, implementation="interpret")
    x, gate, mask = np.asarray(x, np.float64), np.asarray(gate, np.float64), np.asarray(mask)
    v = np.where(mask, np.exp2(x) * gate, -100.0)
    np.testing.assert_allclose(found.most, v.max(1), rtol=1e-6)
    rounded = 2**-8 if dtype == "bfloat16" else 1e-6
    np.testing.assert_allclose(np.asarray(found.y, np.float64), v - v.max(1, keepdims=True), rtol=rounded, atol=1e-4)


NORM = (
    HEAD.format(name="norm_by_runs")
    + """\
inputs:
  x: T[..., N]
  weight: T[N]
outputs:
  y: T[..., N]
chain: y = x * rsqrt(mean(square(x), axis=N) + 1e-6) * weight
reference: x / jnp.sqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * weight
"""
)


# One block has the row, or a cluster of two
@pytest.mark.parametrize(("rows", "columns", "blocks"), some([(2, 8191, 2), (9, 1043, 1)], 2))
def test_gradients_over_long_rows(tmp_path, rows, columns, blocks):
    op = make_op(tmp_path, NORM)
    x, weight, dy = drawn(9, (rows, columns), (columns,), (rows, columns), dtype="bfloat16")
    backward = op.backward.op
    dtypes = {
        a.name: a.dtype if a.dtype in DTYPES else "bfloat16" for a in (*backward.spec.inputs, *backward.spec.outputs)
    }
    how = backward.plan.launch(PlannedCall(dtypes, Extents(columns, columns, columns, rows), arch="sm_90a"))
    assert how.by_runs and how.vec > 1 and how.cluster == blocks

    def by_hand(x, weight):
        return x / jnp.sqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * weight

    with in_parts(1):
        found = jax.vjp(lambda *a: op(*a, implementation="interpret"), x, weight)[1](dy)
    wide = [a.astype("float32") for a in (x, weight, dy)]
    for own, wanted in zip(found, jax.vjp(by_hand, *wide[:2])[1](wide[2]), strict=True):
        np.testing.assert_allclose(np.asarray(own, np.float32), wanted, rtol=2**-7, atol=2e-2)


TILES = (
    HEAD.format(name="tiles_by_runs")
    + """\
inputs:
  x: T[..., (2 N)]
  pair: T[..., (N 2)]
  weight: float32[N]
  scale: float32[...]
outputs:
  halves: T[..., (2 N)]
  turned: T[..., (N 2)]
  most: float32[N]
  total: float32[N]
chain: |
  v = x[0] * scale + pair[1] * weight
  halves[0] = v
  halves[1] = x[1] - pair[0]
  turned[0] = pair[1]
  turned[1] = v
  most = max(v, axis=...)
  total = sum(x[1] * pair[0], axis=...)
reference: |
  n = weight.shape[0]
  even, odd = pair[..., ::2], pair[..., 1::2]
  v = x[..., :n] * scale[..., None] + odd * weight
  halves = jnp.concatenate([v, x[..., n:] - even], axis=-1)
  turned = jnp.stack([odd, v], axis=-1).reshape(pair.shape)
  most = jnp.max(v, axis=0, initial=-jnp.inf)
  total = jnp.sum(x[..., n:] * even, axis=0)
"""
)


# A row has less than a warp's columns, or several blocks'; rows that begin at every place of a vector, in one part or in more than rows
@pytest.mark.parametrize(
    ("dtype", "rows", "columns", "parts"),
    some([("bfloat16", 19, 517, 3), ("float32", 21, 901, 1), ("bfloat16", 37, 33, 1)], 3),
)
def test_tiles_of_ragged_rows(tmp_path, dtype, rows, columns, parts):
    op = make_op(tmp_path, TILES)
    x, pair = drawn(10, (rows, 2 * columns), (rows, 2 * columns), dtype=dtype)
    weight, scale = drawn(11, (columns,), (rows,), dtype="float32")
    with in_parts(parts):
        how = launch_of(op, dtype, x=x, pair=pair, weight=weight, scale=scale)
        found = op(x, pair, weight, scale, implementation="interpret")
    assert how.by_runs and not how.whole and how.parts == parts and how.vec > 1
    x, pair, weight, scale = (np.asarray(a, np.float64) for a in (x, pair, weight, scale))
    v = x[:, :columns] * scale[:, None] + pair[:, 1::2] * weight
    wanted = np.concatenate([v, x[:, columns:] - pair[:, ::2]], axis=1)
    assert np.array_equal(found.halves, jnp.asarray(wanted, dtype))
    assert np.array_equal(found.turned, jnp.asarray(np.stack([pair[:, 1::2], v], axis=-1).reshape(pair.shape), dtype))
    assert np.array_equal(found.most, v.max(0))
    assert np.array_equal(found.total, np.sum(x[:, columns:] * pair[:, ::2], axis=0))


ROTATED_IN_PART = (
    HEAD.format(name="rotated_in_part")
    + """\
inputs:
  x: T[B, S, H, (8 P)]
  cos: float32[S, P]
  sin: float32[S, P]
outputs:
  y: T[B, S, H, (8 P)]
chain: |
  y[0] = x[0] * cos - x[1] * sin
  y[1] = x[1] * cos + x[0] * sin
"""
    + "".join(f"  y[{i}] = x[{i}]\n" for i in range(2, 8))
    + """\
reference: |
  n = cos.shape[1]
  one, two, rest = x[..., :n], x[..., n:2 * n], x[..., 2 * n:]
  c, s = cos[:, None], sin[:, None]
  y = jnp.concatenate([one * c - two * s, two * c + one * s, rest], axis=-1)
"""
)


# Eighteen short rows at a time, of which each begins a vector of its own in shared memory, have no room there
@pytest.mark.parametrize("columns", some([1, 2], 1))
def test_gradients_of_many_parts_of_short_rows(tmp_path, columns):
    op = make_op(tmp_path, ROTATED_IN_PART)
    x, cos, sin, dy = drawn(
        12, (5, 3, 2, 8 * columns), (3, columns), (3, columns), (5, 3, 2, 8 * columns), dtype="float32"
    )
    found = jax.vjp(lambda *arrays: op(*arrays, implementation="interpret"), x, cos, sin)[1](dy)
    x, cos, sin, dy = (np.asarray(a, np.float64) for a in (x, cos, sin, dy))
    (one, two), (d1, d2) = (np.split(a[..., : 2 * columns], 2, axis=-1) for a in (x, dy))
    c, s = cos[:, None], sin[:, None]
    wanted = np.concatenate([d1 * c + d2 * s, d2 * c - d1 * s, dy[..., 2 * columns :]], axis=-1)
    assert np.allclose(found[0], wanted, atol=1e-5)
    assert np.allclose(found[1], (d1 * one + d2 * two).sum((0, 2)), atol=1e-5)
    assert np.allclose(found[2], (d2 * one - d1 * two).sum((0, 2)), atol=1e-5)


MODULATED = (
    HEAD.format(name="modulated")
    + """\
inputs:
  x: T[B, S, D]
  mod: T[B, (6 D)]
outputs:
  y: T[B, S, D]
chain: |
  r = x + mod[2]
  m = r - mean(r, axis=D)
  y = m * (1 + mod[4]) + mod[3] * mod[5] + mod[0] * mod[1]
reference: |
  m = jnp.split(mod[:, None], 6, axis=-1)
  r = x + m[2]
  y = (r - r.mean(-1, keepdims=True)) * (1 + m[4]) + m[3] * m[5] + m[0] * m[1]
"""
)


# A thousand short rows of a block, each with six of another array, had no room
@pytest.mark.parametrize("columns", [1, 3])
def test_many_parts_of_rows_that_other_rows_share(tmp_path, columns):
    op = make_op(tmp_path, MODULATED)
    x, mod = drawn(13, (3, 5, columns), (3, 6 * columns), dtype="float32")
    found = op(x, mod, implementation="interpret")
    x, mod = (np.asarray(a, np.float64) for a in (x, mod))
    m = np.split(mod[:, None], 6, axis=-1)
    r = x + m[2]
    assert np.allclose(found, (r - r.mean(-1, keepdims=True)) * (1 + m[4]) + m[3] * m[5] + m[0] * m[1], atol=1e-5)
