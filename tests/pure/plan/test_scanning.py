"""Which scans of states that no output has are one kernel, and which go through memory."""

import pytest

from codegen.pipeline import read_op
from codegen.plan.launches import Extents, PlannedCall
from tests.making import spec_text

CHAIN = "h = cumsum(x * b, axis=S); y = sum(h * b, axis=N)"


@pytest.mark.parametrize(
    ("size", "chain", "kind"),
    [
        ("N=64", CHAIN, "scan"),
        ("N=65", CHAIN, "staged"),
        ("N", CHAIN, "staged"),
        ("N=4", "h = cumsum(x * b, axis=S); y = sum(h * softmax(h, axis=N), axis=N)", "staged"),
        ("N=4", "h = cumsum(x * b, axis=S); y = sum(h * index(N), axis=N)", "staged"),
        ("N=4", "h = cumsum(x * b, axis=S); y = sum(h * b, axis=N) + cumsum(x, axis=S)", "staged"),
    ],
    ids=["registers have them", "too many", "no fixed size", "needed again", "their positions", "another scan"],
)
def test_states_are_in_registers_where_a_thread_can_have_them(size, chain, kind):
    text = spec_text(f"x: float32[S, D]; b: float32[S, {size}]", "y: float32[S, D]", chain)
    assert read_op("specs/made.yaml", text).plan.kind == kind


@pytest.mark.parametrize(
    ("chain", "held", "steps"),
    [
        ("y = cumsum(x * b, axis=S)", 1, 8),
        ("h = scan(exp(x), b, axis=S); y = h * x + b", 4, 8),
        (
            "h = scan(exp(x), b, axis=S); z = h * sin(x) + cos(x) * h * h + sin(b)"
            "; y = h * x + b * exp(z + h * cos(b) + h * tanh(x) + h * tanh(b))",
            10,
            4,
        ),
    ],
    ids=["a sum", "a state and operands", "much that is needed after the states"],
)
def test_a_thread_has_as_many_steps_as_its_registers_hold(chain, held, steps):
    """The values of all of its steps are held while states are exchanged."""
    plan = read_op("specs/made.yaml", spec_text("x: float16[S, D]; b: float16[S, D]", "y: float16[S, D]", chain)).plan
    how = plan.launch(PlannedCall(dict.fromkeys("xby", "float16"), Extents(16, 16)))
    assert (plan.held, how.steps) == (held, steps)


ROWS = read_op("specs/made.yaml", spec_text("x: float32[R, N]", "y: float32[R, N]", "y = cumsum(x, axis=N)")).plan
COLUMNS = read_op("specs/made.yaml", spec_text("x: float32[S, D]", "y: float32[S, D]", "y = cumsum(x, axis=S)")).plan


@pytest.mark.parametrize(
    ("plan", "scans", "size", "along", "cluster"),
    [
        (ROWS, 8192, 8192, 1, 1),
        (ROWS, 256, 131072, 16, 1),
        (ROWS, 1, 131072, 16, 8),
        (ROWS, 1, 100, 1, 1),
        (COLUMNS, 100_000, 4096, 2, 1),
        (COLUMNS, 10_000, 4096, 4, 1),
        (COLUMNS, 512, 4096, 8, 8),
        (COLUMNS, 2048, 4096, 8, 4),
        (COLUMNS, 8192, 4096, 8, 1),
        (COLUMNS, 512, 40, 8, 1),
    ],
)
def test_as_many_warps_share_an_axis_as_keep_a_gpu_busy(plan, scans, size, along, cluster):
    inner = size if plan is ROWS else scans
    how = plan.launch(PlannedCall(dict.fromkeys("xy", "float32"), Extents(inner, None, size, scans), arch="sm_90a"))
    assert (how.along, how.cluster) == (along, cluster)
    assert how.cluster == 1 or how.along >= how.cluster  # each warp tells one block
    assert (
        plan.launch(
            PlannedCall(dict.fromkeys("xy", "float32"), Extents(inner, None, size, scans), arch="sm_80")
        ).cluster
        == 1
    )


@pytest.mark.parametrize(
    ("states", "scans", "vec", "steps"),
    [("float32", 16384, 2, 4), ("float32", 2048, 1, 8), ("float16", 2048, 2, 8), ("float16", 16384, 2, 8)],
)
def test_vectors_of_many_scans_fit_the_narrowest_array(states, scans, vec, steps):
    """A lane has 4 bytes of it, and of few scans 4 bytes of the widest array; it has no more elements at once than before."""
    text = spec_text(f"x: float16[S, D]; h: {states}[S, D]", "y: float16[S, D]", "y = cumsum(x * h, axis=S)")
    plan = read_op("specs/made.yaml", text).plan
    how = plan.launch(
        PlannedCall({"x": "float16", "h": states, "y": "float16"}, Extents(scans, None, 4096, scans), arch="sm_90a")
    )
    assert (how.vec, how.steps) == (vec, steps)


def test_vectors_of_states_share_what_they_have_in_common():
    """Of many scans, four states read the same x, and a thread has sixteen elements at once."""
    text = spec_text("x: float32[S, D]; b: float32[S, N=16]", "h: float32[S, D, N=16]", "h = cumsum(x * b, axis=S)")
    plan = read_op("specs/made.yaml", text).plan
    for scans, expected in ((2**18, (4, 4)), (2**10, (1, 8))):
        extents = Extents(16, None, 4096, scans)
        how = plan.launch(PlannedCall(dict.fromkeys("xbh", "float32"), extents, arch="sm_90a"))
        assert (how.vec, how.steps) == expected
