"""Reverse-mode differentiation of a graph: the adjoint of each value that varies, from the cotangents of the outputs.

The row of an operation or a reduction in `ops.py` has its derivative. The derivative of a composite function is below its
definition in `prelude.txt`. The formulas under a spec's `grad` override both.
"""

from __future__ import annotations

import ast
import functools
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from codegen.autodiff.factors import pulled_product
from codegen.autodiff.scans import pulled_scan
from codegen.autodiff.simplify import Algebra
from codegen.errors import UserError
from codegen.graph.names import fresh
from codegen.graph.nodes import Leaf, Node, Put, Selected, Statement, lost_axes, nodes_of, topological
from codegen.graph.ops import ALONE, NUCLEUS, OPS, PLACED, REDUCTIONS, SCANS, TAKES, UNSORT
from codegen.graph.shifting import evaluated_at, positions_back, shift
from codegen.language.formula.reader import Reader
from codegen.language.prelude import prelude
from codegen.language.scope import make_scope
from codegen.language.statements import MAX_STATEMENTS
from codegen.parsing import parse_expression
from codegen.spec.spec import Spec
from codegen.stages.products import of_products

MOST_OPERATIONS = 600  # twenty times as many as an op usually has: more take long to differentiate and to compile

# Operations with a derivative that may be infinite, and others with terms that may be infinite unless sums of them are simplified
STEEP = {"prod", "sqrt", "cbrt", "log", "log2", "log1p", "pow", "reciprocal", "asin", "acos"}
STEEP_TERMS = {"rsqrt", "div", "exp", "exp2", "expm1", "sinh", "cosh", "tan", "atan2", "rem"}

_IS_ZERO = parse_expression("g == 0")
_TIMES_SIZE = parse_expression("g * size(axis)")
_SPREAD = parse_expression("where(i >= 0, g, 0)")
_WHERE_PUT = parse_expression("where((i >= 0) & (i < size(axis)), g, 0)")
_SITE = ast.Constant(0)  # formulas of the tables have no place in a spec


@dataclass(frozen=True)
class Taken:
    """The adjoint of a `take`'s result. A computed index is written for the sum by index too."""

    part: int | None
    index: str | Node
    axis: str
    dims: tuple[str, ...]
    adjoint: Node
    divided: tuple[str, ...] = ()  # axes: the adjoint is divided by their sizes before the sum


class Adjoints:
    """The gradients of a checked spec's inputs and parameters, as values of its graph.

    With `by_index`, the gradients of all tables are added up by index, also if each index selects from its own row. `held` are named
    values that the op's stages write: their names are taken. `constant` are the identities of values that are not differentiated.
    New names differ from those `taken`. Raises `UserError` if there is no derivative that kernels can compute.
    """

    def __init__(
        self,
        spec: Spec,
        by_index: bool,
        held: Iterable[tuple[str, Node]],
        constant: Collection[int] = frozenset(),
        taken: Collection[str] = (),
    ):
        self.spec, self.scope, self.by_index = spec, make_scope(spec, spec.read), by_index
        self.held, self.constant = dict(held), constant
        self.statements = spec.read.statements
        if len(self.statements) > MAX_STATEMENTS // 2:
            raise UserError(f"the backward of {len(self.statements)} statements would have more than {MAX_STATEMENTS}")
        operations = sum(1 for _ in nodes_of(self.statements))
        if operations > MOST_OPERATIONS:
            raise UserError(
                f"the backward of {operations} operations; one of more than {MOST_OPERATIONS} is left to jnp"
            )
        self.graph = self.scope.graph
        self.calls = self.graph.calls
        self.made = {a.name for a in spec.outputs}
        self.taken = {a.name for a in spec.arrays} | {p.name for p in spec.params} | {s.name for s in self.statements}
        self.taken |= {*self.held, *taken}
        self.cotangents = {
            a.name: replace(a, name=fresh(self.taken, f"d{a.name}"), default=None)
            for a in spec.outputs
            if spec.kind(a) == "float"
        }
        nodes = nodes_of(self.statements)
        self.of_products = {id(n): n for n in of_products(nodes, lambda n: False)}
        self.algebra = Algebra(self.graph, [s.value for s in self.statements])
        self.formulas = dict(spec.grad) if not isinstance(spec.grad, str) else {}
        self.active = self.find_active()
        self.steep = self.find_steep()
        self.taken_from: dict[str, list[Taken]] = {}  # by table
        # The names of the chain's values, except outputs, which are rounded
        values = [s for s in reversed(self.statements) if s.part is None and s.name not in self.made]
        self.named = {id(s.value): s.name for s in values}

    def wanted(self, node: Node) -> bool:
        """Whether a leaf needs a gradient that no formula of the spec gives."""
        if node.op == "param":
            param = next(p for p in self.spec.params if p.name == node.attr)
            return param.kind == "float" and not param.static and param.name not in self.formulas
        if node.op == "input":
            assert isinstance(node.attr, Leaf)
            name, part = node.attr.name, node.attr.part
            given = name in self.formulas or f"{name}[{part}]" in self.formulas
            return node.kind == "float" and not given
        return False

    def find_active(self) -> set[int]:
        """The identities of the values that depend on a leaf that needs a gradient."""
        active: set[int] = set()
        for node in nodes_of(self.statements):
            varies = node.kind == "float" and any(id(a) in active for a in node.args)
            if self.wanted(node) or (varies and id(node) not in self.constant):
                active.add(id(node))
        return active

    def arguments(self, node: Node) -> tuple[Node, ...]:
        """The arguments that a node passes its adjoint on to. They are its composite function's, if that has a derivative for each
        argument that varies; else they are the operation's."""
        call = self.calls.get(id(node))
        if call is not None:
            rules = prelude()[call.name].grad
            varying = [n for n, a in call.arguments.items() if isinstance(a, Node) and id(a) in self.active]
            if varying and all(name in rules for name in varying):
                return call.values
        return node.args

    def find_steep(self) -> dict[int, list[Node | None]]:
        """The values with a derivative that may be infinite, by their identities, and on which some outputs with cotangents depend,
        but not all. Each has the cotangents of these outputs: None for one of which other elements meet the value's adjoint too. If
        a loss does not depend on these outputs, their cotangents are 0, and so must be the adjoints behind them, not 0 * inf."""
        of: dict[int, set[str]] = {}
        nodes: dict[int, Node] = {}
        behind: dict[int, list[Node | None]] = {}
        seeds = [s for s in self.statements if s.name in self.cotangents and id(s.value) in self.active]
        for statement in seeds:
            cotangent, mixed = self.seed(statement), set[int]()
            for node in reversed(list(topological([statement.value]))):
                nodes[id(node)] = node
                of.setdefault(id(node), set()).add(statement.name)
                behind.setdefault(id(node), []).append(None if id(node) in mixed else cotangent)
                if id(node) in mixed or _mixes(node, cotangent.dims):
                    mixed |= {id(a) for a in node.args}
        sole = [nodes[i] for i, names in of.items() if names != {s.name for s in seeds}]
        reduced = any(n.op in REDUCTIONS for n in sole)
        return {id(n): behind[id(n)] for n in sole if n.op in (STEEP if reduced else STEEP | STEEP_TERMS)}

    def unless_zero(self, value: Node, total: Node, cotangents: list[Node | None]) -> Node:
        """A contribution to an adjoint, but 0 where the cotangents behind it are. Where these are not known for each element, it is
        0 where `total` is, the adjoint that it is made of, although that may be 0 for another reason."""
        known = [c for c in dict.fromkeys(cotangents) if c is not None and {*c.dims} <= {*value.dims}]
        tested = known if len(known) == len({*cotangents}) else [total]
        zero = functools.reduce(
            lambda a, b: self.graph.node("and", (a, b), kind="bool", dims=[*a.dims, *b.dims]),
            (self.evaluated(_IS_ZERO, {"g": g}) for g in tested),
        )
        return self.algebra.where(zero, self.graph.const(0.0), value)

    def seed(self, statement: Statement) -> Node:
        """The cotangent of a statement's value."""
        cotangent = self.cotangents[statement.name]
        leaf = Leaf(cotangent.name, statement.part)
        found = self.graph.node("input", attr=leaf, kind="float", dims=cotangent.axes)
        return found if statement.at is None else self.taken_back(found, statement.at)

    def gradients(self) -> dict[tuple[str, int | None], Node]:
        """The gradient of each input (or part) and dynamic parameter that an output depends on."""
        contributions: dict[int, list[Node]] = {}
        roots = []
        found: dict[tuple[str, int | None], Node] = {}
        for statement in self.statements:
            if statement.name not in self.cotangents:
                continue
            if statement.at is not None and statement.at.apart:
                if statement.at.how != "add":
                    raise UserError(f"no kernel for the gradient of 'put' with how={statement.at.how} yet")
                if statement.at.table not in self.formulas:
                    found[statement.at.table, None] = self.seed(replace(statement, at=None))
            if id(statement.value) in self.active:
                contributions.setdefault(id(statement.value), []).append(self.seed(statement))
                roots.append(statement.value)
        for node in reversed(list(topological(roots, arguments=self.arguments))):
            if id(node) not in self.active or id(node) not in contributions:
                continue
            total = self.collected(node, contributions.pop(id(node)))
            if node.op == "input":
                assert isinstance(node.attr, Leaf)
                found[node.attr.name, node.attr.part] = total
            elif node.op == "param":
                found[str(node.attr), None] = total
            else:
                for argument, value in self.pulled(node, total):
                    if id(node) in self.steep:
                        value = self.unless_zero(value, total, self.steep[id(node)])
                    contributions.setdefault(id(argument), []).append(self.counted(node, argument, value))
        return found

    def counted(self, node: Node, argument: Node, value: Node) -> Node:
        """The contribution of a node to an argument's adjoint. The argument is broadcast along the axes that it lacks; if the `value`
        lacks them too, it is multiplied by their size. (If it does not, `collected` sums it.)"""
        if node.op == "contract":  # it has summed over them
            return value
        own = node.attr.into if isinstance(node.attr, Selected) else ""  # an argument of a selection is not broadcast
        repeated = tuple(a for a in node.dims if a not in value.dims and a not in argument.dims and a != own)
        return self.evaluated(_TIMES_SIZE, {"g": value, "axis": repeated}) if repeated else value

    def collected(self, node: Node, values: list[Node]) -> Node:
        """The sum of all contributions to a node's adjoint. Contributions with the same further axes are summed over them once."""
        by_axes: dict[tuple[str, ...], list[Node]] = {}
        for value, count in Counter(values).items():
            value = self.algebra.mul(self.graph.const(float(count)), value)
            by_axes.setdefault(tuple(a for a in value.dims if a not in node.dims), []).append(value)
        sums = [self.algebra.sum_over(self.algebra.total(found), axes) for axes, found in by_axes.items()]
        return self.algebra.total(sums)

    def pulled(self, node: Node, g: Node) -> Iterable[tuple[Node, Node]]:
        """The arguments of a node that vary, each with its contribution from the node's adjoint `g`, unless that is zero."""
        arguments = self.arguments(node)
        if arguments is not node.args:
            call = self.calls[id(node)]
            names: dict[str, Node | tuple[str, ...]] = {**call.arguments, "y": node, "g": g}
            formulas = prelude()[call.name].grad
            return [(a, self.evaluated(formulas[n], names)) for n, a in call.arguments.items()
                    if isinstance(a, Node) and id(a) in self.active]  # fmt: skip
        if node.op == "cast":  # as in JAX, the cotangent has the type of the rounded value
            return [(node.args[0], self.graph.node("cast", (g,), node.attr, kind="float", dims=g.dims))]
        if node.op in TAKES:
            table, index = node.args[:2]
            for axis, by in positions_back(node):  # an element of the table is read so far from its own position
                g = shift(self.graph, g, axis, -by, self.graph.const(0.0))
                index = evaluated_at(self.graph, index, axis, -by) if axis in index.dims else index
            if self.by_index or not set(index.dims) <= set(table.dims) - {node.attr}:
                self.scatter(node, index, g)
                return []
            # Each index selects from its own row, so no two indices select one element
            rule = f"where(index({node.attr}) == clip(i, 0, size({node.attr}) - 1), g, 0)"
            picked: dict[str, Node | tuple[str, ...]] = {"i": index, "g": g}
            return [(table, self.evaluated(_parsed(rule), picked))]
        if node.op == "shift":  # each element goes to one place, and `g` is 0 where that is outside
            assert isinstance(node.attr, tuple)
            for axis, by in node.attr:
                g = shift(self.graph, g, axis, -by, self.graph.const(0.0))
            return [(node.args[0], g)]
        if node.op == NUCLEUS:  # it is compared with elements: a constant
            return []
        if isinstance(node.attr, Selected):
            return [(node.args[0], self.placed(node, node.attr, g))]
        if node.op == "contract":
            arrays = self.scope.inputs | {a.name: a for a in self.cotangents.values()}
            pulled = pulled_product(node, g, self.graph, arrays, dict(self.spec.types))
            return [(a, self.algebra.simplified(value)) for a, value in pulled if id(a) in self.active]
        if node.op in SCANS:
            found = pulled_scan(node, g, self.graph, self.evaluated)
            return [(a, value) for a, value in found if id(a) in self.active]
        rules = OPS[node.op].grad if node.op in OPS else ("",) * len(node.args)
        if node.op in REDUCTIONS:
            rules = (REDUCTIONS[node.op].grad,)
        if not all(rules):
            raise UserError(f"no kernel for the gradient of {node.op!r} yet")
        known: dict[str, Node | tuple[str, ...]] = {**dict(zip("abc", node.args, strict=False)), "y": node, "g": g}
        if isinstance(node.attr, tuple):
            known["axis"] = node.attr
        return [(a, self.evaluated(_parsed(rule), known))
                for a, rule in zip(node.args, rules, strict=True) if id(a) in self.active and rule != "0"]  # fmt: skip

    def placed(self, node: Node, how: Selected, g: Node) -> Node:
        """The gradient of the values that elements are selected from: each element's gradient is at its position."""
        if node.op == UNSORT:  # undone by the order of the positions
            places = self.graph.node("argsort", node.args[1:], how, kind="int", dims=node.dims)
        else:
            places = self.graph.node(
                "argsort" if how.sorts else "top_k_index", node.args, how, kind="int", dims=node.dims
            )
        if g.dims != node.dims:
            g = self.evaluated(_SPREAD, {"i": places, "g": g})
        if how.sorts:
            return self.graph.node(UNSORT, (g, places), how, kind="float", dims=node.dims)
        place = functools.reduce(
            lambda outer, axis: f"({outer}) * size({axis}) + index({axis})", how.axes[1:], f"index({how.axes[0]})"
        )
        index = self.evaluated(_parsed(place), {})
        return self.graph.node(PLACED, (g, places, index), how, kind="float", dims=node.args[0].dims)

    def taken_back(self, cotangent: Node, at: Put) -> Node:
        """The adjoint of the values that `put` writes, read from the output's at the indices; an index out of range
        writes nothing."""
        leaf, own = Leaf(at.index), self.spec.array(at.index)
        index = self.graph.node("input", attr=leaf, kind="int", dims=own.axes)
        dims = {*cotangent.dims, *own.axes} - {at.axis}
        g = self.graph.node("take", (cotangent, index), at.axis, kind="float", dims=dims)
        return self.evaluated(_WHERE_PUT, {"i": index, "g": g, "axis": (at.axis,)})

    def put_into(self, table: str) -> Put | None:
        """For a table of `put`, how its gradient is written: its output's cotangent, with zeros at the indices. None for other arrays,
        and where values are added to it."""
        found = next((s for s in self.statements if s.at and s.at.table == table and s.name in self.cotangents), None)
        if found is None or found.at is None or found.at.apart or table in self.formulas:
            return None
        return replace(found.at, table=self.cotangents[found.name].name)

    def scatter(self, node: Node, index: Node, g: Node) -> None:
        """Two indices may select one row of a table, so its gradient is added up by index after the kernel."""
        table = node.args[0].attr
        assert isinstance(table, Leaf)
        given = index.attr.name if node.op == "take" and isinstance(index.attr, Leaf) else index
        taken = Taken(table.part, given, str(node.attr), node.dims, g)
        self.taken_from.setdefault(table.name, []).append(taken)

    def evaluated(self, formula: ast.expr, names: Mapping[str, Node | tuple[str, ...]]) -> Node:
        return self.algebra.simplified(Reader(self.scope, dict(names), _SITE, derived=True).read(formula))


def _mixes(node: Node, axes: Collection[str]) -> bool:
    """Whether an element of a value depends on several elements of an argument along some of these axes."""
    if node.op in REDUCTIONS:
        return not {*lost_axes(node)}.isdisjoint(axes)
    return node.op in SCANS or node.op in ALONE or node.op in (*TAKES, "shift", "contract")


@functools.cache
def _parsed(rule: str) -> ast.expr:
    """The syntax tree of a derivative in the table of operations."""
    return parse_expression(rule)
