"""The decorator of generated files: a declaration becomes an op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from codegen.runtime.ops.backward import BackwardOp, GemmBackwardOp
from codegen.runtime.ops.by_graph import ByGraph
from codegen.runtime.ops.gemm_op import GemmOp
from codegen.runtime.ops.op import Op
from codegen.runtime.ops.staged import StagedOp, has_kernels

P = ParamSpec("P")
R = TypeVar("R")


def op(content: dict[str, Any], **parts: Any) -> Callable[[Callable[P, R]], Op[P, R]]:
    """Makes the decorated declaration an op.

    `content` is the spec as data. `launch`, `xla` and `reference` are the generated launcher, jnp form and reference.
    Derived ops have a launcher and a jnp form each. A backward that is a kernel has `backward_launch` and
    `backward_xla`. A forward that saves more than the op's outputs has `forward_launch` and `forward_xla`. An op that
    contracts has `epilogue_launch` and `epilogue_xla`. An op of several kernels has `stage1_launch`, `stage1_xla` and
    so on instead of its own, and so have derived ops: `backward_stage1_launch`. `kind`, or `backward_stage2_kind`, says
    of an op that it is "attention". `result` is the NamedTuple of several outputs."""
    if "epilogue_launch" in parts:
        return lambda function: GemmOp(function, content, parts, GemmBackwardOp)
    kind = ByGraph if parts.get("kind") == "attention" else StagedOp if has_kernels("", parts) else Op
    return lambda function: kind(function, content, parts, BackwardOp)
