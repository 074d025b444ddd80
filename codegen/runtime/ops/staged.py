"""An op of several kernels, its stages, which run one after the other."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax

from codegen.plan.launches import AnyLaunch
from codegen.plan.op import Op as PlannedOp
from codegen.plan.op import Staged, products_in
from codegen.plan.rows.middle import in_one_kernel
from codegen.runtime.call import arguments
from codegen.runtime.call.arguments import Axes, Types
from codegen.runtime.call.described import Key
from codegen.runtime.call.sample import sample
from codegen.runtime.ops.by_graph import ByGraph
from codegen.runtime.ops.derived import DerivedOp
from codegen.runtime.ops.gemm_op import GemmOp
from codegen.runtime.ops.op import AnyOp, Op, P, R


class Stage(DerivedOp):
    """One of the kernels of an op of several kernels."""

    def __init__(self, whole: AnyOp, place: int, which: str, parts: dict[str, Any]):
        super().__init__(whole.origin if isinstance(whole, DerivedOp) else whole, which, parts)
        self.whole, self.place = whole, place

    @functools.cached_property
    def planned(self) -> PlannedOp:
        return self.plan_of_whole.stages[self.place]

    @property
    def plan_of_whole(self) -> Staged:
        plan = self.whole.plan
        assert isinstance(plan, Staged)
        return plan

    def call(self, key: Key, there: Mapping[str, jax.Array]) -> tuple[Key, tuple[Any, ...]]:
        """The stage's call, on a sample of the elements where the plan says so."""
        own, operands = super().call(key, there)
        if not (axes := self.plan_of_whole.sampled_axes(self.place)):
            return own, operands
        arrays = dict(zip(own.present, operands, strict=False))
        return own, (*sample(self.spec.inputs, arrays, axes).values(), *operands[len(arrays) :])

    def left_to_xla(self, types: Types, axes: Axes) -> str:
        """Why such a call runs the jnp form although there is a kernel, or "": the results of XLA's functions have
        other bits."""
        return "" if self.plan_of_whole.together else super().left_to_xla(types, axes)


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
        return in_one_kernel() and self._refused(own.types, axes) is None

    def jnp_form(self, key: Key, *operands: Any) -> tuple[Any, ...]:
        """That of the stages: what they compare has the same bits then."""
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


def whole_of(op: AnyOp, prefix: str, parts: dict[str, Any], saving: bool = False) -> Whole | None:
    """The kernel that computes all of an op in stages, whose launcher is the one of `parts` that begins with `prefix`, if there is one."""
    name = f"{prefix}{'saving' if saving else 'whole'}"
    return Whole(op, name, parts, saving) if is_made(name, parts) else None


def in_jnp(stages: Iterable[Stage], key: Key, there: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """The arrays of a call, by name, with those that the jnp forms of stages write."""
    found = dict(there)
    for stage in stages:
        own, values = stage.call(key, found)
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


class InStages(Op[P, R]):
    """An op of several kernels. Each stage is mapped, partitioned and lowered by itself."""

    stages: tuple[Stage, ...]
    whole: Whole | None = None
    saving: Whole | None = None

    @property
    def own_kernels(self) -> tuple[AnyOp, ...]:
        joined = (one for one in (self.whole, self.saving) if one is not None)
        return (*joined, *kernels_of(self.stages))

    @property
    def kernels(self) -> tuple[AnyOp, ...]:
        return (*self.own_kernels, *(self._backward.generated if self._backward is not None else ()))

    @property
    def multiplied(self) -> frozenset[str]:
        inputs = {a.name for a in self.spec.inputs}
        return frozenset(x.name for p in products_in(self.plan) for x in (p.a, *p.inputs) if x.name in inputs)

    def written(self, key: Key, operands: tuple[Any, ...]) -> dict[str, jax.Array]:
        """The outputs, and what the stages write for each other, by name."""
        return self._by(self.saving or self.whole, key, operands)

    def _by(self, whole: Whole | None, key: Key, operands: tuple[Any, ...]) -> dict[str, jax.Array]:
        """Every array that one kernel writes, or where it has no room the stages."""
        there = dict(zip(self.operand_names(key), operands, strict=True))
        if whole is not None and whole.takes(key, there):
            return whole.given(key, there)
        return self._through(key, operands, Stage.given)

    def _through(
        self, key: Key, operands: tuple[Any, ...], given: Callable[..., dict[str, jax.Array]]
    ) -> dict[str, jax.Array]:
        there = dict(zip(self.operand_names(key), operands, strict=True))
        for stage in self.stages:
            there |= given(stage, key, there)
        return there

    def _outputs(self, there: dict[str, jax.Array]) -> tuple[Any, ...]:
        return tuple(there[a.name] for a in self.spec.outputs)

    def _run(self, key: Key) -> Callable[..., tuple[Any, ...]]:
        return lambda *operands: self._outputs(self._by(self.whole, key, operands))

    def jnp_form(self, key: Key, *operands: Any) -> tuple[Any, ...]:
        there = dict(zip(self.operand_names(key), operands, strict=True))
        return self._outputs(in_jnp(self.stages, key, there))

    def _run_interpret(self, key: Key, *operands: Any, parts: bool = False, **given: Any) -> tuple[Any, ...]:
        del parts, given
        there = dict(zip(self.operand_names(key), operands, strict=True))
        if self.whole is not None and self.whole.takes(key, there):
            own, values = self.whole.call(key, there)
            return self._outputs(self.whole.named(self.whole._run_interpret(own, *values)))

        def interpreted(stage: Stage, key: Key, there: dict[str, jax.Array]) -> dict[str, jax.Array]:
            own, values = stage.call(key, there)
            return stage.named(stage._run_interpret(own, *values))

        return self._outputs(self._through(key, operands, interpreted))

    def default_launch(self, types: Types, axes: Axes) -> AnyLaunch:
        """The launch of the one kernel, or else of the last stage. Raises `UserError` where a stage has none."""
        if self.whole is not None and in_one_kernel() and self.whole._refused(types, axes) is None:
            return self.whole.launch_for(types, axes)
        return [stage.default_launch(types, axes) for stage in self.stages][-1]

    def left_to_xla(self, types: Types, axes: Axes) -> str:
        """Why all stages of such a call run their jnp form, or ""."""
        if self.whole is not None and in_one_kernel() and self.whole._refused(types, axes) is None:
            return ""
        found = [stage.left_to_xla(types, axes) for stage in self.stages]
        return found[0] if all(found) else ""


class StagedOp(InStages[P, R]):
    """A generated op of several kernels."""

    @functools.cached_property
    def stages(self) -> tuple[Stage, ...]:  # type: ignore[override]
        return stages_of(self, "", self._parts)

    @functools.cached_property
    def whole(self) -> Whole | None:  # type: ignore[override]
        return whole_of(self, "", self._parts)

    @functools.cached_property
    def saving(self) -> Whole | None:  # type: ignore[override]
        return whole_of(self, "", self._parts, saving=True)


class StagedForward(InStages[..., Any], DerivedOp):
    """Such an op, with more outputs for its backward."""

    def __init__(self, forward: AnyOp, parts: dict[str, Any]):
        DerivedOp.__init__(self, forward, "forward", parts)
        self.stages = stages_of(self, "forward_", parts)
        self.whole = whole_of(self, "forward_", parts)
