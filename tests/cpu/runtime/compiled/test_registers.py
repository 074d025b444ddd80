"""Registers: a launch's bound is told to the compiler only where it would take more."""

from dataclasses import replace

import jax
import jax.numpy as jnp

import generated
from codegen.runtime.call.arguments import Types
from codegen.runtime.call.described import Key
from codegen.runtime.compiled import kernels
from codegen.runtime.compiled.cubins import are_resident, cubins_in, read_cubin, registers_of
from codegen.shared import RowLaunch

LAUNCH = RowLaunch(8, False, 256, 32, 1, 1, True, True, False, resident=2)


def test_registers_of_resident_blocks():
    """An SM has 65536 registers, and gives each thread a multiple of 8."""
    assert are_resident(LAUNCH, 128) and not are_resident(LAUNCH, 129)
    assert are_resident(replace(LAUNCH, threads=96, resident=5), 136)  # 480 threads
    assert not are_resident(replace(LAUNCH, threads=96, resident=5), 137)


def call_of(op, **shapes):
    arrays = {
        a: jax.ShapeDtypeStruct(s, jnp.float32 if len(s) == 1 and a != "weight" else jnp.bfloat16)
        for a, s in shapes.items()
    }
    types = Types((("T", "bfloat16"),), "float32")
    return op._kernel_call(Key("cute", types, tuple(arrays), ()), tuple(arrays.values()), "sm_90a").compiled_for(
        "sm_90a"
    )


def most_registers(call):
    return max(read_cubin(cubin)[0] for cubin in cubins_in(kernels.binary(call).module))


def test_a_bound_where_it_is_needed():
    call = call_of(generated.softmax, x=(4096, 512))
    how = dict(call.constants)["how"]
    free = most_registers(call)

    def bound(resident):
        return replace(
            call, constants=tuple((n, replace(how, resident=resident) if n == "how" else v) for n, v in call.constants)
        )

    assert how.resident == 0 and kernels.candidates(call) == (call,)
    few = 65536 // (free * how.threads)
    assert kernels.candidates(bound(few)) == (call, bound(few))
    assert kernels.binary(bound(few)).module == kernels.binary(call).module
    many = 2048 // how.threads  # all threads that an SM holds
    assert not kernels.suffice(bound(many), cubins_in(kernels.binary(call).module))
    assert most_registers(bound(many)) <= 65536 // (many * how.threads) < free


def test_kernels_of_a_launcher_have_registers_of_their_own():
    """The kernel that finishes has no bound: its registers say nothing of the blocks that walk down rows."""
    call = call_of(generated.bias_grad, dy=(4096, 512))
    (cubin,) = cubins_in(kernels.binary(call).module)
    walk, finish = registers_of(cubin, "bias_grad_kernel_"), registers_of(cubin, "bias_grad_finish_")
    assert min(walk, finish) > 0 and max(walk, finish) == read_cubin(cubin)[0] and not registers_of(cubin, "none")
