"""The ops that are generated with another: its backward, a forward that saves more for it, and the stages of these."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from codegen.autodiff import backward as backwards
from codegen.plan.launches import AnyLaunch, Tuned
from codegen.plan.op import Op as PlannedOp
from codegen.plan.op import Staged
from codegen.runtime.call.arguments import Axes, Types
from codegen.runtime.call.described import Key
from codegen.runtime.ops.op import Op, P, R
from codegen.runtime.xla.scatter import add_taken


class DerivedOp(Op):
    """An op generated with another: its backward, a stage of it or of its backward, or the forward that saves more than its
    outputs."""

    def __init__(self, forward: Op, which: str, parts: dict[str, Any]):
        self.__name__ = f"{forward.__name__}_{which}"  # type: ignore[attr-defined]
        self.origin, self._which = forward, which
        self._backward = self._result = None
        self._begin(parts.get(f"{which}_launch"), parts.get(f"{which}_xla"))

    @property
    def tuning(self) -> tuple[Tuned, ...]:
        """That of the op that it was generated with."""
        return self.origin.tuning

    @functools.cached_property
    def derived(self) -> backwards.Derived:
        """The relation of backward and forward to the op."""
        found: Any = backwards.backward_of(self.origin.planned)
        found = found.frozen if self._which == "frozen" else found
        assert isinstance(found, backwards.Derived), found
        return found

    @functools.cached_property
    def planned(self) -> PlannedOp:
        found = self.derived.forward if self._which == "forward" else self.derived.op
        assert found is not None
        return found

    @property
    def refuses_gradients(self) -> bool:
        """False: its jnp form has gradients, the second derivatives of the op."""
        return False

    def call(self, key: Key, there: Mapping[str, jax.Array]) -> tuple[Key, tuple]:
        """Its call in a call of the op it was generated with, where these arrays and dynamic parameters are `there`, by name."""
        arrays = tuple(a.name for a in self.spec.inputs if a.name in there)
        static = tuple((name, value) for name, value in key.static if any(p.name == name for p in self.spec.params))
        own = Key(key.implementation, key.types, arrays, static)
        # its compute type may be narrower than the op's, which has other inputs
        dynamic = (jnp.asarray(there[p.name]).astype(self._scalar_dtype(own, p.kind)) for p in self._dynamic)
        return own, (*(there[name] for name in arrays), *dynamic)

    def given(self, key: Key, there: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """The outputs of that call, by name."""
        own, operands = self.call(key, there)
        return self.named(self._functions(own)(*operands))

    def named(self, outputs: Sequence[jax.Array]) -> dict[str, jax.Array]:
        return dict(zip((a.name for a in self.spec.outputs), outputs, strict=True))


class Stage(DerivedOp):
    """One of the kernels of an op that needs several."""

    def __init__(self, whole: Op, place: int, which: str, parts: dict[str, Any]):
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

    def left_to_xla(self, types: Types, axes: Axes) -> str:
        """Why such a call runs its jnp form although there is a kernel, or "": XLA's functions have other bits."""
        return "" if self.plan_of_whole.together else super().left_to_xla(types, axes)


def stages_of(whole: Op, prefix: str, parts: dict[str, Any]) -> tuple[Stage, ...]:
    """The stages of an op, whose launchers are `parts` that begin with `prefix`; none where it is one kernel."""
    names = [f"{prefix}stage{place + 1}" for place in range(len(parts))]
    return tuple(Stage(whole, place, n, parts) for place, n in enumerate(names) if f"{n}_launch" in parts)


class InStages(Op[P, R]):
    """An op of several kernels. Each stage is mapped, partitioned and lowered by itself."""

    stages: tuple[Stage, ...]

    @property
    def own_kernels(self) -> tuple[Op, ...]:
        return self.stages

    @property
    def kernels(self) -> tuple[Op, ...]:
        return (*self.stages, *(self._backward.generated if self._backward is not None else ()))

    def written(self, key: Key, operands: tuple) -> dict[str, jax.Array]:
        """Every array that the stages write, by name."""
        return self._through(key, operands, Stage.given)

    def _through(self, key: Key, operands: tuple, given: Callable[..., dict[str, jax.Array]]) -> dict[str, jax.Array]:
        there = dict(zip(self.operand_names(key), operands, strict=True))
        for stage in self.stages:
            there |= given(stage, key, there)
        return there

    def _outputs(self, there: dict[str, jax.Array]) -> tuple:
        return tuple(there[a.name] for a in self.spec.outputs)

    def _run(self, key: Key) -> Callable[..., tuple]:
        return lambda *operands: self._outputs(self.written(key, operands))

    def jnp_form(self, key: Key, *operands) -> tuple:
        def in_jnp(stage: Stage, key: Key, there: dict[str, jax.Array]) -> dict[str, jax.Array]:
            own, values = stage.call(key, there)
            return stage.named(stage.jnp_form(own, *values))

        return self._outputs(self._through(key, operands, in_jnp))

    def _run_interpret(self, key: Key, *operands, parts: bool = False, **given: Any) -> tuple:
        del parts, given

        def interpreted(stage: Stage, key: Key, there: dict[str, jax.Array]) -> dict[str, jax.Array]:
            own, values = stage.call(key, there)
            return stage.named(stage._run_interpret(own, *values))

        return self._outputs(self._through(key, operands, interpreted))

    def default_launch(self, types: Types, axes: Axes) -> AnyLaunch:
        """The last stage's launch. Raises `UserError` where a stage has none."""
        return [stage.default_launch(types, axes) for stage in self.stages][-1]

    def left_to_xla(self, types: Types, axes: Axes) -> str:
        """Why all stages of such a call run their jnp form, or ""."""
        found = [stage.left_to_xla(types, axes) for stage in self.stages]
        return found[0] if all(found) else ""


class StagedOp(InStages[P, R]):
    """A generated op of several kernels."""

    @functools.cached_property
    def stages(self) -> tuple[Stage, ...]:  # type: ignore[override]
        return stages_of(self, "", self._parts)


class StagedForward(InStages, DerivedOp):
    """Such an op, with more outputs for its backward."""

    def __init__(self, forward: Op, parts: dict[str, Any]):
        DerivedOp.__init__(self, forward, "forward", parts)
        self.stages = stages_of(self, "forward_", parts)


def has_kernels(which: str, parts: dict[str, Any]) -> bool:
    """Whether `parts` have the launcher of a derived op, or of its first stage."""
    return f"{which}_launch" in parts or f"{which}_stage1_launch" in parts


WAYS = ("backward", "frozen", "xla")  # in which the gradients of a call may be computed


class BackwardOp(DerivedOp):
    """The generated backward of an op: its inputs are cotangents, saved values and inputs of the op, its outputs the gradients.
    Where only gradients of rows are requested, `frozen` replaces it, which computes only these. Where it is several kernels,
    they are its `stages`."""

    forward: DerivedOp | None = None
    frozen: BackwardOp | None = None
    stages: tuple[Stage, ...] = ()

    def __init__(self, forward: Op, parts: dict[str, Any], whole: BackwardOp | None = None):
        which = "backward" if whole is None else "frozen"
        super().__init__(forward, which, parts)
        self.stages = stages_of(self, f"{which}_", parts)
        if whole is not None:
            self.forward = whole.forward
            return
        self.forward = DerivedOp(forward, "forward", parts) if "forward_launch" in parts else None
        self.forward = StagedForward(forward, parts) if "forward_stage1_launch" in parts else self.forward
        self.frozen = type(self)(forward, parts, self) if has_kernels("frozen", parts) else None

    @property
    def generated(self) -> tuple[Op, ...]:
        """The kernels that are generated for gradients: its own are the last; before them, those that run with it or replace it."""
        found = self.frozen.own_kernels if self.frozen is not None else ()
        return (*(self.forward.own_kernels if self.forward is not None else ()), *found, *self.own_kernels)

    @property
    def own_kernels(self) -> tuple[Op, ...]:
        return self.stages or (self,)

    def way(self, key: Key, perturbed: Sequence[bool]) -> str:
        """The way to compute the gradients of the operands that are `perturbed`. Where none of them is shared by all rows: "frozen",
        if it exists, or "xla", the jnp form of this op, if it would only pass its cotangents on. Else "backward", this op."""
        wanted = {name for name, asked in zip(self.origin.operand_names(key), perturbed, strict=True) if asked}
        if not wanted & self.derived.shared:
            if self.frozen is not None:
                return "frozen"
            if self.derived.copies_rows and key.implementation is None:
                return "xla"
        return "backward"

    def by(self, way: str) -> BackwardOp:
        """The backward for a way."""
        return self.frozen if way == "frozen" and self.frozen is not None else self

    def packed(self, key: Key, way: str, values: dict[str, Any], operands: tuple) -> tuple:
        """The residuals of a call: its way, as the size of an array without elements; the saved values; inputs and parameters. JAX
        stores one structure of residuals for all ways, that of the call which it traced last. So every way packs the same
        structure, with the inputs that only another way takes, and with placeholders for values that only another way saves."""
        made, taken = self.packing(key)
        given = dict(zip(self.origin.operand_names(key), operands, strict=True))
        nothing = jnp.zeros(0)
        return (
            jnp.zeros((WAYS.index(way), 0)),
            tuple(values.get(name, nothing) for name in made),
            tuple(given.get(name) for name in taken),
        )

    def unpacked(self, key: Key, residuals: tuple) -> tuple[str, dict[str, Any]]:
        """The way of a call's gradients, and the values that it takes, by name."""
        way, saved, given = residuals
        made, taken = self.packing(key)
        return WAYS[way.shape[0]], dict(zip((*made, *taken), (*saved, *given), strict=True))

    def packing(self, key: Key) -> tuple[list[str], list[str]]:
        """The names of values that any way saves, and of inputs and parameters that any way takes."""
        every = [self] if self.frozen is None else [self, self.frozen]
        made = dict.fromkeys(name for one in every for name in one.saves())
        return list(made), list(dict.fromkeys(name for one in every for name in one.takes(key)))

    def saves(self) -> list[str]:
        """The outputs and other values of the op that the backward needs, by name."""
        return list(self.derived.how.saved)

    def takes(self, key: Key) -> list[str]:
        """The inputs and dynamic parameters that the backward needs, by name."""
        del key
        how = self.derived.how
        more = [name for s in how.scattered for name in (s.table, s.index) if name not in how.inputs]
        return [*how.inputs, *dict.fromkeys(more), *(p.name for p in self._dynamic)]

    def saved(self, key: Key, plain: Callable[..., tuple], operands: tuple) -> tuple[tuple, dict[str, Any]]:
        """The op's outputs (from `plain`), and the values that the backward `saves`, by name."""
        if self.forward is None and (missing := [n for n in self.saves() if n not in self.origin.spec.asked_types]):
            assert isinstance(self.origin, InStages), missing
            made = self.origin.written(key, operands)
            return self.origin._outputs(made), {name: made[name] for name in self.saves()}
        outputs = plain(*operands) if self.forward is None else self.forward._functions(key)(*operands)
        made = dict(zip((a.name for a in (self.forward or self.origin).spec.outputs), outputs, strict=True))
        return outputs[: len(self.origin.spec.outputs)], {name: made[name] for name in self.saves()}

    def pull(self, key: Key, values: dict[str, Any], cotangents: tuple) -> tuple:
        """The gradient of each operand of the forward, from the values that the backward `saves` and `takes` (None for an input
        that is left out); None where it is zero."""
        own = {name: values[name] for name in (*self.saves(), *self.takes(key))}
        return self.ordered(key, self.gradients(key, own, cotangents))

    def gradients(self, key: Key, values: dict[str, Any], cotangents: tuple) -> dict[str, jax.Array]:
        """The gradients that the kernel computes, by the names of their arrays. `values` are its inputs other than cotangents; None
        is an input that is left out."""
        how = self.derived.how
        outer = {a.name: dy for a, dy in zip(self.origin.spec.outputs, cotangents, strict=True)}
        there = {dy: outer[y] for y, dy in how.cotangents} | {n: x for n, x in values.items() if x is not None}
        for one in self.stages or (self,):
            there |= one.given(key, there)
        tables = {s.output for s in how.scattered}
        found = {name: there[dx] for name, dx in how.gradients if dx not in tables}
        found |= {name: there[a.name] for name, a in how.same}
        for s in how.scattered:
            taken = there[s.output], self.derived.how.spec.array(s.output).axes
            so_far = found.get(s.table, jnp.zeros(there[s.table].shape, taken[0].dtype))
            found[s.table] = add_taken(self.origin.spec, s, so_far, there[s.index], taken)
        return found | {s.table: found[s.table].astype(there[s.table].dtype) for s in how.scattered}

    def ordered(self, key: Key, gradients: dict[str, jax.Array]) -> tuple:
        """Gradients in the order of the forward's operands; None for an operand without one."""
        scalars = {p.name: self.origin._scalar_dtype(key, p.kind) for p in self.origin._dynamic}
        return tuple(
            gradients[name].astype(scalars[name]) if name in scalars and name in gradients else gradients.get(name)
            for name in self.origin.operand_names(key)
        )


def backward_ops(op: Op) -> tuple[BackwardOp, ...]:
    """The generated backward of an op, each of its ways as one op, the whole one last; empty where there is none."""
    whole = op._backward
    return (*filter(None, (whole.frozen,)), whole) if isinstance(whole, BackwardOp) else ()
