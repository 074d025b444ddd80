"""The backward of attention among other stages, from the backwards of its parts: the chain that computes q, k and v, such as
norms and rotations; attention, perhaps several; and the chain that follows, such as a gate, a projection or a difference.

The gradients of what one part computes for a later one are outputs of the later part's backward, and cotangents of its own. What
several parts read has the sum of their gradients.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from codegen.autodiff.reverse import Backward
from codegen.errors import UserError
from codegen.graph.names import fresh
from codegen.graph.nodes import Graph, Leaf, Node, Statement, topological
from codegen.language.transfer import Values, derived_spec, joined_spec
from codegen.plan.attention import Attention
from codegen.plan.op import Op, Staged, stages_of
from codegen.spec.spec import Array, Param, Spec
from codegen.stages.choose import derived, one_kernel, staged
from codegen.stages.rewriting import rewritten
from codegen.stages.splitting import restricted


@dataclass(frozen=True)
class Part:
    """Some stages of an op: the op that they are, its backward and how that reads its arrays, and its forward with more outputs."""

    op: Op
    backward: Op
    how: Backward
    forward: Op | None

    @property
    def run(self) -> Op:
        return self.forward or self.op


def parts_of(op: Op) -> list[Op]:
    """The parts of an op with stages that are attention: the chain that computes the values that these read, if any; the
    stages; the chain that computes the outputs from their results, if the stages do not write them. Empty for other ops."""
    plan, spec = op.plan, op.spec
    stages = plan.stages if isinstance(plan, Staged) and not plan.summed else (op,)
    attends = [stage for stage in stages if isinstance(stage.plan, Attention)]
    if spec.save or spec.grad != "auto" or not attends:
        return []
    outputs, held = {a.name for a in spec.outputs}, dict(plan.held) if isinstance(plan, Staged) else {}
    own = {a.name: a for stage in attends for a in stage.spec.outputs}
    between = {a.name: a for stage in attends for a in stage.spec.inputs if a.name in held}
    before = {id(n) for n in topological(held[name] for name in between)}
    ahead = _before([stage for stage in stages if stage not in attends], held, before)
    later = [stage for stage in stages if stage not in (*attends, *ahead)]
    earlier = {a.name for stage in stages if stage not in (*attends, *later) for a in stage.spec.outputs}
    if any(id(held.get(name)) in before for name in own) or earlier & outputs:
        return []
    computed = {name: held[name] for name in between}
    for i, stage in enumerate(attends):
        if (found := _with_values_apart(stage, {*own, *between, *(a.name for a in spec.inputs)})) is not None:
            attends[i], values, keys, name = found
            between[values.name] = values
            computed[values.name] = held.get(name, keys)
    if len(stages) == 1 and not computed:
        return []
    parts = [_rounding_once(stage) for stage in attends]
    if computed:
        statements = [Statement(name, None, value) for name, value in computed.items()]
        parts.insert(0, _part(spec, "before", statements, [*between.values()], [], {}))
    if later:
        leaves = {id(held[name]): Leaf(name) for name in own if name in held}
        statements = [s for s in spec.read.statements if s.name in outputs - {*own}]
        ready = {id(s.value) for s in spec.read.statements if s.name in own}
        if any(
            id(n) in ready - {*leaves} for n in topological((s.value for s in statements), lambda n: id(n) in leaves)
        ):
            return []  # an output that attention writes would have gradients of later stages too
        last = [a for a in spec.outputs if a.name not in own]
        parts.append(_part(spec, "after", statements, last, [a for a in own.values() if a.name in held], leaves))
    return parts


def _with_values_apart(op: Op, taken: set[str]) -> tuple[Op, Array, Node, str] | None:
    """Attention whose keys are its values too, as an op with a copy of these: that op, the copy, the keys, and their name. Gradients
    are then those of two arrays. None for other attention."""
    plan = op.plan
    assert isinstance(plan, Attention)
    if plan.k != plan.v or plan.pages:
        return None
    copy = replace(plan.v, name=fresh(taken, f"{plan.v.name}_values"), span=None)
    second = [n for n in op.spec.read.nodes if n.op == "contract"][1]
    keys = next((n for n in second.args if n.attr == Leaf(plan.v.name)), None)
    if keys is None:
        return None

    def apart(graph: Graph, node: Node, args: tuple[Node, ...]) -> Node | None:
        if node is not second:
            return None
        own = graph.node("input", attr=Leaf(copy.name), kind="float", dims=keys.dims)
        pair = tuple(own if n is keys else made for n, made in zip(node.args, args, strict=True))
        return graph.node("contract", pair, node.attr, kind="float", dims=node.dims)

    made = rewritten(op.spec, apart, "values apart")
    return one_kernel(replace(made, inputs=(*made.inputs, copy))), copy, keys, plan.k.name


def _before(stages: Sequence[Op], held: Mapping[str, Node], before: Collection[int]) -> list[Op]:
    """The stages that write nothing but values needed before attention. `before` has the identities of these values. A value that
    only such a stage reads counts too: the elements of a selection, of which a later stage takes the smallest."""
    found, read = list[Op](), set[str]()
    for stage in reversed(stages):
        if all(a.name in read or (a.name in held and id(held[a.name]) in before) for a in stage.spec.outputs):
            found.append(stage)
            read |= {a.name for a in stage.spec.inputs}
    return found


def _rounding_once(attention: Op) -> Op:
    """Attention whose result is rounded as it is stored, without a `cast` of the chain: its cotangent has the same type."""
    spec = replace(attention.spec, grad="auto")
    dtypes = {a.name: a.dtype for a in spec.outputs}
    statements = [
        replace(s, value=s.value.args[0]) if s.value.op == "cast" and s.value.attr == dtypes.get(s.name) else s
        for s in attention.statements
        if s.name in dtypes
    ]
    if all(s in attention.statements for s in statements):
        return replace(attention, spec=spec)
    values = Values(tuple(statements), spec.read.graph.calls)
    return one_kernel(restricted(spec, spec.source.path, values, list(spec.outputs)))


def _part(
    spec: Spec,
    name: str,
    statements: list[Statement],
    outputs: list[Array],
    more: list[Array],
    leaves: Mapping[int, Leaf],
) -> Op:
    names = {id(s.value): s.name for s in reversed(spec.read.statements) if s.part is None}
    title = f"{spec.op} ({', '.join(a.name for a in outputs)})"
    own = replace(spec, aliases=(), tolerance=(), domain=(), bench=(), schedule=())
    values = Values(tuple(statements), spec.read.graph.calls, names, leaves)
    made = restricted(own, title, values, outputs, more)
    return derived(replace(made, op=f"{spec.op}_{name}"))


def composed(spec: Spec, parts: Sequence[Part]) -> tuple[Op, Backward, Op]:
    """The backward of an op of several parts, how it reads the op's arrays, and the forward that saves what it takes. Raises `UserError`
    or `SpecError` if the backwards of the parts do not fit together."""
    inner = {a.name for part in parts for a in part.op.spec.outputs} - {a.name for a in spec.outputs}
    given = _Given(spec, parts, inner)
    ops: list[Op] = []
    specs: list[Spec] = []
    for part in reversed(parts):
        for op in (*given.sums_for(part), part.backward):
            ops += stages_of(op)
            specs.append(part.how.spec if op is part.backward else op.spec)
    gradients, more = given.of_inputs()
    ops += more
    specs += [op.spec for op in more]
    arrays = given.arrays | {a.name: a for part in parts for a in (*part.how.spec.arrays, *part.run.spec.arrays)}
    own, made_before = {a.name for a in spec.inputs}, {a.name for one in specs for a in one.outputs}
    cotangents = given.cotangents
    outer = {dy for _, dy in cotangents}
    taken = dict.fromkeys(a for one in specs for a in one.inputs if a.name not in made_before)
    saved = [a for a in taken if a.name not in own | outer]
    inputs = [a for a in spec.inputs if a in taken]
    common = own | inner | outer | {dy for part in parts for _, dy in part.how.cotangents}
    _demand_names(parts, common | {a.name for a in saved})
    used = {p.name for one in specs for p in one.params}
    params = tuple[Param, ...](p for p in spec.params if p.name in used)
    made = replace(
        spec.plain(), op=f"{spec.op}_backward", summary=f"The gradients of {spec.op}.",
        inputs=(*(arrays[dy] for _, dy in cotangents), *saved, *inputs), outputs=tuple(arrays[dx] for _, dx in gradients),
        params=params, schedule=(),
    )  # fmt: skip
    made = joined_spec(made, f"{spec.path} (backward)", specs)
    more_outputs = [a for a in saved if a.name not in {o.name for o in spec.outputs}]
    forward = replace(
        spec, op=f"{spec.op}_forward", outputs=(*spec.outputs, *more_outputs), grad="none", save=(), bench=(),
        for_backward=tuple(a.name for a in more_outputs),
    )  # fmt: skip
    forward = joined_spec(forward, f"{spec.path} (forward)", [part.run.spec for part in parts])
    names = tuple(a.name for a in saved), tuple(a.name for a in inputs)
    how = Backward(made, forward, cotangents, *names, tuple(gradients), same=given.same)
    runs = staged(forward, tuple(stage for part in parts for stage in stages_of(part.run)))
    return staged(made, tuple(ops)), how, runs


class _Given:
    """The gradients that the parts of an op give: of its inputs and parameters, and of the values that parts compute for
    others (`inner`). Where several parts give the gradient of one array, another kernel adds them."""

    def __init__(self, spec: Spec, parts: Sequence[Part], inner: Collection[str]):
        backwards = [part.how for part in reversed(parts)]
        if any(how.same for how in backwards[1:]) or any(how.scattered for how in backwards):
            raise UserError("the gradients of one array come from several parts")
        self.spec, self.inner = spec, inner
        self.arrays = {a.name: a for how in backwards for a in how.spec.arrays}
        self.taken = {a.name for part in parts for op in _all_stages(part) for a in op.spec.arrays}
        self.cotangents = tuple(pair for how in backwards for pair in how.cotangents if pair[0] not in inner)
        self.terms: dict[str, list[str]] = {}
        for x, dx in [pair for how in backwards for pair in how.gradients]:
            self.terms.setdefault(x, []).append(dx)
        alone = [x for x, _ in backwards[0].same if x not in self.terms and x not in inner]
        self.same = tuple(pair for pair in backwards[0].same if pair[0] in alone)
        for x, array in backwards[0].same:
            if x not in alone:
                self.terms.setdefault(x, []).append(array.name)

    def sums_for(self, part: Part) -> list[Op]:
        """The kernels that write the cotangents of a part which no other part writes."""
        found: list[Op] = []
        for y, dy in part.how.cotangents:
            if y in self.inner:
                if not (terms := self.terms.get(y)):
                    raise UserError(f"no part gives the gradient of {y}")
                found += [] if terms == [dy] else [self.sum_of(terms, self.arrays[dy])]
        return found

    def of_inputs(self) -> tuple[list[tuple[str, str]], list[Op]]:
        """The gradients of inputs and parameters, with the names of their arrays, and the kernels that add up those of several
        parts."""
        order = [a.name for a in self.spec.inputs] + [p.name for p in self.spec.params]
        found, ops = list[tuple[str, str]](), list[Op]()
        for x in sorted(self.terms.keys() - self.inner, key=order.index):
            name = self.terms[x][0]
            if len(self.terms[x]) > 1:
                array = replace(self.arrays[name], name=fresh(self.taken, f"d{x}"))
                self.arrays[array.name], name = array, array.name
                ops.append(self.sum_of(self.terms[x], array))
            found.append((x, name))
        return found, ops

    def sum_of(self, terms: Sequence[str], result: Array) -> Op:
        """The kernel that adds up gradients."""
        graph = self.spec.read.graph.fork()
        nodes = [graph.node("input", attr=Leaf(n), kind="float", dims=self.arrays[n].axes) for n in terms]
        value = functools.reduce(functools.partial(graph.elementwise, "add"), nodes)
        own = replace(
            self.spec.plain(), op=f"{self.spec.op}_{result.name}", summary="The sum of some gradients.", params=(), schedule=(),
            inputs=tuple(self.arrays[name] for name in dict.fromkeys(terms)), outputs=(result,),
        )  # fmt: skip
        values = Values((Statement(result.name, None, value),), graph.calls)
        return one_kernel(derived_spec(own, f"{self.spec.path} (backward)", values, self.taken))


def names_of(part: Part, parts: Sequence[Op]) -> set[str]:
    """The names that the kernels of a part give, and no other part may. A cotangent has the name that its only reader gives the
    gradient."""
    readers = Counter(a.name for op in parts for a in op.spec.inputs)
    names = {a.name for op in _all_stages(part) for a in op.spec.arrays}
    return names - {dy for y, dy in part.how.cotangents if readers[y] == 1}


def _all_stages(part: Part) -> tuple[Op, ...]:
    return *stages_of(part.run), *stages_of(part.backward)


def _demand_names(parts: Sequence[Part], common: set[str]) -> None:
    """Raises `UserError` if the kernels of two parts give one name to two arrays."""
    met: set[str] = set()
    for part in parts:
        names = {a.name for op in _all_stages(part) for a in op.spec.arrays} - common
        if found := names & met:
            raise UserError(f"two values have the name {min(found)!r}")
        met |= names
