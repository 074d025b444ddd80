"""Finds the operations of a chain that must not become part of a fused multiply-add.

A compiler may round `a * b + c` once instead of twice, and whether it does depends on the other uses of the product. A value
that is computed in two places (two passes over a row, two kernels) may then differ in its last bit. Where such a value is
used with a statistic of itself, the last bit decides: `z == max(z)` finds no element, and `z - max(z)` of a single element is
not 0.

So a value that is reduced, and also used together with the result, is *pinned*: each product and sum in it is rounded
separately, in kernels and in jnp. The argument of a maximum, a minimum or a running maximum is always pinned, because the result may be
stored and compared elsewhere.

Where a second kernel recomputes a pinned value, a node of its graph marks the value (`PINNED`). A function may be approximate in
one kernel and precise in another, because `math: auto` depends on what it reaches there (`precision.py`). The mark of such a
function names the types that decide in both. Marks are in graphs only: the text of a chain has none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from codegen.graph.nodes import Node, topological
from codegen.graph.ops import ALONE, IN_STAGES, OPS, PINNED, REDUCTIONS

SUMS = frozenset({"add", "sub"})
# Functions that multiply or divide their argument before any addition; others may begin with a sum
FACTORS_FIRST = frozenset({"div", "reciprocal", "sqrt", "rsqrt", "exp", "exp2"})
DEFINITE = frozenset(
    "input shift param const index size float add sub mul neg abs maximum minimum floor ceil round sign where stop_gradient".split()
) | {PINNED}
THROUGH = frozenset({"neg", "where", "stop_gradient", PINNED})  # compilers form multiply-adds through these


@dataclass(frozen=True)
class Rounding:
    """How a chain's float operations are rounded: sets of nodes, by identity."""

    products: frozenset[int] = field(default=frozenset())  # never fused with a sum that takes them
    sums: frozenset[int] = field(default=frozenset())  # never fused with a product that ends an argument
    functions: frozenset[int] = field(default=frozenset())  # whose last operation is never fused with a sum


def rounding(nodes: Sequence[Node]) -> Rounding:
    """The rounding of a chain. `nodes` are all its nodes, arguments before their users."""
    roots = [value for value, _ in meetings(nodes)]
    roots += [n.args[0] for n in nodes if n.op == PINNED and is_computed(n.args[0])]
    if not roots:
        return Rounding()
    pinned = {id(n): n for n in made_of(*roots)}
    users = users_of(nodes)
    products, sums, functions = set(), set(), set()
    for node in pinned.values():
        takers = list(takers_of(node, users))
        added = [user for user in takers if user.op in SUMS]
        inside = any(id(u) in pinned and is_function(u) and u.op not in FACTORS_FIRST for u in takers)
        if node.op == "mul" and (added or inside):
            products.add(id(node))
        elif is_function(node):  # it may end in a product
            sums |= {id(user) for user in added}
            if added or inside:
                functions.add(id(node))
    return Rounding(frozenset(products), frozenset(sums), frozenset(functions))


EXTREMES = frozenset({"max", "min", "cummax"})  # results that equal one of their elements
MET = frozenset({*REDUCTIONS, *EXTREMES})  # what a value may be used together with
WHOLE = frozenset({"contract", *ALONE})  # operations that no second kernel computes again


def meetings(nodes: Sequence[Node], among: Container[int] | None = None) -> Iterator[tuple[Node, Node]]:
    """The computed values that are used together with a statistic of themselves, each with that reduction: of all
    reductions, or of those `among` these nodes, by identity."""
    users = users_of(nodes)
    for reduction in nodes:
        if reduction.op not in MET or reduction.args[0].kind != "float":
            continue
        if among is not None and id(reduction) not in among:
            continue
        (reduced,) = reduction.args
        if reduction.op in EXTREMES and is_computed(reduced):
            yield reduced, reduction
        inside = {id(n): n for n in made_of(reduced)}
        if not inside:
            continue
        together = _with(reduction, nodes, users)
        for value in inside.values():
            if any(id(user) in together and id(user) not in inside for user in users[id(value)]):
                yield value, reduction


def _with(reduction: Node, nodes: Sequence[Node], users: dict[int, list[Node]]) -> set[int]:
    """The nodes that use a reduction's result, and the other values that these are made of, by identity."""
    found = {id(reduction)}
    for node in nodes:
        if any(id(a) in found for a in node.args):
            found.add(id(node))
    found.discard(id(reduction))
    for node in reversed(nodes):
        if node is not reduction and any(id(user) in found for user in users[id(node)]):
            found.add(id(node))
    return found


# A type that is always narrow: in the mark of a function that may be approximate whatever the types are
ALWAYS = ("bfloat16",)


def marks(
    values: Iterable[Node], first: Mapping[int, frozenset[str]], again: Mapping[int, frozenset[str]]
) -> dict[int, tuple[str, ...]]:
    """The pinned values that a second kernel recomputes, by identity, each with the types that decide whether it may be
    approximate, where the two kernels would decide differently. `first` and `again` hold the types that decide for a node in the
    first and in the second kernel (`precision.deciding_types`)."""
    values = list(values)
    found: dict[int, tuple[str, ...]] = {id(value): () for value in values}
    for node in made_of(*values):
        here, there = first.get(id(node)), again.get(id(node))
        if is_approximable(node) and None not in (here, there) and here != there:
            found[id(node)] = tuple(sorted(here or ALWAYS))
    return found


def pin_types(node: Node) -> tuple[str, ...]:
    """The types in the mark of a pinned value."""
    assert node.op == PINNED
    return node.attr if isinstance(node.attr, tuple) else ()


_APPROXIMABLE = frozenset(name for name, op in OPS.items() if "{approx}" in op.cute)


def is_approximable(node: Node) -> bool:
    """Whether kernels have an approximate form of an operation."""
    return node.op in _APPROXIMABLE


def users_of(nodes: Iterable[Node]) -> dict[int, list[Node]]:
    """The nodes that take each node as an argument, by its identity."""
    users: dict[int, list[Node]] = defaultdict(list)
    for node in nodes:
        for argument in node.args:
            users[id(argument)].append(node)
    return users


def made_of(*values: Node) -> list[Node]:
    """The float operations from which values are computed, back to inputs, reductions, scans and selections."""
    found = topological(values, lambda n: n.op in IN_STAGES or n.op == "contract")
    return [n for n in found if n.op not in IN_STAGES and is_computed(n)]


def takers_of(node: Node, users: dict[int, list[Node]]) -> Iterator[Node]:
    """The operations that take a value, directly or through a sign or a selection."""
    for user in users[id(node)]:
        if user.op in THROUGH:
            yield from takers_of(user, users)
        else:
            yield user


def is_computed(node: Node) -> bool:
    """Whether a value is the result of float arithmetic, and not an input, a constant or a conversion."""
    return node.kind == "float" and bool(node.args) and node.op not in ("float", "take", "pick", "shift", *WHOLE)


def is_definite(value: Node) -> bool:
    """Whether a pinned value has the same bits in every kernel and in jnp: none of its operations may be approximate or depend on
    the order of a sum."""
    return all(
        n.op in DEFINITE or (n.op in OPS and OPS[n.op].rule in ("compare", "logic", "bits", "whole", "digits", "scale"))
        for n in topological([value])
    )


def is_function(node: Node) -> bool:
    """Whether an operation is computed by several instructions."""
    return node.op in OPS and OPS[node.op].rule == "float"
