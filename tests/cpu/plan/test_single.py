"""Ops of one kernel while a block holds a row, and else of stages that share it among all SMs."""

import jax.numpy as jnp
import numpy as np
import pytest

from codegen.checking import testing
from codegen.errors import UserError
from codegen.plan.launches import Extents, PlannedCall
from codegen.plan.rows.middle import in_stages
from codegen.plan.rows.single import Single
from tests.making import make_op, spec_text
from tests.meshes import normal
from tests.turns import EVERY, some

TYPES = "{T: [float32, bfloat16]}"
CLIP = ("x: T[N]", "y: T[N]", "y = x / (norm(x, axis=N) + 1)", "y = x / (jnp.sqrt(jnp.sum(x * x)) + 1)")
QUANTISED = (
    "x: T[M, N]", "y: T[M, N]; scale: float32[]", "scale = max(abs(x), axis=(M, N)) + 1; y = x / scale",
    "scale = jnp.max(jnp.abs(x), initial=0) + 1; y = x / scale",
)  # fmt: skip


@pytest.mark.parametrize("text", [CLIP, QUANTISED], ids=["clip", "quantised"])
def test_values_and_gradients(tmp_path, text):
    op = make_op(tmp_path, spec_text(*text, types=TYPES))
    assert isinstance(op.plan.whole.plan, Single)
    assert [stage.plan.kind for stage in op.plan.stages] == ["column", "elementwise"]
    testing.check_op(op, "interpret", examples=4 if EVERY else None)
    testing.check_gradient(op, "interpret", examples=2 if EVERY else None)


@pytest.mark.parametrize("size", some([1, 7, 1000, 5000], 2, 1))
def test_one_kernel_and_stages_agree(tmp_path, size):
    op = make_op(tmp_path, spec_text(*CLIP, types=TYPES))
    x = normal(size)
    held = op(x, implementation="interpret")
    with in_stages():
        shared = op(x, implementation="interpret")
    expected = np.float64(x) / (np.sqrt(np.sum(np.float64(x) ** 2)) + 1)
    np.testing.assert_allclose(held, expected, rtol=1e-5)
    np.testing.assert_allclose(shared, expected, rtol=1e-5)


def test_a_row_that_no_block_holds_takes_stages(tmp_path):
    op = make_op(tmp_path, spec_text(*CLIP, types=TYPES))
    whole, dtypes = op.plan.whole.plan, {"x": "bfloat16", "y": "bfloat16"}
    assert whole.launch(PlannedCall(dtypes, Extents(2**16, 2**16, 2**16, 1), arch="sm_90a")).holds_row
    with pytest.raises(UserError, match="no block can hold a row of 16777216 elements"):
        whole.launch(PlannedCall(dtypes, Extents(2**24, 2**24, 2**24, 1), arch="sm_90a"))


def test_statistics_of_one_row_are_shared_too(tmp_path):
    text = ("x: T[N]", "y: float32[]", "y = logsumexp(x, axis=N)", "y = jax.nn.logsumexp(x)")
    op = make_op(tmp_path, spec_text(*text, types=TYPES))
    assert op.plan.kind == "column"
    x = normal(3000).astype(jnp.bfloat16)
    np.testing.assert_allclose(op(x, implementation="interpret"), op.reference(jnp.float32(x)), rtol=1e-5)


def test_a_spec_that_asks_for_the_launch_of_one_kernel_has_it(tmp_path):
    op = make_op(tmp_path, spec_text(*CLIP, types=TYPES) + "schedule: {threads: 256}\n")
    assert op.plan.kind == "row"


# A loss of each image whose mask lacks the channels: its place is found once for a row of these, not for each element
MASKED = (
    "x: T[B, S, C]; mask: bool[B, S]", "y: float32[B]", "y = sum(where(mask, square(x), 0), axis=(S, C))",
    "y = jnp.sum(jnp.where(mask[..., None], x * x, 0), axis=(1, 2))",
)  # fmt: skip


def test_a_long_row_along_several_axes_is_reduced_over_rows(tmp_path):
    op = make_op(tmp_path, spec_text(*MASKED, types=TYPES))
    assert [stage.plan.kind for stage in op.plan.stages] == ["column"]
    testing.check_op(op, "interpret", examples=4 if EVERY else None)
    whole, dtypes = op.plan.whole.plan, {"x": "bfloat16", "mask": "bool"}
    assert whole.launch(PlannedCall(dtypes, Extents(64, 2**15, 2**12, 8), arch="sm_90a")).holds_row
    with pytest.raises(UserError, match="no block can hold a row"):
        whole.launch(PlannedCall(dtypes, Extents(64, 2**27, 2**24, 8), arch="sm_90a"))
    # of a few stretches, blocks would write much of what they read
    assert not whole.launch(PlannedCall(dtypes, Extents(2**22, 2**27, 2**24, 8), arch="sm_90a")).holds_row


def test_a_long_row_has_the_same_sum_in_both_kernels(tmp_path):
    op = make_op(tmp_path, spec_text(*MASKED, types=TYPES))
    x, mask = normal(3, 70, 9), normal(3, 70) > 0
    held = op(x, mask, implementation="interpret")
    with in_stages():
        shared = op(x, mask, implementation="interpret")
    expected = np.sum(np.where(np.asarray(mask)[..., None], np.float64(x) ** 2, 0), axis=(1, 2))
    np.testing.assert_allclose(held, expected, rtol=1e-5)
    np.testing.assert_allclose(shared, expected, rtol=1e-5)


PAIRS = (
    "s: T[B, N]; t: T[B, M]", "y: float32[B]", "y = sum(relu(1 - (s - t)), axis=(N, M))",
    "y = jnp.sum(jnp.maximum(1.0 - (s[:, :, None] - t[:, None]), 0), axis=(1, 2), dtype=jnp.float32)",
)  # fmt: skip


def test_rows_of_pairs(tmp_path):
    """One kernel computes few pairs; of many, kernels over rows hold one element of each and read the other once."""
    op = make_op(tmp_path, spec_text(*PAIRS, types=TYPES))
    whole, dtypes = op.plan.whole.plan, {"s": "bfloat16", "t": "bfloat16", "y": "float32"}
    assert whole.launch(PlannedCall(dtypes, Extents(32, 1024, 1024, 8), arch="sm_90a")).holds_row
    with pytest.raises(UserError, match="no array has all 16384 elements of a row"):
        whole.launch(PlannedCall(dtypes, Extents(128, 2**14, 2**14, 8), arch="sm_90a"))
    s, t = normal(2, 96), normal(2, 96)
    np.testing.assert_allclose(op(s, t, implementation="interpret"), op.reference(s, t), rtol=1e-5)
