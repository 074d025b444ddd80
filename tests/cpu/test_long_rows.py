"""Rows that clusters of blocks share, interpreted: property tests without a GPU draw shorter ones."""

import pytest

import generated
from codegen.reductions import RowLaunch
from codegen.runtime.arguments import Types
from codegen.runtime.draw import Case
from codegen.runtime.testing import check_case

LENGTHS = {
    "softmax": (9000, 40_000, 70_001), "rmsnorm": (16_384, 65_536, 9_001, 70_003), "layernorm": (16_384, 16_383),
    "quantize_row_int8": (40_000,), "cross_entropy": (20_001,), "cross_entropy_grad": (40_000,), "logsumexp": (131_072,),
}  # fmt: skip


@pytest.mark.parametrize(("name", "columns"), [(name, n) for name, found in LENGTHS.items() for n in found])
def test_long_rows(name, columns, monkeypatch):
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    op = getattr(generated, name)
    types = Types(tuple((t, "bfloat16" if "bfloat16" in dtypes else dtypes[0]) for t, dtypes in op.spec.types))
    params = tuple((p.name, p.default) for p in op.spec.params)
    case = Case(types, (2,), (("N", columns),), (), params, False, 1.0, 0)
    how = op.launch_for(types, case.axes)
    assert isinstance(how, RowLaunch)
    assert how.cluster > 1
    check_case(op, "interpret", case)
