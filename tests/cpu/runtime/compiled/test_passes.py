"""Kernels of which only the PTX is needed are not assembled."""

import contextlib

import jax
import jax.numpy as jnp
import pytest

import generated
from codegen.runtime.call.arguments import Types
from codegen.runtime.call.described import Key
from codegen.runtime.compiled import kernels, passes
from codegen.runtime.compiled.cubins import cubins_in


@pytest.mark.parametrize(("kept", "arch"), [("lines", "sm_80"), ("ptx", "sm_120a")])
def test_the_ptx_is_that_of_an_assembled_kernel(monkeypatch, kept, arch):
    arrays = {"x": jax.ShapeDtypeStruct((4, 12), jnp.float16), "bias": jax.ShapeDtypeStruct((12,), jnp.float16)}
    key = Key("cute", Types((("T", "float16"),), "float32"), tuple(arrays), ())
    call = generated.bias_relu._kernel_call(key, tuple(arrays.values()), arch).compiled_for(arch)
    made = kernels._compile(call, kept)
    assert not cubins_in(made["module"])
    monkeypatch.setattr(kernels, "without_assembling", contextlib.nullcontext)
    assembled = kernels._compile(call, kept)
    assert cubins_in(assembled["module"]) and assembled["ptx"] == made["ptx"]
    assert f".target {arch}".encode() in made["ptx"]
    assert (b".loc" in made["ptx"]) == (kept == "lines")


def test_other_passes_of_a_compiler_are_left_as_they_are():
    from cutlass._mlir import ir

    with ir.Context():
        assert passes._to_ptx("builtin.module(canonicalize,cse)") == "builtin.module(canonicalize,cse)"


def test_the_compiler_assembles_again_afterwards():
    from cutlass.cutlass_dsl.cutlass import CuTeDSL

    compiler = CuTeDSL._get_dsl()
    with passes.without_assembling():
        assert "preprocess_pipeline" in vars(compiler)
    assert "preprocess_pipeline" not in vars(compiler)
