"""How many instructions the operations of a chain take: `codegen/explain/work.py`, from which `codegen explain` estimates a kernel's time.

    python benchmarks/work.py

Each operation's kernel is compiled for sm_90a on vectors of eight float32, and its machine code counted; what a kernel takes that copies
its arguments is subtracted. Needs no GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import cuda.bindings.driver as cuda
import cutlass.cute as cute
from cutlass import Float32
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream

from codegen import device
from codegen.graph.ops import COSTLY, OPS
from codegen.measuring.compiled import sass
from codegen.runtime.compiled.platform import COMPILE_OPTIONS, compiling_for
from codegen.targets import Work

ARCH, VECTOR = "sm_90a", 8
OUT = Path(__file__).parents[1] / "codegen/explain/work.py"
_traced: list[Callable] = []


@cute.kernel
def _kernel(x: cute.Tensor, y: cute.Tensor, z: cute.Tensor):
    thread = cute.arch.thread_idx()[0]
    held = [cute.make_rmem_tensor((VECTOR,), Float32) for _ in range(2)]
    for array, registers in zip((x, y), held, strict=True):
        cute.autovec_copy(array[thread, None], registers)
    held[0].store(_traced[-1](*(registers.load() for registers in held)))
    cute.autovec_copy(held[0], z[thread, None])


@cute.jit
def _launch(stream: cuda.CUstream, x: cute.Tensor, y: cute.Tensor, z: cute.Tensor):
    _kernel(x, y, z).launch(grid=(1, 1, 1), block=(32, 1, 1), stream=stream)


def counted(function: Callable) -> Work:
    """The instructions of a kernel. Each of its threads computes a function of two vectors."""
    arrays = [make_fake_compact_tensor(Float32, (32, VECTOR), stride_order=(1, 0), assumed_align=16) for _ in "xyz"]
    _traced.append(function)
    with compiling_for(ARCH):
        made = cute.compile(
            _launch, make_fake_stream(), *arrays, options=f"{COMPILE_OPTIONS} --keep-cubin", no_jit_engine=True
        )
    ((_, code),) = sass.kernels(made.__cubin__, ARCH)
    return sass.main_loop(code).times(1 / VECTOR)


def cost(text: str, approx: bool, base: Work) -> tuple[float, float, float]:
    """The instructions for an element of a function of x and y, which are written {0} and {1}: its result is added to y, as is x in the
    kernel of the base."""
    code = text.format("x", "y", approx=approx, exact=False)
    found = counted(eval(f"lambda x, y: ({code}) + y", {"device": device, "cute": cute})) + base.times(-1)
    return tuple(round(max(n, 0.0) * 4) / 4 for n in (found.issue, found.special, found.half))


HEAD = '''"""The instructions that an operation takes for each float32 element: all of them, those of the unit for special functions, and
those for integers, comparisons and selections (`targets.Work`). `benchmarks/work.py` wrote this file: it counts machine code for sm_90a.
"""

# By operation: the precise form, and the approximate one where there is one
OPERATIONS: dict[str, tuple[tuple[float, float, float], ...]] = {
'''


def main() -> None:
    base = counted(lambda x, y: x + y)
    texts = {name: OPS[name].cute for name in (*COSTLY, "maximum", "minimum") if OPS[name].arity <= 2}
    texts |= {
        "divide_by_row": "device.divide_by_row({0}, {1}, {approx})",
        "half_power": "device.power({0}, 1.5, {approx})",
        "pow": "device.power({0}, 2.2, {approx})",
        "sine_and_cosine": "device.add(*device.sine_and_cosine({0}, {approx}))",
    }
    lines = []
    for name, text in sorted(texts.items()):
        found = [cost(text, approx, base) for approx in (False, True)[: 1 + ("{approx}" in text)]]
        lines.append(f'    "{name}": ({", ".join(map(str, found))},),')
        print(lines[-1], flush=True)
    OUT.write_text(HEAD + "\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
