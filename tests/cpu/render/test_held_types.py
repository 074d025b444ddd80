"""What a kernel is told about types that none of its tensors has, and about inputs that are left out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from making import make_op

from codegen.measuring.compiled.compile import compile_kernel
from codegen.measuring.compiled.variants import Variant
from codegen.runtime.call.arguments import all_types

rng = np.random.default_rng(0)


def spec(chain: str, inputs: str, output: str, reference: str) -> str:
    lines = "".join(f"  {line.strip()}\n" for line in inputs.split(";"))
    return (
        f"op: held\nsummary: Types.\ntypes:\n  T: [float32, bfloat16]\ninputs:\n{lines}outputs:\n  y: {output}\n"
        f"chain: y = {chain}\nreference: {reference}\n"
    )


def rounded(values) -> np.ndarray:
    return np.asarray(values, jnp.bfloat16).astype(np.float32)


def whole(*shape) -> np.ndarray:
    """Numbers with sums and products that are exact in float32, but not in bfloat16."""
    return rng.integers(-40, 40, shape).astype(np.float32)


def test_a_product_is_rounded_to_its_factors_type(tmp_path):
    op = make_op(tmp_path, spec("cast(a @ b, T)", "a: T[..., K]; b: T[K, N]", "float32[..., N]", "(a @ b)"))
    a, b = whole(32, 64), whole(64, 16)
    given = jnp.asarray(a, "bfloat16"), jnp.asarray(b, "bfloat16")
    for implementation in ("interpret", "xla"):
        np.testing.assert_array_equal(op(*given, implementation=implementation), rounded(a @ b))
        np.testing.assert_array_equal(op(a, b, implementation=implementation), a @ b)


def test_a_reduction_is_rounded_to_the_type_of_an_input_that_is_left_out(tmp_path):
    inputs = "x: float32[..., N]; w: T[N] = 1"
    text = spec("cast(sum(x * w, axis=...), T)", inputs, "float32[N]", "jnp.sum(x * w, axis=0)")
    x = whole(9, 40) + 300
    found = make_op(tmp_path, text)(x, T="bfloat16", implementation="interpret")
    np.testing.assert_array_equal(found, rounded(x.sum(0)))


def test_a_cotangent_is_rounded_to_a_type_that_only_the_forward_reads(tmp_path):
    inputs = "x: float32[..., N]; w: float32[N]; z: T[N]"
    op = make_op(tmp_path, spec("cast(x + w, T) * sum(x, axis=N) + z", inputs, "float32[..., N]", "x + w + z"))
    x, w, z, dy = whole(4, 40), whole(40), jnp.asarray(whole(40), "bfloat16"), whole(4, 40)
    _, pull = jax.vjp(lambda x: op(x, w, z, implementation="interpret"), x)
    total = x.sum(1, keepdims=True)
    exact = rounded(dy * total) + (dy * rounded(x + w)).sum(1, keepdims=True)
    np.testing.assert_array_equal(pull(dy)[0], exact)


@pytest.mark.parametrize("chain", ["x * b", "x * rsqrt(mean(square(x), axis=N)) * b"])
def test_kernels_compute_in_float32_where_a_float64_input_is_left_out(tmp_path, chain):
    text = spec(chain, "x: float32[..., N]; b: float64[N] = 1", "float32[..., N]", "x * b").replace(
        "types:\n  T: [float32, bfloat16]\n", ""
    )
    op = make_op(tmp_path, text)
    for kernel in op.kernels:
        (types,) = all_types(kernel.spec)
        assert compile_kernel(kernel, Variant(types, False, True, 32), "sm_90a").cubin
