"""Registers: a launch's bound gives way where it spills."""

from dataclasses import replace

import jax
import jax.numpy as jnp

import generated
from codegen.measuring.compiled.compile import compile_kernel
from codegen.measuring.compiled.variants import launch_of, variants
from codegen.runtime.call.arguments import Types
from codegen.runtime.call.described import Key
from codegen.runtime.compiled import kernels
from codegen.runtime.compiled.cubins import are_resident, cubins_in, read_cubin, registers_of
from codegen.shared import RowLaunch, Walk

LAUNCH = RowLaunch(8, False, 256, 32, 1, 1, True, True, False, resident=2)
WALK = Walk(8, False, 256, 32, 1, 1, 2, True, True, resident=2, paced=True)


def test_registers_of_resident_blocks():
    """An SM has 65536 registers in four partitions, and gives each thread a multiple of 8. ptxas gives a kernel with blocks of 9 warps
    168 of them at most: a partition has three of the warps."""
    assert are_resident(LAUNCH, 128) and not are_resident(LAUNCH, 129)
    five = replace(LAUNCH, threads=96, resident=5)  # 15 warps, four of them in a partition
    assert are_resident(five, 128) and not are_resident(five, 129)
    assert are_resident(replace(LAUNCH, threads=288, resident=1), 168)
    assert are_resident(LAUNCH, 0), "a cubin without the launch's kernel"
    assert not are_resident(replace(LAUNCH, threads=288, resident=1), 169)


def test_registers_of_a_launcher_of_several_kernels():
    """Of the launches of a launcher, a cubin may have the kernels of one alone."""
    op = generated.embedding_rmsnorm.kernels[-1]
    variant = next(v for v in variants(op) if str(v) == "T=bfloat16 columns=64")
    assert launch_of(op, variant, "sm_90a").first is not None
    assert compile_kernel(op, variant, "sm_90a").unbound == 0


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

    assert how.resident == 0
    more = 65536 // (free * how.threads) + 2
    assert not kernels.suffice(bound(more), cubins_in(kernels.binary(call).module))
    assert most_registers(bound(more)) <= 65536 // (more * how.threads) < free


def test_fewer_blocks_where_a_bound_spills_much(monkeypatch):
    """As if compilers answered so: registers and stack, by the launch that is asked for."""
    call = kernels.CompiledCall(generated.softmax, (), (), (("how", WALK),), "sm_90a")
    said = {(2, True): (128, 80), (0, True): (200, 0), (0, False): (190, 0)}
    asked = []

    def compiled(tried):
        how = dict(tried.constants)["how"]
        asked.append((how.resident, how.paced))
        return asked[-1]

    monkeypatch.setattr(kernels, "registers_of", lambda cubin, kernel: said[cubin][0])
    monkeypatch.setattr(kernels, "read_cubin", lambda cubin: (*said[cubin], 0))
    monkeypatch.setattr(kernels, "name_of", lambda call: "made")

    def found():
        asked.clear()
        return kernels.chosen(call, compiled, lambda one: [one])

    assert found() == (0, False) and asked == [(2, True), (0, True), (0, False)]  # no others to keep pace with
    said[2, True] = 128, 16
    assert found() == (2, True)
    said[0, True] = 128, 32  # it spills more without a bound
    assert found() == (2, True)
    said[0, True] = 128, 0
    assert found() == (0, True)
    said[2, True] = 128, 0
    assert found() == (2, True) and asked == [(2, True)]


def test_kernels_of_a_launcher_have_registers_of_their_own():
    """The kernel that finishes has no bound: its registers say nothing of the blocks that walk down rows."""
    call = call_of(generated.bias_grad, dy=(4096, 512))
    (cubin,) = cubins_in(kernels.binary(call).module)
    walk, finish = registers_of(cubin, "bias_grad_kernel_"), registers_of(cubin, "bias_grad_finish_")
    assert min(walk, finish) > 0 and max(walk, finish) == read_cubin(cubin)[0] and not registers_of(cubin, "none")
