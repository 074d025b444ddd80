"""How accurate the functions of kernels are, and how many instructions they take: `docs/accuracy.md`.

    python -m benchmarks.functions [--step N] [NAME ...]

Each function's kernel is compiled for sm_90a and its PTX run on every N-th float32 (`scan.py`), N odd; on all of them where N is 1,
which takes some minutes a function. Results are added to benchmarks/functions.json, from which the page is written. Needs gcc, no
GPU. Beside each function stands CUDA's libm, measured in the same way.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import cuda.bindings.driver as cuda
import cutlass.cute as cute
from cutlass import Float32
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream

from benchmarks.scan import instructions, scan
from codegen import device
from codegen.runtime.compiled.platform import COMPILE_OPTIONS, compiling_for
from codegen.shared import HALF_POWERS

ARCH, VECTOR = "sm_90a", 8
RESULTS = Path(__file__).with_suffix(".json")
PAGE = Path(__file__).parents[1] / "docs/accuracy.md"


@dataclass(frozen=True)
class Function:
    """A function, its exact value in C, and whether `device` has it precise, approximate or both; `exact` is its flag."""

    name: str
    c: str
    modes: str = "precise approximate"
    exact: bool = False
    exponent: float | None = None  # of a power

    def of(self, mode: str) -> Callable:
        if self.exponent is not None:
            b = self.exponent
            return lambda x: cute.math.pow(x, b) if mode == "libm" else device.power(x, b, mode == "approximate")
        own, library = getattr(device, self.name), getattr(cute.math, self.name, None)
        if mode == "libm":
            return library
        flags = (mode == "approximate", *((False,) if self.exact else ()))
        return lambda x: own(x, *flags)


FUNCTIONS = [
    Function("exp", "exp(x)", "approximate"), Function("sin", "sin(x)"), Function("cos", "cos(x)"), Function("tan", "tan(x)", exact=True),
    Function("rsqrt", "1 / sqrt(x)"), Function("sigmoid", "1 / (1 + exp(-x))"),
    *(Function(name, f"{name}(x)", "approximate") for name in "tanh erf log log2 log1p expm1".split()),
    *(Function(name, f"{name}(x)", "approximate", True) for name in "sinh cosh".split()),
    *(Function(f"x ** {b}", f"pow(x, {b})", exponent=b) for b in HALF_POWERS),
    *(Function(f"x ** {b}", f"pow(x, {b})", "approximate", exponent=b) for b in (0.3, 2.2)),
]  # fmt: skip

# Whose libm form has a table in local memory, which is not translated: its instructions are counted alone
LOCAL = ("sin", "cos", "tan")

_traced: list[Callable] = []


@cute.kernel
def _kernel(x: cute.Tensor, y: cute.Tensor):
    thread = cute.arch.thread_idx()[0]
    held = cute.make_rmem_tensor((cute.size(x, mode=[1]),), Float32)
    cute.autovec_copy(x[thread, None], held)
    held.store(_traced[-1](held.load()))
    cute.autovec_copy(held, y[thread, None])


@cute.jit
def _launch(stream: cuda.CUstream, x: cute.Tensor, y: cute.Tensor):
    _kernel(x, y).launch(grid=(1, 1, 1), block=(32, 1, 1), stream=stream)


@contextmanager
def _tracing(function: Callable) -> Iterator[None]:
    _traced.append(function)
    yield
    _traced.pop()


def ptx_of(function: Callable, elements: int) -> str:
    """The PTX of a kernel whose threads each compute a function of some elements."""
    arrays = [make_fake_compact_tensor(Float32, (32, elements), stride_order=(1, 0), assumed_align=16) for _ in "xy"]
    with compiling_for(ARCH), _tracing(function):
        options = f"{COMPILE_OPTIONS} --keep-ptx"
        return cute.compile(_launch, make_fake_stream(), *arrays, options=options, no_jit_engine=True).__ptx__.rstrip(
            "\0"
        )


def count(function: Callable) -> float:
    """Instructions of PTX that an element always takes, without its load and store."""
    return (instructions(ptx_of(function, VECTOR)) - instructions(ptx_of(lambda x: x, VECTOR))) / VECTOR


def measure(function: Function, step: int) -> dict:
    found = {}
    if function.name in LOCAL:
        found["libm"] = {"instructions": count(function.of("libm"))}
    for mode in (*function.modes.split(), *(("libm",) if hasattr(cute.math, function.name) and not found else ())):
        found[mode] = {
            "step": step, "instructions": count(function.of(mode)), **scan(ptx_of(function.of(mode), 1), function.c, step)
        }  # fmt: skip
    return found


TABLE = "| function | form |"  # how the page's table begins, which replaces what is there from its first line on


def page(before: str, results: dict) -> str:
    """The page with a table of these results."""
    text, first, rest = before.partition(TABLE)
    lines = [text + first + rest.partition("\n")[0], rest.split("\n")[1]]
    for name, modes in ((f.name, results[f.name]) for f in FUNCTIONS if f.name in results):
        for mode, r in modes.items():
            if "float32" not in r:
                lines.append(f"| `{name}` | {mode} | | | | | | {r['instructions']:.1f} | |")
                continue
            ulps = [f"{r[t]['ulp']:.2f}" for t in ("float32", "bfloat16", "float16")]
            inputs = "all" if r["step"] == 1 else f"every {r['step']}th"
            lines.append(
                f"| `{name}` | {mode} | {ulps[0]} | {r['float32']['at']} | {ulps[1]} | {ulps[2]} | "
                f"{r['float32']['relative'] * 2**16:.3f} | {r['instructions']:.1f} | "
                f"{inputs} |"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--step", type=int, default=15)
    arguments = parser.parse_args()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for function in FUNCTIONS:
        if not arguments.names or function.name in arguments.names:
            results[function.name] = measure(function, arguments.step)
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")
            PAGE.write_text(page(PAGE.read_text(), results))
            print(function.name, flush=True)


if __name__ == "__main__":
    main()
