"""Runs PTX that is written by hand: whole kernels, or one instruction on many operands."""

import functools

import numpy as np

from codegen.interpret import host, ptx
from codegen.interpret.kernel import Kernel
from codegen.interpret.lanes import LaunchConfig
from codegen.interpret.machine import Machine
from codegen.interpret.memory.arrays import Array, make_array
from codegen.runtime.compiled import interpreted

REGISTERS = """
  .reg .pred %p<16>;
  .reg .b16 %h<16>;
  .reg .b32 %r<32>;
  .reg .b64 %rd<32>;
"""


@functools.cache
def kernel_of(body: str, parameters: int, declarations: str = "", outside: str = "", directives: str = "") -> Kernel:
    """A kernel in which %rd0, %rd1, ... are the addresses of its arrays and %r0 is the thread's number. `outside` is
    the text before it, `directives` are those after its parameters."""
    names = [f"parameter_{i}" for i in range(parameters)]
    loads = "".join(f"  ld.param.b64 %rd{i}, [{name}];\n" for i, name in enumerate(names))
    head = ", ".join(f".param .b64 {name}" for name in names)
    text = f"{outside}.visible .entry made({head})\n{directives}{{{REGISTERS}{declarations}\n{loads}  mov.u32 %r0, %tid.x;\n{body}\n  ret;\n}}\n"
    return Kernel(ptx.parse(text)["made"])


def run(
    body: str,
    arrays: list[Array],
    threads: int = 32,
    blocks: int | tuple[int, int, int] = 1,
    shared: int = 0,
    declarations: str = "",
    cluster: tuple[int, int, int] = (1, 1, 1),
    **text: str,
) -> Machine:
    """Runs a kernel on arrays."""
    kernel = kernel_of(body, len(arrays), declarations, **text)
    addresses = tuple(int(a.address).to_bytes(8, "little") for a in arrays)
    grid = blocks if isinstance(blocks, tuple) else (blocks, 1, 1)
    machine = Machine(kernel, LaunchConfig("made", grid, (threads, 1, 1), shared, addresses, cluster), arrays)
    machine.run()
    return machine


def edited(made, edit) -> interpreted.Compiled:
    """A compiled kernel with its PTX changed."""
    text = edit(made.ptx)
    assert text != made.ptx
    programs = ptx.parse(text)
    launcher = host.Launcher(made.module, programs)
    return interpreted.Compiled(launcher, {name: Kernel(program) for name, program in programs.items()})


def source(values: np.ndarray, name: str = "x") -> Array:
    return make_array(name, values, False)


def result(count: int, dtype, name: str = "y") -> Array:
    return make_array(name, np.zeros(count, dtype), True)


def values(array: Array, dtype) -> np.ndarray:
    return array.data[: array.size].view(dtype)


def words(count: int = 32, threads: int = 32, body: str = "", **keywords) -> list[int]:
    """The output of a kernel: 32-bit words at %rd0. Its %rd16 is the address of the thread's own word."""
    out = result(count, np.uint32)
    place = "  mul.wide.u32 %rd17, %r0, 4;\n  add.s64 %rd16, %rd0, %rd17;\n"
    run(place + body, [out], threads, **keywords)
    return values(out, np.uint32).tolist()


def apply(text: str, result_bits: int, *operands: tuple[int, list[int]]) -> list[int]:
    """The result bits of an instruction for operands given as (width, bits): it writes %d and reads %a, %b, %c, %e."""
    count = max(len(column) for _, column in operands)
    lines, declared, arrays = [], f"  .reg .b{max(16, result_bits)} %d;\n", []
    for place, (bits, column) in enumerate(operands):
        name = "%" + "abce"[place]
        declared += f"  .reg .b{max(16, bits)} {name};\n"
        lines += [f"mul.wide.u32 %rd20, %r0, {bits // 8};", f"add.s64 %rd21, %rd{place}, %rd20;"]
        lines += [f"ld.global.b{bits} {name}, [%rd21];"]
        whole = column * (count if len(column) == 1 else 1)
        arrays.append(source(np.array(whole, f"u{bits // 8}"), f"operand{place}"))
    out = len(operands)
    lines += [text, f"mul.wide.u32 %rd20, %r0, {result_bits // 8};", f"add.s64 %rd21, %rd{out}, %rd20;"]
    lines += [f"st.global.b{result_bits} [%rd21], %d;"]
    made = result(count, f"u{result_bits // 8}")
    run("\n".join("  " + line for line in lines), [*arrays, made], count, declarations=declared)
    return [int(v) for v in values(made, f"u{result_bits // 8}")]
