"""Draws random values: the tree of an expression, from the values that may be read."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.random_specs.decisions import CASTS, COMPARISONS, CONSTANTS, EXPONENTS, FORMS, PREDICATES, SPECIAL, UNARY
from tests.random_specs.nodes import FOLDS, INTEGERS, KEEPING, OPS, ROWS, WIDE_INTEGERS, Array, Node, nodes


def leaf(op: str, kind: str, dims: Iterable[str] = (), attr: Any = None) -> Node:
    return Node(op, kind, frozenset(dims), (), attr)


def const(value: float | int | bool | str) -> Node:
    kind = "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "float"
    return leaf("const", kind, attr=value)


def call(op: str, *args: Node, attr: Any = None) -> Node:
    """An operation of the table; a reduction of the axes `attr`."""
    dims = frozenset().union(*(a.dims for a in args))
    row = OPS[op] if op in OPS else FOLDS[op]
    numbers = [a.kind for a in args if a.kind != "bool"]
    kind = {"f": "float", "b": "bool"}.get(row.gives) or ("float" if "float" in numbers else "int")
    if op in FOLDS and op not in KEEPING:
        dims -= frozenset(attr)
    return Node(op, kind, dims, args, attr)


CONFINED: dict[str, Callable[[Node], Node]] = {
    "positive": lambda x: call("add", call("abs", x), const(0.5)),
    "bounded": lambda x: call("mul", call("tanh", x), const(3.0)),
    "unit": lambda x: call("mul", call("tanh", x), const(0.75)),
    "near_one": lambda x: call("add", call("mul", call("tanh", x), const(0.25)), const(1.0)),
    "": lambda x: x,
}


@dataclass
class Values:
    """Draws values. `pool` holds those that may be read; if it is `late`, after reductions, no table is read."""

    random: random.Random
    types: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    inputs: list[Array] = field(default_factory=list)
    chain: list[tuple[str, int | None, Node]] = field(default_factory=list)
    pool: list[Node] = field(default_factory=list)
    wild: bool = False
    late: bool = False

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def weighted(self, table: dict[Any, int]) -> Any:
        return self.random.choices(list(table), list(table.values()))[0]

    def leaf(self, kind: str, dims: frozenset[str]) -> Node:
        found = [n for n in self.pool if n.kind == kind and n.dims <= dims and not (self.late and n.op == "take")]
        if found and self.chance(0.85):
            return self.random.choice(found)
        axes = sorted(dims - {ROWS})
        if kind == "int" and axes and self.chance(0.5):
            return leaf("index", "int", [axis := self.random.choice(axes)], axis)
        if kind == "int" and axes and self.chance(0.3):
            return leaf("size", "int", (), self.random.choice(axes))
        if kind == "bool":
            return call(
                self.random.choice(COMPARISONS),
                self.number("float", dims),
                const(self.random.choice(CONSTANTS["float"])),
            )
        return self.random.choice(found) if found else const(self.random.choice(CONSTANTS[kind]))

    def number(self, kind: str, dims: frozenset[str]) -> Node:
        """A leaf that is not a constant, if there is one."""
        found = [n for n in self.pool if n.kind == kind and n.dims <= dims and not (self.late and n.op == "take")]
        if found:
            return self.random.choice(found)
        others = [n for n in self.pool if n.kind == "int" and n.dims <= dims and not (self.late and n.op == "take")]
        if kind == "float" and others:
            return call("tanh", self.random.choice(others))
        return const(self.random.choice(CONSTANTS[kind]))

    def confined(self, name: str, value: Node) -> Node:
        return value if self.wild else CONFINED[name.strip()](value)

    def expression(self, kind: str, dims: frozenset[str], depth: int) -> Node:
        """A value that varies along these axes at most."""
        form = self.weighted(FORMS[kind]) if depth else "leaf"
        inner = depth - 1

        def one(own: str) -> Node:
            return self.expression(own, dims, inner)

        if form == "leaf":
            return self.leaf(kind, dims)
        if form == "of_bool":
            values = [const(self.random.choice(CONSTANTS[kind])) for _ in "ab"]
            return call("where", one("bool"), *values)
        if form == "of_float":
            return Node(
                "cast", "int", (value := one("float")).dims, (value,), self.random.choice(["int8", "int32", "uint8"])
            )
        if form == "compare":
            own = self.weighted({"float": 3, "int": 1})
            return call(self.random.choice(COMPARISONS), self.number(own, dims) if inner < 1 else one(own), one(own))
        if form == "predicate":
            return call(self.random.choice(PREDICATES), self.number("float", dims))
        if form == "cast":
            return self.rounded(one(kind))
        if form == "unary":
            name = self.random.choice(UNARY)
            value = one("int" if OPS[name].takes == "f" and self.chance(0.08) else "float")
            return call(name, self.confined(OPS[name].confined, value))
        if form == "pow":
            exponent = self.random.choice(EXPONENTS)
            value = one("float")
            whole = exponent in (2, 3, 4)
            return call("pow", value if whole else self.confined("positive", value), attr=exponent)
        if form == "where":
            return call("where", one("bool"), one(kind), one(kind))
        if form == "gate":
            return call("gate", one("float"), one("bool"))
        if form == "clip":
            return call("clip", one(kind), *map(const, (-1, 3) if kind == "int" else (-1.0, 1.25)))
        if form in ("rem", "floordiv", "mod"):
            return call(form, one(kind), const(self.random.choice([3, -4] if kind == "int" else [1.75, -0.5])))
        if form == "ldexp":
            return call(form, one("float"), call("clip", one("int"), const(-4), const(3)))
        if form in ("shl", "shr") and self.chance(0.8):
            return call(form, one(kind), const(self.random.choice([1, 3])))
        if form in ("div", "atan2"):
            return call(form, one("float"), self.confined("positive", one("float")))
        row = OPS[form]
        args = [one("bool" if takes == "b" else kind) for takes in row.takes]
        if self.wild and self.chance(0.1) and kind == "float" and len(args) == 2:
            args[1] = const(self.random.choice(SPECIAL))
        if len(args) == 2 and kind == "float" and self.chance(0.1):
            args[1] = self.expression("int", dims, 0)  # which is brought to a float
        return call(form, *args)

    def rounded(self, value: Node) -> Node:
        if value.kind == "float":
            return Node("cast", "float", value.dims, (value,), self.random.choice(CASTS))
        wide = {d for a in self.inputs for d in dict(self.types).get(a.dtype, (a.dtype,))} & WIDE_INTEGERS
        fitting = [d for d, (_, high) in INTEGERS.items() if high < 2**31 or (wide and d == "int64")]
        return Node("cast", "int", value.dims, (value,), self.random.choice(fitting))

    def joined(self, value: Node, other: Node) -> Node:
        """A float that depends on both."""
        if other.kind == "bool":
            return call("where", other, value, const(self.random.choice([0.0, 1.0, 0.5])))
        if other.kind == "int":
            return call(self.random.choice(["add", "sub", "mul"]), value, call("tanh", other))
        return call(self.random.choice(["add", "sub", "mul", "mul"]), value, other)

    def covering(self, value: Node, dims: frozenset[str], pool: Sequence[Node] | None = None) -> Node:
        """A float that varies along all these axes."""
        value = value if value.kind == "float" else self.joined(self.number("float", dims), value)
        while not dims <= value.dims:
            found = [n for n in (self.pool if pool is None else pool) if n.dims <= dims and not n.dims <= value.dims]
            value = self.joined(value, max(found, key=lambda n: (len(n.dims - value.dims), self.random.random())))
        return value

    def absorbing(self, value: Node, dims: frozenset[str]) -> Node:
        """A float that depends on everything that nothing has used."""
        used = {(n.op, n.attr) for _, _, v in self.chain for n in nodes(v)} | {(n.op, n.attr) for n in nodes(value)}
        for node in self.pool:
            if (node.op, node.attr) not in used and node.dims <= dims:
                value = self.joined(value, node)
        return value
