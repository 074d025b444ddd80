"""Ops whose arrays have their axes in different orders: values, gradients, and JAX's transformations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import generated
from codegen.checking import testing
from codegen.plan.launches import Extents, PlannedCall
from tests.making import make_op, spec_text
from tests.meshes import normal
from tests.turns import EVERY, some

QUANTIZE = generated.transpose_quantize_fp8


def launch(rows, columns, batch=2**16):
    return QUANTIZE.plan.launch(PlannedCall({"x": "bfloat16"}, Extents(columns, batch * rows * columns, turned=rows)))


# Whole vectors; narrower ones; tiles that end within vectors; nothing
@pytest.mark.parametrize(
    "shape",
    some(
        [
            (2, 24, 16), (4, 6), (3, 9, 17), (49, 96), (49, 40), (64, 17), (2, 65, 33), (50, 33), (3, 40),
            (0, 16), (2, 40, 3), (4, 40), (12, 20),
        ],
        3,
    ),
)  # fmt: skip
def test_a_transposed_output_is_the_other_one_transposed(shape):
    x = normal(*shape).astype(jnp.bfloat16)
    q, transposed = QUANTIZE(x, 0.5, implementation="interpret")
    expected = np.asarray((x.astype(jnp.float32) / 0.5).astype(jnp.float8_e4m3fn), np.float32)
    np.testing.assert_array_equal(np.asarray(q, np.float32), expected)
    np.testing.assert_array_equal(np.asarray(transposed, np.float32), np.swapaxes(expected, -1, -2))


def test_vectors_are_half_as_wide_where_those_fill_both_axes():
    assert [(how.vec, how.ragged) for how in (launch(64, 64), launch(64, 12), launch(6, 64), launch(7, 64))] == [
        (8, False), (4, False), (8, True), (8, True),
    ]  # fmt: skip


def test_an_axis_that_vectors_do_not_fill_is_read_one_by_one_where_they_fill_the_other(tmp_path):
    """No element is put together from two vectors. The threads of a block read whole stretches of the one, whole sectors of the other."""
    found = [launch(*shape) for shape in ((1024, 49), (49, 1024), (1024, 50), (1024, 1001), (49, 49))]
    assert [(how.vec, how.down, how.ragged) for how in found] == [
        (1, 16, False), (16, 1, False), (2, 16, False), (1, 16, False), (8, 8, True),
    ]  # fmt: skip
    assert [(how.across, how.threads // how.across, how.lanes) for how in found[:4]] == [
        (56, 4, 2),
        (4, 56, 2),
        (32, 8, 2),
        (64, 4, 2),
    ]
    scaled = make_op(
        tmp_path, spec_text("x: T[M, N]; z: T[N, M]", "y: T[M, N]", "y = x * z", "y = x * z.T", types="{T: [bfloat16]}")
    )
    dtypes = dict.fromkeys("xyz", "bfloat16")
    both = Extents(49, 2**26, turned=1024), Extents(1024, 2**26, turned=49)
    assert [scaled.plan.launch(PlannedCall(dtypes, extents)).lanes for extents in both] == [1, 4]
    assert scaled.plan.launch(PlannedCall(dtypes, Extents(1, 0, turned=0))).down == 1  # no elements
    testing.check_op(scaled, "interpret", examples=2 if EVERY else None)


def test_few_tiles_are_small():
    """So that there are blocks for all SMs, and a thread has little to do."""
    found = [launch(64, 64, batch) for batch in (4096, 512, 64, 1)]
    assert [(how.vec, how.threads) for how in found] == [(8, 256), (8, 64), (4, 64), (2, 64)]
    assert [how.across for how in found] == [8, 8, 16, 16]


def test_tiles_of_many_arrays_have_fewer_rows(tmp_path):
    """Registers hold what a thread loads."""
    names = "abcd"
    found = []
    for count in (2, 3, 4):
        inputs, own = "; ".join(f"{n}: T[M, N]" for n in names[:count]), " + ".join(names[:count])
        op = make_op(tmp_path, spec_text(inputs, "y: T[N, M]", f"y = {own}", f"({own}).T", types="{T: [bfloat16]}"))
        dtypes = dict.fromkeys([*names[:count], "y"], "bfloat16")
        found.append(op.plan.launch(PlannedCall(dtypes, Extents(512, 2**26, turned=512))).vec)
        for turned, columns in ((0, 1), (1, 0), (0, 0)):
            assert op.plan.launch(PlannedCall(dtypes, Extents(columns, 0, turned=turned))).threads >= 1
    assert found == [8, 8, 4]
    testing.check_op(op, "interpret", examples=2 if EVERY else None)


def test_a_tile_is_no_longer_than_a_short_axis():
    """Three channels of an image, of which a thread has four rows, or four elements of a row."""
    found = [launch(*shape) for shape in ((3, 4096), (4096, 3), (4, 4096), (2, 2))]
    assert [(how.down, how.vec, how.ragged) for how in found] == [
        (4, 8, True),
        (8, 4, True),
        (4, 8, False),
        (2, 2, False),
    ]


def test_few_channels_that_are_only_read_are_whole_in_a_tile(tmp_path):
    """A thread has three rows of whole vectors, which it writes."""
    text = spec_text(
        "x: uint8[B, S, C]; w: float32[C]", "y: T[B, C, S]", "y = x * w", "y = jnp.moveaxis(x * w, 2, 1)",
        types="{T: [float32, bfloat16]}",
    )  # fmt: skip
    op = make_op(tmp_path, text + "grad: none\n")
    how = op.plan.launch(PlannedCall({"x": "uint8", "w": "float32", "y": "bfloat16"}, Extents(4096, 2**26, turned=3)))
    assert (how.vec, how.down, how.ragged) == (8, 3, False)
    x = np.arange(2 * 24 * 3).reshape(2, 24, 3).astype(np.uint8)
    got = op(x, np.array([1, 2, 3], np.float32), implementation="interpret")
    np.testing.assert_array_equal(got, np.swapaxes(x * np.array([1, 2, 3], np.float32), 1, 2))
    testing.check_op(op, "interpret", examples=2 if EVERY else None)


def test_threads_of_a_block_lie_along_the_axes_as_long_as_these_are():
    assert [launch(*shape).across for shape in ((4096, 4096), (4096, 16), (16, 4096), (8, 8))] == [16, 2, 128, 1]


def test_axes_of_heads_move_and_an_input_is_transposed(tmp_path):
    text = spec_text(
        "x: T[B, S, H, D]; w: float32[D, H]; b: float32[S]", "y: T[B, H, S, D]; z: T[B, D, S, H]",
        "v = x * w + b; y = v; z = tanh(v) * index(S)",
        "v = x * w.T + b[:, None, None]; y = jnp.moveaxis(v, 2, 1); "
        "z = jnp.moveaxis(jnp.tanh(v) * jnp.arange(x.shape[1])[:, None, None], 3, 1)",
        types="{T: [float32, bfloat16]}",
    )  # fmt: skip
    op = make_op(tmp_path, text)
    for implementation in ("interpret", "xla"):
        testing.check_op(op, implementation, examples=1)
    testing.check_gradient(op, "interpret", examples=1)


def test_a_mapped_axis_joins_the_rows():
    x = normal(2, 5, 6).astype(jnp.bfloat16)
    got = jax.vmap(lambda x: QUANTIZE(x, 0.5, implementation="interpret").q_transposed)(x)
    np.testing.assert_array_equal(got, jnp.swapaxes(QUANTIZE.reference(x, 0.5).q, 1, 2))


# Rows are found by their coordinates: their axes may be in any order, where the columns are last in each array
REDUCED = {
    "heads that move": (
        "x: T[B, S, H, D]; w: T[D]; b: float32[H, S]", "y: T[B, H, S, D]",
        "y = x * rsqrt(mean(square(x), axis=D) + 1) * w + b",
        "y = jnp.moveaxis(x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1) * w + b.T[..., None], 1, 2)",
    ),
    "transposed results of rows": (
        "x: T[M, (2 B G=32)]", "y: T[M, (B G=32)]; scale: float32[B, M]",
        "z = x[0] * x[1]; s = max(abs(z), axis=G); y = z / (s + 1); scale = s",
        "a, b = jnp.split(x, 2, axis=-1); z = (a * b).reshape(x.shape[0], a.shape[1] // 32, 32); "
        "s = jnp.max(jnp.abs(z), axis=-1); y = (z / (s[..., None] + 1)).reshape(a.shape); scale = s.T",
    ),
    "sums over rows": (
        "x: T[P, Q, R, N]; z: T[Q, P, R, N]", "y: float32[R, N]", "y = sum(x * z, axis=(P, Q))",
        "y = jnp.sum(x * jnp.swapaxes(z, 0, 1), axis=(0, 1))",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REDUCED)
def test_one_kernel_reduces_arrays_whose_rows_are_in_different_orders(tmp_path, name):
    op = make_op(tmp_path, spec_text(*REDUCED[name], types="{T: [float32, bfloat16]}"))
    assert op.plan.kind in ("row", "column")
    for implementation in ("interpret", "xla"):
        testing.check_op(op, implementation, examples=3 if EVERY else None)
    testing.check_gradient(op, "interpret", examples=1)


def test_a_mapped_axis_joins_rows_in_another_order(tmp_path):
    op = make_op(tmp_path, spec_text(*REDUCED["heads that move"], types="{T: [float32, bfloat16]}"))
    x, w, b = normal(3, 2, 5, 2, 16), normal(16), normal(2, 5)
    got = jax.vmap(lambda x: op(x, w, b, implementation="interpret"))(x)
    np.testing.assert_allclose(got, [op.reference(row, w, b) for row in x], rtol=1e-5)


BAG = (
    "table: T[V, D]; ids: int32[B, L]; length: int32[B]", "y: T[B, D]",
    "y = sum(where(index(L) < length, take(table, ids, axis=V), 0), axis=L)",
    "e = table[jnp.clip(ids, 0, table.shape[0] - 1)]; m = jnp.arange(ids.shape[1]) < length[:, None]; "
    "y = jnp.where(m[..., None], e, 0).sum(1)",
)  # fmt: skip


def test_rows_that_are_taken_from_a_table_are_read_in_vectors(tmp_path):
    op = make_op(
        tmp_path, spec_text(*BAG, types="{T: [float32, bfloat16]}") + "domain:\n  ids: index(V)\n  length: index(L)\n"
    )
    assert op.spec.axes == ("B", "L", "V", "D")
    (rows,) = [a for a in op.plan.loads if a.array is not None and a.array.name == "table"]
    assert rows.mode == "flat"
    (gradient,) = [a for a in op.kernels[-1].spec.outputs if a.name == "dtable"]
    assert gradient.axes == ("B", "L", "D")
    testing.check_op(op, "interpret", examples=4 if EVERY else None)
    testing.check_gradient(op, "interpret", examples=2 if EVERY else None)


def test_arrays_come_before_what_is_taken_from_tables(tmp_path):
    inputs = "table: T[V, D]; ids: int32[B, L]; length: int32[B]; z: T[B, D, L]"
    chain = BAG[2].replace("take(", "z * take(")
    op = make_op(tmp_path, spec_text(inputs, BAG[1], chain, "y = z", types="{T: [float32, bfloat16]}"))
    assert op.spec.axes == ("B", "V", "D", "L")
