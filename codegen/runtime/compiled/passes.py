"""Compiles kernels to PTX only: the compiler's passes without the assembler."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

_PASSES = "cute-to-nvvm{"
# The last passes, which make GPU code of a kernel in LLVM's form; before them, the pass that says whether to make PTX
# or SASS
_LAST = "cuda-to-binary{"
_TARGET = re.compile(r"gpu\.module\(cuda-compute-target\{[^{}]*\brepresentation=sass\b[^{}]*\}\)")


@contextlib.contextmanager
def without_assembling() -> Iterator[None]:
    """A context in which the compiler stops at PTX, which launchers then hold instead of machine code. ptxas would take a fifth
    of the time. One thread at a time, as for `compiling_for`."""
    from cutlass.cutlass_dsl.cutlass import CuTeDSL

    compiler = CuTeDSL._get_dsl()
    choose = compiler.preprocess_pipeline
    compiler.preprocess_pipeline = lambda pipeline, arch: _to_ptx(choose(pipeline, arch))
    try:
        yield
    finally:
        del compiler.preprocess_pipeline


def _to_ptx(pipeline: str) -> str:
    """The compiler's pipeline with a target that keeps kernels as PTX. Where a compiler has other passes, its pipeline
    is returned unchanged, and it assembles."""
    from cutlass._mlir.passmanager import PassManager

    passes = str(PassManager.parse(pipeline))
    target, last = _TARGET.search(passes), passes.find(_LAST)
    if target is None or last < 0 or _PASSES not in pipeline:
        return pipeline
    first = pipeline.strip().removesuffix(")").replace(_PASSES, f"{_PASSES}llvm-only=true ", 1)
    return f"{first},{target[0].replace('representation=sass', 'representation=ptx')},{passes[last:]}"
