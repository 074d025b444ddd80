"""Which architectures an op has a kernel for."""

from __future__ import annotations

import re
from typing import Protocol

from codegen.ir import DTYPES, Statement, topological
from codegen.spec import Array, Spec

# Those that CuTe DSL compiles for
ARCHITECTURES = tuple("""
    sm_80 sm_86 sm_87 sm_89 sm_90 sm_90a sm_100 sm_100a sm_100f sm_101 sm_101a sm_101f sm_103 sm_103a sm_103f
    sm_107 sm_107a sm_107f sm_110 sm_110a sm_110f sm_120 sm_120a sm_120f sm_121 sm_121a sm_121f
""".split())  # fmt: skip
USUAL = "sm_80,sm_90a,sm_100a,sm_120a"  # those that kernels are compiled for where none is named


def family(arch: str) -> str:
    """An architecture without the letter of its variant: sm_90 of sm_90a."""
    return arch.rstrip("af")


class Op(Protocol):
    """What of an op is looked at."""

    @property
    def spec(self) -> Spec: ...
    @property
    def statements(self) -> tuple[Statement, ...]: ...


class Types(Protocol):
    """What the type variables are bound to."""

    def dtype(self, array: Array | str) -> str: ...


def lacks(op: Op, types: Types, arch: str) -> str | None:
    """Why an architecture, such as sm_90a, has no kernel for these dtypes; None where it has one."""
    number = re.match(r"sm_(\d+)", arch)
    nodes = topological(statement.value for statement in op.statements)
    casts = dict.fromkeys(str(node.attr) for node in nodes if node.op == "cast")
    used = [(f"{a.name!r} is", types.dtype(a)) for a in op.spec.arrays]
    used += [("the chain casts to", types.dtype(name)) for name in casts]
    for words, dtype in used:
        needed = DTYPES[dtype].min_arch
        if number and int(number[1]) < needed:
            return f"{op.spec.op}: {words} {dtype}, which {arch} cannot convert; its kernel needs sm_{needed} or newer"
    return None
