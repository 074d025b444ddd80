"""The tests of an op find faults that are planted in generated kernels. `python -m tests.planted` runs all of them by
hand."""

import pytest

from tests.planted import FAULTS, SHORT, found, module_of
from tests.turns import some


@pytest.mark.parametrize("fault", some([f for f in FAULTS if f.what in SHORT], 2), ids=lambda f: f"{f.op}: {f.what}")
def test_a_planted_fault_is_found(fault, tmp_path):
    assert found(tmp_path, fault.op, fault, 8)


def test_every_fault_can_be_planted():
    """The faulty line is in the module that is generated today, and its replacement is valid Python."""
    assert len({(f.op, f.what) for f in FAULTS}) == len(FAULTS) >= 25
    for fault in FAULTS:
        compile(module_of(fault.op, fault), fault.what, "exec")
