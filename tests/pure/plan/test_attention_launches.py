"""The launches of attention: how many blocks share a row in decoding."""

import pytest

from codegen.autodiff.backward import Derived, backward_of
from codegen.errors import UserError
from codegen.pipeline import read_op
from codegen.plan.attention import AttentionBackward
from codegen.plan.launches import Extents, PlannedCall
from tests.making import spec_text

DTYPES = {"q": "bfloat16", "k": "bfloat16", "v": "bfloat16", "o": "bfloat16", "lengths": "int32"}


@pytest.mark.parametrize(
    ("mask", "sequences", "columns", "splits"),
    [
        ("index(S) < 1000", 8, 32768, 8),  # 64 groups of heads, of which 528 blocks are resident
        ("index(S) < lengths", 8, 32768, 32),
        ("index(S) < lengths", 8, 1024, 4),  # 256 columns each
        ("index(S) < lengths", 128, 32768, 2),
        ("index(S) < lengths", 1024, 32768, 1),
    ],
    ids=str,
)
def test_rows_with_masks_of_their_own_have_more_blocks(mask, sequences, columns, splits):
    """As many as keep every SM busy where each sees as much; four times as many where they may not."""
    text = spec_text(
        "q: T[B, Q, (H G), D]; k: T[B, S, H, D]; v: T[B, S, H, E]; lengths: int32[B]", "o: T[B, Q, (H G), E]",
        f"o = softmax(where({mask}, q @ k + lengths, -inf), axis=S) @ v", types="{T: [bfloat16]}",
    )  # fmt: skip
    plan = read_op("specs/made.yaml", text).plan
    how = plan.launch(PlannedCall(DTYPES, Extents(128, columns, 128, 1, sequences * 32, 4), arch="sm_90a"))
    assert (how.splits, how.bounded, how.packed) == (splits, splits > 1, True)


@pytest.mark.parametrize(
    ("score", "columns"), [("q @ k", (160, 128)), ("where(index(S) <= index(Q), q @ k, -inf)", (128, 128))]
)
def test_tiles_have_fewer_columns_where_a_mask_has_borders(score, columns):
    """Of heads of 64 elements and of 128."""
    text = spec_text(
        "q: T[B, Q, H, D]; k: T[B, S, H, D]; v: T[B, S, H, E]", "o: T[B, Q, H, E]", f"o = softmax({score}, axis=S) @ v",
        types="{T: [bfloat16]}",
    )  # fmt: skip
    plan = read_op("specs/made.yaml", text).plan
    found = [
        plan.launch(PlannedCall(DTYPES, Extents(d, 4096, d, 4096, 32, 1), arch="sm_90a")).tile_n for d in (64, 128)
    ]
    assert tuple(found) == columns


@pytest.mark.parametrize(
    ("weights", "outputs", "chain", "tops"),
    [
        ("softmax(s, axis=S)", "", "", False),
        ("softmax(s, axis=S)", "; lse: float32[B, Q, H]", "; lse = logsumexp(s, axis=S)", False),
        ("softmax(s, axis=S)", "; most: float32[B, Q, H]", "; most = max(s, axis=S)", True),
        ("exp(s - max(s, axis=S)) / (1 + sum(exp(s - max(s, axis=S)), axis=S))", "", "", True),
        ("exp(s - m) / (exp(sink - m) + sum(exp(s - m), axis=S))", "", "", False),
    ],
    ids=str,
)
def test_a_largest_score_that_no_output_depends_on_need_not_be_exact(weights, outputs, chain, tops):
    """So it is in the forward that saves it for the backward, too, with a sum that is relative to it."""
    most = "m = maximum(max(s, axis=S), sink); " if "sink" in weights else ""
    text = spec_text(
        "q: T[B, Q, H, D]; k: T[B, S, H, D]; v: T[B, S, H, E]" + "; sink: float32[H]" * bool(most),
        "o: T[B, Q, H, E]" + outputs, f"s = q @ k; {most}o = {weights} @ v{chain}", types="{T: [bfloat16]}",
    )  # fmt: skip
    op = read_op("specs/made.yaml", text)
    how = op.plan.launch(PlannedCall(DTYPES | {"lse": "float32"}, Extents(128, 4096, 128, 4096, 32, 1), arch="sm_90a"))
    assert (how.early, how.tops) == (True, tops)
    backward = backward_of(op)
    if isinstance(backward, Derived):
        assert backward.forward and backward.forward.plan.tops == tops


def test_a_spec_without_narrow_types_still_has_a_plan():
    """Its calls run as XLA's, also where its scores read another array."""
    text = spec_text(
        "q: T[B, H, Q, D]; k: T[B, H, S, D]; v: T[B, H, S, E]; b: T[H, Q, S]", "o: T[B, H, Q, E]",
        "o = dot(dot(q, k, axis=D) + b, v, axis=S)", types="{T: [float32]}",
    )  # fmt: skip
    with pytest.raises(UserError, match="attention has kernels for"):
        read_op("specs/made.yaml", text).plan.launch(
            PlannedCall(dict.fromkeys("qkvbo", "float32"), Extents(128, 128, 8, 1, 8, 8), arch="sm_90a")
        )


@pytest.mark.parametrize(
    ("d", "e", "joint", "separate", "rows"),
    [
        (64, 64, True, False, (128, 112)),
        (128, 128, True, False, (64, 112)),
        (192, 16, False, False, (64, 96)),
        (192, 128, False, False, (32, 96)),
        (192, 192, False, True, (96, 80)),
        (256, 256, False, True, (64, 48)),
    ],
    ids=str,
)
def test_gradients_of_large_heads_have_hoppers_kernels(d, e, joint, separate, rows):
    """One kernel of all gradients, where shared memory has room for its tiles; else two, and where registers do not hold two sums of
    128 rows of k, each consumer has one sum of 64."""
    text = spec_text(
        "q: T[B, Q, H, D]; k: T[B, S, H, D]; v: T[B, S, H, E]", "o: T[B, Q, H, E]",
        "o = softmax(q @ k, axis=S) @ v", types="{T: [bfloat16]}",
    )  # fmt: skip
    found = backward_of(read_op("specs/made.yaml", text))
    assert isinstance(found, Derived)
    (plan,) = [s.plan for s in found.op.plan.stages if isinstance(s.plan, AttentionBackward)]
    types = {a.name: "bfloat16" for a in plan.vectors} | {a.name: "float32" for a in plan.statistics}
    how = plan.launch(PlannedCall(types, Extents(e, 4096, d, 4096, 8, 8), arch="sm_90a"))
    assert (how.joint, how.separate, (how.tile_m, how.tile_n)) == (joint, separate, rows)


SLOPED = spec_text(
    "q: T[B, H, Q, D]; k: T[B, H, S, D]; v: T[B, H, S, E]; slope: float32[H]", "o: T[B, H, Q, E]",
    "o = softmax(q @ k + slope * index(S), axis=S) @ v", "o = q", types="{T: [float16, bfloat16]}",
)  # fmt: skip


def test_slopes_of_heads_are_summed_down_columns():
    """Then nothing is summed along rows, and on Hopper one kernel gives all gradients."""
    found = backward_of(read_op("specs/made.yaml", SLOPED))
    assert isinstance(found, Derived) and not found.lacking
    (plan,) = [s.plan for s in found.op.plan.stages if isinstance(s.plan, AttentionBackward)]
    assert (len(plan.along_rows), len(plan.along_columns)) == (0, 1)
    launches = [plan.on_hopper(d, e) for d, e in ((64, 64), (96, 96), (128, 128), (192, 128))]
    assert [(how.joint, how.tile_m) for how in launches if how][:3] == [(True, 128), (True, 64), (True, 64)]
    assert launches[3] is None or not launches[3].joint
