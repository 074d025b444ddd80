"""Bounds of a mask's condition over a tile. A number's bounds are its least and its greatest value; a condition's are whether it
holds for some, and for every, element. They may be wider than necessary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from codegen.device.math.opaque import unmerged
from codegen.shared import WARP

Bounds = tuple[Any, Any]  # Python's or the kernel's numbers or bools
UNKNOWN: Bounds = (True, False)  # of a condition


def exact(value: Any) -> Bounds:
    """One number."""
    return value, value


def over(src: cute.Tensor, place: Callable[[Int32], Any], positions: Bounds) -> Bounds:
    """The elements of an array at some consecutive positions. All lanes of a warp take part."""
    first, last = positions
    lane = cute.arch.lane_idx()
    low = high = src[place(cutlass.min(first + lane, last))]
    return _over(src, place, first, last, low, high)


@cute.jit
def _over(
    src: cute.Tensor, place: cutlass.Constexpr[Callable[..., Any]], first: Int32, last: Int32, low: Any, high: Any
) -> tuple[Any, Any]:
    lane = cute.arch.lane_idx()
    for start in cutlass.range(first + WARP, last + 1, WARP):
        value = src[place(cutlass.min(start + lane, last))]
        low, high = least(low, value), greatest(high, value)
    for i in cutlass.range_constexpr(5):
        low = least(low, cute.arch.shuffle_sync_bfly(low, 1 << i))
        high = greatest(high, cute.arch.shuffle_sync_bfly(high, 1 << i))
    return low, high


@cute.jit
def alone(src: cute.Tensor, place: cutlass.Constexpr[Callable[..., Any]], positions: tuple) -> tuple[Any, Any]:
    """The elements of an array at consecutive positions of this lane."""
    first, last = positions
    low = high = src[place(first)]
    for position in cutlass.range(first + 1, last + 1):
        value = src[place(position)]
        low, high = least(low, value), greatest(high, value)
    return low, high


@cute.jit
def listed(words: cute.Tensor, first: Int32, last: Int32, dtype: cutlass.Constexpr[Any]) -> tuple[Any, Any]:
    """The elements of some blocks of positions, of which a table (2, blocks) has the bounds."""
    low, high = dtype(words[0, first]), dtype(words[1, first])
    for block in cutlass.range(first + 1, last + 1):
        low, high = least(low, dtype(words[0, block])), greatest(high, dtype(words[1, block]))
    return low, high


@cute.jit
def put(words: cute.Tensor, block: Int32, found: tuple, there: cutlass.Boolean) -> None:
    """List the bounds of a block, if it is there."""
    if there & (cute.arch.lane_idx() == 0):
        words[0, block] = Int32(found[0])
        words[1, block] = Int32(found[1])


def least(a: Any, b: Any) -> Any:
    known = isinstance(a, int | float) and isinstance(b, int | float)
    return min(a, b) if known else unmerged(cutlass.select_(a < b, a, b))


def greatest(a: Any, b: Any) -> Any:
    known = isinstance(a, int | float) and isinstance(b, int | float)
    return max(a, b) if known else unmerged(cutlass.select_(a > b, a, b))


def add(a: Bounds, b: Bounds) -> Bounds:
    return a[0] + b[0], a[1] + b[1]


def sub(a: Bounds, b: Bounds) -> Bounds:
    return a[0] - b[1], a[1] - b[0]


def neg(a: Bounds) -> Bounds:
    return -a[1], -a[0]


def magnitude(a: Bounds) -> Bounds:
    below, above = a[0], neg(a)[0]  # of the magnitude, where they are positive
    zero = below - below
    return greatest(greatest(below, above), zero), greatest(-below, -above)


def mul(a: Bounds, b: Bounds) -> Bounds:
    products = [x * y for x in a for y in b]
    low = high = products[0]
    for product in products[1:]:
        low, high = least(low, product), greatest(high, product)
    return low, high


def minimum(a: Bounds, b: Bounds) -> Bounds:
    return least(a[0], b[0]), least(a[1], b[1])


def maximum(a: Bounds, b: Bounds) -> Bounds:
    return greatest(a[0], b[0]), greatest(a[1], b[1])


def floordiv(a: Bounds, divisor: int) -> Bounds:
    """Divided by a positive number."""
    return a[0] // divisor, a[1] // divisor


def mod(a: Bounds, divisor: int) -> Bounds:
    """The remainder of a division by a positive number."""
    one = a[0] // divisor == a[1] // divisor
    if isinstance(one, bool):
        return (a[0] % divisor, a[1] % divisor) if one else (0, divisor - 1)
    return cutlass.select_(one, a[0] % divisor, Int32(0)), cutlass.select_(one, a[1] % divisor, Int32(divisor - 1))


def lt(a: Bounds, b: Bounds) -> Bounds:
    return a[0] < b[1], a[1] < b[0]


def le(a: Bounds, b: Bounds) -> Bounds:
    return a[0] <= b[1], a[1] <= b[0]


def gt(a: Bounds, b: Bounds) -> Bounds:
    return lt(b, a)


def ge(a: Bounds, b: Bounds) -> Bounds:
    return le(b, a)


def eq(a: Bounds, b: Bounds) -> Bounds:
    some = _both(a[0] <= b[1], b[0] <= a[1])
    return some, _both(_both(a[0] == a[1], b[0] == b[1]), a[0] == b[0])


def ne(a: Bounds, b: Bounds) -> Bounds:
    return inverse(eq(a, b))


def both(a: Bounds, b: Bounds) -> Bounds:
    return _both(a[0], b[0]), _both(a[1], b[1])


def either(a: Bounds, b: Bounds) -> Bounds:
    return inverse(both(inverse(a), inverse(b)))


def inverse(a: Bounds) -> Bounds:
    return _not(a[1]), _not(a[0])


def _both(a: Any, b: Any) -> Any:
    if isinstance(a, bool):
        return b if a else False
    if isinstance(b, bool):
        return a if b else False
    return a & b


def _not(a: Any) -> Any:
    return not a if isinstance(a, bool) else a == cutlass.Boolean(False)
