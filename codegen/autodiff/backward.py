"""An op's backward as ops of its own."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from codegen.autodiff.attention.stages import attention_backward
from codegen.autodiff.composed import Part, composed, names_of, parts_of
from codegen.autodiff.products import pull
from codegen.autodiff.reverse import Backward, Reverse
from codegen.errors import SpecError, UserError
from codegen.graph.nodes import Leaf, Node, topological
from codegen.graph.ops import TAKES
from codegen.language.reference import Reference
from codegen.plan.attention import Attention, AttentionPlan
from codegen.plan.op import Gemm, Op, Staged, stages_of
from codegen.spec.spec import Array, Spec
from codegen.stages.choose import derived, gemm_plan, one_kernel
from codegen.stages.splitting import only


@dataclass(frozen=True)
class Derived:
    """An op's backward. `how` says which arrays of the op the inputs and outputs are. `forward` is the op with more outputs, if it
    saves more than its outputs for the backward, and than what its stages write."""

    op: Op
    how: Backward
    forward: Op | None
    products: tuple[tuple[str, str], ...] = ()  # (a product that it takes, the output of `forward` that saves it)
    lacking: frozenset[str] = frozenset()  # the inputs and parameters whose gradients no kernel computes

    @functools.cached_property
    def shared(self) -> frozenset[str]:
        """The inputs and parameters with a gradient that all rows share. Their gradients are reduced over the rows."""
        rows = self.op.plan.order[0] if self.op.plan.order else None
        arrays = {a.name: a for a in self.op.spec.outputs}
        found = [*((name, arrays[dx]) for name, dx in self.how.gradients), *self.how.same]
        return frozenset(name for name, dx in found if rows not in dx.axes)

    @property
    def _of_rows(self) -> list[str]:
        """The outputs that are gradients of the other inputs, which each row has."""
        return [dx for name, dx in self.how.gradients if name not in self.shared]

    @functools.cached_property
    def copies_rows(self) -> bool:
        """Whether the gradients of the other inputs are copies of inputs of the backward, perhaps rounded. XLA makes
        such copies without a kernel."""
        values = [s.value for s in self.op.statements if s.name in self._of_rows]
        return all(not n.args or n.op == "cast" for n in topological(values))

    @property
    def idle(self) -> bool:
        """Whether no kernel runs: each gradient is a cotangent, or a cotangent is added to it by index."""
        passed, same = {output for output, _ in self.how.passed}, {name for name, _ in self.how.same}
        needed = {dx for name, dx in self.how.gradients if name not in same} | {s.index for s in self.how.scattered}
        return bool(passed) and not needed & {a.name for a in self.op.spec.outputs} - passed

    @functools.cached_property
    def frozen(self) -> Derived | None:
        """The backward for calls that need no gradient of what all rows share: weights that are not trained, for example. It
        reduces nothing over rows. None if it would be the same kernels, or would compute nothing."""
        attends = any(isinstance(stage.plan, AttentionPlan) for stage in stages_of(self.op))
        if not self.shared or self.copies_rows or attends:
            return None
        base = self.op.spec.op.removesuffix("_backward")
        summary = f"The gradients of {base}, without those that all rows share."
        try:
            op, how = _of_some(self.op.spec, self.how, self._of_rows, f"{base}_frozen", summary)
        except (SpecError, UserError):
            return None
        if isinstance(op.plan, Staged) and op.plan.kernels >= self.op.plan.kernels:
            return None
        how = replace(how, same=tuple(pair for pair in how.same if pair[0] not in self.shared))
        products = tuple(pair for pair in self.products if pair[0] in {a.name for a in op.spec.inputs})
        return Derived(op, how, self.forward, products)


_found: weakref.WeakKeyDictionary[Op, Derived | UserError] = weakref.WeakKeyDictionary()


def backward_of(op: Op) -> Derived | UserError:
    """The op's backward, or the reason why kernels cannot compute it."""
    if op not in _found:
        _found[op] = _backward_of(op)
    return _found[op]


def _backward_of(op: Op, taken: Collection[str] = ()) -> Derived | UserError:
    if op.spec.grad == "none":
        return UserError("the spec says `grad: none`")
    try:
        if parts := parts_of(op):
            with contextlib.suppress(SpecError, UserError):
                return _composed(op, parts)
        if isinstance(op.plan, Attention):
            made, how, forward, lacking = attention_backward(op, taken)
            return Derived(made, how, forward, lacking=lacking)
        if isinstance(op.plan, Gemm):
            return gemm_backward(op.spec, op.plan)
        return row_backward(op, taken)
    except SpecError as error:
        return UserError(error.diagnostics[0].message)
    except UserError as error:
        return error.without_frames()


def _composed(op: Op, parts: list[Op]) -> Derived:
    """The backward of an op, put together from the backwards of its `parts`. Raises `SpecError` or `UserError` if there is none."""
    found: list[Part] = []
    lacking, taken = frozenset[str](), set[str]()
    for part in parts:
        own = _backward_of(part, taken)
        if isinstance(own, UserError):
            raise own
        if own.products or own.lacking - {a.name for a in op.spec.inputs} - {p.name for p in op.spec.params}:
            raise UserError("no kernel computes the gradients of values that another part computes")
        lacking |= own.lacking
        found.append(Part(part, own.op, own.how, own.forward))
        taken |= names_of(found[-1], parts)
    return Derived(*composed(op.spec, found), lacking=lacking)


def _of_some(
    spec: Spec, how: Backward, names: Sequence[str], called: str = "", summary: str = ""
) -> tuple[Op, Backward]:
    """A backward with only some of its outputs, `called` by another name. Raises `SpecError` or `UserError` if no kernel can compute
    it."""
    outputs = {a.name for a in spec.outputs}
    added = tuple(s for s in how.scattered if s.output in names or s.output in dict(how.passed))
    names = [*dict.fromkeys([*names, *(s.index for s in added if s.index in outputs)])]
    own = only(spec, names)
    made = derived(replace(own, op=called or own.op, summary=summary or own.summary))
    read = {a.name for a in made.spec.inputs}
    gradients = tuple(pair for pair in how.gradients if pair[1] in names)
    how = replace(
        how,
        spec=made.spec,
        saved=tuple(name for name in how.saved if name in read),
        inputs=tuple(name for name in how.inputs if name in read),
        gradients=gradients,
        scattered=added,
    )
    return made, how


def _planned(how: Backward) -> tuple[Op, Backward]:
    """The op of a backward. It lacks outputs that equal another output or a cotangent, such as the gradients of a sum's terms.
    These are in `how.same`, and in `how.passed` if they are added by index. Raises `SpecError` or `UserError` if no kernel can
    compute it."""
    spec = how.spec

    def key(array: Array, values: Iterable[Leaf | int]) -> tuple[Any, ...]:
        return array.dtype, array.dims, tuple(values)

    cotangents, given = {dy for _, dy in how.cotangents}, {dx: name for name, dx in how.gradients}
    tables, held = {s.table for s in how.scattered}, {}
    added, passed = {s.output for s in how.scattered}, []
    for array in spec.inputs:
        if array.name in cotangents:
            parts = range(array.parts) if array.parts else (None,)
            held[key(array, (Leaf(array.name, part) for part in parts))] = array
    kept, same = [], []
    for array in spec.outputs:
        assigned = [s for s in spec.read.statements if s.name == array.name]
        values = [(s.value.attr if isinstance(s.value.attr, Leaf) else id(s.value)) for s in assigned if not s.at]
        own = key(array, values or [id(s) for s in assigned])
        source = values[0].name if len(values) == 1 and isinstance(values[0], Leaf) else None
        if array.name in added and source in cotangents and _is_whole(spec.array(source), array):
            passed.append((array.name, source))
        elif given.get(array.name) in {None, *tables}:  # a computed index; or other outputs are added to it
            kept.append(array.name)
        elif own in held:
            same.append((given[array.name], held[own]))
        else:
            held[own] = array
            kept.append(array.name)
    less = replace(how, passed=tuple(passed))
    if kept and (same or passed):
        with contextlib.suppress(SpecError, UserError):
            op, less = _of_some(spec, less, kept)
            return op, replace(less, same=tuple(same))
    if passed and not kept:
        return derived(spec), replace(less, same=tuple(same))
    return derived(spec), how


def _is_whole(cotangent: Array, array: Array) -> bool:
    """Whether a cotangent has each axis of an array, as a dimension of its own."""
    plain = all(len(dim.names) == 1 and not dim.parts for dim in cotangent.dims)
    return plain and {*cotangent.axes} == {*array.axes}


def row_backward(op: Op, taken: Collection[str] = ()) -> Derived:
    """The backward of an op that does not contract: of these, the one with the fewest kernels. It takes statistics of
    rows from the forward, if that saves a sweep; takes none; takes statistics of columns. For an op in stages, it takes
    the values that these write. If none of them can be computed, the same with the gradients of tables added up by
    index after the kernel. Raises `SpecError` or `UserError` if there is no backward."""
    spec, held = op.spec, op.plan.held if isinstance(op.plan, Staged) else ()
    takes = bool(spec.read.ops & {*TAKES})
    reasons: dict[str | None, SpecError | UserError] = {}
    for by_index in (False, True) if takes else (False,):
        try:
            reverse = Reverse(spec, by_index=by_index, held=held, taken=taken)
        except (SpecError, UserError) as reason:
            reasons.setdefault(None, reason)
            continue
        tried: list[dict[str, Node]] = []
        found: list[Derived] = []
        for statistics in _ways(op):
            try:
                chosen = reverse.saved_for(statistics)
                if chosen.values not in tried:  # else it saves the same values as an earlier one
                    tried.append(chosen.values)
                    found.append(_row_backward(op, reverse.backward(chosen)))
            except (SpecError, UserError) as reason:
                reasons.setdefault(statistics, reason)
            if found and not isinstance(found[-1].op.plan, Staged):
                return found[-1]
        if found:
            return min(found, key=lambda d: (len(stages_of(d.op)), len(_held(d.op))))
    raise next(iter(reasons.values()))


def _ways(op: Op) -> tuple[str | None, ...]:
    """The sets of values that the forward may save, besides those that the spec names. The smallest set comes first."""
    if "contract" in op.spec.read.ops:
        return "products", "products and held"
    return ("held",) if isinstance(op.plan, Staged) else ("rows", None, "columns")


def _held(op: Op) -> tuple[tuple[str, Node], ...]:
    return op.plan.held if isinstance(op.plan, Staged) else ()


def _row_backward(op: Op, how: Backward) -> Derived:
    forward = None
    if how.forward is not None:  # of no more kernels than the op
        forward = derived(how.forward) if isinstance(op.plan, Staged) else one_kernel(how.forward)
    made, how = _planned(how)
    return Derived(made, how, forward)


def gemm_backward(spec: Spec, plan: Gemm) -> Derived:
    """The backward of an op that contracts, down to the gradients of its products. The factors' gradients are products of those."""
    found = pull(spec, plan.products, plan.epilogue.spec)
    forward = None
    if found.forward is not None:
        epilogue = one_kernel(found.forward)
        forward = Op(found.forward, epilogue.statements, Reference(()), gemm_plan(plan.products, epilogue))
    op, how = _planned(found.how)
    return Derived(op, how, forward, tuple(pair for pair in found.products if pair[0] in how.inputs))
