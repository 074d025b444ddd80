"""The arguments of the main loops of attention and of its gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cutlass.cute as cute

from codegen.device.attention.scores import Row
from codegen.shared import AttentionLaunch

LOG2E = math.log2(math.e)


@dataclass(frozen=True)
class Functions:
    """The generated functions of scores, tiles and rows: see `attention.launch`."""

    score: Callable[..., Any]
    tiles: Callable[..., Any] | None  # None without a mask
    row: Callable[..., Any] | None  # None where the scores are the weights
    base: float  # the logarithm to base 2 of the number whose powers are the weights
    weight: Callable[..., Any] | None = None  # None where the exponentials are
    # Scores are the hyperbolic tangents of so many times the products; 0 for others, and for extreme numbers
    bend: float = 0.0
    exponential: bool = True  # whether the weights are powers of scores; else they are the scores
    shifts: bool = False  # whether scores without the mask are `shifted` ones
    neighbours: int = 1  # as of a launch
    # Whether scores are so near 0 that their powers need not be relative to a largest one, which would be too large or 0 else
    steady: bool = False
    early: bool = False  # as of a launch
    tops: bool = True

    @property
    def raises(self) -> bool:
        """Whether rows have a largest score, to which powers are relative."""
        return self.row is not None and self.exponential

    @classmethod
    def scaled(
        cls,
        score: Callable[..., Any],
        tiles: Any,
        row: Any,
        scale: float,
        weight: Any = None,
        bend: float = 0.0,
        exponential: bool = True,
        shifts: bool = False,
    ) -> Functions:
        """The functions where scores are `scale` times what `score` gives, which is all zeros where `scale` is 0."""
        size = scale or 1.0

        def of_scaled(at: Row, top: Any, total: Any, tensors: tuple) -> Any:
            assert row is not None
            return row(at, top * size, total, tensors)

        usual = 2.0**-20 < bend < 2.0**10 and size < 2.0**16
        return cls(
            score,
            tiles,
            of_scaled if row is not None else None,
            size * LOG2E,
            weight,
            bend if usual else 0.0,
            exponential,
            shifts,
        )


def bend(above: tuple[float, ...], below: tuple[float, ...], signs: tuple[float, ...]) -> float:
    """The product of some numbers, divided by others, with the signs of more; 0 where it is not positive, or not a number."""
    divisor = math.prod(below)
    found = math.prod(above) / divisor if divisor else 0.0
    return max(found * math.prod(math.copysign(1.0, x) for x in signs), 0.0)


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
    table: cute.Tensor | None = None  # int32 (numbers,), room for bounds of the mask's arrays: see `hopper.listed`
    pages: tuple = ()  # (L, N) each, of k and of v, which are (L, (R, P), columns) then


@dataclass(frozen=True)
class Slope:
    """The generated functions of gradients: see `attention.launch_backward`."""

    slope: Callable[..., Any]
    tiles: Callable[..., Any] | None  # None without a mask
    bend: float = 0.0  # as of `Functions`
    summed: range = range(0)  # those of the slope's results that a kernel adds up


@dataclass(frozen=True)
class Problem:
    """What all functions of a kernel take: sizes, the generated functions and what they read, and the launch."""

    sizes: tuple  # rows of q and of k
    batches: tuple  # sizes of the batch's axes
    functions: Any  # `Functions` or `Slope`
    tensors: tuple  # what the functions read and write besides
    how: AttentionLaunch
    work: tuple = ()  # as `hopper.work_of` gives it
    table: cute.Tensor | None = None  # bounds of the mask's arrays: see `hopper.listed`
    statistics: tuple = ()  # of rows, which `Slope.slope` takes
    lacking: tuple[bool, ...] = ()  # which axes of the batch k and v lack, or a sum


@dataclass(frozen=True)
class Sums:
    """Where the other values that `slope` gives are added up: see `attention.launch_backward`."""

    along_rows: tuple[cute.Tensor, ...]  # (L, Q)
    along_columns: tuple[cute.Tensor, ...]  # (L, S)
    pairs: tuple[cute.Tensor, ...]  # (L, Q, S)


@dataclass(frozen=True)
class Backward:
    """The arguments of a launch of the gradients: see `attention.launch_backward`."""

    q: cute.Tensor  # (L, Q, D)
    k: cute.Tensor  # (L, S, D)
    v: cute.Tensor  # (L, S, E)
    do: cute.Tensor  # (L, Q, E)
    dq: cute.Tensor
    dk: cute.Tensor
    dv: cute.Tensor
    sums: Sums
    statistics: tuple[cute.Tensor, ...]  # (L, Q), float32
    tensors: tuple  # what the functions read besides
    functions: Slope
    how: AttentionLaunch
    parts: cute.Tensor  # (tiles, elements) float32, room for sums of dq that blocks add up in turns,
    table: cute.Tensor | None  # as in `Forward`, and
    turns: cute.Tensor  # (tiles + 1,) int32, for their turns: see `joint.turns`
