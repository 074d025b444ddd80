"""Comparisons that hold for every number but not for NaN: ptxas takes them to hold for NaN too, so kernels test for NaN itself."""

import re

import numpy as np
import pytest

from codegen.measuring.compiled.compile import compile_kernel
from codegen.measuring.compiled.variants import Variant
from codegen.runtime.call.arguments import Types
from tests.making import make_op, spec_text

CONDITIONS = {
    # name: the condition, as numpy has it
    "parameter": ("abs(x) > low", lambda x: np.abs(x) > -1.25),
    "constant": ("x * x >= 0", lambda x: x * x >= 0),
    "turned": ("-1 < exp(x)", lambda x: np.exp(x) > -1),
    "sum": ("abs(x) + 1 > 0", lambda x: np.abs(x) + 1 > 0),
}


@pytest.mark.parametrize("name", CONDITIONS)
def test_nan_is_not_above_what_every_number_is_above(tmp_path, name):
    condition, expected = CONDITIONS[name]
    more = "params: {low: -1.25}" if "low" in condition else ""
    text = spec_text("x: float32[..., N]", "y: float32[..., N]; n: int32[...]",
                     f"y = where({condition}, 1.0, 2.0); n = sum({condition}, axis=N)", more=more)  # fmt: skip
    op = make_op(tmp_path, text)
    x = np.array([[np.nan, 1.0, -2.0, np.inf, 0.0]], "float32")
    y, n = op(x, implementation="interpret")
    np.testing.assert_array_equal(y, np.where(expected(x), 1, 2))
    np.testing.assert_array_equal(n, expected(x).sum(1))
    ptx = compile_kernel(op, Variant(Types((), "float32"), False, True, 32), "sm_90a").ptx
    assert not re.search(r"setp\.g[te]\.f32.*, 0f(BF|00000000)", ptx)
    assert re.search(r"setp\.(num|nan|eq|neu)\.f32", ptx)


def test_a_comparison_that_may_fail_is_kept(tmp_path):
    op = make_op(
        tmp_path,
        spec_text(
            "x: float32[..., N]", "y: float32[..., N]", "y = where(abs(x) >= low, 1.0, 2.0)", more="params: {low: 1.0}"
        ),
    )
    for low in (-1.0, 0.0, 1.0):
        x = np.array([[np.nan, 1.0, -0.5, np.inf, 0.0]], "float32")
        np.testing.assert_array_equal(op(x, low=low, implementation="interpret"), np.where(np.abs(x) >= low, 1, 2))
