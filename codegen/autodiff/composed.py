"""The backward of attention whose q, k or v are computed, such as normalised or rotated ones, from the backwards of its parts.

The op is `before`, which computes them, and then `attention`. The gradients of what `before` computes are outputs of the stages of
attention's backward, and cotangents of the backward of `before`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from codegen.autodiff.reverse import Backward
from codegen.errors import UserError
from codegen.graph.nodes import Statement
from codegen.language.transfer import joined_spec
from codegen.plan.attention import Attention
from codegen.plan.op import Op, Staged
from codegen.spec.spec import Param, Spec
from codegen.stages.choose import derived, staged
from codegen.stages.splitting import restricted


@dataclass(frozen=True)
class Half:
    """One of the two parts: its op, its backward and how that reads its arrays, and its forward with more outputs."""

    op: Op
    backward: Op
    how: Backward
    forward: Op | None

    @property
    def run(self) -> Op:
        return self.forward or self.op

    @property
    def stages(self) -> tuple[Op, ...]:
        """The kernels of the backward, without outputs that nothing takes."""
        return _stages(self.backward)


def halves_of(op: Op) -> tuple[Op, Op] | None:
    """What computes q, k and v, and attention, of an op whose last stage is attention that writes all of its outputs."""
    plan, spec = op.plan, op.spec
    if not isinstance(plan, Staged) or spec.save or spec.grad != "auto":
        return None
    last = plan.stages[-1]
    written = {a.name for stage in plan.stages[:-1] for a in stage.spec.outputs}
    if not isinstance(last.plan, Attention) or written & {a.name for a in spec.outputs}:
        return None
    held = dict(plan.held)
    between = [a for a in last.spec.inputs if a.name in held]
    statements = [Statement(a.name, None, held[a.name]) for a in between]
    names = {id(s.value): s.name for s in reversed(spec.read.statements) if s.part is None}
    title = f"{spec.op} ({', '.join(a.name for a in between)})"
    own = replace(spec, aliases=(), tolerance=(), domain=(), bench=(), schedule=())
    made = restricted(own, title, statements, between, [], names, {}, spec.read.graph.calls)
    before = derived(replace(made, op=f"{spec.op}_before"))
    return before, replace(last, spec=replace(last.spec, grad="auto"))


def composed(spec: Spec, before: Half, attention: Half) -> tuple[Op, Backward, Op]:
    """The backward of an op of two halves, how it reads the op's arrays, and the forward that saves what it takes. Raises `UserError`
    or `SpecError` if the backwards of the halves do not fit together."""
    between = {a.name for a in before.op.spec.outputs}
    given = {dx: x for x, dx in attention.how.gradients}
    joints = {given[dy]: dy for _, dy in before.how.cotangents if dy in given}
    gradients = [pair for pair in (*attention.how.gradients, *before.how.gradients) if pair[0] not in between]
    fits = {y for y, _ in before.how.cotangents} == joints.keys() and all(
        joints[y] == dy for y, dy in before.how.cotangents
    )
    once = len({x for x, _ in gradients}) == len(gradients) and not (before.how.same or attention.how.same)
    if not fits or not once or before.how.scattered or attention.how.scattered:
        raise UserError("gradients of what attention multiplies, and of what its scores read, are added up")
    order = [a.name for a in spec.inputs] + [p.name for p in spec.params]
    gradients.sort(key=lambda pair: order.index(pair[0]))
    arrays = {a.name: a for half in (before, attention) for a in (*half.how.spec.arrays, *half.run.spec.arrays)}
    inner = {dy for _, dy in before.how.cotangents}
    taken = [*attention.how.spec.inputs, *(a for a in before.how.spec.inputs if a.name not in inner)]
    own = {a.name for a in spec.inputs}
    cotangents = attention.how.cotangents
    saved = [a for a in dict.fromkeys(taken) if a.name not in own and a.name not in {dy for _, dy in cotangents}]
    inputs = [a for a in spec.inputs if a.name in {t.name for t in taken}]
    _demand_names(before, attention, {*own, *between, *inner, *(a.name for a in saved)})
    made = replace(
        spec, op=f"{spec.op}_backward", summary=f"The gradients of {spec.op}.",
        inputs=(*(arrays[dy] for _, dy in cotangents), *saved, *inputs), outputs=tuple(arrays[dx] for _, dx in gradients),
        params=_params(spec, before.how.spec, attention.how.spec), grad="none", aliases=(), save=(), tolerance=(), domain=(),
        schedule=(), bench=(),
    )  # fmt: skip
    made = joined_spec(made, f"{spec.path} (backward)", (attention.how.spec, before.how.spec))
    more = [a for a in saved if a.name not in {o.name for o in spec.outputs}]
    forward = replace(
        spec, op=f"{spec.op}_forward", outputs=(*spec.outputs, *more), grad="none", save=(), bench=(),
        for_backward=tuple(a.name for a in more),
    )  # fmt: skip
    forward = joined_spec(forward, f"{spec.path} (forward)", (before.run.spec, attention.run.spec))
    how = Backward(
        made, forward, cotangents, tuple(a.name for a in saved), tuple(a.name for a in inputs), tuple(gradients)
    )
    runs = staged(forward, (*_stages(before.run), *_stages(attention.run)))
    return staged(made, (*attention.stages, *before.stages)), how, runs


def _stages(op: Op) -> tuple[Op, ...]:
    return op.plan.stages if isinstance(op.plan, Staged) else (op,)


def _params(spec: Spec, *parts: Spec) -> tuple[Param, ...]:
    used = {p.name for part in parts for p in part.params}
    return tuple(p for p in spec.params if p.name in used)


def _demand_names(before: Half, attention: Half, common: set[str]) -> None:
    """Raises `UserError` if the halves' kernels give one name to two arrays."""

    def names(half: Half) -> set[str]:
        ops = (*_stages(half.run), *half.stages)
        return {a.name for op in ops for a in op.spec.arrays} - common

    if found := names(before) & names(attention):
        raise UserError(f"two values have the name {min(found)!r}")
