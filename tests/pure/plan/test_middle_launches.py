"""Launches of kernels that reduce along axes before the innermost one, and hold a row's elements in registers."""

import pytest

from codegen.autodiff.backward import Derived, backward_of
from codegen.pipeline import read_op
from codegen.plan.launches import Extents, PlannedCall
from codegen.plan.op import Staged
from codegen.plan.rows.launching import cost
from codegen.plan.rows.middle import CROWDED, Middle
from codegen.shared import MiddleLaunch
from codegen.targets import REGISTERS_OF_SM
from tests.making import spec_text

COSTLY = "v = log_sigmoid(mish(x[0]) * x[1]); y = max(log(square(v) + 0.001), axis=S)"


@pytest.mark.parametrize("columns", [4, 16, 64])
def test_threads_hold_what_registers_have_room_for(columns):
    """Of a chain with many values, few elements: a thread with 32 columns wanted 255 registers and spilled others."""
    text = spec_text("x: bfloat16[B, S, (2 N)]", "y: float32[B, N]", COSTLY)
    made = backward_of(read_op("specs/made.yaml", text))
    assert isinstance(made, Derived) and isinstance(made.op.plan, Staged) and made.op.plan.whole is not None
    plan, spec = made.op.plan.whole.plan, made.op.plan.whole.spec
    assert isinstance(plan, Middle)
    dtypes = {a.name: spec.dtypes(a)[0] for a in spec.arrays}
    how = plan.launch(PlannedCall(dtypes, Extents(inner=256, total=None, columns=columns, rows=10**6), arch="sm_90a"))
    assert isinstance(how, MiddleLaunch)
    room = REGISTERS_OF_SM // max(how.threads, CROWDED)
    assert cost.registers(how.vec * how.vectors, plan.alive) <= room


@pytest.mark.parametrize("rows", [96, 3000])
def test_few_rows_have_small_blocks(rows):
    """Blocks of 128 threads with vectors of 8 rows left all SMs but a few idle."""
    text = spec_text("x: bfloat16[S, N]", "y: bfloat16[S, N]", "y = x - max(x, axis=S)")
    plan = read_op("specs/made.yaml", text).plan
    assert isinstance(plan, Staged) and plan.whole is not None and isinstance(plan.whole.plan, Middle)
    dtypes = {"x": "bfloat16", "y": "bfloat16"}

    def launch(rows: int) -> MiddleLaunch:
        call = PlannedCall(dtypes, Extents(inner=rows, total=None, columns=5, rows=rows), arch="sm_90a")
        how = plan.whole.plan.launch(call)
        assert isinstance(how, MiddleLaunch)
        return how

    few, many = launch(rows), launch(2**20)
    assert few.rows_a_block <= 64 < many.rows_a_block and few.vec < many.vec


@pytest.mark.parametrize(("chain", "columns", "vec", "per_row"), [("log1p", 196, 4, 32), ("log1p", 49, 8, 16)])
def test_threads_hold_expensive_values(chain, columns, vec, per_row):
    """A warp for each row, or less, rather than wider vectors of rows that several warps share."""
    text = spec_text("x: bfloat16[B, S, N]", "y: bfloat16[B, S, N]", f"v = {chain}(square(x)); y = v - mean(v, axis=S)")
    plan = read_op("specs/made.yaml", text).plan
    assert isinstance(plan, Staged) and plan.whole is not None and isinstance(plan.whole.plan, Middle)
    dtypes = {"x": "bfloat16", "y": "bfloat16"}
    how = plan.whole.plan.launch(
        PlannedCall(dtypes, Extents(inner=64, total=None, columns=columns, rows=2**18), arch="sm_90a")
    )
    assert isinstance(how, MiddleLaunch) and how.holds_expensive
    assert (how.vec, how.per_row) == (vec, per_row)
