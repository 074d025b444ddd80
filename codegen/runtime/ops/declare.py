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
    """Makes the decorated declaration an op. `content` is the spec as data; `launch`, `xla` and `reference` are the generated
    launcher, jnp form and reference; `backward_launch` and `backward_xla` those of its backward, where that is a kernel,
    `forward_launch` and `forward_xla` those of a forward that saves more for it than the op gives, `first_launch` and
    `first_xla` those of an op that is run first in it, `beside_launch` and `beside_xla` of one beside it; an op that contracts
    has `epilogue_launch` and `epilogue_xla`; `result` is the NamedTuple of several outputs."""
    if "epilogue_launch" in parts:
        return lambda function: GemmOp(function, content, parts, GemmBackwardOp)
    return lambda function: Op(function, content, parts, BackwardOp)
