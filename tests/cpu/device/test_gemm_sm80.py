"""The main loop for Ampere and later with hand-written epilogues: the interpreter runs the kernels' PTX."""

import dataclasses

import cutlass
import cutlass.cute as cute
import gemm_cases
import numpy as np
import pytest
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream
from gemm_cases import BF16, DEFAULT, PRECISE, TF32, Case
from hypothesis import given, settings
from hypothesis import strategies as st

from codegen.runtime.compiled import interpreted
from codegen.runtime.compiled.cubins import read_cubin
from codegen.runtime.compiled.platform import COMPILE_OPTIONS, compiling_for
from codegen.shared import AmpereTiles
from tests.turns import EVERY


def run(case: Case, operands: dict[str, np.ndarray]) -> tuple[np.ndarray, ...]:
    inputs, outputs = case.arguments(operands), case.outputs
    return interpreted.run(case.call(case.arch), [*inputs, *outputs], list(inputs.values()), list(outputs.values()))


# Sizes that tiles divide and others, in turns: a GPU runs them all
@pytest.mark.turns(4)
@pytest.mark.parametrize("case", gemm_cases.CASES, ids=str)
def test_products(case):
    operands = case.operands(np.random.default_rng(0))
    case.check(run(case, operands), operands)


EXTENT = st.integers(0, 70) | st.integers(120, 140)
UNKNOWN = dataclasses.replace(BF16, tiles=AmpereTiles(32, 32, 32, 1, 2, 3), known=False)
UNKNOWN_INT8 = dataclasses.replace(UNKNOWN, dtype="int8", out="int32", tiles=AmpereTiles(32, 32, 64, 1, 2, 3))


@settings(max_examples=20 if EVERY else 6)
@given(
    st.sampled_from([UNKNOWN, UNKNOWN_INT8]), st.booleans(), EXTENT, EXTENT, EXTENT, st.integers(0, 3), st.booleans(),
    st.integers(0, 1000),
)  # fmt: skip
def test_any_extent(case, nk, m, n, k, batch, shared, seed):
    case = dataclasses.replace(case, b_is_nk=nk, M=m, N=n, K=k, L=batch, shared_b=shared and batch > 0)
    operands = case.operands(np.random.default_rng(seed))
    case.check(run(case, operands), operands)


@pytest.mark.each
@pytest.mark.parametrize("b_is_nk", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "precise", "float16", "bfloat16"])
def test_rounding(dtype, b_is_nk):
    """Each product and each sum has a bounded relative error: tf32 that of its rounding, `precise` hardly more than
    float32. A GPU may truncate sums instead of rounding them, which doubles the error."""
    of_product = {"float32": 0.7 * 2.0**-9, "precise": 2.0**-20, "float16": 0, "bfloat16": 0}[dtype]
    sums = 3 if dtype == "precise" else 1
    tiles = DEFAULT if "16" in dtype else PRECISE if dtype == "precise" else TF32
    case = Case("plain", dtype.replace("precise", "float32"), 40, 48, 24, b_is_nk, tiles=tiles)
    rng = np.random.default_rng(0)
    operands = {k: rng.standard_normal(case.shapes[k]).astype(case.dtype_of(k)) for k in ("a", "b")}
    (y,) = run(case, operands)
    a, b = (x.astype(np.float64) for x in operands.values())
    error, size = np.abs(y - case.product(a, b)), case.product(np.abs(a), np.abs(b))
    assert np.all(error <= (of_product + sums * case.K * 2.0**-24) * size)
    if dtype == "float32":
        assert np.any(error > (2.0**-20 + 3 * case.K * 2.0**-24) * size)  # the purpose of `precise`
        assert abs(np.mean((y - case.product(a, b)) * np.sign(y))) < 2.0**-14 * np.mean(size)  # no bias


def test_what_is_not_finite_stays_so():
    """An infinity stays infinite; split into two tf32 numbers, its product is infinite or NaN."""
    case = Case("plain", "float32", 16, 16, 8, tiles=TF32)
    operands = case.operands(np.random.default_rng(0))
    operands["a"][0, 3, 2], operands["a"][0, 4, 1], operands["a"][0, 5, 0] = np.inf, -np.inf, np.nan
    operands["a"][0, 6, 0] = np.uint32(0x7FFFFFFF).view(np.float32)  # the NaN of NVIDIA's arithmetic
    operands["b"][:] = 1.0
    (y,) = run(case, operands)
    assert np.all(y[0, 3] == np.inf) and np.all(y[0, 4] == -np.inf) and np.all(np.isnan(y[0, 5:7]))
    assert np.all(np.isfinite(y[0, 7:]))
    (y,) = run(dataclasses.replace(case, tiles=PRECISE), operands)
    assert not np.any(np.isfinite(y[0, 3:7])) and np.all(np.isfinite(y[0, 7:]))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [({"tile_k": 128}, "64 or 128 bytes along K"), ({"tile_k": 16}, "64 or 128 bytes along K"),
     ({"tile_m": 16}, "16 rows at least"), ({"tile_n": 16}, "16 columns of each b at least"),
     ({"stages": 1}, "two stages at least"),
     ({"tile_m": 16, "tile_n": 16, "tile_k": 32, "warps_m": 1, "warps_n": 1}, "16 columns of each b"),
     ({"tile_m": 32, "tile_n": 128, "tile_k": 32, "warps_n": 4}, "256 threads cannot share")],
)  # fmt: skip
def test_tiles_that_there_is_no_kernel_for(sizes, message):
    tiles = dataclasses.replace(DEFAULT, **sizes)
    case = dataclasses.replace(BF16, launcher="swiglu", paired="halves", tiles=tiles)
    with pytest.raises(AssertionError, match=message):
        run(case, case.operands(np.random.default_rng(0)))


def compiled(case: Case, arch: str) -> tuple[int, int, int]:
    """Registers, stack and shared memory of a kernel."""

    def tensor(described):
        if described is None:
            return None
        dtype, divisors, alignment = described
        shape = tuple(cute.sym_int(divisibility=d) for d in divisors)
        order = tuple(reversed(range(len(shape))))
        return make_fake_compact_tensor(
            getattr(cutlass, CUTLASS[dtype]), shape, stride_order=order, assumed_align=alignment
        )

    call = case.call(arch)
    arguments = [*map(tensor, call.inputs + call.outputs), *(value for _, value in call.constants)]
    with compiling_for(arch):
        made = cute.compile(call.launch, make_fake_stream(), *arguments, options=f"{COMPILE_OPTIONS} --keep-cubin")
        return read_cubin(made.__cubin__)


CUTLASS = {"bfloat16": "BFloat16", "float16": "Float16", "float32": "Float32", "int8": "Int8", "int32": "Int32"}
LARGE = Case(
    "bias_relu", "bfloat16", 4096, 4096, 4096, out="bfloat16", tiles=AmpereTiles(128, 128, 64, 2, 2, 3, blocks=2)
)
KERNELS = [
    LARGE, dataclasses.replace(LARGE, b_is_nk=False), dataclasses.replace(LARGE, tiles=AmpereTiles(128, 256, 64, 2, 4, 3)),
    dataclasses.replace(LARGE, launcher="swiglu", paired="halves"),
    dataclasses.replace(LARGE, launcher="statistics"),
    dataclasses.replace(LARGE, dtype="float32", out="float32", tiles=AmpereTiles(128, 128, 32, 2, 2, 3, blocks=2)),
    dataclasses.replace(LARGE, dtype="float32", out="float32", tiles=AmpereTiles(64, 64, 32, 2, 2, 3, blocks=2, precise=True)),
    dataclasses.replace(LARGE, dtype="int8", out="float32", b_is_nk=False, tiles=AmpereTiles(128, 128, 128, 2, 2, 3, blocks=2)),
    dataclasses.replace(LARGE, N=4097, K=4097, b_is_nk=False),
]  # fmt: skip


@pytest.mark.turns(3)
@pytest.mark.parametrize("case", KERNELS, ids=str)
def test_nothing_is_spilled(case):
    """Spilled values are on the stack, and so are arrays with an index that is known at run time only. Each kernel is
    compiled for one of the architectures, in turns."""
    arch = ("sm_80", "sm_90a", "sm_100a", "sm_120a")[KERNELS.index(case) % 4]
    registers, stack, _ = compiled(case, arch)
    assert registers <= 255 and stack == 0
