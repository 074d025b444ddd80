"""Maxima and minima of integers in Hopper's machine code. ptxas merges two of them into one of three numbers, and loses the sign of
one that is negated; the interpreter runs PTX, which has it still."""

import numpy as np
import pytest

from codegen.device import functions
from codegen.measuring.compiled.compile import compile_kernel, cubins_of_call
from codegen.measuring.compiled.sass import kernels
from codegen.measuring.compiled.variants import variants
from codegen.runtime.call.arguments import Types
from codegen.runtime.ops.backward import backward_ops, kernels_of_call
from tests.making import make_op, spec_text

OF_THREE = 0x00F  # the low nine bits of VIMNMX3

LARGEST, LEAST = "np.maximum(np.maximum(a, -b), c)", "np.minimum(np.minimum(a, -b), c)"
CHAINS = {
    "maxima": ("y = maximum(maximum(a, -b), c)", LARGEST),
    "minima": ("y = minimum(c, minimum(-b, a))", LEAST),
    "differences": ("y = maximum(maximum(a, 0 - b), c)", LARGEST),
    "selections": ("d = where(a > -b, a, -b); y = where(d > c, d, c)", LARGEST),
    "a row": ("y = max(-a, axis=N) + b + c", "(-a).max(1, keepdims=True) + b + c"),
}


def of_three(op, types, shape) -> int:
    cubins = cubins_of_call(op, types, shape, "sm_90a")
    return sum(i.kind == OF_THREE for cubin in cubins for _, code in kernels(cubin, "sm_90a") for i in code)


@pytest.mark.parametrize("name", CHAINS)
def test_the_sign_of_a_third_number(tmp_path, name):
    chain, expected = CHAINS[name]
    inputs = "; ".join(f"{x}: int32[M, N]" for x in "abc")
    op = make_op(tmp_path, spec_text(inputs, "y: int32[M, N]", chain, f"y = {expected.replace('np.', 'jnp.')}"))
    a, b, c = (np.random.default_rng(i).integers(-9, 9, (4, 256)).astype("int32") for i in range(3))
    a[0, 0] = b[0, 0] = b[0, 1] = c[0, 0] = -(2**31)
    np.testing.assert_array_equal(op(a, b, c, implementation="interpret"), eval(expected))
    assert of_three(op, Types(()), {"M": 64, "N": 4096}) == 0


def test_the_bounds_of_a_mask(tmp_path):
    """They are maxima of bounds of differences. The gradients of such a mask were zeros on Hopper: no tile seemed to be seen."""
    near = " & ".join(
        f"(abs({f.format('Q')} - {f.format('S')}) <= 1)" for f in ("index({}) // 16", "index({}) % 16 // 4")
    )
    inputs = "q: float16[B, Q, H, D]; k: float16[B, S, H, D]; v: float16[B, S, H, D]"
    chain = f"o = softmax(where({near}, q @ k, -inf), axis=S) @ v"
    op = make_op(tmp_path, spec_text(inputs, "o: float16[B, Q, H, D]", chain))
    shape = {"B": 1, "Q": 256, "S": 256, "H": 1, "D": 64}
    types, axes = Types((), "float32"), {name: (size,) for name, size in shape.items()}
    made = [kernel for backward in backward_ops(op) for kernel in kernels_of_call(backward, types, axes)]
    assert [of_three(kernel, types, shape) for kernel in made if kernel.plan.kind == "attention"] == [0]


def test_a_kernel_that_would_lose_a_sign_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(functions, "unmerged", lambda extreme: extreme)
    monkeypatch.setenv("CODEGEN_CACHE_DIR", str(tmp_path / "cache"))
    inputs = "; ".join(f"{x}: int32[N]" for x in "abc")
    op = make_op(tmp_path, spec_text(inputs, "y: int32[N]", CHAINS["maxima"][0]))
    message = r"made: 'neg\.s32.*' is an argument of two nested maxima or minima of integers"
    with pytest.raises(RuntimeError, match=message):
        cubins_of_call(op, Types(()), {"N": 4096}, "sm_90a")
    with pytest.raises(RuntimeError, match=message):
        compile_kernel(op, next(variants(op)), "sm_90a")
    assert compile_kernel(op, next(variants(op)), "sm_80").cubin
