"""Values on which a chain's results do not depend although it uses them. An example is the largest score of a row, which is
subtracted from all scores so that no exponential overflows. They need no derivative, and need not be exact."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from codegen.errors import UserError
from codegen.graph.nodes import Node, Statement, topological

CHOOSING = {"maximum", "minimum", "where", "stop_gradient"}  # operations that return one of their arguments
LINEAR = {"sum", "mean", "cast", "float"}


@dataclass(frozen=True)
class _Change:
    """How a value changes if others, by identity, grow by c: it grows by n * c, or, if it `scales`, by the factor exp(n * c)."""

    by: Mapping[int, float] = field(default_factory=dict)
    scales: bool = False

    def times(self, factor: float, scales: bool | None = None) -> _Change:
        return _Change({i: n * factor for i, n in self.by.items()}, self.scales if scales is None else scales)

    def plus(self, other: _Change, factor: float = 1.0) -> _Change:
        total = {i: self.by.get(i, 0.0) + factor * other.by.get(i, 0.0) for i in {**self.by, **other.by}}
        return _Change({i: n for i, n in total.items() if n}, self.scales if self.by else other.scales)


def shifts(statements: Sequence[Statement], outputs: Collection[str]) -> frozenset[int]:
    """The identities of the largest values, and of what is chosen among them and others. Raises `UserError` where an output depends on
    one of them."""
    found, changes = _changes(statements)
    for statement in statements:
        if statement.name in outputs and changes[id(statement.value)].by and not _stopped(statement.value):
            raise UserError(f"no kernel for the gradient of {statement.name!r}, which depends on a row's largest score")
    return found


def are_shifts(statements: Sequence[Statement], outputs: Collection[str]) -> bool:
    """Whether no output depends on the largest values."""
    try:
        _, changes = _changes(statements)
    except UserError:
        return False
    return not any(changes[id(s.value)].by for s in statements if s.name in outputs)


def _changes(statements: Sequence[Statement]) -> tuple[frozenset[int], dict[int, _Change]]:
    """Those identities, and how each value changes with them."""
    changes: dict[int, _Change] = {}
    found: set[int] = set()
    for node in topological(s.value for s in statements):
        args = [changes[id(a)] for a in node.args]
        if node.op == "max" or (node.op in CHOOSING and any(a.by for a in args)):
            found.add(id(node))
            changes[id(node)] = _Change({id(node): 1.0})
        else:
            same = node.kind == "bool" or not any(a.by for a in args)
            changes[id(node)] = _Change() if same else _change(node, args)
    return frozenset(found), changes


def _stopped(value: Node) -> bool:
    """Whether a value has no gradient: it is a `stop_gradient`, or the largest of one."""
    return value.op == "stop_gradient" or (value.op in ("max", "neg", "cast") and _stopped(value.args[0]))


def _change(node: Node, args: list[_Change]) -> _Change:
    """How a value changes, from its arguments, of which some change."""
    first, second = (*args, _Change())[:2]
    if node.op in LINEAR and (first.scales or node.op not in ("sum", "mean")):
        return first
    if node.op == "neg":
        return first.times(1.0 if first.scales else -1.0)
    if node.op in ("exp", "log") and first.scales == (node.op == "log"):
        return first.times(1.0, node.op == "exp")
    if node.op == "reciprocal" and first.scales:
        return first.times(-1.0)
    if node.op in ("add", "sub"):
        if not any(a.scales for a in args):
            return first.plus(second, 1.0 if node.op == "add" else -1.0)
        if first == second:
            return first
    if node.op in ("mul", "div") and all(a.scales or not a.by for a in args):
        return first.plus(second, 1.0 if node.op == "mul" else -1.0)
    raise UserError(f"no kernel for a gradient of attention where {node.op!r} takes a row's largest score")
