"""The instructions of kernels' main loops: counted in machine code, against the compiler's PTX and the interpreter, and estimated."""

import itertools
import re

import pytest

import generated
from codegen.explain.estimate import work
from codegen.explain.launching import Binding, launch_of
from codegen.language.sizes import default_shape
from codegen.measuring.compiled import limits, sass, variants
from codegen.measuring.compiled.compile import compile_kernel
from codegen.measuring.compiled.tasks import kernels_named
from codegen.measuring.compiled.variants import Variant
from codegen.measuring.explained import interpreted_calls
from codegen.runtime.call.arguments import Types
from codegen.runtime.ops.op import Op
from codegen.shared import Launch
from codegen.targets import GPUS, Work
from tests.turns import some

ARCHS = ("sm_80", "sm_90a", "sm_100a", "sm_120a")


def kernel(name: str) -> tuple[Op, dict[str, str]]:
    """A kernel of the library, and its types: bfloat16 where it has that."""
    (op,) = [k for k in kernels_named(generated, [name]) if k.spec.op == name]
    return op, {t: "bfloat16" if "bfloat16" in dtypes else dtypes[0] for t, dtypes in op.spec.types}


def counted(name: str, arch: str, shape: dict[str, int] | None = None) -> Work:
    op, types = kernel(name)
    return limits.work_of_element(op, Types(tuple(types.items())), shape or default_shape(op.spec), arch)


@pytest.mark.parametrize(
    ("name", "arch"), some(itertools.product(["mish", "tanh", "swiglu", "gelu_backward"], ARCHS), 5)
)
def test_special_functions_are_those_of_the_ptx(name, arch):
    """Kernels without loops: PTX names them."""
    op, types = kernel(name)
    variant = Variant(Types(tuple(types.items())), False)
    made, how = compile_kernel(op, variant, arch), variants.launch_of(op, variant, arch)
    found = len(re.findall(r"(?m)^\s+(?:ex2|rcp|lg2|rsqrt|sqrt|tanh|sin|cos)\.approx", made.ptx))
    assert isinstance(how, Launch) and found >= how.vec
    ((_, code),) = sass.kernels(made.cubin, arch)
    assert sass.main_loop(code).special == found


@pytest.mark.parametrize("arch", some(ARCHS, 1))
def test_a_loop_is_found_on_every_architecture(arch):
    """A row too long for the chip is read twice: its exponentials are computed twice."""
    found = counted("softmax", arch, {"...": 64, "N": 4_000_000})
    assert found.special == pytest.approx(2, abs=0.2)
    assert 10 < found.issue < 40


# By hand: a load, two instructions, a branch around a slow way, a store, the end
def test_what_is_on_every_way_to_an_access_counts():
    def made(*words: tuple[int, bool, int | None, int]) -> list[sass.Instruction]:
        return [sass.Instruction(*word) for word in words]

    load, store, add, special = 0x181, 0x186, 0x21, 0x108
    code = made(
        (load, False, None, 16), (add, False, None, 0), (sass.BRA, True, 5, 0), (special, False, None, 0), (add, False, None, 0),
        (0xC, False, None, 0), (store, False, None, 16), (sass.EXIT, False, None, 0),
    )  # fmt: skip
    assert sass.main_loop(code) == Work(issue=6, special=0, half=1)
    looped = made(
        (special, False, None, 0), (load, False, None, 16), (add, False, None, 0), (store, False, None, 16), (sass.BRA, True, 1, 0),
        (sass.EXIT, False, None, 0),
    )  # fmt: skip
    assert sass.main_loop(looped) == Work(issue=4, special=0, half=0)


@pytest.mark.parametrize("name", some(["mish", "bias_gelu", "layernorm", "softmax"], 2))
def test_the_count_is_near_what_the_interpreter_executes(name):
    """It runs PTX, of which the assembler folds signs, conversions and addresses."""
    _, types = kernel(name)
    (call,) = [c for c in interpreted_calls(getattr(generated, name), {"...": 64, "N": 1024}) if c["types"] == types]
    found = counted(name, "sm_90a", {"...": 64, "N": 1024}).issue
    assert 0.6 < found / call["instructions_per_element"] < 1.2


SOME = """
    rmsnorm rmsnorm_backward softmax softmax_backward layernorm mish mish_backward bias_gelu bias_gelu_backward quantize_int8
    silu_mul_row_fp8 cross_entropy tanh_backward log_softmax gelu_backward swiglu relu vector_add row_sum geglu_backward
    causal_softmax column_sum rotary
""".split()


@pytest.mark.parametrize("name", some(SOME, 3))
def test_the_estimate_is_within_a_factor_of_two_of_the_count(name):
    op, types = kernel(name)
    shape = default_shape(op.spec)
    vector = launch_of(op.planned, Binding(op.spec, tuple(types.items())), shape).vec
    found, guess = counted(name, "sm_90a"), work(op.planned, types, vector)
    assert 0.5 < guess.issue / found.issue < 2
    assert abs(guess.special - found.special) < 0.5
    assert 0.4 < guess.half / found.half < 2.5


def test_times_of_an_h100():
    """128 of all, 16 special functions and 64 integers in a clock of each of 132 SMs."""
    (h100,) = [g for g in GPUS if g.name == "H100 SXM"]
    found = h100.seconds(Work(128 * 132e9, 16 * 132e9, 32 * 132e9), clock=1e9)
    assert found == {"issue": pytest.approx(1), "special": pytest.approx(1), "half": pytest.approx(0.5)}
    assert h100.seconds(Work(128 * 132 * 1.98e9, 0, 0))["issue"] == pytest.approx(1)


def test_a_gpu_is_found_by_its_name():
    assert limits.this_gpu("sm_90a", "NVIDIA H100 80GB HBM3").name == "H100 SXM"
    assert limits.this_gpu("sm_90a", "NVIDIA H200").name == "H200"
    assert limits.this_gpu("sm_80", "NVIDIA A100-SXM4-80GB").name == "A100 80GB SXM"
    assert limits.this_gpu("sm_89", "NVIDIA GeForce RTX 4090").name == "RTX 4090"
    assert limits.this_gpu("sm_89", "NVIDIA L40S") is None


def test_kernels_without_a_count_have_no_times(monkeypatch):
    (h100,) = [g for g in GPUS if g.name == "H100 SXM"]
    monkeypatch.setattr(limits, "current_arch", lambda: "sm_90a")
    monkeypatch.setattr(limits, "this_gpu", lambda arch, kind: h100)

    def times(op: Op):
        types = tuple((t, dtypes[0]) for t, dtypes in op.spec.types)
        return limits.instruction_times(op, Binding(op.spec, types), default_shape(op.spec))

    selections = [op for op in generated.top_k_gate.own_kernels if op.plan.kind not in ("row", "elementwise")]
    assert selections
    assert {times(op) for op in (generated.running_mean, generated.top_k_gate, *selections)} == {()}


def test_a_thread_of_a_transpose_has_a_square_of_elements():
    """A few conversions and a product for each element: not as many as if a thread had a single vector."""
    found = counted("transpose_quantize_fp8", "sm_90a", {"...": 1, "M": 4096, "N": 4096})
    assert 3 < found.issue < 15


@pytest.mark.parametrize("rows", [4, 16])
def test_threads_that_have_all_rows_of_a_place_are_counted(rows):
    """A conversion and a sum for each element, and some to load it."""
    found = counted("mean_pool", "sm_90a", {"...": 65536, "S": rows, "D": 64})
    assert 2 < found.issue < 15
