"""Finds sums that need not wait for the row's maximum (Milakov and Gimelshein, "Online normalizer calculation for softmax",
arXiv:1805.02867): where the maximum that a thread has seen rises, its partial sum is rescaled.

    sum(exp(scale * (u - max(u)))), also with where(isfinite(max(u)), max(u), 0) instead of max(u)
    sum(where(u == max(u), 1, 0)), the number of elements that tie; also of a minimum
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from codegen.graph.nodes import Node
from codegen.graph.ops import PINNED


@dataclass(frozen=True)
class Rescaled:
    """How a sum follows a maximum: these nodes, the function, the positive factor of the difference, and whether 0 replaces a maximum
    that is not finite."""

    maximum: Node  # or a minimum
    term: Node
    power: str  # exp, exp2, or `TIES`
    scale: float
    finite: bool


TIES = "ties"  # the function that is 1 for a difference of 0, and else 0


def rescaled(node: Node) -> Rescaled | None:
    """How a reduction follows a maximum along the same axes; None where it does not. Another kernel may compute the exponentials,
    too (`PINNED`): the sum need not have their bits."""
    if node.op not in ("sum", "mean"):
        return None
    power = _unmarked(node.args[0])
    if power.op not in ("exp", "exp2"):
        return None
    exponent, scale = _unscaled(_unmarked(power.args[0]))
    if exponent.op != "sub" or scale <= 0:
        return None
    value, top = exponent.args[0], _unmarked(exponent.args[1])
    finite = _finite_or_zero(top)
    maximum = top.args[1] if finite else top
    follows = maximum.op == "max" and maximum.attr == node.attr and maximum.args[0] is value
    return Rescaled(maximum, power, power.op, scale, finite) if follows and value.kind == "float" else None


def ties(node: Node) -> Rescaled | None:
    """How a reduction counts the elements that equal their maximum or minimum along the same axes; None where it does not."""
    if node.op != "sum" or node.args[0].op != "where":
        return None
    condition, one, zero = node.args[0].args
    counts = one.is_const and one.attr == 1 and zero.is_const and zero.attr == 0
    if not counts or condition.op != "eq":
        return None
    for value, most in (condition.args, condition.args[::-1]):
        if most.op in ("max", "min") and most.attr == node.attr and _unmarked(most.args[0]) is _unmarked(value):
            return Rescaled(most, node.args[0], TIES, 1.0, False) if value.kind == "float" else None
    return None


def following(nodes: Iterable[Node]) -> dict[int, Rescaled]:
    """The reductions that follow a maximum, which need not be known before they are: how, by their identities."""
    return {id(n): way for n in nodes if (way := rescaled(n) or ties(n)) is not None}


def _unmarked(node: Node) -> Node:
    return node.args[0] if node.op == PINNED else node


def _unscaled(node: Node) -> tuple[Node, float]:
    """The value that constants multiply and divide, and the product of these constants."""
    scale = 1.0
    while node.op in ("mul", "div"):
        left, right = node.args
        if right.is_const:
            factor = float(str(right.attr))
            if not factor:
                break
            node, scale = left, scale * factor if node.op == "mul" else scale / factor
        elif left.is_const and node.op == "mul":
            node, scale = right, scale * float(str(left.attr))
        else:
            break
    return node, scale


def _finite_or_zero(node: Node) -> bool:
    """where(isfinite(x), x, 0)"""
    if node.op != "where" or node.args[0].op != "isfinite":
        return False
    condition, value, other = node.args
    return condition.args[0] is value and other.is_const and other.attr == 0


def follows(stage: Sequence[Node], before: Sequence[Node], expensive: Sequence[Node]) -> bool:
    """Whether one pass computes two stages: all reductions of the second stage follow maxima of the first, and sum all
    `expensive` values of the second."""
    ways = [rescaled(node) for node in stage]
    known = all(way is not None and any(way.maximum is node for node in before) for way in ways)
    return known and all(any(value is node.args[0] for node in stage) for value in expensive)
