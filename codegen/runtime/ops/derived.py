"""The ops that are generated with another: its backward, ops that run with the backward, and a forward that saves more for it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from codegen.autodiff import backward as backwards
from codegen.plan.launches import Tuned
from codegen.plan.op import Op as PlannedOp
from codegen.runtime.call.described import Key
from codegen.runtime.ops.op import Op
from codegen.runtime.xla.scatter import add_taken


class DerivedOp(Op):
    """An op generated with another: its backward, the op that runs before the backward or independently of it, or the forward
    that saves more than its outputs."""

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
        found = {"first": self.derived.first, "forward": self.derived.forward, "columns": self.derived.columns}.get(
            self._which, self.derived.op
        )
        assert found is not None
        return found

    @property
    def refuses_gradients(self) -> bool:
        """False: its jnp form has gradients, the second derivatives of the op."""
        return False

    def given(self, key: Key, there: dict[str, jax.Array]) -> tuple:
        """The outputs for a call of the op it was generated with, from its own present inputs and dynamic parameters, by name."""
        arrays = tuple(a.name for a in self.spec.inputs if a.name in there)
        static = tuple((name, value) for name, value in key.static if any(p.name == name for p in self.spec.params))
        own = Key(key.implementation, key.types, arrays, static)
        # its compute type may be narrower than the op's, which has other inputs
        dynamic = (jnp.asarray(there[p.name]).astype(self._scalar_dtype(own, p.kind)) for p in self._dynamic)
        return self._functions(own)(*(there[name] for name in arrays), *dynamic)


WAYS = ("backward", "frozen", "xla")  # in which the gradients of a call may be computed


class BackwardOp(DerivedOp):
    """The generated backward of an op: its inputs are cotangents, saved values and inputs of the op, its outputs the gradients.
    Where only gradients of rows are requested, `frozen` replaces it, which computes only these. `columns` computes more
    gradients."""

    forward: DerivedOp | None = None
    first: DerivedOp | None = None
    columns: DerivedOp | None = None
    frozen: BackwardOp | None = None

    def __init__(self, forward: Op, parts: dict[str, Any], whole: BackwardOp | None = None):
        super().__init__(forward, "backward" if whole is None else "frozen", parts)
        if whole is not None:
            self.forward = whole.forward
            return
        self.forward = DerivedOp(forward, "forward", parts) if "forward_launch" in parts else None
        self.first = DerivedOp(forward, "first", parts) if "first_launch" in parts else None
        self.columns = DerivedOp(forward, "columns", parts) if "columns_launch" in parts else None
        self.frozen = type(self)(forward, parts, self) if "frozen_launch" in parts else None

    @property
    def generated(self) -> tuple[Op, ...]:
        """The ops that are generated for gradients: this one is the last; before it, the ops that run with it or replace it."""
        found = (self.forward, self.first, self.columns, self.frozen, self)
        return tuple(op for op in found if op is not None)

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
        for one in (self.first, self, self.columns):
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
        """Gradients in the order of the forward's operands; None for an operand without one."""
        scalars = {p.name: self.origin._scalar_dtype(key, p.kind) for p in self.origin._dynamic}
        return tuple(
            gradients[name].astype(scalars[name]) if name in scalars and name in gradients else gradients.get(name)
            for name in self.origin.operand_names(key)
        )
