"""Finds attention in a chain, and its parts: the scores, the mask, and the function of rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from codegen.graph.names import fresh
from codegen.graph.nodes import ROWS, Leaf, Node, Statement, as_multiplied, lost_axes, nodes_of, topological
from codegen.graph.ops import IN_STAGES, REDUCTIONS
from codegen.graph.shifts import are_shifts
from codegen.language.transfer import Values
from codegen.plan.attention import BYTES, WRITTEN, Attention, Pages, Part
from codegen.plan.chain_parts import is_zero, part_of
from codegen.plan.gemms.tiles import Product
from codegen.plan.planner import Whole
from codegen.plan.scales import Bend, Scale, Scales
from codegen.spec.spec import Array, Axis, Spec

SCORES, FACTOR, TOP, TOTAL, PRODUCT = "scores", "factor", "top", "total", "acc"
EXPONENTIALS, WEIGHED = "exponentials", "weighed"


def attention(spec: Spec) -> Attention | None:
    """The plan of a chain that is attention; None for other chains."""
    try:
        return _Matcher(spec).plan()
    except _Other:
        return None


class _Other(Exception):
    """The chain is not attention."""


def _demand(condition: object) -> None:
    if not condition:
        raise _Other


class _Matcher:
    """Compares a chain with the form of attention, part by part: each method finds one part, or raises `_Other`."""

    def __init__(self, spec: Spec):
        self.spec, self.statements = spec, spec.read.statements
        self.graph = spec.read.graph.fork()
        self.nodes = nodes_of(self.statements)
        self.taken = {a.name for a in spec.arrays} | {p.name for p in spec.params} | {s.name for s in self.statements}
        self.given: dict[str, str] = {}
        self.multiplied = ""  # the type of the weights
        self.exponential = True

    def plan(self) -> Attention:
        spec = self.spec
        multiplied = [n for n in self.nodes if n.op == "contract"]
        _demand(len(multiplied) == 2 and not spec.doubles and not any(s.at for s in self.statements))
        first, second = multiplied
        results = {
            a.name: next(s for s in self.statements if s.name == a.name and s.part is None)
            for a in spec.outputs
            if a.parts is None
        }
        _demand(len(results) == len(spec.outputs))
        made_by = [spec.array(n) for n, s in results.items() if self.stores(s, second)]
        _demand(len(made_by) == 1 and len(lost_axes(first)) == 1)
        (o,), (contracted,) = made_by, lost_axes(first)
        weights, v, of_v = self.weights_and_values(second, first)
        q, k, of_k = self.factors(first, lost_axes(second))
        columns = self.columns_of(lost_axes(second), [of_k, of_v])
        own = of_k.axes if of_k else k.axes, of_v.axes if of_v else v.axes
        row, batch = self.rows_of(q, own[0], contracted, columns[0])
        value = v.axes[-1]
        self.batch, self.row, self.columns = batch, row, columns
        _demand({*own[0]} <= {*batch, *columns, contracted} and {*own[1]} <= {*batch, *columns, value})
        _demand(value not in (*batch, row, *columns, contracted) or value == contracted)
        _demand({*o.axes} == {*batch, row, value} and len(o.axes) == len(batch) + 2)
        _demand(k.axes[-1] == q.axes[-1] == contracted and o.axes[-1] == value)
        others = {n: s for n, s in results.items() if n != o.name}
        _demand(ROWS not in (row, *columns, contracted, value))
        scores, row_part, weight = self.parts(weights, first, others, o)
        scale, bend, (score, condition, full) = scores
        planner = Whole(spec, self.statements)
        pages = tuple(p for p in (of_k, of_v) if p is not None)
        _demand(not {p.axis for p in pages} & {*planner.axes})
        dims = self.dims(batch, row, *columns)
        made = Array(self.named("weights"), self.multiplied, dims)
        products = (
            Product(q, k, (contracted,), Array(self.named(PRODUCT), "float32", dims)),
            Product(made, v, columns, replace(o, name=self.named("weighted"), dtype="float32")),
        )
        return Attention(
            products=products, contracted=contracted, batch=batch, row=row, keys=columns, value=value, scores=score,
            condition=condition, pages=pages, **vars(planner.arrays()),
            extremes=tuple(n for n in self.nodes if n.op in ("max", "min")), o=o, scale=scale, bend=bend, unmasked=full, rows_part=row_part,
            exponential=self.exponential, weight=weight, tops=not are_shifts(self.statements, {a.name for a in spec.outputs} - {*spec.for_backward}),
        )  # fmt: skip

    # The products

    def stores(self, statement: Statement, product: Node) -> bool:
        """Whether a statement assigns a product to an output that the kernel writes, perhaps rounded to the output's type. Another
        stage converts to other types."""
        value, dtype = statement.value, self.spec.array(statement.name).dtype
        _demand({*self.spec.dtypes(self.spec.array(statement.name))} <= {*WRITTEN} or value is not product)
        return value is product or (value.op == "cast" and value.args[0] is product and value.attr == dtype)

    def input(self, node: Node) -> tuple[Array, Pages | None]:
        """The array of a factor that is an input as it is, or of one that is taken from an input."""
        value = as_multiplied(node)
        if value.op == "cast" and value.args[0].op == "take":
            table, index = (self.whole(n) for n in value.args[0].args)
            _demand(self.becomes(table, str(value.attr)) and index.default is None)
            return table, Pages(table, index, str(value.args[0].attr))
        if value.op == "cast":
            inner = self.whole(as_multiplied(value.args[0]))
            _demand(self.becomes(inner, str(value.attr)))
            return inner, None
        found = self.whole(value)
        _demand(self.becomes(found, found.dtype))
        return found, None

    def whole(self, node: Node) -> Array:
        """The array of an input without parts."""
        _demand(node.op == "input" and isinstance(node.attr, Leaf) and node.attr.part is None)
        assert isinstance(node.attr, Leaf)
        array = self.spec.array(node.attr.name)
        _demand(array.parts is None)
        return array

    def becomes(self, array: Array, dtype: str) -> bool:
        """Whether an array has this type, or is converted to it exactly."""
        return array.default is None and (array.dtype == dtype or self.is_of_bytes(array))

    def is_of_bytes(self, array: Array) -> bool:
        return {*self.spec.dtypes(array)} <= {*BYTES}

    def columns_of(self, contracted: Sequence[str], pages: Sequence[Pages | None]) -> tuple[str, ...]:
        """The axes that the second product contracts, with the axis of k's and v's pages first."""
        if None in pages:
            _demand(len(contracted) == 1 and pages[0] is pages[1])
            return tuple(contracted)
        found = [sorted(contracted, key=lambda axis: axis not in p.index.axes) for p in pages if p is not None]
        for own, p in zip(found, pages, strict=True):
            _demand(p is not None and own[0] in p.index.axes and len(own) <= 2)
            _demand(p is not None and all(axis in p.table.axes for axis in own[1:]) and own[0] not in p.table.axes)
        _demand(found[0] == found[1])
        return tuple(found[0])

    def weights_and_values(self, second: Node, first: Node) -> tuple[Node, Array, Pages | None]:
        """The weights, before they are rounded to the type of v, and v."""
        sides = [n for n in second.args if any(x is first for x in topological([n]))]
        _demand(len(sides) == 1)
        (weights,) = sides
        v, pages = self.input(next(n for n in second.args if n is not weights))
        _demand(weights.op == "cast" and weights.args[0].kind == "float")
        self.multiplied = str(weights.attr)
        _demand(self.becomes(v, self.multiplied))
        return weights.args[0], v, pages

    def factors(self, first: Node, columns: Sequence[str]) -> tuple[Array, Array, Pages | None]:
        """q and k."""
        a, b = first.args if {*columns} <= {*first.args[1].dims} else first.args[::-1]
        (q, none), (k, pages) = self.input(a), self.input(b)
        _demand({*columns} <= {*b.dims} and not {*columns} & {*a.dims} and none is None)
        _demand(self.becomes(q, self.multiplied) and self.becomes(k, self.multiplied))
        return q, k, pages

    def rows_of(self, q: Array, k: tuple[str, ...], contracted: str, column: str) -> tuple[str, tuple[str, ...]]:
        """The axis of q's rows, and the batch axes. The rows are an axis that q has and k lacks. If several axes are
        possible, the rows are the one at the place of k's rows, after the same shared axes; of several of these, the
        last."""
        own = [a for a in q.axes if a not in k]
        _demand(own)

        def before(axes: tuple[str, ...], axis: str) -> set[str]:
            return {*axes[: axes.index(axis)]} & {*q.axes} & {*k}

        rows = ([a for a in own if before(q.axes, a) == before(k, column)] or own)[-1]
        return rows, tuple(a for a in q.axes if a not in (rows, contracted))

    # The chain between them

    def parts(
        self, weights: Node, first: Node, others: Mapping[str, Statement], o: Array
    ) -> tuple[tuple[Scale, Bend | None, tuple[Part, Node | None, Part | None]], Part | None, Part | None]:
        """The scores' scale, their soft cap, and three parts of them: the scores, their mask, and the scores without it. Then the
        function of rows, and that of exponentials."""
        weights, others = self.hidden(weights, first, others)
        roots = [weights, *(s.value for s in others.values())]
        found = [n for n in topological(roots, lambda n: n is first) if n.op in IN_STAGES]
        if not found:
            _demand(not others)
            return (Scale(), None, self.score(weights, first, 0.0)), None, None
        tops = [n for n in found if n.op == "max"]
        _demand(all(n.op in ("max", "sum") and {*lost_axes(n)} == {*self.columns} for n in found))
        # Relative to a row's largest score, which is kept
        exponential = tops or any(n.args[0].op == "exp" for n in found)
        plain = None if exponential else self.divided(weights, first)
        if plain is not None and all(n.args[0] is plain[0] for n in found):
            return self.summed(plain, first, others, o)
        terms = [self.term(n.args[0]) for n in found if n.op == "sum"]
        factors, gates, term = self.peeled(weights, first)
        score = term[0]
        _demand(all(t is score for t, _ in terms) and all(n.args[0] is score for n in tops))
        graph, dims = self.graph, self.graph.order((*self.batch, self.row))
        # The function of rows: `top` and `total` instead of the reductions
        top = graph.node("input", attr=Leaf(self.named(TOP)), kind="float", dims=dims)
        total = graph.node("input", attr=Leaf(self.named(TOTAL)), kind="float", dims=dims)
        known: dict[int, Node] = {id(n): top for n in tops}

        def moved(shift: Node) -> Node:
            """exp(top - shift)"""
            apart = graph.node("sub", (top, self.rebuilt(shift, known)), kind="float", dims=dims)
            return graph.node("exp", (apart,), kind="float", dims=dims)

        for node in found:
            if node.op == "sum":
                known[id(node)] = graph.node("mul", (total, moved(self.term(node.args[0])[1])), kind="float", dims=dims)
        factor = moved(term[1])
        for op, value in factors:
            factor = graph.node(op, (factor, self.rebuilt(value, known)), kind="float", dims=dims)
        statements = [Statement(self.named(FACTOR), None, factor)]
        statements += [Statement(n, None, self.rebuilt(s.value, known)) for n, s in others.items()]
        self.demand_of_rows(statements, o)
        scales = Scales(self.spec, self.graph, self.columns, first)
        scale, score = scales.unscaled(score)
        return (
            (scale, scales.bend(score), self.score(self.multiplied_once(score, scales), first, -float("inf"))),
            self.row_part(statements, [top, total]),
            self.weight(gates),
        )

    def divided(self, weights: Node, first: Node) -> tuple[Node, list[tuple[str, Node]]] | None:
        """Weights without what multiplies or divides them in each row, and that. None if the rest needs a reduction."""
        factors: list[tuple[str, Node]] = []
        while weights.op in ("mul", "div"):
            left, right = weights.args
            if weights.op == "mul" and not self.along(left):
                left, right = right, left
            if self.along(right):
                break
            factors.append((weights.op, right))
            weights = left
        inside = topological([weights], lambda n: n is first)
        return None if any(n.op in IN_STAGES for n in inside) else (weights, factors[::-1])

    def summed(
        self, plain: tuple[Node, list[tuple[str, Node]]], first: Node, others: Mapping[str, Statement], o: Array
    ) -> tuple[tuple[Scale, Bend | None, tuple[Part, Node | None, Part | None]], Part | None, Part | None]:
        """The `parts` where the weights are scores that are not exponentials, divided by a function of their sum."""
        score, factors = plain
        self.exponential = False
        graph, dims = self.graph, self.graph.order((*self.batch, self.row))
        total = graph.node("input", attr=Leaf(self.named(TOTAL)), kind="float", dims=dims)
        values = [v for _, v in factors] + [s.value for s in others.values()]
        known = {id(n): total for n in topological(values) if n.op == "sum" and n.args[0] is score}
        factor = graph.const(1.0)
        for op, value in factors:
            factor = graph.node(op, (factor, self.rebuilt(value, known)), kind="float", dims=dims)
        statements = [Statement(self.named(FACTOR), None, factor)]
        statements += [Statement(n, None, self.rebuilt(s.value, known)) for n, s in others.items()]
        top = graph.node("input", attr=Leaf(self.named(TOP)), kind="float", dims=dims)
        self.demand_of_rows(statements, o)
        return (Scale(), None, self.score(score, first, 0.0)), self.row_part(statements, [top, total]), None

    def demand_of_rows(self, statements: Sequence[Statement], o: Array) -> None:
        """A kernel computes values of rows alone."""
        for statement in statements:
            _demand(not {*self.columns, o.axes[-1]} & {a for n in topological([statement.value]) for a in n.dims})

    def hidden(
        self, weights: Node, first: Node, others: Mapping[str, Statement]
    ) -> tuple[Node, Mapping[str, Statement]]:
        """The weights and the other values with exponentials of -inf in place of zeros, where the exponentials that a sum adds are 0
        outside a condition."""
        graph, known = self.graph, dict[int, Node]()
        for node in topological([weights, *(s.value for s in others.values())], lambda n: n is first):
            if node.op == "max" and node.args[0].op == "stop_gradient":
                known[id(node)] = graph.node("max", node.args[0].args, node.attr, kind="float", dims=node.dims)
            if node.op == "sum" and node.args[0].op == "where" and is_zero(node.args[0].args[2]):
                condition, value, _ = node.args[0].args
                if value.op == "exp" and self.term(value)[0] is value.args[0]:
                    outside = graph.const(-math.inf)
                    score = graph.node("where", (condition, *value.args, outside), kind="float", dims=node.args[0].dims)
                    known[id(node.args[0])] = graph.node("exp", (score,), kind="float", dims=score.dims)
        if not known:
            return weights, others
        return self.rebuilt(weights, known), {
            n: replace(s, value=self.rebuilt(s.value, known)) for n, s in others.items()
        }

    def multiplied_once(self, score: Node, scales: Scales) -> Node:
        """The scores with one product instead of products and quotients by static numbers in sequence: x * a / b is x * (a / b)."""
        if self.spec.math == "precise":
            return score
        graph, known, scaled = self.graph, dict[int, Node](), dict[int, tuple[Node, Node]]()
        for node in topological([score]):
            if (found := scales.scaled(node)) is not None:
                value, by = found
                base, before = scaled.get(id(value), (known[id(value)], None))
                factor = by
                if before is not None or node.op == "div":
                    factor = graph.node(node.op, (before or graph.const(1.0), by), kind="float", dims=())
                scaled[id(node)] = base, factor
                if before is not None:
                    known[id(node)] = graph.node("mul", (base, factor), kind="float", dims=node.dims)
            self.rebuilt(node, known)
        return known[id(score)]

    def term(self, node: Node) -> tuple[Node, Node]:
        """The score and what is subtracted, of exp(score - shift) or exp(score)."""
        _demand(node.op == "exp" and {*self.columns} <= {*node.args[0].dims})
        (inner,) = node.args
        if inner.op == "sub" and {*self.columns} <= {*inner.args[0].dims} and not self.along(inner.args[1]):
            score, shift = inner.args
            return score, shift
        return inner, self.graph.const(0.0)

    def peeled(
        self, weights: Node, first: Node
    ) -> tuple[list[tuple[str, Node]], list[tuple[str, Node]], tuple[Node, Node]]:
        """The row's values that multiply or divide an exponential; the values with columns that do, and the conditions without
        which it is 0; and that exponential's `term`."""
        factors: list[tuple[str, Node]] = []
        gates: list[tuple[str, Node]] = []

        def scored(node: Node) -> bool:
            return any(n is first for n in topological([node], lambda n: n.op in IN_STAGES))

        while True:
            if weights.op == "where" and is_zero(weights.args[2]):
                gates.append(("where", weights.args[0]))
                weights = weights.args[1]
            elif weights.op in ("mul", "div"):
                left, right = weights.args
                if weights.op == "mul" and not (self.along(left) and scored(left)):
                    left, right = right, left
                _demand(self.along(left) and not (self.along(right) and scored(right)))
                (gates if self.along(right) else factors).append((weights.op, right))
                weights = left
            else:
                break
        _demand(not any(n is first or n.op in IN_STAGES for n in topological(value for _, value in gates)))
        return factors[::-1], gates[::-1], self.term(weights)

    def weight(self, gates: list[tuple[str, Node]]) -> Part | None:
        """The function that makes weights of exponentials; None where they are the same."""
        if not gates:
            return None
        dims = self.dims(self.batch, self.row, *self.columns)
        given, made = (Array(self.named(name), "float32", dims) for name in (EXPONENTIALS, WEIGHED))
        leaf = self.graph.node("input", attr=Leaf(given.name), kind="float", dims=given.axes)
        value = leaf
        for op, other in gates:
            args = (other, value, self.graph.const(0.0)) if op == "where" else (value, other)
            value = self.graph.elementwise(op, *args)
        values = Values(
            (Statement(made.name, None, value),), self.spec.read.graph.calls, self.known_names(), {id(leaf): Leaf(given.name)}
        )  # fmt: skip
        return self.part("weight", values, [given], [made])

    def along(self, node: Node) -> bool:
        """Whether a value has columns."""
        return bool({*self.columns} & {*node.dims})

    def rebuilt(self, value: Node, known: dict[int, Node]) -> Node:
        """A value with `known` nodes in place of others, by identity. It adds to `known`."""
        for node in topological([value], lambda n: id(n) in known):
            if id(node) not in known:
                args = tuple(known[id(a)] for a in node.args)
                lost = lost_axes(node) if node.op in REDUCTIONS else ()
                dims = [axis for a in args for axis in a.dims if axis not in lost]
                known[id(node)] = self.graph.rebuilt(node, args, dims)
        return known[id(value)]

    def score(self, score: Node, first: Node, outside: float) -> tuple[Part, Node | None, Part | None]:
        """The scores as a spec, their mask, and the scores where the mask holds everywhere. A mask is a condition outside of which
        the scores are `outside`."""
        conditions: list[Node] = []
        inner = self.unmasked(score, outside, conditions)
        part = self.score_part("score", score, first)
        if not conditions or not {*self.columns} <= {*inner.dims}:
            return part, None, None
        condition = conditions[0]
        for other in conditions[1:]:
            condition = self.graph.node("and", (condition, other), kind="bool", dims=(*condition.dims, *other.dims))
        return part, condition, self.score_part("full", inner, first)

    def unmasked(self, score: Node, outside: float, conditions: list[Node]) -> Node:
        """The scores where all conditions hold outside of which they are `outside`, and these `conditions`: where that is 0, also the
        conditions of factors."""
        if score.op == "where" and score.args[2].is_const and float(str(score.args[2].attr)) == outside:
            conditions.append(score.args[0])
            return self.unmasked(score.args[1], outside, conditions)
        if outside or score.op not in ("mul", "div"):
            return score
        factors = score.args if score.op == "mul" else score.args[:1]
        pair = (*(self.unmasked(n, outside, conditions) for n in factors), *score.args[len(factors) :])
        return self.graph.node(score.op, pair, score.attr, kind="float", dims=[a for n in pair for a in n.dims])

    def score_part(self, which: str, score: Node, first: Node) -> Part:
        _demand({*score.dims} <= {*self.batch, self.row, *self.columns})
        name = self.named(PRODUCT)
        acc = Array(name, "float32", self.dims(self.batch, self.row, *self.columns))
        made = Array(self.named(SCORES), "float32", acc.dims)
        values = Values(
            (Statement(made.name, None, score),), self.spec.read.graph.calls, self.known_names(), {id(first): Leaf(name)}
        )  # fmt: skip
        return self.part(which, values, [acc], [made])

    def row_part(self, statements: list[Statement], leaves: list[Node]) -> Part:
        dims = self.dims(self.batch, self.row)
        given = [Array(str(n.attr), "float32", dims) for n in leaves]
        outputs = [Array(self.named(FACTOR), "float32", dims), *(self.spec.array(s.name) for s in statements[1:])]
        found = {id(n): Leaf(str(n.attr)) for n in leaves}
        values = Values(tuple(statements), self.spec.read.graph.calls, self.known_names(), found)
        return self.part("row", values, given, outputs)

    def part(self, which: str, values: Values, given: list[Array], outputs: list[Array]) -> Part:
        found = part_of(self.spec, which, values, given, outputs, self.taken, self.multiplied)
        _demand(tuple(a for a in found.spec.axes if a in given[0].axes) == given[0].axes)
        _demand({*found.spec.axes} == {*given[0].axes} or not {o for o in outputs if {*o.axes} - {*given[0].axes}})
        return found

    def named(self, name: str) -> str:
        """This name, or one that is not taken."""
        if name not in self.given:
            self.given[name] = fresh(self.taken, name)
        return self.given[name]

    def known_names(self) -> dict[int, str]:
        made = {a.name for a in self.spec.outputs}
        return {id(s.value): s.name for s in reversed(self.statements) if s.part is None and s.name not in made}

    def dims(self, batch: tuple[str, ...], *others: str) -> tuple[Axis, ...]:
        return self.spec.dims((*batch, *others))
