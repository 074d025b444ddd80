"""The backward of attention among other stages, from the backwards of its three parts: the chain that computes q, k and v, such as
norms and rotations; attention; and the chain that follows it, such as a gate or a projection.

The gradients of what one part computes for a later one are outputs of the later part's backward, and cotangents of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from codegen.autodiff.reverse import Backward
from codegen.errors import UserError
from codegen.graph.nodes import Leaf, Statement
from codegen.language.transfer import joined_spec
from codegen.plan.attention import Attention
from codegen.plan.op import Op, Staged
from codegen.spec.spec import Array, Param, Spec
from codegen.stages.choose import derived, one_kernel, staged
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
    """The parts of an op with a stage that is attention: the chain that computes the values that this stage reads, if any; the
    stage; the chain that computes the outputs from its result, if the stage does not write them. Empty for other ops."""
    plan, spec = op.plan, op.spec
    if not isinstance(plan, Staged) or plan.summed or spec.save or spec.grad != "auto":
        return []
    places = [i for i, stage in enumerate(plan.stages) if isinstance(stage.plan, Attention)]
    outputs = {a.name for a in spec.outputs}
    if len(places) != 1:
        return []
    at, held = plan.stages[places[0]], dict(plan.held)
    earlier = {a.name for stage in plan.stages[: places[0]] for a in stage.spec.outputs}
    later = {a.name for stage in plan.stages[places[0] + 1 :] for a in stage.spec.outputs}
    own = {a.name for a in at.spec.outputs}
    if earlier & outputs or (own if later else later) & outputs:
        return []
    found = [_rounding_once(at)]
    if between := [a for a in at.spec.inputs if a.name in held]:
        statements = [Statement(a.name, None, held[a.name]) for a in between]
        found.insert(0, _part(spec, "before", statements, between, [], {}))
    if later:
        leaves = {id(held[a.name]): Leaf(a.name) for a in at.spec.outputs}
        statements = [s for s in spec.read.statements if s.name in outputs]
        found.append(_part(spec, "after", statements, list(spec.outputs), list(at.spec.outputs), leaves))
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
    calls = spec.read.graph.calls
    return one_kernel(restricted(spec, spec.source.path, statements, list(spec.outputs), [], {}, {}, calls))


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
    made = restricted(own, title, statements, outputs, more, names, leaves, spec.read.graph.calls)
    return derived(replace(made, op=f"{spec.op}_{name}"))


def composed(spec: Spec, parts: Sequence[Part]) -> tuple[Op, Backward, Op]:
    """The backward of an op of several parts, how it reads the op's arrays, and the forward that saves what it takes. Raises `UserError`
    or `SpecError` if the backwards of the parts do not fit together."""
    backwards = [part.how for part in reversed(parts)]
    inner = {a.name for part in parts[:-1] for a in part.op.spec.outputs}
    pairs = [pair for how in backwards for pair in how.gradients]
    gradients, joints = [p for p in pairs if p[0] not in inner], [p for p in pairs if p[0] in inner]
    needed = [pair for how in backwards[1:] for pair in how.cotangents]
    same = backwards[0].same  # the gradients that are cotangents of the op
    names = [x for x, _ in (*gradients, *same)]
    once = len(set(names)) == len(names) and not set(names) & inner
    other = any(how.same for how in backwards[1:]) or any(how.scattered for how in backwards)
    if sorted(joints) != sorted(needed) or not once or other:
        raise UserError("the gradients of one array come from several parts")
    order = [a.name for a in spec.inputs] + [p.name for p in spec.params]
    gradients.sort(key=lambda pair: order.index(pair[0]))
    arrays = {a.name: a for part in parts for a in (*part.how.spec.arrays, *part.run.spec.arrays)}
    own, handed = {a.name for a in spec.inputs}, {dy for _, dy in joints}
    cotangents = backwards[0].cotangents
    given = {dy for _, dy in cotangents}
    taken = dict.fromkeys(a for how in backwards for a in how.spec.inputs if a.name not in handed)
    saved = [a for a in taken if a.name not in own | given]
    inputs = [a for a in spec.inputs if a in taken]
    _demand_names(parts, own | inner | handed | {a.name for a in saved})
    used = {p.name for how in backwards for p in how.spec.params}
    params = tuple[Param, ...](p for p in spec.params if p.name in used)
    made = replace(
        spec, op=f"{spec.op}_backward", summary=f"The gradients of {spec.op}.",
        inputs=(*(arrays[dy] for _, dy in cotangents), *saved, *inputs), outputs=tuple(arrays[dx] for _, dx in gradients),
        params=params, grad="none", aliases=(), save=(), tolerance=(), domain=(), schedule=(), bench=(),
    )  # fmt: skip
    made = joined_spec(made, f"{spec.path} (backward)", [how.spec for how in backwards])
    more = [a for a in saved if a.name not in {o.name for o in spec.outputs}]
    forward = replace(
        spec, op=f"{spec.op}_forward", outputs=(*spec.outputs, *more), grad="none", save=(), bench=(),
        for_backward=tuple(a.name for a in more),
    )  # fmt: skip
    forward = joined_spec(forward, f"{spec.path} (forward)", [part.run.spec for part in parts])
    how = Backward(
        made,
        forward,
        cotangents,
        tuple(a.name for a in saved),
        tuple(a.name for a in inputs),
        tuple(gradients),
        same=same,
    )
    runs = staged(forward, tuple(stage for part in parts for stage in _stages(part.run)))
    return staged(made, tuple(stage for part in reversed(parts) for stage in _stages(part.backward))), how, runs


def _stages(op: Op) -> tuple[Op, ...]:
    return op.plan.stages if isinstance(op.plan, Staged) else (op,)


def _demand_names(parts: Sequence[Part], common: set[str]) -> None:
    """Raises `UserError` if the kernels of two parts give one name to two arrays."""
    met: set[str] = set()
    for part in parts:
        ops = (*_stages(part.run), *_stages(part.backward))
        names = {a.name for op in ops for a in op.spec.arrays} - common
        if found := names & met:
            raise UserError(f"two values have the name {min(found)!r}")
        met |= names
