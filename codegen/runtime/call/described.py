"""The interface of a call and of its op to the rest of the runtime."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from codegen.graph.nodes import Statement
from codegen.plan.op import Op as PlannedOp
from codegen.runtime.call.arguments import Types, negative_zeros
from codegen.spec.spec import Spec

Implementation = Literal["cute", "xla", "interpret"] | None


def named_arch() -> str | None:
    """The architecture that CUTE_DSL_ARCH names: for another one JAX traces a call again."""
    return os.environ.get("CUTE_DSL_ARCH")


@dataclass(frozen=True)
class Key:
    """The values that are compiled into a call's function."""

    implementation: Implementation
    types: Types
    present: tuple[str, ...]
    static: tuple[tuple[str, Any], ...]
    zeros: tuple[str, ...] = field(init=False)  # static parameters that are -0.0
    arch: str | None = field(init=False, default_factory=named_arch)

    def __post_init__(self) -> None:
        object.__setattr__(self, "zeros", negative_zeros(self.static))


class CalledOp(Protocol):
    """The interface of an op to vmap, aliases and sharding."""

    @property
    def spec(self) -> Spec: ...
    @property
    def plan(self) -> Any: ...
    @property
    def statements(self) -> tuple[Statement, ...]: ...
    @property
    def planned(self) -> PlannedOp: ...
    @property
    def multiplied(self) -> frozenset[str]:
        """The inputs that are factors of a contraction."""

    def compute(self, key: Key) -> str:
        """The dtype that floats are computed in."""

    def arrays(self, key: Key, operands: Sequence[Any]) -> dict[str, Any]:
        """The present inputs, by name."""

    def parameters(self, key: Key, operands: Sequence[Any]) -> dict[str, Any]:
        """The values of the parameters, by name."""
