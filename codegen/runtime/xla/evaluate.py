"""Evaluates a chain's nodes in jnp, one by one: on one shard of arrays, and for the steps after a reduction over several devices."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from codegen.graph.contraction import rounding
from codegen.graph.emit import leaf_key
from codegen.graph.nodes import Node, Selected, along_of, lost_axes, nodes_of, topological
from codegen.graph.ops import NUCLEUS, OPS, PINNED, REDUCTIONS, SCANS, SELECTIONS
from codegen.language.formula.products import type_of
from codegen.plan.access import Access, access_key
from codegen.plan.op import Op
from codegen.runtime.call.arguments import Axes, Types
from codegen.runtime.call.cast import cast
from codegen.runtime.xla import by_position, random, scales, scatter, selections, slopes
from codegen.runtime.xla.products import sum_of_products
from codegen.runtime.xla.scans import scanned
from codegen.spec.spec import Array, Spec

_NAMES = {"jax": jax, "jnp": jnp, "runtime": SimpleNamespace(**vars(slopes) | vars(scales) | vars(random))}
_TYPES = {"floating": "floating", "integer": "integer"}
_FUNCTIONS = {
    name: eval(f"lambda {', '.join('abc'[: op.arity])}, floating, integer: {op.jnp.format(*'abc', **_TYPES)}", _NAMES)
    for name, op in OPS.items()
}


def wide(spec: Spec) -> contextlib.AbstractContextManager[Any]:
    """A context with 64-bit integers where they are needed: without x64, uint32 arrays exist, but their compute type int64 does
    not."""
    return jax.enable_x64(True) if spec.integer == "int64" else contextlib.nullcontext()


def widened(spec: Spec, reference: Any, compute: str) -> Any:
    """A spec's reference for inputs of the dtype `compute`. Where that is float64, `jnp.float32` is float64 too, since a
    cast that widens must not round. Random numbers are those that `jax.random` draws without x64, as in an op."""
    wide, draws = compute == "float64", "_bits" in spec.read.ops
    return _instead(reference, wide, draws) if wide or draws else reference


@functools.cache
def _instead(reference: FunctionType, wide: bool, draws: bool) -> FunctionType:
    """A function with another `jnp` where it is to be `wide`, and another `jax.random` where it `draws`."""
    names = dict(reference.__globals__)
    if wide:
        names["jnp"] = _changed(jnp, float32=jnp.float64)
    if draws:
        own = {name: _single(f, wide) for name, f in vars(jax.random).items() if isinstance(f, FunctionType)}
        names["jax"] = _changed(jax, random=_changed(jax.random, **own))
    return FunctionType(reference.__code__, names, reference.__name__)


def _changed(module: ModuleType, **names: Any) -> ModuleType:
    changed = ModuleType(module.__name__)
    changed.__dict__.update(module.__dict__, **names)
    return changed


def _single(draw: Callable[..., Any], wide: bool) -> Callable[..., Any]:
    """A function of `jax.random` without x64, whose floating results are then float64 if they are to be `wide`."""

    def narrow(x: Any) -> Any:
        if x is jnp.float64:
            return jnp.float32
        return x.astype("float32") if getattr(x, "dtype", None) == np.float64 else x

    def drawn(*args: Any, **keywords: Any) -> Any:
        with jax.enable_x64(False):
            made = draw(*map(narrow, args), **{name: narrow(x) for name, x in keywords.items()})
        return jax.tree.map(
            lambda x: x.astype("float64") if wide and jnp.issubdtype(x.dtype, jnp.floating) else x, made
        )

    return drawn


def in_order(access: Access, value: jax.Array, order: Sequence[str]) -> jax.Array:
    """A value that a chain reads. A whole table has its axes in the spec's `order`, as the chain's nodes have them."""
    if access.mode != "table" or access.array is None:
        return value
    own = access.array.axes
    return value.transpose([own.index(axis) for axis in order if axis in own])


@dataclass(frozen=True)
class Evaluation:
    """A call of an op, or what one device computes of it, whose chain is evaluated: its arrays and parameters by name, the sizes of its
    axes, its types, and the dtype in which floats are computed. Values have a dimension for each axis."""

    op: Op
    arrays: Mapping[str, Any]
    params: Mapping[str, Any]
    axes: Axes
    types: Types
    compute: str

    def outputs(self, stores: Sequence[Access], known: Mapping[int, jax.Array]) -> dict[Array, jax.Array]:
        """The outputs that `stores` write, rounded to their dtypes. `known` has the values of some nodes, by identity."""
        values = {(s.name, s.part): s.value for s in self.op.statements}
        roots = [values[a.array.name, a.part] for a in stores if a.array is not None]
        made = self.values(roots, self.leaves(roots, known), known)
        return scatter.stored(self.op.plan, stores, made, self.arrays, self.axes, self.types)

    def leaves(self, roots: Sequence[Node], known: Collection[int]) -> dict[tuple[Any, ...], jax.Array]:
        """The values that `roots` read, unless they need only `known` nodes, and the parameters; by `leaf_key`."""
        spec, plan = self.op.spec, self.op.plan
        needed = {leaf_key(n) for n in topological(roots, lambda n: id(n) in known)}

        def value(access: Access) -> jax.Array:
            made = by_position.jnp_value(plan, access, self.arrays, self.axes, self.compute, spec.integer)
            return in_order(access, made, spec.axes)

        read = [a for a in plan.loads if a.mode == "table" or access_key(plan, a) in needed]
        leaves = {access_key(plan, a): value(a) for a in read}
        return leaves | {("param", p.name): jnp.asarray(self.params[p.name], self.dtypes[p.kind]) for p in spec.params}

    @functools.cached_property
    def dtypes(self) -> dict[str, str]:
        """The dtype that values of each kind are computed in."""
        return {"float": self.compute, "int": self.op.spec.integer, "bool": "bool"}

    def values(
        self, roots: Sequence[Node], leaves: Mapping[tuple[Any, ...], Any], known: Mapping[int, jax.Array]
    ) -> list[jax.Array]:
        """The values of `roots`. `leaves` holds the values that they read, by `leaf_key`, and `known` those of some nodes, by identity.
        Reductions and products are computed here in attention only; elsewhere they are known."""
        types = dict(self.types.variables)
        attention = self.op.plan.kind == "attention"
        values: dict[int, Any] = dict(known)

        def value(node: Node) -> Any:
            if node.is_const:
                return jnp.asarray(node.attr, self.dtypes[node.kind])
            if leaf_key(node) in leaves:
                return leaves[leaf_key(node)]
            if node.op == "input":  # a table: only `pick` reads it
                return None
            args = [values[id(a)] for a in node.args]
            if node.op == "pick":
                return slopes.pick_along(leaves["table", node.args[0].attr], node, args[1:])
            if node.op == "float":
                return args[0].astype(self.compute)
            if node.op == "cast":
                return cast(args[0], types.get(str(node.attr), str(node.attr))).astype(self.dtypes[node.kind])
            if node.op in SCANS:
                return self.scan(node, *args)
            if isinstance(node.attr, Selected):
                return self.selection(node, node.attr, *args).astype(self.dtypes[node.kind])
            if node.op in REDUCTIONS and attention:
                return self.reduced(node, args[0])
            if node.op == "contract" and attention:
                return self.product(node, *args)
            made = _FUNCTIONS[node.op](*args, floating=self.compute, integer=self.op.spec.integer)
            if node.op == PINNED:  # XLA would compute it again in each of its kernels, with other bits
                return jax.lax.optimization_barrier(made)
            return slopes.settled(made) if id(node) in self.settled else made

        for node in topological(roots, lambda n: id(n) in known or leaf_key(n) in leaves):
            if id(node) not in values:
                values[id(node)] = value(node)
        return [values[id(root)] for root in roots]

    @functools.cached_property
    def dimensions(self) -> dict[str, tuple[int, ...]]:
        """The dimensions of each axis."""
        found: dict[str, tuple[int, ...]] = {}
        for axis in self.op.plan.order:
            start = sum(map(len, found.values()))
            found[axis] = tuple(range(start, start + len(self.axes.shape((axis,)))))
        return found

    @functools.cached_property
    def settled(self) -> frozenset[int]:
        """The identities of the values in pinned ones that are rounded separately, as in the jnp form's text."""
        made = rounding(nodes_of(self.op.statements))
        return made.products | made.functions

    def of(self, axes: Sequence[str]) -> tuple[int, ...]:
        return tuple(d for axis in axes for d in self.dimensions[axis])

    def whole(self, value: jax.Array, axes: Sequence[str]) -> jax.Array:
        """A value with all elements along some axes: one that lacks them is repeated."""
        shape = list(value.shape)
        for axis in axes:
            for d, n in zip(self.dimensions[axis], self.axes.shape((axis,)), strict=True):
                shape[d] = n
        return jnp.broadcast_to(value, shape)

    def reduced(self, node: Node, value: jax.Array) -> jax.Array:
        return getattr(jnp, node.op)(self.whole(value, lost_axes(node)), axis=self.of(lost_axes(node)), keepdims=True)

    def scan(self, node: Node, *operands: jax.Array) -> jax.Array:
        along = along_of(node)
        (axis,) = self.of((along.axis,))
        return scanned(node.op, axis, along.reverse, along.before, *operands)

    def selection(self, node: Node, how: Selected, *operands: jax.Array) -> jax.Array:
        """A selection along axes that then have size 1, or a sort."""
        axes, function = self.of(how.axes), getattr(selections, node.op.removeprefix("_"))
        axis = axes[0] if len(axes) == 1 else axes
        if how.sorts or node.op == NUCLEUS:
            return function(*operands, axis=axis)
        count = (how.count,) if node.op in SELECTIONS else ()
        return function(*operands, *count, axis=axis, into=self.of((how.into,))[0])

    def product(self, node: Node, left: jax.Array, right: jax.Array) -> jax.Array:
        """The product of two factors in their own types, summed in the compute type."""
        arrays = {a.name: a for a in self.op.spec.arrays}
        lost = self.of(lost_axes(node))
        own = [self.of([a for a in self.op.plan.order if a in n.dims]) for n in node.args]
        dtypes = [type_of(side, arrays) for side in node.args]
        # On a CPU, XLA only has products in which the shared axes come first, and whose result is not transposed
        both = [d for d in own[0] if d in own[1] and d not in lost]
        free = [[d for d in numbers if d not in both and d not in lost] for numbers in own]
        if free[1] and free[1] < free[0]:
            left, right, own = right, left, own[::-1]
        orders = [[*both, *(d for d in numbers if d not in both)] for numbers in own]
        result = [*both, *(d for numbers in own for d in numbers if d not in both and d not in lost)]
        operands = []
        for value, numbers, order in zip((left, right), own, orders, strict=True):
            value = value.squeeze(tuple(d for d in range(left.ndim) if d not in numbers))
            operands.append(value.transpose([numbers.index(d) for d in order]))
        narrow = left.dtype == jnp.float32 and dtypes[0] == dtypes[1]
        dtype = self.types.dtype(dtypes[0]) if narrow and dtypes[0] is not None else left.dtype.name
        made = sum_of_products(*operands, tuple(orders[0]), tuple(orders[1]), tuple(result), dtype)
        made = made.transpose([result.index(d) for d in sorted(result)])
        return jnp.expand_dims(made, tuple(d for d in range(left.ndim) if d not in result))
