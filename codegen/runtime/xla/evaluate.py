"""Evaluates a chain's nodes in jnp, one by one: for the steps after a reduction over several devices."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp

from codegen.graph.emit import leaf_key
from codegen.graph.nodes import Node, topological
from codegen.graph.ops import OPS
from codegen.plan.access import Access, access_key
from codegen.plan.op import Op
from codegen.runtime.call import views
from codegen.runtime.call.arguments import Axes, Types
from codegen.runtime.call.cast import cast
from codegen.runtime.xla import random, scales, scatter, slopes
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


def evaluate_outputs(
    op: Op,
    stores: Sequence[Access],
    arrays: Mapping[str, Any],
    params: Mapping[str, Any],
    axes: Axes,
    types: Types,
    known: Mapping[int, jax.Array],
    compute: str,
) -> dict[Array, jax.Array]:
    """The outputs that `stores` write, rounded to their dtypes. `known` nodes are given, and `arrays` give the rest."""
    plan = op.plan
    values = {(s.name, s.part): s.value for s in op.statements}
    roots = [values[a.array.name, a.part] for a in stores if a.array is not None]
    needed = {leaf_key(n) for n in topological(roots, lambda n: id(n) in known)}
    leaves = leaf_values(op, needed, arrays, params, axes, compute)
    made = evaluate(roots, leaves, known, compute, op.spec.integer, dict(types.variables))
    return scatter.stored(plan, stores, made, arrays, axes, types)


def leaf_values(
    op: Op,
    needed: Collection[tuple[Any, ...]],
    arrays: Mapping[str, Any],
    params: Mapping[str, Any],
    axes: Axes,
    compute: str,
) -> dict[tuple[Any, ...], jax.Array]:
    """The `needed` values that a chain reads, and its parameters."""
    spec, plan = op.spec, op.plan
    leaves = {
        access_key(plan, a): views.jnp_value(plan, a, arrays, axes, compute, spec.integer)
        for a in plan.loads
        if a.mode == "table" or access_key(plan, a) in needed
    }
    dtypes = {"float": compute, "int": spec.integer, "bool": "bool"}
    return leaves | {("param", p.name): jnp.asarray(params[p.name], dtypes[p.kind]) for p in spec.params}


def evaluate(
    roots: Sequence[Node],
    leaves: Mapping[tuple[Any, ...], Any],
    given: Mapping[int, jax.Array],
    compute: str,
    integer: str,
    types: Mapping[str, str],
) -> list[jax.Array]:
    """The values of `roots`. `leaves` holds the values that they read, by `leaf_key`, and `given` the known nodes, by identity.
    Floats are computed in `compute`, integers in `integer`. `types` binds type variables for `cast`."""
    typed = {"float": compute, "int": integer, "bool": "bool"}
    values: dict[int, Any] = dict(given)

    def value(node: Node) -> Any:
        if node.is_const:
            return jnp.asarray(node.attr, typed[node.kind])
        if leaf_key(node) in leaves:
            return leaves[leaf_key(node)]
        if node.op == "input":  # a table: only `pick` reads it
            return None
        args = [values[id(a)] for a in node.args]
        if node.op == "pick":
            return slopes.pick_along(leaves["table", node.args[0].attr], node, args[1:])
        if node.op == "float":
            return args[0].astype(compute)
        if node.op == "cast":
            return cast(args[0], types.get(str(node.attr), str(node.attr))).astype(typed[node.kind])
        return _FUNCTIONS[node.op](*args, floating=compute, integer=integer)

    for node in topological(roots, lambda n: id(n) in given or leaf_key(n) in leaves):
        if id(node) not in values:
            values[id(node)] = value(node)
    return [values[id(root)] for root in roots]
