"""The main loop for Ampere and later on a GPU: the interpreter's products, and larger ones."""

import dataclasses

import gemm_cases
import jax
import numpy as np
import pytest
from gemm_cases import BF16, Case

from codegen.runtime.compiled import kernels
from codegen.runtime.compiled.platform import current_arch
from codegen.shared import AmpereTiles


def run(case: Case, given: dict[str, np.ndarray]) -> list[np.ndarray]:
    call = case.call(current_arch())
    outputs = [jax.ShapeDtypeStruct(shape, case.dtype_of(name)) for name, shape in case.outputs.items()]
    made = jax.jit(lambda *operands: kernels.launch(call, operands, outputs, {}))(*given.values())
    return [np.asarray(x) for x in made]


LARGE = [
    *(dataclasses.replace(BF16, M=1000, N=520, K=777 + odd, b_is_nk=nk) for odd in (0, 7) for nk in (True, False)),
    dataclasses.replace(BF16, M=1024, N=1024, K=4096, tiles=AmpereTiles(128, 128, 64, 2, 2, 3, blocks=2)),
    dataclasses.replace(BF16, M=1030, N=1032, K=2048, tiles=AmpereTiles(128, 256, 64, 2, 4, 3), b_is_nk=False, L=2),
    dataclasses.replace(
        BF16, launcher="statistics", M=1030, N=1032, K=128, L=2, tiles=AmpereTiles(128, 128, 64, 2, 2, 3, blocks=2)
    ),
]


@pytest.mark.parametrize("case", [*gemm_cases.CASES, *LARGE], ids=str)
def test_products(case):
    given = case.operands(np.random.default_rng(1))
    first = run(case, given)
    case.check(tuple(first), given)
    for again, before in zip(run(case, given), first, strict=True):
        np.testing.assert_array_equal(again, before)  # to the bit, every time
