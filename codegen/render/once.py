"""Methods whose results are computed once, and kept as long as their object."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

S = TypeVar("S")
P = ParamSpec("P")
A = TypeVar("A")


def once(method: Callable[Concatenate[S, P], A]) -> Callable[Concatenate[S, P], A]:
    """The method, which computes its result once for each object and its arguments. `functools.cache` would keep every object."""

    @functools.wraps(method)
    def kept(self: S, /, *args: P.args, **named: P.kwargs) -> A:
        assert not named
        results = vars(self).setdefault("_results", {})
        key = method, args
        if key not in results:
            results[key] = method(self, *args, **named)
        found: A = results[key]
        return found

    return kept
