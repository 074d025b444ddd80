"""From a few lines of YAML to results: bias + ReLU, then SwiGLU rounded to float8, then an error.

Run it with `make demo`. The kernels run on an NVIDIA GPU where there is one; elsewhere they are compiled all the same,
and what the compiler made is interpreted on the CPU.
"""

from __future__ import annotations

import functools
import statistics
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from codegen.errors import SpecError
from codegen.measuring.compiled.compile import Compiled, compile_kernel
from codegen.measuring.compiled.variants import Variant
from codegen.pipeline import read_op
from codegen.plan.limits import lacks
from codegen.runtime import Implementation, Op
from codegen.runtime.call.arguments import all_types
from codegen.runtime.compiled import interpreted
from cutefuse import bias_relu, silu_mul_fp8

ROOT = Path(__file__).parent.parent
GPU = jax.default_backend() == "gpu"
ROWS, COLUMNS = (8192, 4096) if GPU else (1024, 1024)
console = Console(highlight=False)


def implementation(op: Op) -> Implementation:
    """What runs here: the kernel, on a GPU or interpreted; the jnp form on a GPU too old for the op's types."""
    if not GPU:
        return "interpret"
    number = jax.devices()[0].compute_capability.replace(".", "")
    return "xla" if any(lacks(op, types, f"sm_{number}") for types in all_types(op.spec)) else "cute"


def main() -> None:
    heading("The spec", "specs/bias_relu.yaml")
    show((ROOT / "specs/bias_relu.yaml").read_text().partition("bench:")[0], "yaml")
    heading("The heart of its kernel", "generated/bias_relu.py")
    show(excerpt((ROOT / "generated/bias_relu.py").read_text()), "python")
    run_bias_relu()
    compile_bias_relu()
    run_silu_mul_fp8()
    make_a_mistake()


def run_bias_relu() -> None:
    where = f"{device()}, implementation={implementation(bias_relu)!r}"
    heading(f"The result: {ROWS} x {COLUMNS} bfloat16", where)
    op = functools.partial(bias_relu, implementation=implementation(bias_relu))
    x, bias, dy = normal(0, ROWS, COLUMNS), normal(1, COLUMNS), normal(2, ROWS, COLUMNS)

    y = op(x, bias)
    if not GPU:
        (launch,) = interpreted.last_reports()
        work = f"{launch.instructions_per_thread:.0f} instructions a thread, every access checked"
        fact("as interpreted", f"{launch.blocks} blocks of {launch.threads} threads, {work}")
    fact("y against the reference", agreement(y, bias_relu.reference(x, bias)))
    gradients = jax.vjp(op, x, bias)[1](dy)
    expected = jax.vjp(bias_relu.reference, x, bias)[1](dy)
    fact("dx against the reference's", agreement(gradients[0], expected[0]))
    fact("dbias against the reference's", agreement(gradients[1], expected[1]))
    batch = x.reshape(8, ROWS // 8, COLUMNS)
    mapped = jax.vmap(op, in_axes=(0, None))(batch, bias)
    fact("vmap over 8 blocks", agreement(mapped.reshape(x.shape), y))
    if GPU:
        ours, xla = timed(op, x, bias), timed(functools.partial(bias_relu, implementation="xla"), x, bias)
        moved = 2 * x.nbytes + bias.nbytes
        fact("time", f"{ours * 1e6:.0f} us ({moved / ours / 1e12:.2f} TB/s); XLA: {xla * 1e6:.0f} us")


def compile_bias_relu() -> None:
    heading("Its kernels, cross-compiled", "for bfloat16; no GPU is needed")
    table = Table("architecture", "registers", "spills", "bytes a load", "bytes a store", box=None, padding=(0, 2))
    for arch in ("sm_80", "sm_90a", "sm_100a", "sm_120a"):
        kernel = compiled(bias_relu, arch)
        table.add_row(arch, str(kernel.registers), str(kernel.spills), widths(kernel.loads), widths(kernel.stores))
    console.print(table)


def run_silu_mul_fp8() -> None:
    heading("A second op: SwiGLU to float8", "specs/silu_mul_fp8.yaml")
    show("q = silu(x[0]) * x[1] / scale    # x: T[..., (2 N)], q: float8_e4m3fn[..., N]", "python")
    x, scale = normal(3, ROWS, 2 * COLUMNS), jnp.float32(0.01)
    q = silu_mul_fp8(x, scale, implementation=implementation(silu_mul_fp8))
    fact("q against the reference", agreement(q, silu_mul_fp8.reference(x, scale)))
    fact("largest value: saturated", f"{jnp.max(q.astype(jnp.float32)):g}")
    kernel = compiled(silu_mul_fp8, "sm_90a")
    loads, stores = widths(kernel.loads), widths(kernel.stores)
    fact("on sm_90a", f"{kernel.registers} registers, loads of {loads} bytes, stores of {stores}")


def make_a_mistake() -> None:
    heading("An error in a spec", "what codegen build says")
    text = (ROOT / "specs/silu_mul_fp8.yaml").read_text().replace("q = silu(g) * u /", "q = silu(g) * uu /", 1)
    try:
        read_op("specs/silu_mul_fp8.yaml", text)
    except SpecError as error:
        console.print(Text(indented(str(error))), soft_wrap=True)


# What the above is shown and measured with


def heading(title: str, detail: str) -> None:
    console.print()
    console.print(Text.assemble((title, "bold"), "  ", (detail, "dim")))


def show(code: str, language: str) -> None:
    text = Syntax("", language, theme="ansi_dark", background_color="default").highlight(indented(code))
    text.rstrip()
    console.print(text, soft_wrap=True)


def indented(text: str) -> str:
    return textwrap.indent(text, "  ")


def fact(name: str, value: str) -> None:
    console.print(f"  {name:<32}{value}", soft_wrap=True)


def excerpt(source: str) -> str:
    """The chain, and the kernel's body."""
    lines = source.split("\n")
    chain, kernel = lines.index("def bias_relu_chain(x, bias):"), lines.index("def bias_relu_kernel(")
    first = lines.index("):", kernel) + 1
    body = textwrap.dedent("\n".join(lines[first : lines.index("", first)]))
    return "\n".join([lines[chain], *lines[chain + 2 : lines.index("", chain)], "", body])


def device() -> str:
    return jax.devices()[0].device_kind if GPU else "CPU"


def normal(seed: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape, jnp.bfloat16)


def agreement(ours: jax.Array, expected: jax.Array) -> str:
    worst = float(jnp.max(jnp.abs(ours.astype(jnp.float32) - expected.astype(jnp.float32))))
    differing = int(jnp.sum(ours != expected))
    return "every element equal" if not differing else f"{differing} of {ours.size} differ, by at most {worst:g}"


def compiled(op: Op, arch: str) -> Compiled:
    """The kernel for bfloat16 and rows that whole vectors fit."""
    types = next(types for types in all_types(op.spec) if ("T", "bfloat16") in types.variables)
    return compile_kernel(op, Variant(types, ragged=False), arch)


def widths(found: tuple[int, ...]) -> str:
    return ", ".join(map(str, found))


def timed(function: Callable[..., jax.Array], *args: jax.Array) -> float:
    """Seconds a call: the median of 5 groups of 20 calls queued back to back."""
    function = jax.jit(function)
    jax.block_until_ready(function(*args))
    groups = []
    for _ in range(5):
        start = time.perf_counter()
        jax.block_until_ready([function(*args) for _ in range(20)])
        groups.append((time.perf_counter() - start) / 20)
    return statistics.median(groups)


if __name__ == "__main__":
    main()
