"""The backward of attention, as stages: a kernel for values of rows, the two kernels of attention's gradients, and
kernels for the other gradients.

`reverse.py` derives the gradients, as for every op. Attention's kernels cannot compute some parts of that graph:

    sum(dp * p, axis=S)     the weights times their gradients: equal to sum(do * o) of a row, whose o the forward has
    values of rows          such as 1 / total: they are computed once, before
    sums over S and Q       as in the gradient of a slope for each head: a kernel sums along rows, or, without S, along
                            columns, and another one the rest. A value with both Q and S, such as a bias, has a kernel
                            of its own
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from codegen.autodiff.exponentials import factored, in_one_sum, inside, term_of, together, unguarded
from codegen.autodiff.reverse import Backward, Reverse
from codegen.errors import SpecError, UserError
from codegen.graph.names import fresh
from codegen.graph.nodes import Leaf, Node, Statement, as_multiplied, lost_axes, nodes_of, topological
from codegen.graph.ops import REDUCTIONS
from codegen.graph.shifts import shifts
from codegen.language.reference import Reference
from codegen.language.transfer import Values, derived_spec
from codegen.plan.attention import NARROW, Attention, AttentionBackward, Part
from codegen.plan.chain_parts import part_of
from codegen.plan.gemms.tiles import Product
from codegen.plan.op import Op, Staged
from codegen.plan.planner import Whole
from codegen.spec.spec import Array, Axis, Spec
from codegen.stages.choose import derived, one_kernel, staged
from codegen.stages.splitting import only

GIVEN = ("input", "param", "const", "index", "size")  # values that are not computed
MOST_STATISTICS = 6  # of a row, in shared memory


def attention_backward(op: Op, taken: Collection[str]) -> tuple[Op, Backward, Op | None, frozenset[str]]:
    """The backward of an op that is attention, its forward with more outputs, and the inputs and parameters without a gradient of
    kernels. Raises `UserError` or `SpecError` if kernels cannot compute it."""
    assert isinstance(op.plan, Attention)
    own = (op.plan.products[1].a.dtype, *(a.dtype for a in op.plan.factors))
    if len({*own}) > 1 or not any(dtype in NARROW for dtype in op.spec.dtypes(op.plan.q)):
        raise UserError("attention's gradients have kernels where all that is multiplied is of one 16-bit type")
    if op.plan.pages:
        tables = " and ".join(p.table.name for p in op.plan.pages)
        raise UserError(f"the gradients of {tables}, whose rows are taken from pages, have no kernel")
    return _Cut(op, op.plan, taken).stages()


class _Cut:
    """The gradients of an op, and their stages."""

    def __init__(self, op: Op, plan: Attention, taken: Collection[str]):
        self.op, self.spec, self.plan = op, op.spec, plan
        contracts = [n for n in nodes_of(op.statements) if n.op == "contract"]
        self.first, second = contracts
        (cast,) = [n for n in second.args if any(x is self.first for x in topological([n]))]
        self.weights = cast.args[0]
        outputs = {a.name for a in self.spec.outputs}
        constant = shifts(op.statements, outputs) if plan.rows_part is not None else frozenset()
        self.reverse = Reverse(self.spec, constant=constant, taken=taken)
        self.graph = self.reverse.graph
        chosen = self.reverse.saved_for("rows")
        self.how = self.reverse.backward(chosen)
        self.saved = saved = chosen.values
        self.taken = set(self.reverse.taken) | {a.name for a in self.how.spec.arrays}
        self.do = self.reverse.cotangents[plan.o.name]
        self.known = {id(node): self.input(name, node) for name, node in saved.items()}
        self.leaves = {id(node): Leaf(name) for name, node in saved.items()}
        self.rounded: Node | None = None  # the cotangent of o as it is multiplied, where o has another type
        self.dp, self.slopes = self.matched()
        self.known |= {id(n): n for n in (self.first, self.dp)}
        self.base = dict(self.known)
        self.delta: Node | None = None
        self.sums: dict[str, Node] = {}  # the terms of sums along rows and columns, by output
        self.along_rows: set[str] = set()  # of these, those along rows
        self.pairs: dict[str, Node] = {}  # the terms of gradients with rows and columns, by output

    def of_places(self) -> list[Op]:
        """The kernels that compute indices of tables."""
        ops: list[Op] = []
        for place in self.reverse.places.values():
            with contextlib.suppress(SpecError, UserError):
                value = Statement(place.name, None, self.gradient(place))
                name = f"{self.spec.op}_backward_stage{len(ops) + 1}"
                ops.append(one_kernel(self.spec_of(name, [value], [place], {}, [])))
        return ops

    def results(self, places: Collection[str]) -> dict[str, Array]:
        """The gradients by the names of inputs and parameters; of what is taken from tables, where its `places` are inputs or among
        these, by their own names."""
        known = {*places, *(a.name for a in self.spec.inputs)}
        scattered = {s.output: s.index for s in self.how.scattered}
        return {
            name if taken is None else output.name: output
            for name, output, taken in self.reverse.results
            if taken is None or scattered[output.name] in known
        }

    def gradient(self, output: Array) -> Node:
        """The value of an output."""
        found = [s.value for s in self.reverse.assigned if s.name == output.name and s.part is None and not s.at]
        _demand(len(found) == 1)
        return found[0]

    def input(self, name: str, like: Node) -> Node:
        return self.graph.node("input", attr=Leaf(name), kind=like.kind, dims=like.dims)

    # The products of the gradients

    def matched(self) -> tuple[Node, Node]:
        """The gradients of the weights (dp), and the gradients of q @ k."""
        plan = self.plan
        values = {name: self.gradient(output) for name, output, taken in self.reverse.results if taken is None}
        lacking = tuple(axis for axis in plan.batch if axis not in plan.k.axes)
        _demand(lacking == tuple(axis for axis in plan.batch if axis not in plan.v.axes))
        _demand(len({a.name for a in plan.factors}) == 3)
        over_rows = {plan.row, *lacking}
        slopes = [
            self.factor(values.get(own.name), other, axes)
            for own, other, axes in ((plan.q, plan.k, {plan.column}), (plan.k, plan.q, over_rows))
        ]
        weights = self.factor(values.get(plan.v.name), self.do, over_rows)
        _demand(slopes[0] is slopes[1] and weights is self.weights)
        roots = [slopes[0]]
        products = [n for n in topological(roots, self.is_leaf) if n.op == "contract" and n is not self.first]
        _demand(len(products) == 1 and {*lost_axes(products[0])} == {plan.value})
        arrays = {self.read(a) for a in products[0].args}
        _demand(arrays == {Leaf(self.do.name), Leaf(plan.v.name)})
        return products[0], slopes[0]

    def factor(self, value: Node | None, other: Array, axes: set[str]) -> Node:
        """The factor of the array `other` in a gradient that is a product with it, before that factor is rounded."""
        _demand(value is not None and value.op == "contract" and {*lost_axes(value)} == axes)
        assert value is not None
        found = [a for a in value.args if self.read(a) != Leaf(other.name)]
        _demand(len(found) == 1 and found[0].op == "cast")
        return found[0].args[0]

    def read(self, factor: Node) -> object:
        """The input that a factor is, perhaps the cotangent of o as it is rounded; no input of a computed one."""
        value = as_multiplied(factor)
        if value.op == "cast" and value.args[0].attr == Leaf(self.do.name):
            self.rounded, value = value, value.args[0]
        return value.attr

    def is_leaf(self, node: Node) -> bool:
        return id(node) in self.leaves

    # What kernels compute instead

    def rebuilt(self, value: Node, masked: bool = True) -> Node:
        """A value from what is saved, from sum(do * o) and from sums along rows; divisions by values of rows are products. Without
        `masked`, it is the value where the mask holds."""
        known = self.known if masked else {**self.base}
        conditions = set() if masked else self.conditions()
        column, row = self.plan.column, self.plan.row
        for node in topological([value], lambda n: id(n) in known):
            if id(node) in known:
                continue
            args = [known[id(a)] for a in node.args]
            if node.op == "sum" and column in lost_axes(node):
                known[id(node)] = self.summed(node)
            elif node.op == "sum" and row in lost_axes(node) and column in node.dims:
                rest = [axis for axis in lost_axes(node) if axis != row]
                known[id(node)] = self.along(row, node.args[0], rest)
            elif node.op == "where" and id(node.args[0]) in conditions:
                known[id(node)] = args[1]
            elif (ratio := self.ratio(node)) is not None:
                pair = self.rebuilt(self.weights, masked), self.rebuilt(ratio, masked)
                known[id(node)] = self.made(node, "mul", pair)
            elif node.op == "add" and (product := together(self.graph, args, column)) is not None:
                known[id(node)] = product
            elif node.op == "div" and column in args[0].dims and column not in args[1].dims and row in args[1].dims:
                inverse = self.graph.node("reciprocal", (args[1],), kind="float", dims=args[1].dims)
                known[id(node)] = self.made(node, "mul", (args[0], inverse))
            elif all(a is b for a, b in zip(args, node.args, strict=True)):
                known[id(node)] = node
            else:
                known[id(node)] = self.made(node, node.op, tuple(args))
        return known[id(value)]

    def ratio(self, node: Node) -> Node | None:
        """A number for each row: the weights, which the backward computes anyway, times it are this exponential of the same scores.
        None for other values."""
        column = self.plan.column
        found = term_of(node, column)
        inner, powers = factored(self.weights, column)
        own = [n for n in topological([self.weights]) if id(n) in inner]
        mine = term_of(own[0], column) if len(own) == len(inner) == 1 else None
        if found is None or mine is None or found[0] is not mine[0] or self.plan.row not in found[1].dims:
            return None
        if found[1] is mine[1] or column in found[1].dims:
            return None
        apart = self.made(node, "sub", (mine[1], found[1]))
        value = self.made(node, "exp", (apart,))
        for other, power in powers.values():
            for _ in range(abs(power)):
                value = self.made(node, "div" if power > 0 else "mul", (value, other))
        return value

    def made(self, like: Node, op: str, args: tuple[Node, ...]) -> Node:
        """A node like another one."""
        lost = lost_axes(like) if like.op in REDUCTIONS or like.op == "contract" else ()
        dims = [axis for a in args for axis in a.dims if axis not in lost]
        return self.graph.node(op, args, like.attr if op == like.op else None, kind=like.kind, dims=dims)

    def conditions(self) -> set[int]:
        """The identities of the mask's conditions."""
        found, left = set(), [self.plan.condition] if self.plan.condition is not None else []
        while left:
            node = left.pop()
            found.add(id(node))
            left += node.args if node.op == "and" else ()
        return found

    def summed(self, node: Node) -> Node:
        """A sum over S, and perhaps over more axes."""
        plan, lost = self.plan, lost_axes(node)
        term, is_negative = unguarded(node.args[0])
        if lost == (plan.column,) and (powers := self.times_delta(term)) is not None:
            found = self.scaled(self.made_delta(), powers)
            return self.made(node, "neg", (found,)) if is_negative else found
        # Down columns where both are summed: one kernel of all gradients has no sums along rows
        columns = {plan.row, *(a for a in plan.batch if a not in plan.k.axes)} <= {*lost}
        axis = plan.row if columns else plan.column
        return self.along(axis, node.args[0], [other for other in lost if other != axis])

    def along(self, axis: str, term: Node, rest: list[str]) -> Node:
        """A sum of terms along rows, that is over S, or along columns, over Q; and over the `rest` of its axes."""
        plan = self.plan
        _demand({*term.dims} == {*plan.batch, plan.row, plan.column})
        _demand(not self.uses_sums([self.rebuilt(term)]))  # which the same kernels give
        shared = {a for a in plan.batch if a not in plan.k.axes} if axis == plan.row else set()
        _demand(shared <= {*rest})  # where rows of k stay, all that share them are added up
        name = fresh(self.taken, f"sum{len(self.sums) + 1}")
        self.sums[name] = term
        if axis == plan.column:
            self.along_rows.add(name)
        dims = [a for a in term.dims if a != axis and a not in shared]
        leaf = self.graph.node("input", attr=Leaf(name), kind="float", dims=dims)
        if not (left := tuple(a for a in rest if a not in shared)):
            return leaf
        return self.graph.node("sum", (leaf,), left, kind="float", dims=[a for a in dims if a not in left])

    def times_delta(self, value: Node) -> dict[int, tuple[Node, int]] | None:
        """A sum of `value` along S may be sum(do * o) times values of rows: these, with their powers. None if it is not, or if that
        would divide by a value that the chain does not divide by, since it may be zero."""
        inner, powers = factored(value, self.plan.column)
        own, already = factored(self.weights, self.plan.column)
        if sorted(inner) != sorted([*own, id(self.dp)]):
            return None
        found = dict(powers)
        for key, (node, power) in already.items():
            left = found.get(key, (node, 0))[1] - power
            if left < min(powers.get(key, (node, 0))[1], 0):
                return None
            found[key] = node, left
        return {key: pair for key, pair in found.items() if pair[1]}

    def scaled(self, value: Node, powers: Mapping[int, tuple[Node, int]]) -> Node:
        """A value times others to their powers."""
        for node, power in powers.values():
            other = self.rebuilt(node)
            for _ in range(abs(power)):
                dims = (*value.dims, *other.dims)
                value = self.graph.node("mul" if power > 0 else "div", (value, other), kind="float", dims=dims)
        return value

    def made_delta(self) -> Node:
        """sum(do * o), along the last axis of o, with `do` as the product do @ v has it: of one key the two are equal."""
        if self.delta is None:
            plan = self.plan
            do, o = (self.graph.node("input", attr=Leaf(a.name), kind="float", dims=a.axes) for a in (self.do, plan.o))
            product = self.graph.node("mul", (self.rounded or do, o), kind="float", dims=plan.o.axes)
            dims = [axis for axis in plan.o.axes if axis != plan.value]
            self.delta = self.graph.node("sum", (product,), (plan.value,), kind="float", dims=dims)
        return self.delta

    def uses_sums(self, values: Iterable[Node]) -> bool:
        """Whether a value is computed from a sum that attention's kernel gives."""
        return any(isinstance(n.attr, Leaf) and n.attr.name in self.sums for n in topological(values))

    def values_of_rows(self, roots: Iterable[Node]) -> list[Node]:
        """The values of rows that values with S use directly. They are computed once, before the kernel."""
        column, row = self.plan.column, self.plan.row
        found: dict[int, Node] = {}
        for node in topological(roots, lambda n: n is self.first or n is self.dp):
            if column in node.dims and node is not self.first and node is not self.dp:
                for a in node.args:
                    if row in a.dims and column not in a.dims and a.kind == "float" and a.op not in GIVEN:
                        if any(n.op == "input" for n in topological([a])):
                            found[id(a)] = a
        return list(found.values())

    # The stages

    def stages(self) -> tuple[Op, Backward, Op | None, frozenset[str]]:
        plan, spec = self.plan, self.spec
        weights, slopes = self.rebuilt(self.weights), self.rebuilt(self.slopes)
        if self.sums:
            raise UserError(
                f"the gradients of scores need a sum along {plan.column} that is no part of sum(d{plan.o.name} * {plan.o.name})"
            )
        own = [plan.q.name, plan.k.name, plan.v.name]
        ops = self.of_places()
        results = self.results({a.name for op in ops for a in op.spec.outputs})
        given = {a.name: a for a in results.values()}
        rest = self.others({name: output for name, output in results.items() if name not in own})
        own_terms = [*self.sums.values(), *self.pairs.values()]
        values = self.values_of_rows([weights, slopes, *map(self.rebuilt, own_terms)])
        reached = {id(n) for n in topological([*values, *rest.values()])}
        if self.delta is not None and id(self.delta) in reached and self.delta not in values:
            values.insert(0, self.delta)  # others may be computed from it, in a kernel of their own
        values += [self.rounded] if self.rounded is not None else []
        made = [self.before(i, n) for i, n in enumerate(values, 1)]
        leaves = {id(n): Leaf(a.name) for n, a in zip(values, made, strict=True)}
        sums = [Array(name, "float32", self.dims_of_sum(name)) for name in self.sums]
        pairs = [results[name] for name in self.pairs]
        pool = [*self.reverse.cotangents.values(), *spec.outputs, *self.reverse.extra_outputs(self.saved), *made, *sums]

        def spec_of(statements: list[Statement], outputs: list[Array], leaves: Mapping[int, Leaf]) -> Spec:
            return self.spec_of(f"{spec.op}_backward_stage{len(ops) + 1}", statements, outputs, leaves, pool)

        def of_rows(which: Sequence[int]) -> Op:
            rows = [Statement(made[i].name, None, values[i]) for i in which]
            before = {id(n): leaves[id(n)] for n in values[:1] if n is self.delta and 0 not in which}
            return one_kernel(spec_of(rows, [made[i] for i in which], before))

        for which in _together(range(len(values)), of_rows):
            ops.append(of_rows(which))
        gradients = [results[name] for name in own]
        kernel = [Statement(g.name, None, self.rebuilt(self.gradient(g))) for g in gradients]
        kernel += [Statement(name, None, self.sum_of(name)) for name in self.sums]
        kernel += [Statement(a.name, None, self.rebuilt(self.gradient(a))) for a in pairs]
        ops.append(self.kernel(spec_of(kernel, [*gradients, *sums, *pairs], leaves), gradients, sums, pairs, leaves))
        for name, value in rest.items():
            last = derived(spec_of([Statement(name, None, value)], [given[name]], leaves))
            _demand(not isinstance(last.plan, Staged))
            ops.append(last)
        kept = [*(g.name for g in gradients), *(a.name for a in pairs), *rest]
        scattered = tuple(s for s in self.how.scattered if s.output in kept)
        kept += [a.name for op in ops for a in op.spec.outputs if a.name in {s.index for s in scattered}]
        full = self.how.spec if len(kept) == len(self.how.spec.outputs) else only(self.how.spec, kept)
        taken = {plan.o.name} - {a.name for a in full.inputs} if self.delta is not None else set()
        full = replace(full, inputs=(*full.inputs, *(a for a in spec.outputs if a.name in taken)))
        how = replace(
            self.how, spec=full, saved=(*self.how.saved, *taken),
            inputs=tuple(a.name for a in full.inputs if a in spec.inputs),
            gradients=tuple(pair for pair in self.how.gradients if pair[1] in kept), scattered=scattered,
        )  # fmt: skip
        forward = None if how.forward is None else one_kernel(how.forward)
        lacking = frozenset(name for name, output, _ in self.reverse.results if output.name not in kept)
        return staged(full, tuple(ops)), how, forward, lacking

    def others(self, results: Mapping[str, Array]) -> dict[str, Node]:
        """The values of the gradients of other arrays that kernels after attention's compute, by output. Terms of scores are added
        to `pairs`."""
        found: dict[str, Node] = {}
        for name, output in results.items():
            if (term := self.pair(output)) is not None:
                self.pairs[name] = term
            elif (value := self.left(output)) is not None:
                found[output.name] = value
        return found

    def left(self, output: Array) -> Node | None:
        """The gradient of another array; None where no kernel computes it."""
        before = dict(self.sums), dict(self.known), self.delta
        try:
            both = {self.plan.row, self.plan.column}
            value = self.rebuilt(in_one_sum(self.graph, self.gradient(output), both, lambda n: id(n) in self.base))
            _demand(not any(both <= {*n.dims} or n.op == "contract" for n in topological([value])))
            return value
        except UserError:
            self.sums, self.known, self.delta = before
            return None

    def pair(self, output: Array) -> Node | None:
        """The terms of a gradient with rows and columns, which may be a sum of them over axes of the batch; None of another one."""
        plan, value = self.plan, self.gradient(output)
        whole = {*plan.batch, plan.row, plan.column}
        if not {plan.row, plan.column} <= {*output.axes} <= whole:
            return None
        term = value.args[0] if value.op == "sum" else value
        summed = {*lost_axes(value)} if value.op == "sum" else set()
        found = {*term.dims} == whole and {*output.axes} == whole - summed
        return term if found and not self.uses_sums([self.rebuilt(term)]) else None

    def sum_of(self, name: str) -> Node:
        term, dims = self.rebuilt(self.sums[name]), [a for d in self.dims_of_sum(name) for a in d.names]
        lost = tuple(a for a in term.dims if a not in dims)
        return self.graph.node("sum", (term,), lost, kind="float", dims=dims)

    def dims_of_sum(self, name: str) -> tuple[Axis, ...]:
        plan = self.plan
        like, own = (plan.q, plan.row) if name in self.along_rows else (plan.k, plan.column)
        return self.spec.dims(a for a in like.axes if a in {*plan.batch, own})

    def before(self, number: int, value: Node) -> Array:
        """The array of a value that is computed before attention's kernels."""
        if value is self.rounded:
            return Array(fresh(self.taken, f"{self.do.name}_rounded"), str(value.attr), self.do.dims)
        name = "delta" if value is self.delta else f"row_value{number}"
        return Array(fresh(self.taken, name), "float32", self.dims(value))

    def dims(self, node: Node) -> tuple[Axis, ...]:
        """The axes of a value of rows, in the order of q's."""
        return self.spec.dims(axis for axis in self.plan.q.axes if axis in node.dims and axis != self.plan.column)

    def spec_of(
        self, name: str, statements: list[Statement], outputs: list[Array], leaves: Mapping[int, Leaf], pool: list[Array]
    ) -> Spec:  # fmt: skip
        spec = self.spec
        values = Values(tuple(statements), self.graph.calls, self.reverse.named, leaves)
        nodes = list(topological((s.value for s in statements), values.is_leaf))
        used = {found.name for n in nodes if (found := leaves.get(id(n)) or n.attr) and isinstance(found, Leaf)}
        axes = {axis for a in outputs for axis in a.axes} | {str(n.attr) for n in nodes if n.op in ("size", "index")}
        inputs = [a for a in pool if a.name in used]
        inputs += spec.inputs_for(used, inputs, axes)
        own = replace(
            spec.plain(), op=name, summary=f"A stage of the gradients of {spec.op}.", inputs=tuple(inputs),
            outputs=tuple(outputs), params=spec.params_of(nodes), schedule=(),
        )  # fmt: skip
        return derived_spec(own, f"{spec.path} (backward)", values, self.taken)

    def kernel(
        self, spec: Spec, gradients: list[Array], sums: list[Array], pairs: list[Array], leaves: Mapping[int, Leaf]
    ) -> Op:
        """The op of attention's own kernels."""
        plan, dims = self.plan, self.plan.products[0].acc.dims
        acc, dp = (Array(fresh(self.taken, name), "float32", dims) for name in ("acc", "dp"))
        rows = {plan.row, *plan.batch}
        statistics = tuple(
            a for a in spec.inputs if a.dtype == "float32" and {*a.axes} <= rows and plan.row in a.axes and a.default is None
        )  # fmt: skip
        if len(statistics) > MOST_STATISTICS:
            needed = f"{len(statistics)} float32 numbers of each row"
            raise UserError(f"the gradients of scores need {needed}, and their kernels take at most {MOST_STATISTICS}")
        given = [acc, dp, *statistics]
        sums = sorted(sums, key=lambda a: a.name not in self.along_rows)
        called = ["weights", "slopes", *(f"{a.name}_term" for a in (*sums, *pairs))]
        outputs = [Array(fresh(self.taken, name), "float32", dims) for name in called]
        by_array = {a.name: n for n, a in zip(self.pairs.values(), pairs, strict=True)} | self.sums
        own = {**leaves, id(self.first): Leaf(acc.name), id(self.dp): Leaf(dp.name)}

        def slope(which: str, masked: bool) -> Part:
            values = [self.weights, self.slopes, *(by_array[a.name] for a in (*sums, *pairs))]
            terms = inside(self.graph, [self.rebuilt(n, masked) for n in values], plan.column)
            statements = tuple(Statement(a.name, None, n) for a, n in zip(outputs, terms, strict=True))
            found = Values(statements, self.graph.calls, self.reverse.named, own)
            return part_of(spec, which, found, given, outputs, self.taken, plan.q.dtype)

        multiplied = self.do.name if self.rounded is None else leaves[id(self.rounded)].name
        do = next(a for a in spec.inputs if a.name == multiplied)
        dq, dk, dv = gradients
        found = AttentionBackward(
            products=(
                Product(plan.q, plan.k, (plan.contracted,), acc),
                Product(do, plan.v, (plan.value,), dp),
                Product(outputs[1], plan.k, (plan.column,), dq),
                Product(outputs[1], plan.q, (plan.row,), dk),
                Product(outputs[0], do, (plan.row,), dv),
            ),
            contracted=plan.contracted, batch=plan.batch, row=plan.row, keys=plan.keys, value=plan.value,
            scores=plan.scores, condition=plan.condition, **vars(Whole(spec, spec.read.statements).arrays()),
            extremes=(), factors=(plan.q, plan.k, plan.v, do), gradients=(dq, dk, dv), slope=slope("slope", True), bend=plan.bend,
            unmasked=slope("full", False) if plan.condition is not None else None, statistics=statistics,
            along_rows=tuple(a for a in sums if a.name in self.along_rows),
            along_columns=tuple(a for a in sums if a.name not in self.along_rows), pairs=tuple(pairs),
        )  # fmt: skip
        return Op(spec, spec.read.statements, Reference(()), found)


def _together(members: Iterable[int], kernel: Callable[[Sequence[int]], Op]) -> list[list[int]]:
    """Groups of members that one kernel computes each. Raises `SpecError` or `UserError` where a member alone has no kernel."""
    groups: list[list[int]] = []
    for member in members:
        for group in groups:
            try:
                kernel([*group, member])
            except (SpecError, UserError):
                continue
            group.append(member)
            break
        else:
            kernel([member])
            groups.append([member])
    return groups


def _demand(condition: object) -> None:
    if not condition:
        raise UserError("no kernel for this gradient of attention")
