"""Moves a scale of a product's factor behind the product: `(x * r) @ w = r * (x @ w)`, where `r` does not have the
contracted axis.

The factor without its scale is multiplied as it is in memory, so no earlier kernel writes a scaled copy of it, and the
epilogue multiplies float32 sums. A statistic of rows in `r` is a stage of its own, which writes one value for each row.
A scale stays where the factor without it would still have to be computed (as with a weight along the contracted axis),
and where the scaled factor is an output of the op.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from codegen.graph.nodes import DTYPES, Chain, Leaf, Node, Statement, as_multiplied, lost_axes, topological
from codegen.graph.ops import IN_STAGES, REDUCTIONS
from codegen.language.unparse import unparse
from codegen.plan.gemms.loading import loaded
from codegen.plan.gemms.narrow_tiles import SOURCES
from codegen.plan.op import Scaled
from codegen.spec.spec import Spec
from codegen.stages.rewriting import with_statements

EXACT = SOURCES | {"uint8", "int4", "uint4"}  # types that every float of 16 bits holds


@dataclass(frozen=True)
class Moved:
    """The op with scales behind its products. `before` are the scales that a stage before the product computes, and
    `scaled` are all factors that have scales. `origins` are the op's own values, by the identities of the values that replace
    them."""

    spec: Spec
    before: tuple[Node, ...]
    scaled: tuple[Scaled, ...]
    origins: Mapping[int, Node]


def moved(spec: Spec) -> Moved | None:
    """The op with its scales moved; None if no factor of a product has a scale without the contracted axes."""
    made = _Mover(spec)
    statements = made.statements()
    if not made.scaled:
        return None
    own = with_statements(spec, statements, made.graph, "scales behind products")
    return Moved(own, tuple(made.before.values()), tuple(made.scaled.values()), made.origins)


@dataclass(frozen=True)
class _Terms:
    """A factor as a product: `core` times or over the `scales`, each with its operation."""

    core: Node
    scales: tuple[tuple[str, Node], ...]
    left: tuple[Node, ...]  # what else `core` is a product of, with the contracted axes


class _Mover:
    """Makes the nodes of a spec again, with the scales of products' factors behind the products."""

    def __init__(self, spec: Spec):
        self.spec, self.graph = spec, spec.read.graph.fork()
        outputs = {a.name: a for a in spec.outputs}
        stored = [s for s in spec.read.statements if s.name in outputs]
        self.stored = {(id(s.value), outputs[s.name].dtype) for s in stored}
        self.names = {id(s.value): s.name for s in reversed(spec.read.statements) if s.name not in outputs}
        self.made: dict[int, Node] = {}
        self.origins: dict[int, Node] = {}
        self.before: dict[int, Node] = {}
        self.scaled: dict[tuple[int, tuple[str, ...]], Scaled] = {}
        self.guards = self.found_guards()

    def statements(self) -> tuple[Statement, ...]:
        """The statements that outputs still need, with the scales moved."""
        found = [replace(s, value=self.node(s.value)) for s in self.spec.read.statements]
        outputs = {a.name for a in self.spec.outputs}
        reached = {id(n) for n in topological(s.value for s in found if s.name in outputs)}
        return tuple(s for s in found if s.name in outputs or id(s.value) in reached)

    def node(self, value: Node) -> Node:
        for node in topological([value], lambda n: id(n) in self.made):
            if id(node) in self.made:
                continue
            args = tuple(self.guarded(a, node) for a in node.args)
            own = self.graph.rebuilt_with_call(node, args, self.made)
            own = self.product(own) if own.op == "contract" and own.kind == "float" else own
            self.made[id(node)] = own
            self.origins[id(own)] = node
        return self.made[id(value)]

    def found_guards(self) -> dict[int, tuple[str, ...]]:
        """The scales that depend on the size of what their factors contract, and the axes. Where it is 0, a mean is NaN, and NaN times
        the sum of no elements would be too."""
        found: dict[int, tuple[str, ...]] = {}
        for node in self.spec.read.nodes:
            if node.op != "contract" or node.kind != "float":
                continue
            axes = lost_axes(node)
            for terms in (self.terms(factor, axes) for factor in node.args):
                found |= {
                    id(n): axes
                    for _, n in (terms.scales if terms and not terms.left else ())
                    if _depends_on_sizes(n, axes)
                }
        return found

    def guarded(self, value: Node, user: Node) -> Node:
        """An argument of a node. A scale with a guard scales by 0, or divides by 1, where the contracted axes are empty, in all values
        that have these axes."""
        made, axes = self.made[id(value)], self.guards.get(id(value), ())
        if not axes or user.op not in ("mul", "div") or not {*axes} <= {*user.dims}:
            return made
        other = self.graph.const(1.0 if user.op == "div" else 0.0)
        found = made
        for axis in axes:
            size = self.graph.node("size", attr=axis, kind="int", dims=())
            some = self.graph.node("gt", (size, self.graph.const(0)), kind="bool", dims=())
            found = self.graph.node("where", (some, found, other), kind="float", dims=made.dims)
        self.origins[id(found)] = value
        return found

    def product(self, node: Node) -> Node:
        """A product with the scales of its factors behind it."""
        factors, scales = [], list[tuple[str, Node]]()
        for factor in node.args:
            terms = self.terms(factor, lost_axes(node))
            taken = terms is not None and self.take(factor, terms, lost_axes(node))
            factors.append(self.multiplied(terms.core, str(factor.attr)) if terms and taken else factor)
            if terms and taken:
                scales += terms.scales
        if not scales:
            return node
        value = self.graph.node("contract", tuple(factors), node.attr, kind=node.kind, dims=node.dims)
        for op, scale in scales:
            value = self.graph.node(op, (value, scale), kind="float", dims=value.dims)
        return value

    def terms(self, factor: Node, axes: tuple[str, ...]) -> _Terms | None:
        """The terms of a computed factor; None if none of them lacks the contracted axes, or none is in memory."""
        if factor.op != "cast" or factor.args[0].kind != "float":
            return None
        cores, scales, waiting = list[Node](), list[tuple[str, Node]](), [factor.args[0]]
        while waiting:
            term = waiting.pop()
            if not {*axes} & {*term.dims}:
                scales.append(("mul", term))
            elif term.op == "mul":
                waiting += term.args[::-1]
            elif term.op == "div" and not {*axes} & {*term.args[1].dims}:
                scales.append(("div", term.args[1]))
                waiting.append(term.args[0])
            else:
                cores.append(term)
        if not scales or not cores:
            return None
        rest = cores[0]
        for term in cores[1:]:
            rest = self.graph.elementwise("mul", rest, term)
        if loaded(self.spec, self.multiplied(rest, str(factor.attr)), axes) is not None:
            return _Terms(rest, tuple(scales), ())
        core, *left = sorted(cores, key=lambda n: not self.is_free(n, str(factor.attr)))
        return _Terms(core, tuple(scales), tuple(left)) if self.is_free(core, str(factor.attr)) else None

    def is_free(self, core: Node, dtype: str) -> bool:
        """Whether a factor is multiplied as it is in memory, or after a conversion that is exact."""
        value = as_multiplied(core)
        if value.op == "cast" and str(value.attr) == dtype:
            value = as_multiplied(value.args[0])
        if value.op != "input" or not isinstance(value.attr, Leaf):
            return False
        array = self.spec.array(value.attr.name)
        if array.default is not None or array.dtype == dtype:
            return array.default is None
        small = {*self.spec.dtypes(array)} <= EXACT
        return small and all(DTYPES[d].size > 1 for d in self.spec.dtypes(dtype))

    def multiplied(self, core: Node, dtype: str) -> Node:
        """A factor without its scales, in the type of the product."""
        value = as_multiplied(core)
        if value.op == "cast" or (isinstance(value.attr, Leaf) and self.spec.array(value.attr.name).dtype == dtype):
            return core
        return self.graph.node("cast", (core,), dtype, kind="float", dims=core.dims)

    def take(self, factor: Node, terms: _Terms, axes: tuple[str, ...]) -> bool:
        """Whether the scales of a factor are moved, which `scaled` explains."""
        why = self.refused(factor, terms, axes)
        if terms.left and not any(scale.dims for _, scale in terms.scales):
            return False  # a number costs nothing
        scales = tuple(self.text(scale) for _, scale in terms.scales)
        self.scaled.setdefault(
            (id(factor), axes), Scaled(self.text(factor.args[0] if why else terms.core), scales, why)
        )
        if not why:
            found = [scale for _, scale in terms.scales if any(n.op in IN_STAGES for n in topological([scale]))]
            self.before |= {id(n): n for n in found}
        return not why

    def refused(self, factor: Node, terms: _Terms, axes: tuple[str, ...]) -> str:
        """Why the scales of a factor are left before the product; "" if they are moved."""
        over = " and ".join(axes)
        if terms.left:
            rest = " and ".join(self.text(n) for n in terms.left)
            return f"{rest} varies along {over} and is multiplied with it"
        if any((id(self.origins.get(id(n), n)), factor.attr) in self.stored for n in (factor, *factor.args)):
            return "it is an output"
        if any(n.op == "contract" for _, scale in terms.scales for n in topological([scale])):
            return "its scale is computed from a product"
        return ""

    def text(self, value: Node) -> str:
        """A value as the chain writes it."""
        if (name := self.names.get(id(self.origins.get(id(value), value)))) is not None:
            return name
        alone = Chain((Statement("value", None, value),), self.graph)
        return unparse(alone, (), {a.name for a in self.spec.arrays}).splitlines()[-1].partition(" = ")[2]


def _depends_on_sizes(scale: Node, axes: tuple[str, ...]) -> bool:
    """Whether a value without some axes depends on their sizes."""
    along = (
        lost_axes(n) if n.op in REDUCTIONS else (n.attr,) for n in topological([scale]) if n.op in (*REDUCTIONS, "size")
    )
    return any({*axes} & {*names} for names in along)
