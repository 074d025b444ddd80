"""Ops whose jnp form is their graph, evaluated: attention, and its gradients."""

from __future__ import annotations

import functools
from typing import Any

from codegen.runtime.call import arguments
from codegen.runtime.call.arguments import Axes, Types
from codegen.runtime.call.described import Key
from codegen.runtime.ops.op import Op, P, R
from codegen.runtime.xla import by_position
from codegen.runtime.xla.evaluate import Evaluation, wide


class ByGraph(Op[P, R]):
    """An op whose jnp form evaluates its graph."""

    def left_to_xla(self, types: Types, axes: Axes) -> str:
        del types, axes
        return ""

    @functools.cached_property
    def multiplied(self) -> frozenset[str]:
        return frozenset(a.name for a in self.plan.factors)

    def jnp_form(self, key: Key, *operands: Any) -> tuple[Any, ...]:
        plan, arrays = self.plan, self.arrays(key, operands)
        with wide(self.spec):
            axes = arguments.bind_axes(self.spec, arrays)
            read, params = by_position.widened(plan, arrays, self.compute(key)), self.parameters(key, operands)
            call = Evaluation(self.planned, read, params, axes, key.types, self.compute(key))
            found = call.outputs(plan.stores, {})
        return tuple(found[a] for a in self.spec.outputs)
