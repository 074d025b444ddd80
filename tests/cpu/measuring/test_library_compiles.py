"""Some of the library's kernels, in turns: they compile, their memory accesses are as wide as planned, and their instructions are listed."""

import functools
from collections.abc import Callable, Collection
from functools import partial

import jax
import pytest
from access_widths import TO_FIT_A_BLOCK, has_reason_to_spill, unexpected
from instruction_list import forms, listed

import generated
from codegen.language import sizes
from codegen.measuring.compiled.compile import Compiled, compile_call, compile_kernel
from codegen.measuring.compiled.variants import Variant, launch_of, row_lengths, variants
from codegen.plan.gemms.hopper_tiles import HALVES
from codegen.plan.limits import lacks
from codegen.runtime.compiled.kernels import MOST_SPILLED
from codegen.runtime.ops.gemm_op import GemmOp
from codegen.runtime.ops.op import Op
from codegen.targets import USUAL
from tests.turns import EVERY, some

ARCHITECTURES = USUAL.split(",")
COMPILED_WHOLE = ("bias_relu",)
# Spills that should be removed, and those of ragged products, whose accumulators leave an epilogue few registers: elements are stored one by one
KNOWN_SPILLS = {"scaled_matmul_fp8": 24}
SPILLS_OF_RAGGED_PRODUCTS = 256
# Kernels whose reductions along rows hold registers as well, on Hopper
ROW_FOLDS = (
    "dense_amax", "dense_residual_squares", "logits_logsumexp", "linear_cross_entropy_forward", "linear_cross_entropy",
)  # fmt: skip


@functools.cache
def everything() -> dict[str, Op]:
    """The kernels of all ops, by name. Their plans take seconds, so no module's import makes them."""
    return {k.__name__: k for name in generated.__all__ for k in getattr(generated, name).kernels}


@functools.cache
def products() -> dict[str, GemmOp]:
    return {name: k for name, k in everything().items() if isinstance(k, GemmOp)}


def others(own: bool) -> list[str]:
    """The ops' `own` kernels that multiply no matrices, or those of their backwards and stages."""
    return [name for name in everything() if name not in products() and (name in generated.__all__) == own]


def turns(names: Callable[[], Collection[str]], count: int) -> range:
    """Which of some names a test has: by default `count`."""
    return range(len(names()) if EVERY else count)


def nth(names: Collection[str], turn: int, count: int) -> str:
    """The name of a turn: by default one of `count` at equal distances."""
    return list(names)[turn if EVERY else turn * len(names) // count]


@pytest.mark.parametrize("turn", [*some(ROW_FOLDS, 5), *turns(products, 2)])
def test_products_compile_for_hoppers_tensor_cores(turn):
    """With one of their types and sets of defaults, in turns: TMA loads the factors, and nothing is spilled."""
    name = turn if isinstance(turn, str) else nth(products(), turn, 2)
    op, turn = products()[name], list(products()).index(name)
    found = [v for v in variants(op) if not v.ragged and not lacks(op, v.types, "sm_90a")]
    hopper = [v for v in found if on_tensor_cores(op, v)] or found
    variant = hopper[turn % len(hopper)]
    compiled = compile_kernel(op, variant, "sm_90a")
    assert ("wgmma.mma_async" in compiled.ptx) == on_tensor_cores(op, variant)
    assert ("cp.async.bulk.tensor" in compiled.ptx) == on_tensor_cores(op, variant)
    assert compiled.spills == 0, variant
    assert unlisted(compiled.ptx) == []


def on_tensor_cores(op: GemmOp, variant: Variant) -> bool:
    """Whether WGMMA multiplies these factors."""
    factor = variant.types.dtype(op.plan.products[0].a)
    return factor in HALVES or (factor != "float32" and op.plan.tile.b_is_nk)


@pytest.mark.parametrize("turn", turns(products, 2))
def test_products_compile_elsewhere(turn):
    """Ragged products, with one of the types for one architecture, in turns."""
    name = nth(products(), turn, 2)
    op = products()[name]
    found = [(v, a) for v in variants(op) if v.ragged for a in ARCHITECTURES if not lacks(op, v.types, a)]
    variant, arch = found[turn % len(found)]
    compiled = compile_kernel(op, variant, arch)
    assert "mma.sync" in compiled.ptx and "wgmma" not in compiled.ptx
    assert unlisted(compiled.ptx) == []
    assert compiled.spills <= KNOWN_SPILLS.get(name, SPILLS_OF_RAGGED_PRODUCTS), (variant, arch)


@pytest.mark.parametrize("name", some(["matmul_dswiglu_pairs", "matmul_dgelu", "dense_swiglu"], 3))
def test_ragged_rows_of_products_for_hopper(name):
    """The outputs' rows are not whole vectors; TMA can load rows of K elements."""
    op = products()[name]
    types = next(v for v in variants(op) if "bfloat16" in str(v)).types
    extents = dict.fromkeys(op.spec.axes, 4096) | {"N": 4100}
    arrays = {a.name: jax.ShapeDtypeStruct(sizes.array_shape(a, extents), types.dtype(a)) for a in op.spec.inputs}
    key, operands = op.bind((), {**arrays, "implementation": "cute"})
    compiled = compile_call(op, op._kernel_call(key, operands, "sm_90a"), "sm_90a")
    assert "wgmma.mma_async" in compiled.ptx and compiled.spills == 0


def test_factors_that_are_converted_compile():
    """In numbers of 4 bits with scales, which take the most registers."""
    op = products()["dense_int4_stage1"]
    types = next(v for v in variants(op) if "bfloat16" in str(v)).types
    extents = {"...": 100, "K": 4096, "N": 14336, "P": 2048, "B": 32}
    arrays = {a.name: jax.ShapeDtypeStruct(sizes.array_shape(a, extents), types.dtype(a)) for a in op.spec.inputs}
    key, operands = op.bind((), {**arrays, "implementation": "cute"})
    compiled = compile_call(op, op._kernel_call(key, operands, "sm_80"), "sm_80")
    assert "fma.rn.bf16x2" in compiled.ptx and compiled.spills == 0
    assert "cp.async.cg" in compiled.ptx and "ld.global.v4" not in compiled.ptx  # factors whose rows are aligned
    assert unlisted(compiled.ptx) == []


# More of the ops' own kernels than of derived ones
@pytest.mark.parametrize(
    ("own", "turn"), [*((own, t) for own, n in ((True, 4), (False, 1)) for t in turns(partial(others, own), n))]
)
def test_kernels_compile_with_wide_accesses_and_without_spills(own, turn):
    op = everything()[nth(others(own), turn, 4 if own else 1)]
    count, problems = 0, []
    for variant, arch in dealt_out(op, turn):
        count += 1
        compiled = compile_kernel(op, variant, arch)
        found = unexpected(op, variant, arch, compiled) + unlisted(compiled.ptx)
        problems += [f"{variant} {arch}: {p}" for p in found]
    assert not problems, "\n".join(problems)
    assert count


@pytest.mark.parametrize(
    ("columns", "registers", "stack", "unbound", "good"),
    [
        (4096, 64, MOST_SPILLED, 0, True),  # its launch bounds registers, so that 8 blocks of 128 threads fit
        (4096, 64, MOST_SPILLED + 8, 0, False),
        (4096, 64, MOST_SPILLED, 8, False),  # the bound gave way
        (64, 64, TO_FIT_A_BLOCK, 0, True),  # with 72 registers, one block less fits
        (64, 64, TO_FIT_A_BLOCK + 8, 0, False),
        (64, 255, MOST_SPILLED + 8, 0, True),  # a thread has no more
    ],
)
def test_spills_have_a_reason(columns, registers, stack, unbound, good):
    op = generated.dsoftmax
    variant = next(v for v in variants(op) if str(v) == f"T=float16 columns={columns}")
    assert launch_of(op, variant, "sm_80").resident == (8 if columns == 4096 else 0)
    made = Compiled("", b"", registers, stack, 2 * stack, 0, (), unbound)
    assert has_reason_to_spill(op, variant, "sm_80", made) == good


def test_whole_vectors_have_no_reason_to_spill():
    op = generated.relu
    assert not has_reason_to_spill(op, next(variants(op)), "sm_80", Compiled("", b"", 255, 8, 8, 0, ()))


def dealt_out(op: Op, turn: int) -> list[tuple[Variant, str]]:
    """The kernels that are compiled here; `codegen compile` compiles all. An element-wise op has every other kernel
    compiled for one of the architectures, with one of the types, in turns. An op that reduces has a kernel for every
    length of a row, whole and ragged: one of them is compiled, for one architecture, in turns. Its shuffles, shared
    memory and clusters are in device functions that all these ops share."""
    everything = [(v, a) for a in ARCHITECTURES for v in variants(op) if not lacks(op, v.types, a)]
    if op.spec.op in COMPILED_WHOLE:
        return everything
    if op.plan.kind == "elementwise" and op.spec.op in generated.__all__:
        kept = {a for _, a in everything}
        own = [a for i, a in enumerate(ARCHITECTURES) if (i + turn) % 4 == 0 and a in kept]
        everything = [(v, a) for v, a in everything if a in (own or kept)]
    forward = op.spec.op in generated.__all__
    kernels: dict[object, list[tuple[Variant, str]]] = {}
    for variant, arch in everything:
        length = row_lengths(op, variant.types).index(variant.columns) if forward else 0
        whole = forward and op.plan.kind == "elementwise"
        kernel = (arch, variant.defaults) if whole else (length,)
        kernels.setdefault((*kernel, variant.ragged), []).append((variant, arch))
    dealt = [found[(turn + 7 * i) % len(found)] for i, found in enumerate(kernels.values())]
    return dealt[turn % 2 :: 2] or dealt if op.plan.kind == "elementwise" else [dealt[turn % len(dealt)]]


def unlisted(text: str) -> list[str]:
    """The instructions that the list of all kernels' instructions lacks, since it is older than the kernels;
    test_instructions decodes the listed ones."""
    return [
        f"not in tests/instructions.txt: {form}; run `make instructions`" for form in sorted(forms(text) - listed())
    ]


def test_an_instruction_that_is_not_listed_is_found():
    variant = next(v for v in variants(generated.relu) if str(v) == "T=float32")
    text = compile_kernel(generated.relu, variant, "sm_80").ptx
    assert unlisted(text) == []
    (found,) = unlisted(text.replace("st.global.v4.b32", "st.async.v4.b32"))
    assert "instructions.txt: st.async.v4.b32 [%r], {%r, %r, %r, %r};" in found
    (found,) = unlisted(text.replace("setp.", "setq.", 1))
    assert ": setq." in found
