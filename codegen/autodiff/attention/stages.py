"""The backward of attention as stages: kernels that compute values of rows, then the kernel of attention's own gradients, then kernels
for the other gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from codegen.autodiff.attention.exponentials import in_one_sum, inside
from codegen.autodiff.attention.values import KernelValues, demand
from codegen.autodiff.reverse import Backward
from codegen.errors import SpecError, UserError
from codegen.graph.names import fresh
from codegen.graph.nodes import Leaf, Node, Statement, lost_axes, topological
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
    return _Stages(op, op.plan, taken).stages()


class _Stages(KernelValues):
    """The stages of the backward of an attention op."""

    def __init__(self, op: Op, plan: Attention, taken: Collection[str]):
        super().__init__(op, plan, taken)
        self.pairs: dict[str, Node] = {}  # the terms of gradients with rows and columns, by output

    def stages(self) -> tuple[Op, Backward, Op | None, frozenset[str]]:
        """The result of `attention_backward`."""
        plan, spec = self.plan, self.spec
        weights, slopes = self.rebuilt(self.weights), self.rebuilt(self.slopes)
        if self.sums:
            raise UserError(
                f"the gradients of scores need a sum along {plan.column} that is not part of sum(d{plan.o.name} * {plan.o.name})"
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
            demand(not isinstance(last.plan, Staged))
            ops.append(last)
        kept = [*(g.name for g in gradients), *(a.name for a in pairs), *rest]
        how = self.reading(kept, [a.name for op in ops for a in op.spec.outputs])
        forward = None if how.forward is None else one_kernel(how.forward)
        lacking = frozenset(name for name, output, _ in self.reverse.results if output.name not in kept)
        return staged(how.spec, tuple(ops)), how, forward, lacking

    def reading(self, kept: Collection[str], written: Iterable[str]) -> Backward:
        """The arrays that a backward with the gradients `kept` reads and writes. Its stages write the arrays `written`; computed indices
        among these are outputs if a gradient is added at them."""
        scattered = tuple(s for s in self.how.scattered if s.output in kept)
        names = [*kept, *(name for name in written if name in {s.index for s in scattered})]
        full = self.how.spec if len(names) == len(self.how.spec.outputs) else only(self.how.spec, names)
        taken = {self.plan.o.name} - {a.name for a in full.inputs} if self.delta is not None else set()
        full = replace(full, inputs=(*full.inputs, *(a for a in self.spec.outputs if a.name in taken)))
        return replace(
            self.how, spec=full, saved=(*self.how.saved, *taken),
            inputs=tuple(a.name for a in full.inputs if a in self.spec.inputs),
            gradients=tuple(pair for pair in self.how.gradients if pair[1] in names), scattered=scattered,
        )  # fmt: skip

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
            demand(not any(both <= {*n.dims} or n.op == "contract" for n in topological([value])))
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
        """The sum over the rows, or over the columns, of an output's terms."""
        term, dims = self.rebuilt(self.sums[name]), [a for d in self.dims_of_sum(name) for a in d.names]
        lost = tuple(a for a in term.dims if a not in dims)
        return self.graph.node("sum", (term,), lost, kind="float", dims=dims)

    def dims_of_sum(self, name: str) -> tuple[Axis, ...]:
        """The axes of the sum with this name: the axes of the batch, and the row or the column."""
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
        """The spec of a stage. Its inputs are the arrays of `pool` that its statements read, directly or as one of `leaves`."""
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
