"""An op of several kernels, its stages, which run one after the other."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from codegen.errors import UserError
from codegen.plan.gemms import joint
from codegen.plan.launches import AnyLaunch, GemmLaunch
from codegen.plan.op import Op as PlannedOp
from codegen.plan.op import Staged, contracted_axes, products_in
from codegen.plan.rows.middle import in_one_kernel
from codegen.runtime.call import arguments
from codegen.runtime.call.arguments import Axes, Types
from codegen.runtime.call.described import Key
from codegen.runtime.call.sample import sample
from codegen.runtime.compiled import interpreted
from codegen.runtime.compiled.launcher_call import LauncherCall, joined
from codegen.runtime.ops.by_graph import ByGraph
from codegen.runtime.ops.by_index import sums_by_index
from codegen.runtime.ops.derived import DerivedOp
from codegen.runtime.ops.gemm_op import GemmOp, fused_or
from codegen.runtime.ops.op import AnyOp, Op, P, R
from codegen.runtime.sharding.shards import Split
from codegen.runtime.xla.scatter import combined
from codegen.stages.choose import together


class Stage(DerivedOp):
    """One of the kernels of an op of several kernels."""

    def __init__(self, whole: AnyOp, place: int, which: str, parts: dict[str, Any]):
        super().__init__(whole.origin if isinstance(whole, DerivedOp) else whole, which, parts)
        self.whole, self.place = whole, place

    @functools.cached_property
    def planned(self) -> PlannedOp:
        return self.plan_of_all.stages[self.place]

    @property
    def plan_of_all(self) -> Staged:
        plan = self.whole.plan
        assert isinstance(plan, Staged)
        return plan

    def call(self, key: Key, there: Mapping[str, jax.Array]) -> tuple[Key, tuple[Any, ...]]:
        """The stage's call, on a sample of the elements where the plan says so."""
        own, operands = super().call(key, there)
        if not (axes := self.plan_of_all.sampled_axes(self.place)):
            return own, operands
        arrays = dict(zip(own.present, operands, strict=False))
        return own, (*sample(self.spec.inputs, arrays, axes).values(), *operands[len(arrays) :])

    def left_to_xla(self, types: Types, axes: Axes) -> str:
        """Why such a call runs the jnp form although there is a kernel, or "": the results of XLA's functions have
        other bits."""
        return "" if self.plan_of_all.together else super().left_to_xla(types, axes)


class GemmStage(Stage, GemmOp[..., Any]):
    """A stage that contracts."""

    def __init__(self, whole: AnyOp, place: int, which: str, parts: dict[str, Any]):
        super().__init__(whole, place, which, parts)
        self._parts = {name: parts[f"{which}_{name}"] for name in ("epilogue_launch", "epilogue_xla")}


class Whole(DerivedOp):
    """A kernel that computes all of an op of several kernels, where it has room; `saving`: and what its backward takes."""

    def __init__(self, whole: Any, which: str, parts: dict[str, Any], saving: bool):
        super().__init__(whole.origin if isinstance(whole, DerivedOp) else whole, which, parts)
        self.whole, self.saving = whole, saving

    @functools.cached_property
    def planned(self) -> PlannedOp:
        plan = self.whole.plan
        assert isinstance(plan, Staged)
        found = plan.saving if self.saving else plan.whole
        assert found is not None
        return found

    def takes(self, key: Key, there: Mapping[str, jax.Array]) -> bool:
        """Whether it has room for a call."""
        own, operands = self.call(key, there)
        axes = arguments.bind_axes(self.spec, self.arrays(own, operands))
        return self.has_room(own.types, axes)

    def has_room(self, types: Types, axes: Axes) -> bool:
        """Whether it runs a call of these types and sizes."""
        return in_one_kernel() and self._refused(types, axes) is None

    def jnp_form(self, key: Key, *operands: Any) -> tuple[Any, ...]:
        """The jnp forms of the stages, so that values which they compare have the same bits."""
        there = in_jnp(self.whole.stages, key, dict(zip(self.operand_names(key), operands, strict=True)))
        return tuple(there[a.name] for a in self.spec.outputs)


class AttentionStage(ByGraph[..., Any], Stage):
    """A stage that is attention's gradients."""


def stages_of(whole: AnyOp, prefix: str, parts: dict[str, Any]) -> tuple[Stage, ...]:
    """The stages of an op, whose launchers are `parts` that begin with `prefix`; none where it is one kernel."""
    found: list[Stage] = []
    while (name := f"{prefix}stage{len(found) + 1}") and is_made(name, parts):
        kind: type[Stage] = GemmStage if f"{name}_epilogue_launch" in parts else Stage
        if parts.get(f"{name}_kind") == "attention":
            kind = AttentionStage
        found.append(kind(whole, len(found), name, parts))
    return tuple(found)


def whole_of(op: AnyOp, prefix: str, parts: dict[str, Any], saving: bool = False) -> Whole | WholeInStages | None:
    """The one or two kernels that compute all of an op in stages; None if there are none. The names of their launchers in `parts` begin
    with `prefix`."""
    name = f"{prefix}{'saving' if saving else 'whole'}"
    if is_made(f"{name}_stage1", parts):
        return WholeInStages(op, name, parts)
    return Whole(op, name, parts, saving) if is_made(name, parts) else None


def in_jnp(stages: Iterable[Stage], key: Key, there: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """The arrays of a call, by name, with those that the jnp forms of stages write. Floats that several stages read are converted to
    the compute type once, so that their gradients are summed in it."""
    key, found = replace(key, implementation="xla"), dict(there)
    stages = tuple(stages)
    readers = Counter(a.name for stage in stages for a in stage.spec.inputs)
    wide: dict[tuple[str, str], jax.Array] = {}
    for stage in stages:
        given, compute = dict(found), stage.compute(key)
        if not isinstance(stage, GemmStage | AttentionStage):  # these multiply in the arrays' own types
            tables = {access.into for access in stage.plan.stores}
            for name in [a.name for a in stage.spec.inputs if readers[a.name] > 1 and a.name not in tables]:
                if name in found and jnp.issubdtype(found[name].dtype, jnp.floating):
                    given[name] = wide.setdefault((name, compute), found[name].astype(compute))
        own, values = stage.call(key, given)
        found |= stage.named(stage.jnp_form(own, *values))
    return found


def kernels_of(stages: Iterable[AnyOp]) -> tuple[AnyOp, ...]:
    """The kernels of some stages: one that contracts may have two."""
    return tuple(kernel for stage in stages for kernel in stage.own_kernels)


def is_made(name: str, parts: dict[str, Any]) -> bool:
    """Whether `parts` have the launcher of a derived op, or of the epilogue of one that contracts."""
    return f"{name}_launch" in parts or f"{name}_epilogue_launch" in parts


def has_kernels(which: str, parts: dict[str, Any]) -> bool:
    """Whether `parts` have the launcher of a derived op, or of its first stage."""
    return is_made(which, parts) or is_made("_".join(filter(None, (which, "stage1"))), parts)


def steps_of(stages: tuple[Stage, ...]) -> tuple[Stage | Joint, ...]:
    """The stages, with those that may be one launch together."""
    found: list[Stage | Joint] = list(stages)
    for run in reversed(stages[0].plan_of_all.joint if stages else ()):
        found[run.start : run.stop] = [
            Joint(tuple(s for s in stages[run.start : run.stop] if isinstance(s, GemmStage)))
        ]
    return tuple(found)


class InStages(Op[P, R]):
    """An op of several kernels. Each stage is mapped, partitioned and lowered by itself, or with those of one launch."""

    stages: tuple[Stage, ...]
    whole: Whole | WholeInStages | None = None
    saving: Whole | WholeInStages | None = None

    @functools.cached_property
    def steps(self) -> tuple[Stage | Joint, ...]:
        """The ops that run one after the other."""
        return steps_of(self.stages)

    @property
    def own_kernels(self) -> tuple[AnyOp, ...]:
        joined = (one for one in (self.whole, self.saving) if one is not None)
        return (*kernels_of(joined), *kernels_of(self.stages))

    @property
    def multiplied(self) -> frozenset[str]:
        inputs = {a.name for a in self.spec.inputs}
        return frozenset(x.name for p in products_in(self.plan) for x in (p.a, *p.inputs) if x.name in inputs)

    def written(self, key: Key, operands: tuple[Any, ...]) -> dict[str, jax.Array]:
        """The outputs, and what the stages write for each other, by name."""
        return self._by(self.saving or self.whole, key, operands)

    def _by(self, whole: Whole | WholeInStages | None, key: Key, operands: tuple[Any, ...]) -> dict[str, jax.Array]:
        """Every array that one kernel writes, or where it has no room the stages."""
        there = dict(zip(self.operand_names(key), operands, strict=True))
        if whole is not None and whole.takes(key, there):
            return there | whole.given(key, there)
        return self._through(key, operands, DerivedOp.given)

    def _through(
        self, key: Key, operands: tuple[Any, ...], given: Callable[..., dict[str, jax.Array]]
    ) -> dict[str, jax.Array]:
        there = dict(zip(self.operand_names(key), operands, strict=True))
        for stage in self.steps:
            there |= given(stage, key, there)
        return there

    def _outputs(self, key: Key, there: dict[str, jax.Array]) -> tuple[Any, ...]:
        """The outputs, from the arrays of a call and of its stages. Some of these are added to tables by index."""
        summed = functools.partial(sums_by_index, key.implementation, ordered=True)
        made = {how.output: combined(self.spec, how, there, summed) for how in self.plan.summed}
        return tuple((there | made)[a.name] for a in self.spec.outputs)

    def _run(self, key: Key) -> Callable[..., tuple[Any, ...]]:
        return lambda *operands: self._outputs(key, self._by(self.whole, key, operands))

    def jnp_form(self, key: Key, *operands: Any) -> tuple[Any, ...]:
        there = dict(zip(self.operand_names(key), operands, strict=True))
        return self._outputs(replace(key, implementation="xla"), in_jnp(self.stages, key, there))

    def _run_interpret(self, key: Key, *operands: Any, parts: bool = False, **given: Any) -> tuple[Any, ...]:
        del parts, given
        there = dict(zip(self.operand_names(key), operands, strict=True))
        if self.whole is not None and self.whole.takes(key, there):
            own, values = self.whole.call(key, there)
            return self._outputs(key, there | self.whole.named(self.whole._run_interpret(own, *values)))

        def interpreted(stage: DerivedOp, key: Key, there: dict[str, jax.Array]) -> dict[str, jax.Array]:
            own, values = stage.call(key, there)
            return stage.named(stage._run_interpret(own, *values))

        return self._outputs(key, self._through(key, operands, interpreted))

    def default_launch(self, types: Types, axes: Axes) -> AnyLaunch:
        """The launch of the one kernel, or else of the last stage. Raises `UserError` where a stage has none."""
        if self.whole is not None and self.whole.has_room(types, axes):
            return self.whole.launch_for(types, axes)
        return [stage.default_launch(types, axes) for stage in self.stages][-1]

    def left_to_xla(self, types: Types, axes: Axes) -> str:
        """Why all stages of such a call run their jnp form, or ""."""
        if self.whole is not None and self.whole.has_room(types, axes):
            return ""
        found = [stage.left_to_xla(types, axes) for stage in self.stages]
        return found[0] if all(found) else ""


class Joint(InStages[..., Any], DerivedOp):
    """Products of the same left factor, stages which one launch computes where that should be faster."""

    def __init__(self, stages: tuple[GemmStage, ...]):
        DerivedOp.__init__(self, stages[0].origin, "_".join(s._which for s in stages), {})
        self.stages = self.products = stages

    @property
    def steps(self) -> tuple[Stage, ...]:
        return self.stages

    @functools.cached_property
    def planned(self) -> PlannedOp:
        return together([stage.planned for stage in self.products])

    def calls(self, key: Key, operands: Sequence[Any]) -> list[tuple[Key, tuple[Any, ...]]]:
        """Each product's call."""
        there = dict(zip(self.operand_names(key), operands, strict=True))
        return [stage.call(key, there) for stage in self.products]

    def launches(self, key: Key, operands: Sequence[Any], arch: str | None = None) -> tuple[GemmLaunch, ...]:
        """The launches of the products together. Raises `UserError` where there are none."""
        arch, found = arch or interpreted.architecture(), []
        for stage, (own, values) in zip(self.products, self.calls(key, operands), strict=True):
            axes = arguments.bind_axes(stage.spec, stage.arrays(own, values))
            found.append(stage.member(own.types, axes, arch))
        if {t.kernel for t in self.tuning} & {stage.spec.op for stage in self.products}:
            raise UserError("a product's own launch is measured")
        return joint.launches(found)

    def _fuses(self, key: Key, operands: Sequence[Any]) -> bool:
        """Whether a call is one launch: that is possible, and it was requested by name or should be faster."""
        try:
            how = self.launches(key, operands)
        except UserError:
            return False
        return key.implementation in ("cute", "interpret") or all(h.fast for h in how)

    def _kernel_call(
        self, key: Key, operands: tuple[Any, ...], arch: str | None = None, split: Split | None = None
    ) -> LauncherCall:
        how = self.launches(key, operands, arch)
        calls = zip(self.products, self.calls(key, operands), how, strict=True)
        return joined([stage._kernel_call(own, values, arch, split, launch) for stage, (own, values), launch in calls])

    def finished(self, key: Key, operands: tuple[Any, ...], results: tuple[Any, ...], split: Split) -> tuple[Any, ...]:
        outputs: list[Any] = []
        left = iter(results)
        for stage, (own, values) in zip(self.products, self.calls(key, operands), strict=True):
            tile = stage.plan.tile
            made = tuple(itertools.islice(left, len(tile.outputs) + len(tile.folds)))
            outputs += stage.finished(own, values, made, split)
        return tuple(outputs)

    def on_shard(
        self, key: Key, kernel: Callable[..., tuple[Any, ...]], operands: tuple[Any, ...], split: Split
    ) -> tuple[Any, ...]:
        tiles = [stage.plan.tile for stage in self.products]
        if not split.across({*contracted_axes(self.plan), *(axis for tile in tiles for axis in tile.undivided)}):
            return self.finished(key, operands, kernel(*operands, split=split), split)
        outputs: list[Any] = []
        for stage, (own, values) in zip(self.products, self.calls(key, operands), strict=True):
            outputs += stage.on_shard(own, functools.partial(stage._run_cute, own, ()), values, split)
        return tuple(outputs)

    def _run(self, key: Key) -> Callable[..., tuple[Any, ...]]:
        return fused_or(self, key, self._fuses, super()._run(key))

    def _run_interpret(self, key: Key, *operands: Any, parts: bool = False, **given: Any) -> tuple[Any, ...]:
        if not self._fuses(key, operands):
            return super()._run_interpret(key, *operands)
        results = Op._run_interpret(self, key, *operands, parts=True, **given)
        axes = arguments.bind_axes(self.spec, self.arrays(key, operands))
        return results if parts else self.finished(key, operands, results, Split(axes))

    def _tensor_names(self) -> list[str]:
        names = [stage._tensor_names() for stage in self.products]
        made = [len(stage.plan.tile.outputs) + len(stage.plan.tile.folds) for stage in self.products]
        inputs = [n for own, count in zip(names, made, strict=True) for n in own[:-count]]
        return [*inputs, *(n for own, count in zip(names, made, strict=True) for n in own[-count:])]


class WholeInStages(InStages[..., Any], DerivedOp):
    """Two kernels that compute all of an op of several kernels, where the first has room."""

    def __init__(self, op: Any, which: str, parts: dict[str, Any]):
        super().__init__(op.origin if isinstance(op, DerivedOp) else op, which, parts)
        self.of = op
        self.stages = stages_of(self, f"{which}_", parts)

    @functools.cached_property
    def planned(self) -> PlannedOp:
        found: PlannedOp = self.of.plan.whole
        return found

    def takes(self, key: Key, there: Mapping[str, jax.Array]) -> bool:
        """Whether the first has room for a call."""
        own, operands = self.call(key, there)
        return self.has_room(own.types, arguments.bind_axes(self.spec, self.arrays(own, operands)))

    def has_room(self, types: Types, axes: Axes) -> bool:
        """Whether they run a call of these types and sizes."""
        return in_one_kernel() and self.stages[0]._refused(types, axes) is None


class StagedOp(InStages[P, R]):
    """A generated op of several kernels."""

    @functools.cached_property
    def stages(self) -> tuple[Stage, ...]:  # type: ignore[override]
        return stages_of(self, "", self._parts)

    @functools.cached_property
    def whole(self) -> Whole | WholeInStages | None:  # type: ignore[override]
        return whole_of(self, "", self._parts)

    @functools.cached_property
    def saving(self) -> Whole | WholeInStages | None:  # type: ignore[override]
        return whole_of(self, "", self._parts, saving=True)


class StagedForward(InStages[..., Any], DerivedOp):
    """Such an op, with more outputs for its backward."""

    def __init__(self, forward: AnyOp, parts: dict[str, Any]):
        DerivedOp.__init__(self, forward, "forward", parts)
        self.stages = stages_of(self, "forward_", parts)
        self.whole = whole_of(self, "forward_", parts)
