"""What is generated with an op: its backward, what runs before or beside that, and a forward that keeps more for it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from codegen.autodiff import backward as backwards
from codegen.plan.op import Op as PlannedOp
from codegen.runtime.call.described import Key
from codegen.runtime.ops.op import Op
from codegen.runtime.xla.scatter import add_taken


class DerivedOp(Op):
    """An op generated with another: its backward, the op run first in that or the one beside it, or the forward that saves more
    than its outputs for that."""

    def __init__(self, forward: Op, which: str, parts: dict[str, Any]):
        self.__name__ = f"{forward.__name__}_{which}"  # type: ignore[attr-defined]
        self.origin, self._which = forward, which
        self._backward = self._result = None
        self._begin(parts.get(f"{which}_launch"), parts.get(f"{which}_xla"))

    @functools.cached_property
    def derived(self) -> backwards.Derived:
        """How both stand to the op."""
        found: Any = backwards.backward_of(self.origin.planned)
        found = found.frozen if self._which == "frozen" else found
        assert isinstance(found, backwards.Derived), found
        return found

    @functools.cached_property
    def planned(self) -> PlannedOp:
        found = {"first": self.derived.first, "forward": self.derived.forward, "beside": self.derived.beside}.get(
            self._which, self.derived.op
        )
        assert found is not None
        return found

    @property
    def refuses_gradients(self) -> bool:
        """Its jnp form has them: second derivatives of the op."""
        return False

    def given(self, key: Key, there: dict[str, jax.Array]) -> tuple:
        """The outputs for a call of the op it was generated with, from its own inputs and dynamic parameters by name; those
        that are left out are not `there`."""
        arrays = tuple(a.name for a in self.spec.inputs if a.name in there)
        static = tuple((name, value) for name, value in key.static if any(p.name == name for p in self.spec.params))
        own = Key(key.implementation, key.types, arrays, static)
        # what it computes in may be less than what the op does, which has other inputs
        dynamic = (jnp.asarray(there[p.name]).astype(self._scalar_dtype(own, p.kind)) for p in self._dynamic)
        return self._functions(own)(*(there[name] for name in arrays), *dynamic)


WAYS = ("backward", "frozen", "xla")  # that the gradients of a call may go


class BackwardOp(DerivedOp):
    """The generated backward of an op: an op of cotangents, of what is saved and of inputs; its outputs are the gradients.
    Where only gradients of rows are asked for, `frozen` takes its place, which gives no others. `beside` gives more of them."""

    forward: DerivedOp | None = None
    first: DerivedOp | None = None
    beside: DerivedOp | None = None
    frozen: BackwardOp | None = None

    def __init__(self, forward: Op, parts: dict[str, Any], whole: BackwardOp | None = None):
        super().__init__(forward, "backward" if whole is None else "frozen", parts)
        if whole is not None:
            self.forward = whole.forward
            return
        self.forward = DerivedOp(forward, "forward", parts) if "forward_launch" in parts else None
        self.first = DerivedOp(forward, "first", parts) if "first_launch" in parts else None
        self.beside = DerivedOp(forward, "beside", parts) if "beside_launch" in parts else None
        self.frozen = type(self)(forward, parts, self) if "frozen_launch" in parts else None

    @property
    def generated(self) -> tuple[Op, ...]:
        """The ops that are generated for gradients: this one last, those that run for it or in its place before it."""
        found = (self.forward, self.first, self.beside, self.frozen, self)
        return tuple(op for op in found if op is not None)

    def way(self, key: Key, perturbed: Sequence[bool]) -> str:
        """What gives the gradients of the operands that are `perturbed`: where none of them is shared by all rows, "frozen", if
        there is one, or "xla", the jnp form of this one, if it then only hands on what it reads; else "backward", this one."""
        wanted = {name for name, asked in zip(self.origin.operand_names(key), perturbed, strict=True) if asked}
        if not wanted & self.derived.shared:
            if self.frozen is not None:
                return "frozen"
            if self.derived.hands_on and key.implementation is None:
                return "xla"
        return "backward"

    def by(self, way: str) -> BackwardOp:
        """The one of that name."""
        return self.frozen if way == "frozen" and self.frozen is not None else self

    def packed(self, key: Key, way: str, values: dict[str, Any], operands: tuple) -> tuple:
        """The residuals of a call: which way its gradients go, as the extent of an array with no elements; what was saved for
        that; inputs and parameters. JAX keeps how they are packed once for all ways, that of the call it traced last: so every
        way packs alike, inputs that only another takes included, and something in the place of what only another saves."""
        made, taken = self.packing(key)
        given = dict(zip(self.origin.operand_names(key), operands, strict=True))
        nothing = jnp.zeros(0)
        return (
            jnp.zeros((WAYS.index(way), 0)),
            tuple(values.get(name, nothing) for name in made),
            tuple(given.get(name) for name in taken),
        )

    def unpacked(self, key: Key, residuals: tuple) -> tuple[str, dict[str, Any]]:
        """The way of a call's gradients, and what they take, by name."""
        way, saved, given = residuals
        made, taken = self.packing(key)
        return WAYS[way.shape[0]], dict(zip((*made, *taken), (*saved, *given), strict=True))

    def packing(self, key: Key) -> tuple[list[str], list[str]]:
        """What any way saves, and what inputs and parameters any takes, by name."""
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
        """The op's outputs (`plain` gives them), and what of the call the backward `saves`."""
        outputs = plain(*operands) if self.forward is None else self.forward._functions(key)(*operands)
        made = dict(zip((a.name for a in (self.forward or self.origin).spec.outputs), outputs, strict=True))
        return outputs[: len(self.origin.spec.outputs)], {name: made[name] for name in self.saves()}

    def pull(self, key: Key, values: dict[str, Any], cotangents: tuple) -> tuple:
        """The gradient of each operand of the forward, from what the backward `saves` and `takes` (None for an input that is
        left out); None where it is zero."""
        own = {name: values[name] for name in (*self.saves(), *self.takes(key))}
        return self.ordered(key, self.gradients(key, own, cotangents))

    def gradients(self, key: Key, values: dict[str, Any], cotangents: tuple) -> dict[str, jax.Array]:
        """The gradients that the kernel gives, by the names of what they are of. `values` are what it takes besides the
        cotangents; None is an input that is left out."""
        how = self.derived.how
        outer = {a.name: dy for a, dy in zip(self.origin.spec.outputs, cotangents, strict=True)}
        there = {dy: outer[y] for y, dy in how.cotangents} | {n: x for n, x in values.items() if x is not None}
        for one in (self.first, self, self.beside):
            if one is not None:
                there |= dict(zip((a.name for a in one.spec.outputs), one.given(key, there), strict=True))
        tables = {s.output for s in how.scattered}
        found = {name: there[dx] for name, dx in how.gradients if dx not in tables}
        found |= {name: there[a.name] for name, a in how.same}
        for s in how.scattered:
            taken = there[s.output], self.derived.how.spec.array(s.output).axes
            so_far = found.get(s.table, jnp.zeros(there[s.table].shape, taken[0].dtype))
            found[s.table] = add_taken(self.origin.spec, s, so_far, there[s.index], taken)
        return found | {s.table: found[s.table].astype(there[s.table].dtype) for s in how.scattered}

    def ordered(self, key: Key, gradients: dict[str, jax.Array]) -> tuple:
        """Gradients in the order of the forward's operands; None where there is none."""
        scalars = {p.name: self.origin._scalar_dtype(key, p.kind) for p in self.origin._dynamic}
        return tuple(
            gradients[name].astype(scalars[name]) if name in scalars and name in gradients else gradients.get(name)
            for name in self.origin.operand_names(key)
        )
