"""The decorator of generated files: a declaration becomes an op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from codegen.runtime.ops.derived import BackwardOp
from codegen.runtime.ops.gemm_op import GemmBackwardOp, GemmOp
from codegen.runtime.ops.op import Op

P = ParamSpec("P")
R = TypeVar("R")


def op(content: dict[str, Any], **parts: Any) -> Callable[[Callable[P, R]], Op[P, R]]:
    """Makes the decorated declaration an op.

    `content` is the spec as data. `launch`, `xla` and `reference` are the generated launcher, jnp form and reference. Derived
    ops have a launcher and a jnp form each: `backward_launch` and `backward_xla` for a backward that is a kernel;
    `forward_launch` and `forward_xla` for a forward that saves more than the op's outputs; `first_launch` and `first_xla` for an
    op that runs before the backward; `beside_launch` and `beside_xla` for one that is independent of it; `epilogue_launch` and
    `epilogue_xla` for an op that contracts. `result` is the NamedTuple of several outputs."""
    if "epilogue_launch" in parts:
        return lambda function: GemmOp(function, content, parts, GemmBackwardOp)
    return lambda function: Op(function, content, parts, BackwardOp)
