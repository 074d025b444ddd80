"""Kernels of rows whose columns are stretches of memory: group norms of channels-last arrays, and blocks of two axes."""

import jax.numpy as jnp
import numpy as np
import pytest

from codegen.checking import testing
from codegen.errors import UserError
from codegen.plan.launches import Extents, PlannedCall
from codegen.plan.rows.strided import Strided
from tests.making import make_op, spec_text
from tests.meshes import normal
from tests.turns import EVERY, some

TYPES = "{T: [float32, bfloat16]}"
NORM = (
    "x: T[B, S, G, C]; shift: T[B, G, C]; weight: T[G, C]", "y: T[B, S, G, C]",
    "y = (x - mean(x, axis=(S, C))) * rsqrt(var(x, axis=(S, C)) + 0.1) * weight + shift",
    "m = jnp.mean(x, axis=(1, 3), keepdims=True); v = jnp.var(x, axis=(1, 3), keepdims=True); "
    "y = (x - m) / jnp.sqrt(v + 0.1) * weight + shift[:, None]",
)  # fmt: skip
BLOCKS = (
    "x: T[(P R=16), (Q C=32)]", "y: T[(P R=16), (Q C=32)]; scale: float32[Q, P]",
    "s = max(abs(x), axis=(R, C)); y = x / (s + 1); scale = s",
    "z = x.reshape(x.shape[0] // 16, 16, x.shape[1] // 32, 32); s = jnp.max(jnp.abs(z), axis=(1, 3)); "
    "y = (z / (s[:, None, :, None] + 1)).reshape(x.shape); scale = s.T",
)  # fmt: skip


def whole(op):
    return op.plan.whole.plan


@pytest.mark.parametrize("text", some([BLOCKS, NORM], 2), ids=some(["blocks", "norm"], 2))
def test_values_and_gradients(tmp_path, text):
    op = make_op(tmp_path, spec_text(*text, types=TYPES))
    assert isinstance(whole(op), Strided)
    testing.check_op(op, "interpret", examples=4 if EVERY else None)
    testing.check_gradient(op, "interpret", examples=2 if EVERY else None)


# Vectors of 8 and of 4; a cluster shares the row of the last one
@pytest.mark.parametrize("shape", some([(2, 24, 3, 16), (1, 7, 2, 12), (1, 2048, 2, 12)], 1))
def test_one_kernel_computes_a_norm(tmp_path, shape):
    op = make_op(tmp_path, spec_text(*NORM, types=TYPES))
    x, shift, weight = (normal(*s).astype(jnp.bfloat16) for s in (shape, (shape[0], *shape[2:]), shape[2:]))
    extents = Extents(shape[3], x.size, shape[1] * shape[3], shape[0] * shape[2])
    dtypes = {"x": "bfloat16", "shift": "bfloat16", "weight": "bfloat16", "y": "bfloat16"}
    how = whole(op).launch(PlannedCall(dtypes, extents, arch="sm_90a"))
    assert how.vec == min(8, shape[3] & -shape[3]) and how.holds_row and (how.cluster > 1) == (shape[1] == 2048)
    got = op(x, shift, weight, implementation="interpret")
    expected = op.reference(*(jnp.float32(a) for a in (x, shift, weight)))
    np.testing.assert_allclose(np.float32(got), expected, rtol=2**-7, atol=2**-7)


def test_what_all_rows_share_is_not_held(tmp_path):
    op = make_op(tmp_path, spec_text(*NORM, types=TYPES))
    assert [a.name for a in whole(op).loads if whole(op).of_row(a)] == ["x"]


@pytest.mark.parametrize(
    ("inner", "columns", "why"),
    [(4, 4096, "too few"), (32, 2**15, "as fast by stages"), (12, 2**20, "no block can hold")],
)
def test_short_stretches_and_long_rows_take_stages(tmp_path, inner, columns, why):
    op = make_op(tmp_path, spec_text(*NORM, types=TYPES))
    dtypes = {"x": "bfloat16", "shift": "bfloat16", "weight": "bfloat16", "y": "bfloat16"}
    with pytest.raises(UserError, match=why):
        whole(op).launch(PlannedCall(dtypes, Extents(inner, 512 * columns, columns, 512), arch="sm_90a"))


def test_few_rows_take_one_kernel(tmp_path):
    """What its stages would read again is in the cache, and each of them is a launch."""
    op = make_op(tmp_path, spec_text(*NORM, types=TYPES))
    dtypes = {"x": "bfloat16", "shift": "bfloat16", "weight": "bfloat16", "y": "bfloat16"}
    assert whole(op).launch(PlannedCall(dtypes, Extents(32, 16 * 2**15, 2**15, 16), arch="sm_90a")).holds_row


@pytest.mark.parametrize(
    "text",
    [
        # Rows are reduced over, too; parts
        ("x: T[B, S, G, C]", "y: T[B, S, G, C]; m: T[C]", "y = x - mean(x, axis=(S, C)); m = sum(x, axis=(B, S, G))"),
        ("x: T[B, S, G, (C 2)]", "y: T[B, S, G, C]", "y = x[0] - mean(x[1], axis=(S, C))"),
    ],
)
def test_other_ops_have_no_such_kernel(tmp_path, text):
    op = make_op(tmp_path, spec_text(*text, types=TYPES))
    assert op.plan.whole is None


def test_rows_of_neighbours_hold_no_weight_that_their_columns_share(tmp_path):
    text = (
        "x: T[B, G, C, S]; weight: T[G, C]; shift: T[B, G, C]", "y: T[B, G, C, S]",
        "y = (x - max(x, axis=(C, S))) * weight + shift",
        "y = (x - jnp.max(x, axis=(2, 3), keepdims=True)) * weight[..., None] + shift[..., None]",
    )  # fmt: skip
    op = make_op(tmp_path, spec_text(*text, types=TYPES))
    assert [a.name for a in op.plan.loads if op.plan.of_row(a)] == ["x"]
    dtypes = {"x": "bfloat16", "weight": "bfloat16", "shift": "bfloat16", "y": "bfloat16"}
    assert op.plan.launch(PlannedCall(dtypes, Extents(4096, 2**24, 2**17, 128), arch="sm_90a")).holds_row
    testing.check_op(op, "interpret", examples=4 if EVERY else None)


def test_what_statistics_need_too_is_held(tmp_path):
    text = ("x: T[B, G, C, S]; w: T[G, C]", "y: T[B, G, C, S]", "v = x * w; y = v - max(v, axis=(C, S))")
    op = make_op(tmp_path, spec_text(*text, types=TYPES))
    assert [a.name for a in op.plan.loads if op.plan.of_row(a)] == ["x", "w"]
