"""Blocks that walk down rows keep pace if memory serves some of them faster: `codegen.device.partials`."""

import dataclasses

import numpy as np
import pytest

import generated
from codegen import targets
from codegen.checking.draw import Case
from codegen.checking.testing import check_case
from codegen.measuring.times.bench import make_inputs, typical
from codegen.plan.rows.launching import walking
from codegen.runtime.call.arguments import Types
from codegen.runtime.compiled import interpreted

ROWS, COLUMNS = 50, 2048


@pytest.fixture
def call(monkeypatch):
    """A call of LayerNorm's backward on a small GPU, for which it has many rows."""
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    monkeypatch.setattr(walking, "LONG", 2)
    hopper = dataclasses.replace(targets.FEATURES["sm_90"], processors=2)
    monkeypatch.setitem(targets.FEATURES, "sm_90", hopper)
    op = generated.dlayernorm
    return op, make_inputs(op.spec, typical(op.spec, {}), {"...": ROWS, "N": COLUMNS}, 0)


def ran(op, arrays):
    """Everything that the kernels wrote, and the kernels' names."""
    key, operands = op.bind((), arrays)
    found = op._run_interpret(key, *operands, parts=True)
    return [np.asarray(x) for x in found], [report.kernel for report in interpreted.last_reports()]


def test_blocks_count_their_rows(call):
    op, arrays = call
    key, operands = op.bind((), arrays)
    how = op._kernel_call(key, operands).how
    found, kernels = ran(op, arrays)
    assert "_begin_" in kernels[0]
    rows = -(-ROWS // (how.threads // how.per_row))  # the number of blocks, of which at_once run at a time
    taken = how.at_once * sum(len(range(part, rows, how.parts * how.at_once)) for part in range(how.parts))
    assert found[-1].tolist() == [taken, 0, 0, 0]


def test_results_do_not_depend_on_it(call, monkeypatch):
    op, arrays = call
    paced, kernels = ran(op, arrays)
    even = dataclasses.replace(targets.FEATURES["sm_90"], uneven=False)
    monkeypatch.setattr(walking, "WIDE_ROOM", walking.PACED_ROOM)  # the columns' results are in shared memory as well
    monkeypatch.setitem(targets.FEATURES, "sm_90", even)
    plain, fewer = ran(op, arrays)
    assert len(kernels) == len(fewer) + 1
    for a, b in zip(paced[:-1], plain[:-1], strict=True):
        np.testing.assert_array_equal(a, b)


def test_against_the_reference(call):
    op, _ = call
    params = tuple((p.name, p.default) for p in op.spec.params)
    case = Case(Types((("T", "bfloat16"),)), (ROWS,), (("N", COLUMNS),), (), params, False, 1.0, 0)
    check_case(op, "interpret", case)


def test_few_rows_have_no_counter_and_the_same_kernel(monkeypatch):
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    op = generated.dlayernorm
    case = Case(Types((("T", "bfloat16"),)), (16384,), (("N", 4096),), (), (), False, 1.0, 0)
    many = op.launch_for(case.types, case.axes)
    few = op.launch_for(case.types, dataclasses.replace(case, rows=(100,)).axes)
    assert (many.paced, many.long, few.paced, few.long) == (True, True, True, False)
    assert many.constants == few.constants


@pytest.mark.parametrize("name", ["layernorm", "rmsnorm_bias", "dlayernorm"])
def test_registers_that_pacing_needs_are_left(name, monkeypatch):
    """The results of a thread's two columns are in shared memory, since with pacing they would take too many registers;
    those of one column are in registers."""
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")

    def launch(op):
        case = Case(Types((("T", "bfloat16"),)), (16384,), (("N", 4096),), (), (), False, 1.0, 0)
        return op.launch_for(case.types, case.axes)

    op = getattr(generated, name)
    two, one = launch(op if name == "dlayernorm" else op._backward), launch(generated.add_rmsnorm._backward)
    assert (two.paced, two.shared_sums, two.only_row) == (True, True, False)
    assert (one.paced, one.shared_sums, one.only_row) == (True, False, False)


@pytest.mark.parametrize("arch", ["sm_80", "sm_100a", "sm_120a"])
def test_elsewhere_they_run_as_they_can(arch, monkeypatch):
    monkeypatch.setenv("CUTE_DSL_ARCH", arch)
    case = Case(Types((("T", "bfloat16"),)), (16384,), (("N", 4096),), (), (), False, 1.0, 0)
    assert not generated.dlayernorm.launch_for(case.types, case.axes).paced
