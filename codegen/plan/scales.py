"""Static numbers by which attention's scores are multiplied or divided."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from codegen.graph.nodes import Graph, Node, topological
from codegen.spec.spec import Spec


@dataclass(frozen=True)
class Scale:
    """A positive number: `number` times the magnitudes of the static parameters `above`, divided by those of the ones `below`."""

    number: float = 1.0
    above: tuple[str, ...] = ()
    below: tuple[str, ...] = ()

    def times(self, factor: float | str) -> Scale:
        """Multiplied by the magnitude of a number, or of a parameter."""
        if isinstance(factor, str):
            return replace(self, above=(*self.above, factor))
        return replace(self, number=self.number * abs(factor))

    def over(self, factor: float | str) -> Scale:
        """Divided by the magnitude of a number, or of a parameter."""
        if isinstance(factor, str):
            return replace(self, below=(*self.below, factor))
        return replace(self, number=self.number / abs(factor))


@dataclass(frozen=True)
class Bend:
    """Scores that are hyperbolic tangents of products times a number, which rise with the products. It has the numbers and static
    parameters that multiply and divide the products, and the parameters by whose signs the tangents are multiplied."""

    above: tuple[float | str, ...] = ()
    below: tuple[float | str, ...] = ()
    signs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Scales:
    """The scales of scores of some `columns`, which are made of the product `first`."""

    spec: Spec
    graph: Graph
    columns: tuple[str, ...]
    first: Node

    def unscaled(self, score: Node) -> tuple[Scale, Node]:
        """The magnitude of what scores are multiplied or divided by last, and the scores without it."""
        graph = self.graph
        if score.op == "where" and score.args[2].is_const and float(str(score.args[2].attr)) == -math.inf:
            scale, inner = self.unscaled(score.args[1])
            args = score.args[0], inner, score.args[2]
            return scale, graph.node("where", args, kind="float", dims=score.dims)
        if score.op in ("add", "sub") and self.spec.math != "precise":
            return self._of_sum(score)
        if score.op not in ("mul", "div"):
            return Scale(), score
        value, by = score.args if score.op == "div" or self.is_static(score.args[1]) else score.args[::-1]
        factor = float(str(by.attr)) if by.is_const else str(by.attr)
        usable = isinstance(factor, str) or (factor != 0 and math.isfinite(factor))
        if not (self.is_static(by) and usable):
            return Scale(), score
        scale, inner = self.unscaled(value)
        if isinstance(factor, str):
            sign = graph.node("sign", (by,), kind="float", dims=())
            inner = graph.node("mul", (inner, sign), kind="float", dims=inner.dims)
        elif factor < 0:
            inner = graph.node("neg", (inner,), kind="float", dims=inner.dims)
        return scale.times(factor) if score.op == "mul" else scale.over(factor), inner

    def _of_sum(self, score: Node) -> tuple[Scale, Node]:
        """The same of a sum of scaled products with others, which have a factor that all columns share: the scale divides that."""
        graph, places = self.graph, [i for i, n in enumerate(score.args) if self._has_products(n)]
        if len(places) != 1:
            return Scale(), score
        value, other = score.args[places[0]], score.args[1 - places[0]]
        of_rows = [n for n in other.args if not {*self.columns} & {*n.dims}] if other.op == "mul" else []
        scale, inner = self.unscaled(value)
        if scale == Scale() or len(of_rows) != 1:
            return Scale(), score
        divided = graph.node("div", (of_rows[0], self._number(scale)), kind="float", dims=of_rows[0].dims)
        factors = tuple(divided if n is of_rows[0] else n for n in other.args)
        args = inner, graph.node("mul", factors, kind="float", dims=other.dims)
        return scale, graph.node(score.op, args if places == [0] else args[::-1], kind="float", dims=score.dims)

    def _has_products(self, value: Node) -> bool:
        return any(n is self.first for n in topological([value]))

    def _number(self, scale: Scale) -> Node:
        """A scale as a value; 1 where it is 0, as the kernel takes it."""
        graph, value = self.graph, self.graph.const(scale.number)
        for op, names in (("mul", scale.above), ("div", scale.below)):
            for name in names:
                parameter = graph.node("param", attr=name, kind="float", dims=())
                size = graph.node("abs", (parameter,), kind="float", dims=())
                is_first = op == "mul" and value is graph.const(1.0)
                value = size if is_first else graph.node(op, (value, size), kind="float", dims=())
        if not scale.above:
            return value
        is_zero = graph.node("eq", (value, graph.const(0.0)), kind="bool", dims=())
        return graph.node("where", (is_zero, graph.const(1.0), value), kind="float", dims=())

    def bend(self, score: Node) -> Bend | None:
        """The soft cap of the scores; None if they have none."""
        signs: list[str] = []
        above: list[float | str] = []
        below: list[float | str] = []
        while score.op == "where" and score.args[2].is_const and float(str(score.args[2].attr)) == -math.inf:
            score = score.args[1]
        while score.op == "mul" and score.args[1].op == "sign" and self.is_static(score.args[1].args[0]):
            signs.append(str(score.args[1].args[0].attr))
            score = score.args[0]
        if score.op != "tanh" or self.spec.math == "precise":
            return None
        (value,) = score.args
        while value is not self.first:
            if (found := self.scaled(value)) is None:
                return None
            factor = float(str(found[1].attr)) if found[1].is_const else str(found[1].attr)
            (above if value.op == "mul" else below).append(factor)
            value = found[0]
        return Bend(tuple(above), tuple(below), tuple(signs))

    def scaled(self, node: Node) -> tuple[Node, Node] | None:
        """The value that is multiplied or divided by a static number, and that number; None of others."""
        if node.op not in ("mul", "div") or not node.dims:
            return None
        value, by = node.args
        if node.op == "mul" and self.is_static(value):
            value, by = by, value
        return (value, by) if self.is_static(by) else None

    def is_static(self, node: Node) -> bool:
        """Whether a value is a number, or a parameter that a kernel is compiled for."""
        static = {p.name for p in self.spec.params if p.static and p.kind == "float"}
        return node.is_const or (node.op == "param" and node.attr in static)
