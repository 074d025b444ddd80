"""An op's backward as ops of its own."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from codegen.autodiff.products import pull
from codegen.autodiff.reverse import Backward, Reverse
from codegen.autodiff.splitting import restricted, split
from codegen.errors import Mistake, SpecError
from codegen.graph.nodes import Leaf, topological
from codegen.graph.ops import REDUCTIONS
from codegen.language.reference import Reference
from codegen.plan.choose import derived, gemm_plan
from codegen.plan.op import Gemm, Op
from codegen.plan.reducing import waited_for
from codegen.spec.spec import Array, Spec


@dataclass(frozen=True)
class Derived:
    """An op's backward as ops: `op`, and up to three others.

    `forward` is the op with more outputs, if it saves more than its outputs for the backward. `first` runs before `op`, which
    takes its results: reductions over all rows that every row needs. `columns` computes gradients with fewer axes than the
    others, if `op` cannot. `how` says which arrays of the op the inputs and outputs are.
    """

    first: Op | None
    op: Op
    how: Backward
    forward: Op | None
    products: tuple[tuple[str, str], ...] = ()  # (a product that it takes, the output of `forward` that saves it)
    columns: Op | None = None

    @functools.cached_property
    def shared(self) -> frozenset[str]:
        """The inputs and parameters with a gradient that all rows share. Their gradients are reduced over the rows."""
        rows = self.op.plan.order[0] if self.op.plan.order else None
        arrays = {a.name: a for op in (self.op, self.columns) if op is not None for a in op.spec.outputs}
        found = [*((name, arrays[dx]) for name, dx in self.how.gradients), *self.how.same]
        return frozenset(name for name, dx in found if rows not in dx.axes)

    @property
    def _of_rows(self) -> list[str]:
        """The outputs that are gradients of the other inputs, which each row has."""
        return [dx for name, dx in self.how.gradients if name not in self.shared]

    @functools.cached_property
    def copies_rows(self) -> bool:
        """Whether the gradients of the other inputs are copies of inputs of the backward, at most rounded. XLA makes such copies
        without a kernel."""
        values = [s.value for s in self.op.statements if s.name in self._of_rows]
        return all(not n.args or n.op == "cast" for n in topological(values))

    @functools.cached_property
    def frozen(self) -> Derived | None:
        """The backward without the gradients that all rows share, such as those of weights that are not trained. It does not
        reduce over rows. None if it would be the same kernel, or would compute nothing."""
        if self.first is not None or self.columns is not None or not self.shared or self.copies_rows:
            return None
        base = self.op.spec.op.removesuffix("_backward")
        summary = f"The gradients of {base}, without those that all rows share."
        try:
            op, how = _of_some(self.op.spec, self.how, self._of_rows, f"{base}_frozen", summary)
        except (SpecError, Mistake):
            return None
        how = replace(how, same=tuple(pair for pair in how.same if pair[0] not in self.shared))
        products = tuple(pair for pair in self.products if pair[0] in {a.name for a in op.spec.inputs})
        return Derived(None, op, how, self.forward, products)


_found: weakref.WeakKeyDictionary[Op, Derived | Mistake] = weakref.WeakKeyDictionary()


def backward_of(op: Op) -> Derived | Mistake:
    """The op's backward, or the reason why kernels cannot compute it."""
    if op not in _found:
        _found[op] = _backward_of(op)
    return _found[op]


def _backward_of(op: Op) -> Derived | Mistake:
    if op.spec.grad == "none":
        return Mistake("the spec says `grad: none`")
    try:
        if isinstance(op.plan, Gemm):
            return gemm_backward(op.spec, op.plan)
        return row_backward(op.spec)
    except SpecError as error:
        return Mistake(error.diagnostics[0].message)
    except Mistake as mistake:
        return mistake


def _of_some(
    spec: Spec, how: Backward, names: Sequence[str], called: str = "", summary: str = ""
) -> tuple[Op, Backward]:
    """A backward with only some of its outputs, `called` by another name. Raises `SpecError` or `Mistake` if no kernel can compute
    it."""
    own = _only(spec, names)
    made = derived(replace(own, op=called or own.op, summary=summary or own.summary))
    read = {a.name for a in made.spec.inputs}
    gradients = tuple(pair for pair in how.gradients if pair[1] in names)
    how = replace(
        how,
        spec=made.spec,
        saved=tuple(name for name in how.saved if name in read),
        inputs=tuple(name for name in how.inputs if name in read),
        gradients=gradients,
        scattered=tuple(s for s in how.scattered if s.output in names),
    )
    return made, how


def _only(spec: Spec, names: Collection[str]) -> Spec:
    """A spec with only some of its outputs."""
    statements = spec.read.statements
    outputs = [a for a in spec.outputs if a.name in names]
    assigned = [s for s in statements if s.name in names]
    values = {id(s.value): s.name for s in reversed(statements) if s.part is None}
    title = f"{spec.source.path} ({', '.join(names)})"
    return restricted(spec, title, assigned, outputs, [], values, {}, spec.read.graph.calls)


def _once(op: Op, how: Backward) -> tuple[Op, Backward]:
    """A backward without outputs that equal another output or a cotangent, such as the gradients of a sum's terms. Those are in
    `how.same`."""

    def key(array: Array, values: Iterable[Leaf | int]) -> tuple:
        return array.dtype, array.dims, tuple(values)

    cotangents, given = {dy for _, dy in how.cotangents}, {dx: name for name, dx in how.gradients}
    tables, held = {s.table for s in how.scattered}, {}
    for array in op.spec.inputs:
        if array.name in cotangents:
            parts = range(array.parts) if array.parts else (None,)
            held[key(array, (Leaf(array.name, part) for part in parts))] = array
    kept, same = [], []
    for array in op.spec.outputs:
        values = [s.value for s in op.statements if s.name == array.name]
        own = key(array, (v.attr if isinstance(v.attr, Leaf) else id(v) for v in values))
        if given[array.name] in tables:  # other outputs are added to it
            kept.append(array.name)
        elif own in held:
            same.append((given[array.name], held[own]))
        else:
            held[own] = array
            kept.append(array.name)
    if not kept or not same:
        return op, how
    try:
        op, how = _of_some(op.spec, how, kept)
    except (SpecError, Mistake):
        return op, how
    return op, replace(how, same=tuple(same))


def _in_parts(spec: Spec) -> tuple[Op | None, Op, Op | None]:
    """The ops `first`, `op` and `columns` of a backward (`Derived`). Raises `SpecError`."""
    try:
        return None, *_with_columns(spec)
    except SpecError:
        statements = spec.read.statements
        waited = waited_for(spec, statements)
        if not waited:
            raise
        first, then = split(spec, statements, waited)
        name = f"{spec.op.removesuffix('_backward')}_first"
        first = replace(first, op=name, summary=f"The reductions over all rows that {spec.op} takes.")
        return derived(first), *_with_columns(then)


def _with_columns(spec: Spec) -> tuple[Op, Op | None]:
    """A backward as one op, or as two if one kernel cannot compute it with its outputs of fewer axes. The second computes those;
    first without the ones that are reductions, which `op` may compute. Raises `SpecError`."""
    try:
        return derived(spec), None
    except SpecError as error:
        most = max((a.axes for a in spec.outputs), key=len)
        reduced = {s.name for s in spec.read.statements if any(n.op in REDUCTIONS for n in topological([s.value]))}
        fewer = tuple(a.name for a in spec.outputs if a.axes != most)
        name, summary = f"{spec.op.removesuffix('_backward')}_columns", f"The gradients of {spec.op} with fewer axes."
        for names in dict.fromkeys((tuple(n for n in fewer if n not in reduced), fewer)):
            if not names:
                continue
            with contextlib.suppress(SpecError, Mistake):
                columns = _only(spec, names)
                others = _only(spec, [a.name for a in spec.outputs if a.name not in names])
                if columns.computes_as(spec) and others.computes_as(spec):
                    # It takes all parameters, since the caller takes the other op's values from them
                    made = derived(replace(others, params=spec.params))
                    return made, derived(replace(columns, op=name, summary=summary))
        raise error


def row_backward(spec: Spec) -> Derived:
    """The backward of an op that does not contract: the first of these that kernels can compute. It takes statistics of rows from
    the forward, if that saves a sweep; takes none; takes statistics of columns. Then the same, with the gradients of tables
    added up by index after the kernel. Raises `SpecError` or `Mistake` if there is none."""
    takes = any(n.op == "take" for n in spec.read.nodes)
    reasons: dict[str | None, SpecError | Mistake] = {}
    for by_index in (False, True) if takes else (False,):
        try:
            reverse = Reverse(spec, by_index=by_index)
        except (SpecError, Mistake) as reason:
            reasons.setdefault(None, reason)
            continue
        tried: set[tuple[str, ...]] = set()
        for statistics in ("rows", None, "columns"):
            try:
                how = reverse.backward(statistics)
                if how.saved not in tried:  # else it saves the same values as an earlier one
                    tried.add(how.saved)
                    return _row_backward(how)
            except (SpecError, Mistake) as reason:
                reasons.setdefault(statistics, reason)
    raise reasons.get(None) or reasons["rows"]


def _row_backward(how: Backward) -> Derived:
    forward = derived(how.forward) if how.forward else None
    first, op, columns = _in_parts(how.spec)
    if first is None and columns is None:
        op, how = _once(op, how)
    return Derived(first, op, how, forward, columns=columns)


def gemm_backward(spec: Spec, plan: Gemm) -> Derived:
    """The backward of an op that contracts, down to the gradients of its products. The factors' gradients are products of those."""
    found = pull(spec, plan.products, plan.epilogue.spec)
    forward = None
    if found.forward is not None:
        epilogue = derived(found.forward)
        forward = Op(found.forward, epilogue.statements, Reference(()), gemm_plan(plan.products, epilogue))
    op, how = _once(derived(found.how.spec), found.how)
    return Derived(None, op, how, forward, tuple(pair for pair in found.products if pair[0] in how.inputs))
