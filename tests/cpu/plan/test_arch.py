"""Float8 on an architecture that cannot convert it: one message, wherever the kernel is requested."""

import cutlass.jax
import jax
import jax.numpy as jnp
import pytest
from jax import export

import generated
from codegen.plan.limits import lacks
from codegen.runtime.call.arguments import all_types
from tests.making import make_op

X = jax.ShapeDtypeStruct((4, 16), jnp.bfloat16)
WHY = "'q' is float8_e4m3fn, which sm_80 cannot convert; its kernel needs sm_89 or newer; implementation='xla'"
ROUNDED = """
op: rounded
summary: What float8 leaves of a value.
inputs:
  x: float32[N]
outputs:
  y: float32[N]
chain: y = cast(cast(x, float8_e5m2), float32)
reference: x.astype(jnp.float8_e5m2).astype(jnp.float32)
grad: none
"""


@pytest.fixture
def for_sm_80(monkeypatch):
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_80")


def exported(function, *arrays):
    checks = cutlass.jax.get_export_disabled_safety_checks()
    return export.export(jax.jit(function), platforms=("cuda",), disabled_checks=checks)(*arrays)


@pytest.mark.parametrize("implementation", ["cute", None])
def test_exporting_says_what_is_needed(implementation, for_sm_80):
    with pytest.raises(ValueError, match="^gelu_fp8: " + WHY):
        exported(lambda x: generated.gelu_fp8(x, jnp.float32(1), implementation=implementation), X)


def test_interpreting_says_what_is_needed(for_sm_80):
    x = jnp.ones(X.shape, X.dtype)
    with pytest.raises(ValueError, match="^gelu_fp8: " + WHY):
        generated.gelu_fp8(x, 1.0, implementation="interpret")
    with pytest.raises(ValueError, match="^gelu_fp8: " + WHY):
        jax.jit(lambda x: generated.gelu_fp8(x, 1.0, implementation="interpret"))(x)
    assert generated.gelu_fp8(x, 1.0, implementation="xla").dtype == jnp.float8_e4m3fn
    assert generated.gelu_fp8(x, 1.0).dtype == jnp.float8_e4m3fn


def test_a_cast_in_the_chain_counts(for_sm_80, tmp_path):
    op = make_op(tmp_path, ROUNDED)
    with pytest.raises(ValueError, match=r"^rounded: the chain casts to float8_e5m2, which sm_80 cannot convert; its"):
        op(jnp.ones(4), implementation="interpret")


def test_the_first_architecture_that_has_it(tmp_path):
    op = make_op(tmp_path, ROUNDED)
    (types,) = all_types(op.spec)
    assert [bool(lacks(op, types, a)) for a in ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_120a")] == [1, 1, 0, 0, 0]
