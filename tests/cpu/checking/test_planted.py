"""Faults planted in generated kernels are found by what tests an op. All of them, by hand: `python -m tests.planted`."""

import pytest

from tests.planted import FAULTS, SHORT, found, module_of


@pytest.mark.parametrize("fault", [f for f in FAULTS if f.what in SHORT], ids=lambda f: f"{f.op}: {f.what}")
def test_a_planted_fault_is_found(fault, tmp_path):
    assert found(tmp_path, fault.op, fault, 8)


def test_every_fault_can_be_planted():
    """Its line is in the module that is generated today, and what is put there is Python."""
    assert len({(f.op, f.what) for f in FAULTS}) == len(FAULTS) >= 25
    for fault in FAULTS:
        compile(module_of(fault.op, fault), fault.what, "exec")
