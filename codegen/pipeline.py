"""From a spec's text to everything known about the op: the stages, in order."""

from __future__ import annotations

import ast
import contextlib
import functools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from codegen import gemms, plan, reducing
from codegen.autodiff import Backward, Reverse
from codegen.chain import read_chain
from codegen.check import check
from codegen.errors import Diagnostic, Mistake, SpecError
from codegen.gemms import Gemm
from codegen.in_place import why_not
from codegen.ir import Leaf, Statement, topological
from codegen.notices import notices
from codegen.ops import REDUCTIONS
from codegen.plan import Elementwise
from codegen.reducing import waited_for
from codegen.reductions import Reduction
from codegen.reference import Reference, read_reference
from codegen.scope import make_scope
from codegen.spec import Array, Spec
from codegen.specfile import read_spec
from codegen.statements import Placed, read_lines
from codegen.tiles import Product, tile_of
from codegen.waiting import restricted, split


@dataclass(frozen=True)
class Op:
    """Everything known about an op once its spec is read: what all later stages take."""

    spec: Spec
    statements: tuple[Statement, ...]
    reference: Reference
    plan: Elementwise | Reduction | Gemm

    @property
    def notices(self) -> list[Diagnostic]:
        """What a build says of the spec, though it is right."""
        return list(notices(self.spec, self.statements))

    @functools.cached_property
    def backward(self) -> Derived | Mistake:
        """The op's backward as an op of its own, or why it has none that is a kernel."""
        if self.spec.grad == "none":
            return Mistake("the spec says `grad: none`")
        try:
            if isinstance(self.plan, Gemm):
                return gemm_backward(self.spec, self.plan)
            return row_backward(self.spec)
        except SpecError as error:
            return Mistake(error.diagnostics[0].message)
        except Mistake as mistake:
            return mistake


@dataclass(frozen=True)
class Derived:
    """An op's backward, and how it stands to the op; where the op keeps more for it than its outputs, its `forward`; where all
    rows need what is folded over all rows, the op that is run `first` and gives that, which `op` takes as further inputs; where
    some gradients have fewer axes than others and nothing is folded for them, the op `beside` that gives those."""

    first: Op | None
    op: Op
    how: Backward
    forward: Op | None
    products: tuple[tuple[str, str], ...] = ()  # (a product that it takes, the output of `forward` that keeps it)
    beside: Op | None = None

    @functools.cached_property
    def shared(self) -> frozenset[str]:
        """What all rows share of what it gives gradients of: those are folded over the rows."""
        rows = self.op.plan.order[0] if self.op.plan.order else None
        arrays = {a.name: a for op in (self.op, self.beside) if op is not None for a in op.spec.outputs}
        found = [*((name, arrays[dx]) for name, dx in self.how.gradients), *self.how.same]
        return frozenset(name for name, dx in found if rows not in dx.axes)

    @property
    def _of_rows(self) -> list[str]:
        """Its outputs that are gradients of the rest."""
        return [dx for name, dx in self.how.gradients if name not in self.shared]

    @functools.cached_property
    def hands_on(self) -> bool:
        """Whether the gradients of the rest are what it reads, at most rounded: XLA gives them without a kernel."""
        values = [s.value for s in self.op.statements if s.name in self._of_rows]
        return all(not n.args or n.op == "cast" for n in topological(values))

    @functools.cached_property
    def frozen(self) -> Derived | None:
        """The backward where nothing is asked of what all rows share (weights that are not trained, parameters that are
        constants): nothing is folded over rows. None where that is no other kernel, or none that computes anything."""
        if self.first is not None or self.beside is not None or not self.shared or self.hands_on:
            return None
        base = self.op.spec.op.removesuffix("_backward")
        summary = f"The gradients of {base} but of what all rows share."
        try:
            op, how = _of_some(self.op.spec, self.how, self._of_rows, f"{base}_frozen", summary)
        except (SpecError, Mistake):
            return None
        how = replace(how, same=tuple(pair for pair in how.same if pair[0] not in self.shared))
        products = tuple(pair for pair in self.products if pair[0] in {a.name for a in op.spec.inputs})
        return Derived(None, op, how, self.forward, products)


def _of_some(
    spec: Spec, how: Backward, names: Sequence[str], called: str = "", summary: str = ""
) -> tuple[Op, Backward]:
    """A backward that gives only some of its outputs, `called` by another name. Raises `SpecError` or `Mistake` where that is no
    kernel."""
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
    scope = make_scope(spec)
    statements = read_chain(spec, scope, whole=False)
    outputs = [a for a in spec.outputs if a.name in names]
    assigned = [s for s in statements if s.name in names]
    values = {id(s.value): s.name for s in reversed(statements) if s.part is None}
    title = f"{spec.source.path} ({', '.join(names)})"
    return restricted(spec, title, assigned, outputs, [], values, {}, scope.graph.calls)


def _once(op: Op, how: Backward) -> tuple[Op, Backward]:
    """A backward that gives nothing twice, and no cotangent as it is: those are `same`, as the gradients of a sum's terms."""

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
        if given[array.name] in tables:  # others are added to it
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


def _in_turns(spec: Spec) -> tuple[Op | None, Op, Op | None]:
    """A backward as one op, if a kernel can do that, else with one that runs first, or one beside it, or both. Raises
    `SpecError`."""
    try:
        return None, *_with_one_beside(spec)
    except SpecError:
        statements = read_chain(spec, whole=False)
        waited = waited_for(spec, statements)
        if not waited:
            raise
        first, then = split(spec, statements, waited)
        name = f"{spec.op.removesuffix('_backward')}_first"
        first = replace(first, op=name, summary=f"What {spec.op} takes of all rows.")
        return derived(first), *_with_one_beside(then)


def _with_one_beside(spec: Spec) -> tuple[Op, Op | None]:
    """A backward as one op, or where outputs of fewer axes are in its way, for which it may have nothing to fold, as two. Raises
    `SpecError`."""
    try:
        return derived(spec), None
    except SpecError as error:
        most = max((a.axes for a in spec.outputs), key=len)
        folded = {
            s.name for s in read_chain(spec, whole=False) if any(n.op in REDUCTIONS for n in topological([s.value]))
        }
        fewer = tuple(a.name for a in spec.outputs if a.axes != most)
        name, summary = f"{spec.op.removesuffix('_backward')}_beside", f"What {spec.op} gives of columns."
        for names in dict.fromkeys((tuple(n for n in fewer if n not in folded), fewer)):
            if not names:
                continue
            beside = _only(spec, names)
            others = _only(spec, [a.name for a in spec.outputs if a.name not in names])
            if beside.computes_as(spec) and others.computes_as(spec):
                with contextlib.suppress(SpecError, Mistake):
                    # The parameters are all the other's too: who calls both takes their values from its
                    made = derived(replace(others, params=spec.params))
                    return made, derived(replace(beside, op=name, summary=summary))
        raise error


def derived(spec: Spec) -> Op:
    """The op of a spec that was made from another. Raises `SpecError` where it has no kernel."""
    statements = read_chain(spec, whole=False)
    plan = plan_of(spec, statements)
    if isinstance(plan, Elementwise | Reduction) and not plan.loads:
        raise Mistake("it reads nothing: what it gives does not depend on anything")
    return Op(spec, statements, Reference(()), plan)


def row_backward(spec: Spec) -> Derived:
    """The backward of an op that does not contract, the first that is a kernel: with statistics of rows that the forward keeps,
    where these save it a pass; then without; with those of columns, for which rows would wait; and with what is taken from tables
    added up by index, where no kernel finds its place. Raises `SpecError` or `Mistake` where there is none."""
    takes = any(n.op == "take" for n in topological(s.value for s in read_chain(spec, whole=False)))
    reasons: dict[str | None, SpecError | Mistake] = {}
    for by_index in (False, True) if takes else (False,):
        try:
            reverse = Reverse(spec, by_index=by_index)
        except (SpecError, Mistake) as reason:
            reasons.setdefault(None, reason)
            continue
        tried: set[str] = set()
        for statistics in ("rows", None, "columns"):
            try:
                how = reverse.backward(statistics)
                if how.spec.chain.value not in tried:  # else it saves what one before it does
                    tried.add(how.spec.chain.value)
                    return _row_backward(how)
            except (SpecError, Mistake) as reason:
                reasons.setdefault(statistics, reason)
    raise reasons.get(None) or reasons["rows"]


def _row_backward(how: Backward) -> Derived:
    forward = derived(how.forward) if how.forward else None
    first, op, beside = _in_turns(how.spec)
    if first is None and beside is None:
        op, how = _once(op, how)
    return Derived(first, op, how, forward, beside=beside)


def gemm_backward(spec: Spec, plan: Gemm) -> Derived:
    """The backward of an op that contracts, up to the products: their gradients are products themselves."""
    found = gemms.pull(spec, plan.products, plan.epilogue.spec)
    forward = None
    if found.forward is not None:
        epilogue = derived(found.forward)
        forward = Op(found.forward, epilogue.statements, Reference(()), gemm_plan(plan.products, epilogue))
    op, how = _once(derived(found.how.spec), found.how)
    return Derived(None, op, how, forward, tuple(pair for pair in found.products if pair[0] in how.inputs))


def gemm_plan(products: tuple[Product, ...], epilogue: Op) -> Gemm:
    try:
        return Gemm(products, epilogue, tile_of(products, epilogue.spec, epilogue.statements))
    except Mistake as mistake:
        return Gemm(products, epilogue, mistake)


def read_op(path: str | Path, data: bytes | str | dict[str, Any] | None = None) -> Op:
    """Read, check and plan one spec: a file, what it holds, or its data. Raises `SpecError` with every mistake found."""
    spec, diagnostics = read_spec(path, data)
    if spec is None:
        raise SpecError(diagnostics)
    diagnostics += check(spec)
    statements = reference = None
    if spec.chain.value:
        try:
            statements = read_chain(spec)
        except SpecError as error:
            diagnostics += error.diagnostics
    if spec.reference.value:
        try:
            reference = read_reference(spec)
        except SpecError as error:
            diagnostics += error.diagnostics
    if diagnostics or statements is None or reference is None:
        raise SpecError(diagnostics)
    op = Op(spec, statements, reference, plan_of(spec, statements))
    if diagnostics := list(_not_in_place(op)):
        raise SpecError(diagnostics)
    asked = spec.save or not isinstance(spec.grad, str)
    if asked and isinstance(op.backward, Mistake):
        message = f"no kernel for what 'grad' or 'save' ask for: {op.backward.message}"
        raise SpecError(
            [spec.source.diagnostic(spec.chain.span, message, "delete them: jax.vjp of the jnp form serves")]
        )
    return op


def _not_in_place(op: Op) -> Iterable[Diagnostic]:
    """A mistake for each entry of `aliases` that no kernel follows."""
    for output, source in op.spec.aliases:
        if why := why_not(op.plan, output, source):
            message = f"no kernel writes {output!r} into the buffer of {source!r}: {why}"
            yield op.spec.source.diagnostic(op.spec.place("aliases", output), message, "delete this entry")


def _in_chain(spec: Spec, mistake: Diagnostic) -> Diagnostic:
    """A mistake of the chain that an epilogue is, where the spec's own chain assigns the same name."""
    target = mistake.source.partition("=")[0].strip()
    for line in read_lines(spec.chain)[0]:
        if isinstance(line.tree, ast.Assign) and ast.unparse(line.tree.targets[0]) == target:
            return line.diagnostic(Placed(line.tree.value, Mistake(mistake.message, mistake.hint)))
    return spec.source.diagnostic(spec.chain.span, mistake.message, mistake.hint)


def plan_of(spec: Spec, statements: tuple[Statement, ...]) -> Elementwise | Reduction | Gemm:
    """The plan of the kind that the chain asks for. Raises `SpecError` where no kernel of ours can do it."""
    if gemms.contracts(statements):
        products, after = gemms.split(spec)
        try:
            return gemm_plan(products, derived(after))
        except SpecError as error:
            raise SpecError([_in_chain(spec, d) for d in error.diagnostics]) from None
    reduces = any(node.op in REDUCTIONS for node in topological(s.value for s in statements))
    return (reducing if reduces else plan).make_plan(spec, statements)
