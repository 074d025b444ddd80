"""The tiles that a plan chooses for a product on Hopper."""

from __future__ import annotations

from typing import Any

from codegen.plan.gemms.hopper_tiles import options
from codegen.shared import Tiles


def choose(M: int, N: int, K: int, L: int = 1, **more: Any) -> Tiles | None:
    """The tiles among the `options` with the least estimated time; None if none fits."""
    found = options(M, N, K, L, **more)
    return min(found, key=lambda t: found[t], default=None)
