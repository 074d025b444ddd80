"""Chooses the plan of a chain: one kernel of some kind, or several that run one after the other."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

from codegen.errors import Later, SpecError, UserError
from codegen.graph.contraction import is_definite
from codegen.graph.nodes import Chain, Node, Statement, along_of, lost_axes, topological
from codegen.graph.ops import ALONE, IN_STAGES, REDUCTIONS, SCANS, TAKES
from codegen.language.chain import in_chain
from codegen.language.reference import Reference
from codegen.language.transfer import extended_spec
from codegen.plan import elementwise
from codegen.plan.attending import attention
from codegen.plan.attention import AttentionPlan
from codegen.plan.elementwise import Elementwise
from codegen.plan.gemms import contractions as gemms
from codegen.plan.gemms.loading import loaded
from codegen.plan.gemms.tiles import Product, Tile, tile_of
from codegen.plan.limits import whole_bytes
from codegen.plan.op import AnyPlan, Gemm, KernelPlan, Op, Staged
from codegen.plan.planner import Whole
from codegen.plan.rows import middle, reducing, scanning, selecting, single, strided
from codegen.plan.rows.reductions import Reduction
from codegen.plan.rows.steps import Steps
from codegen.spec.spec import Array, Spec
from codegen.stages.attending import attending
from codegen.stages.cut import Stages, cut
from codegen.stages.forms import with_terms_apart, with_whole_batches
from codegen.stages.moments import centred, sampled_axes
from codegen.stages.neighbours import reduced_once, written_once
from codegen.stages.order import from_the_end
from codegen.stages.parts import in_parts, summed_along_scans
from codegen.stages.products import cut_around, products_of
from codegen.stages.scaling import moved
from codegen.stages.splitting import with_addends
from codegen.stages.steps import make_plan as in_steps

MakePlan = Callable[[Spec, tuple[Statement, ...]], Reduction | Steps]
# The planners of kernels that compute what otherwise takes several stages
ONE_KERNEL: tuple[MakePlan, ...] = (middle.make_plan, strided.make_plan, in_steps)


def planned(spec: Spec) -> tuple[Spec, AnyPlan]:
    """The plan of an op's chain, with its spec. Another form of the chain is taken if more of it is attention."""
    plan = plan_of(spec)
    for form in (with_terms_apart, with_whole_batches):
        if isinstance(plan, Staged) and (other := form(spec)) is not None:
            with contextlib.suppress(SpecError):
                better = plan_of(other)
                if _attentions(better) > _attentions(plan):
                    spec, plan = replace(spec, graph=other.graph), better
    return spec, plan


def _attentions(plan: AnyPlan) -> int:
    stages = plan.stages if isinstance(plan, Staged) else ()
    return sum(isinstance(op.plan, AttentionPlan) for op in stages)


def plan_of(spec: Spec) -> AnyPlan:
    """The plan of a chain: one kernel if one can compute it, else stages. Raises `SpecError` if no kernels can."""
    if "contract" in spec.read.ops:
        gemms.check(spec)
    if any(s.at and s.at.apart for s in spec.read.statements):
        return _summing(spec)
    try:
        plan = kernel_of(spec)
    except SpecError as error:
        return with_whole(spec, _in_stages(spec, error))
    return (_spread(spec) if single.is_spread(plan) else _written_once(spec) or _summed_by_rows(spec, plan)) or plan


def _summed_by_rows(spec: Spec, plan: KernelPlan | Gemm) -> Staged | None:
    """The stages of a chain that one kernel could compute, but in which each block would write partial results as long
    as a row. Here a first kernel writes the sum of each row, and a second kernel adds these up. An H200 took 479 us for
    a weight of 8 heads in one kernel, and 245 so. None for other chains, and for a chain with a backward, which would
    take these sums."""
    if not isinstance(plan, Reduction) or plan.kind != "row+column" or spec.grad != "none":
        return None
    along = {axis for group in plan.column_groups for axis in group.axes}
    added = [{*lost_axes(s.node)} for s in plan.columns if s.over == "column" and along <= {*lost_axes(s.node)}]
    if not added:
        return None
    stages = in_parts(spec, one_kernel, one_kernel, tuple(axis for axis in plan.order if axis in along))
    if stages is not None and stages[0].plan.kind == "row+column":
        places = {axis for i in plan.apart for axis in plan.groups[i].axes}
        if not any(places & axes for axes in added):  # few partial results: what rows share is then in registers
            return None
    return None if stages is None else _Whole(spec, spec.read.statements).plan(Stages(stages, ()))


def _written_once(spec: Spec) -> Staged | None:
    """The stages of a chain that one kernel could compute, with expensive values again for each neighbour. None if there are no such
    values, and for a chain with a backward, which would take them."""
    own = written_once(spec) if spec.grad == "none" else None
    if own is not None:
        with contextlib.suppress(SpecError):
            if (stages := cut(own, one_kernel)) is not None:
                return _Whole(spec, spec.read.statements).plan(Stages(stages.ops, ()))
    return None


def _spread(spec: Spec) -> KernelPlan | Gemm | Staged | None:
    """The plan of a chain that reduces rows, as kernels that share a long row among all SMs. None if there are none, or if the spec has
    keys that ask for the one kernel."""
    if spec.aliases or spec.schedule:
        return None
    whole = _Whole(spec, spec.read.statements)
    with contextlib.suppress(SpecError):
        plan = kernel_of(spec, spreads=True)
        if not any(a.axes for a in spec.outputs):
            return plan
        return with_whole(spec, whole.plan(Stages((_first_stage(_made(spec, plan)),), ())), (single.make_plan,))
    with contextlib.suppress(SpecError):
        if (stages := cut(spec, functools.partial(one_kernel, spreads=True))) is not None:
            return with_whole(spec, _in_one_sweep(spec, whole, stages), (single.make_plan,))
    return None


def _first_stage(op: Op) -> Op:
    """An op as the only stage of one."""
    name = op.spec.op
    return replace(op, spec=replace(op.spec, op=f"{name}_stage1", summary=f"Stage 1 of {name}."))


def _summing(spec: Spec) -> Staged:
    """The plan of a chain that adds floats to tables by index: stages write the floats, and then these are summed."""
    own, summed = with_addends(spec)
    whole = _Whole(spec, spec.read.statements)
    op = derived(own)
    if not isinstance(op.plan, Staged):
        return replace(whole.plan(Stages((_first_stage(op),), ())), summed=summed)
    return replace(op.plan, **vars(whole.arrays()), held=(), saving=None, summed=summed)


def _in_stages(spec: Spec, error: SpecError) -> Staged:
    """The plan of a chain as several kernels. Raises `error`, why it is not one kernel, if there are none."""
    statements = spec.read.statements
    contracts, whole = "contract" in spec.read.ops, _Whole(spec, statements)
    if whole.refused():
        raise error
    try:
        stages = (
            (attending(spec, one_kernel, derived) or _around_products(spec))
            if contracts
            else _in_parts(spec) or _cut_scans(spec)
        )
    except SpecError:
        if contracts and gemms.takes_inputs(statements):
            raise error from None  # it says what no kernel takes, with its place in the chain
        raise
    if stages is None:
        raise error
    return _fewest(spec, whole, stages) if contracts else _in_one_sweep(spec, whole, stages)


def with_whole(spec: Spec, plan: Staged, kernels: Sequence[MakePlan] = ONE_KERNEL) -> Staged:
    """The plan of stages, with the first of these kernels that computes the whole op for calls of some sizes, if there is one."""
    more = plan.held if spec.grad != "none" else ()
    for kernel in kernels:
        with contextlib.suppress(SpecError, UserError):
            whole = _as_one(kernel, spec, "whole", spec.outputs, ())
            saving = _as_one(kernel, spec, "saving", (*spec.outputs, *held_arrays(plan)), more) if more else None
            return replace(plan, whole=whole, saving=saving)
    for kernel in kernels if not (more or plan.together or plan.summed) else ():
        if (stages := in_parts(_part(spec, "whole"), functools.partial(_made_by, kernel), one_kernel)) is not None:
            return replace(plan, whole=staged(_part(spec, "whole"), stages))
    return plan


def _made_by(make_plan: MakePlan, spec: Spec) -> Op:
    return _made(spec, make_plan(spec, spec.read.statements))


def _part(spec: Spec, name: str) -> Spec:
    """The spec of a kernel for all of an op in stages, for calls of some sizes."""
    return replace(spec.plain(), op=f"{spec.op}_{name}")


def held_arrays(plan: Staged) -> tuple[Array, ...]:
    """The arrays of the values that stages write for later ones."""
    made = {a.name: a for stage in plan.stages for a in stage.spec.outputs}
    return tuple(made[name] for name, _ in plan.held)


def _as_one(
    make_plan: MakePlan,
    spec: Spec,
    name: str,
    outputs: Sequence[Array],
    more: Sequence[tuple[str, Node]],
) -> Op:
    """The kernel of some kind that writes these outputs, `more` values among them. Raises `SpecError` or `UserError` if there is none."""
    summary = f"{spec.op} in one kernel" + (", which also writes what its backward takes." if more else ".")
    held = (*spec.for_backward, *(name for name, _ in more))
    own = replace(_part(spec, name), summary=summary, outputs=tuple(outputs), for_backward=held)
    if more:
        graph = spec.read.graph
        named = {s.name for s in spec.read.statements}
        unnamed = [Statement(name, None, value) for name, value in more if name not in named]
        taken = {a.name for a in own.arrays} | {p.name for p in spec.params} | named
        own = extended_spec(own, spec, unnamed, graph, taken)
    return _made_by(make_plan, own)


def _around_products(spec: Spec) -> Stages | None:
    """The stages of a chain around its products. Reductions that need no product are written before the products, if that gives fewer
    kernels. Raises `SpecError` if some part has no kernel."""
    stages = cut_around(spec, one_kernel, derived)
    nodes = topological((s.value for s in spec.read.statements), lambda n: n.op == "contract")
    reduced = [n for n in nodes if n.op in REDUCTIONS and not products_of([n])]
    if stages is not None and reduced:
        with contextlib.suppress(SpecError):
            found = cut_around(spec, one_kernel, derived, reduced)
            if found is not None and _cost(found.ops) < _cost(stages.ops):
                return found
    return stages


def _in_parts(spec: Spec) -> Stages | None:
    """Two stages: the first reads all elements, once, and the second adds up the first one's sums. None if that does not compute the
    chain, or if the chain has a backward, which would need these sums."""
    found = in_parts(spec, one_kernel, one_kernel) if spec.grad == "none" else None
    return None if found is None else Stages(found, ())


def _cut(spec: Spec) -> Stages | None:
    """The stages of a chain without products. Kernels that reduce, scan or select may not be able to read tables or
    neighbours. An earlier stage then writes the values read there, or the values that are computed from them and
    reduced, whichever are fewer. In a chain without a backward it instead writes reductions that are computed from
    neighbours; a backward would need other values."""
    read = [n for n in spec.read.nodes if n.op in ("shift", *TAKES)]
    reduced = [
        a for n in spec.read.nodes if n.op in IN_STAGES for a in n.args
        if any(m in read for m in topological([a], lambda m: m.op in IN_STAGES))
    ]  # fmt: skip
    reduced = list(dict.fromkeys(reduced))
    apart = [(n, "reduced") for n in reduced] if len(reduced) < len(read) else [(n, "read") for n in read]
    try:
        if (stages := cut(spec, one_kernel)) is not None or not apart:
            return stages
    except SpecError:
        if not apart:
            raise
        own = reduced_once(spec) if spec.grad == "none" else None
        for form, more in (*(() if own is None else ((own, ()),)), (spec, apart)):
            with contextlib.suppress(SpecError):
                if (stages := cut(form, one_kernel, more)) is not None:
                    return stages if form is spec else Stages(stages.ops, ())
        raise
    return cut(spec, one_kernel, apart)


def _cut_scans(spec: Spec) -> Stages | None:
    """The stages of a chain. Kernels that scan sum along their axis if stages then read and write less, and no backward takes the sums."""
    stages, own = _cut(spec), summed_along_scans(spec) if spec.grad == "none" else None
    with contextlib.suppress(SpecError):
        found = None if own is None else _added_up(spec) or _cut(own)
        if found and stages and len(found.ops) <= len(stages.ops) and found.moved < stages.moved:
            return found
    return stages


def _added_up(spec: Spec) -> Stages | None:
    """The stages of a chain with scans, the first of which computes all but the last sums over more axes than theirs."""
    (axis,) = {along_of(n).axis for n in spec.read.nodes if n.op in SCANS}
    found = in_parts(spec, one_kernel, one_kernel, (axis,))
    return None if found is None else Stages(found, ())


def _in_one_sweep(spec: Spec, whole: _Whole, stages: Stages) -> Staged:
    """The plan of some stages, or of as many others that compute means together with the variances about them (`moments`)."""
    how = centred(spec)
    if how is None:
        return whole.plan(stages)
    try:
        found = cut(how.spec, one_kernel, how.results)
    except SpecError:
        found = None
    if found is None or len(found.ops) > len(stages.ops):
        return whole.plan(stages)
    names = {id(n): name for name, n in found.held}
    centres = {names.get(id(n), "") for n in how.centres}
    made = [i for i, op in enumerate(found.ops) if {a.name for a in op.spec.outputs} <= centres]
    sampled = tuple((i, axes) for i in made if (axes := sampled_axes(found.ops[i])))
    if sum(len(found.ops[i].spec.outputs) for i, _ in sampled) < len(centres):
        return whole.plan(stages)  # a kernel would read all elements for a centre
    held = tuple((name, how.origins[id(n)]) for name, n in found.held if id(n) in how.origins and name not in centres)
    return replace(whole.plan(Stages(found.ops, held)), sampled=sampled)


def _fewest(spec: Spec, whole: _Whole, stages: Stages) -> Staged:
    """The plan of some stages around products, or of the stages of another form that writes less. In that form,
    products are scaled instead of their factors (`scaling`), and kernels convert factors of one-byte elements. The
    other form must not have more kernels, nor more products without tiles."""
    how = moved(spec)
    own, before, scaled = spec, tuple[Node, ...](), () if how is None else how.scaled
    if any(isinstance(op.plan, AttentionPlan) for op in stages.ops):
        return whole.plan(stages)
    if how is not None and not all(s.why for s in scaled):
        try:
            found = cut_around(how.spec, one_kernel, derived, how.before)
            better = found is not None and _cost(found.ops) <= _cost(stages.ops)
            why = "" if better else "the values after the product would need a kernel of their own"
        except SpecError as error:
            found, why = None, error.diagnostics[0].message
        if found and not why:
            own, before, stages = how.spec, how.before, found
        scaled = tuple(replace(s, why=s.why or why) for s in scaled)
    products = [n for n in own.read.nodes if n.op == "contract"]
    given = {id(f) for p in products for f in p.args if loaded(own, f, lost_axes(p)) is not None}
    if given:
        with contextlib.suppress(SpecError):
            found = cut_around(own, functools.partial(one_kernel, widens=True), derived, before, given)
            if found and _cost(found.ops) <= _cost(stages.ops):
                stages = found
    origins = {id(n): n for n in spec.read.nodes} | ({} if how is None or own is spec else dict(how.origins))
    held = tuple((name, origins[id(n)]) for name, n in stages.held if id(n) in origins)
    return replace(whole.plan(Stages(stages.ops, held)), scaled=scaled)


def _cost(stages: tuple[Op, ...]) -> tuple[int, int]:
    """The number of products without tiles, and the number of kernels."""
    products = [op.plan for op in stages if isinstance(op.plan, Gemm)]
    return sum(not isinstance(plan.tile, Tile) for plan in products), sum(op.plan.kernels for op in stages)


def kernel_of(spec: Spec, widens: bool = False, spreads: bool = False) -> KernelPlan | Gemm:
    """The plan of a chain as one kernel, of a product that may have a factor in elements of a byte if the kernel `widens` it. One that
    `spreads` the elements of a reduction has blocks with partial results. Raises `SpecError` if there is none."""
    for node in spec.read.nodes:
        if node.op == "shift" and node.args[0].op != "input":
            message = f"the result of {node.args[0].op!r} has no neighbours in the kernel that computes it"
            raise SpecError([spec.source.diagnostic(spec.chain.span, message, "")])
    plan = _kernel_of(spec, widens, spreads)
    if (error := whole_bytes(plan, spec)) is not None:
        raise SpecError([error])
    return plan


def _kernel_of(spec: Spec, widens: bool, spreads: bool) -> KernelPlan | Gemm:
    statements = spec.read.statements
    ops = spec.read.ops
    if "contract" in ops:
        if (found := attention(spec)) is not None:
            return found
        products, after = gemms.split(spec, widens)
        try:
            return gemm_plan(products, one_kernel(after))
        except SpecError as error:
            raise SpecError([in_chain(spec, d) for d in error.diagnostics]) from None
    if ops & ALONE:
        return selecting.make_plan(spec, statements)
    if ops & SCANS.keys():
        return scanning.make_plan(spec, statements)
    reduces = bool(ops & REDUCTIONS.keys())
    if not reduces:
        return elementwise.make_plan(spec, statements)
    plan = reducing.make_plan(spec, statements, only_over=spreads)
    if plan.kind == "column" and not (plan.by_place and _reduces_neighbours(plan, spec.read.nodes)):
        with contextlib.suppress(SpecError):
            few = middle.make_plan(spec, statements)
            if few.always_fits(spec.extents):
                return few
    return plan


def _reduces_neighbours(plan: Reduction, nodes: Sequence[Node]) -> bool:
    """Whether each reduction is over axes that follow each other."""
    for node in nodes:
        if node.op in REDUCTIONS and plan.order:
            places = sorted(map(plan.order.index, lost_axes(node)))
            if places[-1] - places[0] >= len(places):
                return False
    return True


def derived(spec: Spec) -> Op:
    """The op of a spec that was made from another spec. An op that contracts always has stages, perhaps a single one. Raises
    `SpecError` if it has no kernel."""
    if "contract" in spec.read.ops and not any(s.at and s.at.apart for s in spec.read.statements):
        words = "too many products, reductions or operations for one op"
        place = Later(words, "", lambda: spec.source.diagnostic(spec.chain.span, words, ""))
        return _made(spec, _in_stages(spec, SpecError([place])))
    return _made(spec, plan_of(spec))


def one_kernel(spec: Spec, widens: bool = False, spreads: bool = False) -> Op:
    """The same op as one kernel (`kernel_of`). Raises `SpecError` or `UserError` if none can compute it."""
    return _made(spec, kernel_of(spec, widens, spreads))


def staged(spec: Spec, stages: tuple[Op, ...]) -> Op:
    """An op of these stages."""
    return _made(spec, _Whole(spec, spec.read.statements).plan(Stages(stages, ())))


def together(stages: Sequence[Op]) -> Op:
    """The op of some neighbouring stages of another op, which do not read each other's results."""
    specs = [op.spec for op in stages]
    inputs = {a.name: a for spec in specs for a in spec.inputs}
    params = {p.name: p for spec in specs for p in spec.params}
    outputs = tuple(a for spec in specs for a in spec.outputs)
    chain = Chain(tuple(s for op in stages for s in op.statements), specs[0].read.graph)
    spec = replace(specs[0], inputs=tuple(inputs.values()), outputs=outputs, params=tuple(params.values()), graph=chain)
    return staged(spec, tuple(stages))


def _made(spec: Spec, plan: AnyPlan) -> Op:
    if isinstance(plan, Elementwise | Reduction) and not plan.loads:
        raise UserError("it reads nothing: its outputs depend on no input")
    return Op(spec, spec.read.statements, Reference(()), plan)


class _Whole(Whole):
    """The arrays and axes of an op of several kernels."""

    def refused(self) -> bool:
        """Whether a kernel would lack something that its stages lack too."""
        return self.refuse_names() is not None

    def plan(self, stages: Stages) -> Staged:
        return Staged(
            stages=from_the_end(stages.ops),
            held=stages.held,
            **vars(self.arrays()),
            extremes=tuple(n for n in self.nodes if n.op in ("max", "min")),
            together=any(n.op == "eq" and not all(map(_same_everywhere, n.args)) for n in self.nodes),
        )


def gemm_plan(products: tuple[Product, ...], epilogue: Op) -> Gemm:
    try:
        return Gemm(products, epilogue, tile_of(products, epilogue.spec, epilogue.statements))
    except UserError as error:
        return Gemm(products, epilogue, error.without_frames())


def _same_everywhere(value: Node) -> bool:
    """Whether a value that is compared has the same bits in every kernel and in jnp; a reduction is computed once."""
    return value.kind != "float" or value.op in REDUCTIONS or is_definite(value)
