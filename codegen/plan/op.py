"""A planned op, the input of everything after planning. A contraction contains another op, its epilogue; an op of
several kernels contains one for each."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from codegen.errors import UserError
from codegen.graph.nodes import Node, Put, Statement
from codegen.language.reference import Reference
from codegen.plan.access import INT_MAX, Access, BoundTypes, Extent, Group, Unreduced, View
from codegen.plan.attention import Attention, AttentionPlan
from codegen.plan.elementwise import Elementwise
from codegen.plan.gemms import joint
from codegen.plan.gemms.tiles import Product, Tile
from codegen.plan.launches import GemmLaunch, PlannedCall, ProductCall, Tuned
from codegen.plan.rows.access import Statistic
from codegen.plan.rows.reductions import Reduction
from codegen.plan.rows.selecting import Selection
from codegen.spec.spec import Array, Spec


@dataclass(frozen=True, eq=False)
class Op:
    """Everything that later stages need of an op."""

    spec: Spec
    statements: tuple[Statement, ...]
    reference: Reference
    plan: AnyPlan
    tuning: tuple[Tuned, ...] = ()  # of its own kernel, and of the kernels of its gradients


@dataclass(frozen=True)
class Scaled:
    """A factor of a product that is scaled by values without the contracted axes."""

    factor: str  # as the chain names or writes it
    scales: tuple[str, ...]
    why: str  # why a kernel before the product multiplies it; "" where the epilogue multiplies the product instead


@dataclass(frozen=True)
class Summed:
    """An output of `put` that is a table with which floats are combined by index, mostly added to it: an input or the array of floats
    that stages write, and where they are combined. Floats that are added may be multiplied by factors, which stages write for each
    index."""

    output: str
    values: Array
    at: Put
    factors: Array | None = None


@dataclass(frozen=True)
class Staged(Unreduced):
    """The plan of an op that several kernels compute, one after the other.

    A stage is an op that is one kernel: its inputs are inputs of the op, and outputs of earlier stages. `held` are the
    values of the chain, by name, that stages write for later ones and that are not outputs. `groups`, `views`, `loads`
    and `stores` say how the whole chain reaches the op's arrays, each axis by itself.
    """

    stages: tuple[Op, ...]
    held: tuple[tuple[str, Node], ...]
    groups: tuple[Group, ...]
    views: tuple[View, ...]
    loads: tuple[Access, ...]
    stores: tuple[Access, ...]
    extremes: tuple[Node, ...]
    together: bool  # whether stages compare values with a result of another stage: then all stages are kernels, or none
    scaled: tuple[Scaled, ...] = ()
    # The stages that are given a sample of the elements they reduce, with the axes along which it may be taken (`stages/moments.py`)
    sampled: tuple[tuple[int, tuple[str, ...]], ...] = ()
    # One kernel that computes all of it where it has room (or two, `stages/parts.py`), and one that writes the `held` values too
    whole: Op | None = None
    saving: Op | None = None
    summed: tuple[Summed, ...] = ()  # what is combined by index after the stages
    kind: str = "staged"
    collapsed: bool = False

    @property
    def kernels(self) -> int:
        return sum(stage.plan.kernels for stage in self.stages)

    @functools.cached_property
    def joint(self) -> tuple[range, ...]:
        """The places of neighbouring stages that may be one launch: products of the same left factor, none of which reads another's
        results."""
        found: list[range] = []
        for place, stage in enumerate(self.stages):
            before = self.stages[found[-1].start : place] if found else ()
            made = {a.name for op in before for a in op.spec.outputs}
            if before and not made & {a.name for a in stage.spec.inputs} and _joins(before[0], stage):
                found[-1] = range(found[-1].start, place + 1)
            else:
                found.append(range(place, place + 1))
        return tuple(run for run in found if len(run) > 1)

    @property
    def order(self) -> tuple[str, ...]:
        """Every axis, in the order of the jnp form's operands."""
        return tuple(axis for group in self.groups for axis in group.axes)

    def sampled_axes(self, place: int) -> tuple[str, ...]:
        """The axes along which a stage is given a sample; none for most stages."""
        return dict(self.sampled).get(place, ())

    @property
    def full(self) -> tuple[()]:
        return ()

    def view(self, name: str) -> View:
        return next(v for v in self.views if v.array.name == name)

    def edges(self, call: PlannedCall) -> tuple[int, ...]:
        """The sizes of the innermost axis at which one of its kernels works in another way."""
        own = {a.name: "float32" for stage in self.stages for a in stage.spec.arrays} | {**call.dtypes}
        call = replace(call, dtypes=own)
        return tuple(dict.fromkeys(n for stage in self.stages for n in stage.plan.edges(call)))


@dataclass(frozen=True)
class Gemm:
    """The plan of an op that contracts."""

    products: tuple[Product, ...]
    epilogue: Op
    tile: Tile | UserError  # why there is none
    kind: str = "gemm"

    @property
    def kernels(self) -> int:
        """The number of kernels: the epilogue's kernels, and the matmul if it is a kernel of its own."""
        return self.epilogue.plan.kernels + (isinstance(self.tile, UserError) or bool(self.tile.folds))

    @property
    def accs(self) -> tuple[str, ...]:
        return tuple(p.acc.name for p in self.products)

    def in_one_kernel(
        self,
        types: BoundTypes,
        count: Callable[[tuple[str, ...]], int],
        arch: str,
        find: Callable[[Mapping[str, int]], Tuned | None] = lambda sizes: None,
    ) -> GemmLaunch:
        """The launch of products and epilogue as one kernel, for these dtypes and so many elements along some axes;
        `find` gives the measured launch for such sizes. Raises `UserError` if there is none."""
        if isinstance(self.tile, UserError):
            raise self.tile.without_frames()
        call = self.product_call(types, count, arch)
        return self.tile.launch(call, find(call.extents))

    def member(self, types: BoundTypes, count: Callable[[tuple[str, ...]], int], arch: str) -> joint.Member:
        """The facts that decide whether the single kernel is launched with others. Raises `UserError` where there is no single
        kernel."""
        alone = self.in_one_kernel(types, count, arch)
        assert isinstance(self.tile, Tile)
        return joint.Member(self.tile, self.product_call(types, count, arch), alone)

    def product_call(self, types: BoundTypes, count: Callable[[tuple[str, ...]], int], arch: str) -> ProductCall:
        """The call that the launch of products and epilogue as one kernel is planned for."""
        tile, (first, *_) = self.tile, self.products
        assert isinstance(tile, Tile)
        spec = self.epilogue.spec
        dtypes = {a.name: types.dtype(a) for a in spec.arrays}
        dtypes |= {"a": types.dtype(first.a), "b": types.dtype(first.b)}
        if first.loaded is not None and first.loaded.scale is not None:
            dtypes["scale"] = types.dtype(first.loaded.scale)
        axes = {"L": tile.batch, "M": tile.rows, "N": tile.columns, "K": first.axes}
        axes |= {"D": (tile.column,)} if len(tile.columns) > 1 else {}
        extents = {name: count(own) for name, own in axes.items()}
        for name, extent in extents.items():
            if extent > INT_MAX:
                raise UserError(f"{extent} {' x '.join(axes[name])}: more than a kernel's coordinate holds")
        if first.loaded is not None:
            extents["covered"] = int(first.loaded.covers(extents["K"], count))
        return ProductCall(dtypes, extents, spec.math == "precise", arch)

    # Arrays, axes and reductions come from the epilogue's plan

    @property
    def groups(self) -> tuple[Group, ...]:
        return self.epilogue.plan.groups

    @property
    def collapsed(self) -> bool:
        return self.epilogue.plan.collapsed

    @property
    def views(self) -> tuple[View, ...]:
        return self.epilogue.plan.views

    @property
    def loads(self) -> tuple[Access, ...]:
        return self.epilogue.plan.loads

    @property
    def stores(self) -> tuple[Access, ...]:
        return self.epilogue.plan.stores

    @property
    def order(self) -> tuple[str, ...]:
        return self.epilogue.plan.order

    @property
    def rows(self) -> tuple[Statistic, ...]:
        return self.epilogue.plan.rows

    @property
    def columns(self) -> tuple[Statistic, ...]:
        return self.epilogue.plan.columns

    @property
    def inner(self) -> tuple[Statistic, ...]:
        return self.epilogue.plan.inner

    @property
    def apart(self) -> tuple[int, ...]:
        return self.epilogue.plan.apart

    @property
    def extremes(self) -> tuple[Node, ...]:
        return self.epilogue.plan.extremes

    @property
    def vector_group(self) -> int:
        return self.epilogue.plan.vector_group

    @property
    def counted(self) -> tuple[tuple[int, ...], ...]:
        return self.epilogue.plan.counted

    @property
    def full(self) -> tuple[tuple[Array, int], ...]:
        return self.epilogue.plan.full

    def view(self, name: str) -> View:
        return self.epilogue.plan.view(name)

    def edges(self, call: PlannedCall) -> tuple[int, ...]:
        return self.epilogue.plan.edges(call)

    def rows_and_columns(self, extent: Extent) -> tuple[int, int]:
        plan = self.epilogue.plan
        assert not isinstance(plan, Staged)  # an epilogue is one kernel
        return plan.rows_and_columns(extent)


KernelPlan = Elementwise | Reduction | Selection | AttentionPlan  # of one kernel without products around it
AnyPlan = KernelPlan | Gemm | Staged


def _joins(first: Op, other: Op) -> bool:
    """Whether two stages may be one launch."""
    plans = [op.plan for op in (first, other)]
    found = [
        (p.products[0], p.tile)
        for p in plans
        if isinstance(p, Gemm) and len(p.products) == 1 and isinstance(p.tile, Tile)
    ]
    return len(found) == 2 and joint.alike(*found)


def stages_of(op: Op) -> tuple[Op, ...]:
    """The op, or its stages if it is several kernels."""
    return op.plan.stages if isinstance(op.plan, Staged) else (op,)


def products_in(plan: AnyPlan) -> tuple[Product, ...]:
    """The products of a plan, or of its stages."""
    if isinstance(plan, Staged):
        return tuple(p for stage in plan.stages for p in products_in(stage.plan))
    return plan.products if isinstance(plan, Gemm | AttentionPlan) else ()


def attention_in(plan: AnyPlan) -> tuple[Attention, ...]:
    """The plans of attention among a plan and its stages."""
    plans = [stage.plan for stage in plan.stages] if isinstance(plan, Staged) else [plan]
    return tuple(p for p in plans if isinstance(p, Attention))


def contracted_axes(plan: AnyPlan) -> set[str]:
    """The axes that the products of a plan contract."""
    return {axis for p in products_in(plan) for axis in p.axes}
