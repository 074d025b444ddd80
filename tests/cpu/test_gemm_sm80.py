"""The main loop for Ampere and later with hand-written epilogues: the kernel's PTX, run by the interpreter."""

import dataclasses

import gemm_cases
import numpy as np
import pytest
from gemm_cases import BF16, Case, Tile

from codegen.runtime import interpreted


def run(case: Case, given: dict[str, np.ndarray], arch: str = "sm_80") -> tuple[np.ndarray, ...]:
    inputs = case.arguments(given)
    outputs = case.outputs
    return interpreted.run(case.call(arch), [*inputs, *outputs], list(inputs.values()), list(outputs.values()))


@pytest.mark.parametrize("case", gemm_cases.CASES, ids=str)
def test_products(case):
    given = case.operands(np.random.default_rng(0))
    case.check(run(case, given), given)
