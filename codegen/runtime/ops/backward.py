"""An op's generated backward: the values that it takes, the kernels that compute the gradients, and the products that
XLA computes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from codegen.autodiff.reverse import Scattered
from codegen.graph.nodes import DTYPES
from codegen.plan.gemms.tiles import Tile
from codegen.runtime.call import arguments
from codegen.runtime.call.arguments import Axes, Types
from codegen.runtime.call.cast import store
from codegen.runtime.call.described import Key
from codegen.runtime.compiled.platform import arch_alone
from codegen.runtime.ops.by_graph import ByGraph
from codegen.runtime.ops.by_index import sums_by_index
from codegen.runtime.ops.derived import DerivedOp
from codegen.runtime.ops.gemm_op import Epilogue, GemmOp
from codegen.runtime.ops.op import AnyOp
from codegen.runtime.ops.staged import (
    InStages,
    Stage,
    StagedForward,
    Whole,
    WholeInStages,
    has_kernels,
    kernels_of,
    stages_of,
    whole_of,
)
from codegen.runtime.sharding import shards
from codegen.runtime.sharding.shards import Split
from codegen.runtime.xla.evaluate import Evaluation
from codegen.runtime.xla.products import gradient, is_product, product
from codegen.runtime.xla.scatter import Taken, table_gradient
from codegen.spec.spec import Spec

# How the gradients of a call may be computed: by the backward, by the frozen backward, by the jnp form of the backward, or
# by JAX's derivative of the op's jnp form
WAYS = ("backward", "frozen", "backward in jnp", "op in jnp")


class ForwardByGraph(ByGraph[..., Any], DerivedOp):
    """Attention, with more outputs for its backward."""


class BackwardOp(DerivedOp):
    """The generated backward of an op: its inputs are cotangents, saved values and inputs of the op, its outputs the gradients.
    Where only gradients of rows are requested, `frozen` replaces it, which computes only these. Where it is several kernels,
    they are its `stages`."""

    def __init__(self, op: AnyOp, parts: dict[str, Any], full: BackwardOp | None = None):
        """The backward of `op`; with `full`, the frozen backward besides that one."""
        which = "backward" if full is None else "frozen"
        super().__init__(op, which, parts)
        self._parts, self._full = parts, full
        self.stages: tuple[Stage, ...] = stages_of(self, f"{which}_", parts)
        # instead of the stages, where it has room
        self.whole: Whole | WholeInStages | None = whole_of(self, f"{which}_", parts)
        self.frozen = type(self)(op, parts, self) if full is None and has_kernels("frozen", parts) else None

    @functools.cached_property
    def forward(self) -> AnyOp | None:
        """The op that runs where gradients are requested, with more outputs for the backward; None if that is the op itself."""
        return self._forward() if self._full is None else self._full.forward

    def _forward(self) -> AnyOp | None:
        op, parts = self.origin, self._parts
        if "forward_launch" in parts:
            return (ForwardByGraph if parts.get("kind") == "attention" else DerivedOp)(op, "forward", parts)
        return StagedForward(op, parts) if has_kernels("forward", parts) else None

    @property
    def generated(self) -> tuple[AnyOp, ...]:
        """The kernels that are generated for gradients: its own are the last; the ones that run with it or replace it come before."""
        found = self.frozen.own_kernels if self.frozen is not None else ()
        return (*(self.forward.own_kernels if self.forward is not None else ()), *found, *self.own_kernels)

    @property
    def own_kernels(self) -> tuple[AnyOp, ...]:
        joined = () if self.whole is None else self.whole.own_kernels
        return (*joined, *kernels_of(self.stages)) or (self,)

    def way(self, key: Key, perturbed: Sequence[bool]) -> str:
        """The way to compute the gradients of the operands that are `perturbed`. Where no kernel computes one of them, JAX
        differentiates the op in jnp. Where none of them is shared by all rows, the frozen backward runs, if it exists, or the
        backward in jnp, if it would only pass its cotangents on."""
        wanted = {name for name, asked in zip(self.origin.operand_names(key), perturbed, strict=True) if asked}
        if wanted & self.derived.lacking:
            return "op in jnp"
        if not wanted & self.derived.shared:
            if self.frozen is not None:
                return "frozen"
            if self.derived.copies_rows and key.implementation is None:
                return "backward in jnp"
        return "backward"

    def by(self, way: str) -> BackwardOp:
        """The backward for a way."""
        return self.frozen if way == "frozen" and self.frozen is not None else self

    def packed(self, key: Key, way: str, values: dict[str, Any], operands: tuple[Any, ...]) -> tuple[Any, ...]:
        """The residuals of a call: its way, as the size of an array without elements; the saved values; inputs and parameters. JAX
        stores one structure of residuals for all ways: the structure of the call that it traced last. So every way packs the same
        structure, with the inputs that only another way takes, and with placeholders for values that only another way saves."""
        made, taken = self.packing(key)
        given = dict(zip(self.origin.operand_names(key), operands, strict=True))
        nothing = jnp.zeros(0)
        return (
            jnp.zeros((WAYS.index(way), 0)),
            tuple(values.get(name, nothing) for name in made),
            tuple(given.get(name) for name in taken),
        )

    def unpacked(self, key: Key, residuals: tuple[Any, ...]) -> tuple[str, dict[str, Any]]:
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
        how = self.derived.how
        if self.derived.lacking:
            return self.origin.operand_names(key)
        known = {*how.inputs, *(a.name for a in how.spec.outputs)}
        more = [name for s in how.scattered for name in (s.table, s.index) if name not in known]
        return [*how.inputs, *dict.fromkeys(more), *(p.name for p in self.spec.dynamic_params)]

    def saved(
        self, key: Key, plain: Callable[..., tuple[Any, ...]], operands: tuple[Any, ...]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The op's outputs (from `plain`), and the values that the backward `saves`, by name."""
        if self.forward is None and (missing := [n for n in self.saves() if n not in self.origin.spec.asked_types]):
            assert isinstance(self.origin, InStages), missing
            made = self.origin.written(key, operands)
            return self.origin._outputs(key, made), {name: made[name] for name in self.saves()}
        outputs = plain(*operands) if self.forward is None else self.forward._functions(key)(*operands)
        made = dict(zip((a.name for a in (self.forward or self.origin).spec.outputs), outputs, strict=True))
        return outputs[: len(self.origin.spec.outputs)], {name: made[name] for name in self.saves()}

    def pull(
        self, key: Key, values: dict[str, Any], cotangents: tuple[Any, ...], copies: bool = False
    ) -> tuple[Any, ...]:
        """The gradient of each operand of the forward, from the values that the backward `saves` and `takes` (None for an input
        that is left out); None where it is zero. XLA computes what the kernel would only copy, if it only `copies`."""
        own = {name: values[name] for name in (*self.saves(), *self.takes(key))}
        return self.ordered(key, self.gradients(key, own, cotangents, copies))

    def gradients(
        self, key: Key, values: dict[str, Any], cotangents: tuple[Any, ...], copies: bool = False
    ) -> dict[str, jax.Array]:
        """The gradients that the kernel computes, by the names of their arrays. `values` are its inputs other than cotangents; None
        is an input that is left out."""
        how = self.derived.how
        outer = {a.name: dy for a, dy in zip(self.origin.spec.outputs, cotangents, strict=True)}
        there = {dy: outer[y] for y, dy in how.cotangents} | {n: x for n, x in values.items() if x is not None}
        joined = self.whole is not None and self.whole.takes(key, there)
        kernels = (self.whole,) if joined and self.whole is not None else self.stages or (self,)
        for one in () if self.derived.idle else kernels:
            there |= one.given(replace(key, implementation="xla") if copies else key, there)
        apart = {s.output for s in how.scattered} | {dx for name, dx in how.gradients if name in dict(how.same)}
        found = {name: there[dx] for name, dx in how.gradients if dx not in apart}
        found |= {name: there[a.name] for name, a in how.same}
        for table in dict.fromkeys(s.table for s in how.scattered):
            taken = [self._taken(s, there) for s in how.scattered if s.table == table]
            summed = functools.partial(sums_by_index, key.implementation)
            found[table] = table_gradient(self.origin.spec, there[table], found.get(table), taken, summed)
        return found

    def _taken(self, how: Scattered, there: dict[str, jax.Array]) -> Taken:
        """The sum by index that adds an output of the backward to a table's gradient."""
        spec, own = self.derived.how.spec, self.origin.spec
        places = spec if any(a.name == how.index for a in spec.outputs) else own
        values = dict(self.derived.how.passed).get(how.output, how.output)
        passed = next((y for y, dy in self.derived.how.cotangents if dy == values), None)
        array = spec.array(values) if passed is None else own.array(passed)
        return Taken(how, there[how.index], places.array(how.index), there[values], array.axes)

    def ordered(self, key: Key, gradients: dict[str, jax.Array]) -> tuple[Any, ...]:
        """Gradients in the order of the forward's operands; None for an operand without one."""
        scalars = {p.name: p.dtype(self.origin.compute(key)) for p in self.origin.spec.dynamic_params}
        return tuple(
            gradients[name].astype(scalars[name]) if name in scalars and name in gradients else gradients.get(name)
            for name in self.origin.operand_names(key)
        )


def kernels_of_call(op: AnyOp, types: Types, axes: Axes) -> tuple[AnyOp, ...]:
    """The kernels that a call of an op, or of its gradients, with these types and sizes runs."""
    if not isinstance(op, InStages | BackwardOp):
        return op.own_kernels
    if op.whole is not None and op.whole.has_room(types, axes):
        return op.whole.own_kernels
    return kernels_of(op.stages) or op.own_kernels


class GemmForward(DerivedOp, GemmOp[..., Any]):
    """An op that contracts, with the values that its backward needs of the products as additional outputs."""

    origin: GemmOp[..., Any]

    @property
    def own_kernels(self) -> tuple[AnyOp, ...]:
        """Its kernel, where it has one: the epilogue is the op's own."""
        return (self,) if isinstance(self.plan.tile, Tile) else ()

    @functools.cached_property
    def spec(self) -> Spec:
        """The op's spec, with the additional outputs."""
        return replace(self.origin.spec, op=self.planned.spec.op, outputs=self.planned.spec.outputs)

    @functools.cached_property
    def epilogue(self) -> Epilogue:
        """The op's own epilogue: outputs that it lacks are computed in jnp."""
        return self.origin.epilogue

    def more_outputs(self, key: Key, operands: tuple[Any, ...], split: Split | None = None) -> tuple[jax.Array, ...]:
        op, own = self.epilogue, self.plan.epilogue
        arrays = op.arrays(key, operands)
        split = split or Split(arguments.bind_axes(op.spec, arrays))
        more = self.spec.outputs[len(op.spec.outputs) :]
        stores = [a for a in own.plan.stores if a.array in more]
        params = op.parameters(key, operands)
        call = Evaluation(own, arrays, params, arguments.bind_axes(own.spec, arrays), key.types, "float32")
        found = shards.outputs_in_jnp(call, stores, split)
        return tuple(found[array] for array in more)


class GemmBackwardOp(BackwardOp):
    """The generated backward of an op's epilogue, and the gradients of the products."""

    origin: GemmOp[..., Any]

    def _forward(self) -> GemmForward | None:
        return None if self.derived.forward is None else GemmForward(self.origin, "forward", self._parts)

    def saves(self) -> list[str]:
        """Outputs, products, tiles, by the names under which they are saved."""
        return [*self.derived.how.saved, *(name for _, name in self.derived.products)]

    def takes(self, key: Key) -> list[str]:
        """Everything: the products' gradients are products with the factors."""
        return self.origin.operand_names(key)

    def pull(
        self, key: Key, values: dict[str, Any], cotangents: tuple[Any, ...], copies: bool = False
    ) -> tuple[Any, ...]:
        derived, op = self.derived, self.origin
        operands = tuple(values[name] for name in self.takes(key))
        arrays = op.arrays(key, operands)
        there = arrays | op.parameters(key, operands)
        own = {name: there.get(name) for name in super().takes(key)}
        own |= {name: values[name] for name in derived.how.saved}
        own |= {acc: values[name] for acc, name in derived.products}
        gradients = self.gradients(key, own, cotangents, copies)
        axes = arguments.bind_axes(op.spec, arrays)
        for p in op.plan.products:
            if (inner := gradients.pop(p.acc.name, None)) is None:
                continue
            for name, value in self.through(p, arrays, inner, axes).items():
                gradients[name] = gradients[name] + value if name in gradients else value
        gradients = {n: store(g, arrays[n].dtype) if n in arrays else g for n, g in gradients.items()}
        return self.ordered(key, gradients)

    def through(self, p: Any, arrays: dict[str, Any], inner: jax.Array, axes: Axes) -> dict[str, jax.Array]:
        """The gradients of a product's operands, from the gradient of the product."""
        exact, arch = self.origin.spec.math == "precise", arch_alone()
        a, b = (jnp.asarray(arrays[x.name]) for x in (p.a, p.b))
        own = [name for name, x in ((p.a.name, a), (p.b.name, b)) if DTYPES[x.dtype.name].kind == "float"]
        wide = {n: (x if x.dtype.itemsize > 1 else x.astype(inner.dtype)) for n, x in ((p.a.name, a), (p.b.name, b))}

        def of(given: Any) -> Any:
            full = wide | given
            return product(p, full[p.a.name], full[p.b.name], axes, inner.dtype.name, exact)

        alone: dict[str, jax.Array] = {}
        for factor, other in ((p.a, p.b), (p.b, p.a)):
            alike = wide[other.name].dtype == wide[factor.name].dtype == inner.dtype
            # A product in the factor's own order: XLA would leave JAX's transpose of one to the kernels that follow
            if factor.name in own and alike and p.loaded is None and is_product(found := gradient(p, factor)):
                dtype = wide[factor.name].dtype.name
                alone[factor.name] = product(found, wide[other.name], inner, axes, dtype, exact, arch)
        (whole,) = jax.vjp(of, {name: wide[name] for name in own if name not in alone})[1](inner)
        return whole | alone


def backward_ops(op: AnyOp) -> tuple[BackwardOp, ...]:
    """The generated backward of an op, each of its ways as one op, the whole one last; empty where there is none."""
    whole = op._backward
    return (*filter(None, (whole.frozen,)), whole) if isinstance(whole, BackwardOp) else ()
