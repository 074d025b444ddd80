"""Kernels are traced without the costs of a frontend that is off, and their code is the same."""

import contextlib

import cutlass
import jax
import jax.numpy as jnp
from cutlass._mlir_helpers import op
from cutlass.base_dsl.dsl import BaseDSL
from cutlass.base_dsl.typing import Numeric
from cutlass.cutlass_dsl.cutlass import CuTeDSL, CutlassBaseDSL

import generated
from codegen.runtime.call.arguments import Types
from codegen.runtime.call.described import Key
from codegen.runtime.compiled import kernels, platform, tracing


def test_the_code_is_the_same(monkeypatch):
    key = Key("cute", Types((("T", "bfloat16"),), "float32"), ("x",), ())
    call = generated.softmax._kernel_call(key, (jax.ShapeDtypeStruct((4, 1000), jnp.bfloat16),), "sm_90a").compiled_for(
        "sm_90a"
    )
    tracing._classes.clear()
    quickly = kernels._compile(call, "ptx")["ptx"]
    assert tracing._classes["f32"] is cutlass.Float32 and tracing._classes["bf16"] is cutlass.BFloat16
    monkeypatch.setattr(platform, "traced_quickly", contextlib.nullcontext)
    assert kernels._compile(call, "ptx")["ptx"] == quickly


def test_the_compiler_is_as_before_afterwards(monkeypatch):
    def functions():
        added = CutlassBaseDSL._enter_gpu_module, BaseDSL._should_remove_empty_gpu_modules
        return op._pyir_auto_load_arg, vars(Numeric)["from_mlir_type"], *added

    before = functions()
    with tracing.traced_quickly():
        assert not any(now is then for now, then in zip(functions(), before, strict=True))
    assert functions() == before
    monkeypatch.setattr(CuTeDSL._get_dsl().envar, "enable_pyir", True)
    with tracing.traced_quickly():
        assert op._pyir_auto_load_arg is before[0]
    monkeypatch.delattr(op, "_pyir_auto_load_arg")
    with tracing.traced_quickly():
        assert not hasattr(op, "_pyir_auto_load_arg")
