"""Decides which values of a chain may be approximate under `math: auto`: for each value separately, not for a kernel.

A value may be approximate where each path from it to an output leads to one of these (docs/accuracy.md has the
reasons):

- an output narrower than float32;
- a sum, mean, maximum or minimum, if every floating array that the value depends on is narrower than float32. On the
  path there, no value that depends on the same arrays, but not on this value, may be added to it or subtracted from it:
  the errors that rounding the arrays causes might cancel, and leave the error of the approximation. Nor may it be compared,
  or rounded to a whole number. A running sum counts as a sum, and so does a recurrence `h = a * h + b` of `b` and its initial state;
  errors of `a` are multiplied, so `a` is precise.

Within a GEMM kernel, a product counts as an array of its factors' type (`plan/gemms/tiles.py`).

The types of arrays may depend on a call. So the result for a value is the set of types that all have to be narrow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from types import MappingProxyType

from codegen.graph.contraction import is_approximable
from codegen.graph.nodes import DTYPES, Leaf, Node, Statement, dtypes_of, topological
from codegen.graph.ops import OPS, SCANS

STATISTICS = frozenset({"sum", "mean", "max", "min"})
SUMMED = {"cumsum": (0,), "scan": (1, 2)}  # the arguments of scans that are added up
PREDICATES = frozenset({"isnan", "isinf", "isfinite"})  # the same for a value and its approximation
CONVERSIONS = frozenset({"float", "cast"})
# Where a small error of an argument may be a large one of the result
STEPS = frozenset({"floor", "ceil", "round", "sign", "rem", "exponent", "_others"})


def widths(name: str, variables: Mapping[str, tuple[str, ...]]) -> set[bool]:
    """Whether the dtypes that a type may be are narrower than float32."""
    return {is_narrow(d) for d in dtypes_of(name, variables)}


def is_narrow(dtype: str) -> bool:
    """Whether values of a type are floats with less precision than float32."""
    return DTYPES[dtype].kind == "float" and DTYPES[dtype].size < 4


def deciding_types(
    statements: Iterable[Statement],
    outputs: Mapping[str, str],
    inputs: Mapping[str, str],
    variables: Mapping[str, tuple[str, ...]],
    leaves: Mapping[int, str] = MappingProxyType({}),
) -> dict[int, frozenset[str]]:
    """For each operation that has an approximate form and reaches an output, by identity: the types that all have to be narrower
    than float32. `outputs` and `inputs` are the types of the arrays that count, by name, `variables` the dtypes of type variables.
    `leaves` are nodes that are read from arrays, by identity, with the type of these."""
    assigned = [s for s in statements if s.name in outputs]
    order = list(topological((s.value for s in assigned), lambda n: id(n) in leaves))
    ways = _ways(order, assigned, outputs, leaves)
    wide = {t: True not in widths(t, variables) for t in {*outputs.values(), *inputs.values(), *leaves.values()}}
    arrays = _arrays(order, inputs, leaves)
    found: dict[int, frozenset[str]] = {}
    for place, node in enumerate(order):
        if not is_approximable(node) or id(node) in leaves:
            continue
        types = {t for t, through in ways[id(node)] if not through}
        reduced = {t for t, through in ways[id(node)] if through} - types
        made_of = {arrays.types[name] for name in arrays.names(arrays.of[id(node)])}
        reduced = {t for t in reduced if False in widths(t, variables)}  # others allow it anyway
        if reduced and made_of != reduced:
            summed = {i for i, reached in ways.items() if any((t, True) in reached for t in reduced)}
            if made_of and not any(wide[t] for t in made_of) and _reduced_alone(order, place, arrays, leaves, summed):
                reduced = made_of
        found[id(node)] = frozenset(types | reduced)
    return found


def _ways(
    order: Sequence[Node], assigned: Sequence[Statement], outputs: Mapping[str, str], leaves: Mapping[int, str]
) -> dict[int, set[tuple[str, bool]]]:
    """The outputs' types that each node reaches, and whether through a statistic. Nothing is reached through a leaf."""
    ways: dict[int, set[tuple[str, bool]]] = {id(n): set() for n in order}
    for statement in assigned:
        ways[id(statement.value)].add((outputs[statement.name], False))
    for node in reversed(order):
        own = ways[id(node)]
        reduced = {(t, True) for t, _ in own}
        for i, argument in enumerate(() if id(node) in leaves else node.args):
            summed = node.op in STATISTICS or i in SUMMED.get(node.op, ())
            passed = reduced if summed else {("float32", False)} if node.op in SCANS else own
            if id(argument) in ways:
                ways[id(argument)] |= passed
    return ways


class _Arrays:
    """The floating arrays that each node is made of, as a set of bits, by identity."""

    def __init__(self, types: dict[str, str]):
        self.types, self.bit = types, {name: 1 << i for i, name in enumerate(types)}
        self.own: dict[int, int] = {}  # of leaves
        self.of: dict[int, int] = {}

    def names(self, bits: int) -> list[str]:
        return [name for name, bit in self.bit.items() if bits & bit]


def _arrays(order: Sequence[Node], inputs: Mapping[str, str], leaves: Mapping[int, str]) -> _Arrays:
    arrays = _Arrays({**inputs, **{f"{i} {t}": t for i, t in leaves.items()}})
    for node in order:
        if id(node) in leaves:
            arrays.own[id(node)] = arrays.bit[f"{id(node)} {leaves[id(node)]}"] if node.kind == "float" else 0
        elif isinstance(node.attr, Leaf):
            arrays.own[id(node)] = arrays.bit.get(node.attr.name, 0)
        own = arrays.own.get(id(node), 0)
        if id(node) not in leaves:
            for argument in node.args:
                own |= arrays.of[id(argument)]
        arrays.of[id(node)] = own
    return arrays


def _reduced_alone(
    order: Sequence[Node], place: int, arrays: _Arrays, leaves: Mapping[int, str], summed: Set[int]
) -> bool:
    """Whether the value at a place in the order can be approximate on its way to the statistics that take it. `summed` are the nodes
    that lead to such a statistic: what others make of the value is rounded as an output."""
    value = order[place]
    mine, on_way = arrays.of[id(value)], {id(value)}
    without: dict[int, int] = {id(value): 0}  # the arrays that a node is made of without the value
    for node in order:
        if node is value:
            continue
        rest = arrays.own.get(id(node), 0)
        args = () if id(node) in leaves else node.args
        for argument in args:
            rest |= without[id(argument)]
        without[id(node)] = rest
        taken = [id(a) in on_way for a in args]
        if (
            not any(taken)
            or id(node) not in summed
            or node.op in STATISTICS
            or node.op in SCANS
            or node.op in PREDICATES
        ):
            continue
        if node.kind != "float" or node.op in STEPS or (node.op not in OPS and node.op not in CONVERSIONS):
            return False
        if node.op in ("add", "sub"):
            both = all(taken)
            others = [a for a, own in zip(args, taken, strict=True) if both or not own]
            if any(without[id(a)] & mine for a in others):
                return False
        on_way.add(id(node))
    return True


def linear_terms(nodes: Sequence[Node], roots: Sequence[Node], op: str) -> list[Node]:
    """The results of an operation on which the roots depend only by way of sums, and of products with numbers."""
    users: dict[int, list[Node]] = {}
    for node in nodes:
        for argument in node.args:
            users.setdefault(id(argument), []).append(node)

    def linear(node: Node, user: Node) -> bool:
        others = [a for a in user.args if a is not node]
        if user.op in ("mul", "div"):
            return len(others) == 1 and not others[0].dims and (user.op == "mul" or user.args[0] is node)
        return user.op in ("add", "sub", "neg") or (user.op == "where" and user.args[0] is not node)

    terms = {id(root) for root in roots}
    for node in reversed(nodes):
        used = users.get(id(node), [])
        if used and all(id(user) in terms and linear(node, user) for user in used):
            terms.add(id(node))
    return [n for n in nodes if n.op == op and id(n) in terms]
