"""What a main loop of attention gets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cutlass.cute as cute

from codegen.shared import AttentionLaunch


@dataclass(frozen=True)
class Functions:
    """The generated functions of scores, tiles and rows: see `attention.launch`."""

    score: Callable[..., Any]
    tiles: Callable[..., Any] | None  # None without a mask
    row: Callable[..., Any] | None  # None where the scores are the weights


@dataclass(frozen=True)
class Forward:
    """The arguments of a launch: see `attention.launch`."""

    q: cute.Tensor  # (L, Q, D)
    k: cute.Tensor  # (L, S, D)
    v: cute.Tensor  # (L, S, E)
    o: cute.Tensor  # (L, Q, E)
    tensors: tuple  # what the functions read and write besides
    functions: Functions
    how: AttentionLaunch
