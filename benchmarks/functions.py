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
    *(Function(f"x ** {b}", f"pow(x, {b})", exponent=b) for b in (-0.5, 0.5, 1.5, 2.5)),
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


HEAD = """# Accuracy of functions

## Where a cheaper form is enough

Under `math: auto` a function may be computed by a cheaper form with a relative error of 2**-16 (2**-15 for `gelu`, its slope, and powers). The
generator decides for each value of a chain (`codegen/graph/precision.py`), by what rounding already costs there:

- **A 16-bit output** is rounded to 8 bits (bfloat16) or 11 bits (float16), so off by up to 2**-9 to 2**-8 or 2**-12 to 2**-11 of
  itself. The form's error is at most an eighth of that.
- **A float32 sum, mean, maximum or minimum of values made of 16-bit arrays.** Each element x of such an array was rounded once, which
  moves it by up to 2**-9 |x| (bfloat16) or 2**-12 |x| (float16), and a function f(x) by k 2**-9 |f(x)|, where k = |x f'(x) / f(x)|.
  The form moves f(x) by 2**-16 |f(x)|: as an error of x would that is 2**-7 / k of its rounding error for bfloat16, 2**-4 / k for
  float16. For k near 1 (a power, tanh(x) for |x| < 1, log(x) at e) it is lost in what the inputs' rounding causes. What follows
  multiplies both errors alike. Where k is small, f hardly varies (sigmoid or tanh near 1, cosh near 0), and the result is still within
  2**-16 of the sum of the terms' magnitudes.
- **A product `a @ b` counts as an array of its factors' type.** Where both factors are 16-bit arrays, rounding them moves each of the
  product's terms by up to 2**-8 of itself (bfloat16) or 2**-11 (float16), at random: the product by about 2**-9 or 2**-12 of the root of the sum
  of the terms' squares. That is more than 2**-16 of the product, unless thousands of terms of one sign average it away; then the form's error is still
  within 2**-16 of the function. So a soft cap, or another function of a product, may be approximate within a GEMM kernel that reduces
  it. The kernel that follows XLA's product has that in float32 and computes it precisely. A maximum that is an output stays precise, because a
  backward compares elements with it.
- **Not where terms of one input cancel.** In log(x) - log(x + 1) for large x, the errors that rounding x causes in the two terms cancel,
  as the terms do, and the forms' errors do not. So a value stays precise where something else that is made of the same
  arrays is added to it or subtracted from it before the reduction. An example where it may be approximate: the logits z of a
  soft-capped cross-entropy, c tanh(x / c). They meet their own maximum and each other, but x reaches the loss through tanh alone. An error of
  2**-16 |z| of z is one of 2**-16 |z| of the exponent in exp(z - max(z)), where rounding x to bfloat16 costs 2**-9 |x| (1 - (z / c)**2). Near
  c, where that is small, the cheaper tanh is accurate to 2**-20 of 1 - |tanh|.
- **Not where a comparison decides**, nor where a value is rounded to a whole number: a small error may change the outcome.

`math: precise` allows none of this, `math: fast` allows it everywhere. Quotients by one number, which are computed with its reciprocal, are
nearly always correctly rounded, in each mode.

## A mean and its variance

Where a variance is a stage (over rows, or along a middle axis), as many sweeps would follow each other as there are reductions: the mean, then
`mean(square(x - mean(x)))`. Instead one kernel sums `x - c` and its squares about a centre `c`, one number a column:
`mean = c + mean(x - c)` and `var = mean(square(x - c)) - square(mean(x - c))`, and at least 0. The centre is the mean of a sample, every 32nd element
along the axis (or the largest spacing up to 32 that divides its size), which costs a small kernel.

The difference cancels digits where the centre is far from the mean. It can't be far: of a sample with one element of `s`, the square of
the distance of its mean from the mean of all is at most `s` times the variance. So the error of the variance is at most `s + 1` times
that of two sweeps, where all large deviations are in the sample, and about the same as theirs where the sample is like the rest:
numbers far from zero lose nothing. Arrays of fewer than 2**20 elements, axes of a prime size, symbolic sizes in `codegen export` and axes of a fixed size have the exact mean as
their centre or two sweeps. A column with an infinity or NaN has the mean of `jnp`, and the variance NaN.

## Measured

How far the functions of kernels may be from the exact value, and how many instructions they take. `python -m benchmarks.functions`
writes this page. It compiles each function for Hopper, translates its PTX to C, and runs that on float32 numbers: on all of them
where the column *inputs* says so, otherwise on every 15th and on every number that bfloat16 or float16 has. PTX gives some instructions (`ex2`, `lg2`, `rcp`) only an error bound.
They are taken to be off by the whole bound, up or down, so a GPU's results are better than the page says.

Powers with other exponents than -0.5, 0.5, 1.5 and 2.5 have a precise and an approximate form too. The table shows two of them.

- *precise* is the form for outputs of 32 bits, *approximate* the form for outputs of 16 bits under `math: auto`, and *libm* CUDA's
  function. A function without a precise row uses CUDA's.
- *ulp* is the error in units in the last place of the float32 result, over float32, bfloat16 and float16 inputs; *at* is
  the float32 input with the largest error.
- *relative* is the relative error over all inputs, in units of 2**-16. Results below 2**-126 count as 2**-126, an infinity as 2**128.
- *instructions* are those of PTX that an element always takes. The slow way of `sin` and `cos` for angles above 100000, which a
  whole vector takes or leaves out, is not counted; nor is that of libm's.

| function | form | ulp, float32 | at | ulp, bfloat16 | ulp, float16 | relative, 2**-16 | instructions | inputs |
|---|---|---|---|---|---|---|---|---|
"""


def page(results: dict) -> str:
    lines = []
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
    return HEAD + "\n".join(lines) + "\n"


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
            PAGE.write_text(page(results))
            print(function.name, flush=True)


if __name__ == "__main__":
    main()
