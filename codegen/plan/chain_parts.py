"""Makes an element-wise spec of a part of attention's chain, such as its scores."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from codegen.graph.nodes import Leaf, Node, topological
from codegen.language.transfer import Values, derived_spec
from codegen.plan.attention import NARROW, Part
from codegen.plan.elementwise import tile_plan
from codegen.spec.spec import Array, Spec


def is_zero(node: Node) -> bool:
    return node.is_const and node.kind != "bool" and float(str(node.attr)) == 0


def part_of(
    spec: Spec,
    which: str,
    values: Values,
    given: Sequence[Array],
    outputs: Sequence[Array],
    taken: Collection[str],
    factor_type: str,
) -> Part:
    """A part of a chain as an element-wise spec, of `given` arrays and inputs of the spec. A kernel has only narrow types of the
    products' factors, if the spec allows any: then scores may be approximate."""
    nodes = list(topological((s.value for s in values.statements), values.is_leaf))
    read = {leaf.name for n in nodes if isinstance(leaf := values.leaves.get(id(n), n.attr), Leaf)}
    inputs = (*given, *(a for a in spec.inputs if a.name in read and a not in given))
    types = tuple((n, (n == factor_type and tuple(d for d in own if d in NARROW)) or own) for n, own in spec.types)
    own = replace(
        spec, op=f"{spec.op}_{which}", summary=f"The {which} of {spec.op}.", inputs=inputs, params=spec.params_of(nodes),
        outputs=tuple(outputs), save=(), aliases=(), domain=(), bench=(), types=types, grad="none",
    )  # fmt: skip
    made = derived_spec(own, f"{spec.path} ({which})", values, taken)
    return Part(which, made, made.read.statements, tile_plan(made, made.read.statements, made.axes))
