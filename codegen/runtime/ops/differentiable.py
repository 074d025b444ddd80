"""The interface of an op to its generated backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from codegen.runtime.call.described import Key
from codegen.spec.spec import Spec


class Gradient(Protocol):
    """The interface of a generated backward to its op."""

    @property
    def spec(self) -> Spec: ...
    @property
    def generated(self) -> tuple[Any, ...]:
        """The ops that are generated for gradients: the backward is the last; before it, the ops that run with it or replace it."""

    def way(self, key: Key, perturbed: Sequence[bool]) -> str: ...
    def by(self, way: str) -> Gradient: ...
    def saved(
        self, key: Key, plain: Callable[..., tuple[Any, ...]], operands: tuple[Any, ...]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]: ...
    def packed(self, key: Key, way: str, values: dict[str, Any], operands: tuple[Any, ...]) -> tuple[Any, ...]: ...
    def unpacked(self, key: Key, residuals: tuple[Any, ...]) -> tuple[str, dict[str, Any]]: ...
    def pull(
        self, key: Key, values: dict[str, Any], cotangents: tuple[Any, ...], copies: bool = False
    ) -> tuple[Any, ...]: ...
